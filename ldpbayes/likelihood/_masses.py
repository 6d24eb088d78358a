"""Masses of a base distribution, to rounding: on its support, beyond an edge, above a count. These generic ways serve
any distribution; what its `Family` knows takes their place.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular

from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array
from ldpbayes.likelihood.families import family_of, is_infinite, support_ends
from ldpbayes.numerics.special import log_sum, stacked

_NEGLIGIBLE = -750.0  # exp of it is zero in double precision


def aligned(array: Array, ndim: int) -> Array:
    """An array (n, *batch) with batch axes inserted behind the point axis until it has ``ndim`` axes."""
    return array.reshape(array.shape[:1] + (1,) * (ndim - array.ndim) + array.shape[1:])


def is_empty(edge: Array, end: Array, direction: int) -> bool:
    """Whether the support, which ends at `end`, is known to hold nothing below (−1) or above (1) an edge."""
    return is_concrete(edge, end) and bool(np.all(direction * (end - np.asarray(edge)) <= 0))


def _feasible(base: dist.Distribution, points: Array) -> Array:
    """A point inside the support for each of some points."""
    shape = jnp.broadcast_shapes(jnp.shape(points), jnp.shape(base.support(points)))
    return base.support.feasible_like(jnp.zeros(shape, jnp.result_type(points, float)))


def log_prob_on_support(base: dist.Distribution, nodes: Array) -> jax.Array:
    """Log density or mass at nodes (n, *batch), 0, 1, ... for counts; −inf, with zero gradient, outside the support."""
    log_density = _log_mass if base.support.is_discrete else _log_density
    # in the precision of the density; NumPy nodes stay on the host, where it can be seen that all are in the support
    known = isinstance(nodes, np.ndarray) and is_concrete(base.support)
    nodes = nodes.astype(jnp.result_type(nodes, float)) if known else jnp.asarray(nodes)
    nodes = aligned(nodes, max(nodes.ndim, 1 + len(base.batch_shape)))
    inside = base.support(nodes)
    if known and np.all(inside):
        return log_density(base, inside, nodes)
    points = jnp.where(inside, nodes, _feasible(base, nodes))
    return jnp.where(inside, log_density(base, inside, points), -jnp.inf)


def _log_mass(base: dist.Distribution, inside: Array, counts: Array) -> Array:
    log_mass = family_of(base).log_mass(counts.astype(np.int32))
    # a family knows nothing of expansions
    return jnp.broadcast_to(log_mass, jnp.broadcast_shapes(jnp.shape(log_mass), (1, *base.batch_shape)))


def _log_density(base: dist.Distribution, inside: Array, points: Array) -> Array:
    """``base.log_prob`` where it is finite and not negligible against its largest value, and else −inf. Where a density
    overflows or underflows its derivative may be NaN, even if not selected: another point takes the place of these.
    """
    if family_of(base).tame:
        return base.log_prob(points)
    values = jax.lax.stop_gradient(base.log_prob(points))
    values = jnp.where(inside & jnp.isfinite(values), values, -jnp.inf)
    best = jnp.max(values, axis=0)
    points = jnp.broadcast_to(points, values.shape)
    there = jnp.take_along_axis(points, jnp.argmax(values, axis=0)[None], axis=0)
    fallback = base.support.feasible_like(jax.lax.stop_gradient(points[:1]))
    keep = (values > best + _NEGLIGIBLE) & jnp.isfinite(values)
    safe = jnp.where(keep, points, jnp.where(jnp.isfinite(best), jax.lax.stop_gradient(there), fallback))
    return jnp.where(keep, base.log_prob(safe), -jnp.inf)


def normal_log_density(base: dist.MultivariateNormal, z: Array) -> jax.Array:
    """``base.log_prob(z)`` of a multivariate normal, all rows in one triangular system where they have one law."""
    if base.batch_shape:
        return base.log_prob(z)
    d = base.event_shape[0]
    white = solve_triangular(base.scale_tril, (z - base.loc).reshape(-1, d).T, lower=True)
    log_root = jnp.sum(jnp.log(jnp.diagonal(base.scale_tril)))
    return -0.5 * jnp.sum(white * white, axis=0).reshape(z.shape[:-1]) - log_root - 0.5 * d * math.log(2 * math.pi)


@functools.cache
def double_exponential(step: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Logs of nodes y = exp(π/2 sinh t) and weights of a rule on (0, ∞) with points dense on every scale of y."""
    t = np.arange(-4.2, 4.2001, step)
    log_y = 0.5 * np.pi * np.sinh(t)
    return log_y, np.log(step * 0.5 * np.pi * np.cosh(t)) + log_y


