"""Trade-off curves of noise on whole numbers."""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ldpbayes._core.checks import checked
from ldpbayes.numerics.special import log_theta
from ldpbayes.privacy.tradeoffs import (
    GaussianTradeoff,
    Polygon,
    PureProtocolTradeoff,
    Tradeoff,
    _epsilon,
    _gaussian_log_delta,
    _positive,
    _probability,
    upper_hull,
)

LARGE = 64.0  # scale from which sums are integrals with Euler and Maclaurin's corrections
STEEP = 0.625  # decrease, in logs, of neighbouring terms up to which they are
ORDERS = 16  # of these corrections: relative to the sum the next is below (0.625/2π)^16 = 1e-16
FAR = 40.0  # scales beyond which there is nothing: exp(-800)
NEAR = 9  # scales beyond which a tail has nothing more to sum: exp(-81/2)
CHUNK = 1 << 20  # terms at a time
_BERNOULLI = special.bernoulli(ORDERS)


def _distance(value: ArrayLike) -> Any:
    allowed = "a positive integer"
    return checked("distance", value, allowed, lambda a: (a >= 1) & (a < np.inf) & (a == np.floor(a)))


@dataclasses.dataclass(frozen=True, eq=False)
class DiscreteLaplaceTradeoff(Tradeoff):
    """Two discrete Laplace laws, P(k) ∝ exp(−|k|/scale), whose centres are an integer apart.

    With a = exp(−1/scale), P(noise ≥ m) = a^m/(1 + a) for m ≥ 0. The logarithm of the likelihood ratio is
    ±distance/scale beyond the centres and runs in steps of 2/scale between them, so the vertices are the tests that
    reject from m = 1, ..., distance on: level a^m/(1 + a), type II error a^(distance + 1 − m)/(1 + a).

    Parameters
    ----------
    scale : array_like
        Of the noise, positive and finite.
    distance : array_like
        Between the two inputs, a positive integer.
    """

    scale: ArrayLike
    distance: ArrayLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _positive("scale", self.scale))
        object.__setattr__(self, "distance", _distance(self.distance))

    def __call__(self, alpha: ArrayLike) -> Any:
        """Smallest type II error at level `alpha`."""
        alpha = np.asarray(_probability("alpha", alpha))
        scale, d, a = np.asarray(self.scale), np.asarray(self.distance), self._ratio
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            log_alpha = np.log(alpha)
            log_level = log_alpha + np.log1p(a)
            steep = -np.expm1(np.minimum(d / scale + log_alpha, 0.0))
            # the test rejects from m on, and at m − 1 with some probability
            m = np.clip(np.ceil(-log_level * scale), 1.0, d)
            middle = np.exp((m - d - 1) / scale) * (1 + a - np.exp(log_level + (m - 1) / scale)) / (1 + a)
        shallow = np.exp(-d / scale) * (1 - alpha)
        # between the first and the last vertex, a/(1 + a) and a^distance/(1 + a)
        return np.where(log_level <= -d / scale, steep, np.where(alpha * (1 + a) >= a, shallow, middle))[()]

    def delta(self, epsilon: ArrayLike) -> Any:
        """P(reject) under one input less exp(epsilon) times that under the other, for the test with this threshold."""
        epsilon = np.asarray(_epsilon(epsilon))
        scale, d, a = np.asarray(self.scale), np.asarray(self.distance), self._ratio
        # the test rejects from the first m on at which (2 m − distance)/scale exceeds epsilon
        m = np.minimum(np.floor((epsilon * scale + d) / 2) + 1, d)
        found = -(np.expm1(-np.maximum(m / scale - epsilon, 0.0)) + a * np.expm1((m - d) / scale)) / (1 + a)
        return np.where(epsilon < d / scale, found, 0.0)[()]

    def epsilon(self, delta: ArrayLike) -> Any:
        """Inverse of `delta`; 0 where 0 is enough."""
        delta = np.asarray(_probability("delta", delta))
        scale, d, a = np.asarray(self.scale), np.asarray(self.distance), self._ratio
        with np.errstate(divide="ignore"):
            # delta is 1 − a^(distance − m) at epsilon = (2 m − distance)/scale
            m = np.clip(np.ceil(d + np.log1p(-delta) * scale), 1.0, d)
            share = delta * (1 + a) + a * np.expm1((m - d) / scale)
            return np.maximum(m / scale + np.log1p(-np.clip(share, 0.0, 1.0)), 0.0)[()]

    @property
    def _ratio(self) -> Any:
        return np.exp(-1 / np.asarray(self.scale))


