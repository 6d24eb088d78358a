"""Sketches of discrete outputs: one released value of each kind, and how often it occurs."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._pytree import host, pytree, static
from ldpbayes._shown import seen
from ldpbayes.data._sketch import Sketch
from ldpbayes.mechanisms._joined import joined_mechanism

__all__ = ["CountSketch"]

ROWS = 1 << 20  # so many released values are collapsed at a time, which bounds the memory that it takes
FEW_KINDS = 1 << 20  # fewer kinds than this are counted in a table, without sorting


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CountSketch(Sketch):
    """One released value of each kind, and how many records released it: exact, for discrete outputs.

    Two values are of one kind where log p(z | ·) is the same function of x (see `DiscreteMechanism.equivalence`).

    Attributes
    ----------
    mechanism : Mechanism
        What made the release, with one budget, or one a node: records are counted together only if they have the same
        budget.
    nodes : array (nodes, *event)
        A released value of each kind.
    weights : array (nodes,)
        How many records released a value of that kind.
    groups : array of int (nodes,), optional
        The group of each node, in a sketch made with ``by=``.
    num_groups : int, optional
        How many groups there are, G.
    doubts : tuple of str
        The warnings that were given when the releases were made.
    added : tuple of Mechanism
        See `Sketch`.
    """

    mechanism: Any
    nodes: Any
    weights: Any
    groups: Any = None
    num_groups: int | None = static(default=None)
    doubts: tuple[str, ...] = host(default=())
    added: tuple[Any, ...] = host(default=())

    @classmethod
    def of(cls, values: ArrayLike, mechanism: Any, by: ArrayLike | None = None) -> "CountSketch":
        """Count the released values of each kind.

        Parameters
        ----------
        values, mechanism, by
            As in `ldpbayes.data.sketch`, whose errors are raised, too.
        """
        array = np.asarray(values)
        return collapse(mechanism, array, np.ones(len(array)), *group_numbers(by, len(array)))

    @property
    def size(self) -> Any:
        """Number of records."""
        return self.weights.sum()

    @property
    def law_shape(self) -> tuple[int, ...]:
        """() for one law of all records, (G,) for a law a group."""
        return () if self.num_groups is None else (self.num_groups,)

    def _counts(self) -> dict[str, Any]:
        weights = seen(self.weights)
        records, nodes = (None, None) if weights is None else (weights.sum(), weights.size)
        return {"records": records, "nodes": nodes, "groups": self.num_groups}

    def _plus(self, other: Any) -> "CountSketch":
        """Sketch of the two releases together; the same protocol, but budgets may differ."""
        mechanisms = self.mechanism, other.mechanism
        if len({jax.tree.structure(mechanism) for mechanism in mechanisms}) > 1:
            raise ValueError(f"sketches of different mechanisms do not add: {mechanisms[0]} and {mechanisms[1]}")
        if (self.groups is None) != (other.groups is None):
            raise ValueError("a sketch made with by= and one without do not add")

        return collapse(
            joined_mechanism(mechanisms, (len(self.nodes), len(other.nodes))),
            np.concatenate([self.nodes, other.nodes]),
            np.concatenate([self.weights, other.weights]),
            None if self.groups is None else np.concatenate([self.groups, other.groups]),
            None if self.groups is None else max(*self.law_shape, *other.law_shape),
        )


def collapse(
    mechanism: Any, values: np.ndarray, weights: np.ndarray, groups: np.ndarray | None, num_groups: int | None
) -> CountSketch:
    """Count the values of each kind (and budget, and group), first in each chunk and then among the chunks' kinds."""
    n = len(values)

    def distinct(rows: Any) -> np.ndarray:
        mine = mechanism.of_records((n,), rows)
        columns = [_words(mechanism.equivalence(values[rows]))]
        columns += [np.asarray(leaf).view(np.uint64)[:, None] for leaf in mine.personal_parameters()]
        if groups is not None:
            columns.append(groups[rows].astype(np.uint64)[:, None])
        return columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)

    if n <= ROWS:
        first, weights = _distinct(distinct(slice(None)), weights)
    else:
        parts = [
            (start, *_distinct(distinct(slice(start, start + ROWS)), weights[start : start + ROWS]))
            for start in range(0, n, ROWS)
        ]
        first = np.concatenate([start + rows for start, rows, _ in parts])
        rows, weights = _distinct(distinct(first), np.concatenate([counts for *_, counts in parts]))
        first = first[rows]
    nodes = values if len(first) == n else values[first]
    return CountSketch(
        mechanism.of_records((n,), first), nodes, weights, None if groups is None else groups[first], num_groups
    )


def _words(integers: np.ndarray) -> np.ndarray:
    """Rows of integers as rows of 64-bit words, bytes eight at a time."""
    if integers.dtype != np.uint8 or integers.shape[1] == 1:
        return integers.astype(np.int64).view(np.uint64)
    padded = np.zeros((len(integers), -(-integers.shape[1] // 8) * 8), np.uint8)
    padded[:, : integers.shape[1]] = integers
    return padded.view(np.uint64)


def _distinct(words: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A row of each kind (the first one) and the total weight of each kind."""
    if words.shape[1] == 1 and words.max() < FEW_KINDS:
        kind = words[:, 0].astype(np.intp)
        total, first = np.bincount(kind, weights), np.full(int(kind.max()) + 1, -1)
        first[kind[::-1]] = np.arange(len(kind))[::-1]
        return first[first >= 0], total[first >= 0]
    order = np.lexsort(words.T)
    words = words[order]
    starts = np.flatnonzero(np.concatenate([[True], (words[1:] != words[:-1]).any(axis=1)]))
    first, total = order[starts], np.add.reduceat(weights[order], starts)
    # Kinds come in order of appearance, so that a release without duplicates stays as it is.
    order = np.argsort(first)
    return first[order], total[order]


def group_numbers(by: ArrayLike | None, n: int) -> tuple[np.ndarray | None, int | None]:
    if by is None:
        return None, None
    groups = np.asarray(by)
    if groups.shape != (n,) or groups.dtype.kind not in "iu" or groups.min() < 0:
        raise ValueError(
            f"by must hold a group number for each of the {n} records, integers from 0; got shape {groups.shape}, "
            f"dtype {groups.dtype}" + (f", least {groups.min()}" if groups.dtype.kind in "iu" and groups.size else "")
        )
    return groups, int(groups.max()) + 1
