"""Tabulated means of probabilities over a normal predictor, against sums over a fine grid."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy import special as jax_special
from scipy import special

from ldpbayes.numerics import smoothed as _smoothed
from ldpbayes.numerics.smoothed import smoothed_log

pytestmark = pytest.mark.usefixtures("x64")


def logit(s):
    """Label 0, then label 1."""
    return jax.nn.log_sigmoid(jnp.concatenate([-s[:1], s[1:]]))


def probit(s):
    return jax_special.log_ndtr(jnp.concatenate([-s[:1], s[1:]]))


SIGMOIDS = {"logit": (logit, lambda s: -np.logaddexp(0, -s)), "probit": (probit, special.log_ndtr)}


def summed(log_p, t, v):
    """The mean as a sum over a grid of the predictor, wide enough for where p(t + √v u) φ(u) is largest."""
    u = np.linspace(-12 - 1.2 * np.sqrt(v) - abs(t) / 2, 12 + 1.2 * np.sqrt(v) + abs(t) / 2, 20_001)
    terms = log_p(t + np.sqrt(v) * u) - u * u / 2
    weights = np.exp(terms - terms.max())
    log_mean = np.log(weights.sum() * (u[1] - u[0]) / np.sqrt(2 * np.pi)) + terms.max()
    weights /= weights.sum()
    mean = lambda f: (weights * f).sum()  # noqa: E731
    # derivatives of the density of the predictor at s, in its mean and its variance, are those of the log
    slope = mean(u) / np.sqrt(v)
    return log_mean, slope, mean((u * u - 1) / (2 * v))


def both_labels(log_p):
    @jax.jit
    def derivatives(t, v):
        def one(t, v, which):
            return smoothed_log(log_p, 2, which[None], t[None], v)[0]

        value = lambda t, v, which: jax.value_and_grad(one, (0, 1))(t, v, which)  # noqa: E731
        return jax.vmap(jax.vmap(value, (0, None, None)), (None, 0, None))(t, v, jnp.array(1))

    return derivatives


T = np.array([-60.0, -25.0, -9.0, -4.1, -2.0, -0.7, 0.0, 0.3, 1.9, 3.3, 6.0, 11.0])


@pytest.mark.parametrize("name", ["logit", pytest.param("probit", marks=pytest.mark.slow)])
def test_values_and_slopes_are_those_of_the_mean(name):
    log_p, reference = SIGMOIDS[name]
    variances = np.array([0.01, 0.7, 3.0, 5.8, 40.0])
    value, (by_t, by_v) = both_labels(log_p)(T, variances)
    want = np.array([[summed(reference, t, v) for t in T] for v in variances])
    # as documented; and what the polynomials leave out of the first and the second derivative
    far = (variances[:, None] > 10) & (T < -25)
    np.testing.assert_array_less(np.abs(value - want[..., 0]), np.where(far, 1e-6, 3e-9))
    np.testing.assert_array_less(np.abs(by_t - want[..., 1]), np.where(far, 1e-6, 3e-8))
    np.testing.assert_array_less(np.abs(by_v - want[..., 2]), np.where(far, 1e-5, 1e-6))


def test_second_derivatives_follow_from_the_heat_equation():
    def total(p, which=0):
        return smoothed_log(logit, 2, jnp.array([which]), p[:1], p[1])[0]

    second = jax.jit(jax.hessian(total))
    at, step = np.array([0.8, 2.0]), 1e-3

    def want(t, v):
        return np.array(summed(SIGMOIDS["logit"][1], -t, v)) * [1, -1, 1]

    moved = [(want(*(at + step * e))[1:] - want(*(at - step * e))[1:]) / (2 * step) for e in np.eye(2)]
    # the difference is right to step², the fourth derivative in t of seven coefficients a cell to 1e-4
    np.testing.assert_allclose(second(jnp.asarray(at)), moved, rtol=0, atol=3e-4)


def test_tables_for_many_variances_are_interpolated(monkeypatch):
    """And in groups, as they are where there are many records, here by making the blocks small."""
    v, t = np.linspace(0, 6, 23), np.array([-15.0, -3.0, -0.5, 0.1, 2.0, 8.0])
    which = np.array([0, 1, 1, 0, 1, 0])
    one_by_one = jax.jit(jax.vmap(lambda t, v: smoothed_log(logit, 2, which, t, v), (None, 0)))(t, v)
    monkeypatch.setattr(_smoothed, "LOOKUPS", 14)
    together = jax.jit(lambda t, v: smoothed_log(logit, 2, which, t, v))(np.broadcast_to(t, (23, 6)), v)
    np.testing.assert_allclose(together, one_by_one, rtol=0, atol=2e-9)
    monkeypatch.setattr(_smoothed, "LOOKUPS", 4)
    blocks = jax.jit(lambda t, v: smoothed_log(logit, 2, which, t, v))(t, v[5])
    np.testing.assert_allclose(blocks, one_by_one[5], rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_far_out_the_log_is_linear_and_gradients_are_finite(dtype):
    def value(t, v):
        return smoothed_log(logit, 2, jnp.ones(1, int), t[None], v)[0]

    both = jax.jit(lambda t, v: (*jax.vmap(jax.value_and_grad(value, (0, 1)))(t, v), jax.vmap(value)(t, v)))
    t = np.array([-1e6, -1e3, 1e3, 1e6, 0.0, 0.0, 0.3, np.nan], dtype)
    v = np.array([1.0, 4.0, 4.0, 1.0, 0.0, 1e4, 0.0, 1.0], dtype)
    got, (by_t, by_v), alone = both(t, v)
    assert got.dtype == dtype
    tolerance = 5e-5 if dtype == np.float32 else 1e-9  # beyond the last cell that of a slope
    np.testing.assert_array_equal(got, alone)
    np.testing.assert_allclose(got[:7], [-1e6 + 0.5, -1e3 + 2, 0, 0, *np.log([0.5, 0.5]), -np.log1p(np.exp(-0.3))],
                               rtol=tolerance, atol=tolerance)  # fmt: skip
    assert np.isnan(got[7])
    slack = 5e-3 if dtype == np.float32 else 1e-6
    np.testing.assert_allclose(by_t[:5], [1, 1, 0, 0, 0.5], atol=slack)
    # E[p] = ∫ σ φ: at v = 0 the slope in v is half of σ''/σ, by the heat equation
    p = 1 / (1 + np.exp(-0.3))
    curvature = (1 - p) * (1 - 2 * p)
    np.testing.assert_allclose(np.asarray(by_v)[[0, 1, 2, 4, 6]], [0.5, 0.5, 0, 0, curvature / 2], atol=slack)
    assert np.all(np.isfinite(by_v[:7]))


def test_labels_have_tables_of_their_own():
    counts = np.arange(4)

    def log_p(s):  # binomial, of three trials
        k = counts.reshape(-1, *(1,) * (s.ndim - 1))
        return np.log(special.binom(3, k)) + k * jax.nn.log_sigmoid(s) + (3 - k) * jax.nn.log_sigmoid(-s)

    t = np.array([-6.0, -0.2, 1.0, 9.0])
    got = jax.jit(lambda t, v: smoothed_log(log_p, 4, counts, t, v))(t, 1.7)
    for k, at, value in zip(counts, t, got, strict=True):

        def one(s, k=k):
            return np.log(special.binom(3, k)) - k * np.logaddexp(0, -s) - (3 - k) * np.logaddexp(0, s)

        assert float(value) == pytest.approx(summed(one, at, 1.7)[0], abs=3e-9)
