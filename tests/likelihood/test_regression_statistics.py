"""Laws of sums of regression statistics, against quadrature, the Wishart law and simulation."""

import itertools
import types

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, special, stats

import ldpbayes as ldp
from ldpbayes.likelihood import linear_rows, linear_statistics, logistic_statistics
from ldpbayes.likelihood.closed_forms._regressions import SumOfStatistics

pytestmark = pytest.mark.usefixtures("x64")

COVARIANCE = np.array([[0.5, 0.2, -0.1], [0.2, 0.4, 0.05], [-0.1, 0.05, 0.3]])
MEAN, SLOPES = np.array([0.3, -0.2, 0.1]), np.array([1.0, -2.0, 0.5])


def covariates(d, mean=True):
    return dist.MultivariateNormal(MEAN[:d] * mean, scale_tril=np.linalg.cholesky(COVARIANCE[:d, :d]))


def by_quadrature(law, statistic, y_given_x=None, first=5):
    """Mean and covariance of a statistic, by a product Gauss-Hermite rule of five nodes in all axes but the first."""
    d = law.event_shape[0]
    rules = [np.polynomial.hermite_e.hermegauss(first if axis == 0 else 5) for axis in range(d)]
    u = np.array(list(itertools.product(*(t for t, _ in rules))))
    weights = np.prod(np.array(list(itertools.product(*(w / w.sum() for _, w in rules)))), axis=1)
    rows = np.asarray(law.loc) + u @ np.asarray(law.scale_tril).T
    parts = [(weights, rows)]
    if y_given_x is not None:
        one = y_given_x(rows)
        parts = [
            (weights * (one if y > 0 else 1 - one), np.column_stack([rows, np.full(len(rows), y)])) for y in (-1.0, 1.0)
        ]
    values = [(w, statistic(rows)) for w, rows in parts]
    mean = sum(w @ t for w, t in values)
    return mean, sum((w[:, None] * (t - mean)).T @ (t - mean) for w, t in values)


@jax.jit
def rows_of(x, slopes, deviation, intercept=0.0):
    return linear_rows(x, slopes, deviation, intercept)


def moments_of(law):
    """Mean and covariance of the law that a function returns, in one compiled call."""

    def moments():
        sum_law = law()
        return sum_law.mean, sum_law.covariance_matrix

    return jax.jit(moments)()


def statistic(mechanism):
    return jax.jit(mechanism.statistics)  # traced rows are not looked at, so that they may lie outside the bounds


@pytest.mark.parametrize(
    ("d", "off_diagonal"),
    [
        (2, "once"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(3, "scaled"), (1, "scaled"), (2, "scaled"), (1, "once"), (3, "once")]
        ),
    ],
)
def test_moments_of_linear_statistics_are_those_of_quadrature(d, off_diagonal):
    x = covariates(d)
    rows = rows_of(x, SLOPES[:d], 0.7, 0.4)
    np.testing.assert_allclose(np.asarray(rows.loc)[d], 0.4 + SLOPES[:d] @ MEAN[:d], rtol=1e-12)
    root = np.asarray(rows.scale_tril)
    np.testing.assert_allclose((root @ root.T)[d, d], SLOPES[:d] @ COVARIANCE[:d, :d] @ SLOPES[:d] + 0.49)
    mechanism = ldp.mechanisms.LinearStatisticsMechanism(1.0, 1e-5, 1.0, 1.0, d + 1, off_diagonal=off_diagonal)
    law_mean, law_covariance = moments_of(lambda: linear_statistics(rows, 50.0, off_diagonal))
    # polynomials of degree 4 in d + 1 normal variables: five nodes each are exact to rounding
    mean, covariance = by_quadrature(rows, statistic(mechanism))
    np.testing.assert_allclose(law_mean, 50 * mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(law_covariance, 50 * covariance, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("d", "size"),
    [
        (3, 4.0),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(1, 0.0), (2, 0.0), (3, 0.0), (1, 1.0), (2, 1.0), (3, 1.0), (1, 4.0), (2, 4.0)]
        ),
    ],
)
def test_moments_of_logistic_statistics_are_those_of_quadrature(d, size):
    x, slopes = covariates(d), size * SLOPES[:d]
    mechanism = ldp.mechanisms.LogisticStatisticsMechanism(1.0, 1e-5, 1.0, d + 1)
    law_mean, law_covariance = moments_of(lambda: logistic_statistics(x, slopes, 0.3, count=50.0))
    # rotate the covariates so that the predictor is along the first axis: along the others all is polynomial
    axis = np.linalg.svd(np.asarray(x.scale_tril).T @ slopes.reshape(-1, 1))[0] if size else np.eye(d)
    root = np.asarray(x.scale_tril) @ axis
    rotated = types.SimpleNamespace(loc=x.loc, scale_tril=root, event_shape=(d,))
    mean, covariance = by_quadrature(
        rotated, statistic(mechanism), lambda rows: 1 / (1 + np.exp(-0.3 - rows @ slopes)), 300
    )
    # A Gauss-Hermite rule of n nodes is off by about exp(−√(2n) π / s) where the sigmoid's poles are π / s away from
    # the axis, s ≤ 4.4 being the standard deviation of the predictor: 2.5e-8.
    np.testing.assert_allclose(law_mean, 50 * mean, atol=50 * 1e-7)
    np.testing.assert_allclose(law_covariance, 50 * covariance, atol=50 * 1e-7)
    if d == 2 or size == 0:
        total = jax.jit(jax.grad(lambda s: logistic_statistics(x, s, 0.3, count=50.0).covariance_matrix.sum()))
        assert np.all(np.isfinite(total(slopes)))


