"""Special functions against 60-digit arithmetic, in value and in gradient.

Tolerance unless stated: a value is a handful of operations from its arguments, each with a relative error of 2e-16, so
64 roundings (1.4e-14), relative for positive functions, absolute or relative for logarithms.
"""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from ldpbayes.numerics.special import (
    betainc,
    erfcx,
    log1mexp,
    log_ndtr,
    log_tilted_normal,
    relative_expm1,
    student_t_cdf,
)
from tests.likelihood.reference import DIGITS, error, log_density, log_gradient, normal_mass

pytestmark = pytest.mark.usefixtures("x64")
ROUNDING = 64 * np.finfo(float).eps

TAILS = np.array([0, 1e-300, 1e-12, 0.3, 0.46875, 0.7, 1, 2.5, 4, 5.65, 6, 9, 26, 38, 100, 1e4, 1e8])
REAL = np.concatenate([-TAILS[::-1], TAILS, np.random.default_rng(0).normal(0, 10, 200)])


def test_erfcx_has_relative_accuracy_from_zero_to_infinity():
    x = np.concatenate([TAILS[:-1], np.geomspace(1e-3, 1e6, 200)])
    with mp.workdps(DIGITS):
        expected = np.array([float(mp.exp(mp.mpf(v) ** 2) * mp.erfc(mp.mpf(v))) for v in x.tolist()])
    np.testing.assert_allclose(jax.jit(erfcx)(x), expected, rtol=ROUNDING)


def test_the_derivative_of_erfcx_keeps_its_relative_accuracy_far_out():
    x = np.geomspace(1e-3, 1e5, 60)  # where 2 x erfcx(x) − 2/√π has lost 10 digits

    def reference(v):
        return 2 * v * mp.exp(v**2) * mp.erfc(v) - 2 / mp.sqrt(mp.pi)

    with mp.workdps(DIGITS):
        expected = np.array([float(reference(mp.mpf(v))) for v in x.tolist()])
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(erfcx)))(x), expected, rtol=ROUNDING)


def log_cdf_reference(x):
    return normal_mass(-mp.inf, x)


def test_log_ndtr_is_exact_to_rounding_in_both_tails():
    assert error(jax.jit(log_ndtr)(REAL), log_density(log_cdf_reference, REAL)).max() < ROUNDING


def test_log_ndtr_keeps_its_relative_accuracy_where_it_vanishes():
    x = np.linspace(1, 37, 50)  # log Φ(x) ≈ −Φ(−x), down to 1e-300; the exponent x²/2 < 700 amplifies its rounding
    with mp.workdps(350):
        expected = [float(mp.log(normal_mass(-mp.inf, mp.mpf(v)))) for v in x.tolist()]
    np.testing.assert_allclose(jax.jit(log_ndtr)(x), expected, rtol=700 * 4 * np.finfo(float).eps)


def test_the_gradient_of_log_ndtr_is_the_hazard_rate_also_at_zero():
    x = np.concatenate([np.linspace(-300, 8, 155), [0.0, -0.0, 1e-8]])
    (expected,) = log_gradient(log_cdf_reference, x)
    # for x > 0 the gradient is φ(x)/Φ(x), whose exponent x²/2 < 32 amplifies its rounding
    np.testing.assert_allclose(jax.jit(jax.grad(lambda v: log_ndtr(v).sum()))(x), expected, rtol=32 * ROUNDING)


def test_log_ndtr_has_second_derivatives_in_forward_and_reverse_mode():
    x = np.concatenate([np.linspace(-300, 5, 40), [0.0, -0.0, 1e-8]])

    def curvature(v):  # −h (x + h), h the hazard rate
        h = mp.npdf(v) / mp.ncdf(v)
        return -h * (v + h)

    with mp.workdps(DIGITS):
        expected = np.array([float(curvature(mp.mpf(v))) for v in x.tolist()])
    both = jax.jit(jax.vmap(lambda v: (jax.hessian(log_ndtr)(v), jax.grad(jax.grad(log_ndtr))(v))))
    # for x > 0 it is φ(x) times moderate numbers, whose exponent x²/2 < 13 amplifies its rounding
    for actual in both(x):
        np.testing.assert_allclose(actual, expected, rtol=13 * ROUNDING)


def test_log1mexp_is_exact_to_rounding_at_both_ends():
    x = -np.concatenate([np.geomspace(1e-300, 80, 300), [np.log(2)]])
    expected = log_density(lambda v: -mp.expm1(v), x)
    np.testing.assert_allclose(jax.jit(log1mexp)(x), expected, rtol=ROUNDING)
    assert np.isfinite(jax.jit(jax.grad(lambda v: log1mexp(v).sum()))(x)).all()


def test_log1mexp_at_zero_is_minus_infinity_with_a_zero_gradient():
    value, gradient = jax.jit(jax.value_and_grad(log1mexp))(0.0)
    assert value == -np.inf
    assert gradient == 0


def test_relative_expm1_is_smooth_through_its_removable_singularity():
    y = [np.geomspace(1e-12, 1e4, 300), 1e-2 * (1 + np.linspace(-1e-6, 1e-6, 11)), -np.geomspace(1e-12, 700, 100)]
    y = np.concatenate([[0.0], *y])

    def reference(v):
        return -mp.expm1(-v) / v if v else mp.mpf(1)

    # beyond the series, at 0.01, two logarithms of size log(100) cancel
    cancelled = 5 * np.finfo(float).eps
    log_value = jnp.log(jax.jit(relative_expm1)(y))
    np.testing.assert_allclose(log_value, log_density(reference, y), rtol=ROUNDING, atol=cancelled)
    gradient = np.asarray(jax.jit(jax.grad(lambda v: jnp.log(relative_expm1(v)).sum()))(y))
    assert gradient[0] == -0.5
    # 1/(e^y − 1) − 1/y + 1/2: beyond the series two terms of size 1/y cancel, at y = 0.01 some 200 times the result
    np.testing.assert_allclose(gradient[1:], log_gradient(reference, y[1:])[0], rtol=200 * ROUNDING)


