"""Mechanisms for labels: their laws, samplers, guarantees and likelihoods.

Statistical tests use fixed seeds and fail by chance with probability 1e-6 each when a seed is changed.
"""

import itertools
import json

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, stats

import ldpbayes as ldp
from ldpbayes.mechanisms import RROnBins, UnbiasedRandomizer
from ldpbayes.mechanisms.design import optimal_bins, optimal_unbiased
from ldpbayes.privacy import FiniteTradeoff
from ldpbayes.privacy.tradeoffs import PureProtocolTradeoff
from tests.programs import call, constant, evaluate, log_prob, randomize

pytestmark = pytest.mark.usefixtures("x64")

ERROR_RATE = 1e-6


@jax.jit
def log_prob_of_outputs(mechanism, x):
    return mechanism.log_prob(mechanism.outputs, x[:, None])


def table(mechanism, labels):
    """p(z | x), labels along the first axis."""
    return np.exp(np.asarray(log_prob_of_outputs(mechanism, np.asarray(labels, float))))


LOWER, UPPER = 0.1, 1.4
MECHANISMS = [
    pytest.param(ldp.RPWithPrior(epsilon, (LOWER, UPPER), half_width, outside), id=f"{outside}-{epsilon}-{half_width}")
    for outside in ("projection", "uniform")
    for epsilon, half_width in ((1.3, 0.2), (0.1, 0.9), (6.0, 0.65))
]
LABELS = [-3.0, LOWER, 0.35, 0.9, UPPER, 7.0]  # below, at the ends, inside, above


def by_channel(law, mechanism, z):
    """Log densities by a channel, which NumPy builds where JAX traces neither the mechanism nor the values."""
    return jax.jit(lambda law: ldp.Privatized(law, mechanism, method="channel").log_prob(z))(law)


def padded(values, length):
    """More of the last value, so that all calls share a compiled function."""
    return np.concatenate([values, np.full(length - len(values), values[-1])])


def cells(mechanism, labels):
    """Intervals of z on which the densities of these labels are constant: middles, lengths, densities (labels, n)."""
    half = mechanism.half_width
    centers = np.clip(labels, LOWER, UPPER)
    edges = np.unique(np.concatenate([[LOWER - half, UPPER + half], centers - half, centers + half]))
    middles = (edges[1:] + edges[:-1]) / 2
    density = np.exp(call("log_prob", mechanism, padded(middles, 100), padded(labels, 50)[:, None]))
    density = density[: len(labels), : len(middles)]
    return middles, np.diff(edges), density


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_densities_integrate_to_one_for_labels_inside_and_outside(mechanism):
    _, lengths, density = cells(mechanism, LABELS)
    np.testing.assert_allclose(density @ lengths, 1.0, rtol=1e-13)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_worst_likelihood_ratio_is_exp_epsilon(mechanism):
    _, _, density = cells(mechanism, [*LABELS, *np.linspace(-1, 3, 41)])
    assert np.max(density.max(axis=0) / density.min(axis=0)) == pytest.approx(np.exp(mechanism.epsilon), rel=1e-12)
    beyond = np.array([LOWER - mechanism.half_width - 1e-9, UPPER + mechanism.half_width + 1e-9])
    assert np.all(call("log_prob", mechanism, padded(beyond, 100), np.full((50, 1), 0.5)) == -np.inf)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_best_tests_lie_on_the_stated_curve_and_no_pair_of_labels_is_told_apart_better(mechanism):
    labels = [LOWER, UPPER, *LABELS, *np.linspace(LOWER, UPPER, 9)]
    _, lengths, density = cells(mechanism, labels)
    masses = density * lengths
    level = np.linspace(0, 1, 101)
    budgets = np.linspace(0, 1.2 * mechanism.epsilon, 7)
    for i, j in itertools.permutations(range(len(labels)), 2):
        order = np.argsort(-masses[j] / masses[i])
        alpha = np.concatenate([[0.0], np.cumsum(masses[i][order])])
        beta = 1 - np.concatenate([[0.0], np.cumsum(masses[j][order])])
        # the curve of a pair is the polygon through the errors of its likelihood ratio tests
        slack = np.interp(level, alpha, beta) - mechanism.guarantee.tradeoff(level)
        divergence = np.maximum(masses[j] - np.exp(budgets)[:, None] * masses[i], 0).sum(axis=1)
        excess = divergence - mechanism.guarantee.delta(budgets)
        assert slack.min() > -1e-12
        assert excess.max() < 1e-12
        if {i, j} == {0, 1}:
            assert np.abs(slack).max() < 1e-12
            assert np.abs(excess).max() < 1e-12
    assert mechanism.guarantee.unit == "label"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_sampler_follows_the_density(mechanism):
    """Kolmogorov-Smirnov at 1e-6 a label and mechanism; moments within five standard errors (6e-7 each)."""
    n = 20_000
    draws = randomize(mechanism, np.broadcast_to(LABELS, (n, len(LABELS)))).T
    mean, variance = call("moments", mechanism, np.array(LABELS))
    for i, x in enumerate(LABELS):
        half = mechanism.half_width
        middles, lengths, density = cells(mechanism, [x])
        edges = np.concatenate([[LOWER - half], LOWER - half + np.cumsum(lengths)])
        cumulative = np.concatenate([[0.0], np.cumsum(density[0] * lengths)])
        assert stats.kstest(draws[i], lambda z, e=edges, c=cumulative: np.interp(z, e, c)).pvalue > 1e-6
        first = density[0] * lengths @ middles
        second = density[0] * lengths @ (middles**2 + lengths**2 / 12)
        np.testing.assert_allclose([mean[i], variance[i]], [first, second - first**2], rtol=1e-12)


