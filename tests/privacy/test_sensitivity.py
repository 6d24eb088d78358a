"""Sensitivities of regression statistics against random and optimised pairs of records, which know no formula."""

import numpy as np
import pytest
from scipy.optimize import minimize

from ldpbayes.privacy import linear_sensitivity, linear_sensitivity_bound, logistic_sensitivity

ROUNDING = 1 + 1e-13  # a distance is a sum of at most 15 squares, each rounded a few times

# the best pair of two covariates or more has y = ±q and, of the other, y = 0, the small root, or the bound, with an
# inner product in the ball and at its end; with one covariate it has x = y = 0, either small root, or both bounds
WINNERS = [
    pytest.param(1.0, 2.0, (1.0, 1.0, 1.0), id="no-response"),
    pytest.param(1.0, 1.0, (1.0, 1.0, 1.0), id="inner-product-in-the-ball"),
    pytest.param(1.0, 1.0, (3.0, 1.0, 3.0), id="opposite-ends"),
    pytest.param(1.5, 1.2, (14.0, 2.5, 1.0), id="small-response"),
    pytest.param(1.5, 1.2, (2.0, 5.0, 20.0), id="second-moments-prevail"),
    pytest.param(2.0, 1.0, (1.1, 1.0, 2.0), id="one-covariate-small-x"),
]


def statistics(x, y, ratios, root):
    """Second moments, products and, where there is a third block, y², in units of the first block's noise."""
    d = x.shape[-1]
    j, k = np.triu_indices(d, 1)
    parts = [x**2, root * x[..., j] * x[..., k], y[..., None] * x * (ratios[0] / ratios[1])]
    if len(ratios) == 3:
        parts.append(y[..., None] ** 2 * (ratios[0] / ratios[2]))
    return np.concatenate(parts, axis=-1)


def largest_distance(first, second, ratios):
    """Of the pairs, with off-diagonals scaled and not."""
    distances = [
        np.linalg.norm(statistics(*first, ratios, root) - statistics(*second, ratios, root), axis=-1)
        for root in (np.sqrt(2), 1.0)
    ]
    return np.max(distances)


