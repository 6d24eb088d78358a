"""Special functions that the closed forms need, accurate to rounding in value and gradient, far into the tails.

JAX's own ``log_ndtr`` is off by up to 4e-9 in double precision beyond 20 standard deviations, and the differences of
normal cdfs that clipping produces lose everything there; both are rebuilt here on the scaled complementary error
function, whose exponent can be combined with the exponents around it before anything is rounded.
"""

import jax
import jax.numpy as jnp

__all__ = [
    "betainc",
    "erfcx",
    "log1mexp",
    "log_ndtr",
    "log_relative_expm1",
    "log_sum",
    "log_tilted_normal",
    "student_t_cdf",
]

_SQRT_HALF = 0.7071067811865476
_INVERSE_SQRT_2PI = 0.3989422804014327

# Chebyshev expansions of (1 + 2 x) erfcx(x) and (1 + 2 x)² erfcx'(x), x ≥ 0, in t = (x − 3.75)/(x + 3.75) after M. M.
# Shepherd and J. G. Laframboise, Math. Comp. 36 (1981), cut where what is left is below 3e-17, as powers of t.
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


def _expansion(coefficients, x):
    t = 1.0 - 7.5 / (x + 3.75)
    total = coefficients[0] * t + coefficients[1]
    for coefficient in coefficients[2:]:
        total = total * t + coefficient
    return total


@jax.custom_jvp
@jax.jit
def erfcx(x):
    """Scaled complementary error function exp(x²)·erfc(x) for x ≥ 0.

    Parameters
    ----------
    x : array_like
        Non-negative.

    Returns
    -------
    Array
        Same shape, relative error of a few units in the last place, in the derivative too.
    """
    return _expansion(_ERFCX, x) / (1.0 + 2.0 * x)


@jax.custom_jvp
@jax.jit
def _erfcx_slope(x):
    """Derivative of `erfcx`, by itself: in 2 x erfcx(x) − 2/√π all digits are lost far out."""
    scale = 1.0 / (1.0 + 2.0 * x)
    return _expansion(_ERFCX_SLOPE, x) * scale * scale


erfcx.defjvps(lambda dx, value, x: _erfcx_slope(x) * dx)
_erfcx_slope.defjvps(lambda dx, slope, x: 2.0 * (erfcx(x) + x * slope) * dx)


@jax.custom_jvp
def log_ndtr(x):
    """Log of the standard normal cdf, accurate to rounding for every x.

    Parameters
    ----------
    x : array_like

    Returns
    -------
    Array
        log Φ(x), same shape.
    """
    return _log_ndtr_and_slope(x)[0]


@log_ndtr.defjvp
def _log_ndtr_jvp(primals, tangents):
    value, slope = _log_ndtr_and_slope(*primals)
    return value, slope * tangents[0]


@jax.jit
def _log_ndtr_and_slope(x):
    """Both log Φ(x) and its derivative φ(x)/Φ(x), from one value of `erfcx`."""
    left = x < 0
    half = 0.5 * erfcx(jnp.where(left, -x, x) * _SQRT_HALF)  # not abs(), whose gradient at 0 is lost
    exponent = -0.5 * x * x
    bell = jnp.exp(exponent)
    beyond = bell * half
    value = jnp.where(left, exponent + jnp.log(half), jnp.log1p(-beyond))
    return value, _INVERSE_SQRT_2PI * jnp.where(left, 1.0 / half, bell / (1.0 - beyond))


def log_sum(logs, axis=-1):
    """Log of the sum of exp(logs) along an axis; −inf, with zero gradient, where all of them are.

    Parameters
    ----------
    logs : array
    axis : int
    """
    # no less than a finite number, so that nothing infinite is subtracted from itself
    largest = jnp.maximum(jax.lax.stop_gradient(logs).max(axis=axis, keepdims=True), jnp.finfo(logs.dtype).min)
    total = jnp.sum(jnp.exp(logs - largest), axis=axis)
    positive = total > 0
    return jnp.where(positive, jnp.log(jnp.where(positive, total, 1.0)) + jnp.squeeze(largest, axis), -jnp.inf)


