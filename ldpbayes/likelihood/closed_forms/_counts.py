"""Base laws of counts: Poisson, binomial, negative binomial, and counts under noise."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax, nn

from ldpbayes._core.checks import ends_of
from ldpbayes._core.types import Array, array_of, is_concrete
from ldpbayes.laws import families
from ldpbayes.laws.counts import (
    binomial_log_mass,
    negative_binomial_log_mass,
    negative_binomial_parameters,
    negative_binomial_tail,
    poisson_log_mass,
    poisson_tail,
)
from ldpbayes.likelihood.closed_forms import register_closed_form
from ldpbayes.likelihood.latent import log_sum_over_counts
from ldpbayes.mechanisms.reporting import Reported
from ldpbayes.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace, SymmetricLaplace
from ldpbayes.numerics.arrays import CACHE_SIZE, by_rows, width_classes
from ldpbayes.numerics.special import log1mexp, log_or_nothing, log_sum, logsumexp

TAIL_NODES = 200  # of the integral for a tail under discrete Laplace noise, which decides how many values a chunk has
NOISE_REACH_SCALES = 10  # of Gaussian noise: further from the largest term is less than 1e-20 of a log-concave sum
PEAK_HALVINGS = 64  # of an interval of logarithms below 750 in length, which leaves rounding errors


class _CountLaw(NamedTuple):
    """A law on 0, 1, 2, ... whose sums are known, as functions of its parameters."""

    log_mass: Callable  # of (k, *parameters)
    log_step: Callable  # log of the ratio of the masses at k and k − 1, for real k ≥ 1: of (k, *parameters)
    peak: Callable  # the masses fall beyond: of the parameters
    tail: Any  # of laws without end, a `ldpbayes.laws.counts.Tail`: of (z, *parameters, tilt, side)
    log_concave: bool  # whether masses are, whatever the parameters


_POISSON = _CountLaw(
    poisson_log_mass,
    lambda k, rate: jnp.log(rate) - jnp.log(k),
    lambda rate: rate,
    poisson_tail,
    log_concave=True,
)
_NEGATIVE_BINOMIAL = _CountLaw(
    negative_binomial_log_mass,
    lambda k, alpha, log_q, log_p: log_q + jnp.log1p((alpha - 1.0) / k),
    lambda alpha, log_q, log_p: alpha * jnp.exp(log_q - log_p),
    negative_binomial_tail,
    log_concave=False,  # it is not where the concentration is below 1
)
_BINOMIAL = _CountLaw(
    binomial_log_mass,
    lambda k, n, log_p, log_q: log_p - log_q + jnp.log(jnp.maximum(n + 1.0 - k, 0.0) / k),
    lambda n, log_p, log_q: n * jnp.exp(log_p),
    None,
    log_concave=True,
)


@register_closed_form((dist.BinomialProbs, dist.BinomialLogits), (Gaussian, DiscreteGaussian, Reported), bounded=False)
@register_closed_form(
    (dist.Poisson, dist.GammaPoisson, dist.GeometricProbs, dist.GeometricLogits, dist.discrete.ZeroInflatedProbs),
    (Laplace, SymmetricLaplace, DiscreteLaplace, Gaussian, DiscreteGaussian, Reported),
    bounded=False,
)
def noisy_count(base: dist.Distribution, mechanism: Any, z: Array) -> jax.Array:
    """A count, without bounds, with Laplace, Gaussian or such discrete noise, in a reporting rule or not."""
    law, z = families.unexpanded(base), array_of(z)
    z = z if z.dtype.kind == "f" else z.astype(float)
    end = ends_of(law.support)[1]
    binomial = isinstance(law, (dist.BinomialProbs, dist.BinomialLogits))
    binomial &= isinstance(mechanism.noise, (Gaussian, DiscreteGaussian))
    if not binomial and not (is_concrete(end) and np.any(np.isinf(end))):
        return log_sum_over_counts(law, mechanism, z)
    if isinstance(law, dist.discrete.ZeroInflatedProbs):
        inflated = log_or_nothing(law.gate) + mechanism.log_prob(z, 0.0)
        # not logaddexp: where neither is possible, at a z that is no integer, its derivative is NaN
        return logsumexp(inflated, log_or_nothing(1.0 - law.gate) + noisy_count(law.base_dist, mechanism, z))
    if binomial:
        odds = law.logits if isinstance(law, dist.BinomialLogits) else jnp.log(law.probs) - jnp.log1p(-law.probs)
        count_law, parameters = _BINOMIAL, [law.total_count, -nn.softplus(-odds), -nn.softplus(odds)]
    elif isinstance(law, dist.Poisson):
        count_law, parameters = _POISSON, [families.family_of(law).law.rate]
    elif isinstance(law, (dist.GammaPoisson, dist.GeometricProbs, dist.GeometricLogits)):
        count_law, parameters = _NEGATIVE_BINOMIAL, [*negative_binomial_parameters(law)]
    else:
        kinds = "use a Poisson, negative binomial or geometric law, or clip the counts"
        raise ValueError(f"the sum over an unbounded {type(law).__name__} is not available: {kinds}")
    log_sum_between = functools.partial(_sum, count_law, parameters, mechanism.noise)
    if not isinstance(mechanism, Reported):
        log_prob = log_sum_between(0, z, z)
        return jnp.where(z == jnp.round(z), log_prob, -jnp.inf) if mechanism.noise.discrete else log_prob
    if not is_concrete(mechanism):
        raise ValueError("sums over counts need a reporting rule that JAX does not trace: do not pass it to jit")
    longest = math.ceil(mechanism.longest)

    def between(low: Array, high: Array) -> jax.Array:
        open_ended = high == np.inf
        if is_concrete(open_ended) and not np.any(open_ended):
            return log_sum_between(longest, low, high)
        if binomial:
            return log_sum_over_counts(law, mechanism, z)
        ended = log_sum_between(longest, low, jnp.where(open_ended, low, high))
        return jnp.where(open_ended, log_sum_between(1, low, high, above=True), ended)

    return mechanism.by_intervals(z, lambda at: log_sum_between(0, at, at), between)


def _sum(
    law: _CountLaw, parameters: list, noise: Any, longest: int, low: Array, high: Array, above: bool = False
) -> jax.Array:
    """Log Σ mass(k) p(low | k); or, with at most `longest` counts in an interval, Σ mass(k) P(low ≤ z ≤ high | k); or
    for all z from `low` on.
    """
    (scale,) = jax.tree.leaves(noise)
    dtype = jnp.result_type(low, float)
    arrays = jnp.broadcast_arrays(*(jnp.asarray(array, dtype) for array in (low, high, scale, *parameters)))
    gaussian = isinstance(noise, (Gaussian, DiscreteGaussian))
    if not gaussian and not isinstance(noise, (Laplace, SymmetricLaplace, DiscreteLaplace)):
        raise ValueError(f"the sum over counts without bounds is not available for {noise!r}")
    if gaussian and not is_concrete(scale):
        raise ValueError("Gaussian noise needs a scale that JAX does not trace: do not pass the noise to jit")
    size = math.prod(shape := arrays[0].shape)
    rows, result = np.arange(size), jnp.zeros(size, dtype)
    if longest and is_concrete(low, high):  # what is not in an interval is not asked for
        rows = np.flatnonzero(np.broadcast_to(low < high, shape))
    kind: Any = type(noise)
    widths = np.broadcast_to(width_classes(scale) if gaussian else 0.0, shape).ravel()[rows]
    for width_class in np.unique(widths):  # windows are as wide as the noise of some rows needs
        group = rows[widths == width_class]
        group = np.resize(group, min(1 << (len(group) - 1).bit_length(), size))  # few sizes are compiled
        half = 0
        function: Any = _under_laplace, law, longest, kind
        width = TAIL_NODES + longest
        if gaussian:
            widest = np.max(np.broadcast_to(scale, shape).ravel()[group])
            # where an interval takes curvature from the noise, it leaves more than a third
            half = math.ceil((1.3 if longest else 1.0) * NOISE_REACH_SCALES * widest) + 2 + longest
            width, function = 3 * half, (_under_gaussian, law, half, longest, kind, 0)
        function = (_above, law, half, kind) if above else function
        values = _in_chunks(function, 8 * CACHE_SIZE // width, *(array.ravel()[group] for array in arrays))
        result = result.at[group].set(values)
    return result.reshape(shape)


def _log_noise(noise: Any, longest: int, low: Array, high: Array, counts: Array) -> jax.Array:
    """Log density (values, counts) at `low`, or log probability of the interval, where counts get the noise."""
    below = low[:, None] - counts
    return noise.log_interval(below, high[:, None] - counts) if longest else noise.continued(below[..., None])


@functools.partial(jax.jit, static_argnums=(0, 1))  # outside of a trace, `by_rows` would be compiled at every call
def _in_chunks(function: Any, rows: int, *arrays: Array) -> jax.Array:
    return by_rows(functools.partial(*function), rows)(*arrays)


def _under_laplace(
    law: _CountLaw, longest: int, kind: type, low: Array, high: Array, scale: Array, *parameters: Array
) -> jax.Array:
    """The counts on both sides of a number or interval, where the noise's probabilities are exponential, and inside."""
    noise: Any = kind(scale)
    rate, last = 1.0 / noise.resolution, jnp.floor(jnp.maximum(high, 0.0))
    first = jnp.maximum(jnp.ceil(low) - 1, -1.0) if longest else last  # up to it counts are below
    sides = []
    for side, count in ((1, jnp.maximum(first, 0.0)), (-1, last)):
        tail = law.tail(count, *parameters, side * rate, side)
        sides.append(tail.log_sum(law.log_mass(count, *parameters)))
    above = sides[1] + (high - last) * rate
    # a negative number is below all counts, of which 0 is on the first side
    under = jnp.where(first < 0, -jnp.inf, sides[0] - jnp.where(first < 0, 0.0, low - first) * rate)
    outside = logsumexp(above, jnp.where(high < 0, sides[0] + high * rate, under))
    if not longest:
        return outside + noise.continued(jnp.zeros((len(low), 1)))
    length = jnp.where(low > -jnp.inf, high - low, 0.0) + (1.0 if noise.discrete else 0.0)
    outside += noise.log_tail(jnp.zeros_like(low)) + jnp.where(low > -jnp.inf, log1mexp(-length * rate), 0.0)
    counts = first[:, None] + 1 + np.arange(longest)
    inside = law.log_mass(counts, *(parameter[:, None] for parameter in parameters))
    inside += _log_noise(kind(scale[:, None]), longest, low, high, counts)
    return logsumexp(outside, log_sum(jnp.where(counts <= high[:, None], inside, -jnp.inf)))


