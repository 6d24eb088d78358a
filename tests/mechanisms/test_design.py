"""Intervals, half-widths, bins and unbiased outputs for labels, against searches that try everything."""

import itertools

import numpy as np
import pytest
from scipy import integrate, sparse
from scipy.optimize import linprog

from ldpbayes.mechanisms import RROnBins, optimal_half_width, optimal_interval
from ldpbayes.mechanisms.design import Histogram, checked_histogram, explained_variance, optimal_bins, optimal_unbiased
from tests.programs import call

ROUNDING = 1e-12


"""Sums of at most 40 probabilities, and their ratios, are exact to 40 times 2e-16; a hundred times that is allowed."""


def random_cases(count, seed=0):
    """Histograms with empty bins, ties and bins of very different widths, with budgets and half-widths."""
    rng = np.random.default_rng(seed)
    for case in range(count):
        bins = rng.integers(1, 41)
        widths = np.ones(bins) if case % 4 == 0 else rng.exponential(size=bins) + 1e-6
        nodes = rng.choice([0.0, -100.0, 3.0]) + 10 ** rng.uniform(-2, 2) * np.append(0, np.cumsum(widths))
        densities = rng.gamma(0.5, size=bins) * (rng.random(bins) < 0.8) if case % 3 else rng.integers(0, 3, bins)
        densities = densities.astype(float)
        densities[rng.integers(bins)] += 1
        yield nodes, densities, 10 ** rng.uniform(-2, 1), 10 ** rng.uniform(-2.5, 1) * (nodes[-1] - nodes[0])


def kept_probability(nodes, densities, epsilon, half_width, interval):
    """The probability that a label lies in the interval and is released near itself ([LH], 3.5)."""
    cumulative = np.append(0, np.cumsum(densities * np.diff(nodes)))
    low, high = np.interp(interval, nodes, cumulative / cumulative[-1])
    length = interval[1] - interval[0]
    return 2 * half_width * (high - low) / (2 * half_width + np.exp(-epsilon) * length)


def brute_force(nodes, densities, epsilon, half_width):
    """Largest objective over all pairs of nodes."""
    cumulative = np.append(0, np.cumsum(densities * np.diff(nodes)))
    cumulative /= cumulative[-1]
    total = 2 * half_width + np.exp(-epsilon) * np.subtract.outer(nodes, nodes)
    values = 2 * half_width * np.subtract.outer(cumulative, cumulative) / np.where(total > 0, total, np.inf)
    return np.tril(values, -1).max()


def algorithm_1(nodes, densities, epsilon, half_width):
    """[LH], Algorithm 1: nodes and interior critical points of every pair of bins."""
    densities = densities / (densities @ np.diff(nodes))
    cumulative, keep = np.append(0, np.cumsum(densities * np.diff(nodes))), np.exp(-epsilon)

    def objective(low, high):
        if not low < high:
            return 0.0
        inside = np.interp(high, nodes, cumulative) - np.interp(low, nodes, cumulative)
        return 2 * half_width * inside / (2 * half_width + keep * (high - low))

    best = 0.0
    for i in range(len(densities)):
        for j in range(i, len(densities)):
            lows, highs = [nodes[i], nodes[i + 1]], [nodes[j], nodes[j + 1]]
            h = densities[i] * nodes[i + 1] + (cumulative[j] - cumulative[i + 1]) - densities[j] * nodes[j]
            bend = keep * (densities[j] - densities[i])
            if bend:
                low = (2 * half_width * densities[j] - keep * h) / bend
                high = (2 * half_width * densities[i] - keep * h) / bend
                lows += [low] if nodes[i] < low < nodes[i + 1] else []
                highs += [high] if nodes[j] < high < nodes[j + 1] else []
            best = max([best] + [objective(low, high) for low in lows for high in highs])
    return best


def test_the_optimal_interval_is_that_of_brute_force_over_nodes():
    for nodes, densities, epsilon, half_width in random_cases(1000):
        found = optimal_interval((nodes, densities), epsilon, half_width)
        assert set(found) <= set(nodes)
        best = brute_force(nodes, densities, epsilon, half_width)
        value = kept_probability(nodes, densities, epsilon, half_width, found)
        np.testing.assert_allclose(value, best, rtol=ROUNDING)


def test_the_optimal_interval_is_never_below_the_papers_algorithm():
    for nodes, densities, epsilon, half_width in random_cases(60, seed=1):
        found = optimal_interval((nodes, densities), epsilon, half_width)
        value = kept_probability(nodes, densities, epsilon, half_width, found)
        assert value >= algorithm_1(nodes, densities, epsilon, half_width) * (1 - ROUNDING)