@jax.custom_jvp
def betainc(a, b, x):
    """Regularised incomplete beta function, with derivatives in all its arguments (JAX has that in x only).

    Those in a and b are central differences of the fourth order, with a relative error of about 1e-11 in double
    precision, in which it is evaluated anyway.

    Parameters
    ----------
    a, b : array_like
        Positive.
    x : array_like
        Between 0 and 1.
    """
    return jax.scipy.special.betainc(*jnp.broadcast_arrays(*_inexact(a, b, x)))


@betainc.defjvp
def _betainc_jvp(primals, tangents):
    a, b, x = jnp.broadcast_arrays(*_inexact(*primals))
    da, db, dx = tangents
    moved = _moves(x)
    still = jnp.zeros_like(moved)
    # one call for everything: compiling the function takes longer than evaluating it
    in_a, in_b = 1 + jnp.concatenate([moved, still]), 1 + jnp.concatenate([still, moved])
    there = betainc(a * in_a, b * in_b, jnp.broadcast_to(x, (len(in_a), *x.shape)))
    slope_a, slope_b = _slope(there[:5]) / a, _slope(there[5:]) / b
    edge = (x <= 0) | (x >= 1)
    inner = jnp.where(edge, 0.5, x)
    log_density = (a - 1) * jnp.log(inner) + (b - 1) * jnp.log1p(-inner) - jax.scipy.special.betaln(a, b)
    return there[0], slope_a * da + slope_b * db + jnp.where(edge, 0.0, jnp.exp(log_density)) * dx


@jax.custom_jvp
def student_t_cdf(df, t):
    """Distribution function of Student's t, with derivatives in both arguments, at t = 0 too.

    Parameters
    ----------
    df : array_like
        Degrees of freedom, positive.
    t : array_like
    """
    df, t = jnp.broadcast_arrays(*_inexact(df, t))
    square, centre = t * t, t * t < df
    # around the centre by what lies between it and t, further out by what lies beyond: neither cancels
    a, b = jnp.where(centre, 0.5, 0.5 * df), jnp.where(centre, 0.5 * df, 0.5)
    mass = 0.5 * jax.scipy.special.betainc(a, b, jnp.where(centre, square, df) / (df + square))
    left = jnp.where(centre, 0.5 - mass, mass)
    return jnp.where(t < 0, left, jnp.where(centre, 0.5 + mass, 1.0 - mass))


@student_t_cdf.defjvp
def _student_t_cdf_jvp(primals, tangents):
    df, t = jnp.broadcast_arrays(*_inexact(*primals))
    there = student_t_cdf(df * (1 + _moves(t)), jnp.broadcast_to(t, (5, *t.shape)))
    slope = _slope(there) / df
    log_density = -0.5 * (df + 1) * jnp.log1p(t * t / df) - jax.scipy.special.betaln(0.5, 0.5 * df) - 0.5 * jnp.log(df)
    return there[0], slope * tangents[0] + jnp.exp(log_density) * tangents[1]


def _moves(array):
    """Relative moves of an argument for `_slope`, shape (5, 1, ..., 1): that of which the error is least."""
    h = float(jnp.finfo(array.dtype).eps) ** 0.2
    return jnp.asarray([0, h, -h, 2 * h, -2 * h], array.dtype).reshape(-1, *(1,) * array.ndim)


def _slope(values):
    """Derivative in the log of an argument, from the values at `_moves` of it, to the fourth order."""
    h = float(jnp.finfo(values.dtype).eps) ** 0.2
    return (8 * (values[1] - values[2]) - (values[3] - values[4])) / (12 * h)


def _inexact(*values):
    dtype = jnp.result_type(*values, float)
    return [jnp.asarray(value, dtype) for value in values]


@jax.custom_jvp
@jax.jit
def log1mexp(x):
    """log(1 − exp(x)) for x ≤ 0, stable at both ends; −inf (with zero gradient) for x ≥ 0.

    Parameters
    ----------
    x : array_like

    Returns
    -------
    Array
        Same shape.
    """
    x = jnp.where(x < 0, x, 0.0)
    return jnp.where(x > -0.6931471805599453, jnp.log(-jnp.expm1(x)), jnp.log1p(-jnp.exp(x)))


@jax.jit
def _log1mexp_slope(x):
    valid = x < 0
    x = jnp.where(valid, x, -1.0)
    return jnp.where(valid, jnp.exp(x) / jnp.expm1(x), 0.0)


log1mexp.defjvps(lambda dx, value, x: _log1mexp_slope(x) * dx)


