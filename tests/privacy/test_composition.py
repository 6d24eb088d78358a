import math

import jax
import numpy as np
import pytest
from mpmath import mp
from scipy import integrate, special, stats

import ldpbayes as ldp
from ldpbayes.data.release import promises
from ldpbayes.mechanisms.protocol import Promise
from ldpbayes.privacy import (
    FiniteTradeoff,
    Guarantee,
    SymmetricLaplaceTradeoff,
    ZeroInflatedTradeoff,
    compose,
    shuffled,
)
from ldpbayes.privacy.tradeoffs import GaussianTradeoff, LaplaceTradeoff, PureProtocolTradeoff, composed_tradeoff
from tests.recorded import cases

RESPONSE = ldp.RandomizedResponse(1.0)
LAPLACE = ldp.LaplaceMechanism(epsilon=0.5, lower=0, upper=20)
NORMAL = Guarantee(GaussianTradeoff(0.4))
DELTAS = [1e-9, 1e-6, 1e-3, 0.05]


def check(epsilon, exact, above=0.01):
    """Never below, to rounding, and at most one percent above."""
    epsilon, exact = np.asarray(epsilon), np.asarray(exact)
    assert np.all(epsilon >= exact - 1e-9) and np.all(epsilon <= exact * (1 + above) + 1e-9), (epsilon, exact)


def accountant(*losses):
    pytest.importorskip("dp_accounting", reason="the extra opendp is not installed")
    from dp_accounting.pld import privacy_loss_distribution as pld

    make = {
        "laplace": lambda b: pld.from_laplace_mechanism(1 / b, value_discretization_interval=1e-4),
        "normal": lambda mu: pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-4),
        "response": lambda b: pld.from_randomized_response(
            2 / (math.exp(b) + 1), 2, value_discretization_interval=1e-4
        ),
    }
    total = pld.identity(value_discretization_interval=1e-4)
    for name, parameter, times in losses:
        total = total.compose(make[name](parameter).self_compose(times))
    return total


def test_pure_budgets_add_up_exactly():
    total = compose(RESPONSE, LAPLACE, ldp.OptimalUnaryEncoding(0.25, categories=5))
    assert total.epsilon(0.0) == 1.75 and total.delta(1.75) == 0 and total.times == 3
    assert (total.unit, total.trust_model) == ("record", "local")


def test_gaussian_noise_composes_exactly():
    total = compose(NORMAL, Guarantee(GaussianTradeoff(np.array([0.1, 0.3]))), NORMAL)
    one = GaussianTradeoff(math.sqrt(2 * 0.4**2 + 0.3**2))
    np.testing.assert_allclose(total.epsilon(DELTAS), one.epsilon(DELTAS), rtol=1e-12)
    assert total.tradeoff(0.05) == pytest.approx(one(0.05))


@pytest.mark.parametrize("budget, times", [(1.0, 10), (0.1, 30), (3.0, 2)])
def test_randomized_responses_compose_as_their_binomial_law(budget, times):
    pytest.importorskip("dp_accounting", reason="the extra opendp is not installed")
    total, exact = compose(*[ldp.RandomizedResponse(budget)] * times), composed_tradeoff(budget, 0.0, times)
    check(total.epsilon(DELTAS), exact.epsilon(DELTAS))
    epsilons = np.linspace(0, budget * times, 7)
    assert np.all(total.delta(epsilons) >= exact.delta(epsilons) - 1e-12)
    np.testing.assert_allclose(total.tradeoff([0.0, 0.05, 0.5, 1.0]), exact([0.0, 0.05, 0.5, 1.0]), atol=1e-6)


def test_two_laplace_noises_compose_as_the_integral_over_one_of_them():
    pytest.importorskip("dp_accounting", reason="the extra opendp is not installed")
    budget, total = 1.0, compose(*[Guarantee(LaplaceTradeoff(1.0))] * 2)

    def given_first(x, epsilon):  # E[(1 − exp(epsilon − loss of x − loss of the other))+]
        loss = abs(x - budget) - abs(x)
        left = epsilon - loss
        delta = LaplaceTradeoff(budget).delta(max(left, 0.0)) if left >= 0 else None
        if delta is None:  # by symmetry
            delta = 1 - math.exp(left) * (1 - LaplaceTradeoff(budget).delta(-left))
        return math.exp(-abs(x)) / 2 * delta

    for epsilon in (0.3, 1.0, 1.7):
        exact = sum(
            integrate.quad(given_first, low, high, args=(epsilon,), epsabs=1e-13)[0]
            for low, high in ((-60, 0), (0, budget), (budget, 60))
        )
        assert exact - 1e-12 <= total.delta(epsilon) <= exact * 1.01


