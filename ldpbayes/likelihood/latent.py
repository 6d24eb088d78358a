"""The nodes of a latent record: panels cut at the kinks of its density, or all counts."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ldpbayes._core.checks import ends_of
from ldpbayes._core.pytrees import pytree_dataclass, static
from ldpbayes._core.types import Array, is_concrete
from ldpbayes.laws import families
from ldpbayes.laws.families import NODES_PER_PANEL, aligned, density_breaks, family_of, log_prob_on_support, panel_nodes
from ldpbayes.mechanisms import Mechanism
from ldpbayes.numerics.special import log_or_nothing, log_sum

LEAST_PANELS = 40  # with 8 nodes each, a normal of σ = 5 % of the range is exact to 1e-9 nats over 10⁶ records
MOST_COUNTS = 1 << 24  # that are added up
VERY_NARROW_PANEL_SHARE = 0.2  # then over 1e-3 nats in 20,000 records, if ε is at most 8 and p(z | x) has no jumps
MERGED_EDGE_SHARE = 1e-6  # of the range: an edge nearer to a break than that is left out for it
GRADED_LEVELS = 36  # panels halve this often towards an end of the support, where a density may be singular
# Without every other one of those that double: a panel between two still resolves a power of the distance.
SPARSE_GRADES = np.concatenate([families.GRADES[:17:2], families.GRADES[17:34], families.GRADES[34::2]])
TOWARDS_BREAKS = 0.25 ** np.arange(1, 19)  # distances from a break of the law, in ranges
TOWARDS_BREAKS = np.concatenate([-TOWARDS_BREAKS, TOWARDS_BREAKS])
CHEAP_VALUES_PER_LAW = 4  # up to so many, this takes no longer than the matrix of a channel
PANELS_BESIDE_CENTRES = 8  # panels beside those around the centres of the law
CHEAP_VALUES = 64  # values for which the time does not matter
JUMP_NATS = 1e-6  # nats by which p(z | x) changes at a kink that is a jump
NODES_AT_ONCE = 1 << 23  # nodes of all values that are evaluated at once
log_density_at = jax.jit(lambda mechanism, z, x: mechanism.log_prob(z, x))


@pytree_dataclass(eq=False)
class Latent:
    """Points of the latent variable and the weights of the base density there; point axis first."""

    nodes: Array  # (n, *batch)
    ends: tuple[Array, Array]  # x (*batch) at which the mass below the first and above the last node's panel is placed
    volume: Array  # (n + 2, *batch): weights of the nodes, then 1 for each end; density times volume is mass
    edges: Array  # (panels + 1, *batch): panel edges; None for a discrete base
    # the support goes on beyond the outermost nodes, if continuous by more than a panel
    open_ends: tuple[bool, bool] = static()
    # The result of `cut_panels`. The last nodes are then those of the pieces; others count in whole panels only.
    pieces: tuple[Array, Array, Array] | None = None
    breaks_at_edges: bool = static(default=False)  # the base's breaks were known beforehand, and no panel holds one

    def cut(self, base: dist.Distribution, breaks: Callable[[Any], jax.Array | None] = density_breaks) -> "Latent":
        """These points, with pieces of 8 nodes, behind the others, in place of the panels that hold a base's breaks."""
        at_edges = self.breaks_at_edges and breaks is density_breaks
        cuts = None if self.edges is None or at_edges else breaks(base)
        if cuts is None:
            return self
        left, right, whole = families.cut_panels(self.edges, cuts)
        nodes, volume = panel_nodes(left, right)
        # a piece without width has no mass but a derivative, for which its nodes must be on its own side of the jump
        info = jnp.finfo(nodes.dtype)
        count = NODES_PER_PANEL * len(cuts)
        ends = jnp.concatenate([right[: len(cuts)], left[len(cuts) :]])
        off = info.eps * jnp.abs(ends) + info.tiny
        before, after = (jnp.repeat(end, NODES_PER_PANEL, axis=0) for end in (ends - off, ends + off))
        nodes = jnp.concatenate([jnp.minimum(nodes[:count], before[:count]), jnp.maximum(nodes[count:], after[count:])])
        fixed = aligned(self.nodes, left.ndim), aligned(self.volume, left.ndim)
        kept, weights = (jnp.broadcast_to(part, (len(part), *left.shape[1:])) for part in fixed)
        nodes, volume = jnp.concatenate([kept, nodes]), jnp.concatenate([weights[:-2], volume, weights[-2:]])
        return replace(self, nodes=nodes, volume=volume, pieces=(left, right, whole))

    def density(self, base: dist.Distribution) -> jax.Array:
        """Density (or mass) at nodes and ends (n + 2, *batch), normalised; on the nearest one if unresolved."""
        log_density = self._log_points(base)
        # the shift only keeps exp() in range and cancels, so it needs no gradient
        shift = jnp.maximum(jax.lax.stop_gradient(log_density).max(axis=0), jnp.finfo(log_density.dtype).min)
        density = jnp.exp(log_density - shift)
        total = jnp.sum(density * aligned(self.volume, density.ndim), axis=0)
        return density / jnp.maximum(total, jnp.finfo(density.dtype).tiny)

    def _log_points(self, base: dist.Distribution) -> jax.Array:
        """Log density (mass) at the nodes and log mass at both ends, not normalised."""
        inside = log_prob_on_support(base, self.nodes)
        if self.pieces is not None:
            left, _, whole = self.pieces
            counts = jnp.concatenate([whole, jnp.ones(left.shape, bool)])
            inside = jnp.where(aligned(jnp.repeat(counts, NODES_PER_PANEL, axis=0), inside.ndim), inside, -jnp.inf)
        if self.edges is None:
            ends = families.log_mass_beyond(base, self.nodes, self.open_ends, inside)
        else:
            ends = families.log_mass_outside(base, self.edges[0], self.edges[-1])
        return jnp.concatenate([inside, jnp.broadcast_to(ends, (2, *inside.shape[1:]))])

    def log_masses(self, base: dist.Distribution) -> jax.Array:
        """Log of `density` for a discrete base, however small the masses are."""
        masses = self._log_points(base)
        return masses - jax.nn.logsumexp(masses, axis=0)

    def points(self, base: dist.Distribution, rank: int) -> tuple[jax.Array, jax.Array]:
        """Points x (n + 2, *batch) of at least `rank` axes, with those of the ends last, and the mass of each."""
        grid = self.cut(base, families.graded_breaks)
        density = grid.density(base)
        rank = max(rank, density.ndim)
        ends = [jnp.broadcast_to(end, grid.nodes.shape[1:])[None] for end in grid.ends]
        x = aligned(jnp.concatenate([grid.nodes, *ends]), rank)
        return x, aligned(density, rank) * aligned(grid.volume, rank)


