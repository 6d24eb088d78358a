"""Gaussian noise, alone and beside randomized response, against integrals, tests and 80-digit arithmetic; zero-inflated
Laplace noise against the paper's parameters.
"""

import math

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from ldpbayes.privacy import approximate_tradeoff, gaussian_scale, zil_parameters
from ldpbayes.privacy.calibration import GaussianWithResponseTradeoff, gaussian_beside_response
from ldpbayes.privacy.symmetric_laplace import SymmetricLaplaceTradeoff
from ldpbayes.privacy.tradeoffs import GaussianTradeoff, PureProtocolTradeoff

EPSILONS = [1e-4, 0.01, 1.0, 5.0, 50.0, 700.0]
DELTAS = [1e-300, 1e-12, 1e-5, 0.1, 0.5, 0.999999]


def achieved_delta(scale: float, epsilon: float) -> mpmath.mpf:
    """Balle & Wang (2018), Theorem 8, as printed, at sensitivity one."""
    with mpmath.workdps(80):
        s, e = mpmath.mpf(float(scale)), mpmath.mpf(float(epsilon))

        def cdf(t):
            return mpmath.erfc(-t / mpmath.sqrt(2)) / 2

        return cdf(1 / (2 * s) - e * s) - mpmath.exp(e) * cdf(-1 / (2 * s) - e * s)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_achieved_delta_is_the_stated_one(epsilon, delta):
    achieved = achieved_delta(gaussian_scale(epsilon, delta), epsilon)
    assert abs(float(achieved / mpmath.mpf(delta) - 1)) < 1e-10


def test_scale_is_the_smallest_that_keeps_the_promise():
    for epsilon, delta in ((0.1, 1e-9), (1.0, 1e-5), (10.0, 0.2)):
        scale = gaussian_scale(epsilon, delta)
        assert achieved_delta(scale * (1 - 1e-9), epsilon) > delta > achieved_delta(scale * (1 + 1e-9), epsilon)


def test_scale_is_below_the_classical_one_and_proportional_to_sensitivity():
    assert gaussian_scale(0.5, 1e-5) < np.sqrt(2 * np.log(1.25e5)) / 0.5
    assert gaussian_scale(0.5, 1e-5, 10.0) == pytest.approx(10 * gaussian_scale(0.5, 1e-5), rel=1e-15)


def test_arrays_of_budgets_broadcast_and_agree_with_scalars():
    scales = gaussian_scale(np.array(EPSILONS)[:, None], DELTAS, sensitivity=2.0)
    assert scales.shape == (len(EPSILONS), len(DELTAS)) and scales.dtype == np.float64
    alone = [[gaussian_scale(e, d, 2.0) for d in DELTAS] for e in EPSILONS]
    np.testing.assert_allclose(scales, alone, rtol=1e-12)
    assert isinstance(gaussian_scale(1, 1e-5), float)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 0.1), "epsilon must be positive and finite, got 0.0"),
        ((np.inf, 0.1), "epsilon must be positive and finite, got inf"),
        ((1.0, 0.0), "delta must be between 0 and 1, exclusive, got 0.0"),
        ((1.0, [0.1, 1.0]), r"delta must be between 0 and 1, exclusive, got delta\[1\] = 1.0"),
        ((1.0, 0.1, -1.0), "sensitivity must be positive and finite, got -1.0"),
        (("1", 0.1), "epsilon must be positive and finite, got the string '1'"),
    ],
)
def test_bad_arguments_of_the_gaussian_scale_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        gaussian_scale(*arguments)


# --- Gaussian noise beside randomized response

PAIRS = [(0.05, 3.0), (0.3, 0.1), (1.0, 1.0), (1.0, 6.0), (4.0, 0.5)]  # both kinds prevail, or neither


def densities(mu, budget, points=400_001):
    """Of (z, response) under the two inputs at points of a grid, and the grid's width; both answers one after another.

    The density falls to 1e-31 of its peak at the grid's ends, and the rule is exact to rounding for such integrands
    where they are smooth.
    """
    z, width = np.linspace(-12, 12 + mu, points, retstep=True)
    truth = special.expit(budget)
    first, second = stats.norm.pdf(z - mu), stats.norm.pdf(z)
    p = np.concatenate([truth * first, (1 - truth) * first])
    q = np.concatenate([(1 - truth) * second, truth * second])
    return p * width, q * width


