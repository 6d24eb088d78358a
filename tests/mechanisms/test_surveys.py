"""Randomized answers of surveys: each design against what its random device does, and against published estimators.

A design is described here once more, by the outcomes of its device and the answer to each truth. Statistical tests fix
their seeds and fail by chance with probability 1e-6 each when a seed is changed.
"""

import functools
import itertools
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import optimize, stats

import ldpbayes as ldp
from ldpbayes.mechanisms import (
    Crosswise,
    ForcedResponse,
    Kuk,
    Mangat,
    MirroredQuestion,
    TransitionMatrix,
    Triangular,
    UnrelatedQuestion,
    mechanism_from_spec,
)
from tests.programs import call, evaluate, log_prob, randomize

pytestmark = pytest.mark.usefixtures("x64")

# --- what the devices do: (probability, answer to a truth), ... -----------------------------------------------------


def mirrored(truth):
    return [(truth, lambda x: x), (1 - truth, lambda x: 1 - x)]


def crosswise(prevalence):
    return [(prevalence, lambda x: int(x == 1)), (1 - prevalence, lambda x: int(x == 0))]


def triangular(prevalence):
    return [(prevalence, lambda x: x | 1), (1 - prevalence, lambda x: x | 0)]


def mangat(truth):
    return [(truth, lambda x: x), (1 - truth, lambda x: 1 if x else 1 - x)]


def unrelated_question(truth, prevalence):
    return [
        (truth, lambda x: x),
        ((1 - truth) * prevalence, lambda x: 1),
        ((1 - truth) * (1 - prevalence), lambda x: 0),
    ]


def forced_response(*forced):
    dictated = [(share, lambda x, k=k: k) for k, share in enumerate(forced)]
    return [*dictated, (1 - sum(forced), lambda x: x)]


def kuk(no, yes, cards):
    """All colours of the cards drawn from both decks, of which the truth chooses one."""
    red = np.repeat([no, yes], cards)
    drawn = np.array(list(itertools.product([0, 1], repeat=2 * cards)))
    chances = np.prod(np.where(drawn, red, 1 - red), axis=1)
    return [(p, lambda x, c=c: c[cards:].sum() if x else c[:cards].sum()) for p, c in zip(chances, drawn, strict=True)]


DESIGNS = {
    "mirrored": (MirroredQuestion(0.3), mirrored(0.3)),
    "crosswise": (Crosswise(0.15), crosswise(0.15)),
    "triangular": (Triangular(0.4), triangular(0.4)),
    "mangat": (Mangat(0.6), mangat(0.6)),
    "unrelated": (UnrelatedQuestion(0.7, 0.2), unrelated_question(0.7, 0.2)),
    "forced": (ForcedResponse([1 / 6, 1 / 4]), forced_response(1 / 6, 1 / 4)),
    "forced-3": (ForcedResponse([0.1, 0.0, 0.3]), forced_response(0.1, 0.0, 0.3)),
    "kuk": (Kuk(0.2, 0.7), kuk(0.2, 0.7, 1)),
    "kuk-3": (Kuk(0.2, 0.7, 3), kuk(0.2, 0.7, 3)),
}
BINARY = [name for name, (mechanism, _) in DESIGNS.items() if np.shape(mechanism.matrix) == (2, 2)]
each = pytest.mark.parametrize("name", DESIGNS)
each_binary = pytest.mark.parametrize("name", BINARY)


def laws(device, categories, outputs):
    matrix = np.zeros((categories, outputs))
    for x in range(categories):
        for chance, answer in device:
            matrix[x, answer(x)] += chance
    return matrix


def reference(name):
    mechanism, device = DESIGNS[name]
    return mechanism, laws(device, mechanism.categories, np.shape(mechanism.matrix)[-1])


def of_each_record(name, rng, n=6):
    """The design with other probabilities for each record, and their matrices, one by one."""
    mechanism, _ = DESIGNS[name]
    if name.startswith("forced"):
        forced = rng.uniform(0.02, 0.3, (mechanism.categories, n))
        singles = [laws(forced_response(*column), *np.shape(mechanism.matrix)) for column in forced.T]
        return ForcedResponse(forced), np.array(singles)
    of = {"mirrored": mirrored, "crosswise": crosswise, "triangular": triangular, "mangat": mangat}
    of |= {"unrelated": unrelated_question, "kuk": kuk, "kuk-3": kuk}
    leaves = len(jax.tree.leaves(mechanism))
    drawn = np.sort(rng.uniform(0.05, 0.45, (leaves, n)), axis=0)
    cards = [mechanism.cards] if isinstance(mechanism, Kuk) else []
    singles = [laws(of[name](*column, *cards), *np.shape(mechanism.matrix)) for column in drawn.T]
    return type(mechanism)(*drawn, *cards), np.array(singles)


