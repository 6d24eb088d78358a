"""Normal numbers and rows. Symmetric Laplace noise is normal with variance λ² W, W ~ Exp(1): one integral for a row."""

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.lax import stop_gradient
from jax.scipy.linalg import cho_solve, solve_triangular

from ldpbayes._core.pytrees import unchecked
from ldpbayes._core.types import Array, is_concrete
from ldpbayes.laws.numbers import normal_log_density
from ldpbayes.likelihood.closed_forms import closed_form, register_closed_form
from ldpbayes.mechanisms import Mechanism
from ldpbayes.mechanisms.additive import Additive, AdditiveMechanism
from ldpbayes.mechanisms.reporting import Reported
from ldpbayes.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, IndependentGaussian, Laplace, SymmetricLaplace
from ldpbayes.numerics import special
from ldpbayes.numerics.special import log_ndtr, log_normal, log_sum, log_tilted_normal, logsumexp, stacked

VANISHING_DEVIATIONS = 40.0  # beyond these a normal density, and its integral, is nothing: exp(-800)
MIXING_NODES = 64  # of the mixing rule under symmetric Laplace noise
PRODUCT_NODES = {1: 64, 2: 48, 3: 32}  # of the mixing rule in each column, by the number of columns


@register_closed_form(dist.Normal, (Laplace, SymmetricLaplace))
def normal_laplace(base: dist.Normal, mechanism: Additive, z: Array) -> jax.Array:
    """Normal data, clipped or not, with Laplace noise: integrals left and right of z, and atoms ([KJKH] supplement
    10.1, eq. 28).
    """
    lower, upper, rate = mechanism.lower, mechanism.upper, 1.0 / mechanism.noise.resolution
    nearest = jnp.clip(z, lower, upper) if mechanism.bounded else z
    x, tilt = jnp.broadcast_arrays((nearest - base.loc) / base.scale, rate * base.scale)
    if mechanism.bounded:
        a, b = ((bound - base.loc) / base.scale for bound in (lower, upper))
        # both sides of z, and both atoms, in one call each: compilation time grows with the traced graph
        below, above = log_ndtr(stacked(a, -b))
        atoms = [below - rate * jnp.abs(z - lower), above - rate * jnp.abs(z - upper)]
        beyond = rate * jnp.abs(z - nearest)
    else:
        # exp(tilt s) φ(s) has its mean at the tilt: the integrals end where nothing is left of them
        a = stop_gradient(jnp.minimum(x, tilt)) - VANISHING_DEVIATIONS
        b = stop_gradient(jnp.maximum(x, -tilt)) + VANISHING_DEVIATIONS
        atoms, beyond = [], 0.0
    inside = log_tilted_normal(stacked(a, x), stacked(x, b), stacked(tilt, -tilt), x) - beyond
    return jnp.log(0.5 * rate) + logsumexp(*atoms, *inside)


@register_closed_form(dist.Normal, Gaussian, bounded=True)
def normal_gaussian(base: dist.Normal, mechanism: Additive, z: Array) -> jax.Array:
    """Clipped normal data with Gaussian noise ([KJKH], Lemma 3.2, with the factor 2σ² that eqs. (18)-(20) lose)."""
    lower, upper, noise = mechanism.lower, mechanism.upper, mechanism.noise.standard_deviation
    total = jnp.sqrt(base.scale * base.scale + noise * noise)
    tau = base.scale * noise / total
    # (lower − m)/τ with m = (μ·noise² + z·σ²)/total², arranged so that nothing large cancels
    start = ((lower - base.loc) * (noise / base.scale) + (lower - z) * (base.scale / noise)) / total
    interior = log_tilted_normal(start, start + (upper - lower) / tau, 0.0, 0.0)
    below, above = log_ndtr(stacked((lower - base.loc) / base.scale, (base.loc - upper) / base.scale))
    atoms = below + log_normal(z, lower, noise), above + log_normal(z, upper, noise)
    return logsumexp(*atoms, interior + log_normal(z, base.loc, total))


@register_closed_form(dist.Normal, Gaussian, bounded=False)
def normal_gaussian_unclipped(base: dist.Normal, mechanism: Additive, z: Array) -> jax.Array:
    """A normal statistic with Gaussian noise, whose variances add up."""
    noise = jnp.asarray(mechanism.noise.standard_deviation)
    return log_normal(z, base.loc, jnp.sqrt(base.scale * base.scale + noise * noise))


