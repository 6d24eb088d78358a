"""Posteriors of one to three parameters are integrated exactly: forty settings against references in NumPy and SciPy.

The data and the references of the settings come from `integrated_references.py`. The default tests read the reference
numbers from `integrated_references.json`; a slow test computes them again.
"""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density
from scipy import special
from scipy.stats import qmc

import ldpbayes as ldp
from ldpbayes import mechanisms, models, noise
from tests.inference import integrated_references as references
from tests.inference.integrals import integral_of

RECORDED = json.loads(references.FILE.read_text())
MODELS = {}  # functions of a setting's data that return a model and its arguments, by the setting's name
POINTS, SCRAMBLES = 2**12, 16  # Sobol' points that become draws, and how often they are scrambled
# Slow, each with the settings that cover its kind of law, of release and of posterior by default.
SLOW = {
    "contaminated normal": ("two groups with one spread", "normal, sketch of 2,000"),  # a minute: a channel
    "mixture with Dirichlet weights": ("four categories, sketch of unary answers", "square of a mean"),  # a minute
    "beta law, square wave": ("gamma law",),
    "beta law of two shapes, square wave": ("gamma law",),
    "log-normal law, eight records": ("gamma law",),
    "Student law, square wave": ("uniform location of a Student law", "ridge of three"),
    "table of three free cells": ("table of three cells on a line", "noisy count", "two shares in a plate"),
    "two components change places": ("square of a mean", "two shares in a plate"),
    "logistic curve": ("logistic line", "ridge of three"),
    "Student law, one record": ("uniform location of a Student law", "half-Cauchy prior, one record"),
}
EVIDENCE = {1: 1e-6, 2: 3e-6, 3: 2e-5}  # nats, by the number of parameters
LEVELS = np.array([0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999])


def model_of(name):
    def register(function):
        MODELS[name] = function
        return function

    return register


def normal_records(release):
    """A model that several settings share, so that it is compiled for fewer structures."""
    mu = numpyro.sample("mu", dist.Normal(0, 3))
    ldp.observe("z", dist.Normal(mu**2, 1), release)


# --- one parameter ----------------------------------------------------------------------------------------------------


@model_of("share at the edge")
def _(answers):
    return models.warner(theta=dist.Beta(0.5, 0.5)), ldp.Release(answers, ldp.RandomizedResponse(epsilon=1.0)).sketch()


@model_of("share near one")
def _(answers):
    def model(release):
        theta = numpyro.sample("theta", dist.Uniform(0, 1))
        numpyro.deterministic("rest", 1 - theta)
        ldp.observe("z", dist.Bernoulli(theta), release)

    return model, ldp.Release(answers, ldp.RandomizedResponse(epsilon=2.0)).sketch()


def log_odds(release):
    a = numpyro.sample("a", dist.Normal(-2, 8))
    numpyro.deterministic("theta", jax.nn.sigmoid(a))
    ldp.observe("z", dist.Bernoulli(logits=a), release)


@model_of("plateau, 3.4 standard errors")
def _(answers):
    return log_odds, ldp.Release(answers, ldp.RandomizedResponse(epsilon=1.1))


@model_of("plateau, 4.2 standard errors")
def _(answers):
    return log_odds, ldp.Release(answers, ldp.RandomizedResponse(epsilon=1.1))


@model_of("square of a mean")
def _(z):
    return normal_records, ldp.Release(z, ldp.LaplaceMechanism.from_scale(0.5, sensitivity=math.inf))


@model_of("Cauchy prior, one clipped record")
def _(z):
    def model(release):
        ldp.observe("z", dist.Normal(numpyro.sample("mu", dist.Cauchy(0, 1)), 1), release)

    return model, ldp.Release(z, ldp.LaplaceMechanism(epsilon=1.0, lower=-10, upper=10))


