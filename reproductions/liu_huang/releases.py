"""Releases of the labels for training, one for each column of [LH]'s tables, with a budget of ε in all.

The paper's Algorithm 4 splits the budget: ε₁ for a Laplace release from which the prior is estimated, ε − ε₁ for the
labels. The paper's public code does not: it joins a Laplace release of 256 labels to the labels themselves, whose
histogram is not private. `from_labels` does this too, to explain the printed numbers. The code's staircase noise is not
the staircase mechanism either, and is not reproduced.

A release is a function (key, labels (n,), epsilon, setting) → `Released`.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from ldpbayes.data import Release
from ldpbayes.estimation import label_prior
from ldpbayes.mechanisms import (
    GaussianMechanism,
    LaplaceMechanism,
    RPWithPrior,
    RROnBins,
    StaircaseMechanism,
    UnbiasedRandomizer,
    optimal_half_width,
    optimal_interval,
)

DELTA = 1e-4


class Released(NamedTuple):
    """Released labels (n,), in their unit, and the mechanism; None for the labels themselves."""

    values: np.ndarray
    mechanism: Any


def _drawn(key, mechanism, labels):
    with jax.enable_x64(True):
        return Released(np.asarray(mechanism.randomize(key, labels), float), mechanism)


def labels_themselves(key, labels, epsilon, setting):
    """No privacy; the last line of the tables."""
    return Released(labels, None)


def laplace(key, labels, epsilon, setting):
    """Laplace noise of scale (upper − lower)/ε."""
    return _drawn(key, LaplaceMechanism(epsilon, *setting.bounds), labels)


def gaussian(key, labels, epsilon, setting):
    """Gaussian noise for δ = 1e-4, by the classical formula as the paper's code has it, also where ε > 1."""
    return _drawn(key, GaussianMechanism.classical(epsilon, DELTA, *setting.bounds), labels)


def analytic_gaussian(key, labels, epsilon, setting):
    """Gaussian noise for δ = 1e-4, by the exact calibration."""
    return _drawn(key, GaussianMechanism(epsilon, DELTA, *setting.bounds), labels)


def staircase(key, labels, epsilon, setting):
    """Staircase noise with the γ = 1/(1 + exp(ε/2)) of the paper's code, which is best for absolute errors."""
    return _drawn(key, StaircaseMechanism(epsilon, *setting.bounds, 1 / (1 + np.exp(epsilon / 2))), labels)


def rr_on_bins(key, labels, epsilon, setting):
    """The best bins of cells of a hundredth ([LH] E.2 rounds labels to these), for a private prior with ε₁."""
    prior, rest, key = _private_prior(key, labels, epsilon, setting)
    return _drawn(key, RROnBins.optimal(prior, rest, nodes=setting.cells), labels)


def unbiased(key, labels, epsilon, setting):
    """The best unbiased randomizer of 25 nodes, for a private prior with ε₁."""
    prior, rest, key = _private_prior(key, labels, epsilon, setting)
    return _drawn(key, UnbiasedRandomizer.optimal(prior, rest), labels)


def algorithm_4(key, labels, epsilon, setting):
    """RPWithPrior with ε₁ and the half-width of Table 5, the prior by Algorithm 3.

    Of the Laplace release only what lies in the public range counts. With all of it, as the text has it, ε₁ = 0.017
    gives an interval a hundred times as wide as the range; clipped, as in the code, it has an atom at each end of the
    range, and the best interval is the bin next to one.
    """
    key_prior, key_labels = jax.random.split(key)
    first, half_width = setting.parameters[epsilon]
    noisy = laplace(key_prior, labels, first, setting).values
    lower, upper = setting.bounds
    prior = _histogram(np.concatenate([setting.bounds, noisy[(noisy > lower) & (noisy < upper)]]), setting)
    return _drawn(key_labels, _narrowed(prior, epsilon - first, epsilon - first, half_width), labels)


def from_labels(key, labels, epsilon, setting):
    """As the paper's code has it: the prior from the labels, hence not private, and the interval chosen for ε₁."""
    first, half_width = setting.parameters[epsilon]
    return _drawn(key, _narrowed(_histogram(labels, setting), first, epsilon - first, half_width), labels)


def private_prior(key, labels, epsilon, setting):
    """RPWithPrior whose half-width is the best for a private prior with ε₁, on the public range."""
    prior, rest, key = _private_prior(key, labels, epsilon, setting)
    found = optimal_half_width(prior, rest, interval=setting.bounds)
    return _drawn(key, RPWithPrior(rest, found.interval, found.half_width), labels)


def public_range(key, labels, epsilon, setting):
    """RPWithPrior on the public range with all of the budget, its half-width the best for a uniform prior."""
    lower, upper = setting.bounds
    found = optimal_half_width(([lower, upper], [1 / (upper - lower)]), epsilon)
    return _drawn(key, RPWithPrior(epsilon, found.interval, found.half_width), labels)


RELEASES = {
    "labels": labels_themselves,
    "Laplace": laplace,
    "Gaussian": gaussian,
    "Gaussian, analytic": analytic_gaussian,
    "staircase": staircase,
    "RRonBins": rr_on_bins,
    "Unbiased": unbiased,
    "Algorithm 4": algorithm_4,
    "prior from the labels": from_labels,
    "private prior": private_prior,
    "public range": public_range,
}


def _histogram(labels, setting):
    """Algorithm 3 of [LH]: the histogram of labels as they are, noisy or not."""
    as_they_are = LaplaceMechanism(1e9, *setting.bounds)  # noise that does not count
    return label_prior(Release(labels, as_they_are), deconvolved=False)


def _private_prior(key, labels, epsilon, setting):
    """The prior from a Laplace release with ε₁, deconvolved; what is left of ε; and a key."""
    key_prior, key = jax.random.split(key)
    first = setting.parameters[epsilon][0]
    released = laplace(key_prior, labels, first, setting)
    return label_prior(Release(released.values, released.mechanism)), epsilon - first, key


def _narrowed(prior, chosen_for, epsilon, half_width):
    """RPWithPrior on the optimal interval; as in the code the half-width is at most half of it."""
    while True:
        lower, upper = optimal_interval(prior, chosen_for, half_width)
        if upper - lower >= 2 * half_width * (1 - 1e-9):
            return RPWithPrior(epsilon, (lower, upper), half_width)
        half_width = (upper - lower) / 2