# --- matrices, draws, likelihood, guarantee ---------------------------------------------------------------------------


@each
def test_the_matrix_is_what_the_device_does_also_for_probabilities_of_each_record(name, rng):
    mechanism, matrix = reference(name)
    np.testing.assert_allclose(mechanism.matrix, matrix, atol=1e-15)
    several, matrices = of_each_record(name, rng)
    np.testing.assert_allclose(several.matrix, matrices, atol=1e-15)
    assert several.batch_shape == (6,) and several.categories == mechanism.categories


@each
def test_answers_are_drawn_by_the_matrix(name, rng):
    """Chi-square at 1e-6 a row; with other probabilities for each record, counts within 5 standard deviations."""
    mechanism, matrix = reference(name)
    k, m = matrix.shape
    draws = randomize(mechanism, np.repeat(np.arange(k), 20_000)).reshape(k, -1)
    for row, law in zip(draws, matrix, strict=True):
        counts = np.bincount(row, minlength=m)
        assert not counts[law == 0].any()
        assert (law > 0).sum() == 1 or stats.chisquare(counts[law > 0], 20_000 * law[law > 0]).pvalue > 1e-6
    several, matrices = of_each_record(name, rng)
    x = rng.integers(0, k, 6)
    many = type(several)._map_personal(several, lambda leaf: np.tile(leaf, 20_000))
    counts = np.array([np.bincount(z, minlength=m) for z in randomize(many, np.tile(x, 20_000)).reshape(-1, 6).T])
    law = matrices[np.arange(6), x]
    assert np.all(np.abs(counts - 20_000 * law) <= 5 * np.sqrt(20_000 * law * (1 - law)) + 1e-9)


@each
def test_the_likelihood_is_a_sum_over_truths(name, rng):
    mechanism, matrix = reference(name)
    k, m = matrix.shape
    z, own = np.arange(m), rng.dirichlet(np.ones(k), m)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(call("log_prob", mechanism, z, np.arange(k)[:, None]), np.log(matrix), atol=1e-12)
    np.testing.assert_allclose(np.exp(log_prob(dist.Categorical(own[0]), mechanism, z)), own[0] @ matrix)
    np.testing.assert_allclose(np.exp(log_prob(dist.Categorical(own), mechanism, z)), np.sum(own * matrix.T, axis=1))
    several, matrices = of_each_record(name, rng)
    z, own = rng.integers(0, m, 6), rng.dirichlet(np.ones(k), 6)
    expected = np.array([share @ one[:, value] for share, one, value in zip(own, matrices, z, strict=True)])
    np.testing.assert_allclose(np.exp(log_prob(dist.Categorical(own), several, z)), expected)
    shared = np.array([own[0] @ one[:, value] for one, value in zip(matrices, z, strict=True)])
    np.testing.assert_allclose(np.exp(log_prob(dist.Categorical(own[0]), several, z)), shared)


@each_binary
def test_a_regression_has_the_likelihood_of_each_answer_and_its_derivatives(name, rng):
    """Logits that differ by record; derivatives by central differences of the enumerated log-likelihood."""
    several, matrices = of_each_record(name, rng)
    z, covariate = rng.integers(0, 2, 6), rng.normal(size=6)
    z = np.where(matrices.min(axis=1)[:, 0] == 0, 1, z)  # possible for all, as probabilities near 0 are compared

    def enumerated(slope):
        share = 1 / (1 + np.exp(-(0.3 + slope * covariate)))
        return np.sum(np.log((1 - share) * matrices[np.arange(6), 0, z] + share * matrices[np.arange(6), 1, z]))

    found, slope = evaluate(_of_slope, several, z, covariate, 0.7)
    assert found == pytest.approx(enumerated(0.7), rel=1e-12)
    assert slope == pytest.approx((enumerated(0.7001) - enumerated(0.6999)) / 2e-4, rel=1e-6)


def _of_slope(mechanism, z, covariate, slope):
    def total(slope):
        return ldp.Privatized(dist.Bernoulli(logits=0.3 + slope * covariate), mechanism).log_prob(z).sum()

    return jax.value_and_grad(total)(slope)


def worst_delta(matrices, epsilon):
    pairs = (pair for matrix in matrices for pair in itertools.permutations(matrix, 2))
    return max(np.maximum(one - np.exp(epsilon) * other, 0).sum() for one, other in pairs)


