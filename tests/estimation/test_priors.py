"""Priors of labels: the histogram of released ones, and the law behind them."""

import numpy as np
import pytest

import ldpbayes as ldp
from ldpbayes.estimation import label_prior

N = 20_000
RNG = np.random.default_rng(0)
LABELS = np.clip(RNG.beta(2, 5, N), 0, 1)


def released(epsilon, labels=LABELS, lower=0.0, upper=1.0):
    noise = np.random.default_rng(1).laplace(0, (upper - lower) / epsilon, len(labels))
    return ldp.Release(np.clip(labels, lower, upper) + noise, ldp.LaplaceMechanism(epsilon, lower, upper))


def distance(prior, labels):
    """Total variation distance of twenty bins' probabilities."""
    nodes = np.linspace(0, 1, 21)
    cumulative = np.interp(nodes, prior.nodes, np.append(0, np.cumsum(prior.probabilities)))
    return np.abs(np.diff(cumulative) - np.histogram(labels, nodes)[0] / len(labels)).sum() / 2


def test_the_released_histogram_is_the_papers_with_densities():
    z = np.asarray(released(1.0).values)
    prior = label_prior(released(1.0), deconvolved=False)
    mean, width = z.mean(), z.std()
    first, last = int(np.floor((z.min() - mean) / width)), int(np.ceil((z.max() - mean) / width)) - 1
    nodes = [z.min(), *(mean + width * np.arange(first + 1, last + 1)), z.max()]
    np.testing.assert_allclose(prior.nodes, nodes)
    np.testing.assert_allclose(prior.probabilities, np.histogram(z, nodes)[0] / N, atol=1e-15)
    assert prior.probabilities.sum() == pytest.approx(1, abs=1e-12)


# Measured on this seed: 0.18, 0.08 and 0.02 deconvolved against 0.46, 0.41 and 0.08 with the noise. At the largest
# budget all that is left is the noise of the labels.
@pytest.mark.parametrize(("epsilon", "most"), [(0.5, 0.35), (2.0, 0.1), (20.0, 0.05)])
def test_the_smooth_prior_is_near_to_the_law_of_the_labels(epsilon, most):
    release = released(epsilon)
    assert distance(label_prior(release), LABELS) < most
    assert distance(label_prior(release, deconvolved=False), LABELS) > most


def test_a_release_that_tells_nothing_gives_a_prior_near_the_uniform_one():
    prior = label_prior(released(1e-3))
    # The line √3 (2x − 1) has a score of standard deviation √N ε Cov(x, line) = 0.041 under uniform labels, where Cov
    # is 1/√12, and at a roughness of 2, the mode of its prior, the coefficient is 4 times that. Error rate 6e-5.
    assert np.max(np.abs(np.log(prior.densities))) < 4 * 4 * 0.041 * np.sqrt(3)


def test_the_prior_moves_and_scales_with_the_labels():
    one, other = label_prior(released(1.0)), label_prior(released(1.0, 50 + 400 * LABELS, 50.0, 450.0))
    np.testing.assert_allclose(other.nodes, 50 + 400 * one.nodes)
    # a released label at the edge of a cell may be counted in the next one
    np.testing.assert_allclose(other.probabilities, one.probabilities, rtol=1e-3)


def test_atoms_at_the_bounds_go_to_the_bins_next_to_them():
    labels = np.where(np.arange(N) % 4 == 0, 5.0, LABELS)
    prior = label_prior(released(30.0, labels))
    assert prior.probabilities[-1] == pytest.approx(0.25, abs=0.02)


def test_noise_of_a_stated_scale_is_laplace_noise_too():
    release = released(1.0)
    stated = ldp.Release(release.values, ldp.LaplaceMechanism.from_scale(1.0, 0.0, 1.0))
    np.testing.assert_allclose(label_prior(stated).densities, label_prior(release).densities)


@pytest.mark.parametrize(
    ("release", "options", "error", "said"),
    [
        (LABELS, {}, TypeError, "Release"),
        (ldp.Release(None, ldp.LaplaceMechanism(1.0, 0, 1), count=5), {}, ValueError, "without values"),
        (ldp.Release([3.0], ldp.LaplaceMechanism(1.0, sensitivity=1.0)), {}, ValueError, "clips"),
        (ldp.Release([0.5, 0.5], ldp.LaplaceMechanism(1.0, 0, 1)), {"deconvolved": False}, ValueError, "degenerate"),
        (ldp.Release([0, 1], ldp.RandomizedResponse(1.0, 2)), {"deconvolved": False}, ValueError, "real numbers"),
    ],
)
def test_what_has_no_prior_is_refused(release, options, error, said):
    with pytest.raises(error, match=said):
        label_prior(release, **options)
