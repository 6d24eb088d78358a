"""Rivals of the bootstrap: their sensitivities, estimates and intervals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ldpbayes.bootstrap import parametric_bootstrap
from reproductions.ferrando_wang_sheldon.baselines import (
    aggregate_weights,
    deviation_weights,
    gaussian_absolute_deviation,
    normal_records,
    subsample_and_aggregate,
)

LOWER, UPPER = -1.0, 5.0


@pytest.mark.parametrize(("order", "share"), [(1, 0.5), (2, 0.8)])
def test_one_block_moves_mean_and_variance_together_by_one_at_most_and_attains_it(order, share):
    weights = np.array(aggregate_weights(5.0, 6, share, order))
    rng = np.random.default_rng(0)
    values = np.where(rng.uniform(size=(2, 100_000, 6)) < 0.3, -2.0, rng.uniform(-2, 3, (2, 100_000, 6)))
    values[1, :, 1:] = values[0, :, 1:]
    row = np.stack([values.mean(axis=-1), values.var(axis=-1, ddof=1)], axis=-1) * weights
    assert np.linalg.norm(row[0] - row[1], order, axis=-1).max() <= 1 + 1e-12
    worst = np.full((2, 6), -2.0)
    worst[1, 0] = 3.0
    row = np.stack([worst.mean(axis=-1), worst.var(axis=-1, ddof=1)], axis=-1) * weights
    np.testing.assert_allclose(np.linalg.norm(row[0] - row[1], order), 1.0)


@pytest.mark.parametrize("delta", [None, 1e-6])
def test_blocks_are_of_all_records_and_their_mean_is_the_estimate(delta, x64):
    estimator = subsample_and_aggregate(jnp.mean, lower=-2.0, upper=3.0, count=60, blocks=6, epsilon=1e9, delta=delta)
    x = np.random.default_rng(1).normal(0.5, 0.5, 60)
    estimate = jax.jit(estimator.randomize)(jax.random.key(0), x)
    assert float(estimate["theta"]) == pytest.approx(x.mean(), rel=1e-3)
    assert 0.2 < float(estimate["standard_error"]) / (x.std() / np.sqrt(60)) < 2  # χ² with 5 degrees of freedom


@pytest.mark.usefixtures("x64")
def test_intervals_by_subsample_and_aggregate_cover():
    estimator = subsample_and_aggregate(jnp.mean, lower=-2.0, upper=3.0, count=600, blocks=30, epsilon=300.0)
    x = np.random.default_rng(2).normal(0.5, 1.0, (1000, 600))
    estimates = jax.jit(jax.vmap(estimator.randomize))(jax.random.split(jax.random.key(0), 1000), x)
    covered = np.sum(np.abs(estimates["theta"] - 0.5) <= 1.96 * estimates["standard_error"])
    # the normal quantile, where Student's with 29 degrees of freedom would be exact, covers 0.940; the noise in the
    # variance costs up to 0.005. The band is 3 binomial standard deviations (7.5) on either side of 935 to 940
    assert 912 <= covered <= 963


def test_a_block_whose_estimate_is_no_number_is_within_the_range_like_any_other(x64):
    """An error, or NaN, would tell with certainty that the data have such a block."""
    estimator = subsample_and_aggregate(lambda x: jnp.log(x[0]), lower=-1.0, upper=3.0, count=4, blocks=4, epsilon=1e12)
    randomize = jax.jit(estimator.randomize)
    for records, mean in (([1.0] * 4, 0.0), ([-1.0, 1.0, 1.0, 1.0], 0.25)):  # the middle of the range is 1
        estimate = randomize(jax.random.key(0), np.array(records))
        assert float(estimate["theta"]) == pytest.approx(mean, abs=1e-9)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_given_any_noisy_mean_a_record_moves_both_sums_by_one_at_most_and_the_worst_pair_attains_it(share):
    one, other = np.random.default_rng(0).uniform(LOWER, UPPER, (2, 20_000))
    for mean in [LOWER, 0.3, 2.0, 3.9, UPPER]:
        first, second = (float(weight) for weight in deviation_weights(mean, LOWER, UPPER, share))
        loss = first * np.abs(one - other) + second * np.abs(np.abs(one - mean) - np.abs(other - mean))
        assert loss.max() <= 1 + 1e-12
        corners = [(a, b) for a in (LOWER, UPPER) for b in (LOWER, UPPER, mean)]
        worst = max(first * abs(a - b) + second * abs(abs(a - mean) - abs(b - mean)) for a, b in corners)
        np.testing.assert_allclose(worst, 1.0)
        # never less than what sequential composition gives the second sum
        assert second >= (1 - share) / (UPPER - LOWER) * (1 - 1e-12)


def test_without_noise_the_estimates_are_the_mean_and_the_scaled_absolute_deviation(x64):
    x = np.random.default_rng(1).normal(2.0, 0.7, 500)
    estimator = gaussian_absolute_deviation(lower=LOWER, upper=UPPER, count=500, epsilon=1e10)
    params = jax.jit(estimator.randomize)(jax.random.key(0), x)
    clamped = np.clip(x, LOWER, UPPER)
    assert float(params["loc"]) == pytest.approx(clamped.mean(), rel=1e-8)
    deviation = np.abs(clamped - clamped.mean()).mean()
    assert float(params["scale"]) == pytest.approx(np.sqrt(np.pi / 2) * deviation, rel=1e-8)


@pytest.mark.slow
def test_the_absolute_deviation_is_bootstrapped_with_a_simulator():
    x = np.random.default_rng(3).normal(2.0, 0.7, 500)
    estimator = gaussian_absolute_deviation(lower=LOWER, upper=UPPER, count=500, epsilon=1.0)
    with jax.enable_x64(True):
        release = estimator.randomize(jax.random.key(0), jnp.asarray(x))
    low, high = parametric_bootstrap(estimator, release, normal_records(500), draws=199).interval(0.99)
    assert ((low < [2.0, 0.7]) & (high > [2.0, 0.7])).all()  # missed with probability 2 % at most; the seed is fixed
