import dataclasses
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import ldpbayes as ldp
from ldpbayes.inference.approximations import _tables as _tabulated
from ldpbayes.inference.approximations.surrogates import Report
from ldpbayes.inference.density import density_of
from ldpbayes.inference.problem import Problem
from tests import posteriors
from tests.inference.problems import GivenUp, given_up

AREAS = 60
RNG = np.random.default_rng(5)
EXPOSURE = np.rint(np.exp(RNG.normal(6.0, 1.0, AREAS)))
COUNTS = RNG.poisson(EXPOSURE * np.exp(RNG.normal(-3.0, 0.4, AREAS)))
Z = COUNTS + np.rint(RNG.normal(0, 6.0, AREAS)).astype(int)
RELEASE = ldp.Release(Z, ldp.DiscreteGaussianMechanism(scale=6.0))


def areas(release, exposure, law=lambda exposure, effect: dist.Poisson(exposure * jnp.exp(effect))):
    mean, spread = numpyro.sample("mean", dist.Normal(-3, 1)), numpyro.sample("spread", dist.HalfNormal(1))
    with numpyro.plate("area", len(exposure)):
        effect = numpyro.sample("effect", dist.Normal(mean, spread))
    ldp.observe("z", law(exposure, effect), release)


def site_of(model, *args):
    density = density_of(model, args, {})
    parameters = density.example()
    (site,) = _tabulated.TabulatedSite.of(density, "z", parameters)
    return density, site


LAWS = {
    "Poisson, a common rate": (lambda n, x: dist.Poisson(300 * jnp.exp(x.mean())), RELEASE.mechanism),
    "Poisson, discrete Gaussian": (lambda n, x: dist.Poisson(n * jnp.exp(x)), RELEASE.mechanism),
    "Poisson, personal scales": (
        lambda n, x: dist.Poisson(n * jnp.exp(x)),
        ldp.DiscreteLaplaceMechanism(scale=np.linspace(1.0, 9.0, AREAS)),
    ),
    "binomial, logits": (lambda n, x: dist.BinomialLogits(x, n.astype(int)), RELEASE.mechanism),
    "binomial, shares": (lambda n, x: dist.BinomialProbs(jax.nn.sigmoid(x), n.astype(int)), RELEASE.mechanism),
    "normal, Laplace": (
        lambda n, x: dist.Normal(10 * x, jnp.sqrt(n)),
        ldp.LaplaceMechanism.from_scale(5.0, sensitivity=1.0),
    ),
}


@jax.jit
def looked_up(tables, rows):
    return jax.vmap(tables)(rows)


@jax.jit
def slopes(tables, row):
    return jax.grad(lambda x: tables(x).sum())(row)


DEFAULT = ("binomial, shares",)


@pytest.mark.parametrize(
    "name", [each if each in DEFAULT else pytest.param(each, marks=pytest.mark.slow) for each in LAWS]
)
def test_a_table_is_the_likelihood_to_its_certified_error_between_its_ends(name):
    law, mechanism = LAWS[name]
    with jax.enable_x64(True):
        _, site = site_of(lambda *data: areas(*data, law), ldp.Release(Z, mechanism), EXPOSURE)
        tables, certified = site.tables()
        low, high = map(np.asarray, tables.ends)
        x = low + (high - low) * np.linspace(0.003, 0.997, 41)[:, None]
        exact = site.at(x, np.arange(len(site.values)))
        errors = np.abs(np.asarray(looked_up(tables, x)) - exact)
        # A table ends where its likelihood is negligible, or is the same from there on, or where its parameter ends.
        ends, beyond = (site.at(np.stack([low - far, high + far]), np.arange(len(site.values))) for far in (0.0, 1e-3))
        negligible, flat = ends <= exact.max(axis=0) - 0.9 * _tabulated.DEPTH_NATS, np.abs(beyond - ends) <= 1e-10
        of_parameter = site.scale.place(site.scale.sizes[[0, -1], None], site.variances)
    assert certified <= _tabulated.TABLES_ERROR_NATS
    # The certificate looks at the extremes of Chebyshev's polynomial: an error is that polynomial times a derivative
    # that varies over a piece, by less than a half.
    assert errors.max(axis=0).sum() <= 1.5 * certified + 1e-12 * np.abs(exact).max() * AREAS
    assert np.all(negligible | flat | np.isclose(np.stack([low, high]), of_parameter))
    assert len(np.unique(tables.first)) < AREAS or name != "Poisson, discrete Gaussian"  # equal values share a table


def test_beyond_its_ends_a_table_is_a_straight_line_with_finite_slopes():
    with jax.enable_x64(True):
        _, site = site_of(areas, RELEASE, EXPOSURE)
        tables, _ = site.tables()
        low, high = map(np.asarray, tables.ends)
        for end, direction in ((low, -1), (high, 1)):
            x = end + direction * np.array([[1.0], [2.0], [3.0]])
            values = np.asarray(looked_up(tables, x))
            np.testing.assert_allclose(values[2] - values[1], values[1] - values[0], rtol=1e-9)
        for far in (-1e30, 1e30):
            assert np.isfinite(slopes(tables, np.full(AREAS, far))).all()


