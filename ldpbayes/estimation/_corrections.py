"""Corrections of a loss for the noise of a release."""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.scipy.special import ndtr, ndtri

from ldpbayes._core.checks import FINITE, checked, is_integer
from ldpbayes._core.pytrees import equal, pytree_dataclass, static
from ldpbayes._core.types import Array, Key, is_concrete
from ldpbayes.estimation.losses import Loss, derivatives_up_to
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.noise import Laplace, Noise, SymmetricLaplace, ZeroInflated
from ldpbayes.numerics.minimise import Derivatives, value_gradient_hessian

DEFAULT_DRAWS = 16  # default draws of the analyst's own noise for each record
LEGENDRE_NODES, LAGUERRE_NODES = 16, 32  # nodes of the Gauss rules on a piece and on a tail of an integral
PIECE_ENDS = (-32.0, -8.0, -2.0, 0.0, 2.0, 8.0, 32.0)  # ends of the pieces, in scales of the Laplace noise

Bounds = tuple[Array, Array] | None  # arrays over the perturbed columns
Support = Bounds | str  # numbers too, or "bounds": a mechanism's


@jax.tree_util.register_static
class _Word(str):
    """A word that is part of a tree's structure; a plain string would be a leaf that no compiled function takes."""


BOUNDS = _Word("bounds")


@dataclasses.dataclass(frozen=True, eq=False)
class Correction(abc.ABC):
    """Base class of corrections of a loss: functions of a released record with the mean of the original record's loss.

    Your own is a frozen dataclass that defines `takes`, and `terms` or `evidence`. Fields that are neither numbers nor
    arrays have ``metadata={"static": True}``.
    """

    name: ClassVar[str]  # in tables and messages; by default the name of the class
    original: ClassVar[bool] = False  # whether the method takes original records instead of a release
    only_smooth: ClassVar[bool] = False  # whether it is biased, and refused, for a loss without `derivatives`
    beyond: ClassVar[bool] = False  # whether it evaluates a loss outside the support too, if that is finite there

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    @property
    def support(self) -> Support:
        """A region with all original records, in which every loss must be finite. None if no region is known."""
        return None

    @abc.abstractmethod
    def takes(self, noise: Noise, columns: int) -> bool:
        """Return True if the correction is valid for this `noise`, if `columns` columns of a record have noise."""

    def terms(self, mechanism: Additive, rows: jax.Array, key: Key) -> tuple["Points", ...]:
        """Return the terms (`Points` or `Laplacians`) whose sum is the corrected loss of N released rows (N, columns).

        ``mechanism.index`` has the positions of the columns with noise. `key` is a random key, if the correction draws
        further noise. For `Oracle`, `rows` are original rows. JAX must be able to trace this method.
        """
        raise NotImplementedError(f"{type(self).__name__} must define the method terms or the method evidence")

    def evidence(
        self, loss: Loss, mechanism: Additive, rows: jax.Array, key: Key, *, everywhere: bool = True
    ) -> "EvidenceCorrection":
        """Return corrected losses and functions of mean zero, computed from the rows and key of `terms`.

        `everywhere` is True if the loss is finite for all rows, also outside `support`. JAX must be able to trace this.
        """
        return EvidenceCorrection.of(self.terms(mechanism, rows, key))

    def derivatives(self, columns: int) -> int:
        """Return how many derivatives of the loss in a record the correction uses, if `columns` columns have noise."""
        return 0

    def settled(self, mechanism: Additive) -> "Correction":
        """Return a copy for a `mechanism`, with numbers for the support "bounds"; ValueError if it is unfit."""
        return self

    def exact(self, mechanism: Additive) -> Array:
        """Return the probability that a record gets no noise. Such records show the curvature of a loss with kinks."""
        return mechanism.unperturbed

    def __eq__(self, other: object) -> bool:
        return equal(self, other)

    def __hash__(self) -> int:
        return hash((type(self), jax.tree.structure(self)))


