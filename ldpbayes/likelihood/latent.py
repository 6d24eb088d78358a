"""p(z | θ) by numbers, if there is no closed form: the nodes of a latent record, which are panels cut at kinks of its
density, or all counts; and over them a sum, a quadrature, or a product with a channel.

A channel is the mechanism as a matrix, the same for any base: p(z_j | θ) is Σ_k K[k, j] p_θ(x_k) over latent nodes,
with K[k, j] = ∫ ℓ_k(x) p(z_j | x) dx of Lagrange bases ℓ_k of a panel's nodes, cut at kinks of p(z | ·), so exact to
rounding.
"""

import contextlib
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpy.polynomial.legendre import leggauss

from ldpbayes._core.checks import ends_of
from ldpbayes._core.pytrees import pytree_dataclass, static
from ldpbayes._core.types import Array, ArrayModule, is_concrete
from ldpbayes.laws import families
from ldpbayes.laws.families import NODES_PER_PANEL, aligned, density_breaks, family_of, log_prob_on_support, panel_nodes
from ldpbayes.mechanisms import Mechanism
from ldpbayes.numerics.polynomial import lagrange_from_legendre
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
INTEGRATION_ORDER = 12  # between kinks p(z | x) varies by a factor e at most over a panel: exact to rounding
MOST_MATRIX_ENTRIES = 1 << 27  # 1 GiB in double precision; a traced function carries them as a constant
BUILD_COPIES = 3  # while it is built, the matrix takes this many times its own room
BUILD_ENTRIES_AT_ONCE = 1 << 22  # entries of the largest temporary while the matrix is built
PAIRS_AT_ONCE = 1 << 14  # pairs of x and z whose densities are computed at once
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
    low, high = _known_ends(base.support)
    lower, upper = ends_of(mechanism.domain)
    if takes_integers and not discrete:
        takes = "categories" if mechanism.of_categories else "whole numbers"
        raise ValueError(f"{kind} takes {takes}, but the base {law} is continuous")
    least, most = _known_ends(mechanism.domain)
    if takes_integers and not mechanism.clips and not (low >= least and high <= most):
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


def _known_ends(constraint: Any) -> tuple[float, float]:
    """Ends of a support or domain that hold for a whole batch, ±inf where they are being traced."""
    low, high = ends_of(constraint)
    return float(np.min(low)) if is_concrete(low) else -math.inf, float(np.max(high)) if is_concrete(high) else math.inf


def _discrete_latent(base: dist.Distribution, mechanism: Mechanism) -> Latent:
    """Whole numbers: all of a finite support, or those between the bounds."""
    if not is_concrete(*ends_of(mechanism.domain)):
        hint = "do not pass the mechanism to jit, or make them static (ldpbayes.mechanisms.static)"
        raise ValueError(f"a discrete base distribution needs bounds that JAX does not trace: {hint}")
    (low, high), (lower, upper) = _known_ends(base.support), _known_ends(mechanism.domain)
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


@pytree_dataclass(eq=False)
class Channel:
    """A discretised mechanism at given released values."""

    latent: Latent  # nodes of x; the last two rows of the matrix belong to its ends
    matrix: Array  # (n + 2, *z): ∫ ℓ_k(x) p(z | x) dx, divided by exp(log_scale)
    log_scale: Array  # (*z): largest log p(z | x) over the nodes, so that no value is too far out to be represented
    mechanism: Mechanism
    z: Array  # (*z, *event): for rows of the matrix of panels that a kink or a jump of a base density cuts

    def log_prob(self, base: dist.Distribution) -> jax.Array:
        """Log density of the released values when x ~ base, in the broadcast shape of z and ``base.batch_shape``."""
        grid = self.latent.cut(base)
        density = grid.density(base)
        if grid.pieces is None:
            total = _product(density, self.matrix)
        else:
            fixed = len(self.matrix) - 2
            of_nodes = jnp.concatenate([density[:fixed], density[-2:]])
            total = _product(of_nodes, self.matrix) + _product(density[fixed:-2], self._rows(*grid.pieces[:2]))
        return self.log_scale + jnp.log(jnp.maximum(total, jnp.finfo(total.dtype).tiny))

    def _rows(self, left: Array, right: Array) -> jax.Array:
        """Rows of the matrix for panels that are only known now, (panels, *batch), and need not touch each other."""
        kernel = _Kernel(jnp, self.mechanism, self.z)
        rank = max(self.matrix.ndim, left.ndim)
        left, right = aligned(left, rank), aligned(right, rank)
        holders = [(left <= cut) & (cut < right) for cut in kernel.cuts]
        return kernel.integrals(kernel.log_at_gauss_points(left, right), self.log_scale, left, right, holders)