@model_of("half-Cauchy prior, one record")
def _(z):
    def model(release):
        ldp.observe("z", dist.Normal(0, numpyro.sample("tau", dist.HalfCauchy(2))), release)

    return model, ldp.Release(z, ldp.GaussianMechanism.from_standard_deviation(1.0, sensitivity=math.inf))


def poisson_with(prior):
    def model(release):
        ldp.observe("z", dist.Poisson(numpyro.sample("rate", prior)), release)

    return model


@model_of("noisy count")
def _(z):
    return poisson_with(dist.Gamma(2, 0.01)), ldp.Release(z, ldp.DiscreteLaplaceMechanism(scale=36.0))


@model_of("exponential, sketch of 100,000")
def _(z):
    return models.clipped_exponential(), ldp.Release(z, ldp.LaplaceMechanism(epsilon=1.0, lower=0, upper=10)).sketch()


@model_of("negative noisy count")
def _(z):
    mechanism = mechanisms.AdditiveMechanism(noise.Gaussian(20.0), sensitivity=1.0)
    return poisson_with(dist.LogNormal(4, 1.5)), ldp.Release(z, mechanism)


@model_of("uniform location of a Student law")
def _(z):
    def model(release):
        ldp.observe("z", dist.StudentT(4.0, numpyro.sample("mu", dist.Uniform(-3, 6)), 1.0), release)

    return model, ldp.Release(z, ldp.LaplaceMechanism(epsilon=2.0, lower=-8, upper=8))


@model_of("negative binomial, 30 records")
def _(z):
    def model(release):
        ldp.observe("z", dist.NegativeBinomial2(numpyro.sample("mean", dist.Gamma(2, 0.5)), 2.0), release)

    return model, ldp.Release(z, ldp.DiscreteLaplaceMechanism(scale=10.0, lower=0, upper=20))


@model_of("binomial under k-ary response")
def _(z):
    def model(release):
        ldp.observe("z", dist.Binomial(10, numpyro.sample("theta", dist.Beta(2, 5))), release)

    return model, ldp.Release(z, ldp.RandomizedResponse(epsilon=2.0, categories=11)).sketch()


@model_of("beta law, square wave")
def _(z):
    def model(release):
        ldp.observe("z", dist.Beta(numpyro.sample("a", dist.HalfNormal(3)), 2.0), release)

    return model, ldp.Release(z, mechanisms.SquareWaveMechanism(epsilon=1.0, lower=0, upper=1))


# --- two parameters ---------------------------------------------------------------------------------------------------


@model_of("normal, sketch of 2,000")
def _(z):
    return models.clipped_gaussian(), ldp.Release(z, ldp.LaplaceMechanism(epsilon=1.0, lower=-5, upper=5)).sketch()


@model_of("normal, one record")
def _(z):
    return models.clipped_gaussian(), ldp.Release(z, ldp.LaplaceMechanism(epsilon=1.0, lower=-5, upper=5))


@model_of("normal, ten records with Gaussian noise")
def _(z):
    def model(release):
        mu = numpyro.sample("mu", dist.StudentT(3, 0, 2))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
        numpyro.deterministic("precision", sigma**-2)
        ldp.observe("z", dist.Normal(mu, sigma), release)

    return model, ldp.Release(z, ldp.GaussianMechanism.from_standard_deviation(2.0, lower=-5, upper=5))


@model_of("ridge of a sum")
def _(z):
    def model(release):
        a, b = (numpyro.sample(name, dist.Normal(0, 10)) for name in "ab")
        ldp.observe("z", dist.Normal(a + b, 0.3), release)

    return model, ldp.Release(z, ldp.GaussianMechanism.from_standard_deviation(0.5, sensitivity=math.inf))


@model_of("ridge of a product")
def _(z):
    def model(release):
        a, b = (numpyro.sample(name, dist.LogNormal(0, 1)) for name in "ab")
        ldp.observe("z", dist.Poisson(100 * a * b), release)

    return model, ldp.Release(z, ldp.DiscreteLaplaceMechanism(scale=3.0))


