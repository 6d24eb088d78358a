"""Corrected losses: weighted sums, over points, of the loss or of something that is made of it."""

import dataclasses
import functools
import operator
from collections.abc import Iterable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._pytree import pytree
from ldpbayes.estimation.losses._loss import Derivatives, Loss

__all__ = ["Corrected", "Evidence", "Laplacians", "Points"]


@pytree
@dataclasses.dataclass(frozen=True)
class Points:
    """A term of a corrected loss: the loss at some points, weighted. Subclasses make something else of the loss.

    Parameters
    ----------
    rows : array (points, N, columns)
        As many points for each of N records.
    weights : array (points, N)
        Of the points.
    """

    rows: Any
    weights: Any

    def __post_init__(self) -> None:
        if np.ndim(self.rows) != 3 or np.shape(self.rows)[:2] != np.shape(self.weights):
            raise ValueError(
                "points are rows (points, N, columns) with weights (points, N), of one point a record rows[None]; got "
                f"shapes {np.shape(self.rows)} and {np.shape(self.weights)}"
            )

    def values(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> jax.Array:
        """What is weighted, shape (points, N); `index` has the perturbed columns."""
        return loss.values(self.rows, theta)

    def total(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> Derivatives:
        """The weighted sum, with its gradient and Hessian in the parameters."""
        return loss.total(self.rows, self.weights, theta)


@pytree
@dataclasses.dataclass(frozen=True)
class Laplacians(Points):
    """A term of a corrected loss: the loss's Laplacian in the perturbed columns at some points, weighted.

    Parameters
    ----------
    rows, weights
        See `Points`.
    """

    def values(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> jax.Array:
        """See `Points.values`."""
        return loss.laplacians(self.rows, theta, index)

    def total(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> Derivatives:
        """See `Points.total`."""
        return loss.total_laplacian(self.rows, self.weights, theta, index)


@pytree
@dataclasses.dataclass(frozen=True)
class Corrected:
    """A corrected loss of N records: a sum of terms.

    Parameters
    ----------
    terms : tuple of Points
        Of the same records, in the same order. The first has the records by whose residuals a loss with kinks is
        rounded off, as its first points.
    """

    terms: tuple[Points, ...]

    def values(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> jax.Array:
        """Corrected loss of each record, shape (N,); `index` has the perturbed columns."""
        return _sum(jnp.sum(term.weights * term.values(loss, theta, index), axis=0) for term in self.terms)

    def derivatives(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> Derivatives:
        """Mean of the corrected losses, with its gradient and Hessian."""
        totals = [term.total(loss, theta, index) for term in self.terms]
        value, slope, bend = (_sum(parts) / self.count for parts in zip(*totals, strict=True))
        return value, slope, bend

    def scores(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> jax.Array:
        """Gradient of the corrected loss of each record, shape (N, p)."""
        return jax.jacfwd(lambda at: self.values(loss, at, index))(theta)

    def weighted(self, weights: jax.Array) -> "Corrected":
        """The same with every record's part multiplied by its weight."""
        return Corrected(tuple(dataclasses.replace(term, weights=term.weights * weights) for term in self.terms))

    @property
    def count(self) -> int:
        """Number of records."""
        return self.terms[0].rows.shape[1]

    def __add__(self, other: "Corrected") -> "Corrected":
        """The records of both, those of the second one after those of the first."""
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), self, other)


@pytree
@dataclasses.dataclass(frozen=True)
class Evidence:
    """What records say of the parameters: corrected losses, the first one to be minimised, and mean-zero functions.

    Evidence of two batches of records adds up: their records are put one after the other.

    Parameters
    ----------
    criteria : tuple of Corrected
        All unbiased for the same loss, so that the differences of their scores have mean zero.
    controls : array (N, q)
        Functions of the released records whose means are zero whatever the parameters.
    """

    criteria: tuple[Corrected, ...]
    controls: Any

    @classmethod
    def of(cls, *criteria: Corrected, controls: Any = None) -> Self:
        """Evidence of corrected losses.

        Parameters
        ----------
        *criteria : Corrected
            See `Evidence`.
        controls : array (N, q), optional
            See `Evidence`; none by default.
        """
        if controls is None:
            controls = jnp.zeros((criteria[0].count, 0), criteria[0].terms[0].rows.dtype)
        return cls(criteria, controls)

    def joined(self, other: "Evidence") -> "Evidence":
        """The evidence of both batches of records."""
        criteria = tuple(a + b for a, b in zip(self.criteria, other.criteria, strict=True))
        return Evidence(criteria, jnp.concatenate([self.controls, other.controls]))

    def weighted(self, weights: jax.Array) -> "Evidence":
        """The same with weights of records."""
        return Evidence(tuple(c.weighted(weights) for c in self.criteria), self.controls * weights[:, None])


def _sum(arrays: Iterable[jax.Array]) -> jax.Array:
    return functools.reduce(operator.add, arrays)
