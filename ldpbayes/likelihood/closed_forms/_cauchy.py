"""Cauchy and half-Cauchy records."""

import numpyro.distributions as dist

from ldpbayes.likelihood._families import Family, register_family


@register_family(dist.Cauchy, dist.HalfCauchy)
class _Cauchy(Family):
    """See `Family`."""

    tame = True
