"""Student-t records."""

from typing import Any

import jax
import numpyro.distributions as dist

from ldpbayes.likelihood._families import Family, register_family
from ldpbayes.numerics._special import student_t_cdf


@register_family(dist.StudentT)
class _StudentT(Family):
    """See `Family`."""

    def cdf(self, x: Any) -> jax.Array:
        """With a derivative in the degrees of freedom, which NumPyro's own lacks."""
        return student_t_cdf(self.law.df, (x - self.law.loc) / self.law.scale)
