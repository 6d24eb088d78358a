"""Estimates of surveys: against samplics, statsmodels and plain formulas on the same terms, and coverage of surveys.

The tests of coverage fix their seeds; when a seed is changed each of their bands fails by chance with probability 1e-2.
"""

import dataclasses
import functools
import os
import pathlib

import jax
import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

import ldpbayes as ldp
from ldpbayes.data import SamplingDesign
from ldpbayes.estimation import estimate_density, frequencies

RNG = np.random.default_rng(0)
STRATA, CLUSTERS = np.repeat([0, 1, 2], 200), np.repeat(np.arange(60), 10)
WEIGHTS = np.array([1.0, 2.0, 5.0])[STRATA] * RNG.uniform(0.5, 1.5, 600)
DESIGN = SamplingDesign(WEIGHTS, strata=STRATA, clusters=CLUSTERS)
DOMAIN = RNG.random(600) < 0.4
ANSWERS = RNG.integers(0, 3, 600)
EPSILONS = RNG.uniform(0.5, 3.0, 600)
MATRICES = 0.4 * RNG.dirichlet(np.ones(4), (600, 3)) + 0.6 * np.eye(3, 4)


def linearised(scores):
    """The covariance of a total of scores over 20 clusters in each of three strata."""
    sums = np.zeros((3, 20, scores.shape[1]))
    np.add.at(sums, (STRATA, CLUSTERS % 20), scores)
    deviations = sums - sums.mean(axis=1, keepdims=True)
    return 20 / 19 * np.einsum("hci,hcj->ij", deviations, deviations)


def ratio(terms, weights=WEIGHTS):
    """The weighted mean of terms, and its linearised covariance."""
    share = (weights / weights.sum())[:, None]
    mean = np.sum(share * terms, axis=0)
    return mean, linearised(share * (terms - mean))


@pytest.mark.skipif("LDPBAYES_DATA" not in os.environ, reason="LDPBAYES_DATA names no folder with tables")
def test_a_complex_survey_has_the_errors_of_samplics():
    """TaylorEstimator(PopParam.mean).estimate(y=(z - .25) / .5, samp_weight=weight, stratum=stratum, psu=cluster), with
    domain=(cluster % 3 == 0), and with fpc={0: .9, 1: .8, 2: .6}, of samplics 0.6.1.
    """
    path = pathlib.Path(os.environ["LDPBAYES_DATA"]).parent / "cases" / "complex_survey.csv"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    table = np.genfromtxt(path, delimiter=",", names=True)
    release = ldp.Release(table["z"].astype(int), ldp.RandomizedResponse(epsilon=np.log(3)))
    columns = {"strata": table["stratum"], "clusters": table["cluster"]}
    design = SamplingDesign(table["weight"], **columns)
    for method in ("unbiased", "mle"):
        whole = frequencies(release, method, sampling=design)
        np.testing.assert_allclose(whole.estimate[1], 0.32625, rtol=1e-8 if method == "unbiased" else 1e-6)
        np.testing.assert_allclose(whole.standard_error[1], 0.03257900316719991, rtol=1e-8)
        part = frequencies(release, method, sampling=design, domain=table["cluster"] % 3 == 0)
        np.testing.assert_allclose(part.estimate[1], 0.22941176470588234, rtol=1e-6)
        np.testing.assert_allclose(part.standard_error[1], 0.06776690678094607, rtol=1e-8)
    population = 20 / np.array([0.1, 0.2, 0.4])[table["stratum"].astype(int)]
    finite = frequencies(release, sampling=SamplingDesign(table["weight"], **columns, population=population))
    # samplics takes the answers as exact: the correction must not be one of the noise, (e² − e) w² times the fraction
    terms, weights = (table["z"] - 0.25) / 0.5, table["weight"] / table["weight"].sum()
    noise = np.sum(20 / population * weights**2 * (terms**2 - terms))
    np.testing.assert_allclose(finite.standard_error[1], np.sqrt(0.025777916650538413**2 + noise), rtol=1e-8)


