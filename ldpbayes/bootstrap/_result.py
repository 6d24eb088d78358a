"""Results: an estimate with its replicates, or with a normal approximation."""

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import numpy as np
from scipy import special

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

    @property
    def covariance(self) -> np.ndarray:
        """Covariance (p, p) of the replicates, for sampling and perturbation together."""
        finite = self.draws[np.isfinite(self.draws).all(axis=1)]
        return np.atleast_2d(np.cov(finite, rowvar=False))

    @property
    def standard_error(self) -> np.ndarray:
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
            Coverage, between 0 and 1; ValueError if there are fewer replicates than it needs.
        kind : str or Interval, optional
            ``"percentile"``, ``"pivotal"``, ``"studentised"`` (where there are standard errors), ``"log"`` (pivotal on
            the logarithmic scale), or one such as ``Transformed(forward, inverse)``. By default the result's.
        side : {"both", "lower", "upper"}
            Which ends the interval has; the other end is infinite.
        """
        below, above = tail_probabilities(level, side)
        tail = min(p for p in (below, 1 - above) if p > 0)
        needed = math.ceil(1 / tail - 1e-9) - 1
        if len(self.draws) < needed:
            advice = f"give parametric_bootstrap draws={needed} or, better, ten times as many"
            count = f"at least {needed} replicates, there are {len(self.draws)}"
            raise ValueError(f"an interval of level {level:g} needs {count}; {advice}")
        chosen = interval_kind(self.kind if kind is None else kind)
        return _ends(lambda probability: chosen.end(self, probability), below, above, len(self.params))

    def summary(self, level: float = 0.95, kind: str | Interval | None = None) -> str:
        """Return a table of the estimates in plain text; level and kind as for `interval`."""
        title = f"Parametric bootstrap, {len(self.draws)} replicates"
        corrected = ", bias corrected" if not np.array_equal(self.uncorrected, self.params) else ""
        outside = f", {self.outside_draws} outside the domain" if self.outside_draws else ""
        columns = {"estimate": self.params, "std err": self.standard_error, "bias": self.bias}
        return _table(title + corrected + outside, self.names, columns, level, self.interval(level, kind))


@dataclasses.dataclass(frozen=True, eq=False)
class NormalEstimate:
    """An `Estimate` whose intervals are normal; ``title`` says whether its covariance counts the noise for privacy."""

    estimate: PyTree
    params: np.ndarray
    names: list[str]
    covariance: np.ndarray
    privacy: str
    title: str

    @property
    def standard_error(self) -> np.ndarray:
        return np.sqrt(np.diagonal(self.covariance))

    def interval(self, level: float = 0.95, *, side: str = "both") -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends (p,) of normal confidence intervals; ``side`` is "both", "lower" or "upper"."""
        error = self.standard_error
        below, above = tail_probabilities(level, side)
        return _ends(lambda p: self.params + special.ndtri(p) * error, below, above, len(error))

    def summary(self, level: float = 0.95) -> str:
        """Return a table of the estimates in plain text."""
        columns = {"estimate": self.params, "std err": self.standard_error}
        return _table(self.title, self.names, columns, level, self.interval(level))


_PROTOCOL: tuple[type[Estimate], ...] = (BootstrapEstimate, NormalEstimate)  # for the type checker


def _ends(quantile: Callable[[float], np.ndarray], below: float, above: float, size: int) -> tuple:
    """Ends with these probabilities below them; infinite for the probabilities 0 and 1."""
    low = quantile(below) if below > 0 else np.full(size, -math.inf)
    return low, quantile(above) if above < 1 else np.full(size, math.inf)


def _table(title: str, names: list[str], columns: dict[str, np.ndarray], level: float, ends: tuple) -> str:
    columns = columns | dict(zip(tails(level), ends, strict=True))
    head = " ".join(f"{name:>10}" for name in columns)
    rows = [(name, " ".join(f"{column[j]:10.4g}" for column in columns.values())) for j, name in enumerate(names)]
    return table(title, "parameter", head, rows)


def names_of(tree: PyTree) -> list[str]:
    """Names of the numbers in a pytree, in the order of its flat array: ``loc``, ``probs[2]``, ``cov[0,1]``."""
    names = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        stem = ".".join(str(getattr(part, "key", getattr(part, "name", getattr(part, "idx", part)))) for part in path)
        index = [",".join(map(str, at)) for at in np.ndindex(np.shape(leaf))]
        names += [f"{stem or 'theta'}[{at}]" for at in index] if np.shape(leaf) else [stem or "theta"]
    return names
