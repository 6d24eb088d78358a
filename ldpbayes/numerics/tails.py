"""Tails and masses of laws of numbers and counts. Those of counts use deviances, in which no large numbers cancel."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from ldpbayes.numerics.special import INVERSE_SQRT_2PI, SQRT_HALF, horner, log1mexp, log_sum, student_t_cdf


def _sides(x: Any, smaller: jax.Array) -> jax.Array:
    """Lower and upper tail, shape (2, ...), from the smaller of them, of a law that is symmetric about 0."""
    larger = 1.0 - smaller
    return jnp.stack([jnp.where(x < 0, smaller, larger), jnp.where(x < 0, larger, smaller)])


# In these functions abs() would have no derivative at the centre.
def normal_tails(x: Any) -> jax.Array:
    """Φ(x) and Φ(−x), as an array (2, ...)."""
    return _sides(x, 0.5 * special.erfc(jnp.where(x < 0, -x, x) * SQRT_HALF))


def laplace_tails(x: Any) -> jax.Array:
    """P(X ≤ x) and P(X > x) for the Laplace law with scale 1, as an array (2, ...)."""
    return _sides(x, 0.5 * jnp.exp(jnp.where(x < 0, x, -x)))


def logistic_tails(x: Any) -> jax.Array:
    return jnp.stack([jax.nn.sigmoid(x), jax.nn.sigmoid(-x)])


def student_t_tails(df: Any, x: Any) -> jax.Array:
    return _sides(x, student_t_cdf(df, jnp.where(x < 0, x, -x)))


def _integrated(edges: Any, upper: Any, first_moments: Any) -> jax.Array:
    """∫ P(X > s) ds between neighbouring edges, by parts: the change of s P(X > s), and ∫ s f(s) ds."""
    products = edges * upper
    return products[1:] - products[:-1] + first_moments


def integrated_normal_tail(edges: Any) -> jax.Array:
    """∫ P(X > s) ds (n − 1, ...) between neighbouring edges (n, ...), for a standard normal X."""
    density = INVERSE_SQRT_2PI * jnp.exp(-0.5 * edges * edges)
    return _integrated(edges, normal_tails(edges)[1], density[:-1] - density[1:])


def integrated_laplace_tail(edges: Any) -> jax.Array:
    far = jnp.where(edges < 0, -edges, edges)
    beyond = 0.5 * (1.0 + far) * jnp.exp(-far)  # ∫ s f(s) ds from there to infinity
    return _integrated(edges, laplace_tails(edges)[1], beyond[:-1] - beyond[1:])


def integrated_student_t_tail(df: Any, edges: Any) -> jax.Array:
    # The integral of s f(s) from a to b is f(0) ν/2 · A^(−m) · L · (1 − exp(−m L))/(m L), with A = 1 + a²/ν, B = 1 +
    # b²/ν, L = log(B/A) and m = (ν − 1)/2, also for ν = 1, where X has no mean.
    at_center = jnp.exp(special.gammaln(0.5 * (df + 1)) - special.gammaln(0.5 * df)) / jnp.sqrt(df * math.pi)
    logs, m = jnp.log1p(edges * edges / df), 0.5 * (df - 1)
    step = logs[1:] - logs[:-1]
    first = 0.5 * at_center * df * jnp.exp(-m * logs[:-1]) * step * _relative_expm1(-m * step)
    return _integrated(edges, student_t_tails(df, edges)[1], first)


def _relative_expm1(y: Any) -> jax.Array:
    """(exp(y) − 1)/y, regular at 0."""
    small = jnp.abs(y) < 1e-3
    series, safe = jnp.where(small, y, 0.0), jnp.where(small, 1.0, y)
    # the next term is below 1e-17 here
    expansion = 1 + series * (1 / 2 + series * (1 / 6 + series * (1 / 24 + series / 120)))
    return jnp.where(small, expansion, jnp.expm1(safe) / safe)


_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)  # the next is below 2e-18 from 16 on


class Tail(NamedTuple):
    """The sum of exp(tilt·(k − z)) P(k) over the counts k on one side of z, described by logarithms."""

    log_ratio: jax.Array  # log of the tilted masses of the side, or if not `direct` of the other one, over that at z
    direct: jax.Array  # whether the sum over the side is no larger than most of the law
    log_whole: jax.Array  # log E exp(tilt·(k − z)), of both sides together; used where not `direct`


def _stirling_error(x: Any) -> jax.Array:
    """The error of Stirling's formula [Loader]: log Γ(x + 1) − (x + ½) log x + x − ½ log 2π for x > 0."""
    far = x > 16.0
    inverse = 1.0 / jnp.where(far, x, 16.0)
    series = horner(_STIRLING[::-1], inverse * inverse)
    near = jnp.where(far, 1.0, x)
    direct = lax.lgamma(near + 1.0) - (near + 0.5) * jnp.log(near) + near - 0.5 * math.log(2 * math.pi)
    return jnp.where(far, series * inverse, direct)


