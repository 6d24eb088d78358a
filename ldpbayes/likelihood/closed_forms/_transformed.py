"""Records whose law is a transformed one."""

from typing import Any

import jax.numpy as jnp
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

    def centres(self) -> list[tuple[Any, Any]]:
        """Where those of the law that is transformed go, with what lies within a width of them."""
        pairs = [(c, c - w, c + w) for c, w in family_of(self.law.base_dist).centres()]
        for transform in self.law.transforms:
            pairs = [tuple(transform(point) for point in points) for points in pairs]
        return [(middle, 0.5 * jnp.abs(high - low)) for middle, low, high in pairs]
