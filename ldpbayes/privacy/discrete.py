"""Trade-off curves of noise on whole numbers."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ldpbayes._core.checks import WHOLE_SCALE
from ldpbayes._core.pytrees import ruled
from ldpbayes._core.types import Array
from ldpbayes.numerics.special import log_theta
from ldpbayes.privacy import tradeoffs
from ldpbayes.privacy.tradeoffs import GaussianTradeoff, LogTradeoff, ParametricTradeoff, SeparateTradeoff


@dataclasses.dataclass(frozen=True, eq=False)
class _IntegerTradeoff(ParametricTradeoff):
    """Two laws on the integers whose centres are `distance` apart, a positive integer."""

    scale: Array = ruled(WHOLE_SCALE)
    distance: Array = ruled(
        ("a positive integer up to 2**53", lambda a: (a >= 1) & (a <= 2.0**53) & (a == np.floor(a)))
    )


@dataclasses.dataclass(frozen=True, eq=False)
class DiscreteLaplaceTradeoff(_IntegerTradeoff):
    """Trade-off curve of discrete Laplace noise: laws P(k) ∝ exp(−|k|/`scale`) whose centres differ by an integer
    `distance` ≥ 1. It is linear between vertices, of tests that reject from m = 1, ..., distance on: of level a^m/(1 +
    a) and type II error a^(distance + 1 − m)/(1 + a), with a = exp(−1/scale). Scale and distance are arrays or numbers
    in the unit of the data.
    """

    def _type_ii_error(self, alpha: np.ndarray, scale: np.ndarray, d: np.ndarray) -> np.ndarray:
        a, log_alpha = np.exp(-1 / scale), np.log(alpha)
        log_level = log_alpha + np.log1p(a)
        steep = -np.expm1(np.minimum(d / scale + log_alpha, 0.0))
        # the test rejects from m on, and at m − 1 with some probability
        m = np.clip(np.ceil(-log_level * scale), 1.0, d)
        middle = np.exp((m - d - 1) / scale) * (1 + a - np.exp(log_level + (m - 1) / scale)) / (1 + a)
        shallow = np.exp(-d / scale) * (1 - alpha)
        # between the first and the last vertex, a/(1 + a) and a^distance/(1 + a)
        return np.where(log_level <= -d / scale, steep, np.where(alpha * (1 + a) >= a, shallow, middle))

    def _delta(self, epsilon: np.ndarray, scale: np.ndarray, d: np.ndarray) -> np.ndarray:
        a = np.exp(-1 / scale)
        # the test rejects from the first m on at which (2 m − distance)/scale exceeds epsilon
        m = np.minimum(np.floor((epsilon * scale + d) / 2) + 1, d)
        delta = -(np.expm1(-np.maximum(m / scale - epsilon, 0.0)) + a * np.expm1((m - d) / scale)) / (1 + a)
        return np.where(epsilon < d / scale, delta, 0.0)

    def _epsilon(self, delta: np.ndarray, scale: np.ndarray, d: np.ndarray) -> np.ndarray:
        a = np.exp(-1 / scale)
        # delta is 1 − a^(distance − m) at epsilon = (2 m − distance)/scale
        m = np.clip(np.ceil(d + np.log1p(-delta) * scale), 1.0, d)
        share = delta * (1 + a) + a * np.expm1((m - d) / scale)
        return np.maximum(m / scale + np.log1p(-np.clip(share, 0.0, 1.0)), 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class DiscreteGaussianTradeoff(_IntegerTradeoff, LogTradeoff):
    """Trade-off curve of discrete Gaussian noise: laws P(k) ∝ exp(−k²/(2 scale²)) whose centres differ by an integer.
    It is linear between vertices, of tests that reject from an integer m on: of level T(m) = P(noise ≥ m) and type II
    error T(distance + 1 − m) ([CKS] Theorem 7). `scale` and `distance` are as in `DiscreteLaplaceTradeoff`.
    """

    def repeated(self, times: int) -> ParametricTradeoff | None:
        scale, squared = float(np.min(self.scale)), round(float(times * np.max(self.distance) ** 2))
        # noise of the least scale is a part of the noise of each larger scale
        return _rows_curve(scale, squared, times) if np.ptp(self.scale) == 0 else _normal_rows(scale, squared, times)

    def _type_ii_error(self, alpha: np.ndarray, scale: np.ndarray, d: np.ndarray) -> np.ndarray:
        reach = np.ceil(UNDERFLOW_SCALES * scale) + 2
        # the first m with T(m) ≤ alpha; there and at m − 1 the test rejects, at m − 1 with some probability
        m = _first(lambda m: np.exp(gaussian_log_tail(m, scale)) <= alpha, -reach, reach)
        level, at = np.exp(gaussian_log_tail(m - 1, scale)), np.exp(_log_mass(m - 1, scale))
        kept = np.where(at > 0, np.clip((level - alpha) / at, 0.0, 1.0), 0.0)
        beta = np.exp(gaussian_log_tail(d + 2 - m, scale)) + kept * np.exp(_log_mass(m - 1 - d, scale))
        return np.where(alpha == 0, 1.0, np.where(alpha == 1, 0.0, np.minimum(beta, 1.0)))

    def _log_delta(self, epsilon: np.ndarray, scale: np.ndarray, d: np.ndarray) -> np.ndarray:
        # the real k at which the ratio is exp(epsilon)
        k = epsilon * (scale / d) * scale + d / 2
        smooth, apart = _is_smooth(k, scale), (d >= scale) & (scale >= SMOOTH_SCALE)
        ways = {_integral_delta: smooth & ~apart, _tails_delta: apart, _sum_delta: ~smooth & ~apart}
        return _where_called(ways, k, d, scale, epsilon)

    def _too_large(self, log_delta: np.ndarray, scale: np.ndarray, d: np.ndarray) -> np.ndarray:
        # delta is at most the tail beyond k − distance, and a tail beyond m is at most exp(−m²/(2 scale²)) ([CKS])
        mu = d / scale
        return mu * (np.sqrt(-2 * log_delta) + mu / 2) * (1 + 1e-9)


def _first(test: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The first integer in (low, high) that passes a test which all larger integers pass; `high` if there is none."""
    low, high = np.array(low, float), np.array(high, float)
    # from 2⁵³ on, neighbours in double precision have no number between them, but are further apart than 1
    while np.any((low < (middle := np.floor((low + high) / 2))) & (middle < high)):
        passed = test(middle)
        low, high = np.where(passed, low, middle), np.where(passed, middle, high)
    return high


