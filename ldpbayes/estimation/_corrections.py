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
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array, Key
from ldpbayes.estimation.losses import Loss, derivatives_up_to
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.noise import Laplace, Noise, SymmetricLaplace, ZeroInflated
from ldpbayes.noise.zero_inflated import Omitted
from ldpbayes.numerics.minimise import Derivatives, value_gradient_hessian

DRAWS = 16  # default draws of the analyst's own noise for each record
LEGENDRE, LAGUERRE = 16, 32  # nodes of the Gauss rules on a piece and on a tail of an integral
PIECES = (-32.0, -8.0, -2.0, 0.0, 2.0, 8.0, 32.0)  # ends of the pieces, in scales of the Laplace noise

Bounds = tuple[Array, Array] | None  # arrays over the perturbed columns
Support = Bounds | str  # numbers too, or "bounds": a mechanism's


@jax.tree_util.register_static
class _Word(str):
    """A word that is part of a tree's structure; a plain string would be a leaf that no compiled function takes."""


BOUNDS = _Word("bounds")


@dataclasses.dataclass(frozen=True, eq=False)
class Correction(abc.ABC):
    """Base of corrections: methods that estimate the loss of original records from released records.

    Subclasses are frozen dataclasses that define `takes`, and `terms` or `evidence`. A field that is neither a number
    nor an array is declared with ``dataclasses.field(metadata={"static": True})``.
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
        """The region in which all original records are known to lie, and in which the loss has to be finite."""
        return None

    @abc.abstractmethod
    def takes(self, noise: Noise, columns: int) -> bool:
        """Return True if the method is valid for this noise in this number of perturbed columns."""

    def terms(self, mechanism: Additive, rows: jax.Array, key: Key) -> tuple["Points", ...]:
        """Return the terms of the corrected loss of released rows (N, columns), or of original rows for `Oracle`.
        Traceable. ``key`` is for the noise that the analyst adds; ``mechanism.index`` has the positions of perturbed
        columns.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither terms nor evidence")

    def evidence(
        self, loss: Loss, mechanism: Additive, rows: jax.Array, key: Key, *, everywhere: bool = True
    ) -> "EvidenceCorrection":
        """Return the information of the rows (traceable). `everywhere` is True if the loss is finite everywhere."""
        return EvidenceCorrection.of(Corrected(self.terms(mechanism, rows, key)))

    def derivatives(self, columns: int) -> int:
        """Return the number of derivatives of the loss in the perturbed columns that the method uses."""
        return 0

    def settled(self, mechanism: Additive) -> "Correction":
        """Return the method with defaults for the mechanism. Raises ValueError for options that do not fit."""
        return self

    def exact(self, mechanism: Additive) -> Array:
        """Return the share of records without noise. Only these records show the curvature of a loss with kinks."""
        return mechanism.unperturbed

    def __eq__(self, other: object) -> bool:
        return equal(self, other)

    def __hash__(self) -> int:
        return hash((type(self), jax.tree.structure(self)))


@pytree_dataclass
class Points:
    """A term of a corrected loss: the loss (in subclasses, an operator of the loss) at some points for each of N
    records. `rows` are (points, N, columns) and their `weights` (points, N). Otherwise a ValueError is raised.
    """

    rows: Array
    weights: Array

    def __post_init__(self) -> None:
        rows, weights = np.shape(self.rows), np.shape(self.weights)
        if len(rows) != 3 or rows[:2] != weights:
            allowed = "rows (points, N, columns) with weights (points, N), of one point a record rows[None]"
            raise ValueError(f"points are {allowed}; got shapes {rows} and {weights}")

    def values(self, loss: Loss, theta: Array, index: tuple[int, ...]) -> jax.Array:
        """Return the quantity at each point (points, N), before weighting; `index` has the perturbed columns."""
        return loss.values(self.rows, theta)

    def total(self, loss: Loss, theta: Array, index: tuple[int, ...]) -> Derivatives:
        """Return the weighted sum over all points, with its gradient and Hessian."""
        return loss.total(self.rows, self.weights, theta)


