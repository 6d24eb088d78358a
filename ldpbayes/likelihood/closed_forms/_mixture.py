"""Mixtures, each component of which may be far from the others and narrow."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from ldpbayes.likelihood._breaks import is_end
from ldpbayes.likelihood._families import Family, family_of, register_family
from ldpbayes.likelihood._masses import log_mass_outside, support_ends
from ldpbayes.numerics._special import log_sum


@register_family(dist.MixtureSameFamily)
class _MixtureSameFamily(Family):
    """Components of one class, in a batch, which have one support; see `Family`."""

    def breaks(self) -> list[Any]:
        """Those of all components."""
        mixture = self.law
        batch = (*mixture.batch_shape, mixture.mixture_size)
        points = [jnp.broadcast_to(point, batch) for point in family_of(mixture.component_distribution).breaks()]
        return [point[..., k] for point in points for k in range(mixture.mixture_size)]

    def centres(self) -> list[tuple[Any, Any]]:
        """Those of all components."""
        batch = (*self.law.batch_shape, self.law.mixture_size)
        pairs = family_of(self.law.component_distribution).centres()
        spread = [[jnp.broadcast_to(part, batch) for part in pair] for pair in pairs]
        return [(centre[..., k], width[..., k]) for centre, width in spread for k in range(batch[-1])]

    def log_mass_outside(self, first: Any, last: Any) -> jax.Array:
        """From those of the components."""
        log_weights = jax.nn.log_softmax(self.law.mixing_distribution.logits)
        first, last = (edge.reshape(*jnp.shape(edge), 1) for edge in (first, last))
        return log_sum(log_weights + log_mass_outside(self.law.component_distribution, first, last))


@register_family(dist.MixtureGeneral)
class _MixtureGeneral(Family):
    """Components of any classes; see `Family`."""

    def breaks(self) -> list[Any]:
        """Those of all components and, where the support goes on there, the ends of their supports."""
        own, parts = support_ends(self.law), self.law.component_distributions
        points = [point for part in parts for point in (*support_ends(part), *family_of(part).breaks())]
        return [point for point in points if not any(is_end(point, end) for end in own)]

    def centres(self) -> list[tuple[Any, Any]]:
        """Those of all components."""
        return [pair for part in self.law.component_distributions for pair in family_of(part).centres()]

    def log_mass_outside(self, first: Any, last: Any) -> jax.Array:
        """From those of the components."""
        log_weights = jax.nn.log_softmax(self.law.mixing_distribution.logits)
        parts = [log_mass_outside(law, first, last) for law in self.law.component_distributions]
        return log_sum(log_weights + jnp.stack(jnp.broadcast_arrays(*parts), axis=-1))
