"""Intervals of predicted labels against closed forms, statsmodels and simulated laws."""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
import statsmodels.api as sm
from scipy import stats

import ldpbayes as ldp
from ldpbayes.estimation import (
    MarginalLikelihood,
    SquaredError,
    linear_fit,
)
from ldpbayes.estimation._labels import predicted

INPUTS = np.array([[0.3, -0.5], [1.2, 0.2], [-2.0, 0.0]])
ROOTS = np.array([[[0.3, 0.0], [0.1, 0.2]]]) * np.array([1.0, 0.5, 0.0])[:, None, None]
COVARIANCE = ROOTS @ ROOTS.mT


def student_t(df):
    return lambda prediction, scale: dist.StudentT(df, prediction, scale, validate_args=False)


LAWS = {
    dist.Normal: lambda rng, at, scale: rng.normal(at, scale),
    dist.LogNormal: lambda rng, at, scale: rng.lognormal(at, scale),
    student_t(5.0): lambda rng, at, scale: at + scale * rng.standard_t(5, len(at)),
    dist.Poisson: lambda rng, at, scale: rng.poisson(np.exp(at)),
}


@pytest.mark.parametrize(
    "law", [law if law is dist.Normal else pytest.param(law, marks=pytest.mark.slow) for law in LAWS]
)
def test_a_new_label_has_the_law_that_integrates_the_parameters(law, rng):
    """Empirical cdf at the ends, from 10⁶ draws: five standard errors, wrong once in 4e5 runs, are 1.1e-3 at 5 %."""
    objective = MarginalLikelihood(law)
    with jax.enable_x64(True):
        prediction = predicted(objective, INPUTS, COVARIANCE, None, 0.9)
        for row in range(len(INPUTS)):
            inputs = INPUTS[row] + rng.normal(size=(10**6, 2)) @ ROOTS[row].T
            labels = LAWS[law](rng, inputs[:, 0], np.exp(inputs[:, 1]))
            if law is dist.Poisson:  # the least whole numbers with at least so much probability at or below
                for end, share in ((prediction.label_lower[row], 0.05), (prediction.label_upper[row], 0.95)):
                    assert np.mean(labels < end) - 1.1e-3 < share < np.mean(labels <= end) + 1.1e-3
            else:
                assert np.mean(labels < prediction.label_lower[row]) == pytest.approx(0.05, abs=1.1e-3)
                assert np.mean(labels > prediction.label_upper[row]) == pytest.approx(0.05, abs=1.1e-3)
            error = 5 * np.sqrt(np.var((labels - labels.mean()) ** 2) / labels.size) / (2 * labels.std())
            assert prediction.label_sd[row] == pytest.approx(labels.std(), abs=error)


def test_intervals_of_nearly_noiseless_labels_are_those_of_least_squares(rng):
    """Of normal labels; statsmodels' intervals are Student's with 396 degrees of freedom, and divide by n − p."""
    features = rng.normal(size=(400, 3))
    labels = features @ [1.0, -2.0, 0.5] + 3 + rng.normal(size=400)
    release = ldp.Release(labels, ldp.mechanisms.AdditiveMechanism(ldp.noise.Gaussian(1e-4), sensitivity=np.inf))
    fit = linear_fit(features, release, penalty=0.0)
    new = rng.normal(size=(3, 3))  # as many as the inputs above: they share what is compiled
    frame = sm.OLS(labels, sm.add_constant(features)).fit().get_prediction(sm.add_constant(new)).summary_frame(0.1)
    prediction = fit.predict(new, interval=0.9)
    np.testing.assert_allclose(prediction.mean, frame["mean"], atol=1e-6)
    ratio = stats.t(396).ppf(0.95) / stats.norm.ppf(0.95) * np.sqrt(400 / 396)  # 1.0077
    half = (prediction.mean_upper - prediction.mean_lower) / 2
    # The prior of the scale, of precision 1/1.5² against 800, moves its logarithm by 6e-4 times a distance below 2.
    np.testing.assert_allclose(half * ratio, (frame["mean_ci_upper"] - frame["mean_ci_lower"]) / 2, rtol=1.2e-3)
    # That of a label also integrates the scale, whose logarithm has the variance 1/800: half as much more, at most.
    half = (prediction.label_upper - prediction.label_lower) / 2
    np.testing.assert_allclose(half, (frame["obs_ci_upper"] - frame["obs_ci_lower"]) / 2, rtol=6e-3)


def test_intervals_follow_links_bounds_and_columns(rng):
    features = rng.normal(size=(2000, 1))
    answers = rng.random(2000) < 1 / (1 + np.exp(-features[:, 0]))
    kept = rng.random(2000) < np.e / (1 + np.e)
    release = ldp.Release(np.where(kept, answers, ~answers).astype(int), ldp.RandomizedResponse(1.0, 2))
    fit = linear_fit(features, release, objective=MarginalLikelihood(dist.BernoulliLogits), penalty=1.0)
    assert fit.converged  # although it starts at log-odds of exactly 0
    prediction = fit.predict(np.array([[-2.0], [0.0], [2.0]]), interval=0.95)
    ends = np.stack([prediction.mean_lower, prediction.mean, prediction.mean_upper])
    assert np.all(np.diff(ends, axis=0) > 0) and np.all((ends > 0) & (ends < 1))
    assert np.isnan(prediction.label_lower).all()
    share = prediction.mean
    assert prediction.label_sd == pytest.approx(np.sqrt(share * (1 - share)), rel=0.02)  # and the share's own error
    with pytest.raises(ValueError, match="interval must be a number between 0 and 1, exclusive, got 95"):
        fit.predict(np.zeros((1, 1)), interval=95)
    with jax.enable_x64(True):
        clipped = predicted(MarginalLikelihood(dist.Normal), INPUTS, COVARIANCE, (-1.0, 1.0), 0.9)
        unknown = predicted(MarginalLikelihood(dist.Normal), INPUTS, np.nan * COVARIANCE, None, 0.9)
    assert all(np.all((each >= -1) & (each <= 1)) for each in clipped[:-1])
    assert all(np.isnan(each).all() for each in unknown[1:])


def test_a_loss_without_a_law_has_no_intervals(rng):
    release = ldp.Release(rng.normal(size=50), ldp.LaplaceMechanism(epsilon=20.0, lower=-5, upper=5))
    fit = linear_fit(rng.normal(size=(50, 2)), release, objective=SquaredError(), penalty=1.0)
    with pytest.raises(ValueError, match="intervals need a law of labels, but SquaredError has none"):
        fit.predict(np.zeros((1, 2)), interval=0.9)
