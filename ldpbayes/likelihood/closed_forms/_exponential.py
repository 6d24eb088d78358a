"""Exponential records."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.lax import stop_gradient

from ldpbayes.likelihood._dispatch import register_closed_form
from ldpbayes.likelihood._families import Family, register_family
from ldpbayes.likelihood._masses import is_empty
from ldpbayes.noise import Gaussian, Laplace, SymmetricLaplace
from ldpbayes.numerics._logs import log_normal, log_or_nothing, logsumexp, stacked
from ldpbayes.numerics._special import log1mexp, log_relative_expm1, log_tilted_normal

__all__ = ["exponential_gaussian", "exponential_laplace"]


@register_family(dist.Exponential)
class _Exponential(Family):
    """See `Family`."""

    tame = True

    def log_mass_outside(self, first: Any, last: Any) -> jax.Array:
        """By expm1 below and linear above."""
        below = -np.inf if is_empty(first, 0.0, -1) else log1mexp(-self.law.rate * jnp.maximum(first, 0.0))
        return stacked(below, -self.law.rate * jnp.maximum(last, 0.0))


@register_closed_form(dist.Exponential, Laplace, bounded=True)
@register_closed_form(dist.Exponential, SymmetricLaplace, bounded=True)
def exponential_laplace(base: dist.Exponential, mechanism: Any, z: Any) -> jax.Array:
    """Exponential data, clipped at the bounds, with Laplace noise.

    Source: [KJKH], supplement 10.2, eqs. (29)-(30); `y` there is z, and the singularity where the
    exponential's rate equals the noise's is removable: both integrals are written through (1 − exp(−y))/y.
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
    exponents, widths, steps = (left, right), (before, behind), (gap * before, (rate + theta) * behind)
    # of one shape before they are stacked: z alone may lack the axes of theta
    parts = jnp.stack(jnp.broadcast_arrays(*exponents, *widths, *steps))
    left, right = jnp.log(theta) + parts[:2] + log_or_nothing(parts[2:4]) + log_relative_expm1(parts[4:])
    return jnp.log(0.5 * rate) + logsumexp(
        log1mexp(-theta * jnp.maximum(mechanism.lower, 0.0)) - rate * jnp.abs(z - mechanism.lower),
        -theta * jnp.maximum(upper, 0.0) - rate * jnp.abs(z - upper),
        left,
        right,
    )


@register_closed_form(dist.Exponential, Gaussian, bounded=True)
def exponential_gaussian(base: dist.Exponential, mechanism: Any, z: Any) -> jax.Array:
    """Exponential data, clipped at the bounds, with Gaussian noise.

    Source: [KJKH], Lemma 3.2, corrected, with h linear.
    """
    theta, noise = base.rate, mechanism.noise.standard_deviation
    start, upper = jnp.maximum(mechanism.lower, 0.0), mechanism.upper
    stop = jnp.maximum(upper, start)
    # x = z + noise·s: θ exp(−θ x) φ(s), anchored at the lower limit, where the exponential is largest
    u = (start - z) / noise
    interior = log_tilted_normal(u, u + (stop - start) / noise, -theta * noise, u) - theta * start + jnp.log(theta)
    return logsumexp(
        log1mexp(-theta * jnp.maximum(mechanism.lower, 0.0)) + log_normal(z, mechanism.lower, noise),
        -theta * jnp.maximum(upper, 0.0) + log_normal(z, upper, noise),
        interior,
    )
