"""Additive mechanisms by the names of their noises, made from a budget or a scale."""

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np
from jax.typing import ArrayLike

import ldpbayes.noise as laws
from ldpbayes._core.checks import FINITE, INSIDE_0_1, NOT_NEGATIVE, ONE_ABOVE_0, POSITIVE, SHARE, checked
from ldpbayes._core.pytrees import optional, ruled, static, unchecked
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array
from ldpbayes.mechanisms.additive import Additive, AdditiveMechanism, ColumnNames, ColumnSubset
from ldpbayes.mechanisms.protocol import PiecewiseConstant
from ldpbayes.mechanisms.registry import registered_dataclass
from ldpbayes.privacy import Guarantee, LaplaceTradeoff, gaussian_scale


@registered_dataclass("laplace")
class LaplaceMechanism(Additive):
    """Laplace noise for a budget, on a clipped number, on columns of a row or on a statistic ([DMNS]).

    With bounds, the guarantee is that of a record, whose sensitivity is its range (of a row, the sum of the ranges).
    Without, it is that of a person in a statistic of many records, which one of them can move by its `sensitivity`.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget, positive and finite; an array holds personal budgets, one a record.
    lower, upper, columns, perturbed, sensitivity
        As for `AdditiveMechanism`.
    """

    epsilon: Array = ruled(POSITIVE)
    lower: Array = None
    upper: Array = None
    columns: ColumnNames = static(default=None, omitted=True)
    perturbed: ColumnSubset = static(default=None, omitted=True)
    sensitivity: Array = optional(ONE_ABOVE_0, default=None)
    scale = property(lambda self: _diameter(self, 1) / self.epsilon, doc="Laplace's b: sensitivity over epsilon.")
    noise = property(lambda self: unchecked(laws.Laplace, self.scale))

    @classmethod
    def from_scale(cls, scale: Array, lower: Array = None, upper: Array = None, **options: Any) -> AdditiveMechanism:
        """Laplace noise of a stated scale b, standard deviation over √2; `options` are those of `AdditiveMechanism`."""
        return AdditiveMechanism(laws.Laplace(scale), lower, upper, **options)

    @property
    def guarantee(self) -> Guarantee:
        guarantee = super().guarantee
        if self.columns is not None:
            return guarantee
        return dataclasses.replace(guarantee, tradeoff=LaplaceTradeoff(self.epsilon))  # without rounding


@dataclasses.dataclass(frozen=True)
class _StatedDeviation(Additive):
    """Noise whose standard deviation `scale` is stated and may be 0, for public records."""

    scale: Array = ruled(NOT_NEGATIVE)
    lower: Array = ruled(FINITE)
    upper: Array = ruled(FINITE)
    columns: ColumnNames = static(default=None)
    perturbed: ColumnSubset = static(default=None)


@registered_dataclass("symmetric_laplace")
class SymmetricLaplaceMechanism(_StatedDeviation):
    """Symmetric multivariate Laplace noise SL_d(λ² I) on a number or on columns of a row ([LCQ] sec. 3).

    Parameters
    ----------
    scale : array_like
        λ, the standard deviation in each column, in the unit of the data; an array holds one a record. A record of
        scale 0 is public: released as it is.
    lower, upper, columns, perturbed
        As for `AdditiveMechanism`; bounds are required.
    """

    noise = property(lambda self: unchecked(laws.WithPublicRecords, unchecked(laws.SymmetricLaplace, self.scale)))


@registered_dataclass("independent_laplace")
class IndependentLaplaceMechanism(_StatedDeviation):
    """Independent Laplace noise in every perturbed column.

    The parameters are those of `SymmetricLaplaceMechanism`: the scale is λ, where Laplace's b is λ/√2. The guarantee
    for an attribute is the exact curve; that for a record of several columns is the curve of randomized response with
    its epsilon, a little below the exact one.
    """

    noise = property(lambda self: unchecked(laws.WithPublicRecords, unchecked(laws.Laplace, self.scale / math.sqrt(2))))


