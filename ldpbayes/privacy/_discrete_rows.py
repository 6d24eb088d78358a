"""How well two rows of integers with discrete Gaussian noise in each column can be told.

At rows that are v apart, an integer vector, the log likelihood ratio at a released row k is v·k/scale² but for a
constant. So a test needs the integer v·k only, which is |v|² apart for the two rows, and whose noise is a sum of v_j
times discrete Gaussian variables. This law is not that of one column: (1, 1, 1, 1) is told from 0 by an integer of four
times the variance, which takes four times as many values per standard deviation as that of (2, 0, 0, 0).
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ldpbayes._checks import checked
from ldpbayes.privacy._finite import Polygon, upper_hull
from ldpbayes.privacy._tradeoff import GaussianTradeoff, PureProtocolTradeoff, Tradeoff, _positive

__all__ = ["DiscreteGaussianRowsTradeoff"]

SMALL = 16.0  # scale up to which the integer vectors are gone through ...
SHORT = 36  # ... where their squared lengths are at most this: 43 of them
FAR = 26.0  # standard deviations beyond which the noise is taken to give the rows away ...
BEYOND = 1e-140  # ... with this probability, of which exp(−26²/2) = 1e-147 in some columns leaves much


@dataclasses.dataclass(frozen=True, eq=False)
class DiscreteGaussianRowsTradeoff(Tradeoff):
    """Two rows of integers, at most some Euclidean distance apart, with discrete Gaussian noise in every column.

    Where scale and distance are small, it is the exact curve of the worst integer vectors between the rows: the hull
    over all. Elsewhere it is a curve just below theirs. A discrete Gaussian variable of variance σ² is, up to a factor
    of 1 ± 2 exp(−2π²τ²), made from a normal one of variance σ² − τ² by random rounding, to integers with discrete
    Gaussian weights of variance τ² around it. So no test does better than between normal rows of this variance, for a
    τ² (about 2) at which these factors, of all columns together, are lost in rounding.

    Parameters
    ----------
    scale : array_like
        Of the noise, positive and finite.
    distance : array_like
        Largest Euclidean distance of the two rows, at least 1.
    columns : int
        How many columns the rows have.
    """

    scale: ArrayLike
    distance: ArrayLike
    columns: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _positive("scale", self.scale))
        allowed = "finite, at least 1"
        distance = checked("distance", self.distance, allowed, lambda a: (a >= 1) & (a < np.inf))
        object.__setattr__(self, "distance", distance)

    def __call__(self, alpha: ArrayLike) -> Any:
        """Smallest type II error at level `alpha`."""
        return self._map(lambda curve, alpha: curve(alpha), alpha)

    def delta(self, epsilon: ArrayLike) -> Any:
        """Largest power less exp(epsilon) times the level."""
        return self._map(lambda curve, epsilon: curve.delta(epsilon), epsilon)

    def epsilon(self, delta: ArrayLike) -> Any:
        """Inverse of `delta`; 0 where 0 is enough."""
        return self._map(lambda curve, delta: curve.epsilon(delta), delta)

    def _map(self, function: Any, argument: ArrayLike) -> Any:
        """Apply a function of the curve at each scale and distance to its arguments."""
        argument, scale, distance = np.broadcast_arrays(np.asarray(argument, float), self.scale, self.distance)
        squared = np.floor(distance**2 * (1 + 1e-12))  # of integer vectors
        result = np.empty(argument.shape)
        for one in set(zip(scale.ravel().tolist(), squared.ravel().tolist(), strict=True)):
            here = (scale == one[0]) & (squared == one[1])
            result[here] = function(_curve(one[0], int(one[1]), self.columns), argument[here])
        return result[()]


@functools.lru_cache(maxsize=256)
def _curve(scale: float, squared: int, columns: int) -> Tradeoff:
    if scale <= SMALL and squared <= SHORT:
        corners = np.array([[0.0, 0.0], [1.0, 1.0]])
        for vector in _longest((), squared, columns):
            tests = _tests(scale, vector)
            corners = upper_hull(np.concatenate([corners, tests[tests[:, 1] > np.interp(tests[:, 0], *corners.T)]]))
        return Polygon(*corners.T)
    # 4 exp(−2π²τ²) in every column that may differ is 2^-53 together
    kept = scale**2 - math.log(min(columns, squared) * 2.0**55) / (2 * math.pi**2)
    return GaussianTradeoff(math.sqrt(squared / kept)) if kept > 0 else PureProtocolTradeoff(math.inf, 1.0)


def _longest(start: tuple[int, ...], left: int, columns: int) -> Iterator[tuple[int, ...]]:
    """Integer vectors that go on from `start`, never increasing, none of which can be made longer in a column.

    A longer one is told more easily, since the noise is log-concave.
    """
    for entry in range(min((*start[-1:], math.isqrt(left))), 0, -1) if columns else ():
        yield from _longest((*start, entry), left - entry**2, columns - 1)
    if left < (1 if columns else 2 * start[-1] + 1):
        yield start


def _tests(scale: float, vector: tuple[int, ...]) -> np.ndarray:
    """(level, power) of the tests that reject where v·k is large, an array (tests, 2)."""
    law = np.ones(1)
    for j, entry in enumerate(vector):
        # the law of entry times one column's noise, then of the sum so far, each cut where nothing is left
        most = math.ceil(FAR * scale) + 1
        one = np.zeros(2 * most * entry + 1)
        one[::entry] = np.exp(-((np.arange(-most, most + 1) / scale) ** 2) / 2)
        law = np.convolve(law, one / one.sum())
        beyond = max(len(law) // 2 - math.ceil(FAR * scale * math.hypot(*vector[: j + 1])) - entry, 0)
        law = law[beyond : len(law) - beyond]
    apart = sum(entry**2 for entry in vector)
    tails = np.append(np.cumsum(law), np.ones(apart))  # by symmetry P(noise ≥ most), P(noise ≥ most − 1), ...
    level = np.append(np.zeros(apart), tails[:-apart])
    return np.minimum(np.stack([level, tails + BEYOND], axis=1), 1.0)