NARROW = np.where(np.arange(AREAS) < 12, 1.5, 6.0)  # noise under which a rare count has no table
SOME = ldp.Release(
    np.where(np.arange(AREAS) < 12, np.maximum(COUNTS, 12), Z), ldp.DiscreteGaussianMechanism(scale=NARROW)
)


def with_tables(density, tabulated):
    return _tabulated.TabulatedRecords(Problem(density, {}), None, tabulated)


def test_cells_without_a_table_are_computed_and_reported_and_the_others_are_looked_up():
    with jax.enable_x64(True):
        density, site = site_of(areas, SOME, EXPOSURE)
        tables, certified = site.tables()
        assert 0 < len(tables.others) < AREAS / 2 and certified <= _tabulated.TABLES_ERROR_NATS
        surrogate = _tabulated.TabulatedRecords(Problem(density, {}), None, {"z": [(site, tables, certified)]})
        effect = np.log((COUNTS + 0.5) / EXPOSURE)
        parameters = {"mean": np.array(-3.0), "spread": np.array(-0.7), "effect": effect}
        potentials = [jax.value_and_grad(each.potential) for each in (density, surrogate.density)]
        (exact, slope), (value, tabulated_slope) = jax.jit(lambda row: [each(row) for each in potentials])(parameters)
        assert abs(value - exact) <= _tabulated.TABLES_ERROR_NATS
        np.testing.assert_allclose(tabulated_slope["effect"], slope["effect"], atol=1e-4)
        surrogate.chains = types.SimpleNamespace(example=parameters)
        surrogate.prepare()
        report = surrogate.judge({name: np.stack([each] * 2)[None] for name, each in parameters.items()})
    others = len(tables.others)
    assert report.entries()["others"] == others and report.count == AREAS - others


def work_of(values, mechanism, rates):
    """Array entries that the likelihood of Poisson counts reads and writes."""
    release = ldp.Release(values, mechanism)

    def log_prob(_, shift):
        return ldp.Privatized(dist.Poisson(rates * jnp.exp(shift)), release.mechanism).log_prob(release.values).sum()

    return _tabulated.trace(log_prob, 0.0)[0].work


def test_one_wide_cell_widens_no_other_window():
    rates, wide = np.full(AREAS, 40.0), np.where(np.arange(AREAS) == 0, 600.0, 6.0)
    alone = work_of(Z[:1], ldp.DiscreteGaussianMechanism(scale=600.0), rates[:1])
    rest = work_of(Z[1:], ldp.DiscreteGaussianMechanism(scale=6.0), rates[1:])
    assert work_of(Z, ldp.DiscreteGaussianMechanism(scale=wide), rates) < 1.5 * (alone + rest)


def test_equal_cells_under_one_law_count_once():
    values = np.concatenate([np.full(3000, np.nan), [31.0, 44.0, 44.0, 60.0]])
    rule = ldp.mechanisms.Withheld(ldp.DiscreteGaussianMechanism(scale=10.0, sensitivity=1), 30.0)
    few = np.unique(values)
    scales = np.where(np.arange(3004) % 2 == 0, 5.0, 10.0)  # cells with other noise are not equal
    own = ldp.mechanisms.Withheld(ldp.DiscreteGaussianMechanism(scale=scales, sensitivity=1), 30.0)
    apart = [(own.of_records((3004,), [i]), values[[i]]) for i in (0, 1)]

    @jax.jit
    def log_probs():
        cases = [(rule, values), (rule, few), (own, values), *apart]
        return [ldp.Privatized(dist.Poisson(30.0), mechanism).log_prob(z) for mechanism, z in cases]

    with jax.enable_x64(True):
        assert work_of(values, rule, 30.0) < 10 * work_of(few, rule, 30.0)
        ours, each, of_own, *alone = map(np.asarray, log_probs())
    np.testing.assert_allclose(ours, np.concatenate([np.full(3000, each[-1]), each[[0, 1, 1, 2]]]), rtol=1e-12)
    np.testing.assert_allclose(of_own[:2], np.concatenate(alone), rtol=1e-12)
    assert of_own[0] != of_own[1]


@pytest.mark.slow
def test_the_model_with_tables_has_the_log_density_of_the_model():
    with jax.enable_x64(True):
        density, site = site_of(areas, RELEASE, EXPOSURE)
        tabulated = _tabulated.TabulatedRecords(Problem(density, {}), None, {"z": [(site, *site.tables())]}).density
        for seed in range(3):
            near = np.log((COUNTS + 0.5) / EXPOSURE)
            effect = near + 0.2 * jax.random.normal(jax.random.key(seed), (AREAS,))
            parameters = {"mean": jnp.array(-3.0), "spread": jnp.array(-0.7), "effect": effect}
            exact, slope = jax.value_and_grad(density.potential)(parameters)
            value, tabulated_slope = jax.value_and_grad(tabulated.potential)(parameters)
            assert abs(value - exact) <= _tabulated.TABLES_ERROR_NATS
            np.testing.assert_allclose(tabulated_slope["effect"], slope["effect"], atol=1e-4)


