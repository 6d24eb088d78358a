"""Likelihoods of regressions on released rows, against the trapezoidal rule over all latent covariates and labels."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import ldpbayes as ldp
from ldpbayes.likelihood import RegressionRows, linear_rows

pytestmark = pytest.mark.usefixtures("x64")

COVARIANCE = np.array([[0.5, 0.2, -0.1], [0.2, 0.4, 0.05], [-0.1, 0.05, 0.3]])
MEAN, SLOPES, INTERCEPT = np.array([0.2, -0.1, 0.3]), np.array([1.5, -2.0, 0.7]), 0.4
POINTS = {1: 4001, 2: 301, 3: 91}


def grid(d, z, scales):
    """Points x around N(x; m, C) N(z; x, scales²), the log of that density there, and the log of a cell's volume."""
    precision = np.linalg.inv(COVARIANCE[:d, :d]) + np.diag(1 / scales**2)
    spread = np.sqrt(np.diagonal(np.linalg.inv(precision)))
    center = np.linalg.solve(precision, np.linalg.solve(COVARIANCE[:d, :d], MEAN[:d]) + z / scales**2)
    # normal tails beyond nine standard deviations hold 1e-18; the rule is exact to exp(−2π² (spread/step)²), and better
    # than exp(−2π · (distance of the sigmoid's poles)/step)
    axes = [np.linspace(c - 9 * s, c + 9 * s, POINTS[d]) for c, s in zip(center, spread, strict=True)]
    x = np.array(list(itertools.product(*axes))) if d > 1 else axes[0][:, None]
    log_density = stats.multivariate_normal(MEAN[:d], COVARIANCE[:d, :d]).logpdf(x)
    log_density += stats.norm(x, scales).logpdf(z).sum(axis=1)
    return x, log_density, sum(np.log(axis[1] - axis[0]) for axis in axes)


def sigmoid(t):
    return 1 / (1 + np.exp(-t))


def log_integral(terms, cell):
    top = terms.max()
    return np.log(np.exp(terms - top).sum()) + top + cell


@pytest.mark.parametrize("d", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)])
def test_logistic_rows_are_the_integral_over_covariates_and_labels(d):
    private = ldp.mechanisms.LogisticRecordsMechanism(3.0, 1e-2, 1.0, columns=d + 1)
    known = ldp.mechanisms.AdditiveMechanism(
        ldp.noise.IndependentGaussian([0.3, 0.8, 0.5][:d]), columns=d + 1, perturbed=tuple(range(d)), sensitivity=np.inf
    )
    base = RegressionRows(
        dist.MultivariateNormal(MEAN[:d], COVARIANCE[:d, :d]), dist.BernoulliLogits, SLOPES[:d], INTERCEPT
    )
    rng = np.random.default_rng(d)
    for mechanism in (private, known):
        scales = np.broadcast_to(mechanism.noise.standard_deviation, (d,))
        flip = sigmoid(-mechanism.response_epsilon) if mechanism is private else 0.0
        rows = np.column_stack([MEAN[:d] + 2 * scales * rng.normal(size=(3, d)), [0, 1, 1]])
        want = []
        for *z, y in rows:
            x, log_density, cell = grid(d, np.array(z), scales)
            one = sigmoid(INTERCEPT + x @ SLOPES[:d])
            seen = flip + (1 - 2 * flip) * (one if y else 1 - one)
            want.append(log_integral(log_density + np.log(seen), cell))
        # 91 points over 18 standard deviations in each of three axes: exp(−2π² · 25) and smaller still
        np.testing.assert_allclose(jax.jit(ldp.Privatized(base, mechanism).log_prob)(rows), want, atol=1e-8)


@pytest.mark.parametrize("d", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_linear_rows_are_the_integral_over_covariates_and_responses(d):
    mechanism = ldp.mechanisms.LinearRecordsMechanism(3.0, 1e-2, 1.0, 1.5, columns=d + 1, split=0.3)
    law = dist.MultivariateNormal(MEAN[:d], COVARIANCE[:d, :d])
    base = linear_rows(law, SLOPES[:d], 0.6, INTERCEPT)
    scales = mechanism.noise.standard_deviations
    rows = np.column_stack([MEAN[:d] + scales[:d] * np.array([[1.0], [-0.5]]), [2.0, -3.0]])
    want = []
    for *z, y in rows:
        x, log_density, cell = grid(d, np.array(z), scales[:d])
        # y given x is normal with two variances added: the innermost integral
        seen = stats.norm(INTERCEPT + x @ SLOPES[:d], np.hypot(0.6, scales[d])).logpdf(y)
        want.append(log_integral(log_density + seen, cell))
    np.testing.assert_allclose(jax.jit(ldp.Privatized(base, mechanism).log_prob)(rows), want, atol=1e-10)


def test_a_gradient_of_logistic_rows_is_that_of_differences():
    d, mechanism = 2, ldp.mechanisms.LogisticRecordsMechanism(3.0, 1e-2, 1.0, columns=3)
    rows = jnp.asarray([[1.0, -2.0, 1.0], [0.3, 0.1, 0.0], [-5.0, 4.0, 1.0]])
    start = jnp.concatenate([SLOPES[:d], jnp.array([INTERCEPT, 0.7, 0.6])])

    def total(at):
        law = dist.MultivariateNormal(MEAN[:d], scale_tril=jnp.diag(at[3:]))
        base = RegressionRows(law, dist.BernoulliLogits, at[:d], at[d])
        return ldp.Privatized(base, mechanism).log_prob(rows).sum()

    compiled, step = jax.jit(jax.value_and_grad(total)), 1e-4
    slope = compiled(start)[1]
    sides = [[float(compiled(start + sign * step * jnp.eye(5)[i])[0]) for sign in (1, -1)] for i in range(5)]
    # values good to 3e-9 make differences good to 3e-5
    np.testing.assert_allclose(slope, [(up - down) / (2 * step) for up, down in sides], atol=1e-4)
    assert np.all(np.isfinite(compiled(jnp.zeros(5).at[3:].set(1.0))[1]))  # slopes of 0: nothing is known of the label
