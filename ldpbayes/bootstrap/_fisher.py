"""Fisher intervals, with which the bootstrap is compared ([FWS] sec. 7)."""

import dataclasses
import functools
import math

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import special

from ldpbayes._core.types import Array, PyTree
from ldpbayes.bootstrap._intervals import tail_probabilities
from ldpbayes.bootstrap._result import names_of
from ldpbayes.bootstrap.statistics import StatisticEstimator
from ldpbayes.data import Release
from ldpbayes.estimation import Estimate
from ldpbayes.estimation.estimates import table, tails


@dataclasses.dataclass(frozen=True, eq=False)
class NormalEstimate:
    """An `Estimate` whose intervals are normal; ``title`` says whether its covariance counts the noise for privacy."""

    estimate: PyTree
    params: np.ndarray
    names: list[str]
    covariance: np.ndarray
    privacy: str
    title: str

    @property
    def standard_error(self) -> np.ndarray:
        return np.sqrt(np.diagonal(self.covariance))

    def interval(self, level: float = 0.95, *, side: str = "both") -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends (p,) of normal confidence intervals; ``side`` is "both", "lower" or "upper"."""
        below, above = tail_probabilities(level, side)
        size, error = len(self.params), self.standard_error
        low = self.params + special.ndtri(below) * error if below > 0 else np.full(size, -math.inf)
        high = self.params + special.ndtri(above) * error if above < 1 else np.full(size, math.inf)
        return low, high

    def summary(self, level: float = 0.95) -> str:
        """Return a table of the estimates in plain text."""
        lower, upper = tails(level)
        head = f"{'estimate':>10} {'std err':>10} {lower:>10} {upper:>10}"
        columns = [self.params, self.standard_error, *self.interval(level)]
        rows = [(name, " ".join(f"{column[j]:10.4g}" for column in columns)) for j, name in enumerate(self.names)]
        return table(self.title, "parameter", head, rows)


_PROTOCOL: type[Estimate] = NormalEstimate  # for the type checker


def fisher(estimator: StatisticEstimator, release: Release | Array, *, noise: bool = False) -> NormalEstimate:
    """Private Fisher intervals: normal, with the asymptotic covariance at the private estimate ([FWS] eq. 7).

    Parameters
    ----------
    estimator : SufficientStatisticsEstimator or LeastSquaresEstimator
        The estimator that made the release.
    release : Release or array
        What was released of the data.
    noise : bool
        Whether the noise for privacy counts. By default it is ignored, as in the paper: asymptotically it does not
        matter, but at moderate sizes such intervals are far too short.

    Returns
    -------
    NormalEstimate

    Raises
    ------
    TypeError
        If the estimator is neither.
    ValueError
        If the release is not one of the estimator, or it has no formula for the covariance.
    """
    if not isinstance(estimator, StatisticEstimator):
        raise TypeError(
            "Fisher intervals are for sufficient_statistics and least_squares, whose asymptotic covariance is known; "
            f"got {estimator!r}"
        )
    with jax.enable_x64(True):
        target, covariance = _target_with_covariance(estimator, estimator.release_values(release), noise)
        target = jax.tree.map(np.asarray, target)
        flat = np.asarray(ravel_pytree(target)[0])
    if covariance is None:
        raise ValueError(f"{type(estimator).__name__} has no formula for the covariance of this family; bootstrap it")
    title = f"Private Fisher intervals, for {'sampling and the noise for privacy' if noise else 'sampling alone'}"
    return NormalEstimate(
        target, flat, names_of(target), np.atleast_2d(np.asarray(covariance)), estimator.privacy, title
    )


@functools.partial(jax.jit, static_argnames="noise")
def _target_with_covariance(
    estimator: StatisticEstimator, values: Array, noise: bool
) -> tuple[PyTree, jax.Array | None]:
    params = estimator.estimate(values).params
    return estimator.target(params), estimator.covariance(params, noise=noise)