def check_nodes(base: dist.Distribution, mechanism: Mechanism) -> None:
    """ValueError unless a likelihood without a closed form is possible: clipped numbers, counts or categories."""
    law, kind = type(families.unexpanded(base)).__name__, type(mechanism).__name__
    takes_integers = mechanism.domain.is_discrete
    discrete = base.support.is_discrete
    low, high = _known_ends(base)
    lower, upper = ends_of(mechanism.domain)
    if takes_integers and not discrete:
        takes = "categories" if mechanism.of_categories else "whole numbers"
        raise ValueError(f"{kind} takes {takes}, but the base {law} is continuous")
    if takes_integers and not mechanism.clips and is_concrete(lower, upper):
        least, most = float(np.min(lower)), float(np.max(upper))
        if not (low >= least and high <= most):
            hint = "" if mechanism.of_categories else "; if it clips other values, define clips = True"
            support = f"[{low:g}, {high:g}]{hint}"
            raise ValueError(f"{kind} takes values {least:g}..{most:g}, but the base {law} has support {support}")
    if families.is_infinite(lower) or families.is_infinite(upper):
        if discrete and not is_concrete(*ends_of(base.support)):
            raise ValueError(f"the sum over a {law} needs a support and bounds that JAX does not trace")
        if not discrete or math.isinf(high - low):
            hint = "give the mechanism bounds, or use ldpbayes.likelihood.register_closed_form"
            raise ValueError(f"{law} has no closed form under {kind} without bounds; {hint}")
        if high - low > MOST_COUNTS:
            raise ValueError(f"a {law} has {high - low + 1:.0f} values, but a sum can have at most {MOST_COUNTS}")


