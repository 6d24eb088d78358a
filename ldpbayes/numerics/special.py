"""Special functions whose derivatives are always finite: logarithms, error functions, theta functions."""

import functools
import math
import operator
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from ldpbayes._core.types import Array, ArrayModule


def log_or_nothing(x: Array) -> jax.Array:
    """The logarithm of x; for x ≤ 0, −inf with zero gradient."""
    return jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1.0)), -jnp.inf)


def log_normal(z: Array, mean: Array, sd: Array) -> jax.Array:
    return -0.5 * ((z - mean) / sd) ** 2 - jnp.log(sd) - 0.5 * math.log(2 * math.pi)


def stacked(*terms: Array) -> jax.Array:
    return jnp.stack(jnp.broadcast_arrays(*terms))


def logsumexp(*terms: Array) -> jax.Array:
    """Log Σ exp(term), summed over the given terms, in their broadcast shape."""
    return log_sum(stacked(*terms), axis=0)


def log_sum(logs: Array, axis: int | tuple[int, ...] = -1) -> jax.Array:
    """Log Σ exp(logs) along an axis. If all logs are −inf, it is −inf with zero gradient."""
    logs = jnp.asarray(logs)  # NumPy arrays may have a precision that JAX does not have
    # where all logs are −inf, a finite number takes the place of the largest: −inf less itself would be NaN
    largest = jnp.maximum(jax.lax.stop_gradient(logs).max(axis=axis, keepdims=True), jnp.finfo(logs.dtype).min)
    total = jnp.sum(jnp.exp(logs - largest), axis=axis)
    positive = total > 0
    return jnp.where(positive, jnp.log(jnp.where(positive, total, 1.0)) + jnp.squeeze(largest, axis), -jnp.inf)


SQRT_HALF = math.sqrt(0.5)
INVERSE_SQRT_2PI = 1 / math.sqrt(2 * math.pi)

# The coefficients of powers of t = (x − 3.75)/(x + 3.75), the highest first, in (1 + 2 x) erfcx(x) and in
# (1 + 2 x)² erfcx'(x) for x ≥ 0: Chebyshev expansions after [ShL], cut where further terms are below 3e-17.
_ERFCX = (
    4.25147144479639e-10, 3.1114333809799254e-10, -5.1739902140113095e-9, -3.7442100809620183e-9,
    3.8675334242222354e-8, 2.3263508708859124e-8, -2.5866850716155884e-7, -5.7218230603224086e-8,
    1.7516376488490621e-6, -9.7355989673677497e-7, -1.1444146237700524e-5, 2.2384239155082231e-5,
    5.1649098892682407e-5, -0.00029015408054084172, 0.00029371366559134481, 0.0017556258528952954,
    -0.0097465795580292756, 0.028362277418956406, -0.058693398589636771, 0.092304321160377484,
    -0.10880393014174886, 0.082276738490145204, 0.0035854154854644293, -0.14024059858554697,
    1.2375126308378275,
)  # fmt: skip
_ERFCX_SLOPE = (
    1.4472182417386678e-9, -9.4240497133958342e-9, -1.9387383061189408e-8, 1.1131720278522718e-7,
    1.4524371588448234e-7, -7.8091751000789795e-7, -8.0433145554289967e-7, 4.7633855740748476e-6,
    3.1566813098496453e-6, -2.9208591196932283e-5, 5.3664903472048926e-7, 0.00017647105426818393,
    -0.00020311241169162619, -0.00084110333589987503, 0.0028273473740803635, -0.00041166231973034531,
    -0.018681797888452898, 0.063180285741372064, -0.11387123740150848, 0.10716921202648433,
    0.036318244109020695, -0.32960922312218, 0.6428036856013053, -0.72983407125638255,
    0.39219971041081281, 0.3260056318942916, -2.633964606739275,
)  # fmt: skip


def horner(coefficients: Sequence[float], x: Array) -> Array:
    """The polynomial with these coefficients, that of the highest power first, at x."""
    return functools.reduce(lambda total, coefficient: total * x + coefficient, coefficients)


