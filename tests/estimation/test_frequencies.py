"""Frequencies: against pure-ldp, SciPy's optimisers and dense matrices; unbiasedness, standard errors and coverage.

Statistical tests use fixed seeds; when a seed is changed each fails by chance with probability 1e-4, those of coverage
with 1e-2.
"""

import dataclasses
import functools
import importlib
import itertools

import jax
import numpy as np
import pytest
from scipy import optimize, stats
from statsmodels.stats.proportion import proportion_confint

import ldpbayes as ldp
from ldpbayes.data import CountSketch
from ldpbayes.estimation import frequencies
from tests.protocols import PROTOCOLS

module = importlib.import_module("ldpbayes.estimation._frequencies")
ERROR_RATE = 1e-4
BUDGETS = np.array([0.3, 1.0, 4.0, np.inf])
METHODS = ("unbiased", "base_cut", "norm_sub", "projection", "mle")
# estimates know a protocol by its memberships and its probabilities: the others differ in nothing else
BY_DEFAULT = ("oue", "local-hashing")
protocols = pytest.mark.parametrize(
    "name", [name if name in BY_DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in PROTOCOLS]
)


@jax.jit
def randomized(mechanism, key, x):
    return mechanism.randomize(key, x)


def simulate(mechanism, n, theta=None, seed=0):
    """A release of n records, from a law that leaves some categories rare unless it is given."""
    rng = np.random.default_rng(seed)
    theta = rng.dirichlet(np.full(mechanism.categories, 0.5)) if theta is None else theta
    x = rng.choice(mechanism.categories, n, p=theta)
    p, q = (np.broadcast_to(each, n)[:, None] for each in mechanism.support_probabilities)
    if isinstance(mechanism, (ldp.OptimalUnaryEncoding, ldp.SymmetricUnaryEncoding)):  # from NumPy: nothing compiles
        own = np.arange(mechanism.categories) == x[:, None]
        return ldp.Release((rng.random(own.shape) < np.where(own, p, q)).astype(int), mechanism)
    if isinstance(mechanism, ldp.RandomizedResponse):
        others = (x + rng.integers(1, mechanism.categories, n)) % mechanism.categories
        return ldp.Release(np.where(rng.random(n) < p[:, 0], x, others), mechanism)
    return ldp.Release(randomized(mechanism, jax.random.key(seed), x), mechanism)


@functools.cache
def mixed(name):
    """300 records of five categories, with all of the budgets: one release a protocol, so that all is compiled once."""
    return simulate(PROTOCOLS[name](np.resize(BUDGETS, 300), 5), 300, seed=3)


def kernel(release):
    """p(z_i | k)/p(z_i | supported), an array (N, d)."""
    members = np.asarray(release.mechanism.membership(release.values))
    epsilon = np.broadcast_to(release.mechanism.epsilon, len(members))[:, None]
    return np.where(members, 1.0, np.exp(-epsilon))


def log_likelihood(rows, theta):
    return np.sum(np.log(rows @ theta))


