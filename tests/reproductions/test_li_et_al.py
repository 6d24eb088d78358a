"""Expectation maximisation for the square wave mechanism, with smoothing and without."""

import jax
import numpy as np
import pytest
from scipy import stats

from ldpbayes.mechanisms import SquareWaveMechanism
from reproductions.li_et_al import ems, transitions

MECHANISM = SquareWaveMechanism(2.0, 0.0, 1.0)
BINS = 64


@pytest.fixture(scope="module")
def released():
    x = np.random.default_rng(0).beta(5, 2, 50_000)
    return np.asarray(jax.jit(MECHANISM.randomize)(jax.random.key(0), x))


def test_columns_of_the_transition_matrix_are_laws_and_reach_the_half_width():
    matrix, edges = transitions(MECHANISM, BINS, BINS)
    np.testing.assert_allclose(matrix.sum(axis=0), 1)
    assert edges[0] == pytest.approx(-MECHANISM.half_width, rel=1e-6)
    # midpoints of cells that a jump cuts are off by a share of the cell
    assert matrix.max() / matrix.min() == pytest.approx(np.exp(2.0), rel=3e-3)


def test_em_without_smoothing_never_lowers_the_likelihood(released):
    _, trace = ems(released, MECHANISM, BINS, smooth=False, tolerance=0.0, max_iterations=300)
    assert np.diff(trace).min() > -1e-7 and trace[-1] > trace[0] + 100


def test_ems_recovers_a_beta_law_better_than_the_histogram_of_released_values(released):
    """The seed is fixed. Over 20 seeds the Wasserstein distance of EMS was 0.003 to 0.005 (histogram 0.106 to 0.110),
    its total variation 0.02 to 0.04 (EM without smoothing 0.04 to 0.16).
    """
    edges = np.linspace(0, 1, BINS + 1)
    truth = np.diff(stats.beta(5, 2).cdf(edges))
    shares, _ = ems(released, MECHANISM, BINS)
    raw, _ = ems(released, MECHANISM, BINS, smooth=False)
    naive = np.histogram(released.clip(0, 1), edges)[0] / len(released)
    distance, naive_distance = (np.abs(np.cumsum(each - truth)).mean() for each in (shares, naive))
    variation, raw_variation = (np.abs(each - truth).sum() / 2 for each in (shares, raw))
    assert distance < 0.01 < 0.1 < naive_distance
    assert variation < raw_variation
