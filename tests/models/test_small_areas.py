import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.stats import binom

import ldpbayes as ldp
from ldpbayes.mechanisms.reporting import Incomplete, Withheld
from ldpbayes.models import small_areas
from ldpbayes.models._coordinates import FlatPositive, pooled_gamma

STATES, COUNTIES = 4, 60
NOISE = ldp.DiscreteGaussianMechanism(scale=10.0)
PRIORS = {"intercept": dist.Normal(-3.0, 0.5), "spread": dist.HalfNormal(0.5)}
RNG = np.random.default_rng(3)
KEYS = {"state": np.repeat(list("ABCD"), COUNTIES // STATES), "county": [f"c{i}" for i in range(COUNTIES)]}
EXPOSURE = np.rint(np.exp(RNG.normal(6.5, 0.8, COUNTIES)))
COUNTS = RNG.poisson(EXPOSURE * np.exp(RNG.normal(-3, 0.5, COUNTIES)))
TABLE = ldp.NoisyTable(COUNTS + np.rint(RNG.normal(0, 10, COUNTIES)).astype(int), NOISE, keys=KEYS)
SHORT = {"num_warmup": 200, "num_samples": 200, "num_chains": 2, "progress_bar": False}


def fitted(model, table, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ldp.inference.ConvergenceWarning)  # the chains are short
        return ldp.fit(model, table, **(SHORT | options))


def log_density(model, table, values):
    with jax.enable_x64(True):
        density = jax.jit(lambda values: numpyro.infer.util.log_density(model, (table,), {}, values)[0])
        return float(density(values))


VALUES = {
    "intercept": np.array(-2.7),
    "slopes": np.array([0.3]),
    "spread_state": np.array(0.4),
    "spread_county": np.array(0.6),
    "concentration": np.array(5.0),
    "effect_state": np.linspace(-3.2, -2.5, STATES),
    "effect": np.linspace(-4.0, -2.0, COUNTIES),
}
COVARIATES = np.linspace(-1, 1, COUNTIES)[:, None]


@pytest.mark.parametrize("response", ["negative_binomial", "binomial"])
def test_the_log_density_is_that_of_the_model_written_out(response):
    def written(table):
        mean, slopes = (
            numpyro.sample("intercept", dist.Normal(0, 5)),
            numpyro.sample("slopes", dist.Normal(0, jnp.ones(1))),
        )
        between = numpyro.sample("spread_state", dist.HalfNormal(1))
        states = numpyro.sample("effect_state", dist.Normal(mean, between).expand([STATES]))
        center = states[np.repeat(np.arange(STATES), COUNTIES // STATES)] + COVARIATES @ slopes
        if response == "negative_binomial":
            k = numpyro.sample("concentration", dist.Gamma(2, 0.1))
            log_g = numpyro.sample("effect", dist.ImproperUniform(dist.constraints.real, (COUNTIES,), ())) - center
            numpyro.factor("gamma", dist.Gamma(k, k).log_prob(jnp.exp(log_g)) + log_g)
            effect = log_g + center
        else:
            effect = numpyro.sample("effect", dist.Normal(center, numpyro.sample("spread_county", dist.HalfNormal(1))))
        binomial = dist.BinomialLogits(effect, EXPOSURE.astype(int))
        ldp.observe("z", binomial if response == "binomial" else dist.Poisson(EXPOSURE * jnp.exp(effect)), table)

    values = {
        k: v
        for k, v in VALUES.items()
        if k != ("spread_county" if response == "negative_binomial" else "concentration")
    }
    model = small_areas(EXPOSURE, COVARIATES, response)
    np.testing.assert_allclose(log_density(model, TABLE, values), log_density(written, TABLE, values), rtol=1e-10)


@pytest.mark.slow
def test_gamma_rates_make_counts_negative_binomial():
    k, size = 3.0, 40_000
    with jax.enable_x64(True):
        law = pooled_gamma(jnp.zeros(size), k, jnp.zeros(size), jnp.zeros(size))
        rates = 7.0 * np.exp(law.sample(jax.random.key(0)))
        np.testing.assert_allclose(law.log_prob(0.3)[0], stats.loggamma(k, scale=1).logpdf(0.3 + np.log(k)), rtol=1e-12)
    counts = np.random.default_rng(0).poisson(rates)
    # Chi-square of 25 cells at a level of 1e-3; the seed is fixed.
    expected = stats.nbinom(k, k / (k + 7.0)).pmf(np.arange(24)) * size
    observed = np.bincount(counts, minlength=24)[:24]
    rest = size - expected.sum()
    chi = np.sum((observed - expected) ** 2 / expected) + (size - observed.sum() - rest) ** 2 / rest
    assert chi < stats.chi2(24).ppf(0.999)


def test_areas_have_their_labels_and_a_missing_count_has_a_rate():
    values = TABLE.values.astype(float)
    values[7] = np.nan
    table = ldp.NoisyTable(values, Incomplete(NOISE), keys=KEYS)
    result = fitted(small_areas(EXPOSURE, **PRIORS), table)
    posterior = result["posterior"]
    assert list(posterior["state"].values) == list("ABCD")
    assert posterior["rate"].dims == ("chain", "draw", "cell") and posterior["cell"].values[0] == "A, c0"
    rates = posterior["rate"].stack(sample=("chain", "draw"))
    others = np.delete(rates.std("sample").values / rates.mean("sample").values, 7)
    assert rates.std("sample").values[7] / rates.mean("sample").values[7] > np.median(others)
    assert '"ran": "tables"' in result.attrs["expansion"]
    assert result.attrs["uncertainty"].startswith("of the population")


@pytest.mark.slow
def test_a_noisy_exposure_widens_the_rates():
    exposure = ldp.NoisyTable(EXPOSURE + 60.0, ldp.LaplaceMechanism.from_scale(80.0, sensitivity=1), keys=KEYS)
    model = small_areas(exposure, **PRIORS)
    values = {k: VALUES[k] for k in ("intercept", "spread_state", "spread_county", "effect_state", "effect")}
    with_exposure = log_density(model, TABLE, values | {"exposure": EXPOSURE})
    public = float(log_density(small_areas(EXPOSURE, **PRIORS), TABLE, values))
    noise = stats.laplace(scale=80.0).logpdf(60.0) * COUNTIES
    np.testing.assert_allclose(with_exposure, public + noise, rtol=1e-10)
    posterior = fitted(model, TABLE)["posterior"]
    sd = float(posterior["exposure"].std(("chain", "draw")).mean())
    assert 40 < sd < 113  # the noise has 113, and the counts tell a little
    law = FlatPositive(jnp.ones(3), jnp.ones(3))
    assert law.log_prob(jnp.ones(3)).shape == (3,)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"exposure": np.ones(3)}, r"exposure must be a number, or one for each cell \(here 60\), got shape \(3,\)"),
        ({"exposure": -1.0}, "exposure must be positive and finite, got -1.0"),
        (
            {"exposure": 10.5, "response": "binomial"},
            "exposure must be whole and positive, numbers of trials, got 10.5",
        ),
        (
            {"covariates": np.ones((3, 1))},
            r"covariates must be finite numbers \(cells, d\), here of 60 cells; got shape",
        ),
        ({"response": "normal"}, "response must be poisson, negative_binomial or binomial, got 'normal'"),
        ({"exposure": TABLE, "response": "binomial"}, "a binomial response needs the number of trials"),
    ],
)
def test_bad_input_is_refused_before_any_work(options, error):
    with pytest.raises(ValueError, match=error):
        ldp.fit(small_areas(**options), TABLE)


