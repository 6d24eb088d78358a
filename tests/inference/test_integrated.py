"""`fit` without chains: posteriors of few parameters are integrated."""

import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import integrate, special, stats

import ldpbayes as ldp
from ldpbayes.models import clipped_gaussian, warner
from ldpbayes.numerics.cubature import NotIntegrable
from tests import posteriors
from tests.inference.integrals import integral_of

QUIET = {"progress_bar": False}
RESPONSE = ldp.RandomizedResponse(1.1)


def log_odds(release):
    ldp.observe("z", dist.Bernoulli(logits=numpyro.sample("t", dist.Normal(-2, 8))), release)


def draws(posterior, name):
    return posterior["posterior"][name].values


def integral(posterior):
    return json.loads(posterior.attrs["integral"])


@pytest.mark.parametrize("yes", [961, 997])
def test_a_flat_tail_that_chains_miss_is_inside(yes):
    """A log-odds whose estimate is 3.4 or 4.6 standard errors above 0: probabilities of its tail by quadrature."""
    posterior = ldp.fit(log_odds, ldp.Release(np.arange(3500) < yes, RESPONSE).sketch(), num_samples=5000, **QUIET)
    truth = np.e**1.1 / (1 + np.e**1.1)

    def density(t):
        share = (1 - truth) + (2 * truth - 1) * special.expit(t)
        best = (yes / 3500 * np.log(yes / 3500) + (1 - yes / 3500) * np.log(1 - yes / 3500)) * 3500
        return np.exp(yes * np.log(share) + (3500 - yes) * np.log1p(-share) - best) * stats.norm.pdf(t, -2, 8)

    total, ends = integrate.quad(density, -60, 10, limit=500, points=[-3])[0], [-30, -12, -6, -4, -3]
    flat = draws(posterior, "t").ravel()
    for end in ends:  # five standard errors of independent draws: a false alarm in 1e5
        expected = integrate.quad(density, -60, end, limit=500)[0] / total
        assert abs(np.mean(flat < end) - expected) < 5 * np.sqrt(expected / len(flat)) + 1e-6
    facts = integral(posterior)
    assert facts["ran"] == "integral" and facts["total_variation"] < 1e-6 and facts["evaluations"] < 2000
    assert json.loads(posterior.attrs["convergence_warnings"]) == []


@pytest.mark.parametrize("a", [0.5, 1.0])
def test_a_share_at_the_edge_of_its_prior_needs_no_warning(a, recwarn):
    def model(release):
        ldp.observe("z", dist.Bernoulli(numpyro.sample("p", dist.Beta(a, a))), release)

    mechanism = ldp.RandomizedResponse(1.0)
    p = draws(ldp.fit(model, ldp.Release(np.arange(400) < 107, mechanism).sketch(), **QUIET), "p").ravel()
    noise = 1 / (1 + np.e)
    x = np.linspace(0, 1, 200_001)[1:-1]
    share = noise + (1 - 2 * noise) * x
    weights = np.exp(107 * np.log(share) + 293 * np.log1p(-share) + stats.beta.logpdf(x, a, a) + 230)
    cdf = np.cumsum(weights) / weights.sum()  # of a grid: wrong by 1e-3 beside the pole of Beta(.5, .5)
    assert stats.kstest(p, lambda at: np.interp(at, x, cdf)).statistic < 1.95 / len(p) ** 0.5 + 1e-3  # one in 1,000
    assert not [each for each in recwarn if issubclass(each.category, ldp.LdpBayesWarning)]


def test_draws_are_independent_and_depend_on_the_seed_alone():
    sketch = ldp.Release(np.arange(1000) < 430, RESPONSE).sketch()
    first, again, other = (ldp.fit(warner(), sketch, seed=seed, **QUIET) for seed in (0, 0, 1))
    theta = draws(first, "theta")
    np.testing.assert_array_equal(theta, draws(again, "theta"))
    assert np.all(theta != draws(other, "theta"))
    assert len(np.unique(theta)) == theta.size  # no two chains are alike
    np.testing.assert_array_equal(draws(ldp.fit(warner(), sketch, num_chains=2, **QUIET), "theta"), theta[:2])
    standard = (theta - theta.mean()) / theta.std()
    for lag in (1, 2, 10):  # five standard errors
        assert abs(np.mean(standard[:, lag:] * standard[:, :-lag])) < 5 / theta.size**0.5
    keep = np.e**1.1 / (1 + np.e**1.1)
    yes = keep * theta + (1 - keep) * (1 - theta)
    # with the Jacobian of the logit; the prior is uniform
    expected = 430 * np.log(yes) + 570 * np.log1p(-yes) + np.log(theta) + np.log1p(-theta)
    np.testing.assert_allclose(first["sample_stats"]["lp"], expected, atol=1e-4)


