"""How well two symmetric multivariate Laplace laws SL_d(I), `distance` apart, can be told.

The trade-off function T_{d,c} of Lu, Chen & Qiu (eq. 3.2), which they simulate, is computed by quadrature in one
dimension. On the sphere of radius r around the first centre, the most powerful test rejects a cap: its density ratio
grows with the cosine of the angle to the second centre. So the errors of the test are integrals, over the radius, of
the probability of a cap, a beta probability.
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import PchipInterpolator
from scipy.optimize import elementwise

from ldpbayes.privacy.radial_law import DROP, SMALL, radial_law
from ldpbayes.privacy.tradeoff import LaplaceTradeoff, Tradeoff, _epsilon, _probability, checked

__all__ = ["SymmetricLaplaceTradeoff"]

FAR = 2000.0  # a distance at which both errors underflow
MAX_EPSILON = 690.0


@dataclasses.dataclass(frozen=True, eq=False)
class SymmetricLaplaceTradeoff(Tradeoff):
    """T_{d,c}: two symmetric Laplace laws SL_d(I) whose centres are c apart; β_c in the limit of many dimensions.

    Lu, Chen & Qiu, eq. (3.2) and Propositions 3.1 and 3.2. The limit has a closed form in the log threshold κ: with
    a = κ/c, the level is ½ (1 − a/√(2 + a²)) exp(−c (a + √(2 + a²))/2). That is their Proposition 3.2 with the integral
    F_c done.

    Parameters
    ----------
    distance : array_like
        c: the distance between the two inputs over the scale λ of the noise, positive; infinite for a public record.
    dimension : int or inf
        d: the number of perturbed coordinates; ``math.inf`` for the limit, which lies below every other curve.
    """

    distance: ArrayLike
    dimension: float = math.inf

    def __post_init__(self) -> None:
        object.__setattr__(self, "distance", checked("distance", self.distance, "positive", lambda a: a > 0))
        d = self.dimension
        if isinstance(d, bool) or not (d == math.inf or (isinstance(d, (int, np.integer)) and d >= 1)):
            raise ValueError(f"dimension must be a positive integer or infinity, got {d!r}")

    def __call__(self, alpha: ArrayLike) -> Any:
        """Smallest type II error at level `alpha`."""
        if self.dimension == 1:
            return self._laplace(alpha)
        return self._map(_Tests.type_ii_error, _probability("alpha", alpha), public=0.0)

    def delta(self, epsilon: ArrayLike) -> Any:
        """δ_c(ε): power less exp(ε) times level, of the test whose threshold is exp(ε); Theorem 3.3 for the limit."""
        if self.dimension == 1:
            return self._laplace.delta(epsilon)
        return self._map(_Tests.delta, _epsilon(epsilon), public=1.0)

    def epsilon(self, delta: ArrayLike) -> Any:
        """Inverse of `delta`, by root finding; 0 where 0 is enough, infinite at delta = 0 in two dimensions or more."""
        if self.dimension == 1:
            return self._laplace.epsilon(delta)
        found = self._map(_Tests.epsilon, _probability("delta", delta), public=math.inf)
        return np.where(np.equal(delta, 1), 0.0, found)[()]

    @property
    def _laplace(self) -> LaplaceTradeoff:
        """T_{1,c} in closed form: Laplace noise of scale λ/√2."""
        return LaplaceTradeoff(np.minimum(math.sqrt(2) * self.distance, FAR))

    def _map(self, function: Any, argument: ArrayLike, public: float) -> Any:
        """Apply a function of the tests at each distance to its arguments; `public` where the distance is infinite."""
        argument, distance = np.broadcast_arrays(argument, self.distance)
        result = np.full(argument.shape, public)
        for one in np.unique(distance[distance < FAR]):
            here = distance == one
            result[here] = function(_tests(self.dimension, float(one)), argument[here])
        return result[()]


@functools.lru_cache(maxsize=256)
def _tests(dimension: float, distance: float) -> "_Tests":
    return _Tests(dimension, distance)


class _Tests:
    """Level and power of the most powerful tests, as functions of the logarithm κ ≥ 0 of their threshold."""

    def __init__(self, dimension: float, distance: float) -> None:
        self.dimension, self.distance = dimension, distance

    def errors(self, kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P(h > κ) and P(h < −κ) for the log density ratio h under the first law, each to its own precision.

        By symmetry the second is the power of the test whose level is the first.
        """
        c, kappa = self.distance, np.asarray(kappa, float)
        if self.dimension == math.inf:
            a = kappa / c
            root = np.sqrt(2 + a**2)
            with np.errstate(over="ignore"):
                level = np.exp(-c * (a + root) / 2) / (root * (root + a))
            return level, -np.expm1(-c / (a + root) + np.log1p(-1 / (root * (root + a))))
        law = radial_law(int(self.dimension))
        near, far = law.axis(kappa, c)
        reached = near > SMALL + 1e-6
        log_c = math.log(c)
        start, stop = np.log1p(-np.exp(near - log_c)) + log_c, np.logaddexp(far, log_c)
        level = law.integrate(start, stop, lambda u: law.cap(u, law.step(u, kappa[..., None]), c))
        ball = law.integrate(near - DROP, near, np.ones_like)
        ring = law.integrate(near, far, lambda u: 1 - law.cap(u, law.step(u, -kappa[..., None]), c))
        return np.where(reached, level, 0.0), np.where(reached, ball + ring, 0.0)

    @functools.cached_property
    def grid(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log thresholds, denser where the curve bends, with the logarithms of level and power."""
        reach = math.sqrt(2) * self.distance
        kappa = [np.linspace(0, 1, 97), 1 + np.geomspace(1e-4, 1, 32), np.geomspace(2.1, 1e4, 96)]
        kappa = reach * np.concatenate(kappa)
        kappa = kappa[kappa < MAX_EPSILON]
        with np.errstate(divide="ignore"):
            level, power = np.log(self.errors(kappa))
        seen = np.isfinite(level) & np.isfinite(power)
        kappa, level, power = kappa[seen], level[seen], power[seen]
        # past the precision of the table of the radial law nothing decreases
        keep = np.concatenate([[True], (np.diff(level) < 0) & (np.diff(power) < 0)])
        end = len(keep) if keep.all() else np.argmin(keep)
        return kappa[:end], level[:end], power[:end]

    def type_ii_error(self, alpha: np.ndarray) -> np.ndarray:
        """The curve: Neyman and Pearson's test at level `alpha`, and by symmetry the inverse beyond the diagonal."""
        _, level, power = self.grid
        beyond = alpha > np.exp(level[0])
        with np.errstate(divide="ignore"):
            target = np.where(beyond, np.log1p(-alpha), np.log(alpha))
        kappa = np.where(beyond, self._threshold(target, power), self._threshold(target, level))
        level, power = self.errors(kappa)
        # the curve is within rounding of its tangent at a threshold that is nearly right
        slope = np.exp(kappa)
        with np.errstate(over="ignore", invalid="ignore"):
            value = np.where(beyond, level - (alpha - (1 - power)) / slope, (1 - power) - slope * (alpha - level))
        return np.where(alpha == 0, 1.0, np.where(alpha == 1, 0.0, np.clip(value, 0.0, 1 - alpha)))

    def _threshold(self, target: np.ndarray, log_error: np.ndarray) -> np.ndarray:
        """The log threshold at which `log_error`, a column of the grid, is `target`: interpolated, then two secants."""
        kappa, level, _ = self.grid
        inverse = PchipInterpolator(log_error[::-1], kappa[::-1])
        forward = PchipInterpolator(kappa, log_error).derivative()
        which = 0 if log_error is level else 1
        found = inverse(np.clip(target, log_error[-1], log_error[0]))
        for _ in range(2):
            with np.errstate(divide="ignore"):
                miss = np.log(self.errors(found)[which]) - np.clip(target, log_error[-1], log_error[0])
            found = np.clip(found - miss / np.minimum(forward(found), -1e-12), kappa[0], kappa[-1])
        return found

    def delta(self, epsilon: np.ndarray) -> np.ndarray:
        """Power less exp(ε) times level."""
        level, power = self.errors(np.minimum(epsilon, MAX_EPSILON))
        return np.where(
            epsilon <= MAX_EPSILON, np.maximum(power - np.exp(np.minimum(epsilon, MAX_EPSILON)) * level, 0.0), 0.0
        )

    def epsilon(self, delta: np.ndarray) -> np.ndarray:
        """Root of `delta`, which decreases."""
        found = elementwise.find_root(
            lambda epsilon, target: self.delta(epsilon) - target,
            (np.zeros_like(delta), np.full_like(delta, MAX_EPSILON)),
            args=(delta,),
        )
        least, most = self.delta(np.array([MAX_EPSILON, 0.0]))
        return np.where(delta >= most, 0.0, np.where(delta > least, found.x, np.inf))