@each
def test_the_guarantee_is_that_of_the_worst_pair_of_truths_and_of_the_worst_record(name, rng):
    mechanism, matrix = reference(name)
    several, matrices = of_each_record(name, rng)
    budgets = np.linspace(0, 6, 13)
    for design, rows in ((mechanism, [matrix]), (several, matrices)):
        expected = [worst_delta(rows, epsilon) for epsilon in budgets]
        np.testing.assert_allclose(design.guarantee.delta(budgets), expected, atol=1e-14)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.concatenate([np.ravel(np.log(one) - np.log(one[:, None])) for one in rows])
        assert design.guarantee.epsilon(0.0) == pytest.approx(np.nanmax(ratios), rel=1e-12)


EPSILONS = {
    "mirrored": np.log(0.7 / 0.3),
    "crosswise": np.log(0.85 / 0.15),
    "triangular": np.inf,
    "mangat": np.inf,
    "unrelated": np.log((0.7 + 0.3 * 0.2) / (0.3 * 0.2)),
    "forced": np.log((1 - 1 / 4) / (1 / 6)),
    "forced-3": np.inf,
    "kuk": np.log(0.7 / 0.2),
    "kuk-3": 3 * np.log(0.7 / 0.2),
}


@each
def test_budgets_are_those_of_the_formulas(name):
    mechanism, _ = reference(name)
    assert float(mechanism.guarantee.epsilon(0.0)) == pytest.approx(EPSILONS[name], rel=1e-12)


def test_designs_that_give_an_answer_away_say_how_often():
    """The answer no of the triangular model and of Mangat's design, which people without the trait give."""
    for mechanism, chance in ((Triangular(0.4), 0.6), (Mangat(0.6), 0.6)):
        guarantee = mechanism.guarantee
        assert np.isinf(guarantee.epsilon(chance - 1e-9)) and guarantee.epsilon(chance + 1e-9) < 1e-6
        assert float(guarantee.delta(50.0)) == pytest.approx(chance)
        assert f"delta = {chance:.1g}" in guarantee.statement()


# --- objects: files, compiled functions, models -----------------------------------------------------------------------


@each
def test_specs_and_files_make_the_design_again(name, rng, tmp_path):
    mechanism, matrix = reference(name)
    several, _ = of_each_record(name, rng)
    z = rng.integers(0, 2, 6) if matrix.all() else np.ones(6, int)
    for number, design in enumerate((mechanism, several)):
        assert mechanism_from_spec(json.loads(json.dumps(design.spec()))) == design
        release = ldp.Release(z, design, about={"levels": [str(code) for code in range(matrix.shape[1])]})
        path = tmp_path / f"{number}.npz"
        release.save(path)
        again = ldp.Release.load(path)
        assert again.mechanism == design and np.array_equal(again.values, z) and again.about == release.about
        assert again.sketch().mechanism == release.sketch().mechanism


@jax.jit
def scores(mechanism, z):
    law = ldp.Privatized(dist.Categorical(jnp.arange(1.0, 4.0)[: mechanism.categories] / 10), mechanism)
    return law.log_prob(z), mechanism.matrix


@each
def test_a_design_is_an_argument_of_compiled_functions_and_may_be_mapped(name, rng):
    several, matrices = of_each_record(name, rng)
    z = np.ones(6, int)
    one_by_one = [scores(several.of_records((6,), i), 1) for i in range(6)]
    together, matrix = scores(several, z)
    np.testing.assert_allclose(matrix, matrices, atol=1e-15)
    np.testing.assert_allclose(together, [score for score, _ in one_by_one])
    mapped, _ = jax.vmap(scores)(several, z)
    np.testing.assert_allclose(mapped, together)
    assert jax.jit(lambda mechanism: mechanism)(several) == several
    leaves, structure = jax.tree.flatten(several)
    marks = [object() for _ in leaves]
    assert jax.tree.leaves(jax.tree.unflatten(structure, marks)) == marks


def test_forced_probabilities_may_be_a_traced_array():
    matrix = jax.jit(lambda forced: ForcedResponse(forced).matrix)(np.array([0.1, 0.2]))
    np.testing.assert_allclose(matrix, ForcedResponse([0.1, 0.2]).matrix)
    grown = jax.jit(jax.grad(lambda p: ldp.Privatized(dist.Bernoulli(0.3), Crosswise(p)).log_prob(1)))(0.2)
    assert float(grown) == pytest.approx((0.3 - 0.7) / (0.3 * 0.2 + 0.7 * 0.8))  # P(1) = θp + (1 − θ)(1 − p)


@jax.jit
def _log_density_of_model(sampled, release):
    def model():
        share = numpyro.sample("share", dist.Uniform(0, 1))
        ldp.observe("answer", dist.Bernoulli(share), release)

    return numpyro.infer.util.log_density(model, (), {}, sampled)[0]


