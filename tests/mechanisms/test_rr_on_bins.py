"""Randomized response on bins: its law, its guarantee, its likelihood, and that the bins are the best ones.

Statistical tests use fixed seeds and fail by chance with probability 1e-6 each when a seed is changed.
"""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import sparse, stats
from scipy.optimize import linprog

import ldpbayes as ldp
from ldpbayes.mechanisms import RROnBins, optimal_bins

pytestmark = pytest.mark.usefixtures("x64")

ERROR_RATE = 1e-6
EDGES, OUTPUTS = np.array([-1.0, 0.3, 2.0, 5.0]), np.array([0.1, 1.7, 3.1])
LABELS = np.array([-7.0, -1.0, 0.29, 0.3, 0.31, 1.0, 2.0, 2.1, 5.0, 9.0])
BINS = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])  # an edge belongs to the bin below it
HISTOGRAM = np.linspace(0.0, 8.0, 17), np.exp(-np.linspace(0.0, 3.0, 16))


def table(mechanism, labels=LABELS):
    """p(z | x), labels along the first axis."""
    return np.exp(np.asarray(mechanism.log_prob(mechanism.outputs, np.reshape(labels, (-1, 1)))))


@pytest.mark.parametrize("epsilon", [0.1, 1.3, 6.0])
def test_a_label_is_released_as_its_bins_output_or_any_other_and_the_worst_ratio_is_the_budget(epsilon):
    mechanism = RROnBins(epsilon, EDGES, OUTPUTS)
    p = table(mechanism)
    other = 1 / (np.exp(epsilon) + 2)
    np.testing.assert_allclose(p, np.where(BINS[:, None] == np.arange(3), np.exp(epsilon) * other, other), rtol=1e-14)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-14)
    assert np.max(p.max(axis=0) / p.min(axis=0)) == pytest.approx(np.exp(epsilon), rel=1e-12)
    mean, variance = mechanism.moments(LABELS)
    np.testing.assert_allclose(mean, p @ OUTPUTS, rtol=1e-13)
    np.testing.assert_allclose(variance, p @ OUTPUTS**2 - (p @ OUTPUTS) ** 2, rtol=1e-12)


def test_best_tests_lie_on_the_stated_curve_for_any_two_bins():
    mechanism = RROnBins(1.3, EDGES, OUTPUTS)
    p, stated = table(mechanism, [0.0, 1.0, 3.0]), mechanism.guarantee.tradeoff
    budgets, level = np.linspace(0, 1.5, 7), np.linspace(0, 1, 51)
    for i, j in itertools.permutations(range(3), 2):
        order = np.argsort(-p[j] / p[i], kind="stable")
        alpha, power = (np.concatenate([[0.0], np.cumsum(p[k][order])]) for k in (i, j))
        # exact but for the rounding of sums of three probabilities
        np.testing.assert_allclose(stated(level), 1 - np.interp(level, alpha, power), atol=1e-14)
        stick = np.maximum(p[j] - np.exp(budgets)[:, None] * p[i], 0).sum(axis=1)
        np.testing.assert_allclose(mechanism.guarantee.delta(budgets), stick, atol=1e-14)
    assert (mechanism.guarantee.unit, mechanism.guarantee.trust_model) == ("label", "local")
    assert mechanism.guarantee.epsilon(0.0) == pytest.approx(1.3, rel=1e-14)


def test_samples_have_the_stated_probabilities():
    mechanism, n = RROnBins(0.8, EDGES, OUTPUTS), 20_000
    labels = np.array([-3.0, 1.0, 4.0])
    z = np.asarray(mechanism.randomize(jax.random.key(0), np.broadcast_to(labels, (n, 3))))
    for drawn, p in zip(z.T, table(mechanism, labels), strict=True):
        counts = np.array([np.count_nonzero(drawn == output) for output in OUTPUTS])
        assert stats.chisquare(counts, n * p, sum_check=False).pvalue > ERROR_RATE and counts.sum() == n