def test_masked_records_and_weights_count_as_in_the_model():
    keep, weight = np.arange(AREAS) % 3 > 0, 2.5

    def masked(release, exposure):
        with numpyro.handlers.scale(scale=weight), numpyro.handlers.mask(mask=keep):
            areas(release, exposure)

    with jax.enable_x64(True):
        density, site = site_of(masked, RELEASE, EXPOSURE)
        np.testing.assert_array_equal(site.weights, weight * keep)
        tabulated = _tabulated.TabulatedRecords(Problem(density, {}), None, {"z": [(site, *site.tables())]}).density
        parameters = {"mean": -2.0, "spread": 0.5, "effect": np.log((COUNTS + 0.5) / EXPOSURE)}
        value, exact = jax.jit(lambda row: (tabulated.potential(row), density.potential(row)))(parameters)
        assert abs(value - exact) <= _tabulated.TABLES_ERROR_NATS


def latent_noise(release, exposure):
    with numpyro.plate("area", AREAS):
        effect = numpyro.sample("effect", dist.Normal(-3, 1))
    scale = numpyro.sample("scale", dist.HalfNormal(5))
    mechanism = ldp.mechanisms.AdditiveMechanism(ldp.noise.DiscreteLaplace(scale), sensitivity=1.0)
    numpyro.sample("z", ldp.Privatized(dist.Poisson(exposure * jnp.exp(effect)), mechanism), obs=release.values)


@pytest.mark.parametrize(
    "model",
    [
        latent_noise,
        lambda release, exposure: areas(release, exposure, lambda n, x: dist.Normal(x.mean(), jnp.exp(x))),
        lambda release, exposure: areas(release, exposure, lambda n, x: dist.Normal(x, jnp.exp(x))),
    ],
    ids=["noise that is not known", "a common mean and a scale a record", "two numbers a record"],
)
def test_likelihoods_of_other_numbers_have_no_table(model):
    release = ldp.Release(Z, ldp.GaussianMechanism.from_standard_deviation(6.0, sensitivity=1.0))
    with jax.enable_x64(True), pytest.raises(_tabulated.NoTable):
        site_of(model, release if model is not latent_noise else RELEASE, EXPOSURE)


@pytest.mark.parametrize("name", [pytest.param("negative binomial", marks=pytest.mark.slow), "logits"])
def test_zero_inflated_laws_with_a_latent_gate_are_sampled_without_tables(name):
    def model(release):
        gate, rate = numpyro.sample("gate", dist.Beta(2, 2)), numpyro.sample("rate", dist.Gamma(2, 0.1))
        inflated = {
            "negative binomial": lambda: dist.ZeroInflatedNegativeBinomial2(rate, 3.0, gate=gate),
            "logits": lambda: dist.ZeroInflatedDistribution(dist.Poisson(rate), gate_logits=4 * gate - 2),
        }[name]()
        ldp.observe("z", inflated, release)

    few = ldp.Release(Z[:12], RELEASE.mechanism)
    with jax.enable_x64(True), pytest.raises(_tabulated.NoTable, match="made of other laws"):
        site_of(model, few)
    posterior = ldp.fit(model, few, num_samples=20, num_chains=1, progress_bar=False)
    assert np.isfinite(posterior.sample_stats["lp"]).all()


def test_fit_takes_tables_by_itself_and_says_how_far_off_they_are():
    report = json.loads(posteriors.tabulated().posterior.attrs["expansion"])
    assert report["ran"] == "tables" and report["count"] == 60 and report["sites"] == ["z"]
    assert max(report["error_nats"], report["certified_nats"]) <= _tabulated.TABLES_ERROR_NATS


def test_the_likelihoods_are_read_where_draws_lie_beyond_the_tables(monkeypatch):
    """One count is 4,000 by its value, and 20 by a prior that is sure."""
    with jax.enable_x64(True):
        surprising = ldp.Release(np.where(np.arange(AREAS) == 0, 4000, 20), RELEASE.mechanism)
        density, site = site_of(areas, surprising, np.full(AREAS, 400.0))
        tables = site.tables()
        surrogate = with_tables(density, {"z": [(site, *tables)]})
        positions = {
            "mean": np.full((1, 8), -3.0),
            "spread": np.full((1, 8), -5.0),
            "effect": np.tile(np.linspace(-3.01, -2.99, 8)[:, None], AREAS)[None],
        }
        example = {name: each[0, 0] for name, each in positions.items()}
        surrogate.chains = types.SimpleNamespace(example=example)
        surrogate.prepare()
        monkeypatch.setattr(_tabulated, "records_instead", given_up)
        with pytest.raises(GivenUp) as up:
            surrogate.judge(positions)
        why, report = up.value.args
        assert "at posterior draws" in why and report.error_nats > 1
        others = dataclasses.replace(site, weights=1.0 * (np.arange(AREAS) > 0))  # of which nothing is wrong
        surrogate.tabulated["z"] = [(others, *tables)]
        report = surrogate.judge(positions)
        assert isinstance(report, Report) and report.error_nats <= _tabulated.TABLES_ERROR_NATS
