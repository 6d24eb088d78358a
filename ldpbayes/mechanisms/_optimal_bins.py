"""The bins, and the number released for each, that make randomized response on bins lose least of squared error."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ldpbayes._checks import checked
from ldpbayes.mechanisms._finite_outputs import increasing

__all__ = ["OptimalBins", "checked_law", "optimal_bins"]

CANCELLED = 1e-13  # of the labels' variance: by how much rounding may move a loss
APART = 1e-6  # of the distance of two values: how near an edge may be to one of them


class OptimalBins(NamedTuple):
    """Bins, what is released for each, and the mean squared error of it.

    Attributes
    ----------
    edges : array (d + 1,)
        Ends of the bins: the first and the last label, and between two outputs their middle.
    outputs : array (d,)
        In ascending order.
    loss : float
        E[(z − x)²] over the labels' law.
    """

    edges: np.ndarray
    outputs: np.ndarray
    loss: float


def optimal_bins(values: ArrayLike, probabilities: ArrayLike, epsilon: float) -> OptimalBins:
    """Optimal bins for labels that take finitely many values ([GKKLMVZ]), in O(k²) a number of bins.

    A label whose bin's output is o_i is released as o_i with probability p = exp(ε) q, and as each other output with
    probability q = 1/(exp(ε) + d − 1). A bin of mass P and mean m has, among all labels with mean μ, the best output
    (μ + (exp(ε) − 1) P m)/(1 + (exp(ε) − 1) P); what bins lose adds up, so a shortest path over their ends finds the
    best ones of each number d. No mechanism of this budget has a smaller mean squared error.

    Parameters
    ----------
    values : array_like (k,)
        What labels may be, strictly increasing.
    probabilities : array_like (k,)
        Of each value, non-negative; they are normalised.
    epsilon : float
        Privacy budget, positive and finite.

    Returns
    -------
    OptimalBins
        With the fewest bins that attain the smallest loss, to rounding.

    Raises
    ------
    ValueError
        If the budget is not positive, the values are unsorted, a probability is negative, or only one value has any.
    """
    values, probabilities = checked_law(values, probabilities)
    budget = checked("epsilon", epsilon, "a positive number", lambda a: (a.ndim == 0) & (a > 0) & (a < np.inf))
    first, last = values[0], values[-1]
    values, probabilities = values[probabilities > 0], probabilities[probabilities > 0]
    mean = probabilities @ values
    scale = np.max(np.abs(values - mean))
    centred = (values - mean) / scale
    costs, outputs = _bins(centred, probabilities, budget)
    k = len(values)
    # costs of the first i values in one bin, in two, ...; infinite where there are too few of them
    best, came_from, found = costs[0], [], []
    for d in range(2, k + 1):
        # costs[r, i] is infinite unless r < i, so no bin is empty
        through = best[:, None] + costs
        came = np.argmin(through, axis=0)
        best = np.take_along_axis(through, came[None], axis=0)[0]
        came_from.append(came)
        found.append(best[k] / (1 + (d - 1) * np.exp(-budget)))
    losses = np.array(found)
    fewest = int(np.argmax(losses <= losses.min() + CANCELLED))
    ends = [k]
    for came in reversed(came_from[: fewest + 1]):
        ends.append(int(came[ends[-1]]))
    ends.append(0)
    starts, stops = np.array(ends[:0:-1]), np.array(ends[-2::-1])
    released = mean + scale * outputs[starts, stops]
    # the best output of a label is the nearest one, so this clips what is a tie, or rounding
    below, above = values[stops[:-1] - 1], values[stops[:-1]]
    off = APART * (above - below)
    middles = np.clip((released[1:] + released[:-1]) / 2, below + off, above - off)
    return OptimalBins(np.concatenate([[first], middles, [last]]), released, float(losses[fewest] * scale**2))


def _bins(values: np.ndarray, probabilities: np.ndarray, budget: float) -> tuple[np.ndarray, np.ndarray]:
    """What each bin of values r, ..., i − 1 costs, exp(−ε) times, and its best output; arrays (k + 1, k + 1)."""
    keep, gain = np.exp(-budget), -np.expm1(-budget)
    sums = np.concatenate(
        [np.zeros((3, 1)), np.cumsum(probabilities * values ** np.arange(3)[:, None], axis=1)], axis=1
    )
    mass, first, second = (keep * total[-1] + gain * (total - total[:, None]) for total in sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        outputs = first / mass
        costs = second - first * outputs
    bins = np.arange(len(values) + 1)
    return np.where(bins[:, None] < bins, costs, np.inf), outputs


def checked_law(values: Any, probabilities: Any) -> tuple[np.ndarray, np.ndarray]:
    """A law on finitely many numbers, as float64 arrays, its probabilities normalised.

    Parameters
    ----------
    values : array_like (k,)
        Strictly increasing.
    probabilities : array_like (k,)
        Of each value, non-negative.

    Raises
    ------
    ValueError
        If they are not that, or fewer than two values have a probability.
    """
    values = np.atleast_1d(checked("values", values, "finite numbers", np.isfinite))
    allowed = "finite and not negative"
    probabilities = np.atleast_1d(checked("probabilities", probabilities, allowed, lambda a: (a >= 0) & (a < np.inf)))
    if probabilities.shape != values.shape:
        raise ValueError(f"probabilities must be one a value, got shapes {probabilities.shape} and {values.shape}")
    if values.ndim > 1 or np.count_nonzero(probabilities) < 2:
        raise ValueError(
            f"the law of labels is degenerate: {np.count_nonzero(probabilities)} of {values.size} values have a "
            "probability, and two must"
        )
    increasing("values", values, 2)
    return values, probabilities / probabilities.sum()