def best_by_scipy(rows, start):
    """Maximum of the log-likelihood over the simplex."""
    n, d = rows.shape
    found = optimize.minimize(
        lambda t: -log_likelihood(rows, t) / n,
        start,
        jac=lambda t: -np.mean(rows / (rows @ t)[:, None], axis=0),
        method="SLSQP",
        bounds=[(1e-12, 1)] * d,  # the log-likelihood of a zero may be infinite
        constraints={"type": "eq", "fun": lambda t: t.sum() - 1, "jac": lambda t: np.ones(d)},
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return found.x / found.x.sum()


# --- pure-ldp


def pure_ldp_server(name, epsilon, d):
    oracles = pytest.importorskip("pure_ldp.frequency_oracles")
    return {
        "de": lambda: oracles.DEServer(epsilon, d),
        "oue": lambda: oracles.UEServer(epsilon, d, use_oue=True),
        "sue": lambda: oracles.UEServer(epsilon, d, use_oue=False),
        "hr": lambda: oracles.HadamardResponseServer(epsilon, d),
        "blh": lambda: oracles.LHServer(epsilon, d, g=2),
        "olh": lambda: oracles.LHServer(epsilon, d, use_olh=True),
    }[name]()


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 1.0])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("de", ldp.RandomizedResponse),
        ("oue", ldp.OptimalUnaryEncoding),
        ("sue", ldp.SymmetricUnaryEncoding),
        ("hr", ldp.HadamardResponse),
        ("blh", functools.partial(ldp.LocalHashing, hash_range=2)),
        ("olh", ldp.LocalHashing),
    ],
)
def test_estimates_are_those_of_pure_ldp_on_the_same_released_values(name, make, epsilon):
    d, n = 12, 500
    server = pure_ldp_server(name, epsilon, d)
    release = simulate(make(epsilon, d), n)
    values = release.values[:, ::-1].tolist() if name in ("blh", "olh") else release.values  # (hash, seed)
    server.aggregate_all(values)
    for method, normalization in (("unbiased", 0), ("projection", 2)):
        theirs = server.estimate_all(range(1, d + 1), suppress_warnings=True, normalization=normalization)
        np.testing.assert_allclose(frequencies(release, method).estimate, theirs / n, rtol=0, atol=1e-10)


# --- the linear estimate


@protocols
def test_personal_budgets_are_combined_as_stated(name):
    release = mixed(name)
    p, q = (np.broadcast_to(a, 300)[:, None] for a in release.mechanism.support_probabilities)
    members = np.asarray(release.mechanism.membership(release.values))
    even = q + (p - q) / 5
    weights = (p - q) ** 2 / (even * (1 - even))
    terms = (members - q) / (p - q)
    expected = np.sum(weights * terms, axis=0) / weights.sum()
    found = frequencies(release)
    np.testing.assert_allclose(found.estimate, expected, atol=1e-12)
    chance = q + (p - q) * np.clip(expected, 0, 1)
    variance = np.sum((weights / (p - q)) ** 2 * chance * (1 - chance), axis=0) / weights.sum() ** 2
    np.testing.assert_allclose(found.standard_error, np.sqrt(variance), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("make", [PROTOCOLS["oue"], PROTOCOLS["local-hashing"]], ids=["oue", "local-hashing"])
def test_linear_estimates_are_unbiased_spread_as_stated_and_covered(make):
    theta, n, repeats = np.array([0.4, 0.3, 0.15, 0.1, 0.05]), 800, 400
    budgets = np.resize(BUDGETS, n)
    rng = np.random.default_rng(1)
    x = rng.choice(5, (repeats, n), p=theta)
    mechanism = make(budgets, 5)
    values = np.asarray(make(np.tile(budgets, repeats), 5).randomize(jax.random.key(1), x.ravel()))
    values = values.reshape(repeats, n, *mechanism.event_shape)
    # not collapsed, so that all sketches have one shape and nothing is compiled twice
    found = [frequencies(CountSketch(mechanism, z, np.ones(n))) for z in values]
    estimates = np.array([f.estimate for f in found])
    z = (estimates.mean(axis=0) - theta) / (estimates.std(axis=0) / np.sqrt(repeats))
    assert np.abs(z).max() < stats.norm.isf(ERROR_RATE / 2 / 5)
    ratio = estimates.var(axis=0, ddof=1) / np.mean([f.standard_error**2 for f in found], axis=0)
    low, high = stats.chi2.interval(1 - ERROR_RATE / 5, repeats - 1)
    assert low < ratio.min() * (repeats - 1) and ratio.max() * (repeats - 1) < high
    assert_covered([f.interval(0.9) for f in found], theta, 0.9)
    # sums and differences: of OUE's bits, which a record perturbs one by one, and of hashes, which collide
    weights = np.array([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1], [1, -1, 0, 0, 0], [1, 1, 1, 1, 1]])
    contrasts = [f.contrast(weights, 0.9) for f in found]
    spread = (estimates @ weights.T).var(axis=0, ddof=1)
    ratio = spread / np.mean([c.standard_error**2 for c in contrasts], axis=0)
    low, high = stats.chi2.interval(1 - ERROR_RATE / 4, repeats - 1)
    assert low < ratio.min() * (repeats - 1) and ratio.max() * (repeats - 1) < high
    assert_covered([c.interval for c in contrasts], weights @ theta, 0.9)


