"""Stated privacy against hypothesis tests computed from the densities alone."""

import itertools

import jax
import numpy as np
import pytest

from ldpbayes.mechanisms import GaussianMechanism, LaplaceMechanism, RandomizedResponse

LOWER, UPPER = -1.0, 3.0
ADDITIVE = [
    pytest.param(lambda e: LaplaceMechanism(e, LOWER, UPPER), id="laplace"),
    pytest.param(lambda e: GaussianMechanism(e, 1e-5, LOWER, UPPER), id="gaussian"),
]


def masses(mechanism, inputs, cells=4000, nodes=10):
    """Integrate p(z | x) over cells of z for each input: an array (inputs, cells), Gauss-Legendre between the kinks."""
    reach = 42 * mechanism.scale
    # an even number of cells between the bounds, so that the inputs used here are cell edges
    inner = np.linspace(LOWER, UPPER, cells // 2 + 1)
    outer = np.geomspace(1, 1 + reach, cells // 4)[1:] - 1
    edges = np.concatenate([(LOWER - outer)[::-1], inner, UPPER + outer])
    t, w = np.polynomial.legendre.leggauss(nodes)
    half = np.diff(edges)[:, None] / 2
    z = edges[:-1, None] + half * (1 + t)
    with jax.enable_x64(True):
        density = np.exp(np.asarray(mechanism.log_prob(z, np.reshape(inputs, (-1, 1, 1)))))
    return np.sum(w * half * density, axis=-1)


def errors_of_likelihood_ratio_tests(null, alternative):
    """Errors (alpha, beta) of the tests that reject on the cells of largest likelihood ratio: Neyman-Pearson."""
    order = np.argsort(-alternative / np.maximum(null, 1e-300))
    alpha = np.concatenate([[0], np.cumsum(null[order])])
    return np.clip(alpha, 0, 1), 1 - np.concatenate([[0], np.cumsum(alternative[order])])


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("make", ADDITIVE)
def test_best_tests_between_the_bounds_lie_on_the_stated_curve(make, epsilon):
    mechanism = make(epsilon)
    null, alternative = masses(mechanism, [LOWER, UPPER])
    # the law is monotone in the likelihood ratio, so every cell edge is the threshold of an optimal test
    for p, q in ((null, alternative), (alternative, null)):
        alpha, beta = errors_of_likelihood_ratio_tests(p, q)
        np.testing.assert_allclose(beta, mechanism.guarantee.tradeoff(alpha), atol=1e-9)
        assert np.ptp(alpha) > 0.999


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("make", ADDITIVE)
def test_other_pairs_of_inputs_are_harder_to_tell_apart_than_stated(make, epsilon):
    mechanism = make(epsilon)
    # inputs beyond the bounds are clipped, so the first pair is the worst one again
    for pair, strictly in (((LOWER - 9, UPPER + 9), False), ((LOWER, 2.0), True), ((0.0, 1.0), True)):
        alpha, beta = errors_of_likelihood_ratio_tests(*masses(mechanism, pair))
        slack = beta - mechanism.guarantee.tradeoff(alpha)
        assert slack.min() > -1e-9
        assert (slack.max() > 1e-4) == strictly


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("make", ADDITIVE)
def test_hockey_stick_of_the_densities_is_the_stated_delta(make, epsilon):
    mechanism = make(epsilon)
    alpha, beta = errors_of_likelihood_ratio_tests(*masses(mechanism, [LOWER, UPPER]))
    for at in (0.0, epsilon / 2, epsilon, 2 * epsilon):
        # the supremum over tests, second order in the width of a cell
        assert mechanism.guarantee.delta(at) == pytest.approx(np.max(1 - beta - np.exp(at) * alpha), abs=2e-6)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 5.0])
@pytest.mark.parametrize("k", [2, 3, 6])
def test_every_test_between_categories_obeys_the_curve_and_its_corners_are_tests(k, epsilon):
    mechanism = RandomizedResponse(epsilon, k)
    codes = np.arange(k)
    with jax.enable_x64(True):
        table = np.exp(np.asarray(mechanism.log_prob(codes, codes[:, None])))
    regions = np.array(list(itertools.product([0, 1], repeat=k)))
    for x, other in itertools.permutations(range(k), 2):
        alpha, beta = np.clip(regions @ table[x], 0, 1), 1 - regions @ table[other]
        stated = mechanism.guarantee.tradeoff(alpha)
        assert np.all(beta >= stated - 1e-14)
        # all four corners of the polygon are attained; randomizing between them gives the rest
        best = errors_of_likelihood_ratio_tests(table[x], table[other])
        np.testing.assert_allclose(best[1], mechanism.guarantee.tradeoff(best[0]), atol=1e-14)
        stick = [np.sum(np.maximum(table[other] - np.exp(at) * table[x], 0)) for at in (0.0, epsilon / 2, epsilon)]
        np.testing.assert_allclose(mechanism.guarantee.delta([0.0, epsilon / 2, epsilon]), stick, atol=1e-14)


def test_gaussian_guarantee_reaches_the_pair_it_was_calibrated_for():
    for epsilon, delta in ((0.01, 1e-12), (1.0, 1e-5), (50.0, 1e-12), (50.0, 0.3)):
        guarantee = GaussianMechanism(epsilon, delta, LOWER, UPPER).guarantee
        assert guarantee.delta(epsilon) == pytest.approx(delta, rel=1e-10)
        assert guarantee.epsilon(delta) == pytest.approx(epsilon, rel=1e-10)


@pytest.mark.parametrize(
    "mechanism",
    [LaplaceMechanism(1.0, 0, 1), GaussianMechanism(1.0, 1e-6, 0, 1), RandomizedResponse(1.0, 3)],
    ids=lambda m: m.name,
)
def test_guarantee_states_its_budget_unit_and_trust_model(mechanism):
    guarantee = mechanism.guarantee
    assert (guarantee.unit, guarantee.trust_model) == ("record", "local")
    delta = 1e-6 if mechanism.name == "gaussian" else 0
    assert f"epsilon = 1 and delta = {delta:.4g}" in guarantee.statement()
