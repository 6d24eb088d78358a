"""A prior as a histogram: a density that is constant between nodes."""

import bisect
from typing import Any, NamedTuple

import numpy as np

from ldpbayes._checks import checked

__all__ = ["Histogram", "checked_histogram"]


class Histogram(NamedTuple):
    """A density that is constant between nodes and zero outside them.

    Attributes
    ----------
    nodes : array (k + 1,)
        Ends of the bins, strictly increasing, in the unit of the data.
    densities : array (k,)
        Of each bin, non-negative, per unit of the data; they integrate to one where a function of this package made
        the histogram. Where one is taken, any pair of nodes and densities will do, and it is normalised.
    """

    nodes: Any
    densities: Any

    @property
    def probabilities(self) -> np.ndarray:
        """Of each bin: density times width."""
        return np.asarray(self.densities) * np.diff(self.nodes)

    @property
    def midpoints(self) -> np.ndarray:
        """Of each bin."""
        return (np.asarray(self.nodes)[1:] + np.asarray(self.nodes)[:-1]) / 2

    @property
    def mean(self) -> float:
        """Mean of the density."""
        return float(self.probabilities @ self.midpoints)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the density."""
        squares = (self.midpoints - self.mean) ** 2 + np.diff(self.nodes) ** 2 / 12
        return float(np.sqrt(self.probabilities @ squares))

    def quantiles(self, probabilities: Any) -> np.ndarray:
        """Points below which the density has these probabilities.

        Parameters
        ----------
        probabilities : array_like
            In [0, 1].
        """
        cumulative = np.concatenate([[0.0], np.cumsum(self.probabilities)])
        return np.interp(probabilities, cumulative, np.asarray(self.nodes))

    def highest_density_interval(self, probability: float) -> tuple[float, float]:
        """The interval that spans the bins of highest density, as many as it takes to have some probability.

        Bins of one density are in it or are not together: of a uniform density it is the whole range.

        Parameters
        ----------
        probability : float
            In (0, 1].
        """
        densities, mass = np.asarray(self.densities), np.append(0.0, np.cumsum(self.probabilities))

        def span(level: float) -> tuple[int, int]:
            # densities that are equal but for rounding are taken to be
            high = np.flatnonzero(densities >= level * (1 - 1e-9))
            return int(high[0]), int(high[-1]) + 1

        def held(level: float) -> float:
            first, last = span(level)
            return mass[last] - mass[first]

        levels = np.unique(densities[densities > 0])[::-1]
        wanted = min(probability, held(levels[-1]))
        first, last = span(levels[bisect.bisect_left(levels, wanted, key=held)])
        return float(self.nodes[first]), float(self.nodes[last])

    def within(self, lower: float, upper: float) -> "Histogram":
        """The density given that it is between two numbers.

        Parameters
        ----------
        lower, upper : float
            lower < upper.

        Raises
        ------
        ValueError
            If nothing of it is.
        """
        inside = (np.asarray(self.nodes) > lower) & (np.asarray(self.nodes) < upper)
        nodes = np.concatenate([[lower], np.asarray(self.nodes)[inside], [upper]])
        which = np.searchsorted(self.nodes, (nodes[1:] + nodes[:-1]) / 2) - 1
        outside = (which < 0) | (which >= len(self.densities))
        densities = np.where(outside, 0.0, np.asarray(self.densities)[np.clip(which, 0, len(self.densities) - 1)])
        return checked_histogram((nodes, densities))


def checked_histogram(given: Any) -> Histogram:
    """A pair of nodes and densities as a histogram that integrates to one.

    Parameters
    ----------
    given : Histogram or pair of array_like
        Nodes (k + 1,) and densities (k,), which need not integrate to one.

    Returns
    -------
    Histogram
        Of float64 arrays.

    Raises
    ------
    ValueError
        If it is no such pair, the nodes are unsorted, a density is negative, all are zero, or anything is not finite.
    """
    try:
        nodes, densities = given
    except (TypeError, ValueError):
        raise ValueError(
            f"a histogram must be a pair (nodes, densities), got {type(given).__name__} {given!r:.60}"
        ) from None
    nodes = np.atleast_1d(checked("the histogram's nodes", nodes, "finite numbers", np.isfinite))
    densities = np.atleast_1d(
        checked("the histogram's densities", densities, "finite and not negative", lambda a: np.isfinite(a) & (a >= 0))
    )
    if nodes.ndim > 1 or densities.ndim > 1 or len(nodes) != len(densities) + 1:
        raise ValueError(
            "a histogram of k bins is (nodes, densities), k + 1 nodes first (np.histogram has them last), got shapes "
            f"{nodes.shape} and {densities.shape}"
        )
    wrong = np.flatnonzero(np.diff(nodes) <= 0)
    if len(wrong):
        i = wrong[0]
        raise ValueError(
            "the histogram has unsorted nodes: they must increase strictly, got "
            f"nodes[{i}] = {nodes[i]:g} and nodes[{i + 1}] = {nodes[i + 1]:g}"
        )
    largest = densities.max()
    if largest == 0:
        raise ValueError("the histogram is degenerate: all its densities are zero")
    # divided by the largest first, so that the sum can neither overflow nor vanish
    densities = densities / largest
    return Histogram(nodes, densities / (densities @ np.diff(nodes)))