@protocols
def test_the_covariance_is_the_sum_of_products_of_the_terms(name):
    release = mixed(name)
    found, (p, q) = frequencies(release), (np.broadcast_to(a, 300)[:, None] for a in support(release))
    members = np.asarray(release.mechanism.membership(release.values))
    even = q + (p - q) / 5
    slope = (p - q) / (even * (1 - even))
    terms = slope / np.sum(slope * (p - q)) * (members - q - (p - q) * found.estimate)
    expected, tiny = terms.T @ terms, 1e-12 * np.sum(terms**2)
    np.testing.assert_allclose(found.covariance, expected, rtol=1e-9, atol=tiny)
    np.testing.assert_allclose(frequencies(release.sketch()).covariance, expected, rtol=1e-9, atol=tiny)
    weights = np.array([[1.0, 1, 0, 0, 0], [0.5, 0, -2, 0, 0]])  # whose variances are found without that matrix
    errors = np.sqrt(np.diag(weights @ expected @ weights.T))
    np.testing.assert_allclose(found.contrast(weights).standard_error, errors, rtol=1e-9)


def test_with_one_budget_its_diagonal_has_the_squared_standard_errors():
    found = frequencies(simulate(ldp.OptimalUnaryEncoding(1.0, 8), 500, [0.6, 0.4, 0, 0, 0, 0, 0, 0]))
    inside, diagonal = (found.estimate >= 0) & (found.estimate <= 1), np.diag(found.covariance)
    assert inside.any() and not inside.all()
    np.testing.assert_allclose(diagonal[inside], found.standard_error[inside] ** 2, rtol=1e-9)
    # below 0 fewer records than expected support a category, and the errors are those of 0
    assert np.all(diagonal[~inside] < found.standard_error[~inside] ** 2)


def support(release):
    return release.mechanism.support_probabilities


def test_under_randomized_response_the_covariance_is_multinomial_and_the_sum_certain():
    release = simulate(ldp.RandomizedResponse(1.0, 4), 5000, np.full(4, 0.25))
    found, (p, q), share = frequencies(release), support(release), np.bincount(release.values) / 5000
    multinomial = (np.diag(share) - np.outer(share, share)) / 5000 / (p - q) ** 2
    np.testing.assert_allclose(found.covariance, multinomial, atol=1e-12 * multinomial.max())
    whole = found.contrast(np.ones(4))
    assert whole.estimate == pytest.approx(1, abs=1e-12) and whole.standard_error < 1e-7  # the root of rounding errors


def test_contrasts_are_weighted_sums_with_normal_intervals():
    release = simulate(ldp.RandomizedResponse(1.0, 4), 5000, np.full(4, 0.25))
    for method in ("unbiased", "mle"):
        found = frequencies(release, method)
        weights = np.array([[1.0, 1, 0, 0], [0.5, 0, -0.5, 0]])
        both, first = found.contrast(weights, 0.5), found.contrast(weights[0], 0.5)
        errors = np.sqrt(np.diag(weights @ found.covariance @ weights.T))
        np.testing.assert_allclose(both.estimate, weights @ found.estimate)
        np.testing.assert_allclose(both.standard_error, errors)
        np.testing.assert_allclose(both.interval[1] - both.estimate, 0.6744897501960817 * errors)
        for all_of_them, one in zip(both[:2], first[:2], strict=True):
            assert one == pytest.approx(all_of_them[0], rel=1e-12)
        assert found.contrast(np.array([True, True, False, False]), 0.5) == first
        assert found.contrast({0: 1, 1: 1.0}, 0.5) == first
        for k in range(4):
            assert found.contrast(np.eye(4)[k])[:2] == pytest.approx((found.estimate[k], found.standard_error[k]))


