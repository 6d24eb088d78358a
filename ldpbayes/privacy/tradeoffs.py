"""Trade-off curves: their base class, curves with closed forms, and ways to combine curves."""

import abc
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ldpbayes._core.checks import INSIDE_0_1, NOT_NEGATIVE, POSITIVE, PROBABILITY, SHARE, checked
from ldpbayes._core.pytrees import check_fields, ruled, ruled_fields
from ldpbayes._core.types import Array
from ldpbayes.numerics.minimise import find_root

_LEGENDRE_NODES, _LEGENDRE_WEIGHTS = np.polynomial.legendre.leggauss(16)


class Tradeoff(abc.ABC):
    """Base of trade-off curves, which say how well the best test can distinguish two inputs of a mechanism.

    For each rate of false alarms, a curve gives the smallest possible rate of missed detections, for the two
    neighbouring inputs that are easiest to distinguish. Parameters may be arrays with one entry for each personal
    budget. Methods broadcast against these arrays and return float64.
    """

    zero_probability: Array = 0.0  #: Probability that the input is released exactly as it is.

    def repeated(self, times: int) -> "Tradeoff | None":
        """Return the curve of so many independent outputs of any of the parameters, or None if it is not known."""
        return None

    @abc.abstractmethod
    def __call__(self, alpha: ArrayLike) -> Array:
        """Return the smallest rate of missed detections (type II error) for a rate `alpha` of false alarms."""

    @abc.abstractmethod
    def delta(self, epsilon: ArrayLike) -> Array:
        """Return the smallest delta of (epsilon, delta)-differential privacy, for `epsilon` ≥ 0 in nats."""

    @abc.abstractmethod
    def epsilon(self, delta: ArrayLike) -> Array:
        """Return the smallest epsilon, in nats, of (epsilon, delta)-differential privacy; it may be infinite."""


