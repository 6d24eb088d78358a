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

STANDS_FOR_INFINITY = (
    1e300  # stands for infinity on a transformed scale: a quantile between two infinite numbers would be NaN
)


class BootstrapWarning(LdpBayesWarning):
    """Warning that a bootstrap estimate should be checked before it is used. The message states the reason."""


class Interval(abc.ABC):
    """Base class of rules that compute the ends of a confidence interval from the replicates of the bootstrap."""

    @abc.abstractmethod
    def end(self, result: "BootstrapEstimate", probability: float) -> np.ndarray:
        """Return the ends (p,) below which each of p true parameters is with the given probability.

        `result` is the estimate with its replicates. `probability` is strictly between 0 and 1.
        """


def quantile(draws: np.ndarray, probability: float) -> np.ndarray:
    """The k-th of B replicates for the probability k/(B + 1): replicates and estimate are taken to be exchangeable."""
    return np.nanquantile(draws, probability, axis=0, method="weibull")


@dataclasses.dataclass(frozen=True)
class Percentile(Interval):
    """Percentile interval of Efron: its ends are quantiles of the replicates (estimates from simulated data)."""

    def end(self, result: "BootstrapEstimate", probability: float) -> np.ndarray:
        return quantile(result.draws, probability)


@dataclasses.dataclass(frozen=True)
class Pivotal(Interval):
    """Pivotal interval, also called basic interval.

    The end below which the parameter is with probability P is 2τ̂ − q(1 − P). Here τ̂ is the estimate, and q(p) is the
    p-quantile of the replicates (estimates from simulated data). The rule assumes that the law of estimate minus truth
    equals the law of replicate minus estimate.
    """

    def end(self, result: "BootstrapEstimate", probability: float) -> np.ndarray:
        return 2 * result.params - quantile(result.draws, 1 - probability)


@dataclasses.dataclass(frozen=True)
class Studentised(Interval):
    """Pivotal interval in which all errors are divided by standard errors.

    The end below which the parameter is with probability P is τ̂ − ŝ t(1 − P). Here τ̂ is the estimate, with the
    standard error ŝ. A replicate τ* (an estimate from simulated data) has the standard error ŝ*. t(p) is the p-quantile
    of (τ* − τ̂)/ŝ*.
    """

    def end(self, result: "BootstrapEstimate", probability: float) -> np.ndarray:
        error, errors = result.formula_error, result.draws_error
        if error is None or errors is None:
            need = "a studentised interval needs a formula for standard errors, which this estimator lacks"
            raise ValueError(f"{need}; use the kind pivotal or percentile")
        with np.errstate(divide="ignore", invalid="ignore"):
            t = (result.draws - result.params) / errors
        return result.params - error * quantile(t, 1 - probability)


@dataclasses.dataclass(frozen=True)
class Transformed(Interval):
    """Pivotal interval on a transformed scale, such as the logarithmic scale. The ends are transformed back.

    Parameters
    ----------
    forward : callable
        The transformation of the parameters: an increasing function of arrays (..., p). Default: the logarithm.
    inverse : callable
        The inverse of `forward`. Default: the exponential function.
    """

    forward: Callable[[np.ndarray], np.ndarray] = dataclasses.field(default_factory=lambda: np.log)
    inverse: Callable[[np.ndarray], np.ndarray] = dataclasses.field(default_factory=lambda: np.exp)

    def end(self, result: "BootstrapEstimate", probability: float) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            estimate, draws = self.forward(result.params), self.forward(result.draws)
        if not np.isfinite(estimate).all():
            raise ValueError(f"the estimate {result.params} has no value on the transformed scale")
        # a replicate outside the scale's domain, such as a negative one, is as far away as can be
        undefined = np.isnan(draws) & ~np.isnan(result.draws)
        draws = np.where(
            undefined, np.where(result.draws < result.params, -STANDS_FOR_INFINITY, STANDS_FOR_INFINITY), draws
        )
        with np.errstate(over="ignore"):
            return self.inverse(
                2 * estimate - quantile(np.clip(draws, -STANDS_FOR_INFINITY, STANDS_FOR_INFINITY), 1 - probability)
            )


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
    """A private estimate of p numbers, with the replicates of its parametric bootstrap.

    A replicate is an estimate from simulated data. `Estimate` describes the attributes that all estimates have. The
    other attributes are:

    - ``draws`` (draws, p): the replicates of the estimate or, after a correction of bias, of the corrected estimate;
    - ``uncorrected`` (p,): the estimate before the correction;
    - ``formula_error`` (p,) and ``draws_error`` (draws, p): standard errors of the estimate and of each replicate,
      computed by a formula. They are None if there is no formula. Studentised intervals need them;
    - ``outside``: True if the release was outside the domain of the estimator, as in `Estimated`;
    - ``outside_draws``: the number of simulated releases outside this domain;
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
        """Covariance (p, p) of the replicates. It contains the uncertainty from sampling and from the noise."""
        finite = self.draws[np.isfinite(self.draws).all(axis=1)]
        return np.atleast_2d(np.cov(finite, rowvar=False))

    @property
    def bias(self) -> np.ndarray:
        """Estimated bias (p,): the mean of the replicates minus the estimate. It is near 0 after a correction."""
        return np.nanmean(self.draws, axis=0) - self.params

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

        `Estimate.interval` describes `level` (default: 0.95) and `side`. The default of `kind` is the attribute
        ``kind`` of this estimate. Possible kinds are:

        - ``"percentile"`` and ``"pivotal"``, as in `Percentile` and `Pivotal`;
        - ``"studentised"``, if the estimator has standard errors;
        - ``"log"``: pivotal on the logarithmic scale;
        - an `Interval`, such as ``Transformed(forward, inverse)``.

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
        return interval_kind(self.kind).end(self, probability)

    def summary(self, level: float = 0.95, kind: str | Interval | None = None) -> str:
        """Return a table of the estimates as text, with intervals. `interval` describes `level` and `kind`."""
        return Estimate.summary(self if kind is None else dataclasses.replace(self, kind=kind), level)

    @property
    def _title(self) -> str:
        corrected = ", bias corrected" if not np.array_equal(self.uncorrected, self.params) else ""
        outside = f", {self.outside_draws} outside the domain" if self.outside_draws else ""
        return f"Parametric bootstrap, {len(self.draws)} replicates{corrected}{outside}"

    def _columns(self, level: float) -> dict[str, list[str]]:
        errors = {"estimate": self.params, "std err": self.standard_error, "bias": self.bias}
        return cells(errors | self._ends(level), "10.4g")
