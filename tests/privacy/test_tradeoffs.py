"""Trade-off functions against hypothesis tests and 50-digit arithmetic that do not use the formulas."""

import functools
import itertools

import mpmath
import numpy as np
import pytest
from scipy import stats

import ldpbayes as ldp
from ldpbayes.privacy import Guarantee, approximate_tradeoff
from ldpbayes.privacy.discrete import DiscreteGaussianTradeoff
from ldpbayes.privacy.symmetric_laplace import SymmetricLaplaceTradeoff
from ldpbayes.privacy.tradeoffs import (
    FiniteTradeoff,
    GaussianTradeoff,
    LaplaceTradeoff,
    PureProtocolTradeoff,
    ZeroInflatedTradeoff,
    composed_tradeoff,
)

ALPHA = np.concatenate([[0], np.geomspace(1e-6, 0.5, 30), 1 - np.geomspace(0.5, 1e-6, 30), [1]])
GRID = np.linspace(0, 1, 201)


def randomized_response(epsilon, k):
    """The output that favours a code is the code itself, kept with probability 1 / (1 + (k - 1) exp(-epsilon))."""
    return PureProtocolTradeoff(epsilon, 1 / (1 + (k - 1) * np.exp(-np.asarray(epsilon))))


CURVES = [
    pytest.param(LaplaceTradeoff(0.3), id="laplace-0.3"),
    pytest.param(LaplaceTradeoff(4.0), id="laplace-4"),
    pytest.param(randomized_response(0.3, 2), id="rr2-0.3"),
    pytest.param(randomized_response(4.0, 7), id="rr7-4"),
    pytest.param(GaussianTradeoff(0.2), id="gaussian-0.2"),
    pytest.param(GaussianTradeoff(3.0), id="gaussian-3"),
]


def exact_gaussian_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """Two normal tails in high precision, enough digits for the cancellation between them."""
    with mpmath.workdps(80):
        mu, epsilon = mpmath.mpf(float(mu)), mpmath.mpf(float(epsilon))
        tail = [mpmath.erfc((epsilon / mu + sign * mu / 2) / mpmath.sqrt(2)) / 2 for sign in (-1, 1)]
        return tail[0] - mpmath.exp(epsilon) * tail[1]


@pytest.mark.parametrize("curve", CURVES)
def test_curve_is_convex_decreasing_symmetric_and_below_perfect_privacy(curve):
    alpha = np.linspace(0, 1, 2001)
    beta = curve(alpha)
    assert beta[0] == 1 and beta[-1] == 0
    assert np.all(beta <= 1 - alpha + 1e-15)
    assert np.all(np.diff(beta) <= 0)
    assert np.all(np.diff(beta, 2) >= -1e-14)
    # symmetric about the diagonal: swapping the neighbours changes nothing
    strict = beta > 0
    np.testing.assert_allclose(curve(np.minimum(beta[strict], 1)), alpha[strict], atol=1e-12)


@pytest.mark.parametrize("curve", CURVES)
def test_delta_is_the_convex_conjugate_of_the_curve(curve):
    alpha = np.unique(np.concatenate([np.geomspace(1e-9, 1, 200_001), np.linspace(0, 1, 100_001)]))
    for epsilon in (0.0, 0.1, 0.7, 2.0, 3.9):
        supremum = np.max(1 - np.exp(epsilon) * alpha - curve(alpha))
        assert curve.delta(epsilon) == pytest.approx(max(supremum, 0), abs=1e-5)  # the spacing of alpha


@pytest.mark.parametrize("curve", CURVES)
def test_epsilon_inverts_delta(curve):
    for epsilon in (0.01, 0.1, 0.29):
        assert curve.epsilon(curve.delta(epsilon)) == pytest.approx(epsilon, rel=1e-11)
    assert curve.epsilon(curve.delta(0.0) * 1.01) == 0
    assert curve.epsilon(1.0) == 0


