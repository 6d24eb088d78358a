"""Where a base density has kinks and jumps inside its support, and panels that end there.

Panels of fixed nodes represent a density that is smooth between their edges. A kink or a jump sits wherever the
parameters put it, so the panels that hold one are cut there, anew for every value of the parameters.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._tracing import is_concrete
from ldpbayes.likelihood._families import family_of
from ldpbayes.likelihood._masses import aligned, is_infinite

__all__ = ["cut_panels", "density_breaks", "graded_breaks", "is_end"]

# Distances from a centre in widths of a law, up to 10⁶ of them: a panel between two resolves a density that falls like
# a normal law, exponentially or, where panels double, like a power. Of a Cauchy law 6e-7 lie further out.
GRADES = 0.5 * np.concatenate([1.5 ** np.arange(8), 1.5**7 * 2.0 ** np.arange(1, 18)])
GRADES = np.concatenate([-GRADES[::-1], [0.0], GRADES])


def density_breaks(base: Any) -> jax.Array | None:
    """Points at which a continuous density is not smooth, besides the ends of its support.

    Parameters
    ----------
    base : numpyro.distributions.Distribution
        Univariate.

    Returns
    -------
    Array (m, *base.batch_shape) or None
        In ascending order, some of them possibly outside the support or infinite; None where there are none.
    """
    points = family_of(base).breaks()
    if not points:
        return None
    return jnp.sort(jnp.stack([jnp.broadcast_to(point, base.batch_shape) for point in points]), axis=0)


def graded_breaks(base: Any) -> jax.Array | None:
    """`density_breaks`, and points ever closer to the centres of the law, for a density too narrow for fixed panels.

    Parameters
    ----------
    base : numpyro.distributions.Distribution
        Univariate.
    """
    own, shape = density_breaks(base), tuple(base.batch_shape)
    points = [] if own is None else [own]
    for pair in family_of(base).centres():
        centre, width = (jnp.broadcast_to(part, shape) for part in jax.lax.stop_gradient(pair))
        known = jnp.isfinite(centre) & jnp.isfinite(width)
        grades = aligned(GRADES, 1 + len(shape))
        points.append(jnp.where(known, centre + grades * jnp.where(known, width, 0.0), -jnp.inf))
    return jnp.sort(jnp.concatenate(points), axis=0) if points else None


def is_end(point: Any, end: Any) -> bool:
    """Whether a point is known to be infinite or this end of the support.

    Parameters
    ----------
    point, end : array_like
        Numbers, or arrays that broadcast.
    """
    if not is_concrete(point, end):
        return point is end or is_infinite(point)
    return bool(np.all(np.isinf(point) | (np.asarray(point) == end)))


def cut_panels(edges: Any, breaks: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Replace the panels that hold a break by pieces, two a break, which end there.

    Parameters
    ----------
    edges : array (panels + 1, *batch)
        In ascending order.
    breaks : array (m, *batch)
        In ascending order; what lies beyond the first or the last edge is taken to be there.

    Returns
    -------
    left, right : array (2 m, *batch)
        Ends of the pieces, which cover every panel that holds a break once; some have no width.
    whole : array (panels, *batch)
        Which panels hold none.
    """
    rank = max(jnp.ndim(edges), breaks.ndim)
    edges, breaks = aligned(edges, rank), aligned(breaks, rank)
    batch = jnp.broadcast_shapes(edges.shape[1:], breaks.shape[1:])
    edges, breaks = (jnp.broadcast_to(array, (len(array), *batch)) for array in (edges, breaks))
    # no maximum or minimum: where they tie, as with a break on an edge, they would halve the gradient
    breaks = jnp.where(breaks < edges[0], edges[0], jnp.where(breaks > edges[-1], edges[-1], breaks))
    index = jnp.sum(edges[1:-1] <= breaks[:, None], axis=1)
    again = index[1:] == index[:-1]  # in the panel of the break before
    first, last = (jnp.take_along_axis(side, index, axis=0) for side in (edges[:-1], edges[1:]))
    left = jnp.concatenate([first[:1], jnp.where(again, breaks[:-1], first[1:])])
    right = jnp.concatenate([jnp.where(again, breaks[:-1], last[:-1]), last[-1:]])
    number = np.arange(len(edges) - 1).reshape((-1,) + (1,) * (rank - 1))
    whole = jnp.all(number != index[:, None], axis=0)
    return jnp.concatenate([left, breaks]), jnp.concatenate([breaks, right]), whole
