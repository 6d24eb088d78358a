"""Sketches of locally perturbed statistics: their sum."""

import dataclasses
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from ldpbayes._pytree import host, pytree
from ldpbayes._tracing import array_of
from ldpbayes.data._sketch import Sketch

__all__ = ["TotalSketch"]

_ONE = np.ones(1)


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TotalSketch(Sketch):
    """The sum of locally perturbed statistics as one released value, under the mechanism of such a sum.

    Attributes
    ----------
    mechanism : StatisticsMechanism
        Of the sum, with its number of records as ``count``.
    nodes : array (1, statistics)
        The sum.
    weights : array (1,)
        One: the sum counts once.
    doubts : tuple of str
        The warnings that were given when the releases were made.
    added : tuple of Mechanism
        See `Sketch`.

    Notes
    -----
    Source: [KJKH] sec. 3.1.
    """

    mechanism: Any
    nodes: Any
    weights: Any
    doubts: tuple[str, ...] = host(default=())
    added: tuple[Any, ...] = host(default=())

    @classmethod
    def of(cls, values: ArrayLike, mechanism: Any) -> "TotalSketch":
        """Sum released statistics.

        Parameters
        ----------
        values : array (N, statistics)
            Locally perturbed statistics of one record each.
        mechanism : StatisticsMechanism
            What released them.

        Raises
        ------
        ValueError
            If the values are sums already.
        """
        array: Any = array_of(values)
        return cls(mechanism.total(len(array)), array.sum(axis=0)[None], _ONE)

    @property
    def size(self) -> Any:
        """Number of records."""
        return self.mechanism.count

    @property
    def law_shape(self) -> tuple[int, ...]:
        """One law of the sum."""
        return ()

    def _counts(self) -> dict[str, Any]:
        return {"records": getattr(self.mechanism, "count", None)}

    def _plus(self, other: Any) -> "TotalSketch":
        """Sum over the records of both, which one mechanism perturbed."""
        first, second = (dataclasses.replace(part.mechanism, count=None) for part in (self, other))
        if not (first == second):
            raise ValueError(f"sketches of different mechanisms do not add: {first} and {second}")
        count = self.mechanism.count + other.mechanism.count
        return TotalSketch(first.total(count), self.nodes + other.nodes, _ONE)
