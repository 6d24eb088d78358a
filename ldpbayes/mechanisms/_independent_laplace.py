"""Independent Laplace noise in several columns."""

import dataclasses
import math

from ldpbayes._pytree import unchecked
from ldpbayes.mechanisms._registry import register
from ldpbayes.mechanisms._symmetric_laplace import ScaledMechanism
from ldpbayes.noise import Laplace, WithPublicRecords

__all__ = ["IndependentLaplaceMechanism"]


@register("independent_laplace")
@dataclasses.dataclass(frozen=True)
class IndependentLaplaceMechanism(ScaledMechanism):
    """Independent Laplace noise in every perturbed column.

    The guarantee for an attribute is the exact curve; that for a record of several columns is what its epsilon alone
    implies, the curve of randomized response, which is a little below the exact one.

    Parameters
    ----------
    scale : array_like
        λ, the standard deviation of the noise in each column (the Laplace scale is λ/√2), in the unit of the data; an
        array holds one a record. A record of scale 0 is public: released as it is.
    lower, upper, columns, perturbed
        As for `SymmetricLaplaceMechanism`.

    Raises
    ------
    ValueError
        If a parameter is out of range or of the wrong shape.
    """

    @property
    def noise(self) -> WithPublicRecords:  # type: ignore[override]
        """The noise of records whose scale is positive."""
        return unchecked(WithPublicRecords, unchecked(Laplace, self.scale / math.sqrt(2)))
