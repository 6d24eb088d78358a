"""Laplace records and their asymmetric relatives, whose densities have a kink at the centre."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from ldpbayes.likelihood._families import Family, register_family


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
        t = (x - self.law.loc) / self.law.scale
        tail = 0.5 * jnp.exp(jnp.where(t < 0, t, -t))
        return jnp.where(t < 0, tail, 1.0 - tail)
