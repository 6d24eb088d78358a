"""Laplace records and their asymmetric relatives, whose densities have a kink at the centre."""

from typing import Any

import jax
import numpyro.distributions as dist

from ldpbayes.likelihood._families import Family, register_family
from ldpbayes.numerics._tails import integrated_laplace_tail, laplace_tails


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
