"""The model of a law without a parametric family, and the coordinates in which `fit` samples it."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import biject_to
from numpyro.infer.util import log_density
from scipy import stats

import ldpbayes as ldp
from ldpbayes import functionals
from ldpbayes.inference.result import inference_data
from ldpbayes.likelihood import SmoothDensity, SmoothMass
from ldpbayes.models import smooth_density
from ldpbayes.models._coordinates import AlongAxes, Located

N = 3000
MECHANISM = ldp.LaplaceMechanism(2.0, 0.0, 10.0)
RECORDS = np.where(np.arange(N) % 20 == 0, 12.0, 10 * np.random.default_rng(0).beta(5, 2, N))
ODDS = dist.Normal(-3.0, 1.5)
KNOTS = 13
QUESTIONS = {
    "mean": functionals.mean,
    "quantiles": functionals.quantile([0.1, 0.5]),
    "gini": functionals.gini,
}


def log_densities(models, data, values):
    """Log densities of models at values, by one program."""

    @jax.jit
    def at(values):
        return [log_density(model, (data,), {}, values)[0] for model in models]

    return at(values)


@pytest.fixture(scope="module")
def sketch():
    noise = np.random.default_rng(3).laplace(0.0, 5.0, N)
    return ldp.Release(np.clip(RECORDS, 0.0, 10.0) + noise, MECHANISM).sketch()


@pytest.mark.slow
def test_coordinates_change_nothing_about_the_model(sketch):
    model = smooth_density(0.0, 10.0, knots=KNOTS, outside=ODDS)
    rng = np.random.default_rng(1)
    values = {"roughness": 1.3, "coefficients": rng.normal(size=KNOTS - 1), "odds": np.array([-2.0, -3.0])}
    with jax.enable_x64(True):
        densities = log_densities((model, model.tuned(sketch)), sketch, values)
    np.testing.assert_allclose(*densities, rtol=1e-13)
    assert (
        repr(model.tuned(sketch))
        == repr(model)
        == "smooth_density(lower=0, upper=10, knots=13, roughness=" + ("HalfNormal(2), outside=Normal(-3, 1.5))")
    )


def test_whole_numbers_have_a_law_of_masses():
    mechanism = ldp.DiscreteLaplaceMechanism(1.0, 0, 9)
    rng = np.random.default_rng(4)
    counts = np.clip(rng.poisson(2.0, 500), 0, 9)
    release = ldp.Release(counts + rng.geometric(0.1, 500) - rng.geometric(0.1, 500), mechanism)
    values = {"roughness": 0.7, "coefficients": np.random.default_rng(1).normal(size=9)}
    model = smooth_density()
    with jax.enable_x64(True):
        densities = log_densities((model, model.tuned(release)), release, values)

        @jax.jit
        def parts():
            trace = numpyro.handlers.trace(numpyro.handlers.substitute(model, values)).get_trace(release)
            law = SmoothMass(trace["log_density"]["value"], 0, 9)  # no more knots than there are counts
            return law.log_masses, mechanism.log_prob(release.values[:, None], np.arange(10))

        log_masses, log_kernel = map(np.asarray, parts())
    exact = np.log(np.exp(log_kernel) @ np.exp(log_masses)).sum()
    np.testing.assert_allclose(*densities, rtol=1e-12)
    priors = stats.halfnorm.logpdf(0.7, scale=2.0) + stats.norm.logpdf(values["coefficients"], 0, 0.7).sum()
    np.testing.assert_allclose(densities[0], exact + priors, rtol=1e-5)  # the default prior is in single precision


def test_coordinates_of_the_sampler_are_a_change_of_variables():
    axes = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]
    (center, *linear), u = (np.arange(3.0), axes, np.array([1.0, 2, 0.1])), np.array([0.3, -1.0, 2.0])

    @jax.jit
    def computed(center, linear, u):
        law = Located(dist.Normal(jnp.zeros(3), 2.0).to_event(1), center, 1.0, linear=AlongAxes(*linear))
        transform = biject_to(law.support)
        x = transform(u)
        slopes = jax.jacobian(transform)(u)
        values = {"x": x, "u": transform.inv(x), "determinant": transform.log_abs_det_jacobian(u, x)}
        values |= {"slopes": slopes, "log density": law.log_prob(x), "inside": law.support(x)}
        return values | {"sample": law.sample(jax.random.key(0), (4,))}, law

    with jax.enable_x64(True):
        values, law = jax.tree.map(np.asarray, computed(center, linear, u))
        np.testing.assert_allclose(law.log_prob(values["x"]), values["log density"], rtol=1e-12)  # a law is a pytree
    np.testing.assert_allclose(values["u"], u, rtol=1e-12)
    np.testing.assert_allclose(values["determinant"], np.linalg.slogdet(values["slopes"])[1], rtol=1e-12)
    np.testing.assert_allclose(values["log density"], stats.norm.logpdf(values["x"], 0.0, 2.0).sum(), rtol=1e-12)
    assert values["inside"] and values["sample"].shape == (4, 3)


@pytest.mark.slow  # most of it compiles; the density, its coordinates and the estimate have tests of their own
def test_the_posterior_agrees_with_the_penalised_estimate(sketch):
    model = smooth_density(outside=ODDS)
    # two short chains suffice for what is asked of them
    posterior = ldp.fit(model, sketch, num_warmup=250, num_samples=250, num_chains=2, progress_bar=False)
    assert posterior.attrs["certificates"] != "[]" and not int(posterior.sample_stats["diverging"].sum()) > 15
    answers = ldp.predict(posterior, model, sketch, kind=QUESTIONS)
    estimate = ldp.estimation.estimate_density(sketch, outside=True, functionals=QUESTIONS)
    drawn = np.concatenate([np.reshape(answers[name].values, (500, -1)) for name in QUESTIONS], axis=1)
    # mode and mean differ where the posterior is skewed: by less than a standard error; the deviations by a half
    assert np.all(np.abs(drawn.mean(axis=0) - estimate.params) < estimate.standard_error)
    assert np.all(np.abs(np.log(drawn.std(axis=0) / estimate.standard_error)) < np.log(2))


def test_predictions_need_no_data_and_are_of_the_law_of_the_draws():
    rng, model = np.random.default_rng(5), smooth_density(0.0, 10.0, knots=KNOTS, outside=ODDS)
    draws = {"roughness": rng.uniform(0.5, 2, (2, 20)), "odds": rng.normal(-3, 1, (2, 20, 2))}
    draws["coefficients"] = rng.normal(size=(2, 20, KNOTS - 1))
    plan = ldp.Release(None, MECHANISM, count=1)

    @jax.jit
    @jax.vmap
    @jax.vmap
    def laws(draws):
        trace = numpyro.handlers.trace(numpyro.handlers.seed(numpyro.handlers.substitute(model, draws), 0))
        sites = {name: site["value"] for name, site in trace.get_trace(plan).items()}
        law = SmoothDensity(sites["log_density"], 0.0, 10.0, sites["outside"])
        return law.mean, law.icdf(np.array([0.1, 0.5]))

    with jax.enable_x64(True):
        means, quantiles = laws(draws)
    asked = {"mean": functionals.mean, "quantiles": functionals.quantile([0.1, 0.5])}
    answers = ldp.predict(inference_data({"posterior": draws}, {}), model, plan, kind=asked)
    assert answers["quantiles"].dims[-1] == "quantile" and answers["quantiles"].shape == (2, 20, 1, 2)
    np.testing.assert_allclose(answers["mean"].values[..., 0], means, rtol=1e-9)
    # a quantile that is the lower end, 0, is known to the rounding of the width
    np.testing.assert_allclose(answers["quantiles"].values[:, :, 0], quantiles, rtol=1e-9, atol=1e-14)


def test_the_model_simulates():
    plan = ldp.Release(None, MECHANISM, count=5)
    model = smooth_density()

    @jax.jit
    def simulated(seed):
        trace = numpyro.handlers.trace(numpyro.handlers.seed(model, jax.random.key(seed))).get_trace(plan)
        return trace["z"]["value"], trace["log_density"]["value"]

    z, log_density = simulated(0)
    assert z.shape == (5,) and log_density.shape == (41,) and np.all(np.isfinite(z))
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