def mechanisms():
    """Mechanisms of 600 answers, and the unbiased terms (600, 3) of answers z under them."""
    p, q = np.exp(EPSILONS) / (np.exp(EPSILONS) + 2), 1 / (np.exp(EPSILONS) + 2)
    yield (
        ldp.RandomizedResponse(epsilon=EPSILONS, categories=3),
        ANSWERS,
        lambda z: ((z[:, None] == np.arange(3)) - q[:, None]) / (p - q)[:, None],
    )
    matrix = MATRICES[0]
    # the inverse with the smallest variance for equal shares: weighted least squares of the outputs' shares
    inverse = np.linalg.inv(matrix / matrix.mean(axis=0) @ matrix.T) @ (matrix / matrix.mean(axis=0))
    yield (
        ldp.mechanisms.TransitionMatrix(matrix),
        np.where(DOMAIN & (np.arange(600) % 4 == 0), 3, ANSWERS),
        lambda z: inverse[:, z].T,
    )


@pytest.mark.parametrize("index", [0, 1], ids=["protocol", "matrix"])
def test_shares_are_ratios_of_weighted_totals(index):
    mechanism, values, terms_of = [*mechanisms()][index]
    release, terms = ldp.Release(values, mechanism), terms_of(values)
    for domain in (None, ANSWERS > 0):
        weights = WEIGHTS if domain is None else WEIGHTS * domain
        estimate, covariance = ratio(terms, weights)
        result = frequencies(release, sampling=DESIGN, domain=domain)
        np.testing.assert_allclose(result.estimate, estimate, rtol=1e-10)
        np.testing.assert_allclose(result.covariance, covariance, rtol=1e-9)
        np.testing.assert_allclose(result.standard_error, np.sqrt(np.diagonal(covariance)), rtol=1e-9)
        contrast = result.contrast([1, -1, 0])
        np.testing.assert_allclose(contrast.standard_error**2, [1, -1, 0] @ covariance @ [1, -1, 0], rtol=1e-9)
        projected = frequencies(release, "projection", sampling=DESIGN, domain=domain)
        assert projected.standard_error is None and projected.estimate.min() >= 0


def test_a_record_has_the_term_of_its_own_design():
    truth = np.random.default_rng(1).uniform(0.6, 0.9, 600)
    mechanism = ldp.mechanisms.MirroredQuestion(truth=truth)
    values = ANSWERS % 2
    estimate, covariance = ratio((values - (1 - truth))[:, None] / (2 * truth - 1)[:, None])
    result = frequencies(ldp.Release(values, mechanism), sampling=DESIGN)
    np.testing.assert_allclose(result.estimate[1], estimate[0], rtol=1e-10)
    np.testing.assert_allclose(result.covariance[1, 1], covariance[0, 0], rtol=1e-9)


@pytest.mark.parametrize("index", [0, 1], ids=["protocol", "matrix"])
def test_the_pseudo_likelihood_has_the_sandwich_of_its_scores(index):
    mechanism, values, _ = [*mechanisms()][index]
    p, q = np.exp(EPSILONS) / (np.exp(EPSILONS) + 2), 1 / (np.exp(EPSILONS) + 2)
    rows = np.where(values[:, None] == np.arange(3), p[:, None], q[:, None]) if index == 0 else MATRICES[0][:, values].T
    weights = WEIGHTS * DOMAIN / np.sum(WEIGHTS * DOMAIN)
    result = frequencies(ldp.Release(values, mechanism), "mle", sampling=DESIGN, domain=DOMAIN, tolerance=1e-10)
    theta = result.estimate
    free = np.flatnonzero(theta > 0)
    # coordinates are the positive shares but the last one
    scores = ((rows[:, free[:-1]] - rows[:, free[-1:]]).T / (rows @ theta)).T
    np.testing.assert_allclose(weights @ scores, 0.0, atol=1e-5)
    bread = np.linalg.inv((weights * scores.T) @ scores)
    expected = bread @ linearised(weights[:, None] * scores) @ bread
    np.testing.assert_allclose(result.covariance[np.ix_(free[:-1], free[:-1])], expected, rtol=1e-4)
    np.testing.assert_allclose(result.covariance[free][:, free].sum(axis=0), 0.0, atol=1e-12)