def _product(density: Array, matrix: Array) -> jax.Array:
    rows = matrix.T  # nodes last, which is how `build_channel` has laid them out
    if density.ndim == 1:  # on a CPU, a product with a matrix takes a third of the time of one with a 3-d array
        return jnp.reshape(rows.reshape(-1, rows.shape[-1]) @ density, rows.shape[:-1]).T
    if density.ndim == 2 and rows.ndim == 3 and len(rows) == 1:  # one matrix for all laws
        return jnp.tensordot(rows[0], density, axes=1)
    if density.ndim == 2 and rows.ndim == 3 and len(rows) == density.shape[1]:  # one a law
        return jnp.einsum("gzn,ng->zg", rows, density)
    rank = max(density.ndim, matrix.ndim)
    return jnp.sum(aligned(density, rank) * aligned(matrix, rank), axis=0)


def build_channel(base: dist.Distribution, mechanism: Mechanism, z: Array, panels: int | None = None) -> Channel:
    """The channel at released values z: in NumPy and double precision for concrete ones. ValueError beyond 1 GiB."""
    grid = latent_nodes(base, mechanism, panels)
    n = grid.nodes.shape[0] + 2
    event = mechanism.event_shape
    shape = np.broadcast_shapes(jnp.shape(z)[: jnp.ndim(z) - len(event)], grid.nodes.shape[1:], mechanism.batch_shape)
    concrete = is_concrete(z, mechanism, grid.nodes)
    if n * math.prod(shape) * (1 if concrete else BUILD_COPIES) > MOST_MATRIX_ENTRIES:
        # a sketch passes `panels`, and would not be helped by being sketched
        instead = "release.sketch()" if panels is None else "the release itself instead of a sketch"
        size = f"a channel of {n} nodes for values of shape {shape} would need more than 1 GiB"
        hint = "" if concrete else ", or pass the released values outside jit, where the channel can be built in chunks"
        raise ValueError(f"{size}; use {instead}, or fewer panels, such as release.sketch(panels=300){hint}")
    if not concrete:
        z = jnp.broadcast_to(z, shape + event)
        return Channel(grid, *_matrix(jnp, grid, mechanism, z), mechanism, z)
    z = np.broadcast_to(np.asarray(z) if event else np.asarray(z, dtype=float), shape + event)
    # in double precision whatever the caller's setting, and never part of a trace
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        if not shape:
            return Channel(grid, *_matrix(np, grid, mechanism, z), mechanism, z)
        # a product with a law that several values share goes from value to value and reads all nodes of each: they
        # then lie next to each other
        order: Literal["F", "C"] = "F" if len(base.batch_shape) < len(shape) else "C"
        matrix, log_scale = np.empty((n, *shape), order=order), np.empty(shape)
        width = max(1, BUILD_ENTRIES_AT_ONCE // (n * BUILD_COPIES * math.prod(shape[:-1])))
        for start in range(0, shape[-1], width):
            part = slice(start, start + width)
            values = z[(..., part, *(slice(None),) * len(event))]
            matrix[..., part], log_scale[..., part] = _matrix(np, *_cut(grid, mechanism, shape[-1], part), values)
    return Channel(grid, matrix, log_scale, mechanism, z)


def _cut(grid: Latent, mechanism: Mechanism, size: int, part: slice) -> tuple[Latent, Any]:
    """Points and mechanism of a part of a batch's last axis, of this size; what lacks that axis stays whole."""

    def cut(leaf: Array) -> Array:
        return leaf[..., part] if np.shape(leaf)[-1:] == (size,) else leaf

    return jax.tree.map(cut, grid) if grid.nodes.ndim > 1 else grid, mechanism._map_personal(cut)


def _matrix(xp: ArrayModule, grid: Latent, mechanism: Any, z: Array) -> tuple[Array, Array]:
    kernel = _Kernel(xp, mechanism, z)
    batch = np.broadcast_shapes(z.shape[: z.ndim - len(mechanism.event_shape)], grid.nodes.shape[1:])
    ends = xp.stack([xp.broadcast_to(kernel.log(xp.asarray(end)), batch) for end in grid.ends])
    if grid.edges is None:
        log_values = kernel.log(aligned(grid.nodes, 1 + len(batch)))
        highest = xp.maximum(log_values.max(axis=0), ends.max(axis=0))
    else:
        edges = aligned(xp.asarray(grid.edges), 1 + len(batch))
        left, right = edges[:-1], edges[1:]
        log_values = kernel.log_at_gauss_points(left, right)
        peaks = [kernel.log(xp.clip(cut, edges[0], edges[-1])) for cut in kernel.cuts]
        highest = functools.reduce(xp.maximum, peaks, xp.maximum(log_values.max(axis=(0, 1)), ends.max(axis=0)))
    log_scale = xp.where(highest > -np.inf, highest, 0.0)  # it is −inf at a value that cannot be released
    if grid.edges is None:
        return xp.exp(xp.concatenate([log_values, ends]) - log_scale), log_scale
    number = np.arange(len(left)).reshape((-1,) + (1,) * len(batch))
    holders = [number == (edges[1:-1] <= cut).sum(axis=0) for cut in kernel.cuts]
    inside = kernel.integrals(log_values, log_scale, left, right, holders)
    return xp.concatenate([inside, xp.exp(ends - log_scale)]), log_scale


@dataclass(frozen=True)
class _Kernel:
    """p(z | x) as a function of x at released values z (*z, *event), computed with ``xp``, and its integrals."""

    xp: ArrayModule
    mechanism: Any
    z: Array

    def log(self, x: Array) -> Array:
        if self.xp is not np or self.mechanism.event_shape or self.mechanism.batch_shape:
            return self.xp.asarray(log_density_at(self.mechanism, self.z, x))
        # Values of all shapes are computed by one program, so that it is compiled once.
        pairs = np.stack(np.broadcast_arrays(self.z, x))
        flat, logs = pairs.reshape(2, -1), np.empty(pairs[0].size)
        for start in range(0, len(logs), PAIRS_AT_ONCE):
            part = flat[:, start : start + PAIRS_AT_ONCE]
            padded = np.pad(part, ((0, 0), (0, PAIRS_AT_ONCE - part.shape[1])), mode="edge")
            logs[start : start + PAIRS_AT_ONCE] = np.asarray(log_density_at(self.mechanism, *padded))[: part.shape[1]]
        return logs.reshape(pairs.shape[1:])

    @functools.cached_property
    def cuts(self) -> Array:
        """Kinks of p(z | ·) in ascending order, shape (m, *z)."""
        return self.xp.moveaxis(self.xp.sort(self.mechanism.breakpoints(self.z), axis=-1), -1, 0)

    def log_at_gauss_points(self, left: Array, right: Array) -> Array:
        """Logs, (panels, 12, *z), at the nodes of a rule that integrates it over panels (panels, *z) without kinks."""
        t, _ = leggauss(INTEGRATION_ORDER)
        return self.log(left[:, None] + 0.5 * (right - left)[:, None] * (1 + t.reshape((-1,) + (1,) * (left.ndim - 1))))

    def integrals(self, log_values: Array, log_scale: Array, left: Array, right: Array, holders: list) -> Array:
        """Integrals (8 panels, *z) of the Lagrange bases against it, over exp(log_scale), from values of
        `log_at_gauss_points`; `holders` mark the panel (panels, *z) that each cut is in.
        """
        # every panel by one Gauss rule whose nodes all released values share ...
        t, w = leggauss(INTEGRATION_ORDER)
        panels, batch = len(left), log_values.shape[2:]
        legendre = np.polynomial.legendre.legvander(t, NODES_PER_PANEL - 1)
        basis = (legendre @ lagrange_from_legendre(NODES_PER_PANEL)).T * w
        values = self.xp.exp(log_values - log_scale).reshape((panels, INTEGRATION_ORDER, -1))
        integrals = self.xp.matmul(basis, values).reshape((panels, NODES_PER_PANEL) + batch)
        inside = 0.5 * (right - left)[:, None] * integrals
        # ... then those that a kink cuts again, piece by piece
        for holder in holders:
            start, stop = (self.xp.where(holder, end, 0.0).sum(axis=0) for end in (left, right))
            inside = self.xp.where(holder[:, None], self._pieces(log_scale, start, stop), inside)
        return inside.reshape((-1,) + batch)

    def _pieces(self, log_scale: Array, start: Array, stop: Array) -> Array:
        """Integrals of one panel's Lagrange basis, cut at the kinks, shape (8, *z)."""
        xp = self.xp
        bounds = xp.concatenate([start[None], xp.clip(self.cuts, start, stop), stop[None]])  # (m + 2, *z)
        t, w = (array.reshape((-1,) + (1,) * bounds.ndim) for array in leggauss(INTEGRATION_ORDER))
        half = 0.5 * (bounds[1:] - bounds[:-1])
        x = bounds[:-1] + half * (1 + t)  # (order, m + 1, *z)
        values = xp.exp(self.log(x) - log_scale) * (w * half)
        local = (2 * x - start - stop) / xp.where(stop > start, stop - start, 1.0)
        previous, current = xp.ones_like(local), local
        moments = [values.sum(axis=(0, 1)), (values * current).sum(axis=(0, 1))]
        for n in range(1, NODES_PER_PANEL - 1):
            previous, current = current, ((2 * n + 1) * local * current - n * previous) / (n + 1)
            moments.append((values * current).sum(axis=(0, 1)))
        return xp.tensordot(lagrange_from_legendre(NODES_PER_PANEL).T, xp.stack(moments), axes=(1, 0))
