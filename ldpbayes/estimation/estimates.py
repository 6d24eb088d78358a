"""The protocol of estimates: errors, intervals, contrasts, tables."""

import html
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ldpbayes._core.checks import checked
from ldpbayes._core.types import Array, PyTree

FEW = 6  # parameters that a line shows; the others are counted


@runtime_checkable
class Estimate(Protocol):
    """A point estimate of p parameters with its errors, and the privacy of the releases behind it.

    `estimate` has the form of the start or of the model's parameters; `params` (p,) is the estimate as a flat array,
    and `names` are those of its p numbers. `covariance` (p, p) and `standard_error` (p,) are for sampling and
    perturbation together; None where no theory gives them. `privacy` says what each release promised, and what several
    releases promise together.
    """

    @property
    def estimate(self) -> PyTree: ...

    @property
    def params(self) -> np.ndarray: ...

    @property
    def names(self) -> list[str]: ...

    @property
    def covariance(self) -> np.ndarray | None: ...

    @property
    def standard_error(self) -> np.ndarray | None: ...

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends (p,) of confidence intervals with coverage `level`, between 0 and 1."""
        ...

    def summary(self, level: float = 0.95) -> str:
        """Return a table of the estimates with intervals of coverage `level`, in plain text."""
        ...

    @property
    def privacy(self) -> str: ...


class NotebookSummary:
    """An estimate that shows its summary in notebooks."""

    def summary(self, level: float = 0.95) -> str:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.summary())}</pre>"


def normal_quantile(level: float) -> float:
    """Half the width, in standard errors, of a normal confidence interval."""
    level = checked("level", level, "between 0 and 1", lambda a: (a > 0) & (a < 1))
    return -special.ndtri((1 - level) / 2)


def normal_interval(estimate: Array, error: Array, level: float) -> tuple[Array, Array]:
    """Lower and upper ends of normal confidence intervals; NaN where the error is NaN."""
    margin = normal_quantile(level) * error
    return estimate - margin, estimate + margin


class Contrast(NamedTuple):
    """A weighted sum of estimates with its standard error and normal interval; for m sums, arrays (m,)."""

    estimate: Array
    standard_error: Array
    interval: tuple[Array, Array]


def variances_under(covariance: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Variances (m,) of sums with weights (m, p); NaN for sums with an estimate whose variance is NaN."""
    known = np.where(np.isnan(covariance), 0.0, covariance)
    unknown = (weights != 0) @ np.isnan(np.diagonal(covariance))
    return np.where(unknown, np.nan, np.sum(weights @ known * weights, axis=1))


def weighted_sums(
    params: np.ndarray,
    variances: Callable[[np.ndarray], np.ndarray],
    weights: ArrayLike | Mapping[object, float],
    level: float,
    names: Sequence[str],
) -> Contrast:
    """Weighted sums of p estimates: weights (p,), (m, p) or by name; `variances` maps (m, p) to those of the sums."""
    p = len(params)
    if isinstance(weights, Mapping):
        weights = _by_position(weights, names)
    numbers = np.multiply(weights, 1.0) if getattr(weights, "dtype", None) == np.bool_ else weights
    rows = checked("weights", numbers, f"finite, {p} of them or rows of {p}", np.isfinite)
    if np.ndim(rows) not in (1, 2) or np.shape(rows)[-1] != p:
        wanted = f"weights must be {p} numbers or rows of {p}"
        raise ValueError(f"{wanted}, got shape {np.shape(rows)}; the names are {_abbreviated(names)}")
    total, error = np.atleast_2d(rows) @ params, np.sqrt(np.maximum(variances(np.atleast_2d(rows)), 0.0))
    low, high = normal_interval(total, error, level)
    if rows.ndim > 1:
        return Contrast(total, error, (low, high))
    return Contrast(float(total[0]), float(error[0]), (float(low[0]), float(high[0])))


def _by_position(weights: Mapping[object, float], names: Sequence[str]) -> list[float]:
    """Weights in the order of the names; a category's code stands for its name."""
    by_name = {str(name): weight for name, weight in weights.items()}
    unknown = [name for name in by_name if name not in names]
    if unknown:
        message = f"weights has no estimates {', '.join(map(repr, unknown))}"
        raise ValueError(f"{message}; the names are {_abbreviated(names)}")
    return [by_name.get(name, 0.0) for name in names]


def _abbreviated(names: Sequence[str]) -> str:
    """Names in a line; of many names the first ones and the last one."""
    return ", ".join(names if len(names) <= 2 * FEW else [*names[:FEW], "...", names[-1]])


def estimates_line(head: str, names: Sequence[str], params: np.ndarray, errors: np.ndarray | None) -> str:
    """A head, estimates and their standard errors (NaN if unknown) in a line; of many estimates the first ones."""
    parts = [f"{name} {value:.4g}" for name, value in zip(names[:FEW], params, strict=False)]
    if errors is not None:
        pairs = zip(parts, errors, strict=False)
        parts = [text if np.isnan(error) else f"{text} ± {error:.3g}" for text, error in pairs]
    more = [f"{len(params) - FEW:,} more in summary()"] if len(params) > FEW else []
    return f"{head}: {', '.join(parts + more)}"


def table(title: str, first: str, head: str, rows: Sequence[tuple[str, str]]) -> str:
    """A table in plain text, like those of statsmodels: rows of a name and numbers.

    `first` says what is named, and the column of names is at least as wide; `head` is above the numbers.
    """
    width = max(len(first), *(len(name) for name, _ in rows))
    head = f"{'':{width}} {head}"
    body = [f"{name:{width}} {numbers}" for name, numbers in rows]
    return "\n".join([title, "=" * len(head), head, "-" * len(head), *body, "=" * len(head)])


def tails(level: float) -> tuple[str, str]:
    """Heads of the columns of an interval's ends: the probabilities below them."""
    return f"[{(1 - level) / 2:.3g}", f"{(1 + level) / 2:.3g}]"


def coefficient_rows(estimate: Estimate, level: float) -> tuple[str, list[tuple[str, str]]]:
    """Head and rows of a `table` of coefficients with errors, tests of 0 and intervals."""
    lower, upper = tails(level)
    head, rows = f"{'coef':>10} {'std err':>10} {'z':>8} {'P>|z|':>7} {lower:>10} {upper:>10}", []
    columns = (estimate.names, estimate.params, np.asarray(estimate.standard_error), *estimate.interval(level))
    for name, coef, error, low, high in zip(*columns, strict=True):
        z = coef / error
        p = 2 * special.ndtr(-abs(z))
        rows.append((name, f"{coef:10.4f} {error:10.4f} {z:8.3f} {p:7.3f} {low:10.4f} {high:10.4f}"))
    return head, rows