def test_unbiased_values_have_the_projected_label_as_their_mean():
    mechanism = ldp.RPWithPrior(1.3, (LOWER, UPPER), 0.2)
    middles, lengths, density = cells(mechanism, LABELS)
    means = density * lengths @ call("unbiased", mechanism, middles)
    np.testing.assert_allclose(means, np.clip(LABELS, LOWER, UPPER), rtol=1e-12)
    with pytest.raises(ValueError, match="projection"):
        ldp.RPWithPrior(1.3, (LOWER, UPPER), 0.2, "uniform").unbiased(middles)


def test_budgets_may_be_personal_and_parameters_arguments_of_compiled_functions():
    personal = ldp.RPWithPrior([0.5, 1.0, 2.0], (LOWER, UPPER), 0.2)
    z = np.array([0.0, 0.7, 1.5])
    release = ldp.Release(z, personal)
    alone = [ldp.RPWithPrior(e, (LOWER, UPPER), 0.2) for e in (0.5, 1.0, 2.0)]
    each = [call("log_prob", one, v, 0.6) for one, v in zip(alone, z, strict=True)]
    np.testing.assert_allclose(call("log_prob", personal, release.values, 0.6), each, rtol=1e-14)
    stacked = jax.tree.map(
        lambda *leaves: np.stack(leaves), *(ldp.RPWithPrior(e, (0.0, e), 0.1 * e) for e in (0.5, 1.0, 2.0))
    )
    mapped = jax.jit(jax.vmap(lambda mechanism, key: mechanism.log_prob(mechanism.randomize(key, 0.3), 0.3)))
    assert np.all(np.isfinite(mapped(stacked, jax.random.split(jax.random.key(0), 3))))


