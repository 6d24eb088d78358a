"""The prior of labels from released ones: their histogram, or that of the labels behind them."""

from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.polynomial import legendre

from ldpbayes._core.checks import POSITIVE, at_least, checked
from ldpbayes.data import Release
from ldpbayes.mechanisms import NumericMechanism
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.mechanisms.design import Histogram
from ldpbayes.noise import Laplace
from ldpbayes.numerics.minimise import Likelihood, likeliest_shares

CELLS = 1024  # cells between the bounds, in which released labels are counted
BINS = 64  # of a smooth prior
DEGREES = 10  # largest degree of the polynomial
SPREAD = 2.0  # standard deviation of a normal penalty on the polynomial's coefficients, which keeps them finite
WORSE = 2  # degrees without a better criterion, after which no higher degree is tried
TOLERANCE = 0.01  # nats that a histogram's log-likelihood may lie below its maximum
MAX_ITERATIONS = 200  # EM and Newton steps for a histogram


def label_prior(
    release: Release, *, deconvolved: bool = True, bins: int | None = None, width: float | None = None
) -> Histogram:
    """The prior of labels as a density, estimated from released ones at no cost of privacy beyond that of the release.

    Parameters
    ----------
    release : Release
        Of numbers; deconvolved only under Laplace noise with bounds, of one scale for all labels (else ValueError).
    deconvolved : bool
        Whether the prior is the law of the labels under which the released ones are most likely, with atoms of clipping
        at the bounds spread over the bins next to them; else it is the histogram of the released labels themselves,
        noise and all ([LH], Algorithm 3, as densities).
    bins : int, optional
        Number of equal bins between the bounds, of a deconvolved histogram; many fit the noise. By default 64 with a
        polynomial log-density ([Efron]), whose degree has the least Bayesian information criterion, so that a release
        which tells nothing gives the uniform law.
    width : float, optional
        Width of the bins of a histogram of released labels, in their unit; the first and the last are narrower. By
        default the standard deviation of the released labels, which must not be all equal.
    """
    if not isinstance(release, Release):
        raise TypeError(f"release must be an ldpbayes Release, got {type(release).__name__}")
    if release.values is None:
        raise ValueError("the prior of labels needs released values; this release has none")
    if (width if deconvolved else bins) is not None:
        wanted = "bins are of a deconvolved histogram, and width is of a histogram of released labels"
        raise ValueError(f"{wanted}; got {deconvolved=}, {bins=}, {width=}")
    if not deconvolved:
        return _released_histogram(release, width)
    cells = _count_labels(release, BINS if bins is None else at_least(1, "bins", bins))
    if bins is None:
        theta = _smooth(cells)
    else:
        size = len(cells.nodes) - 1, cells.counts.sum()
        shares = likeliest_shares(cells.likelihood, cells.information, *size, TOLERANCE, MAX_ITERATIONS).theta
        theta = shares / shares.sum()
    return Histogram(cells.nodes, theta / np.diff(cells.nodes))


def _released_histogram(release: Release, width: float | None) -> Histogram:
    """[LH], Algorithm 3, with each bin's probability divided by its width."""
    mechanism = release.mechanism
    if not isinstance(mechanism, NumericMechanism) or mechanism.event_shape or mechanism.support.is_discrete:
        raise ValueError(f"released labels must be real numbers, one a record; got a release under {mechanism!r}")
    z = np.asarray(release.values, float)
    low, high, mean = z.min(), z.max(), z.mean()
    if not low < high:
        raise ValueError(f"the released labels are degenerate: all {len(z)} of them are {low:g}")
    width = checked("width", z.std() if width is None else width, *POSITIVE)
    first, last = np.floor((low - mean) / width) + 1, np.ceil((high - mean) / width)
    at_least(1, "the number of bins that width makes", int(last - first + 1), 10**6)
    nodes = mean + width * np.arange(first, last)
    nodes = np.concatenate([[low], nodes[(nodes > low) & (nodes < high)], [high]])
    return Histogram(nodes, np.histogram(z, nodes)[0] / len(z) / np.diff(nodes))