@jax.custom_jvp
@jax.jit
def erfcx(x: Array) -> jax.Array:
    """Return exp(x²)·erfc(x) for x ≥ 0. Value and derivative have a relative error of a few units in the last place."""
    return horner(_ERFCX, 1.0 - 7.5 / (x + 3.75)) / (1.0 + 2.0 * x)


@jax.custom_jvp
@jax.jit
def _erfcx_slope(x: Array) -> jax.Array:
    """Derivative of `erfcx`, by itself: in 2 x erfcx(x) − 2/√π all digits are lost far out."""
    scale = 1.0 / (1.0 + 2.0 * x)
    return horner(_ERFCX_SLOPE, 1.0 - 7.5 / (x + 3.75)) * scale * scale


erfcx.defjvps(lambda dx, value, x: _erfcx_slope(x) * dx)
_erfcx_slope.defjvps(lambda dx, slope, x: 2.0 * (erfcx(x) + x * slope) * dx)


def _with_slopes(function: Callable) -> Callable[..., jax.Array]:
    """Decorator: a function of numbers from one that returns its value and its derivative in each of them."""

    @jax.custom_jvp
    def value(*arguments: Array) -> jax.Array:
        return function(*arguments)[0]

    @value.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple:
        value, *slopes = function(*primals)
        return value, functools.reduce(operator.add, map(operator.mul, slopes, tangents))

    return value


@_with_slopes
@jax.jit
def log_ndtr(x: Array) -> tuple[jax.Array, jax.Array]:
    """Return log Φ(x), the log of the standard normal cdf, exact up to rounding for every x."""
    left = x < 0
    # JAX's derivative of abs() at 0 is 0, which would lose the gradient there
    half = 0.5 * erfcx(jnp.where(left, -x, x) * SQRT_HALF)
    exponent = -0.5 * x * x
    bell = jnp.exp(exponent)
    beyond = bell * half
    value = jnp.where(left, exponent + jnp.log(half), jnp.log1p(-beyond))
    return value, INVERSE_SQRT_2PI * jnp.where(left, 1.0 / half, bell / (1.0 - beyond))


@jax.custom_jvp
def betainc(a: Array, b: Array, x: Array) -> jax.Array:
    """The regularised incomplete beta function, with derivatives (in a and b by differences: errors of 1e-11)."""
    return jax.scipy.special.betainc(*jnp.broadcast_arrays(*_inexact(a, b, x)))


@betainc.defjvp
def _betainc_jvp(primals: tuple, tangents: tuple) -> tuple:
    a, b, x = jnp.broadcast_arrays(*_inexact(*primals))
    da, db, dx = tangents
    moved = _relative_moves(x)
    still = jnp.zeros_like(moved)
    # compiling the function takes longer than evaluating it, so there is one call for all points
    in_a, in_b = 1 + jnp.concatenate([moved, still]), 1 + jnp.concatenate([still, moved])
    there = betainc(a * in_a, b * in_b, jnp.broadcast_to(x, (len(in_a), *x.shape)))
    slope_a, slope_b = _log_slope(there[:5]) / a, _log_slope(there[5:]) / b
    edge = (x <= 0) | (x >= 1)
    inner = jnp.where(edge, 0.5, x)
    log_density = (a - 1) * jnp.log(inner) + (b - 1) * jnp.log1p(-inner) - jax.scipy.special.betaln(a, b)
    return there[0], slope_a * da + slope_b * db + jnp.where(edge, 0.0, jnp.exp(log_density)) * dx


@jax.custom_jvp
def student_t_cdf(df: Array, t: Array) -> jax.Array:
    """Return the distribution function of Student's t. It has derivatives in both arguments, also at t = 0."""
    df, t = jnp.broadcast_arrays(*_inexact(df, t))
    square, centre = t * t, t * t < df
    # around the centre the mass between the centre and t, further out the mass beyond t: so no difference cancels
    a, b = jnp.where(centre, 0.5, 0.5 * df), jnp.where(centre, 0.5 * df, 0.5)
    mass = 0.5 * jax.scipy.special.betainc(a, b, jnp.where(centre, square, df) / (df + square))
    left = jnp.where(centre, 0.5 - mass, mass)
    return jnp.where(t < 0, left, jnp.where(centre, 0.5 + mass, 1.0 - mass))


