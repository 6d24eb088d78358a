"""Truncated records."""

from typing import Any

import numpyro.distributions as dist

from ldpbayes.likelihood._families import Family, family_of, register_family


@register_family(dist.LeftTruncatedDistribution, dist.RightTruncatedDistribution, dist.TwoSidedTruncatedDistribution)
class _Truncated(Family):
    """See `Family`."""

    def breaks(self) -> list[Any]:
        """Those of the law that was truncated."""
        return family_of(self.law.base_dist).breaks()

    def centres(self) -> list[tuple[Any, Any]]:
        """Those of the law that was truncated."""
        return family_of(self.law.base_dist).centres()