def _deviance(x: Any, excess: Any, log_ratio: Any) -> jax.Array:
    """The deviance x log(x/m) + m − x for m = x + excess, x > 0, log_ratio = log(m/x)."""
    relative = excess / x
    near = jnp.abs(relative) < 0.1
    r = jnp.where(near, relative, 0.0)
    h = r / (2.0 + r)
    square = h * h
    # r − log(1 + r) = 2 h²/(1 − h) − 2 (h³/3 + h⁵/5 + ...)
    series = horner([1.0 / odd for odd in (15, 13, 11, 9, 7, 5, 3)], square)
    return x * jnp.where(near, 2.0 * square * (1.0 / (1.0 - h) - h * series), relative - log_ratio)


def poisson_log_mass(k: Any, rate: Any) -> jax.Array:
    positive = k > 0
    k = jnp.where(positive, k, 1.0)
    deviance = _deviance(k, rate - k, jnp.log(rate / k))
    return jnp.where(positive, -deviance - _stirling_error(k) - 0.5 * jnp.log(2 * math.pi * k), -rate)


def binomial_log_mass(k: Any, n: Any, log_p: Any, log_q: Any) -> jax.Array:
    """Log probability of k successes in n trials, where log_p = log p and log_q = log(1 − p)."""
    inside, ends = (k > 0) & (k < n), jnp.where(k == n, n * log_p, jnp.where(k > n, -jnp.inf, n * log_q))
    n = jnp.where(inside, n, 1.0)  # derivatives at 0 trials would be NaN, even if not selected
    at = jnp.where(inside, k, 0.5)
    rest, excess = n - at, n * jnp.exp(log_p) - at
    deviance = _deviance(at, excess, jnp.log(n / at) + log_p) + _deviance(rest, -excess, jnp.log(n / rest) + log_q)
    errors = _stirling_error(n) - _stirling_error(at) - _stirling_error(rest)
    lead = 0.5 * (jnp.log(n / (at * rest)) - math.log(2 * math.pi))
    return jnp.where(inside, lead + errors - deviance, ends)


def negative_binomial_log_mass(k: Any, concentration: Any, log_q: Any, log_p: Any) -> jax.Array:
    """Log Γ(α + k)/(Γ(α) k!)·p^α q^k, with the `concentration` α, and p = 1 − q."""
    alpha, positive = concentration, k > 0
    k = jnp.where(positive, k, 1.0)
    excess = k * jnp.exp(log_p) - alpha * jnp.exp(log_q)  # of α, and of −k, over their shares of α + k
    deviance = _deviance(alpha, excess, log_p + jnp.log1p(k / alpha))
    deviance += _deviance(k, -excess, log_q + jnp.log1p(alpha / k))
    errors = _stirling_error(alpha + k) - _stirling_error(alpha) - _stirling_error(k)
    lead = 0.5 * (jnp.log(alpha) - jnp.log((alpha + k) * k) - math.log(2 * math.pi))
    return jnp.where(positive, lead + errors - deviance, alpha * log_p)


