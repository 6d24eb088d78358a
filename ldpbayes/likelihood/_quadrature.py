"""Integrals over the latent record whose nodes follow its law: exact also for laws that fixed panels do not resolve."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array
from ldpbayes.laws.families import (
    GRADES,
    QUADRATURE_ORDER,
    aligned,
    density_breaks,
    family_of,
    graded_points,
    is_narrow,
    log_mass_outside,
    log_prob_on_support,
    panel_nodes,
)
from ldpbayes.likelihood.latent import PANELS, latent_nodes
from ldpbayes.numerics.special import log_or_nothing

# Without every other one of those that double: a panel between two still resolves a power of the distance.
SPARSE_GRADES = np.concatenate([GRADES[:17:2], GRADES[17:34], GRADES[34::2]])
TOWARDS_BREAKS = 0.25 ** np.arange(1, 19)  # distances from a break of the law, in ranges
TOWARDS_BREAKS = np.concatenate([-TOWARDS_BREAKS, TOWARDS_BREAKS])
FEW = 4  # values a law up to which this takes no longer than a channel's matrix, of which most entries are then useless
FEWER = 8  # panels beside those around the centres of the law
SMALL = 64  # values for which the time does not matter
JUMP = 1e-6  # nats by which p(z | x) changes at a kink that is a jump
ROOM = 1 << 23  # nodes of all values that are evaluated at once


def is_needed(base: dist.Distribution, mechanism: Any, z: Array) -> bool:
    """Whether nodes must follow the law, or may at no cost, as far as is known before tracing."""
    values = math.prod(np.broadcast_shapes(np.shape(z), base.batch_shape, mechanism.batch_shape))
    if values <= max(SMALL, FEW * math.prod(base.batch_shape)) or not is_concrete(z, mechanism):
        return True
    with jax.ensure_compile_time_eval():
        if _has_jumps(mechanism, np.asarray(z)):
            return True
        edges = latent_nodes(base, mechanism).edges
        # a channel whose panels are only known now would be computed anew each time
        return not is_concrete(edges) or (is_concrete(base) and bool(is_narrow(base, edges)))


def _has_jumps(mechanism: Any, z: np.ndarray) -> bool:
    """Whether p(z | x) jumps at a kink, as it does under uniform noise."""
    kinks = np.moveaxis(np.asarray(mechanism.breakpoints(z)), -1, 0)
    off = 1e-9 * (np.abs(kinks) + 1e-3 * np.abs(mechanism.resolution))
    before, after = (np.asarray(mechanism.log_prob(z, kinks + side * off)) for side in (-1, 1))
    with np.errstate(invalid="ignore"):
        return bool(np.any((before != after) & ~(np.abs(before - after) < JUMP)))


def integrated(base: dist.Distribution, mechanism: Any, z: Array) -> jax.Array:
    """Log density of the released values z by panels that are cut around the centres and at the breaks of the law, and
    where p(z | ·) has kinks. All terms are positive, so that small densities have full relative precision.
    """
    edges = latent_nodes(base, mechanism, least=FEWER if family_of(base).centres() else PANELS).edges
    kinks, own = jnp.moveaxis(jnp.asarray(mechanism.breakpoints(z)), -1, 0), density_breaks(base)
    shape = jnp.broadcast_shapes(jnp.shape(z), base.batch_shape, mechanism.batch_shape)
    parts = [jnp.asarray(edges), kinks, *graded_points(base, SPARSE_GRADES)]
    if own is not None:
        # The density may be singular at a break. Breaks, which move with parameters, come last: sorting keeps them
        # behind edges that they equal.
        distances = TOWARDS_BREAKS.reshape(-1, *[1] * own.ndim) * (edges[-1] - edges[0])
        places = jax.lax.stop_gradient(own) + distances
        parts += [places.reshape(-1, *places.shape[2:]), own]
    parts = [aligned(part, 1 + len(shape)) for part in parts]
    first, last = parts[0][0], parts[0][-1]
    # no minimum or maximum: they halve the gradient where a break is on a bound
    cuts = [jnp.where(part > first, jnp.where(part < last, part, last), first) for part in parts]
    points = jnp.sort(jnp.concatenate([jnp.broadcast_to(part, (len(part), *shape)) for part in cuts]), axis=0)
    if own is None and is_concrete(z, mechanism, edges):  # ends of the support may move with parameters
        points = jax.lax.stop_gradient(points)  # only the integrand depends on parameters

    def logs(x: Array) -> Array:
        return log_prob_on_support(base, x) + mechanism.log_prob(z, x)

    ends = jnp.stack([first, last])
    outside = aligned(log_mass_outside(base, edges[0], edges[-1]), 1 + len(shape)) + mechanism.log_prob(z, ends)
    return _log_integral(logs, points, outside)


def _log_integral(logs: Callable[[Array], Array], points: Array, outside: Array) -> jax.Array:
    """Log of the integral between points (n, *batch) of a function with these logs, and masses with logs `outside`."""

    def part(sides: tuple[Array, Array]) -> tuple[Array, Array]:
        x, weights = panel_nodes(*sides)
        # A panel without width has a derivative if a break is on an edge, for which its nodes are before the break. So
        # weights are not taken as logs.
        left, right = (jnp.repeat(side, QUADRATURE_ORDER, axis=0) for side in sides)
        off = jnp.finfo(x.dtype).eps * jnp.abs(x) + jnp.finfo(x.dtype).tiny
        values = logs(jnp.minimum(jnp.maximum(x, left + off), right - off))
        highest = jnp.maximum(jax.lax.stop_gradient(values).max(axis=0), jnp.finfo(values.dtype).min)
        # Weights are not taken as logs: a panel without width has a derivative, if a break of the law is on an edge.
        return highest, jnp.sum(jnp.exp(values - highest) * weights, axis=0)

    sides, groups = (points[:-1], points[1:]), -(-QUADRATURE_ORDER * points.size // ROOM)
    if groups > 1:
        padded = (jnp.pad(side, [(0, -len(side) % groups), *[(0, 0)] * (side.ndim - 1)], mode="edge") for side in sides)
        highest, totals = jax.lax.map(jax.checkpoint(part), tuple(s.reshape(groups, -1, *s.shape[1:]) for s in padded))
    else:
        highest, totals = (each[None] for each in part(sides))
    largest = jnp.maximum(highest.max(axis=0), jax.lax.stop_gradient(outside).max(axis=0))
    total = jnp.sum(jnp.exp(highest - largest) * totals, axis=0) + jnp.sum(jnp.exp(outside - largest), axis=0)
    return largest + log_or_nothing(total)