@functools.partial(student_t_cdf.defjvp, symbolic_zeros=True)
def _student_t_cdf_jvp(primals: tuple, tangents: tuple) -> tuple:
    df, t = jnp.broadcast_arrays(*_inexact(*primals))
    by_df, by_t = (not isinstance(tangent, SymbolicZero) for tangent in tangents)
    if by_df:  # five values in place of one, which is seldom asked for
        there = student_t_cdf(df * (1 + _relative_moves(t)), jnp.broadcast_to(t, (5, *t.shape)))
        value, change = there[0], _log_slope(there) / df * tangents[0]
    else:
        value, change = student_t_cdf(df, t), jnp.zeros_like(t)
    if by_t:
        tail = -0.5 * (df + 1) * jnp.log1p(t * t / df)
        log_density = tail - jax.scipy.special.betaln(0.5, 0.5 * df) - 0.5 * jnp.log(df)
        change = change + jnp.exp(log_density) * tangents[1]
    return value, change


def _relative_moves(array: jax.Array) -> jax.Array:
    """Relative moves (5, 1, ..., 1) of an argument for `_log_slope`; h balances truncation, h⁴, and rounding, eps/h."""
    h = float(jnp.finfo(array.dtype).eps) ** 0.2
    return jnp.asarray([0, h, -h, 2 * h, -2 * h], array.dtype).reshape(-1, *(1,) * array.ndim)


def _log_slope(values: jax.Array) -> jax.Array:
    """Derivative in the log of an argument from the values at its `_relative_moves`, to the fourth order."""
    h = float(jnp.finfo(values.dtype).eps) ** 0.2
    return (8 * (values[1] - values[2]) - (values[3] - values[4])) / (12 * h)


def _inexact(*values: Array) -> list[jax.Array]:
    dtype = jnp.result_type(*values, float)
    return [jnp.asarray(value, dtype) for value in values]


@_with_slopes
@jax.jit
def log1mexp(x: Array) -> tuple[jax.Array, jax.Array]:
    """Return log(1 − exp(x)) for x ≤ 0, stable at both ends. For x ≥ 0, it is −inf with zero gradient."""
    below, safe, x = x < 0, jnp.where(x < 0, x, -1.0), jnp.where(x < 0, x, 0.0)
    value = jnp.where(x > -0.6931471805599453, jnp.log(-jnp.expm1(x)), jnp.log1p(-jnp.exp(x)))
    return value, jnp.where(below, jnp.exp(safe) / jnp.expm1(safe), 0.0)


@jax.jit
def relative_expm1(y: Array) -> jax.Array:
    """Return (1 − exp(−y))/y, the integral of exp(−y s) for s from 0 to 1, smooth at y = 0."""
    small = jnp.abs(y) < 1e-2
    series, safe = jnp.where(small, y, 0.0), jnp.where(small, 1.0, y)
    expansion = horner([(-1) ** k / math.factorial(k + 1) for k in range(7)][::-1], series)  # the next is below 3e-19
    return jnp.where(small, expansion, -jnp.expm1(-safe) / safe)


def log_tilted_normal(u: Array, v: Array, k: Array, anchor: Array) -> jax.Array:
    """Log ∫ φ(s)·exp(k (s − anchor)) ds = exp(k²/2 − k·anchor)·[Φ(v − k) − Φ(u − k)] from u to v; −inf with zero
    gradient if v ≤ u. The anchor should make exp(k (s − anchor)) moderate. For u > k, with the Mills ratio M and d = (v
    − u)·(u + v − 2 k)/2, it is φ(u)·exp(k (u − anchor))·(M(u − k) − exp(−d)·M(v − k)).
    """
    valid = v > u
    u, v = jnp.where(valid, u, 0.0), jnp.where(valid, v, 1.0)
    # an interval left of the tilted mean is mirrored, so that the right tail is the only one
    flip = u + v < 2 * k
    log_integral = _log_right_of_mean(jnp.where(flip, -v, u), jnp.where(flip, -u, v), jnp.where(flip, -k, k))
    return jnp.where(valid, log_integral - k * anchor, -jnp.inf)