def test_specs_make_the_same_mechanism_and_values_rounded_to_single_precision_are_its_own():
    mechanism = ldp.RPWithPrior(1.0, (LOWER, UPPER), 0.2, "uniform")
    assert ldp.mechanisms.mechanism_from_spec(mechanism.spec()) == mechanism
    ends = np.array([LOWER - 0.2, UPPER + 0.2])
    np.testing.assert_array_equal(mechanism.validated(ends.astype(np.float32)), ends)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ldp.RPWithPrior(0.0, (0, 1), 0.1), "epsilon must be positive"),
        (lambda: ldp.RPWithPrior(1.0, (1, 0), 0.1), "lower must be below upper"),
        (lambda: ldp.RPWithPrior(1.0, (0, np.nan), 0.1), "interval must be finite"),
        (lambda: ldp.RPWithPrior(1.0, 3.0, 0.1), "pair of numbers"),
        (lambda: ldp.RPWithPrior(1.0, (0, [1, 2]), 0.1), "one for all labels"),
        (lambda: ldp.RPWithPrior(1.0, (0, 1), 0.0), "half_width must be positive"),
        (lambda: ldp.RPWithPrior(1.0, (0, 1), -1.0), "half_width must be positive"),
        (lambda: ldp.RPWithPrior(1.0, (0, 1), 0.1, "clip"), "outside must be one of projection, uniform"),
        (lambda: ldp.RPWithPrior(1.0, (0, 1), 0.1).randomize(jax.random.key(0), [0.1, np.nan]), "missing labels"),
        (lambda: ldp.Release([0.2, 1.2], ldp.RPWithPrior(1.0, (0, 1), 0.1)), "releases numbers from -0.1 to 1.1"),
    ],
)
def test_what_is_wrong_with_an_interval_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def moments_of_law(base, mechanism):
    law = ldp.Privatized(base, mechanism)
    return law.mean, law.variance


def test_moments_of_the_law_of_released_labels_are_those_of_its_density():
    mechanism = ldp.RPWithPrior(1.3, (LOWER, UPPER), 0.2)
    nodes, weights = np.polynomial.legendre.leggauss(60)  # between the kinks of a smooth density
    ends = np.array([-0.1 + 1e-13, 0.3, 1.2, 1.6 - 1e-13])
    half = np.diff(ends)[:, None] / 2
    z, weights = (ends[:-1, None] + half * (1 + nodes)).ravel(), (half * weights).ravel()
    density = np.exp(log_prob(dist.Normal(0.5, 0.4), mechanism, z))
    total = [np.sum(weights * z**k * density) for k in range(3)]
    assert total[0] == pytest.approx(1.0, abs=1e-9)
    mean, variance = evaluate(moments_of_law, dist.Normal(0.5, 0.4), mechanism)
    assert float(mean) == pytest.approx(total[1], abs=1e-9)
    assert float(variance) == pytest.approx(total[2] - total[1] ** 2, abs=1e-9)


EDGES, OUTPUTS = np.array([-1.0, 0.3, 2.0, 5.0]), np.array([0.1, 1.7, 3.1])
BINNED = np.array([-7.0, -1.0, 0.29, 0.3, 0.31, 1.0, 2.0, 2.1, 5.0, 9.0])
BINS = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])  # an edge belongs to the bin below it
FALLING = np.linspace(0.0, 8.0, 17), np.exp(-np.linspace(0.0, 3.0, 16))


@pytest.mark.parametrize("epsilon", [0.1, 1.3, 6.0])
def test_a_label_is_released_as_its_bins_output_or_any_other_and_the_worst_ratio_is_the_budget(epsilon):
    mechanism = RROnBins(epsilon, EDGES, OUTPUTS)
    p = table(mechanism, BINNED)
    other = 1 / (np.exp(epsilon) + 2)
    np.testing.assert_allclose(p, np.where(BINS[:, None] == np.arange(3), np.exp(epsilon) * other, other), rtol=1e-14)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-14)
    assert np.max(p.max(axis=0) / p.min(axis=0)) == pytest.approx(np.exp(epsilon), rel=1e-12)
    mean, variance = call("moments", mechanism, BINNED)
    np.testing.assert_allclose(mean, p @ OUTPUTS, rtol=1e-13)
    np.testing.assert_allclose(variance, p @ OUTPUTS**2 - (p @ OUTPUTS) ** 2, rtol=1e-12)


