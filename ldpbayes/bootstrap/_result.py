"""A private estimate with its replicates, and intervals from these, one class a kind ([FWS] Table 1; [ET])."""

import abc
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

FAR = 1e300  # stands for infinity on a transformed scale: a quantile between two infinite numbers would be NaN


class BootstrapWarning(LdpBayesWarning):
    """The replicates or the estimate should not be used without a check. The message says why."""


class Interval(abc.ABC):
    """Base of rules that compute the ends of an interval from replicates."""

    @abc.abstractmethod
    def end(self, result: "BootstrapEstimate", probability: float) -> np.ndarray:
        """Return the ends (p,) below which the true parameters are with this probability, inside (0, 1)."""


def quantile(draws: np.ndarray, probability: float) -> np.ndarray:
    """The k-th of B replicates for the probability k/(B + 1): replicates and estimate are taken to be exchangeable."""
    return np.nanquantile(draws, probability, axis=0, method="weibull")


@dataclasses.dataclass(frozen=True)
class Percentile(Interval):
    """Efron's percentile interval: its ends are quantiles of the replicates."""

    def end(self, result: "BootstrapEstimate", probability: float) -> np.ndarray:
        return quantile(result.draws, probability)


@dataclasses.dataclass(frozen=True)
class Pivotal(Interval):
    """Pivotal (basic) interval 2τ̂ − q*(1 − probability): errors have the law of replicate minus estimate."""

    def end(self, result: "BootstrapEstimate", probability: float) -> np.ndarray:
        return 2 * result.params - quantile(result.draws, 1 - probability)


@dataclasses.dataclass(frozen=True)
class Studentised(Interval):
    """Pivotal interval of errors in units of their standard errors: τ̂ − ŝ·t*(1 − probability), t* = (τ* − τ̂)/ŝ*."""

    def end(self, result: "BootstrapEstimate", probability: float) -> np.ndarray:
        error, errors = result.formula_error, result.draws_error
        if error is None or errors is None:
            need = "a studentised interval needs standard errors by a formula, which this estimator has not"
            raise ValueError(f"{need}; take kind='pivotal' or 'percentile'")
        with np.errstate(divide="ignore", invalid="ignore"):
            t = (result.draws - result.params) / errors
        return result.params - error * quantile(t, 1 - probability)


@dataclasses.dataclass(frozen=True)
class Transformed(Interval):
    """Pivotal interval on the scale of an increasing function ``forward`` of arrays (..., p), with its ``inverse``."""

    forward: Callable[[np.ndarray], np.ndarray] = dataclasses.field(default_factory=lambda: np.log)
    inverse: Callable[[np.ndarray], np.ndarray] = dataclasses.field(default_factory=lambda: np.exp)

    def end(self, result: "BootstrapEstimate", probability: float) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            estimate, draws = self.forward(result.params), self.forward(result.draws)
        if not np.isfinite(estimate).all():
            raise ValueError(f"the estimate {result.params} has no value on the transformed scale")
        # a replicate outside the scale's domain, such as a negative one, is as far away as can be
        undefined = np.isnan(draws) & ~np.isnan(result.draws)
        draws = np.where(undefined, np.where(result.draws < result.params, -FAR, FAR), draws)
        with np.errstate(over="ignore"):
            return self.inverse(2 * estimate - quantile(np.clip(draws, -FAR, FAR), 1 - probability))


KINDS = {"percentile": Percentile(), "pivotal": Pivotal(), "studentised": Studentised(), "log": Transformed()}


def interval_kind(kind: str | Interval) -> Interval:
    """An interval itself, or the interval of a name; ValueError for an unknown name."""
    if isinstance(kind, Interval):
        return kind
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, or an Interval such as Transformed(), got {kind!r}")
    return KINDS[kind]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BootstrapEstimate(Estimate):
    """A private estimate with its parametric bootstrap.

    ``draws`` (draws, p) are the replicates of the estimate; after a bias correction, of the corrected estimate.
    ``uncorrected`` (p,) is the estimate before the correction. ``formula_error`` (p,) and ``draws_error`` (draws, p)
    are standard errors by a formula, of the estimate and of each replicate, for studentised intervals. ``outside`` is
    True if the release was outside the domain of the estimator, and ``outside_draws`` is the number of such replicates.
    ``kind`` is the default kind of the intervals. The other attributes are those of `Estimate`.
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
        """Covariance (p, p) of the replicates, which includes sampling and noise."""
        finite = self.draws[np.isfinite(self.draws).all(axis=1)]
        return np.atleast_2d(np.cov(finite, rowvar=False))

    @property
    def bias(self) -> np.ndarray:
        """Estimated bias (p,): the mean of the replicates minus the estimate. It is near 0 after a correction."""
        return np.nanmean(self.draws, axis=0) - self.params

    @property
    def replicates(self) -> "xarray.Dataset":
        """The replicates as a data set, with one variable for each parameter and a dimension ``draw``."""
        import xarray

        return xarray.Dataset(
            {name: ("draw", self.draws[:, j]) for j, name in enumerate(self.names)},
            coords={"draw": np.arange(len(self.draws))},
            attrs={"privacy": self.privacy, "outside": self.outside_draws},
        )

    def interval(
        self, level: float = 0.95, kind: str | Interval | None = None, *, side: str = "both"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper ends (p,) of confidence intervals; for level and side see `Estimate.interval`.

        The kind (default: the kind of the result) is ``"percentile"``, ``"pivotal"``, ``"studentised"`` (if there are
        standard errors), ``"log"`` (pivotal on the logarithmic scale) or an `Interval` such as ``Transformed(forward,
        inverse)``. Raises ValueError if there are fewer replicates than the level needs.
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
        return interval_kind(self.kind).end(self, probability)

    def summary(self, level: float = 0.95, kind: str | Interval | None = None) -> str:
        """Return a table of the estimates in plain text; for level and kind see `interval`."""
        return Estimate.summary(self if kind is None else dataclasses.replace(self, kind=kind), level)

    @property
    def _title(self) -> str:
        corrected = ", bias corrected" if not np.array_equal(self.uncorrected, self.params) else ""
        outside = f", {self.outside_draws} outside the domain" if self.outside_draws else ""
        return f"Parametric bootstrap, {len(self.draws)} replicates{corrected}{outside}"

    def _columns(self, level: float) -> dict[str, list[str]]:
        errors = {"estimate": self.params, "std err": self.standard_error, "bias": self.bias}
        return cells(errors | self._ends(level), "10.4g")