@pytree_dataclass
class Points:
    """A term of a corrected loss: for each of N records, a weighted sum of its values at m points, which are rows.

    Parameters
    ----------
    rows : array (m, N, columns)
        The m points of each of N records.
    weights : array (m, N)
        The weight of each point in the sum.
    """

    rows: Array
    weights: Array

    def __post_init__(self) -> None:
        rows, weights = np.shape(self.rows), np.shape(self.weights)
        if len(rows) != 3 or rows[:2] != weights:
            allowed = "rows of shape (points, N, columns) and weights of shape (points, N)"
            raise ValueError(f"points must have {allowed}; got shapes {rows} and {weights}")

    def values(self, loss: Loss, theta: Array, index: tuple[int, ...]) -> jax.Array:
        """Return the values (m, N) of the loss at the points, for parameters `theta` and noise in columns `index`."""
        return loss.values(self.rows, theta)

    def total(self, loss: Loss, theta: Array, index: tuple[int, ...]) -> Derivatives:
        """Return the weighted sum of the `values` of all points and records, with its derivatives in `theta`."""
        return loss.total(self.rows, self.weights, theta)


@pytree_dataclass
class Laplacians(Points):
    """`Points` at which the Laplacian of the loss is summed: its second derivatives in the columns with noise."""

    def values(self, loss: Loss, theta: Array, index: tuple[int, ...]) -> jax.Array:
        return loss.laplacians(self.rows, theta, index)

    def total(self, loss: Loss, theta: Array, index: tuple[int, ...]) -> Derivatives:
        return loss.total_laplacian(self.rows, self.weights, theta, index)


@pytree_dataclass
class Corrected:
    """A corrected loss of N records, the sum of its terms; its methods take the arguments of `Points.values`."""

    terms: tuple[Points, ...]

    def values(self, loss: Loss, theta: Array, index: tuple[int, ...]) -> Array:
        """Corrected losses (N,)."""
        return sum(jnp.sum(term.weights * term.values(loss, theta, index), axis=0) for term in self.terms)

    def derivatives(self, loss: Loss, theta: Array, index: tuple[int, ...]) -> Derivatives:
        """Mean of the corrected losses, with its derivatives in `theta`."""
        totals = [term.total(loss, theta, index) for term in self.terms]
        return Derivatives(*(sum(parts) / self.count for parts in zip(*totals, strict=True)))

    def scores(self, loss: Loss, theta: Array, index: tuple[int, ...]) -> jax.Array:
        """Scores (N, p): gradients of the corrected losses in the parameters `theta`."""
        return jax.jacfwd(lambda at: self.values(loss, at, index))(theta)

    count = property(lambda self: self.terms[0].rows.shape[1])


@pytree_dataclass
class EvidenceCorrection:
    """Corrected losses of N released records and functions of mean zero; made by `EvidenceCorrection.of`.

    Parameters
    ----------
    criteria : tuple
        Corrected losses with the same expectation. `m_estimate` minimises the mean of the first; differences between
        their scores (gradients) have mean zero, and make the estimate more precise.
    controls : array (N, q)
        Values of q functions of a released record that have mean zero for all parameters, for more precision.
    """

    criteria: tuple[Corrected, ...]
    controls: Array

    @classmethod
    def of(cls, *criteria: tuple[Points, ...], controls: Array = None) -> Self:
        """Return an object of corrected losses, each a tuple of terms. Default: no controls."""
        losses = tuple(map(Corrected, criteria))
        if controls is None:
            controls = jnp.zeros((losses[0].count, 0), criteria[0][0].rows.dtype)
        return cls(losses, controls)

    def joined(self, other: "EvidenceCorrection") -> "EvidenceCorrection":
        """Return an object for the records of this one and of `other`."""
        criteria = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), self.criteria, other.criteria)
        return EvidenceCorrection(criteria, jnp.concatenate([self.controls, other.controls]))

    def weighted(self, weights: jax.Array) -> "EvidenceCorrection":
        """Return an object whose corrected losses and controls are multiplied by `weights` (N,) of the records."""
        terms = [[dataclasses.replace(t, weights=t.weights * weights) for t in c.terms] for c in self.criteria]
        return EvidenceCorrection.of(*map(tuple, terms), controls=self.controls * weights[:, None])


