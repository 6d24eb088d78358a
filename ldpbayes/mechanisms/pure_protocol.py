"""Pure protocols: mechanisms for categories whose p(z | x) takes two values, and with them one likelihood for all.

Each released value z supports a set of categories S(z), and p(z | x) is exp(epsilon) times larger for the categories in
S(z) than for the others (Wang, Blocki, Li & Jha 2017, "Locally differentially private protocols for frequency
estimation", Definition 3). Whatever is asked of z then goes through the membership of categories in S(z).
"""

import abc
import operator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes.mechanisms.bit_product import bit_product, pays
from ldpbayes.mechanisms.mechanism import Mechanism, _concrete
from ldpbayes.mechanisms.plausibility import implausible_support
from ldpbayes.privacy import Guarantee, PureProtocolTradeoff
from ldpbayes.privacy.tradeoff import checked

__all__ = ["PureProtocol", "at_least", "by_rows"]

CHUNK = 1 << 15  # memberships at a time: as floating-point numbers they stay in a core's cache
BIT_CHUNK = 1 << 23  # and as 8-bit integers, where a loop costs more than the cache saves
FEWEST = 64  # categories for which these are faster, for one chain and for four (docs/benchmarks.md)


class PureProtocol(Mechanism):
    """p(z | x) = exp(log_supported(z)) for x in S(z), and exp(-epsilon) times that for the other categories.

    Subclasses have the fields ``epsilon`` (a number, or an array with one budget a record; infinity stands for a record
    whose code is not perturbed) and ``categories`` (a static integer; records are the codes 0, ..., categories - 1).
    """

    epsilon: Any
    categories: int

    @abc.abstractmethod
    def supports(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """Whether the code x is in S(z), in the broadcast shape of x and the batch shape of z."""

    @abc.abstractmethod
    def log_supported(self, z: ArrayLike) -> jax.Array:
        """Log p(z | x) for the codes x in S(z), in the batch shape of z; nothing of the model enters it."""

    @property
    @abc.abstractmethod
    def support_probabilities(self) -> tuple[Any, Any]:
        """P(k in S(z) | x) for k = x and for any k other than x, as floats or arrays in the shape of the budget."""

    @property
    @abc.abstractmethod
    def separation(self) -> Any:
        """Largest P(x in S(z), x' not in S(z) | x) over pairs of codes: the mass on which they differ."""

    def _check_budget_and_categories(self) -> None:
        self._check("epsilon", "positive", lambda a: a > 0)
        object.__setattr__(self, "categories", at_least(2, "categories", self.categories))

    def membership(self, z: ArrayLike) -> jax.Array:
        """Which codes are in S(z): zeros and ones, the codes along a new last axis."""
        ahead = np.ndim(z) - len(self.event_shape)
        return self.supports(jnp.expand_dims(z, ahead), np.arange(self.categories))

    def supported_mass(self, z: ArrayLike, theta: ArrayLike, groups: ArrayLike | None = None) -> jax.Array:
        """Probability of S(z) under a law theta of the codes, in chunks of released values.

        Parameters
        ----------
        z : array_like
            Released values.
        theta : array_like
            Probabilities of the codes along the last axis; the others broadcast with the batch shape of z.
        groups : array_like of int, optional
            For each released value of a one-dimensional batch, the row of theta that is its law.

        Returns
        -------
        jax.Array
            In the broadcast batch shape.
        """
        theta = jnp.asarray(theta)
        batch = np.shape(z)[: np.ndim(z) - len(self.event_shape)]
        if groups is None and theta.ndim > 1:
            return jnp.sum(self.membership(z).astype(theta.dtype) * theta, axis=-1)
        rows = jnp.reshape(z, (-1, *self.event_shape))
        if groups is None:
            if self._in_digits(len(rows), theta):
                product, chunk = bit_product, BIT_CHUNK
            else:
                product, chunk = (lambda bits, theta: bits.astype(theta.dtype) @ theta), CHUNK
            mass = by_rows(lambda part: product(self.membership(part), theta), chunk // self.categories)(rows)
        else:
            mass = by_rows(
                lambda part, group: jnp.sum(jnp.where(self.membership(part), theta[group], 0.0), axis=-1),
                CHUNK // self.categories,
            )(rows, jnp.asarray(groups))
        return mass.reshape(batch)

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """Log probability of z given x; codes may be integers or floats. See `Mechanism.log_prob`."""
        dtype = jnp.result_type(x, float)
        penalty = jnp.where(self.supports(z, x), 0.0, -jnp.asarray(self.epsilon, dtype))
        return self.log_supported(z).astype(dtype) + penalty.astype(dtype)

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """NaN, as for NumPyro's Categorical: released values are labels; see `Mechanism.moments`."""
        nothing = jnp.full(np.broadcast_shapes(np.shape(x), np.shape(self.epsilon)) + self.event_shape, jnp.nan)
        return nothing, nothing

    @property
    def domain(self) -> constraints.Constraint:
        """The codes 0, ..., categories - 1."""
        return constraints.integer_interval(0, self.categories - 1)

    @property
    def guarantee(self) -> Guarantee:
        """Pure local differential privacy, with the trade-off curve of the pair of codes that differ most."""
        return Guarantee(PureProtocolTradeoff(self.epsilon, self.separation))

    def implausible(self, values: np.ndarray) -> list[str]:
        """Categories that too many or too few values support; see `Mechanism.implausible`."""
        counts, n = self._support_counts(values), len(values)
        if counts is None:
            return []
        p, q = (float(np.mean(np.broadcast_to(a, n))) for a in self.support_probabilities)
        bits = (n * self.categories, n * (p + (self.categories - 1) * q)) if self._independent_bits else None
        return implausible_support(counts, n, p, q, bits)

    _independent_bits: ClassVar[bool] = False
    """Whether codes are in S(z) independently of each other, given x."""

    def _support_counts(self, values: np.ndarray) -> np.ndarray | None:
        """How many of the released values (NumPy) support each code; None where that takes too long to look at."""
        return None

    def _codes(self, x: ArrayLike) -> jax.Array:
        """Records as an integer array; ValueError for other codes, where they can be seen."""
        last = self.categories - 1
        if _concrete(x) and np.asarray(x).dtype != bool:
            checked("x", x, f"an integer from 0 to {last}", lambda a: (a >= 0) & (a <= last) & (a == np.floor(a)))
        return jnp.asarray(x).astype(int)

    def _check_possible(self, possible: np.ndarray, what: str) -> None:
        """ValueError where the value of a record of infinite budget is not `possible`: no category leads to it."""
        if not _concrete(self.epsilon) or np.shape(self.epsilon) not in ((), (1,), (len(possible),)):
            return
        wrong = np.isinf(self.epsilon) & ~possible
        if wrong.any():
            raise ValueError(
                f"a record of infinite budget is released as {what}; {wrong.sum()} are not, the first in row "
                f"{np.argmax(wrong)}"
            )

    def _in_digits(self, count: int, theta: jax.Array) -> bool:
        """Whether the masses of so many released values are left to `bit_product`: where it is faster, and suffices.

        It has absolute precision, which is enough if p(z | theta) is at least exp(-7) of its largest.
        """
        many = self.categories >= FEWEST and count * self.categories > 2 * CHUNK
        return many and pays() and theta.dtype == jnp.float64 and _concrete(self.epsilon) and np.max(self.epsilon) <= 7

    @property
    def _keep(self) -> np.ndarray:
        """exp(-epsilon) in double precision, for what is computed on the host."""
        return np.exp(-np.asarray(self.epsilon))


def at_least(least: int, name: str, value: Any, most: int | None = None) -> int:
    """Return an integer field, or raise ValueError unless least <= value (<= most)."""
    try:
        number = least - 1 if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or (most is not None and number > most):
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be an integer {span}, got {value!r}")
    return number


def by_rows(function, rows):
    """Apply a function of rows in chunks, recomputed rather than stored when differentiated.

    Parameters
    ----------
    function : callable
        Maps arrays (rows, ...) to an array (rows,).
    rows : int
        Rows at a time; at least one is taken.

    Returns
    -------
    callable
        The function for any number of rows.
    """

    def apply(*arrays):
        n, size = arrays[0].shape[0], max(1, rows)
        if n <= 2 * size:
            return function(*arrays)
        count = -(-n // size)

        @jax.checkpoint
        def chunk(start):
            return function(*(lax.dynamic_slice_in_dim(a, start, size) for a in arrays))

        # the last chunk overlaps the one before, so that none has another shape
        parts = lax.map(chunk, jnp.minimum(jnp.arange(count) * size, n - size))
        return jnp.concatenate([parts[:-1].ravel(), parts[-1, count * size - n :]])

    return apply