def test_draws_of_other_data_are_other_draws():
    """Correlation of the shares of two independent releases by fits with one seed: five standard errors."""
    releases = [ldp.Release(np.arange(1000) < yes, RESPONSE).sketch() for yes in (430, 510)]
    first, second = (draws(ldp.fit(warner(), each, **QUIET), "theta").ravel() for each in releases)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / len(first) ** 0.5


def test_a_method_for_chains_gives_chains():
    """So do a kernel and its options: `test_fit.py` fits with them."""
    posterior = posteriors.vectorised().posterior
    assert integral(posterior) == {"ran": "chains", "why": "a kernel or its options were given"}
    assert "n_steps" in posterior["sample_stats"] and "log_evidence" not in posterior.attrs


def test_what_is_not_integrated_says_why():
    """So does a model of four parameters: `test_fit.py` fits one."""
    release = ldp.Release(np.arange(40) % 2, RESPONSE)

    def heavy(release):
        t = numpyro.sample("t", dist.StudentT(0.3, 0, 1))
        ldp.observe("z", dist.Bernoulli(logits=0.01 * jnp.tanh(t)), release)

    def undefined(release):
        t = numpyro.sample("t", dist.Normal(0, 1))
        numpyro.factor("known", jnp.where(t > 1, jnp.nan, 0.0))
        ldp.observe("z", dist.Bernoulli(logits=t), release)

    with pytest.raises(NotIntegrable, match="undefined"):
        integral_of(undefined, release)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ldp.inference.ConvergenceWarning)  # the chains are short
        posterior = ldp.fit(heavy, release, num_warmup=50, num_samples=50, num_chains=1, **QUIET)
    assert integral(posterior)["ran"] == "chains" and "too heavy" in integral(posterior)["why"]
    assert "log_evidence" not in posterior.attrs


def test_mass_where_numbers_end_is_an_error():
    """A prior 1 / (p (1 − p)) of a share makes the posterior of randomized answers improper."""

    def haldane(release):
        share = numpyro.sample("share", dist.ImproperUniform(dist.constraints.unit_interval, (), ()))
        numpyro.factor("prior", -jnp.log(share) - jnp.log1p(-share))
        ldp.observe("z", dist.Bernoulli(share), release)

    with pytest.raises(ValueError, match="improper"):
        ldp.fit(haldane, ldp.Release(np.array([0, 1, 1]), RESPONSE), **QUIET)


PRIORS = {
    "no mean": lambda: dist.InverseGamma(1.0, 1.0),
    "no moments": lambda: dist.Cauchy(0, 1),
    "matrix": lambda: dist.LKJ(2, 1.0),
    "vector": lambda: dist.Normal(0, 1).expand([2]).to_event(1),
}


@pytest.mark.parametrize("kind", PRIORS)
def test_priors_of_all_kinds_are_integrated(kind):
    posterior = ldp.fit(lambda: numpyro.sample("x", PRIORS[kind]()), **QUIET)
    assert integral(posterior)["ran"] == "integral"
    assert abs(posterior.attrs["log_evidence"]) < 1e-5


def test_a_masked_prior_has_no_evidence():
    def model(release):
        mean = numpyro.sample("mean", dist.Normal(0, 1).mask(False))
        ldp.observe("z", dist.Delta(mean), release)

    release = ldp.Release(np.array([3.0]), ldp.GaussianMechanism(1.0, 1e-6, sensitivity=1.0))
    assert "log_evidence" not in ldp.fit(model, release, **QUIET).attrs