def random_records(rng, count, d, radius):
    """Half of the covariates on the sphere, half uniform inside."""
    x = rng.standard_normal((count, d))
    x *= radius / np.linalg.norm(x, axis=-1, keepdims=True)
    x[count // 2 :] *= rng.uniform(size=(count - count // 2, 1)) ** (1 / d)
    return x[rng.permutation(count)]


def logistic_bound(radius, ratios):
    """The upper bound of [KJKH] Lemma 13.1."""
    product = (ratios[0] / ratios[1] / radius) ** 2
    return radius**2 * np.sqrt(2 + 2 * product + product**2 / 2)


def no_random_pair_exceeds(rng, settings, pairs):
    for _ in range(settings):
        d = int(rng.integers(1, 5))
        radius, bound, *ratios = np.exp(rng.uniform(-1.5, 1.5, 5)).tolist()
        covariates = [random_records(rng, pairs, d, radius) for _ in range(2)]
        responses = np.clip(rng.uniform(-1.5 * bound, 1.5 * bound, (2, pairs)), -bound, bound)  # a third at the bounds
        found = largest_distance(*zip(covariates, responses, strict=True), ratios)
        exact = linear_sensitivity(d, radius, bound, ratios)
        assert 0 < found <= exact * ROUNDING
        assert exact <= linear_sensitivity_bound(radius, bound, ratios) * ROUNDING
        labels = rng.choice([-1.0, 1.0], (2, pairs))
        found = largest_distance(*zip(covariates, labels, strict=True), ratios[:2])
        exact = logistic_sensitivity(d, radius, ratios[:2])
        assert 0 < found <= exact * ROUNDING
        assert exact <= logistic_bound(radius, ratios[:2]) * ROUNDING


def test_no_pair_of_random_records_exceeds_the_sensitivity():
    no_random_pair_exceeds(np.random.default_rng(0), settings=100, pairs=1_000)


@pytest.mark.slow
def test_no_pair_of_ten_million_random_records_exceeds_the_sensitivity():
    no_random_pair_exceeds(np.random.default_rng(1), settings=1_000, pairs=10_000)


def attained(d, radius, ratios, bound, labels, root, rng):
    """The largest distance that a local optimiser finds from random starts."""

    def records(free):
        # polar coordinates with d <= 2: every record is in the box of radii and angles
        radii, angles, y = free[:2], free[2:4], free[4:]
        x = np.stack([np.cos(angles), np.sin(angles)], -1) if d == 2 else np.ones((2, 1))
        return radii[:, None] * x, y if labels is None else np.asarray(labels)

    def objective(free):
        x, y = records(free)
        one, other = statistics(x, y, ratios, root)
        return -np.sum((one - other) ** 2)

    # one covariate keeps its sign: that of the response does as well
    box = [(0, radius)] * 2 + [(0, 2 * np.pi)] * 2 + [(-bound, bound)] * 2
    low, high = np.transpose(box)
    runs = [minimize(objective, rng.uniform(low, high), method="L-BFGS-B", bounds=box) for _ in range(8)]
    return np.sqrt(-min(run.fun for run in runs))


@pytest.mark.parametrize(
    ("d", "radius", "bound", "ratios"),
    [
        pytest.param(d, *each.values, id=f"{each.id}-{d}", marks=[] if d == best else pytest.mark.slow)
        for each in WINNERS
        for best in (1 if each.id.startswith("one") else 2,)  # the number of covariates that the pair is named for
        for d in (1, 2)
    ],
)
def test_an_optimiser_attains_the_linear_sensitivity_with_either_scaling(d, radius, bound, ratios):
    rng = np.random.default_rng(2)
    exact = linear_sensitivity(d, radius, bound, ratios)
    for root in (np.sqrt(2), 1.0):
        # a local optimum to the optimiser's own tolerance, and never more than the largest
        assert attained(d, radius, ratios, bound, None, root, rng) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("ratio", [0.6, 1.3, 1.5, *(pytest.param(r, marks=pytest.mark.slow) for r in (0.2, 4.0))])
def test_an_optimiser_attains_the_logistic_sensitivity_with_either_scaling(d, ratio):
    rng = np.random.default_rng(3)  # the ratios √½ and √2 part the kinds of best pairs of one covariate and of two
    radius, ratios = 0.7, (0.7 * ratio, 1.0)
    exact = logistic_sensitivity(d, radius, ratios)
    for root in (np.sqrt(2), 1.0):
        # with one covariate x is not negative here, so that the best labels differ; with two they make no difference
        found = attained(d, radius, ratios, 1.0, [1, -1], root, rng)
        assert found == pytest.approx(exact, rel=1e-6)


def best_pairs(radius, bound, ratios, covariates):
    """Squared distances on a fine grid of norms, responses and inner products, from the definition."""
    c1, c2 = ratios[0] ** 2 / ratios[1] ** 2, ratios[0] ** 2 / ratios[2] ** 2
    a, b, s, y, w = np.meshgrid(*[np.linspace(0, 1, 13)] * 5, sparse=True)
    a, b, y, w = radius * a, radius * b, bound * y, bound * w
    s = a * b * (s if covariates > 1 else 1.0)
    squared = a**4 + b**4 - 2 * s**2 + c1 * ((a * y) ** 2 + (b * w) ** 2 + 2 * y * w * s) + c2 * (y**2 - w**2) ** 2
    return np.sqrt(np.max(squared))


@pytest.mark.parametrize("covariates", [1, 2])
def test_no_pair_on_a_grid_exceeds_the_sensitivity_and_some_come_near(covariates):
    rng = np.random.default_rng(4)
    nearest = []
    for _ in range(40):
        radius, bound, *ratios = np.exp(rng.uniform(-1.5, 1.5, 5)).tolist()
        exact = linear_sensitivity(covariates, radius, bound, ratios)
        nearest.append(best_pairs(radius, bound, ratios, covariates) / exact)
    # in each coordinate the grid is within 1/24 of the best pair, at which the distance has slope zero or which is on
    # the grid's edge, so that the squared distance lacks a few times 1/24²
    assert max(nearest) <= ROUNDING and min(nearest) > 1 - 0.01


def test_values_of_unit_radius_and_equal_scales_are_the_known_ones():
    for bound, squared, of_the_lemma in ((1.0, 4.5, 2.3452), (2.0, 22.0, 5.8310), (0.5, 2.53125, 1.6105)):
        for d in (2, 3, 10):
            assert linear_sensitivity(d, 1.0, bound) == pytest.approx(np.sqrt(squared), rel=1e-15)
        assert linear_sensitivity_bound(1.0, bound) == pytest.approx(of_the_lemma, abs=5e-5)
    assert logistic_sensitivity(2, 1.0) == pytest.approx(np.sqrt(4.5), rel=1e-15)
    # one covariate: from (1, 1) to (−1, 1), and from (1, 2) to (0, 0)
    assert linear_sensitivity(1, 1.0, 1.0) == logistic_sensitivity(1, 1.0) == 2
    assert linear_sensitivity(1, 1.0, 2.0) == pytest.approx(np.sqrt(21), rel=1e-15)


def test_the_logistic_bound_is_reached_until_the_inner_product_leaves_the_ball():
    for ratio in (0.1, 1.0, 1.414):
        assert logistic_sensitivity(2, 1.0, (ratio, 1.0)) == pytest.approx(logistic_bound(1.0, (ratio, 1)))
    assert logistic_sensitivity(2, 1.0, (4.0, 1.0)) == pytest.approx(8.0)


def test_units_and_a_common_factor_of_the_ratios_do_not_matter():
    for d in (1, 2):
        one = linear_sensitivity(d, 1.3, 0.4, (1.0, 2.0, 0.3))
        # x in a unit ten times smaller, y in one five times smaller, the noise likewise
        other = linear_sensitivity(d, 13.0, 2.0, (700.0, 700.0, 52.5))
        assert other == pytest.approx(100 * one, rel=1e-14)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_where_one_block_is_nearly_without_noise_its_range_is_the_sensitivity(size):
    for d in (1, 2):
        # y² is from 0 to q², y·x from −qR to qR, xxᵀ from zero to R² in the one direction, and from R² in another
        found = [
            linear_sensitivity(d, size, size, (1.0, 1.0, 1e-40)),
            logistic_sensitivity(d, size, (1e40 * size, 1.0)),
            linear_sensitivity(d, size, size, (1.0, 1e40, 1e40)),
        ]
        np.testing.assert_allclose(found, np.array([1e40, 2e40, d**0.5]) * size**2, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linear_sensitivity(0, 1.0, 1.0), "covariates must be an integer of at least 1, got 0"),
        (lambda: logistic_sensitivity(1.5, 1.0), "covariates must be an integer of at least 1, got 1.5"),
        (lambda: linear_sensitivity(1, 0.0, 1.0), "radius must be a positive and finite number, got 0.0"),
        (lambda: linear_sensitivity_bound(1.0, np.inf), "response_bound must be a positive and finite number, got inf"),
        (lambda: logistic_sensitivity(1, [1.0]), "radius must be a positive and finite number"),
        (lambda: linear_sensitivity(1, 1.0, 1.0, (1.0, 1.0)), "ratios must be 3 positive and finite numbers"),
        (lambda: logistic_sensitivity(1, 1.0, (1.0, np.nan)), r"ratios must be 2 .* numbers, got ratios\[1\] = nan"),
        (lambda: linear_sensitivity(2, 1e-200, 1.0), "the sensitivity would be"),
        (lambda: linear_sensitivity(2, 1e200, 1.0), "the sensitivity would be inf"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
