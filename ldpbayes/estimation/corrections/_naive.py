"""The loss at face value: of released records as if they were the original ones."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ldpbayes._pytree import pytree
from ldpbayes.estimation.corrections._correction import Correction
from ldpbayes.estimation.corrections._evidence import Corrected, Evidence, Points
from ldpbayes.estimation.losses._loss import Loss
from ldpbayes.mechanisms import Additive
from ldpbayes.noise import Noise

__all__ = ["Naive"]


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Naive(Correction):
    """ℓ(X⁽¹⁾): no correction, so that the estimate is biased, as with any measurement error."""

    name: ClassVar[str] = "naive"

    def takes(self, noise: Noise, columns: int) -> bool:
        """Any noise; see `Correction.takes`."""
        return True

    def evidence(
        self, loss: Loss, mechanism: Additive, rows: jax.Array, key: Any, *, everywhere: bool = True
    ) -> Evidence:
        """The loss itself; see `Correction.evidence`."""
        return Evidence.of(Corrected((Points(rows[None], jnp.ones((1, len(rows)), rows.dtype)),)))

    def exact(self, mechanism: Additive) -> Any:
        """All, being taken for such; see `Correction.exact`."""
        return 1.0