@pytest.mark.parametrize(
    "parts, losses",
    [
        ([Guarantee(LaplaceTradeoff(0.5))] * 10, [("laplace", 0.5, 10)]),
        ([RESPONSE, LAPLACE, NORMAL], [("response", 1.0, 1), ("laplace", 0.5, 1), ("normal", 0.4, 1)]),
        ([NORMAL, LAPLACE, LAPLACE, NORMAL], [("normal", 0.4, 2), ("laplace", 0.5, 2)]),
    ],
    ids=["Laplace", "three kinds", "Gaussian and Laplace"],
)
def test_mixed_releases_agree_with_the_accountants_own_events(parts, losses):
    theirs = accountant(*losses)
    ours, exact = compose(*parts).epsilon(DELTAS), [theirs.get_epsilon_for_delta(delta) for delta in DELTAS]
    # theirs is an upper bound, too, on a grid of 1e-4 a part
    assert np.all(ours >= np.array(exact) - 1e-4 * len(losses)) and np.all(ours <= 1.01 * np.array(exact) + 1e-4)


def test_what_gives_records_away_composes_too():
    pytest.importorskip("dp_accounting", reason="the extra opendp is not installed")
    away = Guarantee(ZeroInflatedTradeoff(LaplaceTradeoff(1.0), 0.1))
    total = compose(away, RESPONSE)
    assert total.tradeoff.zero_probability == pytest.approx(0.1)
    assert total.epsilon(0.0) == np.inf == total.epsilon(0.09) and total.epsilon(0.11) < 2
    # δ = 0.1 + 0.9 times that of the two laws without
    both = compose(Guarantee(LaplaceTradeoff(1.0)), RESPONSE)
    np.testing.assert_allclose(total.delta([0.2, 1.0, 1.9]), 0.1 + 0.9 * both.delta([0.2, 1.0, 1.9]), rtol=1e-3)


