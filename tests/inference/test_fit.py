"""`fit`: posteriors, what they carry, and what is said when something is wrong."""

import dataclasses
import functools
import json
import re
import warnings

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from numpyro.infer import NUTS, SA
from scipy import integrate

import ldpbayes as ldp
from ldpbayes.inference import chains
from ldpbayes.inference.density import density_of, sites_of
from ldpbayes.inference.problem import promises_in
from ldpbayes.inference.result import ADVICE, convergence_problems, helpful_options, inference_data
from ldpbayes.inference.result import advice as advice_on
from ldpbayes.models import clipped_gaussian, hierarchical, warner

LAPLACE = ldp.LaplaceMechanism(1.0, -5, 5)
SHORT = {"num_warmup": 300, "num_samples": 300, "num_chains": 2, "progress_bar": False}
SMALLEST = {"num_warmup": 10, "num_samples": 10, "num_chains": 1}
CHOSEN = {"ran": "chains", "why": "a kernel or its options were given"}
AS_LONG = {"num_samples": 10, "num_chains": 1}  # a warm-up of another length would be another program


def simulate(base, mechanism, count, seed=0):
    with jax.enable_x64(True):
        return ldp.Release(ldp.Privatized(base, mechanism).sample(jax.random.key(seed), (count,)), mechanism)