@pytree_dataclass(eq=False)
class Naive(Correction):
    """No correction: released records as if they were original ones. The estimate is biased; only for comparisons."""

    name: ClassVar[str] = "naive"

    def takes(self, noise: Noise, columns: int) -> bool:
        return True

    def terms(self, mechanism: Additive, rows: jax.Array, key: Key) -> tuple[Points, ...]:
        return (_released_points(rows),)

    def exact(self, mechanism: Additive) -> Array:
        return 1.0


@pytree_dataclass(eq=False)
class Oracle(Naive):
    """The loss of the original records. The estimate is not private; only for comparisons."""

    name: ClassVar[str] = "oracle"
    original: ClassVar[bool] = True


@pytree_dataclass(eq=False)
class AveragedCorrection(Correction):
    """A method that averages over the analyst's own noise."""

    draws: int | Literal["exact"] = static(default=DEFAULT_DRAWS)
    cuts: tuple[float, ...] = static(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if not (isinstance(self.draws, str) and self.draws == "exact"):
            if not is_integer(self.draws) or self.draws < 1:
                raise ValueError(f"draws must be a positive integer or 'exact', got {self.draws!r}")
            object.__setattr__(self, "draws", int(self.draws))
        cuts = np.asarray(self.cuts)
        if cuts.ndim != 1 or cuts.dtype.kind not in "iuf" or not np.isfinite(cuts).all():
            raise ValueError(f"cuts must be a sequence of finite numbers, got {self.cuts!r}")
        object.__setattr__(self, "cuts", tuple(map(float, cuts)))

    def settled(self, mechanism: Additive) -> Self:
        if self.draws == "exact" and mechanism.dimension != 1:
            raise ValueError(f"draws='exact' needs one perturbed column, got {mechanism.dimension}")
        return self

    def noisier_points(self, mechanism: Additive, rows: jax.Array, key: Key, support: Bounds = None) -> Points:
        """X⁽¹⁾ + S for released X⁽¹⁾ and symmetric Laplace S of standard deviation √δ λ, as points with weights
        1/draws, or less if S leads out of the support.
        """
        index = mechanism.index
        delta, deviation = chance_and_deviation(mechanism, rows)
        part, deviation = rows[:, index], (jnp.sqrt(delta) * deviation)[0]
        if isinstance(self.draws, str):
            points, weights = _quadrature_points(part[:, 0], deviation, support, self.cuts)
        else:
            points, weights = _random_points(part, deviation, key, self.draws, support)
        spread = jnp.broadcast_to(rows, (points.shape[0], *rows.shape))
        return Points(spread.at[..., index].set(points), weights)


@pytree_dataclass(eq=False)
class DoublyRandom(AveragedCorrection):
    """Correction for zero-inflated symmetric Laplace noise, for losses with or without kinks ([LCQ] Theorem 5.1).

    The corrected loss of a released record z is ℓ(z)/δ + (1 − 1/δ) ℓ(z + S), where ℓ is the loss, and δ the probability
    that a record gets no noise. The method draws S: symmetric Laplace noise with standard deviation √δ λ, where λ is
    that of the noise of the mechanism. Outside a known ``support``, ℓ is set to 0. The estimator of [LCQ] has
    ``draws=1`` and ``support=None``.

    Parameters
    ----------
    draws : int or "exact"
        Number of draws of S for each record. Default: 16. "exact" integrates over S numerically, and needs exactly one
        column with noise.
    support : "bounds", (lower, upper) or None
        A region that contains all original values in the columns with noise: the clipping bounds of the mechanism
        ("bounds", default), or two numbers, or two arrays with one number for each of these columns. None: unknown.
    cuts : sequence of float
        Only for ``draws="exact"``: values of the column with noise at which the loss has kinks.
    """

    support: Support = BOUNDS

    name: ClassVar[str] = "dr"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "support", _checked_support(self.support))

    def takes(self, noise: Noise, columns: int) -> bool:
        return isinstance(noise, ZeroInflated) and is_laplace(noise, SymmetricLaplace, columns)

    def settled(self, mechanism: Additive) -> Self:
        return dataclasses.replace(super().settled(mechanism), support=settled_support(self.support, mechanism))

    def terms(self, mechanism: Additive, rows: jax.Array, key: Key) -> tuple[Points, ...]:
        support = settled_support(self.support, mechanism)
        delta, _ = chance_and_deviation(mechanism, rows)
        second = self.noisier_points(mechanism, rows, key, support)
        weights = is_inside(rows[:, mechanism.index], support).astype(rows.dtype) / delta
        if support is not None:
            # Points outside have no weight and are clipped, because the loss need not be defined outside.
            lower, upper = (jnp.asarray(bound, rows.dtype) for bound in support)
            rows = rows.at[:, mechanism.index].set(jnp.clip(rows[:, mechanism.index], lower, upper))
        points = jnp.concatenate([rows[None], second.rows])
        return (Points(points, jnp.concatenate([weights, (1 - 1 / delta) * second.weights])),)


