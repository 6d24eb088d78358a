"""Records whose law is a transformed one."""

from typing import Any

import numpyro.distributions as dist

from ldpbayes.likelihood._breaks import is_end
from ldpbayes.likelihood._families import Family, family_of, register_family
from ldpbayes.likelihood._masses import is_infinite, support_ends


@register_family(dist.TransformedDistribution)
class _Transformed(Family):
    """See `Family`."""

    def breaks(self) -> list[Any]:
        """Where those of the law that is transformed, and the ends of its support, go."""
        part = self.law.base_dist
        points = family_of(part).breaks()
        if type(self.law) is dist.TransformedDistribution:  # whose support is all that its transforms can reach
            points = points + [end for end in support_ends(part) if not is_infinite(end)]
        for transform in self.law.transforms:
            points = [transform(point) for point in points]
        return [point for point in points if not any(is_end(point, end) for end in support_ends(self.law))]
