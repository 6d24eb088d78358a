"""Laplace noise for a privacy budget."""

import dataclasses
from typing import Any

import numpy as np

from ldpbayes._pytree import optional, static, unchecked
from ldpbayes.mechanisms._additive import Additive, AdditiveMechanism
from ldpbayes.mechanisms._registry import register
from ldpbayes.noise import Laplace
from ldpbayes.privacy import Guarantee, LaplaceTradeoff

__all__ = ["LaplaceMechanism"]


@register("laplace")
@dataclasses.dataclass(frozen=True)
class LaplaceMechanism(Additive):
    """Laplace noise for a budget, on a clipped number, on columns of a row or on a statistic ([DMNS]).

    With bounds, the guarantee is that of a record, whose sensitivity is its range (of a row, the sum of the ranges).
    Without, it is that of a person in a statistic of many records, which one of them can move by its `sensitivity`.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget of each record, positive and finite; an array holds personal budgets, one a record.
    lower, upper : array_like
        Clipping bounds in the unit of the data, finite, lower < upper; for a statistic, neither. Choose them without
        looking at the data.
    columns, perturbed, sensitivity
        As for `AdditiveMechanism`.

    Raises
    ------
    ValueError
        If a parameter is out of range or the shapes do not broadcast.
    """

    epsilon: Any
    lower: Any = None
    upper: Any = None
    columns: Any = static(default=None, omitted=True)
    perturbed: Any = static(default=None, omitted=True)
    sensitivity: Any = optional()

    def __post_init__(self) -> None:
        self._check("epsilon", "positive and finite", lambda a: (a > 0) & (a < np.inf))
        self._check_columns_and_bounds()
        self._check_noise()

    @classmethod
    def from_scale(
        cls,
        scale: Any,
        lower: Any = None,
        upper: Any = None,
        *,
        columns: Any = None,
        perturbed: Any = None,
        sensitivity: Any = None,
    ) -> AdditiveMechanism:
        """Laplace noise of a stated scale, whose guarantee follows from it.

        Parameters
        ----------
        scale : array_like
            Laplace's b, in the unit of the data: the standard deviation over √2.
        lower, upper, columns, perturbed, sensitivity
            As for `AdditiveMechanism`.
        """
        return AdditiveMechanism(Laplace(scale), lower, upper, columns, perturbed, sensitivity)

    @property
    def scale(self) -> Any:
        """Scale of the noise: sensitivity over epsilon, where that of a record is (upper - lower)."""
        if not self.bounded:
            return self.sensitivity / self.epsilon
        if self.columns is None:
            return (self.upper - self.lower) / self.epsilon
        return float(self.ranges.sum()) / self.epsilon

    @property
    def noise(self) -> Laplace:  # type: ignore[override]
        """Laplace noise of this scale."""
        with np.errstate(over="ignore"):
            return unchecked(Laplace, self.scale)

    @property
    def guarantee(self) -> Guarantee:
        """Pure differential privacy, with the trade-off curve of inputs that are as far apart as they can be."""
        if self.columns is None:
            return Guarantee(LaplaceTradeoff(self.epsilon), trust_model="local" if self.bounded else "central")
        return super().guarantee
