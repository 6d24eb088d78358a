"""What each column of [LH]'s tables releases of the labels for training, with a budget of ε in all.

The paper's Algorithm 4 splits the budget: ε₁ for a Laplace release from which the prior is estimated, ε − ε₁ for the
labels themselves. `algorithm_4` keeps to that. The paper's public code does not: it joins the Laplace release of one
batch of 256 labels to the labels themselves, and takes the histogram of these, which is private by no budget.
`from_labels` does the same, only to see what the printed numbers come from. Its staircase noise is not the staircase
mechanism either, and is not reproduced.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from ldpbayes.data import Release
from ldpbayes.estimation import label_prior
from ldpbayes.estimation._label_prior import histogram_of
from ldpbayes.mechanisms import (
    GaussianMechanism,
    Histogram,
    LaplaceMechanism,
    Mechanism,
    RPWithPrior,
    RROnBins,
    StaircaseMechanism,
    UnbiasedRandomizer,
    optimal_half_width,
    optimal_interval,
)
from ldpbayes.studies.papers.liu_huang._setting import Setting

__all__ = ["RELEASES", "Released", "ReleaseOf"]

DELTA = 1e-4


class Released(NamedTuple):
    """Released labels.

    Attributes
    ----------
    values : ndarray (n,)
        In the unit of labels.
    mechanism : Mechanism or None
        What released them; None for the labels themselves.
    """

    values: np.ndarray
    mechanism: Any


ReleaseOf = Callable[[jax.Array, np.ndarray, float, Setting], Released]
"""(key, labels (n,), epsilon, setting) → Released."""


def _drawn(key: jax.Array, mechanism: Mechanism, labels: np.ndarray) -> Released:
    with jax.enable_x64(True):
        return Released(np.asarray(mechanism.randomize(key, labels), float), mechanism)


def labels_themselves(key: jax.Array, labels: np.ndarray, epsilon: float, setting: Setting) -> Released:
    """No privacy; the last line of the tables."""
    return Released(labels, None)


def laplace(key: jax.Array, labels: np.ndarray, epsilon: float, setting: Setting) -> Released:
    """Laplace noise of scale (upper − lower)/ε."""
    return _drawn(key, LaplaceMechanism(epsilon, *setting.bounds), labels)


def gaussian(key: jax.Array, labels: np.ndarray, epsilon: float, setting: Setting) -> Released:
    """Gaussian noise for δ = 1e-4, by the classical formula as the paper's code has it, also where ε > 1."""
    return _drawn(key, GaussianMechanism.classical(epsilon, DELTA, *setting.bounds), labels)


def analytic_gaussian(key: jax.Array, labels: np.ndarray, epsilon: float, setting: Setting) -> Released:
    """Gaussian noise for δ = 1e-4, no more than that takes."""
    return _drawn(key, GaussianMechanism(epsilon, DELTA, *setting.bounds), labels)


def staircase(key: jax.Array, labels: np.ndarray, epsilon: float, setting: Setting) -> Released:
    """Staircase noise with the γ = 1/(1 + exp(ε/2)) of the paper's code, which is best for absolute errors."""
    return _drawn(key, StaircaseMechanism(epsilon, *setting.bounds, 1 / (1 + np.exp(epsilon / 2))), labels)


def rr_on_bins(key: jax.Array, labels: np.ndarray, epsilon: float, setting: Setting) -> Released:
    """The best bins of cells of a hundredth ([LH] E.2 rounds labels to these), for a private prior with ε₁."""
    prior, rest, key = _private_prior(key, labels, epsilon, setting)
    return _drawn(key, RROnBins.optimal(prior, rest, nodes=setting.cells), labels)


def unbiased(key: jax.Array, labels: np.ndarray, epsilon: float, setting: Setting) -> Released:
    """The best unbiased randomizer of 25 nodes, for a private prior with ε₁."""
    prior, rest, key = _private_prior(key, labels, epsilon, setting)
    return _drawn(key, UnbiasedRandomizer.optimal(prior, rest), labels)


def algorithm_4(key: jax.Array, labels: np.ndarray, epsilon: float, setting: Setting) -> Released:
    """RPWithPrior with ε₁ and the half-width of Table 5, the prior by Algorithm 3.

    Of the Laplace release only what lies in the public range counts. With all of it, as the text has it, ε₁ = 0.017
    gives an interval a hundred times as wide as the range; clipped, as in the code, it has an atom at each end of the
    range, and the best interval is the bin next to one.
    """
    key_prior, key_labels = jax.random.split(key)
    first, half_width = setting.parameters[epsilon]
    noisy = laplace(key_prior, labels, first, setting).values
    lower, upper = setting.bounds
    prior = histogram_of(np.concatenate([setting.bounds, noisy[(noisy > lower) & (noisy < upper)]]))
    return _drawn(key_labels, _narrowed(prior, epsilon - first, epsilon - first, half_width), labels)


def from_labels(key: jax.Array, labels: np.ndarray, epsilon: float, setting: Setting) -> Released:
    """As the paper's code has it: the prior from the labels, hence not private, and the interval chosen for ε₁."""
    first, half_width = setting.parameters[epsilon]
    return _drawn(key, _narrowed(histogram_of(labels), first, epsilon - first, half_width), labels)


def private_prior(key: jax.Array, labels: np.ndarray, epsilon: float, setting: Setting) -> Released:
    """RPWithPrior whose half-width is the best for a private prior with ε₁, on the public range."""
    prior, rest, key = _private_prior(key, labels, epsilon, setting)
    found = optimal_half_width(prior, rest, interval=setting.bounds)
    return _drawn(key, RPWithPrior(rest, found.interval, found.half_width), labels)


def public_range(key: jax.Array, labels: np.ndarray, epsilon: float, setting: Setting) -> Released:
    """RPWithPrior on the public range with all of the budget, its half-width the best for a uniform prior."""
    lower, upper = setting.bounds
    found = optimal_half_width(Histogram([lower, upper], [1 / (upper - lower)]), epsilon)
    return _drawn(key, RPWithPrior(epsilon, found.interval, found.half_width), labels)


RELEASES: dict[str, ReleaseOf] = {
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


def _private_prior(
    key: jax.Array, labels: np.ndarray, epsilon: float, setting: Setting
) -> tuple[Histogram, float, jax.Array]:
    """The prior from a Laplace release with ε₁, deconvolved; what is left of ε; and a key."""
    key_prior, key = jax.random.split(key)
    first = setting.parameters[epsilon][0]
    released = laplace(key_prior, labels, first, setting)
    return label_prior(Release(released.values, released.mechanism)), epsilon - first, key


def _narrowed(prior: Histogram, chosen_for: float, epsilon: float, half_width: float) -> RPWithPrior:
    """RPWithPrior on the optimal interval; as in the code the half-width is at most half of it."""
    while True:
        lower, upper = optimal_interval(prior, chosen_for, half_width)
        if upper - lower >= 2 * half_width * (1 - 1e-9):
            return RPWithPrior(epsilon, (lower, upper), half_width)
        half_width = (upper - lower) / 2