@pytest.mark.parametrize("distance", [0.3, 2.0])
@pytest.mark.parametrize("law", [stats.norm, stats.laplace])
def test_delta_is_the_hockey_stick_integral(law, distance):
    curve = (GaussianTradeoff if law is stats.norm else LaplaceTradeoff)(distance)
    z, h = np.linspace(-40, 42, 2_000_001, retstep=True)
    p, q = law.pdf(z - distance), law.pdf(z)
    for epsilon in (0.0, 0.1, 1.0):
        integral = h * np.sum(np.maximum(p - np.exp(epsilon) * q, 0))
        assert curve.delta(epsilon) == pytest.approx(integral, abs=1e-8)


@pytest.mark.parametrize(("epsilon", "k"), [(0.01, 2), (1.0, 2), (1.0, 5), (4.0, 30)])
def test_randomized_response_delta_is_the_hockey_stick_sum(epsilon, k):
    p = np.exp(epsilon) / (np.exp(epsilon) + k - 1)
    first, second = np.full(k, (1 - p) / (k - 1)), np.full(k, (1 - p) / (k - 1))
    first[0] = second[1] = p
    for at in (0.0, epsilon / 2, epsilon, 2 * epsilon):
        total = np.sum(np.maximum(first - np.exp(at) * second, 0))
        assert randomized_response(epsilon, k).delta(at) == pytest.approx(total, abs=1e-15)


def test_pure_mechanisms_have_delta_zero_from_their_budget_on_even_where_exp_overflows():
    for budget in (1e-3, 1.0, 700.0, 2000.0):
        for curve in (LaplaceTradeoff(budget), randomized_response(budget, 2)):
            assert curve.delta(budget) == 0 and curve.delta(2 * budget) == 0
            assert curve.epsilon(0.0) == budget
            assert np.all(np.isfinite(curve([0.0, 1e-300, 0.5, 1.0])))
            assert curve(0.0) == 1


def test_an_infinite_budget_gives_away_what_it_separates():
    for separation in (0.5, 1.0):
        curve = PureProtocolTradeoff(np.inf, separation)
        # the best test rejects on the outputs that the null cannot produce, then at random
        alpha = np.array([0.0, 0.2, 0.5, 0.9, 1.0])
        np.testing.assert_allclose(curve(alpha), np.maximum(1 - separation - alpha, 0), atol=1e-15)
        assert curve.delta(5.0) == separation and curve.epsilon(0.0) == np.inf and curve.epsilon(separation) == 0
    mixed = Guarantee(PureProtocolTradeoff(np.array([1.0, np.inf]), np.array([0.4, 1.0]))).statement()
    assert mixed.startswith("Each record of finite budget") and "epsilon = 1 and" in mixed and "than 13.6%" in mixed
    assert mixed.endswith(" One of infinite budget is not protected.")
    assert Guarantee(PureProtocolTradeoff(np.inf, 1.0)).statement().startswith("No record is protected")
    hidden = Guarantee(PureProtocolTradeoff(np.array([1.0, np.inf]), np.array([0.4, 0.75]))).statement()
    # of infinite budget, but still hidden in a set a quarter of the time
    assert "epsilon between 0 and 1 and delta between 0 and 0.7501" in hidden and "more than 80%" in hidden


