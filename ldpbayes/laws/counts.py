"""Laws of counts and of categories."""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import nn

from ldpbayes._core.checks import LARGEST_CODE, at_least
from ldpbayes._core.pytrees import pytree_dataclass, static
from ldpbayes._core.types import Array, Key, Params
from ldpbayes.laws import families
from ldpbayes.laws.families import Family, family_of, register_family
from ldpbayes.laws.parametric import OneParameterFamily, ParametricFamily, PointMasses
from ldpbayes.numerics.minimise import nearest_probabilities
from ldpbayes.numerics.special import log_sum
from ldpbayes.numerics.tails import binomial_log_mass


@register_family(dist.BinomialProbs, dist.BetaBinomial)
class _OfCounts(Family):
    def log_mass(self, counts: Array) -> jax.Array:
        """NumPyro's own, which has single precision for integers."""
        return self.law.log_prob(counts.astype(float))


@register_family(dist.BernoulliLogits, dist.BinomialLogits)
class _OfLogOdds(Family):
    def log_mass(self, counts: Array) -> jax.Array:
        """NumPyro's own is not differentiable at log-odds of 0: its derivatives there are wrong."""
        success, failure = nn.log_sigmoid(self.law.logits), nn.log_sigmoid(-self.law.logits)
        if isinstance(self.law, dist.BernoulliLogits):
            return jnp.where(counts == 1, success, failure)
        return binomial_log_mass(counts.astype(float), self.law.total_count, success, failure)


@register_family(dist.Poisson)
class _OfPoisson(_OfCounts):
    def __init__(self, law: Any) -> None:
        """With a rate above 0 by less than rounding errors: at 0, log masses have no derivative."""
        above = float(jnp.finfo(jnp.result_type(law.rate, float)).tiny) ** 0.5
        super().__init__(dist.Poisson(law.rate + above, validate_args=False))

    def log_mass_above(self, nodes: Array, log_masses: Array) -> jax.Array:
        """Where the complement is small P(X ≥ k) = λ^k/Γ(k) ∫ exp(−k v − λ exp(−v)) dv over v > 0."""
        k, rate = nodes[-1] + 1, self.law.rate
        complement = super().log_mass_above(nodes, log_masses)
        log_v, log_w = (families.aligned(array, 1 + jnp.ndim(rate)) for array in families.double_exponential())
        v = np.exp(np.minimum(log_v, 6.5))
        log_w = np.where(log_v < 6.5, log_w - k * v, -np.inf)
        tail = k * jnp.log(rate) - math.lgamma(k) + log_sum(log_w - rate * np.exp(-v), axis=0)
        return jnp.where(complement > families.LEAST_LOG_COMPLEMENT, complement, tail)


