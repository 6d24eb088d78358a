"""Probabilities of the categories that a released value supports."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array
from ldpbayes.mechanisms import PureProtocol, RandomizedResponse
from ldpbayes.numerics.arrays import CHUNK, bit_product, by_rows, pays

BIT_CHUNK = 1 << 23  # memberships at a time as 8-bit integers, for which a loop costs more than the cache saves
FEWEST = 64  # categories from which on `bit_product` is faster, for one chain and for four (docs/benchmarks.md)


@functools.singledispatch
def supported_mass(mechanism: PureProtocol, z: Array, theta: Array, groups: Array | None = None) -> jax.Array:
    """Probability of S(z) under a law theta of the codes, in the broadcast batch shape, in chunks of released values.
    The codes are the last axis of theta; its others broadcast with the batch shape of z. With `groups`, which index a
    one-dimensional batch, each released value has a row of theta as its law. A class of mechanisms whose masses need
    not look at all memberships can have a function of its own: ``@supported_mass.register``.
    """
    theta = jnp.asarray(theta)
    batch = np.shape(z)[: np.ndim(z) - len(mechanism.event_shape)]
    if groups is None and theta.ndim > 1:
        return jnp.sum(mechanism.membership(z).astype(theta.dtype) * theta, axis=-1)
    rows = jnp.reshape(z, (-1, *mechanism.event_shape))
    bits = mechanism.membership
    if groups is not None:
        own = by_rows(lambda z, g: jnp.sum(jnp.where(bits(z), theta[g], 0.0), axis=-1), CHUNK // mechanism.categories)
        return own(rows, jnp.asarray(groups)).reshape(batch)
    if _use_bit_product(mechanism, len(rows), theta):
        mass = by_rows(lambda z: bit_product(bits(z), theta), BIT_CHUNK // mechanism.categories)
    else:
        mass = by_rows(lambda z: bits(z).astype(theta.dtype) @ theta, CHUNK // mechanism.categories)
    return mass(rows).reshape(batch)


@supported_mass.register
def _own_category(mechanism: RandomizedResponse, z: Array, theta: Array, groups: Array | None = None) -> jax.Array:
    """Entry z of theta."""
    z, theta = jnp.asarray(z).astype(jnp.int32), jnp.asarray(theta)
    if groups is not None:
        return theta[jnp.asarray(groups), z]
    if theta.ndim == 1:
        return theta[z]
    batch = jnp.broadcast_shapes(z.shape, theta.shape[:-1])
    theta, z = jnp.broadcast_to(theta, (*batch, theta.shape[-1])), jnp.broadcast_to(z, batch)
    return jnp.take_along_axis(theta, z[..., None], axis=-1)[..., 0]


def _use_bit_product(mechanism: PureProtocol, count: int, theta: jax.Array) -> bool:
    """Whether `bit_product` is faster for a count of released values, and accurate enough. It has absolute precision,
    which is enough if p(z | theta) is at least exp(-7) of its largest.
    """
    many = mechanism.categories >= FEWEST and count * mechanism.categories > 2 * CHUNK
    fast = many and pays() and theta.dtype == jnp.float64
    return fast and is_concrete(mechanism.epsilon) and bool(np.max(mechanism.epsilon) <= 7)
