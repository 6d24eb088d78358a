"""Doubly random (DR) estimation: unbiased for any loss, with kinks and jumps too."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ldpbayes._pytree import pytree, static
from ldpbayes.estimation.corrections._analysts_noise import DRAWS, WithDraws, again, scales
from ldpbayes.estimation.corrections._correction import is_symmetric_laplace, is_zero_inflated
from ldpbayes.estimation.corrections._evidence import Corrected, Evidence, Points
from ldpbayes.estimation.corrections._support import BOUNDS, brought_inside, checked_support, inside, settled_support
from ldpbayes.estimation.losses._loss import Loss
from ldpbayes.mechanisms import Additive
from ldpbayes.noise import Noise

__all__ = ["DoublyRandom"]


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class DoublyRandom(WithDraws):
    """ℓ(X⁽¹⁾)/δ + (1 − 1/δ) ℓ(X⁽¹⁾ + S), for zero-inflated symmetric Laplace noise ([LCQ] Theorem 5.1).

    It is unbiased for any loss that is integrable, so also for ℓ(x)·1[x ∈ 𝒳] with the known support 𝒳 of the records:
    nothing is then asked of the loss elsewhere. `draws=1` and `support=None` are the paper's estimator.

    Parameters
    ----------
    draws : int or "exact"
        Draws of the analyst's own noise S to average over, a record. "exact" integrates instead, for one perturbed
        column.
    support : "bounds", (lower, upper) or None
        Where the original records are known to lie, in the perturbed columns: between the mechanism's bounds, between
        these numbers or arrays over the perturbed columns, or anywhere.
    cuts : sequence of float
        Kinks of the loss in the perturbed column, where ``draws="exact"`` is to cut its integrals.

    Raises
    ------
    ValueError
        For an option out of range.
    """

    draws: Any = static(default=DRAWS)
    support: Any = BOUNDS
    cuts: Any = static(default=())

    name: ClassVar[str] = "dr"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "support", checked_support(self.support))

    def takes(self, noise: Noise, columns: int) -> bool:
        """Zero-inflated symmetric Laplace noise; see `Correction.takes`."""
        return is_zero_inflated(noise) and is_symmetric_laplace(noise, columns)

    def settled(self, mechanism: Additive) -> "DoublyRandom":
        """With the support as arrays; see `Correction.settled`."""
        return dataclasses.replace(super().settled(mechanism), support=settled_support(self.support, mechanism))

    def evidence(
        self, loss: Loss, mechanism: Additive, rows: jax.Array, key: Any, *, everywhere: bool = True
    ) -> Evidence:
        """The corrected loss; see `Correction.evidence`."""
        support = settled_support(self.support, mechanism)
        delta, _ = scales(mechanism, rows)
        second = again(mechanism, rows, key, self.draws, support, self.cuts)
        here = inside(rows[:, mechanism.index], support).astype(rows.dtype) / delta
        # a point outside is never looked at: the loss need not be defined there
        first = rows if support is None else brought_inside(rows, mechanism.index, support)
        points = jnp.concatenate([first[None], second.rows])
        return Evidence.of(Corrected((Points(points, jnp.concatenate([here, (1 - 1 / delta) * second.weights])),)))