def test_sketches_with_groups_give_what_their_records_give():
    release = ldp.Release(ANSWERS, ldp.RandomizedResponse(epsilon=EPSILONS, categories=3))
    first = np.unique(CLUSTERS, return_index=True)[1]
    equal = WEIGHTS[first][CLUSTERS]
    cases = (  # a group is a cluster, or a stratum whose people were sampled one by one
        (CLUSTERS, {"strata": STRATA, "clusters": CLUSTERS}),
        (STRATA, {"strata": STRATA, "population": 500.0}),
    )
    for groups, columns in cases:
        first = np.unique(groups, return_index=True)[1]
        weights = equal[first][groups]
        arrays = {"weights": weights} | columns
        records = frequencies(release, sampling=SamplingDesign(**arrays), domain=groups != 1)
        small = {name: column if np.ndim(column) == 0 else column[first] for name, column in arrays.items()}
        sketch = release.sketch(by=groups)
        whole = frequencies(sketch, sampling=SamplingDesign(**small), domain=groups[first] != 1)
        np.testing.assert_allclose(whole.estimate, records.estimate, rtol=1e-10)
        np.testing.assert_allclose(whole.covariance, records.covariance, rtol=1e-9, atol=1e-18)


def test_without_weights_and_clusters_errors_are_those_of_independent_people():
    release = ldp.Release(ANSWERS, ldp.RandomizedResponse(epsilon=1.0, categories=3))
    plain, simple = frequencies(release), frequencies(release, domain=np.ones(600, bool))
    np.testing.assert_allclose(simple.estimate, plain.estimate, rtol=1e-10)
    np.testing.assert_allclose(simple.covariance * 599 / 600, plain.covariance, rtol=1e-9)


def test_estimates_outside_0_and_1_are_said():
    release = ldp.Release([0] * 90 + [1] * 10, ldp.RandomizedResponse(epsilon=np.log(3)))
    assert frequencies(release).estimate[1] < 0
    for result in (frequencies(release), frequencies(release, sampling=SamplingDesign(np.ones(100)))):
        assert result.summary().endswith("Outside [0, 1], since the estimate is unbiased: 0, 1")
    assert "Outside" not in frequencies(release, "projection").summary()


def test_bad_input_of_frequencies():
    release = ldp.Release(ANSWERS, ldp.RandomizedResponse(epsilon=1.0, categories=3))
    with pytest.raises(ValueError, match="has 600 entries, but the data have 10"):
        frequencies(ldp.Release(ANSWERS[:10], release.mechanism), sampling=DESIGN)
    with pytest.raises(ValueError, match="'base_cut' takes no sampling design"):
        frequencies(release, "base_cut", sampling=DESIGN)
    with pytest.raises(ValueError, match="need a release, or a sketch with groups"):
        frequencies(release.sketch(), sampling=DESIGN)
    with pytest.raises(ValueError, match="2 groups of the sketch have no records, the first is 1"):
        frequencies(release.sketch(by=np.where(CLUSTERS > 2, 3, 0)), domain=np.ones(4, bool))
    with pytest.raises(TypeError, match="sampling must be a SamplingDesign"):
        frequencies(release, sampling=WEIGHTS)
    with pytest.raises(ValueError, match="merge strata"):
        frequencies(release, sampling=SamplingDesign(strata=np.arange(600)))
    with pytest.raises(ValueError, match="at most 4096 categories"):
        many = ldp.RandomizedResponse(epsilon=12.0, categories=5000)
        frequencies(ldp.Release(ANSWERS, many), sampling=DESIGN)


# --- M-estimates ----------------------------------------------------------------------------------------------------

COVARIATES = RNG.normal(size=(600, 2)) + RNG.normal(size=60)[CLUSTERS][:, None]
RESPONSE = 1 + COVARIATES @ [0.5, -0.3] + 0.5 * RNG.normal(size=60)[CLUSTERS] + RNG.normal(size=600)
ROWS = np.column_stack([COVARIATES, RESPONSE])
DESIGN_MATRIX = sm.add_constant(COVARIATES)


@pytest.mark.parametrize("domain", [None, DOMAIN], ids=["all", "domain"])
def test_regressions_have_linearised_errors(domain):
    weights = WEIGHTS if domain is None else WEIGHTS * domain
    result = ldp.m_estimate(ldp.losses.squared(), ROWS, "oracle", sampling=DESIGN, domain=domain)
    fit = sm.WLS(RESPONSE, DESIGN_MATRIX, weights).fit()
    bread = np.linalg.inv((DESIGN_MATRIX.T * weights) @ DESIGN_MATRIX)
    covariance = bread @ linearised(DESIGN_MATRIX * (weights * fit.resid)[:, None]) @ bread
    np.testing.assert_allclose(result.params, fit.params, rtol=1e-9)
    np.testing.assert_allclose(result.covariance, covariance, rtol=1e-8)


