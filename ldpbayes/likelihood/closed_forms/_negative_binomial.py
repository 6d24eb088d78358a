"""Negative binomial and geometric counts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ldpbayes.likelihood._families import COMPLEMENT_SUFFICES, Family, register_family
from ldpbayes.numerics._special import log_sum

__all__ = ["negative_binomial_parameters"]


def negative_binomial_parameters(law: dist.GammaPoisson) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Concentration α, log q and log(1 − q) of a mass proportional to Γ(α + k)/k!·q^k, from the exact parameters.

    Parameters
    ----------
    law : numpyro.distributions.GammaPoisson
        In any of its parametrisations.
    """
    if isinstance(law, dist.NegativeBinomialLogits):
        log_q, log_1mq = -jax.nn.softplus(-law.logits), -jax.nn.softplus(law.logits)
    elif isinstance(law, dist.NegativeBinomialProbs):
        log_q, log_1mq = jnp.log(law.probs), jnp.log1p(-law.probs)
    else:
        log_q, log_1mq = -jnp.log1p(law.rate), -jnp.log1p(1.0 / law.rate)
    return jnp.asarray(law.concentration, jnp.result_type(float)), log_q, log_1mq


@register_family(dist.GammaPoisson)
class _NegativeBinomial(Family):
    """See `Family`."""

    def log_mass(self, counts: Any) -> jax.Array:
        """Products of the ratios of neighbouring masses, in which nothing is lost.

        NumPyro's negative binomial rests on `betaln`, which JAX has to 1e-6 only, and on differences of log-gammas,
        which lose their digits at a large concentration.
        """
        concentration, log_q, log_1mq = negative_binomial_parameters(self.law)
        ratios = jnp.log((concentration + counts[:-1]) / counts[1:]) + log_q
        batch = jnp.broadcast_shapes(counts.shape[1:], self.law.batch_shape)
        first = jnp.broadcast_to(concentration * log_1mq, (1, *batch))
        return jnp.concatenate([first, first + jnp.cumsum(ratios, axis=0)])

    def log_mass_above(self, nodes: Any, log_masses: Any) -> jax.Array:
        """Where the complement is small P(X ≥ k) = q^k/B(α, k) ∫ exp(−k v) (1 − q exp(−v))^(α − 1) dv over v > 0."""
        complement = super().log_mass_above(nodes, log_masses)
        k, (alpha, log_q, log_1mq) = nodes[-1] + 1, negative_binomial_parameters(self.law)
        column = (-1,) + (1,) * len(self.law.batch_shape)
        # a small concentration puts weight on every scale of v above 1 - q, which needs a step that does not grow
        log_v = np.arange(-55.0, 5.0, 0.15).reshape(column)
        v = np.exp(log_v)
        log_w = np.log(0.15) + log_v - k * v
        ahead = np.arange(1, int(k)).reshape(column)
        log_beta = -jnp.log(alpha) - jnp.sum(jnp.log1p(alpha / ahead), axis=0)
        # 1 - q e^-v, written so that nothing cancels when q is near 0 or near 1
        q = jnp.exp(log_q)
        small = jnp.log1p(-jnp.where(q < 0.5, q, 0.0) * np.exp(-v))
        log_g = (alpha - 1.0) * jnp.where(q < 0.5, small, jnp.log(jnp.exp(log_1mq) - q * np.expm1(-v)))
        tail = k * log_q - log_beta + log_sum(log_w + log_g, axis=0)
        return jnp.where(complement > COMPLEMENT_SUFFICES, complement, tail)


@register_family(dist.GeometricProbs, dist.GeometricLogits)
class _Geometric(Family):
    """See `Family`."""

    def log_mass_above(self, nodes: Any, log_masses: Any) -> jax.Array:
        """P(X ≥ k) = (1 − p)^k, and log(1 − p) is the log mass at 1 less that at 0."""
        return (nodes[-1] + 1) * (self.law.log_prob(jnp.asarray(1)) - self.law.log_prob(jnp.asarray(0)))
