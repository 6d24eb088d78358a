"""Count-mean sketches: probabilities, likelihoods and samples against enumeration, and what is refused.

The references use xxHash of its own package, SciPy's Hadamard matrices and the descriptions of the methods.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import xxhash
from scipy import stats
from scipy.linalg import hadamard

import ldpbayes as ldp
from ldpbayes.likelihood.closed_forms.categories import supported_mass
from ldpbayes.mechanisms import CountMeanSketch, HadamardCountMeanSketch, mechanism_from_spec

pytestmark = pytest.mark.usefixtures("x64")

D, K, M, EPSILON = 7, 3, 4, 1.3
BITS, SIGNS = CountMeanSketch(EPSILON, D, K, M), HadamardCountMeanSketch(EPSILON, D, K, M)
both = pytest.mark.parametrize(
    "mechanism", [pytest.param(BITS, marks=pytest.mark.slow, id="bits"), pytest.param(SIGNS, id="signs")]
)
THETA = np.array([0.3, 0.2, 0.15, 0.15, 0.1, 0.1, 0.0])


def cell(function, code, cells=M):
    return xxhash.xxh32(str(code), seed=int(function)).intdigest() % cells


def outputs(mechanism):
    last = 2**M if isinstance(mechanism, CountMeanSketch) else 2 * M
    return np.array([*itertools.product(range(K), range(last))], np.uint32)


def probability(mechanism, z, x):
    """p(z | x) as [Apple] describes it."""
    function, word = map(int, z)
    if isinstance(mechanism, CountMeanSketch):
        flip = 1 / (1 + np.exp(EPSILON / 2))
        return np.prod([flip if (word >> c & 1) != (c == cell(function, x)) else 1 - flip for c in range(M)]) / K
    sign = -1 if word >= M else 1
    flip = 1 / (1 + np.exp(EPSILON))
    return (1 - flip if hadamard(M)[cell(function, x), word % M] == sign else flip) / M / K


@both
def test_probabilities_are_those_of_the_description(mechanism):
    z = outputs(mechanism)
    p = np.array([[probability(mechanism, value, x) for x in range(D)] for value in z])
    np.testing.assert_allclose(p.sum(axis=0), 1, rtol=1e-12)
    np.testing.assert_allclose(
        np.exp(jax.jit(type(mechanism).log_prob)(mechanism, z[:, None], np.arange(D))), p, rtol=1e-10
    )
    assert np.max(p.max(axis=1) / p.min(axis=1)) == pytest.approx(np.exp(mechanism.guarantee.epsilon(0.0)), rel=1e-12)
    # support probabilities are those of ideal hash functions: with the mean collision of all pairs in its place
    alike = np.mean([[[cell(j, a) == cell(j, b) for b in range(D)] for a in range(D)] for j in range(K)], axis=0)
    inside = p.T @ np.asarray(mechanism.membership(z))
    own, other = mechanism.support_probabilities
    np.testing.assert_allclose(inside, own + (own - other) * (alike - 1) * M / (M - 1), rtol=1e-12)
    # the likelihood of a release, and its tables and transforms
    law = ldp.Privatized(dist.Categorical(jnp.asarray(THETA)), mechanism)
    np.testing.assert_allclose(np.exp(law.log_prob(z)), p @ THETA, rtol=1e-10)
    personal = type(mechanism)(np.full(len(z), EPSILON), D, K, M)
    of_records = jax.vmap(lambda one, z: ldp.Privatized(dist.Categorical(jnp.asarray(THETA)), one).log_prob(z))
    np.testing.assert_allclose(np.exp(of_records(personal, z)), p @ THETA, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("make", [pytest.param(CountMeanSketch, marks=pytest.mark.slow), HadamardCountMeanSketch])
@pytest.mark.parametrize("cells", [*(pytest.param(cells, marks=pytest.mark.slow) for cells in (2, 32)), 64])
def test_masses_by_tables_are_sums_over_categories(make, cells):
    mechanism, rng = make(0.7, 50, 5, cells), np.random.default_rng(cells)
    z = mechanism.randomize(jax.random.key(1), rng.integers(0, 50, 300))
    theta, groups = rng.dirichlet(np.ones(50), 3), rng.integers(0, 3, 300)
    sets = np.asarray(mechanism.membership(z))
    hashed = np.array([[cell(j, x, cells) for x in range(50)] for j in range(5)])
    np.testing.assert_array_equal(mechanism.hash(np.arange(5)[:, None], np.arange(50)), hashed)
    np.testing.assert_allclose(supported_mass(mechanism, z, theta[0]), sets @ theta[0], rtol=1e-12)
    np.testing.assert_allclose(
        supported_mass(mechanism, z, theta, groups), (sets * theta[groups]).sum(axis=1), rtol=1e-12
    )


@pytest.mark.slow
def test_a_hadamard_response_has_the_mass_of_its_columns_by_a_transform():
    for d in (2, 64, 1000):
        mechanism, theta = ldp.HadamardResponse(1.0, d), np.random.default_rng(d).dirichlet(np.ones(d))
        even = hadamard(mechanism.columns)[1 : d + 1] > 0
        np.testing.assert_allclose(
            supported_mass(mechanism, np.arange(mechanism.columns), theta), theta @ even, rtol=1e-10, atol=1e-15
        )


@both
def test_samples_have_the_probabilities(mechanism):  # fails by chance with probability 1e-4 for another seed
    z = np.asarray(jax.jit(type(mechanism).randomize)(mechanism, jax.random.key(3), np.full(20_000, 5)))
    counts = [np.sum((z == value).all(axis=1)) for value in outputs(mechanism)]
    p = [probability(mechanism, value, 5) for value in outputs(mechanism)]
    assert stats.chisquare(counts, 20_000 * np.array(p)).pvalue > 1e-4
    assert not ldp.Release(z, mechanism).doubts
    assert mechanism_from_spec(mechanism.spec()) == mechanism


@both
def test_implausible_reports_and_others(mechanism):
    with pytest.warns(UserWarning, match="cell"):
        ldp.Release(np.tile(outputs(mechanism)[1], (5000, 1)), mechanism)


@pytest.mark.slow
def test_without_noise_the_cell_is_released():
    x = np.arange(D)
    z = np.asarray(CountMeanSketch(np.inf, D, K, M).randomize(jax.random.key(0), x))
    assert z[:, 1].tolist() == [1 << cell(j, code) for j, code in zip(z[:, 0], x, strict=True)]
    z = np.asarray(HadamardCountMeanSketch(np.inf, D, K, M).randomize(jax.random.key(0), x))
    signs = [hadamard(M)[cell(j, code), word % M] for (j, word), code in zip(z, x, strict=True)]
    assert signs == np.where(z[:, 1] < M, 1, -1).tolist()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CountMeanSketch(1.0, D, 0, M), "hashes must be an integer from 1"),
        (lambda: CountMeanSketch(1.0, D, K, 1), "cells must be an integer from 2"),
        (lambda: CountMeanSketch(-1.0, D), "epsilon must be positive"),
        (lambda: CountMeanSketch(1.0, 10**7 + 1), "categories must be an integer from 2 to 10000000"),
        (lambda: HadamardCountMeanSketch(1.0, D, K, 6), "cells must be a power of two, got 6"),
        (lambda: ldp.Release([[3, 1]], BITS), r"from 0 to 2, .* from 0 to 15; .* \(3\) in row 0, place 0"),
        (lambda: ldp.Release([[2, 16]], BITS), r"the first \(16\) in row 0, place 1"),
        (lambda: ldp.Release([[0, 1], [2, 8]], SIGNS), r"the first \(8\) in row 1, place 1"),
        (lambda: ldp.Release([[0.5, 1]], SIGNS), r"the first \(0.5\)"),
        (lambda: ldp.Release([[-1, 1]], SIGNS), r"the first \(-1\)"),
        (lambda: ldp.Release([[1, 1, 1]], BITS), "a row of 2 numbers for each record"),
        (
            lambda: ldp.Release([[1, 3]], CountMeanSketch(np.inf, D, K, M)),
            "infinite budget must be released as a value",
        ),
        (
            lambda: ldp.Release([[1, M]], HadamardCountMeanSketch(np.inf, D, K, M)),
            "infinite budget must be released as",
        ),
        (lambda: BITS.randomize(jax.random.key(0), [D]), "an integer from 0 to 6"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