def test_two_groups_of_a_survey_are_one_release_with_a_probability_for_each_record(rng):
    """[GASH]'s two samples, whose groups were asked with different probabilities."""
    truth = np.repeat([0.7, 0.4], [30, 50])
    z = rng.integers(0, 2, 80)
    whole = ldp.Release(z, UnrelatedQuestion(truth, 0.2))
    theta = np.array([[0.7 + 0.3 * 0.2, 0.3 * 0.2], [0.4 + 0.6 * 0.2, 0.6 * 0.2]])  # yes of yes and of no, by group
    share, yes = 0.37, [z[:30].sum(), z[30:].sum()]
    chance = share * theta[:, 0] + (1 - share) * theta[:, 1]
    expected = stats.binom([30, 50], chance).logpmf(yes) - np.log([stats.binom([30, 50], 0.5).pmf(yes)])
    expected = expected.sum() - 80 * np.log(2)
    for release in (whole, whole.sketch()):
        found = float(_log_density_of_model({"share": share}, release))
        assert found == pytest.approx(expected, rel=1e-12)
    assert len(whole.sketch().nodes) == 4


# --- estimates ------------------------------------------------------------------------------------------------------

CLOSED_FORMS = {  # share of yes and gain d: the variance is λ(1 − λ)/(n d²)
    "mirrored": lambda of: ((of - (1 - 0.3)) / (2 * 0.3 - 1), 2 * 0.3 - 1),
    "crosswise": lambda of: ((of + 0.15 - 1) / (2 * 0.15 - 1), 2 * 0.15 - 1),
    "triangular": lambda of: (1 - (1 - of) / (1 - 0.4), 1 - 0.4),
    "mangat": lambda of: ((of - 1 + 0.6) / 0.6, 0.6),
    "unrelated": lambda of: ((of - (1 - 0.7) * 0.2) / 0.7, 0.7),
    "forced": lambda of: ((of - 1 / 4) / (1 - 1 / 6 - 1 / 4), 1 - 1 / 6 - 1 / 4),
    "kuk": lambda of: ((of - 0.2) / (0.7 - 0.2), 0.7 - 0.2),
}


@each_binary
@pytest.mark.parametrize(("yes", "n"), [(433, 1000), (0, 1), (1, 1), (0, 40), (40, 40), (433_219, 10**6)])
def test_shares_and_errors_are_those_of_the_closed_forms(name, yes, n):
    """Also of one answer, of equal answers and of a million counted ones; no share is clipped to [0, 1].

    The variance of a share beyond [0, 1] is that at the nearest bound.
    """
    mechanism, matrix = reference(name)
    sketch = ldp.data.CountSketch(mechanism, np.array([0, 1]), np.array([n - yes, yes], float))
    found = ldp.frequencies(sketch)
    share, gain = CLOSED_FORMS[name](yes / n)
    np.testing.assert_allclose(found.estimate, [1 - share, share], atol=1e-9)
    chance = np.interp(share, [0, 1], matrix[:, 1])
    error = np.sqrt(chance * (1 - chance) / n) / abs(gain)
    np.testing.assert_allclose(found.standard_error, [error, error], atol=1e-9)
    assert not 0 <= share <= 1 or chance == pytest.approx(yes / n)
    if n == 40:
        answers = ldp.frequencies(ldp.Release(np.repeat([0, 1], [n - yes, yes]), mechanism))
        np.testing.assert_allclose(answers.estimate, found.estimate)


@each_binary
def test_likeliest_shares_are_the_closed_forms_or_the_nearest_bound(name):
    mechanism, _ = reference(name)
    for yes in (0, 433, 1000):
        sketch = ldp.data.CountSketch(mechanism, np.array([0, 1]), np.array([1000 - yes, yes], float))
        found = ldp.frequencies(sketch, "mle").estimate[1]
        assert found == pytest.approx(np.clip(CLOSED_FORMS[name](yes / 1000)[0], 0, 1), abs=2e-3)
        inside = 0 < CLOSED_FORMS[name](yes / 1000)[0] < 1
        assert not inside or found == pytest.approx(CLOSED_FORMS[name](yes / 1000)[0], abs=1e-4)


