"""Laws of counts and of categories. Masses and tails use deviances, in which no large numbers cancel."""

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax, nn

from ldpbayes._core.checks import LARGEST_CODE, at_least
from ldpbayes._core.pytrees import pytree_dataclass, static
from ldpbayes._core.types import Array, Key, Params
from ldpbayes.laws.families import Family, family_of, register_family
from ldpbayes.laws.parametric import OneParameterFamily, ParametricFamily, PointMasses
from ldpbayes.numerics.minimise import nearest_probabilities
from ldpbayes.numerics.special import horner, log1mexp, log_sum

_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)  # the next is below 2e-18 from 16 on


class Tail(NamedTuple):
    """The sum of exp(tilt·(k − z)) P(k) over the counts k on one side of z, described by logarithms."""

    log_ratio: jax.Array  # log of the tilted masses of the side, or if not `direct` of the other one, over that at z
    direct: jax.Array  # whether the sum over the side is no larger than most of the law
    log_whole: jax.Array  # log E exp(tilt·(k − z)), of both sides together; used where not `direct`

    def log_sum(self, log_mass: Array) -> jax.Array:
        """Log of the sum, given the log mass at z: where not `direct`, as the whole less the other side."""
        part = log_mass + self.log_ratio
        other = jnp.where(self.direct, -1.0, part - self.log_whole)
        return jnp.where(self.direct, part, self.log_whole + log1mexp(other))


def _stirling_error(x: Array) -> jax.Array:
    """The error of Stirling's formula [Loader]: log Γ(x + 1) − (x + ½) log x + x − ½ log 2π for x > 0."""
    far = x > 16.0
    inverse = 1.0 / jnp.where(far, x, 16.0)
    series = horner(_STIRLING[::-1], inverse * inverse)
    near = jnp.where(far, 1.0, x)
    direct = lax.lgamma(near + 1.0) - (near + 0.5) * jnp.log(near) + near - 0.5 * math.log(2 * math.pi)
    return jnp.where(far, series * inverse, direct)


def _deviance(x: Array, excess: Array, log_ratio: Array) -> jax.Array:
    """The deviance x log(x/m) + m − x for m = x + excess, x > 0, log_ratio = log(m/x)."""
    relative = excess / x
    near = jnp.abs(relative) < 0.1
    r = jnp.where(near, relative, 0.0)
    h = r / (2.0 + r)
    square = h * h
    # r − log(1 + r) = 2 h²/(1 − h) − 2 (h³/3 + h⁵/5 + ...)
    series = horner([1.0 / odd for odd in (15, 13, 11, 9, 7, 5, 3)], square)
    return x * jnp.where(near, 2.0 * square * (1.0 / (1.0 - h) - h * series), relative - log_ratio)


def poisson_log_mass(k: Array, rate: Array) -> jax.Array:
    positive = k > 0
    k = jnp.where(positive, k, 1.0)
    deviance = _deviance(k, rate - k, jnp.log(rate / k))
    return jnp.where(positive, -deviance - _stirling_error(k) - 0.5 * jnp.log(2 * math.pi * k), -rate)


def _log_split(k: Array, rest: Array, excess: Array, log_p: Array, log_q: Array) -> jax.Array:
    """Log Γ(n + 1)/(Γ(k + 1) Γ(n − k + 1))·p^k q^(n − k), with q = 1 − p, `rest` n − k > 0, `excess` n p − k."""
    deviance = _deviance(k, excess, jnp.log1p(rest / k) + log_p) + _deviance(rest, -excess, jnp.log1p(k / rest) + log_q)
    errors = _stirling_error(k + rest) - _stirling_error(k) - _stirling_error(rest)
    return 0.5 * (jnp.log((k + rest) / (k * rest)) - math.log(2 * math.pi)) + errors - deviance


def binomial_log_mass(k: Array, n: Array, log_p: Array, log_q: Array) -> jax.Array:
    """Log probability of k successes in n trials, where log_p = log p and log_q = log(1 − p)."""
    inside, ends = (k > 0) & (k < n), jnp.where(k == n, n * log_p, jnp.where(k > n, -jnp.inf, n * log_q))
    n = jnp.where(inside, n, 1.0)  # derivatives at 0 trials would be NaN, even if not selected
    k = jnp.where(inside, k, 0.5)
    return jnp.where(inside, _log_split(k, n - k, n * jnp.exp(log_p) - k, log_p, log_q), ends)


def negative_binomial_log_mass(k: Array, concentration: Array, log_q: Array, log_p: Array) -> jax.Array:
    """Log Γ(α + k)/(Γ(α) k!)·p^α q^k, with the `concentration` α, and p = 1 − q."""
    alpha, positive = concentration, k > 0
    k = jnp.where(positive, k, 1.0)
    split = _log_split(alpha, k, k * jnp.exp(log_p) - alpha * jnp.exp(log_q), log_p, log_q)
    return jnp.where(positive, split - jnp.log1p(k / alpha), alpha * log_p)