SMOOTH_SCALE = 64.0  # scale from which sums are integrals with corrections by the Euler-Maclaurin formula ...
SMOOTH_LOG_RATIO = 0.625  # ... where the logs of neighbouring terms differ by this at most
CORRECTION_ORDERS = 16  # of these corrections: relative to the sum the next is below (0.625/2π)^16 = 1e-16
UNDERFLOW_SCALES = 40.0  # scales beyond which probabilities are below exp(-800)
TAIL_SCALES = 9  # scales beyond which the terms of a tail are lost in rounding: exp(-81/2)
TERMS_AT_ONCE = 1 << 20  # terms that are summed at a time
_BERNOULLI = special.bernoulli(CORRECTION_ORDERS)


def _log_mass(k: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return -((k / scale) ** 2) / 2 - log_theta(np, scale)


def gaussian_log_tail(m: ArrayLike, scale: ArrayLike) -> np.ndarray:
    """Log of P(noise ≥ m) for discrete Gaussian noise and integers m, to rounding."""
    m, scale = np.broadcast_arrays(np.asarray(m, float), np.asarray(scale, float))
    above = np.where(m > 0, m, 1 - m)
    smooth = _is_smooth(above, scale)
    with np.errstate(divide="ignore"):
        tail = _where_called({_integral_tail: smooth, _sum_tail: ~smooth}, above, scale)
        return np.where(m > 0, tail, np.log1p(-np.exp(tail)))


def _is_smooth(k: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Whether neighbouring terms from k on are so nearly equal that a sum is an integral with corrections."""
    return (scale >= SMOOTH_SCALE) & (k <= SMOOTH_LOG_RATIO * scale**2)


def _where_called(ways: dict[Callable, np.ndarray], *arguments: np.ndarray) -> np.ndarray:
    """Values of several functions, each called with the arguments for which its condition holds."""
    result = np.empty(arguments[0].shape)
    for function, here in ways.items():
        if here.any():
            result[here] = function(*(argument[here] for argument in arguments))
    return result


def _log_sum(term: Callable, start: np.ndarray, scale: np.ndarray, *others: np.ndarray) -> np.ndarray:
    """Log of Σ term(j, start, scale, *others) over the j ≥ 0 worth summing, in parts that memory holds."""
    falling = 2 * TAIL_SCALES**2 * scale**2 / np.maximum(start, 1.0)
    counts = np.where(start > 0, np.minimum(TAIL_SCALES * scale, falling), 2 * TAIL_SCALES * scale)
    j = np.arange(math.ceil(np.max(counts)) + 3.0)
    step = max(TERMS_AT_ONCE // len(j), 1)
    parts = (np.s_[first : first + step, None] for first in range(0, len(scale), step))
    totals = [np.sum(term(j, *(array[part] for array in (start, scale, *others))), axis=1) for part in parts]
    return np.log(np.concatenate(totals))


def _sum_tail(m: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """`gaussian_log_tail` for m ≥ 1 by summing it."""
    return _log_mass(m, scale) + _log_sum(lambda j, m, scale: np.exp(-j * (m + j / 2) / scale**2), m, scale)


def _integral_tail(m: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """`gaussian_log_tail` for m ≥ 1: the normal tail, half the first term, and the first term's odd derivatives."""
    x = m / scale
    before, hermite = np.ones_like(x), x
    total = np.sqrt(np.pi / 2) * special.erfcx(x / math.sqrt(2)) + 0.5 / scale
    for n in range(1, CORRECTION_ORDERS):
        # the n-th derivative of the mass at m is that times (−1)^n He_n(m/scale)/scale^n; even ones have the factor 0
        total += _BERNOULLI[n + 1] / math.factorial(n + 1) * hermite / scale ** (n + 1)
        before, hermite = hermite, x * hermite - n * before
    return _log_mass(m, scale) + np.log(scale * total)


def _sum_delta(k: np.ndarray, d: np.ndarray, scale: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    """Log delta as the sum of P(j) (1 − exp(epsilon − log ratio at j + distance)) over the j > k − distance."""
    start = np.maximum(np.floor(k) + 1 - d, -np.ceil(TAIL_SCALES * scale))  # terms below it are lost in rounding

    def term(j: np.ndarray, start: np.ndarray, scale: np.ndarray, d: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
        k, largest = start + j, np.maximum(start, 0.0)
        steps = d / scale**2 * (k + d / 2) - epsilon
        return np.exp((largest - k) * (largest + k) / (2 * scale**2)) * -np.expm1(-np.maximum(steps, 0.0))

    return _log_mass(np.maximum(start, 0.0), scale) + _log_sum(term, start, scale, d, epsilon)


def _integral_delta(k: np.ndarray, d: np.ndarray, scale: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    """Log delta of laws less than a scale apart: that of normal laws, with Euler-Maclaurin corrections at k. There
    P(k − distance) − exp(epsilon) P(k) is 0, and its n-th derivative is P(k − distance) times (He_n(a) − He_n(b))
    (−1/scale)^n, a = (k − distance)/scale, b = k/scale. The differences, over a − b, have a recurrence of their own.
    """
    a, b, past = (k - d) / scale, k / scale, np.floor(k) + 1 - k
    correction = np.zeros_like(a)
    slope_before, slope, before, hermite = np.zeros_like(a), np.ones_like(a), np.ones_like(a), b
    for n in range(1, CORRECTION_ORDERS):
        # Bernoulli polynomial of order n + 1, at the distance from k to the first integer that is rejected
        polynomial = sum(special.binom(n + 1, j) * _BERNOULLI[j] * past ** (n + 1 - j) for j in range(n + 2))
        correction += (-1) ** n * polynomial / math.factorial(n + 1) * slope / scale**n
        slope_before, slope = slope, a * slope + hermite - n * slope_before
        before, hermite = hermite, b * hermite - n * before
    normal = tradeoffs.gaussian_log_delta(epsilon, d / scale)
    first = -(a**2) / 2 - math.log(2 * math.pi) / 2 + np.log(d / scale**2)
    return normal + np.log1p(correction * np.exp(first - normal))


def _tails_delta(k: np.ndarray, d: np.ndarray, scale: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    """Log delta of laws a scale apart or more, whose two tails hardly cancel."""
    m = np.floor(k) + 1
    upper = gaussian_log_tail(m - d, scale)
    return upper + np.log(-np.expm1(np.minimum(epsilon + gaussian_log_tail(m, scale) - upper, 0.0)))


EXACT_ROWS_SCALE = 16.0  # largest scale at which the exact curves of all integer vectors are computed ...
EXACT_ROWS_SQUARED_LENGTH = 36  # ... up to this squared length, for which there are 43 vectors
CUT_DEVIATIONS = 26.0  # standard deviations beyond which the law of the noise is cut ...
CUT_PROBABILITY = 1e-140  # ... and this added to every power: more than the exp(−26²/2) = 1e-147 cut from a column


@dataclasses.dataclass(frozen=True, eq=False)
class DiscreteGaussianRowsTradeoff(SeparateTradeoff):
    """Two rows of integers, at most a Euclidean distance ≥ 1 apart, with discrete Gaussian noise in every column:
    exact, as the hull over all integer vectors between rows, for small scale and distance; else `_normal_rows`.
    """

    scale: Array = ruled(WHOLE_SCALE)
    distance: Array = ruled(("from 1 to 2**53", lambda a: (a >= 1) & (a <= 2.0**53)))
    columns: int = 1

    def _curve(self, scale: float, distance: float) -> ParametricTradeoff:
        return _rows_curve(scale, math.floor(distance**2 * (1 + 1e-12)), self.columns)


@functools.lru_cache(maxsize=256)
def _rows_curve(scale: float, squared: int, columns: int) -> ParametricTradeoff:
    """The curve of rows of integers at most a squared distance apart."""
    if scale <= EXACT_ROWS_SCALE and squared <= EXACT_ROWS_SQUARED_LENGTH:
        tests = (_tests(scale, vector) for vector in _longest_vectors((), squared, columns))
        return tradeoffs.Polygon(tradeoffs.best_tests(tests))
    return _normal_rows(scale, squared, columns) or tradeoffs.PureProtocolTradeoff(math.inf, 1.0)


def _normal_rows(scale: float, squared: int, columns: int) -> GaussianTradeoff | None:
    """A curve just below that of rows so far apart, under noise of this scale σ or larger in each column. Up to a
    factor of 1 ± 2 exp(−2π²τ²), lost in rounding for τ² about 2, the noise is normal with variance σ² − τ², then
    rounded at random, with discrete Gaussian weights of variance τ².
    """
    # σ² − τ², with a τ² at which 4 exp(−2π²τ²), summed over the columns that may differ, is 2^-53
    variance = scale**2 - math.log(min(columns, squared) * 2.0**55) / (2 * math.pi**2)
    return GaussianTradeoff(math.sqrt(squared / variance)) if variance > 0 else None


def _longest_vectors(start: tuple[int, ...], left: int, columns: int) -> Iterator[tuple[int, ...]]:
    """Non-increasing integer vectors from `start` on, with `left` of the squared length for the other `columns`."""
    # only those of which no entry can grow: a longer vector is easier to detect, since the noise is log-concave
    for entry in range(min((*start[-1:], math.isqrt(left))), 0, -1) if columns else ():
        yield from _longest_vectors((*start, entry), left - entry**2, columns - 1)
    if left < (1 if columns else 2 * start[-1] + 1):
        yield start


def _tests(scale: float, vector: tuple[int, ...]) -> np.ndarray:
    """Levels and powers of the tests that reject where v·k is large, an array (2, tests)."""
    law = np.ones(1)
    for j, entry in enumerate(vector):
        # the law of `entry` times the noise of one column, then of the sum so far, each cut beyond CUT_DEVIATIONS
        most = math.ceil(CUT_DEVIATIONS * scale) + 1
        column = np.zeros(2 * most * entry + 1)
        column[::entry] = np.exp(-((np.arange(-most, most + 1) / scale) ** 2) / 2)
        law = np.convolve(law, column / column.sum())
        beyond = max(len(law) // 2 - math.ceil(CUT_DEVIATIONS * scale * math.hypot(*vector[: j + 1])) - entry, 0)
        law = law[beyond : len(law) - beyond]
    apart = sum(entry**2 for entry in vector)
    tails = np.append(np.cumsum(law), np.ones(apart))  # by symmetry P(noise ≥ most), P(noise ≥ most − 1), ...
    level = np.append(np.zeros(apart), tails[:-apart])
    return np.minimum(np.stack([level, tails + CUT_PROBABILITY]), 1.0)