def test_budgets_may_be_personal_while_bins_are_shared_by_as_many_records_as_there_are_bins():
    """Three records, three outputs: arrays over bins are not taken for budgets."""
    one = RROnBins(1.0, EDGES, OUTPUTS)
    assert one.batch_shape == () and one.of_records((3,), slice(0, 2)) == one
    personal = RROnBins([0.5, 1.0, 1.0], EDGES, OUTPUTS)
    assert personal.batch_shape == (3,)
    some = personal.of_records((3,), slice(0, 2))
    np.testing.assert_array_equal(some.epsilon, [0.5, 1.0])
    np.testing.assert_array_equal(some.edges, EDGES)
    z, x = OUTPUTS[[1, 1, 1]], 0.6
    np.testing.assert_allclose(
        personal.log_prob(z, x), [RROnBins(e, EDGES, OUTPUTS).log_prob(1.7, x) for e in (0.5, 1.0, 1.0)], rtol=1e-14
    )
    sketch = ldp.Release(z, personal).sketch()
    np.testing.assert_array_equal(sketch.weights, [1, 2])
    np.testing.assert_array_equal(sketch.mechanism.epsilon, [0.5, 1.0])
    assert len(ldp.Release(OUTPUTS[[0, 1, 0]], one).sketch().nodes) == 2
    np.testing.assert_allclose(personal.guarantee.delta(0.2)[0], RROnBins(0.5, EDGES, OUTPUTS).guarantee.delta(0.2))


def test_parameters_are_arguments_of_compiled_functions():
    many = [RROnBins(e, EDGES * e, OUTPUTS + e) for e in (0.5, 1.0, 2.0)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *many)

    def both(mechanism, key):
        z = mechanism.randomize(key, 0.4)
        return z, mechanism.log_prob(z, 0.4), mechanism.breakpoints(z)

    z, got, breaks = jax.jit(jax.vmap(both))(stacked, jax.random.split(jax.random.key(0), 3))
    for i, mechanism in enumerate(many):
        assert float(z[i]) in mechanism.outputs
        assert float(got[i]) == pytest.approx(float(mechanism.log_prob(z[i], 0.4)), rel=1e-14)
        np.testing.assert_array_equal(breaks[i], mechanism.breakpoints(np.asarray(z[i])))


def test_specs_make_the_same_mechanism_and_rounded_outputs_are_recognised():
    mechanism = RROnBins(1.0, EDGES, OUTPUTS)
    assert ldp.mechanisms.mechanism_from_spec(json.loads(json.dumps(mechanism.spec()))) == mechanism
    for rounded in (OUTPUTS.astype(np.float32), OUTPUTS.astype(np.float32).astype(float), OUTPUTS.astype(np.float16)):
        np.testing.assert_array_equal(ldp.Release(rounded, mechanism).values, OUTPUTS)
    whole = RROnBins(1.0, EDGES, [0, 1, 3])
    assert ldp.Release(np.array([3, 1], np.int8), whole).values.tolist() == [3.0, 1.0]
    np.testing.assert_array_equal(mechanism.support(jnp.array([0.1, 0.2, 3.1])), [True, False, True])


def test_the_likelihood_is_that_of_the_bins_masses_for_a_normal_law_and_for_counts():
    mechanism = RROnBins(1.3, EDGES, OUTPUTS)
    q = 1 / (np.exp(1.3) + 2)
    for law, masses in (
        (dist.Normal(0.4, 1.1), np.diff(stats.norm(0.4, 1.1).cdf([-np.inf, 0.3, 2.0, np.inf]))),
        (dist.Poisson(1.7), np.diff(stats.poisson(1.7).cdf([-np.inf, 0.3, 2.0, np.inf]))),
    ):
        expected = np.log(q * (1 + np.expm1(1.3) * masses))
        # the channel's quadrature of a normal law is exact to 1e-9, its base normalised on the nodes
        got = ldp.Privatized(law, mechanism, method="channel").log_prob(OUTPUTS)
        np.testing.assert_allclose(got, expected, atol=1e-9)