@register_closed_form(dist.Normal, (DiscreteLaplace, DiscreteGaussian))
def normal_discrete(base: dist.Normal, mechanism: Any, z: Array) -> jax.Array:
    """Normal numbers with discrete noise by its formula continued to real numbers (`Noise.continued`). Unclipped, its
    sum over z is, but for 2 exp(−2π²σ²), 1 − 2 exp(−2π²s²) (Gaussian) or 2s·tanh(1/(2s)) (Laplace noise).
    """
    smooth = _smooth(mechanism.noise)
    like = unchecked(AdditiveMechanism, smooth, mechanism.lower, mechanism.upper, None, None, mechanism.sensitivity)
    form: Any = closed_form(base, like)
    z = jnp.asarray(z, jnp.result_type(z, float))
    return jnp.where(z == jnp.round(z), form(base, like, z) + _over_continuous(mechanism.noise), -jnp.inf)


def _smooth(noise: Any) -> Any:
    """The continuous noise whose density the mass of a discrete one is proportional to."""
    kind = {DiscreteLaplace: Laplace, DiscreteGaussian: Gaussian}.get(type(noise))
    return unchecked(kind, noise.scale) if kind else noise


def _over_continuous(noise: Any) -> jax.Array:
    """Log ratio of a noise's mass, continued, to the density of its `_smooth` one."""
    zero = jnp.zeros((*noise.batch_shape, 1))
    return noise.continued(zero) - _smooth(noise).log_prob(zero)


@register_closed_form(dist.Normal, Reported, bounded=False)
def normal_reported(base: dist.Normal, rule: Reported, z: Array) -> jax.Array:
    if not isinstance(rule.noise, (*_LAPLACE, Gaussian, DiscreteGaussian)):
        raise ValueError(f"the law of a Normal in a reporting rule without bounds is unknown for {rule.noise!r}")
    form: Any = closed_form(base, rule.innermost)
    between = functools.partial(_in_interval, base, rule.noise)
    return rule.by_intervals(z, lambda at: form(base, rule.innermost, at), between)


_LAPLACE = (Laplace, SymmetricLaplace, DiscreteLaplace)


def _in_interval(base: dist.Normal, noise: Any, low: Array, high: Array) -> jax.Array:
    """Log P(low ≤ z ≤ high). Of Laplace noise, with T(t) = c exp(−t/b), it is T(low − x) − T(high − x) for x below, and
    1 − T(x − low) − T(high − x) inside; discrete noise has these with high + 1, and inside low − 1.
    """
    a, b = low - base.loc, high - base.loc
    if not isinstance(noise, _LAPLACE):
        law = unchecked(type(noise), jnp.sqrt(base.scale**2 + noise.resolution**2))
        return law.log_interval(a, b) + _over_continuous(noise) - _over_continuous(law)
    a, b, tilt = jnp.broadcast_arrays(a / base.scale, b / base.scale, base.scale / noise.resolution)
    step, log_c = (1.0 / noise.resolution if noise.discrete else 0.0), noise.log_tail(jnp.zeros(()))
    below, above = a > -jnp.inf, b < jnp.inf
    first = jnp.where(below, a, jnp.minimum(b, 0.0) - VANISHING_DEVIATIONS)
    last = jnp.where(above, b, jnp.maximum(a, 0.0) + VANISHING_DEVIATIONS)
    start = stop_gradient(jnp.minimum(first, tilt)) - VANISHING_DEVIATIONS
    end = stop_gradient(jnp.maximum(last, -tilt)) + VANISHING_DEVIATIONS
    left, inside, up, down, right = log_tilted_normal(
        stacked(start, first, first, first, last),
        stacked(first, last, last, last, end),
        stacked(tilt, 0.0, tilt, -tilt, -tilt),
        stacked(first, 0.0, last, first, last),
    )
    both = log_c + jnp.where(below & above, special.log1mexp(-tilt * (last - first) - step), 0.0)
    lost = logsumexp(jnp.where(above, up, -jnp.inf), jnp.where(below, down, -jnp.inf)) + log_c - step
    inside += special.log1mexp(lost - jnp.where(last > first, inside, jnp.inf))
    return logsumexp(jnp.where(below, both + left, -jnp.inf), inside, jnp.where(above, both + right, -jnp.inf))


@register_closed_form(dist.MultivariateNormal, SymmetricLaplace)
def normal_rows(base: dist.MultivariateNormal, mechanism: Additive, z: Array) -> jax.Array:
    """Normal rows plus symmetric Laplace noise in perturbed columns: a normal mixture given the others; no clipping."""
    mean, covariance, log_rest = conditional_normal(base, z, mechanism.index)
    return log_rest + normal_mixture(z[..., mechanism.index] - mean, covariance, mechanism.noise.standard_deviation)


