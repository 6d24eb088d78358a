"""Binomial and beta-binomial counts."""

from typing import Any

import jax
import numpyro.distributions as dist

from ldpbayes.likelihood._families import Family, register_family


@register_family(dist.BinomialProbs, dist.BinomialLogits, dist.BetaBinomial)
class _Binomial(Family):
    """See `Family`."""

    def log_mass(self, counts: Any) -> jax.Array:
        """NumPyro's own, which has single precision for integers."""
        return self.law.log_prob(counts.astype(float))
