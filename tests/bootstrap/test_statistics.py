"""Private Fisher intervals, and normal estimates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ldpbayes.bootstrap import Normal, NormalVector, fisher, sufficient_statistics
from ldpbayes.bootstrap._result import NormalEstimate

N = 300


def test_private_fisher_intervals_ignore_the_noise_unless_it_is_to_count():
    e = sufficient_statistics(Normal(lower=-3.0, upper=5.0), count=N, epsilon=0.5)
    u = np.random.default_rng(4).normal(0.0, 0.25, N)
    release = np.array([u.sum() + 3, u @ u - 2])  # as with noise
    ignored, counted = fisher(e, release), fisher(e, release, noise=True)
    np.testing.assert_array_equal(ignored.params, counted.params)
    # 9 standard deviations are between estimate and bounds, so that clamping does not matter
    np.testing.assert_allclose(ignored.standard_error, ignored.params[1] / np.sqrt([N, 2 * N]), rtol=0.02)
    with jax.enable_x64(True):
        formula = jax.jit(e.estimate)(release).standard_error
    np.testing.assert_allclose(counted.standard_error, formula)
    assert (counted.standard_error > 1.2 * ignored.standard_error).all()
    assert "sampling alone" in ignored.summary() and "the noise" in counted.summary()
    assert counted.privacy == e.privacy


def test_fisher_intervals_refuse_what_has_no_formula():
    with pytest.raises(TypeError, match="Fisher intervals are for"):
        fisher(lambda key, data: data, 0.0)


def test_errors_of_normal_rows_count_the_noise_as_the_estimate_passes_it_on(x64):
    family = NormalVector([-1.0, 0.0], [3.0, 1.0])
    mean = np.array([0.1, -0.2, 0.5, 0.4, 0.1])  # of the statistics, of rows with a positive definite covariance

    def flat(mean):
        params, outside = family.solve(mean)
        return jnp.concatenate([params["covariance_matrix"].ravel(), params["loc"]]), (params, outside)

    @jax.jit
    def evaluated(mean):
        slope, (params, outside) = jax.jacfwd(flat, has_aux=True)(mean)
        return slope, params, outside, [family.covariance(params, noise, 1, clamped=False) for noise in (0.3, 0.0)]

    slope, params, outside, (with_noise, without) = evaluated(mean)
    assert not outside
    np.testing.assert_allclose(with_noise - without, 0.3 * slope @ slope.T, rtol=1e-9, atol=1e-12)
    sigma = np.asarray(params["covariance_matrix"])
    assert float(without[1, 1]) == pytest.approx(sigma[0, 0] * sigma[1, 1] + sigma[0, 1] ** 2)  # of a covariance
    np.testing.assert_allclose(without[4:, 4:], sigma)


def test_normal_estimates_have_one_and_two_sided_intervals():
    result = NormalEstimate({"a": 1.0}, np.array([1.0]), ["a"], np.array([[4.0]]), "privacy: none", "By hand")
    low, high = result.interval(0.95)
    np.testing.assert_allclose([low[0], high[0]], [1 - 2 * 1.959963985, 1 + 2 * 1.959963985])
    low, high = result.interval(0.95, side="lower")
    np.testing.assert_allclose([low[0], high[0]], [1 - 2 * 1.644853627, np.inf])
    assert result.summary().startswith("By hand")
    with pytest.raises(ValueError, match="level"):
        result.interval(1.5)