def test_the_sketch_of_a_release_has_its_likelihood_and_nothing_is_doubted():
    mechanism, law = RROnBins(1.3, EDGES, OUTPUTS), dist.Normal(0.4, 1.1)
    release = ldp.Release(
        mechanism.randomize(jax.random.key(3), stats.norm(0.4, 1.1).ppf(np.arange(1, 900) / 900)), mechanism
    )
    sketch = release.sketch()
    assert release.doubts == () and len(sketch.nodes) == 3 and sketch.size == 899
    total = sketch.weights @ np.asarray(ldp.Privatized(law, mechanism).log_prob(sketch.nodes))
    assert total == pytest.approx(float(ldp.Privatized(law, mechanism).log_prob(release.values).sum()), rel=1e-13)
    with pytest.warns(ldp.data.ReleaseWarning, match=r"899 of 899 are 0\.1, where at most 581\.9 are expected"):
        ldp.Release(np.full(899, 0.1), mechanism)


def assignments(k):
    """Every way to give k labels an output each: partitions of any kind, not only into intervals."""
    for places in itertools.product(range(k), repeat=k):
        if all(place <= max(places[:i], default=-1) + 1 for i, place in enumerate(places)) and max(places):
            yield np.array(places)


def test_a_prior_of_one_bin_is_cut_into_cells():
    made = RROnBins.optimal(([0.0, 20.0], [0.05]), 3.0)
    assert len(made.outputs) > 2
    np.testing.assert_allclose(made.edges + made.edges[::-1], 20.0)


def test_optimal_bins_equal_brute_force_over_all_partitions():
    rng = np.random.default_rng(1)
    for _ in range(12):
        k, epsilon = rng.integers(2, 7), rng.uniform(0.1, 4)
        values, p = np.sort(rng.normal(size=k)), rng.dirichlet(np.full(k, 0.5))
        losses = []
        for places in assignments(k):
            weights = p * np.where(places == np.arange(places.max() + 1)[:, None], np.exp(epsilon), 1)
            means = weights @ values / weights.sum(axis=1)
            losses.append(np.sum(weights * (values - means[:, None]) ** 2) / (np.exp(epsilon) + places.max()))
        found = optimal_bins(values, p, epsilon)
        assert found.loss == pytest.approx(min(losses), rel=1e-12)
        mechanism = RROnBins(epsilon, found.edges, found.outputs)
        mean, variance = mechanism.moments(values)
        assert p @ (variance + (mean - values) ** 2) == pytest.approx(found.loss, rel=1e-12)


def test_no_mechanism_of_the_budget_does_better_on_any_outputs():
    values, p, epsilon = np.array([0.0, 1.0, 2.5, 3.0]), np.array([0.4, 0.1, 0.2, 0.3]), 1.0
    found = optimal_bins(values, p, epsilon)
    outputs = np.concatenate([np.linspace(-1, 4, 41), found.outputs])
    k, m = 4, len(outputs)
    pairs = list(itertools.permutations(range(k), 2))
    # p(o | i) is at most exp(epsilon) p(o | j)
    signs = np.zeros((len(pairs), k))
    for row, (i, j) in enumerate(pairs):
        signs[row, i], signs[row, j] = 1, -np.exp(epsilon)
    best = linprog(
        (p[:, None] * (outputs - values[:, None]) ** 2).ravel(),
        A_ub=sparse.kron(signs, sparse.eye(m), format="csr"),
        b_ub=np.zeros(len(pairs) * m),
        A_eq=sparse.kron(sparse.eye(k), np.ones((1, m)), format="csr"),
        b_eq=np.ones(k),
        method="highs-ds",
    )
    assert best.fun == pytest.approx(found.loss, rel=1e-6)  # the solver's tolerance is 1e-7


def test_optimal_bins_of_a_prior_take_cells_at_their_middles_and_move_with_it():
    nodes, densities = HISTOGRAM
    mechanism = RROnBins.optimal(HISTOGRAM, 2.0, nodes=nodes)
    found = optimal_bins((nodes[1:] + nodes[:-1]) / 2, densities, 2.0)
    np.testing.assert_allclose(mechanism.outputs, found.outputs, rtol=1e-12)
    np.testing.assert_array_equal(mechanism.edges[[0, -1]], [0.0, 8.0])
    moved = RROnBins.optimal((3 * nodes - 5, densities), 2.0, nodes=3 * nodes - 5)
    np.testing.assert_allclose(moved.outputs, 3 * mechanism.outputs - 5, rtol=1e-12)
    np.testing.assert_allclose(moved.edges, 3 * mechanism.edges - 5, rtol=1e-12)
    same = RROnBins.optimal((np.linspace(0, 8, 33), np.repeat(densities, 2)), 2.0, nodes=nodes)
    np.testing.assert_allclose(same.outputs, mechanism.outputs, rtol=1e-12)