def test_a_single_stratum_has_the_cluster_robust_errors_of_statsmodels():
    result = ldp.m_estimate(ldp.losses.squared(), ROWS, "oracle", sampling=SamplingDesign(WEIGHTS, clusters=CLUSTERS))
    fit = sm.WLS(RESPONSE, DESIGN_MATRIX, WEIGHTS).fit(
        cov_type="cluster", cov_kwds={"groups": CLUSTERS, "use_correction": False}
    )
    np.testing.assert_allclose(result.covariance, 60 / 59 * fit.cov_params(), rtol=1e-8)


def noisy_rows(key=0):
    mechanism = ldp.ZeroInflatedLaplaceMechanism(
        zero_probability=0.3, scale=1.0, lower=-6, upper=8, columns=("a", "b", "y"), perturbed=("y",)
    )
    rows = np.column_stack([COVARIATES, np.clip(RESPONSE, -6, 8)])
    return ldp.Release(np.asarray(mechanism.randomize(jax.random.key(key), rows)), mechanism)


@pytest.mark.slow
def test_a_design_of_independent_people_changes_only_the_degrees_of_freedom():
    release = noisy_rows()
    plain = ldp.m_estimate(ldp.losses.squared(), release)
    simple = ldp.m_estimate(ldp.losses.squared(), release, sampling=SamplingDesign(np.full(600, 2.0)))
    np.testing.assert_allclose(simple.params, plain.params, rtol=1e-8)
    spent = 3 * 3 + 2  # parameters of three criteria, and two functions of mean zero
    np.testing.assert_allclose(simple.covariance, plain.covariance * (600 - spent) / (599 - (spent - 3)), rtol=1e-6)


def test_results_of_designs_are_not_bootstrapped_or_updated():
    result = ldp.m_estimate(ldp.losses.squared(), ROWS, "oracle", sampling=DESIGN)
    with pytest.raises(ValueError, match="cannot be bootstrapped"):
        result.bootstrap()
    with pytest.raises(ValueError, match="cannot be updated"):
        result.update(noisy_rows())
    with pytest.raises(ValueError, match="has 600 entries, but the data have 5"):
        ldp.m_estimate(ldp.losses.squared(), ROWS[:5], "oracle", sampling=DESIGN)


# --- densities ------------------------------------------------------------------------------------------------------

NUMBERS = 5 / (1 + np.exp(-0.5 * RNG.normal(size=60)[CLUSTERS] - RNG.normal(size=600)))
NUMBER_RELEASE = ldp.Release(
    NUMBERS + RNG.laplace(scale=0.2, size=600), ldp.LaplaceMechanism(epsilon=25.0, lower=0, upper=5)
)


@functools.cache
def density(design):
    return estimate_density(NUMBER_RELEASE, knots=12, sampling=design)


@pytest.mark.slow
def test_the_mean_of_a_density_is_nearly_a_ratio_with_linearised_errors():
    """The noise is small: the mean of the law is that of the released numbers, and the penalty has little say."""
    estimate, covariance = ratio(np.asarray(NUMBER_RELEASE.values)[:, None])
    result = density(DESIGN)
    assert abs(result.estimate["mean"] - estimate[0]) < 0.1 * np.sqrt(covariance[0, 0])
    np.testing.assert_allclose(result.standard_error[0], np.sqrt(covariance[0, 0]), rtol=0.05)
    assert result.standard_error[0] > 1.5 * density(None).standard_error[0]


@pytest.mark.slow
def test_a_density_of_independent_people_is_that_without_a_design():
    plain, simple = density(None), density(SamplingDesign(np.full(600, 3.0)))
    np.testing.assert_allclose(simple.params, plain.params, rtol=1e-8)
    np.testing.assert_allclose(simple.standard_error, plain.standard_error, rtol=0.1)  # scores in place of information


