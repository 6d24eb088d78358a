"""Laws of records: the facts about a law that a `Family` knows, masses of any law, and panels that follow it."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpy.polynomial.legendre import leggauss

from ldpbayes._core.checks import ends_of
from ldpbayes._core.types import Array, is_concrete
from ldpbayes.numerics.special import log1mexp, log_or_nothing, log_sum, stacked

NODES_PER_PANEL = 8  # of Gauss-Legendre rules for densities
NARROW_PANEL_SHARE = 0.5  # of a panel: if a normal law is narrower, its integral errs by over 1e-9 nats
CENTRE_REACH_WIDTHS = 8.0  # widths from its centre beyond which a normal law has nothing
# Distances from a centre in widths of a law, up to 10⁶ of them: a panel between two resolves a density that falls like
# a normal law, exponentially or, where panels double, like a power. Of a Cauchy law 6e-7 lie further out.
GRADES = 0.5 * np.concatenate([1.5 ** np.arange(8), 1.5**7 * 2.0 ** np.arange(1, 18)])
GRADES = np.concatenate([-GRADES[::-1], [0.0], GRADES])
CATEGORICAL = dist.CategoricalProbs, dist.CategoricalLogits
NEGLIGIBLE_LOG_DENSITY = -750.0  # exp of it is zero in double precision


class Family:
    """The methods that the likelihood calls for a univariate law of records. The defaults are right for every law.

    A subclass, registered by `register_family`, overrides some to be more accurate or faster. They should be accurate
    even for very small probabilities. ``law`` is the NumPyro law of one record (without plates). Results broadcast with
    its batch shape. JAX traces them, and differentiates them with respect to its parameters.
    """

    # Whether the log density and its derivatives are finite wherever a float can be, so that no guards are needed.
    tame: ClassVar[bool] = False

    def __init__(self, law: Any) -> None:
        self.law = law

    def breaks(self) -> list[Array]:
        """Return all points inside the support of a continuous law where its density has a kink or a jump."""
        return []

    def steep_points(self) -> list[Array]:
        """Return more points (m, *batch) between which functions of the cdf have to be integrated."""
        return []

    def centres(self) -> list[tuple[Array, Array]]:
        """Return points where most of a continuous law lies, as pairs (point, width: about a standard deviation)."""
        try:
            return [(self.law.mean, jnp.sqrt(self.law.variance))]
        except NotImplementedError:
            return []

    def cdf(self, x: Array) -> Array:
        """Return P(X ≤ x), for x (..., *batch) inside the support: whole numbers if the law is discrete.

        Default: NumPyro's, or a sum over the values of a discrete law. If the result has no derivative in the
        parameters, the likelihood integrates the density instead.
        """
        low, high = ends_of(self.law.support)
        summed = type(self.law).cdf is dist.Distribution.cdf and self.law.support.is_discrete
        if not summed or not is_concrete(low, high) or is_infinite(high):
            return self.law.cdf(x)
        counts = np.arange(np.min(low), np.max(high) + 1)
        masses, counts = (aligned(array, 1 + jnp.ndim(x)) for array in (log_prob_on_support(self.law, counts), counts))
        return jnp.sum(jnp.where(counts <= x, jnp.exp(masses), 0.0), axis=0)

    def tails(self, x: Array) -> jax.Array:
        """Return P(X ≤ x) and P(X > x) of a law on the real line, as an array (2, ...)."""
        lower = self.cdf(x)
        return stacked(lower, 1.0 - lower)

    def integrated_tail(self, edges: Array) -> jax.Array:
        """Return ∫ P(X > s) ds (n − 1, ...) between increasing `edges` (n, ...), for a law on the real line."""
        raise NotImplementedError(f"{type(self.law).__name__} has no integrated tail")

    def log_mass_outside(self, first: Array, last: Array) -> Array:
        """Return log P(X < first) and log P(X > last) of a continuous law (2, *batch); None (default) if unknown."""
        return None

    def log_mass(self, counts: Array) -> Array:
        """Return log probabilities of whole numbers `counts` (n, *batch): 0, ..., n − 1 if the law starts at 0."""
        return self.law.log_prob(counts)

    def log_mass_above(self, nodes: Array, log_masses: Array) -> Array:
        """Return log P(X > n − 1) for a law on 0, 1, ..., given the log probabilities (n, *batch) of `nodes` 0, ..., n
        − 1. The default, the log of 1 minus their sum, is inaccurate if it is small.
        """
        return log1mexp(log_sum(log_masses, axis=0))


class Registry:
    """Functions or classes under keys: those of `users`, from other modules, count before those of this package."""

    def __init__(self) -> None:
        self.users: dict[Any, Any] = {}
        self.ours: dict[Any, Any] = {}

    def add(self, key: Any, entry: Any, purpose: str) -> None:
        """ValueError, which names the purpose, if another entry of its side has the key."""
        table = self.ours if entry.__module__.startswith("ldpbayes.") else self.users
        present = table.get(key, entry)
        # running a notebook cell again defines an entry of the same name anew
        if (present.__module__, present.__qualname__) != (entry.__module__, entry.__qualname__):
            raise ValueError(f"{present!r} is already registered for {purpose}")
        table[key] = entry

    def find(self, keys: Sequence[Any]) -> Any:
        """What is registered under the first of some keys, from other modules if possible; None without any."""
        return next((table[key] for table in (self.users, self.ours) for key in keys if key in table), None)


F = TypeVar("F", bound="type[Family]")
_FAMILIES = Registry()


def register_family(*base_types: type) -> Callable[[F], F]:
    """Class decorator that registers a subclass of `Family` for NumPyro classes ``base_types`` and their subclasses.

    The family of the nearest base class counts, and yours before those of the package. Raises ValueError if you have
    registered another one for a class.
    """
    if not base_types or not all(isinstance(kind, type) for kind in base_types):
        raise TypeError(f"register_family takes classes of distributions, got {base_types!r}")

    def decorate(family: F) -> F:
        if not (isinstance(family, type) and issubclass(family, Family)):
            raise TypeError(f"register_family decorates subclasses of Family, got {family!r}")
        for kind in base_types:
            _FAMILIES.add(kind, family, kind.__name__)
        return family

    return decorate


def family_of(base: dist.Distribution) -> Family:
    law = unexpanded(base)
    return (_FAMILIES.find(type(law).__mro__) or Family)(law)


def unexpanded(base: dist.Distribution) -> Any:
    while isinstance(base, dist.ExpandedDistribution):
        base = base.base_dist
    return base


def is_infinite(end: Array) -> bool:
    """Whether an end of a support is known to be infinite: one that is traced is taken to be finite."""
    return is_concrete(end) and bool(np.all(np.isinf(end)))


def aligned(array: Array, ndim: int) -> Array:
    """An array (n, *batch) with batch axes inserted behind the point axis until it has ``ndim`` axes."""
    return array.reshape(array.shape[:1] + (1,) * (ndim - array.ndim) + array.shape[1:])


def is_empty(edge: Array, end: Array, direction: int) -> bool:
    """Whether the support, which ends at `end`, is known to hold nothing below (−1) or above (1) an edge."""
    return is_concrete(edge, end) and bool(np.all(direction * (end - np.asarray(edge)) <= 0))


def _feasible(base: dist.Distribution, points: Array) -> Array:
    shape = jnp.broadcast_shapes(jnp.shape(points), jnp.shape(base.support(points)))
    return base.support.feasible_like(jnp.zeros(shape, jnp.result_type(points, float)))


def log_prob_on_support(base: dist.Distribution, nodes: Array) -> jax.Array:
    """Log density or mass at nodes (n, *batch), 0, 1, ... for counts; −inf, with zero gradient, outside the support."""
    # in the precision of the density; NumPy nodes stay on the host, where it can be seen that all are in the support
    on_host = isinstance(nodes, np.ndarray) and is_concrete(base.support)
    nodes = nodes.astype(jnp.result_type(nodes, float)) if on_host else jnp.asarray(nodes)
    nodes = aligned(nodes, max(nodes.ndim, 1 + len(base.batch_shape)))
    inside = base.support(nodes)
    if on_host and np.all(inside):
        return _log_prob(base, inside, nodes)
    points = jnp.where(inside, nodes, _feasible(base, nodes))
    return jnp.where(inside, _log_prob(base, inside, points), -jnp.inf)


def _log_prob(base: dist.Distribution, inside: Array, points: Array) -> Array:
    """Log mass or density; −inf, with another point in its place lest a derivative be NaN, if negligible."""
    family = family_of(base)
    if base.support.is_discrete:
        log_mass = family.log_mass(points.astype(np.int32))  # a family knows nothing of expansions
        return jnp.broadcast_to(log_mass, jnp.broadcast_shapes(jnp.shape(log_mass), (1, *base.batch_shape)))
    if family.tame:
        return base.log_prob(points)
    values = jax.lax.stop_gradient(base.log_prob(points))
    values = jnp.where(inside & jnp.isfinite(values), values, -jnp.inf)
    best = jnp.max(values, axis=0)
    points = jnp.broadcast_to(points, values.shape)
    there = jnp.take_along_axis(points, jnp.argmax(values, axis=0)[None], axis=0)
    fallback = base.support.feasible_like(jax.lax.stop_gradient(points[:1]))
    keep = (values > best + NEGLIGIBLE_LOG_DENSITY) & jnp.isfinite(values)
    safe = jnp.where(keep, points, jnp.where(jnp.isfinite(best), jax.lax.stop_gradient(there), fallback))
    return jnp.where(keep, base.log_prob(safe), -jnp.inf)


@functools.cache
def double_exponential(step: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Logs of nodes y = exp(π/2 sinh t) and weights of a rule on (0, ∞) with points dense on every scale of y."""
    t = np.arange(-4.2, 4.2001, step)
    log_y = 0.5 * np.pi * np.sinh(t)
    return log_y, np.log(step * 0.5 * np.pi * np.cosh(t)) + log_y


