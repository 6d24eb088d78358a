"""Fits of numbers with a few budgets: certified and refined sketches, also in the place of a release."""

import json

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

import ldpbayes as ldp
from ldpbayes.inference.approximations._equal_rows import sketched_releases
from ldpbayes.inference.density import density_of, sites_of
from ldpbayes.inference.problem import Problem

N = 4000
RNG = np.random.default_rng(0)
EPSILON = np.where(np.arange(N) % 2, 1.0, 3.0)
MECHANISM = ldp.LaplaceMechanism(EPSILON, -5, 5)
RELEASE = ldp.Release(np.clip(RNG.normal(1, 2, N), -5, 5) + RNG.laplace(0, 10 / EPSILON), MECHANISM)
SHORT = {"num_samples": 100, "num_chains": 2, "progress_bar": False}


def model(release):
    mu, sigma = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("sigma", dist.Gamma(2, 1))
    ldp.observe("z", dist.Normal(mu, sigma), release)


@pytest.mark.slow
def test_fits_of_the_release_and_of_its_sketch_are_one_certified_fit():
    whole = ldp.fit(model, RELEASE, log_likelihood=True, posterior_predictive=True, **SHORT)
    sketch = ldp.fit(model, RELEASE.sketch(), log_likelihood=RELEASE, posterior_predictive=True, **SHORT)
    np.testing.assert_allclose(whole.posterior["mu"], sketch.posterior["mu"], rtol=1e-6)
    for result in (whole, sketch):
        (certificate,) = json.loads(result.attrs["certificates"])
        assert len(certificate["panels"]) == 2 and certificate["error_nats"] < 1e-4  # what coarse panels may err by
        assert result.attrs["privacy"] == RELEASE.guarantee.statement()
        assert result.posterior_predictive["z"].shape == result.log_likelihood["z"].shape == (2, 100, N)
        assert sorted(result.observed_data["z"].values) == sorted(RELEASE.values)
    assert json.loads(whole.attrs["expansion"]) == {"ran": "sketch", "rows": 648, "records": N}
    np.testing.assert_allclose(whole.log_likelihood["z"], sketch.log_likelihood["z"], rtol=1e-6)


def test_every_part_is_certified_and_refined():
    mechanism = ldp.LaplaceMechanism(20 * EPSILON, -5, 5)  # beside whose panels a law of this width is narrow
    values = RNG.normal(1.03, 0.3, N) + RNG.laplace(0, 10 / mechanism.epsilon)
    sketch = ldp.Release(values, mechanism).sketch(panels=5, lattice=False)

    def narrow(release):
        ldp.observe("z", dist.Normal(numpyro.sample("mu", dist.Normal(1, 1)), 0.3), release)

    with pytest.warns(ldp.inference.SketchWarning, match=r"a sketch of \[5, 5\] panels .* refined to"):
        result = ldp.fit(narrow, sketch, **SHORT)
    first, last = json.loads(result.attrs["certificates"])
    assert first["panels"] == [5, 5] and first["error_nats"] > 1e-3 >= last["error_nats"]
    assert len(last["panels"]) == 2 and min(last["panels"]) > 5


def test_parts_of_sketches_by_code_have_the_log_likelihood_of_the_records():
    coin, codes = ldp.RandomizedResponse(1.0), RNG.integers(0, 2, N)
    answers = ldp.Release(codes, coin)

    def joint(answers, numbers):
        law = dist.Normal(np.array([0.0, 2.0]), 2.0)
        ldp.observe_jointly(dist.Bernoulli(0.4), {"answer": (None, answers), "number": (law, numbers)})

    with jax.enable_x64(True):
        of_records, of_sketches = (answers, RELEASE), (answers.sketch(), [*RELEASE.sketch(by=codes)])
        both = jax.jit(lambda *data: [log_density(joint, each, {}, {})[0] for each in data])
        records, sketches = both(of_records, of_sketches)
    assert float(sketches) == pytest.approx(float(records), abs=1e-6)


def replaced(model, *args):
    density = density_of(model, args, {})
    with jax.enable_x64(True):
        fewer = sketched_releases(Problem(density, sites_of(density)))
        return fewer.fewer if fewer else {}


def test_releases_are_sketched_only_if_the_model_has_one_law_for_all_their_records():
    x = RNG.normal(size=N)

    def regression(release):
        ldp.observe("z", dist.Normal(numpyro.sample("slope", dist.Normal(0, 1)) * x, 1.0), release)

    def of_the_mean_budget(release):  # which is another one in a sketch
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        ldp.observe("z", dist.Normal(mu, np.mean(release.mechanism.epsilon**2)), release)

    def of_the_values(release):
        ldp.observe("z", dist.Normal(numpyro.sample("mu", dist.Normal(release.values.mean(), 1)), 1.0), release)

    assert replaced(model, RELEASE)["records"] == N
    few = ldp.Release(RELEASE.values[:1000], ldp.LaplaceMechanism(EPSILON[:1000], -5, 5))  # a sketch is no shorter
    many, uneven = (
        ldp.Release(RNG.uniform(-5, 5, N) + RNG.laplace(0, 10 / epsilon), ldp.LaplaceMechanism(epsilon, -5, 5))
        for epsilon in (np.linspace(1, 3, N), np.where(np.arange(N) % 3, 1.0, 3.0))
    )
    for other, release in (
        (regression, RELEASE),
        (of_the_mean_budget, uneven),
        (of_the_values, RELEASE),
        (model, few),
        (model, many),
    ):
        assert replaced(other, release) == {}


@pytest.mark.slow
def test_a_sketch_that_fit_made_gives_way_to_the_records_where_it_cannot_be_exact(monkeypatch):
    monkeypatch.setattr("ldpbayes.inference.approximations.panels.MAX_REFINEMENTS", 0)
    for name in ("COARSE_ERROR_NATS", "SKETCH_ERROR_NATS"):
        monkeypatch.setattr(f"ldpbayes.inference.approximations.panels.{name}", -1.0)
    few = ldp.Release(RELEASE.values[:1400], ldp.LaplaceMechanism(EPSILON[:1400], -5, 5))
    with pytest.warns(ldp.inference.SketchWarning, match="sampled again"):
        result = ldp.fit(model, few, num_warmup=30, num_samples=30, num_chains=1, progress_bar=False)
    expansion = json.loads(result.attrs["expansion"])
    assert expansion["ran"] == "records" and "has an error of" in expansion["why"]
    np.testing.assert_array_equal(result.observed_data["z"], few.values)
