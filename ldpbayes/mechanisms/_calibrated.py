"""Additive mechanisms that are named after their noise, and made from a privacy budget or from a scale."""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

import ldpbayes.noise as laws
from ldpbayes._core.checks import FINITE, INSIDE_0_1, NOT_NEGATIVE, ONE_ABOVE_0, POSITIVE, SHARE, checked
from ldpbayes._core.pytrees import ruled, static, unchecked
from ldpbayes._core.types import Array, is_concrete
from ldpbayes.mechanisms.additive import Additive, AdditiveMechanism, ColumnNames, ColumnSubset
from ldpbayes.mechanisms.protocol import PiecewiseConstant
from ldpbayes.mechanisms.registry import registered_dataclass
from ldpbayes.privacy import Guarantee, LaplaceTradeoff, gaussian_scale


@registered_dataclass(
    "laplace", "Laplace noise for a privacy budget, on a clipped number, on columns of a row, or on a statistic."
)
class LaplaceMechanism(Additive):
    """Laplace noise for a privacy budget, added to a clipped number, to columns of a row, or to a statistic ([DMNS]).

    The scale of the noise is the sensitivity divided by epsilon. With bounds, every record gets noise; the sensitivity
    is then upper − lower, summed over the perturbed columns of a row. With `sensitivity`, noise is added once, to a
    statistic of many records. The guarantee then protects each person in the statistic.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget in nats, positive and finite: one number, or one personal budget for each record.
    lower, upper, columns, perturbed, sensitivity : optional
        As in `AdditiveMechanism`.

    Examples
    --------
    >>> ldp.LaplaceMechanism(epsilon=1.0, lower=0, upper=20).scale
    20.0
    """

    epsilon: Array = ruled(POSITIVE)
    lower: Array = None
    upper: Array = None
    columns: ColumnNames = static(default=None)
    perturbed: ColumnSubset = static(default=None)
    sensitivity: Array = ruled(ONE_ABOVE_0, default=None)
    scale = property(lambda self: _diameter(self, 1) / self.epsilon, doc="Laplace's b: sensitivity over epsilon.")
    noise = property(lambda self: unchecked(laws.Laplace, self.scale))

    @classmethod
    def from_scale(cls, scale: Array, lower: Array = None, upper: Array = None, **options: Any) -> AdditiveMechanism:
        """Return an `AdditiveMechanism`, with further `options`, for Laplace's b = `scale` in the unit of the data."""
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


@registered_dataclass(
    "symmetric_laplace", "Symmetric multivariate Laplace noise on a clipped number or on clipped columns of a row."
)
class SymmetricLaplaceMechanism(_StatedDeviation):
    """`SymmetricLaplace` noise, added to a clipped number or to clipped columns of a row ([LCQ] sec. 3).

    Parameters
    ----------
    scale : array_like
        Standard deviation λ ≥ 0 of the noise in each column, in the unit of the data: one number, or one for each
        record. A record with λ = 0 is public: it is released without noise.
    lower, upper, columns, perturbed
        As in `AdditiveMechanism`.

    Examples
    --------
    >>> print(ldp.SymmetricLaplaceMechanism(scale=10.0, lower=0, upper=20).guarantee.epsilon(0.0).round(3))
    2.828
    """

    noise = property(lambda self: unchecked(laws.WithPublicRecords, unchecked(laws.SymmetricLaplace, self.scale)))


@registered_dataclass(
    "independent_laplace", "Independent Laplace noise on a number, or in every perturbed column of a row."
)
class IndependentLaplaceMechanism(_StatedDeviation):
    """Independent Laplace noise on a number, or in every perturbed column of a row.

    `SymmetricLaplaceMechanism` describes the parameters; Laplace's b in a column is scale/√2. The guarantee for records
    that differ in several columns is a curve slightly below the exact one, as `Laplace.tradeoff` describes.
    """

    noise = property(lambda self: unchecked(laws.WithPublicRecords, unchecked(laws.Laplace, self.scale / math.sqrt(2))))


@registered_dataclass("zero_inflated_laplace", "Symmetric Laplace noise that is omitted for some records at random.")
class ZeroInflatedLaplaceMechanism(Additive):
    """Symmetric Laplace noise that is omitted for some records at random ([LCQ] Definition 3.1).

    Records without noise can often be recognised in the release, if records have many columns or if the bounds are
    narrow compared with the scale. `ldpbayes.privacy.zil_parameters` computes the scale for a privacy target.

    Parameters
    ----------
    zero_probability : array_like
        Probability δ in (0, 1) that a record gets no noise: one number, or one number for each record.
    scale, lower, upper, columns, perturbed
        As in `SymmetricLaplaceMechanism`.

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


@registered_dataclass(
    "gaussian", "Gaussian noise for a privacy target, on a number, on columns of a row, or on a statistic."
)
class GaussianMechanism(Additive):
    """Gaussian noise for a privacy target, added to a number, to columns of a row, or to a statistic ([BW] Theorem 8).

    The attribute `scale` is the smallest standard deviation that gives (epsilon, delta)-differential privacy,
    proportional to the sensitivity. With bounds, every record gets noise; the sensitivity is then upper − lower, of
    rows its Euclidean norm over the perturbed columns. With `sensitivity`, noise is added once, to a statistic of many
    records. The guarantee then protects each person in the statistic.

    Parameters
    ----------
    epsilon, delta : array_like
        Privacy target: epsilon in nats, positive and finite, and delta in (0, 1), each one number or one for each
        record. JAX tracers raise a ValueError, because NumPy computes `scale`: `jax.vmap` over them must also map over
        `scale`.
    lower, upper, columns, perturbed, sensitivity : optional
        As in `AdditiveMechanism`.

    Examples
    --------
    >>> round(ldp.GaussianMechanism(epsilon=1.0, delta=1e-6, lower=0, upper=20).scale, 2)
    84.49
    """

    epsilon: Array = ruled(POSITIVE)
    delta: Array = ruled(INSIDE_0_1)
    lower: Array = None
    upper: Array = None
    columns: ColumnNames = static(default=None)
    perturbed: ColumnSubset = static(default=None)
    sensitivity: Array = ruled(ONE_ABOVE_0, default=None)
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
        """Return an `AdditiveMechanism`, with further `options`, for a `standard_deviation` in the unit of the data."""
        return AdditiveMechanism(laws.Gaussian(standard_deviation), lower, upper, **options)

    @classmethod
    def classical(
        cls, epsilon: Array, delta: Array, lower: Array = None, upper: Array = None, **options: Any
    ) -> AdditiveMechanism:
        """Return an `AdditiveMechanism`, with further `options`, of standard deviation √(2 log(1.25/δ)) Δ/ε for
        sensitivity Δ ([DR] Theorem A.1). That is more noise than needed for ε < 1, and too little for large ε.
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
    concrete = is_concrete(mechanism.lower, mechanism.upper)
    xp = np if concrete else jnp
    widths = xp.atleast_1d(xp.subtract(mechanism.upper, mechanism.lower))  # one for all columns, or one for each
    distance = xp.linalg.norm(widths, norm) * (mechanism.dimension / len(widths)) ** (1 / norm)
    return float(distance) if concrete else distance