def log_mass_outside(base: dist.Distribution, first: Array, last: Array) -> jax.Array:
    """Log masses of a continuous base below ``first`` and above ``last``, shape (2, *batch)."""
    low, high = support_ends(base)
    first, last = (edge if isinstance(edge, jax.Array) else np.asarray(edge) for edge in (first, last))
    known = family_of(base).log_mass_outside(first, last)
    if known is not None:
        return aligned(known, max(known.ndim, 1 + len(base.batch_shape)))
    sides = (first, low, -1), (last, high, 1)
    occupied = [side for side in sides if not is_empty(*side)]
    smooth = _has_smooth_cdf(base)
    tails = iter(_log_mass_by_cdf(base, occupied) if smooth else [_log_tail(base, *side) for side in occupied])
    return stacked(*(-np.inf if is_empty(*side) else next(tails) for side in sides))


def _has_smooth_cdf(base: dist.Distribution) -> bool:
    """Whether the base has a cdf that can be differentiated in its parameters."""
    try:
        leaves, tree = jax.tree.flatten(base)
        jax.eval_shape(
            lambda values: jax.jvp(lambda v: family_of(jax.tree.unflatten(tree, v)).cdf(0.5), (values,), (values,)),
            [jnp.asarray(leaf).astype(jnp.result_type(float)) for leaf in leaves],
        )
    except Exception:
        return False
    return True


def _log_mass_by_cdf(base: dist.Distribution, sides: list[tuple[Array, Array, int]]) -> Array:
    """Log masses of a base between edges and the ends of its support, for sides (edge, end, direction)."""
    if not sides:
        return []
    edges, ends, directions = (stacked(*column) for column in zip(*sides, strict=True))
    rank = max(edges.ndim, ends.ndim, 1 + len(base.batch_shape))
    edges, ends, directions = (aligned(array, rank) for array in (edges, ends, directions))
    low, high = support_ends(base)
    # at the ends of the support and beyond them a cdf may have no derivative, and nobody asks for it
    within = (edges > low) & (edges < high)
    cdf = family_of(base).cdf(jnp.where(within, edges, _feasible(base, edges)))
    beyond = jnp.where(directions < 0, cdf, 1.0 - cdf)
    mass = jnp.where(within, beyond, jnp.where(directions * (ends - edges) > 0, 1.0, 0.0))
    # a cdf's complement has lost its digits where it is small; there quadrature of the tail is exact
    certain = mass > 1e-6
    if all(is_infinite(end) for _, end, _ in sides):
        tails = _log_integral(base, edges, np.inf, directions)
    else:
        tails = stacked(*(_log_integral(base, *side) for side in sides))
    return jnp.where(certain, jnp.log(jnp.where(certain, mass, 1.0)), tails)


def _log_tail(base: dist.Distribution, edge: Array, end: Array, direction: int) -> jax.Array:
    """Log mass between an edge and an end, cut at the mean where most of the law may lie beyond the edge."""
    try:
        centre = jax.lax.stop_gradient(jnp.asarray(base.mean))
    except NotImplementedError:
        return _log_integral(base, edge, end, direction)
    centre = jnp.where(jnp.isfinite(centre) & (direction * (centre - edge) > 0), centre, edge)
    # a law that is narrow and far from the end of the interval needs nodes twice as dense
    near = _log_integral(base, edge, centre, direction, step=0.025)
    return jnp.logaddexp(near, _log_integral(base, centre, end, direction))