def latent_nodes(
    base: dist.Distribution, mechanism: Any, panels: int | None = None, least: int = LEAST_PANELS
) -> Latent:
    """Nodes for a univariate base: 8 a panel inside the bounds (over `least` if noise is narrow), or all counts."""
    check_nodes(base, mechanism)
    if base.support.is_discrete:
        return _discrete_latent(base, mechanism)
    low, high = ends_of(base.support)
    lower, upper = ends_of(mechanism.domain)
    xp = np if is_concrete(low, high, lower, upper) else jnp
    if panels is None:
        panels = least
        if is_concrete(mechanism.resolution, lower, upper):
            panels = max(panels, min(4096, math.ceil(np.max((upper - lower) / mechanism.resolution))))

    def is_open(end: Array, bound: Array, direction: int) -> bool:
        """Whether the support goes on by more than a panel: up to that width outside, a singular end matters."""
        if not is_concrete(end, lower, upper):
            return families.is_infinite(end)
        return bool(np.all(direction * (end - np.asarray(bound)) > (np.asarray(upper) - lower) / panels))

    below, above = is_open(low, lower, -1), is_open(high, upper, 1)
    start = lower if below else xp.maximum(low, lower)
    stop = upper if above else xp.minimum(high, upper)
    start, stop = xp.minimum(start, upper), xp.maximum(stop, lower)  # a support wholly outside the bounds is one atom
    span = stop - start
    breaks = families.known_breaks(base) if xp is np and not np.shape(span) else None
    # a law whose breaks are all known is smooth between them, and up to the ends of its support
    halvings = np.array([0.0]) if breaks is not None else 0.5 ** np.arange(GRADED_LEVELS, 0, -1) / panels
    from_start = np.concatenate([[0.0] if below else halvings, np.arange(1, panels) / panels])
    # distances from the upper end are measured from there, or rounding would merge the last panels
    from_stop = np.array([0.0]) if above else halvings[::-1]
    column = (-1,) + (1,) * np.ndim(span)
    edges = xp.concatenate([start + span * from_start.reshape(column), stop - span * from_stop.reshape(column)])
    if breaks is not None:
        inside = breaks[(breaks > start) & (breaks < stop)]
        apart = np.abs(edges[1:-1, None] - inside).min(axis=1, initial=np.inf) > span * MERGED_EDGE_SHARE
        edges = np.sort(np.concatenate([edges[:1], edges[1:-1][apart], inside, edges[-1:]]))
    nodes, volume = panel_nodes(edges[:-1], edges[1:])
    volume = xp.concatenate([volume, xp.ones((2, *np.shape(span)))])
    return Latent(nodes, (start, stop), volume, edges, (below, above), breaks_at_edges=breaks is not None)


def _known_ends(base: dist.Distribution) -> tuple[float, float]:
    """Ends of a support that hold for a whole batch, ±inf where they are being traced."""
    low, high = ends_of(base.support)
    return float(np.min(low)) if is_concrete(low) else -math.inf, float(np.max(high)) if is_concrete(high) else math.inf


def _discrete_latent(base: dist.Distribution, mechanism: Mechanism) -> Latent:
    """Whole numbers: all of a finite support, or those between the bounds."""
    lower, upper = ends_of(mechanism.domain)
    if not is_concrete(lower, upper):
        hint = "do not pass the mechanism to jit, or make them static (ldpbayes.mechanisms.static)"
        raise ValueError(f"a discrete base distribution needs bounds that JAX does not trace: {hint}")
    low, high = _known_ends(base)
    lower, upper = float(np.min(lower)), float(np.max(upper))
    if math.isinf(upper - lower):  # nothing is clipped, and nothing lies beyond a support that is finite
        lower, upper = low, high
    start = low if math.isfinite(low) else math.ceil(lower)
    stop = high if math.isfinite(high) else math.ceil(upper) - 1
    if stop - start > MOST_COUNTS:
        raise ValueError(f"a sum has at most {MOST_COUNTS} counts, but {stop - start:.0f} are between the bounds")
    # one at least, even outside the bounds: the mechanism clips it
    nodes = np.arange(int(start), max(int(stop), int(start)) + 1, dtype=float)
    return Latent(nodes, (lower, upper), np.ones(len(nodes) + 2), None, (math.isinf(low), math.isinf(high)))


def log_sum_over_counts(base: dist.Distribution, mechanism: Mechanism, z: Array) -> jax.Array:
    """Log Σ_k p(k) p(z | k) over the values of a discrete law, those beyond clipping bounds being at the bounds."""
    grid = latent_nodes(base, mechanism)
    masses = grid.log_masses(base)
    rank = 1 + max(np.ndim(z), masses.ndim - 1, len(mechanism.batch_shape))
    places = aligned(np.concatenate([grid.nodes, grid.ends]), rank)
    # if all is known, a constant of what is traced
    with jax.ensure_compile_time_eval() if is_concrete(z, mechanism) else contextlib.nullcontext():
        kernel = log_density_at(mechanism, z, places)
    return log_sum(aligned(masses, rank) + kernel, axis=0)


def is_needed(base: dist.Distribution, mechanism: Any, z: Array) -> bool:
    """Whether nodes must follow the law, or may at no cost, as far as is known before tracing."""
    values = math.prod(np.broadcast_shapes(np.shape(z), base.batch_shape, mechanism.batch_shape))
    if values <= max(CHEAP_VALUES, CHEAP_VALUES_PER_LAW * math.prod(base.batch_shape)) or not is_concrete(z, mechanism):
        return True
    with jax.ensure_compile_time_eval():
        if _has_jumps(mechanism, np.asarray(z)):
            return True
        edges = latent_nodes(base, mechanism).edges
        # a channel whose panels are only known now would be computed anew each time
        return not is_concrete(edges) or (is_concrete(base) and bool(families.is_narrow(base, edges)))


