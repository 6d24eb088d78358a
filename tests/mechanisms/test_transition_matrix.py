"""Randomizers given as matrices: their law, guarantee, likelihood, sketch and frequencies.

Statistical tests fix their seeds and fail by chance with probability 1e-6 each when a seed is changed.
"""

import dataclasses
import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import ldpbayes as ldp
from ldpbayes.mechanisms import TransitionMatrix, mechanism_from_spec
from ldpbayes.privacy import FiniteTradeoff
from tests.programs import call, constant, evaluate, log_prob, randomize, value_and_grad

pytestmark = pytest.mark.usefixtures("x64")

GENERAL = np.array([[0.5, 0.3, 0.2, 0.0], [0.1, 0.6, 0.1, 0.2], [0.25, 0.25, 0.5, 0.0]])
THETA = np.array([0.2, 0.3, 0.5])


def response(epsilon, categories):
    """The matrix of `RandomizedResponse`."""
    q = 1 / (np.exp(epsilon) + categories - 1)
    return np.full((categories, categories), q) + np.eye(categories) * q * np.expm1(epsilon)


def test_density_and_draws_are_those_of_the_rows():
    """Chi-square at 1e-6 a row."""
    mechanism = TransitionMatrix(GENERAL)
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(call("log_prob", mechanism, np.arange(4), np.arange(3)[:, None]), np.log(GENERAL))
    draws = randomize(mechanism, np.repeat([0, 1, 2], 20_000)).reshape(3, -1)
    for row, law in zip(draws, GENERAL, strict=True):
        counts = np.bincount(row, minlength=4)
        possible = law > 0
        assert not counts[~possible].any()
        assert stats.chisquare(counts[possible], 20_000 * law[possible]).pvalue > 1e-6
    assert mechanism.categories == 3
    assert jax.eval_shape(lambda: mechanism.randomize(jax.random.key(0), 2)).shape == ()


def brute_delta(matrix, epsilon):
    return max(np.maximum(one - np.exp(epsilon) * other, 0).sum() for one, other in itertools.permutations(matrix, 2))


@pytest.mark.parametrize("matrix", [GENERAL, GENERAL[:2], response(1.0, 4), np.eye(3)[:, ::-1], np.full((2, 2), 0.5)])
def test_the_guarantee_is_that_of_the_worst_pair_of_rows_where_zeros_tell_them_apart_too(matrix):
    guarantee = TransitionMatrix(matrix).guarantee
    budgets = np.linspace(0, 6, 25)
    np.testing.assert_allclose(guarantee.delta(budgets), [brute_delta(matrix, e) for e in budgets], atol=1e-14)
    apart = max(one[other == 0].sum() for one, other in itertools.permutations(matrix, 2))
    assert np.isinf(guarantee.epsilon(0.0)) == (apart > 0)
    assert guarantee.tradeoff(0.0) == pytest.approx(1 - apart, abs=1e-15)
    for delta in (apart, apart + 0.01, 0.5 + apart / 2):
        epsilon = float(guarantee.epsilon(min(delta, 1.0)))
        assert np.isfinite(epsilon) and brute_delta(matrix, epsilon) <= delta + 1e-12
    if 0 < apart < 1:
        assert np.isinf(guarantee.epsilon(apart - 1e-9))


def test_deltas_of_laws_with_zeros_agree_with_rational_arithmetic():
    rows = [[Fraction(n, 20) for n in row] for row in ((10, 6, 4, 0), (2, 12, 2, 4), (5, 5, 10, 0))]
    ratios = [Fraction(1), Fraction(3, 2), Fraction(5, 2), Fraction(7)]
    exact = [
        max(
            sum(max(a - ratio * b, Fraction(0)) for a, b in zip(p, q, strict=True))
            for p, q in itertools.permutations(rows, 2)
        )
        for ratio in ratios
    ]
    curve = FiniteTradeoff(np.array(rows, float))
    np.testing.assert_allclose(curve.delta(np.log(np.array(ratios, float))), np.array(exact, float), atol=1e-15)
    assert exact[-1] == Fraction(1, 5) and curve.epsilon(0.2) == pytest.approx(np.log(3))


