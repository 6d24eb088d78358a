"""Private least squares: sensitivities by brute force, agreement with plain least squares, and its hybrid bootstrap."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import statsmodels.api as sm

from ldpbayes.bootstrap import NormalVector, least_squares, parametric_bootstrap
from ldpbayes.bootstrap._bootstrap import Replication
from ldpbayes.bootstrap.statistics import LeastSquaresEstimator
from ldpbayes.laws.numbers import LEAST_VARIANCE
from ldpbayes.mechanisms import LaplaceMechanism

LOWER, UPPER = np.array([-1.0, 2.0, -6.0, 0.5, -3.0]), np.array([3.0, 9.0, 7.0, 0.75, 11.0])  # asymmetric
COEF, INTERCEPT, SCALE = np.array([0.7, -0.4]), 1.5, 0.5
MANY, DRAWS = 200_000, 10_000  # records among which the noise is small, and replicates


def rows_of(d):
    return NormalVector(LOWER[-d - 1 :], UPPER[-d - 1 :])


def regression_data(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(LOWER[:2], UPPER[:2], (n, 2))
    return np.column_stack([x, INTERCEPT + x @ COEF + rng.normal(0, SCALE, n)])


def estimator(n, epsilon, **options):
    return least_squares(lower=LOWER[:3], upper=UPPER[:3], count=n, epsilon=epsilon, **options)


@jax.jit
def estimated(e, released):
    return e.estimate(released)


@functools.partial(jax.jit, static_argnames="noise")
def covariance_of(e, params, noise):
    return e.covariance(params, noise=noise)


@jax.jit
def statistics(rows, units):
    return rows.statistics(rows.centre + rows.half * units)


def moved(rows, one, other):
    """By how much statistics differ of rows given in standardised units, from −1 to 1."""
    return np.subtract(*map(np.asarray, (statistics(rows, one), statistics(rows, other))))


def norms(differences, order):
    return np.linalg.norm(differences, order, axis=-1)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_no_pair_of_rows_exceeds_the_sensitivity_and_the_worst_attains_it(d):
    rows, rng = rows_of(d), np.random.default_rng(d)
    inside = rng.uniform(-1, 1, (2, 100_000, d + 1))
    corners = np.sign(rng.uniform(-1, 1, (2, 20_000, d + 1)))
    beyond = rng.normal(0, 2, (2, 30_000, d + 1))  # clamped
    one, other = np.concatenate([inside, corners, beyond], axis=1)
    other = np.where(rng.uniform(size=len(other))[:, None] < 0.3, -one, other)
    ones, s = np.ones(d + 1), np.sqrt(2)
    m = (6 + 2 * s * d) / (2 * (2 * s * (d + 1) + 4 - 2 * s))
    balanced = np.where(np.arange(d + 1) < (d + 1) // 2, 1.0, -1.0)  # columns sum to 0 or −1
    worst = np.stack([ones * (1 - 2 * m), balanced])
    difference = moved(rows, np.concatenate([one, ones[None].repeat(2, axis=0)]), np.concatenate([other, worst]))
    near = 1 + 1e-12  # of rounding
    for order in (1, 2):
        whole = rows.sensitivity(order)
        assert norms(difference, order).max() <= whole * near
        np.testing.assert_allclose(norms(difference[-3 + order], order), whole)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("intercept", [True, False])
def test_without_noise_it_is_least_squares(intercept):
    data = regression_data(4000)
    # no row is clamped: three bounds are far from all that is drawn, two are those of the uniform regressors
    e = estimator(4000, 1e10, intercept=intercept)
    params, errors, outside = estimated(e, e.release_values(e.release(data, seed=1)))
    plain = sm.OLS(data[:, 2], sm.add_constant(data[:, :2]) if intercept else data[:, :2]).fit()
    got = np.append(params["intercept"], params["coef"]) if intercept else params["coef"]
    # the noise in a mean is of size 1e-13 there, and the matrix' condition is below a thousand
    np.testing.assert_allclose(got, plain.params, rtol=1e-8)
    np.testing.assert_allclose(params["scale"], np.sqrt(plain.scale), rtol=1e-8)
    np.testing.assert_allclose(params["loc_x"], data[:, :2].mean(axis=0), rtol=1e-8)
    np.testing.assert_allclose(params["covariance_x"], np.cov(data[:, :2], rowvar=False, ddof=0), atol=1e-8)
    assert not outside
    # without noise, in the order of target(): coefficients, intercept, scale
    order = [1, 2, 0] if intercept else [0, 1]
    np.testing.assert_allclose(errors[:-1], plain.bse[order], rtol=1e-6)
    np.testing.assert_allclose(errors[-1], np.sqrt(plain.scale / (2 * plain.df_resid)), rtol=1e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.slow
def test_replicates_without_noise_have_the_law_of_least_squares_at_fixed_regressors():
    e = estimator(40, 1e10, delta=1e-6)
    params = estimated(e, e.release_values(e.release(regression_data(40), seed=0))).params
    made = Replication(e, jax.random.split(jax.random.key(0), 20_000)).replicates(params)
    coefficients = np.asarray(made.target)[:, :3]
    truth = np.append(params["coef"], params["intercept"])
    covariance = np.asarray(covariance_of(e, params, noise=False))
    # errors of 20,000 replicates: 0.7 % of a standard error in the mean, 1 % of a variance; five of them each
    errors = np.sqrt(np.diagonal(covariance))[:3]
    np.testing.assert_array_less(np.abs(coefficients.mean(axis=0) - truth), 5 * 0.0071 * errors)
    unit = np.cov(coefficients, rowvar=False) / np.outer(errors, errors)
    np.testing.assert_allclose(unit, covariance[:3, :3] / np.outer(errors, errors), atol=0.05)
    # (n − p) s²/σ² is χ² with n − p = 37 degrees of freedom, whose mean and variance follow
    squares = 37 * (np.asarray(made.target)[:, 3] / params["scale"]) ** 2
    assert abs(squares.mean() - 37) < 5 * np.sqrt(2 * 37 / 20_000)
    assert abs(squares.var() / 74 - 1) < 5 * np.sqrt((2 + 12 / 37) / 20_000)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("intercept", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_standard_errors_are_the_spread_of_replicates_where_the_noise_is_small(intercept):
    e = estimator(MANY, 0.8, intercept=intercept)
    params = {"coef": COEF, "scale": SCALE, "loc_x": np.array([1.0, 5.5]), "covariance_x": np.diag([1.3, 4.1])}
    params |= {"intercept": INTERCEPT} if intercept else {}
    params = jax.tree.map(lambda number: jnp.asarray(np.asarray(number)), params)  # as an estimate has them
    made = Replication(e, jax.random.split(jax.random.key(0), DRAWS)).replicates(params)
    errors = np.sqrt(np.diagonal(covariance_of(e, params, noise=True)))
    # Laplace noise has kurtosis 6: the error of a standard deviation is below 1.2 %, four of them; and terms of the
    # second order in the noise, which is below 2 % of what it is added to
    np.testing.assert_allclose(np.asarray(made.target).std(axis=0), errors, rtol=0.07)
    assert (errors > 1.2 * np.sqrt(np.diagonal(covariance_of(e, params, noise=False)))).all()  # the noise does count


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("intercept", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_noise_that_outweighs_the_records_is_repaired_and_said(intercept):
    e = estimator(40, 0.1, intercept=intercept)
    data = regression_data(40)
    run = jax.jit(lambda e, data, keys: jax.vmap(lambda key: e.estimate(e.randomize(key, data)))(keys))
    estimates = run(e, data, jax.random.split(jax.random.key(0), 200))
    assert np.asarray(estimates.outside).mean() > 0.9
    half = (UPPER - LOWER)[:2] / 2
    eigenvalues = np.linalg.eigvalsh(np.asarray(estimates.params["covariance_x"]) / np.outer(half, half))
    floor = float(e.deviations[3]) if intercept else LEAST_VARIANCE
    assert eigenvalues.min() >= floor * (1 - 1e-9)
    assert np.asarray(estimates.params["scale"]).min() >= np.sqrt(LEAST_VARIANCE) * (UPPER - LOWER)[2] / 2 * (1 - 1e-12)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(estimates))


@pytest.mark.usefixtures("x64")
def test_free_parameters_are_those_and_back():
    for intercept in (True, False):
        e = estimator(4000, 5.0, intercept=intercept)
        params = {"coef": COEF, "scale": SCALE, "loc_x": np.array([1.0, 5.5]), "covariance_x": np.diag([1.3, 4.1])}
        params["covariance_x"] += 0.2
        params |= {"intercept": np.asarray(INTERCEPT)} if intercept else {}
        again, away = jax.jit(lambda e, at: [e.constrained(e.unconstrained(at) + by, at) for by in (0, 1)])(e, params)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12), again, params)
        assert np.linalg.eigvalsh(away["covariance_x"]).min() > 0


def test_the_bootstrap_reports_coefficients_intercept_and_scale():
    e = estimator(MANY, 0.8)  # as in the test of the replicates' spread, to share what is compiled
    release = e.release(regression_data(MANY), seed=0)
    result = parametric_bootstrap(e, release, draws=DRAWS)
    assert result.names == ["coef[0]", "coef[1]", "intercept", "scale"]
    low, high = result.interval(0.99)
    # an interval of level 0.99 misses one of four with probability 4 % at most; the seed is fixed
    assert ((low < [*COEF, INTERCEPT, SCALE]) & ([*COEF, INTERCEPT, SCALE] < high)).all()
    assert "epsilon = 0.8" in result.privacy


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("n", [100, 1000])
def test_percentile_intervals_cover(n):
    trials, draws = 400, 399
    rng = np.random.default_rng(n)
    x = rng.uniform(-1, 2, (trials, n))
    data = np.stack([x, 0.5 + x + rng.normal(0, 0.5, (trials, n))], axis=-1)
    e = least_squares(lower=[-1, -2], upper=[2, 4], count=n, epsilon=1.0)

    def one(rows, key):
        keys = jax.random.split(key)
        params = e.estimate(e.randomize(keys[0], rows)).params
        return Replication(e, jax.random.split(keys[1], draws)).replicates(params).target

    made = jax.jit(lambda *a: jax.lax.map(lambda at: one(*at), a, batch_size=50))(
        data, jax.random.split(jax.random.key(0), trials)
    )
    low, high = np.quantile(made, [0.025, 0.975], axis=1, method="weibull")
    covered = ((low <= [1.0, 0.5, 0.5]) & (high >= [1.0, 0.5, 0.5])).sum(axis=0)
    # binomial with 400 trials of 0.95: 380 ± 11 outside which are 1 %; where the noise is large intervals of the scale
    # are conservative, so that only the lower end is asked for
    assert (covered >= 380 - 12).all()


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="needs bounds"):
        least_squares(lower=None, upper=[1, 1], count=10, epsilon=1.0)
    with pytest.raises(ValueError, match="at least two columns"):
        least_squares(lower=[0], upper=[1], count=10, epsilon=1.0)
    with pytest.raises(ValueError, match="lower must be below upper"):
        least_squares(lower=[0, 1], upper=[1, 1], count=10, epsilon=1.0)
    with pytest.raises(ValueError, match="count is missing"):
        least_squares(lower=[0, 0], upper=[1, 1], count=None, epsilon=1.0)
    rows = NormalVector([0, 0], [1, 1])
    with pytest.raises(ValueError, match="can change the statistics by 5\\.7"):
        LeastSquaresEstimator(rows, LaplaceMechanism(1.0, columns=rows.columns, sensitivity=1.0), 10)
    e = least_squares(lower=[0, 0], upper=[1, 1], count=10, epsilon=1.0)
    with pytest.raises(ValueError, match="rows \\(n, 2\\)"):
        e.release(np.zeros((10, 3)), seed=0)
    with pytest.raises(ValueError, match="for 10 records"):
        e.release(np.zeros((9, 2)), seed=0)
    other = least_squares(lower=[0, 0], upper=[1, 1], count=10, epsilon=2.0).release(np.zeros((10, 2)), seed=0)
    with pytest.raises(ValueError, match="the estimator is for"):
        parametric_bootstrap(e, other)
    with pytest.raises(ValueError, match="raw records"):
        parametric_bootstrap(e, np.zeros((10, 2)))
