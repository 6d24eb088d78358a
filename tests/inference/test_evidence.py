"""The evidence of an integrated posterior against closed forms, and posteriors that have no finite integral."""

import math

import jax.numpy as jnp
import mpmath
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import special, stats

import ldpbayes as ldp
from ldpbayes import models
from tests.inference.integrals import integral_of

UNBOUNDED = {"sensitivity": math.inf}


def test_evidence_of_a_beta_prior_and_randomized_answers():
    """A product of sums over the true answers, each term of which is a beta integral."""
    yes, no, a, b = 21, 38, 0.7, 2.5
    keep = mpmath.exp(mpmath.mpf("0.8")) / (1 + mpmath.exp(mpmath.mpf("0.8")))
    lie = 1 - keep
    exact = mpmath.log(
        mpmath.fsum(
            mpmath.binomial(yes, i)
            * keep**i
            * lie ** (yes - i)
            * mpmath.binomial(no, j)
            * lie**j
            * keep ** (no - j)
            # i + j people have "yes" as their true answer
            * mpmath.beta(a + i + j, b + yes + no - i - j)
            for i in range(yes + 1)
            for j in range(no + 1)
        )
        / mpmath.beta(a, b)
    )
    release = ldp.Release((np.arange(yes + no) < yes).astype(int), ldp.RandomizedResponse(epsilon=0.8))
    for data in (release, release.sketch()):
        found = integral_of(models.warner(theta=dist.Beta(a, b)), data).log_evidence
        assert found == pytest.approx(float(exact), abs=1e-6)


def normal_law(release):
    ldp.observe("z", dist.Normal(numpyro.sample("mu", dist.Normal(1, 2)), 1.5), release)


def test_evidence_of_a_normal_mean_under_gaussian_noise(rng):
    """Released values are jointly normal: they share the mean, and have their own deviations and noise."""
    z = rng.normal(2, 2, 7)
    covariance = (1.5**2 + 0.8**2) * np.eye(7) + 2**2
    exact = stats.multivariate_normal.logpdf(z, np.full(7, 1.0), covariance)
    release = ldp.Release(z, ldp.GaussianMechanism.from_standard_deviation(0.8, **UNBOUNDED))
    assert integral_of(normal_law, release).log_evidence == pytest.approx(exact, abs=1e-6)


def test_evidence_of_an_improper_prior_whose_posterior_is_proper(rng):
    """With a density of 1 everywhere as prior of a mean, the integral over the mean is a normal density, too."""

    def model(release):
        mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
        ldp.observe("z", dist.Normal(mu, 1.5), release)

    z, variance = rng.normal(2, 2, 5), 1.5**2 + 0.8**2
    exact = stats.norm.logpdf(z, z.mean(), math.sqrt(variance)).sum() + math.log(2 * math.pi * variance / 5) / 2
    release = ldp.Release(z, ldp.GaussianMechanism.from_standard_deviation(0.8, **UNBOUNDED))
    assert integral_of(model, release).log_evidence == pytest.approx(exact, abs=1e-6)


def test_evidence_of_two_noisy_counts_with_gamma_rates():
    """Given the law of its rate, a count is negative binomial, and noise is added in a sum over counts."""

    def model(release):
        with numpyro.plate("cell", 2):
            rate = numpyro.sample("rate", dist.Gamma(1.5, 0.05))
        ldp.observe("z", dist.Poisson(rate), release)

    z, n, scale = np.array([-3, 41]), np.arange(3000), 6.0
    noise = np.exp(-np.abs(z[:, None] - n) / scale) * np.tanh(0.5 / scale)
    exact = np.log(noise @ stats.nbinom.pmf(n, 1.5, 0.05 / 1.05)).sum()
    release = ldp.Release(z, ldp.DiscreteLaplaceMechanism(scale=scale))
    assert integral_of(model, release).log_evidence == pytest.approx(exact, abs=1e-6)


def test_evidence_of_three_shares_under_randomized_response():
    """A nested sum over the numbers of true answers of each category that were kept."""
    counts, concentrations = np.array([9, 14, 5]), np.array([0.8, 1.0, 2.0])
    other = 1 / (math.exp(1.2) + 2)
    i = np.stack(np.meshgrid(*(np.arange(count + 1) for count in counts), indexing="ij"), axis=-1)
    # the probability of a released value z is `other` plus (keep − other) times the share of z
    log_choices = special.gammaln(counts + 1) - special.gammaln(i + 1) - special.gammaln(counts - i + 1)
    log_terms = log_choices + i * math.log(other * math.expm1(1.2)) + (counts - i) * math.log(other)
    log_moments = special.gammaln(concentrations + i) - special.gammaln(concentrations)
    total, drawn = concentrations.sum(), i.sum(axis=-1)
    log_total = special.gammaln(total + drawn) - special.gammaln(total)
    exact = special.logsumexp((log_terms + log_moments).sum(axis=-1) - log_total)
    release = ldp.Release(np.repeat(np.arange(3), counts), ldp.RandomizedResponse(epsilon=1.2, categories=3))
    model = models.oue_histogram(theta=dist.Dirichlet(jnp.asarray(concentrations)))
    assert integral_of(model, release.sketch()).log_evidence == pytest.approx(exact, abs=1e-6)


def test_one_randomized_answer_does_not_make_log_odds_proper():
    """The likelihood has positive limits at both ends."""

    def model(release):
        a = numpyro.sample("a", dist.ImproperUniform(dist.constraints.real, (), ()))
        ldp.observe("z", dist.Bernoulli(logits=a), release)

    release = ldp.Release([1], ldp.RandomizedResponse(epsilon=1.0))
    for data in (release, release.sketch()):
        with pytest.raises(ValueError, match=r"posterior is improper.*Give every parameter a proper prior"):
            ldp.fit(model, data, progress_bar=False)


def test_one_value_does_not_make_a_location_and_a_scale_proper():
    """The likelihood falls as one divided by the scale, at all locations up to this far."""

    def model(release):
        mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
        sigma = numpyro.sample("sigma", dist.ImproperUniform(dist.constraints.positive, (), ()))
        ldp.observe("z", dist.Normal(mu, sigma), release)

    noise = ldp.GaussianMechanism.from_standard_deviation(1.0, **UNBOUNDED)
    with pytest.raises(ValueError, match="improper"):
        ldp.fit(model, ldp.Release([1.3], noise), progress_bar=False)