def test_the_statement_says_how_often_outputs_give_a_record_away():
    text = TransitionMatrix(GENERAL).guarantee.statement()
    assert "epsilon = 1.099 and delta = 0.2001" in text
    assert "No record is protected" in TransitionMatrix(np.eye(2)).guarantee.statement()


def test_as_a_matrix_randomized_response_is_what_it_was():
    epsilon = 1.2
    matrix, own = TransitionMatrix(response(epsilon, 4)), ldp.RandomizedResponse(epsilon, 4)
    level = np.linspace(0, 1, 21)
    np.testing.assert_allclose(matrix.guarantee.tradeoff(level), own.guarantee.tradeoff(level), atol=1e-14)
    z = np.arange(4)
    law = dist.Categorical(np.array([0.1, 0.2, 0.3, 0.4]))
    np.testing.assert_allclose(log_prob(law, matrix, z), log_prob(law, own, z), rtol=1e-13)
    values = np.random.default_rng(0).choice(4, 20_000, p=[0.1, 0.2, 0.3, 0.4] @ matrix.matrix)
    releases = ldp.Release(values, matrix), ldp.Release(values, own)
    for method in ("unbiased", "projection", "mle"):
        ours, theirs = (ldp.frequencies(release, method) for release in releases)
        np.testing.assert_allclose(ours.estimate, theirs.estimate, atol=1e-6)
        if method != "projection":
            np.testing.assert_allclose(ours.standard_error, theirs.standard_error, rtol=2e-3)


def test_the_likelihood_is_the_law_of_the_outputs_for_any_law_of_the_records():
    mechanism = TransitionMatrix(GENERAL)
    z = np.array([0, 3, 1, 2])
    for law, probabilities in (
        (dist.Categorical(THETA), THETA),
        (dist.Bernoulli(0.3), np.array([0.7, 0.3, 0])),
        (constant(dist.Binomial(2, 0.4)), np.array([0.36, 0.48, 0.16])),
    ):
        np.testing.assert_allclose(log_prob(law, mechanism, z), np.log(probabilities @ GENERAL)[z])
    each = np.array([[0.2, 0.3, 0.5], [1, 0, 0], [0, 0.5, 0.5], [0, 0, 1]])
    own = np.exp(log_prob(dist.Categorical(each), mechanism, z))
    np.testing.assert_allclose(own, (each @ GENERAL)[np.arange(4), z])
    _, (slope,) = value_and_grad(dist.Bernoulli, (0.1,), TransitionMatrix(GENERAL[[0, 2]]), 2)
    assert float(slope) == pytest.approx(0.3 / 0.23)
    for law, message in ((dist.Normal(0, 1), "takes categories"), (dist.Poisson(1.0), "takes values 0..2")):
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(ldp.Privatized(law, mechanism).log_prob, z)


def test_a_matrix_is_an_argument_of_compiled_functions_and_may_be_mapped():
    many = TransitionMatrix(GENERAL), TransitionMatrix(GENERAL[::-1]), TransitionMatrix(GENERAL[[1, 0, 2]])
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *many)

    def score(mechanism, key):
        z = mechanism.randomize(key, jnp.arange(3))
        return z, ldp.Privatized(dist.Categorical(jnp.asarray(THETA)), mechanism).log_prob(z)

    z, log_prob = jax.jit(jax.vmap(score))(stacked, jax.random.split(jax.random.key(0), 3))
    for i, mechanism in enumerate(many):
        np.testing.assert_allclose(np.exp(log_prob[i]), (THETA @ mechanism.matrix)[z[i]])
    assert jax.jit(lambda m: m)(many[0]) == many[0] != many[1]