def log_mass_outside(base: dist.Distribution, first: Array, last: Array) -> jax.Array:
    """Log masses of a continuous base below ``first`` and above ``last``, shape (2, *batch)."""
    low, high = ends_of(base.support)
    first, last = (edge if isinstance(edge, jax.Array) else np.asarray(edge) for edge in (first, last))
    by_formula = family_of(base).log_mass_outside(first, last)
    if by_formula is not None:
        return aligned(by_formula, max(by_formula.ndim, 1 + len(base.batch_shape)))
    sides = (first, low, -1), (last, high, 1)
    occupied = [side for side in sides if not is_empty(*side)]
    by_cdf = occupied and _has_smooth_cdf(base)
    tails = iter(_log_mass_by_cdf(base, occupied) if by_cdf else [_log_tail(base, *side) for side in occupied])
    return stacked(*(-np.inf if is_empty(*side) else next(tails) for side in sides))


def _has_smooth_cdf(base: dist.Distribution) -> bool:
    """Whether the base has a cdf that can be differentiated in its parameters."""
    law = jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(jnp.result_type(float)), base)
    try:
        jax.eval_shape(lambda law: jax.jvp(lambda law: family_of(law).cdf(0.5), (law,), (law,)), law)
    except Exception:
        return False
    return True


def _log_mass_by_cdf(base: dist.Distribution, sides: list[tuple[Array, Array, int]]) -> Array:
    """Log masses of a base between edges and the ends of its support, for sides (edge, end, direction)."""
    edges, ends, directions = (stacked(*column) for column in zip(*sides, strict=True))
    rank = max(edges.ndim, ends.ndim, 1 + len(base.batch_shape))
    edges, ends, directions = (aligned(array, rank) for array in (edges, ends, directions))
    low, high = ends_of(base.support)
    # at the ends of the support and beyond them a cdf may have no derivative, and nobody asks for it
    within = (edges > low) & (edges < high)
    cdf = family_of(base).cdf(jnp.where(within, edges, _feasible(base, edges)))
    beyond = jnp.where(directions < 0, cdf, 1.0 - cdf)
    mass = jnp.where(within, beyond, jnp.where(directions * (ends - edges) > 0, 1.0, 0.0))
    # a cdf's complement has lost its digits where it is small; there quadrature of the tail is exact
    certain = mass > 1e-6
    if all(is_infinite(end) for _, end, _ in sides):
        tails = _log_integral(base, edges, np.inf, directions)
    else:
        tails = stacked(*(_log_integral(base, *side) for side in sides))
    return jnp.where(certain, jnp.log(jnp.where(certain, mass, 1.0)), tails)