def test_laws_of_several_labels_compose_at_least_as_badly_as_any_two(rng):
    pytest.importorskip("dp_accounting", reason="the extra opendp is not installed")
    laws = rng.dirichlet(np.full(4, 3.0), size=3)
    total = compose(*[Guarantee(FiniteTradeoff(laws), unit="label")] * 2)
    for one, other in ((0, 1), (1, 2), (2, 0)):
        p, q = (np.outer(laws[k], laws[k]).ravel() for k in (one, other))
        for epsilon in (0.1, 0.5, 1.0):
            exact = np.maximum(p - math.exp(epsilon) * q, 0).sum()
            assert total.delta(epsilon) >= exact - 1e-12
    assert total.epsilon(0.0) == pytest.approx(2 * np.log(laws.max(0) / laws.min(0)).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", cases.specs())
def test_two_releases_of_any_mechanism_are_worse_than_one_and_at_most_twice_as_bad(name):
    guarantee = ldp.mechanisms.mechanism_from_spec(cases.specs()[name]["spec"]).guarantee

    def worst(delta):
        return np.max(np.reshape(guarantee.epsilon(np.array(delta)[:, None]), (len(delta), -1)), axis=1)

    both = compose(guarantee, guarantee).epsilon(DELTAS)
    assert np.all(both >= worst(DELTAS) - 1e-9)
    assert np.all(both <= 2 * worst(np.array(DELTAS) / 2) * 1.001)  # basic composition, at half of delta each


def test_reports_personal_budgets_and_sketches_count():
    pytest.importorskip("dp_accounting", reason="the extra opendp is not installed")
    release = ldp.Release([0, 1, 1], ldp.RandomizedResponse(np.array([0.1, 0.7, 0.3])), times=2)
    for part in (release, release.sketch(), Promise(release.mechanism, 2)):
        total = compose(part, RESPONSE)
        assert total.epsilon(0.0) == pytest.approx(2 * 0.7 + 1.0) and total.times == 3
    check(compose(release).epsilon(DELTAS), composed_tradeoff(0.7, 0.0, 2).epsilon(DELTAS))
    assert compose(LAPLACE).tradeoff.budget == 0.5


def test_without_the_extra_exact_parts_work_and_the_rest_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    total = compose(RESPONSE, LAPLACE)
    assert total.epsilon(0.0) == 1.5 and compose(NORMAL, NORMAL).epsilon(1e-6) > NORMAL.epsilon(1e-6)
    with pytest.raises(ImportError, match=r"needs dp_accounting: pip install 'ldpbayes\[opendp\]'"):
        total.epsilon(1e-6)


def test_different_promises_are_not_added():
    label = Guarantee(LaplaceTradeoff(1.0), unit="label")
    with pytest.raises(ValueError, match="unit is 'record' and 'label'"):
        compose(RESPONSE, label)
    with pytest.raises(ValueError, match="trust_model is 'local' and 'central'"):
        compose(RESPONSE, Guarantee(LaplaceTradeoff(1.0), trust_model="central"))
    with pytest.raises(TypeError, match="compose takes guarantees"):
        compose(1.0)
    with pytest.raises(ValueError, match="delta must be"):
        compose(RESPONSE, delta=0.0)
    table = ldp.NoisyTable.from_frame({"k": ["a"], "n": [3.0]}, "n", "k", "laplace", scale=1, privacy="As published.")
    with pytest.raises(ValueError, match="statement of its publisher"):
        compose(table)


def test_conditions_and_deltas_of_all_parts_are_stated():
    pytest.importorskip("dp_accounting", reason="the extra opendp is not installed")
    total = compose(shuffled(RESPONSE, 2_000, 1e-8), shuffled(RESPONSE, 90_000, 1e-6))
    text = total.statement()
    assert "mixes 2,000 reports" in text and "mixes 90,000 reports" in text and "delta = 1e-06" in text
    assert "delta = 0.001" in total.statement(delta=1e-3)


def test_a_statement_is_rounded_up():
    assert "epsilon = 1.235 and" in Guarantee(LaplaceTradeoff(1.2341)).statement()
    assert "epsilon = 1.234 and" in Guarantee(LaplaceTradeoff(1.234)).statement()
    assert "epsilon = 0.3 and" in Guarantee(LaplaceTradeoff(0.1 + 0.2)).statement()


def test_percentages_are_rounded_up_too():
    """Randomized response at epsilon 2 detects at most .05 exp(2) = .369453 of the truth."""
    assert "more than 37% of the time" in ldp.RandomizedResponse(2.0).guarantee.statement()
    # to nearest these would be 36.9 and 100
    assert "more than 36.9% of the time" in Guarantee(LaplaceTradeoff(math.log(7.38))).statement()
    assert "more than 99.9% of the time" in Guarantee(PureProtocolTradeoff(math.inf, 0.9485)).statement()


@pytest.mark.parametrize("epsilon", [5e-324, 1e-322, 1e-305, 1e-299])
def test_the_smallest_budgets_are_stated(epsilon):
    for guarantee in (ldp.RandomizedResponse(epsilon).guarantee, Guarantee(LaplaceTradeoff(epsilon))):
        assert "more than 5% of the time" in guarantee.statement() and guarantee.epsilon(0.0) == epsilon
    rows = Guarantee(SymmetricLaplaceTradeoff(epsilon, 2))
    assert 0 < rows.delta(0.0) < 1e-8 and "epsilon = 0 and delta = 1e-06" in rows.statement()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mu", [1e154, 1e155, 1e300, 1.7e308])
def test_the_largest_distances_have_an_infinite_epsilon_or_a_finite_one(mu):
    """Epsilon is about mu²/2, which overflows from 2e154 on."""
    epsilon = GaussianTradeoff(mu).epsilon([1e-6, 0.5])
    assert np.all(epsilon == np.inf) if mu > 2e154 else np.all(np.abs(epsilon / mu / mu - 0.5) < 1e-9)
    assert "No record is protected" in Guarantee(GaussianTradeoff(mu)).statement() or mu == 1e154
    assert Guarantee(LaplaceTradeoff(mu)).composed(3).epsilon(0.0) == 3 * float(mu)


def test_a_guarantee_takes_trade_off_curves_only():
    for curve in (1.0, None, lambda alpha: 1 - alpha, NORMAL):
        with pytest.raises(TypeError, match="tradeoff must be a curve of ldpbayes"):
            Guarantee(curve)


def test_the_statement_quotes_the_delta_that_was_asked_for():
    pytest.importorskip("dp_accounting", reason="the extra opendp is not installed")
    text = compose(*[LAPLACE] * 10, delta=1e-3).statement()
    assert text.startswith(
        "A person with up to 10 reports is protected by local differential privacy with epsilon = 4.52"
    )
    assert "delta = 0.001" in text


def test_a_posterior_states_the_total_of_releases_about_the_same_people():
    pytest.importorskip("dp_accounting", reason="the extra opendp is not installed")
    from ldpbayes.data.release import promises

    releases = [ldp.Release([0, 1, 1], RESPONSE), ldp.Release([3.0, 5.0], LAPLACE)]
    text = promises(releases, (), True)
    assert text.startswith("2 releases about the same people. A person with up to 2 reports is protected by local")
    assert "epsilon = 1.5 and delta = 0" in text and "epsilon = 0.5 and" in text
    assert "their budgets add up" in promises(releases)


# Shuffling


def exact_shuffle(budget, ones, count, epsilon):
    """δ of binary randomized responses of `count` persons, `ones` of the others with a 1, by their exact counts."""
    p = special.expit(budget)
    others = np.convolve(
        stats.binom.pmf(np.arange(ones + 1), ones, p),
        stats.binom.pmf(np.arange(count - ones), count - 1 - ones, 1 - p),
    )
    one, zero = (np.convolve(others, law) for law in ([1 - p, p], [p, 1 - p]))
    return max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((one, zero), (zero, one)))