def _under_gaussian(
    law: _CountLaw,
    half: int,
    longest: int,
    kind: Any,
    side: int,
    low: Array,
    high: Array,
    scale: Array,
    *parameters: Array,
) -> jax.Array:
    """A window around the largest term, as log masses are concave, wider by an interval, where they may be flat; and
    all counts below it for a negative binomial, whose log masses need not be concave near 0. With a `side`, of an
    interval without an end, only the counts before it: below `low` (1), or above `high` (−1).
    """
    first = 0 if law.log_concave else half + 1
    start, stop, width, *fixed = lax.stop_gradient((low, high, scale, *parameters))

    def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        left, right = ends
        middle = 0.5 * (left + right)
        k = jnp.exp(middle)
        noisy = _log_noise(kind(width[:, None]), longest, start, stop, k[:, None] - np.arange(2))
        # terms grow up to k
        grow = law.log_step(k, *fixed) + noisy[:, 0] - noisy[:, 1] > 0
        return jnp.where(grow, middle, left), jnp.where(grow, right, middle)

    least = jnp.full_like(stop, math.log(max(first, 1)))
    end = start if side > 0 else stop
    most = jnp.log(jnp.maximum(jnp.maximum(end, law.peak(*fixed)), first) + 2.0)
    peak = jnp.floor(jnp.exp(lax.fori_loop(0, PEAK_HALVINGS, halve, (least, most))[0]))
    limit = jnp.ceil(end) - 1 if side > 0 else jnp.ceil(end + (1 if kind.discrete else 0))
    peak = jnp.minimum(peak, limit) if side > 0 else jnp.maximum(peak, limit) if side else peak
    counts = jnp.maximum(peak - half, first)[:, None] + np.arange(2.0 * half + 1)
    if first:
        near = jnp.broadcast_to(np.arange(1.0 * first), (len(low), first)).astype(counts.dtype)
        counts = jnp.concatenate([near, counts], axis=1)
    log_mass = law.log_mass(counts, *(parameter[:, None] for parameter in parameters))
    if side:
        log_mass = jnp.where(side * counts <= side * limit[:, None], log_mass, -jnp.inf)
    return log_sum(log_mass + _log_noise(kind(scale[:, None]), longest, low, high, counts))