def test_best_tests_lie_on_the_stated_curve_for_any_two_bins():
    mechanism = RROnBins(1.3, EDGES, OUTPUTS)
    p, stated = table(mechanism, np.array([0.0, 1.0, 3.0])), mechanism.guarantee.tradeoff
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


def test_samples_of_bins_have_the_stated_probabilities():
    mechanism, n = RROnBins(0.8, EDGES, OUTPUTS), 20_000
    labels = np.array([-3.0, 1.0, 4.0])
    z = randomize(mechanism, np.broadcast_to(labels, (n, 3)))
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
    each = [call("log_prob", RROnBins(e, EDGES, OUTPUTS), 1.7, x) for e in (0.5, 1.0, 1.0)]
    np.testing.assert_allclose(call("log_prob", personal, z, x), each, rtol=1e-14)
    sketch = ldp.Release(z, personal).sketch()
    np.testing.assert_array_equal(sketch.weights, [1, 2])
    np.testing.assert_array_equal(sketch.mechanism.epsilon, [0.5, 1.0])
    assert len(ldp.Release(OUTPUTS[[0, 1, 0]], one).sketch().nodes) == 2
    np.testing.assert_allclose(personal.guarantee.delta(0.2)[0], RROnBins(0.5, EDGES, OUTPUTS).guarantee.delta(0.2))


def test_parameters_of_bins_are_arguments_of_compiled_functions():
    many = [RROnBins(e, EDGES * e, OUTPUTS + e) for e in (0.5, 1.0, 2.0)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *many)

    def both(mechanism, key):
        z = mechanism.randomize(key, 0.4)
        return z, mechanism.log_prob(z, 0.4), mechanism.breakpoints(z)

    z, got, breaks = map(np.asarray, jax.jit(jax.vmap(both))(stacked, jax.random.split(jax.random.key(0), 3)))
    for i, mechanism in enumerate(many):
        assert float(z[i]) in mechanism.outputs
        assert float(got[i]) == pytest.approx(float(call("log_prob", mechanism, z[i], 0.4)), rel=1e-14)
        np.testing.assert_array_equal(breaks[i], mechanism.breakpoints(z[i]))


def test_specs_of_bins_make_the_mechanism_again_and_rounded_outputs_are_recognised():
    mechanism = RROnBins(1.0, EDGES, OUTPUTS)
    assert ldp.mechanisms.mechanism_from_spec(json.loads(json.dumps(mechanism.spec()))) == mechanism
    for rounded in (OUTPUTS.astype(np.float32), OUTPUTS.astype(np.float32).astype(float), OUTPUTS.astype(np.float16)):
        np.testing.assert_array_equal(ldp.Release(rounded, mechanism).values, OUTPUTS)
    whole = RROnBins(1.0, EDGES, [0, 1, 3])
    assert ldp.Release(np.array([3, 1], np.int8), whole).values.tolist() == [3.0, 1.0]
    np.testing.assert_array_equal(
        jax.jit(lambda z: mechanism.support(z))(np.array([0.1, 0.2, 3.1])), [True, False, True]
    )


def test_the_likelihood_is_that_of_the_bins_masses_for_a_normal_law_and_for_counts():
    mechanism = RROnBins(1.3, EDGES, OUTPUTS)
    q = 1 / (np.exp(1.3) + 2)
    for law, masses in (
        (dist.Normal(0.4, 1.1), np.diff(stats.norm(0.4, 1.1).cdf([-np.inf, 0.3, 2.0, np.inf]))),
        (dist.Poisson(1.7), np.diff(stats.poisson(1.7).cdf([-np.inf, 0.3, 2.0, np.inf]))),
    ):
        expected = np.log(q * (1 + np.expm1(1.3) * masses))
        # the channel's quadrature of a normal law is exact to 1e-9, its base normalised on the nodes
        got = by_channel(law, mechanism, OUTPUTS)
        np.testing.assert_allclose(got, expected, atol=1e-9)


