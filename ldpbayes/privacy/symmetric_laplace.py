"""The symmetric multivariate Laplace law SL_d(I): its density, and how well two of them, `distance` apart, can be told.

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
from scipy import special
from scipy.interpolate import PchipInterpolator
from scipy.optimize import elementwise

from ldpbayes.privacy.tradeoff import LaplaceTradeoff, Tradeoff, _epsilon, _probability, checked

__all__ = ["SymmetricLaplaceTradeoff", "log_density"]

DROP = 44.0  # nats below its peak at which an integrand ends
TAIL = 400.0  # the same where the mass beyond is multiplied by a probability that grows, from nothing
BESSEL_NODES = 256
STEP = 0.01  # of the table, in the logarithm of the radius: a quintic through it is exact to rounding
LEAST, SMALL, MOST = -92.0, -45.0, 9.0  # logarithms of radii: the table's ends, and the least that tests turn on
FAR = 2000.0  # a distance at which both errors underflow
MAX_EPSILON = 690.0


def _unit_rule(panels: int, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on equal panels of [0, 1]."""
    t, w = np.polynomial.legendre.leggauss(order)
    return ((np.arange(panels)[:, None] + (1 + t) / 2) / panels).ravel(), np.tile(w / (2 * panels), panels)


def _tanh_sinh(nodes: int = 50, reach: float = 3.2) -> tuple[np.ndarray, np.ndarray]:
    """The double-exponential rule on [0, 1], for integrands with powers at either end."""
    t = np.linspace(-reach, reach, 2 * nodes + 1)
    y = np.pi * np.sinh(t)
    return special.expit(y), reach / nodes * np.pi * np.cosh(t) * special.expit(y) * special.expit(-y)


_GAUSS, _PANELS, _TANH_SINH = _unit_rule(1, 8), _unit_rule(32, 12), _tanh_sinh()


def log_density(xp: Any, radius: Any, dimension: int) -> Any:
    """Log density of SL_d(I) at a distance `radius` from its centre, for NumPy (``xp = np``) or JAX (``jnp``).

    The law is √W·X, W ~ Exp(1), X ~ N(0, I): its density is 2 (2π)^(−d/2) (r²/2)^(−μ/2) K_μ(√2 r) with μ = d/2 − 1
    (Kotz, Kozubowski & Podgórski 2001; Lu, Chen & Qiu, sec. 3.2). It is infinite at 0 for d ≥ 2.

    Parameters
    ----------
    xp : module
        ``numpy`` or ``jax.numpy``.
    radius : array
        Non-negative.
    dimension : int

    Returns
    -------
    array
        Same shape, to a few units in the last place, and with a gradient wherever it is finite.
    """
    if dimension == 1:
        return -math.sqrt(2) * radius - math.log(2) / 2
    order = dimension / 2 - 1
    positive = radius > 0
    safe = xp.where(positive, radius, 1.0)
    log_f = (
        (1 - dimension / 2) * math.log(math.pi * 2)
        - math.log(math.pi)
        - order * (xp.log(safe) - math.log(2) / 2)
        + _log_bessel_k(xp, order, math.sqrt(2) * safe)
    )
    return xp.where(positive, log_f, xp.inf)


def _log_bessel_k(xp: Any, order: float, x: Any) -> Any:
    """Log K_order(x), from K = ½ ∫ exp(order·t − x cosh t) dt by the trapezoidal rule between the integrand's ends.

    The integrand is analytic and decays doubly exponentially, so the rule converges as fast as anything can.
    """
    peak = xp.arcsinh(order / x)
    bend = xp.sqrt(order**2 + x**2)
    # at t = peak + s the exponent, less its peak, is order·s − ½ (bend + order)(e^s − 1) − ½ (bend − order)(e^−s − 1)
    rise, fall = 0.5 * (bend + order), 0.5 * x**2 / (bend + order)
    right = xp.arccosh(1 + DROP / bend)
    left = xp.log(DROP + bend) - xp.log(rise) - 2 * (xp.log(x) - xp.log(2 * rise))
    left = xp.minimum(left, (DROP + bend) / order) if order > 0 else left
    s = -left[..., None] + (left + right)[..., None] * ((np.arange(BESSEL_NODES) + 0.5) / BESSEL_NODES)
    exponent = order * s - rise[..., None] * xp.expm1(s) - fall[..., None] * xp.expm1(-s)
    total = xp.sum(xp.exp(exponent), axis=-1) * (left + right) / (2 * BESSEL_NODES)
    return order * peak - bend + xp.log(total)


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
        law = _radial_law(int(self.dimension))
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


@functools.cache
def _radial_law(dimension: int) -> "_RadialLaw":
    return _RadialLaw(dimension)


