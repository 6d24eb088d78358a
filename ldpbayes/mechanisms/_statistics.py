"""Statistics of regressions as a record's rows have them, and Gaussian noise on them or on their sum."""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ldpbayes._checks import checked
from ldpbayes._pytree import unchecked
from ldpbayes._tracing import is_concrete
from ldpbayes.mechanisms._additive import Additive
from ldpbayes.mechanisms._ball import checked_regression_columns
from ldpbayes.mechanisms._columns import Columns
from ldpbayes.mechanisms._plausibility import LEVEL, implausible_numbers
from ldpbayes.noise import IndependentGaussian
from ldpbayes.numerics._products import OFF_DIAGONALS, pairs, unpacked
from ldpbayes.privacy import GaussianTradeoff, Guarantee, gaussian_scale

__all__ = ["StatisticsMechanism", "checked_ratios"]

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
        second = [f"{x[j]}*{x[k]}" for j, k in zip(*pairs(len(x)), strict=True)]
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
