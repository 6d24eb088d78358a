"""Estimators of exponential families from released statistics ([FWS] sec. 5)."""

import abc

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ldpbayes._core.checks import at_least
from ldpbayes._core.pytrees import pytree_dataclass, static
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array, Key, Params
from ldpbayes.bootstrap._bootstrap import Estimated, PrivateEstimator
from ldpbayes.bootstrap._families import Constraints, NumberFamily, ParametricFamily, free_parameters
from ldpbayes.data import Release
from ldpbayes.mechanisms import GaussianMechanism, LaplaceMechanism, Mechanism
from ldpbayes.mechanisms.additive import Additive


def values_released_by(mechanism: Mechanism, release: Release) -> Array:
    """The values of a release; ValueError unless it has some, and they are of this mechanism."""
    if release.mechanism != mechanism:
        advice = "make the estimator with this release, or with its bounds, budget and count"
        raise ValueError(f"the release was made by {release.mechanism!r}, the estimator is for {mechanism!r}: {advice}")
    if release.values is None:
        raise ValueError("a release without values has nothing to estimate from")
    return release.values


class FamilyEstimator(PrivateEstimator):
    """An estimator of a ``family`` from a perturbed sum of the statistics of ``count`` records, a public number."""

    family: ParametricFamily
    count: int
    fewest = 1  # records

    def __post_init__(self) -> None:
        if self.count is None:
            raise ValueError("count is missing: a public number, or one released with a share of the budget")
        object.__setattr__(self, "count", at_least(self.fewest, "count", self.count))

    @property
    def constraints(self) -> Constraints:
        """NumPyro's, of all parameters."""
        return self.family.constraints

    def unconstrained(self, params: Params) -> jax.Array:
        return free_parameters(self.constraints, params)[0]

    def constrained(self, vector: Array, like: Params) -> Params:
        return free_parameters(self.constraints, like)[1](vector)

    @abc.abstractmethod
    def perturbed(self, key: Key, total: Array) -> jax.Array:
        """Values released of the sum of the statistics."""

    def randomize(self, key: Key, data: Array) -> jax.Array:
        if len(data) != self.count:
            raise ValueError(f"the estimator is for {self.count} records, got {len(data)}")
        return self.perturbed(key, self.family.statistics(data).sum(axis=0))

    def simulate_release(self, key: Key, params: Params) -> jax.Array:
        # sums are drawn, not records, where their law is known
        keys = jax.random.split(key)
        return self.perturbed(keys[1], self.family.total(keys[0], params, self.count))

    def release(self, data: Array, *, seed: int) -> Release | np.ndarray:
        """Read records (n, *event), and release values of them; for simulation and studies. To release real data use a
        cryptographically secure source of random numbers.
        """
        with jax.enable_x64(True):
            return np.asarray(self.randomize(jax.random.key(seed), self.family.checked(data)))