def test_specs_and_files_make_the_mechanism(tmp_path):
    mechanism = TransitionMatrix(GENERAL)
    assert mechanism_from_spec(mechanism.spec()) == mechanism
    release = ldp.Release([0, 3, 2], mechanism)
    release.save(tmp_path / "release.npz")
    again = ldp.Release.load(tmp_path / "release.npz")
    assert again.mechanism == mechanism and np.array_equal(again.values, release.values)


@pytest.fixture(scope="module")
def release():
    values = np.random.default_rng(1).choice(4, 20_000, p=THETA @ GENERAL)
    return ldp.Release(values, TransitionMatrix(GENERAL))


def of_nodes(sketch, law):
    return ldp.likelihood.law_of_nodes(sketch, law).log_prob(sketch.nodes)


def test_a_sketch_counts_outputs_and_those_of_groups(release):
    sketch = release.sketch()
    assert sorted(sketch.nodes) == [0, 1, 2, 3] and sketch.size == 20_000 and len((sketch + sketch).nodes) == 4
    grouped = release.sketch(by=np.arange(20_000) % 2)
    laws = dist.Categorical(np.array([THETA, THETA[::-1]]))
    counted = grouped.weights @ evaluate(of_nodes, grouped, laws)
    halves = [np.log(theta @ GENERAL)[release.values[i::2]].sum() for i, theta in enumerate((THETA, THETA[::-1]))]
    assert counted == pytest.approx(sum(halves))


@pytest.mark.slow
def test_posteriors_agree_with_the_frequencies(release):
    """Posterior means within five posterior standard deviations of the truth (6e-7 each)."""
    model = ldp.models.oue_histogram()
    theta = ldp.fit(model, release.sketch(), seed=0, progress_bar=False)["posterior"]["theta"].values.reshape(-1, 3)
    assert np.all(np.abs(theta.mean(axis=0) - THETA) < 5 * theta.std(axis=0))
    np.testing.assert_allclose(theta.mean(axis=0), ldp.frequencies(release, "mle").estimate, atol=0.01)


def test_unbiased_frequencies_are_unbiased_with_their_covariance_and_mle_maximises():
    """The covariance against 4,000 exact multinomial samples; the mean within five standard errors."""
    mechanism, n = TransitionMatrix(GENERAL), 500
    law = THETA @ GENERAL
    rng = np.random.default_rng(2)
    exact = ldp.Release(np.repeat(np.arange(4), np.round(1000 * law).astype(int)), mechanism)
    found = ldp.frequencies(exact)
    np.testing.assert_allclose(found.estimate, THETA, atol=1e-12)
    slopes = np.array([ldp.frequencies(ldp.Release([j], mechanism)).estimate for j in range(4)])  # linear in the shares
    np.testing.assert_allclose(GENERAL @ slopes, np.eye(3), atol=1e-12)
    estimates = rng.multinomial(n, law, 4000) / n @ slopes
    assert np.all(np.abs(estimates.mean(axis=0) - THETA) < 5 * estimates.std(axis=0) / np.sqrt(4000))
    np.testing.assert_allclose(np.cov(estimates.T) * n, found.covariance * 1000, atol=0.15)
    # the weights are the best where all categories are as frequent: those of generalised least squares
    even = GENERAL.mean(axis=0)
    best = np.linalg.inv(GENERAL @ np.diag(1 / even) @ GENERAL.T) @ GENERAL @ np.diag(1 / even)
    np.testing.assert_allclose(slopes.T, best, atol=1e-12)
    counts = rng.multinomial(n, law)
    values = np.repeat(np.arange(4), counts)
    likeliest = ldp.frequencies(ldp.Release(values, mechanism), "mle")
    grid = np.array([(a, b, 1 - a - b) for a in np.linspace(0, 1, 201) for b in np.linspace(0, 1, 201) if a + b <= 1])
    with np.errstate(divide="ignore"):
        best_on_grid = (np.log(grid @ GENERAL) @ counts).max()
    assert np.log(likeliest.estimate @ GENERAL) @ counts >= best_on_grid and likeliest.converged
    low, high = found.interval()
    assert np.all(low < found.estimate) and np.all(found.estimate < high) and "frequency" in found.summary()