@pytest.mark.parametrize(("mu", "budget"), PAIRS)
def test_delta_is_the_hockey_stick_integral(mu, budget):
    p, q = densities(mu, budget)
    curve = GaussianWithResponseTradeoff(mu, budget)
    for epsilon in (0.0, 0.05, budget / 2, budget, budget + 0.3):
        integral = np.sum(np.maximum(p - np.exp(epsilon) * q, 0))
        # two kinks on a grid of width 6e-5 to 7e-5: each misses at most width² times the integrand's slope, below 2
        assert curve.delta(epsilon) == pytest.approx(integral, abs=2e-8)


@pytest.mark.parametrize(("mu", "budget"), PAIRS)
def test_curve_is_neyman_and_pearsons_test_of_the_densities(mu, budget):
    p, q = densities(mu, budget)
    order = np.argsort(q / p)
    # reject where the first input is favoured most, point by point: level and type II error
    level, missed = np.cumsum(q[order]), 1 - np.cumsum(p[order])
    levels = np.array([1e-6, 1e-3, 0.05, 0.2, 0.5, 0.8, 0.95, 0.999])
    found = np.interp(levels, np.concatenate([[0], level]), np.concatenate([[1], missed]))
    # a point carries at most 4e-5 of either law, and the chord between two is that much squared above the curve at
    # most times its curvature; the cumulated sums add rounding
    np.testing.assert_allclose(GaussianWithResponseTradeoff(mu, budget)(levels), found, atol=1e-8)


@pytest.mark.parametrize(("mu", "budget"), PAIRS)
def test_curve_is_convex_decreasing_symmetric_and_below_both_parts(mu, budget):
    curve, alpha = GaussianWithResponseTradeoff(mu, budget), np.linspace(0, 1, 2001)
    beta = curve(alpha)
    assert beta[0] == 1 and beta[-1] == 0
    assert np.all(np.diff(beta) <= 0)
    assert np.all(np.diff(beta, 2) >= -1e-14)
    np.testing.assert_allclose(curve(beta), alpha, atol=1e-12)
    for part in (GaussianTradeoff(mu), PureProtocolTradeoff(budget, special.expit(budget))):
        assert np.all(beta <= part(alpha) + 1e-15)


@pytest.mark.parametrize(("mu", "budget"), PAIRS)
def test_delta_is_the_convex_conjugate_of_the_curve(mu, budget):
    curve = GaussianWithResponseTradeoff(mu, budget)
    for epsilon in (0.0, 0.1, 0.7, budget, budget + 1.0):
        low, high = 0.0, 1.0
        for _ in range(10):  # the best of 101 levels is next to the best of all, as the function is concave
            alpha = np.linspace(low, high, 101)
            values = 1 - np.exp(epsilon) * alpha - curve(alpha)
            best = np.argmax(values)
            low, high = alpha[max(best - 1, 0)], alpha[min(best + 1, 100)]
        assert np.max(values) == pytest.approx(curve.delta(epsilon), abs=1e-14)


def exact_delta(mu, budget, epsilon):
    """From the mixture of normal laws of the log likelihood ratio, in high precision."""
    with mpmath.workdps(400):
        mu, budget, epsilon = (mpmath.mpf(float(v)) for v in (mu, budget, epsilon))
        truth = 1 / (1 + mpmath.exp(-budget))

        def above(center):
            """P(mu Z + center > epsilon)."""
            return mpmath.erfc((epsilon - center) / mu / mpmath.sqrt(2)) / 2

        half = mu**2 / 2
        power = truth * above(half + budget) + (1 - truth) * above(half - budget)
        level = (1 - truth) * above(budget - half) + truth * above(-budget - half)
        return power - mpmath.exp(epsilon) * level


def test_delta_matches_mpmath_from_one_down_to_1e_300_and_beyond():
    largest = 0.0
    for mu in (1e-3, 0.3, 1.01, 12.0):
        for budget in (1e-6, 0.2, 5.0, 40.0):
            for epsilon in (0.0, 0.1, 5.0, 5.001, 60.0):
                exact = exact_delta(mu, budget, epsilon)
                log_exact, curve = float(mpmath.log(exact)), GaussianWithResponseTradeoff(mu, budget)
                assert curve.log_delta(epsilon) == pytest.approx(log_exact, rel=1e-13, abs=1e-14)
                if log_exact > -691:
                    largest = max(largest, abs(float(curve.delta(epsilon) / exact - 1)))
    assert largest < 1e-12


