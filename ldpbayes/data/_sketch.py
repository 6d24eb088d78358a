"""A release compressed to a few hundred weighted nodes, whose log-likelihood is that of all records to rounding error.

For records z_1..z_N with the same law, Σ log p(z_i | θ) only asks for the integral of a smooth function against the
empirical measure. On panels over the released range that measure is stored as Legendre moments; Gauss-Legendre nodes
with the weights that reproduce these moments stand for the records. Where log p is exactly linear (outside the bounds,
under Laplace noise), a count and a sum say everything. Records that were released without noise gather at atoms, the
bounds and (counts) the integers, where they are counted. Discrete outputs need values and counts only; where they are
of too many kinds, a polynomial stands for the log-likelihood. Sketches add up.
"""

import abc
import dataclasses
from typing import Any

from ldpbayes._checks import is_integer
from ldpbayes._shown import Holding

__all__ = ["Sketch"]


class Sketch(Holding, abc.ABC):
    """Weighted nodes that stand for a release: `PanelSketch`, `CountSketch`. An `ExpandedSketch` has none.

    Attributes
    ----------
    mechanism : Mechanism
        What made the release.
    nodes : array (nodes, *event)
        Released values, each of which stands for some of the records.
    weights : array (nodes,)
        How many records each node stands for. Weights can be negative: they integrate polynomials, they are not counts.
    size : number
        How many records there are.
    doubts : tuple of str
        The warnings that were given when the releases were made.
    added : tuple of Mechanism
        What made each of the releases, where the sketch is a sum of several; empty of a single one.
    """

    mechanism: Any
    nodes: Any
    weights: Any
    size: Any
    doubts: tuple[str, ...]
    added: tuple[Any, ...]

    @property
    @abc.abstractmethod
    def law_shape(self) -> tuple[int, ...]:
        """Batch shape that the law of the records must have: () for one common law."""

    @property
    def mechanisms(self) -> tuple[Any, ...]:
        """What made the releases, one each, as their privacy statement needs them."""
        return self.added or (self.mechanism,)

    def _plus(self, other: Any) -> Any:
        """Sum with another of the class; ValueError if the two do not add."""
        raise TypeError(f"{type(self).__name__} does not add")

    def __add__(self, other: Any) -> Any:
        """Sketch of the two releases together."""
        if type(self) is not type(other):
            return NotImplemented
        both = {"doubts": self.doubts + other.doubts, "added": self.mechanisms + other.mechanisms}
        return dataclasses.replace(self._plus(other), **both)

    def __radd__(self, other: Any) -> Any:
        """Let ``sum`` start from 0."""
        return self if is_integer(other) and other == 0 else NotImplemented