@model_of("gamma law")
def _(z):
    def model(release):
        shape, rate = (numpyro.sample(name, dist.LogNormal(0, 1)) for name in ("shape", "rate"))
        numpyro.deterministic("mean", shape / rate)
        ldp.observe("z", dist.Gamma(shape, rate), release)

    return model, ldp.Release(z, ldp.GaussianMechanism.from_standard_deviation(3.0, lower=0, upper=10))


@model_of("log-normal law, eight records")
def _(z):
    def model(release):
        location = numpyro.sample("location", dist.Normal(0, 2))
        ldp.observe("z", dist.LogNormal(location, numpyro.sample("spread", dist.Gamma(3, 3))), release)

    return model, ldp.Release(z, ldp.LaplaceMechanism(epsilon=2.0, lower=0, upper=20))


@model_of("clipped counts, sketch of 300")
def _(z):
    release = ldp.Release(z, ldp.DiscreteLaplaceMechanism(scale=15.0, lower=0, upper=15))
    return models.clipped_counts(), release.sketch()


@model_of("beta law of two shapes, square wave")
def _(z):
    def model(release):
        a, b = (numpyro.sample(name, dist.Gamma(2, 0.5)) for name in "ab")
        ldp.observe("z", dist.Beta(a, b), release)

    return model, ldp.Release(z, mechanisms.SquareWaveMechanism(epsilon=2.0, lower=0, upper=1))


@model_of("three categories, sketch of k-ary answers")
def _(z):
    return models.oue_histogram(), ldp.Release(z, ldp.RandomizedResponse(epsilon=1.0, categories=3)).sketch()


@model_of("three categories, thirty unary answers")
def _(z):
    release = ldp.Release(z, ldp.OptimalUnaryEncoding(epsilon=1.0, categories=3))
    return models.oue_histogram(theta=dist.Dirichlet(jnp.full(3, 0.5))), release


@model_of("two shares in a plate")
def _(first, second):
    def model(releases):
        with numpyro.plate("group", 2):
            theta = numpyro.sample("theta", dist.Beta(1, 1))
        ldp.observe("z", dist.Bernoulli(theta), releases)

    mechanism = ldp.RandomizedResponse(epsilon=1.0)
    return model, [ldp.Release(answers, mechanism) for answers in (first, second)]


@model_of("two components change places")
def _(z):
    def model(release):
        with numpyro.plate("component", 2):
            mu = numpyro.sample("mu", dist.Normal(0, 3))
        law = dist.MixtureSameFamily(dist.Categorical(jnp.full(2, 0.5)), dist.Normal(mu, 1.0))
        ldp.observe("z", law, release)

    return model, ldp.Release(z, ldp.LaplaceMechanism.from_scale(1.0, -10, 10))


@model_of("heavy priors, three records")
def _(z):
    def model(release):
        mu = numpyro.sample("mu", dist.Cauchy(0, 2))
        ldp.observe("z", dist.Normal(mu, numpyro.sample("sigma", dist.HalfCauchy(1))), release)

    return model, ldp.Release(z, ldp.LaplaceMechanism.from_scale(0.8, sensitivity=math.inf))


@model_of("table of three cells on a line")
def _(z):
    def model(table):
        base = numpyro.sample("base", dist.Normal(5, 2))
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        ldp.observe("z", dist.Poisson(jnp.exp(base + slope * jnp.array([-1.0, 0.0, 1.0]))), table)

    frame = {"area": ["A", "B", "C"], "count": z}
    return model, ldp.NoisyTable.from_frame(frame, "count", "area", "geometric", scale=10.0, sensitivity=1.0)


@model_of("logistic line")
def _(x, answers):
    def model(x, release):
        a, b = (numpyro.sample(name, dist.Normal(0, 3)) for name in "ab")
        ldp.observe("z", dist.Bernoulli(logits=a + b * x), release)

    return model, x, ldp.Release(answers, ldp.RandomizedResponse(epsilon=2.0))