@dataclasses.dataclass(frozen=True, eq=False)
class ParametricTradeoff(Tradeoff):
    """A dataclass with three formulas: functions of the argument and of its `ruled` fields, checked and broadcast."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, alpha: ArrayLike) -> Array:
        return self._at("_type_ii_error", checked("alpha", alpha, *PROBABILITY))

    def delta(self, epsilon: ArrayLike) -> Array:
        return self._at("_delta", checked("epsilon", epsilon, *NOT_NEGATIVE))

    def epsilon(self, delta: ArrayLike) -> Array:
        return self._at("_epsilon", checked("delta", delta, *PROBABILITY))

    def _broadcast(self, argument: Array) -> tuple[np.ndarray, ...]:
        """The argument and the parameters, in one shape."""
        return np.broadcast_arrays(argument, *(getattr(self, field.name) for field in ruled_fields(self)))

    def _at(self, formula: str, argument: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return getattr(self, formula)(*self._broadcast(argument))[()]


class SeparateTradeoff(ParametricTradeoff):
    """A curve that is made by itself for each combination of values of its parameters."""

    _curve: ClassVar[Callable[..., ParametricTradeoff]]

    def _at(self, formula: str, argument: Array) -> Array:
        argument, *parameters = self._broadcast(argument)
        result = np.empty(argument.shape)
        for values in set(zip(*(parameter.ravel().tolist() for parameter in parameters), strict=True)):
            here = np.all([parameter == value for parameter, value in zip(parameters, values, strict=True)], axis=0)
            result[here] = self._curve(*values)._at(formula, argument[here])
        return result[()]


@dataclasses.dataclass(frozen=True, eq=False)
class LogTradeoff(ParametricTradeoff):
    """A curve with a formula for log delta, to nearly full relative precision; its epsilon is solved for."""

    _log_delta: ClassVar[Callable[..., np.ndarray]]
    _too_large: ClassVar[Callable[..., np.ndarray]]  # of log delta: an epsilon not below the one sought, at −∞ this one

    def log_delta(self, epsilon: ArrayLike) -> Array:
        """Return the natural logarithm of `delta`, also if delta itself underflows."""
        return self._at("_log_delta", checked("epsilon", epsilon, *NOT_NEGATIVE))

    def _delta(self, epsilon: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
        return np.exp(self._log_delta(epsilon, *parameters))

    def _epsilon(self, delta: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
        target = np.log(np.where(delta < 1, delta, 0.5))
        high = self._too_large(target, *parameters)
        sought = (delta > 0) & np.isfinite(high)
        zero, target = np.zeros_like(target), np.where(sought, target, -1.0)
        root = find_root(self._log_delta, target, (zero, np.where(sought, high, 1.0)), *parameters)
        enough = (delta == 1) | (sought & (target >= self._log_delta(zero, *parameters)))
        return np.where(enough, 0.0, np.where(sought, root.x, high))


class ThresholdTradeoff(ParametricTradeoff):
    """A symmetric curve from the law of the log likelihood ratio: tests reject where it exceeds a threshold."""

    # from (threshold, sign, *parameters): the log of the level or, if the sign is −1, of one less the level
    _log_level: ClassVar[Callable[..., np.ndarray]]
    # from (such a log, sign, *parameters): a smaller and a larger threshold
    _thresholds: ClassVar[Callable[..., tuple[np.ndarray, np.ndarray]]]

    def _type_ii_error(self, alpha: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
        inside, large = (alpha > 0) & (alpha < 1), alpha > 0.5
        if not inside.any():
            return 1 - alpha
        # a large level is more precise as one less its complement
        target, sign = np.where(large, np.log1p(-alpha), np.log(alpha)), np.where(large, -1.0, 1.0)
        target = np.where(inside, target, -1.0)
        bracket = self._thresholds(target, sign, *parameters)
        threshold = find_root(self._log_level, target, bracket, sign, *parameters).x
        log_level = self._log_level(threshold, sign, *parameters)
        # the tangent there is within rounding of the curve, also where the threshold has an error
        correction = -sign * np.exp(threshold + log_level) * np.expm1(target - log_level)
        missed = np.exp(self._log_level(-threshold, np.ones_like(sign), *parameters)) + correction
        return np.where(inside, np.clip(missed, 0.0, 1 - alpha), 1 - alpha)


@dataclasses.dataclass(frozen=True, eq=False)
class LaplaceTradeoff(ParametricTradeoff):
    """Trade-off curve of Laplace noise: two Laplace laws of scale 1 whose centres differ by `budget` ([DMNS]; [DRS]).

    In the rate α of false alarms, it is a line of slope −exp(budget), exp(−budget)/(4 α), and a line of slope
    −exp(−budget). The budget is epsilon in nats, positive: the sensitivity divided by the scale of the noise.
    """

    budget: Array = ruled(POSITIVE, "epsilon")

    def _type_ii_error(self, alpha: np.ndarray, budget: np.ndarray) -> np.ndarray:
        log_alpha = np.log(alpha)
        steep = -np.expm1(np.minimum(budget + log_alpha, 0.0))
        middle = np.exp(-budget - log_alpha) / 4
        shallow = np.exp(-budget) * (1 - alpha)
        return np.where(log_alpha < -budget - np.log(2), steep, np.where(alpha > 0.5, shallow, middle))

    def _delta(self, epsilon: np.ndarray, budget: np.ndarray) -> np.ndarray:
        return -np.expm1(-np.maximum(budget - epsilon, 0.0) / 2)

    def _epsilon(self, delta: np.ndarray, budget: np.ndarray) -> np.ndarray:
        return np.maximum(budget + 2 * np.log1p(-delta), 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class PureProtocolTradeoff(ParametricTradeoff):
    """Trade-off curve of randomized response and similar mechanisms: lines of slopes −exp(budget), −1, −exp(−budget).

    The `budget` is epsilon ≥ 0 in nats; an infinite one protects nothing. The `separation` is the probability, in (0,
    1], that a released value supports the true category and not the other category. Both may be arrays.
    """

    budget: Array = ruled(("at least 0", lambda a: a >= 0), "epsilon")
    separation: Array = ruled(SHARE)

    def _type_ii_error(self, alpha: np.ndarray, budget: np.ndarray, separation: np.ndarray) -> np.ndarray:
        steep = np.where(np.isinf(budget), 0.0, -np.expm1(np.minimum(budget + np.log(alpha), 0.0)))
        middle = 1 + separation * np.expm1(-budget) - alpha
        return np.maximum(np.maximum(steep, middle), np.exp(-budget) * (1 - alpha))

    def _delta(self, epsilon: np.ndarray, budget: np.ndarray, separation: np.ndarray) -> np.ndarray:
        return -separation * np.expm1(-np.maximum(budget - epsilon, 0.0))

    def _epsilon(self, delta: np.ndarray, budget: np.ndarray, separation: np.ndarray) -> np.ndarray:
        share = np.minimum(delta / separation, 1.0)
        return np.where(share < 1, np.maximum(budget + np.log1p(-share), 0.0), 0.0)


def gaussian_log_delta(epsilon: ArrayLike, mu: ArrayLike) -> np.ndarray:
    """Log delta of two normals, through Mills ratios: delta = phi(a) (R(a) - R(b)), a, b = epsilon/mu -+ mu/2."""
    mu, epsilon = np.broadcast_arrays(np.asarray(mu, float), np.asarray(epsilon, float))
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    log_density = -(a**2) / 2 - np.log(2 * np.pi) / 2
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        # where a and b are near, R(a) - R(b) cancels; it is the integral of -R' > 0 over a short interval
        points = a[..., None] + mu[..., None] * (1 + _LEGENDRE_NODES) / 2
        near = log_density + np.log(mu / 2 * np.sum(_LEGENDRE_WEIGHTS * _minus_mills_slope(points), axis=-1))
        apart = log_density + np.log(_mills(a) - _mills(b))
        # where delta is near one, 1 - delta is computed to full precision
        large = np.log1p(-(special.ndtr(a) + np.exp(log_density) * _mills(b)))
    return np.where(mu < 1, near, np.where(a > -1, apart, large))


def _mills(t: np.ndarray) -> np.ndarray:
    """Mills ratio R(t) = Phi(-t) / phi(t)."""
    return np.sqrt(np.pi / 2) * special.erfcx(t / np.sqrt(2))


def _minus_mills_slope(t: np.ndarray) -> np.ndarray:
    """-R'(t) = 1 - t R(t), by its asymptotic series t^-2 (1 - 3 t^-2 (1 - 5 t^-2 (...))) where that cancels."""
    far = np.maximum(t, 25.0)
    series = np.ones_like(far)
    for odd in range(19, 1, -2):
        series = 1 - odd / far**2 * series
    return np.where(t > 25, series / far**2, 1 - t * _mills(t))


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianTradeoff(LogTradeoff):
    """Trade-off curve of Gaussian noise: two normal laws of variance 1 whose means are `mu` > 0 apart, the sensitivity
    divided by the standard deviation of the noise ([DRS] eq. 6 and Corollary 2.13; [BW]).
    """

    mu: Array = ruled(POSITIVE)

    def repeated(self, times: int) -> "GaussianTradeoff":
        return GaussianTradeoff(np.max(self.mu) * times**0.5)

    def _type_ii_error(self, alpha: np.ndarray, mu: np.ndarray) -> np.ndarray:
        return special.ndtr(-special.ndtri(alpha) - mu)

    _log_delta = staticmethod(gaussian_log_delta)

    def _too_large(self, log_delta: np.ndarray, mu: np.ndarray) -> np.ndarray:
        # Phi(-a) > delta(epsilon) at a = epsilon/mu - mu/2, so the epsilon at which Phi(-a) = delta is too large
        return mu * (mu / 2 - special.ndtri_exp(log_delta)) * (1 + 1e-9)


