"""Laws on the line as few point masses with the same moments, and sums of many draws from them.

Gauss's rule with m nodes has the first 2m − 1 moments of the law it is made from ([GW]). A sum of n draws has moments
that follow from those of one, so that it loses nothing up to that order, and is drawn as counts of the nodes: at a cost
that does not depend on n.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["PointMasses"]


class PointMasses(NamedTuple):
    """Masses on points of the line.

    Attributes
    ----------
    nodes : array (m,)
        The points.
    weights : array (m,)
        Their probabilities, which sum to one.
    """

    nodes: jax.Array
    weights: jax.Array

    def expectation(self, values: jax.Array) -> jax.Array:
        """Mean of a function of the variable.

        Parameters
        ----------
        values : array (m, ...)
            The function at the nodes.

        Returns
        -------
        array (...)
        """
        return jnp.tensordot(self.weights, values, axes=1)

    def compressed(self, size: int) -> "PointMasses":
        """At most so many masses with the same moments up to 2 size − 1; the same law, where it has no more points.

        By Lanczos' method, each vector made orthogonal to all before it, and the eigenvalues of the matrix it leads to
        ([GW]).

        Parameters
        ----------
        size : int
            How many.
        """
        if len(self.nodes) <= size:
            return self
        middle = self.expectation(self.nodes)
        spread = jnp.sqrt(self.expectation((self.nodes - middle) ** 2))
        unit = jnp.where(spread > 0, spread, 1.0)
        at, root = (self.nodes - middle) / unit, jnp.sqrt(self.weights)

        def step(state: tuple, number: jax.Array) -> tuple[tuple, tuple]:
            basis, vector = state
            basis, new = basis.at[number].set(vector), at * vector
            diagonal = new @ vector
            for _ in range(2):  # once is not enough to be orthogonal to rounding
                new = new - (basis @ new) @ basis
            length = jnp.linalg.norm(new)
            # a law with fewer points than that: what is left is rounding, and gets no mass
            ended = length < 1e-13 * jnp.max(jnp.abs(at))
            following = jnp.where(ended, 0.0, new / jnp.where(ended, 1.0, length))
            return (basis, following), (diagonal, jnp.where(ended, 0.0, length))

        start = jnp.zeros((size, len(root)), root.dtype), root / jnp.linalg.norm(root)
        _, (diagonal, beside) = lax.scan(step, start, jnp.arange(size))
        off = beside[:-1]
        values, vectors = jnp.linalg.eigh(jnp.diag(diagonal) + jnp.diag(off, 1) + jnp.diag(off, -1))
        masses = vectors[0] ** 2
        return PointMasses(middle + unit * values, masses / jnp.sum(masses))

    def counts(self, key: Any, count: Any) -> jax.Array:
        """How many of some draws fall on each node: a multinomial variable, as one binomial after the other.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        count : array ()
            Number of draws.

        Returns
        -------
        array (m,)
            In floating point.
        """
        dtype = self.weights.dtype
        order = jnp.argsort(-self.weights)  # the largest first, so that what is left is never a small difference
        weights = self.weights[order]
        left = jnp.cumsum(weights[::-1])[::-1]
        chance = jnp.clip(weights / jnp.where(left > 0, left, 1.0), 0.0, 1.0)

        def draw(remaining: jax.Array, at: tuple) -> tuple[jax.Array, jax.Array]:
            drawn = jax.random.binomial(at[0], remaining, at[1], dtype=dtype)
            # nothing left, and no chance or certainty, are laws that a sampler need not know
            drawn = jnp.where((remaining > 0) & (at[1] > 0), drawn, 0.0)
            drawn = jnp.where(at[1] < 1, drawn, remaining)
            return remaining - drawn, drawn

        keys = jax.random.split(key, len(weights) - 1) if len(weights) > 1 else jax.random.split(key, 1)[:0]
        last, drawn = lax.scan(draw, jnp.asarray(count, dtype), (keys, chance[:-1]))
        return jnp.zeros_like(weights).at[order].set(jnp.append(drawn, last))

    def total(self, key: Any, count: Any, values: jax.Array) -> jax.Array:
        """Sum of a function of the variable over some draws.

        Parameters
        ----------
        key, count
            As for `counts`.
        values : array (m, ...)
            The function at the nodes.

        Returns
        -------
        array (...)
        """
        return jnp.tensordot(self.counts(key, count), values, axes=1)
