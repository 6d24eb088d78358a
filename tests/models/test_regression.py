"""The regression factories: what a user would have written, for each kind of release."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Predictive, util
from scipy import stats

import ldpbayes as ldp
from ldpbayes.likelihood import RegressionRows, linear_rows, linear_statistics, logistic_statistics
from ldpbayes.models import linear_regression, logistic_regression

pytestmark = pytest.mark.usefixtures("x64")

ROWS = ldp.mechanisms.LinearRecordsMechanism(2.0, 1e-4, 1.0, 1.0, columns=3)
LABELLED = ldp.mechanisms.LogisticRecordsMechanism(2.0, 1e-4, 1.0, columns=3)
SUMS = ldp.mechanisms.LinearStatisticsMechanism(2.0, 1e-4, 1.0, 1.0, columns=3)
SIGNED = ldp.mechanisms.LogisticStatisticsMechanism(2.0, 1e-4, 1.0, columns=3)
AT = {"slopes": np.array([0.4, -0.2]), "scale": np.array([0.5, 0.6]), "root": np.array([[1.0, 0.0], [0.6, 0.8]])}


def release(mechanism, n=30):
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.uniform(-0.6, 0.6, (n, 2)), rng.integers(0, 2, n)])
    given = mechanism.statistics(rows) if isinstance(mechanism, ldp.mechanisms.StatisticsMechanism) else rows
    return ldp.Release(mechanism.randomize(jax.random.key(0), given), mechanism)


def density(model, data, at):
    return util.log_density(model, (data,), {}, at)[0]


def priors(at):
    """Those of Kulkarni et al., Figure 8."""
    total = dist.Normal(0, np.sqrt(5)).log_prob(at["slopes"]).sum()
    total += dist.HalfNormal(np.sqrt(2.5)).log_prob(at["scale"]).sum()
    total += dist.LKJCholesky(2, 2.0).log_prob(at["root"])
    return total + (dist.HalfNormal(1).log_prob(at["sigma"]) if "sigma" in at else 0.0)


def covariates(at):
    return dist.MultivariateNormal(np.zeros(2), scale_tril=at["scale"][:, None] * at["root"])


def test_linear_regression_is_its_priors_times_the_law_of_what_was_released():
    rows, sums = release(ROWS), release(SUMS)
    total = sums.values.sum(axis=0)
    of_rows = (rows, rows.sketch())
    of_sums = (sums, sums.sketch(), ldp.Release([total], SUMS.total(30)))

    @jax.jit
    def densities(at):
        law, prior = linear_rows(covariates(at), at["slopes"], at["sigma"]), priors(at)
        of_total = ldp.Privatized(linear_statistics(law, 30), SUMS.total(30)).log_prob(total)
        wanted = prior + ldp.Privatized(law, ROWS).log_prob(rows.values).sum(), prior + of_total
        return wanted, [[density(linear_regression(), data, at) for data in each] for each in (of_rows, of_sums)]

    for want, found in zip(*densities(AT | {"sigma": 0.3}), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-12)


@pytest.mark.slow  # test_independent.py has both densities too
def test_logistic_regression_is_its_priors_times_the_law_of_what_was_released():
    rows, sums = release(LABELLED), release(SIGNED)

    @jax.jit
    def densities(at):
        law = RegressionRows(covariates(at), dist.BernoulliLogits, at["slopes"])
        of_sums = ldp.Privatized(logistic_statistics(covariates(at), at["slopes"], count=30), SIGNED.total(30))
        likelihoods = (
            ldp.Privatized(law, LABELLED).log_prob(rows.values).sum(),
            of_sums.log_prob(sums.values.sum(axis=0)),
        )
        return [priors(at) + each for each in likelihoods], [
            density(logistic_regression(), x, at) for x in (rows, sums)
        ]

    wanted, found = densities(AT)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_means_and_intercepts_have_priors_where_they_are_asked_for():
    at = AT | {"sigma": 0.3, "mean": np.array([0.1, -0.1]), "intercept": 0.2}
    model = linear_regression(intercept=dist.Normal(0, 1), mean=dist.Normal(0, 1), concentration=None)
    at.pop("root")
    law = dist.MultivariateNormal(at["mean"], scale_tril=np.diag(at["scale"]))
    rows = linear_rows(law, at["slopes"], 0.3, 0.2)
    data = release(ROWS)
    want = stats.norm.logpdf(at["slopes"], 0, np.sqrt(5)).sum() + stats.norm.logpdf([0.1, -0.1, 0.2]).sum()
    want += stats.halfnorm.logpdf(at["scale"], 0, np.sqrt(2.5)).sum() + stats.halfnorm.logpdf(0.3)

    @jax.jit
    def densities(at):
        return density(model, data, at), ldp.Privatized(rows, ROWS).log_prob(data.values).sum()

    found, likelihood = densities(at)
    assert float(found) == pytest.approx(want + float(likelihood), rel=1e-12)


def test_exact_sums_are_latent_and_wishart():
    n, at = 30, AT | {"sigma": 0.3}
    central = dataclasses.replace(SUMS, trust_model="central", count=n)
    root = np.array([[3.0, 0, 0], [0.5, 2.0, 0], [0.2, -0.3, 1.5]])
    sums, rows = root @ root.T, linear_rows(covariates(AT), AT["slopes"], 0.3)
    z = np.arange(6.0)
    bartlett = np.linalg.solve(np.asarray(rows.scale_tril), root)
    t = np.array([sums[0, 0], sums[1, 1], np.sqrt(2) * sums[0, 1], sums[0, 2], sums[1, 2], sums[2, 2]])

    @jax.jit
    def densities(at):
        want = priors(at) + dist.WishartCholesky(n, scale_tril=np.eye(3)).log_prob(at["bartlett"])
        want += central.noise.log_prob(z - t)
        return density(linear_regression(exact=True), ldp.Release([z], central), at), want

    found, want = densities(at | {"bartlett": bartlett})
    assert float(found) == pytest.approx(float(want), rel=1e-12)
    with pytest.raises(ValueError, match="exact=True needs means of 0"):
        density(linear_regression(exact=True, intercept=dist.Normal(0, 1)), ldp.Release([z], central), at)


def test_an_unknown_number_of_records_is_asked_for_or_a_latent_variable():
    central = dataclasses.replace(SUMS, trust_model="central")
    data = ldp.Release([np.arange(6.0)], central)
    at = AT | {"sigma": 0.3}
    with pytest.raises(ValueError, match="the number of records N is missing: state the count"):
        density(linear_regression(), data, at)
    counted = ldp.Release([32.0], ldp.mechanisms.AdditiveMechanism(ldp.noise.Gaussian(4.0), sensitivity=1.0))
    stated = ldp.Release(data.values, dataclasses.replace(central, count=30))

    @jax.jit
    def densities(at):
        known = density(linear_regression(), stated, at), density(linear_regression(count=30), data, at)
        return *known, density(linear_regression(count=counted), data, at | {"count_error": 0.5})

    known, given, latent = map(float, densities(at))
    assert given == pytest.approx(known)
    assert latent == pytest.approx(known + stats.norm.logpdf(0.5))
    with pytest.raises(ValueError, match="count must be a number, or the release of one with Gaussian"):
        density(linear_regression(count=data), data, at)


@pytest.mark.parametrize(
    ("model", "mechanism", "count", "shape"),
    [
        (linear_regression(), ROWS, 12, (12, 3)),
        (linear_regression(), SUMS, 12, (1, 6)),
        (logistic_regression(), LABELLED, 12, (12, 3)),
        (logistic_regression(), SIGNED, 12, (1, 5)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_model_simulates_what_it_would_observe(model, mechanism, count, shape):
    run = Predictive(model, num_samples=2)
    drawn = jax.eval_shape(run, jax.random.key(0), ldp.Release(None, mechanism, count))
    assert drawn["z"].shape == (2, *shape) and drawn["slopes"].shape == (2, 2)


def test_releases_of_other_kinds_are_refused():
    counts = ldp.Release([1.0, 2.0], ldp.LaplaceMechanism(1.0, 0, 5))
    for factory, other in ((linear_regression, SIGNED), (logistic_regression, SUMS)):
        with pytest.raises(TypeError, match=f"{factory.__name__} takes a release of rows or"):
            density(factory(), counts, AT)
        with pytest.raises(TypeError, match=f"{factory.__name__} takes a release of rows or"):
            density(factory(), release(other), AT)


def test_labels_alone_are_privatized_in_an_ordinary_regression():
    x, z, response = np.array([[0.3, -1.0], [2.0, 0.1]]), np.array([0, 1]), ldp.RandomizedResponse(1.0)

    def model(x, y=None):
        slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("people", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=x @ slopes), obs=y)

    slopes, keep = np.array([0.4, -0.2]), 1 / (1 + np.exp(-1.0))
    one = 1 / (1 + np.exp(-x @ slopes))
    seen = keep * one + (1 - keep) * (1 - one)
    want = stats.norm.logpdf(slopes).sum() + np.log(np.where(z, seen, 1 - seen)).sum()
    private = ldp.privatize(model, {"y": response})
    found = jax.jit(lambda at: util.log_density(private, (x, z), {}, at)[0])({"slopes": slopes})
    assert float(found) == pytest.approx(want, rel=1e-12)


@pytest.mark.slow
def test_a_posterior_from_statistics_finds_the_slopes():
    rng, n = np.random.default_rng(3), 100_000
    rows = np.column_stack([rng.uniform(-0.7, 0.7, (n, 2)), np.zeros(n)])
    rows[:, 2] = np.clip(rows[:, :2] @ [0.8, -0.5] + 0.1 * rng.normal(size=n), -1, 1)
    central = ldp.mechanisms.LinearStatisticsMechanism(1.0, 1e-6, 1.0, 1.0, columns=3, trust_model="central", count=n)
    z = central.randomize(jax.random.key(0), central.statistics(rows).sum(axis=0, keepdims=True))
    posterior = ldp.fit(
        linear_regression(), ldp.Release(z, central), num_warmup=300, num_samples=300, num_chains=2, progress_bar=False
    )
    draws = posterior["posterior"]["slopes"].values.reshape(-1, 2)
    np.testing.assert_allclose(draws.mean(axis=0), [0.8, -0.5], atol=0.01)
    assert np.all(draws.std(axis=0) < 0.01) and "central" in posterior.attrs["privacy"]
    assert jnp.isfinite(draws).all()
