"""Posteriors by expansion: intervals cover, and means and deviations are those of posteriors by records.

What the studies found is recorded in docs/explanation/calibration.md.
"""

import collections
import json
import time
import warnings

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.util import potential_energy, unconstrain_fn
from scipy import stats
from scipy.stats import binom

import ldpbayes as ldp
from ldpbayes.inference import _expansion
from ldpbayes.models import (
    clipped_gaussian,
    label_regression,
    logistic_regression,
    oue_histogram,
    perturbed_covariates,
    regional_histograms,
)

pytestmark = pytest.mark.slow


def simulator(model, mechanism, *counts, **truth):
    """From a key to parameters (those not given are drawn from the prior) and a release, or one a group."""
    plans = [ldp.Release(None, mechanism, count) for count in counts]

    @jax.jit
    def simulate(key):
        given = plans if len(plans) > 1 else plans[0]
        sites = handlers.trace(handlers.seed(handlers.substitute(model, truth), key)).get_trace(given)
        return {name: site["value"] for name, site in sites.items() if site["type"] == "sample"}

    def draw(key):
        with jax.enable_x64(True), warnings.catch_warnings():
            drawn = {name: np.asarray(value) for name, value in simulate(key).items()}
            # records are simulated from the law that the model has, which some models do not clip
            warnings.simplefilter("ignore", ldp.data.ReleaseWarning)
            parts = np.split(drawn.pop("z"), np.cumsum(counts)[:-1])
            releases = [ldp.Release(part, mechanism) for part in parts]
        return drawn, releases if len(releases) > 1 else releases[0]

    return draw


def fitted(model, data, **settings):
    """Draws, log densities of what was sampled, and what the result says of its expansion."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = ldp.fit(model, data, progress_bar=False, **settings)
    draws = {name: np.asarray(result["posterior"][name]) for name in result["posterior"].data_vars}
    return draws, np.asarray(result["sample_stats"]["lp"]), json.loads(result.attrs["expansion"])


# --- coverage -------------------------------------------------------------------------------------------------------

FITS, KEPT, BINS = 200, 99, 10
FEATURES = np.random.default_rng(20).normal(size=(5000, 6))
CALIBRATED = {
    "shares": (oue_histogram(), ldp.OptimalUnaryEncoding(1.0, 20), 10_000),
    "logistic": (
        label_regression(FEATURES, intercept=dist.Normal(0, 1), sigma=None, response=dist.BernoulliLogits),
        ldp.RandomizedResponse(1.0),
        5000,
    ),
}


@pytest.mark.parametrize("orders", [_expansion.ORDERS, (2,)], ids=["as it is", "second order, reweighted"])
@pytest.mark.parametrize("name", CALIBRATED)
def test_intervals_of_posteriors_by_expansion_cover(name, orders, monkeypatch):
    # Counts of 90 % intervals and uniformity of ranks (chi-square on ten bins) are tested for each of n parameters at
    # 1 % / n: if the posteriors are calibrated, each of the two fails with probability of at most 1 % at a random seed.
    monkeypatch.setattr(_expansion, "ORDERS", orders)
    model, mechanism, count = CALIBRATED[name]
    draw = simulator(model, mechanism, count)
    ran, errors, below, ranks, start = collections.Counter(), [], [], [], time.perf_counter()
    for number in range(FITS):
        truth, release = draw(jax.random.fold_in(jax.random.key(20), number))
        settings = {"num_warmup": 500, "num_samples": 1000, "num_chains": 2, "seed": number}
        draws, _, report = fitted(model, release, expand=True, **settings)
        ran[report["ran"]] += 1
        errors.append(report.get("error_sd_nats", np.nan))
        under = np.concatenate([np.reshape(draws[site] < truth[site], (2000, -1)) for site in sorted(truth)], axis=1)
        below.append(under.mean(axis=0))
        ranks.append(under[:: 2000 // (KEPT + 1)][:KEPT].sum(axis=0))
    below, ranks = np.array(below), np.array(ranks)
    size = ranks.shape[1]
    covered = np.sum(np.abs(below - 0.5) <= 0.45, axis=0)
    low, high = binom.interval(1 - 0.01 / size, FITS, 0.9)
    bins = np.stack([np.bincount(column * BINS // (KEPT + 1), minlength=BINS) for column in ranks.T])
    p = stats.chisquare(bins, axis=1).pvalue
    print(f"\n{name}, orders {orders}: {dict(ran)} in {time.perf_counter() - start:.0f} s")
    print(f"error (sd, nats): median {np.nanmedian(errors):.3g}, largest {np.nanmax(errors):.3g}")
    print(f"90 % intervals cover {covered.min()} to {covered.max()} of {FITS} (band {low} to {high}): {covered}")
    print(f"overall {covered.mean() / FITS:.3f}; uniformity of ranks: least p {p.min():.3g} of {size}")
    assert np.all((covered >= low) & (covered <= high))
    assert p.min() > 0.01 / size
    if orders == (2,):
        assert ran["expansion, reweighted"] > FITS / 2


# --- equality -------------------------------------------------------------------------------------------------------

rng = np.random.default_rng(21)
SLOPES, X = np.array([0.5, -0.5, 0.3, 0.8]), rng.normal(size=(5000, 4))
LINE = {"intercept": 0.2, "slopes": SLOPES}


def linear(response=dist.Normal, **priors):
    return label_regression(X, intercept=dist.Normal(0, 2), response=response, **priors)


def counts(release):
    """Poisson numbers on public covariates."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 2))
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([4]).to_event(1))
    ldp.observe("z", dist.Poisson(jnp.exp(intercept + 0.5 * X @ slopes)), release)