@register_closed_form(dist.MultivariateNormal, (Gaussian, IndependentGaussian))
def normal_rows_gaussian(base: dist.MultivariateNormal, mechanism: Additive, z: Array) -> jax.Array:
    """Normal rows, or sums of statistics, plus Gaussian noise in the perturbed columns: a larger covariance."""
    index = jnp.asarray(mechanism.index)
    variance = mechanism.noise.over_columns(mechanism.noise.standard_deviation) ** 2
    added = jnp.zeros(jnp.shape(variance)[:-1] + base.event_shape).at[..., index].set(variance)
    covariance = base.covariance_matrix + added[..., None] * jnp.eye(base.event_shape[0])
    return normal_log_density(dist.MultivariateNormal(base.mean, covariance, validate_args=False), z)


@register_closed_form(dist.MultivariateNormal, Laplace)
def normal_rows_laplace(base: dist.MultivariateNormal, mechanism: Additive, z: Array) -> jax.Array:
    """Normal rows plus independent Laplace noise, of variance 2 b² W, W ~ Exp(1), by a product rule: exact to 1e-10 in
    one column, 1e-8 in two, 5e-6 in three from principal standard deviations of b/10 on (1e-8 from b/2).
    """
    d = mechanism.dimension
    if d not in PRODUCT_NODES:
        hint = "symmetric Laplace and Gaussian noise allow any number"
        raise ValueError(f"rows with independent Laplace noise can have noise in at most 3 columns, got {d}; {hint}")
    mean, covariance, log_rest = conditional_normal(base, z, mechanism.index)
    away = jnp.asarray(z)[..., mechanism.index] - mean
    w, log_weights = mixing_rule(PRODUCT_NODES[d])
    w = np.array(list(itertools.product(w, repeat=d)))
    log_weights = np.array([sum(part) for part in itertools.product(log_weights, repeat=d)])
    variance = jnp.asarray(mechanism.noise.variance)[..., None, None] * w  # (*batch, nodes, d)
    total = covariance[..., None, :, :] + variance[..., None] * jnp.eye(d)
    # by Cramer's rule, so that rows and nodes share one elimination instead of a factorisation each
    log_root, squares = _quadratic(total, away[..., None, :])
    return log_rest + log_sum(log_weights - log_root - 0.5 * squares) - 0.5 * d * math.log(2 * math.pi)


def _quadratic(matrix: jax.Array, vector: jax.Array) -> tuple[Array, Array]:
    """Half the log determinant of matrices (*, d, d), and vectorᵀ matrix⁻¹ vector, which broadcast, by elimination."""
    log_root: Array = 0.0
    squares: Array = 0.0
    for _ in range(matrix.shape[-1]):
        pivot = matrix[..., 0, 0]
        log_root = log_root + 0.5 * jnp.log(pivot)
        squares = squares + vector[..., 0] ** 2 / pivot
        gain = matrix[..., 1:, 0] / pivot[..., None]
        vector = vector[..., 1:] - gain * vector[..., :1]
        matrix = matrix[..., 1:, 1:] - gain[..., None] * matrix[..., :1, 1:]
    return log_root, squares


def mixing_rule(nodes: int, narrowest: Array = None) -> tuple[Array, Array]:
    """Nodes w and log weights of ∫ f(w) exp(−w) dw over w > 0, by w = exp(t − exp(−t)), on every scale down to 1e-12,
    or `narrowest`: the least variance of records in any direction over the noise's (36 nodes do for 1/100).
    """
    xp = np if is_concrete(narrowest) else jnp
    if narrowest is None:
        lowest, first, last = 0.0, -3.2, 4.3
    else:
        lowest = 0.7 * xp.minimum(0.0, xp.log(narrowest))
        first, last = lowest - 3.0, 3.7
    t = first + (last - first) * np.linspace(0.0, 1.0, nodes)
    falling = xp.exp(lowest - t)
    log_w = t - falling
    w = xp.exp(log_w)
    return w, xp.log((last - first) / (nodes - 1)) + xp.log1p(falling) + log_w - w


