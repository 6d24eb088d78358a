"""Coordinates of pooled vectors against matrices that are inverted by NumPy, and what they are for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import biject_to
from numpyro.infer.util import log_density
from scipy import stats

import ldpbayes as ldp
from ldpbayes import models
from ldpbayes.data import CountSketch
from ldpbayes.models._coordinates import pooled_relative

RNG = np.random.default_rng(0)


@jax.jit
def of_a_pooled_law(loc, scale, estimate, weights, x):
    """Its transform, and its log density, at points (n, 4) of unconstrained space."""
    law = pooled_relative(loc, scale, estimate, weights)
    transform, origin = biject_to(law.support), jnp.zeros(4)
    there = transform(x)
    at_origin = transform(origin), jax.jacobian(transform)(origin)
    return *at_origin, transform.inv(there), transform.log_abs_det_jacobian(x, there), law.log_prob(x)


@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0, 1e4, 1e8])
def test_a_posterior_of_estimates_that_are_known_but_for_a_number_is_standard_normal(size, x64):
    """Of independent N(μ, τ²) and a likelihood exp(−½ d' P d), d = l − g, P = W − W 1 1' W/ΣW: by matrices."""
    loc, scale, estimate = RNG.normal(size=4), RNG.uniform(0.3, 2, 4), RNG.normal(size=4)
    weights = size * RNG.uniform(0.1, 1, 4)
    projection = np.diag(weights) - np.outer(weights, weights) / max(weights.sum(), 1e-300)
    covariance = np.linalg.inv(np.diag(scale**-2) + projection)
    mean = covariance @ (loc / scale**2 + projection @ estimate)
    x = RNG.normal(size=(3, 4))
    values = of_a_pooled_law(loc, scale, estimate, weights, x)
    origin, jacobian, back, determinant, log_prob = map(np.asarray, values)
    # rounding errors are multiplied by the condition of the precision, up to 1e9
    np.testing.assert_allclose(jacobian @ jacobian.T, covariance, rtol=1e-6, atol=1e-6 * scale.max() ** 2)
    np.testing.assert_allclose(origin, mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(back, x, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(determinant, np.full(3, np.linalg.slogdet(jacobian)[1]), rtol=1e-9)
    np.testing.assert_allclose(log_prob, stats.norm.logpdf(x, loc, scale).sum(-1), rtol=1e-12)


def of_regions(answers, regions=30, categories=4, epsilon=1.0):
    """A sketch of randomized answers, and the true shares."""
    rng = np.random.default_rng(3)
    logits = rng.normal(size=categories) + 0.4 * rng.normal(size=(regions, categories))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    lie = 1 / (np.exp(epsilon) + categories - 1)
    laws = lie + (np.exp(epsilon) - 1) * lie * shares
    counts = np.stack([rng.multinomial(answers // regions, law) for law in laws])
    nodes, groups = np.tile(np.arange(categories), regions), np.repeat(np.arange(regions), categories)
    mechanism = ldp.RandomizedResponse(epsilon, categories)
    return CountSketch(mechanism, nodes, counts.ravel().astype(float), groups, num_groups=regions), shares


def test_coordinates_that_follow_the_data_leave_the_model_as_it_is(x64):
    sketch, shares = of_regions(3000, regions=5)
    values = {"mu": np.array([0.5, 0.0, -1.0, 0.2]), "tau": np.full(4, 0.7), "logits": np.log(shares)}
    plain = models.regional_histograms()
    tuned = plain.tuned(sketch)
    assert plain.tuned([ldp.Release(None, sketch.mechanism, 5)] * 2) is plain  # nothing to follow

    @jax.jit
    def densities(values):
        return [log_density(model, (sketch,), {}, values)[0] for model in (plain, tuned)]

    np.testing.assert_allclose(*densities(values), rtol=1e-14)
    logits, precisions = tuned.__wrapped__.keywords["coordinates"]
    assert logits.shape == precisions.shape == (5, 4)


def test_rough_logits_are_those_of_the_shares(x64):
    """At 10 million answers an error is below a quarter: of 5 errors of 0.04, from 0.009 as the least share."""
    sketch, shares = of_regions(10_000_000)
    logits, precisions = models.regional_histograms().tuned(sketch).__wrapped__.keywords["coordinates"]
    errors = logits - np.log(shares)
    errors -= np.average(errors, axis=1, weights=shares.mean(axis=0))[:, None]
    common = shares > 0.05
    assert np.abs(errors[common]).max() < 0.25
    # at 8 of 10 or more these are sharper than the spread of the regions
    assert np.mean(precisions[common] > 1 / 0.4**2) > 0.8


@pytest.mark.slow
def test_ten_million_answers_of_thirty_regions_converge():
    sketch, shares = of_regions(10_000_000)
    posterior = ldp.fit(models.regional_histograms(), sketch, seed=1, progress_bar=False)
    import arviz as az

    worst = az.rhat(posterior["posterior"][["mu", "tau", "theta"]])
    assert all(float(each.max()) < 1.01 for each in worst.data_vars.values())
    assert (
        float(np.mean(posterior["sample_stats"]["tree_depth"])) < 7.5
    )  # 10 in coordinates that do not follow the data
    theta = posterior["posterior"]["theta"]
    z = (theta.mean(("chain", "draw")) - shares) / theta.std(("chain", "draw"))
    assert np.abs(z).mean() < 1.0  # of 120 standard normal numbers it is 0.8 ± 0.055: more in 1 of 7,000
