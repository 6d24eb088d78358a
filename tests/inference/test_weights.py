"""Pseudo-posteriors of weighted surveys: their centre, their spread, and the coverage of intervals.

The references are closed forms of a share under randomized response, in logits, where draws are moved.
"""

import json
import os
import pathlib

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import special, stats

import ldpbayes as ldp
from ldpbayes.data import SamplingDesign

RESPONSE = ldp.RandomizedResponse(truth=0.75)


def draws_of(posterior, name):
    return posterior.posterior[name].values


def survey(rng, share=0.3, strata=8, clusters=4, people=10):
    """Answers of sampled clusters of which the share differs by stratum and cluster, and the sampling design."""
    stratum = np.repeat(np.arange(strata), clusters * people)
    cluster = np.repeat(np.arange(strata * clusters), people)
    sizes = np.linspace(1.0, 4.0, strata)
    logit = special.logit(share) + np.linspace(-1, 1, strata)[stratum] + rng.normal(0, 0.7, strata * clusters)[cluster]
    x = rng.random(len(stratum)) < special.expit(logit)
    z = np.where(rng.random(len(x)) < 0.75, x, ~x).astype(int)
    return z, SamplingDesign(sizes[stratum], strata=stratum, clusters=cluster)


def moments(posterior, name="theta"):
    logits = special.logit(posterior.posterior[name].values)
    return logits.mean(), logits.std()


def derivatives(theta, z, weights):
    """Score of each record and the information of all, in the logit of a share with a flat prior."""
    slope = theta * (1 - theta)

    def score(logit):
        share = special.expit(logit)
        q = np.where(z == 1, 0.25 + 0.5 * share, 0.75 - 0.5 * share)
        return weights * np.where(z == 1, 0.5, -0.5) / q * share * (1 - share)

    logit, step = special.logit(theta), 1e-5
    information = -(score(logit + step).sum() - score(logit - step).sum()) / (2 * step)
    return score(logit), information, 2 * slope  # the curvature of log θ (1 − θ), the prior of a logit


@pytest.mark.slow
def test_draws_have_the_spread_of_the_sampling_design():
    z, design = survey(np.random.default_rng(3))
    release = ldp.Release(z, RESPONSE)
    posterior = ldp.fit(ldp.models.warner(), release, weights=design, progress_bar=False)
    pseudo = ldp.fit(ldp.models.warner(), release, weights=design.weights, progress_bar=False)
    mean, sd = moments(posterior)
    scores, information, prior = derivatives(special.expit(mean), z, design.normalised)
    sums = scores.reshape(8, 4, 10).sum(axis=2)
    for fitted, spread in ((posterior, 4 / 3 * np.sum((sums - sums.mean(1, keepdims=True)) ** 2)), (pseudo, None)):
        if spread is None:  # weights alone: independent people
            spread = len(z) * np.var(scores, ddof=1)
        facts = json.loads(fitted.attrs["pseudo_posterior"])
        assert facts["largest_design_effect"] == pytest.approx((spread + prior) / (information + prior), rel=1e-4)
    plain, _ = moments(ldp.fit(ldp.models.warner(), release, progress_bar=False))
    assert abs(mean - plain) > 0.05  # weights matter here
    # the spread of 4,000 independent draws, nearly normal, is known to 2 %
    assert sd == pytest.approx(
        np.sqrt(4 / 3 * np.sum((sums - sums.mean(1, keepdims=True)) ** 2) + prior) / (information + prior), rel=0.1
    )
    assert "log_evidence" not in posterior.attrs and "A⁻¹ (J + P) A⁻¹" in facts["correction"]


def test_equal_weights_change_nothing_but_by_the_sampling_error_of_the_scores():
    z, _ = survey(np.random.default_rng(4))
    release = ldp.Release(z, RESPONSE)
    plain = draws_of(ldp.fit(ldp.models.warner(), release, progress_bar=False), "theta")
    equal = draws_of(ldp.fit(ldp.models.warner(), release, weights=np.full(len(z), 7.0), progress_bar=False), "theta")
    # scores have two values, so that their variance is the information's up to n/(n − 1), but at the mean of the draws
    np.testing.assert_allclose(equal, plain, atol=0.01)
    assert equal.std() == pytest.approx(plain.std(), rel=0.02)


@pytest.mark.slow
def test_a_factor_is_part_of_the_prior():
    z, design = survey(np.random.default_rng(3))

    def model(release, prior, factor):
        theta = numpyro.sample("theta", prior)
        numpyro.factor("of no record", 0.0 if factor is None else factor.log_prob(theta))
        ldp.observe("z", dist.Bernoulli(theta), release)

    release, beta, flat = ldp.Release(z, RESPONSE), dist.Beta(30.0, 30.0), dist.Beta(1.0, 1.0)
    as_prior, as_factor, without = (
        moments(ldp.fit(model, release, *laws, weights=design, progress_bar=False))
        for laws in ((beta, None), (flat, beta), (flat, None))
    )
    np.testing.assert_allclose(as_factor, as_prior, atol=0.01)  # of draws in other places
    assert as_prior[0] - without[0] > 0.1


