"""Confidence intervals from replicates, one class a kind ([FWS] Table 1; [ET])."""

import abc
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ldpbayes.bootstrap._result import BootstrapEstimate

FAR = 1e300  # stands for infinity on a transformed scale: a quantile between two infinite numbers would be NaN


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
            raise ValueError(
                "a studentised interval needs standard errors by a formula, which this estimator has not; take "
                "kind='pivotal' or 'percentile'"
            )
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
