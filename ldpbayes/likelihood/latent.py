"""The nodes of a latent record, and where its density has kinks."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._core.tracing import is_concrete
from ldpbayes.likelihood._masses import (
    aligned,
    is_infinite,
    log_mass_beyond,
    log_mass_outside,
    log_prob_on_support,
    support_ends,
)
from ldpbayes.likelihood.families import family_of, unexpanded
from ldpbayes.mechanisms import PureProtocol
from ldpbayes.numerics.quadrature import gauss_legendre

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


PANELS = 40  # with 8 nodes each, a normal of σ = 5 % of the range is exact to 1e-9 nats over 10⁶ records
QUADRATURE_ORDER = 8
MOST_COUNTS = 1 << 24  # values of a law that is not clipped are added up, at most
GRADED_LEVELS = 36  # panels halve this often towards an end of the support, where a density may be singular


@dataclass(frozen=True)
class Latent:
    """Points of the latent variable and what the base distribution puts on them; point axis first.

    Attributes
    ----------
    nodes : array (n, *batch)
        Where the base density (or mass) is evaluated.
    ends : tuple of two arrays (*batch)
        Values of x at which the mass below the first and above the last node's panel is placed.
    volume : array (n + 2, *batch)
        Quadrature weights of the nodes, then 1 for each end: density times volume is mass.
    edges : array (panels + 1, *batch) or None
        Panel edges; None for a discrete base.
    open_ends : tuple of two bools
        Whether the base's support goes on beyond the first and the last node (static): for a discrete base; for a
        continuous one, whether it does so by more than a panel.
    pieces : tuple of three arrays, or None
        What `cut_panels` returned. The last nodes are then those of the pieces; of the others only those count whose
        panel is whole.
    """

    nodes: Any
    ends: tuple[Any, Any]
    volume: Any
    edges: Any
    open_ends: tuple[bool, bool]
    pieces: tuple[Any, Any, Any] | None = None

    def cut(self, base: Any, breaks: Callable[[Any], Any] = density_breaks) -> "Latent":
        """These points, with pieces that end at a base's kinks and jumps in place of the panels that hold them.

        Parameters
        ----------
        base : numpyro.distributions.Distribution
            Law of a record.
        breaks : callable
            Where a base's panels are cut: `density_breaks` or `graded_breaks`.

        Returns
        -------
        Latent
            This one where the base is smooth; else with the nodes of the pieces, 8 each, behind the others.
        """
        cuts = None if self.edges is None else breaks(base)
        if cuts is None:
            return self
        left, right, whole = cut_panels(self.edges, cuts)
        nodes, volume = _panel_nodes(left, right)
        # a piece without width has no mass but a derivative, for which its nodes must be on its own side of the jump
        info = jnp.finfo(nodes.dtype)
        count = QUADRATURE_ORDER * len(cuts)
        ends = jnp.concatenate([right[: len(cuts)], left[len(cuts) :]])
        off = info.eps * jnp.abs(ends) + info.tiny
        before, after = (jnp.repeat(end, QUADRATURE_ORDER, axis=0) for end in (ends - off, ends + off))
        nodes = jnp.concatenate([jnp.minimum(nodes[:count], before[:count]), jnp.maximum(nodes[count:], after[count:])])
        fixed = aligned(self.nodes, left.ndim), aligned(self.volume, left.ndim)
        own, weights = (jnp.broadcast_to(part, (len(part), *left.shape[1:])) for part in fixed)
        return replace(
            self,
            nodes=jnp.concatenate([own, nodes]),
            volume=jnp.concatenate([weights[:-2], volume, weights[-2:]]),
            pieces=(left, right, whole),
        )

    def density(self, base: Any) -> jax.Array:
        """Density (mass, for a discrete base) at the nodes and mass at both ends, normalised on the points.

        Normalisation changes nothing, to rounding, where the nodes resolve the base. Where they do not (a standard
        deviation far below their distance) it puts the mass on the nearest node instead of inventing or losing any.

        Parameters
        ----------
        base : numpyro.distributions.Distribution
            Law of a record.

        Returns
        -------
        Array (n + 2, *base.batch_shape)
        """
        log_density = self._log_points(base)
        # the shift only keeps exp() in range and cancels, so it needs no gradient
        shift = jnp.maximum(jax.lax.stop_gradient(log_density).max(axis=0), jnp.finfo(log_density.dtype).min)
        density = jnp.exp(log_density - shift)
        total = jnp.sum(density * aligned(self.volume, density.ndim), axis=0)
        return density / jnp.maximum(total, jnp.finfo(density.dtype).tiny)

    def _log_points(self, base: Any) -> jax.Array:
        """Log density (mass) at the nodes and log mass at both ends, as they are."""
        inside = log_prob_on_support(base, self.nodes)
        if self.pieces is not None:
            left, _, whole = self.pieces
            counts = jnp.concatenate([whole, jnp.ones(left.shape, bool)])
            inside = jnp.where(aligned(jnp.repeat(counts, QUADRATURE_ORDER, axis=0), inside.ndim), inside, -jnp.inf)
        if self.edges is None:
            ends = log_mass_beyond(base, self.nodes, self.open_ends, inside)
        else:
            ends = log_mass_outside(base, self.edges[0], self.edges[-1])
        return jnp.concatenate([inside, jnp.broadcast_to(ends, (2, *inside.shape[1:]))])

    def log_masses(self, base: Any) -> jax.Array:
        """Log of `density` for a discrete base, however small the masses are, shape (n + 2, *base.batch_shape).

        Parameters
        ----------
        base : numpyro.distributions.Distribution
            Law of a record.
        """
        masses = self._log_points(base)
        return masses - jax.nn.logsumexp(masses, axis=0)

    def expectation(self, base: Any, function: Callable[[Any], Any], rank: int = 1) -> jax.Array:
        """E[function(x)] with x ~ base clipped to the mechanism's bounds, shape ``(*batch, *event)``.

        Parameters
        ----------
        base : numpyro.distributions.Distribution
            Law of a record.
        function : callable
            Maps points (n + 2, *batch) to values (n + 2, *batch, *event).
        rank : int
            Axes that the points have at least: one more than a batch that `function` broadcasts with.
        """
        grid = self.cut(base, graded_breaks)
        density = grid.density(base)
        rank = max(rank, density.ndim)
        ends = [jnp.broadcast_to(end, grid.nodes.shape[1:])[None] for end in grid.ends]
        values = function(aligned(jnp.concatenate([grid.nodes, *ends]), rank))
        mass = aligned(density, rank) * aligned(grid.volume, rank)
        return jnp.sum(mass.reshape(mass.shape + (1,) * (values.ndim - rank)) * values, axis=0)


def check_nodes(base: Any, mechanism: Any) -> None:
    """ValueError unless a likelihood without a closed form is possible: clipped numbers, counts or categories.

    Parameters
    ----------
    base : numpyro.distributions.Distribution
        Law of a record.
    mechanism : Mechanism
        What perturbs it.

    Raises
    ------
    ValueError
        If a continuous base is to be released by a mechanism for categories or whole numbers; if the base can take
        values that a mechanism for categories does not; or if there are no clipping bounds, and more values than can
        be added up.
    """
    law, kind = type(unexpanded(base)).__name__, type(mechanism).__name__
    takes_integers = mechanism.domain.is_discrete
    low, high = _known_ends(base)
    lower, upper = _bounds(mechanism)
    if takes_integers and not base.support.is_discrete:
        takes = "categories" if isinstance(mechanism, PureProtocol) else "whole numbers"
        raise ValueError(f"{kind} takes {takes}, but the base {law} is continuous")
    if takes_integers and not mechanism.clips and is_concrete(lower, upper):
        least, most = float(np.min(lower)), float(np.max(upper))
        if not (low >= least and high <= most):
            hint = "" if isinstance(mechanism, PureProtocol) else "; if it clips the others, it must say clips = True"
            raise ValueError(
                f"{kind} takes values {least:g}..{most:g}, but the base distribution {law} has support "
                f"[{low:g}, {high:g}]{hint}"
            )
    if is_infinite(lower) or is_infinite(upper):
        if base.support.is_discrete and not is_concrete(*support_ends(base)):
            raise ValueError(f"the sum over a {law} needs a support, and bounds, that are known before tracing")
        if not base.support.is_discrete or math.isinf(high - low):
            raise ValueError(
                f"{law} has no closed form under {kind} without bounds, and a channel needs them; give the mechanism "
                "bounds, or register a form (ldpbayes.likelihood.register_closed_form)"
            )
        if high - low > MOST_COUNTS:
            raise ValueError(
                f"a {law} on {high - low + 1:.0f} values has more than the {MOST_COUNTS} that are added up"
            )


def latent(base: Any, mechanism: Any, panels: int | None = None) -> Latent:
    """Choose the nodes for a base distribution under a mechanism.

    Parameters
    ----------
    base : numpyro.distributions.Distribution
        Univariate; its support may depend on parameters, even traced ones, but costs less where it does not.
    mechanism : Mechanism
        With one set of bounds, or one a record.
    panels : int, optional
        Panels of 8 Gauss-Legendre nodes each inside the bounds. Default: 40, or as many as the mechanism's own noise
        scale asks for.

    Raises
    ------
    ValueError
        See `check_nodes`; and if the bounds of counts are not known before tracing.
    """
    check_nodes(base, mechanism)
    if base.support.is_discrete:
        return _discrete_latent(base, mechanism)
    low, high = support_ends(base)
    lower, upper = _bounds(mechanism)
    xp = np if is_concrete(low, high, lower, upper) else jnp
    if panels is None:
        panels = PANELS
        if mechanism.resolution is not None and is_concrete(mechanism.resolution, lower, upper):
            panels = max(panels, min(4096, math.ceil(np.max((upper - lower) / mechanism.resolution))))
    # an end of the support, where the density may be singular, matters up to a panel's width outside the bounds
    if is_concrete(low, lower, upper):
        below = bool(np.all(np.asarray(lower) - low > (np.asarray(upper) - lower) / panels))
    else:
        below = is_infinite(low)
    if is_concrete(high, lower, upper):
        above = bool(np.all(high - np.asarray(upper) > (np.asarray(upper) - lower) / panels))
    else:
        above = is_infinite(high)
    start = lower if below else xp.maximum(low, lower)
    stop = upper if above else xp.minimum(high, upper)
    start, stop = xp.minimum(start, upper), xp.maximum(stop, lower)  # a support wholly outside the bounds is one atom
    halvings = 0.5 ** np.arange(GRADED_LEVELS, 0, -1) / panels
    from_start = np.concatenate([[0.0] if below else halvings, np.arange(1, panels) / panels])
    # distances from the upper end are measured from there, or rounding would merge the last panels
    from_stop = np.array([0.0]) if above else halvings[::-1]
    span = stop - start
    column = (-1,) + (1,) * np.ndim(span)
    edges = xp.concatenate([start + span * from_start.reshape(column), stop - span * from_stop.reshape(column)])
    nodes, volume = _panel_nodes(edges[:-1], edges[1:])
    return Latent(nodes, (start, stop), xp.concatenate([volume, xp.ones((2, *np.shape(span)))]), edges, (below, above))


def _panel_nodes(left: Any, right: Any) -> tuple[Any, Any]:
    """Nodes of panels (panels, *batch) and their weights, each of shape (8 panels, *batch)."""
    t, w = (array.reshape((-1,) + (1,) * (left.ndim - 1)) for array in gauss_legendre(QUADRATURE_ORDER))
    half = 0.5 * (right - left)[:, None]
    flat = (-1, *left.shape[1:])
    return (left[:, None] + half * (1 + t)).reshape(flat), (half * w).reshape(flat)


def _bounds(mechanism: Any) -> tuple[Any, Any]:
    """Ends of the interval to which records are clipped, or of the codes that are taken; infinite without one."""
    domain = mechanism.domain
    return getattr(domain, "lower_bound", -math.inf), getattr(domain, "upper_bound", math.inf)


def _known_ends(base: Any) -> tuple[float, float]:
    """Ends of a support that hold for a whole batch, ±inf where they are being traced."""
    low, high = support_ends(base)
    return float(np.min(low)) if is_concrete(low) else -math.inf, float(np.max(high)) if is_concrete(high) else math.inf


def _discrete_latent(base: Any, mechanism: Any) -> Latent:
    """Whole numbers: all of a finite support, or those between the bounds."""
    lower, upper = _bounds(mechanism)
    if not is_concrete(lower, upper):
        raise ValueError(
            f"a discrete base distribution needs a mechanism whose bounds are known before tracing; under jit give "
            f"{type(mechanism).__name__} as a constant, or make its bounds static (ldpbayes.mechanisms.static)"
        )
    low, high = _known_ends(base)
    lower, upper = float(np.min(lower)), float(np.max(upper))
    if math.isinf(upper - lower):  # nothing is clipped, and nothing lies beyond a support that is finite
        lower, upper = low, high
    start = low if math.isfinite(low) else math.ceil(lower)
    stop = high if math.isfinite(high) else math.ceil(upper) - 1
    if stop - start > MOST_COUNTS:
        raise ValueError(f"{stop - start:.0f} counts between bounds are more than the {MOST_COUNTS} that are added up")
    # one at least, even outside the bounds: the mechanism clips it
    nodes = np.arange(int(start), max(int(stop), int(start)) + 1, dtype=float)
    return Latent(nodes, (lower, upper), np.ones(len(nodes) + 2), None, (math.isinf(low), math.isinf(high)))
