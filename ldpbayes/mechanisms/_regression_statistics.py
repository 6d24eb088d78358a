"""Statistics of a regression, released once for all records."""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ldpbayes._core.checks import checked
from ldpbayes._core.pytrees import optional, static, unchecked
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array
from ldpbayes.mechanisms._regression_records import checked_regression_columns, responses_in_range, rows_in_ball, signs
from ldpbayes.mechanisms.additive import Additive, Columns
from ldpbayes.mechanisms.plausibility import LEVEL, implausible_columns
from ldpbayes.mechanisms.registry import register
from ldpbayes.noise import IndependentGaussian
from ldpbayes.numerics.arrays import OFF_DIAGONALS, diagonal_first_pairs, packed, unpacked
from ldpbayes.privacy import GaussianTradeoff, Guarantee, gaussian_scale, linear_sensitivity, logistic_sensitivity


class StatisticsMechanism(Additive):
    """Gaussian noise on the statistics of a record (x, y), or on their sum over records.

    `LinearStatisticsMechanism` and `LogisticStatisticsMechanism` say which statistics these are.
    """

    epsilon: Array
    delta: Array
    radius: Array
    columns: Any
    ratios: tuple[float, ...]
    off_diagonal: str
    trust_model: str
    count: Array
    clip: bool
    scale: Array

    lower = None
    upper = None
    perturbed = None

    @property
    @abc.abstractmethod
    def _units(self) -> tuple[float, ...]:
        """Size of the statistics in each block; the noise is in proportion to it unless ratios are given."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", checked_regression_columns(self.columns))
        object.__setattr__(self, "clip", bool(self.clip))
        for name in ("epsilon", "radius"):
            self._check(name, "a positive and finite number", lambda a: (a > 0) & (a < np.inf) & (a.ndim == 0))
        self._check("delta", "a number between 0 and 1, exclusive", lambda a: (a > 0) & (a < 1) & (a.ndim == 0))
        if self.count is not None:
            self._check("count", "a whole number of records, 1 at least", lambda a: (a >= 1) & (a == np.round(a)))
        for name, allowed in (("trust_model", ("local", "central")), ("off_diagonal", tuple(OFF_DIAGONALS))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if not is_concrete(self.epsilon, self.delta, self.radius):
            raise ValueError("budget and bounds must be concrete; make the mechanism outside the traced function")
        units = np.asarray(self._units)
        if self.ratios is None:
            object.__setattr__(self, "ratios", units / units[0])
        ratios = checked("ratios", self.ratios, "positive and finite", lambda a: (a > 0) & (a < np.inf))
        if np.shape(np.atleast_1d(ratios)) != units.shape:
            raise ValueError(f"ratios must be {len(units)} numbers, one a block of the statistics, got {self.ratios!r}")
        object.__setattr__(self, "ratios", tuple(np.atleast_1d(ratios).tolist()))
        object.__setattr__(self, "scale", float(self.sensitivity * gaussian_scale(self.epsilon, self.delta)))

    @abc.abstractmethod
    def statistics(self, rows: Array) -> Array:
        """Statistics (*batch, statistics) of records (*batch, columns), the response last: one summand of a released
        sum.

        NumPy in, NumPy out; JAX in, JAX out. ValueError for concrete labels that are none, and for concrete records
        outside the bounds unless ``clip``.
        """

    @property
    def _blocks(self) -> Sequence[int]:
        """Number of statistics in each block."""
        d = self.covariates
        return (d * (d + 1) // 2, d, 1)[: len(self.ratios)]

    @property
    def covariates(self) -> int:
        """Number of covariates."""
        return Columns(self.columns, None).width - 1

    @property
    def _columns(self) -> Columns:
        """The statistics are the columns of a released row."""
        *x, y = Columns(self.columns, None).names
        second = [f"{x[j]}*{x[k]}" for j, k in zip(*diagonal_first_pairs(len(x)), strict=True)]
        names = second + [f"{name}*{y}" for name in x] + [f"{y}*{y}"]
        return Columns(tuple(names[: sum(self._blocks)]), None)

    @property
    def _summed(self) -> Array:
        """Number of records whose noise is in a released value."""
        return 1.0 if self.trust_model == "central" or self.count is None else self.count

    @property
    def noise(self) -> IndependentGaussian:  # type: ignore[override]
        """In each statistic; of a sum of locally perturbed statistics, the noise of all records together."""
        each = np.repeat(self.ratios, self._blocks) / self.ratios[0]
        xp: Any = np if is_concrete(self.scale, self._summed) else jnp
        scale = self.scale * xp.sqrt(self._summed)
        return unchecked(IndependentGaussian, xp.asarray(scale)[..., None] * each)

    def total(self, count: int) -> Any:
        """The mechanism of the sum of `count` locally released values; ValueError if values are sums already."""
        if self.trust_model == "central" or self.count is not None:
            raise ValueError(f"only values of one record each, locally perturbed, are summed; got {self!r}")
        names = [field.name for field in dataclasses.fields(type(self))]  # type: ignore[arg-type]
        return unchecked(type(self), *(count if name == "count" else getattr(self, name) for name in names))

    @property
    def guarantee(self) -> Guarantee:
        """The curve of two records whose statistics are as far apart as they can be.

        Under central trust these are one record of two data sets that agree in all others.
        """
        tradeoff = GaussianTradeoff(self.sensitivity / self.scale)
        return Guarantee(tradeoff, trust_model=self.trust_model, stated_delta=self.delta)

    @property
    def attribute_guarantee(self) -> Guarantee:
        """That of a record: one attribute may change all statistics."""
        return self.guarantee

    def _ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Smallest and largest value of each statistic of one record."""
        d, r = self.covariates, self.radius
        bound = getattr(self, "response_bound", 1.0)
        off = OFF_DIAGONALS[self.off_diagonal] * r**2 / 2
        lower = np.concatenate([np.zeros(d), np.full(d * (d - 1) // 2, -off), np.full(d, -r * bound), [0.0]])
        upper = np.concatenate([np.full(d, r**2), np.full(d * (d - 1) // 2, off), np.full(d, r * bound), [bound**2]])
        return lower[: sum(self._blocks)], upper[: sum(self._blocks)]

    def implausible(self, values: np.ndarray) -> list[str]:
        """Statistics that no records within the bounds could have.

        Each is bounded, squares are not negative, the sum of the squares of all covariates is at most radius² a record,
        and the matrix of second moments has no negative eigenvalue.
        """
        central = self.trust_model == "central"
        if central and self.count is None:
            return []
        n, d, r = 1.0 if self.count is None else float(self.count), self.covariates, self.radius
        lower, upper = self._ends()
        deviations = np.asarray(self.noise.standard_deviations)
        columns = [*values.T, values[:, :d].sum(axis=1)]
        bounds = n * np.append(lower, 0.0), n * np.append(upper, r**2)
        names = [*self._columns.names, "the covariates' squares together"]
        deviations = np.append(deviations, math.sqrt(d) * deviations[0])
        sentences = implausible_columns(names, columns, *bounds, deviations, 1.0, self.noise.depth)
        return sentences + self._negative(values, deviations[0])

    def _negative(self, values: np.ndarray, standard_deviation: float) -> list[str]:
        """A sentence if the second moments of the covariates have an eigenvalue that noise alone does not explain.

        Where off-diagonals are scaled by √2 the noise has one variance, sd², in every direction v vᵀ (at most twice
        that where they are not), so that its least eigenvalue is below −sd (√(2d) + t) with probability at most
        exp(−t²/2): the expectation by comparison of Gaussian processes, the tail by their concentration.
        """
        d = self.covariates
        root = math.sqrt(2.0) / OFF_DIAGONALS[self.off_diagonal]
        least = np.linalg.eigvalsh(unpacked(values[:, : d * (d + 1) // 2], d, self.off_diagonal))[:, 0]
        bound = -standard_deviation * root * (math.sqrt(2 * d) + math.sqrt(2 * math.log(len(values) / LEVEL)))
        if not (least < bound).any():
            return []
        return [f"the matrix of second moments has an eigenvalue {least.min():.4g}, where {bound:.4g} is the least"]


@register("linear_statistics")
@dataclasses.dataclass(frozen=True)
class LinearStatisticsMechanism(StatisticsMechanism):
    """Gaussian noise on t(x, y) = [x_j², s x_j x_k, x_j y, y²], or on its sum over records ([KJKH] sec. 3.1.1).

    It is calibrated exactly: the least Gaussian noise for the exact sensitivity (`privacy.linear_sensitivity`, for
    records that are replaced), which is below the bound of [KJKH] Lemma 3.1 (by 20 % at a response bound of twice the
    radius).

    A released value is the statistics of one record, locally perturbed; or their sum over `count` records, each of
    which was perturbed; or, under central trust, a sum to which noise was added once. `randomize` takes statistics
    (`statistics`) or their sums and adds the noise.

    Parameters
    ----------
    epsilon, delta : float
        Of the guarantee: positive and finite; between 0 and 1, exclusive.
    radius : float
        Largest Euclidean norm of the covariates of a record, in their unit. Choose it without looking at the data.
    response_bound : float
        Largest absolute value of a response.
    columns : int or sequence of str
        The number of columns of a row (x, y), or their names; the response is the last.
    ratios : sequence of float
        Standard deviations of the noise in the three blocks (products of covariates, covariates times response, squared
        response), as ratios to each other: σ₁ : σ₂ : σ₃. By default those of their units, R² : R R_y : R_y², so that
        the units of x and y do not matter; [KJKH] takes them equal.
    off_diagonal : {"scaled", "once"}
        Whether s is √2 or 1. The sensitivity is equal for both with two covariates or more, and so is the noise:
        scaled, these statistics have half the relative variance of the noise.
    trust_model : {"local", "central"}
        Whether every record's statistics get noise, or their sum does, from a trusted curator.
    count : int, optional
        The number of records that are summed in a released value. By default values are of one record each; or, under
        central trust, of an unknown number of records.
    clip : bool
        Whether records outside the bounds are clipped; if not, they are refused.

    Attributes
    ----------
    scale : float
        Standard deviation of the noise in a record's first statistic (under central trust, in that of the sum).

    Raises
    ------
    ValueError
        If a parameter is out of range, or a budget is being traced: calibration solves an equation on the host.
    """

    epsilon: Array
    delta: Array
    radius: Array
    response_bound: Array
    columns: Any = static()
    ratios: Any = static(default=None)
    off_diagonal: str = static(default="scaled")
    trust_model: str = static(default="local")
    count: Array = optional()
    clip: bool = static(default=False)
    scale: Array = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._check("response_bound", "a positive and finite number", lambda a: (a > 0) & (a < np.inf) & (a.ndim == 0))
        super().__post_init__()

    @property
    def _units(self) -> tuple[float, ...]:
        return self.radius**2, self.radius * self.response_bound, self.response_bound**2

    @property
    def sensitivity(self) -> float:  # type: ignore[override]
        """How far one record can move the statistics, in units of the noise of the first block."""
        return linear_sensitivity(self.covariates, self.radius, self.response_bound, self.ratios)

    def statistics(self, rows: Array) -> Array:
        x, y = rows_in_ball(rows, self.columns, self.radius, self.clip)
        y = responses_in_range(y, self.response_bound, self.clip)[..., None]
        xp: Any = np if is_concrete(x) else jnp
        second = packed(x[..., :, None] * x[..., None, :], self.off_diagonal)
        return xp.concatenate([second, x * y, y * y], axis=-1)


@register("logistic_statistics")
@dataclasses.dataclass(frozen=True)
class LogisticStatisticsMechanism(StatisticsMechanism):
    """Gaussian noise on t(x, y) = [x_j², s x_j x_k, x_j y] with y in {−1, 1}, or on its sum ([KJKH] sec. 3.1.2).

    These are the statistics of a logistic likelihood expanded to second order ([HAB]); labels are 0 and 1, or −1 and 1.
    Everything else, `scale` included, is as for `LinearStatisticsMechanism`; the sensitivity is that of [KJKH] Lemma
    13.1, where its maximiser is possible.

    Parameters
    ----------
    epsilon, delta, radius, columns, off_diagonal, trust_model, count, clip
        As for `LinearStatisticsMechanism`.
    ratios : sequence of float
        Standard deviations of the noise in the two blocks (products of covariates, covariates times label), as ratios
        to each other; by default those of their units, R² : R.

    Raises
    ------
    ValueError
        If a parameter is out of range, or a budget is being traced: calibration solves an equation on the host.
    """

    epsilon: Array
    delta: Array
    radius: Array
    columns: Any = static()
    ratios: Any = static(default=None)
    off_diagonal: str = static(default="scaled")
    trust_model: str = static(default="local")
    count: Array = optional()
    clip: bool = static(default=False)
    scale: Array = dataclasses.field(init=False)

    @property
    def _units(self) -> tuple[float, ...]:
        return self.radius**2, self.radius

    @property
    def sensitivity(self) -> float:  # type: ignore[override]
        """How far one record can move the statistics, in units of the noise of the first block."""
        return logistic_sensitivity(self.covariates, self.radius, self.ratios)

    def statistics(self, rows: Array) -> Array:
        x, y = rows_in_ball(rows, self.columns, self.radius, self.clip)
        xp: Any = np if is_concrete(x) else jnp
        second = packed(x[..., :, None] * x[..., None, :], self.off_diagonal)
        return xp.concatenate([second, x * signs(y)[..., None]], axis=-1)
