"""Symmetric multivariate Laplace noise."""

import dataclasses
from typing import Any

import numpy as np

from ldpbayes._pytree import static, unchecked
from ldpbayes.mechanisms._additive import Additive
from ldpbayes.mechanisms._registry import register
from ldpbayes.noise import SymmetricLaplace, WithPublicRecords

__all__ = ["ScaledMechanism", "SymmetricLaplaceMechanism"]


@dataclasses.dataclass(frozen=True)
class ScaledMechanism(Additive):
    """Noise whose standard deviation is stated and may be 0, for public records; the fields are those of both names."""

    scale: Any
    lower: Any
    upper: Any
    columns: Any = static(default=None)
    perturbed: Any = static(default=None)

    def __post_init__(self) -> None:
        self._check("scale", "non-negative and finite", lambda a: (a >= 0) & (a < np.inf))
        self._check_columns_and_bounds()
        self._check_noise()


@register("symmetric_laplace")
@dataclasses.dataclass(frozen=True)
class SymmetricLaplaceMechanism(ScaledMechanism):
    """Symmetric multivariate Laplace noise SL_d(λ² I) on a number or on columns of a row ([LCQ] sec. 3).

    Parameters
    ----------
    scale : array_like
        λ, the standard deviation of the noise in each column, in the unit of the data; an array holds one a
        record. A record of scale 0 is public: released as it is.
    lower, upper : array_like
        Clipping bounds of the perturbed columns, numbers or arrays (d,) in the order in which `perturbed` names them.
        Choose them without looking at the data.
    columns : int or sequence of str, optional
        How many columns a row has, or what they are called. By default a record is one number.
    perturbed : sequence of int or str, optional
        The columns that get noise; the others are released as they are. By default all. They are kept in the order of
        the row, and arrays of bounds with them.

    Raises
    ------
    ValueError
        If a parameter is out of range or of the wrong shape.
    """

    @property
    def noise(self) -> WithPublicRecords:  # type: ignore[override]
        """The noise of records whose scale is positive."""
        return unchecked(WithPublicRecords, unchecked(SymmetricLaplace, self.scale))