@pytest.mark.slow
def test_a_density_of_a_domain_is_that_of_its_records():
    part = estimate_density(NUMBER_RELEASE, knots=12, domain=DOMAIN)
    mechanism = NUMBER_RELEASE.mechanism
    alone = estimate_density(ldp.Release(np.asarray(NUMBER_RELEASE.values)[DOMAIN], mechanism), knots=12)
    np.testing.assert_allclose(part.params, alone.params, rtol=1e-6)


def test_sketches_have_no_records_for_a_density():
    with pytest.raises(TypeError, match="need the release itself"):
        estimate_density(NUMBER_RELEASE.sketch(), sampling=DESIGN)


# --- coverage -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Population:
    """People in clusters of 60 of three strata, from which 20 clusters of each, and 15 people of each, are sampled."""

    rng: np.random.Generator

    def __post_init__(self):
        self.clusters = np.array([150, 300, 600])
        self.strata = np.repeat([0, 1, 2], self.clusters)
        effects = self.rng.normal(size=1050)
        shape = (1050, 60)
        yes = 1 / (1 + np.exp(-np.array([-1.5, -0.8, 0.2])[self.strata] - 0.7 * effects))
        self.answers = self.rng.random(shape) < yes[:, None]
        middle = np.array([-0.8, -0.3, 0.3])[self.strata] + 0.4 * effects
        self.numbers = 5 / (1 + np.exp(-middle[:, None] - self.rng.normal(size=shape)))
        self.covariates = self.rng.normal(size=shape) + 0.5 * effects[:, None]
        self.responses = np.clip(self.numbers + 0.5 * self.covariates, 0, 5)

    def survey(self):
        """Indices of the people, and the design."""
        chosen = [self.rng.choice(np.flatnonzero(self.strata == h), 20, replace=False) for h in range(3)]
        clusters = np.repeat(np.concatenate(chosen), 15)
        people = np.concatenate([self.rng.choice(60, 15, replace=False) for _ in range(60)])
        strata = self.strata[clusters]
        weights = self.clusters[strata] / 20 * 60 / 15
        return (clusters, people), SamplingDesign(weights, strata=strata, clusters=clusters)


def check_coverage(results, truth, surveys):
    """Counts of 95 % intervals with the truth are in a band of probability 99 % for each parameter."""
    estimates, errors = (np.array(part) for part in zip(*results, strict=True))
    hits = np.sum(np.abs(estimates - truth) <= stats.norm.ppf(0.975) * errors, axis=0)
    low, high = stats.binom.interval(0.99, surveys, 0.95)
    print(hits / surveys, (estimates - truth).mean(axis=0), estimates.std(axis=0), errors.mean(axis=0))
    assert np.all((low <= hits) & (hits <= high)), hits


@pytest.mark.slow
def test_intervals_of_shares_cover():
    surveys, population = 500, Population(np.random.default_rng(1))
    rng, mechanism = population.rng, ldp.RandomizedResponse(epsilon=np.log(3))
    truth = [population.answers.mean(), population.answers[population.strata > 0].mean()] * 2
    results, plain = [], 0
    for _ in range(surveys):
        people, design = population.survey()
        answers = population.answers[people]
        release = ldp.Release(np.where(rng.random(len(answers)) < 0.75, answers, ~answers).astype(int), mechanism)
        domains = (None, population.strata[people[0]] > 0)
        fits = [frequencies(release, m, sampling=design, domain=d) for m in ("unbiased", "mle") for d in domains]
        results.append(([fit.estimate[1] for fit in fits], [fit.standard_error[1] for fit in fits]))
        low, high = frequencies(release).interval()
        plain += low[1] <= truth[0] <= high[1]
    check_coverage(results, truth, surveys)
    assert plain < 0.5 * surveys  # without weights the estimate is biased


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sl", "combined"])
def test_intervals_of_regressions_cover(method):
    surveys, population = 500, Population(np.random.default_rng(1))
    lines = sm.add_constant(population.covariates.ravel())
    truth = np.linalg.lstsq(lines, population.responses.ravel())[0]
    columns = {"lower": 0, "upper": 5, "columns": ("x", "y"), "perturbed": ("y",)}
    mechanism = ldp.LaplaceMechanism(epsilon=10.0, **columns)
    if method == "combined":
        mechanism = ldp.ZeroInflatedLaplaceMechanism(zero_probability=0.3, scale=0.5, **columns)
    results = []
    for number in range(surveys):
        people, design = population.survey()
        rows = np.column_stack([population.covariates[people], population.responses[people]])
        release = ldp.Release(np.asarray(mechanism.randomize(jax.random.key(number), rows)), mechanism)
        fit = ldp.m_estimate(ldp.losses.squared(), release, method, sampling=design)
        results.append((fit.params, fit.standard_error))
    check_coverage(results, truth, surveys)