@dataclasses.dataclass(frozen=True, eq=False)
class Polygon(ParametricTradeoff):
    """A curve whose best tests are the `corners` of a concave polygon of (level, power), from (0, 0) to (1, 1)."""

    corners: np.ndarray

    def _type_ii_error(self, alpha: np.ndarray) -> np.ndarray:
        return np.clip(1 - np.interp(alpha, *self.corners.T), 0.0, 1.0)

    def _delta(self, epsilon: np.ndarray) -> np.ndarray:
        level, power = self.corners[1:].T
        return np.maximum(np.max(power * -np.expm1(epsilon[..., None] + np.log(level / power)), axis=-1), 0.0)

    def _epsilon(self, delta: np.ndarray) -> np.ndarray:
        level, power = self.corners[1:].T
        needed = np.log(np.maximum(power - delta[..., None], 0.0) / level)
        return np.maximum(np.fmax.reduce(needed, axis=-1), 0.0)


LAW_SUM_ROUNDING = 1e-9  # largest difference from one of a sum of probabilities


@dataclasses.dataclass(frozen=True, eq=False)
class FiniteTradeoff(Polygon):
    """Trade-off curve of the worst pair among several laws on the same finitely many outputs.

    The best tests of two laws reject for the outputs with the largest likelihood ratio. The concave hull of their
    levels and powers for all pairs gives the largest delta(epsilon) of a pair exactly, and the largest convex curve
    below those of all pairs ([DRS] sec. 2.4). Mixtures of the laws are never easier to distinguish.

    Parameters
    ----------
    laws : array_like (k, m) or (designs, k, m)
        Probabilities of m outputs under k laws, in one design or in each of several, whose laws are compared only among
        themselves. If a row does not sum to one, a ValueError is raised.
    """

    laws: Array
    corners: np.ndarray = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        laws = np.asarray(self.laws)
        several = laws.ndim == 3
        laws = checked_laws("laws", laws.reshape(-1, laws.shape[-1]) if several else self.laws).reshape(laws.shape)
        object.__setattr__(self, "laws", laws)
        object.__setattr__(self, "corners", best_tests(map(_tests, itertools.repeat(laws), np.moveaxis(laws, -2, 0))))