def _log_tail(base: dist.Distribution, edge: Array, end: Array, direction: int) -> jax.Array:
    """Log mass between an edge and an end, cut at the mean where most of the law may lie beyond the edge."""
    try:
        centre = jax.lax.stop_gradient(jnp.asarray(base.mean))
    except NotImplementedError:
        return _log_integral(base, edge, end, direction)
    centre = jnp.where(jnp.isfinite(centre) & (direction * (centre - edge) > 0), centre, edge)
    # a law that is narrow and far from the end of the interval needs nodes twice as dense
    near = _log_integral(base, edge, centre, direction, step=0.025)
    return jnp.logaddexp(near, _log_integral(base, centre, end, direction))


def _log_integral(base: dist.Distribution, edge: Array, end: Array, direction: Array, step: float = 0.05) -> jax.Array:
    """`_log_tail` for a law whose density varies most near one of the ends of the interval."""
    column = (-1,) + (1,) * max(len(base.batch_shape), jnp.ndim(edge), jnp.ndim(end))
    log_y, log_w = (array.reshape(column) for array in double_exponential(step))
    log_weight: Array
    if is_infinite(end):
        keep = np.abs(log_y) < 300.0
        points, log_weight = edge + direction * np.exp(np.where(keep, log_y, 0.0)), np.where(keep, log_w, -np.inf)
    else:  # measured from the end of the support: distance = δ·exp(−τ), τ = exp(π/2 sinh t)
        delta = jnp.maximum(direction * (end - edge), 0.0)
        tau = np.exp(np.minimum(log_y, 6.55))
        log_delta = jnp.log(jnp.where(delta > 0, delta, 1.0))
        distance, log_distance = delta * jnp.exp(-tau), log_delta - tau  # the log of the former may lose its derivative
        info = jnp.finfo(distance.dtype)
        near = 0.1 * info.eps**0.5 * jnp.abs(end) + 4 * info.tiny
        keep = (log_y < 6.55) & (log_distance > np.log(4 * info.tiny)) & (delta > 0)
        clipped = jnp.maximum(jnp.where(keep, distance, near), near)
        # a point of no weight is outside the support, where the density is not asked for
        points = jnp.where(keep, end - direction * clipped, jnp.nan)
        log_weight = jnp.where(keep, log_w - tau + log_delta, -jnp.inf)
        if not is_concrete(end) or np.any(end):
            # points near an end other than zero are rounded: there the density is continued by a power of the distance
            power = _power_at_end(base, jnp.broadcast_to(end, jnp.shape(delta)), near, direction)
            log_weight += jnp.where(keep & (distance < near), power * (log_distance - jnp.log(near)), 0.0)
    return log_sum(log_prob_on_support(base, points) + log_weight, axis=0)


