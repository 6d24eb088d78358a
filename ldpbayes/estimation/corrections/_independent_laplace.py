"""The correction for independent Laplace noise: its deconvolution, a product of differential operators."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._pytree import pytree
from ldpbayes.estimation.corrections._correction import Correction, is_independent_laplace, is_zero_inflated
from ldpbayes.estimation.corrections._evidence import Corrected, Evidence, Points
from ldpbayes.estimation.losses._loss import Derivatives, Loss
from ldpbayes.mechanisms import Additive
from ldpbayes.noise import Noise

__all__ = ["Deconvolutions", "Deconvolved", "IndependentLaplaceCorrection"]


@dataclasses.dataclass(frozen=True)
class Deconvolved(Loss):
    """Π_j (1 − ½ λ² ∂²/∂x_j²) ℓ: its mean over records with independent Laplace noise is that of ℓ over the originals.

    Source: [LCQ], preprint, eq. 4.9. With many columns it takes derivatives of a high order, and compiling them takes
    long.

    Parameters
    ----------
    loss : Loss
        ℓ.
    index : tuple of int
        Perturbed columns.
    scale : array_like
        λ: the standard deviation of the noise in each column; broadcasts to one a row.
    """

    loss: Loss
    index: tuple[int, ...]
    scale: Any
    smooth = True

    def values(self, rows: jax.Array, theta: Any) -> jax.Array:
        """See `Loss.values`."""
        size = rows.shape[-1]

        def one(row: jax.Array, variance: jax.Array) -> jax.Array:
            def corrected(function: Callable, j: int) -> Callable:
                direction = jnp.asarray(np.eye(size)[j], rows.dtype)

                def along(row: jax.Array, v: jax.Array) -> jax.Array:
                    return jax.jvp(function, (row,), (v,))[1]

                def operated(row: jax.Array) -> jax.Array:
                    bend = jax.jvp(lambda r: along(r, direction), (row,), (direction,))[1]
                    return function(row) - 0.5 * variance * bend

                return operated

            return functools.reduce(corrected, self.index, lambda row: self.loss.values(row, theta))(row)

        variances = jnp.broadcast_to(jnp.asarray(self.scale, rows.dtype) ** 2, rows.shape[:-1])
        return jax.vmap(one)(rows.reshape(-1, size), variances.reshape(-1)).reshape(rows.shape[:-1])

    def laplacians(self, rows: jax.Array, theta: Any, index: tuple[int, ...]) -> jax.Array:
        """None: a corrected loss is not corrected again."""
        raise NotImplementedError("this loss is corrected already")

    def names(self, columns: tuple[str, ...]) -> list[str] | None:
        """See `Loss.names`."""
        return self.loss.names(columns)


@pytree
@dataclasses.dataclass(frozen=True)
class Deconvolutions(Points):
    """A term of a corrected loss: the loss `Deconvolved` at some points, weighted.

    Parameters
    ----------
    rows, weights
        See `Points`.
    scale : array (points, N)
        λ of each point.
    """

    scale: Any

    def values(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> jax.Array:
        """See `Points.values`."""
        return Deconvolved(loss, index, self.scale).values(self.rows, theta)

    def total(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> Derivatives:
        """See `Points.total`."""
        return Deconvolved(loss, index, self.scale).total(self.rows, self.weights, theta)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class IndependentLaplaceCorrection(Correction):
    """Π_j (1 − ½ λ² ∂²/∂x_j²) ℓ(X⁽¹⁾), for independent Laplace noise ([LCQ], preprint, eq. 4.9)."""

    name: ClassVar[str] = "independent"
    only_smooth: ClassVar[bool] = True

    def takes(self, noise: Noise, columns: int) -> bool:
        """Laplace noise in every column independently, not zero-inflated; see `Correction.takes`."""
        return is_independent_laplace(noise, columns) and not is_zero_inflated(noise)

    def derivatives(self, columns: int) -> int:
        """Two in each column, one column after the other; see `Correction.derivatives`."""
        return 2 * columns

    def evidence(
        self, loss: Loss, mechanism: Additive, rows: jax.Array, key: Any, *, everywhere: bool = True
    ) -> Evidence:
        """The corrected loss; see `Correction.evidence`."""
        ones = jnp.ones((1, len(rows)), rows.dtype)
        scale = jnp.asarray(mechanism.noise.standard_deviation, rows.dtype) * ones
        return Evidence.of(Corrected((Deconvolutions(rows[None], ones, scale),)))
