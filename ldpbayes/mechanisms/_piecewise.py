"""Mechanisms whose p(z | x) is a step function, or a broken line, of the record x.

So is all that randomizes an answer on the line: what it releases depends on which cell the record is in. The law of z
is then known for every law of x whose tails are.
"""

import abc
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ldpbayes._tracing import array_of
from ldpbayes.mechanisms._mechanism import Mechanism
from ldpbayes.numerics._logs import log_or_nothing

__all__ = ["PiecewiseConstant", "PiecewiseLinear"]


class PiecewiseConstant(Mechanism):
    """A mechanism under which p(z | x) is constant in x but for some steps."""

    @abc.abstractmethod
    def pieces(self, z: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Where p(z | x) steps as x grows, and its values between the steps.

        Parameters
        ----------
        z : array_like
            Released values.

        Returns
        -------
        cuts : Array (*z, m)
            In ascending order; two may be equal.
        levels : Array (*z, m + 1)
            p(z | x) = levels[..., i] for cuts[..., i − 1] < x ≤ cuts[..., i].
        """

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """See `Mechanism.log_prob`."""
        z, x = array_of(z), array_of(x)
        dtype = jnp.result_type(z, x, float)
        cuts, levels = self.pieces(jnp.asarray(z, dtype))
        x = jnp.asarray(x, dtype)[..., None]
        # from the right: the first level is that of the records below all cuts
        level = levels[..., 0]
        for i in range(cuts.shape[-1]):
            level = jnp.where(x[..., 0] > cuts[..., i], levels[..., i + 1], level)
        return log_or_nothing(level)


class PiecewiseLinear(Mechanism):
    """A mechanism under which p(z | x) is linear in x between nodes, and constant beyond the first and the last."""

    nodes: Any
    """Array (k,), increasing: a field."""

    @abc.abstractmethod
    def levels(self, z: ArrayLike) -> jax.Array:
        """p(z | x) at the nodes.

        Parameters
        ----------
        z : array_like
            Released values.

        Returns
        -------
        Array (*z, k)
        """

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """See `Mechanism.log_prob`."""
        z, x = array_of(z), array_of(x)
        dtype = jnp.result_type(z, x, float)
        levels, nodes = self.levels(jnp.asarray(z, dtype)), jnp.asarray(self.nodes, dtype)
        x = jnp.clip(jnp.asarray(x, dtype), nodes[0], nodes[-1])
        last = jnp.clip(jnp.searchsorted(nodes, x), 1, len(nodes) - 1)
        share = (x - nodes[last - 1]) / (nodes[last] - nodes[last - 1])
        levels, last, share = jnp.broadcast_arrays(levels, last[..., None], share[..., None])
        left, right = (jnp.take_along_axis(levels, at[..., :1], axis=-1)[..., 0] for at in (last - 1, last))
        return log_or_nothing(left + (right - left) * share[..., 0])