def tilted_reference(u, v, k, anchor):
    return mp.exp(k * k / 2 - k * anchor) * normal_mass(u - k, v - k)


def tilted_grid():
    rng = np.random.default_rng(1)
    n = 400
    u = rng.normal(0, 1, n) * 10 ** rng.uniform(-3, 3, n)
    v = u + 10 ** rng.uniform(-6, 4, n)
    k = rng.normal(0, 1, n) * 10 ** rng.uniform(-4, 4.3, n)
    k[:6] = [0, u[1], v[2], (u[3] + v[3]) / 2, u[4] + 1e-9, -20_000]  # the tilted mean at a limit, in the middle
    return u, v, k, np.where(k < 0, u, v)


def test_log_tilted_normal_is_accurate_for_any_interval_and_tilt():
    u, v, k, anchor = tilted_grid()
    # limits and tilt enter as rounded numbers, which moves the log by |gradient| times 1e-16 of their size; in the
    # middle the mass of a short interval is a difference of numbers near one
    gradient = log_gradient(tilted_reference, u, v, k, anchor)
    slack = ROUNDING * (1 + sum(np.abs(g * a) for g, a in zip(gradient, (u, v, k, anchor), strict=True)) + 1 / (v - u))
    actual, expected = jax.jit(log_tilted_normal)(u, v, k, anchor), log_density(tilted_reference, u, v, k, anchor)
    assert (np.abs(actual - expected) < slack + ROUNDING * np.abs(expected)).all()


def test_log_tilted_normal_has_finite_gradients_that_are_right_at_moderate_arguments():
    u, v, k, anchor = tilted_grid()
    total = jax.jit(jax.grad(lambda *a: log_tilted_normal(*a).sum(), argnums=(0, 1, 2, 3)))
    assert all(np.isfinite(g).all() for g in total(u, v, k, anchor))
    rng = np.random.default_rng(2)
    u = np.concatenate([rng.uniform(-5, 5, 60), [0.0, 1.0]])
    v = u + rng.uniform(0.5, 3, 62)
    k = np.concatenate([rng.uniform(-10, 10, 60), [0.0, 1.0]])  # the last two: the tilted mean exactly at the limit
    expected = log_gradient(tilted_reference, u, v, k, u)
    for actual, wanted in zip(total(u, v, k, u), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-11, atol=1e-11)  # masses over 15 sigma: e^(±10) cancels


@pytest.mark.parametrize("width", [0.0, -1.0])
def test_an_empty_interval_has_no_mass_and_no_gradient(width):
    of_all = jax.jit(jax.value_and_grad(log_tilted_normal, argnums=(0, 1, 2, 3)))
    value, gradient = of_all(1.0, 1.0 + width, 2.0, 1.0)
    assert value == -np.inf
    assert all(g == 0 for g in gradient)


def test_single_precision_stays_finite_and_accurate():
    x = REAL[np.abs(REAL) < 1e4].astype(np.float32)
    value, gradient = jax.jit(jax.vmap(jax.value_and_grad(log_ndtr)))(x)
    assert value.dtype == jnp.float32
    assert np.isfinite(gradient).all()
    assert error(value, log_density(log_cdf_reference, x)).max() < 64 * np.finfo(np.float32).eps


BETAINC = jax.jit(jax.value_and_grad(betainc, (0, 1, 2)))


@pytest.mark.parametrize(("a", "b", "x"), [(2.0, 0.5, 0.3), (2.5, 0.5, 0.9), (0.3, 0.7, 0.2), (5.0, 3.0, 0.6)])
def test_the_incomplete_beta_function_has_derivatives_in_its_parameters(a, b, x, x64):
    def exact(a, b, x):
        return mp.betainc(a, b, 0, x, regularized=True)

    value, slopes = BETAINC(a, b, x)
    assert float(value) == pytest.approx(float(exact(a, b, x)), rel=1e-13)
    want = [mp.diff(exact, (a, b, x), order) for order in ((1, 0, 0), (0, 1, 0), (0, 0, 1))]
    np.testing.assert_allclose(slopes, np.array(want, float), rtol=1e-9)


def test_the_cdf_of_a_student_t_has_derivatives_everywhere(x64):
    df, t = 3.3, np.array([-40.0, -1.2, -1e-9, 0.0, 2.5])

    def exact(df, t):
        between = mp.betainc(0.5, df / 2, 0, t * t / (df + t * t), regularized=True)
        return (1 + mp.sign(t) * between) / 2

    slopes = jax.vmap(jax.grad(student_t_cdf, (0, 1)), (None, 0))
    value, (of_df, of_t) = jax.jit(lambda df, t: (student_t_cdf(df, t), slopes(df, t)))(df, t)
    with mp.workdps(30):
        np.testing.assert_allclose(value, [float(exact(mp.mpf(df), mp.mpf(at))) for at in t], rtol=1e-13)
        in_df = [float(mp.diff(lambda d, at=at: exact(d, mp.mpf(at)), mp.mpf(df))) for at in t]
    # a central difference of values that are rounded, times their size
    np.testing.assert_allclose(of_df, in_df, rtol=1e-9, atol=1e-11 * np.asarray(value).max())
    np.testing.assert_allclose(of_t, stats.t(df).pdf(t), rtol=1e-12)
