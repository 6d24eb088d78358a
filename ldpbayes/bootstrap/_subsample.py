"""Subsample and aggregate: a private mean of an estimator over blocks of the data ([FWS] Algorithm 2; [NRS], [DHK])."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._checks import at_least, check_order, checked
from ldpbayes._pytree import checked_field, pytree, static
from ldpbayes._tracing import is_concrete
from ldpbayes.bootstrap._normal_estimate import NormalEstimate
from ldpbayes.bootstrap._private_estimator import Estimated
from ldpbayes.bootstrap._released_statistic import OfReleasedStatistic
from ldpbayes.mechanisms import GaussianMechanism, LaplaceMechanism
from ldpbayes.mechanisms._additive import Additive

__all__ = ["SubsampleAndAggregate", "subsample_and_aggregate"]

COLUMNS = ("mean", "variance")


@pytree
@dataclasses.dataclass(frozen=True)
class SubsampleAndAggregate(OfReleasedStatistic):
    """A scalar parameter from blocks of the data, with a normal interval; most make it with `subsample_and_aggregate`.

    1. The records are put in random order and cut into M blocks of ⌊n/M⌋ each; those left over are not used.
    2. The estimator is run on each block, and what it gives is clamped to the parameter's range, of width R; what is no
       number is its middle.
    3. Replacing one record changes one block's estimate. So their mean moves by at most R/M, and their variance (with
       M − 1) by at most R²/M, since it is (t − c)²/M and what does not depend on t, with c the mean of the others; both
       at a time where all others are at one bound. Each is released with its share of the budget.
    4. The estimate is the noisy mean. Its variance is that of the blocks, noisy and not below 0, over M, plus the
       variance of the noise in the mean; the interval is normal.

    The mean over blocks has the bias of the estimator at ⌊n/M⌋ records, which no interval of it sees. Where the noise
    in the variance is large against it, and that in the mean is not against its error, the interval is often too short.

    Parameters
    ----------
    lower, upper : float
        The parameter's range, known without looking at the data.
    mechanism : Additive
        Of the mean and variance in units in which one record moves both together by one at most; without bounds.
    statistic : callable
        The estimator that is not private: a JAX function from a block (⌊n/M⌋, *event) to a number.
    count : int
        Number of records, public.
    blocks : int
        Number of blocks, at least 2.
    share : float
        Of the budget for the mean, between 0 and 1.
    name : str
        Of the parameter.

    Raises
    ------
    ValueError
        If there are more blocks than records, the mechanism has bounds or too little sensitivity, or another argument
        is out of range.
    """

    lower: Any
    upper: Any
    mechanism: Additive
    statistic: Callable[[Any], Any] = static()
    count: int = static()
    blocks: int = static()
    share: Any = 0.5
    name: str = static(default="theta")

    def __post_init__(self) -> None:
        for bound in ("lower", "upper"):
            if getattr(self, bound) is None:
                raise ValueError(f"{bound} is missing: the range of the parameter has to be known")
            checked_field(self, bound, "a finite number", lambda a: (a.ndim == 0) & np.isfinite(a))
        check_order(self.lower, self.upper)
        checked_field(self, "share", "between 0 and 1", lambda a: (a.ndim == 0) & (a > 0) & (a < 1))
        object.__setattr__(self, "count", at_least(2, "count", self.count))
        object.__setattr__(self, "blocks", at_least(2, "blocks", self.blocks, self.count))
        self._check_mechanism(1.0 if is_concrete(self.mechanism) else None)

    def checked(self, data: Any) -> np.ndarray:
        """See `OfReleasedStatistic.checked`: whatever the block's estimator takes."""
        records = np.asarray(data)
        if not records.ndim:
            raise ValueError(f"records must be an array (n, *event), got {data!r}")
        return records

    @property
    def _weights(self) -> tuple[Any, Any]:
        """What mean and variance are multiplied by, so that their sensitivities are the shares, or squared are."""
        power = 1 / self.mechanism.noise.norm
        width = self.upper - self.lower
        return self.share**power * self.blocks / width, (1 - self.share) ** power * self.blocks / width**2

    def randomize(self, key: Any, data: Any) -> jax.Array:
        """See `PrivateEstimator.randomize`."""
        keys = jax.random.split(key)
        size = self.count // self.blocks
        data = jnp.asarray(data)
        order = jax.random.permutation(keys[0], self.count)[: self.blocks * size]
        cut = data[order].reshape(self.blocks, size, *data.shape[1:])
        values = jnp.clip(jax.vmap(self.statistic)(cut), self.lower, self.upper)
        values = jnp.where(jnp.isnan(values), (self.lower + self.upper) / 2, values)
        first, second = self._weights
        row = jnp.stack([first * values.mean(), second * values.var(ddof=1)])
        return self.mechanism.simulate(keys[1], row)

    def estimate(self, released: Any) -> Estimated:
        """See `PrivateEstimator.estimate`: the noisy mean, and its standard error for sampling and noise."""
        first, second = self._weights
        spread = released[1] / second
        kept = jnp.maximum(spread, 0.0)
        error = jnp.sqrt(kept / self.blocks + self.mechanism.noise.variance / first**2)
        return Estimated({self.name: released[0] / first}, error[None], kept != spread)

    def replicate(self, key: Any, params: Any) -> Any:
        """See `PrivateEstimator.replicate`: a block's estimator alone has no simulator."""
        raise ValueError("subsample and aggregate needs simulator=, a function (key, parameters) -> data")

    def interval_of(self, release: Any) -> NormalEstimate:
        """The estimate with its normal intervals.

        Parameters
        ----------
        release : Release or array
            What was released of the data.

        Returns
        -------
        NormalEstimate
        """
        with jax.enable_x64(True):
            params, error, _ = jax.tree.map(np.asarray, self.estimate(self.released(release)))
        flat = np.atleast_1d(params[self.name])
        title = f"Subsample and aggregate, {self.blocks} blocks"
        return NormalEstimate(params, flat, [self.name], np.diag(error**2), self.privacy, title)


def subsample_and_aggregate(
    statistic: Callable[[Any], Any],
    *,
    lower: Any,
    upper: Any,
    count: int,
    blocks: int,
    epsilon: Any,
    delta: Any = None,
    share: float = 0.5,
    name: str = "theta",
) -> SubsampleAndAggregate:
    """Private estimator of a scalar from blocks of the data: Laplace noise, or Gaussian where delta is given.

    Parameters
    ----------
    statistic : callable
        The estimator that is not private: a JAX function from a block (⌊count/blocks⌋, *event) to a number.
    lower, upper : float
        The parameter's range, known without looking at the data.
    count : int
        Number of records, public.
    blocks : int
        Number of blocks.
    epsilon, delta : float
        Budget, for replacing one record.
    share : float
        Of the budget for the mean; the rest is for the variance. Of Gaussian noise it is a share of the square of the
        distance in standard deviations.
    name : str
        Of the parameter.

    Returns
    -------
    SubsampleAndAggregate

    Raises
    ------
    ValueError
        For the reasons of `SubsampleAndAggregate`, and of `LaplaceMechanism` or `GaussianMechanism`.
    """
    share = checked("share", share, "between 0 and 1", lambda a: (a.ndim == 0) & (a > 0) & (a < 1))
    if delta is None:
        mechanism: Any = LaplaceMechanism(epsilon, columns=COLUMNS, sensitivity=1.0)
    else:
        mechanism = GaussianMechanism(epsilon, delta, columns=COLUMNS, sensitivity=1.0)
    return SubsampleAndAggregate(lower, upper, mechanism, statistic, count, blocks, share, name)