def test_a_model_that_takes_one_point_at_a_time_is_integrated():
    def model():
        x = numpyro.sample("x", dist.Normal(0, 1))
        square = jax.pure_callback(lambda each: np.asarray(each) ** 2, jax.ShapeDtypeStruct((), x.dtype), x)
        numpyro.factor("likelihood", -0.5 * square)

    posterior = ldp.fit(model, num_samples=10, **QUIET)
    assert abs(posterior.attrs["log_evidence"] + 0.5 * np.log(2)) < 1e-6


def test_an_improper_prior_has_a_posterior_but_no_evidence():
    def flat(release):
        mean = numpyro.sample("mean", dist.ImproperUniform(dist.constraints.real, (), ()))
        ldp.observe("z", dist.Delta(mean), release)

    mechanism = ldp.GaussianMechanism(1.0, 1e-6, sensitivity=1.0)
    posterior = ldp.fit(flat, ldp.Release(np.array([3.0]), mechanism), **QUIET)
    assert integral(posterior)["ran"] == "integral" and "log_evidence" not in posterior.attrs
    standard = (draws(posterior, "mean").ravel() - 3) / mechanism.scale
    assert stats.kstest(standard, "norm").pvalue > 1e-4


def test_the_evidence_of_a_share_is_that_of_a_sum_of_beta_functions():
    """Uniform prior: p(z) = ∫ (q + (1 − 2q)θ)^k (1 − q − (1 − 2q)θ)^(n−k) dθ, an incomplete beta function."""
    yes, count = 430, 1000
    sketch = ldp.Release(np.arange(count) < yes, RESPONSE).sketch()
    noise = 1 / (1 + np.e**1.1)
    law = stats.beta(yes + 1, count - yes + 1)
    inside = law.cdf(1 - noise) - law.cdf(noise)
    expected = special.betaln(yes + 1, count - yes + 1) + np.log(inside) - np.log(1 - 2 * noise)
    for data in (sketch, ldp.Release(np.arange(count) < yes, RESPONSE)):
        posterior = ldp.fit(warner(), data, num_samples=10, **QUIET)
        assert abs(posterior.attrs["log_evidence"] - expected) < 1e-6
        assert posterior.attrs["log_evidence_error"] < 1e-6


@pytest.mark.slow
def test_the_evidence_of_an_expansion_is_that_of_the_records():
    rng = np.random.default_rng(0)
    mechanism = ldp.LaplaceMechanism(2.0, -5, 5)
    release = ldp.Release(np.clip(rng.normal(1, 2, 1500), -5, 5) + rng.laplace(0, 5, 1500), mechanism)
    exact, sketched, expanded = (
        ldp.fit(clipped_gaussian(), release, num_samples=200, expand=expand, **QUIET) for expand in (False, None, True)
    )
    for other in (sketched, expanded):
        tolerance = sum(each.attrs["log_evidence_error"] for each in (exact, other))
        assert abs(exact.attrs["log_evidence"] - other.attrs["log_evidence"]) < tolerance < 0.2


def test_coarse_sketches_are_compared_and_replaced():
    release = ldp.Release(np.linspace(-9, 9, 2001), ldp.LaplaceMechanism(4.0, -5, 5))
    posterior = ldp.fit(clipped_gaussian(), release.sketch(), num_samples=100, **QUIET)
    (certificate,) = json.loads(posterior.attrs["certificates"])
    assert certificate["error_nats"] < 1e-3 and integral(posterior)["ran"] == "integral"


def test_nonsense_far_from_the_prior_is_no_mode():
    """A density that is rounded to 10⁶ nats where a share is a difference of numbers that are far too large."""

    def model(release):
        mean = numpyro.sample("mean", dist.LogNormal(0, 2))
        numpyro.factor("rounded", jnp.where(mean > 1e30, 1e6, 0.0))
        ldp.observe("z", dist.Poisson(mean), release)

    release = ldp.Release(np.arange(12), ldp.DiscreteLaplaceMechanism(scale=3.0, lower=0, upper=20))
    posterior = ldp.fit(model, release, **QUIET)
    assert integral(posterior)["ran"] == "integral" and 3 < draws(posterior, "mean").mean() < 8
