"""Gaussian noise on the sufficient statistics of linear regression."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from ldpbayes._pytree import optional, static
from ldpbayes._tracing import is_concrete
from ldpbayes.mechanisms._ball import responses_in_range, rows_in_ball
from ldpbayes.mechanisms._registry import register
from ldpbayes.mechanisms._statistics import StatisticsMechanism
from ldpbayes.numerics._products import packed
from ldpbayes.privacy import linear_sensitivity

__all__ = ["LinearStatisticsMechanism"]


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
