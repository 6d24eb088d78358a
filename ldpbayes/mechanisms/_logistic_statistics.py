"""Gaussian noise on the approximately sufficient statistics of logistic regression."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from ldpbayes._pytree import optional, static
from ldpbayes._tracing import is_concrete
from ldpbayes.mechanisms._ball import rows_in_ball, signs
from ldpbayes.mechanisms._registry import register
from ldpbayes.mechanisms._statistics import StatisticsMechanism
from ldpbayes.numerics._products import packed
from ldpbayes.privacy import logistic_sensitivity

__all__ = ["LogisticStatisticsMechanism"]


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
