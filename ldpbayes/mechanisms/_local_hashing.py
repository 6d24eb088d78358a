"""Local hashing: a category is hashed to a small range with a hash function of its own, and the hash is perturbed."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes._core.checks import at_least, whole_numbers_up_to
from ldpbayes._core.pytrees import static
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array
from ldpbayes.mechanisms._categories import PureProtocol
from ldpbayes.mechanisms.registry import register

MAX_CATEGORIES = 10**7  # codes of at most seven digits
MAX_RANGE = 1 << 31


@register("local_hashing")
@dataclasses.dataclass(frozen=True)
class LocalHashing(PureProtocol):
    """Hash the category to 0, ..., g - 1 with a random seed; release the seed, and the hash by randomized response.

    These are binary local hashing (BLH, ``hash_range=2``) and optimal local hashing (OLH, the default) of [WBLJ], sec.
    4.3. The hash is xxHash32 of the code's decimal digits modulo g, as in the package pure-ldp, whose releases can be
    read as they are. A released value is (seed, hash); S(z) is the set of codes which that seed hashes to it, computed
    whenever it is needed. The guarantee holds for every seed and two categories which it hashes apart; a test that
    cannot choose the seed does worse.

    Parameters
    ----------
    epsilon, categories
        As for `PureProtocol`, up to 10^7 categories. An infinite budget leaves the hash as it is, which still
        hides the category among those of equal hash.
    hash_range : int, optional
        g, at least 2. Default: exp(epsilon) rounded, plus 1; with personal or infinite budgets it must be given.
    """

    hash_range: int = static(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(2, "categories", self.categories, MAX_CATEGORIES)
        g = self._optimal_range() if self.hash_range is None else self.hash_range
        object.__setattr__(self, "hash_range", at_least(2, "hash_range", g, MAX_RANGE))

    def _optimal_range(self) -> int:
        if not is_concrete(self.epsilon) or np.ndim(self.epsilon) or np.isinf(self.epsilon):
            raise ValueError("hash_range must be given where epsilon is an array, infinite or traced")
        return min(round(math.exp(min(self.epsilon, 50.0))) + 1, MAX_RANGE)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """A seed and a hash."""
        return (2,)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(
            constraints.integer_interval(np.uint32(0), np.array([2**32 - 1, self.hash_range - 1], np.uint32)), 1
        )

    def randomize(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """Draw seeds and hashes, (..., 2) of type uint32."""
        x = self._codes(x)
        g = self.hash_range
        epsilon = self._budget
        shape = jnp.broadcast_shapes(x.shape, epsilon.shape)
        key_seed, key_flip, key_other = jax.random.split(key, 3)
        seed = jax.random.bits(key_seed, shape, jnp.uint32)
        own = self._hash(seed, x)
        flip = jax.random.uniform(key_flip, shape, epsilon.dtype) < jax.nn.sigmoid(np.log(g - 1).item() - epsilon)
        other = jax.random.randint(key_other, shape, 0, g - 1).astype(jnp.uint32)
        return jnp.stack([seed, jnp.where(flip, other + (other >= own), own)], axis=-1)

    def _hash(self, seed: ArrayLike, x: ArrayLike) -> jax.Array:
        return xxh32_of_decimal(x, seed, self.categories - 1) % np.uint32(self.hash_range)

    def supports(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        z = jnp.asarray(z).astype(jnp.uint32)
        return self._hash(z[..., 0], x) == z[..., 1]

    def log_supported(self, z: ArrayLike) -> jax.Array:
        log_keep = -jax.nn.softplus(np.log(self.hash_range - 1).item() - self._budget)
        return self._one_a_value(-32 * np.log(2).item() + log_keep, z)

    @property
    def support_probabilities(self) -> tuple[Array, Array]:
        """1 / (1 + (g - 1) exp(-epsilon)), and 1/g, as for an ideal hash."""
        return self.separation, 1 / self.hash_range + 0 * self._keep

    @property
    def separation(self) -> Array:
        return 1 / (1 + (self.hash_range - 1) * self._keep)

    def equivalence(self, z: np.ndarray) -> np.ndarray:
        """Membership of the categories, eight to a byte."""
        rows = max(1, (1 << 22) // self.categories)
        parts = [_packed(self, z[start : start + rows]) for start in range(0, len(z), rows)]
        return np.concatenate([np.asarray(part) for part in parts])

    def _validated(self, values: np.ndarray) -> np.ndarray:
        for column, (name, last) in enumerate((("seed", 2**32 - 1), ("hash", self.hash_range - 1))):
            part = values[:, column]
            whole_numbers_up_to(name, part, last)
            bad = (part < 0) | (part > last) | (part != np.floor(part))
            if bad.any():
                row = np.argmax(bad)
                raise ValueError(
                    f"LocalHashing releases (seed, hash), the {name} an integer from 0 to {last}; "
                    f"{bad.sum()} are not, the first ({part[row]}) in row {row}"
                )
        values = values.astype(np.uint32, copy=False)
        if is_concrete(self.epsilon) and np.any(np.isinf(self.epsilon)):
            # the released values are concrete, even while something else is being traced
            with jax.ensure_compile_time_eval():
                supported = np.asarray(self.equivalence(values))
            self._check_possible(supported.any(axis=1), "a seed with the hash of a category")
        return values


@jax.jit
def _packed(mechanism: LocalHashing, z: jax.Array) -> jax.Array:
    return jnp.packbits(mechanism.membership(z), axis=-1)


_PRIME_1, _PRIME_2, _PRIME_3 = np.uint32(2654435761), np.uint32(2246822519), np.uint32(3266489917)
_PRIME_4, _PRIME_5 = np.uint32(668265263), np.uint32(374761393)


def xxh32_of_decimal(x: ArrayLike, seed: ArrayLike, largest: int) -> jax.Array:
    """XxHash32 ([xxHash], inputs of less than 16 bytes) of the decimal digits of x in ASCII, in the broadcast shape.

    x are integers from 0 to `largest`, which is below 10^7 and fixes the number of digits that are computed.
    """
    shape = jnp.broadcast_shapes(jnp.shape(x), jnp.shape(seed))
    xp: Any = np if is_concrete(x) else jnp  # digits of concrete codes are constants of a trace
    codes = xp.atleast_1d(xp.asarray(x)).astype(np.int32)  # a hash wraps around, of which NumPy warns in scalars
    width = len(str(largest))
    length = 1 + sum((codes >= 10**i).astype(np.int32) for i in range(1, width)) if width > 1 else xp.ones_like(codes)
    powers = xp.asarray([10**i for i in range(width)], dtype=np.int32)

    def byte(i: int) -> Array:
        """Digit i from the left, in ASCII; any byte beyond the last digit, where it does not matter."""
        return (48 + codes // powers[xp.maximum(length - 1 - i, 0)] % 10).astype(np.uint32)

    total = jnp.asarray(seed).astype(jnp.uint32) + (_PRIME_5 + length.astype(np.uint32))
    start = 0
    if width >= 4:
        word = byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24
        total = jnp.where(length >= 4, _rotate(total + word * _PRIME_3, 17) * _PRIME_4, total)
        start = xp.where(length >= 4, 4, 0)
    for i in range(min(width, 3)):
        total = jnp.where(start + i < length, _rotate(total + byte(start + i) * _PRIME_5, 11) * _PRIME_1, total)
    total = (total ^ (total >> 15)) * _PRIME_2
    total = (total ^ (total >> 13)) * _PRIME_3
    return (total ^ (total >> 16)).reshape(shape)


def _rotate(bits: jax.Array, by: int) -> jax.Array:
    return (bits << by) | (bits >> (32 - by))
