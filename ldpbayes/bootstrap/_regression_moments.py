"""Rows (x, y) of a regression, clamped to a box: their statistics in three blocks, and how far a row moves each."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ldpbayes._checks import checked
from ldpbayes._pytree import pytree
from ldpbayes.bootstrap.families._multivariate_normal import MultivariateNormal
from ldpbayes.numerics._products import pairs

__all__ = ["RegressionMoments"]


@pytree
@dataclasses.dataclass(frozen=True)
class RegressionMoments(MultivariateNormal):
    """Rows of regressors with the response in the last column; the statistics are those of `SecondMoments`.

    They are in three blocks: moments of the regressors (u_j, u_j² and √2 u_j u_k); those with the response v in the
    first power (v and √2 u_j v); and v².

    Parameters
    ----------
    lower, upper : array_like (d + 1,)
        Bounds to which the columns are clamped, in their units, as they come: they need not be symmetric.
    """

    lower: Any = None
    upper: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dimension < 2:
            raise ValueError(
                "regression needs bounds of at least two columns, the response's last; got those of one column"
            )

    @property
    def regressors(self) -> int:
        """Number of columns but the response."""
        return self.dimension - 1

    @property
    def blocks(self) -> np.ndarray:
        """To which block each statistic belongs: 0, 1 or 2, in how many factors the response is."""
        last = self.regressors
        rows, columns = pairs(self.dimension)
        return np.concatenate([np.arange(self.dimension) == last, (rows == last) * 1 + (columns == last)]).astype(int)

    def block_sensitivities(self, order: int) -> tuple[float, float, float]:
        """How far replacing one row can move the sums of each block; exactly, each attained by two rows.

        The first block has the statistics of a row without response. In the second, with m = |u − u'|/2 in each column
        and its p = |u + u'|/2 ≤ 1 − m, |v − v'| = 2m_v and |u_j v − u'_j v'| ≤ 2 (p_j m_v + m_j p_v) ≤
        2 (m_v + m_j − 2 m_v m_j). The sum of absolute differences is thus at most
        2m_v + 2√2 (d m_v + M − 2 m_v M) with M = Σm_j from 0 to d, linear in each of m_v and M and so largest at an
        end of both: 2 + 2√2 d, where v is 1 and −1 and all u are 1. There every difference is as large as it can be,
        so that the Euclidean distance is largest as well. v² is between 0 and 1.

        Parameters
        ----------
        order : {1, 2}
            Sum of absolute differences, or Euclidean distance.
        """
        d = self.regressors
        without = MultivariateNormal(self.lower[:-1], self.upper[:-1]).sensitivity(order)
        return without, {1: 2 + 2 * math.sqrt(2.0) * d, 2: math.sqrt(4.0 + 8 * d)}[order], 1.0

    def weights(self, split: Sequence[float] | np.ndarray, order: int) -> np.ndarray:
        """What each statistic is multiplied by (statistics,), so that each block has its share of a sensitivity of one.

        Under Laplace noise sensitivities of blocks add, and so do the shares of ε; under Gaussian noise their squares.

        Parameters
        ----------
        split : array_like (3,)
            Shares of the blocks.
        order : {1, 2}
            1 for Laplace noise, 2 for Gaussian noise.

        Raises
        ------
        ValueError
            If there are not three positive shares that sum to one.
        """
        shares = np.asarray(checked("split", split, "three positive shares that sum to one", lambda a: a > 0))
        if shares.shape != (3,) or abs(shares.sum() - 1) > 1e-9:
            raise ValueError(f"split must be three positive shares that sum to one, got {split!r}")
        return (shares ** (1 / order) / np.array(self.block_sensitivities(order)))[self.blocks]
