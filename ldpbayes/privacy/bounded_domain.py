"""The trade-off curve of noise in a bounded domain: its law is cut off at the ends of the domain and renormalised."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from ldpbayes._core.checks import POSITIVE
from ldpbayes._core.pytrees import ruled
from ldpbayes._core.types import Array
from ldpbayes.privacy import tradeoffs

ROUNDING = 1e-15  # of a probability, by which deltas are larger
LARGEST_EPSILON = 1e300  # larger ones are stated as infinite
EPSILON_HALVINGS = 60  # of the interval in which an epsilon is


class _Law(NamedTuple):
    """A symmetric law of scale 1 with a log-concave density f."""

    half: Callable  # P(0 ≤ noise ≤ t) for t ≥ 0
    below: Callable  # P(noise ≤ −t) for t ≥ 0
    log_ratio: Callable  # log f(t)/f(t + distance) for t ≥ 0
    cut: Callable  # up to which t log f(t)/f(t − distance) is larger than a number, of (number, distance)
    tradeoff: Callable[[Any], tradeoffs.Tradeoff]  # of inputs at a distance, without a domain


LAWS = {
    "laplace": _Law(
        lambda t: -np.expm1(-t) / 2,
        lambda t: np.exp(-t) / 2,
        lambda t, distance: distance,
        lambda ratio, distance: np.where(ratio < distance, (distance - ratio) / 2, 0.0),
        tradeoffs.LaplaceTradeoff,
    ),
    "gaussian": _Law(
        lambda t: special.erf(t / np.sqrt(2)) / 2,
        lambda t: special.ndtr(-t),
        lambda t, distance: distance * (t + distance / 2),
        lambda ratio, distance: distance / 2 - ratio / distance,
        tradeoffs.GaussianTradeoff,
    ),
}


def _exp(epsilon: Array) -> np.ndarray:
    return np.exp(np.minimum(epsilon, tradeoffs.LARGEST_LOG_SLOPE))


@dataclasses.dataclass(frozen=True, eq=False)
class _Bound(tradeoffs.SymmetricTradeoff):
    """The curve of one bound of delta."""

    _delta: Callable[[np.ndarray], np.ndarray]  # type: ignore[misc]
    _bends = True


@dataclasses.dataclass(frozen=True, eq=False)
class _OfWidth(tradeoffs.ParametricTradeoff):
    """The curves of widths w and steps s, arrays like the arguments. Let c(x) = P(0 ≤ x + noise ≤ w), a log-concave
    function, with c(0) the least.

    The log ratio of the densities of inputs x < y falls in z, so a best test rejects for z < t or for z > t. As
    P(z < t) falls in the input, pairs that are s apart are told best; if s = w, these are the ends 0 and w. Else delta
    has three bounds that are convex in exp(ε): that of the ends; that of any two laws with this largest log ratio; and,
    as the likelihood ratio of x and x + s is that of the plain noise times c(x + s)/c(x) ≤ exp(κ) = c(s)/c(0), that of
    the plain noise at ε − κ, divided by c(0).
    """

    law: _Law
    width: np.ndarray
    step: np.ndarray

    @functools.cached_property
    def pure(self) -> np.ndarray:
        """Epsilon at delta = 0: the largest log ratio at z = 0 of x and x + s. It is monotone in x: log c is concave,
        and minus the log density of normal noise at z = 0 is convex in x.
        """
        x = np.stack([np.zeros_like(self.width), self.width - self.step])
        ratios = self.law.log_ratio(x, self.step) + np.log(self._inside(x + self.step) / self._inside(x))
        return np.max(ratios, axis=0)

    def _inside(self, x: Array) -> np.ndarray:
        return self.law.half(x) + self.law.half(self.width - x)

    def _of_ends(self, epsilon: np.ndarray) -> np.ndarray:
        t = np.clip(self.law.cut(epsilon, self.width), 0.0, self.width)
        missed = self.law.below(self.width - t) - self.law.below(self.width)
        return (np.maximum(self.law.half(t) - _exp(epsilon) * missed, 0.0) + ROUNDING) / self.law.half(self.width)

    def _of_any_laws(self, epsilon: np.ndarray) -> np.ndarray:
        return tradeoffs.PureProtocolTradeoff(self.pure, special.expit(self.pure)).delta(epsilon)

    def _of_plain_noise(self, epsilon: np.ndarray) -> np.ndarray:
        least = self._inside(0.0)
        away = epsilon - np.log(self._inside(self.step) / least)
        delta, slope = self.law.tradeoff(self.step).delta(np.abs(away)), _exp(np.minimum(away, 0.0))
        return (np.where(away < 0, 1 - slope + slope * delta, delta) + ROUNDING) / least

    @property
    def _bounds(self) -> Sequence[Callable[[np.ndarray], np.ndarray]]:
        return self._of_ends, self._of_any_laws, self._of_plain_noise

    def _type_ii_error(self, alpha: np.ndarray) -> np.ndarray:
        return functools.reduce(np.maximum, [_Bound(bound)._type_ii_error(alpha) for bound in self._bounds])

    def _delta(self, epsilon: np.ndarray) -> np.ndarray:
        least = functools.reduce(np.minimum, [bound(epsilon) for bound in self._bounds])
        return np.where(epsilon < self.pure, np.minimum(least, 1.0), 0.0)

    def _epsilon(self, delta: np.ndarray) -> np.ndarray:
        low, high = np.zeros_like(delta), np.minimum(self.pure, LARGEST_EPSILON)
        for _ in range(EPSILON_HALVINGS):
            middle = (low + high) / 2
            enough = self._delta(middle) <= delta
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        high = np.where(high < LARGEST_EPSILON, high, np.inf)
        return np.where(self._delta(np.zeros_like(delta)) <= delta, 0.0, high)


@dataclasses.dataclass(frozen=True, eq=False)
class BoundedDomainTradeoff(tradeoffs.ParametricTradeoff):
    """The curve of noise that is cut off at the ends of a domain ([HABM]; [Liu]), for inputs at most `step` ≤ `width`
    apart, both in scales of the noise. It is exact if they are equal; else it is a bound, exact at delta = 0 only.
    """

    law: str
    width: Array = ruled(POSITIVE)
    step: Array = ruled(POSITIVE)

    def _at(self, formula: str, argument: Array) -> Array:
        argument, *lengths = self._broadcast(argument)
        return _OfWidth(LAWS[self.law], *lengths)._at(formula, argument)