def closed_form(budget, count, delta):
    """The bound of [FMT] as their code has it."""
    whole = 8 * math.sqrt(math.exp(budget) * math.log(4 / delta) / count) + 8 * math.exp(budget) / count
    return math.log1p(whole * -math.expm1(-budget) / (1 + math.exp(-budget) / (1 + whole)))


def test_the_shuffling_bound_agrees_with_published_values():
    # the example of the authors' code: between 0.16754 and 0.17279 by numerical bounds, 0.53780 by the theorem
    local = Guarantee(LaplaceTradeoff(4.0))
    assert 0.1675385583317841 <= shuffled(local, 100_000, 1e-6).epsilon(1e-6) <= 0.172790550755978
    assert closed_form(4.0, 100_000, 1e-6) == pytest.approx(0.5378040242374512, abs=1e-12)


@pytest.mark.parametrize("budget, count, delta", [(0.5, 2_000, 1e-5), (2.0, 10_000, 1e-6), (6.0, 1_000_000, 1e-8)])
def test_the_shuffling_bound_is_below_the_theorems(budget, count, delta):
    epsilon = shuffled(Guarantee(LaplaceTradeoff(budget)), count, delta).epsilon(delta)
    assert 0 < epsilon < min(closed_form(budget, count, delta), budget)


@pytest.mark.parametrize("budget, count", [(0.5, 10), (1.0, 60), (3.0, 200)])
def test_shuffled_randomized_response_is_never_worse_than_the_bound(budget, count):
    curve = shuffled(ldp.RandomizedResponse(budget), count, 1e-6)
    for epsilon in (0.0, 0.05, 0.2, 0.5 * budget, 0.99 * budget):
        worst = max(exact_shuffle(budget, ones, count, epsilon) for ones in range(count))
        assert worst <= curve.delta(epsilon) + 1e-14