def _tests(laws: np.ndarray, law: np.ndarray) -> np.ndarray:
    """Levels and powers (2, tests) of the best tests of a law (..., m) against all laws (..., k, m) of its design."""
    law = np.broadcast_to(law[..., None, :], laws.shape)
    with np.errstate(divide="ignore", invalid="ignore"):  # outputs that neither law has come last, as NaN
        order = np.argsort(-laws / law, axis=-1, kind="stable")
    # sums start at the outputs that tell most, so that small sums have full precision
    sums = [np.cumsum(np.take_along_axis(part, order, -1), axis=-1)[..., :-1] for part in (law, laws)]
    return np.minimum(np.stack(sums).reshape(2, -1), 1.0)


def checked_laws(name: str, laws: Array) -> np.ndarray:
    """Rows of probabilities (k, m), or ValueError."""
    laws = np.asarray(checked(name, laws, *NOT_NEGATIVE))
    if laws.ndim != 2:
        raise ValueError(f"{name} must be rows of probabilities, an array (k, m), got shape {laws.shape}")
    errors = np.abs(laws.sum(axis=1) - 1)
    worst = np.max(errors)
    if worst > LAW_SUM_ROUNDING:
        single = worst < laws.shape[1] * np.finfo(np.float32).eps
        advice = "; this is a rounding error of single precision: compute in double precision" if single else ""
        message = f"{name} must be rows of probabilities that sum to one up to {LAW_SUM_ROUNDING:g}"
        raise ValueError(f"{message}; the sum of row {np.argmax(errors)} is wrong by {worst:.2g}{advice}")
    return laws


