"""Unbiased randomizers: their law, their guarantee, their likelihood, and that the programme is solved.

Statistical tests use fixed seeds and fail by chance with probability 1e-6 each when a seed is changed.
"""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, sparse, stats
from scipy.optimize import linprog

import ldpbayes as ldp
from ldpbayes.mechanisms import UnbiasedRandomizer, optimal_unbiased
from ldpbayes.privacy import FiniteTradeoff

pytestmark = pytest.mark.usefixtures("x64")

ERROR_RATE = 1e-6
NODES = np.array([0.0, 0.5, 1.5, 2.0, 4.0])
HISTOGRAM = np.linspace(0.0, 4.0, 9), np.exp(-np.linspace(0.0, 2.0, 8))
MECHANISM = UnbiasedRandomizer.optimal(HISTOGRAM, 1.3, nodes=NODES)
LABELS = np.array([-2.0, 0.0, 0.2, 1.5, 1.9, 3.7, 4.0, 9.0])


def table(mechanism, labels=LABELS):
    """p(z | x), labels along the first axis."""
    return np.exp(np.asarray(mechanism.log_prob(mechanism.outputs, np.reshape(labels, (-1, 1)))))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("k", [2, 3, 9])
def test_rows_sum_to_one_are_unbiased_and_their_worst_ratio_is_the_budget(epsilon, k):
    values, p = np.linspace(-3.0, 11.0, k), np.exp(-np.arange(k))
    outputs, matrix, loss = optimal_unbiased(values, p, epsilon)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-14)
    np.testing.assert_allclose(matrix @ outputs, values, atol=1e-12 * 14)
    assert np.max(matrix.max(axis=0) / matrix.min(axis=0)) == pytest.approx(np.exp(epsilon), rel=1e-12)
    assert matrix.min() > 1e-10 * np.exp(-epsilon)  # no output is there by the solver's tolerance
    assert loss == pytest.approx(p / p.sum() @ (matrix @ outputs**2 - values**2), rel=1e-9)


def test_two_labels_have_the_optimum_that_is_known():
    """Labels −1 and 1 are released as ±coth(epsilon/2), of variance coth² − 1."""
    for epsilon in (0.2, 1.0, 4.0):
        outputs, _, loss = optimal_unbiased([-1.0, 1.0], [0.3, 0.7], epsilon)
        np.testing.assert_allclose(outputs, [-1 / np.tanh(epsilon / 2), 1 / np.tanh(epsilon / 2)], rtol=1e-12)
        assert loss == pytest.approx(1 / np.sinh(epsilon / 2) ** 2, rel=1e-10)


def plain(values, p, epsilon, outputs, method):
    """The programme as it is written in the paper: each row against each other."""
    k, m = len(values), len(outputs)
    pairs = list(itertools.permutations(range(k), 2))
    signs = np.zeros((len(pairs), k))
    for row, (i, j) in enumerate(pairs):
        signs[row, i], signs[row, j] = 1, -np.exp(epsilon)
    rows = sparse.kron(sparse.eye(k), np.ones((1, m)))
    means = sparse.kron(sparse.eye(k), outputs[None])
    return linprog(
        (p[:, None] * (outputs - values[:, None]) ** 2).ravel(),
        A_ub=sparse.kron(signs, sparse.eye(m), format="csr"),
        b_ub=np.zeros(len(pairs) * m),
        A_eq=sparse.vstack([rows, means], format="csr"),
        b_eq=np.concatenate([np.ones(k), values]),
        method=method,
    ).fun


def test_the_programme_with_all_pairs_solved_by_an_interior_point_method_has_the_same_optimum():
    rng = np.random.default_rng(2)
    for _ in range(8):
        k, epsilon = rng.integers(2, 6), rng.uniform(0.3, 4)
        values, p = np.sort(rng.normal(size=k)), rng.dirichlet(np.full(k, 0.7))
        middle, half = (values[0] + values[-1]) / 2, (values[-1] - values[0]) / 2 / np.tanh(epsilon / 2)
        outputs = np.sort(
            np.concatenate([middle + half * np.array([-1.6, 1.5]), rng.uniform(-1.3, 1.3, 13) * half + middle])
        )
        found = optimal_unbiased(values, p, epsilon, outputs)
        assert set(found.outputs) <= set(outputs)
        assert found.loss == pytest.approx(plain(values, p, epsilon, outputs, "highs-ipm"), rel=1e-6)  # its tolerance


def test_default_outputs_are_fine_enough():
    values, p = np.linspace(-1, 1, 9), np.exp(-(np.linspace(-2, 2, 9) ** 2))
    for epsilon, share in ((0.5, 2e-4), (3.0, 2e-3)):
        reach = 1.6 / np.tanh(epsilon / 2)
        fine = optimal_unbiased(values, p, epsilon, np.union1d(values, np.linspace(-reach, reach, 801)))
        coarse = optimal_unbiased(values, p, epsilon)
        assert coarse.loss == pytest.approx(fine.loss, rel=share)


