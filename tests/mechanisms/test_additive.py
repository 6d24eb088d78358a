"""Laplace and Gaussian mechanisms: samples, densities, dtypes and what is refused.

Statistical tests use fixed seeds and fail by chance with probability 1e-4 each when a seed is changed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints
from scipy import integrate, stats

from ldpbayes.mechanisms import GaussianMechanism, LaplaceMechanism

ERROR_RATE = 1e-4
LOWER, UPPER = -1.0, 2.0
MAKERS = [
    pytest.param(lambda e, lo=LOWER, up=UPPER: LaplaceMechanism(e, lo, up), stats.laplace, id="laplace"),
    pytest.param(lambda e, lo=LOWER, up=UPPER: GaussianMechanism(e, 1e-5, lo, up), stats.norm, id="gaussian"),
]
both = pytest.mark.parametrize(("make", "law"), MAKERS)


@both
@pytest.mark.parametrize("x", [0.3, LOWER, -7.0, np.inf], ids=["inside", "at-bound", "clipped", "infinite"])
def test_samples_follow_the_law_of_the_clipped_record(make, law, x):
    mechanism = make(0.8)
    z = mechanism.randomize(jax.random.key(1), np.full(20_000, x))
    assert stats.kstest(np.asarray(z), law(np.clip(x, LOWER, UPPER), mechanism.scale).cdf).pvalue > ERROR_RATE


@both
def test_samples_follow_personal_budgets(make, law):
    budgets = np.geomspace(0.1, 10, 20_000)
    mechanism = make(budgets)
    x = np.linspace(-3, 4, 20_000)[::-1]
    z = np.asarray(jax.jit(type(mechanism).randomize)(mechanism, jax.random.key(2), x))
    noise = (z - np.clip(x, LOWER, UPPER)) / mechanism.scale
    for part in (noise, noise[:5000], noise[-5000:]):
        assert stats.kstest(part, law.cdf).pvalue > ERROR_RATE


@both
def test_density_is_the_textbook_one_and_integrates_to_one(make, law):
    mechanism = make(0.8)
    with jax.enable_x64(True):
        z, x = np.linspace(-30, 30, 101), np.array([[-9.0], [0.3], [2.0]])
        expected = law.logpdf(z, np.clip(x, LOWER, UPPER), mechanism.scale)
        np.testing.assert_allclose(mechanism.log_prob(z, x), expected, rtol=1e-14, atol=1e-14)
        total = integrate.quad(lambda z: float(np.exp(mechanism.log_prob(z, 0.3))), -200, 200, points=[0.3], limit=200)
    assert total[0] == pytest.approx(1, abs=1e-9)


@both
def test_moments_are_those_of_the_law(make, law):
    mechanism = make(np.array([0.5, 2.0]))
    with jax.enable_x64(True):
        mean, variance = mechanism.moments(np.array([[-5.0], [0.0], [1.0]]))
    assert mean.shape == variance.shape == (3, 2)
    np.testing.assert_allclose(mean[:, 0], [LOWER, 0, 1])
    np.testing.assert_allclose(variance[1], law(0, mechanism.scale).var(), rtol=1e-14)


@both
def test_log_prob_has_finite_gradients_everywhere(make, law):
    mechanism = make(1.0)
    for x in (-9.0, LOWER, 0.5, UPPER, 9.0):
        for z in (x, -50.0, 50.0):
            gradient = jax.grad(lambda m, x, z=z: m.log_prob(z, x), argnums=(0, 1))(mechanism, x)
            assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


@both
def test_dtype_follows_the_data_not_the_parameters(make, law):
    for mechanism in (make(1.0), make(np.array([1.0, 2.0]))):
        for x64 in (False, True):
            with jax.enable_x64(x64):
                wide = jnp.float64 if x64 else jnp.float32
                for dtype, expected in ((jnp.float32, jnp.float32), (jnp.int32, wide), (jnp.float64, wide)):
                    data = np.ones(2, dtype)
                    assert mechanism.log_prob(data, data).dtype == expected
                    assert mechanism.randomize(jax.random.key(0), data).dtype == expected
                    assert all(m.dtype == expected for m in mechanism.moments(data))


@both
def test_host_side_fields_are_double_precision_whatever_jax_uses(make, law):
    scalar = make(np.float32(0.5))
    assert all(type(v) is float for v in jax.tree.leaves(scalar)) and type(scalar.scale) is float
    array = make(jnp.array([0.5, 1.0]))
    assert type(array.epsilon) is np.ndarray and array.epsilon.dtype == array.scale.dtype == np.float64
    assert array.resolution == min(array.scale) and type(array.resolution) is float


@both
def test_mapping_over_budgets_agrees_with_one_at_a_time(make, law):
    budgets = np.array([0.3, 1.0, 4.0])
    mechanism = make(budgets)
    axes = jax.tree.map(lambda leaf: 0 if np.ndim(leaf) else None, mechanism)
    mapped = jax.jit(jax.vmap(lambda m, z: m.log_prob(z, 0.2), in_axes=(axes, None)))(mechanism, jnp.arange(5.0))
    alone = [make(b).log_prob(jnp.arange(5.0), 0.2) for b in budgets]
    np.testing.assert_allclose(mapped, alone, rtol=1e-5)


def test_constraints_ranges_and_tails():
    laplace, gaussian = LaplaceMechanism([1.0, 2.0], -1, 3), GaussianMechanism(1.0, 1e-5, -1, 3)
    for mechanism in (laplace, gaussian):
        assert mechanism.domain(3.0) and not mechanism.domain(3.1)
        assert mechanism.support is constraints.real
    assert laplace.released_range == (-1.0, 3.0) and laplace.linear_tails
    assert gaussian.released_range == (-1 - 12 * gaussian.scale, 3 + 12 * gaussian.scale)
    assert not gaussian.linear_tails
    np.testing.assert_array_equal(laplace.scale, [4.0, 2.0])


def test_breakpoints_are_numpy_on_the_host_and_jax_when_traced():
    z = np.arange(6.0).reshape(2, 3)
    for mechanism, m in ((LaplaceMechanism(1.0, 0, 1), 1), (GaussianMechanism(1.0, 1e-5, 0, 1), 0)):
        points = mechanism.breakpoints(z)
        assert type(points) is np.ndarray and points.shape == (2, 3, m)
        assert mechanism.breakpoints(1.5).shape == (m,)
        traced = jax.jit(mechanism.breakpoints)(z)
        np.testing.assert_array_equal(traced, points)
    np.testing.assert_array_equal(LaplaceMechanism(1.0, 0, 1).breakpoints(z)[..., 0], z)


def test_laplace_log_likelihood_ratio_is_bounded_by_epsilon():
    mechanism = LaplaceMechanism(1.3, LOWER, UPPER)
    z = np.linspace(-20, 20, 401)
    with jax.enable_x64(True):
        ratio = np.abs(mechanism.log_prob(z, -9.0) - mechanism.log_prob(z, 9.0))
    assert ratio.max() == pytest.approx(1.3, rel=1e-14)


def test_traced_parameters_are_left_alone():
    slope = jax.grad(lambda epsilon: LaplaceMechanism(epsilon, 0.0, 1.0).log_prob(0.5, 0.5))(2.0)
    assert slope == pytest.approx(0.5)
    shifted = jax.jit(lambda upper: GaussianMechanism(1.0, 1e-5, 0.0, upper).released_range[1])(1.0)
    assert shifted == pytest.approx(GaussianMechanism(1.0, 1e-5, 0.0, 1.0).released_range[1], rel=1e-6)
    with pytest.raises(ValueError, match="make the mechanism outside the traced function"):
        jax.jit(lambda epsilon: GaussianMechanism(epsilon, 1e-5, 0.0, 1.0).scale)(1.0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ((0.0, 0, 1), "epsilon must be positive and finite, got 0.0"),
        ((np.nan, 0, 1), "epsilon must be positive and finite, got nan"),
        (([1.0, -2.0], 0, 1), r"epsilon must be positive and finite, got epsilon\[1\] = -2.0"),
        (("1", 0, 1), "epsilon must be positive and finite, got the string '1'"),
        ((True, 0, 1), "epsilon must be positive and finite, got True"),
        ((["1", "2"], 0, 1), "epsilon must be positive and finite, got an array of strings"),
        ((np.array([1.0, None]), 0, 1), "epsilon must be positive and finite, got an array of objects, such as None"),
        (([], 0, 1), "epsilon must be positive and finite, got an empty array"),
        ((1.0, -np.inf, 1), "lower must be finite, got -inf"),
        ((1.0, 0, np.nan), "upper must be finite, got nan"),
        ((1.0, 1, 1), "lower must be below upper, got lower = 1.0, upper = 1.0"),
        ((1.0, -1e308, 1e308), "upper - lower must be finite"),
        ((1e-5, 0, 1e307), "the scale of the noise must be positive and finite, got inf"),
        (([1.0, 1e-5], 0, 1e307), "the scale of the noise must be positive and finite, got inf"),
        ((np.ma.array([1.0, 2.0], mask=[0, 1]), 0, 1), "epsilon must be positive and finite, got a masked array, 1 of"),
        (([1.0, 2.0], [0, 0, 0], 1), "parameters must broadcast against each other, got shapes"),
    ],
)
@both
def test_bad_parameters_are_named(make, law, parameters, message):
    with pytest.raises(ValueError, match=message):
        make(*parameters)


def test_budgets_whose_noise_cannot_be_represented_are_refused():
    for epsilon, upper, scale in ((1e-308, 20, "inf"), (1e308, 1e-300, "0.0")):
        with pytest.raises(ValueError, match=f"the scale of the noise must be positive and finite, got {scale} in Lap"):
            LaplaceMechanism(epsilon, 0, upper)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, np.nan])
def test_delta_outside_its_range_is_named(delta):
    with pytest.raises(ValueError, match=f"delta must be between 0 and 1, exclusive, got {delta}"):
        GaussianMechanism(1.0, delta, 0, 1)


@both
def test_missing_records_are_refused(make, law):
    with pytest.raises(ValueError, match=r"x must be a number .*, got x\[1\] = nan"):
        make(1.0).randomize(jax.random.key(0), jnp.array([0.0, jnp.nan]))


@both
def test_text_is_refused_and_lists_are_not(make, law):
    with pytest.raises(ValueError, match=r"x must be a number .* got an array of strings"):
        make(1.0).randomize(jax.random.key(0), np.array(["1", "2"]))
    assert make(1.0).randomize(jax.random.key(0), [0, 1]).shape == (2,)
