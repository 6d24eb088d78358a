"""What all estimates share: errors, intervals, contrasts and tables."""

import dataclasses
import html
import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ldpbayes._core.checks import ONE_INSIDE_0_1, LdpBayesWarning, checked
from ldpbayes._core.types import Array, PyTree

NUMBERS_IN_A_LINE = 6  # parameters that a line shows; the others are counted
LEAST_NAME_WIDTH = 9  # least width of the column of names in a table


class EstimationWarning(LdpBayesWarning):
    """Warning that an estimate may be wrong, for example because a search has not converged."""


class Contrast(NamedTuple):
    """A weighted sum of estimates, its standard error and normal confidence interval; arrays (m,) for m sums."""

    estimate: Array
    standard_error: Array
    interval: tuple[Array, Array]


class Estimate:
    """Base class of results: a point estimate of p parameters, with standard errors and a privacy statement.

    The attributes are:

    - `estimate`: the estimated parameters, in the form that the function or the model uses, such as an array or a dict;
    - `params` (p,) and `names`: the estimated parameters as numbers, and their names;
    - `covariance` (p, p) and `standard_error` (p,): the uncertainty from sampling and from the noise. None if the
      method has no formula for the uncertainty;
    - `privacy`: the guarantee of each release, and of all releases together, in words.
    """

    of_sampled_shares: ClassVar[bool] = False  # whether true values sum to 1, with a covariance that records estimate

    if TYPE_CHECKING:  # fields or properties of a subclass

        @property
        def estimate(self) -> PyTree: ...
        @property
        def params(self) -> np.ndarray: ...
        @property
        def names(self) -> list[str]: ...
        @property
        def covariance(self) -> Array: ...
        @property
        def privacy(self) -> str: ...
        @property
        def _title(self) -> str: ...

    @property
    def standard_error(self) -> Array:
        return np.sqrt(np.diagonal(self.covariance))

    def _quantile(self, probability: float) -> np.ndarray:
        """The numbers (p,) below which the true parameters are with a probability in (0, 1); here of normal laws."""
        return self.params + special.ndtri(probability) * self.standard_error

    def _variances(self, weights: np.ndarray) -> np.ndarray:
        """Variances (m,) of sums with weights (m, p); NaN for sums with an estimate whose variance is NaN."""
        finite = np.where(np.isnan(self.covariance), 0.0, self.covariance)
        unknown = (weights != 0) @ np.isnan(np.diagonal(self.covariance))
        return np.where(unknown, np.nan, np.sum(weights @ finite * weights, axis=1))

    def interval(self, level: float = 0.95, *, side: str = "both") -> tuple[np.ndarray, np.ndarray]:
        """Return the lower ends (p,) and the upper ends (p,) of the confidence intervals of the parameters.

        `level` is the coverage, strictly between 0 and 1. Default: 0.95. `side` is "both" (default), or for one-sided
        intervals "lower" (upper end ∞) or "upper" (lower end −∞). Ends are NaN where the standard error is NaN.
        """
        below, above = tail_probabilities(level, side)
        low = self._quantile(below) if below > 0 else np.full(len(self.params), -math.inf)
        return low, self._quantile(above) if above < 1 else np.full(len(self.params), math.inf)

    def contrast(self, weights: ArrayLike | Mapping[object, float], level: float = 0.95) -> Contrast:
        """Return a weighted sum of parameters, such as a difference, with its standard error and confidence interval.

        `weights` of the sum are an array (p,), an array (m, p) for m sums, or a dict by name, such as ``{"age": 1,
        "income": -1}``. `level` (0.95) is the coverage of the interval, which assumes that the sum is normal.
        """
        tails = tail_probabilities(level, "both")
        names, p = self.names, len(self.params)
        listed = ", ".join(names if p <= 2 * NUMBERS_IN_A_LINE else [*names[:NUMBERS_IN_A_LINE], "...", names[-1]])
        if isinstance(weights, Mapping):
            by_name = {str(name): weight for name, weight in weights.items()}  # a category's code stands for its name
            if unknown := [name for name in by_name if name not in names]:
                raise ValueError(f"weights has unknown names {', '.join(map(repr, unknown))}; the names are {listed}")
            weights = [by_name.get(name, 0.0) for name in names]
        numbers = np.multiply(weights, 1.0) if getattr(weights, "dtype", None) == np.bool_ else weights
        rows = checked("weights", numbers, f"{p} finite numbers, or rows of {p}", np.isfinite)
        shape = np.shape(rows)
        if len(shape) not in (1, 2) or shape[-1] != p:
            raise ValueError(f"weights must be {p} numbers or rows of {p}, got shape {shape}; the names are {listed}")
        total = rows @ self.params
        error = np.sqrt(np.maximum(self._variances(np.atleast_2d(rows)), 0.0)).reshape(np.shape(total))[()]
        low, high = (total + special.ndtri(probability) * error for probability in tails)
        return Contrast(total, error, (low, high))

    def transform(self, function: Callable, names: Sequence[str] | None = None) -> "TransformedEstimate":
        """Return an estimate of functions of the parameters, such as an odds ratio, with errors by the delta method.

        `function` of JAX takes the estimates (p,) and returns a number or a vector (m,), of which `names` are shown.
        Errors are to first order: they are too small where the function is steep or curved within a standard error.
        They are NaN for functions of parameters whose error is NaN. Raises ValueError if there is no covariance.
        """
        if self.covariance is None:
            raise ValueError("this estimate has no standard errors, which functions of it need")
        with jax.enable_x64(True):
            params = jnp.asarray(self.params, float)
            result = function(params)
            names = [f"f[{place}]" for place in range(np.size(result))] if names is None else [*names]
            if np.ndim(result) > 1 or np.asarray(result).dtype.kind not in "iuf" or len(names) != np.size(result):
                raise ValueError(f"function must return a number or a vector, with a name each, got {result!r}")
            slopes = np.asarray(jax.jacfwd(function)(params)).reshape(len(names), -1)
        covariance = slopes @ np.where(np.isnan(self.covariance), 0.0, self.covariance) @ slopes.T
        unknown = (slopes != 0) @ np.isnan(np.diagonal(self.covariance))
        covariance[unknown], covariance[:, unknown] = np.nan, np.nan
        return TransformedEstimate(np.atleast_1d(result), covariance, names, self.privacy)

    def summary(self, level: float = 0.95) -> str:
        """Return a table as text: the estimates, their errors, and confidence intervals of coverage `level` (0.95)."""
        return table(self._title, self.names, self._columns(level))

    def _columns(self, level: float) -> dict[str, list[str]]:
        """Columns of the summary: the estimates, their errors, tests of 0, and intervals."""
        z = self.params / self.standard_error
        tests = cells({"z": z}, "8.3f") | cells({"P>|z|": 2 * special.ndtr(-np.abs(z))}, "7.3f")
        return cells({"coef": self.params, "std err": self.standard_error}) | tests | cells(self._ends(level))

    def _ends(self, level: float) -> dict[str, np.ndarray]:
        """The interval's ends by the probabilities below them."""
        low, high = self.interval(level)
        return {f"[{(1 - level) / 2:.3g}": low, f"{(1 + level) / 2:.3g}]": high}

    def __repr__(self) -> str:
        few = slice(NUMBERS_IN_A_LINE)
        errors = np.full(len(self.params), np.nan) if self.standard_error is None else self.standard_error
        numbers = zip(self.names[few], self.params[few], errors[few], strict=True)
        parts = [f"{name}: {value:.4g}" + ("" if np.isnan(e) else f" ± {e:.3g}") for name, value, e in numbers]
        rest = len(self.params) - NUMBERS_IN_A_LINE
        more = [f"{rest:,} more in summary()"] if rest > 0 else []
        return f"<{', '.join([self._title, *parts, *more])}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.summary())}</pre>"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TransformedEstimate(Estimate):
    """Functions of an estimate, made by `Estimate.transform`."""

    estimate: np.ndarray
    covariance: np.ndarray
    names: list[str]
    privacy: str
    params = property(attrgetter("estimate"), doc="The estimate (m,).")
    _title = "Functions of an estimate"