def test_shares_of_more_categories_and_cards():
    """Forced response of three categories, category by category ([Boruch]); Kuk's cards by SciPy's likelihood."""
    counts = np.array([310.0, 205.0, 485.0])
    found = ldp.frequencies(ldp.data.CountSketch(DESIGNS["forced-3"][0], np.arange(3), counts))
    share = counts / 1000
    np.testing.assert_allclose(found.estimate, (share - [0.1, 0, 0.3]) / 0.6)
    np.testing.assert_allclose(found.standard_error, np.sqrt(share * (1 - share) / 1000) / 0.6)
    counts, mechanism = np.array([300.0, 280.0, 250.0, 170.0]), DESIGNS["kuk-3"][0]
    of_no, of_yes = (stats.binom(3, red).pmf(np.arange(4)) for red in (0.2, 0.7))
    found = ldp.frequencies(ldp.data.CountSketch(mechanism, np.arange(4), counts), "mle")
    best = optimize.minimize_scalar(
        lambda t: -counts @ np.log(t * of_yes + (1 - t) * of_no), bounds=(0, 1), options={"xatol": 1e-9}
    )
    assert found.estimate[1] == pytest.approx(best.x, abs=1e-4)
    information = counts @ ((of_yes - of_no) / (best.x * of_yes + (1 - best.x) * of_no)) ** 2
    assert found.standard_error[1] == pytest.approx(information**-0.5, rel=1e-3)


def test_groups_of_different_probabilities_are_weighted_by_their_precision_at_equal_shares():
    truth, n, yes = np.array([0.7, 0.4]), np.array([300, 500]), np.array([140, 160])
    design = UnrelatedQuestion(np.repeat(truth, n), 0.2)
    z = np.concatenate([np.repeat([0, 1], [m - y, y]) for m, y in zip(n, yes, strict=True)])
    found = ldp.frequencies(ldp.Release(z, design))
    even = (1 - truth) * 0.2 + truth / 2
    precision = n * truth**2 / (even * (1 - even))
    shares = (yes / n - (1 - truth) * 0.2) / truth
    assert found.estimate[1] == pytest.approx(precision @ shares / precision.sum(), rel=1e-12)
    likeliest = ldp.frequencies(ldp.Release(z, design), "mle")

    def log_likelihood(share):
        chance = (1 - truth) * 0.2 + truth * share
        return yes @ np.log(chance) + (n - yes) @ np.log(1 - chance)

    best = optimize.minimize_scalar(lambda t: -log_likelihood(t), bounds=(0, 1), options={"xatol": 1e-9}).x
    assert likeliest.estimate[1] == pytest.approx(best, abs=1e-4)
    bend = (log_likelihood(best + 1e-4) - 2 * log_likelihood(best) + log_likelihood(best - 1e-4)) / 1e-8
    assert likeliest.standard_error[1] == pytest.approx((-bend) ** -0.5, rel=1e-3)


def test_errors_of_groups_are_those_of_repeated_surveys_in_which_the_groups_have_these_sizes(rng):
    """In 4,000 surveys of a small share: their standard deviation within 5 of its standard errors, 1.1 % each."""
    truth, n = np.array([0.9, 0.2]), np.array([500, 700])
    design = UnrelatedQuestion(np.repeat(truth, n), 0.3)
    expected = (1 - truth) * 0.3 + truth * 0.05

    def estimated(yes):
        z = np.concatenate([np.repeat([0, 1], [m - y, y]) for m, y in zip(n, yes, strict=True)])
        return ldp.frequencies(ldp.Release(z, design))

    first = np.round(n * expected).astype(int)
    found, *others = (estimated(first + more) for more in ([0, 0], [1, 0], [0, 1]))
    slopes = np.array([other.estimate[1] - found.estimate[1] for other in others])  # it is linear in the numbers of yes
    yes = rng.binomial(n, expected, (4000, 2))
    estimates = found.estimate[1] + (yes - first) @ slopes
    assert abs(estimates.mean() - 0.05) < 5 * estimates.std() / np.sqrt(4000)
    assert found.standard_error[1] == pytest.approx(estimates.std(), rel=0.056)
    exact = slopes**2 @ (n * expected * (1 - expected))
    assert found.standard_error[1] ** 2 == pytest.approx(exact, rel=2e-2)  # at whole numbers of yes


# --- published examples ---------------------------------------------------------------------------------------------


def test_the_vignette_of_rrreg():
    """Warner's design, p = 1/6, 633 of 1,000 say yes ([HM]): .300500, standard error .022874 with n − 1."""
    release = ldp.Release(np.repeat([0, 1], [367, 633]), MirroredQuestion(1 / 6))
    found = ldp.frequencies(release)
    assert found.estimate[1] == pytest.approx(0.3005, abs=5e-7)
    assert found.standard_error[1] * np.sqrt(1000 / 999) == pytest.approx(0.022874, abs=5e-7)