@pytree_dataclass
class Laplacians(Points):
    """A term of a corrected loss: the weighted Laplacian of the loss in the perturbed columns, at some `Points`."""

    def values(self, loss: Loss, theta: Array, index: tuple[int, ...]) -> jax.Array:
        return loss.laplacians(self.rows, theta, index)

    def total(self, loss: Loss, theta: Array, index: tuple[int, ...]) -> Derivatives:
        return loss.total_laplacian(self.rows, self.weights, theta, index)


@pytree_dataclass
class Corrected:
    """A corrected loss of N records: the sum of its ``terms``, one or more `Points` for the N records.

    Residuals at the points of the first term set the width of smoothing.
    """

    terms: tuple[Points, ...]

    def values(self, loss: Loss, theta: Array, index: tuple[int, ...]) -> Array:
        """Return the corrected loss of each record, shape (N,); `index` has the positions of the perturbed columns."""
        return sum(jnp.sum(term.weights * term.values(loss, theta, index), axis=0) for term in self.terms)

    def derivatives(self, loss: Loss, theta: Array, index: tuple[int, ...]) -> Derivatives:
        """Return the mean of the corrected losses, with its gradient and Hessian."""
        totals = [term.total(loss, theta, index) for term in self.terms]
        return Derivatives(*(sum(parts) / self.count for parts in zip(*totals, strict=True)))

    def scores(self, loss: Loss, theta: Array, index: tuple[int, ...]) -> jax.Array:
        """Return the gradient of the corrected loss of each record, shape (N, p)."""
        return jax.jacfwd(lambda at: self.values(loss, at, index))(theta)

    @property
    def count(self) -> int:
        return self.terms[0].rows.shape[1]


@pytree_dataclass
class EvidenceCorrection:
    """Information of N records about the parameters: corrected losses, and functions of mean zero.

    The first of the `criteria` is minimised. All criteria are unbiased for one loss, so that differences of their
    scores have mean zero. `controls` (N, q) are functions of the released records with mean zero for all parameters.
    """

    criteria: tuple[Corrected, ...]
    controls: Array

    @classmethod
    def of(cls, *criteria: Corrected, controls: Array = None) -> Self:
        """Return the evidence of these criteria, by default without controls."""
        if controls is None:
            controls = jnp.zeros((criteria[0].count, 0), criteria[0].terms[0].rows.dtype)
        return cls(criteria, controls)

    def joined(self, other: "EvidenceCorrection") -> "EvidenceCorrection":
        """Return the evidence of both batches of records together."""
        criteria = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), self.criteria, other.criteria)
        return EvidenceCorrection(criteria, jnp.concatenate([self.controls, other.controls]))

    def weighted(self, weights: jax.Array) -> "EvidenceCorrection":
        """Return the evidence with every record multiplied by its weight (N,)."""
        terms = [[dataclasses.replace(t, weights=t.weights * weights) for t in c.terms] for c in self.criteria]
        return EvidenceCorrection(tuple(Corrected(tuple(each)) for each in terms), self.controls * weights[:, None])


@pytree_dataclass(eq=False)
class Naive(Correction):
    """No correction: ℓ(X⁽¹⁾), the loss of released records. The estimate is biased, as with any measurement error."""

    name: ClassVar[str] = "naive"

    def takes(self, noise: Noise, columns: int) -> bool:
        return True

    def terms(self, mechanism: Additive, rows: jax.Array, key: Key) -> tuple[Points, ...]:
        return (_released_points(rows),)

    def exact(self, mechanism: Additive) -> Array:
        return 1.0


@pytree_dataclass(eq=False)
class Oracle(Naive):
    """ℓ(X), the loss of the original records X: an estimate without privacy, for comparisons."""

    name: ClassVar[str] = "oracle"
    original: ClassVar[bool] = True


