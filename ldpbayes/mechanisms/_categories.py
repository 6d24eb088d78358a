"""Local mechanisms for categories: randomized response, unary encodings, subsets, hashing, or any by its matrix."""

import abc
import dataclasses
import math
from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from scipy import special

from ldpbayes._core.checks import (
    ABOVE_0,
    INSIDE_0_1,
    LARGEST_CODE,
    ArgumentError,
    at_least,
    checked,
    refuse,
    whole_numbers_up_to,
)
from ldpbayes._core.pytrees import Owed, check_fields, ruled, static
from ldpbayes._core.types import Array, Key, is_concrete
from ldpbayes.mechanisms.plausibility import implausible_counts, improbable_count
from ldpbayes.mechanisms.protocol import BitLaw, DiscreteMechanism, registered
from ldpbayes.numerics.arrays import CACHE_SIZE, by_rows, hadamard_transform
from ldpbayes.numerics.special import log_or_nothing
from ldpbayes.privacy import FiniteTradeoff, Guarantee
from ldpbayes.privacy.tradeoffs import PureProtocolTradeoff, checked_laws


class Categories(DiscreteMechanism):
    """Base of mechanisms for categories. A record is the code of its category: 0, ..., categories − 1."""

    categories: int
    noise, bounded, of_categories = None, True, True
    #: The law of sums of bits, a `BitLaw`; None if no bits are released, or dependent ones.
    bit_law: BitLaw | None = None
    #: Variance, over hash functions, of how much of another category's share an estimate takes for the category's own.
    collision_variance: ClassVar[Any] = 0.0
    domain = property(lambda self: constraints.integer_interval(0, self.categories - 1))

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """NaN: a released value is not a quantity."""
        nan = jnp.full(np.broadcast_shapes(np.shape(x), self.batch_shape) + self.event_shape, jnp.nan)
        return nan, nan

    def equivalence(self, z: np.ndarray) -> np.ndarray:
        return np.asarray(z).reshape(len(z), -1)

    def _codes(self, x: ArrayLike) -> jax.Array:
        """Records as an integer array; ValueError for other codes, if they are concrete."""
        last = self.categories - 1
        if is_concrete(x) and np.asarray(x).dtype != bool:
            checked("x", x, f"an integer from 0 to {last}", lambda a: (a >= 0) & (a <= last) & (a == np.floor(a)))
        return jnp.asarray(x).astype(int)


class LikelihoodTable(Categories):
    """Base of mechanisms whose `log_probs` has log p(z | x) of all categories x at once."""

    @abc.abstractmethod
    def log_probs(self, z: ArrayLike) -> jax.Array:
        """Return log p(z | x) for each category x, in the batch shape of `z`, then (categories,)."""

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        table, x = self.log_probs(z), jnp.asarray(x).astype(int)
        shape = jnp.broadcast_shapes(table.shape[:-1], x.shape)
        table, x = jnp.broadcast_to(table, (*shape, self.categories)), jnp.broadcast_to(x, shape)
        return jnp.take_along_axis(table, x[..., None], axis=-1)[..., 0]