@registered_dataclass("zero_inflated_laplace")
class ZeroInflatedLaplaceMechanism(Additive):
    """Symmetric Laplace noise that is left out with some probability: ZIL(δ, λ² I) ([LCQ] Definition 3.1).

    In many dimensions, or where the bounds are narrow against the scale, a reader of the release can often tell which
    records have no noise, in any column. `ldpbayes.privacy.zil_parameters` gives the scale for a privacy target.

    Parameters
    ----------
    zero_probability : array_like
        δ, between 0 and 1, exclusive; an array holds one a record.
    scale, lower, upper, columns, perturbed
        As for `SymmetricLaplaceMechanism`, where there is noise.
    """

    zero_probability: Array = ruled(INSIDE_0_1)
    scale: Array = ruled(NOT_NEGATIVE)
    lower: Array = ruled(FINITE)
    upper: Array = ruled(FINITE)
    columns: ColumnNames = static(default=None)
    perturbed: ColumnSubset = static(default=None)

    @property
    def noise(self) -> laws.ZeroInflated:  # type: ignore[override]
        return unchecked(laws.ZeroInflated, unchecked(laws.SymmetricLaplace, self.scale), self.zero_probability)


@registered_dataclass("gaussian")
class GaussianMechanism(Additive):
    """Gaussian noise, calibrated exactly, on a clipped number, columns of a row or a statistic ([BW] Theorem 8).

    With bounds, the guarantee is that of a record, whose sensitivity is its range (of a row, the length of the box's
    diagonal). Without, it is that of a person in a statistic of many records, which one can move by its `sensitivity`.
    The calibrated standard deviation `scale` is a leaf of the pytree: to map over budgets, map over it as well.

    Parameters
    ----------
    epsilon, delta : array_like
        Positive and finite; in (0, 1). Arrays hold one a record. ValueError if traced: calibration is on the host.
    lower, upper, columns, perturbed, sensitivity
        As for `AdditiveMechanism`.
    """

    epsilon: Array = ruled(POSITIVE)
    delta: Array = ruled(INSIDE_0_1)
    lower: Array = None
    upper: Array = None
    columns: ColumnNames = static(default=None, omitted=True)
    perturbed: ColumnSubset = static(default=None, omitted=True)
    sensitivity: Array = optional(ONE_ABOVE_0, default=None)
    scale: Array = dataclasses.field(init=False)
    noise = property(lambda self: unchecked(laws.Gaussian, self.scale))

    def __post_init__(self) -> None:
        self._check_columns_and_bounds()
        if not is_concrete(self.epsilon, self.delta):
            raise ValueError("epsilon and delta must be concrete; make the mechanism outside the traced function")
        object.__setattr__(self, "scale", _diameter(self, 2) * gaussian_scale(self.epsilon, self.delta))
        self._check_noise()

    @classmethod
    def from_standard_deviation(
        cls, standard_deviation: Array, lower: Array = None, upper: Array = None, **options: Any
    ) -> AdditiveMechanism:
        """Gaussian noise of a stated standard deviation; `options` are those of `AdditiveMechanism`."""
        return AdditiveMechanism(laws.Gaussian(standard_deviation), lower, upper, **options)

    @classmethod
    def classical(
        cls, epsilon: Array, delta: Array, lower: Array = None, upper: Array = None, **options: Any
    ) -> AdditiveMechanism:
        """Gaussian noise of standard deviation √(2 log(1.25/δ)) Δ/ε, the classical calibration ([DR] Theorem A.1).

        For ε < 1 it is more noise than (ε, δ) needs, for large ε too little: ``mechanism.guarantee.delta(epsilon)`` is
        the δ that holds. `options` are those of `AdditiveMechanism`.
        """
        epsilon = checked("epsilon", epsilon, *POSITIVE)
        delta = checked("delta", delta, *INSIDE_0_1)
        unit_noise = AdditiveMechanism(laws.Gaussian(1.0), lower, upper, **options)
        deviation = np.sqrt(2 * (math.log(1.25) - np.log(delta))) * _diameter(unit_noise, 2) / epsilon
        # `unit_noise` has its bounds in the order of the row already
        return dataclasses.replace(unit_noise, noise=laws.Gaussian(deviation))

    @property
    def guarantee(self) -> Guarantee:
        return dataclasses.replace(super().guarantee, stated_delta=self.delta)