@pytree_dataclass(eq=False)
class Combined(DoublyRandom):
    """Correction for zero-inflated symmetric Laplace noise: the optimal combination of several corrections.

    Asymptotically, no other linear combination of these functions gives smaller standard errors ([Hansen], generalised
    method of moments). A score is the gradient of a corrected loss with respect to the parameters.

    - the scores of `DoublyRandom`, with the option ``support`` and with ``support=None``;
    - the score of `SmoothedDoublyRandom`, if the loss is smooth;
    - functions of a released record that have mean zero, because no original record lies outside the support.
    """

    name: ClassVar[str] = "combined"
    beyond: ClassVar[bool] = True

    def derivatives(self, columns: int) -> int:
        return 2

    def evidence(
        self, loss: Loss, mechanism: Additive, rows: jax.Array, key: Key, *, everywhere: bool = True
    ) -> EvidenceCorrection:
        support = settled_support(self.support, mechanism)
        keys = jax.random.split(key)
        # For one set of draws the smoothed doubly random, the doubly random and the symmetric Laplace correction of a
        # smooth loss are on one line: two of them say all.
        methods: list[Correction] = [SmoothedDoublyRandom(self.draws, cuts=self.cuts)] if loss.smooth else []
        methods += [dataclasses.replace(self, support=None)]
        whole = [method.terms(mechanism, rows, keys[0]) for method in methods] if everywhere else []
        if support is None:
            return EvidenceCorrection.of(*whole)
        inner = self.terms(mechanism, rows, keys[1])
        return EvidenceCorrection.of(inner, *whole, controls=support_controls(mechanism, rows, support))


@pytree_dataclass(eq=False)
class SymmetricLaplaceCorrection(AveragedCorrection):
    """Correction for symmetric Laplace noise (in one column, also Laplace noise) and a smooth loss ([LCQ] eq. 6.1).

    The corrected loss of a released record z is ℓ(z + S) − ½ λ² Δℓ(z + S), where ℓ is the loss, λ the standard
    deviation of the noise in a column, and Δℓ the sum of the second derivatives of ℓ in the columns with noise. S is 0
    unless the noise is zero-inflated. `DoublyRandom` describes S and the parameters ``draws`` and ``cuts``.
    """

    name: ClassVar[str] = "sl"
    only_smooth: ClassVar[bool] = True

    def takes(self, noise: Noise, columns: int) -> bool:
        return is_laplace(noise, SymmetricLaplace, columns)

    def derivatives(self, columns: int) -> int:
        return 2

    def terms(self, mechanism: Additive, rows: jax.Array, key: Key) -> tuple[Points, ...]:
        _, deviation = chance_and_deviation(mechanism, rows)
        second = self.noisier_points(mechanism, rows, key)
        return second, Laplacians(second.rows, -0.5 * deviation**2 * second.weights)


@pytree_dataclass(eq=False)
class SmoothedDoublyRandom(SymmetricLaplaceCorrection):
    """Correction for zero-inflated symmetric Laplace noise and a smooth loss ([LCQ] sec. 6).

    The corrected loss of a released record z is ℓ(z) − ½ (1 − δ) λ² Δℓ(z + S). `SymmetricLaplaceCorrection` describes
    λ and Δℓ, and `DoublyRandom` the rest and the parameters ``draws`` and ``cuts``.
    """

    name: ClassVar[str] = "sdr"

    def takes(self, noise: Noise, columns: int) -> bool:
        return isinstance(noise, ZeroInflated) and super().takes(noise, columns)

    def terms(self, mechanism: Additive, rows: jax.Array, key: Key) -> tuple[Points, ...]:
        delta, deviation = chance_and_deviation(mechanism, rows)
        second = self.noisier_points(mechanism, rows, key)
        correction = Laplacians(second.rows, -0.5 * (1 - delta) * deviation**2 * second.weights)
        return _released_points(rows), correction


