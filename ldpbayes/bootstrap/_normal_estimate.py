"""An estimate with normal intervals: what the baselines of the bootstrap return."""

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special

from ldpbayes.bootstrap._result import tail_probabilities
from ldpbayes.estimation import Estimate
from ldpbayes.estimation._estimate import table, tails

__all__ = ["NormalEstimate"]


@dataclasses.dataclass(frozen=True, eq=False)
class NormalEstimate:
    """An estimate whose intervals rest on a normal approximation; an `Estimate`.

    Attributes
    ----------
    estimate : pytree
        In the form in which the estimator has it.
    params : array (p,)
        The same, flat.
    names : list of str
        Of the p numbers.
    covariance : array (p, p)
        What the intervals rest on; whether the noise for privacy counts in it, ``title`` says.
    privacy : str
        What was promised to those whose records were read.
    title : str
        How it was made.
    """

    estimate: Any
    params: np.ndarray
    names: list[str]
    covariance: np.ndarray
    privacy: str
    title: str

    @property
    def standard_error(self) -> np.ndarray:
        """Standard errors (p,)."""
        return np.sqrt(np.diagonal(self.covariance))

    def interval(self, level: float = 0.95, *, side: str = "both") -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends (p,) of normal confidence intervals; infinite where an interval has one end.

        Parameters
        ----------
        level : float
            Coverage, between 0 and 1.
        side : {"both", "lower", "upper"}
            Two-sided, or the one end that it has.

        Raises
        ------
        ValueError
            For another level or side.
        """
        below, above = tail_probabilities(level, side)
        size, error = len(self.params), self.standard_error
        low = self.params + special.ndtri(below) * error if below > 0 else np.full(size, -math.inf)
        high = self.params + special.ndtri(above) * error if above < 1 else np.full(size, math.inf)
        return low, high

    def summary(self, level: float = 0.95) -> str:
        """Return a table of the estimates in plain text.

        Parameters
        ----------
        level : float
            Coverage of the intervals, between 0 and 1.
        """
        lower, upper = tails(level)
        head = f"{'estimate':>10} {'std err':>10} {lower:>10} {upper:>10}"
        columns = [self.params, self.standard_error, *self.interval(level)]
        rows = [(name, " ".join(f"{column[j]:10.4g}" for column in columns)) for j, name in enumerate(self.names)]
        return table(self.title, "parameter", head, rows)


_PROTOCOL: type[Estimate] = NormalEstimate  # for the type checker