@functools.cache
def _rule(stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and log weights of ∫ over (0, ∞), for integrands that fall from 1 on the scale of 1 or more slowly:
    trapezoids in τ with nodes exp(τ − exp(−τ)), wider apart beyond exp(4), exact to 2e-15 in this module.
    """
    step = 0.1
    tau = np.arange(-37, round(stop / step) + 1) * step
    log_node = tau - np.exp(-tau) + 1.5 * np.logaddexp(0.0, tau - 4.0)
    slope = 1.0 + np.exp(-tau) + 1.5 / (1.0 + np.exp(4.0 - tau))
    return np.exp(log_node), log_node + np.log(step * slope)


def _log_integral(exponent: Callable[[Array], Any], slope: Array, curvature: Array, stop: int) -> jax.Array:
    """Log of ∫ exp(exponent(v)) dv over v > 0, given the first two derivatives of the exponent at 0, where it is 0."""
    width = lax.stop_gradient(1.0 / (jnp.abs(slope) + jnp.sqrt(jnp.maximum(-curvature, 0.0))))
    nodes, log_weights = (jnp.asarray(array, width.dtype) for array in _rule(stop))
    return log_sum(exponent(width[..., None] * nodes) + log_weights) + jnp.log(width)


def poisson_tail(z: Array, rate: Array, tilt: Array, side: int) -> Tail:
    """Σ exp(tilt·(k − z)) P(k) for a Poisson law, over k ≤ z (`side` 1) or k > z (−1), the sign of the tilt."""
    # The law in proportion to exp(tilt·k) P(k) is Poisson with the rate μ = rate·exp(tilt). Of it, P(k ≤ z)/P(z) is
    # ∫ exp(−v) (1 + v/μ)^z dv, and P(k > z)/P(z) is μ ∫ exp(−(z + 1) v + μ (1 − exp(−v))) dv.
    z, rate, tilt = jnp.broadcast_arrays(z, rate, jnp.minimum(tilt, _safe_exponent(tilt, 0.7)))
    mean = rate * jnp.exp(tilt)
    below = z < mean
    divisor = jnp.where(below & (z > 0), mean, 1.0)  # elsewhere the mean may be tiny, and is no divisor

    def exponent(v: Array) -> Any:
        at, mu, over = (array[..., None] for array in (z, mean, divisor))
        return jnp.where(below[..., None], at * jnp.log1p(v / over) - v, -(at + 1.0) * v - mu * jnp.expm1(-v))

    slope = jnp.where(below, z / divisor - 1.0, mean - z - 1.0)
    log_ratio = _log_integral(exponent, slope, jnp.where(below, -z / divisor / divisor, -mean), stop=4)
    log_ratio += jnp.where(below, 0.0, jnp.log(rate) + tilt)
    log_whole = (rate - z) * tilt + rate * (jnp.expm1(tilt) - tilt)
    return Tail(log_ratio, below if side > 0 else ~below, log_whole)


def negative_binomial_tail(z: Array, concentration: Array, log_q: Array, log_p: Array, tilt: Array, side: int) -> Tail:
    """The sum of `poisson_tail`, for a negative binomial law."""
    # The tilt replaces q = exp(log_q) by q exp(tilt), which may exceed 1 and is q here; let b = q/(1 − q). Over the
    # probability of z, the lower sum is (α + z) ∫ exp(−α v) (exp(−v) + (1 − exp(−v))/q)^z dv, and the upper one
    # (α + z) b ∫ exp(−(z + 1) v) (1 + b (1 − exp(−v)))^(α − 1) dv, with the concentration α.
    tilt = jnp.minimum(tilt, _safe_exponent(tilt, 0.7))
    z, alpha, log_q, log_p, tilt = jnp.broadcast_arrays(z, concentration, log_q, log_p, tilt)
    most = _safe_exponent(log_q, 0.45)  # odds are squared
    tilted = jnp.clip(log_q + tilt, -most, most)
    summable = tilted < 0
    log_1mq = log1mexp(jnp.where(summable, tilted, -1.0))
    log_odds = jnp.where(summable, tilted, -1.0) - log_1mq
    rho, odds = jnp.exp(-tilted), jnp.exp(log_odds)
    # the lower sum up to the mean; the upper one from the mode on, where it may be nearly all of a skewed law
    below = ~summable | (z * (rho - 1.0) < alpha if side > 0 else z + 1.0 <= (alpha - 1.0) * odds)

    def exponent(v: Array) -> Any:
        at, a, r, b = (array[..., None] for array in (z, alpha, rho, odds))
        rise = -jnp.expm1(-v)
        growth = jnp.where(below[..., None], rise * (r - 1.0), rise * b)
        small = growth > -0.5
        whole = jnp.where(small, 1.0, jnp.exp(-v) + rise * r)  # 1 + growth, where that would cancel
        log_growth = jnp.where(small, jnp.log1p(jnp.where(small, growth, 0.0)), jnp.log(whole))
        return jnp.where(below[..., None], at * log_growth - a * v, (a - 1.0) * log_growth - (at + 1.0) * v)

    slope = jnp.where(below, z * (rho - 1.0) - alpha, (alpha - 1.0) * odds - z - 1.0)
    curvature = -jnp.where(below, z * (rho - 1.0) * rho, (alpha - 1.0) * odds * (1.0 + odds))
    log_ratio = jnp.log(alpha + z) + _log_integral(exponent, slope, curvature, stop=16)
    log_ratio += jnp.where(below, 0.0, log_odds)
    return Tail(log_ratio, below if side > 0 else ~below, alpha * (log_p - log_1mq) - z * tilt)


def _safe_exponent(array: Array, share: float) -> float:
    """A share of the exponent at which a number of the array's type overflows. Such a tilt leaves one term of a sum."""
    return share * math.log(jnp.finfo(array.dtype).max)


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
        return poisson_tail(nodes[-1], self.law.rate, jnp.zeros(()), -1).log_sum(log_masses[-1])


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
        tail = negative_binomial_tail(nodes[-1], *negative_binomial_parameters(self.law), jnp.zeros(()), -1)
        return tail.log_sum(log_masses[-1])


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
