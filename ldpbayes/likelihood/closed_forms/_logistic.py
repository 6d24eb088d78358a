"""Logistic records."""

from typing import Any

import jax
import numpyro.distributions as dist

from ldpbayes.likelihood._families import Family, register_family
from ldpbayes.numerics._tails import logistic_tails


@register_family(dist.Logistic)
class _Logistic(Family):
    """See `Family`."""

    tame = True

    def tails(self, x: Any) -> jax.Array:
        """To rounding, however far out."""
        return logistic_tails((x - self.law.loc) / self.law.scale)
