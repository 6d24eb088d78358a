"""Cauchy and half-Cauchy records."""

from typing import Any

import numpyro.distributions as dist

from ldpbayes.likelihood._families import Family, register_family


@register_family(dist.Cauchy, dist.HalfCauchy)
class _Cauchy(Family):
    """See `Family`."""

    tame = True

    def centres(self) -> list[tuple[Any, Any]]:
        """Without moments, of which there are none."""
        return [(getattr(self.law, "loc", 0.0), self.law.scale)]