def test_contrasts_of_many_categories_need_no_matrix():
    release = simulate(ldp.RandomizedResponse(1.0, 5_000), 1_000)
    found, (p, q) = frequencies(release), support(release)
    assert found.covariance is None
    with pytest.raises(ValueError, match=r"got shape \(2,\); the names are 0, 1, 2, 3, 4, 5, \.\.\., 4999"):
        found.contrast([1, -1])
    line = repr(found)
    assert line.startswith("<Frequencies, method 'unbiased', 5000 categories, 0: ")
    assert line.endswith(", 4,994 more in summary()>")
    assert "\n" not in line and found._repr_html_().startswith("<pre>Frequencies, method")
    half = found.contrast(np.arange(5_000) < 2_500)  # the share of values in that half, a Bernoulli variable
    share = np.mean(release.values < 2_500)
    assert half.estimate == pytest.approx((share - 2_500 * q) / (p - q), rel=1e-9)
    assert half.standard_error == pytest.approx(np.sqrt(share * (1 - share) / 1_000) / (p - q), rel=1e-9)


def test_a_sum_has_an_error_where_all_of_its_categories_have_one():
    x = np.random.default_rng(0).choice(4, 500, p=[0.5, 0.3, 0.2, 0])
    found = frequencies(ldp.Release(x, ldp.RandomizedResponse(np.inf, 4)), "mle")  # the last one is estimated as 0
    errors = found.contrast([[1, 1, 0, 0], [1, 0, 0, 1]]).standard_error
    share = found.estimate[:2].sum()
    assert errors[0] == pytest.approx(np.sqrt(share * (1 - share) / 500)) and np.isnan(errors[1])


def test_m_estimates_have_contrasts_too():
    covariance = np.array([[4.0, 1.0, np.nan], [1.0, 9.0, np.nan], [np.nan, np.nan, np.nan]])
    values = dict.fromkeys(field.name for field in dataclasses.fields(ldp.estimation.MEstimationResult))
    named = {"names": ["age", "income", "ill"], "method": "combined", "count": 20_640, "converged": False}
    found = ldp.estimation.MEstimationResult(
        **values | {"params": np.array([1.0, 2.0, 3.0]), "covariance": covariance} | named
    )
    difference = found.contrast([1, -1, 0])
    assert found.contrast({"age": 1, "income": -1}) == difference
    with pytest.raises(ValueError, match="weights has unknown names 'incme'; the names are age, income, ill"):
        found.contrast({"age": 1, "incme": -1})
    assert difference[:2] == (-1.0, pytest.approx(np.sqrt(11))) and difference.interval[1] > 0
    assert np.isnan(found.contrast([1, 0, 1]).standard_error)
    line = "<M-estimate, method 'combined', 20640 records, NOT CONVERGED, age: 1 ± 2, income: 2 ± 3, ill: 3>"
    assert repr(found) == line


def test_an_interval_holds_the_frequencies_that_the_estimate_is_near_to():
    release = mixed("oue")
    found, (p, q) = frequencies(release), release.mechanism.support_probabilities
    even = q + (p - q) / 5
    slope = (p - q) / (even * (1 - even))
    slope /= np.sum(slope * (p - q))
    grid, step = np.linspace(-0.5, 1.5, 20_001, retstep=True)
    chance = q + (p - q) * np.clip(grid, 0, 1)[:, None]
    spread = np.sqrt(np.sum(slope**2 * chance * (1 - chance), axis=1))
    for level, quantile in ((0.8, 1.2815515655446004), (1 - 1e-9, stats.norm.isf(5e-10))):
        for estimate, low, high in zip(found.estimate, *found.interval(level), strict=True):
            near = grid[np.abs(estimate - grid) <= quantile * spread]
            assert near[0] - step <= low <= near[0] and near[-1] <= high <= near[-1] + step
    # Wilson's intervals of 3, 7 and 0 records out of 10
    certain = frequencies(ldp.Release(np.repeat([0, 1], [3, 7]), ldp.RandomizedResponse(np.inf, 3))).interval()
    np.testing.assert_allclose(certain, proportion_confint(np.array([3, 7, 0]), 10, method="wilson"), atol=1e-12)