# --- three parameters -------------------------------------------------------------------------------------------------


@model_of("contaminated normal")
def _(z):
    def model(release):
        share = numpyro.sample("share", dist.Beta(1, 1))
        mu = numpyro.sample("mu", dist.Normal(0, 3))
        sigma = numpyro.sample("sigma", dist.LogNormal(0, 0.5))
        parts = dist.Normal(jnp.stack([mu, 0.0]), jnp.stack([sigma, 1.0]))
        ldp.observe("z", dist.MixtureSameFamily(dist.Categorical(jnp.stack([share, 1 - share])), parts), release)

    return model, ldp.Release(z, ldp.LaplaceMechanism.from_scale(1.0, -8, 8))


@model_of("two groups with one spread")
def _(first, second):
    def model(releases):
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
        with numpyro.plate("group", 2):
            mu = numpyro.sample("mu", dist.Normal(0, 3))
        ldp.observe("z", dist.Normal(mu, sigma), releases)

    mechanism = ldp.GaussianMechanism.from_standard_deviation(1.0, -6, 6)
    return model, [ldp.Release(z, mechanism) for z in (first, second)]


@model_of("ridge of three")
def _(z):
    def model(release):
        a, b, c = (numpyro.sample(name, dist.Normal(0, 5)) for name in "abc")
        ldp.observe("z", dist.Normal(a + b + c, 0.5), release)

    return model, ldp.Release(z, ldp.GaussianMechanism.from_standard_deviation(0.5, sensitivity=math.inf))


@model_of("mixture with Dirichlet weights")
def _(z):
    def model(release):
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.array([2.0, 2.0])))
        with numpyro.plate("component", 2):
            mu = numpyro.sample("mu", dist.Normal(0, 3))
        ldp.observe("z", dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(mu, 1.0)), release)

    return model, ldp.Release(z, ldp.LaplaceMechanism.from_scale(0.7, -8, 8))


@model_of("four categories, sketch of unary answers")
def _(z):
    return models.oue_histogram(), ldp.Release(z, ldp.SymmetricUnaryEncoding(epsilon=2.0, categories=4)).sketch()


@model_of("Student law, square wave")
def _(z):
    def model(release):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        sigma = numpyro.sample("sigma", dist.LogNormal(1, 0.4))
        ldp.observe("z", dist.StudentT(numpyro.sample("freedom", dist.Gamma(2, 0.1)), mu, sigma), release)

    return model, ldp.Release(z, mechanisms.SquareWaveMechanism(epsilon=2.0, lower=-10, upper=10))


@model_of("table of three free cells")
def _(z):
    def model(table):
        with numpyro.plate("area", 3):
            rate = numpyro.sample("rate", dist.Gamma(1, 0.02))
        ldp.observe("z", dist.Poisson(rate), table)

    frame = {"area": ["A", "B", "C"], "count": z}
    return model, ldp.NoisyTable.from_frame(frame, "count", "area", "discrete_gaussian", scale=15.0, sensitivity=1.0)


@model_of("logistic curve")
def _(x, answers):
    def model(x, release):
        a, b, c = (numpyro.sample(name, dist.Normal(0, 2)) for name in "abc")
        ldp.observe("z", dist.Bernoulli(logits=a + b * x + c * x**2), release)

    return model, x, ldp.Release(answers, ldp.RandomizedResponse(epsilon=1.0))


@model_of("Student law, one record")
def _(z):
    def model(release):
        parts = [dist.transforms.ExpTransform(), dist.transforms.AffineTransform(1.0, 2.0, dist.constraints.positive)]
        prior = dist.TransformedDistribution(dist.Normal(0, 0.5), parts)
        sigma, freedom = numpyro.sample("sigma", prior), numpyro.sample("freedom", prior)
        ldp.observe("z", dist.StudentT(freedom, numpyro.sample("mu", dist.Normal(0, 2)), sigma), release)

    return model, ldp.Release(z, ldp.LaplaceMechanism(epsilon=1.0, lower=-20, upper=20))


