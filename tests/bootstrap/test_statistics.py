"""Standard errors by a formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ldpbayes.bootstrap import NormalVector


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