@pytest.mark.slow
def test_intervals_cover_categories_of_which_a_single_record_is_released_as_it_is():
    d, n, repeats = 200, 1000, 40
    mechanism = ldp.RandomizedResponse(np.where(np.arange(n) % 5 == 0, np.inf, 1.0), d)
    x = np.random.default_rng(7).integers(d, size=(repeats, n))
    values = jax.vmap(mechanism.randomize)(jax.random.split(jax.random.key(7), repeats), x)
    intervals = np.array([frequencies(CountSketch(mechanism, np.asarray(z), np.ones(n))).interval() for z in values])
    share = np.mean((intervals[:, 0] <= 1 / d) & (1 / d <= intervals[:, 1]))
    # normal intervals cover .63; counts of about one record have steps of .05 to .1 in what can be covered, and the
    # share of 8,000 intervals a standard error of .003
    assert 0.9 < share < 0.98


def assert_covered(intervals, theta, level):
    """Each frequency as often as the level says, within the 99% band of a binomial, Bonferroni over frequencies."""
    low, high = np.moveaxis(np.array(intervals), 1, 0)
    hits = np.sum((low <= theta) & (theta <= high), axis=0)
    least, most = stats.binom.interval(1 - 0.01 / len(theta), len(low), level)
    assert least <= hits.min() and hits.max() <= most


# --- consistency


def test_base_cut_keeps_what_is_above_the_stated_threshold():
    mechanism, n, alpha = ldp.OptimalUnaryEncoding(1.0, 40), 3000, 0.5
    release = simulate(mechanism, n)
    p, q = mechanism.support_probabilities
    threshold = stats.norm.ppf(1 - alpha / 40) * np.sqrt(q * (1 - q) / n) / (p - q)
    linear = frequencies(release).estimate
    cut = frequencies(release, "base_cut", alpha=alpha).estimate
    assert 0 < np.sum(cut > 0) < np.sum(linear > 0)
    np.testing.assert_array_equal(cut, np.where(linear >= threshold, linear, 0))
    assert np.sum(frequencies(release, "base_cut").estimate > 0) < np.sum(cut > 0)


def test_norm_sub_and_the_projection_are_the_closest_point_of_the_simplex():
    for seed in range(3):
        release = simulate(ldp.SymmetricUnaryEncoding(1.0, 20), 400, seed=seed)
        linear = frequencies(release).estimate
        assert linear.min() < 0
        steps = linear  # Norm-Sub as Wang et al. (2020) describe it
        while abs(steps.sum() - 1) > 1e-14 or steps.min() < 0:
            steps = np.maximum(steps, 0)
            steps = np.where(steps > 0, steps + (1 - steps.sum()) / np.sum(steps > 0), 0)
        closest = optimize.minimize(
            lambda t, y=linear: np.sum((t - y) ** 2),
            np.full(20, 0.05),
            jac=lambda t, y=linear: 2 * (t - y),
            method="SLSQP",
            bounds=[(0, None)] * 20,
            constraints={"type": "eq", "fun": lambda t: t.sum() - 1, "jac": lambda t: np.ones(20)},
            options={"ftol": 1e-14},
        ).x
        for method in ("norm_sub", "projection"):
            found = frequencies(release, method).estimate
            np.testing.assert_allclose(found, steps, atol=1e-13)
            np.testing.assert_allclose(found, closest, atol=1e-6)


