"""Logistic records."""

import numpyro.distributions as dist

from ldpbayes.likelihood._families import Family, register_family


@register_family(dist.Logistic)
class _Logistic(Family):
    """See `Family`."""

    tame = True