def test_gaussian_delta_matches_mpmath_from_one_down_to_1e_300_and_beyond():
    largest = 0.0
    for mu, epsilon in itertools.product([1e-4, 1e-2, 0.3, 0.99, 1.01, 4, 12], [0.0, 1e-3, 0.01, 0.5, 5, 50, 200]):
        exact = exact_gaussian_delta(mu, epsilon)
        log_exact = float(mpmath.log(exact))
        tradeoff = GaussianTradeoff(mu)
        # log space: relative to the logarithm where delta underflows
        assert tradeoff.log_delta(epsilon) == pytest.approx(log_exact, rel=1e-13, abs=1e-14)
        if log_exact > -691:
            largest = max(largest, abs(float(tradeoff.delta(epsilon) / exact - 1)))
    assert largest < 1e-12


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 50.0])
@pytest.mark.parametrize("delta", [1e-300, 1e-12, 1e-5, 0.3])
def test_gaussian_epsilon_solves_the_exact_equation(epsilon, delta):
    # a mu at which this delta is reached: bisection on the exact function
    low, high = mpmath.mpf("1e-6"), mpmath.mpf(100)
    for _ in range(70):
        mid = mpmath.sqrt(low * high)
        low, high = (mid, high) if exact_gaussian_delta(mid, epsilon) < delta else (low, mid)
    assert GaussianTradeoff(float(low)).epsilon(delta) == pytest.approx(epsilon, rel=1e-11)


def test_gaussian_epsilon_is_infinite_at_delta_zero():
    assert GaussianTradeoff(1.0).epsilon(0.0) == np.inf


def test_personal_budgets_broadcast():
    budgets = np.array([0.5, 1.0, 2.0])
    for make in (LaplaceTradeoff, lambda b: randomized_response(b, 4), GaussianTradeoff):
        together, alpha = make(budgets), np.array([[0.0], [0.3], [1.0]])
        for method, argument in ((together, alpha), (together.delta, alpha), (together.epsilon, alpha / 10)):
            assert method(argument).shape == (3, 3)
        for i, budget in enumerate(budgets):
            alone = make(budget)
            np.testing.assert_allclose(together(alpha)[:, i], alone(alpha[:, 0]))
            np.testing.assert_allclose(together.delta(0.3)[i], alone.delta(0.3))
            np.testing.assert_allclose(together.epsilon(0.01)[i], alone.epsilon(0.01))


def test_statement_is_one_sentence_with_the_stated_pair():
    pure = Guarantee(LaplaceTradeoff(1.0), unit="attribute").statement()
    assert "Each attribute" in pure and "local" in pure and "epsilon = 1 and delta = 0" in pure
    personal = Guarantee(LaplaceTradeoff(np.array([0.5, 2.0]))).statement()
    assert "epsilon between 0.5 and 2 " in personal
    mu = GaussianTradeoff(0.25)
    assert "delta = 1e-05" in Guarantee(mu, trust_model="central", stated_delta=1e-5).statement()
    assert pure.count(". ") == 0 and pure.endswith(".")


