"""Corrections of a loss for the noise of a release."""

import abc
import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.scipy.special import ndtr, ndtri

from ldpbayes._core.checks import checked, is_integer
from ldpbayes._core.pytrees import pytree, static
from ldpbayes._core.tracing import is_concrete
from ldpbayes.estimation.losses._loss import Derivatives, Loss
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.noise import Laplace, Noise, SymmetricLaplace, ZeroInflated
from ldpbayes.noise.omitted import Omitted


@dataclasses.dataclass(frozen=True, eq=False)
class Correction(abc.ABC):
    """How the loss of original records is estimated from released ones.

    Subclasses are frozen dataclasses; a field that is not a number or an array is declared with
    ``dataclasses.field(metadata={"static": True})``.
    """

    name: ClassVar[str]
    """What the method is called in tables and messages: by default as its class."""

    original: ClassVar[bool] = False
    """Whether it is given original records, not a release."""

    only_smooth: ClassVar[bool] = False
    """Whether it is biased for a loss that lacks the derivatives it uses; else it is told by the loss's `smooth`."""

    beyond: ClassVar[bool] = False
    """Whether it looks at a loss outside the support too, where that is finite."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    @property
    def support(self) -> Any:
        """Where the original records are known to lie: a pair of arrays over the perturbed columns, or None.

        A method that makes use of it has it as a field. The loss is then asked to be finite there only.
        """
        return None

    @abc.abstractmethod
    def takes(self, noise: Noise, columns: int) -> bool:
        """Whether the method is right for a noise.

        Parameters
        ----------
        noise : Noise
            What a mechanism adds.
        columns : int
            Number of perturbed columns.
        """

    @abc.abstractmethod
    def evidence(self, loss: Loss, mechanism: Additive, rows: jax.Array, key: Any, *, everywhere: bool) -> "Evidence":
        """What records say of the parameters of a loss; traceable.

        Parameters
        ----------
        loss : Loss
            What is corrected; its terms are evaluated later, at many parameters.
        mechanism : Additive
            What was done to the records: its ``noise``, and the ``index`` of the perturbed columns.
        rows : array (N, columns)
            Released records (original ones, for a method that is given those).
        key : jax.Array
            A JAX random key, for noise of the analyst's own.
        everywhere : bool
            Whether the loss is finite outside the support too.

        Returns
        -------
        Evidence
        """

    def derivatives(self, columns: int) -> int:
        """How many derivatives of the loss in the perturbed columns it uses; none by default.

        Parameters
        ----------
        columns : int
            Number of perturbed columns.
        """
        return 0

    def settled(self, mechanism: Additive) -> "Correction":
        """The method with what it takes from a mechanism filled in; by default the method itself.

        Parameters
        ----------
        mechanism : Additive
            That made the release.

        Raises
        ------
        ValueError
            If the method's options do not fit the mechanism.
        """
        return self

    def exact(self, mechanism: Additive) -> Any:
        """Shares of the records that enter as they were before the noise: by default what the mechanism left as it was.

        The curvature of a loss with kinks is known from those alone.

        Parameters
        ----------
        mechanism : Additive
            That made the release.
        """
        return mechanism.unperturbed

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        fields = [field.name for field in dataclasses.fields(self)]
        (own, kind), (others, other_kind) = (
            jax.tree.flatten([getattr(method, name) for name in fields]) for method in (self, other)
        )
        same = [a is b or (is_concrete(a, b) and np.array_equal(a, b)) for a, b in zip(own, others, strict=False)]
        return len({kind, other_kind}) == 1 and all(same)

    def __hash__(self) -> int:
        return hash((type(self), jax.tree.structure(self)))


def left_out(noise: Noise) -> Any:
    """Probability that a record whose scale is positive gets no noise."""
    return noise.chance if isinstance(noise, Omitted) else 0.0


def is_zero_inflated(noise: Noise) -> bool:
    """Whether noise is left out at random."""
    return isinstance(noise, ZeroInflated)


def is_symmetric_laplace(noise: Noise, columns: int) -> bool:
    """Whether what is added, where anything is, is symmetric Laplace noise; in one column Laplace noise is the same."""
    law = noise.noise if isinstance(noise, Omitted) else noise
    return isinstance(law, SymmetricLaplace) or (columns == 1 and isinstance(law, Laplace))


def is_independent_laplace(noise: Noise, columns: int) -> bool:
    """Whether what is added, where anything is, is Laplace noise in every column independently."""
    law = noise.noise if isinstance(noise, Omitted) else noise
    return isinstance(law, Laplace) or (columns == 1 and isinstance(law, SymmetricLaplace))


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Naive(Correction):
    """ℓ(X⁽¹⁾): no correction, so that the estimate is biased, as with any measurement error."""

    name: ClassVar[str] = "naive"

    def takes(self, noise: Noise, columns: int) -> bool:
        """Any noise; see `Correction.takes`."""
        return True

    def evidence(
        self, loss: Loss, mechanism: Additive, rows: jax.Array, key: Any, *, everywhere: bool = True
    ) -> "Evidence":
        """The loss itself; see `Correction.evidence`."""
        return Evidence.of(Corrected((Points(rows[None], jnp.ones((1, len(rows)), rows.dtype)),)))

    def exact(self, mechanism: Additive) -> Any:
        """All, being taken for such; see `Correction.exact`."""
        return 1.0


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Oracle(Naive):
    """ℓ(X) of the original records X: what would be estimated if nothing were private."""

    name: ClassVar[str] = "oracle"
    original: ClassVar[bool] = True


@pytree
@dataclasses.dataclass(frozen=True)
class Points:
    """A term of a corrected loss: the loss at some points, weighted. Subclasses make something else of the loss.

    Parameters
    ----------
    rows : array (points, N, columns)
        As many points for each of N records.
    weights : array (points, N)
        Of the points.
    """

    rows: Any
    weights: Any

    def __post_init__(self) -> None:
        if np.ndim(self.rows) != 3 or np.shape(self.rows)[:2] != np.shape(self.weights):
            raise ValueError(
                "points are rows (points, N, columns) with weights (points, N), of one point a record rows[None]; got "
                f"shapes {np.shape(self.rows)} and {np.shape(self.weights)}"
            )

    def values(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> jax.Array:
        """What is weighted, shape (points, N); `index` has the perturbed columns."""
        return loss.values(self.rows, theta)

    def total(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> Derivatives:
        """The weighted sum, with its gradient and Hessian in the parameters."""
        return loss.total(self.rows, self.weights, theta)


@pytree
@dataclasses.dataclass(frozen=True)
class Laplacians(Points):
    """A term of a corrected loss: the loss's Laplacian in the perturbed columns at some points, weighted.

    Parameters
    ----------
    rows, weights
        See `Points`.
    """

    def values(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> jax.Array:
        """See `Points.values`."""
        return loss.laplacians(self.rows, theta, index)

    def total(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> Derivatives:
        """See `Points.total`."""
        return loss.total_laplacian(self.rows, self.weights, theta, index)


@pytree
@dataclasses.dataclass(frozen=True)
class Corrected:
    """A corrected loss of N records: a sum of terms.

    Parameters
    ----------
    terms : tuple of Points
        Of the same records, in the same order. The first has the records by whose residuals a loss with kinks is
        rounded off, as its first points.
    """

    terms: tuple[Points, ...]

    def values(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> jax.Array:
        """Corrected loss of each record, shape (N,); `index` has the perturbed columns."""
        return _sum(jnp.sum(term.weights * term.values(loss, theta, index), axis=0) for term in self.terms)

    def derivatives(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> Derivatives:
        """Mean of the corrected losses, with its gradient and Hessian."""
        totals = [term.total(loss, theta, index) for term in self.terms]
        value, slope, bend = (_sum(parts) / self.count for parts in zip(*totals, strict=True))
        return value, slope, bend

    def scores(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> jax.Array:
        """Gradient of the corrected loss of each record, shape (N, p)."""
        return jax.jacfwd(lambda at: self.values(loss, at, index))(theta)

    def weighted(self, weights: jax.Array) -> "Corrected":
        """The same with every record's part multiplied by its weight."""
        return Corrected(tuple(dataclasses.replace(term, weights=term.weights * weights) for term in self.terms))

    @property
    def count(self) -> int:
        """Number of records."""
        return self.terms[0].rows.shape[1]

    def __add__(self, other: "Corrected") -> "Corrected":
        """The records of both, those of the second one after those of the first."""
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), self, other)