def simulated(seed, threshold=None):
    """Parameters from the prior, a table, and the law of the cells."""
    rng = np.random.default_rng(seed)
    intercept, between, within = rng.normal(-3, 0.5), *np.abs(rng.normal(0, 0.5, 2))
    states = rng.normal(intercept, between, STATES)
    rate = np.exp(rng.normal(np.repeat(states, COUNTIES // STATES), within))
    z = rng.poisson(EXPOSURE * rate) + np.asarray(NOISE.noise.sample(jax.random.key(seed), (COUNTIES, 1), float))[:, 0]
    mechanism = NOISE
    if threshold is not None:
        z, mechanism = np.where(z < threshold, np.nan, z), Withheld(NOISE, threshold)
    return {
        "rate": rate,
        "total": EXPOSURE * rate,
        "intercept": intercept,
        "spread_state": between,
        "spread_county": within,
    }, (ldp.NoisyTable(z, mechanism, keys=KEYS))


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [None, 20.0], ids=["all reported", "withheld below 20"])
def test_intervals_cover_rates_and_totals_of_tables_from_the_prior(threshold):
    # 200 tables: central 90 % intervals of each hyperparameter, of one cell's rate and of the total of all, in 99 %
    # binomial bands (four of them together: error rate at most 4 % at a random seed; the seeds are fixed).
    replicates, covered, biased = 200, {}, []
    model = small_areas(EXPOSURE, **PRIORS)
    for seed in range(replicates):
        truth, table = simulated(seed, threshold)
        posterior = fitted(model, table, seed=seed, num_warmup=300, num_samples=300)["posterior"]
        cell = seed % COUNTIES
        checks = {name: (truth[name], posterior[name]) for name in ("intercept", "spread_state", "spread_county")}
        checks["rate"] = truth["rate"][cell], posterior["rate"][..., cell]
        checks["total"] = truth["total"].sum(), posterior["total"].sum("cell")
        for name, (value, draws) in checks.items():
            low, high = np.quantile(draws, [0.05, 0.95])
            covered[name] = covered.get(name, 0) + int(low <= value <= high)
        if threshold is not None and seed < 50:
            reported = np.isfinite(table.values)
            part = ldp.NoisyTable(
                table.values[reported].astype(int), NOISE, keys={k: np.asarray(v)[reported] for k, v in KEYS.items()}
            )
            rates = fitted(small_areas(EXPOSURE[reported], **PRIORS), part, seed=seed)["posterior"]["intercept"]
            biased.append(np.quantile(rates, 0.05) <= truth["intercept"])
    low, high = binom.interval(0.99, replicates, 0.9)
    print(
        f"threshold {threshold}: {covered} of {replicates}, band {low}..{high}; without the withheld: {np.mean(biased)}"
    )
    assert all(low <= count <= high for count in covered.values())
    # Where withheld cells are left out, intercepts are too high: their lower ends exceed the truth in more than 5 %.
    assert threshold is None or np.mean(biased) < 0.8


def test_a_noisy_exposure_is_matched_by_key_whatever_the_order_of_its_rows():
    mechanism, order = ldp.DiscreteGaussianMechanism(scale=5.0), np.array([2, 0, 1])
    names, people = np.array(["a", "b", "c"]), np.array([400, 500, 600])
    cases = ldp.NoisyTable([30, 40, 50], mechanism, keys={"county": names})
    other = ldp.NoisyTable(people[order], mechanism, keys={"county": names[order]})
    given = numpyro.handlers.substitute(small_areas(exposure=other), {"exposure": people * 1.0})

    @jax.jit
    def of_observed_sites(key):
        sites = numpyro.handlers.trace(numpyro.handlers.seed(given, key)).get_trace(cases).values()
        return [site["value"] for site in sites if site.get("is_observed")]

    observed = [np.asarray(value).tolist() for value in of_observed_sites(jax.random.key(0))]
    assert people.tolist() in observed and people[order].tolist() not in observed


PART = {"keys": ["state", "page"], "noise": "discrete_gaussian", "scale": 10.0, "threshold": 91, "privacy": "Stated."}
FRAME = {"state": ["a", "a", "b", "b"], "page": ["p", "q", "r", "s"], "n": [95, 131, 92, 91]}


@pytest.mark.slow
@pytest.mark.parametrize("response", ["poisson", "negative_binomial"])
def test_effects_of_published_cells_have_the_law_of_all_cells(response):
    """The likelihood is that of all cells, over the probability that a cell is published, by sums and quadrature."""
    table = ldp.NoisyTable.from_frame(FRAME, "n", unpublished="unknown", **PART)
    plain = ldp.NoisyTable(table.values, table.mechanism.mechanism, keys=table.keys)
    exposure, gamma, states = np.array([1.0, 2.0, 1.0, 1.0]), response == "negative_binomial", np.array([4.3, 3.0])
    values = {"intercept": 4.0, "spread_state": 0.5, "effect_state": states, "effect": np.array([4.4, 4.2, 4.5, 4.1])}
    values |= {"concentration": 3.0} if gamma else {"spread_page": 0.4}
    k, noise = np.arange(3000), np.arange(-150, 151)
    power = np.exp(-(noise**2) / 200)
    tail = np.append(np.cumsum(power[::-1])[::-1] / power.sum(), 0.0)[np.clip(91 - k + 150, 0, 301)]

    def published(rate):
        return tail @ stats.poisson(rate).pmf(k)

    def log_published(loc):
        if gamma:
            return np.log(tail @ stats.nbinom(3.0, 3.0 / (3.0 + np.exp(loc))).pmf(k))
        nodes = loc + 0.4 * np.linspace(-9, 9, 1441)  # which for such functions is exact to rounding
        return np.log(stats.norm(loc, 0.4).pdf(nodes) @ [published(rate) for rate in np.exp(nodes)] * 0.4 / 80)

    cells = [(states[0], 1.0), (states[0], 2.0), (states[1], 1.0), (states[1], 1.0)]
    want = -sum(log_published(loc + np.log(size)) for loc, size in cells)
    model = small_areas(exposure, response=response)
    with jax.enable_x64(True):
        found = log_density(model, table, values) - log_density(model, plain, values)
    assert found == pytest.approx(want, rel=1e-9)


@pytest.mark.slow
def test_a_number_of_cells_that_were_not_published_counts():
    frame = {"page": FRAME["page"], "n": FRAME["n"]}
    table = ldp.NoisyTable.from_frame(frame, "n", unpublished=20, **PART | {"keys": "page"})
    values = {"intercept": 4.0, "spread_page": 0.4, "effect": np.array([4.4, 4.2, 4.5, 4.1])}
    densities = {}
    with jax.enable_x64(True):
        unknown = ldp.NoisyTable.from_frame(frame, "n", unpublished="unknown", **PART | {"keys": "page"})
        plain = ldp.NoisyTable(table.values, table.mechanism.mechanism, keys=table.keys)
        for name, each in (("20", table), ("unknown", unknown), ("plain", plain)):
            densities[name] = float(log_density(small_areas(), each, values))
    log_p = (densities["plain"] - densities["unknown"]) / 4
    assert densities["20"] - densities["plain"] == pytest.approx(20 * np.log1p(-np.exp(log_p)), rel=1e-10)


@pytest.mark.parametrize(
    ("unpublished", "options", "error"),
    [
        ("unknown", {"exposure": 200, "response": "binomial"}, "needs a Poisson or negative binomial response"),
        pytest.param(
            20,
            {"exposure": np.array([1.0, 2, 1, 1])},
            "can be counted only without larger areas, covariates",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_parts_of_tables_that_no_law_describes_are_refused(unpublished, options, error):
    table = ldp.NoisyTable.from_frame(FRAME, "n", unpublished=unpublished, **PART)
    with pytest.raises(ValueError, match=error):
        ldp.fit(small_areas(**options), table)
