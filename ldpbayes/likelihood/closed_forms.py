"""Marginal densities p(z | θ) in closed form, for pairs of a base distribution and a mechanism.

Every function takes (base, mechanism, z) and returns the log density with the latent x, and the clipping at both
bounds, integrated out. `closed_form(type(base), type(mechanism))` finds the one for a pair, respecting subclasses.
"""

import math

import jax.numpy as jnp
import numpyro.distributions as dist
from jax.lax import stop_gradient

from ldpbayes.likelihood.special import log1mexp, log_ndtr, log_relative_expm1, log_sum, log_tilted_normal
from ldpbayes.mechanisms import GaussianMechanism, LaplaceMechanism

__all__ = ["closed_form", "register_closed_form"]

_REGISTRY = {}


def register_closed_form(base_type, mechanism_type):
    """Class-pair decorator: use the decorated function for `base_type` under `mechanism_type` and their subclasses.

    Parameters
    ----------
    base_type : type
        A NumPyro distribution class.
    mechanism_type : type
        A mechanism class.

    Returns
    -------
    callable
        Decorator for a function (base, mechanism, z) -> log density of the broadcast shape.
    """

    def decorate(function):
        _REGISTRY[base_type, mechanism_type] = function
        return function

    return decorate


def closed_form(base_type, mechanism_type):
    """The registered function for a pair of classes, or None: the nearest base class first, then the mechanism's.

    Parameters
    ----------
    base_type, mechanism_type : type

    Returns
    -------
    callable or None
    """
    for base in base_type.__mro__:
        for mechanism in mechanism_type.__mro__:
            if (base, mechanism) in _REGISTRY:
                return _REGISTRY[base, mechanism]
    return None


@register_closed_form(dist.Normal, LaplaceMechanism)
def normal_laplace(base, mechanism, z):
    """Normal data, clipped at both bounds, with Laplace noise.

    Source: Kulkarni et al., supplement 10.1, eq. (28), in log space: two atoms and the integrals left and right of z.
    """
    lower, upper, rate = mechanism.lower, mechanism.upper, 1.0 / mechanism.scale

    def standard(x):
        return (x - base.loc) / base.scale

    nearest = jnp.clip(z, lower, upper)
    a, x, b, tilt = standard(lower), standard(nearest), standard(upper), rate * base.scale
    # both sides of z, and both atoms, in one call each: the traced graph is what compilation pays for
    below, above = log_ndtr(_stack(a, -b))
    a, x, b, tilt = jnp.broadcast_arrays(a, x, b, tilt)
    left, right = log_tilted_normal(jnp.stack([a, x]), jnp.stack([x, b]), jnp.stack([tilt, -tilt]), x)
    return jnp.log(0.5 * rate) + _logsumexp(
        below - rate * jnp.abs(z - lower),
        above - rate * jnp.abs(z - upper),
        left - rate * jnp.abs(z - nearest),
        right - rate * jnp.abs(z - nearest),
    )


@register_closed_form(dist.Exponential, LaplaceMechanism)
def exponential_laplace(base, mechanism, z):
    """Exponential data, clipped at the bounds, with Laplace noise.

    Source: Kulkarni et al., supplement 10.2, eqs. (29)-(30); `y` there is z, and the singularity where the
    exponential's rate equals the noise's is removable: both integrals are written through (1 − exp(−y))/y.
    """
    theta, rate = base.rate, 1.0 / mechanism.scale
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
    left, right = jnp.log(theta) + parts[:2] + _log(parts[2:4]) + log_relative_expm1(parts[4:])
    return jnp.log(0.5 * rate) + _logsumexp(
        log1mexp(-theta * jnp.maximum(mechanism.lower, 0.0)) - rate * jnp.abs(z - mechanism.lower),
        -theta * jnp.maximum(upper, 0.0) - rate * jnp.abs(z - upper),
        left,
        right,
    )


@register_closed_form(dist.Normal, GaussianMechanism)
def normal_gaussian(base, mechanism, z):
    """Normal data, clipped at both bounds, with Gaussian noise.

    Source: Kulkarni et al., Lemma 3.2, with the factor 2σ² that eqs. (18)-(20) lose (errata 4): given z, the unclipped
    x is normal with mean m and scale τ.
    """
    lower, upper, noise = mechanism.lower, mechanism.upper, mechanism.scale
    total = jnp.sqrt(base.scale * base.scale + noise * noise)
    tau = base.scale * noise / total

    # (bound − m)/τ with m = (μ·noise² + z·σ²)/total², arranged so that nothing large cancels
    def standard(x):
        return ((x - base.loc) * (noise / base.scale) + (x - z) * (base.scale / noise)) / total

    interior = log_tilted_normal(standard(lower), standard(lower) + (upper - lower) / tau, 0.0, 0.0)
    below, above = log_ndtr(_stack((lower - base.loc) / base.scale, (base.loc - upper) / base.scale))
    return _logsumexp(
        below + _log_normal(z, lower, noise),
        above + _log_normal(z, upper, noise),
        interior + _log_normal(z, base.loc, total),
    )


@register_closed_form(dist.Exponential, GaussianMechanism)
def exponential_gaussian(base, mechanism, z):
    """Exponential data, clipped at the bounds, with Gaussian noise.

    Source: Kulkarni et al., Lemma 3.2 (corrected as in errata 4), with h linear.
    """
    theta, noise = base.rate, mechanism.scale
    start, upper = jnp.maximum(mechanism.lower, 0.0), mechanism.upper
    stop = jnp.maximum(upper, start)
    # x = z + noise·s: θ exp(−θ x) φ(s), anchored at the lower limit, where the exponential is largest
    u = (start - z) / noise
    interior = log_tilted_normal(u, u + (stop - start) / noise, -theta * noise, u) - theta * start + jnp.log(theta)
    return _logsumexp(
        log1mexp(-theta * jnp.maximum(mechanism.lower, 0.0)) + _log_normal(z, mechanism.lower, noise),
        -theta * jnp.maximum(upper, 0.0) + _log_normal(z, upper, noise),
        interior,
    )


def _log(x):
    """Log that is −inf, with zero gradient, at and below zero."""
    return jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1.0)), -jnp.inf)


def _log_normal(z, mean, scale):
    return -0.5 * ((z - mean) / scale) ** 2 - jnp.log(scale) - 0.5 * math.log(2 * math.pi)


def _stack(*terms):
    return jnp.stack(jnp.broadcast_arrays(*terms))


def _logsumexp(*terms):
    return log_sum(_stack(*terms), axis=0)