@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_moments_of_logistic_statistics_hold_for_predictors_of_any_spread(mean):
    """Steep slopes are what a prior, and a posterior under local privacy, has much of."""
    find = jax.jit(lambda x, slope: logistic_statistics(x, slope, count=1.0).covariance_matrix)
    for size in (0.5, 4.4, 4.6, 7.0, 20.0, 200.0):
        law = dist.MultivariateNormal(np.array([mean]), scale_tril=np.eye(1))
        near = np.array([-40, -5, 0, 5, 40]) / size  # where tanh varies
        cuts = np.unique(np.clip([-9 + mean, mean, 9 + mean, *near], mean - 9, mean + 9))

        def moment(power, sign, size=size, cuts=cuts):
            def f(x):
                return x**power * np.tanh(size * x / 2) ** sign * stats.norm.pdf(x, mean)

            return sum(integrate.quad(f, *ends, epsabs=1e-14, epsrel=1e-12)[0] for ends in itertools.pairwise(cuts))

        square, cross = moment(2, 0), moment(3, 1) - moment(2, 0) * moment(1, 1)
        want = [[moment(4, 0) - square**2, cross], [cross, square - moment(1, 1) ** 2]]
        # third derivatives, rounded at 1e-15 or so, enter times the slope, cubed
        np.testing.assert_allclose(find(law, np.array([size])), want, rtol=1e-9, atol=1e-9 + 1e-14 * size**3)


def test_the_density_of_a_noisy_sum_is_normal_with_both_covariances():
    rows = rows_of(covariates(2), SLOPES[:2], 0.7)
    mechanism = ldp.mechanisms.LinearStatisticsMechanism(
        1.0, 1e-5, 1.0, 2.0, 3, ratios=(1, 2, 3), trust_model="central", count=100
    )
    law = jax.jit(linear_statistics, static_argnums=1)(rows, 100)
    z = np.linspace(0, 100, 6)
    total = np.asarray(law.covariance_matrix) + np.diag(mechanism.noise.standard_deviations**2)
    want = stats.multivariate_normal(np.asarray(law.mean), total).logpdf(z)
    observed = ldp.Privatized(law, mechanism)

    @jax.jit
    def numbers(observed, z):
        return observed.log_prob(z), observed.mean, observed.variance, observed.sample(jax.random.key(0), (4000,))

    log_prob, mean, variance, draws = map(np.asarray, numbers(observed, z))
    np.testing.assert_allclose(log_prob, want, rtol=1e-11)
    np.testing.assert_allclose(mean, law.mean)
    np.testing.assert_allclose(variance, np.diagonal(total), rtol=1e-12)
    # each of six means is within four standard errors in all but 6e-5 of seeds
    assert np.all(np.abs(draws.mean(axis=0) - law.mean) < 4 * np.sqrt(np.diagonal(total) / 4000))