def test_two_people_shuffled_have_the_law_of_their_symbols():
    budget, q = 1.0, special.expit(1.0)
    own, clone = np.array([q, 1 - q]), math.exp(-budget)
    # no clone: one symbol; one clone: the number of first symbols of two
    first = [(1 - clone) * own, clone * np.convolve(own, [0.5, 0.5])]
    second = [(1 - clone) * own[::-1], clone * np.convolve(own[::-1], [0.5, 0.5])]
    curve = shuffled(Guarantee(LaplaceTradeoff(budget)), 2, 1e-6)
    for epsilon in (0.0, 0.3, 0.9):
        pairs = zip(np.concatenate(first), np.concatenate(second), strict=True)
        exact = sum(max(a - math.exp(epsilon) * b, 0) for a, b in pairs)
        assert curve.delta(epsilon) == pytest.approx(exact, rel=1e-12)


def test_one_person_alone_is_not_hidden_by_shuffling():
    curve, local = shuffled(RESPONSE, 1, 1e-6), PureProtocolTradeoff(1.0, special.expit(1.0))
    np.testing.assert_allclose(curve.delta([0.0, 0.5, 1.0]), local.delta([0.0, 0.5, 1.0]), atol=1e-15)
    np.testing.assert_allclose(curve.epsilon([0.0, 0.1, 1.0]), local.epsilon([0.0, 0.1, 1.0]), rtol=1e-9)
    np.testing.assert_allclose(curve.tradeoff([0.05, 0.3]), local([0.05, 0.3]), rtol=1e-9)


def test_shuffling_is_refused_where_there_is_no_bound():
    for local in (
        NORMAL,
        Guarantee(LaplaceTradeoff(1.0), trust_model="central"),
        Guarantee(LaplaceTradeoff(1.0), times=2),
    ):
        with pytest.raises(ValueError, match="needs a local guarantee of one report with finite epsilon"):
            shuffled(local, 100, 1e-6)
    for count in (0, 2.5):
        with pytest.raises(ValueError, match="count must be"):
            shuffled(RESPONSE, count, 1e-6)


BUDGETS = np.append(1.0, np.full(999, 1e-6))
AGE = np.append(1.0, np.zeros(999))
NOT_HIDDEN = {
    "public columns": lambda: ldp.LaplaceMechanism(1.0, 0, 1, columns=2, perturbed=[0]),
    "attributes": lambda: ldp.LaplaceMechanism(61.0, 0, 1, columns=61).attribute_guarantee,
    "labels": lambda: ldp.mechanisms.RPWithPrior(1.0, (0.0, 1.0), 0.2),
    "bins of labels": lambda: ldp.mechanisms.RROnBins(1.0, [0.0, 1.0, 2.0], [0.5, 1.5]),
    "budgets": lambda: ldp.RandomizedResponse(BUDGETS),
    "budgets in a guarantee": lambda: ldp.RandomizedResponse(BUDGETS).guarantee,
    "budgets in a release": lambda: ldp.Release(np.arange(1000) % 2, ldp.RandomizedResponse(BUDGETS)),
    "budgets in a sketch": lambda: ldp.Release(np.arange(1000) % 2, ldp.RandomizedResponse(BUDGETS)).sketch(),
    "bounds": lambda: ldp.LaplaceMechanism(
        1.0, AGE * 100, AGE * 100 + 1
    ),  # of one width: one guarantee, but other values
    "bounds, and one scale": lambda: ldp.mechanisms.AdditiveMechanism(ldp.noise.Laplace(1.0), 0.0, 1 + AGE),
    "scales of a density": lambda: ldp.mechanisms.AdditiveMechanism(
        ldp.noise.FromDensity(jax.scipy.stats.cauchy.logpdf, 1 + AGE), 0.0, 1.0
    ),
    "gamma": lambda: ldp.mechanisms.StaircaseMechanism(1.0, 0, 1, 0.2 + AGE / 2),
    "units of rounding": lambda: ldp.mechanisms.Rounded(ldp.LaplaceMechanism(1.0, 0, 1), 1 + AGE),
    "missing reports": lambda: ldp.mechanisms.Incomplete(ldp.LaplaceMechanism(1.0, 0, 1)),
}


@pytest.mark.parametrize("name", NOT_HIDDEN)
def test_what_other_reports_do_not_hide_is_refused(name):
    with pytest.raises(ValueError, match="shuffling hides a person among whole reports that are made alike, got "):
        shuffled(NOT_HIDDEN[name](), 1_000, 1e-6)