@pytest.mark.slow
def test_intervals_of_densities_cover():
    """The mean and the quartiles; quantiles in the tails have the bias of the penalty, as without a design."""
    surveys, population = 500, Population(np.random.default_rng(1))
    quartiles = ldp.functionals.quantile(np.array([0.25, 0.5, 0.75]))
    functionals = {"mean": ldp.functionals.mean, "quartiles": quartiles}
    numbers = population.numbers
    truth = [numbers.mean(), *np.quantile(numbers, [0.25, 0.5, 0.75])]
    mechanism, results = ldp.LaplaceMechanism(epsilon=10.0, lower=0, upper=5), []
    for number in range(surveys):
        people, design = population.survey()
        values = np.asarray(mechanism.randomize(jax.random.key(number), numbers[people]))
        fit = estimate_density(ldp.Release(values, mechanism), sampling=design, functionals=functionals)
        results.append((fit.params, fit.standard_error))
    check_coverage(results, truth, surveys)


def test_designs_have_the_rows_of_data_with_gaps_or_of_the_records():
    forced = ldp.mechanisms.ForcedResponse([1 / 6, 1 / 6])
    gapped = ldp.Release([0, None, 1, 1], forced, missing="drop")
    whole = ldp.Release([0, 1, 1], forced)
    expected = frequencies(whole, sampling=SamplingDesign([1.0, 3.0, 4.0]), domain=[True, True, False])
    for weights, domain in (([1.0, 2.0, 3.0, 4.0], [True, True, True, False]), ([1.0, 3.0, 4.0], [True, True, False])):
        found = frequencies(gapped, sampling=SamplingDesign(weights), domain=domain)
        np.testing.assert_allclose(found.covariance, expected.covariance)
    totals = ldp.Release([0, 1], forced, count=[20, 80])
    simple = frequencies(totals, sampling=SamplingDesign([1.0, 1.0]))
    np.testing.assert_allclose(simple.standard_error**2 * 99 / 100, frequencies(totals).standard_error ** 2)
    with pytest.raises(ValueError, match="has 2 entries, but the data have 3"):
        frequencies(gapped, sampling=SamplingDesign([1.0, 2.0]))


def test_a_census_keeps_the_noise_of_its_answers():
    """All 2,000 people of two strata: p (1 − p)/(2 p − 1)² Σ w² is left, for 40 draws of the answers (5 errors)."""
    truth, strata = np.arange(2000) % 3 == 0, np.arange(2000) // 1500
    weights = np.where(strata, 3.0, 1.0)
    design = SamplingDesign(weights, strata=strata, population=np.where(strata, 500.0, 1500.0))
    exact, stated = 0.1875 / 0.25 * np.sum(weights**2) / np.sum(weights) ** 2, []
    for seed in range(40):
        z = np.where(np.random.default_rng([6, seed]).random(2000) < 0.75, truth, ~truth).astype(int)
        stated.append(frequencies(ldp.Release(z, ldp.RandomizedResponse(truth=0.75)), sampling=design).covariance[1, 1])
    assert abs(np.mean(stated) - exact) < 5 * np.std(stated) / 40**0.5 + 1e-12 * exact
    whole = SamplingDesign(np.ones(600), population=900.0)
    for estimate in (
        lambda: frequencies(ldp.Release(z, ldp.RandomizedResponse(truth=0.75)), "mle", sampling=design),
        lambda: estimate_density(NUMBER_RELEASE, sampling=whole),
        lambda: ldp.m_estimate(
            ldp.losses.squared(), noisy_rows(), sampling=SamplingDesign(np.ones(600), population=900)
        ),
    ):
        with pytest.raises(ValueError, match="would remove noise, too"):
            estimate()
