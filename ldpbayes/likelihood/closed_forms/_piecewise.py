"""Records on the real line under mechanisms that step, or bend, as the record grows: by the tails of their law."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from ldpbayes.likelihood._dispatch import register_closed_form
from ldpbayes.likelihood._families import family_of
from ldpbayes.mechanisms import PiecewiseConstant, PiecewiseLinear
from ldpbayes.numerics._logs import log_or_nothing

__all__ = ["piecewise_constant", "piecewise_linear"]


@register_closed_form(dist.Normal, PiecewiseConstant)
@register_closed_form(dist.Laplace, PiecewiseConstant)
@register_closed_form(dist.StudentT, PiecewiseConstant)
@register_closed_form(dist.Cauchy, PiecewiseConstant)
@register_closed_form(dist.Logistic, PiecewiseConstant)
def piecewise_constant(base: Any, mechanism: Any, z: Any) -> jax.Array:
    """Sum of the levels of p(z | x), each times the probability of the records between its two cuts ([LH] eq. 3.4).

    That of an interval is taken from the tails on its own side of the median, so that it is as accurate.
    """
    cuts, levels = (jnp.moveaxis(part, -1, 0) for part in mechanism.pieces(z))
    lower, upper = family_of(base).tails(cuts)
    inner = jnp.where(lower[:-1] > 0.5, upper[:-1] - upper[1:], lower[1:] - lower[:-1])
    return log_or_nothing(levels[0] * lower[0] + jnp.sum(levels[1:-1] * inner, axis=0) + levels[-1] * upper[-1])


@register_closed_form(dist.Normal, PiecewiseLinear)
@register_closed_form(dist.Laplace, PiecewiseLinear)
@register_closed_form(dist.StudentT, PiecewiseLinear)
def piecewise_linear(base: Any, mechanism: Any, z: Any) -> jax.Array:
    """The level at the first node, and each further rise times the mean over its cell of the upper tail.

    So it is by parts: E g(X) = g(first) + ∫ g'(s) P(X > s) ds.
    """
    levels = jnp.moveaxis(mechanism.levels(z), -1, 0)
    nodes = jnp.asarray(mechanism.nodes, levels.dtype)
    nodes = nodes.reshape((-1,) + (1,) * max(levels.ndim - 1, len(base.batch_shape)))
    above = family_of(base).integrated_tail(nodes) / (nodes[1:] - nodes[:-1])
    return log_or_nothing(levels[0] + jnp.sum((levels[1:] - levels[:-1]) * above, axis=0))
