"""Masses of a base distribution, to rounding: on its support, beyond an edge, in the tail of a count."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

from ldpbayes.numerics._special import betainc, log1mexp, log_ndtr, log_sum, student_t_cdf

# densities and derivatives without overflow, wherever a float can be
_TAME = (dist.Normal, dist.Exponential, dist.Laplace, dist.Cauchy, dist.Logistic, dist.HalfNormal, dist.HalfCauchy)
_NEGLIGIBLE = -750.0  # exp of it is zero in double precision

__all__ = [
    "aligned",
    "is_infinite",
    "log_mass_beyond",
    "log_mass_outside",
    "log_prob_on_support",
    "log_survival",
    "static_support_ends",
    "support_ends",
    "unexpanded",
]


def aligned(array, ndim):
    """Insert batch axes behind the point axis until the array has ``ndim`` axes."""
    return array.reshape(array.shape[:1] + (1,) * (ndim - array.ndim) + array.shape[1:])


def support_ends(base):
    """Lower and upper end of a distribution's support (±inf where there is none), from its NumPyro constraint.

    Parameters
    ----------
    base : numpyro.distributions.Distribution

    Returns
    -------
    tuple
        Two scalars, or arrays of the batch shape where the support depends on parameters (then possibly traced).
    """
    support = base.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support is constraints.boolean:
        return 0.0, 1.0
    return getattr(support, "lower_bound", -math.inf), getattr(support, "upper_bound", math.inf)


def is_infinite(end):
    """Whether an end of a support is known to be infinite: one that is traced is taken to be finite."""
    return not isinstance(end, jax.core.Tracer) and bool(np.all(np.isinf(end)))


def _is_traced(*values):
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def static_support_ends(base):
    """Ends of the support where they are those of a whole family, and ±inf where they depend on parameters."""
    family = type(unexpanded(base)).support
    depends = isinstance(family, property) or not isinstance(family, constraints.Constraint)
    return (-math.inf, math.inf) if depends else support_ends(base)


def _feasible(base, points):
    """A point inside the support for each of some points."""
    shape = jnp.broadcast_shapes(jnp.shape(points), jnp.shape(base.support(points)))
    return base.support.feasible_like(jnp.zeros(shape, jnp.result_type(points, float)))


def log_prob_on_support(base, nodes):
    """Log density with nodes on the first axis; −inf, with zero gradient, outside the support."""
    log_density = _log_mass if base.support.is_discrete else _log_density
    # as the density sees them, and on the host where that shows that all of them are in the support
    known = isinstance(nodes, np.ndarray) and not _is_traced(base.support)
    nodes = nodes.astype(jnp.result_type(nodes, float)) if known else jnp.asarray(nodes)
    nodes = aligned(nodes, max(nodes.ndim, 1 + len(base.batch_shape)))
    inside = base.support(nodes)
    if known and np.all(inside):
        return log_density(base, inside, nodes)
    points = jnp.where(inside, nodes, _feasible(base, nodes))
    return jnp.where(inside, log_density(base, inside, points), -jnp.inf)


def _log_density(base, inside, points):
    """``base.log_prob`` where it is finite and not negligible against its largest value, and else −inf.

    Where a density overflows or underflows its derivative may be no number, and one that is not selected spoils the
    others. So the density is only differentiated at points where it counts, and in place of all others at one of them.
    """
    if isinstance(unexpanded(base), _TAME):
        return base.log_prob(points)
    shown = jax.lax.stop_gradient(base.log_prob(points))
    shown = jnp.where(inside & jnp.isfinite(shown), shown, -jnp.inf)
    best = jnp.max(shown, axis=0)
    points = jnp.broadcast_to(points, shown.shape)
    there = jnp.take_along_axis(points, jnp.argmax(shown, axis=0)[None], axis=0)
    fallback = base.support.feasible_like(jax.lax.stop_gradient(points[:1]))
    keep = (shown > best + _NEGLIGIBLE) & jnp.isfinite(shown)
    safe = jnp.where(keep, points, jnp.where(jnp.isfinite(best), jax.lax.stop_gradient(there), fallback))
    return jnp.where(keep, base.log_prob(safe), -jnp.inf)


def _log_mass(base, inside, counts):
    """Log mass of a discrete base at counts on the first axis, those of a negative binomial being 0, 1, 2, ...

    NumPyro's negative binomial rests on `betaln`, which JAX has to 1e-6 only, and on differences of log-gammas, which
    lose their digits at a large concentration; products of ratios of neighbouring masses lose nothing.
    """
    law, counts = unexpanded(base), counts.astype(np.int32)
    if isinstance(law, dist.discrete.ZeroInflatedProbs):
        inflated = jnp.log1p(-law.gate) + _log_mass(law.base_dist, inside, counts)
        return jnp.where(counts == 0, jnp.log(law.gate + jnp.exp(inflated)), inflated)
    if isinstance(law, dist.GammaPoisson):
        concentration, log_q, log_1mq = _negative_binomial(law)
        ratios = jnp.log((concentration + counts[:-1]) / counts[1:]) + log_q
        first = jnp.broadcast_to(concentration * log_1mq, (1, *jnp.broadcast_shapes(counts.shape[1:], law.batch_shape)))
        return jnp.concatenate([first, first + jnp.cumsum(ratios, axis=0)])
    if isinstance(law, (dist.BinomialProbs, dist.BinomialLogits, dist.BetaBinomial, dist.Poisson)):
        counts = counts.astype(float)  # the log-gamma of an integer array has single precision
    return base.log_prob(counts)


def unexpanded(base):
    """A distribution without its expansions, which only repeat it."""
    while isinstance(base, dist.ExpandedDistribution):
        base = base.base_dist
    return base


def _negative_binomial(base):
    """Concentration α, log q and log(1 − q) of a mass proportional to Γ(α + k)/k!·q^k, from the exact parameters."""
    if isinstance(base, dist.NegativeBinomialLogits):
        log_q, log_1mq = -jax.nn.softplus(-base.logits), -jax.nn.softplus(base.logits)
    elif isinstance(base, dist.NegativeBinomialProbs):
        log_q, log_1mq = jnp.log(base.probs), jnp.log1p(-base.probs)
    else:
        log_q, log_1mq = -jnp.log1p(base.rate), -jnp.log1p(1.0 / base.rate)
    return jnp.asarray(base.concentration, jnp.result_type(float)), log_q, log_1mq


@functools.cache
def _double_exponential(step=0.05):
    """Logs of nodes y = exp(π/2 sinh t) and weights of a rule on (0, ∞) with points dense on every scale of y."""
    t = np.arange(-4.2, 4.2001, step)
    log_y = 0.5 * np.pi * np.sinh(t)
    return log_y, np.log(step * 0.5 * np.pi * np.cosh(t)) + log_y


def _log_tail(base, edge, end, direction):
    """Log mass between ``edge`` and ``end`` (±inf allowed), ``direction`` −1 for a lower, 1 for an upper tail.

    Where most of the law may lie beyond the edge, far out and narrow, the integral is cut at its mean.
    """
    try:
        centre = jax.lax.stop_gradient(jnp.asarray(base.mean))
    except NotImplementedError:
        return _log_integral(base, edge, end, direction)
    centre = jnp.where(jnp.isfinite(centre) & (direction * (centre - edge) > 0), centre, edge)
    # far from its end that interval's rule is too coarse for a narrow law: twice as many digits
    near = _log_integral(base, edge, centre, direction, step=0.025)
    return jnp.logaddexp(near, _log_integral(base, centre, end, direction))


def _log_integral(base, edge, end, direction, step=0.05):
    """`_log_tail` for a law whose density varies most near one of the ends of the interval."""
    column = (-1,) + (1,) * max(len(base.batch_shape), jnp.ndim(edge), jnp.ndim(end))
    log_y, log_w = (array.reshape(column) for array in _double_exponential(step))
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
        if _is_traced(end) or np.any(end):
            # points near an end other than zero are rounded: there the density is continued by a power of the distance
            power = _power_at_end(base, jnp.broadcast_to(end, jnp.shape(delta)), near, direction)
            log_weight += jnp.where(keep & (distance < near), power * (log_distance - jnp.log(near)), 0.0)
    return log_sum(log_prob_on_support(base, points) + log_weight, axis=0)


def _power_at_end(base, end, near, direction):
    """Power of the distance from an end of the support, not zero, to which a density grows there."""
    probes = jnp.stack([end - direction * near, end - direction * 4.0 * near])
    near_density, far_density = log_prob_on_support(base, probes)
    log_distance = jax.lax.stop_gradient(jnp.log(jnp.abs(end - probes)))
    resolved = jnp.isfinite(near_density) & jnp.isfinite(far_density) & (end != 0)
    rise = jnp.where(resolved, far_density, 0.0) - jnp.where(resolved, near_density, 0.0)
    return jnp.where(resolved, rise / (log_distance[1] - log_distance[0]), 0.0)


def _has_smooth_cdf(base):
    """Whether the base has a cdf that can be differentiated in its parameters."""
    try:
        leaves, tree = jax.tree.flatten(base)
        inexact = [jnp.asarray(leaf) for leaf in leaves]
        jax.eval_shape(
            lambda values: jax.jvp(lambda v: _cdf(jax.tree.unflatten(tree, v), 0.5), (values,), (values,)),
            [leaf.astype(jnp.result_type(float)) for leaf in inexact],
        )
    except Exception:
        return False
    return True


def _cdf(base, x):
    """``base.cdf`` with derivatives: an incomplete beta function's in its parameters, a Laplace law's at its centre."""
    law = unexpanded(base)
    if isinstance(law, dist.Laplace):
        t = (x - law.loc) / law.scale
        tail = 0.5 * jnp.exp(jnp.where(t < 0, t, -t))
        return jnp.where(t < 0, tail, 1.0 - tail)
    if isinstance(law, dist.Beta):
        return betainc(law.concentration1, law.concentration0, x)
    if isinstance(law, dist.StudentT):
        return student_t_cdf(law.df, (x - law.loc) / law.scale)
    return base.cdf(x)


def log_mass_outside(base, first, last):
    """Log masses of a continuous base below ``first`` and above ``last``, two of the broadcast shape."""
    low, high = support_ends(base)
    first, last = (edge if isinstance(edge, jax.Array) else np.asarray(edge) for edge in (first, last))
    if isinstance(base, dist.Normal):
        return log_ndtr(_stack((first - base.loc) / base.scale, (base.loc - last) / base.scale))
    if isinstance(base, dist.Exponential):
        below = -np.inf if _is_empty(first, low, -1) else log1mexp(-base.rate * jnp.maximum(first, 0.0))
        return _stack(below, -base.rate * jnp.maximum(last, 0.0))
    if isinstance(unexpanded(base), (dist.MixtureSameFamily, dist.MixtureGeneral)):
        return _mixture_mass_outside(unexpanded(base), first, last)
    sides = (first, low, -1), (last, high, 1)
    if _has_smooth_cdf(base):
        tails = _log_mass_by_cdf(base, [side for side in sides if not _is_empty(*side)])
    else:
        tails = (_log_tail(base, *side) for side in sides if not _is_empty(*side))
    tails = iter(tails)
    return _stack(*(-np.inf if _is_empty(*side) else next(tails) for side in sides))


def _stack(*sides):
    return jnp.stack(jnp.broadcast_arrays(*sides))


def _is_empty(edge, end, direction):
    """Whether nothing of the support is known to lie beyond an edge."""
    return not _is_traced(edge, end) and bool(np.all(direction * (end - np.asarray(edge)) <= 0))


def _log_mass_by_cdf(base, sides):
    """Log masses of a base between edges and the ends of its support, for sides (edge, end, direction)."""
    if not sides:
        return []
    edges, ends, directions = (_stack(*column) for column in zip(*sides, strict=True))
    rank = max(edges.ndim, ends.ndim, 1 + len(base.batch_shape))
    edges, ends, directions = (aligned(array, rank) for array in (edges, ends, directions))
    low, high = support_ends(base)
    # at the ends of the support and beyond them a cdf may have no derivative, and nobody asks for it
    within = (edges > low) & (edges < high)
    cdf = _cdf(base, jnp.where(within, edges, _feasible(base, edges)))
    beyond = jnp.where(directions < 0, cdf, 1.0 - cdf)
    mass = jnp.where(within, beyond, jnp.where(directions * (ends - edges) > 0, 1.0, 0.0))
    # a cdf's complement has lost its digits where it is small; there quadrature of the tail is exact
    certain = mass > 1e-6
    if all(is_infinite(end) for _, end, _ in sides):
        tails = _log_integral(base, edges, np.inf, directions)
    else:
        tails = _stack(*(_log_integral(base, *side) for side in sides))
    return jnp.where(certain, jnp.log(jnp.where(certain, mass, 1.0)), tails)


def _mixture_mass_outside(base, first, last):
    """`log_mass_outside` for a mixture, from its components, each of which may be far from the others and narrow."""
    log_weights = jax.nn.log_softmax(base.mixing_distribution.logits)
    if isinstance(base, dist.MixtureSameFamily):
        first, last = (edge.reshape(*jnp.shape(edge), 1) for edge in (first, last))
        sides = log_mass_outside(base.component_distribution, first, last)
    else:
        parts = [log_mass_outside(law, first, last) for law in base.component_distributions]
        sides = jnp.stack(jnp.broadcast_arrays(*parts), axis=-1)
    return log_sum(log_weights + sides)


def log_mass_beyond(base, nodes, open_ends, inside):
    """Log masses of a discrete base below and above its nodes, given its log masses ``inside``, at them."""
    unbounded_below, unbounded_above = open_ends
    if not (unbounded_below or unbounded_above):
        return np.full((2, *inside.shape[1:]), -np.inf)
    first, beyond = nodes[0], nodes[-1] + 1
    if not unbounded_below:
        law, log_kept = unexpanded(base), 0.0
        if isinstance(law, dist.discrete.ZeroInflatedProbs):  # the inflated zeros are not beyond anything
            law, log_kept = unexpanded(law.base_dist), jnp.log1p(-law.gate)
            inside = log_prob_on_support(law, nodes)
        return _stack(-np.inf, log_kept + log_survival(law, beyond, log_sum(inside, axis=0)))
    below = base.cdf(first - 1)
    above = 1.0 - base.cdf(beyond - 1) if unbounded_above else jnp.zeros_like(below)
    masses = _stack(below, above)
    return jnp.where(masses > 0, jnp.log(jnp.where(masses > 0, masses, 1.0)), -jnp.inf)


def log_survival(base, k, log_total_below):
    """Log P(x ≥ k) of a distribution on the non-negative integers, with relative accuracy however small it is.

    The complement of the cdf is exact enough until it is small; there the tail integral representation takes over,
    ∫₀^∞ exp(−k v) g(exp(−v)) dv up to a factor (Poisson: g(s) = exp(−λ s); negative binomial: (1 − q s)^(α − 1)).

    Parameters
    ----------
    base : numpyro.distributions.Distribution
    k : float
        Positive integer value.
    log_total_below : Array
        log P(x < k), shape ``base.batch_shape``.

    Returns
    -------
    Array
        Shape ``base.batch_shape``.
    """
    complement = log1mexp(log_total_below)
    column = (-1,) + (1,) * len(base.batch_shape)
    log_v, log_w = (array.reshape(column) for array in _double_exponential())
    v = np.exp(np.minimum(log_v, 6.5))
    log_w = np.where(log_v < 6.5, log_w - k * v, -np.inf)
    if isinstance(base, (dist.GeometricProbs, dist.GeometricLogits)):
        # P(x > j) = (1 - p)^(j + 1), and log(1 - p) = log_prob(1) - log_prob(0)
        return k * (base.log_prob(jnp.asarray(1)) - base.log_prob(jnp.asarray(0)))
    if isinstance(base, dist.Poisson):
        lead = k * jnp.log(base.rate) - math.lgamma(k)
        tail = lead + log_sum(log_w - base.rate * np.exp(-v), axis=0)
    elif isinstance(base, dist.GammaPoisson):
        alpha, log_q, log_1mq = _negative_binomial(base)
        # a small concentration puts weight on every scale of v above 1 - q, which needs a step that does not grow
        log_v = np.arange(-55.0, 5.0, 0.15).reshape(-1, *log_v.shape[1:])
        v = np.exp(log_v)
        log_w = np.log(0.15) + log_v - k * v
        ahead = np.arange(1, int(k)).reshape((-1,) + (1,) * len(base.batch_shape))
        log_beta = -jnp.log(alpha) - jnp.sum(jnp.log1p(alpha / ahead), axis=0)
        # 1 - q e^-v, written so that nothing cancels when q is near 0 or near 1
        q = jnp.exp(log_q)
        small = jnp.log1p(-jnp.where(q < 0.5, q, 0.0) * np.exp(-v))
        log_g = (alpha - 1.0) * jnp.where(q < 0.5, small, jnp.log(jnp.exp(log_1mq) - q * np.expm1(-v)))
        tail = k * log_q - log_beta + log_sum(log_w + log_g, axis=0)
    else:
        return complement
    return jnp.where(complement > -9.0, complement, tail)