class AveragedCorrection(Correction):
    """A method that averages over the analyst's own noise. Subclasses have both as fields."""

    draws: int | Literal["exact"]
    cuts: tuple[float, ...]

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
            raise ValueError(f"draws='exact' integrates over one perturbed column, and here are {mechanism.dimension}")
        return self

    def noisier_points(self, mechanism: Additive, rows: jax.Array, key: Key, support: Bounds = None) -> Points:
        """X⁽¹⁾ + S for released records X⁽¹⁾, as points with weights 1/draws, or less if S leads out of the support. S
        is the analyst's own noise: symmetric Laplace noise with standard deviation √δ λ.
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
    """ℓ(X⁽¹⁾)/δ + (1 − 1/δ) ℓ(X⁽¹⁾ + S), for zero-inflated symmetric Laplace noise ([LCQ] Theorem 5.1).

    X⁽¹⁾ is the released record, S noise that the analyst adds, and δ the share of records without noise. ℓ may be any
    integrable loss. With the known support 𝒳 of the records it is ℓ(x)·1[x ∈ 𝒳], and its values outside 𝒳 do not
    matter. `draws=1` and `support=None` are the estimator of the paper.

    Parameters
    ----------
    draws : int or "exact"
        Number of draws of the noise S for each record; "exact" integrates over S (only for one column).
    support : "bounds", (lower, upper) or None
        Region of the original records in the perturbed columns: "bounds" for the bounds of the mechanism, a pair of
        numbers or arrays over the perturbed columns, or None for no known region.
    cuts : sequence of float
        Kinks of the loss in the perturbed column, at which ``draws="exact"`` splits its integrals.
    """

    draws: int | Literal["exact"] = static(default=DRAWS)
    support: Support = BOUNDS
    cuts: tuple[float, ...] = static(default=())

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
    """The asymptotically best linear combination of unbiased scores, by generalised method of moments ([Hansen]).

    The scores are doubly random scores with and without the support, the smoothed doubly random score if the loss is
    smooth, and functions that have mean zero because no record lies outside the support. Parameters: see
    `DoublyRandom`.
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
        methods: list[Correction] = [SmoothedDoublyRandom(self.draws, self.cuts)] if loss.smooth else []
        methods += [dataclasses.replace(self, support=None)]
        whole = [Corrected(method.terms(mechanism, rows, keys[0])) for method in methods] if everywhere else []
        if support is None:
            return EvidenceCorrection.of(*whole)
        inner = Corrected(self.terms(mechanism, rows, keys[1]))
        return EvidenceCorrection.of(inner, *whole, controls=support_controls(mechanism, rows, support))


