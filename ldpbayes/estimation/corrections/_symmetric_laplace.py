"""The symmetric Laplace (SL) correction, for smooth losses."""

import dataclasses
from typing import Any, ClassVar

import jax

from ldpbayes._pytree import pytree, static
from ldpbayes.estimation.corrections._analysts_noise import (
    DRAWS,
    again,
    check_draws,
    checked_cuts,
    checked_draws,
    scales,
)
from ldpbayes.estimation.corrections._correction import Correction, is_symmetric_laplace
from ldpbayes.estimation.corrections._evidence import Corrected, Evidence, Laplacians
from ldpbayes.estimation.losses._loss import Loss
from ldpbayes.mechanisms import Additive
from ldpbayes.noise import Noise

__all__ = ["SymmetricLaplaceCorrection"]


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class SymmetricLaplaceCorrection(Correction):
    """ℓ(X⁽¹⁾ + S) − ½ λ² Δℓ(X⁽¹⁾ + S), for symmetric Laplace noise, zero-inflated or not ([LCQ] eq. 6.1).

    In one column Laplace noise is symmetric Laplace noise. If it is not zero-inflated S is 0.

    Parameters
    ----------
    draws, cuts
        As for `DoublyRandom`.

    Raises
    ------
    ValueError
        For an option out of range.
    """

    draws: Any = static(default=DRAWS)
    cuts: Any = static(default=())

    name: ClassVar[str] = "sl"
    only_smooth: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", checked_draws(self.draws))
        object.__setattr__(self, "cuts", checked_cuts(self.cuts))

    def takes(self, noise: Noise, columns: int) -> bool:
        """Symmetric Laplace noise, zero-inflated or not; see `Correction.takes`."""
        return is_symmetric_laplace(noise, columns)

    def derivatives(self, columns: int) -> int:
        """Two: those of the Laplacian; see `Correction.derivatives`."""
        return 2

    def settled(self, mechanism: Additive) -> "SymmetricLaplaceCorrection":
        """See `Correction.settled`."""
        check_draws(self.draws, mechanism)
        return self

    def evidence(
        self, loss: Loss, mechanism: Additive, rows: jax.Array, key: Any, *, everywhere: bool = True
    ) -> Evidence:
        """The corrected loss; see `Correction.evidence`."""
        _, scale = scales(mechanism, rows)
        second = again(mechanism, rows, key, self.draws, None, self.cuts)
        return Evidence.of(Corrected((second, Laplacians(second.rows, -0.5 * scale**2 * second.weights))))