def test_the_sketch_of_released_bins_has_their_likelihood_and_nothing_is_doubted():
    mechanism = RROnBins(1.3, EDGES, OUTPUTS)
    law = dist.Normal(0.4, 1.1)
    release = ldp.Release(randomize(mechanism, stats.norm(0.4, 1.1).ppf(np.arange(1, 900) / 900), seed=3), mechanism)
    sketch = release.sketch()
    assert release.doubts == () and len(sketch.nodes) == 3 and sketch.size == 899
    total = sketch.weights @ log_prob(law, mechanism, sketch.nodes)
    assert total == pytest.approx(log_prob(law, mechanism, release.values).sum(), rel=1e-13)
    with pytest.warns(ldp.data.ReleaseWarning, match=r"899 of 899 are 0\.1, where at most 581\.9 are expected"):
        ldp.Release(np.full(899, 0.1), mechanism)


def test_a_prior_of_one_bin_is_cut_into_cells():
    made = RROnBins.optimal(([0.0, 20.0], [0.05]), 3.0)
    assert len(made.outputs) > 2
    np.testing.assert_allclose(made.edges + made.edges[::-1], 20.0)


def test_optimal_bins_of_a_prior_take_cells_at_their_middles_and_move_with_it():
    nodes, densities = FALLING
    mechanism = RROnBins.optimal(FALLING, 2.0, nodes=nodes)
    _, outputs = optimal_bins((nodes[1:] + nodes[:-1]) / 2, densities, 2.0)
    np.testing.assert_allclose(mechanism.outputs, outputs, rtol=1e-12)
    np.testing.assert_array_equal(mechanism.edges[[0, -1]], [0.0, 8.0])
    moved = RROnBins.optimal((3 * nodes - 5, densities), 2.0, nodes=3 * nodes - 5)
    np.testing.assert_allclose(moved.outputs, 3 * mechanism.outputs - 5, rtol=1e-12)
    np.testing.assert_allclose(moved.edges, 3 * mechanism.edges - 5, rtol=1e-12)
    same = RROnBins.optimal((np.linspace(0, 8, 33), np.repeat(densities, 2)), 2.0, nodes=nodes)
    np.testing.assert_allclose(same.outputs, mechanism.outputs, rtol=1e-12)


def test_many_bins_of_a_prior_are_merged():
    nodes, densities = FALLING
    fine = RROnBins.optimal((np.linspace(0, 8, 16 * 400 + 1), np.repeat(densities, 400)), 2.0)
    np.testing.assert_allclose(fine.outputs, RROnBins.optimal(FALLING, 2.0).outputs, atol=np.diff(nodes)[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RROnBins(0.0, EDGES, OUTPUTS), "epsilon must be positive and finite, got 0.0"),
        (lambda: RROnBins(np.inf, EDGES, OUTPUTS), "epsilon must be positive and finite, got inf"),
        (
            lambda: RROnBins(1.0, EDGES[[0, 2, 1, 3]], OUTPUTS),
            r"edges must increase strictly; 1 do not, the first \(0.3\) at 2",
        ),
        (lambda: RROnBins(1.0, EDGES, [0.1, 0.1, 2.0]), r"outputs must increase strictly; 1 .* \(0.1\) at 1"),
        (lambda: RROnBins(1.0, [0.0, 1.0], [0.5]), r"edges must be an array of at least 3 numbers, got shape \(2,\)"),
        (lambda: RROnBins(1.0, EDGES, OUTPUTS[:2]), r"edges must be one more than outputs, got shapes \(4,\)"),
        (lambda: RROnBins(1.0, [0.0, np.nan, 1.0], [0.1, 0.2]), r"edges must be finite numbers, got edges\[1\] = nan"),
        (lambda: RROnBins(1.0, EDGES, OUTPUTS).randomize(jax.random.key(0), [0.1, np.nan]), r"x\[1\] = nan"),
        (
            lambda: ldp.Release([0.1, 0.11, 1.7], RROnBins(1.0, EDGES, OUTPUTS)),
            r"one of its 3 outputs, from 0.1 to 3.1; 1 values are not outputs, the first \(0.11\) at 1",
        ),
        (lambda: RROnBins.optimal(FALLING, -1.0), "epsilon must be a positive and finite number, got -1.0"),
        (lambda: RROnBins.optimal(([0.0, 1.0], [1.0]), 1.0, nodes=[0, 1, 2]), "degenerate: only 1 of 2 values"),
        (lambda: RROnBins.optimal(([0.0, 2.0, 1.0], [1.0, 1.0]), 1.0), "nodes must increase strictly"),
    ],
)
def test_what_is_wrong_with_bins_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_sketches_of_the_same_bins_add_and_of_others_do_not():
    one, two = RROnBins(1.0, [0.0, 1.0, 2.0], [0.5, 1.5]), RROnBins(2.0, [0.0, 1.0, 2.0], [0.5, 1.5])
    sketches = [ldp.Release([0.5, 1.5, 1.5], mechanism).sketch() for mechanism in (one, two)]
    both = sketches[0] + sketches[1]
    assert both.size == 6
    np.testing.assert_array_equal(both.mechanism.outputs, one.outputs)
    law = dist.Normal(0.7, 0.5)
    first, second, total = (
        float(sketch.weights @ log_prob(law, sketch.mechanism, sketch.nodes)) for sketch in (*sketches, both)
    )
    assert total == pytest.approx(first + second, rel=1e-6)  # in single precision
    other = ldp.Release([0.5, 1.6], RROnBins(1.0, [0.0, 1.0, 2.0], [0.5, 1.6])).sketch()
    with pytest.raises(ValueError, match="if their outputs differ"):
        sketches[0] + other