def test_without_either_part_the_other_is_left():
    alpha, epsilons = np.linspace(0, 1, 101), np.array([0.0, 0.2, 0.9, 2.0])
    # of a part with mu or epsilon of 1e-7 no test has more power than its level and 1e-7
    response, gaussian = PureProtocolTradeoff(1.0, special.expit(1.0)), GaussianTradeoff(0.8)
    for curve, part in (
        (GaussianWithResponseTradeoff(1e-7, 1.0), response),
        (GaussianWithResponseTradeoff(0.8, 1e-7), gaussian),
    ):
        np.testing.assert_allclose(curve(alpha), part(alpha), atol=1e-7)
        np.testing.assert_allclose(curve.delta(epsilons), part.delta(epsilons), atol=1e-7)


def test_epsilon_inverts_delta():
    for mu, budget in PAIRS:
        curve = GaussianWithResponseTradeoff(mu, budget)
        for epsilon in (0.01, budget / 2, budget, budget + 2 * mu):
            assert curve.epsilon(curve.delta(epsilon)) == pytest.approx(epsilon, rel=1e-10)
        assert curve.epsilon(min(curve.delta(0.0) * 1.01, 1.0)) == 0
        assert curve.epsilon(1.0) == 0 and curve.epsilon(0.0) == np.inf


def test_curve_is_finite_and_falls_where_the_parts_are_extreme():
    alpha = np.array([0.0, 1e-300, 1e-12, 0.1, 0.5, 0.5 + 1e-15, 0.9, 1 - 1e-12, 1.0])
    mu, budget = np.meshgrid(np.geomspace(1e-6, 100, 9), np.geomspace(1e-6, 700, 10))
    beta = GaussianWithResponseTradeoff(mu[..., None], budget[..., None])(alpha)
    assert np.all(np.diff(beta) <= 1e-15) and np.all((beta >= 0) & (beta <= 1 - alpha))
    epsilon = GaussianWithResponseTradeoff(mu, budget).epsilon(1e-9)
    # both together need no less than either, and no more than their sum
    gaussian, response = GaussianTradeoff(mu).epsilon(1e-9), PureProtocolTradeoff(budget, special.expit(budget))
    assert np.all(epsilon >= np.maximum(gaussian, response.epsilon(1e-9)) * (1 - 1e-12))
    assert np.all(epsilon <= (gaussian + budget) * (1 + 1e-12))


def test_personal_budgets_broadcast():
    mu, budget, alpha = np.array([0.5, 1.0, 2.0]), np.array([3.0, 0.4, 1.0]), np.array([[0.0], [0.3], [1.0]])
    together = GaussianWithResponseTradeoff(mu, budget)
    for method, argument in ((together, alpha), (together.delta, alpha), (together.epsilon, alpha / 10)):
        assert method(argument).shape == (3, 3)
    for i in range(3):
        alone = GaussianWithResponseTradeoff(mu[i], budget[i])
        np.testing.assert_allclose(together(alpha)[:, i], alone(alpha[:, 0]))
        np.testing.assert_allclose(together.delta(0.3)[i], alone.delta(0.3))
        np.testing.assert_allclose(together.epsilon(0.01)[i], alone.epsilon(0.01))
    assert GaussianWithResponseTradeoff(1.0, budget).delta(0.3).shape == (3,)
    assert np.ndim(alone(0.3)) == np.ndim(alone.delta(0.3)) == np.ndim(alone.epsilon(0.01)) == 0


TOTAL_EPSILONS = np.array([0.01, 0.7, 1.0, 5.0, 50.0])
TOTAL_DELTAS = np.array([1e-300, 1e-9, 1e-5, 0.3])


