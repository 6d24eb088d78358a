"""Symmetric Laplace noise that is left out with some probability."""

import dataclasses
from typing import Any

import numpy as np

from ldpbayes._pytree import static, unchecked
from ldpbayes.mechanisms._additive import Additive
from ldpbayes.mechanisms._registry import register
from ldpbayes.noise import SymmetricLaplace, ZeroInflated

__all__ = ["ZeroInflatedLaplaceMechanism"]


@register("zero_inflated_laplace")
@dataclasses.dataclass(frozen=True)
class ZeroInflatedLaplaceMechanism(Additive):
    """Symmetric Laplace noise that is left out with some probability: ZIL(δ, λ² I) ([LCQ] Definition 3.1).

    With probability `zero_probability` a record is released exactly as it is, all its columns together. In many
    dimensions, or where the bounds are narrow against the scale, whoever sees the release can often tell which records
    those are.

    Parameters
    ----------
    zero_probability : array_like
        δ, between 0 and 1, exclusive; an array holds one a record.
    scale : array_like
        λ, the standard deviation of the noise in each column where there is noise, in the unit of the data; an
        array holds one a record. A record of scale 0 is public: released as it is.
    lower, upper, columns, perturbed
        As for `SymmetricLaplaceMechanism`.

    Raises
    ------
    ValueError
        If a parameter is out of range or of the wrong shape.

    See Also
    --------
    ldpbayes.privacy.zil_parameters : the scale for a privacy target.
    """

    zero_probability: Any
    scale: Any
    lower: Any
    upper: Any
    columns: Any = static(default=None)
    perturbed: Any = static(default=None)

    def __post_init__(self) -> None:
        self._check("zero_probability", "between 0 and 1, exclusive", lambda a: (a > 0) & (a < 1))
        self._check("scale", "non-negative and finite", lambda a: (a >= 0) & (a < np.inf))
        self._check_columns_and_bounds()
        self._check_noise()

    @property
    def noise(self) -> ZeroInflated:  # type: ignore[override]
        """The noise, where there is some, and the probability that there is none."""
        return unchecked(ZeroInflated, unchecked(SymmetricLaplace, self.scale), self.zero_probability)
