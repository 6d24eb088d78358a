"""Baselines of the bootstrap: Fisher intervals with and without privacy, and subsample and aggregate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from ldpbayes.bootstrap import (
    Bernoulli,
    Beta,
    Gamma,
    Gaussian,
    Multinomial,
    MultivariateNormal,
    NormalEstimate,
    Poisson,
    fisher,
    fisher_of_data,
    least_squares,
    parametric_bootstrap,
    subsample_and_aggregate,
    sufficient_statistics,
)
from ldpbayes.estimation import Estimate

N = 300


def test_without_privacy_a_normal_sample_has_its_mean_and_standard_deviation_whatever_the_bounds():
    x = np.random.default_rng(0).normal(1.0, 2.0, N)
    result = fisher_of_data(Gaussian(lower=-0.5, upper=0.5), x)  # nearly all records would be clamped
    np.testing.assert_allclose(result.params, [x.mean(), x.std()], rtol=1e-9)
    np.testing.assert_allclose(result.standard_error, x.std() / np.sqrt([N, 2 * N]), rtol=1e-9)
    assert "promise nothing" in result.privacy and isinstance(result, Estimate)


@pytest.mark.parametrize(
    ("family", "law", "fitted"),
    [
        (Gamma(lower=2.0, upper=6.0), stats.gamma(3.0, scale=2.0), lambda x: stats.gamma.fit(x, floc=0)[::2]),
        (Beta(lower=0.2, upper=0.5), stats.beta(2.0, 5.0), lambda x: stats.beta.fit(x, floc=0, fscale=1)[:2]),
    ],
)
def test_without_privacy_the_likeliest_parameters_are_those_that_scipy_finds(family, law, fitted):
    x = law.rvs(N, random_state=np.random.default_rng(1))
    result = fisher_of_data(family, x)
    one, other = fitted(x)
    wanted = [one, 1 / other] if isinstance(family, Gamma) else [other, one]
    np.testing.assert_allclose(result.params, wanted, rtol=1e-3)  # of scipy's simplex search

    def loss(p):
        gamma = isinstance(family, Gamma)
        return -np.sum(stats.gamma.logpdf(x, p[0], scale=1 / p[1]) if gamma else stats.beta.logpdf(x, p[1], p[0]))

    step = np.diag(1e-3 * result.params)
    rise = [loss(result.params + move) + loss(result.params - move) - 2 * loss(result.params) for move in step]
    curvature = np.array(rise) / np.diagonal(step) ** 2
    information = np.linalg.inv(result.covariance)
    np.testing.assert_allclose(np.diagonal(information), curvature, rtol=1e-3)  # of differences


def test_without_privacy_counts_and_rows_have_the_textbook_errors():
    rng = np.random.default_rng(2)
    counts = rng.poisson(3.0, N)
    result = fisher_of_data(Poisson(upper=3), counts)
    np.testing.assert_allclose([result.params[0], result.covariance[0, 0]], [counts.mean(), counts.mean() / N])
    result = fisher_of_data(Bernoulli(), np.ones(N))
    assert result.params == [1.0] and result.standard_error == [0.0]
    codes = rng.integers(0, 3, N)
    p = np.bincount(codes) / N
    np.testing.assert_allclose(fisher_of_data(Multinomial(3), codes).covariance, (np.diag(p) - np.outer(p, p)) / N)
    rows = rng.multivariate_normal([1, 2], [[2, 0.5], [0.5, 1]], N)
    result = fisher_of_data(MultivariateNormal([0, 0], [1, 1]), rows)
    covariance = np.cov(rows, rowvar=False, ddof=0)
    assert result.names[0] == "covariance_matrix[0,0]"
    np.testing.assert_allclose(result.params, [*covariance.ravel(), *rows.mean(axis=0)])
    np.testing.assert_allclose(result.standard_error[0], covariance[0, 0] * np.sqrt(2 / N))
    product = covariance[0, 0] * covariance[1, 1] + covariance[0, 1] ** 2
    np.testing.assert_allclose(result.standard_error[1:3], np.sqrt(product / N))
    np.testing.assert_allclose(result.covariance[4:, 4:], covariance / N)


@pytest.mark.parametrize("intercept", [True, False])
def test_regression_without_privacy_is_that_of_statsmodels(intercept):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(N, 2))
    y = 1 + x @ [2.0, -1.0] + rng.normal(size=N)
    e = least_squares(lower=[-1, -1, -1], upper=[1, 1, 1], count=N, epsilon=1.0, intercept=intercept)
    result = fisher_of_data(e, np.column_stack([x, y]))
    plain = sm.OLS(y, np.column_stack([x, np.ones(N)]) if intercept else x).fit()
    np.testing.assert_allclose(result.params, [*plain.params, np.sqrt(plain.scale)])
    np.testing.assert_allclose(result.standard_error[:-1], plain.bse)
    assert result.names == ["coef[0]", "coef[1]", *(["intercept"] if intercept else []), "scale"]


def test_private_fisher_intervals_ignore_the_noise_unless_it_is_to_count():
    e = sufficient_statistics(Gaussian(lower=-3.0, upper=5.0), count=N, epsilon=0.5)
    release = e.release(np.random.default_rng(4).normal(1.0, 1.0, N), seed=0)
    ignored, counted = fisher(e, release), fisher(e, release, noise=True)
    np.testing.assert_array_equal(ignored.params, counted.params)
    # 9 standard deviations are between estimate and bounds, so that clamping does not matter
    np.testing.assert_allclose(ignored.standard_error, ignored.params[1] / np.sqrt([N, 2 * N]), rtol=0.02)
    with jax.enable_x64(True):
        formula = e.estimate(e.released(release)).standard_error
    np.testing.assert_allclose(counted.standard_error, formula)
    assert (counted.standard_error > 1.2 * ignored.standard_error).all()
    assert "sampling alone" in ignored.summary() and "the noise" in counted.summary()
    assert counted.privacy == e.privacy


def test_fisher_intervals_refuse_what_has_no_formula():
    with pytest.raises(TypeError, match="Fisher intervals are for"):
        fisher(lambda key, data: data, 0.0)
    with pytest.raises(TypeError, match="family must be"):
        fisher_of_data("gaussian", [1.0])


def test_errors_of_normal_rows_count_the_noise_as_the_estimate_passes_it_on(x64):
    family = MultivariateNormal([-1.0, 0.0], [3.0, 1.0])
    mean = jnp.array([0.1, -0.2, 0.5, 0.4, 0.1])  # of the statistics, of rows with a positive definite covariance

    def flat(mean):
        params, outside = family.solve(mean)
        return jnp.concatenate([params["covariance_matrix"].ravel(), params["loc"]]), (params, outside)

    slope, (params, outside) = jax.jacfwd(flat, has_aux=True)(mean)
    assert not outside
    with_noise, without = (family.covariance(params, noise, 1, clamped=False) for noise in (0.3, 0.0))
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


def blocks_mean(count=60, blocks=6, **options):
    return subsample_and_aggregate(jnp.mean, lower=-2.0, upper=3.0, count=count, blocks=blocks, **options)


@pytest.mark.parametrize("options", [{"epsilon": 1.0}, {"epsilon": 1.0, "delta": 1e-6, "share": 0.8}])
def test_one_block_moves_mean_and_variance_together_by_one_at_most_and_attains_it(options):
    e = blocks_mean(**options)
    order = 2 if "delta" in options else 1
    weights = np.array(e._weights)
    rng = np.random.default_rng(0)
    values = np.where(rng.uniform(size=(2, 100_000, 6)) < 0.3, -2.0, rng.uniform(-2, 3, (2, 100_000, 6)))
    values[1, :, 1:] = values[0, :, 1:]
    row = np.stack([values.mean(axis=-1), values.var(axis=-1, ddof=1)], axis=-1) * weights
    assert np.linalg.norm(row[0] - row[1], order, axis=-1).max() <= 1 + 1e-12
    worst = np.full((2, 6), -2.0)
    worst[1, 0] = 3.0
    row = np.stack([worst.mean(axis=-1), worst.var(axis=-1, ddof=1)], axis=-1) * weights
    np.testing.assert_allclose(np.linalg.norm(row[0] - row[1], order), 1.0)


def test_blocks_are_of_all_records_and_their_mean_is_the_estimate():
    e = blocks_mean(epsilon=1e9)
    x = np.random.default_rng(1).normal(0.5, 0.5, 60)
    result = e.interval_of(e.release(x, seed=0))
    np.testing.assert_allclose(result.params, x.mean(), rtol=1e-6)
    assert 0.2 < result.standard_error[0] / (x.std() / np.sqrt(60)) < 2  # χ² with 5 degrees of freedom
    assert result.names == ["theta"] and result.privacy == e.privacy


@pytest.mark.usefixtures("x64")
def test_intervals_by_subsample_and_aggregate_cover_and_run_for_many_samples_at_a_time():
    e = blocks_mean(epsilon=300.0, count=600, blocks=30)  # noise of a sixth of the variance at most, mostly
    x = np.random.default_rng(2).normal(0.5, 1.0, (1000, 600))

    def one(x, key):
        estimated = e.estimate(e.randomize(key, x))
        return estimated.params["theta"], estimated.standard_error[0]

    center, error = jax.jit(jax.vmap(one))(x, jax.random.split(jax.random.key(0), 1000))
    covered = np.sum(np.abs(center - 0.5) <= 1.96 * error)
    # the normal quantile, where Student's with 29 degrees of freedom would be exact, covers 0.940; the noise in the
    # variance costs up to 0.005. The band is 3 binomial standard deviations (7.5) on either side of 935 to 940
    assert 912 <= covered <= 963


def test_a_block_whose_estimate_is_no_number_is_within_the_range_like_any_other(x64):
    """An error, or NaN, would tell with certainty that the data have such a block."""
    estimator = subsample_and_aggregate(
        lambda x: jnp.log(x[0]), lower=-1.0, upper=3.0, count=4, blocks=4, epsilon=1e12, share=0.5
    )
    for negative, (mean, variance) in (([1.0] * 4, (0.0, 0.0)), ([-1.0, 1.0, 1.0, 1.0], (0.25, 0.25))):
        first, second = estimator.release(np.array(negative), seed=0).values[0] / np.array(estimator._weights)
        assert [first, second] == pytest.approx([mean, variance], abs=1e-9)


def test_subsample_and_aggregate_refuses_bad_input():
    with pytest.raises(ValueError, match="lower is missing"):
        subsample_and_aggregate(jnp.mean, lower=None, upper=1.0, count=10, blocks=2, epsilon=1.0)
    with pytest.raises(ValueError, match="blocks must be an integer from 2 to 10"):
        subsample_and_aggregate(jnp.mean, lower=0.0, upper=1.0, count=10, blocks=11, epsilon=1.0)
    with pytest.raises(ValueError, match="share must be between 0 and 1"):
        blocks_mean(epsilon=1.0, share=1.0)
    e = blocks_mean(epsilon=1.0)
    with pytest.raises(ValueError, match="for 60 records"):
        e.release(np.zeros(59), seed=0)
    with pytest.raises(ValueError, match="needs simulator="):
        parametric_bootstrap(e, e.release(np.zeros(60), seed=0))
