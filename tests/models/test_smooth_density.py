"""The model of a law without a parametric family, and the coordinates in which `fit` samples it."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import biject_to
from numpyro.infer.util import log_density

import ldpbayes as ldp
from ldpbayes import functionals
from ldpbayes.likelihood import SmoothDensity, SmoothMass
from ldpbayes.models import smooth_density
from ldpbayes.models._smooth_density import InCoordinates

N = 3000
MECHANISM = ldp.LaplaceMechanism(2.0, 0.0, 10.0)
RECORDS = np.where(np.arange(N) % 20 == 0, 12.0, 10 * np.random.default_rng(0).beta(5, 2, N))
ODDS = dist.Normal(-3.0, 1.5)
QUESTIONS = {
    "mean": functionals.mean,
    "quantiles": functionals.quantile([0.1, 0.5]),
    "gini": functionals.gini,
}


@pytest.fixture(scope="module")
def sketch():
    with jax.enable_x64(True):
        return ldp.Release(np.asarray(MECHANISM.randomize(jax.random.key(0), RECORDS)), MECHANISM).sketch()


@pytest.fixture(scope="module")
def posterior(sketch):
    # two short chains suffice for what is asked of them
    return ldp.fit(
        smooth_density(outside=ODDS), sketch, num_warmup=250, num_samples=250, num_chains=2, progress_bar=False
    )


def test_coordinates_change_nothing_about_the_model(sketch):
    model = smooth_density(0.0, 10.0, outside=ODDS)
    rng = np.random.default_rng(1)
    values = {"roughness": 1.3, "coefficients": rng.normal(size=40), "odds": np.array([-2.0, -3.0])}
    with jax.enable_x64(True):
        densities = [log_density(each, (sketch,), {}, values)[0] for each in (model, model.tuned(sketch))]
    np.testing.assert_allclose(*densities, rtol=1e-13)
    assert (
        repr(model.tuned(sketch))
        == repr(model)
        == "smooth_density(lower=0, upper=10, knots=41, roughness=" + ("HalfNormal(2), outside=Normal(-3, 1.5))")
    )


def test_whole_numbers_have_a_law_of_masses():
    mechanism = ldp.DiscreteLaplaceMechanism(1.0, 0, 9)
    with jax.enable_x64(True):
        counts = np.random.default_rng(4).poisson(2.0, 500)
        release = ldp.Release(np.asarray(mechanism.randomize(jax.random.key(0), counts)), mechanism)
        values = {"roughness": 0.7, "coefficients": np.random.default_rng(1).normal(size=9)}
        model = smooth_density()
        densities = [log_density(each, (release,), {}, values)[0] for each in (model, model.tuned(release))]
        trace = numpyro.handlers.trace(numpyro.handlers.substitute(model, values)).get_trace(release)
        law = SmoothMass(trace["log_density"]["value"], 0, 9)  # no more knots than there are counts
        kernel = np.exp(mechanism.log_prob(np.asarray(release.values)[:, None], np.arange(10)))
        exact = np.log(kernel @ np.exp(law.log_masses)).sum()
    np.testing.assert_allclose(*densities, rtol=1e-12)
    priors = dist.HalfNormal(2.0).log_prob(0.7) + dist.Normal(0, 0.7).log_prob(values["coefficients"]).sum()
    np.testing.assert_allclose(densities[0], exact + priors, rtol=1e-5)  # the priors are in single precision


def test_coordinates_of_the_sampler_are_a_change_of_variables():
    axes = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]
    with jax.enable_x64(True):
        law = InCoordinates(dist.Normal(jnp.zeros(3), 2.0).to_event(1), jnp.arange(3.0), axes, jnp.array([1.0, 2, 0.1]))
        transform, u = biject_to(law.support), jnp.array([0.3, -1.0, 2.0])
        x = transform(u)
        np.testing.assert_allclose(transform.inv(x), u, rtol=1e-12)
        determinant = np.linalg.slogdet(jax.jacobian(transform)(u))[1]
        np.testing.assert_allclose(transform.log_abs_det_jacobian(u, x), determinant, rtol=1e-12)
        np.testing.assert_allclose(law.log_prob(x), dist.Normal(0.0, 2.0).log_prob(x).sum(), rtol=1e-12)
        assert law.support(x) and law.sample(jax.random.key(0), (4,)).shape == (4, 3)
        leaves = jax.jit(lambda law, x: law.log_prob(x))(law, x)
        np.testing.assert_allclose(leaves, law.log_prob(x), rtol=1e-12)


def test_the_posterior_agrees_with_the_penalised_estimate(sketch, posterior):
    answers = ldp.predict(posterior, smooth_density(outside=ODDS), sketch, kind=QUESTIONS)
    estimate = ldp.estimation.estimate_density(sketch, outside=True, functionals=QUESTIONS)
    drawn = np.concatenate([np.reshape(answers[name].values, (500, -1)) for name in QUESTIONS], axis=1)
    # mode and mean differ where the posterior is skewed: by less than a standard error; the deviations by a half
    assert np.all(np.abs(drawn.mean(axis=0) - estimate.params) < estimate.standard_error)
    assert np.all(np.abs(np.log(drawn.std(axis=0) / estimate.standard_error)) < np.log(2))
    assert answers["quantiles"].dims[-1] == "quantile" and answers["quantiles"].shape == (2, 250, 1, 2)


def test_predictions_need_no_data_and_are_of_the_law_of_the_draws(posterior):
    means = ldp.predict(posterior, smooth_density(outside=ODDS), kind="mean")["z"].values.reshape(2, 250, -1)
    draws = posterior.posterior
    with jax.enable_x64(True):
        law = SmoothDensity(draws["log_density"].values, 0.0, 10.0, draws["outside"].values)
        np.testing.assert_allclose(means[..., 0], law.mean, rtol=1e-9)
    assert posterior.attrs["certificates"] != "[]" and not int(posterior.sample_stats["diverging"].sum()) > 15


def test_the_model_simulates():
    plan = ldp.Release(None, MECHANISM, count=5)
    trace = numpyro.handlers.trace(numpyro.handlers.seed(smooth_density(), 0)).get_trace(plan)
    assert trace["z"]["value"].shape == (5,) and trace["log_density"]["value"].shape == (41,)
    model = smooth_density()
    assert model.tuned(plan) is model


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda sketch: smooth_density(1.0, 10.0)(sketch), ValueError, "include the bounds"),
        (lambda sketch: smooth_density(knots=3)(sketch), ValueError, "knots"),
        (lambda sketch: smooth_density(roughness=2.0), TypeError, "prior"),
        (lambda sketch: smooth_density()(ldp.Release([0, 1], ldp.RandomizedResponse(1.0, 2))), TypeError, "numbers"),
    ],
)
def test_what_the_model_does_not_take_is_refused(sketch, make, error, said):
    with pytest.raises(error, match=said), numpyro.handlers.seed(rng_seed=0):
        make(sketch)