@pytree
@dataclasses.dataclass(frozen=True)
class Evidence:
    """What records say of the parameters: corrected losses, the first one to be minimised, and mean-zero functions.

    Evidence of two batches of records adds up: their records are put one after the other.

    Parameters
    ----------
    criteria : tuple of Corrected
        All unbiased for the same loss, so that the differences of their scores have mean zero.
    controls : array (N, q)
        Functions of the released records whose means are zero whatever the parameters.
    """

    criteria: tuple[Corrected, ...]
    controls: Any

    @classmethod
    def of(cls, *criteria: Corrected, controls: Any = None) -> Self:
        """Evidence of corrected losses.

        Parameters
        ----------
        *criteria : Corrected
            See `Evidence`.
        controls : array (N, q), optional
            See `Evidence`; none by default.
        """
        if controls is None:
            controls = jnp.zeros((criteria[0].count, 0), criteria[0].terms[0].rows.dtype)
        return cls(criteria, controls)

    def joined(self, other: "Evidence") -> "Evidence":
        """The evidence of both batches of records."""
        criteria = tuple(a + b for a, b in zip(self.criteria, other.criteria, strict=True))
        return Evidence(criteria, jnp.concatenate([self.controls, other.controls]))

    def weighted(self, weights: jax.Array) -> "Evidence":
        """The same with weights of records."""
        return Evidence(tuple(c.weighted(weights) for c in self.criteria), self.controls * weights[:, None])