@_with_slopes
@jax.jit
def _log_right_of_mean(u: Array, v: Array, k: Array) -> tuple[jax.Array, ...]:
    """`log_tilted_normal` anchored at 0, for an interval the middle of which is not left of k."""
    width, near = v - u, u - k  # the width is not far − near, where a large tilt has rounded both
    far = near + width
    tail = near > 0
    # φ(0) times the Mills ratios at the two ends
    distances = jnp.stack([jnp.where(tail, near, -near), far]) * SQRT_HALF
    mills, mills_slope = 0.5 * erfcx(distances), 0.5 * SQRT_HALF * _erfcx_slope(distances)
    # the densities at the two ends, over φ(0), or in a tail over φ(near), which leaves `value` its exponent
    at_near = jnp.exp(jnp.where(tail, 0.0, -0.5 * near * near))
    decay = jnp.exp(-0.5 * width * (near + far))
    at_far = at_near * decay
    mass = jnp.where(tail, mills[0], 1.0 - at_near * mills[0]) - at_far * mills[1]
    valid = mass > 0  # an interval of a few rounding errors' width has no mass
    share = jnp.where(valid, 1.0 / jnp.where(valid, mass, 1.0), 0.0)
    value = jnp.where(tail, u * (k - 0.5 * u), 0.5 * k * k) + jnp.where(valid, -jnp.log(share), -jnp.inf)
    by_u, by_v = -INVERSE_SQRT_2PI * share * at_near, INVERSE_SQRT_2PI * share * at_far
    # the slope in k is the mean of s, k − by_u − by_v; in a tail these cancel, so there it is u plus a mean distance
    beyond = share * (decay * (mills_slope[1] - width * mills[1]) - mills_slope[0])
    return value, by_u, by_v, jnp.where(tail, u + beyond, k - by_u - by_v)


# Theta functions: the direct series in exp(−k²/(2σ²)) below σ = _THETA_TURN, its Poisson dual in exp(−2π²σ²k²) above.
_THETA_TURN = 1 / math.sqrt(2 * math.pi)
_THETA_SQUARES = np.arange(1.0, 5.0) ** 2  # of the four k that either series needs


def _series(xp: ArrayModule, sigma: Array) -> tuple[Array, Array, Array]:
    """Whether σ is small, and the terms of both series, of which the wrong one has _TURN in place of σ."""
    sigma = xp.asarray(sigma)
    small = sigma < _THETA_TURN
    direct, dual = xp.where(small, sigma, _THETA_TURN)[..., None], xp.where(small, _THETA_TURN, sigma)[..., None]
    squares = xp.asarray(_THETA_SQUARES, direct.dtype)
    # the limits keep squares from overflowing; beyond them all terms vanish
    direct = xp.maximum(direct, 1e-3)
    return small, xp.exp(-squares / (2 * direct**2)), xp.exp(-2 * math.pi**2 * squares * xp.minimum(dual, 1e3) ** 2)


def log_theta(xp: ArrayModule, sigma: Array) -> Array:
    """Return the log of Σ exp(−k²/(2σ²)) over all integers k, exact up to rounding."""
    small, direct, dual = _series(xp, sigma)
    large = xp.where(small, _THETA_TURN, sigma)
    dual_log = xp.log(large) + math.log(2 * math.pi) / 2 + xp.log1p(2 * xp.sum(dual, axis=-1))
    return xp.where(small, xp.log1p(2 * xp.sum(direct, axis=-1)), dual_log)


def theta_variance(xp: ArrayModule, sigma: Array) -> Array:
    """Return the variance, nearly σ², of a random integer k with probability proportional to exp(−k²/(2σ²))."""
    small, direct, dual = _series(xp, sigma)
    squares = xp.asarray(_THETA_SQUARES, direct.dtype)
    direct_variance = 2 * xp.sum(squares * direct, axis=-1) / (1 + 2 * xp.sum(direct, axis=-1))
    square = xp.where(small, _THETA_TURN, sigma) ** 2
    # σ² + σ³ d log(Σ exp(−2π²σ²k²))/dσ
    lost = 8 * math.pi**2 * square * xp.sum(squares * dual, axis=-1) / (1 + 2 * xp.sum(dual, axis=-1))
    return xp.where(small, direct_variance, square * (1 - lost))