def _above(
    law: _CountLaw, half: int, kind: type, low: Array, high: Array, scale: Array, *parameters: Array
) -> jax.Array:
    """All z from `low` on: of counts below it, whose noise reaches it, and of the others but those that noise takes
    below it, which are less than half.
    """
    noise: Any = kind(scale)
    last, none, step = jnp.maximum(jnp.ceil(low) - 1, 0.0), low <= 0, 1.0 if noise.discrete else 0.0
    log_mass = law.log_mass(last, *parameters)

    def tail(tilt: Array, side: int) -> jax.Array:
        return law.tail(last, *parameters, tilt, side).log_sum(log_mass)

    if half:
        window = functools.partial(_under_gaussian, law, half, 1, kind)
        below = window(1, low, jnp.full_like(low, jnp.inf), scale, *parameters)
        back = window(-1, jnp.full_like(low, -jnp.inf), low - step, scale, *parameters)
    else:
        rate = 1.0 / noise.resolution
        log_share = noise.log_tail(jnp.zeros_like(low))
        below = jnp.where(none, -jnp.inf, tail(rate, 1) - (low - last) * rate + log_share)
        back = logsumexp(tail(-rate, -1), jnp.where(none, log_mass, -jnp.inf)) - (last - low + step) * rate + log_share
    whole = jnp.where(none, 0.0, tail(jnp.zeros_like(low), -1))
    return logsumexp(below, whole + log1mexp(back - whole))