def test_many_bins_of_a_prior_are_merged():
    nodes, densities = HISTOGRAM
    fine = RROnBins.optimal((np.linspace(0, 8, 16 * 400 + 1), np.repeat(densities, 400)), 2.0)
    np.testing.assert_allclose(fine.outputs, RROnBins.optimal(HISTOGRAM, 2.0).outputs, atol=np.diff(nodes)[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RROnBins(0.0, EDGES, OUTPUTS), "epsilon must be positive and finite, got 0.0"),
        (lambda: RROnBins(np.inf, EDGES, OUTPUTS), "epsilon must be positive and finite, got inf"),
        (lambda: RROnBins(1.0, EDGES[[0, 2, 1, 3]], OUTPUTS), r"edges must increase strictly, got edges\[1\] = 2"),
        (lambda: RROnBins(1.0, EDGES, [0.1, 0.1, 2.0]), r"outputs must increase strictly, got outputs\[0\] = 0.1"),
        (lambda: RROnBins(1.0, [0.0, 1.0], [0.5]), r"edges must be an array of at least 3 numbers, got shape \(2,\)"),
        (lambda: RROnBins(1.0, EDGES, OUTPUTS[:2]), r"d bins have d \+ 1 edges and d outputs, got shapes \(4,\)"),
        (lambda: RROnBins(1.0, [0.0, np.nan, 1.0], [0.1, 0.2]), r"edges must be finite numbers, got edges\[1\] = nan"),
        (lambda: RROnBins(1.0, EDGES, OUTPUTS).randomize(jax.random.key(0), [0.1, np.nan]), r"x\[1\] = nan"),
        (
            lambda: ldp.Release([0.1, 0.11, 1.7], RROnBins(1.0, EDGES, OUTPUTS)),
            r"one of its 3 outputs, from 0.1 to 3.1; 1 of these values are none, the first \(0.11\) at 1",
        ),
        (lambda: RROnBins.optimal(HISTOGRAM, -1.0), "epsilon must be a positive number, got -1.0"),
        (lambda: RROnBins.optimal(([0.0, 1.0], [1.0]), 1.0, nodes=[0, 1, 2]), "degenerate: 1 of 2 values"),
        (lambda: RROnBins.optimal(([0.0, 2.0, 1.0], [1.0, 1.0]), 1.0), "unsorted nodes"),
        (lambda: optimal_bins([1.0, 0.0], [0.5, 0.5], 1.0), "values must increase strictly"),
        (lambda: optimal_bins([0.0, 1.0], [0.5, -0.5], 1.0), "probabilities must be finite and not negative"),
        (lambda: optimal_bins([0.0, 1.0], [1.0], 1.0), "probabilities must be one a value"),
    ],
)
def test_what_is_wrong_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_sketches_of_the_same_bins_add_and_of_others_do_not():
    one, two = RROnBins(1.0, [0.0, 1.0, 2.0], [0.5, 1.5]), RROnBins(2.0, [0.0, 1.0, 2.0], [0.5, 1.5])
    sketches = [ldp.Release([0.5, 1.5, 1.5], mechanism).sketch() for mechanism in (one, two)]
    both = sketches[0] + sketches[1]
    assert both.size == 6
    np.testing.assert_array_equal(both.mechanism.outputs, one.outputs)
    laws = [ldp.Privatized(dist.Normal(0.7, 0.5), sketch.mechanism) for sketch in (*sketches, both)]
    first, second, total = (
        float(sketch.weights @ np.asarray(law.log_prob(sketch.nodes)))
        for sketch, law in zip((*sketches, both), laws, strict=True)
    )
    assert total == pytest.approx(first + second, rel=1e-6)  # in single precision
    other = ldp.Release([0.5, 1.6], RROnBins(1.0, [0.0, 1.0, 2.0], [0.5, 1.6])).sketch()
    with pytest.raises(ValueError, match="whose outputs differ"):
        sketches[0] + other