def tail_probabilities(level: float, side: str) -> tuple[float, float]:
    """Probabilities below the two ends of an interval; 0 or 1 for an end that a one-sided interval lacks."""
    level = checked("level", level, "between 0 and 1", ONE_INSIDE_0_1[1])
    sides = {"both": ((1 - level) / 2, (1 + level) / 2), "lower": (1 - level, 1.0), "upper": (0.0, level)}
    if side not in sides:
        raise ValueError(f"side must be one of {', '.join(sides)}, got {side!r}")
    return sides[side]


def cells(columns: Mapping[str, np.ndarray], spec: str = "10.4f") -> dict[str, list[str]]:
    """Columns of numbers as text."""
    return {head: [format(number, spec) for number in column] for head, column in columns.items()}


def table(title: str, names: Sequence[str], columns: Mapping[str, Sequence[str]]) -> str:
    """A table in plain text, like those of statsmodels: a line a name, its cells aligned to the right."""
    width = max(LEAST_NAME_WIDTH, *map(len, names))
    blocks = [[head, *column] for head, column in columns.items()]
    widths = [max(map(len, block)) for block in blocks]
    rows = []
    for name, *row in zip(["", *names], *blocks, strict=True):
        aligned = [f"{cell:>{size}}" for cell, size in zip(row, widths, strict=True)]
        rows.append(" ".join([f"{name:{width}}", *aligned]).rstrip())
    rule = len(rows[0])
    return "\n".join([title, "=" * rule, rows[0], "-" * rule, *rows[1:], "=" * rule])


def names_of(tree: PyTree) -> list[str]:
    """Names of the numbers in a pytree, in the order of its flat array: ``loc``, ``probs[2]``, ``cov[0,1]``."""
    names = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        stem = jax.tree_util.keystr(path, simple=True, separator=".")
        index = [",".join(map(str, at)) for at in np.ndindex(np.shape(leaf))]
        names += [f"{stem or 'theta'}[{at}]" for at in index] if np.shape(leaf) else [stem or "theta"]
    return names