def choices(values):
    """One of three categories, on public covariates."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 2).expand([2]).to_event(1))
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([4, 2]).to_event(2))
    logits = jnp.pad(intercept + X @ slopes, ((0, 0), (0, 1)))
    with numpyro.plate("records", len(X)):
        numpyro.sample("z", dist.Categorical(logits=logits), obs=values)


def private_choices(release):
    ldp.privatize(choices, {"z": release.mechanism})(release.values)


SHARES = np.array([0.22, 0.18, 0.15, 0.12, 0.1, 0.08, 0.06, 0.04, 0.03, 0.02])
ROOT = np.array([[1.0, 0.0], [0.3, 0.9539392]])  # of a correlation of 0.3
TWO = {"slopes": np.array([1.0, -0.5]), "scale": np.array([1.0, 0.8]), "root": ROOT}
REGIONS = {"mu": np.array([1.0, 0.5, 0.0, -0.5]), "tau": np.full(4, 0.5)}
REGIONS["logits"] = REGIONS["mu"] + REGIONS["tau"] * rng.normal(size=(5, 4))
CASES = {
    "oue_histogram": (oue_histogram(), ldp.OptimalUnaryEncoding(1.0, 10), 10_000, {"theta": SHARES}),
    "regional_histograms": (regional_histograms(), ldp.OptimalUnaryEncoding(2.0, 4), [4000] * 5, REGIONS),
    "Normal, Laplace noise": (linear(), ldp.LaplaceMechanism(1.0, -6, 6), 5000, LINE | {"sigma": 1.0}),
    "Normal, Gaussian noise": (linear(), ldp.GaussianMechanism(50.0, 1e-5, -6, 6), 5000, LINE | {"sigma": 1.0}),
    "Bernoulli": (linear(dist.BernoulliLogits, sigma=None), ldp.RandomizedResponse(1.0), 5000, LINE),
    "Poisson": (counts, ldp.DiscreteLaplaceMechanism(2.0, 0, 30), 5000, LINE),
    "Categorical": (
        private_choices,
        ldp.RandomizedResponse(2.0, 3),
        5000,
        {"intercept": np.array([0.3, -0.2]), "slopes": np.stack([SLOPES, -SLOPES[::-1]], axis=1)},
    ),
    "personal budgets": (
        clipped_gaussian(),
        ldp.LaplaceMechanism(rng.choice([0.5, 1.0, 2.0], 10_000), -10, 10),
        10_000,
        {"mu": 1.0, "sigma": 2.0},
    ),
    "perturbed_covariates": (
        perturbed_covariates(),
        ldp.SymmetricLaplaceMechanism(1.0, -5, 5, columns=3, perturbed=(0, 1)),
        5000,
        TWO | {"intercept": 0.3, "mean": np.array([0.2, -0.1])},
    ),
    "logistic_regression": (
        logistic_regression(),
        ldp.mechanisms.LogisticRecordsMechanism(60.0, 1e-5, 3.0, 3),
        10_000,
        TWO,
    ),
}
LONGER = {"regional_histograms": 2, "Normal, Laplace noise": 3}


def by_records(model, data, longer):
    """Draws that know of no expansion, equally weighted."""
    draws, _, _ = fitted(model, data, expand=False, num_warmup=500, num_samples=2500 * longer, seed=1)
    least = float(az.ess(az.convert_to_dataset(draws), method="sd").min().to_array().min())
    print(f"effective number of draws by records, for standard deviations: {least:.0f} at least")
    return draws, np.full((4, 2500 * longer), 1 / (10_000 * longer))


def by_weights(model, data, draws, log_densities):
    """Every tenth of draws that were not reweighted, with their weights under the records, by NumPyro's own density."""
    with jax.enable_x64(True):
        sites = handlers.trace(handlers.seed(model, jax.random.key(0))).get_trace(data)
        latent = [name for name, site in sites.items() if site["type"] == "sample" and not site["is_observed"]]

        def log_density(values):
            free = unconstrain_fn(model, (data,), {}, values)
            return -potential_energy(model, (data,), {}, free)

        some = {name: jnp.asarray(draws[name][:, ::10]) for name in latent}
        flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in some.items()}
        exact = np.asarray(jax.jit(lambda values: jax.lax.map(log_density, values))(flat))
    ratios = exact - log_densities[:, ::10].ravel()
    print(f"log ratios of densities: sd {ratios.std():.2g}, largest {np.max(np.abs(ratios - ratios.mean())):.2g}")
    weights = np.exp(ratios - ratios.max()).reshape(len(log_densities), -1)
    return {name: draws[name][:, ::10] for name in draws}, weights / weights.sum()


