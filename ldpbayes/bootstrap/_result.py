"""Results: an estimate with its replicates, or with a normal approximation."""

import dataclasses
import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from ldpbayes._core.checks import LdpBayesWarning
from ldpbayes._core.types import PyTree
from ldpbayes.bootstrap._intervals import Interval, interval_kind
from ldpbayes.estimation.estimates import Estimate, cells, tail_probabilities

if TYPE_CHECKING:
    import xarray


class BootstrapWarning(LdpBayesWarning):
    """Replicates or an estimate that should not be used as they are; the message says why."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BootstrapEstimate(Estimate):
    """A private estimate with its parametric bootstrap.

    ``estimate`` has the reported parameters in the estimator's form, ``params`` (p,) as a flat array with ``names``.
    ``draws`` (draws, p) are replicates of the estimate, after a bias correction those of the corrected one, and
    ``uncorrected`` (p,) is the estimate before it. Standard errors by the estimator's own formula, for studentised
    intervals, are ``formula_error`` (p,) and, of each replicate, ``draws_error`` (draws, p). ``outside`` says whether
    the release was outside the domain of the estimator, ``outside_draws`` how many replicates were. ``kind`` is the
    default kind of the intervals, ``privacy`` states the guarantee for those whose records were read.
    """

    estimate: PyTree
    params: np.ndarray
    names: list[str]
    draws: np.ndarray
    formula_error: np.ndarray | None
    draws_error: np.ndarray | None
    outside: bool
    outside_draws: int
    uncorrected: np.ndarray
    kind: str | Interval
    privacy: str

    @functools.cached_property
    def covariance(self) -> np.ndarray:
        """Covariance (p, p) of the replicates, for sampling and perturbation together."""
        finite = self.draws[np.isfinite(self.draws).all(axis=1)]
        return np.atleast_2d(np.cov(finite, rowvar=False))

    @property
    def bias(self) -> np.ndarray:
        """Estimated bias (p,): mean of the replicates less the estimate; about 0 after a correction."""
        return np.nanmean(self.draws, axis=0) - self.params

    @property
    def replicates(self) -> "xarray.Dataset":
        """The replicates, a variable a parameter, along a dimension ``draw``."""
        import xarray

        return xarray.Dataset(
            {name: ("draw", self.draws[:, j]) for j, name in enumerate(self.names)},
            coords={"draw": np.arange(len(self.draws))},
            attrs={"privacy": self.privacy, "outside": self.outside_draws},
        )

    def interval(
        self, level: float = 0.95, kind: str | Interval | None = None, *, side: str = "both"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends (p,) of confidence intervals.

        Parameters
        ----------
        level : float
            Coverage, between 0 and 1; ValueError if there are fewer replicates than it needs.
        kind : str or Interval, optional
            ``"percentile"``, ``"pivotal"``, ``"studentised"`` (where there are standard errors), ``"log"`` (pivotal on
            the logarithmic scale), or one such as ``Transformed(forward, inverse)``. By default the result's.
        side : {"both", "lower", "upper"}
            Which ends the interval has; the other end is infinite.
        """
        if kind is not None:
            return dataclasses.replace(self, kind=kind).interval(level, side=side)
        below, above = tail_probabilities(level, side)
        needed = math.ceil(1 / min(p for p in (below, 1 - above) if p > 0) - 1e-9) - 1
        if len(self.draws) < needed:
            advice = f"give parametric_bootstrap draws={needed} or, better, ten times as many"
            count = f"at least {needed} replicates, there are {len(self.draws)}"
            raise ValueError(f"an interval of level {level:g} needs {count}; {advice}")
        return super().interval(level, side=side)

    def _quantile(self, probability: float) -> np.ndarray:
        return interval_kind(self.kind).end(self, probability)

    def summary(self, level: float = 0.95, kind: str | Interval | None = None) -> str:
        """Return a table of the estimates in plain text; level and kind as for `interval`."""
        return Estimate.summary(self if kind is None else dataclasses.replace(self, kind=kind), level)

    @property
    def _title(self) -> str:
        corrected = ", bias corrected" if not np.array_equal(self.uncorrected, self.params) else ""
        outside = f", {self.outside_draws} outside the domain" if self.outside_draws else ""
        return f"Parametric bootstrap, {len(self.draws)} replicates{corrected}{outside}"

    def _columns(self, level: float) -> dict[str, list[str]]:
        errors = {"estimate": self.params, "std err": self.standard_error, "bias": self.bias}
        return cells(errors | self._ends(level), "10.4g")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class NormalEstimate(Estimate):
    """An `Estimate` whose intervals are normal; ``title`` says whether its covariance counts the noise for privacy."""

    estimate: PyTree
    params: np.ndarray
    names: list[str]
    covariance: np.ndarray
    privacy: str
    title: str

    @property
    def _title(self) -> str:
        return self.title

    def _columns(self, level: float) -> dict[str, list[str]]:
        return cells({"estimate": self.params, "std err": self.standard_error} | self._ends(level), "10.4g")