class _Cells(NamedTuple):
    nodes: np.ndarray  # ends (k + 1,) of the bins
    channel: np.ndarray  # probability (m, k) of each cell for a label that is uniform in each bin
    counts: np.ndarray  # of released labels in the cells (m,), none of them zero

    def likelihood(self, theta: np.ndarray) -> Likelihood:
        """Mean log-likelihood of probabilities (k,) of the bins, and its gradient."""
        expected, total = self.channel @ theta, self.counts.sum()
        return float(self.counts @ np.log(expected) / total), self.channel.T @ (self.counts / expected) / total

    def information(self, theta: np.ndarray) -> np.ndarray:
        """Minus the second derivative (k, k) of the mean log-likelihood."""
        scaled = self.channel * (np.sqrt(self.counts / self.counts.sum()) / (self.channel @ theta))[:, None]
        return scaled.T @ scaled


def _count_labels(release: Release, bins: int) -> _Cells:
    """Counts of released labels in narrow cells between the bounds, and in one on each side: there the density is one
    exponential in z whatever the label is, so that nothing is lost by counting.
    """
    mechanism: Any = release.mechanism
    laplace = isinstance(mechanism, Additive) and isinstance(mechanism.noise, Laplace)
    if not laplace or not mechanism.bounded or mechanism.columns is not None or mechanism.batch_shape not in ((), (1,)):
        wanted = "clipped numbers with Laplace noise, one budget and one pair of bounds for all"
        raise ValueError(f"labels can be deconvolved from a release of {wanted}, got {mechanism!r}")
    numbers = (mechanism.lower, mechanism.upper, mechanism.noise.scale)
    lower, upper, scale = (np.asarray(number, float).item() for number in numbers)
    nodes, cuts = np.linspace(lower, upper, bins + 1), np.linspace(lower, upper, CELLS + 1)
    counts = np.histogram(release.values, np.concatenate([[-np.inf], cuts, [np.inf]]))[0]
    apart = cuts[:, None] - nodes
    # The integral of the noise's distribution function, up to a constant which would cost digits where the noise is
    # wide: over the bins, its slopes are distribution functions of what is released for labels uniform in them.
    integral = np.maximum(apart, 0) + scale / 2 * np.expm1(-np.abs(apart) / scale)
    below = -np.diff(integral, axis=1) / np.diff(nodes)
    channel = np.concatenate([below[:1], np.diff(below, axis=0), 1 - below[-1:]])
    occupied = counts > 0
    # Far from a bin, under narrow noise, a probability is mere rounding error.
    return _Cells(nodes, np.maximum(channel[occupied], 1e-15), counts[occupied].astype(float))


def _smooth(cells: _Cells) -> np.ndarray:
    """The bins' probabilities by the most likely polynomial log-density, its degree by the least Bayesian criterion."""
    total, bins = cells.counts.sum(), len(cells.nodes) - 1
    middle = (2 * np.arange(bins) + 1) / bins - 1
    basis = legendre.legvander(middle, DEGREES)[:, 1:] * np.sqrt(2 * np.arange(1, DEGREES + 1) + 1)

    def law(coefficients: np.ndarray) -> np.ndarray:
        log = basis[:, : len(coefficients)] @ coefficients
        theta = np.exp(log - log.max(initial=0.0))
        return theta / theta.sum()

    def loss(coefficients: np.ndarray) -> tuple[float, np.ndarray]:
        theta = law(coefficients)
        mean, slope = cells.likelihood(theta)
        penalty = coefficients / SPREAD**2 / total
        gradient = theta * (slope - 1) @ basis[:, : len(coefficients)]
        return float(coefficients @ penalty / 2) - mean, penalty - gradient

    coefficients = best = np.zeros(0)
    least, worse = loss(coefficients)[0] * total, 0
    while worse < WORSE and len(coefficients) < DEGREES:
        start = np.append(coefficients, 0.0)
        minimum = scipy.optimize.minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-6})
        coefficients = minimum.x
        criterion = minimum.fun * total + len(coefficients) * np.log(total) / 2
        worse += 1
        if criterion < least:
            least, best, worse = criterion, coefficients, 0
    return law(best)
