"""Linear predictors of released labels against scikit-learn, statsmodels and what theory says."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import statsmodels.api as sm
from scipy import optimize, stats
from sklearn.linear_model import Ridge

import ldpbayes as ldp
from ldpbayes.estimation import (
    CrossValidation,
    Estimate,
    EstimationWarning,
    Evidence,
    MarginalLikelihood,
    SquaredError,
    UnbiasedLabels,
    linear_fit,
)
from ldpbayes.estimation import _linear as module

COUNT, WIDTH = 400, 3
TRUTH = np.array([0.4, 0.06, -0.04, 0.0])
SCALE = 0.1
NOISELESS = ldp.mechanisms.AdditiveMechanism(ldp.noise.Gaussian(1e-7), sensitivity=np.inf)


@pytest.fixture(scope="module")
def features():
    # of other centres and units than 0 and 1
    return np.random.default_rng(3).normal(size=(COUNT, WIDTH)) * [1.0, 20.0, 0.1] + [0.0, 50.0, 3.0]


@pytest.fixture(scope="module")
def labels(features):
    standard = (features - [0.0, 50.0, 3.0]) / [1.0, 20.0, 0.1]
    return TRUTH[0] + standard @ TRUTH[1:] + SCALE * np.random.default_rng(4).normal(size=COUNT)


@pytest.fixture(scope="module")
def released(labels):
    mechanism = ldp.LaplaceMechanism(2.0, 0.0, 1.0)
    return ldp.Release(np.asarray(mechanism.randomize(jax.random.key(0), labels)), mechanism)


@pytest.fixture(scope="module")
def fitted(features, released):
    return linear_fit(features, released, penalty=1.0)


@pytest.mark.parametrize("objective", [SquaredError(), UnbiasedLabels()], ids=["squared", "unbiased"])
def test_squared_errors_give_the_ridge_regression_of_scikit_learn(features, released, objective):
    fit = linear_fit(features, released, objective=objective, penalty=14.0)
    standard = (features - features.mean(axis=0)) / features.std(axis=0)
    ridge = Ridge(alpha=7.0).fit(standard, released.values)  # Laplace noise has mean 0: released labels are unbiased
    # one Newton step solves a quadratic problem: what is left is rounding
    np.testing.assert_allclose(fit.predict(features), ridge.predict(standard), rtol=1e-9)
    assert fit.converged and fit.scale is None


def test_squared_errors_without_penalty_have_the_standard_errors_of_statsmodels(features, released):
    fit = linear_fit(features, released, objective=SquaredError(), penalty=0.0)
    ols = sm.OLS(released.values, sm.add_constant(features)).fit(cov_type="HC0")
    np.testing.assert_allclose(fit.params, ols.params, rtol=1e-8)
    np.testing.assert_allclose(fit.standard_error, ols.bse, rtol=1e-8)


def test_the_marginal_likelihood_without_noise_to_speak_of_is_least_squares(features, labels):
    flat = MarginalLikelihood(deviation=np.inf)
    fit = linear_fit(features, ldp.Release(labels, NOISELESS), objective=flat, penalty=0.0)
    ols = sm.OLS(labels, sm.add_constant(features)).fit()
    # a step that promises 1e-8 nats moves a parameter by 1.4e-4 standard errors at most
    assert np.all(np.abs(fit.params[:-1] - ols.params) < 1.5e-4 * ols.bse)
    spread = np.sqrt(ols.ssr / COUNT)  # by maximum likelihood
    assert fit.scale == pytest.approx(spread, abs=1.5e-4 * spread / np.sqrt(2 * COUNT))
    np.testing.assert_allclose(fit.standard_error[:-1], ols.bse * spread / np.sqrt(ols.scale), rtol=1e-3)
    assert fit.standard_error[-1] == pytest.approx(spread / np.sqrt(2 * COUNT), rel=1e-3)


def test_variances_add_up_under_gaussian_noise_without_bounds(features, labels):
    tau = 0.05
    mechanism = ldp.mechanisms.AdditiveMechanism(ldp.noise.Gaussian(tau), sensitivity=np.inf)
    noisy = labels + tau * np.random.default_rng(5).normal(size=COUNT)
    fit = linear_fit(
        features, ldp.Release(noisy, mechanism), objective=MarginalLikelihood(deviation=np.inf), penalty=0.0
    )
    ols = sm.OLS(noisy, sm.add_constant(features)).fit()
    assert np.all(np.abs(fit.params[:-1] - ols.params) < 1.5e-4 * ols.bse)
    # the maximum is where σ² + τ² is the mean square
    total = ols.ssr / COUNT
    assert fit.scale**2 + tau**2 == pytest.approx(total, abs=1.5e-4 * total * np.sqrt(2 / COUNT))


def test_a_fit_is_an_estimate_with_the_privacy_of_labels(fitted, features, released):
    assert isinstance(fitted, Estimate)
    assert fitted.names == ["intercept", "x[0]", "x[1]", "x[2]", "scale"]
    assert fitted.estimate["scale"] == fitted.scale > 0
    assert fitted.covariance.shape == (5, 5) and np.all(fitted.standard_error > 0)
    assert (
        "Each label" in fitted.privacy and "epsilon = 2" in fitted.privacy and "Features are public" in fitted.privacy
    )
    assert "MarginalLikelihood of 400 released labels, penalty 1" in fitted.summary()
    with pytest.warns(ldp.data.RepeatedAnswersWarning):
        thrice = linear_fit(features, dataclasses.replace(released, times=3), penalty=1.0)
    assert thrice.privacy.startswith("A person with up to 3 labels is protected")
    lower, upper = fitted.interval(0.9)
    np.testing.assert_allclose(fitted.interval(0.95, side="lower"), [lower, np.full(5, np.inf)])
    assert fitted.contrast({"x[0]": 1}).standard_error == pytest.approx(fitted.standard_error[1])
    assert np.all(lower < fitted.params) and np.all(fitted.params < upper) and lower[-1] >= 0


def test_the_gradient_is_zero_at_the_fit_and_the_covariance_is_the_curvature_there(fitted, features, released):
    with jax.enable_x64(True):

        @jax.jit
        def criterion(params):
            law = dist.Normal(params[0] + features @ params[1:-1], params[-1])
            ridge = 0.5 * jnp.sum((params[1:-1] * features.std(axis=0)) ** 2)
            prior = 0.5 * ((jnp.log(params[-1]) - np.log(1 / 6)) / 1.5) ** 2
            return -ldp.Privatized(law, released.mechanism).log_prob(released.values).sum() + ridge + prior

        start = criterion(fitted.params)
        for j, error in enumerate(fitted.standard_error):
            # along one parameter the minimum is a parabola whose curvature is the information's diagonal
            information = np.linalg.inv(fitted.covariance)[j, j]
            step = 0.05 / np.sqrt(information) * np.eye(5)[j]
            up, down = criterion(fitted.params + step), criterion(fitted.params - step)
            assert up > start and down > start
            # third and fourth derivatives count with 0.05 and its square; of the scale the parameter is the logarithm
            assert up + down - 2 * start == pytest.approx(0.05**2, rel=0.1)
            assert error >= 1 / np.sqrt(information)


def test_the_interval_of_a_scale_has_those_that_the_ratio_of_likelihoods_does_not_refuse(fitted, features, released):
    with jax.enable_x64(True):
        standard = (features - features.mean(axis=0)) / features.std(axis=0)

        @jax.jit
        @jax.value_and_grad
        def nats(coefficients, log_scale):  # without a prior of the scale
            law = dist.Normal(coefficients[0] + standard @ coefficients[1:], jnp.exp(log_scale))
            of_labels = ldp.Privatized(law, released.mechanism, validate_args=False).log_prob(released.values)
            return 0.5 * jnp.sum(coefficients[1:] ** 2) - of_labels.sum()

        def best(log_scale):
            start = np.array([0.5, 0, 0, 0])
            return optimize.minimize(nats, start, (log_scale,), jac=True, method="BFGS").fun

        least = min(best(log_scale) for log_scale in np.linspace(-9, 0, 28))
        for level in (0.8, 0.95):
            lower, upper = (end[-1] for end in fitted.interval(level))
            refused = stats.chi2(1).ppf(level)
            # straight lines between points half a deviance's unit apart: to 3 % of the ratio
            assert 2 * (best(np.log(upper)) - least) == pytest.approx(refused, rel=0.03)
            if lower:
                assert 2 * (best(np.log(lower)) - least) == pytest.approx(refused, rel=0.03)
            else:
                assert 2 * (best(-9.0) - least) < refused


@pytest.mark.slow
@pytest.mark.parametrize("deviation", [1.5, 5.0])
def test_the_interval_of_a_scale_covers_under_strong_noise(deviation):
    # at a standard deviation of the noise of 17, scales from 0 to about 2.8 explain the labels
    mechanism, covered = ldp.LaplaceMechanism(1.0, -6.0, 6.0), 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(2000, 2))
        labels = 0.5 + x @ [0.5, -0.3] + 0.9 * rng.normal(size=2000)
        release = ldp.Release(np.asarray(mechanism.randomize(jax.random.key(seed), labels)), mechanism)
        fit = linear_fit(x, release, objective=MarginalLikelihood(deviation=deviation), penalty=0.0)
        lower, upper = fit.interval()
        covered += lower[-1] <= 0.9 <= upper[-1]
    # at least .95, as the scale is next to the end of its range; if it is .95, a false alarm has a probability of 1e-4
    assert covered >= stats.binom(300, 0.95).ppf(1e-4)


def randomized_answers(x, epsilon, seed):
    """Answers with log-odds x, randomized with a budget."""
    rng = np.random.default_rng(seed)
    yes = rng.random(len(x)) < 1 / (1 + np.exp(-x))
    return np.where(rng.random(len(x)) < 1 / (1 + np.exp(-epsilon)), yes, ~yes).astype(int)


def test_labels_in_chunks_with_one_budget_each_are_those_in_one_piece_with_one_for_all(features, monkeypatch):
    x, options = features[:, 0], {"objective": MarginalLikelihood(dist.BernoulliLogits), "penalty": 1.0}
    z = randomized_answers(x, 2.0, seed=1)
    whole = linear_fit(features, ldp.Release(z, ldp.RandomizedResponse(2.0)), **options)
    monkeypatch.setattr(module, "LABELS_AT_A_TIME", 150)
    fit = linear_fit(features, ldp.Release(z, ldp.RandomizedResponse(np.full(COUNT, 2.0))), **options)
    # a step that promises 1e-6 nats moves a parameter by 1.4e-3 standard errors at most
    assert np.all(np.abs(fit.params - whole.params) < 1.5e-3 * whole.standard_error)
    np.testing.assert_allclose(fit.standard_error, whole.standard_error, rtol=1e-3)


@pytest.mark.slow
def test_one_budget_a_label_is_as_good_as_one_for_all(fitted, features, released):
    personal = ldp.LaplaceMechanism(np.full(COUNT, 2.0), 0.0, 1.0)
    fit = linear_fit(features, ldp.Release(released.values, personal), penalty=1.0)
    np.testing.assert_allclose(fit.params, fitted.params, rtol=1e-6)


def test_predictions_between_bounds_are_those_of_the_objective(fitted, features):
    with jax.enable_x64(True):
        mean = fitted.objective.mean(fitted.predict(features[:3]), fitted.scale, (0.2, 0.5))
    np.testing.assert_array_equal(fitted.predict(features[:3], bounds=(0.2, 0.5)), mean)
    assert np.all(fitted.predict(features + 1e6, bounds=(0.2, 0.5)) <= 0.5 + 1e-12)


@pytest.mark.parametrize("rule", [Evidence(), CrossValidation(folds=3)], ids=["evidence", "cross-validation"])
def test_a_chosen_penalty_is_large_where_features_say_nothing(features, labels, released, rule):
    shuffled = ldp.Release(np.random.default_rng(0).permutation(released.values), released.mechanism)
    some = linear_fit(features, released, penalty=rule).penalty
    none = linear_fit(features, shuffled, penalty=rule).penalty
    assert none > 10 * some


def test_by_default_the_fit_is_the_posterior_mean_over_penalties_and_scales():
    rng, width, grid = np.random.default_rng(0), 3.0, (0.03, 0.3)
    x = stats.zscore(rng.normal(size=COUNT))
    labels = 0.3 * x + 0.5 * rng.normal(size=COUNT)
    noisy = np.clip(labels, -width, width) + rng.laplace(0, width, COUNT)
    released = ldp.Release(noisy, ldp.LaplaceMechanism(2.0, -width, width))
    fit = linear_fit(x[:, None], released, penalty=Evidence(grid=grid), intercept=False)
    single = linear_fit(x[:, None], released, penalty=Evidence(grid=grid[:1]), intercept=False)

    # sums over all: the slope, the logarithm of the scale, whose prior has the median 1, and the penalty
    slopes, logs = np.linspace(-1.2, 1.6, 41), np.linspace(-6.0, 3.0, 37)
    t, w = np.polynomial.hermite_e.hermegauss(60)
    noisy = np.asarray(released.values)[:, None]

    def log_likelihood(slope, log_scale):
        label = np.clip(slope * x[:, None] + np.exp(log_scale) * t, -width, width)
        return np.sum(np.log(np.exp(-np.abs(noisy - label) / 3.0) @ w))

    log_posterior = np.array([[log_likelihood(slope, log) for log in logs] for slope in slopes])
    log_posterior -= 0.5 * (logs / 1.5) ** 2
    deviations = [(share / grid[0] * single.penalty) ** -0.5 for share in grid]
    joint = sum(
        np.exp(log_posterior - log_posterior.max() + stats.norm.logpdf(slopes, 0, d)[:, None]) for d in deviations
    )
    joint /= joint.sum()
    means = np.array([joint.sum(axis=1) @ slopes, joint.sum(axis=0) @ logs])
    errors = np.sqrt([joint.sum(axis=1) @ slopes**2, joint.sum(axis=0) @ logs**2] - means**2)
    found = np.array([fit.params[0], np.log(fit.scale)])
    # Laplace's method for the slope is off by a tenth of an error; the mode of the scale, 0.9, is off by two thirds
    assert np.all(np.abs(found - means) < 0.15 * errors)
    np.testing.assert_allclose(fit.standard_error / [1.0, fit.scale], errors, rtol=0.1)


@pytest.mark.parametrize(
    ("law", "mechanism", "draw"),
    [
        (dist.Poisson, ldp.DiscreteLaplaceMechanism(1.0, 0, 20), lambda rng, rate: rng.poisson(rate)),
        pytest.param(
            dist.LogNormal,
            ldp.LaplaceMechanism(20.0, 0.0, 20.0),
            lambda rng, rate: rate * np.exp(0.5 * rng.normal(size=COUNT)),
            marks=pytest.mark.slow,  # test_regressor.py fits log-normal labels without noise
        ),
    ],
    ids=["counts", "positive"],
)
def test_generalised_linear_models_of_counts_and_positive_labels(features, law, mechanism, draw):
    labels = draw(np.random.default_rng(8), np.exp(1.0 + 0.5 * features[:, 0]))
    z = np.asarray(mechanism.randomize(jax.random.key(2), labels))
    fit = linear_fit(features[:, :1], ldp.Release(z, mechanism), objective=MarginalLikelihood(law), penalty=0.0)
    # four standard errors: a false alarm in 8,000 for each of two numbers and two laws, at a fixed seed
    assert np.all(np.abs(fit.params[:2] - [1.0, 0.5]) < 4 * fit.standard_error[:2])
    assert fit.predict(np.zeros((1, 1))) == pytest.approx(np.exp(fit.intercept + (fit.scale or 0) ** 2 / 2))


def test_features_that_say_the_same_have_no_standard_errors_without_a_penalty(features, released):
    twice = np.concatenate([features[:, :2], features[:, :1]], axis=1)
    with pytest.warns(EstimationWarning, match="do not identify all parameters"):
        fit = linear_fit(twice, released, penalty=0.0)
    assert np.isnan(fit.standard_error).all() and np.isfinite(fit.params).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(linear_fit(twice, released, penalty=1.0).standard_error).all()


@pytest.mark.parametrize(
    "objective",
    [
        pytest.param(MarginalLikelihood(), marks=pytest.mark.slow, id="likelihood"),
        pytest.param(SquaredError(), id="squared"),
    ],
)
def test_one_label_has_a_fit_that_says_that_it_tells_nothing_of_features(objective):
    release = ldp.Release(np.array([1.3]), ldp.LaplaceMechanism(1.0, -4.0, 4.0))
    with pytest.warns(EstimationWarning, match="do not identify all parameters"):
        fit = linear_fit(np.ones((1, 1)), release, objective=objective)
    assert np.isfinite(fit.params).all() and fit.coefficients == 0 and np.isnan(fit.standard_error).all()


def test_curvatures_of_nothing_are_no_error_but_parameters_that_are_not_told_apart():
    # where a scale without a prior goes to 0, residuals of Laplace noise have no curvature at all
    assert not module._identified(np.diag([0.0, 0.0, 3.4e-13]))
    assert module._identified(np.diag([1e-200, 1e200, 1.0]))  # of other units


def test_wrong_input_is_refused(features, released):
    def refused(message, features=features, release=released, error=ValueError, **options):
        with pytest.raises(error, match=message):
            linear_fit(features, release, **options)

    refused(
        "features must be finite numbers, got features\\[2, 1\\]",
        np.where(features == features[2, 1], np.nan, features),
    )
    refused("one row for each label: got 399 rows, and 400", features[1:])
    refused("must be a matrix", features[:, 0])
    refused("without values", release=ldp.Release(None, released.mechanism, 400))
    refused("penalty must be a finite number, 0 or more, got -1", penalty=-1.0)
    refused("release must be a Release", release=released.values, error=TypeError)
    refused("objective must be an Objective", objective="squared", error=TypeError)
    rows = ldp.LaplaceMechanism(1.0, 0.0, 1.0, columns=2)
    refused("labels must be numbers, but LaplaceMechanism releases rows", release=ldp.Release(None, rows, 400))
    with pytest.raises(ValueError, match="values"):
        ldp.Release(np.full(400, np.nan), released.mechanism)
    with pytest.raises(ValueError, match="grid must be"):
        Evidence(grid=(-1.0,))
    with pytest.raises(ValueError, match="folds must be"):
        CrossValidation(folds=1)


def test_columns_of_a_data_frame_are_those_of_the_fit(features, released):
    pandas = pytest.importorskip("pandas", reason="data frames need pandas")
    frame = pandas.DataFrame(features, columns=["age", "rooms", "floor"])
    fitted = linear_fit(frame, released, penalty=1.0)
    np.testing.assert_allclose(fitted.predict(frame), fitted.predict(features), rtol=1e-13, atol=1e-13)  # rounding
    with pytest.raises(ValueError, match=r"columns of the fit in the same order, \['age', 'rooms', 'floor'\]"):
        fitted.predict(frame[["rooms", "age", "floor"]])


def test_a_law_of_numpyro_may_be_the_law_of_labels(fitted, features, released):
    other = linear_fit(features, released, penalty=1.0, objective=MarginalLikelihood(dist.Normal))
    np.testing.assert_allclose(other.params, fitted.params, rtol=1e-12)
    with pytest.raises(TypeError, match="law must be a function"):
        MarginalLikelihood(dist.StudentT)


def test_a_flat_evidence_does_not_end_the_search_for_penalties():
    rng = np.random.default_rng(1)
    x, mechanism = stats.zscore(rng.normal(size=400)), ldp.RandomizedResponse(0.3)
    released = randomized_answers(x, 0.3, seed=1)
    labels = MarginalLikelihood(dist.BernoulliLogits)
    fit = linear_fit(x[:, None], ldp.Release(released, mechanism), objective=labels, intercept=False)
    # the prior deviations of the slope go up to 48, and the labels prefer none of them: the largest three penalties by
    # themselves have an error of 0.05, and all by quadrature one of 1.4, in whose tails Laplace's method is short
    assert fit.standard_error[0] > 0.2


def test_penalties_of_the_evidence_are_positive():
    with pytest.raises(ValueError, match="grid must be finite numbers above 0"):
        Evidence(grid=(0.0, 1.0))
