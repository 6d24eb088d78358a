"""Smoothed doubly random (SDR) estimation, for smooth losses."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ldpbayes._pytree import pytree, static
from ldpbayes.estimation.corrections._analysts_noise import DRAWS, WithDraws, again, scales
from ldpbayes.estimation.corrections._correction import is_symmetric_laplace, is_zero_inflated
from ldpbayes.estimation.corrections._evidence import Corrected, Evidence, Laplacians, Points
from ldpbayes.estimation.losses._loss import Loss
from ldpbayes.mechanisms import Additive
from ldpbayes.noise import Noise

__all__ = ["SmoothedDoublyRandom"]


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class SmoothedDoublyRandom(WithDraws):
    """ℓ(X⁽¹⁾) − ½ (1 − δ) λ² Δℓ(X⁽¹⁾ + S), for zero-inflated symmetric Laplace noise ([LCQ] sec. 6).

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

    name: ClassVar[str] = "sdr"
    only_smooth: ClassVar[bool] = True

    def takes(self, noise: Noise, columns: int) -> bool:
        """Zero-inflated symmetric Laplace noise; see `Correction.takes`."""
        return is_zero_inflated(noise) and is_symmetric_laplace(noise, columns)

    def derivatives(self, columns: int) -> int:
        """Two: those of the Laplacian; see `Correction.derivatives`."""
        return 2

    def evidence(
        self, loss: Loss, mechanism: Additive, rows: jax.Array, key: Any, *, everywhere: bool = True
    ) -> Evidence:
        """The corrected loss; see `Correction.evidence`."""
        delta, scale = scales(mechanism, rows)
        second = again(mechanism, rows, key, self.draws, None, self.cuts)
        first = Points(rows[None], jnp.ones((1, len(rows)), rows.dtype))
        return Evidence.of(Corrected((first, Laplacians(second.rows, -0.5 * (1 - delta) * scale**2 * second.weights))))
