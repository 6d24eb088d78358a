"""Student-t records."""

from typing import Any

import jax
import numpyro.distributions as dist

from ldpbayes.likelihood._families import Family, register_family
from ldpbayes.numerics._special import student_t_cdf
from ldpbayes.numerics._tails import integrated_student_t_tail, student_t_tails


@register_family(dist.StudentT)
class _StudentT(Family):
    """See `Family`."""

    def centres(self) -> list[tuple[Any, Any]]:
        """Without moments, which may be infinite."""
        return [(self.law.loc, self.law.scale)]

    def cdf(self, x: Any) -> jax.Array:
        """With a derivative in the degrees of freedom, which NumPyro's own lacks."""
        return student_t_cdf(self.law.df, (x - self.law.loc) / self.law.scale)

    def tails(self, x: Any) -> jax.Array:
        """Each by its own incomplete beta function."""
        return student_t_tails(self.law.df, (x - self.law.loc) / self.law.scale)

    def integrated_tail(self, edges: Any) -> jax.Array:
        """In closed form, at one degree of freedom too."""
        return self.law.scale * integrated_student_t_tail(self.law.df, (edges - self.law.loc) / self.law.scale)
