"""Private estimates of exponential families from sums of their statistics with noise ([FWS] sec. 5)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ldpbayes._core.checks import at_least
from ldpbayes._core.pytrees import pytree, static
from ldpbayes._core.tracing import is_concrete
from ldpbayes.bootstrap._estimators import Estimated, OfReleasedStatistic, check_additive
from ldpbayes.bootstrap._family import Family, OnTheLine
from ldpbayes.mechanisms import GaussianMechanism, LaplaceMechanism
from ldpbayes.mechanisms.additive import Additive


@pytree
@dataclasses.dataclass(frozen=True)
class SufficientStatistics(OfReleasedStatistic):
    """Noise on the sums of a family's statistics, and the likeliest parameters of what comes out.

    Most make it with `sufficient_statistics`.

    Parameters
    ----------
    family : Family
        Of `ldpbayes.bootstrap`, with the bounds to which records are clamped.
    mechanism : Additive
        Of the sums: without bounds, with at least the family's sensitivity.
    count : int
        Number of records, public; neighbouring data sets differ in one record and have the same number.
    account_for_clamping : bool
        Whether parameters are those under which clamped records have the released mean statistics (the method of
        moments), or the likeliest as if no record had been clamped, as in [FWS]; the latter are biased where many are.

    Raises
    ------
    ValueError
        If the count is unknown, the mechanism has bounds or less sensitivity than the family, or clamping cannot be
        accounted for.
    """

    family: Family
    mechanism: Additive
    count: int = static()
    account_for_clamping: bool = static(default=False)

    def __post_init__(self) -> None:
        if not isinstance(self.family, Family):
            raise TypeError(f"family must be one of ldpbayes.bootstrap, got {self.family!r}")
        check_additive(self.mechanism)
        needed = (
            float(self.family.sensitivity(self.mechanism.noise.norm))
            if is_concrete(self.mechanism, self.family)
            else None
        )
        self._check_mechanism(needed)
        object.__setattr__(self, "count", at_least(2, "count", self.count))
        object.__setattr__(self, "account_for_clamping", bool(self.account_for_clamping))
        if self.account_for_clamping and not self.family.accounts_for_clamping:
            raise ValueError(f"clamping cannot be accounted for in {type(self.family).__name__}")

    @property
    def whole(self) -> bool:
        """See `OfReleasedStatistic.whole`: those of counts are."""
        return self.family.step is not None

    def checked(self, data: Any) -> np.ndarray:
        """See `OfReleasedStatistic.checked`."""
        return self.family.checked(data)

    def randomize(self, key: Any, data: Any) -> jax.Array:
        """See `PrivateEstimator.randomize`."""
        return self.mechanism.simulate(key, self.family.statistics(data).sum(axis=0))

    def estimate(self, released: Any) -> Estimated:
        """See `PrivateEstimator.estimate`; the standard errors are the asymptotic ones, of sampling and noise."""
        solve = self.family.solve_clamped if self.account_for_clamping else self.family.solve
        params, outside = solve(released / self.count)
        covariance = self.covariance(params, noise=True)
        error = None if covariance is None else jnp.sqrt(jnp.maximum(jnp.diagonal(covariance), 0.0))
        return Estimated(params, error, outside)

    def covariance(self, params: Any, *, noise: bool) -> jax.Array | None:
        """Asymptotic covariance of the flat parameters: what Fisher intervals and studentised ones rest on.

        Parameters
        ----------
        params : dict of str to array
            Where.
        noise : bool
            Whether the noise counts, or sampling alone.
        """
        variance = self.mechanism.noise.variance if noise else 0.0
        return self.family.covariance(params, variance, self.count, clamped=self.account_for_clamping)

    def replicate(self, key: Any, params: Any) -> jax.Array:
        """See `PrivateEstimator.replicate`; the sums are drawn, not the records, where their law is known."""
        keys = jax.random.split(key)
        return self.mechanism.simulate(keys[1], self.family.total(keys[0], params, self.count))

    def nearest(self, target: Any) -> Any:
        """See `PrivateEstimator.nearest`."""
        return self.family.nearest(target)

    def free(self, params: Any) -> jax.Array:
        """See `PrivateEstimator.free`: logarithms of positive parameters."""
        return self.family.free(params)

    def params(self, free: jax.Array, like: Any) -> Any:
        """See `PrivateEstimator.params`."""
        return self.family.params(free, like)

    def simulate(self, key: Any, params: Any) -> jax.Array:
        """Records of the family.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        params : dict of str to array
            Of the family.
        """
        return self.family.simulate(key, params, self.count)

    def law(self, params: Any) -> Any:
        """Law of the released sums' mean part, for a Bayesian model: normal, with the moments of clamped records.

        ``ldp.observe("sums", estimator.law({"loc": mu, "scale": sigma}), release)`` is the likelihood of the same
        release. The normal approximation is that of the sum of all records, before noise.

        Parameters
        ----------
        params : dict of str to array
            Of the family, possibly traced.

        Returns
        -------
        numpyro.distributions.Normal or MultivariateNormal

        Raises
        ------
        ValueError
            For families of rows or categories.
        """
        if not isinstance(self.family, OnTheLine):
            raise ValueError(f"moments of clamped records are known for families of numbers, not {self.family!r}")
        center, spread = self.family.moments(params)
        if self.family.columns is None:
            return dist.Normal(self.count * center[0], jnp.sqrt(self.count * spread[0, 0]))
        return dist.MultivariateNormal(self.count * center, self.count * spread)


def sufficient_statistics(
    family: Family, *, count: int, epsilon: Any, delta: Any = None, account_for_clamping: bool = False
) -> SufficientStatistics:
    """Private estimator of a family: Laplace noise on its sums of statistics, or Gaussian noise where delta is given.

    Parameters
    ----------
    family : Family
        Of `ldpbayes.bootstrap`, with the bounds to which records are clamped.
    count : int
        Number of records, public.
    epsilon, delta : float
        Budget, for replacing one record.
    account_for_clamping : bool
        See `SufficientStatistics`.

    Returns
    -------
    SufficientStatistics

    Raises
    ------
    ValueError
        For the reasons of `SufficientStatistics`, and of `LaplaceMechanism` or `GaussianMechanism`.
    """
    if not isinstance(family, Family):
        raise TypeError(f"family must be one of ldpbayes.bootstrap, got {family!r}")
    if delta is None:
        mechanism: Any = LaplaceMechanism(epsilon, columns=family.columns, sensitivity=family.sensitivity(1))
    else:
        mechanism = GaussianMechanism(epsilon, delta, columns=family.columns, sensitivity=family.sensitivity(2))
    return SufficientStatistics(family, mechanism, count, account_for_clamping)