def _has_jumps(mechanism: Any, z: np.ndarray) -> bool:
    """Whether p(z | x) jumps at a kink, as it does under uniform noise."""
    kinks = np.moveaxis(np.asarray(mechanism.breakpoints(z)), -1, 0)
    off = 1e-9 * (np.abs(kinks) + 1e-3 * np.abs(mechanism.resolution))
    before, after = (np.asarray(mechanism.log_prob(z, kinks + side * off)) for side in (-1, 1))
    with np.errstate(invalid="ignore"):
        return bool(np.any((before != after) & ~(np.abs(before - after) < JUMP_NATS)))


def integrated(base: dist.Distribution, mechanism: Any, z: Array) -> jax.Array:
    """Log density of released values on panels cut at centres and breaks of the law and kinks of p(z | ·)."""
    least = PANELS_BESIDE_CENTRES if family_of(base).centres() else LEAST_PANELS
    edges = latent_nodes(base, mechanism, least=least).edges
    kinks, breaks = jnp.moveaxis(jnp.asarray(mechanism.breakpoints(z)), -1, 0), density_breaks(base)
    shape = jnp.broadcast_shapes(jnp.shape(z), base.batch_shape, mechanism.batch_shape)
    parts = [jnp.asarray(edges), kinks, *families.graded_points(base, SPARSE_GRADES)]
    if breaks is not None:
        # The density may be singular at a break. Breaks, which move with parameters, come last: sorting keeps them
        # behind edges that they equal.
        distances = TOWARDS_BREAKS.reshape(-1, *[1] * breaks.ndim) * (edges[-1] - edges[0])
        places = jax.lax.stop_gradient(breaks) + distances
        parts += [places.reshape(-1, *places.shape[2:]), breaks]
    parts = [aligned(part, 1 + len(shape)) for part in parts]
    first, last = parts[0][0], parts[0][-1]
    # no minimum or maximum: they halve the gradient where a break is on a bound
    cuts = [jnp.where(part > first, jnp.where(part < last, part, last), first) for part in parts]
    points = jnp.sort(jnp.concatenate([jnp.broadcast_to(part, (len(part), *shape)) for part in cuts]), axis=0)
    if breaks is None and is_concrete(z, mechanism, edges):  # ends of the support may move with parameters
        points = jax.lax.stop_gradient(points)  # only the integrand depends on parameters

    def logs(x: Array) -> Array:
        return log_prob_on_support(base, x) + mechanism.log_prob(z, x)

    outside = aligned(families.log_mass_outside(base, edges[0], edges[-1]), 1 + len(shape))
    outside = outside + mechanism.log_prob(z, jnp.stack([first, last]))
    return _log_integral(logs, points, outside)


def _log_integral(logs: Callable[[Array], Array], points: Array, outside: Array) -> jax.Array:
    """Log of the integral between points (n, *batch) of a function with these logs, and masses with logs `outside`."""

    def part(sides: tuple[Array, Array]) -> tuple[Array, Array]:
        x, weights = panel_nodes(*sides)
        # A panel without width has a derivative if a break is on an edge, for which its nodes are before the break. So
        # weights are not taken as logs.
        left, right = (jnp.repeat(side, NODES_PER_PANEL, axis=0) for side in sides)
        off = jnp.finfo(x.dtype).eps * jnp.abs(x) + jnp.finfo(x.dtype).tiny
        values = logs(jnp.minimum(jnp.maximum(x, left + off), right - off))
        highest = jnp.maximum(jax.lax.stop_gradient(values).max(axis=0), jnp.finfo(values.dtype).min)
        return highest, jnp.sum(jnp.exp(values - highest) * weights, axis=0)

    sides, groups = (points[:-1], points[1:]), -(-NODES_PER_PANEL * points.size // NODES_AT_ONCE)
    if groups > 1:
        padded = (jnp.pad(side, [(0, -len(side) % groups), *[(0, 0)] * (side.ndim - 1)], mode="edge") for side in sides)
        highest, totals = jax.lax.map(jax.checkpoint(part), tuple(s.reshape(groups, -1, *s.shape[1:]) for s in padded))
    else:
        highest, totals = (array[None] for array in part(sides))
    largest = jnp.maximum(highest.max(axis=0), jax.lax.stop_gradient(outside).max(axis=0))
    total = jnp.sum(jnp.exp(highest - largest) * totals, axis=0) + jnp.sum(jnp.exp(outside - largest), axis=0)
    return largest + log_or_nothing(total)