def best_tests(tests: Iterable[np.ndarray]) -> np.ndarray:
    """Corners (n, 2) of the smallest concave polygon above the points of arrays (2, ...) of levels and powers."""
    corners = np.array([[0.0, 0.0], [1.0, 1.0]])
    for level, power in tests:
        above = power > np.interp(level, *corners.T)
        points = np.concatenate([corners, np.stack([level[above], power[above]], axis=1)])
        hull: list[np.ndarray] = []
        for point in points[np.lexsort(points.T[::-1])]:
            while len(hull) > 1:
                (dx, dy), (dx1, dy1) = point - hull[-2], hull[-1] - hull[-2]
                # scaled, as products of small probabilities underflow
                far, near = max(dx, dy) or 1.0, max(dx1, dy1) or 1.0
                if (dy1 / near) * (dx / far) > (dy / far) * (dx1 / near):
                    break
                hull.pop()
            hull.append(point)
        corners = np.array(hull)
    return corners


@dataclasses.dataclass(frozen=True, eq=False)
class ZeroInflatedTradeoff(ParametricTradeoff):
    """Trade-off curve of noise with the curve T = `tradeoff` that a record does not get with `zero_probability` δ in
    (0, 1): (1 − δ) T(α/(1 − δ)) at a rate α of false alarms up to 1 − δ, and 0 beyond ([LCQ] eq. 3.3 and Theorem 3.3).
    """

    tradeoff: Tradeoff
    zero_probability: Array = ruled(INSIDE_0_1)

    def _type_ii_error(self, alpha: np.ndarray, share: np.ndarray) -> np.ndarray:
        return (1 - share) * self.tradeoff(np.minimum(alpha / (1 - share), 1.0))

    def _delta(self, epsilon: np.ndarray, share: np.ndarray) -> np.ndarray:
        return share + (1 - share) * self.tradeoff.delta(epsilon)

    def _epsilon(self, delta: np.ndarray, share: np.ndarray) -> np.ndarray:
        rest = (delta - share) / (1 - share)
        return np.where(rest >= 0, self.tradeoff.epsilon(np.maximum(rest, 0.0)), np.inf)


def approximate_tradeoff(epsilon: float, delta: float = 0.0) -> Tradeoff:
    """Return the curve f_{ε,δ}: no (epsilon, delta)-differentially private mechanism has a lower one ([WZ] Theorem
    2.4).

    At a rate α of false alarms, it is the largest of 0, 1 − δ − exp(ε) α and exp(−ε) (1 − δ − α), for `epsilon` in
    nats, not negative and finite, and `delta` in [0, 1), by default 0.
    """
    epsilon = checked("epsilon", epsilon, *NOT_NEGATIVE)
    delta = checked("delta", delta, "at least 0 and below 1", lambda a: (a >= 0) & (a < 1))
    response = PureProtocolTradeoff(epsilon, 1 / (1 + np.exp(-np.asarray(epsilon))))
    return response if np.all(np.equal(delta, 0)) else ZeroInflatedTradeoff(response, delta)


def composed_tradeoff(epsilon: float, delta: float, times: int) -> Tradeoff:
    """A lower bound for the curve of `times` (epsilon, delta)-differentially private mechanisms together: that of as
    many answers under randomized response, if each is also revealed with probability δ ([KOV] Theorem 3.3).
    """
    away = composed_delta(delta, times)
    epsilon = float(epsilon)  # whose products overflow without a warning
    none = away == 1 or math.isinf(times * epsilon)
    if none or times * np.logaddexp(0.0, epsilon) > LARGEST_LOG_SLOPE:  # where probabilities below underflow
        return PureProtocolTradeoff(np.inf, 1.0) if none else approximate_tradeoff(times * epsilon, away)
    yes = np.arange(times, -1.0, -1.0)
    ways = special.gammaln(times + 1) - special.gammaln(yes + 1) - special.gammaln(times - yes + 1)
    mass = np.exp(ways + yes * special.log_expit(epsilon) + (times - yes) * special.log_expit(-epsilon))
    tests = np.stack([np.cumsum(mass[::-1]), np.cumsum(mass)], axis=1)  # from so many yes on, if the truth is no or yes
    ends = [(0.0, 0.0), (0.0, away)][: 1 + (away > 0)]
    return Polygon(np.array([*ends, *((1 - away) * tests + [0.0, away]), (1.0, 1.0)]))