@protocols
def test_consistent_estimates_lie_on_the_simplex_and_sketches_lose_nothing(name):
    release = mixed(name)
    for method in METHODS:
        whole, collapsed = (frequencies(data, method) for data in (release, release.sketch()))
        assert whole.method == method and whole.estimate.shape == (5,)
        np.testing.assert_array_equal(whole.estimate, collapsed.estimate)
        if method in ("norm_sub", "projection", "mle"):
            assert whole.estimate.min() >= 0 and whole.estimate.sum() == pytest.approx(1, abs=1e-12)
        if method == "mle":
            low, high = whole.interval(0.5)
            np.testing.assert_allclose((high - low) / 2, 0.6744897501960817 * whole.standard_error)
        elif method != "unbiased":
            with pytest.raises(ValueError, match=f"this '{method}' estimate has no standard errors"):
                whole.interval()
            with pytest.raises(ValueError, match=f"this '{method}' estimate has no standard errors"):
                whole.contrast(np.ones(5))


# --- maximum likelihood


@protocols
def test_maximum_likelihood_is_that_of_scipy(name):
    release = mixed(name)
    rows, found = kernel(release), frequencies(release, "mle")
    assert found.converged and 0 <= found.gap <= 1e-6
    scipys = best_by_scipy(rows, np.full(5, 0.2))
    behind = log_likelihood(rows, found.estimate) - log_likelihood(rows, scipys)
    assert -found.gap - 1e-9 <= behind < 1e-4
    # δ standard errors away from the maximum the log-likelihood is δ²/2 lower, to leading order
    inside, error = found.estimate > 0, np.abs(scipys - found.estimate)
    apart = np.sqrt(2 * found.gap) + np.sqrt(2 * (behind + found.gap + 1e-9))
    assert np.all(error[inside] <= 1.1 * apart * found.standard_error[inside])
    # being concave it is at least Σ θ_k N (1 − g_k) lower, which is how far from zero a frequency can be
    slope = len(rows) - np.sum(rows / (rows @ found.estimate)[:, None], axis=0)
    assert np.all(error[~inside] * slope[~inside] <= behind + found.gap + 1e-9)
    np.testing.assert_array_equal(np.isnan(found.standard_error), ~inside)


@pytest.mark.slow  # SciPy finds none either
def test_no_point_of_a_fine_grid_is_likelier():
    steps = 60
    grid = np.array([(i, j, steps - i - j) for i, j in itertools.product(range(steps + 1), repeat=2) if i + j <= steps])
    for seed in range(3):
        release = simulate(ldp.HadamardResponse(0.8, 3), 60, seed=seed)
        rows = kernel(release)
        found = frequencies(release, "mle").estimate
        best = max(log_likelihood(rows, point) for point in grid / steps)
        assert best <= log_likelihood(rows, found) + 1e-6


def test_the_gap_bounds_the_deficit_wherever_em_stops(monkeypatch):
    release = simulate(ldp.OptimalUnaryEncoding(1.0, 8), 500)
    rows, best = kernel(release), frequencies(release, "mle", tolerance=1e-9)
    maximum = log_likelihood(rows, best.estimate)
    monkeypatch.setattr(module, "DENSE_CATEGORIES", 0)
    for iterations in (1, 3, 10):
        with pytest.warns(RuntimeWarning, match=f"not converged in {iterations} iterations"):
            stopped = frequencies(release, "mle", max_iterations=iterations)
        deficit = maximum - log_likelihood(rows, stopped.estimate)
        assert 1e-6 < deficit <= stopped.gap and not stopped.converged and stopped.iterations == iterations
        gradient = np.sum(rows / (rows @ stopped.estimate)[:, None], axis=0)
        assert stopped.gap == pytest.approx(gradient.max() - 500, rel=1e-8)
    alone = frequencies(release, "mle")  # SQUAREM arrives at the same point without a Newton step
    assert alone.converged and alone.iterations > best.iterations and alone.standard_error is None
    assert alone.covariance is None
    with pytest.raises(ValueError, match="this 'mle' estimate has no standard errors; use method='unbiased'"):
        alone.contrast(np.ones(8))
    np.testing.assert_allclose(alone.estimate, best.estimate, atol=np.sqrt(2e-6) * np.nanmax(best.standard_error))