@pytree_dataclass(eq=False)
class IndependentLaplaceCorrection(Correction):
    """Correction for Laplace noise that is independent in each column, and a smooth loss ([LCQ], preprint, eq. 4.9).

    The corrected loss of a released record z is Π_j (1 − ½ λ² ∂²/∂z_j²) ℓ(z), where ℓ is the loss, λ the standard
    deviation of the noise in a column, and j goes through the columns with noise.
    """

    name: ClassVar[str] = "independent"
    only_smooth: ClassVar[bool] = True

    def takes(self, noise: Noise, columns: int) -> bool:
        return is_laplace(noise, Laplace, columns) and not isinstance(noise, ZeroInflated)

    def derivatives(self, columns: int) -> int:
        return 2 * columns

    def terms(self, mechanism: Additive, rows: jax.Array, key: Key) -> tuple[Points, ...]:
        _, deviation = chance_and_deviation(mechanism, rows)
        return (Deconvolutions(rows[None], jnp.ones_like(deviation), deviation),)


@pytree_dataclass
class Deconvolutions(Points):
    """Π_j (1 − ½ λ² ∂²/∂x_j²) ℓ at some `Points`, weighted; derivatives in many columns take long to compile."""

    deviation: Array  # λ (points, N)

    def values(self, loss: Loss, theta: Array, index: tuple[int, ...]) -> jax.Array:
        def value(row: jax.Array, variance: jax.Array) -> jax.Array:
            def corrected(function: Callable, j: int) -> Callable:
                def deconvolved(row: jax.Array) -> jax.Array:
                    along = derivatives_up_to(2, lambda move: function(row.at[j].add(move)))
                    value, _, bend = along(jnp.zeros((), row.dtype))
                    return value - 0.5 * variance * bend

                return deconvolved

            return functools.reduce(corrected, index, lambda row: loss.values(row, theta))(row)

        return jax.vmap(jax.vmap(value))(self.rows, self.deviation**2)

    def total(self, loss: Loss, theta: Array, index: tuple[int, ...]) -> Derivatives:
        return value_gradient_hessian(lambda at: jnp.sum(self.weights * self.values(loss, at, index)), theta)


_CORRECTIONS = (Combined, DoublyRandom, SmoothedDoublyRandom, SymmetricLaplaceCorrection, IndependentLaplaceCorrection)
_METHODS: dict[str, type[Correction]] = {cls.name: cls for cls in (*_CORRECTIONS, Naive, Oracle)}


def correction_from(method: str | Correction, **options: Any) -> Correction:
    """The method itself, or the method of a name with its defaults but for the options that it has."""
    if isinstance(method, Correction):
        if options:
            shown = ", ".join(f"{name}={value!r}" for name, value in options.items())
            raise TypeError(f"{shown} is only for a method given by name; use method={type(method).__name__}({shown})")
        return method
    if not isinstance(method, str) or method not in _METHODS:
        error = ValueError if isinstance(method, str) else TypeError
        hint = f"; call it, {method.__name__}(...)" if isinstance(method, type) else ""
        raise error(f"method must be one of {', '.join(_METHODS)}, or a Correction, got {method!r}{hint}")
    cls = _METHODS[method]
    fields = {field.name for field in dataclasses.fields(cls)}
    return cls(**{name: value for name, value in options.items() if name in fields})


def settled_for(mechanism: Additive, method: Correction) -> Correction:
    """The method settled for a mechanism; ValueError, with the methods that would do, if it is not for its noise."""
    if method.takes(mechanism.noise, mechanism.dimension):
        return method.settled(mechanism)
    others = " or ".join(repr(other.name) for other in methods_for(mechanism)) or "ldpbayes.fit, or your own Correction"
    raise ValueError(f"method {method.name!r} is not for {type(mechanism).__name__}; use {others}")


