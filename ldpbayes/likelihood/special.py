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

# W. J. Cody, "Rational Chebyshev approximation for the error function", Math. Comp. 23 (1969): relative error < 1e-18.
_MIDDLE_P = (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 66.1191906371416295,
             298.635138197400131, 881.95222124176909, 1712.04761263407058, 2051.07837782607147,
             1230.33935479799725)  # fmt: skip
_MIDDLE_Q = (1.0, 15.7449261107098347, 117.693950891312499, 537.181101862009858, 1621.38957456669019,
             3290.79923573345963, 4362.61909014324716, 3439.36767414372164, 1230.33935480374942)  # fmt: skip
_NEAR_P = (0.185777706184603153, 3.16112374387056560, 113.864154151050156, 377.485237685302021, 3209.37758913846947)
_NEAR_Q = (1.0, 23.6012909523441209, 244.024637934444173, 1282.61652607737228, 2844.23683343917062)
_FAR_P = (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
          1.60837851487422766e-2, 6.58749161529837803e-4)  # fmt: skip
_FAR_Q = (1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124143191e-2,
          2.33520497626869185e-3)  # fmt: skip


def _ratio(p, q, x):
    numerator, denominator = p[0], q[0]
    for a, b in zip(p[1:], q[1:], strict=True):
        numerator, denominator = numerator * x + a, denominator * x + b
    return numerator / denominator


def erfcx(x):
    """Scaled complementary error function exp(x²)·erfc(x) for x ≥ 0.

    Parameters
    ----------
    x : array_like
        Non-negative; negative entries are treated as 0.

    Returns
    -------
    Array
        Same shape, relative error of a few units in the last place. Source: Cody (1969).
    """
    x = jnp.where(x < 0, 0.0, x)  # not maximum(), whose gradient at 0 is halved
    near, far = x < 0.46875, x > 4.0
    small, middle, large = jnp.where(near, x, 0.0), jnp.where(near | far, 1.0, x), jnp.where(far, x, 5.0)
    square = small * small
    head = jnp.exp(square) * (1.0 - small * _ratio(_NEAR_P, _NEAR_Q, square))
    inverse = 1.0 / (large * large)
    tail = (0.5641895835477563 - inverse * _ratio(_FAR_P, _FAR_Q, inverse)) / large
    return jnp.where(near, head, jnp.where(far, tail, _ratio(_MIDDLE_P, _MIDDLE_Q, middle)))


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
    x = jnp.asarray(x)
    left = x < 0
    half = 0.5 * erfcx(jnp.where(left, -x, x) * _SQRT_HALF)  # not abs(), whose gradient at 0 is lost
    upper = jnp.where(left, 0.0, x)
    return jnp.where(
        left,
        -0.5 * x * x + jnp.log(half),
        jnp.log1p(-jnp.exp(-0.5 * upper * upper) * jnp.where(left, 0.5, half)),
    )


def log_sum(logs, axis=-1):
    """Log of the sum of exp(logs) along an axis; −inf, with zero gradient, where all of them are.

    Parameters
    ----------
    logs : array
    axis : int
    """
    largest = jax.lax.stop_gradient(jnp.max(logs, axis=axis, keepdims=True))
    largest = jnp.where(jnp.isfinite(largest), largest, 0.0)
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
    valid = x < 0
    x = jnp.where(valid, x, -1.0)
    near = x > -0.6931471805599453
    value = jnp.where(
        near, jnp.log(-jnp.expm1(jnp.where(near, x, -0.5))), jnp.log1p(-jnp.exp(jnp.where(near, -1.0, x)))
    )
    return jnp.where(valid, value, -jnp.inf)


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
    sign = jnp.where(flip, -1.0, 1.0)
    u, v, k, anchor = jnp.where(flip, -v, u), jnp.where(flip, -u, v), sign * k, sign * anchor
    width, near = v - u, u - k  # the width is formed before a large tilt can round it away
    far = near + width
    tail = near > 0
    # φ(|near|) and φ(far) times these are the masses beyond; two calls, not a stacked one, so that XLA fuses them
    mills = 0.5 * erfcx(jnp.where(tail, near, -near) * _SQRT_HALF), 0.5 * erfcx(far * _SQRT_HALF)
    safe_near = jnp.where(tail, near, 0.0)
    in_tail = mills[0] - jnp.exp(-0.5 * width * (safe_near + jnp.where(tail, far, 0.0))) * mills[1]
    safe_near, safe_far = jnp.where(tail, 0.0, near), jnp.where(tail, 0.0, far)
    middle = 1.0 - jnp.exp(-0.5 * safe_near * safe_near) * mills[0] - jnp.exp(-0.5 * safe_far * safe_far) * mills[1]
    mass = jnp.where(tail, in_tail, middle)
    exponent = jnp.where(tail, u * (k - 0.5 * u), 0.5 * k * k) - k * anchor
    valid &= mass > 0  # an interval of a few rounding errors' width has no mass
    return jnp.where(valid, exponent + jnp.log(jnp.where(valid, mass, 1.0)), -jnp.inf)
