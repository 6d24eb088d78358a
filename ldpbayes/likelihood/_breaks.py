"""Where a base density has kinks and jumps inside its support, and panels that end there.

Panels of fixed nodes represent a density that is smooth between their edges. A kink or a jump sits wherever the
parameters put it, so the panels that hold one are cut there, anew for every value of the parameters.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ldpbayes.likelihood._masses import aligned, is_infinite, support_ends, unexpanded

__all__ = ["cut_panels", "density_breaks"]

_KINKED = (dist.Laplace, dist.AsymmetricLaplace, dist.AsymmetricLaplaceQuantile)
_TRUNCATED = (dist.LeftTruncatedDistribution, dist.RightTruncatedDistribution, dist.TwoSidedTruncatedDistribution)


def density_breaks(base):
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
    points = _breaks(unexpanded(base))
    if not points:
        return None
    return jnp.sort(jnp.stack([jnp.broadcast_to(point, base.batch_shape) for point in points]), axis=0)


def _breaks(base):
    """List of arrays that broadcast with the batch shape of an unexpanded law."""
    if isinstance(base, _KINKED):
        return [base.loc]
    if isinstance(base, _TRUNCATED):
        return _breaks(unexpanded(base.base_dist))
    if isinstance(base, dist.MixtureSameFamily):  # whose components have one support
        batch = (*base.batch_shape, base.mixture_size)
        points = [jnp.broadcast_to(point, batch) for point in _breaks(unexpanded(base.component_distribution))]
        return [point[..., k] for point in points for k in range(base.mixture_size)]
    if isinstance(base, dist.MixtureGeneral):
        own, parts = support_ends(base), [unexpanded(part) for part in base.component_distributions]
        points = [point for part in parts for point in (*support_ends(part), *_breaks(part))]
        return [point for point in points if not any(_is_end(point, end) for end in own)]
    if isinstance(base, dist.TransformedDistribution):
        part = unexpanded(base.base_dist)
        points = _breaks(part)
        if type(base) is dist.TransformedDistribution:  # whose support is all that its transforms can reach
            points += [end for end in support_ends(part) if not is_infinite(end)]
        for transform in base.transforms:
            points = [transform(point) for point in points]
        return [point for point in points if not any(_is_end(point, end) for end in support_ends(base))]
    return []


def _is_end(point, end):
    """Whether a point is known to be infinite or this end of the support."""
    if isinstance(point, jax.core.Tracer) or isinstance(end, jax.core.Tracer):
        return point is end or is_infinite(point)
    return bool(np.all(np.isinf(point) | (np.asarray(point) == end)))


def cut_panels(edges, breaks):
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
