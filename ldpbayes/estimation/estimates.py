"""The protocol of estimates: errors, intervals, contrasts, tables."""

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ldpbayes._core.checks import checked


def normal_quantile(level: float) -> float:
    """Half the width, in standard errors, of a normal confidence interval.

    Parameters
    ----------
    level : float
        Coverage, between 0 and 1.

    Raises
    ------
    ValueError
        For another level.
    """
    level = checked("level", level, "between 0 and 1", lambda a: (a > 0) & (a < 1))
    return -special.ndtri((1 - level) / 2)


def normal_interval(estimate: Any, error: Any, level: float) -> tuple[Any, Any]:
    """Lower and upper ends of normal confidence intervals, NaN where the error is.

    Parameters
    ----------
    estimate, error : array
        Estimates and their standard errors.
    level : float
        See `normal_quantile`.
    """
    margin = normal_quantile(level) * error
    return estimate - margin, estimate + margin


def sandwich(curvature: Any, scores: Any, free: Any, *, spent: int) -> Any:
    """Covariance of an M-estimate ([Huber67]; [LCQ] Theorem 5.3).

    Parameters
    ----------
    curvature : array (p, p)
        Derivative of the mean score: the Hessian of the criterion, or of a smooth version of it.
    scores : array (N, p)
        Gradient of each record's term, at the estimate.
    free : array (p,) of bool
        Parameters that are not held by the boundary; the others have no standard error.
    spent : int
        Degrees of freedom to be subtracted from N: p, or more where scores were combined.

    Returns
    -------
    array (p, p)
        NaN in the rows and columns of parameters that are not free.
    """
    count, p = scores.shape
    centred = scores - jnp.mean(scores, axis=0)
    spread = centred.T @ centred / (count - spent)
    both = free[:, None] & free
    inverse = jnp.linalg.inv(jnp.where(both, curvature, jnp.eye(p)))
    spread = jnp.where(both, spread, 0.0)
    return jnp.where(both, inverse @ spread @ inverse.T / count, jnp.nan)


def project_out(scores: Any, nuisance: Any) -> Any:
    """Coefficients Γ (q, p) of the least-squares projection of scores on functions that have mean zero.

    scores − nuisance @ Γ has the same mean and the least variance. Directions in which the functions do not vary, such
    as those of a function that is given twice, are left out.

    Parameters
    ----------
    scores : array (N, p)
        What is projected.
    nuisance : array (N, q)
        The functions.
    """
    centred = nuisance - jnp.mean(nuisance, axis=0)
    size = jnp.sqrt(jnp.mean(centred**2, axis=0))
    safe = jnp.where(size > 0, size, 1.0)
    unit = centred / safe
    values, vectors = jnp.linalg.eigh(unit.T @ unit / len(unit))
    keep = values > 1e-8 * jnp.max(values)
    inverse = jnp.where(keep, 1 / jnp.where(keep, values, 1.0), 0.0)
    covariance = unit.T @ (scores - jnp.mean(scores, axis=0)) / len(unit)
    return (vectors @ (inverse[:, None] * (vectors.T @ covariance))) / safe[:, None]


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
