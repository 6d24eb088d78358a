"""The interval in which labels are most often answered near the truth, exactly and in linear time a step."""

from typing import Any

import numpy as np

from ldpbayes._checks import checked
from ldpbayes.mechanisms._histogram import checked_histogram

__all__ = ["optimal_interval"]


def optimal_interval(histogram: Any, epsilon: float, half_width: float) -> tuple[float, float]:
    """The interval in which a label most often lies and is released near the truth ([LH], 3.5 and Algorithm 1).

    It maximizes F(a, b) = 2ζ/(2ζ + e^−ε (b − a)) · P(a ≤ Y ≤ b), the probability that a label Y, whose density is the
    histogram, lies in [a, b] and that `RPWithPrior` releases it within the half-width ζ of itself.

    Within a bin the objective is a ratio of linear functions of a, and of b, hence monotone: the best interval has its
    ends at nodes. Among those, Dinkelbach's method finds it: for a ratio λ, the pair that maximizes
    P(a ≤ Y ≤ b) − λ (2ζ + e^−ε (b − a)) is the best difference of two entries of one array, which takes a cumulative
    minimum; then λ is the ratio at that pair, until it grows no more. That takes O(k) a step and a few steps ([LH]'s
    own search is O(k²), and its interior points never improve on nodes).

    Parameters
    ----------
    histogram : Histogram or pair of array_like
        Nodes (k + 1,) and densities (k,) of the prior of a label; they need not integrate to one.
    epsilon : float
        Privacy budget, positive; may be infinite, which gives the histogram's support.
    half_width : float
        ζ, positive and finite, in the unit of the labels.

    Returns
    -------
    tuple of float
        (a, b), two of the nodes.

    Raises
    ------
    ValueError
        If the histogram is none (see `checked_histogram`), or a number is out of range.
    """
    nodes, densities = checked_histogram(histogram)
    epsilon, half_width = _checked_numbers(epsilon, half_width)
    support = np.flatnonzero(densities)
    first, last = support[0], support[-1] + 1
    nodes = nodes[first : last + 1]
    cumulative = np.concatenate([[0.0], np.cumsum(densities[first:last] * np.diff(nodes))])
    length = np.exp(-epsilon) * (nodes - nodes[0])
    low, high = best = 0, len(nodes) - 1
    ratio = 0.0
    while (found := (cumulative[high] - cumulative[low]) / (2 * half_width + (length[high] - length[low]))) > ratio:
        ratio, best = found, (low, high)
        gain = cumulative - ratio * length
        high = int(np.argmax(gain - np.minimum.accumulate(gain)))
        low = int(np.argmin(gain[: high + 1]))
    return float(nodes[best[0]]), float(nodes[best[1]])


def _checked_numbers(epsilon: float, half_width: float) -> tuple[float, float]:
    """Both, or ValueError."""
    return (
        checked("epsilon", epsilon, "a positive number", lambda a: a > 0),
        checked("half_width", half_width, "positive and finite", lambda a: (a > 0) & (a < np.inf)),
    )