def test_the_optimal_interval_of_simple_priors():
    assert optimal_interval(([0, 1], [3]), 1.0, 0.1) == (0, 1)  # one bin, not normalised
    assert optimal_interval(([0, 1, 2, 3], [0, 1, 0]), 1e-3, 100.0) == (1, 2)  # empty bins at the ends are cut off
    assert optimal_interval(([0, 1, 2, 3, 4], [0, 1, 0, 1]), np.inf, 0.1) == (1, 4)  # without privacy, the support
    assert optimal_interval(([0, 1, 11], [0.9, 0.01]), 0.1, 0.1) == (0, 1)  # a thin tail is not worth its length
    assert optimal_interval(([0, 1, 11], [0.9, 0.01]), 20.0, 0.1) == (0, 11)  # with little privacy it is


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3.0, "pair"),
        (([0, 1],), "pair"),
        (([0, 1], [1, 1]), "k \\+ 1 nodes"),
        (([], []), "nodes"),
        (([0.0], [1.0]), "k \\+ 1 nodes"),
        (([0, 2, 1], [1, 1]), "nodes must increase strictly"),
        (([0, 1, 1], [1, 1]), "nodes must increase strictly"),
        (([0, np.nan, 1], [1, 1]), "finite"),
        (([0, 1, 2], [1, -1]), "non-negative"),
        (([0, 1, 2], [1, np.inf]), "finite"),
        (([0, 1, 2], [0, 0]), "degenerate"),
    ],
)
def test_what_is_no_histogram_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        optimal_interval(given, 1.0, 0.1)


@pytest.mark.parametrize(("epsilon", "half_width"), [(0.0, 1.0), (np.nan, 1.0), (1.0, 0.0), (1.0, np.inf), (1.0, -1)])
def test_numbers_out_of_range_are_refused(epsilon, half_width):
    histogram = [0, 1, 2], [1, 1]
    with pytest.raises(ValueError, match=r"epsilon|half_width"):
        optimal_interval(histogram, epsilon, half_width)
    if epsilon != 1.0:
        with pytest.raises(ValueError, match="epsilon"):
            optimal_half_width(histogram, epsilon)


def test_the_moments_and_quantiles_of_a_histogram():
    histogram = checked_histogram(([0, 1, 3, 4], [2, 0, 6]))
    np.testing.assert_allclose(histogram.probabilities, [0.25, 0, 0.75])
    assert histogram.mean == pytest.approx(0.25 * 0.5 + 0.75 * 3.5)
    assert histogram.standard_deviation == pytest.approx(np.sqrt(0.25 * 0.75 * 9 + 1 / 12))
    np.testing.assert_allclose(histogram.quantiles([0, 0.125, 0.625, 1]), [0, 0.5, 3.5, 4])
    assert histogram.highest_density_interval(0.5) == (3, 4)
    assert histogram.highest_density_interval(0.9) == (0, 4)
    assert checked_histogram((np.linspace(0, 1, 8), np.ones(7))).highest_density_interval(0.5) == (0, 1)
    assert checked_histogram((range(6), [0, 1, 5, 3, 0])).highest_density_interval(1.0) == (1, 4)
    inside = histogram.within(0.5, 3.5)
    np.testing.assert_allclose(inside.nodes, [0.5, 1, 3, 3.5])
    np.testing.assert_allclose(inside.probabilities, [0.25, 0, 0.75])
    np.testing.assert_allclose(histogram.within(-1, 5).probabilities, [0, 0.25, 0, 0.75, 0])
    with pytest.raises(ValueError, match="degenerate"):
        histogram.within(1.5, 2)


SKEWED = Histogram(np.array([0.0, 0.2, 0.5, 1.0]), np.array([3.0, 1.0, 0.2]))
PRIOR = checked_histogram(SKEWED)


def explained_by_quadrature(histogram, epsilon, interval, half_width):
    """Var E[Y | Z] / Var Y with both integrals by adaptive quadrature, from the conditional density alone."""
    nodes, densities = checked_histogram(histogram)
    lower, upper = interval
    total = 2 * half_width + np.exp(-epsilon) * (upper - lower)

    def over_labels(function, cuts=()):
        cuts = np.unique(np.clip(np.concatenate([nodes, cuts]), nodes[0], nodes[-1]))
        middles = (cuts[1:] + cuts[:-1]) / 2
        levels = densities[np.clip(np.searchsorted(nodes, middles) - 1, 0, len(densities) - 1)]
        return sum(
            level * integrate.quad(function, *ends)[0]
            for level, ends in zip(levels, itertools.pairwise(cuts), strict=True)
        )

    mean = over_labels(lambda y: y)

    def integrand(z):
        def density(y):
            near = abs(np.clip(y, lower, upper) - z) <= half_width
            return (1.0 if near else np.exp(-epsilon)) / total

        cuts = [z - half_width, z + half_width]
        covariance = over_labels(lambda y: (y - mean) * density(y), cuts)
        return covariance**2 / over_labels(density, cuts)

    ends = lower - half_width, upper + half_width
    kinks = np.unique(
        np.clip(
            np.concatenate(
                [
                    nodes - half_width,
                    nodes + half_width,
                    np.add.outer([lower, upper], [-half_width, half_width]).ravel(),
                ]
            ),
            *ends,
        )
    )
    pieces = itertools.pairwise(kinks)
    whole = sum(integrate.quad(integrand, *piece, epsabs=1e-9)[0] for piece in pieces)
    return whole / over_labels(lambda y: (y - mean) ** 2)


