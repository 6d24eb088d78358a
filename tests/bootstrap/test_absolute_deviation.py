"""Normal records by a mean and a mean absolute deviation: its one scale of noise, its estimates and its bootstrap."""

import jax
import numpy as np
import pytest

from ldpbayes.bootstrap import Gaussian, GaussianAbsoluteDeviation, gaussian_absolute_deviation, parametric_bootstrap
from ldpbayes.bootstrap._replicates import replicates
from ldpbayes.mechanisms import GaussianMechanism, LaplaceMechanism

LOWER, UPPER = -1.0, 5.0


def estimator(count=500, epsilon=1.0, **options):
    return gaussian_absolute_deviation(lower=LOWER, upper=UPPER, count=count, epsilon=epsilon, **options)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_given_any_noisy_mean_a_record_moves_both_sums_by_one_at_most_and_the_worst_pair_attains_it(share):
    e, rng = estimator(share=share), np.random.default_rng(0)
    one, other = rng.uniform(LOWER, UPPER, (2, 20_000))
    for mean in [LOWER, 0.3, 2.0, 3.9, UPPER]:
        first, second = (float(weight) for weight in e.weights(mean))
        loss = first * np.abs(one - other) + second * np.abs(np.abs(one - mean) - np.abs(other - mean))
        assert loss.max() <= 1 + 1e-12
        ends = np.array([LOWER, UPPER])
        corners = [(a, b) for a in ends for b in [*ends, mean]]
        worst = max(first * abs(a - b) + second * abs(abs(a - mean) - abs(b - mean)) for a, b in corners)
        np.testing.assert_allclose(worst, 1.0)
        # never less than what sequential composition gives the second sum, and twice that in the middle
        assert second >= (1 - share) / (UPPER - LOWER) * (1 - 1e-12)
    assert float(e.weights(2.0)[1]) >= 2 * (1 - share) / (UPPER - LOWER)


def test_without_noise_the_estimates_are_the_mean_and_the_scaled_absolute_deviation():
    x = np.random.default_rng(1).normal(2.0, 0.7, 500)
    e = estimator(epsilon=1e10)
    with jax.enable_x64(True):
        params, _, outside = e.estimate(e.released(e.release(x, seed=0)))
    clamped = np.clip(x, LOWER, UPPER)
    np.testing.assert_allclose(params["loc"], clamped.mean(), rtol=1e-8)
    deviation = np.abs(clamped - clamped.mean()).mean()
    np.testing.assert_allclose(params["scale"], np.sqrt(np.pi / 2) * deviation, rtol=1e-8)
    assert not outside


@pytest.mark.usefixtures("x64")
def test_a_replicate_is_what_is_released_of_records_that_are_drawn():
    e = estimator(count=5000, epsilon=2.0)  # more than two blocks
    params = {"loc": np.array(4.0), "scale": np.array(1.5)}  # a quarter of the records is clamped
    keys = jax.random.split(jax.random.key(0), 2000)
    drawn = np.random.default_rng(2).normal(4.0, 1.5, (2000, 5000))
    made = np.asarray(jax.jit(lambda e, keys: jax.vmap(lambda key: e.replicate(key, params))(keys))(e, keys))
    released = np.asarray(jax.jit(lambda e, keys, x: jax.vmap(e.randomize)(keys, x))(e, keys, drawn))
    difference = made.mean(axis=0) - released.mean(axis=0)
    # two samples of 2000: a standard error is √(2/2000) standard deviations of one; four and a half of them
    np.testing.assert_array_less(np.abs(difference), 4.5 * np.sqrt(2 / 2000) * released.std(axis=0))
    # Laplace noise makes up most of both: kurtosis below 6, so that a ratio of deviations errs by less than 3.6 %
    np.testing.assert_allclose(made.std(axis=0), released.std(axis=0), rtol=4.5 * 0.036)


@pytest.mark.usefixtures("x64")
def test_standard_errors_are_the_spread_of_replicates():
    e = estimator(count=2000, epsilon=2.0)
    params = {"loc": np.array(2.0), "scale": np.array(0.6)}
    made = replicates(e, params, jax.random.split(jax.random.key(0), 4000), 2.0**28)
    errors = np.sqrt(np.diagonal(e.covariance(params, noise=True)))
    # standard deviations of 4000 replicates err by less than 2 %; four of them
    np.testing.assert_allclose(np.asarray(made.target).std(axis=0), errors, rtol=0.08)
    assert not np.asarray(made.outside).any()


def test_the_bootstrap_runs_and_says_where_the_noise_outweighs_the_records():
    x = np.random.default_rng(3).normal(2.0, 0.7, 500)
    e = estimator()
    result = parametric_bootstrap(e, e.release(x, seed=0), draws=199)
    low, high = result.interval(0.99)
    assert ((low < [2.0, 0.7]) & (high > [2.0, 0.7])).all()  # missed with probability 2 % at most; the seed is fixed
    with jax.enable_x64(True):
        far = e.estimate(jax.numpy.array([1e3, -1.0]))
        assert far.outside and far.params["loc"] == UPPER
    np.testing.assert_allclose(far.params["scale"], 1e-3 * (UPPER - LOWER))


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="bounds"):
        gaussian_absolute_deviation(lower=None, upper=1.0, count=10, epsilon=1.0)
    with pytest.raises(ValueError, match="count is missing"):
        estimator(count=None)
    with pytest.raises(ValueError, match="share must be between 0 and 1"):
        estimator(share=1.0)
    family, columns = Gaussian(LOWER, UPPER), ("a", "b")
    with pytest.raises(ValueError, match="Laplace"):
        GaussianAbsoluteDeviation(family, GaussianMechanism(1.0, 1e-6, columns=columns, sensitivity=1.0), 10)
    with pytest.raises(ValueError, match="one record can move the statistics by 1"):
        GaussianAbsoluteDeviation(family, LaplaceMechanism(1.0, columns=columns, sensitivity=0.5), 10)
    with pytest.raises(ValueError, match="for 500 records"):
        estimator().release(np.zeros(499), seed=0)
