"""The trade-off curve T_{d,c} of two symmetric multivariate Laplace laws SL_d(I), simulated in [LCQ] (eq. 3.2). The
best tests reject caps of spheres around the first centre, so errors are integrals of beta probabilities over the
radius.
"""

import dataclasses
import functools
import math

import numpy as np

from ldpbayes._core.checks import ABOVE_0, is_integer
from ldpbayes._core.pytrees import ruled
from ldpbayes._core.types import Array
from ldpbayes.numerics.minimise import find_root
from ldpbayes.numerics.radial_law import DROP_NATS, LEAST_U, radial_law
from ldpbayes.privacy import tradeoffs
from ldpbayes.privacy.tradeoffs import ParametricTradeoff, SeparateTradeoff, ThresholdTradeoff

UNDERFLOW_DISTANCE = 2000.0  # distance at which both errors underflow
LEAST_TABLE_DISTANCE = 1e-9  # nearer centres, whose errors would be lost in rounding, are told no better
LIMIT_DIMENSIONS = 10_000  # beyond which the limit stands for the curve: it is lower by 1/dimension of itself
PUBLIC_RECORD_CURVE = tradeoffs.PureProtocolTradeoff(math.inf, 1.0)  # of records that are released as they are


@dataclasses.dataclass(frozen=True, eq=False)
class SymmetricLaplaceTradeoff(SeparateTradeoff):
    """Trade-off curve T_{d,c} of symmetric Laplace noise: two laws SL_d(I) with centres at a distance c ([LCQ] eq.
    3.2).

    Parameters
    ----------
    distance : array_like
        Distance c > 0 of the centres, in standard deviations λ of the noise. Infinite for a public record.
    dimension : float
        Number d of perturbed coordinates. Default: ``math.inf``, for the limit β_c of many dimensions. No d has a lower
        curve ([LCQ] Propositions 3.1 and 3.2, Theorem 3.3).
    """

    distance: Array = ruled(ABOVE_0)
    dimension: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        d = self.dimension
        if not (is_integer(d) and d >= 1) and d != math.inf:
            raise ValueError(f"dimension must be a positive integer or infinity, got {d!r}")

    def _at(self, formula: str, argument: Array) -> Array:
        if self.dimension > 1:
            return super()._at(formula, argument)
        # T_{1,c} is that of Laplace noise of scale λ/√2
        budget = math.sqrt(2) * np.asarray(self.distance)
        finite = np.isfinite(budget)
        laplace = tradeoffs.LaplaceTradeoff(np.where(finite, budget, 1.0))._at(formula, argument)
        return np.where(finite, laplace, np.asarray(PUBLIC_RECORD_CURVE._at(formula, argument)))[()]

    def _curve(self, distance: float) -> ParametricTradeoff:
        if distance >= UNDERFLOW_DISTANCE:
            return PUBLIC_RECORD_CURVE
        dimension = self.dimension if self.dimension <= LIMIT_DIMENSIONS else math.inf
        return _tests(dimension, max(distance, LEAST_TABLE_DISTANCE))


@dataclasses.dataclass(frozen=True, eq=False)
class _Tests(ThresholdTradeoff):
    """Level and power of the most powerful tests, as functions of the logarithm κ ≥ 0 of their threshold."""

    dimension: float
    distance: float

    def log_errors(self, kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Logs of P(h > κ), P(h < −κ), P(h > −κ), h the log density ratio: a test's level, power and type II error."""
        c, kappa = self.distance, np.asarray(kappa, float)
        if self.dimension == math.inf:
            # [LCQ] Proposition 3.2, its integral F_c solved: the level is ½ (1 − a/root) exp(−c (a + root)/2)
            a = kappa / c
            root = np.sqrt(2 + a**2)
            miss = np.log1p(-1 / (root * (root + a))) - c / (a + root)
            return -c * (a + root) / 2 - np.log(root * (root + a)), _log_rest(miss), miss
        law = radial_law(int(self.dimension))
        near, far = law.axis(kappa, c)
        log_c = math.log(c)
        start, stop = np.log1p(-np.exp(near - log_c)) + log_c, np.logaddexp(far, log_c)
        level = law.integrate(start, stop, lambda u: law.cap(u, law.step(u, kappa[..., None]), c))

        def ring(u: np.ndarray) -> np.ndarray:
            """Probabilities that a point of the sphere is outside the cap, and inside it."""
            cap = law.cap(u, law.step(u, -kappa[..., None]), c)
            return np.stack([1 - cap, cap])

        inside, outside = law.integrate(near, far, ring)
        power = np.logaddexp(law.integrate(near - DROP_NATS, near, np.ones_like), inside)
        miss = np.logaddexp(outside, law.integrate(far, np.full_like(far, np.inf), np.ones_like))
        # power and type II error add up to one, and the smaller is more precise
        power, miss = np.where(power < miss, (power, _log_rest(power)), (_log_rest(miss), miss))
        reached = near > LEAST_U + 1e-6
        return np.where(reached, level, -np.inf), np.where(reached, power, -np.inf), np.where(reached, miss, 0.0)

    @functools.cached_property
    def most(self) -> float:
        """The largest log threshold: the log density ratio next to the second centre, in the limit unbounded."""
        if self.dimension == math.inf:
            return math.inf
        ends = radial_law(int(self.dimension)).log_density(np.array([LEAST_U, math.log(self.distance)]))
        return float(ends[0] - ends[1])

    def _log_level(self, threshold: np.ndarray, sign: np.ndarray) -> np.ndarray:
        level, power, miss = self.log_errors(np.abs(threshold))
        above, below = np.where(threshold < 0, (miss, power), (level, _log_rest(level)))
        return np.where(sign > 0, above, below)

    def _thresholds(self, target: np.ndarray, sign: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # In the limit one less the level is at most 1/(2 a²) + c/(2 a) at the threshold −c a, and in 2 to 10,000
        # dimensions it was below that wherever computed. The level is at most exp(−threshold).
        c, rest = self.distance, np.where(sign < 0, np.exp(target), 0.5)
        reach = c * (c + np.sqrt(c**2 + 8 * rest)) / (2 * rest)  # twice the threshold of this bound
        return -np.minimum(reach, self.most), np.where(sign < 0, 0.0, np.minimum(-target, self.most))

    def _delta(self, epsilon: np.ndarray) -> np.ndarray:
        if self.dimension == math.inf:
            a = epsilon / self.distance
            return -np.expm1(-self.distance / (a + np.sqrt(2 + a**2)))
        level, power, miss = self.log_errors(epsilon)
        detected = np.where(power < miss, np.exp(power), -np.expm1(miss))
        return np.maximum(detected - np.exp(level + epsilon), 0.0)

    def _epsilon(self, delta: np.ndarray) -> np.ndarray:
        if self.dimension == math.inf:
            miss = -np.log1p(-delta)
            epsilon = self.distance**2 / (2 * miss) - miss
            return np.where(delta >= self._delta(np.zeros(1)), 0.0, epsilon)
        bracket = np.zeros_like(delta), np.full_like(delta, self.most)
        root = find_root(self._delta, delta, bracket).x
        least, most = self._delta(np.array([self.most, 0.0]))
        return np.where(delta >= most, 0.0, np.where(delta > least, root, np.inf))


_tests = functools.lru_cache(maxsize=256)(_Tests)


def _log_rest(log_probability: np.ndarray) -> np.ndarray:
    """Logarithm of one less a probability; -inf where that has been rounded to one or above."""
    with np.errstate(divide="ignore"):
        return np.log(-np.expm1(np.minimum(log_probability, 0.0)))
