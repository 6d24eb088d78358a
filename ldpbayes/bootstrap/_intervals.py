"""Confidence intervals from replicates, one class a kind ([FWS] Table 1; [ET])."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

FAR = 1e300  # on a transformed scale; quantiles between two infinite numbers are none


class Interval(abc.ABC):
    """How the ends of an interval follow from replicates."""

    @abc.abstractmethod
    def end(self, result: Any, probability: float) -> np.ndarray:
        """The end below which the truth is with a probability.

        Parameters
        ----------
        result : BootstrapEstimate
            With its replicates.
        probability : float
            Between 0 and 1.

        Returns
        -------
        array (p,)
        """


def quantile(draws: np.ndarray, probability: float) -> np.ndarray:
    """The k-th of B replicates for the probability k/(B + 1), as they are exchangeable with what they replicate."""
    return np.nanquantile(draws, probability, axis=0, method="weibull")


@dataclasses.dataclass(frozen=True)
class Percentile(Interval):
    """Efron's percentile interval: quantiles of the replicates themselves."""

    def end(self, result: Any, probability: float) -> np.ndarray:
        """See `Interval.end`."""
        return quantile(result.draws, probability)


@dataclasses.dataclass(frozen=True)
class Pivotal(Interval):
    """Quantiles of estimate less truth, as those of replicate less estimate: 2τ̂ − q*(1 − probability)."""

    def end(self, result: Any, probability: float) -> np.ndarray:
        """See `Interval.end`."""
        return 2 * result.params - quantile(result.draws, 1 - probability)


@dataclasses.dataclass(frozen=True)
class Studentised(Interval):
    """The same of errors in units of their standard errors: τ̂ − ŝ·t*(1 − probability), t* = (τ* − τ̂)/ŝ*."""

    def end(self, result: Any, probability: float) -> np.ndarray:
        """See `Interval.end`."""
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
    """The pivotal interval on another scale, brought back.

    Parameters
    ----------
    forward : callable
        Increasing; of arrays (..., p).
    inverse : callable
        Its inverse.
    """

    forward: Callable[[Any], Any] = np.log
    inverse: Callable[[Any], Any] = np.exp

    def end(self, result: Any, probability: float) -> np.ndarray:
        """See `Interval.end`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            there, draws = self.forward(result.params), self.forward(result.draws)
        if not np.isfinite(there).all():
            raise ValueError(f"the estimate {result.params} has no value on the transformed scale")
        # a replicate at the edge of the scale or beyond, such as a negative one, is as far away as can be
        beyond = np.isnan(draws) & ~np.isnan(result.draws)
        draws = np.where(beyond, np.where(result.draws < result.params, -FAR, FAR), draws)
        with np.errstate(over="ignore"):
            return self.inverse(2 * there - quantile(np.clip(draws, -FAR, FAR), 1 - probability))


KINDS: dict[str, Interval] = {
    "percentile": Percentile(),
    "pivotal": Pivotal(),
    "studentised": Studentised(),
    "log": Transformed(),
}
"""Names of kinds with their defaults."""


def interval_kind(kind: Any) -> Interval:
    """An interval, or the one of a name.

    Parameters
    ----------
    kind : str or Interval
        What a user gave.

    Raises
    ------
    ValueError
        For an unknown name.
    """
    if isinstance(kind, Interval):
        return kind
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, or an Interval such as Transformed(), got {kind!r}")
    return KINDS[kind]
