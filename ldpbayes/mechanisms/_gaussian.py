"""Gaussian noise for a privacy target."""

import dataclasses
import math
from typing import Any

import numpy as np

from ldpbayes._checks import checked
from ldpbayes._pytree import optional, static, unchecked
from ldpbayes._tracing import is_concrete
from ldpbayes.mechanisms._additive import Additive, AdditiveMechanism
from ldpbayes.mechanisms._registry import register
from ldpbayes.noise import Gaussian
from ldpbayes.privacy import GaussianTradeoff, Guarantee, gaussian_scale

__all__ = ["GaussianMechanism"]


@register("gaussian")
@dataclasses.dataclass(frozen=True)
class GaussianMechanism(Additive):
    """Gaussian noise, calibrated exactly, on a clipped number, columns of a row or a statistic ([BW] Theorem 8).

    With bounds, the guarantee is that of a record, whose sensitivity is its range (of a row, the length of the box's
    diagonal). Without, it is that of a person in a statistic of many records, which one of them can move by its
    `sensitivity`.

    Parameters
    ----------
    epsilon : array_like
        Positive and finite; an array holds personal budgets, one a record.
    delta : array_like
        Between 0 and 1, exclusive.
    lower, upper : array_like
        Clipping bounds in the unit of the data, finite, lower < upper; for a statistic, neither. Choose them without
        looking at the data.
    columns, perturbed, sensitivity
        As for `AdditiveMechanism`.

    Attributes
    ----------
    scale : float or ndarray
        Standard deviation of the noise, calibrated when the mechanism is made. It is a leaf of the pytree, so a
        function that is to differentiate or map over budgets maps over `scale` with them.

    Raises
    ------
    ValueError
        If a parameter is out of range or the shapes do not broadcast, or if epsilon or delta is being traced:
        calibration solves an equation on the host.
    """

    epsilon: Any
    delta: Any
    lower: Any = None
    upper: Any = None
    columns: Any = static(default=None, omitted=True)
    perturbed: Any = static(default=None, omitted=True)
    sensitivity: Any = optional()
    scale: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._check("epsilon", "positive and finite", lambda a: (a > 0) & (a < np.inf))
        self._check("delta", "between 0 and 1, exclusive", lambda a: (a > 0) & (a < 1))
        self._check_columns_and_bounds()
        if not is_concrete(self.epsilon, self.delta):
            raise ValueError(
                "epsilon and delta of a GaussianMechanism must be concrete, got a traced value; "
                "make the mechanism outside the traced function and pass it in as an argument"
            )
        with np.errstate(over="ignore"):
            object.__setattr__(self, "scale", _euclidean(self) * gaussian_scale(self.epsilon, self.delta))
        self._check_noise()

    @classmethod
    def from_standard_deviation(
        cls,
        standard_deviation: Any,
        lower: Any = None,
        upper: Any = None,
        *,
        columns: Any = None,
        perturbed: Any = None,
        sensitivity: Any = None,
    ) -> AdditiveMechanism:
        """Gaussian noise of a stated standard deviation, whose guarantee follows from it.

        Parameters
        ----------
        standard_deviation : array_like
            In the unit of the data.
        lower, upper, columns, perturbed, sensitivity
            As for `AdditiveMechanism`.
        """
        return AdditiveMechanism(Gaussian(standard_deviation), lower, upper, columns, perturbed, sensitivity)

    @classmethod
    def classical(
        cls,
        epsilon: Any,
        delta: Any,
        lower: Any = None,
        upper: Any = None,
        *,
        columns: Any = None,
        perturbed: Any = None,
        sensitivity: Any = None,
    ) -> AdditiveMechanism:
        """Gaussian noise of standard deviation √(2 log(1.25/δ)) Δ/ε, the classical calibration ([DR] Theorem A.1).

        For comparison with what was released so. It is proven for ε < 1, where it adds more noise than the pair of ε
        and δ asks for; for large ε it adds too little. The guarantee is the exact curve of the noise that is added, so
        ask it what holds: ``mechanism.guarantee.delta(epsilon)``.

        Parameters
        ----------
        epsilon : array_like
            Positive and finite; an array holds personal budgets, one a record.
        delta : array_like
            Between 0 and 1, exclusive.
        lower, upper, columns, perturbed, sensitivity
            As for `AdditiveMechanism`; Δ is the range (of a row, the length of the box's diagonal), or the sensitivity.

        Raises
        ------
        ValueError
            If a parameter is out of range or the shapes do not broadcast.
        """
        epsilon = checked("epsilon", epsilon, "positive and finite", lambda a: (a > 0) & (a < np.inf))
        delta = checked("delta", delta, "between 0 and 1, exclusive", lambda a: (a > 0) & (a < 1))
        of_unit_noise = AdditiveMechanism(Gaussian(1.0), lower, upper, columns, perturbed, sensitivity)
        with np.errstate(over="ignore"):
            scale = np.sqrt(2 * (math.log(1.25) - np.log(delta))) * _euclidean(of_unit_noise) / epsilon
        # bounds in the order of the names have been brought into that of the row
        return dataclasses.replace(of_unit_noise, noise=Gaussian(scale))

    @property
    def noise(self) -> Gaussian:  # type: ignore[override]
        """Gaussian noise of this standard deviation."""
        return unchecked(Gaussian, self.scale)

    @property
    def guarantee(self) -> Guarantee:
        """Approximate differential privacy, with the trade-off curve of inputs that are as far apart as they can be."""
        return Guarantee(
            GaussianTradeoff(np.divide(_euclidean(self), self.scale)),
            trust_model="local" if self.bounded else "central",
            stated_delta=self.delta,
            exposed=self._exposed,
        )


def _euclidean(mechanism: Additive) -> Any:
    """How far apart two inputs can be: numbers, rows of columns, or a statistic."""
    if not mechanism.bounded:
        return mechanism.sensitivity
    if mechanism.columns is None:
        return mechanism.upper - mechanism.lower
    return float(np.linalg.norm(mechanism.ranges))
