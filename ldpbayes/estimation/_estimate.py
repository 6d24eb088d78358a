"""What every estimate has, whatever made it."""

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from ldpbayes._checks import checked
from ldpbayes.estimation._sandwich import normal_interval

__all__ = ["Contrast", "Estimate", "Shown", "contrast", "in_line", "table", "tails", "variances_under"]

FEW = 6  # so many parameters are shown by name, or by number


@runtime_checkable
class Estimate(Protocol):
    """A point estimate with its errors, and the privacy of what it was made from."""

    @property
    def estimate(self) -> Any:
        """The estimate, in the form in which it was asked for."""
        ...

    @property
    def params(self) -> np.ndarray:
        """The same as a flat array (p,)."""
        ...

    @property
    def names(self) -> list[str]:
        """What the p numbers are called."""
        ...

    @property
    def covariance(self) -> np.ndarray | None:
        """Covariance (p, p), for sampling and perturbation together; None where no theory gives it."""
        ...

    @property
    def standard_error(self) -> np.ndarray | None:
        """Standard errors (p,); None where no theory gives them."""
        ...

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends (p,) of confidence intervals.

        Parameters
        ----------
        level : float
            Coverage, between 0 and 1.
        """
        ...

    def summary(self, level: float = 0.95) -> str:
        """Return a table of the estimates in plain text.

        Parameters
        ----------
        level : float
            Coverage of the intervals, between 0 and 1.
        """
        ...

    @property
    def privacy(self) -> str:
        """What was promised to those whose records it was made from; of several releases, and all together."""
        ...


class Contrast(NamedTuple):
    """A weighted sum of estimates: a number each, or for several sums an array (m,) each.

    Attributes
    ----------
    estimate : float or array (m,)
        The sum.
    standard_error : float or array (m,)
        For sampling and perturbation together.
    interval : tuple of two floats or arrays (m,)
        Lower and upper end of a normal confidence interval.
    """

    estimate: Any
    standard_error: Any
    interval: tuple[Any, Any]


def variances_under(covariance: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Variances (m,) of weighted sums of estimates.

    Parameters
    ----------
    covariance : array (p, p)
        Of the estimates; NaN for those that have none, of which sums without them take no notice.
    weights : array (m, p)
        Of the sums.
    """
    known = np.where(np.isnan(covariance), 0.0, covariance)
    unknown = (weights != 0) @ np.isnan(np.diagonal(covariance))
    return np.where(unknown, np.nan, np.sum(weights @ known * weights, axis=1))


def contrast(
    params: np.ndarray,
    variances: Callable[[np.ndarray], np.ndarray],
    weights: ArrayLike | Mapping[Any, float],
    level: float,
    names: Sequence[str],
) -> Contrast:
    """Weighted sums of estimates that vary together.

    Parameters
    ----------
    params : array (p,)
        The estimates.
    variances : callable
        From weights (m, p) to the variances (m,) of the sums.
    weights : array_like (p,) or (m, p), or mapping
        Of one sum, or of several; truth values count as ones and zeros. Or of one sum by name: others have weight 0.
    level : float
        Coverage of the interval, between 0 and 1.
    names : sequence of str
        Of the estimates.

    Raises
    ------
    ValueError
        For weights of another shape, of names that there are not, or that are not finite, and for another level.
    """
    p = len(params)
    if isinstance(weights, Mapping):
        weights = _by_position(weights, names)
    given = np.multiply(weights, 1.0) if getattr(weights, "dtype", None) == np.bool_ else weights
    rows = checked("weights", given, f"finite, {p} of them or rows of {p}", np.isfinite)
    if np.ndim(rows) not in (1, 2) or np.shape(rows)[-1] != p:
        wanted = f"weights must be {p} numbers or rows of {p}"
        raise ValueError(f"{wanted}, got shape {np.shape(rows)}; the names are {_listed(names)}")
    total, error = np.atleast_2d(rows) @ params, np.sqrt(np.maximum(variances(np.atleast_2d(rows)), 0.0))
    low, high = normal_interval(total, error, level)
    if rows.ndim > 1:
        return Contrast(total, error, (low, high))
    return Contrast(float(total[0]), float(error[0]), (float(low[0]), float(high[0])))


def _by_position(weights: Mapping[Any, float], names: Sequence[str]) -> list[float]:
    """Weights in the order of the names; a code of a category is as good as its name."""
    given = {str(name): weight for name, weight in weights.items()}
    unknown = [name for name in given if name not in names]
    if unknown:
        raise ValueError(f"weights has no estimates {', '.join(map(repr, unknown))}; the names are {_listed(names)}")
    return [given.get(name, 0.0) for name in names]


def _listed(names: Sequence[str]) -> str:
    """Names in a line, of many the first and the last."""
    return ", ".join(names if len(names) <= 2 * FEW else [*names[:FEW], "...", names[-1]])


def in_line(head: str, names: Sequence[str], params: np.ndarray, errors: np.ndarray | None) -> str:
    """Estimates and their standard errors in a line, of many the first ones.

    Parameters
    ----------
    head : str
        What comes before them.
    names : sequence of str
        Of the estimates.
    params : array (p,)
        The estimates.
    errors : array (p,) or None
        NaN for those that have none.
    """
    shown = [f"{name} {value:.4g}" for name, value in zip(names[:FEW], params, strict=False)]
    if errors is not None:
        known = zip(shown, errors, strict=False)
        shown = [text if np.isnan(error) else f"{text} ± {error:.3g}" for text, error in known]
    more = [f"{len(params) - FEW:,} more in summary()"] if len(params) > FEW else []
    return f"{head}: {', '.join(shown + more)}"


class Shown:
    """An estimate that shows its summary in notebooks."""

    def summary(self, level: float = 0.95) -> str:
        """See `Estimate.summary`."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """Return the summary, which notebooks show."""
        return f"<pre>{html.escape(self.summary())}</pre>"


def table(title: str, first: str, head: str, rows: Sequence[tuple[str, str]]) -> str:
    """A table in plain text, like those of statsmodels.

    Parameters
    ----------
    title : str
        The line above it.
    first : str
        What is named; the column of names is at least as wide.
    head : str
        The head of the numbers.
    rows : sequence of (str, str)
        Name and numbers of each row.
    """
    width = max(len(first), *(len(name) for name, _ in rows))
    head = f"{'':{width}} {head}"
    body = [f"{name:{width}} {numbers}" for name, numbers in rows]
    return "\n".join([title, "=" * len(head), head, "-" * len(head), *body, "=" * len(head)])


def tails(level: float) -> tuple[str, str]:
    """Heads of the columns with an interval's ends: the probabilities below them.

    Parameters
    ----------
    level : float
        Coverage, between 0 and 1.
    """
    return f"[{(1 - level) / 2:.3g}", f"{(1 + level) / 2:.3g}]"
