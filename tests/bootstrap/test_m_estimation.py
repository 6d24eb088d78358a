"""Private estimators by a minimised loss, and by maximum likelihood."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import ldpbayes as ldp
from ldpbayes.bootstrap import m_estimator, maximum_likelihood, parametric_bootstrap
from ldpbayes.bootstrap._bootstrap import estimated
from ldpbayes.bootstrap._m_estimation import MaximumLikelihoodEstimator
from ldpbayes.data import RepeatedAnswersWarning
from ldpbayes.estimation import losses

N = 400
RESPONSE = ldp.RandomizedResponse(epsilon=1.0, categories=2)
ZIL = ldp.ZeroInflatedLaplaceMechanism(0.1, 0.94, 0.0, 2.0)


def answers(share=0.3, seed=0, count=N):
    rng = np.random.default_rng(seed)
    codes, lies = rng.binomial(1, share, count), rng.binomial(1, 1 / (1 + np.e), count)
    return ldp.Release(codes ^ lies, RESPONSE)


@pytest.fixture(scope="module")
def warner():
    return ldp.models.warner()


def uniforms(key, theta):
    return jax.random.uniform(key, (N,), minval=theta - 0.5, maxval=theta + 0.5)


def distance(x, theta):
    return (x - theta) ** 2


def located(truth=0.9, seed=0):
    """A release of uniform records, of which a tenth is without noise."""
    rng = np.random.default_rng(1000 + seed)
    noise = rng.laplace(0, ZIL.scale / np.sqrt(2), N) * (rng.random(N) >= ZIL.zero_probability)
    return ldp.Release(np.clip(truth + rng.random(N) - 0.5, 0, 2) + noise, ZIL)


def test_maximum_likelihood_of_warners_answers_is_in_closed_form(warner):
    release = answers()
    yes, keep = np.mean(release.values), np.e / (1 + np.e)
    slope = 2 * keep - 1
    with jax.enable_x64(True):
        estimator = maximum_likelihood(warner, release)
        found = estimated(estimator, estimator.release_values(release))
    # the last step is short of 1e-9 of the log-likelihood, the one after it squares what is left
    assert float(found.params["theta"]) == pytest.approx((yes - (1 - keep)) / slope, abs=1e-6)
    assert float(found.standard_error[0]) == pytest.approx((yes * (1 - yes) / N) ** 0.5 / slope, rel=1e-5)
    assert not found.outside


def test_bootstrap_errors_agree_with_the_observed_information(warner):
    """The standard deviation of 400 replicates is within 15% (four of its standard errors) of the formula."""
    release = answers()
    estimator = maximum_likelihood(warner, release)
    with pytest.warns(RepeatedAnswersWarning, match="up to 10 of the released values may be about one person") as given:
        parametric_bootstrap(estimator, dataclasses.replace(release, times=10), draws=400)
    assert len(given) == 1
    with warnings.catch_warnings(action="error"):
        result = parametric_bootstrap(estimator, release, draws=400)
    assert result.names == ["theta"]
    assert result.standard_error[0] == pytest.approx(result.formula_error[0], rel=0.15)
    assert result.bias[0] == pytest.approx(0.0, abs=4 * result.standard_error[0] / 20)
    assert "local differential privacy with epsilon = 1" in result.privacy


@pytest.mark.slow
def test_intervals_of_maximum_likelihood_cover_the_truth(warner):
    """95% intervals; 60 trials cover in at least 51 but for one study in 500 (binomial)."""
    covered = 0
    for trial in range(60):
        release = answers(seed=trial)
        result = parametric_bootstrap(maximum_likelihood(warner, release), release, draws=200, seed=trial)
        low, high = result.interval(kind="studentised")
        covered += int((low[0] <= 0.3) & (high[0] >= 0.3))
    assert covered >= 51


def test_an_estimate_at_the_edge_is_said_to_be_outside(warner):
    """With a share of yes below what the noise alone makes, the likelihood increases all the way to 0."""
    release = ldp.Release(np.r_[np.ones(90, int), np.zeros(N - 90, int)], RESPONSE)
    with jax.enable_x64(True):
        estimator = maximum_likelihood(warner, release)
        found = estimated(estimator, estimator.release_values(release))
    assert found.outside
    assert float(found.params["theta"]) < 1e-4
    assert float(estimator.start["theta"]) > 0.01  # replicates do not start where the likelihood is flat


def test_priors_play_no_role():
    release = answers()
    made = [maximum_likelihood(ldp.models.warner(dist.Beta(*pair)), release) for pair in ((1, 1), (40, 2))]
    shares = [float(estimator.start["theta"]) for estimator in made]
    assert shares[0] == pytest.approx(shares[1], abs=1e-6)


def test_free_values_go_there_and_back():
    def model(release):
        numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
        numpyro.sample("scale", dist.HalfNormal(1))
        ldp.observe("z", dist.Bernoulli(numpyro.sample("theta", dist.Uniform(0, 1))), release)

    params = {"shares": jnp.array([0.2, 0.3, 0.5]), "scale": jnp.array(2.0), "theta": jnp.array(0.3)}
    estimator = MaximumLikelihoodEstimator(model, RESPONSE, params, None, N)
    free = jax.jit(estimator.unconstrained)(params)
    assert free.shape == (4,)
    back = jax.jit(estimator.constrained)(free, params)
    for name, value in params.items():
        np.testing.assert_allclose(back[name], value, rtol=1e-5)


def test_a_mechanism_of_the_same_kind_shares_what_is_compiled(warner):
    release = answers()
    other = ldp.Release(release.values, ldp.RandomizedResponse(epsilon=2.0, categories=2))
    one, two = (maximum_likelihood(warner, given) for given in (release, other))
    assert jax.tree.structure(one) == jax.tree.structure(two)


@pytest.fixture(scope="module")
def location():
    release = located()
    estimator = m_estimator(distance, release, "dr", simulator=uniforms, start=0.9)
    return estimator, release, parametric_bootstrap(estimator, release, draws=400)


def test_the_m_estimate_is_that_of_m_estimate(location):
    _, release, result = location
    reference = ldp.m_estimate(distance, release, "dr", start=0.9)
    # both stop where a step changes the criterion by 1e-12 of its size
    assert result.params == pytest.approx(reference.params, abs=1e-6)
    assert result.formula_error == pytest.approx(reference.standard_error, rel=1e-4)


def test_bootstrap_errors_agree_with_the_sandwich(location):
    """As above: 15% are four standard errors of the standard deviation of 400 replicates."""
    result = location[2]
    assert result.standard_error == pytest.approx(result.formula_error, rel=0.15)


def test_replicates_draw_the_analysts_own_noise_anew(location):
    estimator, release, _ = location
    with jax.enable_x64(True):
        rows, key = estimator.release_values(release)
        again, other = jax.jit(estimator.simulate_release)(jax.random.key(1), jnp.asarray(0.9))
    assert rows.shape == again.shape == (N, 1)
    assert not np.array_equal(jax.random.key_data(key), jax.random.key_data(other))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dr", "combined"])
def test_intervals_of_m_estimates_cover_the_truth(method):
    """95% intervals; 100 trials cover in at least 88 but for one study in 250 (binomial)."""
    covered = 0
    for trial in range(100):
        release = located(seed=trial)
        estimator = m_estimator(distance, release, method, simulator=uniforms, start=0.9, seed=trial)
        low, high = parametric_bootstrap(estimator, release, draws=200, seed=trial).interval()
        covered += int((low[0] <= 0.9) & (high[0] >= 0.9))
    assert covered >= 88


def test_what_does_not_fit_is_named(warner, location):
    release, (estimator, _, _) = answers(), location
    with pytest.raises(TypeError, match="model must be a NumPyro model"):
        maximum_likelihood(3, release)
    with pytest.raises(TypeError, match="a sketch holds no values"):
        maximum_likelihood(warner, release.sketch())
    with pytest.raises(ValueError, match="nothing to estimate from"):
        maximum_likelihood(warner, ldp.Release(None, RESPONSE, N))

    def discrete(release):
        kind = numpyro.sample("kind", dist.Bernoulli(0.5))
        ldp.observe("z", dist.Bernoulli(0.2 + 0.5 * kind), release)

    with pytest.raises(ValueError, match="'kind' is discrete"):
        maximum_likelihood(discrete, release)
    with pytest.raises(ValueError, match="give the estimator the mechanism"):
        estimator.release_values(release)
    with pytest.raises(ValueError, match="simulator or release does not fit"):
        m_estimator(distance, located(), "dr", simulator=lambda key, theta: jnp.zeros(3), start=0.9)
    with pytest.raises(ValueError, match="simulator does not fit"):
        m_estimator(distance, located(), "dr", simulator=lambda key, theta: theta["loc"], start=0.9)
    with pytest.raises(TypeError, match="simulator must be a function"):
        m_estimator(losses.squared(), located(), "dr", simulator=None)
