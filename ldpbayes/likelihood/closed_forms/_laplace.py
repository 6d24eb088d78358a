"""Laplace records and their asymmetric relatives, whose densities have a kink at the centre."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.lax import stop_gradient

from ldpbayes.likelihood._dispatch import register_closed_form
from ldpbayes.likelihood._families import Family, register_family
from ldpbayes.noise import Laplace, SymmetricLaplace
from ldpbayes.numerics._special import log_relative_expm1
from ldpbayes.numerics._tails import integrated_laplace_tail, laplace_tails

__all__ = ["laplace_laplace"]


@register_family(dist.AsymmetricLaplace, dist.AsymmetricLaplaceQuantile)
class _AsymmetricLaplace(Family):
    """See `Family`."""

    def breaks(self) -> list[Any]:
        """The centre."""
        return [self.law.loc]


@register_family(dist.Laplace)
class _Laplace(_AsymmetricLaplace):
    """See `Family`."""

    tame = True

    def cdf(self, x: Any) -> jax.Array:
        """NumPyro's own has no derivative at the centre."""
        return self.tails(x)[0]

    def tails(self, x: Any) -> jax.Array:
        """To rounding, however far out."""
        return laplace_tails((x - self.law.loc) / self.law.scale)

    def integrated_tail(self, edges: Any) -> jax.Array:
        """In closed form."""
        return self.law.scale * integrated_laplace_tail((edges - self.law.loc) / self.law.scale)


@register_closed_form(dist.Laplace, Laplace, bounded=True)
@register_closed_form(dist.Laplace, SymmetricLaplace, bounded=True)
def laplace_laplace(base: dist.Laplace, mechanism: Any, z: Any) -> jax.Array:
    """Laplace data, clipped at the bounds, with Laplace noise.

    The log of p(x | θ) p(z | x) is a broken line of x, which bends at the centre and at z. Between neighbouring bends
    and bounds its exponential has the integral width · (larger end) · (1 − exp(−y))/y, y being the difference of ends.
    """
    rate, lower, upper = 1.0 / mechanism.noise.resolution, mechanism.lower, mechanism.upper
    # A bend at a bound stays there: it would lose half of its derivative, and the first derivatives do not need it.
    held, value = (jnp.clip(stop_gradient(point), lower, upper) for point in (base.loc, z))
    centre = jnp.where((base.loc > lower) & (base.loc < upper), base.loc, held)
    points = jnp.stack(jnp.broadcast_arrays(lower, jnp.minimum(centre, value), jnp.maximum(centre, value), upper))
    start, stop, middle = points[:-1], points[1:], stop_gradient(0.5 * (points[:-1] + points[1:]))
    steep, noisy = (jnp.where(middle < at, -by, by) for at, by in ((base.loc, 1 / base.scale), (z, rate)))
    fall = steep + noisy
    larger = jnp.where(fall > 0, start, stop)
    exponents = -steep * (larger - base.loc) - noisy * (larger - z)
    fall = jnp.where(fall > 0, fall, -fall)  # abs() would lose the gradient where the two scales are equal
    shares = (stop - start) * jnp.exp(log_relative_expm1(fall * (stop - start))) / (2 * base.scale)
    below = _log_tail((lower - base.loc) / base.scale) - rate * jnp.abs(z - lower)
    above = _log_tail((base.loc - upper) / base.scale) - rate * jnp.abs(z - upper)
    # Widths stay outside the logs: that of a piece that is empty has a derivative, and its log has none.
    largest = stop_gradient(jnp.maximum(jnp.max(exponents, axis=0), jnp.maximum(below, above)))
    inside = jnp.sum(shares * jnp.exp(exponents - largest), axis=0)
    return jnp.log(0.5 * rate) + largest + jnp.log(inside + jnp.exp(below - largest) + jnp.exp(above - largest))


def _log_tail(x: Any) -> jax.Array:
    """Log of the Laplace law's cdf; at the centre it has a derivative."""
    return jnp.where(x < 0, x - jnp.log(2.0), jnp.log1p(-0.5 * jnp.exp(-jnp.where(x < 0, 0.0, x))))
