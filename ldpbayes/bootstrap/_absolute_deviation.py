"""Mean and standard deviation of normal records from a mean and a mean absolute deviation ([DFMBG])."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._checks import at_least
from ldpbayes._pytree import checked_field, pytree, static
from ldpbayes._tracing import is_concrete
from ldpbayes.bootstrap._private_estimator import Estimated
from ldpbayes.bootstrap._released_statistic import OfReleasedStatistic
from ldpbayes.bootstrap.families import Gaussian
from ldpbayes.mechanisms import LaplaceMechanism
from ldpbayes.mechanisms._additive import Additive
from ldpbayes.noise import Laplace

__all__ = ["GaussianAbsoluteDeviation", "gaussian_absolute_deviation"]

BLOCK = 2048  # records that are drawn at a time
COLUMNS = ("mean", "absolute deviation")


@pytree
@dataclasses.dataclass(frozen=True)
class GaussianAbsoluteDeviation(OfReleasedStatistic):
    """Normal records by a noisy mean m, and then a noisy mean of |x − m|; most use `gaussian_absolute_deviation`.

    Records are clamped, and m, as it comes out, is brought between the bounds. The standard deviation is √(π/2) times
    the mean absolute deviation, at least a thousandth of the distance of the bounds. Parameters are ``loc`` and
    ``scale``.

    The two sums are released with one scale of noise, multiplied by w = a/R and w'(m) in units in which one record
    moves both together by at most one; a is the share of the mean, R the distance of the bounds. With D the distance
    from m to the farther bound, w'(m) = min(1/D − a/R, (1 − a)/(2D − R)).

    *Why that is private, and no larger w' is.* Given m, two records on the same side of it, s apart, move the row by
    ws + w's, and s ≤ D. Two on different sides, s and t away, move it by w(s + t) + w'|s − t|, which is convex and so
    largest at the ends: (D, 0), as before, or (D, R − D), where it is wR + w'(2D − R). Both are at most one for this
    w', and one of them is one. The density of the pair given the data is that of the first number times that of the
    second given the first, so that its logarithm changes by at most ε, whatever m comes out. Shares that were accounted
    for one after the other would have w' = (1 − a)/R: as much where m is at a bound, half of it or less in the middle.

    Parameters
    ----------
    family : Gaussian
        The bounds.
    mechanism : Additive
        Laplace noise of the weighted sums, with a sensitivity of at least one; without bounds.
    count : int
        Number of records, public.
    share : float
        Of the budget for the mean, between 0 and 1.

    Raises
    ------
    ValueError
        If the count is unknown, or the mechanism has bounds, other noise or less sensitivity.
    """

    family: Gaussian
    mechanism: Additive
    count: int = static()
    share: Any = 0.5

    def __post_init__(self) -> None:
        self._check_mechanism(1.0 if is_concrete(self.mechanism) else None)
        object.__setattr__(self, "count", at_least(2, "count", self.count))
        checked_field(self, "share", "between 0 and 1", lambda a: (a.ndim == 0) & (a > 0) & (a < 1))
        if not isinstance(self.mechanism.noise, Laplace):
            raise ValueError(
                "the weight of the second sum depends on the first, which is accounted for in Laplace noise"
            )

    def checked(self, data: Any) -> np.ndarray:
        """See `OfReleasedStatistic.checked`."""
        return self.family.checked(data)

    def weights(self, mean: Any) -> tuple[Any, Any]:
        """What the sums of records and of absolute deviations are multiplied by.

        Parameters
        ----------
        mean : array ()
            The noisy mean, between the bounds.
        """
        width = self.family.width
        farther = jnp.maximum(mean - self.family.lower, self.family.upper - mean)
        beyond = jnp.maximum(2 * farther - width, 1e-12 * width)
        first = self.share / width
        return first, jnp.minimum(1 / farther - first, (1 - self.share) / beyond)

    def _mean(self, first: Any) -> tuple[Any, Any]:
        """The mean between the bounds, from the first released number, and whether it was."""
        centre = (self.family.lower + self.family.upper) / 2
        mean = centre + first / (self.share / self.family.width * self.count)
        within = jnp.clip(mean, self.family.lower, self.family.upper)
        return within, within == mean

    def _randomized(self, key: Any, total: Callable[[Callable[[jax.Array], jax.Array]], jax.Array]) -> jax.Array:
        """The released row, from a function that sums a function over clamped records."""
        noise = self.mechanism.simulate(key, jnp.zeros(2))
        centre = (self.family.lower + self.family.upper) / 2
        first = self.share / self.family.width * total(lambda x: x - centre) + noise[0]
        mean, _ = self._mean(first)
        return jnp.stack([first, self.weights(mean)[1] * total(lambda x: jnp.abs(x - mean)) + noise[1]])

    def randomize(self, key: Any, data: Any) -> jax.Array:
        """See `PrivateEstimator.randomize`."""
        x = self.family.clamp(data)
        return self._randomized(key, lambda function: function(x).sum())

    def estimate(self, released: Any) -> Estimated:
        """See `PrivateEstimator.estimate`; the standard errors are the asymptotic ones, of sampling and noise."""
        ranges = self.family.ranges["scale"]
        mean, inside = self._mean(released[0])
        scale = math.sqrt(math.pi / 2) * released[1] / (self.weights(mean)[1] * self.count)
        kept = jnp.clip(scale, ranges.lower, ranges.upper)
        params = {"loc": mean, "scale": kept}
        error = jnp.sqrt(jnp.diagonal(self.covariance(params, noise=True)))
        return Estimated(params, error, ~inside | (kept != scale))

    def covariance(self, params: Any, *, noise: bool) -> jax.Array:
        """Asymptotic covariance of ``loc`` and ``scale``: σ²/n and (π/2 − 1) σ²/n, and the noise in them.

        That the deviations are from m and not from the mean does not matter in this order: their mean is least there.

        Parameters
        ----------
        params : dict of str to array
            Where.
        noise : bool
            Whether the noise counts, or sampling alone.
        """
        first, second = self.weights(params["loc"])
        variance = self.mechanism.noise.variance / self.count**2 if noise else 0.0
        spread = params["scale"] ** 2 / self.count
        of_loc = spread + variance / first**2
        return jnp.diag(jnp.stack([of_loc, (math.pi / 2 - 1) * spread + math.pi / 2 * variance / second**2]))

    def replicate(self, key: Any, params: Any) -> jax.Array:
        """See `PrivateEstimator.replicate`: of records that are drawn and clamped, a block at a time, twice the same.

        Deviations are from a mean that is known only when all records have been drawn.
        """
        noise_key, records_key = jax.random.split(key)
        whole, rest = divmod(self.count, BLOCK)
        keys = jax.random.split(records_key, whole + 1)
        loc, scale = jnp.asarray(params["loc"]), params["scale"]

        def block(key: Any, size: int) -> jax.Array:
            return self.family.clamp(loc + scale * jax.random.normal(key, (size,), loc.dtype))

        def total(function: Callable[[jax.Array], jax.Array]) -> jax.Array:
            start = function(block(keys[0], rest)).sum()
            return jax.lax.scan(lambda sum_, key: (sum_ + function(block(key, BLOCK)).sum(), None), start, keys[1:])[0]

        return self._randomized(noise_key, total)

    def nearest(self, target: Any) -> Any:
        """See `PrivateEstimator.nearest`."""
        return self.family.nearest(target)

    def free(self, params: Any) -> jax.Array:
        """See `PrivateEstimator.free`: the logarithm of the scale."""
        return self.family.free(params)

    def params(self, free: jax.Array, like: Any) -> Any:
        """See `PrivateEstimator.params`."""
        return self.family.params(free, like)


def gaussian_absolute_deviation(
    *, lower: Any, upper: Any, count: int, epsilon: Any, share: float = 0.5
) -> GaussianAbsoluteDeviation:
    """Private estimator of a normal mean and standard deviation, by a mean and a mean absolute deviation.

    Parameters
    ----------
    lower, upper : float
        Bounds to which records are clamped, in their unit.
    count : int
        Number of records, public.
    epsilon : float
        Budget, for replacing one record.
    share : float
        Of the budget for the mean, between 0 and 1.

    Returns
    -------
    GaussianAbsoluteDeviation

    Raises
    ------
    ValueError
        For the reasons of `GaussianAbsoluteDeviation`, and of `LaplaceMechanism`; if bounds are missing.
    """
    mechanism = LaplaceMechanism(epsilon, columns=COLUMNS, sensitivity=1.0)
    return GaussianAbsoluteDeviation(Gaussian(lower, upper), mechanism, count, share)