def _sum(arrays: Iterable[jax.Array]) -> jax.Array:
    return functools.reduce(operator.add, arrays)


Support = tuple[Any, Any] | str | None
"""A pair of numbers or of arrays over the perturbed columns, "bounds" (a mechanism's), or None."""


@jax.tree_util.register_static
class _Bounds(str):
    """The word "bounds": the support is between a mechanism's. It has no leaves and is part of a tree's structure."""


BOUNDS = _Bounds("bounds")


def checked_support(support: Any) -> Support:
    """A support as a method keeps it.

    Parameters
    ----------
    support : "bounds", (lower, upper) or None
        Numbers, or arrays over the perturbed columns.

    Raises
    ------
    ValueError
        For anything else, or bounds that are not finite or not in order.
    """
    if support is None or not is_concrete(support):
        return support
    if isinstance(support, str):
        if support != BOUNDS:
            raise ValueError(f"support must be 'bounds', a pair (lower, upper) or None, got {support!r}")
        return BOUNDS
    try:
        lower, upper = support
    except (TypeError, ValueError):
        raise ValueError(f"support must be 'bounds', a pair (lower, upper) or None, got {support!r}") from None
    pair = tuple(
        checked(name, bound, "finite", np.isfinite)
        for name, bound in (("support's lower bound", lower), ("support's upper bound", upper))
    )
    try:
        disordered = np.any(np.greater_equal(*pair))
    except ValueError:
        shapes = " and ".join(str(np.shape(bound)) for bound in pair)
        raise ValueError(f"the support's bounds must be of one length, got shapes {shapes}") from None
    if disordered:
        raise ValueError(f"the support's lower bound must be below its upper one, got {support!r}")
    return pair


def settled_support(support: Support, mechanism: Additive) -> tuple[Any, Any] | None:
    """The support as a pair of arrays, one number a perturbed column, or None.

    Parameters
    ----------
    support : Support
        The bounds become those of the mechanism; None where it has none.
    mechanism : Additive
        That made the release.

    Raises
    ------
    ValueError
        For arrays of another shape.
    """
    if isinstance(support, str):
        support = (mechanism.lower, mechanism.upper) if mechanism.lower is not None else None
    if support is None:
        return None
    shape = (mechanism.dimension,)
    for name, bound in zip(("lower", "upper"), support, strict=True):
        if np.shape(bound) not in ((), shape):
            raise ValueError(
                f"the support's {name} bound must be a number, or one a perturbed column (here {shape[0]}), got shape "
                f"{np.shape(bound)}"
            )
    xp = np if is_concrete(support) else jnp
    lower, upper = (xp.broadcast_to(xp.asarray(bound), shape) for bound in support)
    return lower, upper


