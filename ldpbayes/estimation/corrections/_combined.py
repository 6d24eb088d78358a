"""All scores that apply, and what the support says, in their best linear combination."""

import dataclasses
from typing import Any, ClassVar

import jax

from ldpbayes._pytree import pytree
from ldpbayes.estimation.corrections._correction import Correction
from ldpbayes.estimation.corrections._doubly_random import DoublyRandom
from ldpbayes.estimation.corrections._evidence import Corrected, Evidence
from ldpbayes.estimation.corrections._smoothed_doubly_random import SmoothedDoublyRandom
from ldpbayes.estimation.corrections._support import controls, settled_support
from ldpbayes.estimation.losses._loss import Loss
from ldpbayes.mechanisms import Additive

__all__ = ["Combined"]


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Combined(DoublyRandom):
    """The asymptotically best linear combination of unbiased scores, by two-step GMM ([Hansen]).

    They are doubly random scores with and without the support, the smoothed doubly random one where the loss is smooth,
    and functions that have mean zero because no record lies outside the support.

    Parameters
    ----------
    draws, support, cuts
        As for `DoublyRandom`.

    Raises
    ------
    ValueError
        For an option out of range.
    """

    name: ClassVar[str] = "combined"
    beyond: ClassVar[bool] = True

    def derivatives(self, columns: int) -> int:
        """Two, where the loss has them; see `Correction.derivatives`."""
        return 2

    def evidence(
        self, loss: Loss, mechanism: Additive, rows: jax.Array, key: Any, *, everywhere: bool = True
    ) -> Evidence:
        """All corrected losses, and the functions of mean zero; see `Correction.evidence`."""
        support = settled_support(self.support, mechanism)
        keys = jax.random.split(key)
        options: dict[str, Any] = {"draws": self.draws, "cuts": self.cuts}

        def criterion(method: Correction, key: Any) -> Corrected:
            return method.evidence(loss, mechanism, rows, key, everywhere=everywhere).criteria[0]

        # where the loss is smooth, the smoothed doubly random, the doubly random and the symmetric Laplace correction
        # of the same draws are on one line: two of them say all
        methods: list[Correction] = [DoublyRandom(support=None, **options)]
        if loss.smooth:
            methods = [SmoothedDoublyRandom(**options), *methods]
        whole = [criterion(method, keys[0]) for method in methods] if everywhere else []
        if support is None:
            return Evidence.of(*whole)
        inner = DoublyRandom(support=support, **options)
        return Evidence.of(criterion(inner, keys[1]), *whole, controls=controls(mechanism, rows, support))
