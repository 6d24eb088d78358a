"""Functionals of a law: mean, standard deviation, quantiles, shares, Gini coefficient and Lorenz curve.

Each takes a NumPyro law of numbers, perhaps expanded, masked or an event, and returns an array of the shape of its
batch. All are differentiable in the law's parameters and run under `jax.jit` and `jax.vmap`; TypeError if a law lacks
the cdf or the moments that are needed. `ldpbayes.predict` evaluates them at the draws of a posterior.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike

from ldpbayes._core.checks import INSIDE_0_1, Rule, checked
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array
from ldpbayes.likelihood.families import CATEGORICAL, aligned, ends_of, family_of, is_infinite
from ldpbayes.likelihood.latent import graded_breaks, panel_nodes
from ldpbayes.likelihood.privatized import of_unwrapped, unwrapped

__all__ = ["Functional", "cdf", "gini", "lorenz", "mean", "quantile", "sd", "share"]

NOT_NAN: Rule = "numbers, perhaps infinite", lambda a: ~np.isnan(a)
HALVINGS = 30  # of the distance from the mean to an end: ∫ P(X > x)² dx beyond 2³⁰ means is below 2⁻³⁰ means
PARTS, CUTS = 9, 19  # an interval of length 1,400 is cut into 9 parts 19 times, to rounding


@dataclass(frozen=True)
class Functional:
    """A functional at one point or at several: of a law of batch shape (*batch) an array (*batch), or (*batch, m).

    Attributes
    ----------
    function : callable
        Of a law without wrappers; returns an array (m, *batch).
    dim, labels : str and tuple, optional
        Name and labels of the last axis; None for one point.
    """

    function: Callable[[Any], Array]
    dim: str | None = None
    labels: tuple[Any, ...] | None = None

    def __call__(self, law: dist.Distribution) -> jax.Array:
        values = _of_numbers(law, lambda inner: jnp.moveaxis(self.function(inner), 0, -1))
        return values[..., 0] if self.dim is None else values


def mean(law: dist.Distribution) -> jax.Array:
    """Expectation of a law."""
    return _of_numbers(law, lambda inner: inner.mean)


def sd(law: dist.Distribution) -> jax.Array:
    """Standard deviation of a law."""
    return _of_numbers(law, lambda inner: jnp.sqrt(inner.variance))


def gini(law: dist.Distribution) -> jax.Array:
    """Gini coefficient E|X − X'| / (2 E X) of a continuous law of non-negative numbers, NaN without a finite mean.

    It is 1 − ∫_0^∞ P(X > x)² dx / E X, by Gauss-Legendre rules on panels that end at the breaks of the density and are
    short near the mean and the ends. ValueError for other laws.
    """
    return _of_numbers(law, _gini)


def quantile(q: ArrayLike) -> Functional:
    """Quantiles, the smallest x with P(X ≤ x) ≥ q, for probabilities q inside (0, 1), a number or an array (m,)."""
    q, axis = _points(checked("q", q, *INSIDE_0_1), "quantile")
    return Functional(lambda law: _quantiles(law, q), *axis)


def cdf(at: ArrayLike) -> Functional:
    """P(X ≤ at), for a number or an array (m,), in the unit of the law."""
    at, axis = _points(checked("at", at, *NOT_NAN), "at")
    return Functional(lambda law: _cdf(law, _column(at, law)), *axis)


def share(low: ArrayLike, high: ArrayLike) -> Functional:
    """P(low < X ≤ high), for numbers or arrays (m,), perhaps infinite; the labels are such as "(10, 20]"."""
    ends = np.broadcast_arrays(checked("low", low, *NOT_NAN), checked("high", high, *NOT_NAN))
    if np.any(ends[0] >= ends[1]):
        raise ValueError(f"low must be below high, got low = {low!r}, high = {high!r}")
    (first, axis), (last, _) = (_points(end, "interval") for end in ends)
    labels = [tuple(f"({a:g}, {b:g}]" for a, b in zip(first, last, strict=True))] if axis else []
    return Functional(lambda law: _cdf(law, _column(last, law)) - _cdf(law, _column(first, law)), *axis[:1], *labels)


def lorenz(at: ArrayLike) -> Functional:
    """Lorenz curve of a law as for `gini`: the share of the total that is held by the lowest fraction `at` of people,
    inside (0, 1), a number or an array (m,).
    """
    at, axis = _points(checked("at", at, *INSIDE_0_1), "fraction")
    return Functional(lambda law: _lorenz(law, at), *axis)


def _points(points: Array, dim: str) -> tuple[np.ndarray, tuple]:
    """Points as an array (m,), and the axis's name and labels if they were one; ValueError for more axes."""
    if np.ndim(points) > 1:
        raise ValueError(f"the points of a functional must be a number or of shape (m,), got {np.shape(points)}")
    array = np.atleast_1d(points)
    return array, (dim, tuple(array.tolist())) if np.ndim(points) else ()


def _of_numbers(law: Any, function: Callable[[Any], Array]) -> jax.Array:
    """`of_unwrapped`, or TypeError if the law is not univariate or lacks what the function needs."""
    inner, _ = unwrapped(law)
    if not isinstance(inner, dist.Distribution) or inner.event_shape or isinstance(inner, CATEGORICAL):
        raise TypeError(f"a functional takes a univariate law of numbers, got {type(inner).__name__}")
    try:
        return of_unwrapped(function, law)
    except NotImplementedError:
        raise TypeError(f"{type(inner).__name__} lacks the cdf or the moments that a functional needs") from None