def inside(part: jax.Array, support: Any) -> jax.Array:
    """Whether perturbed columns (*batch, d) lie in the support, shape (*batch).

    Parameters
    ----------
    part : array (*batch, d)
        The perturbed columns of rows.
    support : (array, array) or None
        Their bounds; everything lies in None.
    """
    if support is None:
        return jnp.ones(part.shape[:-1], bool)
    lower, upper = support
    return jnp.all((part >= lower) & (part <= upper), axis=-1)


def brought_inside(rows: jax.Array, index: tuple[int, ...], support: Any) -> jax.Array:
    """Rows with their perturbed columns clipped to the support.

    Parameters
    ----------
    rows : array (*batch, columns)
        Any rows.
    index : tuple of int
        Positions of the perturbed columns.
    support : (array, array)
        Their bounds.
    """
    return rows.at[..., index].set(jnp.clip(rows[..., index], *(jnp.asarray(b, rows.dtype) for b in support)))


def controls(mechanism: Additive, rows: Any, support: Any) -> jax.Array:
    """Functions of released records that have mean zero because no record lies outside its support.

    For each side of each perturbed column, the doubly random correction of the indicator of lying beyond it: the mean
    over the analyst's noise is a Laplace tail.

    Parameters
    ----------
    mechanism : Additive
        With zero-inflated symmetric Laplace noise.
    rows : array (N, columns)
        Released records.
    support : (array, array)
        Lower and upper bounds of the perturbed columns.

    Returns
    -------
    array (N, 2 × perturbed columns)
    """
    part = jnp.asarray(rows)[:, mechanism.index]
    noise = mechanism.noise
    delta, scale = (jnp.asarray(v, part.dtype).reshape(-1, 1) for v in (left_out(noise), noise.standard_deviation))
    lower, upper = (jnp.asarray(bound, part.dtype) for bound in support)
    root = math.sqrt(2) / jnp.where(scale > 0, jnp.sqrt(delta) * scale, jnp.inf)
    columns = []
    for excess in (lower - part, part - upper):
        beyond = jnp.where(
            excess > 0, 1 - 0.5 * jnp.exp(-root * jnp.abs(excess)), 0.5 * jnp.exp(-root * jnp.abs(excess))
        )
        beyond = jnp.where(scale > 0, beyond, excess > 0)
        columns.append((excess > 0) / delta + (1 - 1 / delta) * beyond)
    return jnp.concatenate(columns, axis=1)


DRAWS = 16
LEGENDRE, LAGUERRE = 16, 32
PIECES = (-32.0, -8.0, -2.0, 0.0, 2.0, 8.0, 32.0)  # where integrals over Laplace noise are cut, in its scales


class WithDraws(Correction):
    """A method that averages over the analyst's own noise. Subclasses have the fields ``draws`` and ``cuts``."""

    draws: Any
    cuts: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", _checked_draws(self.draws))
        object.__setattr__(self, "cuts", _checked_cuts(self.cuts))

    def settled(self, mechanism: Additive) -> Self:
        """The method itself, if its draws are for so many perturbed columns; see `Correction.settled`."""
        if self.draws == "exact" and mechanism.dimension != 1:
            raise ValueError(f"draws='exact' integrates over one perturbed column, and here are {mechanism.dimension}")
        return self


def _checked_draws(draws: Any) -> int | str:
    """A number of draws, or "exact".

    Parameters
    ----------
    draws : int or "exact"
        What a method was given.

    Raises
    ------
    ValueError
        For anything else.
    """
    if isinstance(draws, str) and draws == "exact":
        return draws
    if not is_integer(draws) or draws < 1:
        raise ValueError(f"draws must be a positive integer or 'exact', got {draws!r}")
    return int(draws)


