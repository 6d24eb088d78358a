"""Trade-off functions of symmetric Laplace noise against closed forms, simulation and 30-digit arithmetic."""

import math

import mpmath
import numpy as np
import pytest
from scipy import optimize, special

import ldpbayes as ldp
from ldpbayes.privacy import approximate_tradeoff, zil_parameters
from ldpbayes.privacy.symmetric_laplace import LEAST_TABLE_DISTANCE, SymmetricLaplaceTradeoff, _tests
from ldpbayes.privacy.tradeoffs import LaplaceTradeoff, ZeroInflatedTradeoff

ALPHA = np.concatenate([[0], np.geomspace(1e-6, 0.5, 30), 1 - np.geomspace(0.5, 1e-6, 30), [1]])
GRID = np.linspace(0, 1, 201)


def errors(dimension, distance, kappa):
    """Level and power of the tests at log thresholds."""
    return np.exp(_tests(dimension, distance).log_errors(kappa)[:2])


@pytest.mark.parametrize("distance", [0.01, 0.3, 1.0, 4.0, 20.0])
def test_quadrature_in_one_dimension_is_the_closed_form(distance):
    kappa = np.linspace(0, math.sqrt(2) * distance, 30)[:-1]  # at the end of the range the ratio is constant
    level, power = errors(1, distance, kappa)
    laplace = LaplaceTradeoff(math.sqrt(2) * distance)
    np.testing.assert_allclose(1 - power, laplace(level), atol=1e-10)
    np.testing.assert_allclose(power - np.exp(kappa) * level, laplace.delta(kappa), atol=1e-10)
    np.testing.assert_array_equal(SymmetricLaplaceTradeoff(distance, 1)(ALPHA), laplace(ALPHA))