@dataclasses.dataclass(frozen=True, eq=False)
class DiscreteGaussianTradeoff(Tradeoff):
    """Two discrete Gaussian laws, P(k) ∝ exp(−k²/(2 scale²)), whose centres are an integer apart.

    The logarithm of the likelihood ratio at k is distance·(2 k − distance)/(2 scale²). With T(m) = P(noise ≥ m), the
    vertices are the tests that reject from m on: level T(m), type II error T(distance + 1 − m); delta is
    T(m − distance) − exp(epsilon) T(m) ([CKS] Theorem 7).

    Parameters
    ----------
    scale : array_like
        Of the noise, positive and finite.
    distance : array_like
        Between the two inputs, a positive integer.
    """

    scale: ArrayLike
    distance: ArrayLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _positive("scale", self.scale))
        object.__setattr__(self, "distance", _distance(self.distance))

    def __call__(self, alpha: ArrayLike) -> Any:
        """Smallest type II error at level `alpha`."""
        alpha, scale, d = np.broadcast_arrays(_probability("alpha", alpha), self.scale, self.distance)
        reach = np.ceil(FAR * scale) + 2
        # the first m with T(m) ≤ alpha; there and at m − 1 the test rejects, at m − 1 with some probability
        m = _first(lambda m: np.exp(gaussian_log_tail(m, scale)) <= alpha, -reach, reach)
        level, at = np.exp(gaussian_log_tail(m - 1, scale)), np.exp(_log_mass(m - 1, scale))
        with np.errstate(divide="ignore", invalid="ignore"):
            kept = np.where(at > 0, np.clip((level - alpha) / at, 0.0, 1.0), 0.0)
        beta = np.exp(gaussian_log_tail(d + 2 - m, scale)) + kept * np.exp(_log_mass(m - 1 - d, scale))
        return np.where(alpha == 0, 1.0, np.where(alpha == 1, 0.0, np.minimum(beta, 1.0)))[()]

    def log_delta(self, epsilon: ArrayLike) -> Any:
        """Log of `delta`, to nearly full relative precision also where delta itself underflows."""
        return _log_delta(self.scale, self.distance, _epsilon(epsilon))[()]

    def delta(self, epsilon: ArrayLike) -> Any:
        """P(reject) under one input less exp(epsilon) times that under the other, for the test with this threshold."""
        return np.exp(self.log_delta(epsilon))

    def epsilon(self, delta: ArrayLike) -> Any:
        """Inverse of `delta`: the line between two values of the ratio is solved; 0 where 0 is enough, inf at 0."""
        delta, scale, d = np.broadcast_arrays(_probability("delta", delta), self.scale, self.distance)

        def ratio(m: np.ndarray) -> np.ndarray:
            return np.maximum(d * (2 * m - d) / (2 * scale**2), 0.0)

        # the first m beyond both centres' middle at whose ratio delta is no larger than asked for
        m = _first(
            lambda m: np.exp(_log_delta(scale, d, ratio(m))) <= delta,
            np.floor(d / 2),
            d + np.ceil(FAR * scale) + 2,
        )
        above = ratio(m)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            lacking = delta - np.exp(_log_delta(scale, d, above))
            share = lacking * np.exp(-above - gaussian_log_tail(m, scale))
            found = np.maximum(above + np.log1p(-np.clip(share, 0.0, 1.0)), 0.0)
            enough = delta >= np.exp(_log_delta(scale, d, 0.0))
        return np.where(enough, 0.0, np.where(delta > 0, found, np.inf))[()]