@model_of("zero-inflated noise and a scale of a scale")
def _(z):
    def model(release):
        mu = numpyro.sample("mu", dist.Normal(0, numpyro.sample("s", dist.LogNormal(1, 0.3))))
        ldp.observe("z", dist.Normal(mu, numpyro.sample("sigma", dist.LogNormal(0.4, 0.4))), release)

    mechanism = ldp.mechanisms.ZeroInflatedLaplaceMechanism(0.3, scale=2.0, lower=-5, upper=5)
    return model, ldp.Release(z, mechanism)


# --- the comparison ---------------------------------------------------------------------------------------------------


def built(name):
    model, *args = MODELS[name](**references.data_of(name))
    return model, args


def entry_of(sites, name):
    """Values (m,) of an entry such as ``theta[1]`` of a dict of sites."""
    site, _, place = name.partition("[")
    values = np.asarray(sites[site])
    return values[:, int(place[:-1])] if place else values


def unit_of(entry):
    """Standard deviation, or half the distance of the quartiles where the posterior has none."""
    return entry["sd"] or (entry["quantiles"][5] - entry["quantiles"][3]) / 2


def latent_size(name):
    parts = references.parts_of(name)[1]
    return sum(part[0].dimension for part in parts) if isinstance(parts[0], list) else parts[0].dimension


@pytest.mark.parametrize("name", [pytest.param(k, marks=[pytest.mark.slow] * (k in SLOW)) for k in MODELS])
def test_integrals_agree_with_references(name):
    """Means, standard deviations, quantiles and the evidence.

    Means, standard deviations and quantiles may be off by 1e-3 standard deviations: at the reference quantile, moved by
    so much, the probability has to be below or above its level. Probabilities are means over scrambled Sobol' points,
    and may be off by seven of their standard errors: 4e-6 each, a false alarm in 300 runs of all settings.
    """
    model, args = built(name)
    result, recorded = integral_of(model, *args), RECORDED[name]
    evidence = recorded["log_evidence"]
    assert abs(result.log_evidence - evidence) <= EVIDENCE[latent_size(name)] + 1e-9 * abs(evidence)
    # Priors that are made outside of double precision have constants in single precision.
    assert abs(result.log_evidence - evidence) <= result.error + 1e-6
    assert 0 <= result.error <= 1e-3 and result.evaluations > 0
    weights = np.asarray(result.weights)
    assert weights.min() >= 0 and abs(weights.sum() - 1) < 1e-9
    parameters = latent_size(name)
    points = [qmc.Sobol(1 + parameters, seed=seed).random(POINTS) for seed in range(SCRAMBLES)]
    draws = result.draws(np.concatenate(points))
    for entry, expected in recorded["entries"].items():
        values, unit = entry_of(result.nodes, entry), unit_of(expected)
        if expected["mean"] is not None:
            assert abs(weights @ values - expected["mean"]) <= 1e-3 * unit, entry
        if expected["sd"] is not None:
            spread = math.sqrt(weights @ (values - expected["mean"]) ** 2)
            assert abs(spread - expected["sd"]) <= 1e-3 * unit, entry
        drawn = entry_of(draws, entry).reshape(SCRAMBLES, POINTS)
        for level, quantile in zip(LEVELS, expected["quantiles"], strict=True):
            below = np.mean(drawn < quantile - 1e-3 * unit, axis=1)
            above = np.mean(drawn > quantile + 1e-3 * unit, axis=1)
            for share, most in ((below, level), (above, 1 - level)):
                assert share.mean() <= most + 7 * share.std(ddof=1) / SCRAMBLES**0.5 + 1e-9, (entry, level)