@pytest.mark.parametrize(
    ("yes", "prevalence", "share", "variance"),
    [
        (328, 1 / 12, 0.8406103, 0.001389716),
        (180, 1 / 10, 0.4070423, 0.001045196),
        (280, 20 / 30, 0.1220657, 0.001337415),
        (81, 1 / 10, 0.128169, 0.0005597858),
        (164, 10 / 30, 0.1286385, 0.000991658),
        (53, 1 / 12, 0.06596244, 0.000383954),
    ],
)
def test_the_vignette_of_rrtcs(yes, prevalence, share, variance):
    """Unrelated questions with a coin, of 710 of 10,777 students (RRTCS, `Horvitz`).

    Its variance is (1 − f) s²/n, of a sample without replacement from the answers that all N students would give, and
    V/N for the randomization of these.
    """
    found = ldp.frequencies(ldp.Release(np.repeat([0, 1], [710 - yes, yes]), UnrelatedQuestion(0.5, prevalence)))
    assert found.estimate[1] == pytest.approx(share, abs=1e-7)
    ours = 710 * found.standard_error[1] ** 2
    of_people = share * (1 - share)
    assert (1 - 710 / 10777) * ours / 709 + (ours - of_people) / 10777 == pytest.approx(variance, rel=1e-6)


def test_the_read_me_of_cwise():
    """Crosswise with prevalence .15, 1,427 of 2,000 answers are equal: .1950, standard error .0144."""
    found = ldp.frequencies(ldp.Release(np.repeat([0, 1], [573, 1427]), Crosswise(0.15)))
    assert found.estimate[1] == pytest.approx(0.1950, abs=5e-5)
    assert found.standard_error[1] == pytest.approx(0.0144, abs=5e-5)


def test_the_weighted_example_of_cwise():
    """Weights of 1.25 and 5: .1921. Its error, .0144, does not use the weights; a ratio of totals has a larger one."""
    z, weights = np.repeat([0, 0, 1, 1], [454, 119, 1123, 304]), np.repeat([1.25, 5, 1.25, 5], [454, 119, 1123, 304])
    found = ldp.frequencies(ldp.Release(z, Crosswise(0.15)), sampling=ldp.data.SamplingDesign(weights))
    assert found.estimate[1] == pytest.approx(0.1921, abs=5e-5)
    away = weights * (z - weights @ z / weights.sum()) / weights.sum()
    assert found.standard_error[1] == pytest.approx(np.sqrt(away @ away * 2000 / 1999) / 0.7)


@functools.partial(jax.jit, static_argnums=1)
def slopes_of_groups(theta, matrices_of, yes, n):
    """Derivatives of the log-likelihood of counts of yes of groups with traced matrices, given a share theta[0]."""

    def total(theta):
        law = dist.Bernoulli(theta[0])
        groups = zip(matrices_of(theta), yes, n, strict=True)
        both = [(ldp.Privatized(law, TransitionMatrix(matrix)), said, count) for matrix, said, count in groups]
        return sum(said * law.log_prob(1) + (count - said) * law.log_prob(0) for law, said, count in both)

    return jax.grad(total)(theta), jax.hessian(total)(theta)


def of_lie_detector(theta):
    """Mangat's design with p = 2/12 and 10/12, where people with the trait say so with the probability theta[1]."""
    return [jnp.array([[p, 1 - p], [1 - theta[1], theta[1]]]) for p in (2 / 12, 10 / 12)]


def of_anchored_crosswise(theta):
    """Crosswise with prevalence .15, of which a share theta[1] of people is attentive; the anchor is false for all."""
    same = theta[1] * 0.85 + (1 - theta[1]) / 2
    return [jnp.array([[1 - same, same], [same, 1 - same]]), jnp.array([[1 - same, same], [1 - same, same]])]


@pytest.mark.parametrize(
    ("of", "yes", "n", "published", "errors"),
    [
        # the minarets of [HM], with n − 1 in the errors
        (of_lie_detector, [373, 398], [564, 692], [0.870695, 0.635806], [0.041118, 0.017344]),
        # cWise: naive .1950, corrected by the anchor question .1054; 77.29 % are attentive
        (of_anchored_crosswise, [1427, 1541], [2000, 2000], [0.1054, 0.7729], None),
    ],
)
def test_published_models_of_dishonest_people_are_matrices_with_a_parameter(of, yes, n, published, errors):
    at = np.array(published)
    for _ in range(5):
        slope, bend = slopes_of_groups(at, of, yes, n)
        at = at - np.linalg.solve(bend, slope)
    np.testing.assert_allclose(at, published, atol=5e-5 if errors is None else 5e-7)
    if errors is not None:
        np.testing.assert_allclose(np.sqrt(np.diagonal(np.linalg.inv(-bend))), errors, rtol=2e-3)