@dataclasses.dataclass(frozen=True)
class PureProtocol(Categories):
    """Base of mechanisms in which every released value z supports a set S(z) of categories.

    The probability p(z | x) has one value for all x in S(z), and exp(−epsilon) times this value for all others.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget in nats, positive: one number, or one for each record. If it is infinite, records are not
        perturbed.
    categories : int
        Number of categories, at least 2. Records are the codes 0, ..., categories − 1; others raise a ValueError.
    """

    epsilon: Array = ruled(ABOVE_0)
    categories: int = static()

    _independent_bits: ClassVar[bool] = False  # whether codes are in S(z) independently of each other, given x
    #: P(x in S(z) | x), and P(k in S(z) | x) for each other code k, for each budget.
    support_probabilities: ClassVar[Annotated[Any, Owed("P(x in S(z) | x), and P(k in S(z) | x) for another code k")]]
    #: Largest P(x in S(z), x' not in S(z) | x) of any two codes x and x'.
    separation: ClassVar[Annotated[Any, Owed("largest P(x in S(z), x' not in S(z) | x) of any two codes x and x'")]]

    guarantee = property(lambda self: Guarantee(PureProtocolTradeoff(self.epsilon, self.separation)))
    _budget = property(lambda self: jnp.asarray(self.epsilon, jnp.result_type(float)))
    _keep = property(lambda self: np.exp(-np.asarray(self.epsilon)))  # on the host, in double precision

    @abc.abstractmethod
    def supports(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """Return whether `z` supports the category `x`, in the broadcast shape of `x` and the batch of `z`."""

    @abc.abstractmethod
    def log_supported(self, z: ArrayLike) -> jax.Array:
        """Return log p(z | x) for the categories x that `z` supports, in the batch shape of `z`."""

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "categories", at_least(2, "categories", self.categories, LARGEST_CODE))

    def membership(self, z: ArrayLike) -> jax.Array:
        """Return 1 for each category that `z` supports, else 0: the batch shape of `z`, then (categories,)."""
        ahead = np.ndim(z) - len(self.event_shape)
        return self.supports(jnp.expand_dims(z, ahead), np.arange(self.categories))

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        dtype = jnp.result_type(x, float)
        penalty = jnp.where(self.supports(z, x), 0.0, -jnp.asarray(self.epsilon, dtype))
        return self.log_supported(z).astype(dtype) + penalty.astype(dtype)

    def implausible(self, values: np.ndarray) -> list[str]:
        counts, n = self._support_counts(values) if self.categories <= MOST_COUNTED_CATEGORIES else None, len(values)
        if counts is None:
            return []
        p, q = (float(np.mean(np.broadcast_to(a, n))) for a in self.support_probabilities)
        tests = 2 * len(counts) + 2
        sentences = implausible_counts(counts, n, q, p, tests, "support category {}".format)
        if self._independent_bits:
            bits, ones, expected = n * self.categories, counts.sum(), n * (p + (self.categories - 1) * q)
            if any(improbable_count(ones, bits, expected / bits, tests, few) for few in (False, True)):
                sentences.append(f"{ones:,.0f} bits are set, where {expected:,.1f} are expected")
        return sentences

    def _support_counts(self, values: np.ndarray) -> np.ndarray | None:
        """Number of the released values (NumPy) that support each code; None where counting would take too long."""
        return None

    def _check_possible(self, values: np.ndarray, possible: Callable[[np.ndarray], Array], allowed: str) -> None:
        """ValueError where the value of a record of infinite budget is not `possible`: no category leads to it."""
        whole = np.isinf(self.epsilon) if is_concrete(self.epsilon) else np.zeros(())
        if whole.any() and np.shape(whole) in ((), (1,), (len(values),)):
            problem = f"a record of infinite budget must be released as {allowed}; {{}} are not"
            refuse(whole & ~possible(values), problem, place="in row {}")


class _Values(NamedTuple):
    """The values z that can be released: how many have a code in S(z), as many for each code."""

    odds: float  # number of those without a code, over that of those with it
    log_number: float  # of those with it
    share_with: float  # of those with a code, that have another one, too
    share_without: float  # of those without it, that have another one


class _EvenProtocol(PureProtocol):
    """A pure protocol under which all values with x in S(z) are equally likely, and so are all others."""

    monotone = True
    _values: Any  # the `_Values` that can be released
    separation = property(lambda self: self.support_probabilities[0] * (1 - self._values.share_with))
    # log of (1 - p)/p, where p = P(x in S(z) | x)
    _log_odds = property(lambda self: np.log(self._values.odds).item() - self._budget)

    def log_supported(self, z: ArrayLike) -> jax.Array:
        log_p = -jax.nn.softplus(self._log_odds) - self._values.log_number
        batch = jnp.shape(z)[: jnp.ndim(z) - len(self.event_shape)]
        return jnp.broadcast_to(log_p, jnp.broadcast_shapes(batch, log_p.shape))

    @property
    def support_probabilities(self) -> tuple[Array, Array]:
        odds, _, share_with, share_without = self._values
        p = 1 / (1 + odds * self._keep)
        return p, p * (share_with + share_without * odds * self._keep)