def test_outputs_that_reach_just_far_enough_have_a_solution_and_nearer_ones_have_none():
    values, p, epsilon = np.array([0.0, 0.2, 1.0]), [1.0, 1.0, 1.0], 0.7
    reach = 0.5 / np.tanh(epsilon / 2)
    outputs = 0.5 + np.linspace(-reach, reach, 21)
    found = optimal_unbiased(values, p, epsilon, outputs)
    np.testing.assert_allclose(found.matrix @ found.outputs, values, atol=1e-12)
    assert np.max(found.matrix.max(axis=0) / found.matrix.min(axis=0)) <= np.exp(epsilon) * (1 + 1e-12)
    with pytest.raises(ValueError, match=r"let them reach from -0.98\d+ to 1.98"):
        optimal_unbiased(values, p, epsilon, 0.5 + (outputs - 0.5) * (1 - 1e-6))
    # what is missing on one side is not made up for on the other
    with pytest.raises(ValueError, match="let them reach"):
        optimal_unbiased(values, p, epsilon, np.linspace(0.5 - 0.9 * reach, 0.5 + 9 * reach, 21))


def test_every_label_between_the_nodes_is_the_mean_of_what_is_released_for_it():
    labels = np.linspace(-1, 5, 61)
    p, outputs = table(MECHANISM, labels), MECHANISM.outputs
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-13)
    np.testing.assert_allclose(p @ np.asarray(MECHANISM.unbiased(outputs)), np.clip(labels, 0, 4), atol=1e-9 * 4)
    assert np.max(p.max(axis=0) / p.min(axis=0)) == pytest.approx(np.exp(1.3), rel=1e-12)
    mean, variance = MECHANISM.moments(labels)
    np.testing.assert_allclose(mean, np.clip(labels, 0, 4), rtol=1e-14)
    np.testing.assert_allclose(variance, p @ outputs**2 - (p @ outputs) ** 2, rtol=1e-11)
    # linear between the nodes
    levels = np.asarray(MECHANISM.levels(outputs))
    np.testing.assert_allclose(p.T, [np.interp(labels, NODES, level) for level in levels], rtol=1e-13)


def test_no_pair_of_labels_is_told_apart_better_than_stated_and_the_worst_as_well():
    stated = MECHANISM.guarantee.tradeoff
    p = table(MECHANISM, [*NODES, 0.3, 1.0, 3.3])
    budgets, level = np.linspace(0, 1.5, 9), np.linspace(0, 1, 201)
    best, pairs = np.zeros(len(budgets)), []
    for i, j in itertools.permutations(range(len(p)), 2):
        order = np.argsort(-p[j] / p[i], kind="stable")
        alpha, power = (np.concatenate([[0.0], np.cumsum(p[k][order])]) for k in (i, j))
        pairs.append(1 - np.interp(level, alpha, power))
        best = np.maximum(best, np.maximum(p[j] - np.exp(budgets)[:, None] * p[i], 0).sum(axis=1))
    np.testing.assert_allclose(stated.delta(budgets), best, atol=1e-14)
    assert np.min(np.min(pairs, axis=0) - stated(level)) > -1e-13
    # the curve is the conjugate of delta: the highest of the lines of slope −exp(±epsilon) that delta allows
    many = np.linspace(0, 1.3, 4001)[:, None]
    delta = stated.delta(many)
    lines = np.maximum(1 - delta - np.exp(many) * level, np.exp(-many) * (1 - delta - level))
    np.testing.assert_allclose(stated(level), np.maximum(lines.max(axis=0), 0), atol=1e-3)
    assert np.all(stated(level) >= lines.max(axis=0) - 1e-13)
    assert stated.epsilon(0.0) == pytest.approx(1.3, rel=1e-12)
    inner = best[:-2]
    np.testing.assert_allclose(stated.epsilon(inner[inner > 0]), budgets[:-2][inner > 0], rtol=1e-12, atol=1e-12)
    assert stated.epsilon(1.0) == 0 and stated(0.0) == 1 and stated(1.0) == 0
    assert (MECHANISM.guarantee.unit, MECHANISM.guarantee.trust_model) == ("label", "local")