def test_others_with_smaller_budgets_hide_nobody():
    """Noise of scale 1 among 999 of scale 1e6, all on numbers from 0 to 1: but for a probability of 999 · 21/2e6, no
    other report lies from −10 to 11, where the person's does, but for exp(−10).
    """
    told = LaplaceTradeoff(1.0).delta(0.1) - 999 * 21 / 2e6 - math.exp(-10)
    assert told > 0.35 > 500 * shuffled(ldp.LaplaceMechanism(1.0, 0, 1), 1_000, 1e-6).delta(0.1)


def test_rows_whose_columns_all_get_noise_are_hidden():
    whole = shuffled(ldp.LaplaceMechanism(1.0, 0, 1, columns=2), 10_000, 1e-6)
    assert whole.delta(0.1) == shuffled(RESPONSE, 10_000, 1e-6).delta(0.1) < 1e-13


def test_no_more_reports_are_shuffled_than_were_released():
    release = ldp.Release([0, 1, 1, 0], RESPONSE)
    for local in (release, release.sketch(), ldp.Release(None, RESPONSE, 4)):
        with pytest.raises(ValueError, match="count must be at most 4, the number of reports in the release, got 5"):
            shuffled(local, 5, 1e-6)
        assert shuffled(local, 4, 1e-6).delta(0.3) == shuffled(RESPONSE, 4, 1e-6).delta(0.3)
    alike = ldp.Release([0, 1, 1, 0], ldp.RandomizedResponse(np.ones(4)))
    assert shuffled(alike, 3, 1e-6).delta(0.3) == shuffled(RESPONSE, 3, 1e-6).delta(0.3)


def test_the_shuffled_statement_says_what_it_assumes():
    text = shuffled(ldp.LaplaceMechanism(epsilon=1.0, lower=0, upper=1), 10_000, 1e-6).statement()
    assert "central differential privacy with epsilon = 0.0" in text
    assert text.endswith("This holds if a trusted shuffler mixes 10,000 reports, each made as stated by somebody else.")


@pytest.mark.parametrize(
    ("budget", "count", "epsilon"), [(0.5, 20, 0.2), (10, 40, 8.0), (25, 10, 24.9), (38, 10, 34.0), (40, 50, 39.5)]
)
def test_deltas_of_shuffled_reports_are_the_sum_over_symbols_in_many_digits(budget, count, epsilon):
    with mp.workdps(60):
        clone = mp.exp(-mp.mpf(budget))
        own, other, odds, total = 1 / (1 + clone), clone / (1 + clone), mp.exp(mp.mpf(epsilon)), mp.mpf(0)
        for clones in range(count):
            weight = mp.binomial(count - 1, clones) * clone**clones * (1 - clone) ** (count - 1 - clones) / 2**clones
            for first in range(clones + 2):
                with_own, without = (mp.binomial(clones, k) if k >= 0 else 0 for k in (first - 1, first))
                one, two = own * with_own + other * without, other * with_own + own * without
                total += weight * max(one - odds * two, 0)
        hidden = shuffled(ldp.RandomizedResponse(float(budget)), count, 1e-6)
        assert float(hidden.delta(epsilon)) == pytest.approx(float(total), rel=1e-12)


def test_a_huge_budget_is_not_made_smaller_by_shuffling():
    assert float(shuffled(ldp.RandomizedResponse(1e5), 10, 1e-6).epsilon(1e-6)) == pytest.approx(1e5)


def test_tables_of_different_neighbours_are_not_composed_and_their_sum_is_of_a_replaced_person():
    law = ldp.mechanisms.AdditiveMechanism(ldp.noise.DiscreteLaplace(1.0), sensitivity=1)
    tables = [
        ldp.NoisyTable(np.arange(30), law, keys={"k": np.arange(30)}, neighbours=how, times=1)
        for how in ("replace", "add_remove")
    ]
    with pytest.raises(ValueError, match="'add_remove' and 'replace' cannot be composed"):
        compose(*tables)
    assert "is promised epsilon = 4 and delta = 0 in all" in promises(tables)  # each changes two cells by one
