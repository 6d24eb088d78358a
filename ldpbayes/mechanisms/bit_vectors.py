"""Mechanisms for categories that release a bit for each category: unary encodings and subset selection.

S(z) is the set of categories whose bit is 1. Released bits are 8-bit integers, categories along the last axis.
"""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes.mechanisms.mechanism import _concrete, register
from ldpbayes.mechanisms.pure_protocol import CHUNK, PureProtocol, at_least, by_rows

__all__ = ["BitVectorProtocol", "OptimalUnaryEncoding", "SubsetSelection", "SymmetricUnaryEncoding"]


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
        # 255 bits at a time do not overflow an 8-bit sum, which is as fast as reading them
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


class _UnaryEncoding(BitVectorProtocol):
    """Each bit of the one-hot code of x is perturbed on its own: 1 stays with probability p, 0 becomes 1 with q."""

    _independent_bits: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def _log_odds(self) -> tuple[Any, Any]:
        """Logits of p and of q in the shape of the budget; minus or plus infinity at an infinite budget."""

    def __post_init__(self) -> None:
        self._check_budget_and_categories()

    def randomize(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """Draw the bits; codes outside 0, ..., categories - 1 raise ValueError where they can be seen.

        For simulation and studies. To release real data use a cryptographically secure sampler, such as OpenDP's.
        """
        x = self._codes(x)
        own, other = (jax.nn.sigmoid(a)[..., None] for a in self._log_odds)
        shape = jnp.broadcast_shapes(x.shape, jnp.shape(self.epsilon)) + self.event_shape
        probability = jnp.where(x[..., None] == jnp.arange(self.categories), own, other)
        return (jax.random.uniform(key, shape, probability.dtype) < probability).astype(jnp.uint8)

    def log_supported(self, z: ArrayLike) -> jax.Array:
        """Log of p times the probabilities of the other bits, when x is one of those set."""
        own, other = self._log_odds
        ones = _row_sums(z).astype(other.dtype) - 1
        zeros = self.categories - 1 - ones
        # at an infinite budget q = 0, and 0 log 0 is 0; other than one bit is impossible, also if that is none
        exact = jnp.isinf(other)
        log_q = jnp.where(exact & (ones != 0), -jnp.inf, -ones * jax.nn.softplus(-jnp.where(exact, 0.0, other)))
        return -jax.nn.softplus(-own) + log_q - zeros * jax.nn.softplus(other)

    def _validated(self, values: np.ndarray) -> np.ndarray:
        values = super()._validated(values)
        if _concrete(self.epsilon) and np.any(np.isinf(self.epsilon)):
            self._check_possible(_row_sums(values) == 1, "it is, with one bit set")
        return values

    @property
    def support_probabilities(self) -> tuple[Any, Any]:
        """The probabilities p and q; see `PureProtocol.support_probabilities`."""
        with jax.enable_x64(True):
            return tuple(np.asarray(jax.nn.sigmoid(a), float)[()] for a in self._log_odds)

    @property
    def separation(self) -> Any:
        """Return p (1 - q); see `PureProtocol.separation`."""
        p, q = self.support_probabilities
        return p * (1 - q)


@register("optimal_unary_encoding")
@dataclasses.dataclass(frozen=True)
class OptimalUnaryEncoding(_UnaryEncoding):
    """Unary encoding with p = 1/2 and q = 1 / (exp(epsilon) + 1) (OUE).

    Wang, Blocki, Li & Jha (2017), Section 4.2; Kulkarni et al., eq. (9), whose q and p are p and 1 - q here.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget of each record, positive; an array holds personal budgets, one a record. A record of infinite
        budget is released as it is: p = 1, q = 0.
    categories : int
        Number of categories, at least 2. Records are the codes 0, ..., categories - 1.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    epsilon: Any
    categories: int = dataclasses.field(metadata={"static": True})

    @property
    def _log_odds(self) -> tuple[jax.Array, jax.Array]:
        epsilon = jnp.asarray(self.epsilon, jnp.result_type(float))
        return jnp.where(jnp.isinf(epsilon), jnp.inf, 0.0), -epsilon


@register("symmetric_unary_encoding")
@dataclasses.dataclass(frozen=True)
class SymmetricUnaryEncoding(_UnaryEncoding):
    """Unary encoding with p = 1 - q = 1 / (1 + exp(-epsilon / 2)) (SUE): the permanent response of basic RAPPOR.

    Erlingsson, Pihur & Korolova (2014, "RAPPOR: randomized aggregatable privacy-preserving ordinal response"); their f
    is 2 q. Wang, Blocki, Li & Jha (2017), Section 4.2.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget of each record, positive; an array holds personal budgets, one a record. A record of infinite
        budget is released as it is.
    categories : int
        Number of categories, at least 2. Records are the codes 0, ..., categories - 1.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    epsilon: Any
    categories: int = dataclasses.field(metadata={"static": True})

    @property
    def _log_odds(self) -> tuple[jax.Array, jax.Array]:
        half = jnp.asarray(self.epsilon, jnp.result_type(float)) / 2
        return half, -half


@register("subset_selection")
@dataclasses.dataclass(frozen=True)
class SubsetSelection(BitVectorProtocol):
    """Release a random set of w categories, exp(epsilon) times likelier if it holds x.

    Ye & Barg (2018, "Optimal schemes for discrete distribution estimation under locally differential privacy");
    Wang et al. (2019, "Local differential private data aggregation for discrete distribution estimation").

    Parameters
    ----------
    epsilon : array_like
        Privacy budget of each record, positive; an array holds personal budgets, one a record. An infinite budget
        leaves a set that holds x for certain.
    categories : int
        Number of categories d, at least 2. Records are the codes 0, ..., d - 1.
    subset_size : int, optional
        Size w of the set, from 1 to d - 1. Default: of the two integers around d / (exp(epsilon) + 1) the one whose
        frequency estimates have the smaller variance; with personal budgets it must be given.

    Raises
    ------
    ValueError
        If a parameter is out of range, or the size is left out with personal budgets.
    """

    epsilon: Any
    categories: int = dataclasses.field(metadata={"static": True})
    subset_size: int | None = dataclasses.field(default=None, metadata={"static": True})

    def __post_init__(self) -> None:
        self._check_budget_and_categories()
        size = self._optimal_size() if self.subset_size is None else self.subset_size
        object.__setattr__(self, "subset_size", at_least(1, "subset_size", size, self.categories - 1))

    def _optimal_size(self) -> int:
        if not _concrete(self.epsilon) or np.ndim(self.epsilon):
            raise ValueError("subset_size must be given where epsilon is an array or traced")
        d, around = self.categories, self.categories * float(self._keep / (1 + self._keep))
        sizes = np.clip([np.floor(around), np.ceil(around)], 1, d - 1).astype(int)

        def variance(w):  # of a frequency near zero, times the number of records
            p, q = _subset_probabilities(d, w, self._keep)
            return q * (1 - q) / (p - q) ** 2

        return int(min(sizes, key=variance))

    def randomize(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """Draw the set as bits; codes outside 0, ..., d - 1 raise ValueError where they can be seen.

        For simulation and studies. To release real data use a cryptographically secure sampler.
        """
        x = self._codes(x)
        d, w = self.categories, self.subset_size
        epsilon = jnp.asarray(self.epsilon, jnp.result_type(float))
        shape = jnp.broadcast_shapes(x.shape, epsilon.shape)
        key_own, key_others = jax.random.split(key)
        held = jax.random.uniform(key_own, shape, epsilon.dtype) < jax.nn.sigmoid(epsilon + np.log(w / (d - w)).item())
        # x first or last, the others in random order: the first w are the set
        order = jax.random.uniform(key_others, (*shape, d), epsilon.dtype)
        own = x[..., None] == jnp.arange(d)
        order = jnp.where(own, jnp.where(held, -1.0, 2.0)[..., None], order)
        rank = jnp.argsort(jnp.argsort(order, axis=-1), axis=-1)
        return (rank < w).astype(jnp.uint8)

    def log_supported(self, z: ArrayLike) -> jax.Array:
        """Log probability of a set that holds x; see `PureProtocol.log_supported`."""
        d, w = self.categories, self.subset_size
        epsilon = jnp.asarray(self.epsilon, jnp.result_type(float))
        # C(d - 1, w - 1) sets hold x and C(d - 1, w) do not
        log_sets = float(np.sum(np.log(np.arange(d - w + 1, d)) - np.log(np.arange(1, w))))
        constant = -log_sets - jax.nn.softplus(np.log((d - w) / w).item() - epsilon)
        return jnp.broadcast_to(constant, jnp.broadcast_shapes(jnp.shape(z)[:-1], epsilon.shape))

    @property
    def support_probabilities(self) -> tuple[Any, Any]:
        """P(k in S(z) | x) for k = x and k other than x; see `PureProtocol.support_probabilities`."""
        return _subset_probabilities(self.categories, self.subset_size, self._keep)

    @property
    def separation(self) -> Any:
        """P(x in S(z), x' not in S(z) | x); see `PureProtocol.separation`."""
        d, w = self.categories, self.subset_size
        return self.support_probabilities[0] * (d - w) / (d - 1)

    @property
    def support(self) -> constraints.Constraint:
        """Zeros and ones, w of them ones."""
        return _SizedSubset(self.subset_size)

    def _validated(self, values: np.ndarray) -> np.ndarray:
        values = super()._validated(values)
        wrong = _row_sums(values) != self.subset_size
        if wrong.any():
            row = np.argmax(wrong)
            raise ValueError(
                f"SubsetSelection releases sets of {self.subset_size} categories; {wrong.sum()} of {len(values)} rows "
                f"have another size, the first ({_row_sums(values[row])}) at {row}"
            )
        return values


def _subset_probabilities(d: int, w: int, keep: Any) -> tuple[Any, Any]:
    p = w / (w + (d - w) * keep)
    return p, (p * (w - 1) + (1 - p) * w) / (d - 1)


class _SizedSubset(constraints.Constraint):
    """Bit vectors with a given number of ones."""

    is_discrete = True
    event_dim = 1

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, z: Any) -> Any:
        bits = (z == 0) | (z == 1)
        return bits.all(axis=-1) & ((z != 0).sum(axis=-1) == self.size)

    def feasible_like(self, prototype: jax.Array) -> jax.Array:
        """The first ``size`` categories."""
        return jnp.broadcast_to(jnp.arange(prototype.shape[-1]) < self.size, prototype.shape).astype(prototype.dtype)

    def tree_flatten(self) -> tuple:
        """Nothing is traced."""
        return (), ((), {"size": self.size})

    def eq(self, other: object, static: bool = False) -> bool:
        """Whether the sizes are the same."""
        return isinstance(other, _SizedSubset) and self.size == other.size

    __eq__ = eq
    __hash__ = None


def _row_sums(z: Any) -> Any:
    """Number of ones along the last axis; on the host where z is there."""
    if isinstance(z, np.ndarray):
        return z.sum(axis=-1, dtype=np.int32)
    # as a product in single precision, exact up to 2^24: XLA is slow to add integers along rows
    rows = by_rows(
        lambda part: (part != 0).astype(jnp.float32) @ jnp.ones(z.shape[-1], jnp.float32), CHUNK // z.shape[-1]
    )
    return rows(z.reshape(-1, z.shape[-1])).reshape(z.shape[:-1])
