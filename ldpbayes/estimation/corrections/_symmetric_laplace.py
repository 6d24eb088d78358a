"""The symmetric Laplace (SL) correction, for smooth losses."""

import dataclasses
from typing import Any, ClassVar

import jax

from ldpbayes._pytree import pytree, static
from ldpbayes.estimation.corrections._analysts_noise import DRAWS, WithDraws, again, scales
from ldpbayes.estimation.corrections._correction import is_symmetric_laplace
from ldpbayes.estimation.corrections._evidence import Corrected, Evidence, Laplacians
from ldpbayes.estimation.losses._loss import Loss
from ldpbayes.mechanisms import Additive
from ldpbayes.noise import Noise

__all__ = ["SymmetricLaplaceCorrection"]


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class SymmetricLaplaceCorrection(WithDraws):
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

    def takes(self, noise: Noise, columns: int) -> bool:
        """Symmetric Laplace noise, zero-inflated or not; see `Correction.takes`."""
        return is_symmetric_laplace(noise, columns)

    def derivatives(self, columns: int) -> int:
        """Two: those of the Laplacian; see `Correction.derivatives`."""
        return 2

    def evidence(
        self, loss: Loss, mechanism: Additive, rows: jax.Array, key: Any, *, everywhere: bool = True
    ) -> Evidence:
        """The corrected loss; see `Correction.evidence`."""
        _, scale = scales(mechanism, rows)
        second = again(mechanism, rows, key, self.draws, None, self.cuts)
        return Evidence.of(Corrected((second, Laplacians(second.rows, -0.5 * scale**2 * second.weights))))