def methods_for(mechanism: Additive) -> list[Correction]:
    """The methods that correct for the noise of a mechanism, with their defaults."""
    return [method for method in (cls() for cls in _CORRECTIONS) if method.takes(mechanism.noise, mechanism.dimension)]


def is_laplace(noise: Noise, law_type: type[Noise], columns: int) -> bool:
    """Whether the noise, if it is added, is Laplace or symmetric Laplace noise; in one column these are one law."""
    return isinstance(noise.underlying, (Laplace, SymmetricLaplace) if columns == 1 else law_type)


def _checked_support(support: Support) -> Support:
    """A support whose bounds are numbers or arrays over the perturbed columns; ValueError for anything else."""
    if support is None or not is_concrete(support):
        return support
    if isinstance(support, str) and support == BOUNDS:
        return BOUNDS
    pair = tuple(support) if isinstance(support, Sequence | np.ndarray) and not isinstance(support, str) else ()
    if len(pair) != 2:
        raise ValueError(f"support must be 'bounds', a pair (lower, upper) or None, got {support!r}")
    lower, upper = (checked(f"support's {end} bound", pair[i], *FINITE) for i, end in enumerate(("lower", "upper")))
    shapes = np.shape(lower), np.shape(upper)
    if () not in shapes and shapes[0] != shapes[1]:
        raise ValueError(f"the support's bounds must have the same length, got shapes {shapes[0]} and {shapes[1]}")
    if np.any(np.greater_equal(lower, upper)):
        raise ValueError(f"the support's lower bound must be below its upper bound, got {support!r}")
    return lower, upper


def settled_support(support: Support, mechanism: Additive) -> Bounds:
    """A support as a pair of arrays over the perturbed columns; None for "bounds" of a mechanism without bounds."""
    if isinstance(support, str):
        support = (mechanism.lower, mechanism.upper)
    if support is None or support[0] is None:
        return None
    shape = (mechanism.dimension,)
    if odd := [np.shape(bound) for bound in support if np.shape(bound) not in ((), shape)]:
        allowed = f"numbers, or one for each perturbed column (here {shape[0]})"
        raise ValueError(f"the support's bounds must be {allowed}, got shape {odd[0]}")
    xp = np if is_concrete(support) else jnp
    lower, upper = (xp.broadcast_to(xp.asarray(bound), shape) for bound in support)
    return lower, upper


def is_inside(part: jax.Array, support: Bounds) -> jax.Array:
    """Whether perturbed columns (*batch, d) lie in the support, shape (*batch); everything lies in None."""
    if support is None:
        return jnp.ones(part.shape[:-1], bool)
    lower, upper = support
    return jnp.all((part >= lower) & (part <= upper), axis=-1)


def support_controls(mechanism: Additive, rows: Array, support: tuple[Array, Array]) -> jax.Array:
    """Doubly random corrections (N, 2 × perturbed columns) of the indicators of lying beyond a bound, which have mean
    zero; their mean over S is a Laplace tail.
    """
    part = jnp.asarray(rows)[:, mechanism.index]
    delta, deviation = (number.T for number in chance_and_deviation(mechanism, part))
    lower, upper = (jnp.asarray(bound, part.dtype) for bound in support)
    rate = math.sqrt(2) / jnp.where(deviation > 0, jnp.sqrt(delta) * deviation, jnp.inf)
    excess = jnp.concatenate([lower - part, part - upper], axis=1)
    tail = 0.5 * jnp.exp(-rate * jnp.abs(excess))
    beyond = jnp.where(deviation > 0, jnp.where(excess > 0, 1 - tail, tail), excess > 0)
    return (excess > 0) / delta + (1 - 1 / delta) * beyond


