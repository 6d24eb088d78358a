"""The symmetric multivariate Laplace law SL_d(I): its log density, and the law of the distance from its centre."""

import functools
import math
from collections.abc import Callable

import jax
import numpy as np
from scipy import interpolate, special

from ldpbayes._core.types import Array, ArrayModule

DROP_NATS = 44.0  # nats below the peak where an integrand ends, since exp(−44) < 1e-19
TAIL_NATS = 400.0  # the same for a density times a probability that grows from nearly 0 and peaks far below
BESSEL_NODES = 256
KNOT_GAP = 0.01  # between logarithms of radii in the table: quintics between them are exact to rounding
FIRST_U, LAST_U = -92.0, 9.0  # the table's ends, logarithms of radii
LEAST_U = -45.0  # the logarithm of the smallest radius that `RadialLaw.axis` tells apart


def _unit_rule(panels: int, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on equal panels of [0, 1]."""
    t, w = np.polynomial.legendre.leggauss(order)
    return ((np.arange(panels)[:, None] + (1 + t) / 2) / panels).ravel(), np.tile(w / (2 * panels), panels)


def _tanh_sinh(nodes: int, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """The double-exponential rule on [0, 1], for integrands with powers at either end."""
    t = np.linspace(-reach, reach, 2 * nodes + 1)
    y = np.pi * np.sinh(t)
    return special.expit(y), reach / nodes * np.pi * np.cosh(t) * special.expit(y) * special.expit(-y)


_GAUSS, _PANELS, _TANH_SINH = _unit_rule(1, 5), _unit_rule(24, 10), _tanh_sinh(40, 3.2)


def log_density(xp: ArrayModule, radius: Array, dimension: int) -> Array:
    """Log density of SL_d(I), the law of √W·X with W ~ Exp(1) and X ~ N(0, I), at a distance r from its centre: 2
    (2π)^(−d/2) (r²/2)^(−μ/2) K_μ(√2 r), μ = d/2 − 1 ([KKP]; [LCQ] sec. 3.2), infinite at 0 for d ≥ 2.
    """
    if dimension == 1:
        return -math.sqrt(2) * radius - math.log(2) / 2
    order = dimension / 2 - 1
    positive = radius > 0
    safe = xp.where(positive, radius, 1.0)
    log_f = (1 - dimension / 2) * math.log(math.pi * 2) - math.log(math.pi) - order * (xp.log(safe) - math.log(2) / 2)
    return xp.where(positive, log_f + _log_bessel_k(xp, order, math.sqrt(2) * safe), xp.inf)


def _log_bessel_k(xp: ArrayModule, order: float, x: Array) -> Array:
    """Log K_order(x), from K = ½ ∫ exp(order·t − x cosh t) dt by the trapezoidal rule between the integrand's ends."""
    # the integrand is analytic and decays doubly exponentially, so the rule's error falls exponentially in the nodes
    peak = xp.arcsinh(order / x)
    bend = xp.sqrt(order**2 + x**2)
    # at t = peak + s the exponent, less its peak, is order·s − ½ (bend + order)(e^s − 1) − ½ (bend − order)(e^−s − 1)
    rise, fall = 0.5 * (bend + order), 0.5 * x**2 / (bend + order)
    right = xp.arccosh(1 + DROP_NATS / bend)
    left = xp.log(DROP_NATS + bend) - xp.log(rise) - 2 * (xp.log(x) - xp.log(2 * rise))
    left = xp.minimum(left, (DROP_NATS + bend) / order) if order > 0 else left
    s = -left[..., None] + (left + right)[..., None] * ((np.arange(BESSEL_NODES) + 0.5) / BESSEL_NODES)
    # e^−s − 1 = −(e^s − 1) e^−s, and a product with ones in place of a sum: JAX 0.10.2 fuses sums on a CPU, those of
    # expm1(s) and expm1(−s) as if expm1 were odd
    exponent = order * s - xp.expm1(s) * (rise[..., None] - fall[..., None] * xp.exp(-s))
    with jax.default_matmul_precision("highest"):
        total = xp.exp(exponent) @ xp.ones(BESSEL_NODES, exponent.dtype)
    total = total * (left + right) / (2 * BESSEL_NODES)
    return order * peak - bend + xp.log(total)


class RadialLaw:
    """The law of the distance r from the centre of SL_d(I), by u = log r; compared with one whose centre is c away."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.knots = np.arange(FIRST_U, LAST_U + KNOT_GAP / 2, KNOT_GAP)
        x = math.sqrt(2) * np.exp(self.knots)
        fall = bend = x
        if dimension > 1:
            order = dimension / 2 - 1
            fall = x * np.exp(_log_bessel_k(np, order + 1, x) - _log_bessel_k(np, order, x))
            bend = fall * (fall - 2 * order) - x**2  # Bessel's equation, for the logarithm
        self.values = log_density(np, np.exp(self.knots), dimension)
        rise, h = np.diff(self.values), KNOT_GAP
        a, b = -h * fall[:-1], -h * fall[1:]
        p, q = -(h**2) * bend[:-1] / 2, -(h**2) * bend[1:] / 2
        # the quintic a s + p s² + k3 s³ + k4 s⁴ + k5 s⁵ has the values, slopes and bends of both knots
        k3 = 10 * rise - 6 * a - 4 * b - 3 * p + q
        k4 = -15 * rise + 8 * a + 7 * b + 3 * p - 2 * q
        k5 = 6 * rise - 3 * a - 3 * b - p + q
        powers = np.arange(5, -1, -1)[:, None]
        self.log_density = interpolate.PPoly(np.stack([k5, k4, k3, p, a, self.values[:-1]]) / h**powers, self.knots)
        mass = self.log_mass(self.knots)
        self.mode = int(np.argmax(mass))
        self.tail = mass[self.mode :]

    def log_mass(self, u: np.ndarray) -> np.ndarray:
        d = self.dimension
        return math.log(2) + d / 2 * math.log(math.pi) - special.gammaln(d / 2) + d * u + self.log_density(u)

    def step(self, u: np.ndarray, kappa: np.ndarray) -> np.ndarray:
        """The change of u after which the log density of SL_d(I) is larger by `kappa`."""
        target = self.log_density(u) + kappa
        there = np.interp(-target, -self.values, self.knots)
        for _ in range(3):
            there = np.clip(there - (self.log_density(there) - target) / self.log_density(there, 1), FIRST_U, LAST_U)
        step = there - u
        near = np.abs(step) < 0.5
        step_near = np.where(near, step, 0.1)
        # one more Newton step for a short one, with its rise as the integral of the slope: no large numbers cancel
        slopes = self.log_density(u[..., None] + step_near[..., None] * _GAUSS[0], 1)
        step_near = step_near - (step_near * (slopes @ _GAUSS[1]) - kappa) / self.log_density(u + step_near, 1)
        return np.where(near, step_near, step)

    def axis(self, kappa: np.ndarray, c: float) -> tuple[np.ndarray, np.ndarray]:
        """Log distances from the second centre of points on the axis, towards the first and away, of ratio `kappa`."""

        def solve(ratio: Callable[[np.ndarray], np.ndarray], most: float) -> np.ndarray:
            low, high = np.full_like(kappa, LEAST_U), np.full_like(kappa, most)
            for _ in range(60):
                middle = (low + high) / 2
                above = ratio(middle) > kappa
                low, high = np.where(above, middle, low), np.where(above, high, middle)
            return (low + high) / 2

        log_c, f = math.log(c), self.log_density
        near = solve(lambda v: f(v) - f(np.log1p(-np.exp(v - log_c)) + log_c), log_c - math.log(2))
        return near, solve(lambda v: f(v) - f(np.logaddexp(v, log_c)), LAST_U)

    def cap(self, u: np.ndarray, step: np.ndarray, c: float) -> np.ndarray:
        """Probability that a point at radius exp(u) is nearer than exp(u + step) to the second centre."""
        r = np.exp(u)
        rim = np.exp(u + step)
        # the depth is 1 − cos of the cap's angle; of its two forms each is the one that does not cancel
        product = (rim - np.abs(r - c)) * (rim + np.abs(r - c)) / (2 * c * r)
        depth = np.where(rim < c / 2, product, 1 - c / (2 * r) + r / (2 * c) * np.expm1(2 * step))
        if self.dimension == 1:
            return 0.5 * (depth > 0) + 0.5 * (depth > 2)
        half = (self.dimension - 1) / 2
        return special.betainc(half, half, np.clip(depth / 2, 0.0, 1.0))

    def integrate(self, start: np.ndarray, stop: np.ndarray, probability: Callable) -> np.ndarray:
        """Log of the integral of `probability`(u) over the law of u, from `start` to `stop`."""
        begin = np.clip(((start - FIRST_U) / KNOT_GAP).astype(np.intp) - self.mode, 0, len(self.tail) - 1)
        # the integral ends where the law's density is TAIL_NATS nats below its value at the start
        last = np.searchsorted(-self.tail, TAIL_NATS - self.tail[begin]).clip(max=len(self.tail) - 1)
        end = self.knots[self.mode + last]
        stop = np.maximum(np.minimum(stop, end), start)
        edges = np.stack([start, np.minimum(start + 0.5, stop), np.maximum(stop - 0.5, start), stop])
        edges[1:3] = np.where(stop - start < 1, (start + stop) / 2, edges[1:3])
        peak = np.where(begin > 0, self.log_mass(start), self.tail[0])
        total = 0.0
        for low, high, (t, w) in zip(edges[:-1], edges[1:], (_TANH_SINH, _PANELS, _TANH_SINH), strict=True):
            u = low[..., None] + (high - low)[..., None] * t
            mass = np.exp(self.log_mass(u) - peak[..., None])
            total = total + (high - low) * np.sum(w * mass * probability(u), axis=-1)
        with np.errstate(divide="ignore"):
            return peak + np.log(total)


radial_law = functools.cache(RadialLaw)