@pytest.mark.skipif("LDPBAYES_DATA" not in os.environ, reason="LDPBAYES_DATA names no folder with nigeria.csv")
def test_the_regression_of_the_nigerian_survey_by_maximum_likelihood():
    """Newton steps on the likelihood of the design, against numbers of another program; and the share of yes."""
    survey = pd.read_csv(pathlib.Path(os.environ["LDPBAYES_DATA"]) / "nigeria.csv")
    design = ForcedResponse([1 / 6, 1 / 6])
    answered = survey["rr.q1"].dropna().astype(int)
    share = ldp.frequencies(ldp.Release(answered.to_numpy(), design))
    assert (len(answered), round(share.estimate[1], 5)) == (2435, 0.26191)
    columns = ["cov.asset.index", "cov.married", "cov.age", "cov.education", "cov.female"]
    rows = survey.dropna(subset=["rr.q1", *columns])
    x = np.column_stack([np.ones(len(rows)), rows[columns].to_numpy(float)])
    beta = np.zeros(6)
    for _ in range(8):
        _, slope, bend = evaluate(_of_regression, beta, x, rows["rr.q1"].to_numpy(int), design)
        beta = beta - np.linalg.solve(bend, slope)
    assert len(rows) == 2423
    np.testing.assert_allclose(beta[1:], [0.07873, -0.41794, 0.00323, -0.01816, -0.57361], atol=5e-6)
    errors = np.sqrt(np.diagonal(np.linalg.inv(-bend)))
    np.testing.assert_allclose(errors[1:], [0.0405, 0.2200, 0.0068, 0.0438, 0.1625], atol=5e-5)


def _of_regression(beta, x, z, design):
    def total(beta):
        return ldp.Privatized(dist.Bernoulli(logits=x @ beta), design).log_prob(z).sum()

    return total(beta), jax.grad(total)(beta), jax.hessian(total)(beta)


def test_two_stage_devices_of_rrtcs_are_designs_with_other_probabilities():
    """What its functions subtract and divide by: P(yes) without the trait, and how much larger it is with the trait."""
    p, t, alpha = 0.6, 0.3, 0.4
    stated = [
        (MirroredQuestion(t + (1 - t) * p), (1 - t) * (1 - p), t + (1 - t) * (2 * p - 1)),  # MangatSingh
        (UnrelatedQuestion(t + (1 - t) * p, alpha), (1 - t) * (1 - p) * alpha, t + (1 - t) * p),  # Mangat
        (UnrelatedQuestion(p, 1), 1 - p, p),  # Devore
        (Triangular((1 - p) * alpha), (1 - p) * alpha, 1 - (1 - p) * alpha),  # MangatSinghSingh
        (TransitionMatrix([[p, 1 - p], [(1 - p) ** 2, 1 - (1 - p) ** 2]]), 1 - p, 2 * p - 1 + p * (1 - p)),
    ]
    for mechanism, no, gain in stated:
        np.testing.assert_allclose(mechanism.matrix[:, 1], [no, no + gain])


# --- an unknown prevalence of the innocuous question ----------------------------------------------------------------

TWO_TRUTHS, TWO_SIZES, TWO_YES = np.array([0.75, 0.3]), np.array([400, 600]), np.array([130, 330])


def greenberg(yes):
    """[GASH]: share, prevalence and their standard errors from two samples."""
    p, rate = TWO_TRUTHS, yes / TWO_SIZES
    spread = rate * (1 - rate) / TWO_SIZES
    share = (rate[0] * (1 - p[1]) - rate[1] * (1 - p[0])) / (p[0] - p[1])
    prevalence = (p[1] * rate[0] - p[0] * rate[1]) / (p[1] - p[0])
    return share, prevalence, *np.sqrt(np.stack([(1 - p[::-1]) ** 2, p[::-1] ** 2]) @ spread) / abs(p[0] - p[1])


def of_two_groups(z):
    share = numpyro.sample("share", dist.Uniform(0, 1))
    prevalence = numpyro.sample("prevalence", dist.Uniform(0, 1))
    truth = np.repeat(TWO_TRUTHS, TWO_SIZES)
    numpyro.sample("answer", ldp.Privatized(dist.Bernoulli(share), UnrelatedQuestion(truth, prevalence)), obs=z)


