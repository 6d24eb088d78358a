"""Laplace and exponential base laws."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.lax import stop_gradient

from ldpbayes._core.types import Array
from ldpbayes.likelihood.families import Family, is_empty, register_family
from ldpbayes.likelihood.registry import register_closed_form
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.noise import Gaussian, Laplace, SymmetricLaplace
from ldpbayes.numerics import special
from ldpbayes.numerics.tails import integrated_laplace_tail, laplace_tails


@register_family(dist.AsymmetricLaplace, dist.AsymmetricLaplaceQuantile)
class _AsymmetricLaplace(Family):
    def breaks(self) -> list[Array]:
        return [self.law.loc]


@register_family(dist.Laplace)
class _Laplace(_AsymmetricLaplace):
    tame = True

    def cdf(self, x: Array) -> jax.Array:
        """With a derivative at the centre, which NumPyro's own lacks."""
        return self.tails(x)[0]

    def tails(self, x: Array) -> jax.Array:
        return laplace_tails((x - self.law.loc) / self.law.scale)

    def integrated_tail(self, edges: Array) -> jax.Array:
        return self.law.scale * integrated_laplace_tail((edges - self.law.loc) / self.law.scale)


@register_closed_form(dist.Laplace, (Laplace, SymmetricLaplace), bounded=True)
def laplace_laplace(base: dist.Laplace, mechanism: Additive, z: Array) -> jax.Array:
    """Clipped Laplace data with Laplace noise: log p(x | θ) p(z | x) is a broken line of x, with bends at the centre
    and z. Between bends and bounds its exponential integrates to width · (larger end) · (1 − exp(−y))/y, y the fall.
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
    shares = (stop - start) * jnp.exp(special.log_relative_expm1(fall * (stop - start))) / (2 * base.scale)
    below = _log_tail((lower - base.loc) / base.scale) - rate * jnp.abs(z - lower)
    above = _log_tail((base.loc - upper) / base.scale) - rate * jnp.abs(z - upper)
    # Widths stay outside the logs: that of a piece that is empty has a derivative, and its log has none.
    largest = stop_gradient(jnp.maximum(jnp.max(exponents, axis=0), jnp.maximum(below, above)))
    inside = jnp.sum(shares * jnp.exp(exponents - largest), axis=0)
    return jnp.log(0.5 * rate) + largest + jnp.log(inside + jnp.exp(below - largest) + jnp.exp(above - largest))


def _log_tail(x: Array) -> jax.Array:
    """Log of the Laplace law's cdf, with a derivative at the centre."""
    return jnp.where(x < 0, x - jnp.log(2.0), jnp.log1p(-0.5 * jnp.exp(-jnp.where(x < 0, 0.0, x))))


@register_family(dist.Exponential)
class _Exponential(Family):
    tame = True

    def log_mass_outside(self, first: Array, last: Array) -> jax.Array:
        below = -np.inf if is_empty(first, 0.0, -1) else special.log1mexp(-self.law.rate * jnp.maximum(first, 0.0))
        return special.stacked(below, -self.law.rate * jnp.maximum(last, 0.0))


@register_closed_form(dist.Exponential, (Laplace, SymmetricLaplace), bounded=True)
def exponential_laplace(base: dist.Exponential, mechanism: Additive, z: Array) -> jax.Array:
    """Clipped exponential data with Laplace noise ([KJKH], supplement 10.2, eqs. (29)-(30), where `y` is z). Written
    through (1 − exp(−y))/y, the integrals have no singularity where the exponential's rate equals the noise's.
    """
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
    inside = jnp.log(theta) + parts[:2] + special.log_or_nothing(parts[2:4]) + special.log_relative_expm1(parts[4:])
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