def quiet_fit(*args, **kwargs):
    """Fit with chains too short for the package's own standards, on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ldp.inference.ConvergenceWarning)
        return ldp.fit(*args, **{**SHORT, **kwargs})


def draws(result, name):
    return np.asarray(result["posterior"][name])


@pytest.fixture(scope="module")
def gaussian():
    rng = np.random.default_rng(0)
    release = ldp.Release(np.clip(rng.normal(1.0, 2.0, 20_000), -5, 5) + rng.laplace(0, 10, 20_000), LAPLACE)
    return release, quiet_fit(clipped_gaussian(), release.sketch(), seed=1)


def test_the_posterior_of_warners_model_is_the_exact_one():
    mechanism = ldp.RandomizedResponse(1.0)
    yes, count = 430, 1000
    result = quiet_fit(warner(), ldp.Release(np.arange(count) < yes, mechanism).sketch(), num_samples=2000)
    theta = draws(result, "theta").ravel()
    p = np.e / (1 + np.e)

    def density(t):
        share = p * t + (1 - p) * (1 - t)
        return np.exp(yes * np.log(share / 0.43) + (count - yes) * np.log((1 - share) / 0.57))

    moments = [integrate.quad(lambda t, k=k: t**k * density(t), 0, 1, epsabs=0)[0] for k in range(3)]
    mean, sd = moments[1] / moments[0], np.sqrt(moments[2] / moments[0] - (moments[1] / moments[0]) ** 2)
    ess = float(az.ess(theta.reshape(2, -1)))
    assert abs(theta.mean() - mean) < 4 * sd / np.sqrt(ess)  # error rate 6e-5
    assert (
        abs(theta.std() / sd - 1) < 4 * np.sqrt(1 / (2 * ess)) * 1.5
    )  # kurtosis of a nearly normal posterior, with slack


def test_what_was_said_of_a_release_is_said_again_and_kept_with_the_result():
    with pytest.warns(ldp.data.ReleaseWarning):
        release = ldp.Release(np.arange(1000) < 900, ldp.RandomizedResponse(1.0))  # at most 731 of one kind
    with pytest.warns(
        ldp.data.ReleaseWarning, match="900 of 1,000 support category 1, where at most 731.1 are"
    ) as said:
        result = quiet_fit(warner(), release.sketch(), **AS_LONG)
    (warning,) = (w for w in said if w.category is ldp.data.ReleaseWarning)
    assert warning.filename == __file__
    assert tuple(json.loads(result.attrs["release_warnings"])) == release.doubts == (str(warning.message),)


@pytest.mark.slow
def test_sketch_and_records_give_the_same_posterior(gaussian):
    release, sketched = gaussian
    whole = quiet_fit(clipped_gaussian(), ldp.Release(release.values[:1000], LAPLACE), seed=1)
    part = quiet_fit(clipped_gaussian(), ldp.Release(release.values[:1000], LAPLACE).sketch(), seed=1)
    for name in ("mu", "sigma"):
        a, b = draws(whole, name), draws(part, name)
        error = np.hypot(a.std() / np.sqrt(float(az.ess(a))), b.std() / np.sqrt(float(az.ess(b))))
        assert abs(a.mean() - b.mean()) < 4 * error  # error rate 6e-5 each
    assert draws(sketched, "mu").std() < draws(part, "mu").std()  # twenty times the records say more


def test_the_result_carries_draws_statistics_data_mechanism_and_certificate(gaussian):
    release, result = gaussian
    posterior = result["posterior"]
    assert set(posterior.data_vars) == {"mu", "sigma"}
    assert dict(posterior.sizes) == {"chain": 2, "draw": 300}
    assert set(result["sample_stats"].data_vars) == {"lp"}
    sketch = release.sketch().coarser(20, 20, lattice=False)  # which is fine enough here
    np.testing.assert_array_equal(np.asarray(result["observed_data"]["z"]), sketch.nodes)
    np.testing.assert_array_equal(np.asarray(result["constant_data"]["weights"]), sketch.weights)
    assert ldp.mechanisms.mechanism_from_spec(json.loads(result.attrs["mechanisms"])[0]) == LAPLACE
    assert result.attrs["privacy"] == LAPLACE.guarantee.statement()
    (certificate,) = json.loads(result.attrs["certificates"])
    assert certificate["panels"] == [20]
    assert certificate["error_nats"] < 1e-6
    assert json.loads(result.attrs["release_warnings"]) == []
    assert draws(result, "mu").dtype == np.float64
    assert jax.numpy.ones(1).dtype == np.float32  # and the caller's JAX is as it was


OTHER = ldp.Release(np.array([1, 0, 1]), ldp.RandomizedResponse(1.0))  # which models below are not given


def test_what_was_released_is_found_wherever_a_model_has_it_from():
    answers, response = OTHER.values, OTHER.mechanism
    release = ldp.Release(np.array([1.0, -1.0, 0.5]), LAPLACE)

    def both(first, second):
        p = numpyro.sample("p", dist.Beta(1, 1))
        ldp.observe("z", dist.Normal(p, 1), first)
        ldp.observe("y", dist.Bernoulli(p), second)

    def of_module(first):
        both(first, OTHER)

    def enclosing(second):
        return lambda first: both(first, second)

    def plain(y, x):
        p = numpyro.sample("p", dist.Beta(1, 1))
        for name, values in (("y", y), ("x", x)):
            numpyro.sample(name, dist.Bernoulli(p).expand([3]), obs=values)

    def by_hand(z):
        p = numpyro.sample("p", dist.Beta(1, 1))
        numpyro.sample("z", ldp.Privatized(dist.Bernoulli(p), response).expand([3]), obs=z)

    def groups(releases):
        ldp.observe("z", dist.Normal(numpyro.sample("mu", dist.Normal(0, 1)), 1).expand([len(releases)]), releases)

    def own_likelihood(z):
        p = numpyro.sample("p", dist.Beta(1, 1))
        numpyro.factor("z", jnp.sum(jnp.log(0.27 + 0.46 * jnp.where(z, p, 1 - p))))

    class Wrapping:  # as models of `ldp.models` are
        def __init__(self, model):
            functools.update_wrapper(self, model)

        def __call__(self, first):
            return self.__wrapped__(first)

    twice = ldp.privatize(plain, {"y": response, "x": response})
    cases = [
        ([LAPLACE, response], both, release, OTHER),
        ([LAPLACE, response], both, release.sketch(), OTHER.sketch()),
        ([LAPLACE, response], functools.partial(both, second=OTHER), release),
        ([LAPLACE, response], of_module, release),
        ([LAPLACE, response], enclosing(OTHER), release),
        ([LAPLACE, response], Wrapping(enclosing(OTHER)), release),
        ([response] * 2, twice, answers, answers),
        ([response] * 2, twice, OTHER, answers),
        ([response] * 2, twice, OTHER, ldp.Release(answers, response)),
        ([response] * 2, numpyro.handlers.scale(twice, 2.0), OTHER, answers),
        ([response], by_hand, answers),
        ([LAPLACE] * 3, groups, [ldp.Release(release.values, LAPLACE) for _ in range(3)]),
        ([], own_likelihood, answers),
    ]
    for expected, model, *args in cases:
        promises = promises_in(model, args, sites_of(density_of(model, tuple(args), {})))
        assert [promise.mechanism for part in promises for promise in part] == expected, model
    result = quiet_fit(own_likelihood, answers, **SMALLEST)
    assert "fit knows of no mechanism" in result.attrs["privacy"] and "ldpbayes.Release" in result.attrs["privacy"]


def test_the_truth_is_where_the_posterior_says(gaussian):
    _, result = gaussian
    for name, truth in (("mu", 1.0), ("sigma", 2.0)):
        values = draws(result, name)
        assert abs(values.mean() - truth) < 4 * values.std()  # error rate 6e-5 for a calibrated posterior


def test_a_seed_fixes_the_draws_and_another_one_changes_them(gaussian):
    release, result = gaussian
    again = quiet_fit(clipped_gaussian(), release.sketch(), seed=1)
    np.testing.assert_array_equal(draws(result, "mu"), draws(again, "mu"))


def test_the_result_survives_netcdf(gaussian, tmp_path):
    _, result = gaussian
    result.to_netcdf(tmp_path / "posterior.nc")
    loaded = az.from_netcdf(tmp_path / "posterior.nc")
    np.testing.assert_array_equal(draws(result, "mu"), draws(loaded, "mu"))
    assert loaded.attrs["mechanisms"] == result.attrs["mechanisms"]


@pytest.mark.slow
def test_a_grid_too_coarse_for_the_posterior_is_refined_and_sampled_again():
    release = simulate(dist.Normal(0.513, 0.02), LAPLACE, 1_000_000)  # σ is 0.2 % of the range

    def model(data):  # the mean is known well, so that the posterior lies where the grid fails
        mu = numpyro.sample("mu", dist.Normal(0.513, 0.01))
        ldp.observe("z", dist.Normal(mu, numpyro.sample("sigma", dist.LogNormal(np.log(0.02), 0.1))), data)

    with pytest.warns(
        ldp.inference.SketchWarning,
        match=r"sketch of \[40\] panels has an error of .* nats .*; refined to \[\d+\] and sampled again",
    ):
        result = quiet_fit(model, release.sketch(), num_warmup=80, num_samples=50)
    first, last = json.loads(result.attrs["certificates"])
    assert first["error_nats"] > 1e-3 >= last["error_nats"]
    assert last["panels"][0] > first["panels"][0] == 40


def test_a_sketch_without_records_says_that_it_cannot_refine(rng):
    mechanism = ldp.LaplaceMechanism(100.0, -2, 3)
    release = ldp.Release(0.5 + 0.02 * rng.normal(size=4000) + rng.laplace(0, 0.05, 4000), mechanism)

    def model(data):
        ldp.observe("z", dist.Normal(numpyro.sample("mu", dist.Normal(0.5, 0.01)), 0.02), data)

    with pytest.warns(
        ldp.inference.SketchWarning,
        match="cannot be refined; sketch with more panels, or keep the records in the sketch",
    ):
        quiet_fit(model, release.sketch(panels=2, keep_records=False), **SMALLEST)


@pytest.mark.slow
def test_counts_on_panels_that_miss_the_integers_are_refined_on_the_lattice():
    mechanism = ldp.LaplaceMechanism(4.0, 0, 20)
    release = simulate(dist.Poisson(1.5), mechanism, 1_000_000)

    def model(data):
        ldp.observe("z", dist.Poisson(numpyro.sample("rate", dist.Gamma(2, 1))), data)

    with pytest.warns(ldp.inference.SketchWarning, match="refined to"):
        result = quiet_fit(model, release.sketch(panels=7, lattice=False), num_warmup=100, num_samples=100)
    assert json.loads(result.attrs["certificates"])[-1]["error_nats"] <= 1e-3


@pytest.mark.slow
def test_groups_with_their_own_budgets_are_pooled():
    truth = np.array([-1.0, 2.0])
    releases = [
        simulate(dist.Normal(mean, 1.0), ldp.LaplaceMechanism(epsilon, -5, 5), 4000, seed=group)
        for group, (mean, epsilon) in enumerate(zip(truth, (1.0, 4.0), strict=True))
    ]
    result = quiet_fit(hierarchical(), [release.sketch() for release in releases], num_warmup=100, num_samples=100)
    theta = draws(result, "theta")
    assert theta.shape == (2, 100, 2)
    assert result["posterior"]["theta"].dims == ("chain", "draw", "group")
    assert np.all(np.abs(theta.mean((0, 1)) - truth) < 4 * theta.std((0, 1)))  # error rate 2e-4
    assert len(json.loads(result.attrs["mechanisms"])) == 2


@pytest.mark.slow
def test_any_numpyro_kernel_is_accepted():
    sketch = ldp.Release(np.arange(1000) < 430, ldp.RandomizedResponse(1.0)).sketch()
    result = quiet_fit(warner(), sketch, kernel=SA, num_warmup=500, num_samples=1000)
    assert abs(draws(result, "theta").mean() - 0.35) < 0.1


def test_a_kernel_made_by_the_caller_keeps_its_options():
    sketch = ldp.Release(np.arange(1000) < 430, ldp.RandomizedResponse(1.0)).sketch()
    kernel = numpyro.infer.NUTS(warner(), target_accept_prob=0.9, max_tree_depth=2, dense_mass=True)
    of_kernel = quiet_fit(warner(), sketch, kernel=kernel, **SMALLEST)
    assert json.loads(of_kernel.attrs["integral"]) == CHOSEN and "log_evidence" not in of_kernel.attrs
    assert draws(of_kernel, "theta").shape == (1, 10)
    given = {"target_accept_prob": 0.9, "max_tree_depth": 2, "dense_mass": [("theta",)]}
    of_fit = quiet_fit(warner(), sketch, **given, **SMALLEST)
    assert json.loads(of_fit.attrs["integral"]) == CHOSEN  # options of a kernel give chains, too
    np.testing.assert_array_equal(draws(of_fit, "theta"), draws(of_kernel, "theta"))
    many = dataclasses.replace(sketch, added=ldp.Release(np.arange(1000) < 430, sketch.mechanism, times=30).promises)
    stated = quiet_fit(warner(), many, **given, **SMALLEST).attrs
    assert stated["privacy"].startswith("A person with up to 30 reports is protected")
    assert json.loads(stated["mechanisms"]) == [sketch.mechanism.spec()]


def advice(result, depth):
    return advice_on(helpful_options(result, depth), ADVICE)


def test_advice_names_the_settings_that_can_help():
    steps, diverged = np.array([[3, 7, 7, 7]]), np.ones((1, 4), bool)
    result = inference_data({"posterior": {"mu": np.ones((1, 4))}, "sample_stats": {"num_steps": steps}}, {})
    assert advice(result, 3) == (
        "; run longer chains, raise max_tree_depth (75% of the draws reached it), "
        "reparametrise, or try dense_mass=True if parameters are correlated"
    )
    assert "depth" not in advice(result, 4) and "target_accept_prob" not in advice(result, 4)
    result["sample_stats"]["diverging"] = ("chain", "draw"), diverged
    assert "raise target_accept_prob" in advice(result, 4)


def test_chains_that_did_not_converge_are_named_and_recorded_in_one_warning_at_the_callers_line():
    sketch = ldp.Release(np.arange(1000) < 430, ldp.RandomizedResponse(1.0)).sketch()

    def model(sketch):
        warner()(sketch)
        numpyro.deterministic("fixed", jnp.ones(2))  # has no R-hat, and nobody is told

    with pytest.warns(ldp.inference.ConvergenceWarning) as said:
        result = ldp.fit(model, sketch, kernel=NUTS, **{**SHORT, "num_samples": 20})
    (warning,) = said
    assert json.loads(result.attrs["integral"]) == CHOSEN  # a named kernel gives chains
    assert {"diverging", "lp", "n_steps", "acceptance_rate", "step_size"} <= set(result["sample_stats"].data_vars)
    assert warning.filename == __file__
    problems = json.loads(result.attrs["convergence_warnings"])
    criteria = (
        "R-hat is above 1.01: theta ",
        "bulk effective sample size is below 200: theta ",
        "tail effective sample",
    )
    assert len(problems) == 3 and all(map(str.startswith, problems, criteria))
    assert str(warning.message).startswith("; ".join(problems))


def test_a_number_is_printed_with_as_many_decimals_as_show_that_it_is_above_the_limit(monkeypatch, rng):
    worst = {"a": 1.0104, "b": 1.03, "c": 1.01 + 1e-9, "d": 1.0}
    monkeypatch.setattr(az, "rhat", lambda _: xr.Dataset(worst))
    draws = {name: rng.normal(size=(2, 100)) for name in worst}
    problem, *_ = convergence_problems(inference_data({"posterior": draws}, {}))
    assert problem == "R-hat is above 1.01: a 1.0104, b 1.030, c 1.010000001"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "num_samples must be an integer of at least 1, got 0"),
        ({"num_chains": 2.5}, "num_chains must be an integer of at least 1, got 2.5"),
        ({"num_warmup": -1}, "num_warmup must be an integer of at least 0, got -1"),
    ],
)
def test_bad_numbers_of_draws_raise_before_anything_runs(options, message):
    with pytest.raises(ValueError, match=message):
        ldp.fit(warner(), None, **options)


def test_a_sampler_by_name_is_refused():
    with pytest.raises(TypeError, match="sampler must be a Sampler, such as"):
        ldp.fit(warner(), None, sampler="nuts")


def test_a_factory_in_place_of_its_model_is_noticed():
    with pytest.raises(ValueError, match="the model has no site to sample; call a model factory first"):
        ldp.fit(clipped_gaussian, ldp.Release([0.1, 0.2], LAPLACE))


def test_a_plan_cannot_be_fitted():
    with pytest.raises(ValueError, match="a release with only a count is for simulation"):
        ldp.fit(clipped_gaussian(), ldp.Release(None, LAPLACE, 10))


def with_covariate(x, release):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)
    ldp.observe("z", dist.BernoulliLogits(mu), release)


def fitted_arrays(kernel, rng, limits, monkeypatch):
    """Draws of `mu` by limits of constants; the arrays can be used in single precision afterwards."""
    # a fit runs in double precision and leaves nothing of it behind
    x, values, results = rng.normal(size=300), rng.integers(0, 2, 300).astype(np.float64), []
    for limit in limits:
        monkeypatch.setattr(chains, "MAX_CONSTANT_BYTES", limit)
        release = ldp.Release(values, ldp.RandomizedResponse(1.0))
        results.append(draws(quiet_fit(with_covariate, x, release, **SMALLEST, kernel=kernel), "mu"))
        for array in (x, values):
            assert jnp.exp(array).dtype == jnp.float32
    assert LAPLACE.randomize(jax.random.key(0), x).dtype == jnp.float32
    return results


@pytest.mark.slow
def test_large_releases_are_arguments_of_numpyros_own_sampler_and_change_nothing(monkeypatch, rng):
    # NumPyro's own `MCMC`, which runs SA, holds its data as constants of a compiled function, or as arguments
    constants, arguments = fitted_arrays(SA, rng, (1 << 26, 100), monkeypatch)
    # 20 steps of the same chain, of two programs that differ by rounding
    np.testing.assert_allclose(arguments, constants, rtol=1e-9)


@pytest.mark.slow
def test_arrays_that_were_fitted_can_be_used_in_single_precision_afterwards(monkeypatch, rng):
    fitted_arrays(NUTS, rng, (1 << 26,), monkeypatch)


def test_improper_priors_and_numbers_computed_inside_plates_are_sampled_and_kept():
    def model(data):
        level = numpyro.sample("level", dist.ImproperUniform(dist.constraints.real, (), ()))
        with numpyro.plate("groups", 3):
            each = numpyro.sample("each", dist.Normal(level, 1.0))
            numpyro.deterministic("twice", 2 * each)
            numpyro.deterministic("total", each.sum())
            numpyro.deterministic("ends", jnp.stack([each.min(), each.max()]))
        ldp.observe("z", dist.Bernoulli(logits=each.mean()), data)

    release = ldp.Release(np.arange(100) % 3 == 0, ldp.RandomizedResponse(1.0))
    result = quiet_fit(model, release.sketch(), **SMALLEST)
    assert "4 unconstrained parameters" in json.loads(result.attrs["integral"])["why"]
    assert "log_evidence" not in result.attrs
    posterior = result["posterior"]
    dims = {name: posterior[name].dims[2:] for name in ("level", "each", "twice", "total", "ends")}
    assert dims == {"level": (), "each": ("groups",), "twice": ("groups",), "total": (), "ends": ("ends_dim_0",)}
    np.testing.assert_allclose(posterior["total"], np.sum(np.asarray(posterior["each"]), axis=-1))
    assert not np.isnan(np.asarray(posterior["ends"])).any()


SAMPLED_MECHANISMS = {
    "transition matrix": lambda p: ldp.mechanisms.TransitionMatrix(jnp.array([[1 - p, p], [p, 1 - p]])),
    "budget of categories": lambda p: ldp.RandomizedResponse(4 * p),
    "bits": lambda p: ldp.mechanisms.OptimalUnaryEncoding(4 * p, 2),
    "budget": lambda p: ldp.LaplaceMechanism(4 * p, 0, 1),
    "scale of noise": lambda p: ldp.GaussianMechanism.from_standard_deviation(p, lower=0, upper=1),
    "reporting rule": lambda p: ldp.mechanisms.Rounded(
        ldp.mechanisms.AdditiveMechanism(ldp.noise.DiscreteLaplace(p), sensitivity=1.0), 5.0
    ),
    "staircase": lambda p: ldp.mechanisms.StaircaseMechanism(4 * p, 0, 1),
    "square wave": lambda p: ldp.mechanisms.SquareWaveMechanism(4 * p, 0, 1),
}


@pytest.mark.parametrize("in_release", [False, True])
@pytest.mark.parametrize("name", SAMPLED_MECHANISMS)
def test_a_promise_that_depends_on_sampled_parameters_is_said_to(name, in_release):
    values = np.eye(2, dtype=int) if name == "bits" else np.array([0, 1])

    def model(values):
        p, theta = numpyro.sample("p", dist.Beta(5, 20)), numpyro.sample("theta", dist.Beta(2, 2))
        mechanism, law = SAMPLED_MECHANISMS[name](p), dist.Bernoulli(theta)
        if in_release:
            ldp.observe("z", law, ldp.Release(values, mechanism))
        else:
            numpyro.sample("z", ldp.Privatized(law, mechanism).expand([2]), obs=values)

    with jax.enable_x64(True):
        site = sites_of(density_of(model, (values,), {}))["z"]
    assert site.sampled == ("p",) and site.mechanism is None


def test_promises_at_draws_are_of_all_reports_of_a_person():
    def model(values):
        mechanism = ldp.RandomizedResponse(numpyro.sample("e", dist.Gamma(4, 4)))
        ldp.observe("z", dist.Bernoulli(0.1), ldp.Release(values, mechanism, times=10))

    values = np.repeat([0, 1], [60, 40])
    posterior = quiet_fit(model, values, **SMALLEST)
    largest = float(posterior.posterior["e"].values.max())
    said = re.search(
        r"and epsilon = ([\d.]+) and delta = 0 at the worst draw, for up to 10 reports of a person",
        posterior.attrs["privacy"],
    )
    np.testing.assert_allclose(float(said[1]), 10 * largest, rtol=1e-3)


def test_likelihoods_of_a_mechanism_with_sampled_parameters_are_not_tabulated():
    """Numbers under Laplace noise of a sampled budget, of which there are enough for tables."""

    def model(values):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        ldp.observe(
            "z",
            dist.Normal(mean, 1),
            ldp.Release(values, ldp.LaplaceMechanism(numpyro.sample("e", dist.LogNormal(0, 1)), -2, 2)),
        )

    posterior = quiet_fit(model, np.linspace(-9, 11, 200), **SMALLEST)
    assert json.loads(posterior.attrs["expansion"]) is None
    assert "depends on 'e'" in posterior.attrs["privacy"]


def test_entries_of_a_transition_matrix_are_sampled_with_the_shares():
    """28 of 40 answers are 1, q = p + (1 − 2 p) θ: both posterior means against sums on a grid of 400 × 400."""
    matrix = SAMPLED_MECHANISMS["transition matrix"]

    def model(values):
        p, theta = numpyro.sample("p", dist.Beta(5, 20)), numpyro.sample("theta", dist.Beta(2, 2))
        numpyro.sample("z", ldp.Privatized(dist.Bernoulli(theta), matrix(p)).expand([40]), obs=values)

    posterior = ldp.fit(model, np.repeat([0, 1], [12, 28]), seed=1, progress_bar=False)
    # the guarantee is worst where p is smallest: log((1 − p)/p)
    p = np.array([posterior.posterior["p"].values.mean(), posterior.posterior["p"].values.min()])
    at_mean, worst = np.ceil(np.log1p(-p) / 1 * 1e3 - np.log(p) * 1e3) / 1e3
    said = re.findall(r"epsilon = ([\d.]+) and delta = 0 at the", posterior.attrs["privacy"])
    np.testing.assert_allclose(np.array(said, float), [at_mean, worst], atol=1.01e-3)
    assert "promises depends on 'p', which the model samples" in posterior.attrs["privacy"]
    assert posterior.attrs["mechanisms"] == "[]"
    grid = (np.arange(400) + 0.5) / 400  # midpoint rule, for densities that are 0 at all ends: an error below 1e-4
    p, theta = np.meshgrid(grid, grid, indexing="ij")
    q = p + (1 - 2 * p) * theta
    weights = p**4 * (1 - p) ** 19 * theta * (1 - theta) * q**28 * (1 - q) ** 12
    for name, values in (("p", p), ("theta", theta)):
        draws, mean = posterior.posterior[name].values, np.average(values, weights=weights)
        sd = np.sqrt(np.average((values - mean) ** 2, weights=weights))
        # at least 400 of the 4,000 draws are effective: 5 standard errors, a false alarm in 1e6
        assert abs(draws.mean() - mean) < 5 * sd / 400**0.5


def test_chains_that_have_seldom_been_in_a_flat_tail_are_said_to():
    """A log-odds with a prior Normal(−2, 8) whose estimate is 3.4 standard errors above zero: sd 1.47 by quadrature."""

    def model(release):
        ldp.observe("z", dist.Bernoulli(logits=numpyro.sample("t", dist.Normal(-2, 8))), release)

    sketch = ldp.Release(np.arange(3500) < 961, ldp.RandomizedResponse(1.1)).sketch()
    with pytest.warns(ldp.inference.ConvergenceWarning, match="seldom been in a tail.*1% or the 99% quantile.*t "):
        posterior = ldp.fit(model, sketch, seed=4, kernel=NUTS, progress_bar=False)
    assert abs(draws(posterior, "t").std() / 1.473 - 1) > 0.2  # which no other criterion has seen


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_chains_that_mix_well_are_not_warned_of_whatever_their_law(correlation):
    """None of 200 series of 4 × 1,000 draws: all criteria are of ranks, so that a heavy tail is as good as a normal one
    (in 900 of them the least effective sample size at 1 % was 1,375, where 500 are asked for).
    """
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(4, 1100, 200))
    for i in range(1, 1100):
        noise[:, i] = correlation * noise[:, i - 1] + (1 - correlation**2) ** 0.5 * noise[:, i]
    normal = noise[:, 100:]
    groups = {"posterior": {"x": normal[..., :100], "y": np.sinh(3 * normal[..., 100:])}}
    with np.errstate(invalid="ignore"):
        assert not [each for each in convergence_problems(inference_data(groups, {})) if "tail" in each]


def test_a_warning_says_which_sites_have_converged_and_prints_whole_shares():
    draws = np.random.default_rng(0).normal(size=(2, 1000))
    apart = draws + np.array([[0.0], [5.0]])
    problems = convergence_problems(inference_data({"posterior": {"a": draws, "b": apart, "c": draws}}, {}))
    assert problems[-1] == "converged by these criteria: a, c"
    result = inference_data({"posterior": {"a": draws}, "sample_stats": {"num_steps": np.full((2, 1000), 1023)}}, {})
    assert "(100% of the draws reached it)" in advice(result, 10)