def _log_integral(base: dist.Distribution, edge: Array, end: Array, direction: Array, step: float = 0.05) -> jax.Array:
    """`_log_tail` for a law whose density varies most near one of the ends of the interval."""
    column = (-1,) + (1,) * max(len(base.batch_shape), jnp.ndim(edge), jnp.ndim(end))
    log_y, log_w = (array.reshape(column) for array in double_exponential(step))
    log_weight: Array
    if is_infinite(end):
        keep = np.abs(log_y) < 300.0
        points, log_weight = edge + direction * np.exp(np.where(keep, log_y, 0.0)), np.where(keep, log_w, -np.inf)
    else:  # measured from the end of the support: distance = δ·exp(−τ), τ = exp(π/2 sinh t)
        delta = jnp.maximum(direction * (end - edge), 0.0)
        tau = np.exp(np.minimum(log_y, 6.55))
        log_delta = jnp.log(jnp.where(delta > 0, delta, 1.0))
        distance, log_distance = delta * jnp.exp(-tau), log_delta - tau  # the log of the former may lose its derivative
        info = jnp.finfo(distance.dtype)
        near = 0.1 * info.eps**0.5 * jnp.abs(end) + 4 * info.tiny
        keep = (log_y < 6.55) & (log_distance > np.log(4 * info.tiny)) & (delta > 0)
        clipped = jnp.maximum(jnp.where(keep, distance, near), near)
        # a point of no weight is outside the support, where the density is not asked for
        points = jnp.where(keep, end - direction * clipped, jnp.nan)
        log_weight = jnp.where(keep, log_w - tau + log_delta, -jnp.inf)
        if not is_concrete(end) or np.any(end):
            # points near an end other than zero are rounded: there the density is continued by a power of the distance
            power = _power_at_end(base, jnp.broadcast_to(end, jnp.shape(delta)), near, direction)
            log_weight += jnp.where(keep & (distance < near), power * (log_distance - jnp.log(near)), 0.0)
    return log_sum(log_prob_on_support(base, points) + log_weight, axis=0)


def _power_at_end(base: dist.Distribution, end: Array, near: Array, direction: Array) -> jax.Array:
    """Power of the distance from an end of the support, not zero, to which a density grows there."""
    probes = jnp.stack([end - direction * near, end - direction * 4.0 * near])
    near_density, far_density = log_prob_on_support(base, probes)
    log_distance = jax.lax.stop_gradient(jnp.log(jnp.abs(end - probes)))
    resolved = jnp.isfinite(near_density) & jnp.isfinite(far_density) & (end != 0)
    rise = jnp.where(resolved, far_density, 0.0) - jnp.where(resolved, near_density, 0.0)
    return jnp.where(resolved, rise / (log_distance[1] - log_distance[0]), 0.0)


def log_mass_beyond(
    base: dist.Distribution, nodes: np.ndarray, open_ends: tuple[bool, bool], inside: jax.Array
) -> Array:
    """Log masses (2, *batch) of a discrete base below and above nodes, which are consecutive integers."""
    unbounded_below, unbounded_above = open_ends
    if not (unbounded_below or unbounded_above):
        return np.full((2, *inside.shape[1:]), -np.inf)
    if not unbounded_below:
        return stacked(-np.inf, family_of(base).log_mass_above(nodes, inside))
    below = base.cdf(nodes[0] - 1)
    above = 1.0 - base.cdf(nodes[-1]) if unbounded_above else jnp.zeros_like(below)
    masses = stacked(below, above)
    return jnp.where(masses > 0, jnp.log(jnp.where(masses > 0, masses, 1.0)), -jnp.inf)