@pytree_dataclass
class SufficientStatisticsEstimator(FamilyEstimator):
    """Noise on the sums of a family's statistics, and the parameters that fit them. The mechanism has no bounds and at
    least the sensitivity of these sums; the rest is as for `sufficient_statistics`.
    """

    family: ParametricFamily
    mechanism: Additive
    count: int = static()
    account_for_clamping: bool = static(default=False)

    fewest = 2

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Additive):
            kind = "one that adds noise to statistics, such as LaplaceMechanism(epsilon, columns=..., sensitivity=...)"
            raise TypeError(f"mechanism must be {kind}, got {self.mechanism!r}: its releases are not sums")
        super().__post_init__()
        noise = self.mechanism.noise
        if self.mechanism.bounded:
            raise ValueError("the mechanism must have a sensitivity, and no bounds: the estimator clamps records")
        if noise.discrete and self.family.lattice_step is None:
            problem = "the mechanism must have continuous noise: the statistics are real numbers"
            raise ValueError(f"{problem}, got {self.mechanism!r}")
        if is_concrete(self.family, self.mechanism):
            sensitivity = float(self.family.sensitivity(noise.norm))
            with jax.enable_x64(True):
                scales = np.asarray(noise.over_columns(noise.standard_deviation))
            if scales.shape[-1] > 1:  # a sensitivity is in units of the first column; another one may have less noise
                sensitivity *= float(np.max(scales[..., :1] / scales))
            if self.mechanism.sensitivity < sensitivity * (1 - 1e-12):
                stated = f"the mechanism's sensitivity is {self.mechanism.sensitivity:g}"
                raise ValueError(f"one record can move the statistics by {sensitivity:g}, {stated}")
        if self.account_for_clamping and not self.family.accounts_for_clamping:
            raise ValueError(f"clamping cannot be accounted for in {type(self.family).__name__}")

    def perturbed(self, key: Key, total: Array) -> jax.Array:
        return self.mechanism.simulate(key, total)

    def estimate(self, values: Array) -> Estimated:
        params, outside = self.solve(values / self.count)
        variances = jnp.diagonal(self.covariance(params, noise=True))
        return Estimated(params, jnp.sqrt(jnp.maximum(variances, 0.0)), outside)

    def release(self, data: Array, *, seed: int) -> Release:
        return Release(np.asarray(super().release(data, seed=seed))[None], self.mechanism)

    def release_values(self, release: Release | Array) -> jax.Array:
        shape = self.mechanism.event_shape
        values = values_released_by(self.mechanism, release) if isinstance(release, Release) else release
        values = np.asarray(values, float)
        values = values[0] if values.shape == (1, *shape) else values
        if values.shape != shape:
            advice = "give raw records to the estimator's release(), and never to the bootstrap"
            raise ValueError(f"a release of statistics is one value of shape {shape}, got {values.shape}: {advice}")
        if not np.isfinite(values).all():
            raise ValueError(f"released statistics must be finite, got {values}")
        return jnp.asarray(values)

    @property
    def privacy(self) -> str:
        return self.mechanism.guarantee.statement()

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        """Parameters from a noisy mean of statistics, and whether it was outside the domain."""
        return self.family.solve_clamped(mean) if self.account_for_clamping else self.family.solve(mean)

    def covariance(self, params: Params, *, noise: bool) -> jax.Array:
        """Asymptotic covariance of the flat target: of sampling, and of the noise for privacy where it counts."""
        variance = self.mechanism.noise.variance if noise else 0.0
        return self.family.covariance(params, variance, self.count, clamped=self.account_for_clamping)

    def nearest(self, target: Params) -> Params:
        return self.family.nearest(target)

    def law(self, params: Params) -> dist.Distribution:
        """Normal approximation of the law of the sums before noise, with the moments of clamped records.

        ``ldp.observe("sums", estimator.law({"loc": mu, "scale": sigma}), release)`` is the likelihood of a release in a
        Bayesian model.
        """
        if not isinstance(self.family, NumberFamily):
            raise ValueError(f"moments of clamped records are known for families of numbers, not {self.family!r}")
        center, spread = self.family.moments(params)
        if self.family.columns is None:
            return dist.Normal(self.count * center[0], jnp.sqrt(self.count * spread[0, 0]))
        return dist.MultivariateNormal(self.count * center, self.count * spread)


def statistics_mechanism(family: ParametricFamily, epsilon: float, delta: float | None) -> Additive:
    """Laplace noise for the L1 sensitivity of sums of statistics, or Gaussian for the L2 where delta is given."""
    if delta is None:
        return LaplaceMechanism(epsilon, columns=family.columns, sensitivity=family.sensitivity(1))
    return GaussianMechanism(epsilon, delta, columns=family.columns, sensitivity=family.sensitivity(2))


def sufficient_statistics(
    family: ParametricFamily,
    *,
    count: int,
    epsilon: float,
    delta: float | None = None,
    account_for_clamping: bool = False,
) -> SufficientStatisticsEstimator:
    """Return a private estimator of a family: Laplace (if delta is given, Gaussian) noise on its sums of statistics.

    Parameters
    ----------
    family : ParametricFamily
        A family of `ldpbayes.bootstrap`, with the bounds to which records are clamped.
    count : int
        Public number of records. Neighbouring data sets have equal numbers of records.
    epsilon, delta : float
        Privacy budget (ε in nats, δ a probability), for replacing one record.
    account_for_clamping : bool
        True to estimate, by the method of moments, the parameters under which clamped records have the released mean
        statistics (not available for `NormalVector`). Default: maximum likelihood as if no record had been clamped, as
        in [FWS]. It is biased if many records are clamped.
    """
    if not isinstance(family, ParametricFamily):
        raise TypeError(f"family must be one of ldpbayes.bootstrap, got {family!r}")
    mechanism = statistics_mechanism(family, epsilon, delta)
    return SufficientStatisticsEstimator(family, mechanism, count, account_for_clamping)