@registered_dataclass("staircase", "Staircase noise for a privacy budget, on a clipped number.")
class StaircaseMechanism(Additive, PiecewiseConstant):
    """Staircase noise for a privacy budget, added to a clipped number ([GV]).

    `ldpbayes.noise.Staircase` is the law. With the default γ, no other noise with this budget has a smaller variance.
    The gain over Laplace noise is large for large budgets, and vanishes for small budgets.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget in nats, positive and finite: one number, or one number for each record.
    lower, upper : array_like
        As in `AdditiveMechanism`.
    gamma : array_like, optional
        Number γ in (0, 1], which places the jumps of the density. Default: the γ of the least variance.
    """

    epsilon: Array = ruled(POSITIVE)
    lower: Array = ruled(FINITE)
    upper: Array = ruled(FINITE)
    gamma: Array = ruled(SHARE, default=None)
    columns = perturbed = None

    def __post_init__(self) -> None:
        super().__post_init__()
        with np.errstate(all="ignore"):
            if is_concrete(self) and not np.all(np.isfinite(self.noise.variance)):
                raise ValueError(f"the variance of the noise must be finite, got inf in {self!r}")

    @property
    def noise(self) -> laws.Staircase:  # type: ignore[override]
        gamma = laws.Staircase.optimal_gamma(self.epsilon) if self.gamma is None else self.gamma
        return unchecked(laws.Staircase, self.upper - self.lower, self.epsilon, gamma)

    def pieces(self, z: ArrayLike) -> tuple[Array, Array]:
        return self.noise.pieces(z, self.lower, self.upper)


@dataclasses.dataclass(frozen=True)
class _WholeNumberMechanism(Additive):
    """Noise of whole numbers; without bounds and sensitivity it is for a count, which one record moves by 1."""

    scale: Array = ruled(POSITIVE)
    lower: Array = None
    upper: Array = None
    columns: ColumnNames = static(default=None)
    perturbed: ColumnSubset = static(default=None)
    sensitivity: Array = ruled(ONE_ABOVE_0, default=None)

    def __post_init__(self) -> None:
        if self.lower is None and self.upper is None and self.sensitivity is None:
            object.__setattr__(self, "sensitivity", 1.0)
        super().__post_init__()


@registered_dataclass(
    "discrete_laplace", "Discrete Laplace (geometric) noise on a whole number: P(noise = k) ∝ exp(−|k|/scale)."
)
class DiscreteLaplaceMechanism(_WholeNumberMechanism):
    """Discrete Laplace (geometric) noise on a whole number: P(noise = k) ∝ exp(−|k|/scale) ([GRS]).

    Without bounds, the released value is a statistic of many records, such as a count (central model), and the budget
    is `sensitivity`/`scale`. With bounds, each record is clipped and gets its own noise (local model).

    Parameters
    ----------
    scale : array_like
        Scale of the noise in the unit of the data, positive (as in OpenDP): one number, or one for each released value.
    lower, upper, columns, perturbed : optional
        As in `AdditiveMechanism`. Bounds are whole numbers.
    sensitivity : float, optional
        Largest change of the statistic if one record changes, a whole number. Default: 1 if there are no bounds.

    Examples
    --------
    >>> print(ldp.DiscreteLaplaceMechanism(scale=2.0).guarantee.epsilon(0.0))
    0.5
    """

    noise = property(lambda self: unchecked(laws.DiscreteLaplace, self.scale))


@registered_dataclass(
    "discrete_gaussian", "Discrete Gaussian noise on a whole number: P(noise = k) ∝ exp(−k²/(2 scale²))."
)
class DiscreteGaussianMechanism(_WholeNumberMechanism):
    """Discrete Gaussian noise on a whole number: P(noise = k) ∝ exp(−k²/(2 scale²)) ([CKS]).

    `DiscreteLaplaceMechanism` describes the parameters. A scale above 1 is nearly the standard deviation of the noise.

    Examples
    --------
    >>> print(ldp.DiscreteGaussianMechanism(scale=2.0).guarantee.epsilon(1e-6).round(3))
    2.276
    """

    noise = property(lambda self: unchecked(laws.DiscreteGaussian, self.scale))