def _column(points: np.ndarray, law: Any) -> jax.Array:
    """Points (m,) as an array (m, *batch)."""
    column = jnp.asarray(points, jnp.result_type(float)).reshape(-1, *(1,) * len(law.batch_shape))
    return jnp.broadcast_to(column, (len(points), *law.batch_shape))


def _cdf(law: Any, x: jax.Array) -> jax.Array:
    """P(X ≤ x), without NaN in its derivatives at the ends of the support and beyond them."""
    family, (low, high) = family_of(law), ends_of(law.support)
    if law.support.is_discrete:
        return jnp.where(x >= high, 1.0, jnp.where(x < low, 0.0, law.cdf(jnp.clip(jnp.floor(x), low, high))))
    inside = (x >= low) & (x <= high) & jnp.isfinite(x) if family.tame else (x > low) & (x < high)
    value = family.cdf(jnp.where(inside, x, law.support.feasible_like(x)))
    return jnp.where(inside, value, jnp.where(x < high, 0.0, 1.0))


def _quantiles(law: Any, q: np.ndarray) -> jax.Array:
    """The implicit derivative is −(∂F/∂θ)/f, and 0 where the law has an atom."""
    levels = _column(q, law)
    start = _inverse(jax.lax.stop_gradient(law), levels)
    if law.support.is_discrete:
        return start
    smooth = jax.lax.stop_gradient(jnp.abs(_cdf(law, start) - levels)) < jnp.finfo(levels.dtype).eps ** 0.5
    return jax.lax.custom_root(
        lambda x: jnp.where(smooth, _cdf(law, x) - levels, x - start),
        start,
        lambda _, x: x,
        lambda tangent, y: y / tangent(jnp.ones_like(y)),
    )


def _inverse(law: Any, q: jax.Array) -> jax.Array:
    """Smallest x with P(X ≤ x) ≥ q by the law's own formula, or by cuts of a scale that resolves zero or an end."""
    if not law.support.is_discrete:
        try:
            return jnp.broadcast_to(law.icdf(q), q.shape)
        except (NotImplementedError, ImportError):  # NumPyro's Gamma and Beta ask for TensorFlow Probability
            pass
    low, high = ends_of(law.support)

    def place(y: jax.Array) -> jax.Array:
        if is_infinite(low):
            return jnp.sinh(y) if is_infinite(high) else high - jnp.exp(-y)
        return low + (jnp.exp(y) if is_infinite(high) else (high - low) * jax.nn.sigmoid(y))

    def narrowed(_: Array, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        start, width = ends
        inner = start + width * aligned(np.arange(1, PARTS) / PARTS, 1 + q.ndim)
        return start + width * (jnp.sum(_cdf(law, place(inner)) < q, axis=0) / PARTS), width / PARTS

    limit = jnp.full_like(q, 0.98 * np.log(jnp.finfo(q.dtype).max))
    x = place(sum(jax.lax.fori_loop(0, CUTS, narrowed, (-limit, 2 * limit))))
    return jnp.round(x) if law.support.is_discrete else x


def _integrals(law: Any, function: Callable, points: tuple = ()) -> tuple[Array, jax.Array, jax.Array]:
    """Lower end of a law of non-negative numbers, upper ends (panels, *batch) of panels, `points` (m, *batch) among
    them, and integrals of a function of the cdf over these. It has no jumps: inner edges need no derivative.
    """
    low, high = ends_of(law.support)
    if law.support.is_discrete or is_infinite(low) or (is_concrete(low) and np.any(np.asarray(low) < 0)):
        raise ValueError(f"the law must be continuous and without negative numbers, got {type(law).__name__}")
    middle = jnp.broadcast_to(law.mean, law.batch_shape)
    halvings = aligned(0.5 ** np.arange(HALVINGS + 1), 1 + middle.ndim)
    upper = low + (middle - low) / halvings if is_infinite(high) else high - (high - middle) * halvings
    last = upper[-1:] if is_infinite(high) else jnp.broadcast_to(high, upper[-1:].shape)
    parts = low + (middle - low) * halvings, upper, *points, graded_breaks(law)
    inner = jax.lax.stop_gradient(jnp.concatenate([part for part in parts if part is not None]))
    inner = jnp.where((inner > low) & (inner < last), inner, jax.lax.stop_gradient(middle))
    edges = jnp.concatenate([jnp.broadcast_to(low, last.shape), jnp.sort(inner, axis=0), last])
    x, weights = panel_nodes(edges[:-1], edges[1:])
    integrals = (weights * function(_cdf(law, x))).reshape(len(edges) - 1, -1, *law.batch_shape)
    return low, edges[1:], jnp.sum(integrals, axis=1)


def _gini(law: Any) -> jax.Array:
    low, _, integrals = _integrals(law, lambda below: (1.0 - below) ** 2)
    return 1.0 - (low + jnp.sum(integrals, axis=0)) / law.mean


def _lorenz(law: Any, fraction: np.ndarray) -> jax.Array:
    """∫_0^p Q(u) du / E X = (p Q(p) − ∫_0^Q(p) P(X ≤ x) dx) / E X, whose derivative in Q(p) is 0."""
    end = _inverse(jax.lax.stop_gradient(law), _column(fraction, law))
    _, upper, integrals = _integrals(law, lambda below: below, (end,))
    below = jnp.sum(jnp.where(upper <= end[:, None], integrals, 0.0), axis=1)
    return (_column(fraction, law) * end - below) / law.mean
