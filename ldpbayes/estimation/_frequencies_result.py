"""What an estimation of frequencies returns."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from ldpbayes.estimation._estimate import Contrast, Estimate, Shown, contrast, in_line, table, tails, variances_under
from ldpbayes.estimation._products import MOST
from ldpbayes.estimation._sandwich import normal_interval, normal_quantile
from ldpbayes.mechanisms import PureProtocol
from ldpbayes.mechanisms._statements import statements

__all__ = ["Dense", "Frequencies", "Joint", "LinearVariance"]

SHOWN = 40  # categories of a summary
_NO_ERRORS = "this {!r} estimate has no standard errors; use method='unbiased'"


@dataclasses.dataclass(frozen=True)
class LinearVariance:
    """Variance of the linear estimate of a frequency θ: θ own + (1 − θ) other + θ (1 − θ) sampling.

    The first two are the perturbation of records that have the category and of those that have not.
    """

    own: float
    other: float
    sampling: float

    def __call__(self, theta: Any) -> Any:
        """The variance at a frequency, or at each of an array."""
        return theta * self.own + (1 - theta) * self.other + theta * (1 - theta) * self.sampling

    def interval(self, estimate: np.ndarray, quantile: float) -> tuple[np.ndarray, np.ndarray]:
        """All frequencies from which an estimate is at most so many of *their* standard deviations away.

        Below 0 and above 1 the variance is continued as a constant, so that every estimate has an interval.

        Parameters
        ----------
        estimate : array (categories,)
            The linear estimate.
        quantile : float
            How many.
        """
        square = quantile**2
        lead = 1 + square * self.sampling
        middle = estimate + square * (self.own - self.other + self.sampling) / 2
        root = np.sqrt(np.maximum(middle**2 - lead * (estimate**2 - square * self.other), 0.0))
        absent, sure = (quantile * np.sqrt(self(theta)) for theta in (0.0, 1.0))
        low, high = (middle - root) / lead, (middle + root) / lead
        low = np.where(estimate < absent, estimate - absent, np.where(estimate > 1 + sure, estimate - sure, low))
        high = np.where(estimate > 1 - sure, estimate + sure, np.where(estimate < -absent, estimate + absent, high))
        return low, high


class Joint(Protocol):
    """How the estimates of all categories vary together."""

    def covariance(self) -> np.ndarray:
        """The matrix (categories, categories)."""
        ...

    def variances(self, weights: np.ndarray) -> np.ndarray:
        """Variances (m,) of weighted sums.

        Parameters
        ----------
        weights : array (m, categories)
            Of the sums.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Dense:
    """A covariance that is a matrix already; NaN for categories that have none."""

    matrix: np.ndarray

    def covariance(self) -> np.ndarray:
        """See `Joint.covariance`."""
        return self.matrix

    def variances(self, weights: np.ndarray) -> np.ndarray:
        """See `Joint.variances`."""
        return variances_under(self.matrix, weights)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Frequencies(Shown):
    """Estimated frequencies of the categories, as probabilities of the population; an `Estimate`.

    Attributes
    ----------
    method : str
        Name of the method.
    estimate : array (categories,)
        The frequencies.
    standard_error : array (categories,) or None
        None where no theory gives it: after thresholding or projecting, and for ``mle`` with more than 4096 categories.
    converged : bool
        Whether ``mle`` came within its tolerance; the other methods are exact.
    iterations : int
        Of ``mle``.
    gap : float or None
        Upper bound on what the log-likelihood still lacks of its maximum, in nats, for ``mle``.
    """

    method: str
    estimate: np.ndarray
    standard_error: np.ndarray | None = None
    converged: bool = True
    iterations: int = 0
    gap: float | None = None
    _joint: Joint | None = None
    _variance: LinearVariance | None = None
    _mechanisms: tuple[PureProtocol, ...] = ()

    def __repr__(self) -> str:
        """Return a line; `summary` has a table."""
        done = "" if self.converged else ", NOT CONVERGED"
        head = f"{self.method}, {len(self.estimate):,} categories{done}"
        named = [f"{name}:" for name in self.names]
        return f"{type(self).__name__}({in_line(head, named, self.estimate, self.standard_error)})"

    @property
    def params(self) -> np.ndarray:
        """The estimate; see `Estimate.params`."""
        return self.estimate

    @property
    def names(self) -> list[str]:
        """The codes of the categories; see `Estimate.names`."""
        return [str(code) for code in range(len(self.estimate))]

    @cached_property
    def covariance(self) -> np.ndarray | None:
        """Covariance (categories, categories) of ``unbiased`` and ``mle``.

        None for other methods, and for more than 4096 categories. That of ``unbiased`` is made of the released values
        when it is asked for: the products of records' terms say how estimates vary together under any protocol. With
        one budget its diagonal has the squares of the standard errors, but for estimates below 0 or above 1, where
        these are those of 0 and 1. With several budgets they differ by sampling error, of which it has more.
        """
        return None if self._joint is None or len(self.estimate) > MOST else self._joint.covariance()

    @property
    def privacy(self) -> str:
        """What the mechanisms of the releases promise; see `Estimate.privacy`."""
        return statements(self._mechanisms)

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Confidence intervals, category by category; they may reach beyond [0, 1].

        Those of ``unbiased`` are score intervals ([Wilson]): the frequencies under which the estimate would be no
        further off than so many standard deviations. They hold where few records tell of a category, as with infinite
        budgets and many categories; then the standard error, at the estimate itself, does not. Those of ``mle`` are
        normal, and NaN with the errors.

        Parameters
        ----------
        level : float
            Coverage, between 0 and 1.

        Returns
        -------
        low, high : array (categories,)

        Raises
        ------
        ValueError
            If the estimate has no standard errors, or for a level outside (0, 1).
        """
        if self.standard_error is None:
            raise ValueError(_NO_ERRORS.format(self.method))
        if self._variance is not None:
            return self._variance.interval(self.estimate, normal_quantile(level))
        return normal_interval(self.estimate, self.standard_error, level)

    def contrast(self, weights: ArrayLike | Mapping[Any, float], level: float = 0.95) -> Contrast:
        """Estimate, standard error and interval of Σ w_k θ_k: of a sum of shares, say, or of a difference.

        Errors of several categories go together, so that the error of a sum does not follow from theirs.

        Parameters
        ----------
        weights : array_like (categories,) or (m, categories), or dict
            Of one sum, or of m. The share of some categories has ones for these and zeros for the others. A dict has
            the weights of one sum by code, as ``{0: 1, 3: -1}``; others have weight 0.
        level : float
            Coverage of the interval, between 0 and 1.

        Returns
        -------
        Contrast
            The interval is normal, and too short where hardly any record supports a category of the sum; for a single
            category `interval` then has a better one. NaN for the error of an ``mle`` sum with a category that has
            none, being estimated as 0.

        Raises
        ------
        ValueError
            If the estimate has no standard errors, for weights of another shape, of codes that there are not or that
            are not finite, and for another level.
        """
        if self._joint is None:
            raise ValueError(_NO_ERRORS.format(self.method))
        return contrast(self.estimate, self._joint.variances, weights, level, self.names)

    def summary(self, level: float = 0.95) -> str:
        """Return a table of the frequencies in plain text; of many categories the most frequent ones.

        Parameters
        ----------
        level : float
            Coverage of the intervals, between 0 and 1.
        """
        shown = np.sort(np.argsort(-self.estimate, kind="stable")[:SHOWN])
        head, columns = f"{'frequency':>10}", [self.estimate]
        if self.standard_error is not None:
            lower, upper = tails(level)
            head += f" {'std err':>10} {lower:>10} {upper:>10}"
            columns += [self.standard_error, *self.interval(level)]
        rows = [(str(k), " ".join(f"{column[k]:10.4f}" for column in columns)) for k in shown]
        title = f"Frequencies, method {self.method!r}, {len(self.estimate)} categories"
        title += f", the {SHOWN} most frequent" if len(self.estimate) > SHOWN else ""
        return table(title + ("" if self.converged else ", NOT CONVERGED"), "category", head, rows)


_PROTOCOL: type[Estimate] = Frequencies  # for the type checker