NODES = np.array([0.0, 0.5, 1.5, 2.0, 4.0])
HISTOGRAM = np.linspace(0.0, 4.0, 9), np.exp(-np.linspace(0.0, 2.0, 8))
MECHANISM = UnbiasedRandomizer.optimal(HISTOGRAM, 1.3, nodes=NODES)
AROUND = np.array([-2.0, 0.0, 0.2, 1.5, 1.9, 3.7, 4.0, 9.0])


def test_every_label_between_the_nodes_is_the_mean_of_what_is_released_for_it():
    labels = np.linspace(-1, 5, 61)
    p, outputs = table(MECHANISM, labels), MECHANISM.outputs
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-13)
    np.testing.assert_allclose(p @ call("unbiased", MECHANISM, outputs), np.clip(labels, 0, 4), atol=1e-9 * 4)
    assert np.max(p.max(axis=0) / p.min(axis=0)) == pytest.approx(np.exp(1.3), rel=1e-12)
    mean, variance = call("moments", MECHANISM, labels)
    # a sum of k outputs, times probabilities with relative errors of a few roundings: k + 8 roundings of the largest
    rounding = (len(outputs) + 8) * np.finfo(float).eps * np.abs(outputs).max()
    np.testing.assert_allclose(mean, np.clip(labels, 0, 4), rtol=0, atol=rounding)
    np.testing.assert_allclose(variance, p @ outputs**2 - (p @ outputs) ** 2, rtol=1e-11)
    # linear between the nodes
    levels = call("levels", MECHANISM, outputs)
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
    mine, known = FiniteTradeoff(laws), PureProtocolTradeoff(1.0, np.e / (np.e + 2))
    at = np.linspace(0, 1, 31)
    np.testing.assert_allclose(mine(at), known(at), atol=1e-15)
    np.testing.assert_allclose(mine.delta(at), known.delta(at), atol=1e-15)
    np.testing.assert_allclose(mine.epsilon(at / 3), known.epsilon(at / 3), atol=1e-14)
    for laws in ([[0.5, 0.5], [1.5, -0.5]], [[0.5, 0.6], [0.4, 0.6]], [0.5, 0.5]):
        with pytest.raises(ValueError, match="laws must be"):
            FiniteTradeoff(laws)


