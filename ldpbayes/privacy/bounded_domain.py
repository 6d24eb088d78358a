"""Trade-off curves of noise in a bounded domain: its law is cut off at the ends of the domain and renormalised."""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from ldpbayes._core.checks import POSITIVE
from ldpbayes._core.pytrees import ruled
from ldpbayes._core.types import Array
from ldpbayes.privacy.tradeoffs import (
    LARGEST_LOG_SLOPE,
    GaussianTradeoff,
    LaplaceTradeoff,
    ParametricTradeoff,
    PureProtocolTradeoff,
    SeparateTradeoff,
    SymmetricTradeoff,
    Tradeoff,
)

ROUNDING = 1e-15  # of delta, which is stated larger by it
HALVINGS = 60  # of the interval in which an epsilon is


class _Law(NamedTuple):
    """A symmetric law of scale 1 with a log-concave density f."""

    half: Callable  # P(0 ≤ noise ≤ t), an odd function
    below: Callable  # P(noise ≤ t)
    log_ratio: Callable  # log f(t)/f(t − distance), of (t, distance)
    cut: Callable  # up to which t that is larger, of (log ratio, distance)
    tradeoff: Callable[[float], Tradeoff]  # of inputs at a distance, without a domain

    def between(self, low: Array, high: Array) -> np.ndarray:
        """P(low ≤ noise ≤ high) for low ≤ min(high, 0)."""
        return np.where(high > -1, self.half(high) - self.half(low), self.below(high) - self.below(low))


_LAPLACE = _Law(
    lambda t: -np.sign(t) * np.expm1(-np.abs(t)) / 2,
    lambda t: np.exp(np.minimum(t, 0.0)) / 2 - np.expm1(-np.maximum(t, 0.0)) / 2,
    lambda t, distance: np.abs(t - distance) - np.abs(t),
    lambda ratio, distance: np.where(ratio < distance, (distance - ratio) / 2, -np.inf),
    LaplaceTradeoff,
)
_NORMAL = _Law(
    lambda t: special.erf(t / np.sqrt(2)) / 2,
    special.ndtr,
    lambda t, distance: distance * (distance / 2 - t),
    lambda ratio, distance: distance / 2 - ratio / distance,
    GaussianTradeoff,
)


def _exp(epsilon: Array) -> np.ndarray:
    return np.exp(np.minimum(epsilon, LARGEST_LOG_SLOPE))


@dataclasses.dataclass(frozen=True, eq=False)
class _Bound(SymmetricTradeoff):
    """The curve of one bound of delta."""

    bound: Callable[[np.ndarray], np.ndarray]
    _bends = True

    def _delta(self, epsilon: np.ndarray) -> np.ndarray:
        return self.bound(epsilon)


@dataclasses.dataclass(frozen=True, eq=False)
class _OfWidth(ParametricTradeoff):
    """The curve of one width w and step s. Let c(x) = P(0 ≤ x + noise ≤ w), which is log-concave and largest at w/2.

    The log ratio of the densities of inputs x < y falls in z, so that a best test of x against y rejects for z < t. As
    P(z < t) falls in the input, no pair is told better than the ends 0 and w. Of pairs at most s apart, with a
    likelihood ratio that is that of the plain noise times c(y)/c(x) ≤ exp(κ) = c(s)/c(0), three bounds of delta hold,
    of which the least is taken: of the ends; of any law with the same largest log ratio; and that of the plain noise at
    ε − κ, divided by c(0) ≤ c(x).
    """

    law: _Law
    width: float
    step: float

    @functools.cached_property
    def pure(self) -> float:
        """Epsilon at delta = 0: the largest log ratio at z = 0 of inputs x and x + s. It is monotone in x for both laws:
        log c falls ever faster, and for normal noise −log of the density at 0 is convex in x.
        """
        x = np.array([0.0, self.width - self.step])
        return float(np.max(self.law.log_ratio(-x, self.step) + np.log(self._inside(x + self.step) / self._inside(x))))

    def _inside(self, x: Array) -> np.ndarray:
        return self.law.half(x) + self.law.half(self.width - x)

    def _of_ends(self, epsilon: np.ndarray) -> np.ndarray:
        at, slope = np.clip(self.law.cut(epsilon, self.width), 0.0, self.width), _exp(epsilon)
        seen = self.law.between(0.0, at) - slope * self.law.between(-self.width, at - self.width)
        return np.maximum(seen / self._inside(0.0), 0.0) + ROUNDING

    def _of_any_law(self, epsilon: np.ndarray) -> np.ndarray:
        return PureProtocolTradeoff(self.pure, special.expit(self.pure)).delta(epsilon)

    def _of_plain_noise(self, epsilon: np.ndarray) -> np.ndarray:
        away = epsilon - np.log(self._inside(self.step) / self._inside(0.0))
        delta, slope = self.law.tradeoff(self.step).delta(np.abs(away)), _exp(np.minimum(away, 0.0))
        return np.where(away < 0, 1 - slope + slope * delta, delta) / self._inside(0.0) + ROUNDING

    @property
    def _bounds(self) -> list[Callable[[np.ndarray], np.ndarray]]:
        """Bounds of delta, convex in exp(epsilon), that hold at once."""
        apart = self.step < self.width
        return [self._of_ends, *([self._of_any_law, self._of_plain_noise] if apart else [])]

    def _type_ii_error(self, alpha: np.ndarray) -> np.ndarray:
        return functools.reduce(np.maximum, [_Bound(bound)._type_ii_error(alpha) for bound in self._bounds])

    def _delta(self, epsilon: np.ndarray) -> np.ndarray:
        least = functools.reduce(np.minimum, [bound(epsilon) for bound in self._bounds])
        return np.where(epsilon < self.pure, np.minimum(least, 1.0), 0.0)

    def _epsilon(self, delta: np.ndarray) -> np.ndarray:
        low, high = np.zeros_like(delta), np.full_like(delta, self.pure)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            enough = self._delta(middle) <= delta
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.where(self._delta(np.zeros_like(delta)) <= delta, 0.0, high)


@dataclasses.dataclass(frozen=True, eq=False)
class BoundedDomainTradeoff(SeparateTradeoff):
    """Base of trade-off curves of noise that is cut off at the ends of a domain and renormalised: for inputs that are
    at most `step` ≤ `width` apart in a domain of a `width`, both in scales of the noise, each a number or an array.

    If the step is the width, the curve is exact. Otherwise epsilon at delta = 0 is exact, and the rest is a bound.
    """

    width: Array = ruled(POSITIVE)
    step: Array = ruled(POSITIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if np.any(np.greater(self.step, self.width)):
            raise ValueError(f"step must be at most the width of the domain, got {self!r}")


class BoundedLaplaceTradeoff(BoundedDomainTradeoff):
    """Trade-off curve of Laplace noise in a bounded domain ([HABM])."""

    _curve = functools.partial(_OfWidth, _LAPLACE)


class BoundedGaussianTradeoff(BoundedDomainTradeoff):
    """Trade-off curve of Gaussian noise in a bounded domain ([Liu])."""

    _curve = functools.partial(_OfWidth, _NORMAL)
