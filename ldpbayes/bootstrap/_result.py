"""A private estimate with its replicates, and intervals from these, one class a kind ([FWS] Table 1; [ET])."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ldpbayes._core.checks import LdpBayesWarning
from ldpbayes._core.types import PyTree
from ldpbayes.estimation.estimates import Estimate, cells, tail_probabilities

if TYPE_CHECKING:
    import xarray

STANDS_FOR_INFINITY = 1e300  # on a transformed scale: a quantile between two infinite numbers would be NaN
Interval = Callable[["BootstrapEstimate", float], np.ndarray]
"""From an estimate with replicates to the ends (p,) below which p true parameters are with a probability in (0, 1)."""


class BootstrapWarning(LdpBayesWarning):
    """Warning that a bootstrap estimate should be checked before it is used. The message states the reason."""


def quantile(draws: np.ndarray, probability: float) -> np.ndarray:
    """The k-th of B replicates for the probability k/(B + 1): replicates and estimate are taken to be exchangeable."""
    return np.nanquantile(draws, probability, axis=0, method="weibull")


def _studentised(result: "BootstrapEstimate", probability: float) -> np.ndarray:
    """τ̂ − ŝ t(1 − P), where t are quantiles of (τ* − τ̂)/ŝ*, and ŝ and ŝ* the errors of estimate and replicate."""
    error, errors = result.formula_error, result.draws_error
    if error is None or errors is None:
        need = "a studentised interval needs a formula for standard errors, which this estimator lacks"
        raise ValueError(f"{need}; use the kind pivotal or percentile")
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (result.draws - result.params) / errors
    return result.params - error * quantile(t, 1 - probability)


@dataclasses.dataclass(frozen=True)
class Transformed:
    """Pivotal interval on a transformed scale, whose ends are transformed back.

    Parameters
    ----------
    forward : callable
        An increasing function of parameters (..., p). Default: the logarithm.
    inverse : callable
        The inverse of `forward`. Default: the exponential function.
    """

    forward: Callable[[np.ndarray], np.ndarray] = dataclasses.field(default_factory=lambda: np.log)
    inverse: Callable[[np.ndarray], np.ndarray] = dataclasses.field(default_factory=lambda: np.exp)

    def __call__(self, result: "BootstrapEstimate", probability: float) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            estimate, draws = self.forward(result.params), self.forward(result.draws)
        if not np.isfinite(estimate).all():
            raise ValueError(f"the estimate {result.params} has no value on the transformed scale")
        # a replicate outside the scale's domain, such as a negative one, is as far away as can be
        undefined = np.isnan(draws) & ~np.isnan(result.draws)
        draws = np.where(undefined, np.where(result.draws < result.params, -np.inf, np.inf), draws)
        draws = np.clip(draws, -STANDS_FOR_INFINITY, STANDS_FOR_INFINITY)
        with np.errstate(over="ignore"):
            return self.inverse(2 * estimate - quantile(draws, 1 - probability))


INTERVALS: dict[str, Interval] = {
    "percentile": lambda result, probability: quantile(result.draws, probability),
    # as if estimate minus truth had the law of replicate minus estimate
    "pivotal": lambda result, probability: 2 * result.params - quantile(result.draws, 1 - probability),
    "studentised": _studentised,
    "log": Transformed(),
}


def interval_kind(kind: str | Interval) -> Interval:
    if callable(kind):
        return kind
    if kind not in INTERVALS:
        raise ValueError(f"kind must be one of {', '.join(INTERVALS)}, or a rule such as Transformed(), got {kind!r}")
    return INTERVALS[kind]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BootstrapEstimate(Estimate):
    """A private estimate of p numbers, with the replicates of its parametric bootstrap.

    Besides those of `Estimate`, the attributes are:

    - ``draws`` (draws, p): the replicates of the estimate or, after a correction of bias, of the corrected estimate;
    - ``uncorrected`` (p,): the estimate before the correction;
    - ``formula_error`` (p,) and ``draws_error`` (draws, p): standard errors of the estimate and of each replicate by a
      formula, for studentised intervals, or None without one;
    - ``outside`` and ``outside_draws``: whether the release was, and how many simulated releases were, outside the
      domain of the estimator, as in `Estimated`;
    - ``bias`` (p,): the mean of ``draws`` minus the estimate, near 0 after a correction of bias;
    - ``kind``: the default kind of the intervals.
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
        """Covariance (p, p) of the replicates: uncertainty from sampling and from the noise."""
        finite = self.draws[np.isfinite(self.draws).all(axis=1)]
        return np.atleast_2d(np.cov(finite, rowvar=False))

    bias = property(lambda self: np.nanmean(self.draws, axis=0) - self.params, doc="Estimated bias (p,).")

    @property
    def replicates(self) -> "xarray.Dataset":
        """The replicates as an `xarray.Dataset`. Each parameter is a variable with the dimension ``draw``."""
        import xarray

        return xarray.Dataset(
            {name: ("draw", self.draws[:, j]) for j, name in enumerate(self.names)},
            coords={"draw": np.arange(len(self.draws))},
            attrs={"privacy": self.privacy, "outside": self.outside_draws},
        )

    def interval(
        self, level: float = 0.95, kind: str | Interval | None = None, *, side: str = "both"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower ends (p,) and the upper ends (p,) of the confidence intervals of the p numbers.

        `Estimate.interval` describes `level` and `side`. The default of `kind` is the attribute ``kind``. Kinds are:

        - ``"percentile"``: the ends are quantiles q of the replicates τ*;
        - ``"pivotal"``: the end below which the parameter is with probability P is 2τ̂ − q(1 − P) for the estimate τ̂,
          as if estimate minus truth had the law of replicate minus estimate;
        - ``"studentised"``: pivotal with errors divided by standard errors, if the estimator has a formula for these;
        - ``"log"``: pivotal on the logarithmic scale;
        - ``Transformed(forward, inverse)``, or your own function of a `BootstrapEstimate` and P that returns the ends.

        Raises ValueError if there are too few replicates for the level.
        """
        if kind is not None:
            return dataclasses.replace(self, kind=kind).interval(level, side=side)
        below, above = tail_probabilities(level, side)
        needed = math.ceil(1 / min(p for p in (below, 1 - above) if p > 0) - 1e-9) - 1
        if len(self.draws) < needed:
            count = f"at least {needed} replicates, better ten times as many; there are {len(self.draws)}"
            raise ValueError(f"an interval of level {level:g} needs {count}")
        return super().interval(level, side=side)

    def _quantile(self, probability: float) -> np.ndarray:
        return interval_kind(self.kind)(self, probability)

    def summary(self, level: float = 0.95, kind: str | Interval | None = None) -> str:
        """Return a table of the estimates as text, with the intervals of `interval`."""
        return Estimate.summary(self if kind is None else dataclasses.replace(self, kind=kind), level)

    @property
    def _title(self) -> str:
        corrected = ", bias corrected" if not np.array_equal(self.uncorrected, self.params) else ""
        outside = f", {self.outside_draws} outside the domain" if self.outside_draws else ""
        return f"Parametric bootstrap, {len(self.draws)} replicates{corrected}{outside}"

    def _columns(self, level: float) -> dict[str, list[str]]:
        errors = {"estimate": self.params, "std err": self.standard_error, "bias": self.bias}
        return cells(errors | self._ends(level), "10.4g")