class _RadialLaw:
    """The radius of SL_d(I) in logarithms, with its log density in a table that quintics make exact between knots."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.knots = np.arange(LEAST, MOST + STEP / 2, STEP)
        x = math.sqrt(2) * np.exp(self.knots)
        if dimension == 1:
            fall = bend = x
        else:
            order = dimension / 2 - 1
            fall = x * np.exp(_log_bessel_k(np, order + 1, x) - _log_bessel_k(np, order, x))
            bend = fall * (fall - 2 * order) - x**2  # Bessel's equation, for the logarithm
        self.values, self.slopes, self.bends = log_density(np, np.exp(self.knots), dimension), -fall, -bend
        mass = self.log_mass(self.knots)
        self.mode = int(np.argmax(mass))
        self.tail = mass[self.mode :]

    def log_density(self, u: np.ndarray, slope: bool = False) -> np.ndarray:
        """Log density of the law at log radius u, or its slope there: the quintic from both neighbouring knots."""
        i = np.clip(((u - LEAST) / STEP).astype(np.intp), 0, len(self.knots) - 2)
        s, h = (u - self.knots[i]) / STEP, STEP
        rise = self.values[i + 1] - self.values[i]
        a, b = h * self.slopes[i], h * self.slopes[i + 1]
        p, q = h**2 * self.bends[i] / 2, h**2 * self.bends[i + 1] / 2
        # a s + p s² + s³ (k3 + k4 (s − 1)...) in monomials
        k3 = 10 * rise - 6 * a - 4 * b - 3 * p + q
        k4 = -15 * rise + 8 * a + 7 * b + 3 * p - 2 * q
        k5 = 6 * rise - 3 * a - 3 * b - p + q
        if slope:
            return (a + s * (2 * p + s * (3 * k3 + s * (4 * k4 + s * 5 * k5)))) / h
        return self.values[i] + s * (a + s * (p + s * (k3 + s * (k4 + s * k5))))

    def log_mass(self, u: np.ndarray) -> np.ndarray:
        """Log density of the log radius."""
        d = self.dimension
        return math.log(2) + d / 2 * math.log(math.pi) - special.gammaln(d / 2) + d * u + self.log_density(u)

    def step(self, u: np.ndarray, kappa: np.ndarray) -> np.ndarray:
        """How far from u, in log radius, the log density is larger by κ; relative precision also for a small step."""
        target = self.log_density(u) + kappa
        there = np.interp(-target, -self.values, self.knots)
        for _ in range(3):
            there = np.clip(there - (self.log_density(there) - target) / self.log_density(there, True), LEAST, MOST)
        step = there - u
        near = np.abs(step) < 0.5
        step_near = np.where(near, step, 0.1)
        for _ in range(2):
            slopes = self.log_density(u[..., None] + step_near[..., None] * _GAUSS[0], True)
            off = step_near * (slopes @ _GAUSS[1]) - kappa
            step_near = step_near - off / self.log_density(u + step_near, True)
        return np.where(near, step_near, step)

    def axis(self, kappa: np.ndarray, c: float) -> tuple[np.ndarray, np.ndarray]:
        """Log distances from the second centre at which the log density ratio is κ, towards the first and away from it.

        SMALL where it is larger nowhere, MOST where it is larger all the way.
        """

        def solve(ratio, low, high):
            low, high = np.full_like(kappa, low), np.full_like(kappa, high)
            for _ in range(60):
                middle = (low + high) / 2
                above = ratio(middle) > kappa
                low, high = np.where(above, middle, low), np.where(above, high, middle)
            return (low + high) / 2

        log_c = math.log(c)
        near = solve(
            lambda v: self.log_density(v) - self.log_density(np.log1p(-np.exp(v - log_c)) + log_c),
            SMALL,
            log_c - math.log(2),
        )
        far = solve(lambda v: self.log_density(v) - self.log_density(np.logaddexp(v, log_c)), SMALL, MOST)
        return near, far

    def cap(self, u: np.ndarray, step: np.ndarray, c: float) -> np.ndarray:
        """Probability that a point on the sphere of log radius u is nearer to the second centre than exp(u + step)."""
        r = np.exp(u)
        rim = np.exp(u + step)
        # 1 − cos of the cap's angle
        product = (rim - np.abs(r - c)) * (rim + np.abs(r - c)) / (2 * c * r)
        depth = np.where(rim < c / 2, product, 1 - c / (2 * r) + r / (2 * c) * np.expm1(2 * step))
        if self.dimension == 1:
            return 0.5 * (depth > 0) + 0.5 * (depth > 2)
        half = (self.dimension - 1) / 2
        return special.betainc(half, half, np.clip(depth / 2, 0.0, 1.0))

    def integrate(self, start: np.ndarray, stop: np.ndarray, probability: Any) -> np.ndarray:
        """∫ of a probability, a function of the log radius, against the law of the log radius, between two bounds."""
        begin = np.clip(((start - LEAST) / STEP).astype(np.intp) - self.mode, 0, len(self.tail) - 1)
        # nothing is left of the law where it is TAIL below what it is at the start
        end = self.knots[self.mode + np.searchsorted(-self.tail, TAIL - self.tail[begin]).clip(max=len(self.tail) - 1)]
        stop = np.maximum(np.minimum(stop, end), start)
        edges = np.stack([start, np.minimum(start + 0.5, stop), np.maximum(stop - 0.5, start), stop])
        edges[1:3] = np.where(stop - start < 1, (start + stop) / 2, edges[1:3])
        total = 0.0
        for low, high, (t, w) in (
            (edges[0], edges[1], _TANH_SINH),
            (edges[1], edges[2], _PANELS),
            (edges[2], edges[3], _TANH_SINH),
        ):
            u = low[..., None] + (high - low)[..., None] * t
            total = total + (high - low) * np.sum(w * np.exp(self.log_mass(u)) * probability(u), axis=-1)
        return total