def composed_delta(delta: ArrayLike, times: float) -> Array:
    """Return 1 − (1 − δ)^k for δ = `delta` and k = `times`, to full relative precision."""
    return -np.expm1(special.xlog1py(times, -np.asarray(delta, float)))


LARGEST_LOG_SLOPE = 700.0  # largest log slope of a tangent: exp(700) is nearly the largest float
GOLDEN_SECTION = (math.sqrt(5) - 1) / 2
GOLDEN_STEPS = 80  # of the golden section: a range of log slopes of 1,400 becomes one of 3e-14


class SymmetricTradeoff(ParametricTradeoff):
    """A curve that is its own inverse, known by its delta: the convex curve is the highest of its tangents."""

    _delta: ClassVar[Callable[..., np.ndarray]]
    _bends: ClassVar[bool] = False  # whether tangents are concave in their log slope on both sides of 0 only

    def _at_most(self, alpha: np.ndarray) -> np.ndarray:
        """An upper bound on the curve."""
        return 1 - alpha

    def _type_ii_error(self, alpha: np.ndarray) -> np.ndarray:
        smallest = self._at_most(alpha)
        alpha = np.broadcast_to(alpha, smallest.shape)

        def tangent(t: np.ndarray) -> np.ndarray:
            # the curve is symmetric: at the log slope −t < 0 the tangent is exp(−t) (1 − δ(t) − α)
            delta = self._delta(np.abs(t))
            return np.where(t < 0, np.exp(np.minimum(t, 0.0)) * (1 - delta - alpha), 1 - delta - np.exp(t) * alpha)

        ends = [np.full(alpha.shape, -LARGEST_LOG_SLOPE), np.clip(-np.log(alpha), 0.0, LARGEST_LOG_SLOPE)]
        ends.insert(1, np.zeros(alpha.shape))
        low, high = (np.stack(part) for part in ((ends[:-1], ends[1:]) if self._bends else (ends[:1], ends[2:])))
        # tangents are concave in their slope: the golden section approaches the highest from below
        for _ in range(GOLDEN_STEPS):
            one, other = high - GOLDEN_SECTION * (high - low), low + GOLDEN_SECTION * (high - low)
            left = tangent(one) >= tangent(other)
            low, high = np.where(left, low, one), np.where(left, other, high)
        highest = np.clip(tangent((low + high) / 2).max(axis=0), 0.0, smallest)
        return np.where((alpha == 0) | (alpha == 1), smallest, highest)


@dataclasses.dataclass(frozen=True, eq=False)
class WorstTradeoff(SymmetricTradeoff):
    """The worst of symmetric curves, as of records that may differ in one of several parts, but not in all."""

    tradeoffs: Sequence[Tradeoff]
    zero_probability = property(lambda self: _largest(curve.zero_probability for curve in self.tradeoffs))

    def _at_most(self, alpha: np.ndarray) -> np.ndarray:
        return -_largest(-np.asarray(curve(alpha)) for curve in self.tradeoffs)

    def _delta(self, epsilon: np.ndarray) -> np.ndarray:
        return _largest(curve.delta(epsilon) for curve in self.tradeoffs)

    def _epsilon(self, delta: np.ndarray) -> np.ndarray:
        return _largest(curve.epsilon(delta) for curve in self.tradeoffs)


def _largest(values: Iterable[Array]) -> np.ndarray:
    return functools.reduce(np.maximum, values)
