"""Frequencies from count-mean sketches: the published formula, collisions, and coverage in simulation."""

import jax
import numpy as np
import pytest
import xxhash
from scipy.linalg import hadamard

import ldpbayes as ldp
from ldpbayes.mechanisms import CountMeanSketch, HadamardCountMeanSketch

D, K, M, EPSILON = 300, 32, 64, 2.0
MAKE = {"bits": CountMeanSketch, "signs": HadamardCountMeanSketch}
SLOW = pytest.mark.slow
both = pytest.mark.parametrize("make", [pytest.param(CountMeanSketch, marks=SLOW), HadamardCountMeanSketch], ids=MAKE)
FLAT = np.full(D, 1 / D)
STEEP = np.append([0.5, 0.2], np.full(D - 2, 0.3 / (D - 2)))


def drawn(make, theta, n, seed, d=D):
    x = np.random.default_rng(seed).choice(len(theta), n, p=theta)
    mechanism = make(EPSILON, d, K, M)
    return ldp.Release(jax.jit(type(mechanism).randomize)(mechanism, jax.random.key(seed), x), mechanism)


def published(release):
    """The estimates of [Apple], without a correction of collisions: m/(m − 1) (mean cell − N/m)/N."""
    table = np.zeros((K, M))
    if isinstance(release.mechanism, CountMeanSketch):
        gain = (np.exp(EPSILON / 2) + 1) / (np.exp(EPSILON / 2) - 1)
        for j, *words in release.values.tolist():
            bits = np.array([word >> i & 1 for word in words for i in range(32)])[:M]
            table[j] += K * (gain / 2 * (2 * bits - 1) + 0.5)
    else:
        gain = (np.exp(EPSILON) + 1) / (np.exp(EPSILON) - 1)
        for j, column in release.values.tolist():
            table[j, column % M] += K * gain * (1 if column < M else -1)
        table = table @ hadamard(M)
    n, cells = release.count, [[xxhash.xxh32(str(x), seed=j).intdigest() % M for j in range(K)] for x in range(D)]
    return np.array([M / (M - 1) * (table[np.arange(K), cell].mean() - n / M) / n for cell in cells])


@both
def test_estimates_are_the_published_ones_where_no_share_is_large(make):
    release = drawn(make, FLAT, 3000, 1)
    estimate = ldp.frequencies(release)
    np.testing.assert_allclose(estimate.params, published(release), atol=1e-10)
    np.testing.assert_allclose(np.sqrt(np.diagonal(estimate.covariance)), estimate.standard_error, rtol=0.04)


@both
def test_what_large_shares_add_to_others_is_subtracted(make):
    """The bias of the published estimate, given the hash functions, is known from them."""
    release, mechanism = drawn(make, STEEP, 40_000, 3), make(EPSILON, D, K, M)
    estimate = ldp.frequencies(release)
    cells = np.array([[xxhash.xxh32(str(x), seed=j).intdigest() % M for j in range(K)] for x in range(D)])
    alike = (cells[:, None] == cells).mean(axis=2)
    excess = ((alike - 1 / M) * M / (M - 1)) @ STEEP - STEEP  # of the others
    np.testing.assert_allclose(mechanism.collisions(STEEP), excess, atol=1e-6)
    large = np.where(np.arange(D) < 2, estimate.params, 0.0)
    added = ((alike - 1 / M) * M / (M - 1)) @ large - large
    np.testing.assert_allclose(estimate.params, published(release) - added, atol=1e-4)  # by steps
    assert np.std((published(release) - STEEP) / estimate.standard_error) > 1.3  # what would be missed
    assert estimate.contrast({"0": 1, "1": -1}).interval[0] < 0.3 < estimate.contrast({"0": 1, "1": -1}).interval[1]


@pytest.mark.slow
@both
@pytest.mark.parametrize("theta", [pytest.param(FLAT, marks=SLOW), STEEP], ids=["flat", "steep"])
def test_intervals_cover(make, theta):
    """Of 300 categories in ten data sets, whose errors are hardly correlated: 90 % within a 99 % band for 3,000."""
    covered = []
    for seed in range(10):
        low, high = ldp.frequencies(drawn(make, theta, 5000, seed)).interval(0.9)
        covered.append(np.mean((low <= theta) & (theta <= high)))
    band = 2.6 * max(np.sqrt(0.09 / 3000), np.std(covered, ddof=1) / np.sqrt(10))
    assert abs(np.mean(covered) - 0.9) < band


def test_parts_of_the_released_values_change_nothing(monkeypatch):
    release = drawn(CountMeanSketch, FLAT, 1000, 3)
    whole = ldp.frequencies(release)
    monkeypatch.setattr("ldpbayes.estimation._frequencies.COPIED_AT_ONCE", 300)
    monkeypatch.setattr("ldpbayes.estimation._frequencies.PROBED_VALUES", 50)  # all different: they are not counted
    parts = ldp.frequencies(release)
    np.testing.assert_allclose(parts.params, whole.params, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(parts.standard_error, whole.standard_error, rtol=1e-9)


@SLOW
def test_maximum_likelihood_knows_the_collisions():
    release = drawn(HadamardCountMeanSketch, STEEP, 40_000, 4)
    likeliest = ldp.frequencies(release, "mle", max_iterations=50, tolerance=0.1)
    assert abs(likeliest.params[:2] - STEEP[:2]).max() < 0.05


def test_subgroups_are_for_maximum_likelihood():
    release = drawn(CountMeanSketch, FLAT, 100, 6)
    with pytest.raises(ValueError, match="only with method='mle'"):
        ldp.frequencies(release, domain=np.arange(100) < 50)


@SLOW
def test_a_hundred_thousand_categories():
    theta = np.zeros(100_000)
    theta[::1000] = 0.01
    for make in (lambda *a: ldp.HadamardResponse(*a[:2]), CountMeanSketch, HadamardCountMeanSketch):
        estimate = ldp.frequencies(drawn(make, theta, 50_000, 5, d=len(theta)))
        z = (estimate.params - theta) / estimate.standard_error
        assert abs(np.std(z) - 1) < 0.03