def test_where_the_likelihood_is_multinomial_it_has_the_textbook_maximum():
    x = np.random.default_rng(0).choice(4, 500, p=[0.5, 0.3, 0.2, 0])
    share = np.bincount(x, minlength=4) / 500
    exact = frequencies(ldp.Release(x, ldp.RandomizedResponse(np.inf, 4)), "mle")
    np.testing.assert_allclose(exact.estimate, share, atol=1e-12)
    np.testing.assert_allclose(exact.standard_error[:3], np.sqrt(share * (1 - share) / 500)[:3], rtol=1e-9)
    # under randomized response the linear estimate is the maximum, as long as it is a law
    release = simulate(ldp.RandomizedResponse(1.0, 4), 5000, np.full(4, 0.25))
    linear, found = (frequencies(release, method) for method in ("unbiased", "mle"))
    assert linear.estimate.min() > 0
    np.testing.assert_allclose(found.estimate, linear.estimate, atol=1e-9)
    np.testing.assert_allclose(found.standard_error, linear.standard_error, rtol=1e-6)


@pytest.mark.slow
def test_standard_errors_of_maximum_likelihood_are_its_spread_and_intervals_cover():
    theta, n, repeats = np.array([0.4, 0.3, 0.2, 0.1]), 1000, 300
    mechanism = ldp.SymmetricUnaryEncoding(np.resize([1.0, 3.0], n), 4)
    x = np.random.default_rng(2).choice(4, (repeats, n), p=theta)
    values = jax.vmap(mechanism.randomize)(jax.random.split(jax.random.key(2), repeats), x)
    found = [frequencies(CountSketch(mechanism, np.asarray(z), np.ones(n)), "mle") for z in values]
    estimates = np.array([f.estimate for f in found])
    assert all(f.converged for f in found) and estimates.min() > 0
    ratio = estimates.var(axis=0, ddof=1) / np.mean([f.standard_error**2 for f in found], axis=0)
    low, high = stats.chi2.interval(1 - ERROR_RATE / 4, repeats - 1)
    assert low < ratio.min() * (repeats - 1) and ratio.max() * (repeats - 1) < high
    assert_covered([f.interval() for f in found], theta, 0.95)
    weights = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, -1, 0]])
    assert_covered([f.contrast(weights).interval for f in found], weights @ theta, 0.95)


def test_many_categories_converge_in_a_few_iterations_with_the_dense_standard_errors():
    d, n = 200, 20_000
    release = simulate(ldp.OptimalUnaryEncoding(1.0, d), n)
    found = frequencies(release, "mle")
    assert found.converged and found.gap <= 1e-6 and found.iterations <= 6
    inside = found.estimate > 0
    scaled = kernel(release)
    scaled /= (scaled @ found.estimate)[:, None]
    information = scaled[:, inside].T @ scaled[:, inside]
    # the inverse on the tangent space of the face: bordered by the constraint that changes sum to zero
    k = len(information)
    bordered = np.block([[information, np.ones((k, 1))], [np.ones((1, k)), np.zeros((1, 1))]])
    variance = np.diag(np.linalg.inv(bordered))[:k]
    np.testing.assert_allclose(found.standard_error[inside], np.sqrt(variance), rtol=1e-6)
    assert 0 < np.isnan(found.standard_error).sum() == np.sum(~inside)


def test_categories_that_are_not_told_apart_have_enormous_standard_errors():
    # two records say nothing about most of the ten categories
    found = frequencies(simulate(ldp.LocalHashing(1.0, 10, 2), 2), "mle")
    assert found.converged and np.nanmax(found.standard_error) > 100


# --- bad input