@jax.jit
def log_relative_expm1(y):
    """log((1 − exp(−y)) / y) for y ≥ 0, smooth at 0.

    Removes the singularity of an exponential integral over an interval whose rate passes through zero.

    Parameters
    ----------
    y : array_like
        Non-negative.

    Returns
    -------
    Array
        Same shape; 0 at y = 0.
    """
    small = y < 1e-2
    series = jnp.where(small, y, 0.0)
    safe = jnp.where(small, 1.0, y)
    # log((1 - e^-y)/y) = -y/2 + y²/24 - y⁴/2880 + y⁶/181440 - ...; the next term is below 1e-24 here.
    expansion = series * (-0.5 + series * (1 / 24 + series * series * (-1 / 2880 + series * series / 181440)))
    return jnp.where(small, expansion, jnp.log(-jnp.expm1(-safe)) - jnp.log(safe))


def log_tilted_normal(u, v, k, anchor):
    """Log of ∫ from u to v of φ(s)·exp(k (s − anchor)) ds, φ the standard normal density.

    Completing the square gives exp(k²/2 − k·anchor)·[Φ(v − k) − Φ(u − k)], which is useless once k is large: both
    factors leave the floating-point range although their product is moderate. Here the exponents are joined first:
    in a tail the integral is φ(u)·exp(k (u − anchor))·(M(u − k) − exp(−d)·M(v − k)), M the Mills ratio.

    Parameters
    ----------
    u, v : array_like
        Limits of integration in standard units.
    k : array_like
        Tilt.
    anchor : array_like
        Where the tilt equals one; choose it so that exp(k (s − anchor)) is moderate on [u, v].

    Returns
    -------
    Array
        Broadcast shape; −inf (with zero gradient) where v ≤ u.
    """
    valid = v > u
    u, v = jnp.where(valid, u, 0.0), jnp.where(valid, v, 1.0)
    flip = u + v < 2 * k  # the interval lies left of the tilted mean: mirror it, so that the right tail is the only one
    log_integral = _log_right_of_mean(jnp.where(flip, -v, u), jnp.where(flip, -u, v), jnp.where(flip, -k, k))
    return jnp.where(valid, log_integral - k * anchor, -jnp.inf)


@jax.custom_jvp
def _log_right_of_mean(u, v, k):
    """`log_tilted_normal` anchored at 0, for an interval the middle of which is not left of k."""
    return _log_right_of_mean_and_slopes(u, v, k)[0]


@_log_right_of_mean.defjvp
def _log_right_of_mean_jvp(primals, tangents):
    value, slopes = _log_right_of_mean_and_slopes(*primals)
    return value, sum(slope * tangent for slope, tangent in zip(slopes, tangents, strict=True))


@jax.jit
def _log_right_of_mean_and_slopes(u, v, k):
    width, near = v - u, u - k  # the width is formed before a large tilt can round it away
    far = near + width
    tail = near > 0
    # φ(near) and φ(far) times these are the masses beyond
    distances = jnp.stack([jnp.where(tail, near, -near), far]) * _SQRT_HALF
    mills, mills_slope = 0.5 * erfcx(distances), 0.5 * _SQRT_HALF * _erfcx_slope(distances)
    # weights of the two, in a tail divided by the first one
    at_near = jnp.exp(jnp.where(tail, 0.0, -0.5 * near * near))
    decay = jnp.exp(-0.5 * width * (near + far))
    at_far = at_near * decay
    mass = jnp.where(tail, mills[0], 1.0 - at_near * mills[0]) - at_far * mills[1]
    valid = mass > 0  # an interval of a few rounding errors' width has no mass
    share = jnp.where(valid, 1.0 / jnp.where(valid, mass, 1.0), 0.0)
    value = jnp.where(tail, u * (k - 0.5 * u), 0.5 * k * k) + jnp.where(valid, -jnp.log(share), -jnp.inf)
    by_u, by_v = -_INVERSE_SQRT_2PI * share * at_near, _INVERSE_SQRT_2PI * share * at_far
    # the mean of s: in a tail, k and what is added to it cancel
    beyond = share * (decay * (mills_slope[1] - width * mills[1]) - mills_slope[0])
    return value, (by_u, by_v, jnp.where(tail, u + beyond, k - by_u - by_v))
