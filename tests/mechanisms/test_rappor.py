"""Unary encodings of any probabilities and RAPPOR: likelihoods and both guarantees by enumeration of all reports.

Statistical tests fix their seeds and fail by chance with probability 1e-6 when a seed is changed.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import ldpbayes as ldp
from ldpbayes._core.checks import ArgumentError
from ldpbayes.mechanisms import Rappor, UnaryEncoding, mechanism_from_spec
from ldpbayes.privacy import FiniteTradeoff

pytestmark = pytest.mark.usefixtures("x64")

THREE = [[1, 1, 0], [0, 1, 1]]
MAP = [THREE, [[1, 0, 0], [1, 0, 1]]]  # of the second cohort, one candidate's hashes agree
BUDGETS = np.linspace(0, 8, 17)
CASES = {
    "one report": Rappor(THREE, 2, p=0.5, q=0.75),
    "both steps": Rappor(THREE, 2, p=0.4, q=0.8, f=0.3),
    "series": Rappor(THREE, 2, p=0.4, q=0.8, f=0.3, reports=2),
    "series without a permanent step": Rappor(np.eye(2), 1, p=0.3, q=0.6, reports=3),
    "cohorts": Rappor(MAP, 2, p=0.4, q=0.8, f=0.3, reports=2),
    "rest": Rappor(MAP, 2, p=0.4, q=0.8, f=0.3, reports=2, rest=True),
}


def reports_of(bit_laws, times, p, q, f):
    """Law of all series of reports, as an array over series of bits, from P(bit set) (m,): sums over what is hidden."""
    total = 0.0
    series = [*itertools.product([0, 1], repeat=len(bit_laws) * times)]
    for true in itertools.product([0, 1], repeat=len(bit_laws)):
        weight = np.prod([a if b else 1 - a for a, b in zip(bit_laws, true, strict=True)])
        if weight == 0:
            continue
        for kept in itertools.product([0, 1], repeat=len(bit_laws)):
            step = np.prod([1 - f / 2 if a == b else f / 2 for a, b in zip(true, kept, strict=True)])
            ones = np.tile([q if bit else p for bit in kept], times)
            law = np.array([np.prod(np.where(row, ones, 1 - ones)) for row in series])
            total = total + weight * step * law
    return np.array(series), total


def laws_of(rappor):
    """Released values and their laws (values, categories), by enumeration."""
    times, table = int(rappor.reports), np.asarray(rappor.bits)
    laws = {}
    for c, block in enumerate(table if table.ndim == 3 else [table]):
        share = 1 / (len(table) if table.ndim == 3 else 1)
        bits = [list(map(float, row)) for row in block]
        bits += [[1 - (1 - 1 / block.shape[1]) ** rappor.hashes] * block.shape[1]] * rappor.rest
        for x, law in enumerate(bits):
            series, mass = reports_of(law, times, rappor.p, rappor.q, rappor.f)
            sums = series.reshape(len(series), times, -1).sum(axis=1)
            for row, probability in zip(sums, mass, strict=True):
                key = (c, *row) if table.ndim == 3 else tuple(row)
                laws.setdefault(key, np.zeros(len(bits)))[x] += share * probability
    return np.array([*laws]), np.array([*laws.values()])


@pytest.mark.parametrize(
    "name", ["rest", *(pytest.param(name, marks=pytest.mark.slow) for name in CASES if name != "rest")]
)
def test_the_likelihood_sums_over_all_bits_and_reports(name):
    rappor = CASES[name]
    rows, laws = laws_of(rappor)
    codes = np.arange(rappor.categories)
    np.testing.assert_allclose(laws.sum(axis=0), 1.0, rtol=1e-12)
    np.testing.assert_allclose(np.exp(rappor.log_prob(rows[:, None], codes)), laws, rtol=1e-11)
    theta = (codes + 1) / np.sum(codes + 1)
    of_law = ldp.Privatized(dist.Categorical(theta), rappor).log_prob(rows)
    np.testing.assert_allclose(of_law, np.log(laws @ theta), rtol=1e-10)


def bit_series(times, p, q, f):
    """Laws of the series of one bit that is set, and of one that is not."""
    return np.array([reports_of([b], times, p, q, f)[1] for b in (1.0, 0.0)])


@pytest.mark.parametrize("name", ["both steps", "series", "series without a permanent step"])
def test_the_guarantee_is_that_of_two_values_that_differ_in_twice_as_many_bits_as_there_are_hashes(name):
    """The worst of all pairs of sets of at most h bits among 2 h bits, by enumeration of all series of reports."""
    rappor = CASES[name]
    h, times = rappor.hashes, int(rappor.reports)
    one = bit_series(times, rappor.p, rappor.q, rappor.f)

    def law(bits):
        return np.asarray(jnp.ravel(jax.tree.reduce(np.multiply.outer, [one[0 if bit else 1] for bit in bits])))

    filters = [bits for bits in itertools.product([0, 1], repeat=2 * h) if sum(bits) <= h]
    pairs = [np.stack([law(a), law(b)]) for a in filters for b in filters]
    worst = np.max([FiniteTradeoff(pair).delta(BUDGETS) for pair in pairs], axis=0)
    np.testing.assert_allclose(rappor.guarantee.delta(BUDGETS), worst, atol=1e-12)


def test_both_budgets_of_rappor_are_those_of_its_paper():
    h, f, p, q = 2, 0.5, 0.5, 0.75
    rappor = Rappor(THREE, h, p, q, f)
    one, zero = (0.5 * f * (p + q) + (1 - f) * a for a in (q, p))  # q* and p* of [EPK] Lemma 1
    assert rappor.guarantee.epsilon(0.0) == pytest.approx(h * np.log(one * (1 - zero) / (zero * (1 - one))), rel=1e-12)
    assert rappor.permanent_guarantee.epsilon(0.0) == pytest.approx(2 * h * np.log((1 - f / 2) / (f / 2)), rel=1e-12)
    assert np.isinf(Rappor(THREE, h, p, q).permanent_guarantee.epsilon(0.0))


@pytest.mark.slow
def test_budgets_of_a_series_grow_to_that_of_the_permanent_step_whether_curves_are_exact_or_bounds():
    series = [Rappor(THREE, 2, 0.5, 0.75, 0.5, reports) for reports in (1, 2, 7, 8, 30, 1000)]
    budgets = [float(rappor.guarantee.epsilon(0.0)) for rappor in series]
    most = float(series[0].permanent_guarantee.epsilon(0.0))
    assert np.all(np.diff(budgets) > 0) and budgets[-1] == pytest.approx(most, rel=1e-9)
    ratios = np.log(bit_series(8, 0.5, 0.75, 0.5))
    assert budgets[3] == pytest.approx(2 * np.ptp(ratios[0] - ratios[1]), rel=1e-10)
    personal = Rappor(THREE, 2, 0.5, 0.75, 0.5, [1, 30, 2])
    assert float(personal.guarantee.epsilon(0.0)) == pytest.approx(budgets[4])


@pytest.mark.parametrize("name", ["one report", pytest.param("rest", marks=pytest.mark.slow)])
def test_draws_have_the_law_of_reports(name):
    rappor = CASES[name]
    rows, laws = laws_of(rappor)
    k = rappor.categories
    draws = np.asarray(rappor.randomize(jax.random.key(1), np.repeat(np.arange(k), 20_000)))
    place = {tuple(row): i for i, row in enumerate(rows)}
    for x, part in enumerate(draws.reshape(k, 20_000, -1)):
        counts = np.bincount([place[tuple(row)] for row in part], minlength=len(rows))
        assert stats.chisquare(counts, 20_000 * laws[:, x]).pvalue > 1e-6


@pytest.mark.slow
def test_records_may_have_different_numbers_of_reports():
    personal = Rappor(MAP, 2, 0.4, 0.8, 0.3, reports=[1, 2, 3])
    rows = np.array([[0, 1, 0, 1], [1, 2, 2, 0], [1, 3, 0, 1]])
    each = [personal.of_records((3,), [i]).log_probs(rows[i : i + 1])[0] for i in range(3)]
    np.testing.assert_allclose(personal.log_probs(rows), each, rtol=1e-12)
    ones = [Rappor(MAP, 2, 0.4, 0.8, 0.3, reports=i + 1).log_probs(rows[i]) for i in range(3)]
    np.testing.assert_allclose(each, ones, rtol=1e-12)
    with pytest.raises(ValueError, match=r"2 sums of bits are above the number of reports, the first \(2\) in row 0"):
        ldp.Release(rows[[1, 1, 2]], personal)


@pytest.mark.slow
def test_a_rappor_and_an_encoding_are_arguments_of_compiled_functions_and_of_files():
    for mechanism, z in ((CASES["cohorts"], [1, 2, 0, 1]), (UnaryEncoding(3, 0.6, 0.2), [1, 0, 1])):
        z = np.array([z, z])
        compiled = jax.jit(lambda mechanism, z: mechanism.log_prob(z, np.array([0, 1])))
        np.testing.assert_allclose(compiled(mechanism, z), mechanism.log_prob(z, np.array([0, 1])), rtol=1e-12)
        assert mechanism_from_spec(mechanism.spec()) == mechanism
        jax.jit(type(mechanism).randomize)(mechanism, jax.random.key(0), np.array([0, 1]))
    stacked = jax.vmap(lambda p, q: UnaryEncoding(3, p, q).log_prob(np.array([1, 0, 1]), 0))
    separate = [UnaryEncoding(3, p, q).log_prob(np.array([1, 0, 1]), 0) for p, q in ((0.6, 0.2), (0.9, 0.5))]
    np.testing.assert_allclose(stacked(jnp.array([0.6, 0.9]), jnp.array([0.2, 0.5])), separate, rtol=1e-12)


def test_a_unary_encoding_has_the_law_of_its_two_probabilities_and_the_budget_of_their_odds():
    encoding = UnaryEncoding(categories=3, p=0.7, q=0.4)
    rows = np.array([*itertools.product([0, 1], repeat=3)])
    ones = np.where(np.eye(3), 0.7, 0.4)
    laws = np.prod(np.where(rows[:, None], ones, 1 - ones), axis=-1)
    np.testing.assert_allclose(np.exp(encoding.log_prob(rows[:, None], np.arange(3))), laws, rtol=1e-12)
    np.testing.assert_allclose(encoding.guarantee.delta(BUDGETS), FiniteTradeoff(laws.T).delta(BUDGETS), atol=1e-12)
    assert float(encoding.epsilon) == pytest.approx(np.log(0.7 * 0.6 / (0.3 * 0.4)))
    symmetric = ldp.SymmetricUnaryEncoding(1.0, 3)
    same = UnaryEncoding(3, *symmetric.support_probabilities)
    np.testing.assert_allclose(same.log_prob(rows, 0), symmetric.log_prob(rows, 0), rtol=1e-12)
    as_rappor = Rappor(np.eye(3), 1, p=0.4, q=0.7)
    np.testing.assert_allclose(as_rappor.log_probs(rows), np.log(laws), rtol=1e-12)
    np.testing.assert_allclose(as_rappor.guarantee.delta(BUDGETS), encoding.guarantee.delta(BUDGETS), atol=1e-12)
    personal = UnaryEncoding(3, [0.7, 0.6], [0.4, 0.1])
    expected = [UnaryEncoding(3, p, q).log_prob(rows[5], 1) for p, q in ((0.7, 0.4), (0.6, 0.1))]
    np.testing.assert_allclose(personal.log_prob(rows[[5, 5]], np.array([1, 1])), expected, rtol=1e-12)
    assert ldp.Release(rows[:2], personal).guarantee.epsilon(0.0).max() == pytest.approx(np.log(0.6 * 0.9 / 0.04))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: UnaryEncoding(3, 0.5, 0.75), "RAPPOR's p is the q of unary encodings"),
        (lambda: UnaryEncoding(3, 0.5, 0.5), "q must be below p"),
        (lambda: UnaryEncoding(3, 1.0, 0.5), "p must be between 0 and 1, exclusive"),
        (lambda: UnaryEncoding(1, 0.7, 0.5), "categories must be an integer of at least 2"),
        (lambda: Rappor(THREE, 2, 0.75, 0.5), "p must be a number below q"),
        (lambda: Rappor(THREE, 2, [0.5, 0.4], 0.75), "p must be a number below q"),
        (lambda: Rappor(THREE, 2, 0.5, 0.75, 1.0), "f must be at least 0, below 1"),
        (lambda: Rappor(THREE, 2, 0.5, 0.75, [0.1, 0.2]), "f must be one number"),
        (lambda: Rappor(THREE, 1, 0.5, 0.75), "hashes must be an integer from 2 to 3"),
        (lambda: Rappor([[0, 2, 1]] * 2, 2, 0.5, 0.75), "bits must be 0 or 1; 2 are not"),
        (lambda: Rappor([[0, 1, 1]], 2, 0.5, 0.75), "bits must be an array"),
        (lambda: Rappor(THREE, 2, 0.5, 0.75, reports=1.5), "reports must be a whole number from 1 on"),
        (lambda: ldp.Release([[2, 0, 0, 0]], CASES["cohorts"]), "cohorts are numbers from 0 to 1; 1 are not"),
        (lambda: ldp.Release([[0, 0, 2]], CASES["one report"]), "above the number of reports"),
        (lambda: ldp.Release([[0, 0]], CASES["one report"]), "a row of 3 numbers"),
    ],
)
def test_bad_input_is_refused_in_words(make, problem):
    with pytest.raises((ArgumentError, ValueError)) as error:
        make()
    assert problem in str(error.value)


def test_reports_with_too_few_ones_are_doubted():
    with pytest.warns(ldp.data.ReleaseWarning, match="0 of 500 have bit 0 .and 2 other kinds., where at least 250"):
        ldp.Release(np.zeros((500, 3), int), CASES["one report"])