def test_two_groups_give_the_share_and_the_prevalence_in_closed_form():
    """The estimates maximise the likelihood of the model, with the errors of its observed information."""
    z = np.concatenate([np.repeat([0, 1], [n - y, y]) for n, y in zip(TWO_SIZES, TWO_YES, strict=True)])
    share, prevalence, *errors = greenberg(TWO_YES)

    @jax.jit
    def log_likelihood(theta):
        found = numpyro.infer.util.log_density(of_two_groups, (z,), {}, {"share": theta[0], "prevalence": theta[1]})
        return found[0]

    at = np.array([share, prevalence])
    assert 0 < share < 1 and 0 < prevalence < 1
    np.testing.assert_allclose(jax.grad(log_likelihood)(at), [0, 0], atol=1e-9)
    covariance = np.linalg.inv(-np.asarray(jax.hessian(log_likelihood)(at)))
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariance)), errors, rtol=1e-10)


@pytest.mark.slow
def test_the_posterior_of_share_and_prevalence_is_that_on_a_grid():
    """Means within a tenth of the posterior standard deviation, and deviations within a tenth, of 4,000 draws."""
    z = np.concatenate([np.repeat([0, 1], [n - y, y]) for n, y in zip(TWO_SIZES, TWO_YES, strict=True)])
    posterior = ldp.fit(of_two_groups, z, seed=0, progress_bar=False)["posterior"]
    points = (np.arange(800) + 0.5) / 800
    share, prevalence = np.meshgrid(points, points, indexing="ij")
    chance = TWO_TRUTHS * share[..., None] + (1 - TWO_TRUTHS) * prevalence[..., None]
    weights = np.exp(stats.binom(TWO_SIZES, chance).logpmf(TWO_YES).sum(axis=-1))
    weights /= weights.sum()
    for name, values in (("share", share), ("prevalence", prevalence)):
        mean = np.sum(weights * values)
        deviation = np.sqrt(np.sum(weights * (values - mean) ** 2))
        draws = posterior[name].values
        assert abs(draws.mean() - mean) < 0.1 * deviation
        assert draws.std() == pytest.approx(deviation, rel=0.1)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MirroredQuestion(0.5), "depends on the truth, got MirroredQuestion"),
        (lambda: MirroredQuestion([0.3, 0.5]), "depends on the truth"),
        (lambda: Crosswise(0.5), "depends on the truth"),
        (lambda: Crosswise(1.0), "prevalence must be between 0 and 1, exclusive, got 1.0"),
        (
            lambda: Triangular([0.2, np.nan]),
            r"prevalence must be between 0 and 1, exclusive, got prevalence\[1\] = nan",
        ),
        (lambda: Mangat("a"), "truth must be between 0 and 1"),
        (lambda: UnrelatedQuestion(0.0, 0.4), "depends on the truth"),
        (lambda: UnrelatedQuestion(0.5, 1.2), r"prevalence must be in \[0, 1\], got 1.2"),
        (lambda: ForcedResponse([0.5, 0.5]), "the sum of forced must be below 1, got 1.0"),
        (lambda: ForcedResponse([0.5]), "number of categories of forced must be an integer of at least 2, got 1"),
        (lambda: ForcedResponse(0.5), "number of categories of forced must be an integer of at least 2, got 1"),
        (lambda: ForcedResponse([-0.1, 0.5]), r"forced must be in \[0, 1\], got forced\[0\] = -0.1"),
        (lambda: Kuk(0.4, 0.4, 3), "depends on the truth"),
        (lambda: Kuk(0.4, 0.5, 0), "cards must be an integer from 1 to 1000, got 0"),
        (lambda: Kuk(0.001, 0.002, 200), "cards must be so few that double precision holds all probabilities, got 200"),
    ],
)
def test_probabilities_that_are_none_or_tell_nothing_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_groups_that_together_tell_nothing_are_refused(rng):
    """Three categories of which two are never told apart; and answers that no truth leads to."""
    forced = ForcedResponse([0.1, 0.2, 0.3])
    merged = TransitionMatrix(forced.matrix @ [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    with pytest.raises(ValueError, match="cannot identify the frequencies"):
        ldp.frequencies(ldp.Release([0, 1, 1], merged))
    with pytest.raises(ValueError, match="cannot identify the frequencies"):  # a matrix whose inverse is rounding error
        ldp.frequencies(ldp.Release([0, 1, 1], Crosswise(0.5 + 1e-9)))
    with pytest.raises(ValueError, match=r"values must be integers in 0..1 under Crosswise"):
        ldp.Release([0, 2], Crosswise(0.2))
    with pytest.raises(ValueError, match=r"parameters have shape \(2,\), but there are 3 records"):
        ldp.Release([0, 1, 1], Crosswise([0.2, 0.3]))
    with pytest.warns(UserWarning, match="nearly impossible under"):
        ldp.Release(np.zeros(2000, int), Crosswise(rng.uniform(0.1, 0.2, 2000)))
