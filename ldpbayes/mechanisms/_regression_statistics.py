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
from ldpbayes.mechanisms._regression_records import checked_regression_columns, responses_in_range, rows_in_ball, signs
from ldpbayes.mechanisms.additive import Additive, Columns
from ldpbayes.mechanisms.plausibility import LEVEL, implausible_numbers
from ldpbayes.mechanisms.registry import register
from ldpbayes.noise import IndependentGaussian
from ldpbayes.numerics.arrays import OFF_DIAGONALS, diagonal_first_pairs, packed, unpacked
from ldpbayes.privacy import GaussianTradeoff, Guarantee, gaussian_scale, linear_sensitivity, logistic_sensitivity

TRUST_MODELS = ("local", "central")


def checked_ratios(ratios: Any, blocks: int) -> tuple[float, ...]:
    """Relative scales of the noise in the blocks of a statistic, as they are kept.

    Parameters
    ----------
    ratios : sequence of float
        One a block, positive.
    blocks : int
        How many there are.

    Raises
    ------
    ValueError
        If they are not positive, or not as many.
    """
    array = np.atleast_1d(checked("ratios", ratios, "positive and finite", lambda a: (a > 0) & (a < np.inf)))
    if array.shape != (blocks,):
        raise ValueError(f"ratios must be {blocks} numbers, one a block of the statistics, got {ratios!r}")
    return tuple(array.tolist())


