"""Integrals over the latent record whose nodes follow its law: exact also for laws that fixed panels do not resolve."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array
from ldpbayes.likelihood.families import aligned, family_of, log_mass_outside, log_prob_on_support
from ldpbayes.likelihood.latent import (
    GRADES,
    PANELS,
    QUADRATURE_ORDER,
    graded_breaks,
    is_narrow,
    latent_nodes,
    panel_nodes,
)
from ldpbayes.numerics.special import log_or_nothing, log_sum

# Without every other one of those that double: a panel between two still resolves a power of the distance.
SPARSE_GRADES = np.concatenate([GRADES[:17:2], GRADES[17:34], GRADES[34::2]])
FEW = 4  # values a law up to which this takes no longer than a channel's matrix, of which most entries are then useless
FEWER = 16  # panels beside those around the centres of the law
SMALL = 64  # values for which the time does not matter
JUMP = 1e-6  # nats by which p(z | x) changes at a kink that is a jump
PIECES = 16  # panels that are integrated at once, if all together have more than ROOM nodes
ROOM = 1 << 23


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
    breaks = graded_breaks(base, SPARSE_GRADES)
    kinks = jnp.moveaxis(jnp.asarray(mechanism.breakpoints(z)), -1, 0)
    shape = jnp.broadcast_shapes(jnp.shape(z), base.batch_shape, mechanism.batch_shape)
    parts = [aligned(jnp.asarray(part), 1 + len(shape)) for part in (edges, kinks, breaks) if part is not None]
    first, last = parts[0][0], parts[0][-1]
    cuts = [jnp.broadcast_to(jnp.clip(part, first, last), (len(part), *shape)) for part in parts]
    points = jnp.sort(jnp.concatenate(cuts), axis=0)

    def integral(sides: tuple[Array, Array]) -> jax.Array:
        x, weights = panel_nodes(*sides)
        return log_sum(log_prob_on_support(base, x) + mechanism.log_prob(z, x) + log_or_nothing(weights), axis=0)

    if QUADRATURE_ORDER * points.size > ROOM:
        points = jnp.concatenate([points, jnp.repeat(points[-1:], -(len(points) - 1) % PIECES, axis=0)])
        groups = tuple(side.reshape(-1, PIECES, *shape) for side in (points[:-1], points[1:]))
        between = log_sum(jax.lax.map(jax.checkpoint(integral), groups), axis=0)
    else:
        between = integral((points[:-1], points[1:]))
    ends = jnp.stack([first, last])
    outside = aligned(log_mass_outside(base, edges[0], edges[-1]), 1 + len(shape)) + mechanism.log_prob(z, ends)
    return log_sum(jnp.concatenate([between[None], jnp.broadcast_to(outside, (2, *shape))]), axis=0)