def test_few_records_that_outweigh_all_others_are_said_to_be_few():
    """One record leaves no spread; two count as 320 in the pseudo-posterior, whose draws are near 0 or 1."""
    z, _ = survey(np.random.default_rng(9))
    release, places = ldp.Release(z, RESPONSE), np.arange(len(z))
    with pytest.raises(ValueError, match="spread of the pseudo-posterior cannot be corrected"):
        ldp.fit(ldp.models.warner(), release, weights=1.0 * (places == 3), progress_bar=False)
    with pytest.warns(UserWarning, match=r"320 records count as 2.0: centre and spread .* can be far off"):
        ldp.fit(ldp.models.warner(), release, weights=1.0 * (places < 2), progress_bar=False)


@pytest.mark.slow
def test_whole_weights_are_those_of_repeated_records_before_the_spread_is_corrected():
    z, _ = survey(np.random.default_rng(5))
    times = np.random.default_rng(6).integers(1, 4, len(z))
    weighted = ldp.fit(ldp.models.warner(), ldp.Release(z, RESPONSE), weights=times, progress_bar=False)
    repeated = ldp.fit(ldp.models.warner(), ldp.Release(np.repeat(z, times), RESPONSE), progress_bar=False)
    # weights of mean 1 count n records, not Σ times: the mode is the same, and means differ by the prior's pull only
    assert moments(weighted)[0] == pytest.approx(moments(repeated)[0], abs=0.05)


@pytest.mark.slow
def test_a_regression_with_an_exact_reference_and_deterministic_sites():
    """Chains of four parameters: normal records with noise, whose pseudo-posterior is normal but for its variance."""
    rng = np.random.default_rng(7)
    x, weights = rng.normal(size=(300, 4)), rng.uniform(0.5, 3.0, 300)
    clusters = np.repeat(np.arange(60), 5)
    y = x @ [1.0, -1.0, 0.5, 0.0] + rng.normal(size=60)[clusters]
    release = ldp.Release(y, ldp.GaussianMechanism.from_standard_deviation(0.5, -50.0, 50.0))

    def model(release, x):
        slopes = numpyro.sample("slopes", dist.Normal(0.0, 30.0).expand([4]).to_event(1))
        numpyro.deterministic("total", slopes.sum())
        ldp.observe("y", dist.Normal(x @ slopes, 1.0), release)

    design = SamplingDesign(weights, clusters=clusters)
    posterior = ldp.fit(model, release, x, weights=design, num_warmup=500, progress_bar=False)
    w = weights / weights.mean()
    information, prior = (x.T * w) @ x / 1.25, np.eye(4) / 900
    mean = np.linalg.solve(information + prior, x.T @ (w * y) / 1.25)
    sums = np.add.reduceat(x * (w * (y - x @ mean) / 1.25)[:, None], np.arange(0, 300, 5))
    deviations = sums - sums.mean(axis=0)
    spread, inverse = 60 / 59 * deviations.T @ deviations + prior, np.linalg.inv(information + prior)
    covariance, slopes = inverse @ spread @ inverse, draws_of(posterior, "slopes").reshape(-1, 4)
    assert np.all(np.abs(slopes.mean(0) - mean) < 5 * np.sqrt(np.diagonal(inverse) / 2000))
    np.testing.assert_allclose(slopes.std(0), np.sqrt(np.diagonal(covariance)), rtol=0.1)  # 5 errors of 2,000 draws
    np.testing.assert_allclose(draws_of(posterior, "total").ravel(), slopes.sum(axis=1), rtol=1e-9)


def test_what_a_pseudo_posterior_has_not_is_refused():
    z, design = survey(np.random.default_rng(8))
    release, model = ldp.Release(z, RESPONSE), ldp.models.warner()
    with pytest.raises(ValueError, match="weights are of 320 records, but the site has shape"):
        ldp.fit(model, release.sketch(), weights=design)
    with pytest.raises(ValueError, match="weights are of 10 records"):
        ldp.fit(model, release, weights=np.ones(10))
    with pytest.raises(ValueError, match="log_likelihood cannot be given together with weights"):
        ldp.fit(model, release, weights=design, log_likelihood=True)
    with pytest.raises(ValueError, match="weights must be non-negative"):
        ldp.fit(model, release, weights=-design.weights)
    with pytest.raises(ValueError, match="one sampled cluster"):
        ldp.fit(model, release, weights=SamplingDesign(strata=np.arange(len(z)) > 0))
    # in a census, the finite population correction would leave no spread, but answers have the mechanism's noise
    with pytest.raises(ValueError, match="cannot have population=: the finite population correction"):
        ldp.fit(model, release, weights=SamplingDesign(np.ones(len(z)), population=len(z)))