@functools.cache
def _rule(stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and log weights of ∫ over (0, ∞), for integrands that fall from 1 on the scale of 1 or more slowly:
    trapezoids in τ with nodes exp(τ − exp(−τ)), wider apart beyond exp(4), exact to 2e-15 in this module.
    """
    step = 0.1
    tau = np.arange(-37, round(stop / step) + 1) * step
    log_node = tau - np.exp(-tau) + 1.5 * np.logaddexp(0.0, tau - 4.0)
    slope = 1.0 + np.exp(-tau) + 1.5 / (1.0 + np.exp(4.0 - tau))
    return np.exp(log_node), log_node + np.log(step * slope)


def _log_integral(exponent: Callable[[Any], Any], slope: Any, curvature: Any, stop: int) -> jax.Array:
    """Log of ∫ exp(exponent(v)) dv over v > 0, given the first two derivatives of the exponent at 0, where it is 0."""
    width = lax.stop_gradient(1.0 / (jnp.abs(slope) + jnp.sqrt(jnp.maximum(-curvature, 0.0))))
    nodes, log_weights = (jnp.asarray(array, width.dtype) for array in _rule(stop))
    return log_sum(exponent(width[..., None] * nodes) + log_weights) + jnp.log(width)


def poisson_tail(z: Any, rate: Any, tilt: Any, side: int) -> Tail:
    """Σ exp(tilt·(k − z)) P(k) for a Poisson law, over k ≤ z (`side` 1) or k > z (−1), the sign of the tilt."""
    # The law in proportion to exp(tilt·k) P(k) is Poisson with the rate μ = rate·exp(tilt). Of it, P(k ≤ z)/P(z) is
    # ∫ exp(−v) (1 + v/μ)^z dv, and P(k > z)/P(z) is μ ∫ exp(−(z + 1) v + μ (1 − exp(−v))) dv.
    z, rate, tilt = jnp.broadcast_arrays(z, rate, jnp.minimum(tilt, _safe_exponent(tilt, 0.7)))
    mean = rate * jnp.exp(tilt)
    below = z < mean
    divisor = jnp.where(below & (z > 0), mean, 1.0)  # elsewhere the mean may be tiny, and is no divisor

    def exponent(v: Any) -> Any:
        at, mu, over = (array[..., None] for array in (z, mean, divisor))
        return jnp.where(below[..., None], at * jnp.log1p(v / over) - v, -(at + 1.0) * v - mu * jnp.expm1(-v))

    slope = jnp.where(below, z / divisor - 1.0, mean - z - 1.0)
    log_ratio = _log_integral(exponent, slope, jnp.where(below, -z / divisor / divisor, -mean), stop=4)
    log_ratio += jnp.where(below, 0.0, jnp.log(rate) + tilt)
    log_whole = (rate - z) * tilt + rate * (jnp.expm1(tilt) - tilt)
    return Tail(log_ratio, below if side > 0 else ~below, log_whole)


def negative_binomial_tail(z: Any, concentration: Any, log_q: Any, log_p: Any, tilt: Any, side: int) -> Tail:
    """The sum of `poisson_tail`, for a negative binomial law."""
    # The tilt replaces q = exp(log_q) by q exp(tilt), which may exceed 1 and is q here; let b = q/(1 − q). Over the
    # probability of z, the lower sum is (α + z) ∫ exp(−α v) (exp(−v) + (1 − exp(−v))/q)^z dv, and the upper one
    # (α + z) b ∫ exp(−(z + 1) v) (1 + b (1 − exp(−v)))^(α − 1) dv, with the concentration α.
    tilt = jnp.minimum(tilt, _safe_exponent(tilt, 0.7))
    z, alpha, log_q, log_p, tilt = jnp.broadcast_arrays(z, concentration, log_q, log_p, tilt)
    most = _safe_exponent(log_q, 0.45)  # odds are squared
    tilted = jnp.clip(log_q + tilt, -most, most)
    summable = tilted < 0
    log_1mq = log1mexp(jnp.where(summable, tilted, -1.0))
    log_odds = jnp.where(summable, tilted, -1.0) - log_1mq
    rho, odds = jnp.exp(-tilted), jnp.exp(log_odds)
    # the lower sum up to the mean; the upper one from the mode on, where it may be nearly all of a skewed law
    below = ~summable | (z * (rho - 1.0) < alpha if side > 0 else z + 1.0 <= (alpha - 1.0) * odds)

    def exponent(v: Any) -> Any:
        at, a, r, b = (array[..., None] for array in (z, alpha, rho, odds))
        rise = -jnp.expm1(-v)
        growth = jnp.where(below[..., None], rise * (r - 1.0), rise * b)
        small = growth > -0.5
        whole = jnp.where(small, 1.0, jnp.exp(-v) + rise * r)  # 1 + growth, where that would cancel
        log_growth = jnp.where(small, jnp.log1p(jnp.where(small, growth, 0.0)), jnp.log(whole))
        return jnp.where(below[..., None], at * log_growth - a * v, (a - 1.0) * log_growth - (at + 1.0) * v)

    slope = jnp.where(below, z * (rho - 1.0) - alpha, (alpha - 1.0) * odds - z - 1.0)
    curvature = -jnp.where(below, z * (rho - 1.0) * rho, (alpha - 1.0) * odds * (1.0 + odds))
    log_ratio = jnp.log(alpha + z) + _log_integral(exponent, slope, curvature, stop=16)
    log_ratio += jnp.where(below, 0.0, log_odds)
    return Tail(log_ratio, below if side > 0 else ~below, alpha * (log_p - log_1mq) - z * tilt)


def _safe_exponent(array: Any, share: float) -> float:
    """A share of the exponent at which a number of the array's type overflows. Such a tilt leaves one term of a sum."""
    return share * math.log(jnp.finfo(array.dtype).max)