def _checked_cuts(cuts: Any) -> tuple[float, ...]:
    """The cuts as a tuple of finite numbers.

    Parameters
    ----------
    cuts : sequence of float
        What a method was given.

    Raises
    ------
    ValueError
        For anything else.
    """
    try:
        numbers = tuple(float(cut) for cut in cuts)
    except (TypeError, ValueError):
        raise ValueError(f"cuts must be a sequence of finite numbers, got {cuts!r}") from None
    if not np.all(np.isfinite(numbers)):
        raise ValueError(f"cuts must be a sequence of finite numbers, got {cuts!r}")
    return numbers


def scales(mechanism: Additive, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """δ and λ of each record: the zero probability and the noise's standard deviation in each column.

    Parameters
    ----------
    mechanism : Additive
        That made the release.
    rows : array (N, columns)
        Released records, whose floating-point type they get.

    Returns
    -------
    tuple of two arrays (1, N)
    """
    ones = jnp.ones((1, rows.shape[0]), rows.dtype)
    noise = mechanism.noise
    delta, scale = (jnp.asarray(v, rows.dtype) * ones for v in (left_out(noise), noise.standard_deviation))
    return delta, scale


def again(
    mechanism: Additive, rows: jax.Array, key: Any, draws: int | str, support: Any, cuts: tuple[float, ...]
) -> "Points":
    """X⁽¹⁾ + S, as points whose weights are 1/draws, or less where S leads out of the support.

    Parameters
    ----------
    mechanism : Additive
        Whose noise is symmetric Laplace noise, zero-inflated or not.
    rows : array (N, columns)
        X⁽¹⁾: released records.
    key : jax.Array
        A JAX random key.
    draws : int or "exact"
        Draws a record: one at random, or more as a randomly shifted low-discrepancy sequence. "exact" integrates over
        S, where one column is perturbed.
    support : (array, array) or None
        Bounds of the perturbed columns outside of which there are no records.
    cuts : tuple of float
        Where exact integration is to be cut: kinks of the loss.
    """
    index = mechanism.index
    delta, scale = scales(mechanism, rows)
    part, scale = rows[:, index], (jnp.sqrt(delta) * scale)[0]
    if isinstance(draws, str):
        points, weights = _integrated(part[:, 0], scale, support, cuts)
        points = points[..., None]
    else:
        points, weights = _drawn(part, scale, key, draws, support)
    spread = jnp.broadcast_to(rows, (points.shape[0], *rows.shape))
    return Points(spread.at[..., index].set(points), weights)


def _drawn(part: jax.Array, scale: jax.Array, key: Any, draws: int, support: Any) -> tuple[jax.Array, jax.Array]:
    n, d = part.shape
    keys = jax.random.split(key)
    # a randomly shifted lattice of points in the unit cube: each point is uniform, together they fill it evenly
    lattice = scipy.stats.qmc.Sobol(d + 1, scramble=False).random(1 << max(draws - 1, 0).bit_length())[:draws]
    u = (jnp.asarray(lattice, part.dtype)[:, None] + jax.random.uniform(keys[0], (n, d + 1), part.dtype)) % 1.0
    tiny = jnp.finfo(part.dtype).tiny
    spread = (scale * jnp.sqrt(-jnp.log1p(-u[..., 0])))[..., None]
    if support is None:
        return part + spread * ndtri(jnp.clip(u[..., 1:], tiny, None)), jnp.full((draws, n), 1 / draws, part.dtype)
    # given W each column of S is normal: draw it between the bounds, and weigh with the probability of that
    lower, upper = (jnp.asarray(bound, part.dtype) for bound in support)
    safe = jnp.where(spread > 0, spread, 1.0)
    low, high = (lower - part) / safe, (upper - part) / safe
    flip = low + high > 0  # the bounds in the left tail, where a cdf has its digits
    low, high = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
    below = ndtr(low)
    mass = ndtr(high) - below
    normal = ndtri(jnp.clip(below + u[..., 1:] * mass, tiny, None))
    points = jnp.clip(part + spread * jnp.where(flip, -normal, normal), lower, upper)
    mass = jnp.where(spread > 0, mass, (part >= lower) & (part <= upper))
    return points, jnp.prod(mass, axis=-1) / draws


def _integrated(z: jax.Array, scale: jax.Array, support: Any, cuts: tuple[float, ...]) -> tuple[jax.Array, jax.Array]:
    """Nodes and weights (nodes, N) of ∫ f(u) Laplace(u − z) du, exact for f smooth between the cuts.

    The noise may be far narrower than the support: the integral is cut around z, so that a piece never has more of its
    decay than a Gauss rule can follow.
    """
    scale = scale / math.sqrt(2)
    safe = jnp.where(scale > 0, scale, 1.0)
    t, w = (jnp.asarray(rule) for rule in np.polynomial.legendre.leggauss(LEGENDRE))
    ends = [z + piece * scale for piece in PIECES]
    ends += [jnp.broadcast_to(jnp.asarray(cut, z.dtype).reshape(()), z.shape) for cut in cuts]
    if support is None:
        edges = jnp.sort(jnp.stack(ends), axis=0)
    else:
        lower, upper = (jnp.asarray(bound, z.dtype).reshape(()) for bound in support)
        inner = jnp.clip(jnp.stack(ends), lower, upper)
        edges = jnp.sort(
            jnp.concatenate([jnp.full((1, *z.shape), lower), inner, jnp.full((1, *z.shape), upper)]), axis=0
        )
    pieces: list[tuple[jax.Array, jax.Array]] = []
    for low, high in itertools.pairwise(edges):
        u = low + (high - low) * ((1 + t) / 2)[:, None]
        pieces.append((u, (high - low) * (w / 2)[:, None] * jnp.exp(-jnp.abs(u - z) / safe) / (2 * safe)))
    if support is None:
        s, v = (jnp.asarray(rule) for rule in np.polynomial.laguerre.laggauss(LAGUERRE))
        for edge, sign in ((edges[0], -1), (edges[-1], 1)):
            pieces.append((edge + sign * safe * s[:, None], 0.5 * v[:, None] * jnp.exp(-jnp.abs(edge - z) / safe)))
    nodes, weights = (jnp.concatenate(parts) for parts in zip(*pieces, strict=True))
    public = jnp.zeros_like(weights).at[0].set(inside(z[:, None], support).astype(weights.dtype))
    return jnp.where(scale > 0, nodes, jnp.broadcast_to(z, nodes.shape)), jnp.where(scale > 0, weights, public)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class DoublyRandom(WithDraws):
    """ℓ(X⁽¹⁾)/δ + (1 − 1/δ) ℓ(X⁽¹⁾ + S), for zero-inflated symmetric Laplace noise ([LCQ] Theorem 5.1).

    It is unbiased for any loss that is integrable, so also for ℓ(x)·1[x ∈ 𝒳] with the known support 𝒳 of the records:
    nothing is then asked of the loss elsewhere. `draws=1` and `support=None` are the paper's estimator.

    Parameters
    ----------
    draws : int or "exact"
        Draws of the analyst's own noise S to average over, a record. "exact" integrates instead, for one perturbed
        column.
    support : "bounds", (lower, upper) or None
        Where the original records are known to lie, in the perturbed columns: between the mechanism's bounds, between
        these numbers or arrays over the perturbed columns, or anywhere.
    cuts : sequence of float
        Kinks of the loss in the perturbed column, where ``draws="exact"`` is to cut its integrals.

    Raises
    ------
    ValueError
        For an option out of range.
    """

    draws: Any = static(default=DRAWS)
    support: Any = BOUNDS
    cuts: Any = static(default=())

    name: ClassVar[str] = "dr"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "support", checked_support(self.support))

    def takes(self, noise: Noise, columns: int) -> bool:
        """Zero-inflated symmetric Laplace noise; see `Correction.takes`."""
        return is_zero_inflated(noise) and is_symmetric_laplace(noise, columns)

    def settled(self, mechanism: Additive) -> "DoublyRandom":
        """With the support as arrays; see `Correction.settled`."""
        return dataclasses.replace(super().settled(mechanism), support=settled_support(self.support, mechanism))

    def evidence(
        self, loss: Loss, mechanism: Additive, rows: jax.Array, key: Any, *, everywhere: bool = True
    ) -> "Evidence":
        """The corrected loss; see `Correction.evidence`."""
        support = settled_support(self.support, mechanism)
        delta, _ = scales(mechanism, rows)
        second = again(mechanism, rows, key, self.draws, support, self.cuts)
        here = inside(rows[:, mechanism.index], support).astype(rows.dtype) / delta
        # a point outside is never looked at: the loss need not be defined there
        first = rows if support is None else brought_inside(rows, mechanism.index, support)
        points = jnp.concatenate([first[None], second.rows])
        return Evidence.of(Corrected((Points(points, jnp.concatenate([here, (1 - 1 / delta) * second.weights])),)))


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Combined(DoublyRandom):
    """The asymptotically best linear combination of unbiased scores, by two-step GMM ([Hansen]).

    They are doubly random scores with and without the support, the smoothed doubly random one where the loss is smooth,
    and functions that have mean zero because no record lies outside the support.

    Parameters
    ----------
    draws, support, cuts
        As for `DoublyRandom`.

    Raises
    ------
    ValueError
        For an option out of range.
    """

    name: ClassVar[str] = "combined"
    beyond: ClassVar[bool] = True

    def derivatives(self, columns: int) -> int:
        """Two, where the loss has them; see `Correction.derivatives`."""
        return 2

    def evidence(
        self, loss: Loss, mechanism: Additive, rows: jax.Array, key: Any, *, everywhere: bool = True
    ) -> "Evidence":
        """All corrected losses, and the functions of mean zero; see `Correction.evidence`."""
        support = settled_support(self.support, mechanism)
        keys = jax.random.split(key)
        options: dict[str, Any] = {"draws": self.draws, "cuts": self.cuts}

        def criterion(method: Correction, key: Any) -> Corrected:
            return method.evidence(loss, mechanism, rows, key, everywhere=everywhere).criteria[0]

        # where the loss is smooth, the smoothed doubly random, the doubly random and the symmetric Laplace correction
        # of the same draws are on one line: two of them say all
        methods: list[Correction] = [DoublyRandom(support=None, **options)]
        if loss.smooth:
            methods = [SmoothedDoublyRandom(**options), *methods]
        whole = [criterion(method, keys[0]) for method in methods] if everywhere else []
        if support is None:
            return Evidence.of(*whole)
        inner = DoublyRandom(support=support, **options)
        return Evidence.of(criterion(inner, keys[1]), *whole, controls=controls(mechanism, rows, support))


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class SmoothedDoublyRandom(WithDraws):
    """ℓ(X⁽¹⁾) − ½ (1 − δ) λ² Δℓ(X⁽¹⁾ + S), for zero-inflated symmetric Laplace noise ([LCQ] sec. 6).

    Parameters
    ----------
    draws, cuts
        As for `DoublyRandom`.

    Raises
    ------
    ValueError
        For an option out of range.
    """

    draws: Any = static(default=DRAWS)
    cuts: Any = static(default=())

    name: ClassVar[str] = "sdr"
    only_smooth: ClassVar[bool] = True

    def takes(self, noise: Noise, columns: int) -> bool:
        """Zero-inflated symmetric Laplace noise; see `Correction.takes`."""
        return is_zero_inflated(noise) and is_symmetric_laplace(noise, columns)

    def derivatives(self, columns: int) -> int:
        """Two: those of the Laplacian; see `Correction.derivatives`."""
        return 2

    def evidence(
        self, loss: Loss, mechanism: Additive, rows: jax.Array, key: Any, *, everywhere: bool = True
    ) -> "Evidence":
        """The corrected loss; see `Correction.evidence`."""
        delta, scale = scales(mechanism, rows)
        second = again(mechanism, rows, key, self.draws, None, self.cuts)
        first = Points(rows[None], jnp.ones((1, len(rows)), rows.dtype))
        return Evidence.of(Corrected((first, Laplacians(second.rows, -0.5 * (1 - delta) * scale**2 * second.weights))))


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class SymmetricLaplaceCorrection(WithDraws):
    """ℓ(X⁽¹⁾ + S) − ½ λ² Δℓ(X⁽¹⁾ + S), for symmetric Laplace noise, zero-inflated or not ([LCQ] eq. 6.1).

    In one column Laplace noise is symmetric Laplace noise. If it is not zero-inflated S is 0.

    Parameters
    ----------
    draws, cuts
        As for `DoublyRandom`.

    Raises
    ------
    ValueError
        For an option out of range.
    """

    draws: Any = static(default=DRAWS)
    cuts: Any = static(default=())

    name: ClassVar[str] = "sl"
    only_smooth: ClassVar[bool] = True

    def takes(self, noise: Noise, columns: int) -> bool:
        """Symmetric Laplace noise, zero-inflated or not; see `Correction.takes`."""
        return is_symmetric_laplace(noise, columns)

    def derivatives(self, columns: int) -> int:
        """Two: those of the Laplacian; see `Correction.derivatives`."""
        return 2

    def evidence(
        self, loss: Loss, mechanism: Additive, rows: jax.Array, key: Any, *, everywhere: bool = True
    ) -> "Evidence":
        """The corrected loss; see `Correction.evidence`."""
        _, scale = scales(mechanism, rows)
        second = again(mechanism, rows, key, self.draws, None, self.cuts)
        return Evidence.of(Corrected((second, Laplacians(second.rows, -0.5 * scale**2 * second.weights))))


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
    ) -> "Evidence":
        """The corrected loss; see `Correction.evidence`."""
        ones = jnp.ones((1, len(rows)), rows.dtype)
        scale = jnp.asarray(mechanism.noise.standard_deviation, rows.dtype) * ones
        return Evidence.of(Corrected((Deconvolutions(rows[None], ones, scale),)))