def test_warner_and_other_factories_take_matrices_of_their_number_of_categories():
    release = ldp.Release([0, 1, 1], TransitionMatrix([[0.8, 0.2], [0.0, 1.0]]))
    with pytest.raises(TypeError, match="takes a release of yes-or-no answers"):
        ldp.fit(ldp.models.warner(), ldp.Release([0, 1], TransitionMatrix(GENERAL)), seed=0)
    with pytest.raises(TypeError, match="takes a release of numbers"):
        ldp.fit(ldp.models.clipped_gaussian(), release, seed=0)
    theta = ldp.fit(ldp.models.warner(), release, seed=0, progress_bar=False)["posterior"]["theta"].values
    # density 0.8 (1 − θ) (0.2 + 0.8 θ)²
    grid = np.linspace(0, 1, 10_001)
    density = (1 - grid) * (0.2 + 0.8 * grid) ** 2
    assert theta.mean() == pytest.approx(grid @ density / density.sum(), abs=0.03)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.5, 0.5], [0.5, 0.6]], "matrix must be rows of probabilities that sum to one up to 1e-09; the sum of row"),
        ([[1.5, -0.5], [0.5, 0.5]], r"matrix must be non-negative and finite, got matrix\[0, 1\] = -0.5"),
        ([[np.nan, 1.0], [0.5, 0.5]], r"matrix must be non-negative and finite, got matrix\[0, 0\] = nan"),
        ([[0.5, 0.5]], r"matrix must have a row for each category, at least two, got \(1, 2\)"),
        ([0.5, 0.5], "must be rows of probabilities"),
        ([[0.5, 0.5], [1.0]], "matrix must be non-negative"),
        (np.float32([[0.1, 0.9], [0.7, 0.3]]), "single precision"),
        ([["a"]], "matrix must be non-negative and finite, got"),
    ],
)
def test_what_is_no_matrix_of_laws_is_refused(matrix, message):
    with pytest.raises(ValueError, match=message):
        TransitionMatrix(matrix)


def test_values_that_no_record_leads_to_are_refused_and_improbable_ones_reported():
    mechanism = TransitionMatrix([[0.5, 0.5, 0.0], [0.9, 0.1, 0.0]])
    with pytest.raises(ValueError, match=r"a zero column .*; 1 values are such outputs, the first \(2\) at 1"):
        ldp.Release([0, 2], mechanism)
    with pytest.raises(ValueError, match=r"values must be integers in 0..2"):
        ldp.Release([0, 3], mechanism)
    with pytest.raises(ValueError, match="x must be an integer from 0 to 1"):
        mechanism.randomize(jax.random.key(0), [0, 2])
    with pytest.warns(UserWarning, match="nearly impossible under"):
        ldp.Release(np.ones(1000, int), mechanism)


@pytest.mark.parametrize(
    "matrix", [np.full((3, 4), 0.25), GENERAL[[0, 1, 1]], np.vstack([GENERAL[:2], GENERAL[:2].mean(axis=0)])]
)
def test_frequencies_that_a_matrix_cannot_tell_apart_are_refused(matrix):
    release = ldp.Release([0, 1], TransitionMatrix(matrix))
    for method in ("unbiased", "mle"):
        with pytest.raises(ValueError, match=r"the release cannot identify the frequencies: the 3 rows .* have rank"):
            ldp.frequencies(release, method)
    with pytest.raises(ValueError, match="base_cut' needs a pure protocol"):
        ldp.frequencies(dataclasses.replace(release, mechanism=TransitionMatrix(GENERAL)), "base_cut")
    with pytest.raises(ValueError, match="expand=True needs categories under a pure protocol"):
        release.sketch(expand=True)