def _first(test: Any, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The first integer in (low, high] at which a test that turns true once does so; high where it does not before."""
    low, high = np.array(low, float), np.array(high, float)
    while np.any(high - low > 1):
        middle = np.floor((low + high) / 2)
        found = test(middle)
        low, high = np.where(found, low, middle), np.where(found, middle, high)
    return high


def _log_mass(k: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return -((k / scale) ** 2) / 2 - log_theta(np, scale)


def gaussian_log_tail(m: ArrayLike, scale: ArrayLike) -> np.ndarray:
    """Log of P(noise ≥ m) for discrete Gaussian noise.

    Parameters
    ----------
    m : array_like
        Integers.
    scale : array_like
        Of the noise, positive.

    Returns
    -------
    ndarray
        Of the broadcast shape, to rounding.
    """
    m, scale = np.broadcast_arrays(np.asarray(m, float), np.asarray(scale, float))
    above = np.where(m > 0, m, 1 - m)
    with np.errstate(divide="ignore"):
        tail = _where(_is_smooth(above, scale), _integral_tail, _sum_tail, above, scale)
        return np.where(m > 0, tail, np.log1p(-np.exp(tail)))


def _is_smooth(k: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Whether sums from k on are integrals with corrections: neighbouring terms have to be nearly equal."""
    return (scale >= LARGE) & (k <= STEEP * scale**2)


def _where(condition: np.ndarray, one: Any, other: Any, *arguments: np.ndarray) -> np.ndarray:
    """`np.where` of two functions, each of which is only called with the arguments at which it counts."""
    result = np.empty(condition.shape)
    for here, function in ((condition, one), (~condition, other)):
        if here.any():
            result[here] = function(*(argument[here] for argument in arguments))
    return result


def _terms(start: np.ndarray, scale: np.ndarray) -> Any:
    """How many terms from `start` on are worth summing, in parts of the arrays small enough for memory."""
    falling = 2 * NEAR**2 * scale**2 / np.maximum(start, 1.0)
    needed = np.where(start > 0, np.minimum(NEAR * scale, falling), 2 * NEAR * scale)
    terms = np.arange(math.ceil(np.max(needed)) + 3.0)
    step = max(CHUNK // len(terms), 1)
    for first in range(0, len(scale), step):
        yield terms, np.s_[first : first + step, None]


def _sum_tail(m: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """`gaussian_log_tail` for m ≥ 1 by summing it."""
    totals = [
        np.sum(np.exp(-terms * (m[part] + terms / 2) / scale[part] ** 2), axis=1) for terms, part in _terms(m, scale)
    ]
    return _log_mass(m, scale) + np.log(np.concatenate(totals))


def _integral_tail(m: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """`gaussian_log_tail` for m ≥ 1: the normal tail, half the first term, and the first term's odd derivatives.

    The n-th derivative of the mass at m is that times (−1)^n He_n(m/scale)/scale^n.
    """
    x = m / scale
    before, hermite = np.ones_like(x), x
    total = np.sqrt(np.pi / 2) * special.erfcx(x / math.sqrt(2)) + 0.5 / scale
    for n in range(1, ORDERS):
        total += _BERNOULLI[n + 1] / math.factorial(n + 1) * hermite / scale ** (n + 1)  # 0 for even n
        before, hermite = hermite, x * hermite - n * before
    return _log_mass(m, scale) + np.log(scale * total)


def _log_delta(scale: ArrayLike, distance: ArrayLike, epsilon: ArrayLike) -> np.ndarray:
    scale, d, epsilon = np.broadcast_arrays(*(np.asarray(a, float) for a in (scale, distance, epsilon)))
    # the real k at which the ratio is exp(epsilon)
    k = epsilon * (scale / d) * scale + d / 2
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):

        def smooth_delta(*arguments: np.ndarray) -> np.ndarray:
            return _where(arguments[1] < arguments[2], _integral_delta, _tails_delta, *arguments)

        return _where(_is_smooth(k, scale), smooth_delta, _sum_delta, k, d, scale, epsilon)


def _sum_delta(k: np.ndarray, d: np.ndarray, scale: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    """Log delta as the sum of P(j) (1 − exp(epsilon − log ratio at j + distance)) over the j > k − distance."""
    start = np.maximum(np.floor(k) + 1 - d, -np.ceil(NEAR * scale))  # below it there is nothing to sum
    largest = np.maximum(start, 0.0)
    totals = []
    for terms, part in _terms(start, scale):
        j, square = start[part] + terms, scale[part] ** 2
        steps = d[part] / square * (j + d[part] / 2) - epsilon[part]
        relative = np.exp((largest[part] - j) * (largest[part] + j) / (2 * square))
        totals.append(np.sum(relative * -np.expm1(-np.maximum(steps, 0.0)), axis=1))
    return _log_mass(largest, scale) + np.log(np.concatenate(totals))


def _integral_delta(k: np.ndarray, d: np.ndarray, scale: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    """Log delta of laws less than a scale apart: that of normal laws, with Euler and Maclaurin's corrections at k.

    There P(k − distance) − exp(epsilon) P(k) is 0, and its n-th derivative is P(k − distance) times
    (He_n(a) − He_n(b)) (−1/scale)^n, a = (k − distance)/scale and b = k/scale. The differences, over a − b, follow a
    recurrence of their own and lose nothing.
    """
    a, b, past = (k - d) / scale, k / scale, np.floor(k) + 1 - k
    correction = np.zeros_like(a)
    slope_before, slope, before, hermite = np.zeros_like(a), np.ones_like(a), np.ones_like(a), b
    for n in range(1, ORDERS):
        # Bernoulli's polynomial of order n + 1, at the distance from k to the first integer that is rejected
        polynomial = sum(special.binom(n + 1, j) * _BERNOULLI[j] * past ** (n + 1 - j) for j in range(n + 2))
        correction += (-1) ** n * polynomial / math.factorial(n + 1) * slope / scale**n
        slope_before, slope = slope, a * slope + hermite - n * slope_before
        before, hermite = hermite, b * hermite - n * before
    normal = _gaussian_log_delta(d / scale, epsilon)
    first = -(a**2) / 2 - math.log(2 * math.pi) / 2 + np.log(d / scale**2)
    return normal + np.log1p(correction * np.exp(first - normal))


def _tails_delta(k: np.ndarray, d: np.ndarray, scale: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    """Log delta of laws a scale apart or more, whose two tails hardly cancel."""
    m = np.floor(k) + 1
    upper = gaussian_log_tail(m - d, scale)
    return upper + np.log(-np.expm1(np.minimum(epsilon + gaussian_log_tail(m, scale) - upper, 0.0)))


SMALL = 16.0  # scale up to which the integer vectors are gone through ...
SHORT = 36  # ... where their squared lengths are at most this: 43 of them
ROWS_FAR = 26.0  # standard deviations beyond which the noise is taken to give the rows away ...
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
        most = math.ceil(ROWS_FAR * scale) + 1
        one = np.zeros(2 * most * entry + 1)
        one[::entry] = np.exp(-((np.arange(-most, most + 1) / scale) ** 2) / 2)
        law = np.convolve(law, one / one.sum())
        beyond = max(len(law) // 2 - math.ceil(ROWS_FAR * scale * math.hypot(*vector[: j + 1])) - entry, 0)
        law = law[beyond : len(law) - beyond]
    apart = sum(entry**2 for entry in vector)
    tails = np.append(np.cumsum(law), np.ones(apart))  # by symmetry P(noise ≥ most), P(noise ≥ most − 1), ...
    level = np.append(np.zeros(apart), tails[:-apart])
    return np.minimum(np.stack([level, tails + BEYOND], axis=1), 1.0)