def conditional_normal(base: dist.MultivariateNormal, z: Array, index: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Mean (*batch, d) and covariance of columns of rows given the others, and log density of the others."""
    chosen = np.array(index)
    others = np.setdiff1d(np.arange(base.event_shape[0]), chosen)
    loc, covariance = base.loc, base.covariance_matrix
    if not len(others):
        return loc, covariance, 0.0
    rest = dist.MultivariateNormal(loc[..., others], covariance[..., others[:, None], others])
    cross = covariance[..., chosen[:, None], others]
    gain = jnp.swapaxes(cho_solve((rest.scale_tril, True), jnp.swapaxes(cross, -1, -2)), -1, -2)
    mean = loc[..., chosen] + jnp.einsum("...ij,...j->...i", gain, z[..., others] - loc[..., others])
    inner = covariance[..., chosen[:, None], chosen] - gain @ jnp.swapaxes(cross, -1, -2)
    return mean, inner, normal_log_density(rest, z[..., others])


def normal_mixture(away: Array, covariance: Array, sigma: Array) -> jax.Array:
    """Log density of normal rows plus symmetric Laplace noise; to 1e-8 if deviations are at least `sigma`/10, d ≤ 6."""
    w, log_weights = mixing_rule(MIXING_NODES)
    d = away.shape[-1]
    if jnp.ndim(sigma) or covariance.ndim > 2:  # a factorisation for each record and node
        variance = jnp.asarray(sigma**2)[..., None] * w
        roots = jnp.linalg.cholesky(covariance[..., None, :, :] + variance[..., None, None] * jnp.eye(d))
        batch = jnp.broadcast_shapes(away.shape[:-1], roots.shape[:-3])
        roots = jnp.broadcast_to(roots, batch + roots.shape[-3:])
        away = jnp.broadcast_to(away[..., None, :, None], (*batch, len(w), d, 1))
        squares = jnp.sum(solve_triangular(roots, away, lower=True)[..., 0] ** 2, axis=-1)
        log_roots = jnp.sum(jnp.log(jnp.diagonal(roots, axis1=-2, axis2=-1)), axis=-1)
    else:
        precisions, log_roots = mixing_precisions(covariance, sigma, w)
        products = (away[..., :, None] * away[..., None, :]).reshape((*away.shape[:-1], -1))
        squares = products @ precisions.reshape(len(precisions), -1).T  # awayᵀ P away, (*batch, nodes)
    return log_sum(log_weights - log_roots - 0.5 * squares) - 0.5 * d * math.log(2 * math.pi)


def mixing_precisions(covariance: Array, sigma: Array, w: Array) -> tuple[jax.Array, jax.Array]:
    """Inverses (nodes, d, d) of covariance + sigma² w I at nodes w, and half the log determinants (nodes,)."""
    noise = jnp.broadcast_to(sigma**2, covariance.shape[-1:]) * np.eye(covariance.shape[-1])
    roots = jnp.linalg.cholesky(covariance + w[:, None, None] * noise)
    inverses = solve_triangular(roots, jnp.broadcast_to(np.eye(covariance.shape[-1]), roots.shape), lower=True)
    log_roots = jnp.sum(jnp.log(jnp.diagonal(roots, axis1=1, axis2=2)), axis=1)
    return jnp.swapaxes(inverses, 1, 2) @ inverses, log_roots


@register_closed_form(dist.Delta, (Additive, Reported))
def noisy_number(base: dist.Delta, mechanism: Mechanism, z: Array) -> jax.Array:
    return mechanism.log_prob(z, base.v) + base.log_density


@register_closed_form(dist.Laplace, (Laplace, SymmetricLaplace), bounded=True)
def laplace_laplace(base: dist.Laplace, mechanism: Additive, z: Array) -> jax.Array:
    """Clipped Laplace data with Laplace noise: log p(x | θ) p(z | x) is a broken line of x, bent at the centre and z,
    whose exponential integrates to width · (larger end) · (1 − exp(−y))/y over a fall y between bends and bounds.
    """
    rate, lower, upper = 1.0 / mechanism.noise.resolution, mechanism.lower, mechanism.upper
    # A bend at a bound stays there: it would lose half of its derivative, and the first derivatives do not need it.
    fixed, value = (jnp.clip(stop_gradient(point), lower, upper) for point in (base.loc, z))
    centre = jnp.where((base.loc > lower) & (base.loc < upper), base.loc, fixed)
    points = jnp.stack(jnp.broadcast_arrays(lower, jnp.minimum(centre, value), jnp.maximum(centre, value), upper))
    start, stop, middle = points[:-1], points[1:], stop_gradient(0.5 * (points[:-1] + points[1:]))
    steep, noisy = (jnp.where(middle < at, -by, by) for at, by in ((base.loc, 1 / base.scale), (z, rate)))
    fall = steep + noisy
    larger = jnp.where(fall > 0, start, stop)
    exponents = -steep * (larger - base.loc) - noisy * (larger - z)
    fall = jnp.where(fall > 0, fall, -fall)  # abs() would lose the gradient where the two scales are equal
    shares = (stop - start) * special.relative_expm1(fall * (stop - start)) / (2 * base.scale)
    below = _log_tail((lower - base.loc) / base.scale) - rate * jnp.abs(z - lower)
    above = _log_tail((base.loc - upper) / base.scale) - rate * jnp.abs(z - upper)
    # Widths stay outside the logs: that of a piece that is empty has a derivative, and its log has none.
    largest = stop_gradient(jnp.maximum(jnp.max(exponents, axis=0), jnp.maximum(below, above)))
    inside = jnp.sum(shares * jnp.exp(exponents - largest), axis=0)
    return jnp.log(0.5 * rate) + largest + jnp.log(inside + jnp.exp(below - largest) + jnp.exp(above - largest))


def _log_tail(x: Array) -> jax.Array:
    """Log of the Laplace law's cdf, with a derivative at the centre."""
    return jnp.where(x < 0, x - jnp.log(2.0), jnp.log1p(-0.5 * jnp.exp(-jnp.where(x < 0, 0.0, x))))


@register_closed_form(dist.Exponential, (Laplace, SymmetricLaplace), bounded=True)
def exponential_laplace(base: dist.Exponential, mechanism: Additive, z: Array) -> jax.Array:
    """Clipped exponential data with Laplace noise ([KJKH], suppl. 10.2, eqs. 29-30, without their singularity)."""
    theta, rate = base.rate, 1.0 / mechanism.noise.resolution
    start, upper = jnp.maximum(mechanism.lower, 0.0), mechanism.upper
    stop = jnp.maximum(upper, start)  # with a negative upper bound every record is clipped to it
    # where the two integrals meet does not matter, so it has no gradient: at a bound that of one of them would be lost
    x = jnp.where(z < start, start, jnp.where(z > stop, stop, stop_gradient(z)))
    before, behind, gap = x - start, stop - x, rate - theta
    # ∫ from start to x of exp(−rate (z − s) − θ s) ds, its larger end taken out, and ∫ from x to stop, in one call
    left = jnp.where(gap > 0, -rate * (z - x) - theta * x, -rate * (z - start) - theta * start)
    right = -rate * (x - z) - theta * x
    gap = jnp.where(gap > 0, gap, -gap)  # abs() would lose the gradient at the singularity
    # exponents, widths and steps, of one shape before they are stacked: z alone may lack the axes of theta
    parts = jnp.stack(jnp.broadcast_arrays(left, right, before, behind, gap * before, (rate + theta) * behind))
    lengths = special.log_or_nothing(parts[2:4]) + jnp.log(special.relative_expm1(parts[4:]))
    inside = jnp.log(theta) + parts[:2] + lengths
    below = special.log1mexp(-theta * jnp.maximum(mechanism.lower, 0.0)) - rate * jnp.abs(z - mechanism.lower)
    above = -theta * jnp.maximum(upper, 0.0) - rate * jnp.abs(z - upper)
    return jnp.log(0.5 * rate) + special.logsumexp(below, above, *inside)


@register_closed_form(dist.Exponential, Gaussian, bounded=True)
def exponential_gaussian(base: dist.Exponential, mechanism: Additive, z: Array) -> jax.Array:
    """Exponential data, clipped at the bounds, with Gaussian noise ([KJKH], Lemma 3.2, corrected, with h linear)."""
    theta, noise = base.rate, mechanism.noise.standard_deviation
    start, upper = jnp.maximum(mechanism.lower, 0.0), mechanism.upper
    stop = jnp.maximum(upper, start)
    # x = z + noise·s: θ exp(−θ x) φ(s), anchored at the lower limit, where the exponential is largest
    u, width = (start - z) / noise, (stop - start) / noise
    interior = special.log_tilted_normal(u, u + width, -theta * noise, u) - theta * start + jnp.log(theta)
    at_lower, at_upper = (special.log_normal(z, bound, noise) for bound in (mechanism.lower, upper))
    below = special.log1mexp(-theta * jnp.maximum(mechanism.lower, 0.0)) + at_lower
    return special.logsumexp(below, -theta * jnp.maximum(upper, 0.0) + at_upper, interior)