def test_rows_that_miss_one_say_by_how_much_and_whether_single_precision_is_why():
    rounded = np.array([[0.5, 0.5], [0.1, 0.9]], np.float32)
    with pytest.raises(ValueError, match=r"the sum of row 1 is wrong by 2.2e-08; this is a rounding error"):
        FiniteTradeoff(rounded)
    with pytest.raises(ValueError, match=r"the sum of row 0 is wrong by 0.1$"):
        FiniteTradeoff([[0.5, 0.6], [0.4, 0.6]])


def test_unbiased_samples_have_the_stated_probabilities():
    n, labels = 20_000, np.array([-1.0, 0.5, 1.8, 3.0])
    z = randomize(MECHANISM, np.broadcast_to(labels, (n, 4)))
    for drawn, p in zip(z.T, table(MECHANISM, labels), strict=True):
        counts = np.bincount(np.searchsorted(MECHANISM.outputs, drawn), minlength=len(p))
        assert np.isin(drawn, MECHANISM.outputs).all()
        assert stats.chisquare(counts, n * p, sum_check=False).pvalue > ERROR_RATE


def test_parameters_are_arguments_of_compiled_functions_and_arrays_over_labels_are_no_budgets():
    many = [UnbiasedRandomizer(e, NODES + e, MECHANISM.outputs + e, MECHANISM.matrix) for e in (1.3, 2.0)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *many)

    def both(mechanism, key):
        z = mechanism.randomize(key, 2.4)
        return z, mechanism.log_prob(z, 2.4)

    z, got = map(np.asarray, jax.jit(jax.vmap(both))(stacked, jax.random.split(jax.random.key(0), 2)))
    for i, mechanism in enumerate(many):
        assert float(z[i]) in mechanism.outputs
        assert float(got[i]) == pytest.approx(float(call("log_prob", mechanism, z[i], 2.4)), rel=1e-12)
    assert MECHANISM.batch_shape == () and MECHANISM.of_records((5,), slice(0, 2)) == MECHANISM


def test_specs_make_the_same_laws_and_rounded_outputs_are_recognised():
    assert ldp.mechanisms.mechanism_from_spec(json.loads(json.dumps(MECHANISM.spec()))) == MECHANISM
    rounded = MECHANISM.outputs.astype(np.float32)
    np.testing.assert_array_equal(ldp.Release(rounded, MECHANISM).values, MECHANISM.outputs)


def test_the_likelihood_is_the_integral_over_labels():
    law, mechanism = stats.norm(1.4, 1.1), MECHANISM
    got = by_channel(dist.Normal(1.4, 1.1), mechanism, mechanism.outputs)
    for i in range(0, len(mechanism.outputs), 3):
        level = mechanism.matrix[:, i]
        inside = integrate.quad(
            lambda x, level=level: law.pdf(x) * np.interp(x, NODES, level), 0, 4, points=NODES[1:-1], epsabs=1e-13
        )[0]
        expected = inside + law.cdf(0) * level[0] + law.sf(4) * level[-1]
        assert float(got[i]) == pytest.approx(np.log(expected), abs=1e-9)


@pytest.mark.parametrize(
    ("law", "reference"),
    [
        pytest.param(dist.Gamma(2.0, 1.3), stats.gamma(2, scale=1 / 1.3), marks=pytest.mark.slow, id="gamma"),
        pytest.param(dist.Poisson(1.7), stats.poisson(1.7), marks=pytest.mark.slow, id="poisson"),
    ],
)
def test_the_likelihoods_of_counts_and_of_skewed_labels_are_sums_and_integrals_over_them(law, reference):
    counts = np.arange(200)
    # the density of these is x times a smooth one: 40 nodes between neighbouring labels leave rounding
    t, w = np.polynomial.legendre.leggauss(40)
    half = np.diff(NODES)[:, None] / 2
    x, weights = NODES[:-1, None] + half * (1 + t), half * w
    if law.support.is_discrete:
        levels = [np.interp(counts, NODES, level) for level in MECHANISM.matrix.T]
        expected = np.array(levels) @ reference.pmf(counts)
    else:
        levels = np.array([np.interp(x, NODES, level) for level in MECHANISM.matrix.T])
        expected = (levels * weights * reference.pdf(x)).sum(axis=(1, 2)) + reference.sf(4) * MECHANISM.matrix[-1]
    got = log_prob(law, constant(MECHANISM), MECHANISM.outputs)
    np.testing.assert_allclose(got, np.log(expected), atol=1e-9)