def _power_at_end(base: dist.Distribution, end: Array, near: Array, direction: Array) -> jax.Array:
    """Power of the distance from an end of the support, not zero, to which a density grows there."""
    probes = jnp.stack([end - direction * near, end - direction * 4.0 * near])
    near_density, far_density = log_prob_on_support(base, probes)
    log_distance = jax.lax.stop_gradient(jnp.log(jnp.abs(end - probes)))
    resolved = jnp.isfinite(near_density) & jnp.isfinite(far_density) & (end != 0)
    rise = jnp.where(resolved, far_density, 0.0) - jnp.where(resolved, near_density, 0.0)
    return jnp.where(resolved, rise / (log_distance[1] - log_distance[0]), 0.0)


def log_mass_beyond(base: dist.Distribution, nodes: Array, open_ends: tuple[bool, bool], inside: jax.Array) -> Array:
    """Log masses (2, *batch) of a discrete base below and above nodes, which are consecutive integers."""
    unbounded_below, unbounded_above = open_ends
    if not (unbounded_below or unbounded_above):
        return np.full((2, *inside.shape[1:]), -np.inf)
    if not unbounded_below:
        return stacked(-np.inf, family_of(base).log_mass_above(nodes, inside))
    below = base.cdf(nodes[0] - 1)
    above = 1.0 - base.cdf(nodes[-1]) if unbounded_above else jnp.zeros_like(below)
    return log_or_nothing(stacked(below, above))


def density_breaks(base: dist.Distribution) -> jax.Array | None:
    """Points (m, *batch), in order, at which a continuous density is not smooth, besides the ends of its support."""
    numbers = known_breaks(base)
    if numbers is not None:  # the compiler would sort them, once for each law of a batch
        return jnp.broadcast_to(aligned(numbers, 1 + len(base.batch_shape)), (len(numbers), *base.batch_shape))
    points = [jnp.broadcast_to(point, base.batch_shape) for point in family_of(base).breaks()]
    return jnp.sort(jnp.stack(points), axis=0) if points else None


