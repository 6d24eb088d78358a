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
    """Replicates or an estimate that should not be used as they are; the message says why."""


class Interval(abc.ABC):
    """How the ends of an interval follow from replicates."""

    @abc.abstractmethod
    def end(self, result: "BootstrapEstimate", probability: float) -> np.ndarray:
        """The ends (p,) below which the true parameters are with this probability, which is between 0 and 1."""


def quantile(draws: np.ndarray, probability: float) -> np.ndarray:
    """The k-th of B replicates for the probability k/(B + 1): replicates and estimate are taken to be exchangeable."""
    return np.nanquantile(draws, probability, axis=0, method="weibull")


@dataclasses.dataclass(frozen=True)
class Percentile(Interval):
    """Efron's percentile interval: quantiles of the replicates themselves."""

    def end(self, result: "BootstrapEstimate", probability: float) -> np.ndarray:
        return quantile(result.draws, probability)


@dataclasses.dataclass(frozen=True)
class Pivotal(Interval):
    """Estimate less truth is taken to have the law of replicate less estimate: 2τ̂ − q*(1 − probability)."""

    def end(self, result: "BootstrapEstimate", probability: float) -> np.ndarray:
        return 2 * result.params - quantile(result.draws, 1 - probability)


@dataclasses.dataclass(frozen=True)
class Studentised(Interval):
    """Pivotal for errors in units of their standard errors: τ̂ − ŝ·t*(1 − probability), t* = (τ* − τ̂)/ŝ*."""

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
    """The pivotal interval on another scale, by an increasing function of arrays (..., p), and its inverse back."""

    forward: Callable[[np.ndarray], np.ndarray] = np.log
    inverse: Callable[[np.ndarray], np.ndarray] = np.exp

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

    ``draws`` (draws, p) are replicates of the estimate, after a bias correction those of the corrected one, and
    ``uncorrected`` (p,) is the estimate before it. Standard errors by the estimator's own formula, for studentised
    intervals, are ``formula_error`` (p,) and, of each replicate, ``draws_error`` (draws, p). ``outside`` says whether
    the release was outside the domain of the estimator, ``outside_draws`` how many replicates were. ``kind`` is the
    default kind of the intervals. All else is as in `Estimate`.
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
        """Lower and upper ends (p,) of confidence intervals; level and side as for `Estimate.interval`.

        The kind, by default the result's, is ``"percentile"``, ``"pivotal"``, ``"studentised"`` (where there are
        standard errors), ``"log"`` (pivotal on the logarithmic scale) or an `Interval` such as ``Transformed(forward,
        inverse)``. ValueError if there are fewer replicates than the level needs.
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