@pytest.mark.slow
def test_fewer_degrees_of_freedom_than_parameters_are_refused():
    """Of two clusters J has rank 1: the draws of two slopes would lie on a line, up to the curvature of the prior."""
    x = np.random.default_rng(10).normal(size=(60, 2))
    release = ldp.Release(x.sum(axis=1), ldp.GaussianMechanism.from_standard_deviation(0.5, -50.0, 50.0))

    def model(release, x):
        slopes = numpyro.sample("slopes", dist.Normal(0.0, 30.0).expand([2]).to_event(1))
        unused = numpyro.sample("unused", dist.Normal())  # a parameter that no record informs keeps its prior
        numpyro.deterministic("twice", 2 * unused)
        ldp.observe("y", dist.Normal(x @ slopes, 1.0), release)

    two, three = (SamplingDesign(clusters=np.arange(60) % count) for count in (2, 3))
    with pytest.raises(ValueError, match=r"1 degrees of freedom .* variance of 1 of the 2 parameters"):
        ldp.fit(model, release, x, weights=two, progress_bar=False)
    enough = ldp.fit(model, release, x, weights=three, progress_bar=False)
    assert draws_of(enough, "unused").std() == pytest.approx(1, rel=0.06)  # 5 errors of 4,000 draws


@pytest.mark.skipif("LDPBAYES_DATA" not in os.environ, reason="LDPBAYES_DATA names no folder with tables")
def test_a_complex_survey_has_the_share_and_the_error_of_weighted_totals():
    path = pathlib.Path(os.environ["LDPBAYES_DATA"]).parent / "cases" / "complex_survey.csv"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    table = np.genfromtxt(path, delimiter=",", names=True)
    design = SamplingDesign(table["weight"], strata=table["stratum"], clusters=table["cluster"])
    release = ldp.Release(table["z"].astype(int), ldp.RandomizedResponse(epsilon=np.log(3)))
    posterior = ldp.fit(ldp.models.warner(), release, weights=design, progress_bar=False)
    theta = draws_of(posterior, "theta")
    assert theta.mean() == pytest.approx(0.32625, abs=0.003)  # linearised .03258; the prior and logits shift by .001
    assert theta.std() == pytest.approx(0.03258, rel=0.05)


@pytest.mark.slow
def test_intervals_cover_the_share_of_complex_surveys():
    """500 surveys: a 95 % interval misses as often as in a 99 % band of a binomial with the stated probability.

    Of 32 clusters in 8 strata the variance is known with 24 degrees of freedom: a normal interval with the t law's
    spread covers 93.8 %, which is the stated probability.
    """
    expected = np.mean(
        special.expit(
            special.logit(0.3) + np.linspace(-1, 1, 8)[:, None] + 0.7 * special.ndtri((np.arange(2000) + 0.5) / 2000)
        ),
        axis=1,
    )
    truth = np.average(expected, weights=np.linspace(1.0, 4.0, 8))
    covered = 0
    for seed in range(500):
        z, design = survey(np.random.default_rng([9, seed]))
        posterior = ldp.fit(ldp.models.warner(), ldp.Release(z, RESPONSE), weights=design, progress_bar=False)
        low, high = np.quantile(posterior.posterior["theta"].values, [0.025, 0.975])
        covered += low < truth < high
        jax.clear_caches() if seed % 100 == 99 else None
    probability = 2 * stats.t.cdf(stats.norm.ppf(0.975), 24) - 1
    low, high = stats.binom.interval(0.99, 500, probability)
    assert low <= covered <= high, covered


def test_weights_have_the_rows_of_data_with_gaps():
    forced = ldp.mechanisms.ForcedResponse([1 / 6, 1 / 6])
    gapped = ldp.Release([0, None, 1, 1], forced, missing="drop")
    found = ldp.fit(ldp.models.warner(), gapped, weights=[1.0, 2.0, 3.0, 4.0], progress_bar=False)
    whole = ldp.fit(ldp.models.warner(), ldp.Release([0, 1, 1], forced), weights=[1.0, 3.0, 4.0], progress_bar=False)
    np.testing.assert_array_equal(draws_of(found, "theta"), draws_of(whole, "theta"))


@pytest.mark.slow
def test_weights_of_a_formula_have_the_rows_of_its_frame():
    rng = np.random.default_rng(11)
    frame = {"x": np.where(rng.random(80) < 0.1, np.nan, rng.normal(size=80)), "w": rng.uniform(1, 3, 80)}
    answers = np.where(rng.random(80) < 0.1, np.nan, rng.integers(0, 2, 80))
    kept = ~np.isnan(frame["x"]) & ~np.isnan(answers)
    parts = [(frame, answers, "drop"), ({name: column[kept] for name, column in frame.items()}, answers[kept], None)]
    draws = []
    for data, values, missing in parts:
        model = ldp.models.regression("y ~ x", family="bernoulli", missing=missing)
        release = ldp.Release(values, ldp.RandomizedResponse(truth=0.75), missing=missing)
        draws.append(draws_of(ldp.fit(model, data, release, weights=data["w"], progress_bar=False), "coefficients"))
    np.testing.assert_allclose(*draws, rtol=1e-9)