ONE = ldp.RandomizedResponse(1.0, 3)
RELEASE = ldp.Release([0, 1, 2, 2], ONE)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (RELEASE, {"method": "em"}, "method must be one of unbiased, base_cut, norm_sub, projection, mle, got 'em'"),
        (ldp.Release(None, ONE, 5), {}, "a release without values has no frequencies to estimate"),
        (RELEASE.sketch(by=[0, 0, 1, 1]), {}, "the sketch holds 2 groups; make one sketch for each group"),
        (RELEASE, {"alpha": 0.0}, "alpha must be positive and less than 3, got 0.0"),
        (RELEASE, {"alpha": 3}, "alpha must be positive and less than 3, got 3"),
        (RELEASE, {"tolerance": 0}, "tolerance must be positive, got 0"),
        (RELEASE, {"tolerance": np.nan}, "tolerance must be positive, got nan"),
        (RELEASE, {"max_iterations": 0}, "max_iterations must be an integer of at least 1, got 0"),
        (RELEASE, {"max_iterations": 2.5}, "max_iterations must be an integer of at least 1, got 2.5"),
    ],
)
def test_bad_values_are_named(data, options, message):
    with pytest.raises(ValueError, match=message):
        frequencies(data, **options)


@pytest.mark.parametrize("level", [0, 1, 95, np.nan])
def test_levels_outside_their_range_are_named(level):
    with pytest.raises(ValueError, match="level must be between 0 and 1, got"):
        frequencies(RELEASE).interval(level)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 0], r"weights must be 3 numbers or rows of 3, got shape \(2,\)"),
        (1.0, r"weights must be 3 numbers or rows of 3, got shape \(\)"),
        (np.ones((2, 2, 3)), r"weights must be 3 numbers or rows of 3, got shape \(2, 2, 3\)"),
        ([1, np.nan, 0], r"weights must be 3 finite numbers, or rows of 3, got weights\[1\] = nan"),
        ("012", r"weights must be 3 finite numbers, or rows of 3, got .*'012'"),
    ],
)
def test_weights_of_another_shape_are_named(weights, message):
    with pytest.raises(ValueError, match=message):
        frequencies(RELEASE).contrast(weights)
    with pytest.raises(ValueError, match="level must be between 0 and 1, got 95"):
        frequencies(RELEASE).contrast(np.ones(3), 95)


def test_data_of_another_kind_are_refused():
    with pytest.raises(TypeError, match="data must be a Release or a CountSketch, got ndarray"):
        frequencies(np.array([0, 1, 2]))
    laplace = ldp.Release([0.1, 0.2], ldp.LaplaceMechanism(1.0, 0, 1))
    for data in (laplace, laplace.sketch()):
        with pytest.raises(TypeError, match=r"under a pure protocol.* got a release of LaplaceMechanism"):
            frequencies(data)


@pytest.mark.parametrize(("one", "other"), [(0.7, 0.3), (0.5, 0.25), (0.6875, 0.5625)])
def test_bits_of_rappor_have_the_mechanisms_that_the_page_on_other_libraries_states(one, other):
    """From the expected numbers of reports of three categories, of the shares .2, .3 and .5, by enumeration."""
    shares, bits = np.array([0.2, 0.3, 0.5]), np.array([*itertools.product((0, 1), repeat=3)])
    given = np.where(np.eye(3)[:, None] == 1, one, other)  # P(bit = 1) of each category, report and place
    law = shares @ np.prod(np.where(bits == 1, given, 1 - given), axis=-1)
    counts = 1e4 * law
    matrix = ldp.mechanisms.TransitionMatrix([[1 - other, other], [1 - one, one]])
    for place, share in enumerate(shares):
        own = counts[bits[:, place] == 1].sum()
        sketch = CountSketch(matrix, np.array([0, 1]), np.array([1e4 - own, own]))
        assert frequencies(sketch).params[1] == pytest.approx(share, rel=1e-9)
    rows = []
    if one + other == 1:
        rows.append(ldp.SymmetricUnaryEncoding(2 * np.log(one / other), 3))
    if one == 0.5:
        rows.append(ldp.OptimalUnaryEncoding(np.log(1 / other - 1), 3))
    for mechanism in rows:
        np.testing.assert_allclose(mechanism.support_probabilities, (one, other), rtol=1e-12)
        np.testing.assert_allclose(frequencies(CountSketch(mechanism, bits, counts)).params, shares, rtol=1e-6)
