"""Functionals of a law (probability distribution), such as its mean, its quantiles and its Gini coefficient.

A functional maps a NumPyro law (*batch) of numbers to an array (*batch), differentiable in the parameters of the law.
It raises TypeError if NumPyro has no cdf or moments of this law. `ldpbayes.predict` computes it at posterior draws.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike

from ldpbayes._core.checks import INSIDE_0_1, Rule, checked, ends_of
from ldpbayes._core.types import Array, is_concrete
from ldpbayes.laws import families
from ldpbayes.laws.compound import of_unwrapped, unwrapped
from ldpbayes.laws.families import aligned, family_of, is_infinite, log_prob_on_support, panel_nodes

__all__ = ["Functional", "cdf", "density", "gini", "lorenz", "mean", "quantile", "sd", "share"]

NOT_NAN: Rule = "numbers, perhaps infinite", lambda a: ~np.isnan(a)
TAIL_HALVINGS = 30  # of the distance from the mean to an end: ∫ P(X > x)² dx beyond 2³⁰ means is below 2⁻³⁰ means
BRACKET_PARTS, BRACKET_CUTS = 9, 20  # all floating-point numbers are cut into 9 parts 20 times


@dataclass(frozen=True)
class Functional:
    """A functional of a law (*batch): an array (*batch) for one point, or (*batch, m) for m points, such as quantiles.

    Parameters
    ----------
    function : callable
        From a law (*batch) and an array (m, *batch) of points to an array (m, *batch).
    points : tuple of float
        The points, such as the probabilities of quantiles.
    dim, labels : str and tuple, optional
        Name and m labels of the last axis of the result in xarray. Default: None, for one point without such an axis.
    """

    function: Callable[[Any, jax.Array], jax.Array]  # of a law without wrappers and points (points, *batch)
    points: tuple[float, ...]
    dim: str | None = None
    labels: tuple[Any, ...] | None = None

    def __call__(self, law: dist.Distribution) -> jax.Array:
        def of_law(inner: Any) -> jax.Array:
            columns = aligned(np.array(self.points), 1 + len(inner.batch_shape))
            points = jnp.broadcast_to(jnp.asarray(columns, float), (len(columns), *inner.batch_shape))
            return jnp.moveaxis(self.function(inner, points), 0, -1)

        values = _of_numbers(law, of_law)
        return values[..., 0] if self.dim is None else values


def mean(law: dist.Distribution) -> jax.Array:
    """Return the expectation (*batch) of a law (*batch) of numbers, in their unit."""
    return _of_numbers(law, lambda inner: inner.mean)


def sd(law: dist.Distribution) -> jax.Array:
    """Return the standard deviation (*batch) of a law (*batch) of numbers, in their unit."""
    return _of_numbers(law, lambda inner: jnp.sqrt(inner.variance))


def gini(law: dist.Distribution) -> jax.Array:
    """Return the Gini coefficient E|X − X'| / (2 E X) of a continuous law of non-negative numbers.

    X and X' are independent numbers with this law. The result is NaN without a finite mean. Raises ValueError if the
    law is not continuous, or if negative numbers are possible.
    """
    return _of_numbers(law, _gini)


def quantile(q: ArrayLike) -> Functional:
    """Return the functional of quantiles: the smallest x with P(X ≤ x) ≥ q, for one or several ``q`` (m,) in (0, 1)."""
    return _at_points("quantile", checked("q", q, *INSIDE_0_1), _quantiles)


def cdf(at: ArrayLike) -> Functional:
    """Return the functional P(X ≤ ``at``) of a law, for one or several points (m,), in the unit of the numbers."""
    return _at_points("at", checked("at", at, *NOT_NAN), _cdf)


def density(at: ArrayLike) -> Functional:
    """Return the functional of the density, or of the probabilities of a discrete law, at one or several ``at`` (m,).

    Atoms, points of a continuous law with a positive probability, do not count. At an end that the support leaves out,
    such as 0 for `HalfNormal`, it is the density right beside this end.
    """
    return _at_points("at", checked("at", at, *NOT_NAN), _density)


def share(low: ArrayLike, high: ArrayLike) -> Functional:
    """Return the functional P(``low`` < X ≤ ``high``) of one or several intervals (m,), labelled such as "(10, 20]".

    Ends are in the unit of the numbers, and may be infinite. Raises ValueError if a lower end is not below the upper
    end.
    """
    ends = np.broadcast_arrays(checked("low", low, *NOT_NAN), checked("high", high, *NOT_NAN))
    if np.any(ends[0] >= ends[1]):
        raise ValueError(f"low must be below high, got low = {low!r}, high = {high!r}")
    first, last = (_at_points("interval", end, _cdf) for end in ends)
    labels = tuple(f"({a:g}, {b:g}]" for a, b in zip(first.points, last.points, strict=True))
    return Functional(_between, first.points + last.points, first.dim, labels if first.dim else None)


def lorenz(at: ArrayLike) -> Functional:
    """Return the functional of the Lorenz curve of a continuous law of non-negative numbers; else ValueError.

    At a fraction p, it is the share of the total (such as all income) that belongs to the fraction p of people with the
    lowest values. ``at`` is one or several p (m,) in (0, 1).
    """
    return _at_points("fraction", checked("at", at, *INSIDE_0_1), _lorenz)


def names_of_values(functionals: Mapping[str, Callable[[Any], Any]], values: Iterable[ArrayLike]) -> list[str]:
    """Names of the numbers in the values of functionals: ``gini``, and ``quantile[0.5]`` or ``own[0]`` of an array."""
    names = []
    for (name, functional), value in zip(functionals.items(), values, strict=True):
        labels = getattr(functional, "labels", None) or range(np.size(value))
        names += [f"{name}[{label}]" for label in labels] if np.ndim(value) else [name]
    return names


def _at_points(dim: str, points: Array, function: Callable[[Any, jax.Array], jax.Array]) -> Functional:
    if np.ndim(points) > 1:
        raise ValueError(f"points of a functional must be a number or of shape (m,), got shape {np.shape(points)}")
    flat = tuple(np.atleast_1d(points).tolist())
    return Functional(function, flat, *((dim, flat) if np.ndim(points) else ()))


def _of_numbers(law: Any, function: Callable[[Any], Array]) -> jax.Array:
    """`of_unwrapped`, or TypeError if the law is not univariate or lacks what the function needs."""
    inner, _ = unwrapped(law)
    if not isinstance(inner, dist.Distribution) or inner.event_shape or isinstance(inner, families.CATEGORICAL):
        raise TypeError(f"a functional takes a univariate law of numbers, got {type(inner).__name__}")
    try:
        return of_unwrapped(function, law)
    except NotImplementedError:
        raise TypeError(f"{type(inner).__name__} lacks the cdf or the moments that a functional needs") from None


def _cdf(law: Any, x: jax.Array) -> jax.Array:
    """P(X ≤ x), without NaN in its derivatives at the ends of the support and beyond them."""
    family, (low, high) = family_of(law), ends_of(law.support)
    if law.support.is_discrete:
        return jnp.where(x >= high, 1.0, jnp.where(x < low, 0.0, family.cdf(jnp.clip(jnp.floor(x), low, high))))
    inside = (x >= low) & (x <= high) & jnp.isfinite(x) if family.tame else (x > low) & (x < high)
    value = family.cdf(jnp.where(inside, x, law.support.feasible_like(x)))
    return jnp.where(inside, value, jnp.where(x < high, 0.0, 1.0))


def _between(law: Any, ends: jax.Array) -> jax.Array:
    lower, upper = jnp.split(_cdf(law, ends), 2)
    return upper - lower


def _density(law: Any, x: jax.Array) -> jax.Array:
    if not law.support.is_discrete:  # at an end that NumPyro's supports leave out, the density right beside it
        ends = jnp.broadcast_arrays(*map(jnp.asarray, ends_of(law.support)))
        low, high = (jax.lax.stop_gradient(end).astype(x.dtype) for end in ends)
        beside = jnp.maximum(jnp.nextafter(low, high), low + jnp.finfo(x.dtype).tiny)
        return jnp.exp(log_prob_on_support(law, jnp.where((x == low) & ~law.support(x), beside, x)))
    inside = law.support(x)
    mass = jnp.exp(law.log_prob(jnp.where(inside, x, law.support.feasible_like(x))))  # a family's is of 0, 1, 2, ...
    return jnp.where(inside, mass, 0.0)


def _quantiles(law: Any, q: jax.Array) -> jax.Array:
    """The implicit derivative is −(∂F/∂θ)/f, and 0 where the law has an atom."""
    start = _inverse(jax.lax.stop_gradient(law), q)
    if law.support.is_discrete:
        return start
    smooth = jax.lax.stop_gradient(jnp.abs(_cdf(law, start) - q)) < jnp.finfo(q.dtype).eps ** 0.5

    def excess(x: jax.Array) -> jax.Array:
        return jnp.where(smooth, _cdf(law, x) - q, x - start)

    return jax.lax.custom_root(excess, start, lambda _, x: x, lambda slope, y: y / slope(jnp.ones_like(y)))


def _inverse(law: Any, q: jax.Array) -> jax.Array:
    """Smallest x with P(X ≤ x) ≥ q by the law's own formula, or from a bracket of its logarithm."""
    if not law.support.is_discrete:
        try:
            return jnp.broadcast_to(law.icdf(q), q.shape)
        except (NotImplementedError, ImportError):  # NumPyro's Gamma and Beta ask for TensorFlow Probability
            pass
    limit = 0.98 * np.log(jnp.finfo(q.dtype).max)

    def place(y: jax.Array) -> jax.Array:
        return jnp.sign(y) * jnp.exp(jnp.abs(y) - limit)

    def narrowed(_: Array, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        start, width = bracket
        inner = start + width * aligned(np.arange(1, BRACKET_PARTS) / BRACKET_PARTS, 1 + q.ndim)
        return start + width * (jnp.sum(_cdf(law, place(inner)) < q, axis=0) / BRACKET_PARTS), width / BRACKET_PARTS

    bracket = jnp.full_like(q, -2 * limit), jnp.full_like(q, 4 * limit)
    start, width = jax.lax.fori_loop(0, BRACKET_CUTS, narrowed, bracket)
    x = place(start + width)
    return jnp.round(x) if law.support.is_discrete else x


def _integrals(law: Any, function: Callable, points: tuple = ()) -> tuple[Array, jax.Array, jax.Array]:
    """Lower end, upper ends (panels, *batch) of panels, `points` (m, *batch) among them, and integrals over them of a
    function of the cdf of a law of non-negative numbers. It has no jumps: inner edges need no derivative.
    """
    low, high = ends_of(law.support)
    if law.support.is_discrete or is_infinite(low) or (is_concrete(low) and np.any(np.asarray(low) < 0)):
        raise ValueError(f"the law must be continuous and without negative numbers, got {type(law).__name__}")
    middle = jnp.broadcast_to(law.mean, law.batch_shape)
    halvings = aligned(0.5 ** np.arange(TAIL_HALVINGS + 1), 1 + middle.ndim)
    upper = low + (middle - low) / halvings if is_infinite(high) else high - (high - middle) * halvings
    last = upper[-1:] if is_infinite(high) else jnp.broadcast_to(high, upper[-1:].shape)
    graded = family_of(law).steep_points() or [low + (middle - low) * halvings, upper]
    parts = *graded, *points, families.graded_breaks(law)
    inner = jax.lax.stop_gradient(jnp.concatenate([part for part in parts if part is not None]))
    inner = jnp.where((inner > low) & (inner < last), inner, jax.lax.stop_gradient(middle))
    edges = jnp.concatenate([jnp.broadcast_to(low, last.shape), jnp.sort(inner, axis=0), last])
    x, weights = panel_nodes(edges[:-1], edges[1:])
    integrals = (weights * function(_cdf(law, x))).reshape(len(edges) - 1, -1, *law.batch_shape)
    return low, edges[1:], jnp.sum(integrals, axis=1)


def _gini(law: Any) -> jax.Array:
    low, _, integrals = _integrals(law, lambda below: (1.0 - below) ** 2)
    return 1.0 - (low + jnp.sum(integrals, axis=0)) / law.mean


def _lorenz(law: Any, fraction: jax.Array) -> jax.Array:
    """∫_0^p Q(u) du / E X = (p Q(p) − ∫_0^Q(p) P(X ≤ x) dx) / E X, whose derivative in Q(p) is 0."""
    end = _inverse(jax.lax.stop_gradient(law), fraction)
    _, upper, integrals = _integrals(law, lambda below: below, (end,))
    below = jnp.sum(jnp.where(upper <= end[:, None], integrals, 0.0), axis=1)
    return (fraction * end - below) / law.mean