def test_every_setting_has_a_model_and_a_reference():
    assert list(MODELS) == list(references.SETTINGS) == list(RECORDED) and len(MODELS) == 40
    assert sorted(map(latent_size, MODELS)) == [1] * 14 + [2] * 16 + [3] * 10
    assert {*SLOW} < {*MODELS} and {each for cover in SLOW.values() for each in cover} <= {*MODELS} - {*SLOW}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_references_are_reproduced(name):
    """To the accuracy that they are stated with: 1e-4 standard deviations, and 1e-7 for the evidence."""
    found, recorded = references.compute(name), RECORDED[name]
    assert found["change"] < 1e-4 and found["evidence_change"] < 2e-7
    assert found["log_evidence"] == pytest.approx(recorded["log_evidence"], rel=1e-10, abs=1e-8)
    assert found["entries"].keys() == recorded["entries"].keys()
    for entry, expected in recorded["entries"].items():
        for what, value in found["entries"][entry].items():
            if value is not None:
                np.testing.assert_allclose(value, expected[what], rtol=1e-8, atol=1e-6 * unit_of(expected))


def sites_at(view, u, names, shares):
    """Values of latent sites at coordinates u (n,) of a view, and the log of the change of variables from u to them."""
    sites, change = {}, 0.0
    if shares:  # from the parts of what is left
        parts = u if view.limits else special.expit(u)
        derivatives = np.ones(len(u)) if view.limits else parts * (1 - parts)
        rests = np.cumprod(np.append(1.0, 1 - parts))[:-1]
        return {"theta": references.shares_of(parts)}, float(np.log(derivatives).sum() + np.log(rests).sum())
    for coordinate in range(view.dimension):
        own = {name: f for name, (first, f, _) in view.entries.items() if first == coordinate}
        own = {name: f for name, f in own.items() if name.partition("[")[0] in names}
        f, step = next(iter(own.values())), 1e-5
        change += math.log(abs(f(u[coordinate] + step) - f(u[coordinate] - step)) / (2 * step))
        sites |= {name: f(u[coordinate]) for name, f in own.items()}
    return sites, change


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_and_references_have_one_density(name, rng):
    """At points of the posterior. If integrals differ from references here, the integrals are wrong, not the density.

    Changes of variables are differences over 1e-5, which have relative errors of 1e-9. A sketch on panels and a channel
    are exact to 1e-7 unless the law is much narrower than a panel, as it is for "normal, sketch of 2,000" far from the
    mode.
    """
    views = references.parts_of(name)[1]
    parts = [part[0] for part in views] if isinstance(views[0], list) else views[:1]
    with jax.enable_x64(True):
        model, args = built(name)
        trace = numpyro.handlers.trace(numpyro.handlers.seed(model, 0)).get_trace(*args)
        latent = {k: site for k, site in trace.items() if site["type"] == "sample" and not site["is_observed"]}
        shapes = {k: np.shape(site["value"]) for k, site in latent.items()}
        shares = len(latent) == 1 and all(site["fn"].event_shape for site in latent.values())
        for _ in range(4):
            values, expected = {}, 0.0
            for view in parts:
                u = view.mode + 0.7 * np.array(view.scale[: view.dimension]) * rng.uniform(-1, 1, view.dimension)
                for coordinate, (low, high) in view.limits.items():
                    if coordinate < view.dimension:
                        u[coordinate] = np.clip(u[coordinate], low + 0.02, high - 0.02)
                sites, change = sites_at(view, u, shapes, shares)
                values, expected = values | sites, expected + float(view.at(u)) - change
            whole = {
                k: values[k] if k in values else np.array([values[f"{k}[{i}]"] for i in range(shapes[k][0])])
                for k in shapes
            }
            found = log_density(model, tuple(args), {}, {k: jnp.asarray(value) for k, value in whole.items()})[0]
            assert float(found) == pytest.approx(expected, rel=1e-10, abs=1e-7)
