"""Sketches: their common base, moments of normal rows, and totals of statistics."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._core.checks import is_integer
from ldpbayes._core.printing import Holding, readable
from ldpbayes._core.pytrees import host, pytree
from ldpbayes._core.tracing import array_of, is_concrete
from ldpbayes.mechanisms import Mechanism
from ldpbayes.noise import Gaussian, IndependentGaussian

ROWS = 1 << 18  # rows that are read at a time, which bounds the memory


class Sketch(Holding):
    """Weighted nodes that stand for the ``size`` records of a release; an `ExpandedSketch` has a polynomial instead.

    The nodes (nodes, *event) are released values, of which each stands for as many records as its weight (nodes,) says.
    Weights can be negative: they integrate polynomials, they are not counts. ``mechanism`` made the release, and
    ``doubts`` are warnings about it; a sum of sketches has the mechanisms of all in ``added``, which is else empty.
    """

    mechanism: Any
    nodes: Any
    weights: Any
    size: Any
    doubts: tuple[str, ...]
    added: tuple[Any, ...]
    num_groups: int | None = None

    @property
    def law_shape(self) -> tuple[int, ...]:
        """Batch shape that the law of the records must have: () for one law of all, (G,) for a law a group."""
        return () if self.num_groups is None else (self.num_groups,)

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The mechanisms of the releases, one each, as their privacy statement needs them."""
        return self.added or (self.mechanism,)

    def _plus(self, other: Any) -> Any:
        """Sum with another sketch of the class; ValueError if the two do not add."""
        raise TypeError(f"{type(self).__name__} does not add")

    def __add__(self, other: Any) -> Any:
        if type(self) is not type(other):
            return NotImplemented
        both = {"doubts": self.doubts + other.doubts, "added": self.mechanisms + other.mechanisms}
        return dataclasses.replace(self._plus(other), **both)

    def __radd__(self, other: Any) -> Any:
        """Let ``sum`` start from 0."""
        return self if is_integer(other) and other == 0 else NotImplemented


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MomentSketch(Sketch):
    """Count, mean and second central moments of released rows: exact, where the law of a row is normal.

    A normal log density is quadratic in the row, so that its sum over records is that over any weighted nodes of the
    same count, mean and second moments. Here these are the 2D points mean ± √D · (columns of a root of the covariance),
    all of the same weight. Source: [KJKH] sec. 3.2.3, whose likelihood is the product over records.

    ``count`` records have the mean ``center`` (D,); ``root`` (D, D) is a matrix R with R Rᵀ the mean of the outer
    products of the records less their mean.
    """

    mechanism: Any
    count: Any
    center: Any
    root: Any
    doubts: tuple[str, ...] = host(default=())
    added: tuple[Any, ...] = host(default=())

    @classmethod
    def of(cls, values: ArrayLike, mechanism: Any) -> "MomentSketch":
        """Compress released rows (N, D) in one pass; ValueError for other than Gaussian noise, or personal budgets."""
        noise = getattr(mechanism, "noise", None)
        if not isinstance(noise, (Gaussian, IndependentGaussian)) or not hasattr(mechanism, "lower"):
            raise ValueError(f"rows can be sketched under Gaussian noise in numeric columns; got {mechanism!r}")
        if mechanism.batch_shape != ():
            raise ValueError("a sketch of rows needs one budget for all records; sketch the rows of each budget apart")
        array = np.asarray(values)
        parts = [_moments(np.asarray(array[start : start + ROWS], float)) for start in range(0, len(array), ROWS)]
        return cls._of_moments(mechanism, *_total_moments(parts))

    @classmethod
    def _of_moments(cls, mechanism: Any, count: Any, center: Any, scatter: Any) -> "MomentSketch":
        # not Cholesky: records that are few, or all equal in a column, have a singular covariance
        values, vectors = np.linalg.eigh(scatter / count)
        return cls(mechanism, float(count), center, vectors * np.sqrt(np.maximum(values, 0.0)))

    @property
    def nodes(self) -> Any:  # type: ignore[override]
        """(2D, D)."""
        xp = np if is_concrete(self.center, self.root) else jnp
        arms = np.sqrt(self.center.shape[-1]) * self.root.T
        return xp.concatenate([self.center + arms, self.center - arms])

    @property
    def weights(self) -> Any:  # type: ignore[override]
        """(2D,), all equal."""
        d = self.center.shape[-1]
        xp = np if is_concrete(self.count) else jnp
        return xp.broadcast_to(self.count / (2 * d), (2 * d,))

    @property
    def size(self) -> Any:
        return self.count

    def _counts(self) -> dict[str, Any]:
        center = readable(self.center)
        return {"records": self.count, "columns": None if center is None else np.atleast_1d(center).shape[-1]}

    def _plus(self, other: Any) -> "MomentSketch":
        if not (self.mechanism == other.mechanism):
            raise ValueError(f"sketches of different mechanisms do not add: {self.mechanism} and {other.mechanism}")
        parts = [(part.count, part.center, part.count * part.root @ part.root.T) for part in (self, other)]
        return self._of_moments(self.mechanism, *_total_moments(parts))


def _moments(rows: np.ndarray) -> tuple[Any, Any, Any]:
    """Count, mean and sum of outer products less the mean."""
    center = rows.mean(axis=0)
    away = rows - center
    return len(rows), center, away.T @ away


def _total_moments(parts: list[tuple[Any, Any, Any]]) -> tuple[Any, Any, Any]:
    """`_moments` of all parts together, without the cancellation that sums of squares would have."""
    counts, centers, scatters = (np.array([part[i] for part in parts]) for i in range(3))
    count = counts.sum()
    center = counts @ centers / count
    away = centers - center
    return count, center, scatters.sum(axis=0) + (counts[:, None] * away).T @ away


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TotalSketch(Sketch):
    """The sum of locally perturbed statistics as one released value ([KJKH] sec. 3.1).

    ``mechanism`` is that of the sum, with its number of records as ``count``; the only node (1, statistics) is the sum,
    with a weight (1,) of one.
    """

    mechanism: Any
    nodes: Any
    weights: Any
    doubts: tuple[str, ...] = host(default=())
    added: tuple[Any, ...] = host(default=())

    @classmethod
    def of(cls, values: ArrayLike, mechanism: Any) -> "TotalSketch":
        """Sum locally perturbed statistics (N, statistics) of one record each; ValueError if they are sums already."""
        array: Any = array_of(values)
        return cls(mechanism.total(len(array)), array.sum(axis=0)[None], np.ones(1))

    @property
    def size(self) -> Any:
        return self.mechanism.count

    def _counts(self) -> dict[str, Any]:
        return {"records": getattr(self.mechanism, "count", None)}

    def _plus(self, other: Any) -> "TotalSketch":
        first, second = (dataclasses.replace(part.mechanism, count=None) for part in (self, other))
        if not (first == second):
            raise ValueError(f"sketches of different mechanisms do not add: {first} and {second}")
        count = self.mechanism.count + other.mechanism.count
        return TotalSketch(first.total(count), self.nodes + other.nodes, np.ones(1))
