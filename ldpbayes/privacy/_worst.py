"""The worst of several pairs of inputs, where none is the worst at every level of a test."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ldpbayes.privacy._tradeoff import Tradeoff, _probability

__all__ = ["WorstTradeoff"]

FARTHEST = 700.0  # log slope beyond which a tangent of the curve is no longer told from 0
GOLDEN = (math.sqrt(5) - 1) / 2
STEPS = 80  # each narrows the log slope by the golden section: 1,400 become 3e-14


@dataclasses.dataclass(frozen=True, eq=False)
class WorstTradeoff(Tradeoff):
    """The worst of several curves: delta is the largest of theirs, the curve the convex minorant of the smallest.

    So it is what records promise that may differ in one of several things which are released under noise of different
    kinds. Records that differ in all of them at once have the product of the curves instead ([DRS] Definition 3.1).

    Parameters
    ----------
    tradeoffs : sequence of Tradeoff
        Symmetric curves, at least one. Their parameters broadcast against each other.
    """

    tradeoffs: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "tradeoffs", tuple(self.tradeoffs))
        object.__setattr__(self, "zero_probability", self._largest(curve.zero_probability for curve in self.tradeoffs))

    @staticmethod
    def _largest(values: Any) -> Any:
        return functools.reduce(np.maximum, values)

    def __call__(self, alpha: ArrayLike) -> Any:
        """Smallest type II error at level `alpha`: the highest tangent 1 − δ(t) − exp(t) α, over all log slopes t."""
        smallest = -self._largest(-np.asarray(curve(alpha)) for curve in self.tradeoffs)
        alpha = np.broadcast_to(_probability("alpha", alpha), smallest.shape)

        def tangent(t: np.ndarray) -> np.ndarray:
            # of a symmetric curve, that of slope −exp(−t) is exp(−t) (1 − δ(t) − α)
            delta = self.delta(np.abs(t))
            return np.where(t < 0, np.exp(np.minimum(t, 0.0)) * (1 - delta - alpha), 1 - delta - np.exp(t) * alpha)

        with np.errstate(divide="ignore"):
            low, high = np.full(alpha.shape, -FARTHEST), np.clip(-np.log(alpha), 0.0, FARTHEST)
        # a tangent is concave in its slope, so that the golden section narrows in on the highest, never going above it
        for _ in range(STEPS):
            one, other = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
            left = tangent(one) >= tangent(other)
            low, high = np.where(left, low, one), np.where(left, other, high)
        found = np.clip(tangent((low + high) / 2), 0.0, smallest)
        return np.where((alpha == 0) | (alpha == 1), smallest, found)[()]

    def delta(self, epsilon: ArrayLike) -> Any:
        """The largest."""
        return self._largest(curve.delta(epsilon) for curve in self.tradeoffs)

    def epsilon(self, delta: ArrayLike) -> Any:
        """The largest."""
        return self._largest(curve.epsilon(delta) for curve in self.tradeoffs)