def chance_and_deviation(mechanism: Additive, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """δ and λ of each record, arrays (1, N): zero probability and standard deviation of the noise in each column."""
    noise, ones = mechanism.noise, jnp.ones((1, rows.shape[0]), rows.dtype)
    return jnp.asarray(noise.chance, rows.dtype) * ones, jnp.asarray(noise.standard_deviation, rows.dtype) * ones


def _released_points(rows: jax.Array) -> Points:
    """One point with weight 1 for each released record."""
    return Points(rows[None], jnp.ones((1, len(rows)), rows.dtype))


def _random_points(
    part: jax.Array, deviation: jax.Array, key: Key, draws: int, support: Bounds
) -> tuple[jax.Array, jax.Array]:
    """Points (draws, N, d) and weights (draws, N): S is normal given an exponential variance."""
    n, d = part.shape
    keys = jax.random.split(key)
    # a randomly shifted lattice of points in the unit cube: each point is uniform, together they fill it evenly
    lattice = scipy.stats.qmc.Sobol(d + 1, scramble=False).random(1 << (draws - 1).bit_length())[:draws]
    u = (jnp.asarray(lattice, part.dtype)[:, None] + jax.random.uniform(keys[0], (n, d + 1), part.dtype)) % 1.0
    tiny = jnp.finfo(part.dtype).tiny
    spread = (deviation * jnp.sqrt(-jnp.log1p(-u[..., 0])))[..., None]
    if support is None:
        return part + spread * ndtri(jnp.clip(u[..., 1:], tiny, None)), jnp.full((draws, n), 1 / draws, part.dtype)
    # Given the variance each column is normal: it is drawn between the bounds, with their probability as weight.
    lower, upper = (jnp.asarray(bound, part.dtype) for bound in support)
    safe = jnp.where(spread > 0, spread, 1.0)
    low, high = (lower - part) / safe, (upper - part) / safe
    flip = low + high > 0  # both bounds go to the left tail, where a cdf has its digits
    low, high = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
    below = ndtr(low)
    mass = ndtr(high) - below
    normal = ndtri(jnp.clip(below + u[..., 1:] * mass, tiny, None))
    points = jnp.clip(part + spread * jnp.where(flip, -normal, normal), lower, upper)
    mass = jnp.where(spread > 0, mass, (part >= lower) & (part <= upper))
    return points, jnp.prod(mass, axis=-1) / draws


def _quadrature_points(
    z: jax.Array, deviation: jax.Array, support: Bounds, cuts: tuple[float, ...]
) -> tuple[jax.Array, jax.Array]:
    """Nodes (nodes, N, 1) and weights (nodes, N) of ∫ f(u) Laplace(u − z) du, for f smooth between the cuts. Integrals
    are cut around z too: the noise may be so narrow that its decay needs more than one Gauss rule.
    """
    scale = deviation / math.sqrt(2)
    safe = jnp.where(scale > 0, scale, 1.0)
    edges = jnp.stack([z + piece * scale for piece in PIECE_ENDS] + [jnp.full_like(z, cut) for cut in cuts])
    if support is not None:
        lower, upper = (jnp.full((1, *z.shape), bound, z.dtype) for bound in support)
        edges = jnp.concatenate([lower, jnp.clip(edges, lower, upper), upper])
    edges = jnp.sort(edges, axis=0)
    low, high = edges[:-1, None], edges[1:, None]
    t, w = (jnp.asarray(rule)[:, None] for rule in np.polynomial.legendre.leggauss(LEGENDRE_NODES))
    u = low + (high - low) * ((1 + t) / 2)
    density = jnp.exp(-jnp.abs(u - z) / safe) / (2 * safe)
    nodes, weights = ([part.reshape(-1, len(z))] for part in (u, (high - low) * (w / 2) * density))
    if support is None:
        s, v = (jnp.asarray(rule)[:, None] for rule in np.polynomial.laguerre.laggauss(LAGUERRE_NODES))
        for edge, sign in ((edges[0], -1), (edges[-1], 1)):
            nodes.append(edge + sign * safe * s)
            weights.append(0.5 * v * jnp.exp(-jnp.abs(edge - z) / safe))
    points, shares = jnp.concatenate(nodes), jnp.concatenate(weights)
    public = jnp.zeros_like(shares).at[0].set(is_inside(z[:, None], support).astype(shares.dtype))
    return jnp.where(scale > 0, points, z)[..., None], jnp.where(scale > 0, shares, public)
