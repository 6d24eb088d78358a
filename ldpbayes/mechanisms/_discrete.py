"""Noise on whole numbers: on a count or a sum of many records, or on each record's own."""

import dataclasses
from typing import Any

import numpy as np

from ldpbayes._pytree import optional, static, unchecked
from ldpbayes.mechanisms._additive import Additive
from ldpbayes.mechanisms._registry import register
from ldpbayes.noise import DiscreteGaussian, DiscreteLaplace

__all__ = ["DiscreteGaussianMechanism", "DiscreteLaplaceMechanism"]


@dataclasses.dataclass(frozen=True)
class _WholeNumbers(Additive):
    """The fields of both mechanisms, with the sensitivity of a count: 1."""

    scale: Any
    lower: Any = None
    upper: Any = None
    columns: Any = static(default=None, omitted=True)
    perturbed: Any = static(default=None, omitted=True)
    sensitivity: Any = optional()

    def __post_init__(self) -> None:
        self._check("scale", "positive and finite", lambda a: (a > 0) & (a < np.inf))
        if self.lower is None and self.upper is None and self.sensitivity is None:
            object.__setattr__(self, "sensitivity", 1.0)
        self._check_columns_and_bounds()
        self._check_noise()


@register("discrete_laplace")
@dataclasses.dataclass(frozen=True)
class DiscreteLaplaceMechanism(_WholeNumbers):
    """Discrete Laplace noise, also called geometric, on a whole number: P(noise = k) ∝ exp(−|k|/scale).

    Without bounds what is released is a statistic of many records, such as a count, and the guarantee is that of one of
    them (central differential privacy): epsilon is `sensitivity` over `scale`. With bounds it is each record's own
    number, clipped. Sources: [GRS]; `scale` is OpenDP's.

    Parameters
    ----------
    scale : array_like
        Of the noise, positive; an array holds one a released value.
    lower, upper : array_like, optional
        Clipping bounds of a record, whole numbers; neither for a statistic.
    columns, perturbed
        As for `AdditiveMechanism`.
    sensitivity : float, optional
        Of a statistic: how far adding, removing or changing one record can move it, a whole number; 1 by default, that
        of a count.

    Raises
    ------
    ValueError
        If a parameter is out of range, or not a whole number where it must be one.
    """

    @property
    def noise(self) -> DiscreteLaplace:  # type: ignore[override]
        """Discrete Laplace noise of this scale."""
        return unchecked(DiscreteLaplace, self.scale)


@register("discrete_gaussian")
@dataclasses.dataclass(frozen=True)
class DiscreteGaussianMechanism(_WholeNumbers):
    """Discrete Gaussian noise on a whole number: P(noise = k) ∝ exp(−k²/(2 scale²)) ([CKS]).

    Parameters
    ----------
    scale : array_like
        Of the noise, positive: nearly its standard deviation, above 1; an array holds one a released value.
    lower, upper, columns, perturbed, sensitivity
        As for `DiscreteLaplaceMechanism`.

    Raises
    ------
    ValueError
        If a parameter is out of range, or not a whole number where it must be one.
    """

    @property
    def noise(self) -> DiscreteGaussian:  # type: ignore[override]
        """Discrete Gaussian noise of this scale."""
        return unchecked(DiscreteGaussian, self.scale)