def known_breaks(base: dist.Distribution) -> np.ndarray | None:
    """Breaks (m,) in order, if they are numbers that are known before tracing."""
    breaks = family_of(base).breaks()
    return np.sort(breaks) if breaks and is_concrete(*breaks) and not any(map(np.ndim, breaks)) else None


def graded_points(base: dist.Distribution, grades: np.ndarray = GRADES) -> list[jax.Array]:
    """Points (m, *batch) ever closer to the centres of the law, for a density too narrow for fixed panels."""
    points = []
    for pair in family_of(base).centres():
        centre, width = (jnp.broadcast_to(part, base.batch_shape) for part in jax.lax.stop_gradient(pair))
        finite = jnp.isfinite(centre) & jnp.isfinite(width)
        distances = aligned(grades, 1 + len(base.batch_shape)) * jnp.where(finite, width, 0.0)
        points.append(jnp.where(finite, centre + distances, -jnp.inf))
    return points


def graded_breaks(base: dist.Distribution) -> jax.Array | None:
    breaks = density_breaks(base)
    points = [*([] if breaks is None else [breaks]), *graded_points(base)]
    return jnp.sort(jnp.concatenate(points), axis=0) if points else None


def is_narrow(base: dist.Distribution, edges: Array, share: float = NARROW_PANEL_SHARE) -> jax.Array:
    """Whether the law (or one of a batch) is narrower at a centre than this share of the panel there."""
    edges, narrow = aligned(edges, max(1 + len(base.batch_shape), jnp.ndim(edges))), [jnp.array(False)]
    for centre, width in family_of(base).centres():
        near = (centre + CENTRE_REACH_WIDTHS * width > edges[0]) & (centre - CENTRE_REACH_WIDTHS * width < edges[-1])
        here = jnp.clip(centre, edges[0], edges[-1])
        panel = jnp.where((edges[:-1] <= here) & (here <= edges[1:]), edges[1:] - edges[:-1], 0.0).max(axis=0)
        narrow.append(jnp.any(near & (width < share * panel)))
    return jnp.any(jnp.stack(narrow))


def cut_panels(edges: Array, breaks: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Left and right ends (2 m, *batch) of pieces, some without width, of the panels between edges (panels + 1, *batch)
    that hold ascending breaks (m, *batch), those beyond moved to an edge; and the panels (panels, *batch) without any.
    """
    rank = max(jnp.ndim(edges), breaks.ndim)
    edges, breaks = aligned(edges, rank), aligned(breaks, rank)
    batch = jnp.broadcast_shapes(edges.shape[1:], breaks.shape[1:])
    edges, breaks = (jnp.broadcast_to(array, (len(array), *batch)) for array in (edges, breaks))
    # no maximum or minimum: where they tie, as with a break on an edge, they would halve the gradient
    breaks = jnp.where(breaks < edges[0], edges[0], jnp.where(breaks > edges[-1], edges[-1], breaks))
    index = jnp.sum(edges[1:-1] <= breaks[:, None], axis=1)
    repeated = index[1:] == index[:-1]  # in the panel of the break before
    first, last = (jnp.take_along_axis(side, index, axis=0) for side in (edges[:-1], edges[1:]))
    left = jnp.concatenate([first[:1], jnp.where(repeated, breaks[:-1], first[1:])])
    right = jnp.concatenate([jnp.where(repeated, breaks[:-1], last[:-1]), last[-1:]])
    number = np.arange(len(edges) - 1).reshape((-1,) + (1,) * (rank - 1))
    whole = jnp.all(number != index[:, None], axis=0)
    return jnp.concatenate([left, breaks]), jnp.concatenate([breaks, right]), whole


def panel_nodes(left: Array, right: Array) -> tuple[Array, Array]:
    """Nodes of panels (panels, *batch) and their weights, each of shape (8 panels, *batch)."""
    t, w = (array.reshape((-1,) + (1,) * (left.ndim - 1)) for array in leggauss(NODES_PER_PANEL))
    half = 0.5 * (right - left)[:, None]
    flat = (-1, *left.shape[1:])
    return (left[:, None] + half * (1 + t)).reshape(flat), (half * w).reshape(flat)