def _diameter(mechanism: Additive, norm: int) -> Array:
    """Largest distance of two inputs in a norm of rows: of numbers, of rows, or of a statistic of two data sets."""
    if not mechanism.bounded:
        return mechanism.sensitivity
    if mechanism.columns is None:
        return mechanism.upper - mechanism.lower
    return float(np.linalg.norm(mechanism.ranges, norm))


@registered_dataclass("staircase")
class StaircaseMechanism(Additive, PiecewiseConstant):
    """Staircase noise for a budget, on a clipped number ([GV]).

    With the right γ no other noise that keeps the budget has a smaller variance, or a smaller mean absolute value; the
    gain over Laplace noise is large for large budgets, none for small ones.

    Parameters
    ----------
    epsilon, lower, upper : array_like
        As for `LaplaceMechanism`; bounds are required.
    gamma : array_like, optional
        γ, in (0, 1]: where in a step the density jumps. By default `ldpbayes.noise.optimal_gamma`, of least variance.
    """

    epsilon: Array = ruled(POSITIVE)
    lower: Array = ruled(FINITE)
    upper: Array = ruled(FINITE)
    gamma: Array = optional(SHARE, default=None)

    columns: ClassVar[None] = None  # type: ignore[misc]
    perturbed: ClassVar[None] = None  # type: ignore[misc]

    def __post_init__(self) -> None:
        super().__post_init__()
        with np.errstate(all="ignore"):
            if is_concrete(self) and not np.all(np.isfinite(self.noise.variance)):
                raise ValueError(f"the variance of the noise must be finite, got inf in {self!r}")

    @property
    def noise(self) -> laws.Staircase:  # type: ignore[override]
        gamma = laws.optimal_gamma(self.epsilon) if self.gamma is None else self.gamma
        return unchecked(laws.Staircase, self.upper - self.lower, self.epsilon, gamma)

    def pieces(self, z: ArrayLike) -> tuple[Array, Array]:
        return self.noise.pieces(z, self.lower, self.upper)


@dataclasses.dataclass(frozen=True)
class _WholeNumbers(Additive):
    """Noise of whole numbers; without bounds and sensitivity it is for a count, which one record moves by 1."""

    scale: Array = ruled(POSITIVE)
    lower: Array = None
    upper: Array = None
    columns: ColumnNames = static(default=None, omitted=True)
    perturbed: ColumnSubset = static(default=None, omitted=True)
    sensitivity: Array = optional(ONE_ABOVE_0, default=None)

    def __post_init__(self) -> None:
        if self.lower is None and self.upper is None and self.sensitivity is None:
            object.__setattr__(self, "sensitivity", 1.0)
        super().__post_init__()


@registered_dataclass("discrete_laplace")
class DiscreteLaplaceMechanism(_WholeNumbers):
    """Discrete Laplace noise, also called geometric, on a whole number: P(noise = k) ∝ exp(−|k|/scale).

    The law is that of [GRS]. Without bounds the value is a statistic, such as a count, whose epsilon is `sensitivity`
    over `scale` (central differential privacy); with bounds it is each record's own number, clipped.

    Parameters
    ----------
    scale : array_like
        Of the noise, positive, as OpenDP's; an array holds one a released value.
    lower, upper, columns, perturbed, sensitivity
        As for `AdditiveMechanism`, whole numbers; the sensitivity of a statistic is 1 by default, that of a count.
    """

    noise = property(lambda self: unchecked(laws.DiscreteLaplace, self.scale))


@registered_dataclass("discrete_gaussian")
class DiscreteGaussianMechanism(_WholeNumbers):
    """Discrete Gaussian noise on a whole number: P(noise = k) ∝ exp(−k²/(2 scale²)) ([CKS]).

    The parameters are those of `DiscreteLaplaceMechanism`; the scale is nearly the standard deviation, above 1.
    """

    noise = property(lambda self: unchecked(laws.DiscreteGaussian, self.scale))