class BitVectorProtocol(PureProtocol):
    """Base of mechanisms that release the set S(z) as bits. The bit of a category is 1 if the category is in S(z)."""

    event_shape = property(lambda self: (self.categories,), doc="One bit for each category.")
    support = constraints.independent(constraints.boolean, 1)

    def supports(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        z, x = jnp.asarray(z), jnp.asarray(x).astype(jnp.int32)
        rows = z.reshape(-1, self.categories)
        return rows[jnp.arange(len(rows)).reshape(z.shape[:-1]), x] != 0

    def membership(self, z: ArrayLike) -> jax.Array:
        return jnp.asarray(z) != 0

    def possible_values(self, most: int) -> np.ndarray | None:
        if 2**self.categories > most:
            return None
        bits = np.indices((2,) * self.categories, np.uint8).reshape(self.categories, -1).T
        return bits[np.asarray(self.support(bits))]

    def equivalence(self, z: np.ndarray) -> np.ndarray:
        return np.packbits(z != 0, axis=-1)

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        dtype = jnp.result_type(x, float)
        p, q = (jnp.asarray(a, dtype)[..., None] for a in self.support_probabilities)
        is_true = jnp.asarray(x)[..., None] == jnp.arange(self.categories)
        mean = jnp.where(is_true, p, q)
        return mean, mean * (1 - mean)

    def _support_counts(self, values: np.ndarray) -> np.ndarray:
        return values.sum(axis=0, dtype=np.int64)

    def _validated(self, values: np.ndarray) -> np.ndarray:
        if values.dtype not in (bool, np.uint8) or values.max() > 1:
            bad = (values != 0) & (values != 1)
            rows = f"{bad.any(axis=1).sum()} of {len(values)} rows hold something else"
            refuse(bad, f"{type(self).__name__} releases bits, 0 or 1; {rows}", values, "in row {}, bit {}")
        return values.view(np.uint8) if values.dtype == bool else values.astype(np.uint8, copy=False)


def row_sums(z: Array) -> Array:
    """Number of ones along the last axis (..., categories): of NumPy arrays in NumPy, of JAX arrays in JAX."""
    if isinstance(z, np.ndarray):
        return z.sum(axis=-1, dtype=np.int32)
    # XLA is slow to add integers along rows; a product in single precision is exact up to 2^24
    width, ones = z.shape[-1], jnp.ones(z.shape[-1], jnp.float32)
    rows = by_rows(lambda part: (part != 0).astype(jnp.float32) @ ones, CACHE_SIZE // width)
    return rows(z.reshape(-1, width)).reshape(z.shape[:-1])


@registered(
    "randomized_response", "Release the true category with probability p, each other category with probability q."
)
class RandomizedResponse(_EvenProtocol):
    """Randomized response: release the true category with probability p, and each other category with probability q.

    Here q = 1 / (exp(epsilon) + categories − 1) and p = exp(epsilon) q ([Warner] for two categories, the default;
    [KBR]). `PureProtocol` describes epsilon and categories.

    Parameters
    ----------
    truth, flip, random : array_like, optional
        In place of epsilon, one of the probabilities that descriptions of methods state: ``truth`` is p, above
        1/categories, ``flip`` is 1 − p, and with probability ``random`` a category is drawn from all, with equal
        probabilities (as the `randomizedTriggerRate` of attribution reports), else the true one is released.

    Examples
    --------
    >>> print(*ldp.RandomizedResponse(epsilon=1.0).support_probabilities)
    0.7310585786300049 0.26894142136999516
    >>> ldp.RandomizedResponse(truth=0.75)
    RandomizedResponse(epsilon=1.0986122886681096, categories=2)
    """

    epsilon: Array = ruled(ABOVE_0, default=None)
    categories: int = static(default=2)
    has_matrix = True
    _: dataclasses.KW_ONLY
    truth: dataclasses.InitVar[Any] = None
    flip: dataclasses.InitVar[Any] = None
    random: dataclasses.InitVar[Any] = None
    support = property(attrgetter("domain"), doc="Released values: the codes 0, 1, ..., categories - 1.")
    _values = property(lambda self: _Values(self.categories - 1, 0.0, 0.0, 1 / (self.categories - 1)))

    @property
    def matrix(self) -> Array:
        """Probabilities p(z | x), an array (*batch_shape, categories, categories)."""
        xp: Any = np if is_concrete(self.epsilon) else jnp
        other = xp.exp(-xp.asarray(self.epsilon))[..., None, None]
        return (other + (1 - other) * np.eye(self.categories)) / (1 + (self.categories - 1) * other)

    def __post_init__(self, truth: Any = None, flip: Any = None, random: Any = None) -> None:
        stated = {"epsilon": self.epsilon, "truth": truth, "flip": flip, "random": random}
        given = [name for name, value in stated.items() if value is not None]
        if len(given) != 1:
            raise ValueError(f"give one of {', '.join(stated)}; got {', '.join(given) or 'none'}")
        if (name := given[0]) != "epsilon":
            object.__setattr__(self, "epsilon", _budget_of(name, stated[name], self.categories))
        super().__post_init__()

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        """Draw a released code for each record, in the dtype of `x` if that holds all codes, else as integers."""
        codes, dtype = self._codes(x), jnp.asarray(x).dtype
        if jnp.issubdtype(dtype, jnp.floating):
            exact = 2 / float(jnp.finfo(dtype).eps)
        else:
            exact = 0 if dtype.kind == "b" else jnp.iinfo(dtype).max
        released_dtype = dtype if self.categories - 1 <= exact else int
        shape = jnp.broadcast_shapes(codes.shape, jnp.shape(self.epsilon))
        key_flip, key_other = jax.random.split(key)
        flip = jax.random.uniform(key_flip, shape, self._budget.dtype) < jax.nn.sigmoid(self._log_odds)
        return flipped(key_other, codes, flip, self.categories).astype(released_dtype)

    def _support_counts(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(values, minlength=self.categories)

    def supports(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        return jnp.equal(z, x)

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        dtype = jnp.result_type(x, float)
        x, k = jnp.asarray(x, dtype), self.categories
        epsilon = jnp.asarray(self.epsilon, dtype)
        q = jnp.exp(-jax.nn.softplus(np.log(k - 1).item() - epsilon) - epsilon)
        # these are sums over all codes z of z - x and (z - x)^2; so centred, nothing cancels where z = x nearly always
        first = k * (k - 1) / 2 - k * x
        second = (k - 1) * k * (2 * k - 1) / 6 - k * (k - 1) * x + k * x**2
        return x + q * first, q * second - (q * first) ** 2


def _budget_of(name: str, value: ArrayLike, categories: int) -> Array:
    """Budget of randomized response from a probability that a description states."""
    apart = 1 - 1 / at_least(2, "categories", categories, LARGEST_CODE)  # 1 - p if answers do not depend on the truth

    def other(a: Array) -> Array:
        """1 − p, the probability of any other category."""
        return {"truth": 1 - a, "flip": a, "random": apart * a}[name]

    allowed = {"truth": f"above {1 - apart:.4g}, at most 1", "flip": f"at least 0, below {apart:.4g}"}
    hint = "; MirroredQuestion also takes probabilities below 1/2" if categories == 2 else ""
    if is_concrete(value):
        rule = allowed.get(name, "at least 0, below 1") + hint
        value = checked(name, value, rule, lambda a: (other(a) >= 0) & (other(a) < apart))
    xp = np if is_concrete(value) else jnp
    with np.errstate(divide="ignore"):  # without noise, the budget is infinite
        return (xp.log1p(-other(value)) - xp.log(other(value)) + math.log(categories - 1))[()]


class _UnaryEncoding(BitVectorProtocol):
    """Each bit of the one-hot code of x is perturbed by itself: 1 stays with probability p, 0 becomes 1 with q."""

    monotone = True
    _independent_bits: ClassVar[bool] = True
    _logits: Any  # logits of p and of q in the shape of a budget, by NumPy or JAX; infinite at an infinite budget
    _log_odds = property(lambda self: self._logits(self._budget, jnp))
    separation = property(lambda self: self.support_probabilities[0] * (1 - self.support_probabilities[1]))

    @property
    def bit_law(self) -> BitLaw:  # type: ignore[override]
        p, q = self.support_probabilities
        return BitLaw(p, q, p * (1 - p), q * (1 - q), 1, np.eye(self.categories)[None])

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        x = self._codes(x)
        of_true, of_other = (jax.nn.sigmoid(a)[..., None] for a in self._log_odds)
        shape = jnp.broadcast_shapes(x.shape, jnp.shape(self.epsilon)) + self.event_shape
        probability = jnp.where(x[..., None] == jnp.arange(self.categories), of_true, of_other)
        return (jax.random.uniform(key, shape, probability.dtype) < probability).astype(jnp.uint8)

    def log_supported(self, z: ArrayLike) -> jax.Array:
        of_true, of_other = self._log_odds
        ones = row_sums(z).astype(of_other.dtype) - 1
        zeros = self.categories - 1 - ones
        # at an infinite budget q = 0: with one bit set, 0 log 0 is 0; with none or several, the value is impossible
        exact = jnp.isinf(of_other)
        log_q = jnp.where(exact & (ones != 0), -jnp.inf, -ones * jax.nn.softplus(-jnp.where(exact, 0.0, of_other)))
        return -jax.nn.softplus(-of_true) + log_q - zeros * jax.nn.softplus(of_other)

    def _validated(self, values: np.ndarray) -> np.ndarray:
        values = super()._validated(values)
        self._check_possible(values, lambda bits: row_sums(bits) == 1, "itself, with one bit set")
        return values

    @property
    def support_probabilities(self) -> tuple[Array, Array]:
        p, q = (special.expit(a)[()] for a in self._logits(np.asarray(self.epsilon), np))  # on the host, as `_keep` is
        return p, q


@registered("optimal_unary_encoding", "Optimal unary encoding (OUE): release one perturbed bit for each category.")
class OptimalUnaryEncoding(_UnaryEncoding):
    """Optimal unary encoding (OUE): release one perturbed bit for each category ([WBLJ] sec. 4.2).

    The bit of the true category is 1 with probability p = 1/2 (1 if the budget is infinite), each other bit with
    probability q = 1 / (exp(epsilon) + 1). In [KJKH] eq. 9, q is our p. `PureProtocol` describes the parameters.

    Examples
    --------
    >>> print(*ldp.OptimalUnaryEncoding(epsilon=1.0, categories=5).support_probabilities)
    0.5 0.2689414213699951
    """

    _logits = staticmethod(lambda budget, xp: (xp.where(xp.isinf(budget), xp.inf, 0.0), -budget))


@registered(
    "symmetric_unary_encoding", "Symmetric unary encoding (SUE): release one randomly flipped bit for each category."
)
class SymmetricUnaryEncoding(_UnaryEncoding):
    """Symmetric unary encoding (SUE): release one bit for each category, after random flips ([WBLJ] sec. 4.2).

    Each bit of the one-hot code is flipped with probability q = 1 / (exp(epsilon / 2) + 1). This is the permanent
    response of basic RAPPOR ([EPK], f = 2 q). `PureProtocol` describes the parameters.

    Examples
    --------
    >>> print(*ldp.SymmetricUnaryEncoding(epsilon=1.0, categories=5).support_probabilities)
    0.6224593312018546 0.3775406687981454
    """

    _logits = staticmethod(lambda budget, xp: (budget / 2, -budget / 2))


@registered("unary_encoding", "Unary encoding: release one bit for each category, by any two probabilities p and q.")
class UnaryEncoding(_UnaryEncoding):
    """Unary encoding: release one bit for each category, by any two probabilities p and q ([WBLJ] sec. 4.2).

    The bit of the true category is 1 with probability p, each other bit with probability q < p. The budget is epsilon =
    log(p (1 − q)/((1 − p) q)). One report of RAPPOR with one bit for each category is such a release, with p = q* and q
    = p* of `Rappor`.

    Parameters
    ----------
    categories : int
        Number of categories, at least 2. Records are the codes 0, ..., categories − 1; others raise a ValueError.
    p, q : array_like
        Probability that the bit is 1 of the true category, and of any other; 0 < q < p < 1. One number, or one for
        each record.

    Examples
    --------
    >>> round(float(ldp.mechanisms.UnaryEncoding(categories=5, p=0.75, q=0.5).epsilon), 4)  # log 3
    1.0986
    """

    epsilon: Array = dataclasses.field(init=False, repr=False)
    p: Array = ruled(INSIDE_0_1)  # type: ignore[misc]  # epsilon is no argument
    q: Array = ruled(INSIDE_0_1)  # type: ignore[misc]
    monotone = False
    support_probabilities = property(lambda self: (self.p, self.q))  # type: ignore[assignment]
    _log_odds = property(lambda self: tuple(jnp.log(a) - jnp.log1p(-jnp.asarray(a)) for a in (self.p, self.q)))

    def __post_init__(self) -> None:
        check_fields(self)
        if is_concrete(self.p, self.q) and np.any(np.asarray(self.q) >= self.p):
            hint = "; RAPPOR's p is the q of unary encodings, and its q their p"
            raise ArgumentError("q", "below p", f"p = {self.p!r}, q = {self.q!r}{hint}")
        xp: Any = np if is_concrete(self.p, self.q) else jnp
        p, q = (xp.asarray(a) for a in (self.p, self.q))
        object.__setattr__(self, "epsilon", (xp.log1p((p - q) / q) + xp.log1p((p - q) / (1 - p)))[()])
        super().__post_init__()


@registered("subset_selection", "Subset selection: release a random set of categories.")
class SubsetSelection(BitVectorProtocol, _EvenProtocol):
    """Subset selection: release a random set of w categories ([YB]; [WHNWXY]).

    A set with the true category is exp(epsilon) times as probable as another. `PureProtocol` describes other
    parameters.

    Parameters
    ----------
    subset_size : int, optional
        Number w of categories in a set, from 1 to categories − 1, required if epsilon is an array. Default: categories
        / (exp(epsilon) + 1), rounded so that estimated frequencies have the smaller variance.

    Examples
    --------
    >>> ldp.SubsetSelection(epsilon=1.0, categories=20).subset_size
    5
    """

    subset_size: int = static(default=None)
    support = property(lambda self: _SizedSubset(self.subset_size))

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self._optimal_size() if self.subset_size is None else self.subset_size
        object.__setattr__(self, "subset_size", at_least(1, "subset_size", size, self.categories - 1))

    def _optimal_size(self) -> int:
        if not is_concrete(self.epsilon) or np.ndim(self.epsilon):
            raise ValueError("subset_size must be given if epsilon is an array or traced")
        d, around = self.categories, self.categories * float(self._keep / (1 + self._keep))
        sizes = np.clip([np.floor(around), np.ceil(around)], 1, d - 1).astype(int)

        def variance(w: int) -> Array:
            """Variance of the estimate of a frequency near zero, times the number of records."""
            p, q = dataclasses.replace(self, subset_size=w).support_probabilities
            return q * (1 - q) / (p - q) ** 2

        return min(map(int, sizes), key=variance)

    @property
    def _values(self) -> _Values:
        d, w = self.categories, self.subset_size
        log_binomial = -math.log(d) - float(special.betaln(w, d - w + 1))  # C(d - 1, w - 1)
        return _Values((d - w) / w, log_binomial, (w - 1) / (d - 1), w / (d - 1))

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        x, log_odds = self._codes(x), self._log_odds
        d, w = self.categories, self.subset_size
        shape = jnp.broadcast_shapes(x.shape, log_odds.shape)
        key_own, key_others = jax.random.split(key)
        held = jax.random.uniform(key_own, shape, log_odds.dtype) < jax.nn.sigmoid(-log_odds)
        # the set is the first w categories of an order: x is first or last in it, the others are shuffled
        order = jax.random.uniform(key_others, (*shape, d), log_odds.dtype)
        is_true = x[..., None] == jnp.arange(d)
        order = jnp.where(is_true, jnp.where(held, -1.0, 2.0)[..., None], order)
        rank = jnp.argsort(jnp.argsort(order, axis=-1), axis=-1)
        return (rank < w).astype(jnp.uint8)

    def _validated(self, values: np.ndarray) -> np.ndarray:
        values = super()._validated(values)
        sizes, wanted = row_sums(values), self.subset_size
        problem = f"SubsetSelection releases sets of {wanted} categories; {{}} of {len(values)} rows have another size"
        refuse(sizes != wanted, problem, sizes)
        return values


class _SizedSubset(constraints.multinomial):
    """Bit vectors with a given number of ones."""

    def __call__(self, z: Array) -> Array:
        return super().__call__(z) & (z <= 1).all(axis=-1)

    def feasible_like(self, prototype: jax.Array) -> jax.Array:
        ones = jnp.arange(prototype.shape[-1]) < self.upper_bound
        return jnp.broadcast_to(ones, prototype.shape).astype(prototype.dtype)


@registered("hadamard_response", "Hadamard response: release the number of a column of a Hadamard matrix.")
class HadamardResponse(_EvenProtocol):
    """Hadamard response: release the number of a column of a Hadamard matrix ([ASZ] Algorithm 1).

    A value z is one of 0, ..., K − 1, with K the smallest power of two above the number of categories. It supports x if
    the binary numbers x + 1 and z share an even number of ones. For epsilon well above 1, `SubsetSelection` and
    `LocalHashing` are more precise. `PureProtocol` describes the parameters.

    Examples
    --------
    >>> ldp.HadamardResponse(epsilon=1.0, categories=5).columns
    8
    """

    columns = property(lambda self: 1 << self.categories.bit_length(), doc="K, the number of possible released values.")
    first_row: ClassVar[Any] = 1  # the matrix's row for category 0
    support = property(lambda self: constraints.integer_interval(0, self.columns - 1))
    # two rows agree in half of the columns
    _values = property(lambda self: _Values(1.0, np.log(self.columns / 2).item(), 0.5, 0.5))

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        row, epsilon = self._codes(x).astype(jnp.int32) + self.first_row, self._budget
        shape = jnp.broadcast_shapes(row.shape, epsilon.shape)
        key_column, key_side = jax.random.split(key)
        column = jax.random.randint(key_column, shape, 0, self.columns)
        wanted = jax.random.uniform(key_side, shape, epsilon.dtype) < jax.nn.sigmoid(epsilon)
        # the columns with a one in row x + 1 are mapped onto the others by flipping the lowest bit that x + 1 has
        return jnp.where(_even_parity(row & column) == wanted, column, column ^ (row & -row))

    def _support_counts(self, values: np.ndarray) -> np.ndarray:
        differences = hadamard_transform(np.bincount(values, minlength=self.columns).astype(float))
        return (len(values) + differences[self.first_row :][: self.categories].astype(int)) // 2

    def supports(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        return _even_parity(jnp.asarray(z).astype(jnp.int32) & (jnp.asarray(x).astype(jnp.int32) + self.first_row))

    def _validated(self, values: np.ndarray) -> np.ndarray:
        values = super()._validated(values)
        # with three categories or more every column has a one in one of the first three rows
        if self.categories == 2:
            self._check_possible(values, lambda columns: columns != 3, "a column in which a category has a one")
        return values


def drawn_columns(matrix: jax.Array, row: jax.Array, law: jax.Array) -> jax.Array:
    """Columns drawn from rows of a matrix of probabilities, by numbers `law` that are uniform on [0, 1)."""
    cumulative, last = jnp.cumsum(matrix, axis=1), matrix.shape[1] - 1
    cumulative /= cumulative[:, -1:]  # rounding leaves nothing for the last column where that is zero
    # how many of the row's sums are not above `law`, by bisection: never more than the last column's position
    place = jnp.zeros(law.shape, int)
    for step in 2 ** np.arange(int(last).bit_length())[::-1]:
        further = jnp.minimum(place + step, last)
        place = jnp.where(cumulative[row, further - 1] <= law, further, place)
    return place


def flipped(key: Key, code: jax.Array, flip: jax.Array, number: int) -> jax.Array:
    """The records' codes, or another one of 0, ..., number − 1: from theirs on, one more than what is drawn."""
    other = jax.random.randint(key, flip.shape, 0, number - 1).astype(code.dtype)
    return jnp.where(flip, other + (other >= code), code)


def _even_parity(bits: jax.Array) -> jax.Array:
    return jax.lax.population_count(bits) % 2 == 0


MOST_COUNTED_CATEGORIES = 1 << 22  # categories whose values are counted to find implausible ones
MOST_HASHED_CATEGORIES = 10**7  # codes of at most seven digits
LARGEST_HASH_RANGE = 1 << 31


@registered(
    "local_hashing", "Hash the category to 0, ..., g − 1 with a random seed, then release seed and perturbed hash."
)
class LocalHashing(_EvenProtocol):
    """Hash the category to 0, ..., g − 1 with a random seed, then release the seed and a perturbed hash.

    Randomized response perturbs the hash. ``hash_range=2`` is binary local hashing (BLH), the default optimal local
    hashing (OLH, [WBLJ] sec. 4.3). A pair (seed, hash) supports the categories with this hash under this seed. The hash
    is xxHash32 of the code's decimal digits, modulo g, as in the package pure-ldp. The guarantee is for two categories
    with different hashes, the worst case. `PureProtocol` describes epsilon and categories (here at most 10^7).

    Parameters
    ----------
    hash_range : int, optional
        Number g of hashes, at least 2, required if epsilon is an array or infinite. Default: exp(epsilon), rounded,
        plus 1.

    Examples
    --------
    >>> ldp.LocalHashing(epsilon=1.0, categories=100).hash_range
    4
    """

    hash_range: int = static(default=None)
    event_shape = (2,)  # seed and hash
    separation = property(lambda self: self.support_probabilities[0])  # of codes that a seed hashes apart
    _share = property(lambda self: 1 / self.hash_range)  # of the codes that a seed hashes to one value, if it is ideal
    _values = property(lambda self: _Values(self.hash_range - 1, 32 * math.log(2), self._share, self._share))

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(2, "categories", self.categories, MOST_HASHED_CATEGORIES)
        g = self.hash_range
        if g is None:
            if not is_concrete(self.epsilon) or np.ndim(self.epsilon) or np.isinf(self.epsilon):
                raise ValueError("hash_range must be given if epsilon is an array, infinite or traced")
            g = min(round(math.exp(min(self.epsilon, 50.0))) + 1, LARGEST_HASH_RANGE)
        object.__setattr__(self, "hash_range", at_least(2, "hash_range", g, LARGEST_HASH_RANGE))

    @property
    def support(self) -> constraints.Constraint:
        last = np.array([2**32 - 1, self.hash_range - 1], np.uint32)
        return constraints.independent(constraints.integer_interval(np.uint32(0), last), 1)

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        x, log_odds = self._codes(x), self._log_odds
        shape = jnp.broadcast_shapes(x.shape, log_odds.shape)
        key_seed, key_flip, key_other = jax.random.split(key, 3)
        seed = jax.random.bits(key_seed, shape, jnp.uint32)
        code = self.hash(seed, x)
        flip = jax.random.uniform(key_flip, shape, log_odds.dtype) < jax.nn.sigmoid(log_odds)
        return jnp.stack([seed, flipped(key_other, code, flip, self.hash_range)], axis=-1)

    def hash(self, seed: ArrayLike, x: ArrayLike) -> jax.Array:
        """Return the hash of each code `x` under each `seed`, from 0 to `hash_range` − 1. Arguments broadcast."""
        return xxh32_of_decimal(x, seed, self.categories - 1) % np.uint32(self.hash_range)

    def supports(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        z = jnp.asarray(z).astype(jnp.uint32)
        return self.hash(z[..., 0], x) == z[..., 1]

    def equivalence(self, z: np.ndarray) -> np.ndarray:
        rows = max(1, (1 << 22) // self.categories)
        return np.concatenate([_packed(self, z[start : start + rows]) for start in range(0, len(z), rows)])

    def _validated(self, values: np.ndarray) -> np.ndarray:
        for column, (name, last) in enumerate((("seed", 2**32 - 1), ("hash", self.hash_range - 1))):
            part = values[:, column]
            whole_numbers_up_to(name, part, last)
            bad = (part < 0) | (part > last) | (part != np.floor(part))
            problem = f"LocalHashing releases pairs (seed, hash) with {name} an integer from 0 to {last}; {{}} are not"
            refuse(bad, problem, part, "in row {}")
        values = values.astype(np.uint32, copy=False)
        # the released values are concrete, even while something else is being traced
        with jax.ensure_compile_time_eval():
            supported = "a seed with the hash of a category"
            self._check_possible(values, lambda z: self.equivalence(z).any(axis=1), supported)
        return values


@jax.jit
def _packed(mechanism: LocalHashing, z: jax.Array) -> jax.Array:
    return jnp.packbits(mechanism.membership(z), axis=-1)


_PRIME_1, _PRIME_2, _PRIME_3 = np.uint32(2654435761), np.uint32(2246822519), np.uint32(3266489917)
_PRIME_4, _PRIME_5 = np.uint32(668265263), np.uint32(374761393)


def xxh32_of_decimal(x: ArrayLike, seed: ArrayLike, largest: int) -> jax.Array:
    """XxHash32 ([xxHash], inputs of less than 16 bytes) of the decimal digits of integers x from 0 to `largest` in
    ASCII, in the broadcast shape. `largest` is below 10^7 and fixes the number of digits that are computed.
    """
    shape = jnp.broadcast_shapes(jnp.shape(x), jnp.shape(seed))
    xp = np if is_concrete(x) else jnp  # digits of concrete codes are constants of a trace
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


class MatrixProtocol(Categories):
    """Base of mechanisms for categories that are given by probabilities p(z | x) of outputs z = 0, 1, ...

    Randomized answers of surveys are such mechanisms. The guarantee is for the two categories that are easiest to
    distinguish, and for the worst record if records have different probabilities. An output that is possible for one of
    the two categories only makes epsilon infinite, for delta below its probability.
    """

    has_matrix = True
    #: p(z | x), an array (*batch_shape, categories, outputs) of NumPy, or of JAX if a parameter is traced.
    matrix: Annotated[Any, Owed("probabilities p(z | x), an array (*batch_shape, categories, outputs)")]
    categories = property(lambda self: np.shape(self.matrix)[-2], doc="Number k of categories.")
    support = property(lambda self: constraints.integer_interval(0, np.shape(self.matrix)[-1] - 1))

    @property
    def guarantee(self) -> Guarantee:
        matrix = np.asarray(self.matrix)
        return Guarantee(FiniteTradeoff(matrix if matrix.ndim == 2 else np.unique(_flat(matrix), axis=0)))

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        codes, matrix = self._codes(x), jnp.asarray(self.matrix, jnp.result_type(float))
        shape = jnp.broadcast_shapes(codes.shape, matrix.shape[:-2])
        law = jax.random.uniform(key, shape, matrix.dtype)
        if matrix.ndim == 2:
            return drawn_columns(matrix, codes, law)
        return jnp.vectorize(drawn_columns, signature="(k,m),(),()->()")(matrix, codes, law)

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        matrix = jnp.asarray(self.matrix, jnp.result_type(x, float))
        x, z = jnp.asarray(x).astype(int), jnp.asarray(z).astype(int)
        if matrix.ndim == 2:
            return log_or_nothing(matrix[x, z])
        return log_or_nothing(jnp.vectorize(lambda of, x, z: of[x, z], signature="(k,m),(),()->()")(matrix, x, z))

    def implausible(self, values: np.ndarray) -> list[str]:
        matrices = _flat(np.asarray(self.matrix))
        counts = np.bincount(values, minlength=matrices.shape[-1])
        least, most = (end(matrices, axis=1).mean(axis=0) for end in (np.min, np.max))  # of all records
        return implausible_counts(counts, len(values), least, most, 2 * len(counts), "are {}".format)

    def _validated(self, values: np.ndarray) -> np.ndarray:
        values = super()._validated(values)
        if is_concrete(self.matrix) and self.batch_shape in ((), (1,), (len(values),)):
            possible = np.any(self.matrix, axis=-2)
            possible = np.broadcast_to(possible, (len(values), possible.shape[-1]))
            problem = "an output with a zero column in the matrix is impossible; {} values are such outputs"
            refuse(~possible[np.arange(len(values)), values], problem, values)
        return values


def _flat(matrices: np.ndarray) -> np.ndarray:
    return matrices.reshape(-1, *matrices.shape[-2:])


@registered("transition_matrix", "Any mechanism for categories, given by its matrix of probabilities p(z | x).")
class TransitionMatrix(MatrixProtocol):
    """Any mechanism for categories, given by its matrix of probabilities p(z | x).

    Parameters
    ----------
    matrix : array_like (k, m)
        p(z | x) of m outputs z in a row for each of k ≥ 2 categories x, for all records. Rows sum to one, up to 1e-9.
    """

    matrix: Array
    _shared: ClassVar[tuple[str, ...]] = ("matrix",)

    def __post_init__(self) -> None:
        if is_concrete(self.matrix):
            object.__setattr__(self, "matrix", checked_laws("matrix", self.matrix))
        if np.ndim(self.matrix) != 2 or len(self.matrix) < 2:
            raise ValueError(f"matrix must have a row for each category, at least two, got {np.shape(self.matrix)}")