def test_statistics_that_do_not_vary_are_allowed():
    constant = dist.MultivariateNormal(
        np.array([1.0, 0.2]), scale_tril=np.array([[0.0, 0.0], [0.0, 0.5]]), validate_args=False
    )
    law = jax.jit(lambda: linear_statistics(linear_rows(constant, np.array([0.4, 1.0]), 0.3), 10))()
    mechanism = ldp.mechanisms.LinearStatisticsMechanism(1.0, 1e-5, 2.0, 2.0, 3, trust_model="central", count=10)

    @jax.jit
    def numbers(law):
        log_prob = ldp.Privatized(law, mechanism).log_prob(law.mean)
        return law.mean, law.variance, log_prob, law.sample(jax.random.key(0))

    mean, variance, log_prob, draw = map(np.asarray, numbers(law))
    assert variance[0] == 0
    np.testing.assert_allclose(mean[3], 10 * (0.4 + 0.2), rtol=1e-12)  # Σ y, the intercept being a slope
    assert np.isfinite(log_prob) and np.all(np.isfinite(draw))


@pytest.mark.parametrize(
    ("n", "epsilon", "most"), [pytest.param(30, 1.0, None, marks=pytest.mark.slow), (3000, 0.1, 0.02)]
)
def test_normal_and_exact_sums_agree_for_many_records(n, epsilon, most):
    """Log densities of a noisy sum, the exact one by averaging the noise's density over Wishart draws."""
    rows = rows_of(covariates(2, mean=False), SLOPES[:2], 0.7)
    law = jax.jit(linear_statistics, static_argnums=1)(rows, n)
    mechanism = ldp.mechanisms.LinearStatisticsMechanism(epsilon, 1e-2, 1.0, 2.0, 3, trust_model="central", count=n)
    rng, root = np.random.default_rng(1), np.zeros((100_000, 3, 3))  # Bartlett's decomposition of a Wishart matrix
    root[:, *np.tril_indices(3, -1)] = rng.normal(size=(100_000, 3))
    root[:, *np.diag_indices(3)] = np.sqrt(rng.chisquare(n - np.arange(3), (100_000, 3)))
    root = np.asarray(rows.scale_tril) @ root
    sums = root @ np.swapaxes(root, -1, -2)
    i, j = np.array([0, 1, 0, 0, 1, 2]), np.array([0, 1, 1, 2, 2, 2])
    t = sums[:, i, j] * np.array([1, 1, np.sqrt(2), 1, 1, 1])
    np.testing.assert_allclose(
        t.mean(axis=0), law.mean, atol=5 * np.max(np.sqrt(np.diagonal(law.covariance_matrix)) / 300)
    )
    z = np.asarray(law.mean) + np.sqrt(np.diagonal(law.covariance_matrix))
    terms = stats.norm(t, mechanism.noise.standard_deviations).logpdf(z).sum(axis=1)
    exact = special.logsumexp(terms) - np.log(len(t))
    error = np.std(np.exp(terms - terms.max())) / np.mean(np.exp(terms - terms.max())) / np.sqrt(len(t))
    away = abs(exact - jax.jit(ldp.Privatized(law, mechanism).log_prob)(z))
    if most is None:
        assert away > 0.02 + 5 * error  # 30 records: the normal law is off
    else:
        assert away < most + 5 * error


def test_counts_and_parameters_may_be_traced_and_mapped():
    mechanism = ldp.mechanisms.LogisticStatisticsMechanism(1.0, 1e-5, 1.0, 3, trust_model="central")
    z = np.arange(5.0)

    def density(mechanism, slopes, count):
        law = logistic_statistics(covariates(2), slopes, count=count)
        return ldp.Privatized(law, mechanism).log_prob(z)

    @jax.jit
    def compiled(traced, slopes, counts):
        derivatives = jax.value_and_grad(density, (1, 2))(traced, slopes[0], counts[0])
        return (
            density(mechanism, SLOPES[:2], 40.0),
            derivatives,
            jax.vmap(density, (None, 0, 0))(traced, slopes, counts),
        )

    known, (value, slope), both = compiled(mechanism, np.stack([SLOPES[:2]] * 2), np.array([40.0, 40.0]))
    np.testing.assert_allclose(value, known, rtol=1e-12)
    assert all(np.all(np.isfinite(part)) for part in slope)
    np.testing.assert_allclose(both, [known] * 2, rtol=1e-12)


def test_a_sum_is_a_pytree():
    law = jax.jit(lambda: linear_statistics(linear_rows(covariates(1), SLOPES[:1], 1.0), 3.0))()
    again = jax.jit(lambda law: law)(law)
    assert isinstance(again, SumOfStatistics) and again.event_shape == (3,)
    np.testing.assert_allclose(again.mean, law.mean)
