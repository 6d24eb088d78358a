"""Sparse posteriors against quadrature and enumeration; false discoveries and coverage in simulation."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy import integrate, special

import ldpbayes as ldp
from ldpbayes.estimation import Estimate, SparsePrior, sparse_posterior

PRIOR = SparsePrior([0.05, 0.2], [0.5, 0.3, 0.2])


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Known(Estimate):
    """An estimate with a known covariance, or independent errors."""

    params: np.ndarray
    standard_error: np.ndarray | None = None
    covariance: np.ndarray | None = None
    names = property(lambda self: [*map(str, range(len(self.params)))])
    privacy = "of nobody"


def density(t):
    """That of the prior above 0: normal laws with a standard deviation of a fifth of the mean, above 0."""
    parts = zip(PRIOR.weights[1:], PRIOR.scales, strict=True)
    return sum(
        w * np.exp(-((t / m - 1) ** 2) * 12.5) / (0.2 * m * np.sqrt(2 * np.pi) * special.ndtr(5)) for w, m in parts
    )


@pytest.mark.parametrize(("y", "error"), [(-0.03, 0.01), (0.06, 0.015), (0.3, 0.04), (-0.2, 0.01)])
def test_one_share_by_quadrature(y, error):
    posterior = sparse_posterior(Known(np.array([y]), np.array([error])), prior=PRIOR)
    zero = 0.5 * np.exp(-((y / error) ** 2) / 2)

    def integral(function, low=0.0):
        def integrand(t):
            return function(t) * np.exp(-(((y - t) / error) ** 2) / 2) * density(t)

        points = [p for p in (0.02, 0.05, 0.2, y) if low < p]
        return integrate.quad(integrand, low, 1.5, points=points, epsabs=0, epsrel=1e-12, limit=500)[0]

    total = zero + integral(lambda t: 1.0)
    mean, square = (integral(lambda t, n=n: t**n) / total for n in (1, 2))
    assert posterior.params[0] == pytest.approx(mean, rel=1e-10)
    assert posterior.standard_error[0] == pytest.approx(np.sqrt(square - mean**2), rel=1e-9)
    for threshold in (0.0, 0.04):
        assert posterior.above(threshold)[0] == pytest.approx(integral(lambda t: 1.0, threshold) / total, rel=1e-10)
    for end, tail in zip(posterior.interval(0.8), (0.9, 0.1), strict=True):
        if end[0] > 0:
            assert integral(lambda t: 1.0, end[0]) / total == pytest.approx(tail, rel=1e-8)
        else:
            assert 1 - zero / total < tail


def test_correlated_shares_by_enumeration():
    """All patterns of zeros, and a grid of the other shares: Monte Carlo errors of the sampler are below 0.004."""
    rng = np.random.default_rng(3)
    root = rng.normal(size=(4, 4))
    covariance, y = 0.004 * (root @ root.T + 0.3 * np.eye(4)), np.array([0.1, -0.02, 0.25, 0.05])
    nodes, weights = np.polynomial.legendre.leggauss(28)
    axis, mass = np.append(0.0, 0.4 * (nodes + 1)), np.append(0.5, 0.4 * weights * density(0.4 * (nodes + 1)))
    theta = np.stack(np.meshgrid(*[axis] * 4, indexing="ij"), axis=-1).reshape(-1, 4)
    away = np.linalg.solve(np.linalg.cholesky(covariance), (y - theta).T)
    p = np.multiply.outer(np.outer(mass, mass), np.outer(mass, mass)).ravel() * np.exp(-0.5 * (away**2).sum(axis=0))
    p /= p.sum()
    mean = p @ theta
    estimate = Known(y, np.sqrt(np.diagonal(covariance)), covariance)
    posterior = sparse_posterior(estimate, prior=PRIOR, draws=8000)
    assert posterior.correlated
    np.testing.assert_allclose(posterior.above(), p @ (theta > 0), atol=0.01)
    np.testing.assert_allclose(posterior.above(0.1), p @ (theta > 0.1), atol=0.01)
    np.testing.assert_allclose(posterior.params, mean, atol=0.002)
    np.testing.assert_allclose(posterior.standard_error, np.sqrt(p @ theta**2 - mean**2), atol=0.002)
    # independent errors have no use for a sampler, but it agrees
    alone = sparse_posterior(Known(y, np.full(4, 0.05), np.eye(4) * 0.0025), prior=PRIOR)
    sampled = sparse_posterior(Known(y, np.full(4, 0.05), np.eye(4) * 0.0025), prior=PRIOR, correlated=True)
    assert not alone.correlated
    np.testing.assert_allclose(sampled.params, alone.params, rtol=1e-8)


def simulated(law, share, seed, d=2000):
    rng = np.random.default_rng(seed)
    theta = np.where(rng.uniform(size=d) < share, law(rng, d), 0.0)
    return theta, sparse_posterior(Known(theta + rng.normal(size=d), np.ones(d)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "share"),
    [
        (lambda rng, d: rng.exponential(3.0, d), 0.05),
        pytest.param(lambda rng, d: rng.exponential(3.0, d), 0.4, marks=pytest.mark.slow),
        pytest.param(lambda rng, d: 0.3 * rng.pareto(1.0, d), 0.1, marks=pytest.mark.slow),
        pytest.param(lambda rng, d: rng.normal(5.0, 1.0, d), 0.1, marks=pytest.mark.slow),
    ],
)
def test_false_discoveries_and_coverage_are_at_their_levels(law, share):
    """Over 20 data sets. The allowed excess is three standard errors of the means; prior laws are estimated."""
    rates, covered = [], []
    for seed in range(20):
        theta, posterior = simulated(law, share, seed)
        for threshold in (0.0, 1.0):
            found = posterior.discoveries(0.1, threshold)
            rates.append(np.mean(theta[found] <= threshold) if len(found) else 0.0)
        low, high = posterior.interval(0.9)
        covered.append(np.mean((low <= theta) & (theta <= high)))
    assert np.mean(rates) < 0.1 + 3 * np.std(rates) / np.sqrt(20)
    assert np.mean(covered) > 0.9 - 3 * np.std(covered) / np.sqrt(20)


def test_without_any_share_nothing_is_found_and_the_prior_says_so():
    _, posterior = simulated(lambda rng, d: np.zeros(d), 0.0, seed=1)
    assert len(posterior.discoveries(0.2)) == 0
    assert posterior.prior.weights[0] > 0.95


def test_result_of_frequencies():
    rng = np.random.default_rng(6)
    theta = np.zeros(500)
    theta[:5] = 0.4, 0.3, 0.15, 0.1, 0.05
    mechanism = ldp.mechanisms.HadamardCountMeanSketch(3.0, 500, 16, 64)
    x = rng.choice(500, 20_000, p=theta)
    estimate = ldp.frequencies(ldp.Release(jax.jit(mechanism.randomize)(jax.random.key(1), x), mechanism))
    posterior = sparse_posterior(estimate)
    assert set(posterior.discoveries(0.05).tolist()) == {0, 1, 2, 3, 4}
    assert posterior.privacy == estimate.privacy
    assert posterior.names == estimate.names
    assert posterior.discoveries(0.05, threshold=0.2).tolist() == [0, 1]
    rates = posterior.q_values()
    assert np.sum(rates <= 0.05) == 5
    assert "P(> 0)" in posterior.summary()
    assert repr(posterior).startswith("<Sparse posterior of 500 shares")
    assert np.abs(posterior.params - theta).max() < 0.025  # three standard errors
    with pytest.raises(ValueError, match="no joint law"):
        posterior.contrast({"0": 1})


def test_few_records_are_no_estimate_of_the_correlations_of_many_shares():
    """With the singular covariance of 60 persons, deviations of large shares would be a third of the errors."""
    theta = np.zeros(300)
    theta[:5] = 0.2
    mechanism, rng = ldp.OptimalUnaryEncoding(4.0, 300), np.random.default_rng(0)
    x = np.repeat(rng.choice(300, 60, p=theta), 2)
    values = jax.jit(mechanism.randomize)(jax.random.key(0), x)
    estimate = ldp.frequencies(ldp.Release(values, mechanism, persons=np.arange(120) // 2))
    posterior = sparse_posterior(estimate)
    assert not posterior.correlated
    assert posterior.standard_error[:5].mean() > 0.7 * estimate.standard_error[:5].mean()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prior": SparsePrior([0.0], [0.5, 0.5])}, "scales must be positive"),
        ({"prior": SparsePrior([0.1], [0.5, 0.6])}, "weights must be 2 numbers with sum 1"),
        ({"prior": SparsePrior([0.1], [1.0])}, "weights must be 2 numbers with sum 1"),
        ({"correlated": True}, "correlated=True needs the covariance"),
        ({"draws": 0}, "draws must be an integer"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        sparse_posterior(Known(np.array([0.1, 0.2]), np.array([0.1, 0.1])), **arguments)


def test_estimates_without_errors_are_refused():
    with pytest.raises(TypeError, match="estimate must be an Estimate"):
        sparse_posterior([0.1, 0.2])
    for error in (None, np.array([0.1, np.nan]), np.array([0.1, 0.0])):
        with pytest.raises(ValueError, match="positive standard error of each share"):
            sparse_posterior(Known(np.array([0.1, 0.2]), error))
    with pytest.raises(ValueError, match="threshold must be"):
        sparse_posterior(Known(np.array([0.1]), np.array([0.1]))).above(-1.0)
    with pytest.raises(ValueError, match="fdr must be"):
        sparse_posterior(Known(np.array([0.1]), np.array([0.1]))).discoveries(1.0)
