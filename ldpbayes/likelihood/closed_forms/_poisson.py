"""Poisson counts."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ldpbayes.likelihood._families import COMPLEMENT_SUFFICES, Family, register_family
from ldpbayes.likelihood._masses import aligned, double_exponential
from ldpbayes.numerics._special import log_sum


@register_family(dist.Poisson)
class _Poisson(Family):
    """See `Family`."""

    def log_mass(self, counts: Any) -> jax.Array:
        """NumPyro's own, which has single precision for integers."""
        return self.law.log_prob(counts.astype(float))

    def log_mass_above(self, nodes: Any, log_masses: Any) -> jax.Array:
        """Where the complement is small P(X ≥ k) = λ^k/Γ(k) ∫ exp(−k v − λ exp(−v)) dv over v > 0."""
        k, rate = nodes[-1] + 1, self.law.rate
        complement = super().log_mass_above(nodes, log_masses)
        log_v, log_w = (aligned(array, 1 + jnp.ndim(rate)) for array in double_exponential())
        v = np.exp(np.minimum(log_v, 6.5))
        log_w = np.where(log_v < 6.5, log_w - k * v, -np.inf)
        tail = k * jnp.log(rate) - math.lgamma(k) + log_sum(log_w - rate * np.exp(-v), axis=0)
        return jnp.where(complement > COMPLEMENT_SUFFICES, complement, tail)
