"""What protocols that release a bit for each category have in common: S(z) is the set of those whose bit is 1.

Released bits are 8-bit integers, categories along the last axis.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes.mechanisms._pure_protocol import PureProtocol
from ldpbayes.numerics._chunks import CHUNK, by_rows

__all__ = ["BitVectorProtocol", "row_sums"]


class BitVectorProtocol(PureProtocol):
    """A pure protocol that releases the membership of S(z) itself."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """One bit a category."""
        return (self.categories,)

    @property
    def support(self) -> constraints.Constraint:
        """Zeros and ones."""
        return constraints.independent(constraints.boolean, 1)

    def supports(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """Whether bit x of z is 1; see `PureProtocol.supports`."""
        z, x = jnp.asarray(z), jnp.asarray(x).astype(jnp.int32)
        rows = z.reshape(-1, self.categories)
        return rows[jnp.arange(len(rows)).reshape(z.shape[:-1]), x] != 0

    def membership(self, z: ArrayLike) -> jax.Array:
        """Return z; see `PureProtocol.membership`."""
        return jnp.asarray(z) != 0

    def equivalence(self, z: np.ndarray) -> np.ndarray:
        """Return the bits, eight to a byte; see `Mechanism.equivalence`."""
        return np.packbits(z != 0, axis=-1)

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Return the mean and the variance of the bits given x; see `Mechanism.moments`."""
        dtype = jnp.result_type(x, float)
        p, q = (jnp.asarray(a, dtype)[..., None] for a in self.support_probabilities)
        own = jnp.asarray(x)[..., None] == jnp.arange(self.categories)
        mean = jnp.where(own, p, q)
        return mean, mean * (1 - mean)

    def _support_counts(self, values: np.ndarray) -> np.ndarray:
        # a sum of 255 bits does not overflow 8 bits, in which adding is as fast as reading
        whole = len(values) // 255 * 255
        blocks = values[:whole].reshape(-1, 255, self.categories).sum(axis=1, dtype=np.uint8)
        return blocks.sum(axis=0, dtype=np.int64) + values[whole:].sum(axis=0, dtype=np.int64)

    def _validated(self, values: np.ndarray) -> np.ndarray:
        if values.dtype not in (bool, np.uint8) or values.max() > 1:
            bad = (values != 0) & (values != 1)
            if bad.any():
                row, bit = np.argwhere(bad)[0]
                raise ValueError(
                    f"{type(self).__name__} releases bits, 0 or 1; {bad.any(axis=1).sum()} of {len(values)} rows hold "
                    f"something else, the first ({values[row, bit]}) in row {row}, bit {bit}"
                )
        return values.view(np.uint8) if values.dtype == bool else values.astype(np.uint8, copy=False)


def row_sums(z: Any) -> Any:
    """Number of ones along the last axis: of NumPy arrays in NumPy, of JAX arrays in JAX.

    Parameters
    ----------
    z : array (..., categories)
        Bits.
    """
    if isinstance(z, np.ndarray):
        return z.sum(axis=-1, dtype=np.int32)
    # XLA is slow to add integers along rows; a product in single precision is exact up to 2^24
    rows = by_rows(
        lambda part: (part != 0).astype(jnp.float32) @ jnp.ones(z.shape[-1], jnp.float32), CHUNK // z.shape[-1]
    )
    return rows(z.reshape(-1, z.shape[-1])).reshape(z.shape[:-1])