@pytest.mark.parametrize(
    ("tradeoff", "delta"),
    [
        (GaussianTradeoff(1 / 40), 1e-6),
        (GaussianTradeoff(np.array([1e-3, 1.0, 30.0])), 1e-6),
        (DiscreteGaussianTradeoff(15.0, 1), 1e-6),
        (SymmetricLaplaceTradeoff(3.0, 2), 1e-6),
        (LaplaceTradeoff(0.1), 0.0),
        (ZeroInflatedTradeoff(LaplaceTradeoff(2.0), 0.1), 0.1001),
        (ZeroInflatedTradeoff(GaussianTradeoff(1.0), 1e-9), 1e-4),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_statement_quotes_a_finite_epsilon_at_a_small_delta(tradeoff, delta):
    epsilon, stated = Guarantee(tradeoff).stated_pair
    assert np.all(stated == delta) and np.all(np.isfinite(epsilon))
    # the curve itself has no larger delta there: to the accuracy to which epsilon inverts it
    assert np.all(tradeoff.delta(epsilon) <= delta * (1 + 1e-9))
    assert f"delta = {delta:g}:" in Guarantee(tradeoff).statement()


def test_gaussian_noise_that_hides_nearly_everything_is_said_to_do_so():
    noise = ldp.GaussianMechanism.from_standard_deviation(40.0, sensitivity=1.0)
    # delta(0.09014) of mu = 1/40 is 1e-6, by the exact formula
    assert float(exact_gaussian_delta(1 / 40, 0.09014)) == pytest.approx(1e-6, rel=5e-3)
    assert "epsilon = 0.09014 and delta = 1e-06" in noise.guarantee.statement()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LaplaceTradeoff(0.0), "epsilon must be positive and finite, got 0.0"),
        (lambda: GaussianTradeoff([1.0, np.nan]), r"mu must be positive and finite, got mu\[1\] = nan"),
        (lambda: PureProtocolTradeoff(1.0, 1.5), r"separation must be in \(0, 1\], got 1.5"),
        (lambda: LaplaceTradeoff(1.0)(1.5), r"alpha must be in \[0, 1\], got 1.5"),
        (lambda: GaussianTradeoff(1.0).delta(-1.0), "epsilon must be non-negative and finite, got -1.0"),
        (lambda: GaussianTradeoff(1.0).epsilon(2), r"delta must be in \[0, 1\], got 2"),
        (
            lambda: Guarantee(LaplaceTradeoff(1.0), unit="row"),
            "unit must be one of record, attribute, label, got 'row'",
        ),
        (lambda: Guarantee(LaplaceTradeoff(1.0), trust_model="x"), "trust_model must be one of local, central"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_zero_inflated_curve_is_the_shrunk_one_and_its_deltas_follow():
    base = SymmetricLaplaceTradeoff(0.7, 3)
    curve = ZeroInflatedTradeoff(base, 0.2)
    np.testing.assert_allclose(curve(0.8 * GRID[::4]), 0.8 * base(GRID[::4]), atol=1e-15)
    assert np.all(curve(np.linspace(0.8, 1, 5)) == 0)
    for epsilon in (0.0, 0.5, 1.5):
        assert curve.delta(epsilon) == pytest.approx(1 - 0.8 * (1 - base.delta(epsilon)))
        supremum = np.max(1 - np.exp(epsilon) * ALPHA - curve(ALPHA))
        assert supremum <= curve.delta(epsilon) + 1e-12
    assert curve.epsilon(curve.delta(0.5)) == pytest.approx(0.5, rel=1e-8)
    assert curve.epsilon(0.19) == np.inf


def test_approximate_tradeoff_is_the_largest_of_its_lines():
    for epsilon, delta in ((0.8, 0.17), (2.0, 0.0), (30.0, 1e-6), (0.0, 0.2)):
        curve = approximate_tradeoff(epsilon, delta)
        lines = [0 * GRID, 1 - delta - np.exp(epsilon) * GRID, np.exp(-epsilon) * (1 - delta - GRID)]
        np.testing.assert_allclose(curve(GRID), np.max(lines, axis=0), atol=1e-14)
        assert curve.delta(epsilon) == pytest.approx(delta) and curve.epsilon(delta) == pytest.approx(epsilon)


EPSILONS = np.array([0.0, 0.3, 1.0, 2.5, 3.9, 4.1, 30.0])


def composed_delta(p, q, times):
    """Of all sequences of outputs."""
    p, q = (functools.reduce(np.kron, [np.asarray(law)] * times) for law in (p, q))
    return np.maximum(p - np.exp(EPSILONS)[:, None] * q, 0).sum(axis=1)


@pytest.mark.parametrize("share", [0.0, 0.01])
def test_composed_responses_are_those_of_all_sequences_of_answers(share):
    p = np.array([1 / (1 + np.exp(-0.8)), 1 / (1 + np.exp(0.8))])
    laws = [np.append((1 - share) * own, away) for own, away in ((p, [share, 0]), (p[::-1], [0, share]))]
    curve = composed_tradeoff(0.8, share, 5)
    np.testing.assert_allclose(curve.delta(EPSILONS), composed_delta(*laws, 5), rtol=1e-12, atol=1e-15)
    assert curve.epsilon(1 - (1 - share) ** 5) == pytest.approx(4.0, rel=1e-13)
    assert curve(0.0) == pytest.approx((1 - share) ** 5, rel=1e-14) and curve(1.0) == 0
    for epsilon, delta in zip(EPSILONS, curve.delta(EPSILONS), strict=True):
        alpha = np.linspace(0, 1, 100_001)
        supremum = np.max(1 - np.exp(epsilon) * alpha - curve(alpha))
        assert delta - 2e-5 * np.exp(epsilon) <= supremum <= delta + 1e-12  # of a curve with slopes, on this grid


@pytest.mark.parametrize("times", [2, 30, 365])
def test_reports_under_gaussian_noise_are_one_under_less_noise(times):
    one = ldp.GaussianMechanism(0.5, 1e-7, 0, 1).guarantee
    mu, all_of_them = one.tradeoff.mu, one.composed(times)
    for epsilon in (0.5, 3.0, 20.0):
        exact = float(exact_gaussian_delta(mu * np.sqrt(times), epsilon))
        assert all_of_them.delta(epsilon) == pytest.approx(exact, rel=1e-10)
    assert all_of_them.stated_pair[1] == 1e-7 and all_of_them.times == times
    personal = ldp.GaussianMechanism(np.array([0.1, 0.5]), 1e-7, 0, 1).guarantee.composed(times)
    assert personal.tradeoff.mu == pytest.approx(mu * np.sqrt(times))  # the worst budget counts


@pytest.mark.parametrize("times", [30, 2000])
@pytest.mark.parametrize(
    "mechanism", [ldp.LaplaceMechanism(1.0, 0, 1), ldp.RandomizedResponse(np.array([0.5, 1.0]), 4)]
)
def test_pure_budgets_of_reports_add_up(times, mechanism):
    """Far beyond the budget of 700 whose exponential is the largest number."""
    guarantee = mechanism.guarantee.composed(times)
    np.testing.assert_allclose(guarantee.epsilon(0.0), times * np.max(mechanism.guarantee.epsilon(0.0)), rtol=1e-12)
    assert np.all(guarantee.stated_pair[1] == 0)


def test_composition_never_understates():
    """Against all sequences of four outputs, and of a discrete noise, whose pairs have other curves than a response."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        laws = rng.dirichlet(np.ones(4), 2)
        guarantee = Guarantee(FiniteTradeoff(laws)).composed(4)
        worst = np.maximum(composed_delta(*laws, 4), composed_delta(*laws[::-1], 4))
        assert np.all(guarantee.delta(EPSILONS) >= worst - 1e-13)
    noise = stats.norm.pdf(np.arange(-40, 41) / 3.0)  # cut where less than 1e-39 lies
    shifted = [np.append(np.append(0, noise), [0])[shift : shift + 82] / noise.sum() for shift in (0, 1)]
    guarantee = Guarantee(DiscreteGaussianTradeoff(3.0, 1)).composed(2)
    assert np.all(guarantee.delta(EPSILONS) >= composed_delta(*shifted, 2) - 1e-13)
    epsilon, delta = guarantee.stated_pair
    assert delta == pytest.approx(1e-6) and np.isfinite(epsilon)


def test_statements_of_reports_are_of_a_person():
    statement = Guarantee(LaplaceTradeoff(0.1)).composed(30).statement()
    assert statement.startswith(
        "A person with up to 30 reports is protected by local differential privacy with epsilon = 3 and delta = 0: "
        "no test between two possible values of these reports that raises a false alarm 5% of the time detects"
    )
    infinite = ldp.RandomizedResponse(np.array([1.0, np.inf])).guarantee.composed(3).statement()
    assert infinite == "No record is protected: the budget is infinite."
    leaky = ldp.ZeroInflatedLaplaceMechanism(0.01, 1.0, 0, 1).guarantee.composed(30)
    assert leaky.stated_pair[1] == pytest.approx(1 - (1 - 0.0101) ** 30) and "delta = 0.2626" in leaky.statement()
    assert "labels" in Guarantee(LaplaceTradeoff(0.1), unit="label").composed(2).statement()
    assert Guarantee(LaplaceTradeoff(0.1)).composed(1).statement().startswith("Each record is")