@pytest.mark.parametrize("share", [1e-6, 0.1, 0.5, 0.9, 1 - 1e-6])
def test_calibrated_noise_has_the_stated_delta_and_no_larger_one(share):
    epsilon, delta = TOTAL_EPSILONS[:, None], TOTAL_DELTAS
    mu = gaussian_beside_response(epsilon, delta, share * epsilon)
    assert mu.shape == (len(TOTAL_EPSILONS), len(TOTAL_DELTAS))
    achieved = GaussianWithResponseTradeoff(mu, share * epsilon).delta(epsilon)
    np.testing.assert_allclose(achieved, np.broadcast_to(delta, achieved.shape), rtol=1e-9)
    # the end of the bracket that is returned keeps the promise up to exp's own rounding at log delta = -690
    assert np.all(GaussianWithResponseTradeoff(mu, share * epsilon).log_delta(epsilon) <= np.log(delta))
    # it is between what basic composition leaves, less where the response is likely to lie, and what would be there
    # without a response; at the ends of the shares and of epsilon it is that to rounding
    assert np.all(mu * gaussian_scale(epsilon - share * epsilon, delta) > 1 - 1e-10)
    assert np.all(mu * gaussian_scale(epsilon, delta) < 1 + 1e-10)


def test_calibrated_noise_keeps_the_promise_in_exact_arithmetic():
    for epsilon, delta, budget in ((0.1, 1e-9, 0.05), (1.0, 1e-5, 0.2), (10.0, 0.2, 9.0)):
        mu = gaussian_beside_response(epsilon, delta, budget)
        assert isinstance(mu, float)
        # basic composition leaves the Gaussian noise less
        assert mu * gaussian_scale(epsilon - budget, delta) > 1 + 1e-5
        assert exact_delta(mu * (1 - 1e-9), budget, epsilon) < delta < exact_delta(mu * (1 + 1e-9), budget, epsilon)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GaussianWithResponseTradeoff(0.0, 1.0), "mu must be positive and finite, got 0.0"),
        (lambda: GaussianWithResponseTradeoff(1.0, np.inf), "response_epsilon must be positive and finite, got inf"),
        (lambda: GaussianWithResponseTradeoff(1.0, 1.0)(-0.1), r"alpha must be in \[0, 1\], got -0.1"),
        (lambda: GaussianWithResponseTradeoff(1.0, 1.0).delta(-1.0), "epsilon must be non-negative and finite"),
        (lambda: gaussian_beside_response(0.0, 0.1, 1.0), "epsilon must be positive and finite, got 0.0"),
        (lambda: gaussian_beside_response(1.0, 1.0, 0.5), "delta must be between 0 and 1, exclusive, got 1.0"),
        (lambda: gaussian_beside_response(1.0, 0.1, 0.0), "response_epsilon must be positive and finite, got 0.0"),
        (
            lambda: gaussian_beside_response([2.0, 1.0], 0.1, 1.0),
            "response_epsilon must be below epsilon = 1, got 1",
        ),
    ],
)
def test_bad_arguments_of_noise_beside_a_response_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_figure_1b_parameters_are_found():
    found = zil_parameters(0.8, 0.17, 0.05, (0, 1))
    assert found.distance == pytest.approx(0.5, abs=0.01)  # the figure's c′, to its digits
    assert found.tradeoff.delta(0.8) == pytest.approx(0.17, abs=1e-12)
    assert found.scale == pytest.approx(1 / found.distance)
    grid = np.linspace(0, 1, 201)
    assert np.all(found.tradeoff(grid) >= approximate_tradeoff(0.8, 0.17)(grid) - 1e-12)


def test_parameters_for_attributes_and_exact_curves_need_less_noise():
    bounds = (np.zeros(4), np.array([1.0, 1.0, 1.0, 3.0]))
    record = zil_parameters(1.0, 0.2, 0.1, bounds)
    attribute = zil_parameters(1.0, 0.2, 0.1, bounds, unit="attribute")
    assert record.scale / attribute.scale == pytest.approx(math.sqrt(12) / 3)
    exact = zil_parameters(1.0, 0.2, 0.1, bounds, exact=True)
    assert exact.scale < record.scale
    assert SymmetricLaplaceTradeoff(exact.distance, 4).delta(1.0) == pytest.approx(0.1 / 0.9)
    # Table 1's noise is sqrt(2)/epsilon: (epsilon, zero_probability) just so
    assert zil_parameters(1.5, 0.1 + 1e-9, 0.1, (0, 1), exact=True).scale == pytest.approx(0.94, abs=0.005)
