"""Randomized response on bins: a label is released as the number that stands for its bin, or for another one."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes._checks import checked
from ldpbayes._tracing import array_of, is_concrete
from ldpbayes.mechanisms._finite_outputs import FiniteOutputs, checked_labels, increasing
from ldpbayes.mechanisms._histogram import checked_histogram
from ldpbayes.mechanisms._optimal_bins import optimal_bins
from ldpbayes.mechanisms._piecewise import PiecewiseConstant
from ldpbayes.mechanisms._registry import register
from ldpbayes.privacy import Guarantee, PureProtocolTradeoff

__all__ = ["RROnBins"]

MOST_CELLS = 512
LEAST_CELLS = 64  # bins of a prior: the optimum is found in less than a second, of as many as differ visibly


@register("rr_on_bins")
@dataclasses.dataclass(frozen=True)
class RROnBins(FiniteOutputs, PiecewiseConstant):
    """Randomized response between d bins of the labels, each released as a number of its own ([GKKLMVZ] Algorithm 1).

    A label in bin i is released as outputs[i] with probability p = exp(epsilon) q, and as each other output with
    probability q = 1/(exp(epsilon) + d − 1). What is released are the outputs themselves, noisy labels, not codes.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget of each label, positive and finite; an array holds personal budgets, one a label.
    edges : array_like (d + 1,)
        Ends of the bins, strictly increasing, d at least 2. Bin i is edges[i] < x ≤ edges[i + 1]; labels are clipped
        to [edges[0], edges[d]], and a label at edges[0] is in the first bin. Choose edges and outputs without looking
        at the labels, or by `RROnBins.optimal` from a private histogram of them.
    outputs : array_like (d,)
        What is released for each bin, strictly increasing, in the unit of the labels.

    Raises
    ------
    ValueError
        If a parameter is out of range, unsorted or of the wrong shape.
    """

    epsilon: Any
    edges: Any
    outputs: Any

    _shared: ClassVar[tuple[str, ...]] = ("edges", "outputs")

    def __post_init__(self) -> None:
        self._check("epsilon", "positive and finite", lambda a: (a > 0) & (a < np.inf))
        for name, least in (("edges", 3), ("outputs", 2)):
            self._check(name, "finite numbers", np.isfinite)
            increasing(name, getattr(self, name), least)
        if np.shape(self.edges)[0] != np.shape(self.outputs)[0] + 1:
            raise ValueError(
                f"d bins have d + 1 edges and d outputs, got shapes {np.shape(self.edges)} and {np.shape(self.outputs)}"
            )

    @classmethod
    def optimal(cls, prior: Any, epsilon: float, *, nodes: ArrayLike | None = None) -> "RROnBins":
        """The bins and outputs of least mean squared error E[(z − x)²] under a prior of the labels.

        Labels within a cell count as its middle, which leaves out a constant if cells are equally wide.

        Parameters
        ----------
        prior : Histogram or pair of array_like
            Nodes (k + 1,) and densities (k,) of the labels' law, known without looking at the labels, or private.
        epsilon : float
            Privacy budget, positive and finite.
        nodes : array_like, optional
            Ends of the cells, strictly increasing; labels beyond them count as in the nearest one. By default the
            prior's bins, cut into 64 cells or more where there are fewer, or 512 equally wide cells of its range where
            there are more. Time grows as their number cubed: half a second for 500 of them.

        Returns
        -------
        RROnBins

        Raises
        ------
        ValueError
            If the budget is not positive, `prior` is no histogram, or all of its mass is in one cell.
        """
        histogram = checked_histogram(prior)
        if nodes is None:
            cells = _cells(histogram.nodes)
        else:
            cells = np.atleast_1d(checked("nodes", nodes, "finite numbers", np.isfinite))
        increasing("nodes", cells, 3)
        cumulative = np.concatenate([[0.0], np.cumsum(histogram.probabilities)])
        below = np.concatenate([[0.0], np.interp(cells[1:-1], histogram.nodes, cumulative), [cumulative[-1]]])
        edges, outputs, _ = optimal_bins((cells[1:] + cells[:-1]) / 2, np.diff(below), epsilon)
        return cls(epsilon, np.concatenate([cells[:1], edges[1:-1], cells[-1:]]), outputs)

    def _probabilities(self, dtype: Any) -> tuple[jax.Array, jax.Array]:
        """The probabilities p and q in the floating dtype of the data."""
        keep = jnp.exp(-jnp.asarray(self.epsilon, dtype))
        p = 1 / (1 + (np.shape(self.outputs)[0] - 1) * keep)
        return p, p * keep

    def bin(self, x: ArrayLike) -> jax.Array:
        """Which bin labels are in, from 0 to d − 1.

        Parameters
        ----------
        x : array_like
            Labels, clipped or not.
        """
        x = jnp.asarray(x, jnp.result_type(x, float))
        return jnp.searchsorted(jnp.asarray(self.edges, x.dtype)[1:-1], x)

    def randomize(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """Draw outputs; NaN raises where it can be seen.

        For simulation and studies. To release real data use a cryptographically secure sampler, such as OpenDP's.
        """
        x = checked_labels(x)
        own, (p, _), d = self.bin(x), self._probabilities(x.dtype), np.shape(self.outputs)[0]
        shape = jnp.broadcast_shapes(x.shape, p.shape)
        key_flip, key_other = jax.random.split(key)
        flip = jax.random.uniform(key_flip, shape, x.dtype) >= p
        # of the d − 1 other bins, those from the label's own on are one larger than what is drawn
        other = jax.random.randint(key_other, shape, 0, d - 1)
        other = other + (other >= own)
        return jnp.asarray(self.outputs, x.dtype)[jnp.where(flip, other, own)]

    def pieces(self, z: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """See `PiecewiseConstant.pieces`: steps at the ends of the bin that z stands for; labels beyond are clipped."""
        z = jnp.asarray(z, jnp.result_type(z, float))
        code, (p, q), edges = self.place(z), self._probabilities(z.dtype), jnp.asarray(self.edges, z.dtype)
        below = jnp.where(code == 0, p, q)
        above = jnp.where(code == np.shape(self.outputs)[0] - 1, p, q)
        code = jnp.broadcast_to(code, below.shape)
        levels = jnp.broadcast_arrays(below, p, above)
        return jnp.stack([edges[code], edges[code + 1]], axis=-1), jnp.stack(levels, axis=-1)

    def breakpoints(self, z: ArrayLike) -> Any:
        """The steps; see `NumericMechanism.breakpoints`."""
        at = array_of(z)
        xp: Any = np if isinstance(at, np.ndarray) and is_concrete(self) else jnp
        code, edges = xp.asarray(self.place(at)), xp.asarray(self.edges)
        return xp.stack([edges[code], edges[code + 1]], axis=-1)

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Return the mean and the variance of z given x."""
        x = jnp.asarray(x, jnp.result_type(x, float))
        (p, q), outputs = self._probabilities(x.dtype), jnp.asarray(self.outputs, x.dtype)
        own, middle = outputs[self.bin(x)], outputs.mean()
        # around the outputs' mean, so that little cancels
        mean = (p - q) * (own - middle)
        second = q * jnp.sum((outputs - middle) ** 2) + (p - q) * (own - middle) ** 2
        return middle + mean, second - mean**2

    @property
    def output_probabilities(self) -> tuple[Any, Any]:
        """The probabilities q and p; see `FiniteOutputs.output_probabilities`."""
        keep = np.exp(-np.asarray(self.epsilon))[..., None]
        p = 1 / (1 + (len(self.outputs) - 1) * keep)
        return p * keep, p

    @property
    def domain(self) -> constraints.Constraint:
        """From the first to the last edge."""
        return constraints.interval(self.edges[0], self.edges[-1])

    @property
    def guarantee(self) -> Guarantee:
        """Pure differential privacy of labels, with the exact curve of two labels in different bins: all are alike."""
        _, p = self.output_probabilities
        return Guarantee(PureProtocolTradeoff(self.epsilon, p[..., 0]), unit="label")


def _cells(nodes: np.ndarray) -> np.ndarray:
    """Ends of cells of a prior's bins, or of its range where these are too many."""
    bins = len(nodes) - 1
    if bins > MOST_CELLS:
        return np.linspace(nodes[0], nodes[-1], MOST_CELLS + 1)
    parts = -(-LEAST_CELLS // bins)
    return np.interp(np.arange(parts * bins + 1) / parts, np.arange(bins + 1), nodes)