def test_the_curve_of_randomized_response_is_a_special_case():
    laws = np.where(np.eye(3, dtype=bool), np.e, 1) / (np.e + 2)
    mine, known = FiniteTradeoff(laws), ldp.privacy.PureProtocolTradeoff(1.0, np.e / (np.e + 2))
    at = np.linspace(0, 1, 31)
    np.testing.assert_allclose(mine(at), known(at), atol=1e-15)
    np.testing.assert_allclose(mine.delta(at), known.delta(at), atol=1e-15)
    np.testing.assert_allclose(mine.epsilon(at / 3), known.epsilon(at / 3), atol=1e-14)
    for laws in ([[0.5, 0.5], [1.0, 0.0]], [[0.5, 0.6], [0.4, 0.6]], [0.5, 0.5]):
        with pytest.raises(ValueError, match="laws must be"):
            FiniteTradeoff(laws)


def test_rows_that_miss_one_say_by_how_much_and_whether_single_precision_is_why():
    rounded = np.array([[0.5, 0.5], [0.1, 0.9]], np.float32)
    with pytest.raises(ValueError, match=r"up to 1e-09; row 1 misses it by 2.2e-08; that is rounding to single prec"):
        FiniteTradeoff(rounded)
    with pytest.raises(ValueError, match=r"row 0 misses it by 0.1$"):
        FiniteTradeoff([[0.5, 0.6], [0.4, 0.6]])


def test_samples_have_the_stated_probabilities():
    n, labels = 20_000, np.array([-1.0, 0.5, 1.8, 3.0])
    z = np.asarray(MECHANISM.randomize(jax.random.key(0), np.broadcast_to(labels, (n, 4))))
    for drawn, p in zip(z.T, table(MECHANISM, labels), strict=True):
        counts = np.bincount(np.searchsorted(MECHANISM.outputs, drawn), minlength=len(p))
        assert np.isin(drawn, MECHANISM.outputs).all()
        assert stats.chisquare(counts, n * p, sum_check=False).pvalue > ERROR_RATE


def test_parameters_are_arguments_of_compiled_functions_and_arrays_over_labels_are_no_budgets():
    many = [UnbiasedRandomizer(e, NODES + e, MECHANISM.outputs + e, MECHANISM.matrix) for e in (1.3, 2.0)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *many)

    def both(mechanism, key):
        z = mechanism.randomize(key, 2.4)
        return z, mechanism.log_prob(z, 2.4)

    z, got = jax.jit(jax.vmap(both))(stacked, jax.random.split(jax.random.key(0), 2))
    for i, mechanism in enumerate(many):
        assert float(z[i]) in mechanism.outputs
        assert float(got[i]) == pytest.approx(float(mechanism.log_prob(z[i], 2.4)), rel=1e-12)
    assert MECHANISM.batch_shape == () and MECHANISM.of_records((5,), slice(0, 2)) == MECHANISM


def test_specs_make_the_same_mechanism_and_rounded_outputs_are_recognised():
    assert ldp.mechanisms.mechanism_from_spec(json.loads(json.dumps(MECHANISM.spec()))) == MECHANISM
    rounded = MECHANISM.outputs.astype(np.float32)
    np.testing.assert_array_equal(ldp.Release(rounded, MECHANISM).values, MECHANISM.outputs)


def test_the_likelihood_is_the_integral_over_labels():
    law, mechanism = stats.norm(1.4, 1.1), MECHANISM
    got = ldp.Privatized(dist.Normal(1.4, 1.1), mechanism, method="channel").log_prob(mechanism.outputs)
    for i in range(0, len(mechanism.outputs), 3):
        level = mechanism.matrix[:, i]
        inside = integrate.quad(
            lambda x, level=level: law.pdf(x) * np.interp(x, NODES, level), 0, 4, points=NODES[1:-1], epsabs=1e-13
        )[0]
        expected = inside + law.cdf(0) * level[0] + law.sf(4) * level[-1]
        assert float(got[i]) == pytest.approx(np.log(expected), abs=1e-9)


def test_the_likelihoods_of_counts_and_of_skewed_labels_are_sums_and_integrals_over_them(x64):
    counts = np.arange(200)
    # the density of these is x times a smooth one: 40 nodes between neighbouring labels leave rounding
    t, w = np.polynomial.legendre.leggauss(40)
    half = np.diff(NODES)[:, None] / 2
    x, weights = NODES[:-1, None] + half * (1 + t), half * w
    for law, reference in (
        (dist.Poisson(1.7), stats.poisson(1.7)),
        (dist.Gamma(2.0, 1.3), stats.gamma(2, scale=1 / 1.3)),
    ):
        if law.support.is_discrete:
            levels = [np.interp(counts, NODES, level) for level in MECHANISM.matrix.T]
            expected = np.array(levels) @ reference.pmf(counts)
        else:
            levels = np.array([np.interp(x, NODES, level) for level in MECHANISM.matrix.T])
            expected = (levels * weights * reference.pdf(x)).sum(axis=(1, 2)) + reference.sf(4) * MECHANISM.matrix[-1]
        got = ldp.Privatized(law, MECHANISM).log_prob(MECHANISM.outputs)
        np.testing.assert_allclose(got, np.log(expected), atol=1e-9)


