"""Counts with more zeros than another law has."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from ldpbayes.likelihood._families import Family, family_of, register_family
from ldpbayes.likelihood._masses import log_prob_on_support


@register_family(dist.discrete.ZeroInflatedProbs)
class _ZeroInflated(Family):
    """See `Family`."""

    def log_mass(self, counts: Any) -> jax.Array:
        """That of the other law, as exact as it is there."""
        gate = self.law.gate
        inflated = jnp.log1p(-gate) + family_of(self.law.base_dist).log_mass(counts)
        return jnp.where(counts == 0, jnp.log(gate + jnp.exp(inflated)), inflated)

    def log_mass_above(self, nodes: Any, log_masses: Any) -> jax.Array:
        """That of the other law: its zeros are not above anything."""
        part = self.law.base_dist
        above = family_of(part).log_mass_above(nodes, log_prob_on_support(part, nodes))
        return jnp.log1p(-self.law.gate) + above
