"""Normal records."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.lax import stop_gradient

from ldpbayes._core.types import Array
from ldpbayes.likelihood.dispatch import register_closed_form
from ldpbayes.likelihood.families import Family, register_family
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.noise import Gaussian, Laplace, SymmetricLaplace
from ldpbayes.numerics.special import log_ndtr, log_normal, log_tilted_normal, logsumexp, stacked
from ldpbayes.numerics.tails import integrated_normal_tail, normal_tails

REACH = 40.0  # standard deviations beyond which a normal density, and the integral of it, is nothing: exp(-800)


@register_family(dist.HalfNormal)
class _HalfNormal(Family):
    tame = True


@register_family(dist.Normal)
class _Normal(Family):
    tame = True

    def tails(self, x: Array) -> jax.Array:
        return normal_tails((x - self.law.loc) / self.law.scale)

    def integrated_tail(self, edges: Array) -> jax.Array:
        return self.law.scale * integrated_normal_tail((edges - self.law.loc) / self.law.scale)

    def log_mass_outside(self, first: Array, last: Array) -> jax.Array:
        # both in one call: compilation time grows with the traced graph
        loc, scale = self.law.loc, self.law.scale
        return log_ndtr(stacked((first - loc) / scale, (loc - last) / scale))


@register_closed_form(dist.Normal, Laplace, bounded=True)
@register_closed_form(dist.Normal, SymmetricLaplace, bounded=True)
def normal_laplace(base: dist.Normal, mechanism: Additive, z: Array) -> jax.Array:
    """Normal data, clipped at both bounds, with Laplace noise. Source: [KJKH] supplement 10.1, eq. (28), in log space:
    two atoms and the integrals left and right of z.
    """
    lower, upper, rate = mechanism.lower, mechanism.upper, 1.0 / mechanism.noise.resolution

    def standard(x: Array) -> Array:
        return (x - base.loc) / base.scale

    nearest = jnp.clip(z, lower, upper)
    a, x, b, tilt = standard(lower), standard(nearest), standard(upper), rate * base.scale
    # both sides of z, and both atoms, in one call each: compilation time grows with the traced graph
    below, above = log_ndtr(stacked(a, -b))
    a, x, b, tilt = jnp.broadcast_arrays(a, x, b, tilt)
    left, right = log_tilted_normal(jnp.stack([a, x]), jnp.stack([x, b]), jnp.stack([tilt, -tilt]), x)
    return jnp.log(0.5 * rate) + logsumexp(
        below - rate * jnp.abs(z - lower),
        above - rate * jnp.abs(z - upper),
        left - rate * jnp.abs(z - nearest),
        right - rate * jnp.abs(z - nearest),
    )


@register_closed_form(dist.Normal, Laplace, bounded=False)
@register_closed_form(dist.Normal, SymmetricLaplace, bounded=False)
def normal_laplace_unclipped(base: dist.Normal, mechanism: Additive, z: Array) -> jax.Array:
    """A normal statistic with Laplace noise: the integrals left and right of z."""
    rate = 1.0 / mechanism.noise.resolution
    x, tilt = jnp.broadcast_arrays((z - base.loc) / base.scale, rate * base.scale)
    # exp(tilt s) φ(s) has its mean at the tilt: the integrals end where nothing is left of them
    start = stop_gradient(jnp.minimum(x, tilt)) - REACH
    end = stop_gradient(jnp.maximum(x, -tilt)) + REACH
    sides = log_tilted_normal(jnp.stack([start, x]), jnp.stack([x, end]), jnp.stack([tilt, -tilt]), x)
    return jnp.log(0.5 * rate) + logsumexp(*sides)


@register_closed_form(dist.Normal, Gaussian, bounded=True)
def normal_gaussian(base: dist.Normal, mechanism: Additive, z: Array) -> jax.Array:
    """Normal data, clipped at both bounds, with Gaussian noise. Source: [KJKH], Lemma 3.2, with the factor 2σ² that
    eqs. (18)-(20) lose: given z, the unclipped x is normal with mean m and scale τ.
    """
    lower, upper, noise = mechanism.lower, mechanism.upper, mechanism.noise.standard_deviation
    total = jnp.sqrt(base.scale * base.scale + noise * noise)
    tau = base.scale * noise / total

    # (bound − m)/τ with m = (μ·noise² + z·σ²)/total², arranged so that nothing large cancels
    def standard(x: Array) -> Array:
        return ((x - base.loc) * (noise / base.scale) + (x - z) * (base.scale / noise)) / total

    interior = log_tilted_normal(standard(lower), standard(lower) + (upper - lower) / tau, 0.0, 0.0)
    below, above = log_ndtr(stacked((lower - base.loc) / base.scale, (base.loc - upper) / base.scale))
    return logsumexp(
        below + log_normal(z, lower, noise),
        above + log_normal(z, upper, noise),
        interior + log_normal(z, base.loc, total),
    )


@register_closed_form(dist.Normal, Gaussian, bounded=False)
def normal_gaussian_unclipped(base: dist.Normal, mechanism: Additive, z: Array) -> jax.Array:
    """A normal statistic with Gaussian noise, whose variances add up."""
    noise = jnp.asarray(mechanism.noise.standard_deviation)
    return log_normal(z, base.loc, jnp.sqrt(base.scale * base.scale + noise * noise))