def test_the_sketch_of_a_release_has_its_likelihood_and_nothing_is_doubted():
    x = stats.norm(1.4, 1.1).ppf(np.arange(1, 400) / 400)
    release = ldp.Release(MECHANISM.randomize(jax.random.key(3), x), MECHANISM)
    sketch, law = release.sketch(), dist.Normal(1.4, 1.1)
    assert release.doubts == () and len(sketch.nodes) <= len(MECHANISM.outputs) and sketch.size == 399
    total = sketch.weights @ np.asarray(ldp.Privatized(law, MECHANISM).log_prob(sketch.nodes))
    assert total == pytest.approx(float(ldp.Privatized(law, MECHANISM).log_prob(release.values).sum()), rel=1e-12)
    with pytest.warns(ldp.data.ReleaseWarning, match="399 of 399 are .*where at most"):
        ldp.Release(np.full(399, MECHANISM.outputs[0]), MECHANISM)


def test_a_prior_is_rounded_to_the_nodes_as_labels_are():
    nodes, densities = HISTOGRAM
    mine = UnbiasedRandomizer.optimal(HISTOGRAM, 1.3, nodes=NODES)
    density = densities / (densities @ np.diff(nodes))
    hats = [
        sum(
            integrate.quad(
                lambda x, i=i: np.interp(x, NODES, np.eye(5)[i]), a, b, points=NODES[(a < NODES) & (b > NODES)]
            )[0]
            * d
            for a, b, d in zip(nodes[:-1], nodes[1:], density, strict=True)
        )
        for i in range(5)
    ]
    direct = optimal_unbiased(NODES, hats, 1.3)
    np.testing.assert_allclose(mine.matrix, direct.matrix, atol=1e-9)
    assert len(UnbiasedRandomizer.optimal(HISTOGRAM, 1.3, nodes=4).nodes) == 4


MATRIX = np.array([[0.75, 0.25], [0.25, 0.75]])  # of the labels −1/2 and 1/2, released as −1 and 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: UnbiasedRandomizer(0.0, [-0.5, 0.5], [-1, 1], MATRIX),
            "epsilon must be one positive and finite number",
        ),
        (lambda: UnbiasedRandomizer([1.2, 2.0], [-0.5, 0.5], [-1, 1], MATRIX), "epsilon must be one positive"),
        (
            lambda: UnbiasedRandomizer(1.0, [-0.5, 0.5], [-1, 1], MATRIX),
            r"more than exp\(1\) times another, to 1e-09; it",
        ),
        (lambda: UnbiasedRandomizer(1.2, [-0.5, 0.6], [-1, 1], MATRIX), "rows whose means are the nodes"),
        (lambda: UnbiasedRandomizer(1.2, [-0.5, 0.5], [-1, 1], MATRIX + 0.01), "rows that sum to one"),
        (lambda: UnbiasedRandomizer(1.2, [-0.5, 0.5], [-1, 1], np.eye(2)), r"matrix must be positive and finite"),
        (
            lambda: UnbiasedRandomizer(1.2, [-0.5, 0.5], [-1, 1], MATRIX[:1]),
            r"a row a node and a column an output, \(2, 2\)",
        ),
        (lambda: UnbiasedRandomizer(1.2, [0.5, -0.5], [-1, 1], MATRIX), "nodes must increase strictly"),
        (lambda: UnbiasedRandomizer(1.2, [-0.5, 0.5], [1, -1], MATRIX), "outputs must increase strictly"),
        (lambda: MECHANISM.randomize(jax.random.key(0), [0.1, np.nan]), r"x\[1\] = nan"),
        (
            lambda: ldp.Release([MECHANISM.outputs[0], 0.123], MECHANISM),
            r"1 of these values are none, the first \(0.123\)",
        ),
        (lambda: UnbiasedRandomizer.optimal(HISTOGRAM, 0.0), "epsilon must be a positive number, got 0.0"),
        (lambda: UnbiasedRandomizer.optimal(HISTOGRAM, 1.0, nodes=1), "nodes must be an integer of at least 2, got 1"),
        (lambda: UnbiasedRandomizer.optimal(HISTOGRAM, 1.0, nodes=[5.0, 6.0]), "degenerate: 1 of 2 values"),
        (lambda: UnbiasedRandomizer.optimal(([1.0, 0.0], [1.0]), 1.0), "unsorted nodes"),
        (
            lambda: optimal_unbiased([0.0, 1.0], [0.5, 0.5], 1.0, [0.0, 1.0]),
            "unbiased at epsilon = 1: let them reach from -0.58",
        ),
        (lambda: optimal_unbiased([0.0, 1.0], [0.5, np.nan], 1.0), "probabilities must be finite and not negative"),
    ],
)
def test_what_is_wrong_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