# Quadrature is asked for 1e-9 in each of at most 12 pieces, of a variance of 0.06.
@pytest.mark.parametrize(("epsilon", "interval", "half_width"), [(1.0, (0.0, 1.0), 0.3), (3.0, (0.1, 0.6), 0.1)])
def test_explained_variance_is_that_of_the_conditional_density(epsilon, interval, half_width):
    expected = explained_by_quadrature(SKEWED, epsilon, interval, half_width)
    assert explained_variance(PRIOR, epsilon, interval, half_width) == pytest.approx(expected, abs=3e-7)


@pytest.mark.parametrize(
    "epsilon", [0.5, 12.0, pytest.param(1e-3, marks=pytest.mark.slow), pytest.param(3.0, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("interval", [None, (0.1, 0.7), optimal_interval], ids=["whole", "given", "chosen"])
def test_no_half_width_explains_more_than_the_optimal_one(epsilon, interval):
    found = optimal_half_width(SKEWED, epsilon, interval=interval)
    assert explained_variance(PRIOR, epsilon, found.interval, found.half_width) == found.explained
    for half_width in np.geomspace(1e-4, 1, 300):
        chosen = interval(SKEWED, epsilon, half_width) if callable(interval) else found.interval
        # the search stops 1e-5 from the best log-width, where the criterion is flat
        assert explained_variance(PRIOR, epsilon, chosen, half_width) <= found.explained * (1 + 1e-6)


def test_the_half_width_scales_with_the_labels_and_falls_with_the_budget():
    nodes, densities = SKEWED
    one = optimal_half_width(SKEWED, 1.0)
    thousand = optimal_half_width((7 + 1000 * nodes, densities), 1.0)
    assert thousand.half_width == pytest.approx(1000 * one.half_width, rel=1e-3)
    assert thousand.explained == pytest.approx(one.explained, rel=1e-6)
    widths = [optimal_half_width(SKEWED, epsilon).half_width for epsilon in (0.1, 1, 2, 4, 8, 16)]
    assert np.all(np.diff(widths) < 0)
    assert optimal_half_width(([0, 1], [1]), 1e-4).half_width == pytest.approx(0.388, abs=0.005)


def test_merging_the_bins_of_a_fine_prior_hardly_changes_what_is_explained():
    nodes = np.linspace(0, 1, 5001)
    fine = Histogram(nodes, np.exp(-3 * nodes[1:]))
    coarse = Histogram(nodes[::20], np.exp(-3 * nodes[1:]).reshape(-1, 20).mean(axis=1))
    # a bin of 256 hides the squares of labels' distances within it: 1/256² of the whole, and a little more in the tail
    assert explained_variance(fine, 1.0, (0, 1), 0.2) == pytest.approx(
        explained_variance(coarse, 1.0, (0, 1), 0.2), rel=1e-3
    )


@pytest.mark.parametrize("interval", [(1, 0), (0, np.nan), 3.0])
def test_what_is_no_interval_is_refused(interval):
    with pytest.raises(ValueError, match=r"interval|lower"):
        optimal_half_width(SKEWED, 1.0, interval=interval)


def assignments(k):
    """Every way to give k labels an output each: partitions of any kind, not only into intervals."""
    for places in itertools.product(range(k), repeat=k):
        if all(place <= max(places[:i], default=-1) + 1 for i, place in enumerate(places)) and max(places):
            yield np.array(places)


def loss_of(values, p, outputs, matrix):
    return p @ np.sum(matrix * (outputs - values[:, None]) ** 2, axis=1)


def loss_of_bins(values, p, epsilon, edges, outputs):
    own = np.searchsorted(edges, values)[:, None] == np.arange(len(outputs))
    return loss_of(values, p, outputs, np.where(own, np.exp(epsilon), 1) / (np.exp(epsilon) + len(edges)))


@pytest.mark.usefixtures("x64")
def test_optimal_bins_equal_brute_force_over_all_partitions():
    rng = np.random.default_rng(1)
    for case in range(12):
        k, epsilon = rng.integers(2, 7), rng.uniform(0.1, 4)
        values, p = np.sort(rng.normal(size=k)), rng.dirichlet(np.full(k, 0.5))
        losses = []
        for places in assignments(k):
            weights = p * np.where(places == np.arange(places.max() + 1)[:, None], np.exp(epsilon), 1)
            means = weights @ values / weights.sum(axis=1)
            losses.append(np.sum(weights * (values - means[:, None]) ** 2) / (np.exp(epsilon) + places.max()))
        edges, outputs = optimal_bins(values, p, epsilon)
        assert loss_of_bins(values, p, epsilon, edges, outputs) == pytest.approx(min(losses), rel=1e-12)
        if case < 3:  # each number of labels compiles the moments anew
            bins = RROnBins(epsilon, [values[0], *edges, values[-1]], outputs)
            mean, variance = call("moments", bins, values)
            assert p @ (variance + (mean - values) ** 2) == pytest.approx(min(losses), rel=1e-12)


def test_no_mechanism_of_the_budget_does_better_on_any_outputs():
    values, p, epsilon = np.array([0.0, 1.0, 2.5, 3.0]), np.array([0.4, 0.1, 0.2, 0.3]), 1.0
    edges, released = optimal_bins(values, p, epsilon)
    outputs = np.concatenate([np.linspace(-1, 4, 41), released])
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
    found = loss_of_bins(values, p, epsilon, edges, released)
    assert best.fun == pytest.approx(found, rel=1e-6)  # the solver's tolerance is 1e-7


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("k", [2, 3, 9])
def test_unbiased_laws_sum_to_one_and_their_worst_ratio_is_the_budget(epsilon, k):
    values, p = np.linspace(-3.0, 11.0, k), np.exp(-np.arange(k))
    outputs, matrix = optimal_unbiased(values, p, epsilon)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-14)
    np.testing.assert_allclose(matrix @ outputs, values, atol=1e-12 * 14)
    assert np.max(matrix.max(axis=0) / matrix.min(axis=0)) == pytest.approx(np.exp(epsilon), rel=1e-12)
    assert matrix.min() > 1e-10 * np.exp(-epsilon)  # no output is there by the solver's tolerance


def test_two_labels_have_the_optimum_that_is_known():
    """Labels −1 and 1 are released as ±coth(epsilon/2), of variance coth² − 1."""
    for epsilon in (0.2, 1.0, 4.0):
        values, p = np.array([-1.0, 1.0]), np.array([0.3, 0.7])
        outputs, matrix = optimal_unbiased(values, p, epsilon)
        np.testing.assert_allclose(outputs, [-1 / np.tanh(epsilon / 2), 1 / np.tanh(epsilon / 2)], rtol=1e-12)
        assert loss_of(values, p, outputs, matrix) == pytest.approx(1 / np.sinh(epsilon / 2) ** 2, rel=1e-10)


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
        chosen, matrix = optimal_unbiased(values, p, epsilon, outputs)
        assert set(chosen) <= set(outputs)
        best = plain(values, p, epsilon, outputs, "highs-ipm")
        assert loss_of(values, p, chosen, matrix) == pytest.approx(best, rel=1e-6)  # its tolerance


@pytest.mark.parametrize(("epsilon", "share"), [(3.0, 2e-3), pytest.param(0.5, 2e-4, marks=pytest.mark.slow)])
def test_default_outputs_are_fine_enough(epsilon, share):
    values, p = np.linspace(-1, 1, 9), np.exp(-(np.linspace(-2, 2, 9) ** 2))
    p = p / p.sum()
    reach = 1.6 / np.tanh(epsilon / 2)
    fine = optimal_unbiased(values, p, epsilon, np.union1d(values, np.linspace(-reach, reach, 801)))
    coarse = optimal_unbiased(values, p, epsilon)
    assert loss_of(values, p, *coarse) == pytest.approx(loss_of(values, p, *fine), rel=share)


def test_outputs_that_reach_just_far_enough_have_a_solution():
    values, p, epsilon = np.array([0.0, 0.2, 1.0]), np.ones(3), 0.7
    reach = 0.5 / np.tanh(epsilon / 2)
    outputs = 0.5 + np.linspace(-reach, reach, 21)
    chosen, matrix = optimal_unbiased(values, p, epsilon, outputs)
    np.testing.assert_allclose(matrix @ chosen, values, atol=1e-12)
    assert np.max(matrix.max(axis=0) / matrix.min(axis=0)) <= np.exp(epsilon) * (1 + 1e-12)