_METHODS: dict[str, type[Correction]] = {
    cls.name: cls
    for cls in (
        Combined,
        DoublyRandom,
        SmoothedDoublyRandom,
        SymmetricLaplaceCorrection,
        IndependentLaplaceCorrection,
        Naive,
        Oracle,
    )
}


def correction(method: str | Correction, **options: Any) -> Correction:
    """The method that is meant.

    Parameters
    ----------
    method : str or Correction
        A name stands for a method with its defaults.
    **options
        Fields in which a method that is named differs from its defaults; those that it does not have are left aside.

    Raises
    ------
    TypeError
        For something else, or options beside a method that is not named: they are its own.
    ValueError
        For a name that there is not.
    """
    if isinstance(method, Correction):
        if options:
            said = ", ".join(f"{name}={value!r}" for name, value in options.items())
            raise TypeError(f"{said} goes with a method's name; here say {type(method).__name__}({said})")
        return method
    known = ", ".join(_METHODS)
    if not isinstance(method, str):
        hint = f"; call it, {method.__name__}(...)" if isinstance(method, type) else ""
        raise TypeError(f"method must be one of {known}, or a Correction, got {method!r}{hint}")
    cls = _METHODS.get(method)
    if cls is None:
        raise ValueError(f"method must be one of {known}, or a Correction, got {method!r}")
    fields = {field.name for field in dataclasses.fields(cls)}
    return cls(**{name: value for name, value in options.items() if name in fields})


def check_noise(method: Correction, mechanism: Additive) -> None:
    """Refuse a method that is not for the noise of a mechanism.

    Parameters
    ----------
    method : Correction
        What is to be used.
    mechanism : Additive
        That made the release.

    Raises
    ------
    ValueError
        Saying which methods are for it.
    """
    if method.takes(mechanism.noise, mechanism.dimension):
        return
    others = [other.name for other in methods_for(mechanism)]
    known = " or ".join(filter(None, [", ".join(map(repr, others[:-1])), *map(repr, others[-1:])]))
    raise ValueError(
        f"method {method.name!r} is not for {type(mechanism).__name__}; use {known or 'ldpbayes.fit, or your own'}"
    )


def methods_for(mechanism: Additive) -> list[Correction]:
    """The methods that correct for the noise of a mechanism, with their defaults.

    Parameters
    ----------
    mechanism : Additive
        That made the release.
    """
    # those that take any noise correct nothing
    corrections = [cls() for cls in _METHODS.values() if not issubclass(cls, Naive)]
    return [method for method in corrections if method.takes(mechanism.noise, mechanism.dimension)]