@pytest.mark.parametrize(
    ("dimension", "distance"),
    [(5, 4.0), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(2, 0.5), (3, 2.0), (6, 4.0)])],
)
def test_errors_are_those_of_ten_million_simulated_draws(dimension, distance):
    rng = np.random.default_rng(dimension)
    kappa = np.array([0.0, 0.3, 1.0, 2.0])
    draws, rejected, detected = 10_000_000, np.zeros(4), np.zeros(4)

    def log_f(square):  # up to a constant
        if dimension == 3:
            return -np.sqrt(2 * square) - 0.5 * np.log(square)
        x = np.sqrt(2 * square)
        if dimension == 5:
            return np.log1p(1 / x) - x - np.log(square)
        if dimension == 2:
            return np.log(special.k0e(x)) - x
        # K_2 of dimension 6, by its recurrence: a general order takes ten times as long
        return np.log(special.k0e(x) + 2 / x * special.k1e(x)) - x - np.log(square)

    for _ in range(10):
        w = rng.exponential(size=draws // 10)
        first = np.sqrt(w) * rng.normal(size=len(w))
        rest = w * rng.chisquare(dimension - 1, len(w))
        ratio = log_f((first - distance) ** 2 + rest) - log_f(first**2 + rest)
        rejected += [np.sum(ratio > k) for k in kappa]
        detected += [np.sum(ratio < -k) for k in kappa]  # by symmetry, the power
    for exact, count in zip(errors(dimension, distance, kappa), (rejected, detected), strict=True):
        spread = np.sqrt(draws * exact * (1 - exact))
        assert np.all(np.abs(count - draws * exact) < 4.5 * spread)  # eight counts: error rate 6e-5
        # the same of the curve itself
    level, power = rejected / draws, detected / draws
    np.testing.assert_allclose(SymmetricLaplaceTradeoff(distance, dimension)(level), 1 - power, atol=2e-3)


def error_in_three_dimensions(c, kappa):
    """Log P(h > κ), where the density is exp(−√2 r)/(2π r): one integral, in distances from both centres."""
    root = math.sqrt(2)

    def rim(r):  # √2 s + log s = √2 r + log r − κ
        return special.wrightomega(root * r + np.log(root * r) - kappa) / root

    near = optimize.brentq(lambda r: rim(r) - (c - r), 1e-9 * c, c, xtol=1e-13 * c)
    far = optimize.brentq(lambda r: rim(r) - (c + r), 1e-12, 10 * c) if -kappa > root * c else math.inf
    edges = near + np.concatenate([np.geomspace(1e-3, 1, 8), np.arange(1.5, 32)])
    edges = np.sort(np.concatenate([[near], edges, [far] if far < edges[-1] else []]))
    t, w = np.polynomial.legendre.leggauss(20)
    half = np.diff(edges)[:, None] / 2
    r = edges[:-1, None] + half * (1 + t)
    s = np.minimum(rim(r), c + r)
    total = np.sum(half * w * np.exp(-root * (r - near)) * (s - np.abs(c - r)) * (s + np.abs(c - r))) / (2 * c)
    return math.log(total) - root * near


@pytest.mark.parametrize("distance", [40.0, pytest.param(100.0, marks=pytest.mark.slow), 1000.0])
def test_curves_of_far_inputs_are_those_of_another_integral_and_of_each_other(distance):
    curve = SymmetricLaplaceTradeoff(distance, 3)
    for kappa in distance * np.array([0.3, 1.0, 1.41]):
        level, missed = error_in_three_dimensions(distance, kappa), error_in_three_dimensions(distance, -kappa)
        # the rounding of the squares of distances against a difference of their first power
        near = 1e-12 * distance
        for got, expected in zip(_tests(3, distance).log_errors(kappa[None])[::2], (level, missed), strict=True):
            assert got[0] == pytest.approx(expected, abs=near)
        delta = -math.expm1(missed) - math.exp(kappa + level)
        assert curve.delta(kappa) == pytest.approx(delta, rel=near)
        if level > -600:  # what is far below that underflows
            assert curve(math.exp(level)) == pytest.approx(math.exp(missed), rel=10 * near)
            assert curve(math.exp(missed)) == pytest.approx(math.exp(level), rel=10 * near)
    assert curve.epsilon(delta) == pytest.approx(kappa)  # the last, where delta is well below one
    epsilons = np.array([0.0, 1.0, 0.5 * distance, 1.3 * distance, 1.41 * distance])
    deltas = [SymmetricLaplaceTradeoff(distance, d).delta(epsilons) for d in (1, 2, 3, 4, math.inf)]
    assert np.all(np.diff(deltas, axis=0) >= -1e-15) and np.all(np.array(deltas) <= 1)  # in order, but for a rounding


@pytest.mark.parametrize("columns", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_guarantees_of_little_noise_are_stated(columns):
    for diameter in (40.0, 1000.0):
        bounds = (0.0, diameter / math.sqrt(columns), columns)
        assert ldp.SymmetricLaplaceMechanism(1.0, *bounds).guarantee.statement()
        guarantee = ldp.ZeroInflatedLaplaceMechanism(0.2, 1.0, *bounds).guarantee
        assert 1 - 1e-11 < guarantee.delta(1.0) <= 1 and guarantee.tradeoff(0.3) < 1e-20
        # in one dimension the noise has epsilon = √2 c without a delta, and in more a little more with one
        assert math.sqrt(2) * diameter - 1 < guarantee.epsilon(0.2 + 1e-9) < math.sqrt(2) * diameter + 40


@pytest.mark.slow
@pytest.mark.parametrize("distance", [0.01, 0.5, 4.0, 20.0])
def test_curves_are_valid_and_decrease_with_the_dimension_to_their_limit(distance):
    curves = {dimension: SymmetricLaplaceTradeoff(distance, dimension) for dimension in (1, 2, 40, 1000, math.inf)}
    grid = GRID[::2]
    betas = {dimension: curve(grid) for dimension, curve in curves.items()}
    above = betas.pop(1)
    for dimension, beta in betas.items():
        assert beta[0] == 1 and beta[-1] == 0
        assert np.all(beta <= 1 - grid) and np.all(np.diff(beta) <= 0)
        assert np.all(np.diff(beta, 2) >= -1e-12)
        values = curves[dimension](ALPHA)
        seen = values > 1e-250  # those that underflow cannot be inverted
        np.testing.assert_allclose(curves[dimension](values[seen]), ALPHA[seen], atol=1e-10)
        assert np.all(beta <= above + 1e-10) and np.all(beta >= betas[math.inf] - 1e-10)
        above = beta
    near, far = (np.max(np.abs(betas[dimension] - betas[math.inf])) for dimension in (40, 1000))
    assert far < near / 15  # the difference falls as 1/d


def paper_limit(distance, kappa):
    """Level and type II error of Lu, Chen & Qiu's Proposition 3.2 as printed, F_c by quadrature."""
    with mpmath.workdps(30):
        c, x = mpmath.mpf(distance), mpmath.mpf(kappa)
        cdf = mpmath.quad(
            lambda w: mpmath.ncdf(mpmath.sqrt(w) * x / c + c / mpmath.sqrt(4 * w)) * mpmath.exp(-w),
            [0, 0.01, 0.1, 1, 5, 20, 80],
        )
        h = x / c
        root = h + mpmath.sqrt(2 + h**2)
        return 1 - cdf, mpmath.exp(-c / root) / (1 + 2 / root**2)


@pytest.mark.parametrize("distance", [0.05, 0.5, 3.0])
def test_limit_is_the_papers_proposition_and_theorem(distance):
    curve = SymmetricLaplaceTradeoff(distance)
    for kappa in (0.1, 0.8, 3.0):
        level, beta = paper_limit(distance, kappa)
        assert curve(float(level)) == pytest.approx(float(beta), abs=1e-13)
        stated = 1 - mpmath.exp(kappa) * level - beta
        assert curve.delta(kappa) == pytest.approx(float(stated), abs=1e-13)


@pytest.mark.parametrize("dimension", [pytest.param(2, marks=pytest.mark.slow), 6, math.inf])
def test_envelopes_touch_the_curve_and_epsilon_inverts_delta(dimension):
    for distance in (0.1, 0.5, 3.0):
        curve = SymmetricLaplaceTradeoff(distance, dimension)
        beta = curve(GRID[::4])
        for epsilon in (0.3, 1.0):
            delta = curve.delta(epsilon)
            level, power = errors(dimension, distance, np.array([epsilon]))
            envelope = approximate_tradeoff(epsilon, delta)
            assert envelope(level)[0] == pytest.approx(1 - power[0], abs=1e-12)  # touches
            assert np.all(envelope(GRID[::4]) <= beta + 1e-12)  # from below
        inverted = curve.epsilon(np.append(curve.delta(np.array([0.3, 1.0, 0.0])), [0.0, 1.0]))
        np.testing.assert_allclose(inverted[:2], [0.3, 1.0], rtol=1e-8)
        np.testing.assert_array_equal(inverted[2:], [0, np.inf, 0])


@pytest.mark.parametrize("dimension", [2, 3, 7, 100, 10_000, math.inf])
def test_thresholds_are_sought_where_they_are(dimension):
    """The bound of the limit, which is not proved in finite dimensions, holds at all levels and distances here."""
    levels = np.concatenate([np.geomspace(1e-300, 0.5, 40), 1 - np.geomspace(1e-15, 0.5, 40)])
    large = levels > 0.5
    target, sign = np.where(large, np.log1p(-levels), np.log(levels)), np.where(large, -1.0, 1.0)
    for distance in np.geomspace(LEAST_TABLE_DISTANCE, 300, 8):
        tests = _tests(dimension, distance)
        low, high = (sign * (tests._log_level(end, sign) - target) for end in tests._thresholds(target, sign))
        rounding = 1e-9 * np.abs(target)
        assert np.all(low >= -rounding) and np.all(high <= rounding)


def test_public_records_have_no_protection():
    curve = SymmetricLaplaceTradeoff(np.array([0.5, np.inf]), 2)
    assert curve(0.3)[0] > 0.4 and curve(0.3)[1] == 0
    np.testing.assert_array_equal(curve.delta(3.0)[1], 1.0)
    assert curve.epsilon(0.5)[1] == np.inf and curve.epsilon(1.0)[1] == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SymmetricLaplaceTradeoff(0.0), "distance must be positive, got 0.0"),
        (lambda: SymmetricLaplaceTradeoff(1.0, 2.5), "dimension must be a positive integer or infinity, got 2.5"),
        (
            lambda: ZeroInflatedTradeoff(LaplaceTradeoff(1.0), 1.0),
            "zero_probability must be between 0 and 1, exclusive",
        ),
        (lambda: approximate_tradeoff(1.0, 1.0), "delta must be at least 0 and below 1, got 1.0"),
        (lambda: zil_parameters(1.0, 0.1, 0.1, (0, 1)), "zero_probability must be below delta = 0.1, got 0.1"),
        (lambda: zil_parameters(1.0, 0.2, 0.0, (0, 1)), "zero_probability must be a number between 0 and 1"),
        (lambda: zil_parameters(-1.0, 0.2, 0.1, (0, 1)), "epsilon must be a positive and finite number"),
        (lambda: zil_parameters(1.0, 0.2, 0.1, (1, 0)), "lower below upper"),
        (lambda: zil_parameters(1.0, 0.2, 0.1, (0, 1), unit="row"), "unit must be one of record, attribute"),
        (lambda: zil_parameters(1.0, 0.2, 0.1, 1.0), r"bounds must be a pair \(lower, upper\), got 1.0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("dimension", [10_001, 10**6, 10**12])
def test_curves_of_very_many_dimensions_are_their_limit(dimension):
    few, many = SymmetricLaplaceTradeoff(1.0, 1000), SymmetricLaplaceTradeoff(1.0, dimension)
    for method, argument in (("delta", [0.0, 1.0, 3.0]), ("__call__", [0.01, 0.05, 0.5])):
        got, nearly = (np.asarray(getattr(curve, method)(argument)) for curve in (many, few))
        # what 1,000 dimensions differ from the limit by is of the order of 1/1000
        np.testing.assert_allclose(got, nearly, rtol=0.06)
        # below the other curves, but for the rounding of theirs
        assert np.all(got >= nearly - 1e-9 if method == "delta" else got <= nearly + 1e-9)