def moments(draws, weights):
    """Means and standard deviations of all numbers, one after the other."""
    means, sds = [], []
    for site in sorted(draws):
        values = draws[site].reshape(weights.size, -1)
        mean = weights.ravel() @ values
        means.append(mean)
        sds.append(np.sqrt(weights.ravel() @ (values - mean) ** 2))
    return np.concatenate(means), np.concatenate(sds)


@pytest.mark.parametrize("name", CASES)
def test_posteriors_by_expansion_are_those_by_records(name):
    # Means may differ by 5 % of a standard deviation, and standard deviations by 3 %: that is what is promised. Draws
    # that were not reweighted are compared with themselves, weighted by what the records say: where log weights have a
    # standard deviation of 0.01, that of the difference of means is 0.01 / √4000, or 0.02 %. Others are compared with
    # 10,000 draws by records: if these are nearly independent, differences have standard deviations of 1.1 % and 0.8 %,
    # and one of 80 parameters fails with probability 1.3 % at a random seed, if there is no error at all.
    model, mechanism, count, truth = CASES[name]
    sizes, longer = np.atleast_1d(count).tolist(), LONGER.get(name, 1)
    _, data = simulator(model, mechanism, *sizes, **truth)(jax.random.key(22))
    started = time.perf_counter()
    draws, log_densities, report = fitted(model, data, expand=True, num_samples=10_000 * longer)
    between = time.perf_counter()
    print(f"\n{name}: {report}", flush=True)
    assert report["ran"] in ("expansion", "expansion, reweighted")
    if report["ran"] == "expansion":
        exact = by_weights(model, data, draws, log_densities)
        draws = exact[0]
    else:
        exact = by_records(model, data, longer)
    mean, sd = moments(*exact)
    free = sd > 1e-6  # entries of a correlation matrix's root may be fixed
    shape = next(iter(draws.values())).shape[:2]
    our_mean, our_sd = moments(draws, np.full(shape, 1 / np.prod(shape)))
    means, sds = (our_mean - mean)[free] / sd[free], our_sd[free] / sd[free] - 1
    print(f"{between - started:.0f} s by expansion, {time.perf_counter() - between:.0f} s for what it is compared with")
    print(
        f"{len(means)} means differ by {np.abs(means).max():.2g} sd, sds by {100 * np.abs(sds).max():.2g} %", flush=True
    )
    assert np.abs(means).max() < 0.05
    assert np.abs(sds).max() < 0.03
