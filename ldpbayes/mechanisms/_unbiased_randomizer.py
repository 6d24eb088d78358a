"""Unbiased randomizers: what is released for a label has the label as its mean."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes._checks import at_least, checked, is_integer
from ldpbayes._tracing import array_of, is_concrete
from ldpbayes.mechanisms._finite_outputs import FiniteOutputs, checked_labels, increasing
from ldpbayes.mechanisms._histogram import Histogram, checked_histogram
from ldpbayes.mechanisms._optimal_unbiased import optimal_unbiased
from ldpbayes.mechanisms._piecewise import PiecewiseLinear
from ldpbayes.mechanisms._registry import register
from ldpbayes.numerics._logs import log_or_nothing
from ldpbayes.privacy import Guarantee
from ldpbayes.privacy._finite import FiniteTradeoff

__all__ = ["UnbiasedRandomizer"]

NODES = 25
PRECISION = 1e-9  # to which rows sum to one, have their nodes as means and keep the budget


@register("unbiased_randomizer")
@dataclasses.dataclass(frozen=True)
class UnbiasedRandomizer(FiniteOutputs, PiecewiseLinear):
    """An unbiased randomizer of labels on finitely many outputs ([BGKKLMVZ]): E[z | x] = x for all x between the nodes.

    A label at a node is released as one of the outputs with the probabilities in the node's row. One between two nodes
    is taken to be one of these at random, the nearer with the larger probability, so that its mean stays what it is;
    labels beyond the nodes are clipped.

    Parameters
    ----------
    epsilon : float
        Privacy budget, positive and finite: no entry is more than exp(epsilon) times another one in its column.
    nodes : array_like (k,)
        Labels, strictly increasing, k at least 2.
    outputs : array_like (m,)
        What is released, strictly increasing, m at least 2, in the unit of the labels. Outputs lie beyond the labels on
        both sides.
    matrix : array_like (k, m)
        p(output | node), positive. Rows sum to one and have their nodes as means, to 1e-9. `UnbiasedRandomizer.optimal`
        makes one.

    Raises
    ------
    ValueError
        If a parameter is out of range, unsorted or of the wrong shape, or the matrix does not keep what it has to.
    """

    epsilon: Any
    nodes: Any
    outputs: Any
    matrix: Any

    _shared: ClassVar[tuple[str, ...]] = ("nodes", "outputs", "matrix")

    def __post_init__(self) -> None:
        self._check("epsilon", "one positive and finite number", lambda a: (a.ndim == 0) & (a > 0) & (a < np.inf))
        for name in ("nodes", "outputs"):
            self._check(name, "finite numbers", np.isfinite)
            increasing(name, getattr(self, name), 2)
        self._check("matrix", "positive and finite", lambda a: (a > 0) & (a < np.inf))
        shape = (*np.shape(self.nodes), *np.shape(self.outputs))
        if np.shape(self.matrix) != shape:
            raise ValueError(
                f"matrix must have a row a node and a column an output, {shape}, got {np.shape(self.matrix)}"
            )
        if not is_concrete(self):
            return
        bias = (self.matrix @ self.outputs - self.nodes) / (self.nodes[-1] - self.nodes[0])
        excess = np.max(np.log(self.matrix.max(axis=0) / self.matrix.min(axis=0))) - self.epsilon
        for wrong, what in (
            (np.max(np.abs(self.matrix.sum(axis=1) - 1)), "rows that sum to one"),
            (np.max(np.abs(bias)), "rows whose means are the nodes"),
            (excess, f"columns in which no entry is more than exp({self.epsilon:g}) times another"),
        ):
            if wrong > PRECISION:
                raise ValueError(f"matrix must have {what}, to {PRECISION:g}; it misses that by {wrong:.3g}")

    @classmethod
    def optimal(cls, prior: Any, epsilon: float, *, nodes: int | ArrayLike = NODES) -> "UnbiasedRandomizer":
        """The unbiased randomizer of least mean squared error E[(z − x)²] under a prior of the labels.

        Parameters
        ----------
        prior : Histogram or pair of array_like
            Nodes (k + 1,) and densities (k,) of the labels' law, known without looking at the labels, or private.
        epsilon : float
            Privacy budget, positive and finite.
        nodes : int or array_like
            Labels that get a row of their own, strictly increasing; or how many, equally spaced from the prior's first
            node to its last, by default 25. The others are rounded to these at random, which adds at most a quarter of
            the squared distance of two nodes to the variance; labels beyond them are clipped. 25 take a second, 100 a
            quarter of a minute.

        Returns
        -------
        UnbiasedRandomizer
            With the outputs that have a probability.

        Raises
        ------
        ValueError
            If the budget is not positive, `prior` is no histogram, or all of its mass is beyond one end of the nodes.
        """
        histogram = checked_histogram(prior)
        if is_integer(nodes):
            rows = np.linspace(histogram.nodes[0], histogram.nodes[-1], at_least(2, "nodes", nodes))
        else:
            rows = np.atleast_1d(checked("nodes", nodes, "finite numbers", np.isfinite))
            increasing("nodes", rows, 2)
        laws = optimal_unbiased(rows, _rounded_prior(histogram, rows), epsilon)
        return cls(epsilon, rows, laws.outputs, laws.matrix)

    def _neighbour(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The node at or above labels, never the first, and how near they are to it: 0 at the node before, 1 at it."""
        nodes = jnp.asarray(self.nodes, x.dtype)
        x = jnp.clip(x, nodes[0], nodes[-1])
        above = jnp.clip(jnp.searchsorted(nodes, x), 1, len(nodes) - 1)
        return above, (x - nodes[above - 1]) / (nodes[above] - nodes[above - 1])

    def randomize(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """Draw outputs; NaN raises where it can be seen.

        For simulation and studies. To release real data use a cryptographically secure sampler, such as OpenDP's.
        """
        x = checked_labels(x)
        above, share = self._neighbour(x)
        node, law = jax.random.uniform(key, (2, *x.shape), x.dtype)
        row = jnp.where(node < share, above, above - 1)
        cumulative, last = jnp.cumsum(jnp.asarray(self.matrix, x.dtype), axis=1), np.shape(self.outputs)[0] - 1
        # how many of the row's sums are not above `law`, by bisection: never more than the last output's position
        place = jnp.zeros(x.shape, int)
        for step in 2 ** np.arange(int(last).bit_length())[::-1]:
            further = jnp.minimum(place + step, last)
            place = jnp.where(cumulative[row, further - 1] <= law, further, place)
        return jnp.asarray(self.outputs, x.dtype)[place]

    def levels(self, z: ArrayLike) -> jax.Array:
        """See `PiecewiseLinear.levels`: the column of each released value."""
        z = jnp.asarray(z, jnp.result_type(z, float))
        return jnp.asarray(self.matrix, z.dtype).T[self.place(z)]

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """See `Mechanism.log_prob`; no array has more entries than the result, which `levels` would have."""
        dtype = jnp.result_type(z, x, float)
        place, (above, share) = self.place(jnp.asarray(z, dtype)), self._neighbour(jnp.asarray(x, dtype))
        matrix = jnp.asarray(self.matrix, dtype)
        return log_or_nothing((1 - share) * matrix[above - 1, place] + share * matrix[above, place])

    def breakpoints(self, z: ArrayLike) -> Any:
        """The nodes; see `NumericMechanism.breakpoints`."""
        at = array_of(z)
        xp: Any = np if isinstance(at, np.ndarray) and is_concrete(self.nodes) else jnp
        return xp.broadcast_to(xp.asarray(self.nodes), (*at.shape, np.shape(self.nodes)[0]))

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Return the mean of z given x, the label as clipped, and the variance."""
        x = jnp.asarray(x, jnp.result_type(x, float))
        nodes, outputs, matrix = (jnp.asarray(part, x.dtype) for part in (self.nodes, self.outputs, self.matrix))
        above, share = self._neighbour(x)
        spread = jnp.sum(matrix * (outputs - nodes[:, None]) ** 2, axis=1)
        apart = nodes[above] - nodes[above - 1]
        variance = (1 - share) * spread[above - 1] + share * spread[above] + share * (1 - share) * apart**2
        return jnp.clip(x, nodes[0], nodes[-1]), variance

    def unbiased(self, z: ArrayLike) -> jax.Array:
        """See `Mechanism.unbiased`: the released value itself."""
        return jnp.asarray(z, jnp.result_type(z, float))

    @property
    def output_probabilities(self) -> tuple[Any, Any]:
        """Over the nodes: between them there is nothing more extreme; see `FiniteOutputs.output_probabilities`."""
        return self.matrix.min(axis=0), self.matrix.max(axis=0)

    @property
    def domain(self) -> constraints.Constraint:
        """From the first to the last node."""
        return constraints.interval(self.nodes[0], self.nodes[-1])

    @property
    def guarantee(self) -> Guarantee:
        """Pure differential privacy of labels, with the exact curve of all pairs of nodes.

        A label between two nodes has a mixture of their laws, which tells no more than these.
        """
        return Guarantee(FiniteTradeoff(self.matrix), unit="label")


def _rounded_prior(histogram: Histogram, nodes: np.ndarray) -> np.ndarray:
    """Probabilities of the nodes after clipping to them and rounding at random."""
    ends = np.unique(np.concatenate([histogram.nodes, nodes]))
    mass = np.diff(np.interp(ends, histogram.nodes, np.concatenate([[0.0], np.cumsum(histogram.probabilities)])))
    # of a density that is constant on a cell, what is linear there takes the middle
    middle = np.clip((ends[1:] + ends[:-1]) / 2, nodes[0], nodes[-1])
    above = np.clip(np.searchsorted(nodes, middle), 1, len(nodes) - 1)
    share = (middle - nodes[above - 1]) / (nodes[above] - nodes[above - 1])
    k = len(nodes)
    return np.bincount(above - 1, (1 - share) * mass, k) + np.bincount(above, share * mass, k)
