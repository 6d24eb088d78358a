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
    """Laplace noise for a privacy budget, added to a clipped number, to columns of a row, or to a statistic ([DMNS]).

    With bounds, the guarantee protects each record. The sensitivity is then the range of a record (for a row, the sum
    of the ranges). Without bounds, the guarantee protects each person in a statistic, which one record can change by at
    most `sensitivity`.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget in nats, positive and finite. An array has one personal budget for each record.
    lower, upper, columns, perturbed, sensitivity : optional
        Clipping bounds in the unit of the data, and options for rows and statistics: see `AdditiveMechanism`.

    Examples
    --------
    >>> ldp.LaplaceMechanism(epsilon=1.0, lower=0, upper=20).scale
    20.0
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
        """Return the mechanism with scale b in the unit of the data. `options` are those of `AdditiveMechanism`."""
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
    """Symmetric multivariate Laplace noise SL_d(λ² I), added to a number or to d columns of a row ([LCQ] sec. 3).

    Parameters
    ----------
    scale : array_like
        λ, the standard deviation in each column, in the unit of the data. An array has one λ for each record. A record
        with λ = 0 is public: it is released without noise.
    lower, upper, columns, perturbed
        Clipping bounds (required) in the unit of the data, and options for rows: see `AdditiveMechanism`.

    Examples
    --------
    >>> print(ldp.SymmetricLaplaceMechanism(scale=10.0, lower=0, upper=20).guarantee.epsilon(0.0).round(3))
    2.828
    """

    noise = property(lambda self: unchecked(laws.WithPublicRecords, unchecked(laws.SymmetricLaplace, self.scale)))


@registered_dataclass("independent_laplace")
class IndependentLaplaceMechanism(_StatedDeviation):
    """Independent Laplace noise in every perturbed column.

    See `SymmetricLaplaceMechanism` for the parameters. The scale λ is √2 times the scale b of Laplace noise. The
    guarantee for an attribute is the exact curve. The guarantee for a record of several columns is the curve of
    randomized response with an equal epsilon, which is slightly below the exact curve.
    """

    noise = property(lambda self: unchecked(laws.WithPublicRecords, unchecked(laws.Laplace, self.scale / math.sqrt(2))))


@registered_dataclass("zero_inflated_laplace")
class ZeroInflatedLaplaceMechanism(Additive):
    """Symmetric Laplace noise, omitted for some records at random: ZIL(δ, λ² I) ([LCQ] Definition 3.1).

    In many dimensions, or if the bounds are narrow compared with the scale, a reader can often recognise the records
    without noise. `ldpbayes.privacy.zil_parameters` computes the scale for a privacy target.

    Parameters
    ----------
    zero_probability : array_like
        δ, the probability that a record gets no noise, strictly between 0 and 1. An array has one δ for each record.
    scale, lower, upper, columns, perturbed
        See `SymmetricLaplaceMechanism`. The scale is for the records that get noise.

    Examples
    --------
    >>> print(ldp.ZeroInflatedLaplaceMechanism(0.01, scale=10.0, lower=0, upper=20).guarantee.epsilon(0.02).round(3))
    2.808
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
    """Gaussian noise for a privacy target, added to a number, to columns of a row, or to a statistic ([BW] Theorem 8).

    With bounds, the guarantee protects each record. The sensitivity is then the range of a record (for a row, the
    diagonal of the box of bounds). Without bounds, the guarantee protects each person in a statistic, which one record
    can change by at most `sensitivity`. `scale` is the smallest standard deviation for the privacy target. If you map
    over budgets with JAX, map over `scale` as well.

    Parameters
    ----------
    epsilon, delta : array_like
        Privacy target: a budget in nats, positive and finite, and a probability in (0, 1). Arrays hold one for each
        record. Raises ValueError if they are traced, as the calibration runs in NumPy.
    lower, upper, columns, perturbed, sensitivity : optional
        Clipping bounds in the unit of the data, and options for rows and statistics: see `AdditiveMechanism`.

    Examples
    --------
    >>> round(ldp.GaussianMechanism(epsilon=1.0, delta=1e-6, lower=0, upper=20).scale, 2)
    84.49
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
        """Return the mechanism with this noise, in the unit of the data; `options` are those of `AdditiveMechanism`."""
        return AdditiveMechanism(laws.Gaussian(standard_deviation), lower, upper, **options)

    @classmethod
    def classical(
        cls, epsilon: Array, delta: Array, lower: Array = None, upper: Array = None, **options: Any
    ) -> AdditiveMechanism:
        """Return the mechanism with standard deviation √(2 log(1.25/δ)) Δ/ε, the classical rule ([DR] Theorem A.1).

        Δ is the sensitivity. For ε < 1, (ε, δ) needs less noise. For large ε, this noise is too small, and
        ``mechanism.guarantee.delta(epsilon)`` is the δ that holds. `options` are those of `AdditiveMechanism`.
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
    """Staircase noise for a privacy budget, added to a clipped number ([GV]).

    With the best γ, no other noise that keeps the budget has a smaller variance or a smaller mean absolute value.
    Compared with Laplace noise, the gain is large for large budgets and vanishes for small budgets.

    Parameters
    ----------
    epsilon, lower, upper : array_like
        Budget in nats and clipping bounds in the unit of the data, as for `LaplaceMechanism`; bounds are required.
    gamma : array_like, optional
        γ, in (0, 1]: the share of a step at which the density jumps. Default: `optimal_gamma`, of least variance.
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

    The law is from [GRS]. Without bounds, the released value is a statistic, such as a count, and epsilon is
    `sensitivity` over `scale` (central model). With bounds, each record is clipped and gets noise (local model).

    Parameters
    ----------
    scale : array_like
        Positive scale of the noise in the unit of the data, as in OpenDP. An array has one for each released value.
    lower, upper, columns, perturbed, sensitivity : optional
        See `AdditiveMechanism`; here they are whole numbers. Without bounds the default sensitivity is 1.

    Examples
    --------
    >>> print(ldp.DiscreteLaplaceMechanism(scale=2.0).guarantee.epsilon(0.0))
    0.5
    """

    noise = property(lambda self: unchecked(laws.DiscreteLaplace, self.scale))


@registered_dataclass("discrete_gaussian")
class DiscreteGaussianMechanism(_WholeNumbers):
    """Discrete Gaussian noise on a whole number: P(noise = k) ∝ exp(−k²/(2 scale²)) ([CKS]).

    Parameters
    ----------
    scale, lower, upper, columns, perturbed, sensitivity
        See `DiscreteLaplaceMechanism`. A scale above 1 is nearly the standard deviation of the noise.

    Examples
    --------
    >>> print(ldp.DiscreteGaussianMechanism(scale=2.0).guarantee.epsilon(1e-6).round(3))
    2.276
    """

    noise = property(lambda self: unchecked(laws.DiscreteGaussian, self.scale))