@pytree_dataclass(eq=False)
class SymmetricLaplaceCorrection(AveragedCorrection):
    """ℓ(X⁽¹⁾ + S) − ½ λ² Δℓ(X⁽¹⁾ + S), for symmetric Laplace noise (in one column, Laplace noise) ([LCQ] eq. 6.1).

    S is 0 without zero inflation. `SmoothedDoublyRandom` defines the symbols.

    Parameters
    ----------
    draws : int or "exact"
        Number of draws of the noise S for each record; "exact" integrates over S (only for one column).
    cuts : sequence of float
        Values of the perturbed column, in its unit, at which ``draws="exact"`` splits its integrals.
    """

    draws: int | Literal["exact"] = static(default=DRAWS)
    cuts: tuple[float, ...] = static(default=())

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
    """ℓ(X⁽¹⁾) − ½ (1 − δ) λ² Δℓ(X⁽¹⁾ + S), for zero-inflated symmetric Laplace noise ([LCQ] sec. 6).

    Δ is the Laplacian in the perturbed columns, and λ is the scale of the noise. For the other symbols, ``draws`` and
    ``cuts``, see `DoublyRandom`.
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
    """Π_j (1 − ½ λ² ∂²/∂x_j²) ℓ(X⁽¹⁾), for independent Laplace noise ([LCQ], preprint, eq. 4.9)."""

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
            raise TypeError(f"{shown} goes with a method's name; here say {type(method).__name__}({shown})")
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
    known = " or ".join(repr(other.name) for other in methods_for(mechanism)) or "ldpbayes.fit, or your own"
    raise ValueError(f"method {method.name!r} is not for {type(mechanism).__name__}; use {known}")


def methods_for(mechanism: Additive) -> list[Correction]:
    """The methods that correct for the noise of a mechanism, with their defaults."""
    return [method for method in (cls() for cls in _CORRECTIONS) if method.takes(mechanism.noise, mechanism.dimension)]


def is_laplace(noise: Noise, law_type: type[Noise], columns: int) -> bool:
    """Whether the noise, if it is added, is Laplace or symmetric Laplace noise; in one column these are one law."""
    law = noise.noise if isinstance(noise, Omitted) else noise
    return isinstance(law, (Laplace, SymmetricLaplace) if columns == 1 else law_type)


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
        raise ValueError(f"the support's bounds must be of one length, got shapes {shapes[0]} and {shapes[1]}")
    if np.any(np.greater_equal(lower, upper)):
        raise ValueError(f"the support's lower bound must be below its upper one, got {support!r}")
    return lower, upper


def settled_support(support: Support, mechanism: Additive) -> Bounds:
    """A support as a pair of arrays over the perturbed columns; None for "bounds" of a mechanism without bounds."""
    if isinstance(support, str):
        support = (mechanism.lower, mechanism.upper)
    if support is None or support[0] is None:
        return None
    shape = (mechanism.dimension,)
    if odd := [np.shape(bound) for bound in support if np.shape(bound) not in ((), shape)]:
        allowed = f"numbers, or one a perturbed column (here {shape[0]})"
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
    """Functions (N, 2 × perturbed columns) of released records with mean zero, since no record is outside the support:
    doubly random corrections of the indicators of lying beyond a bound, the mean over S a Laplace tail.
    """
    part = jnp.asarray(rows)[:, mechanism.index]
    delta, deviation = (each.T for each in chance_and_deviation(mechanism, part))
    lower, upper = (jnp.asarray(bound, part.dtype) for bound in support)
    rate = math.sqrt(2) / jnp.where(deviation > 0, jnp.sqrt(delta) * deviation, jnp.inf)
    excess = jnp.concatenate([lower - part, part - upper], axis=1)
    tail = 0.5 * jnp.exp(-rate * jnp.abs(excess))
    beyond = jnp.where(deviation > 0, jnp.where(excess > 0, 1 - tail, tail), excess > 0)
    return (excess > 0) / delta + (1 - 1 / delta) * beyond


def chance_and_deviation(mechanism: Additive, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """δ and λ of each record, arrays (1, N): zero probability and standard deviation of the noise in each column."""
    noise, ones = mechanism.noise, jnp.ones((1, rows.shape[0]), rows.dtype)
    chance = noise.chance if isinstance(noise, Omitted) else 0.0
    return jnp.asarray(chance, rows.dtype) * ones, jnp.asarray(noise.standard_deviation, rows.dtype) * ones


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
    """Nodes (nodes, N, 1) and weights (nodes, N) of ∫ f(u) Laplace(u − z) du, exact for f smooth between the cuts, and
    cut around z too: the noise may be so narrow that its decay needs more than one Gauss rule.
    """
    scale = deviation / math.sqrt(2)
    safe = jnp.where(scale > 0, scale, 1.0)
    edges = jnp.stack([z + piece * scale for piece in PIECES] + [jnp.full_like(z, cut) for cut in cuts])
    if support is not None:
        lower, upper = (jnp.full((1, *z.shape), bound, z.dtype) for bound in support)
        edges = jnp.concatenate([lower, jnp.clip(edges, lower, upper), upper])
    edges = jnp.sort(edges, axis=0)
    low, high = edges[:-1, None], edges[1:, None]
    t, w = (jnp.asarray(rule)[:, None] for rule in np.polynomial.legendre.leggauss(LEGENDRE))
    u = low + (high - low) * ((1 + t) / 2)
    density = jnp.exp(-jnp.abs(u - z) / safe) / (2 * safe)
    nodes, weights = ([part.reshape(-1, len(z))] for part in (u, (high - low) * (w / 2) * density))
    if support is None:
        s, v = (jnp.asarray(rule)[:, None] for rule in np.polynomial.laguerre.laggauss(LAGUERRE))
        for edge, sign in ((edges[0], -1), (edges[-1], 1)):
            nodes.append(edge + sign * safe * s)
            weights.append(0.5 * v * jnp.exp(-jnp.abs(edge - z) / safe))
    points, shares = jnp.concatenate(nodes), jnp.concatenate(weights)
    public = jnp.zeros_like(shares).at[0].set(is_inside(z[:, None], support).astype(shares.dtype))
    return jnp.where(scale > 0, points, z)[..., None], jnp.where(scale > 0, shares, public)
