"""Beta records."""

from typing import Any

import jax
import numpyro.distributions as dist

from ldpbayes.likelihood._families import Family, register_family
from ldpbayes.numerics._special import betainc


@register_family(dist.Beta)
class _Beta(Family):
    """See `Family`."""

    def cdf(self, x: Any) -> jax.Array:
        """With derivatives in both concentrations, which NumPyro's own lacks."""
        return betainc(self.law.concentration1, self.law.concentration0, x)