class StatisticsMechanism(Additive):
    """Gaussian noise on the statistics of a record (x, y), or on their sum over records; see the subclasses.

    Subclasses have the fields of `LinearStatisticsMechanism`, all or some, and say which statistics they are.
    """

    epsilon: Any
    delta: Any
    radius: Any
    columns: Any
    ratios: tuple[float, ...]
    off_diagonal: str
    trust_model: str
    count: Any
    clip: bool
    scale: Any

    lower = None
    upper = None
    perturbed = None

    @property
    @abc.abstractmethod
    def _units(self) -> tuple[float, ...]:
        """Of the blocks of statistics: how large each can be. The noise is in proportion unless ratios are given."""

    def __post_init__(self) -> None:
        """Bring the fields into the form in which they are kept, calibrate, or say what is wrong."""
        object.__setattr__(self, "columns", checked_regression_columns(self.columns))
        object.__setattr__(self, "clip", bool(self.clip))
        for name in ("epsilon", "radius"):
            self._check(name, "a positive and finite number", lambda a: (a > 0) & (a < np.inf) & (a.ndim == 0))
        self._check("delta", "a number between 0 and 1, exclusive", lambda a: (a > 0) & (a < 1) & (a.ndim == 0))
        if self.count is not None:
            self._check("count", "a whole number of records, 1 at least", lambda a: (a >= 1) & (a == np.round(a)))
        choices = (("trust_model", TRUST_MODELS), ("off_diagonal", tuple(OFF_DIAGONALS)))
        for name, allowed in choices:
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if not is_concrete(self.epsilon, self.delta, self.radius):
            raise ValueError("budget and bounds must be concrete; make the mechanism outside the traced function")
        units = np.asarray(self._units)
        ratios = units / units[0] if self.ratios is None else self.ratios
        object.__setattr__(self, "ratios", checked_ratios(ratios, len(units)))
        object.__setattr__(self, "scale", float(self.sensitivity * gaussian_scale(self.epsilon, self.delta)))

    @abc.abstractmethod
    def statistics(self, rows: Any) -> Any:
        """Statistics of each record: what noise is added to, or what is summed first.

        Parameters
        ----------
        rows : array or data frame (*batch, columns)
            Records, the response last.

        Returns
        -------
        array (*batch, statistics)
            NumPy in, NumPy out; JAX in, JAX out.

        Raises
        ------
        ValueError
            For records outside the bounds where ``clip`` is False, or labels that are none, where they can be seen.
        """

    @property
    def _blocks(self) -> Sequence[int]:
        """How many statistics each block has."""
        d = self.covariates
        return (d * (d + 1) // 2, d, 1)[: len(self.ratios)]

    @property
    def covariates(self) -> int:
        """Number of covariates."""
        return Columns(self.columns, None).width - 1

    @property
    def _columns(self) -> Columns:
        """The statistics are the columns of what is released."""
        *x, y = Columns(self.columns, None).names
        second = [f"{x[j]}*{x[k]}" for j, k in zip(*diagonal_first_pairs(len(x)), strict=True)]
        names = second + [f"{name}*{y}" for name in x] + [f"{y}*{y}"]
        return Columns(tuple(names[: sum(self._blocks)]), None)

    @property
    def _summed(self) -> Any:
        """How many records' noise is in a released value."""
        return 1.0 if self.trust_model == "central" or self.count is None else self.count

    @property
    def noise(self) -> IndependentGaussian:  # type: ignore[override]
        """In each statistic: of a sum of locally perturbed statistics, the noise of all records together."""
        each = np.repeat(self.ratios, self._blocks) / self.ratios[0]
        xp: Any = np if is_concrete(self.scale, self._summed) else jnp
        scale = self.scale * xp.sqrt(self._summed)
        return unchecked(IndependentGaussian, xp.asarray(scale)[..., None] * each)

    def total(self, count: int) -> Any:
        """The mechanism of the sum of so many locally released values.

        Parameters
        ----------
        count : int
            Number of records.

        Raises
        ------
        ValueError
            If values are sums already, or the noise is added centrally.
        """
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
        """That of a record: all statistics of one that differs in a single attribute may differ."""
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
        """Statistics that no records within the bounds could have: see `Mechanism.implausible`.

        Each is bounded, squares are not negative, the sum of the squares of all covariates is at most radius² a record,
        and the matrix of second moments has no negative eigenvalue.
        """
        central = self.trust_model == "central"
        if central and self.count is None:
            return []
        n, d, r = 1.0 if self.count is None else float(self.count), self.covariates, self.radius
        lower, upper = self._ends()
        scales = np.asarray(self.noise.standard_deviations)
        columns, said = [*values.T, values[:, :d].sum(axis=1)], []
        lower, upper = np.append(lower, 0.0), np.append(upper, r**2)
        scales = np.append(scales, math.sqrt(d) * scales[0])
        names = [*self._columns.names, "the covariates' squares together"]
        for column, low, high, scale, name in zip(columns, lower, upper, scales, names, strict=True):
            problems = implausible_numbers(column, n * low, n * high, scale, 1.0, self.noise.depth, len(columns))
            said += [f"{name}: {what}" for what in problems]
        return said + self._negative(values, scales[0])

    def _negative(self, values: np.ndarray, scale: float) -> list[str]:
        """Whether the second moments of the covariates have an eigenvalue that noise alone does not explain.

        Where off-diagonals are scaled by √2 the noise has the same variance scale² in every direction v vᵀ (at most
        twice that, where they are not), so that its least eigenvalue is below −scale (√(2d) + t) with probability at
        most exp(−t²/2): the expectation by comparison of Gaussian processes, the tail by their concentration.
        """
        d = self.covariates
        root = math.sqrt(2.0) / OFF_DIAGONALS[self.off_diagonal]
        least = np.linalg.eigvalsh(unpacked(values[:, : d * (d + 1) // 2], d, self.off_diagonal))[:, 0]
        beyond = -scale * root * (math.sqrt(2 * d) + math.sqrt(2 * math.log(len(values) / LEVEL)))
        if not (least < beyond).any():
            return []
        return [f"the matrix of second moments has an eigenvalue {least.min():.4g}, where {beyond:.4g} is the least"]


@register("linear_statistics")
@dataclasses.dataclass(frozen=True)
class LinearStatisticsMechanism(StatisticsMechanism):
    """Gaussian noise on t(x, y) = [x_j², s x_j x_k, x_j y, y²], or on its sum over records ([KJKH] sec. 3.1.1).

    It is calibrated exactly: the Gaussian noise that is needed, of the exact sensitivity (`privacy.linear_sensitivity`,
    for records that are replaced), which is below the bound of [KJKH] Lemma 3.1 (by 20 % at a response bound of twice
    the radius).

    A released value is the statistics of one record, locally perturbed; or their sum over `count` records, each of
    which was perturbed; or, under central trust, a sum to which noise was added once. `Additive.randomize` takes
    statistics (`statistics`) or their sums and adds the noise.

    Parameters
    ----------
    epsilon, delta : float
        Of the guarantee: positive and finite; between 0 and 1, exclusive.
    radius : float
        Largest Euclidean norm of the covariates of a record, in their unit. Choose it without looking at the data.
    response_bound : float
        Largest absolute value of a response.
    columns : int or sequence of str
        How many columns a row (x, y) has, or what they are called; the response is the last.
    ratios : sequence of float
        Standard deviations of the noise in the three blocks (products of covariates, covariates times response, squared
        response), as ratios to each other: σ₁ : σ₂ : σ₃. By default those of their units, R² : R R_y : R_y², so that
        it does not matter in which units x and y are; [KJKH] takes them equal.
    off_diagonal : {"scaled", "once"}
        What s is: √2, or 1. The sensitivity is the same for both with two covariates or more, and so is the noise:
        scaled, these statistics have half the relative variance of the noise.
    trust_model : {"local", "central"}
        Whether every record's statistics get noise, or their sum does, from a trusted curator.
    count : int, optional
        How many records are summed in a released value. By default values are of one record each; or, under central
        trust, of an unknown number of records.
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

    epsilon: Any
    delta: Any
    radius: Any
    response_bound: Any
    columns: Any = static()
    ratios: Any = static(default=None)
    off_diagonal: str = static(default="scaled")
    trust_model: str = static(default="local")
    count: Any = optional()
    clip: bool = static(default=False)
    scale: Any = dataclasses.field(init=False)

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

    def statistics(self, rows: Any) -> Any:
        """See `StatisticsMechanism.statistics`."""
        x, y = rows_in_ball(rows, self.columns, self.radius, self.clip)
        y = responses_in_range(y, self.response_bound, self.clip)[..., None]
        xp: Any = np if is_concrete(x) else jnp
        return xp.concatenate([packed(x[..., :, None] * x[..., None, :], self.off_diagonal), x * y, y * y], axis=-1)


@register("logistic_statistics")
@dataclasses.dataclass(frozen=True)
class LogisticStatisticsMechanism(StatisticsMechanism):
    """Gaussian noise on t(x, y) = [x_j², s x_j x_k, x_j y] with y in {−1, 1}, or on its sum ([KJKH] sec. 3.1.2).

    These are the statistics of a logistic likelihood expanded to second order ([HAB]). Everything else is as for
    `LinearStatisticsMechanism`; the sensitivity is that of [KJKH] Lemma 13.1, where its maximiser is possible.

    Parameters
    ----------
    epsilon, delta, radius, columns, off_diagonal, trust_model, count, clip
        As for `LinearStatisticsMechanism`.
    ratios : sequence of float
        Standard deviations of the noise in the two blocks (products of covariates, covariates times label), as ratios
        to each other; by default those of their units, R² : R.

    Attributes
    ----------
    scale : float
        Standard deviation of the noise in a record's first statistic (under central trust, in that of the sum).

    Raises
    ------
    ValueError
        If a parameter is out of range, or a budget is being traced: calibration solves an equation on the host.
    """

    epsilon: Any
    delta: Any
    radius: Any
    columns: Any = static()
    ratios: Any = static(default=None)
    off_diagonal: str = static(default="scaled")
    trust_model: str = static(default="local")
    count: Any = optional()
    clip: bool = static(default=False)
    scale: Any = dataclasses.field(init=False)

    @property
    def _units(self) -> tuple[float, ...]:
        return self.radius**2, self.radius

    @property
    def sensitivity(self) -> float:  # type: ignore[override]
        """How far one record can move the statistics, in units of the noise of the first block."""
        return logistic_sensitivity(self.covariates, self.radius, self.ratios)

    def statistics(self, rows: Any) -> Any:
        """See `StatisticsMechanism.statistics`; labels are 0 and 1, or −1 and 1."""
        x, y = rows_in_ball(rows, self.columns, self.radius, self.clip)
        xp: Any = np if is_concrete(x) else jnp
        return xp.concatenate(
            [packed(x[..., :, None] * x[..., None, :], self.off_diagonal), x * signs(y)[..., None]], axis=-1
        )