def negative_binomial_parameters(law: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Concentration α, log q and log(1 − q) of a mass proportional to Γ(α + k)/k!·q^k; of a geometric law α = 1."""
    if isinstance(law, dist.GeometricProbs):
        return jnp.ones(()), jnp.log1p(-law.probs), jnp.log(law.probs)
    if isinstance(law, dist.GeometricLogits):
        return jnp.ones(()), -nn.softplus(law.logits), -nn.softplus(-law.logits)
    if isinstance(law, dist.NegativeBinomialLogits):
        log_q, log_1mq = -nn.softplus(-law.logits), -nn.softplus(law.logits)
    elif isinstance(law, dist.NegativeBinomialProbs):
        log_q, log_1mq = jnp.log(law.probs), jnp.log1p(-law.probs)
    else:
        log_q, log_1mq = -jnp.log1p(law.rate), -jnp.log1p(1.0 / law.rate)
    return jnp.asarray(law.concentration, jnp.result_type(float)), log_q, log_1mq


@register_family(dist.GammaPoisson)
class _OfNegativeBinomial(Family):
    def log_mass(self, counts: Array) -> jax.Array:
        """Products of ratios of neighbouring masses: `betaln` and differences of log-gammas lose digits."""
        concentration, log_q, log_1mq = negative_binomial_parameters(self.law)
        ratios = jnp.log((concentration + counts[:-1]) / counts[1:]) + log_q
        batch = jnp.broadcast_shapes(counts.shape[1:], self.law.batch_shape)
        first = jnp.broadcast_to(concentration * log_1mq, (1, *batch))
        return jnp.concatenate([first, first + jnp.cumsum(ratios, axis=0)])

    def log_mass_above(self, nodes: Array, log_masses: Array) -> jax.Array:
        """Where the complement is small P(X ≥ k) = q^k/B(α, k) ∫ exp(−k v) (1 − q exp(−v))^(α − 1) dv over v > 0."""
        complement = super().log_mass_above(nodes, log_masses)
        k, (alpha, log_q, log_1mq) = nodes[-1] + 1, negative_binomial_parameters(self.law)
        column = (-1,) + (1,) * len(self.law.batch_shape)
        # a small concentration puts weight on every scale of v above 1 − q, which needs a step that does not grow
        log_v = np.arange(-55.0, 5.0, 0.15).reshape(column)
        v = np.exp(log_v)
        log_w = np.log(0.15) + log_v - k * v
        ahead = np.arange(1, int(k)).reshape(column)
        log_beta = -jnp.log(alpha) - jnp.sum(jnp.log1p(alpha / ahead), axis=0)
        # 1 − q exp(−v), written so that nothing cancels when q is near 0 or near 1
        q = jnp.exp(log_q)
        small = jnp.log1p(-jnp.where(q < 0.5, q, 0.0) * np.exp(-v))
        log_g = (alpha - 1.0) * jnp.where(q < 0.5, small, jnp.log(jnp.exp(log_1mq) - q * np.expm1(-v)))
        tail = k * log_q - log_beta + log_sum(log_w + log_g, axis=0)
        return jnp.where(complement > families.LEAST_LOG_COMPLEMENT, complement, tail)


@register_family(dist.GeometricProbs, dist.GeometricLogits)
class _OfGeometric(Family):
    def cdf(self, x: Array) -> jax.Array:
        return -jnp.expm1(self._log_above(x))

    def log_mass_above(self, nodes: Array, log_masses: Array) -> jax.Array:
        return self._log_above(nodes[-1])

    def _log_above(self, x: Array) -> jax.Array:
        """P(X > x) = (1 − p)^(x + 1)."""
        return (x + 1) * negative_binomial_parameters(self.law)[1]


class Counts(OneParameterFamily):
    """Base class of families of counts, clamped to ``upper``: define `base`, `ranges` and perhaps `of_mean`."""

    record_range = (0.0, math.inf)
    lattice_step: ClassVar[float] = 1.0
    lower = 0.0

    def law(self, params: Params) -> PointMasses:
        counts = np.arange(self.upper + 1)
        masses = jnp.exp(family_of(self.distribution(params)).log_mass(counts))
        return PointMasses(jnp.asarray(counts), masses.at[-1].add(jnp.maximum(1 - jnp.sum(masses), 0.0)))


@pytree_dataclass
class Binomial(Counts):
    """Family of successes in ``trials`` ≥ 1 trials, not clamped. The parameter is ``probs``, the probability of one."""

    option: ClassVar = "binomial"
    option_help: ClassVar = {"trials": "number of trials"}
    trials: int = static()
    base: ClassVar = dist.BinomialProbs
    ranges = {"probs": (0.0, 1.0)}

    def __post_init__(self) -> None:
        object.__setattr__(self, "trials", at_least(1, "trials", self.trials, LARGEST_CODE))

    def distribution(self, params: Params) -> dist.Distribution:
        return dist.BinomialProbs(params["probs"], self.trials, validate_args=False)

    upper = property(lambda self: float(self.trials))
    record_range = property(lambda self: (0.0, self.upper))

    def of_mean(self, mean: Array) -> Array:
        return mean / self.trials

    def solve_clamped(self, mean: Array) -> tuple[Params, jax.Array]:
        return self.solve(mean)

    def total(self, key: Key, params: Params, count: Array) -> jax.Array:
        p = jnp.asarray(params["probs"], float)
        inside = jnp.clip(p, 1e-300, 1 - 1e-16)
        successes = jax.random.binomial(key, count * self.trials, inside, dtype=inside.dtype)
        return jnp.where(p > 0, jnp.where(p < 1, successes, count * self.trials), 0.0)


@pytree_dataclass
class Bernoulli(Binomial):
    """Family of yes-or-no answers, where a record is 0 or 1. The parameter is ``probs``, the probability of 1."""

    option: ClassVar = "bernoulli"
    option_help: ClassVar = {}
    trials: int = static(default=1, init=False)


@pytree_dataclass
class Poisson(Counts):
    """Family of Poisson counts. The parameter is ``rate``, the expected count, from ``upper``/1000 to 3 ``upper``."""

    option: ClassVar = "poisson"
    upper: Array = static(default=None)
    base: ClassVar = dist.Poisson
    ranges = property(lambda self: {"rate": (1e-3 * self.upper, 3.0 * self.upper)})


@pytree_dataclass
class Multinomial(ParametricFamily):
    """Family of categories 0, ..., ``categories`` − 1, at least two. The parameter is ``probs`` (categories,)."""

    option: ClassVar = "multinomial"
    option_help: ClassVar = {"categories": "number of categories"}
    categories: int = static()
    base: ClassVar = dist.CategoricalProbs
    lattice_step: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", at_least(2, "categories", self.categories, LARGEST_CODE))

    record_range = property(lambda self: (0, self.categories - 1))
    columns = property(lambda self: tuple(f"category {k}" for k in range(self.categories)))

    def statistics(self, x: Array) -> jax.Array:
        return jax.nn.one_hot(jnp.asarray(x).astype(int), self.categories, dtype=float)

    def sensitivity(self, order: int) -> float:
        return {1: 2.0, 2: math.sqrt(2.0)}[order]  # one count falls by one, another rises

    def nearest(self, params: Params) -> Params:
        return {"probs": nearest_probabilities(params["probs"])}

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        within = self.nearest({"probs": mean})
        return within, jnp.any(within["probs"] == 0)

    def covariance(self, params: Params, noise: Array, count: Array, *, clamped: bool) -> jax.Array:
        p, size = params["probs"], self.categories
        centred = jnp.eye(size) - 1 / size
        return (jnp.diag(p) - jnp.outer(p, p)) / count + noise / count**2 * centred

    def total(self, key: Key, params: Params, count: Array) -> jax.Array:
        return PointMasses(jnp.arange(self.categories), params["probs"]).counts(key, count)
