"""The result of a bootstrap: the estimate, its replicates, and intervals."""

import dataclasses
import math
from typing import TYPE_CHECKING

import jax
import numpy as np

from ldpbayes._core.checks import LdpBayesWarning
from ldpbayes._core.types import PyTree
from ldpbayes.bootstrap._intervals import Interval, interval_kind, tail_probabilities
from ldpbayes.estimation import Estimate
from ldpbayes.estimation.estimates import table, tails

if TYPE_CHECKING:
    import xarray


class BootstrapWarning(LdpBayesWarning):
    """Replicates or an estimate that should not be used as they are; the message says why."""


@dataclasses.dataclass(frozen=True, eq=False)
class BootstrapEstimate:
    """A private estimate with its parametric bootstrap; an `Estimate`.

    Attributes
    ----------
    estimate : pytree
        The reported parameters, in the estimator's form.
    params : array (p,)
        The estimate as a flat array.
    names : list of str
        Names of the p numbers.
    draws : array (draws, p)
        Replicates of the estimate; after a bias correction, those of the corrected estimate.
    formula_error : array (p,) or None
        Standard errors by the estimator's own formula, for studentised intervals.
    draws_error : array (draws, p) or None
        Standard errors of each replicate by this formula.
    outside : bool
        Whether the release was outside the domain of the estimator.
    outside_draws : int
        Number of replicates outside the domain.
    uncorrected : array (p,)
        The estimate before any bias correction.
    kind : str or Interval
        Default kind of the intervals.
    privacy : str
        Statement of the guarantee for those whose records were read.
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
            Coverage, between 0 and 1.
        kind : str or Interval, optional
            ``"percentile"``, ``"pivotal"``, ``"studentised"``, ``"log"`` (pivotal on the logarithmic scale), or one of
            `ldpbayes.bootstrap` such as ``Transformed(forward, inverse)``. By default the result's.
        side : {"both", "lower", "upper"}
            Which ends the interval has; the other end is infinite.

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
        interval = interval_kind(self.kind if kind is None else kind)
        size = len(self.params)
        low = interval.end(self, below) if below > 0 else np.full(size, -math.inf)
        high = interval.end(self, above) if above < 1 else np.full(size, math.inf)
        return low, high

    def summary(self, level: float = 0.95, kind: str | Interval | None = None) -> str:
        """Return a table of the estimates in plain text; level and kind as for `interval`."""
        lower, upper = tails(level)
        head = f"{'estimate':>10} {'std err':>10} {'bias':>10} {lower:>10} {upper:>10}"
        columns = [self.params, self.standard_error, self.bias, *self.interval(level, kind)]
        rows = [(name, " ".join(f"{column[j]:10.4g}" for column in columns)) for j, name in enumerate(self.names)]
        title = f"Parametric bootstrap, {len(self.draws)} replicates"
        corrected = ", bias corrected" if not np.array_equal(self.uncorrected, self.params) else ""
        outside = f", {self.outside_draws} outside the domain" if self.outside_draws else ""
        return table(title + corrected + outside, "parameter", head, rows)


_PROTOCOL: type[Estimate] = BootstrapEstimate  # for the type checker


def names_of(tree: PyTree) -> list[str]:
    """Names of the numbers in a pytree, in the order of its flat array: ``loc``, ``probs[2]``, ``cov[0,1]``."""
    names = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        stem = ".".join(str(getattr(part, "key", getattr(part, "name", getattr(part, "idx", part)))) for part in path)
        index = [",".join(map(str, at)) for at in np.ndindex(np.shape(leaf))]
        names += [stem or "theta"] if not np.shape(leaf) else [f"{stem or 'theta'}[{at}]" for at in index]
    return names
