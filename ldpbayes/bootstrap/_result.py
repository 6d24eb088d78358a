"""What a bootstrap returns: the estimate, its replicates, and what follows from them."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ldpbayes._core.checks import LdpBayesWarning, checked
from ldpbayes.bootstrap._intervals import interval_kind
from ldpbayes.estimation import Estimate
from ldpbayes.estimation.estimates import table, tails

if TYPE_CHECKING:
    import xarray


SIDES = ("both", "lower", "upper")


class BootstrapWarning(LdpBayesWarning):
    """Replicates or an estimate that should not be used as they are; the message says why."""


def tail_probabilities(level: float, side: str) -> tuple[float, float]:
    """Probabilities below the ends of an interval; 0 or 1 for an end that it has not.

    Parameters
    ----------
    level : float
        Coverage, between 0 and 1.
    side : {"both", "lower", "upper"}
        Two-sided, or the one end that it has.
    """
    level = checked("level", level, "between 0 and 1", lambda a: (a.ndim == 0) & (a > 0) & (a < 1))
    if side not in SIDES:
        raise ValueError(f"side must be one of {', '.join(SIDES)}, got {side!r}")
    return {"both": ((1 - level) / 2, (1 + level) / 2), "lower": (1 - level, 1.0), "upper": (0.0, level)}[side]


@dataclasses.dataclass(frozen=True, eq=False)
class BootstrapEstimate:
    """A private estimate with its parametric bootstrap; an `Estimate`.

    Attributes
    ----------
    estimate : pytree
        What is reported, in the form in which the estimator has it.
    params : array (p,)
        The same, flat.
    names : list of str
        Of the p numbers.
    draws : array (draws, p)
        Replicates of the estimate; where its bias was corrected, of the corrected one.
    formula_error : array (p,) or None
        Standard errors by the estimator's own formula, for studentised intervals.
    draws_error : array (draws, p) or None
        The same of each replicate.
    outside : bool
        Whether the release itself was outside the domain of the estimator.
    outside_draws : int
        How many replicates were.
    uncorrected : array (p,)
        The estimate before its bias was corrected; else the same.
    kind : str or Interval
        Of the intervals, unless another is asked for.
    privacy : str
        What was promised to those whose records were read.
    """

    estimate: Any
    params: np.ndarray
    names: list[str]
    draws: np.ndarray
    formula_error: np.ndarray | None
    draws_error: np.ndarray | None
    outside: bool
    outside_draws: int
    uncorrected: np.ndarray
    kind: Any
    privacy: str

    @property
    def covariance(self) -> np.ndarray:
        """Covariance (p, p) of the replicates, for sampling and perturbation together."""
        finite = self.draws[np.isfinite(self.draws).all(axis=1)]
        return np.atleast_2d(np.cov(finite, rowvar=False))

    @property
    def standard_error(self) -> np.ndarray:
        """Standard errors (p,): standard deviations of the replicates."""
        return np.sqrt(np.diagonal(self.covariance))

    @property
    def bias(self) -> np.ndarray:
        """Estimated bias (p,): mean of the replicates less the estimate; removed already where one was corrected."""
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

    def interval(self, level: float = 0.95, kind: Any = None, *, side: str = "both") -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends (p,) of confidence intervals; infinite where an interval has one end.

        Parameters
        ----------
        level : float
            Coverage, between 0 and 1.
        kind : str or Interval, optional
            ``"percentile"``, ``"pivotal"``, ``"studentised"``, ``"log"`` (pivotal on the logarithmic scale), or one of
            `ldpbayes.bootstrap` such as ``Transformed(forward, inverse)``. By default the result's.
        side : {"both", "lower", "upper"}
            Two-sided, or the one end that it has.

        Raises
        ------
        ValueError
            For another level, kind or side; if there are fewer replicates than the quantile needs; or for a studentised
            interval without standard errors.
        """
        below, above = tail_probabilities(level, side)
        tail = min(p for p in (below, 1 - above) if p > 0)
        needed = math.ceil(1 / tail - 1e-9) - 1
        if len(self.draws) < needed:
            raise ValueError(
                f"an interval of level {level:g} needs at least {needed} replicates, there are {len(self.draws)}; give "
                f"parametric_bootstrap draws={needed} or, better, ten times as many"
            )
        chosen = interval_kind(self.kind if kind is None else kind)
        size = len(self.params)
        low = chosen.end(self, below) if below > 0 else np.full(size, -math.inf)
        high = chosen.end(self, above) if above < 1 else np.full(size, math.inf)
        return low, high

    def summary(self, level: float = 0.95, kind: Any = None) -> str:
        """Return a table of the estimates in plain text.

        Parameters
        ----------
        level : float
            Coverage of the intervals, between 0 and 1.
        kind : str or Interval, optional
            As for `interval`.
        """
        lower, upper = tails(level)
        head = f"{'estimate':>10} {'std err':>10} {'bias':>10} {lower:>10} {upper:>10}"
        columns = [self.params, self.standard_error, self.bias, *self.interval(level, kind)]
        rows = [(name, " ".join(f"{column[j]:10.4g}" for column in columns)) for j, name in enumerate(self.names)]
        title = f"Parametric bootstrap, {len(self.draws)} replicates"
        corrected = ", bias corrected" if not np.array_equal(self.uncorrected, self.params) else ""
        beyond = f", {self.outside_draws} outside the domain" if self.outside_draws else ""
        return table(title + corrected + beyond, "parameter", head, rows)


_PROTOCOL: type[Estimate] = BootstrapEstimate  # for the type checker