@pytest.mark.slow
def test_the_sketch_of_unbiased_labels_has_their_likelihood_and_nothing_is_doubted():
    x = stats.norm(1.4, 1.1).ppf(np.arange(1, 400) / 400)
    release = ldp.Release(randomize(MECHANISM, x, seed=3), MECHANISM)
    sketch, law = release.sketch(), dist.Normal(1.4, 1.1)
    assert release.doubts == () and len(sketch.nodes) <= len(MECHANISM.outputs) and sketch.size == 399
    total = sketch.weights @ log_prob(law, MECHANISM, sketch.nodes)
    assert total == pytest.approx(log_prob(law, MECHANISM, release.values).sum(), rel=1e-12)
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
    _, direct = optimal_unbiased(NODES, np.array(hats), 1.3)
    np.testing.assert_allclose(mine.matrix, direct, atol=1e-9)
    assert len(UnbiasedRandomizer.optimal(HISTOGRAM, 1.3, nodes=4).nodes) == 4


MATRIX = np.array([[0.75, 0.25], [0.25, 0.75]])  # of the labels −1/2 and 1/2, released as −1 and 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: UnbiasedRandomizer(0.0, [-0.5, 0.5], [-1, 1], MATRIX),
            "epsilon must be a positive and finite number",
        ),
        (lambda: UnbiasedRandomizer([1.2, 2.0], [-0.5, 0.5], [-1, 1], MATRIX), "epsilon must be a positive"),
        (
            lambda: UnbiasedRandomizer(1.0, [-0.5, 0.5], [-1, 1], MATRIX),
            r"more than exp\(1\) times another, up to 1e-09; the",
        ),
        (lambda: UnbiasedRandomizer(1.2, [-0.5, 0.6], [-1, 1], MATRIX), "rows whose means are the nodes"),
        (lambda: UnbiasedRandomizer(1.2, [-0.5, 0.5], [-1, 1], MATRIX + 0.01), "rows that sum to one"),
        (lambda: UnbiasedRandomizer(1.2, [-0.5, 0.5], [-1, 1], np.eye(2)), r"matrix must be positive and finite"),
        (
            lambda: UnbiasedRandomizer(1.2, [-0.5, 0.5], [-1, 1], MATRIX[:1]),
            r"one row for each node, one column for each output, \(2, 2\)",
        ),
        (lambda: UnbiasedRandomizer(1.2, [0.5, -0.5], [-1, 1], MATRIX), "nodes must increase strictly"),
        (lambda: UnbiasedRandomizer(1.2, [-0.5, 0.5], [1, -1], MATRIX), "outputs must increase strictly"),
        (lambda: MECHANISM.randomize(jax.random.key(0), [0.1, np.nan]), r"x\[1\] = nan"),
        (
            lambda: ldp.Release([MECHANISM.outputs[0], 0.123], MECHANISM),
            r"1 values are not outputs, the first \(0.123\)",
        ),
        (lambda: UnbiasedRandomizer.optimal(HISTOGRAM, 0.0), "epsilon must be a positive and finite number, got 0.0"),
        (lambda: UnbiasedRandomizer.optimal(HISTOGRAM, 1.0, nodes=1), "nodes must be an integer of at least 2, got 1"),
        (lambda: UnbiasedRandomizer.optimal(HISTOGRAM, 1.0, nodes=[5.0, 6.0]), "degenerate: only 1 of 2 values"),
        (lambda: UnbiasedRandomizer.optimal(([1.0, 0.0], [1.0]), 1.0), "nodes must increase strictly"),
    ],
)
def test_what_is_wrong_with_unbiased_laws_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
