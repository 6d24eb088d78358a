"""Probabilities of the categories that a released value supports, and sums over counts."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._core.tracing import is_concrete
from ldpbayes.likelihood._masses import aligned
from ldpbayes.likelihood.latent import latent
from ldpbayes.mechanisms import PureProtocol, RandomizedResponse
from ldpbayes.numerics.arrays import CHUNK, bit_product, by_rows, pays
from ldpbayes.numerics.special import log_sum


def log_sum_over_counts(base: Any, mechanism: Any, z: Any) -> jax.Array:
    """Log Σ_k p(k) p(z | k) over the values of a discrete law, those beyond clipping bounds being at the bounds.

    Parameters
    ----------
    base : numpyro.distributions.Distribution
        Univariate and discrete.
    mechanism : Mechanism
        Of numbers; what it clips may be anything, what it does not clip has a law of finite support.
    z : array_like
        Released values.

    Returns
    -------
    Array
        In the broadcast shape of z and the batches.

    Raises
    ------
    ValueError
        See `ldpbayes.likelihood.latent.latent`.
    """
    grid = latent(base, mechanism)
    masses = grid.log_masses(base)
    rank = 1 + max(np.ndim(z), masses.ndim - 1, len(mechanism.batch_shape))
    places = aligned(np.concatenate([grid.nodes, grid.ends]), rank)
    if is_concrete(z, mechanism):
        with jax.ensure_compile_time_eval():  # does not depend on parameters, so it is a constant of what is traced
            kernel = mechanism.log_prob(z, places)
    else:
        kernel = mechanism.log_prob(z, places)
    return log_sum(aligned(masses, rank) + kernel, axis=0)


BIT_CHUNK = 1 << 23  # memberships at a time as 8-bit integers, for which a loop costs more than the cache saves
FEWEST = 64  # categories from which on these are faster, for one chain and for four (docs/benchmarks.md)


@functools.singledispatch
def supported_mass(
    mechanism: PureProtocol, z: ArrayLike, theta: ArrayLike, groups: ArrayLike | None = None
) -> jax.Array:
    """Probability of S(z) under a law theta of the codes, in chunks of released values.

    Parameters
    ----------
    mechanism : PureProtocol
        Which says what S(z) is. A class whose masses take no look at all memberships can have a function of its own:
        ``@supported_mass.register``.
    z : array_like
        Released values.
    theta : array_like
        Probabilities of the codes along the last axis; the others broadcast with the batch shape of z.
    groups : array_like of int, optional
        For each released value of a one-dimensional batch, the row of theta that is its law.

    Returns
    -------
    jax.Array
        In the broadcast batch shape.
    """
    theta = jnp.asarray(theta)
    batch = np.shape(z)[: np.ndim(z) - len(mechanism.event_shape)]
    if groups is None and theta.ndim > 1:
        return jnp.sum(mechanism.membership(z).astype(theta.dtype) * theta, axis=-1)
    rows = jnp.reshape(z, (-1, *mechanism.event_shape))
    if groups is None:
        product: Callable[[Any, Any], jax.Array]
        if _by_digits(mechanism, len(rows), theta):
            product, chunk = bit_product, BIT_CHUNK
        else:
            product, chunk = _product, CHUNK
        mass = by_rows(lambda part: product(mechanism.membership(part), theta), chunk // mechanism.categories)(rows)
    else:
        mass = by_rows(
            lambda part, group: jnp.sum(jnp.where(mechanism.membership(part), theta[group], 0.0), axis=-1),
            CHUNK // mechanism.categories,
        )(rows, jnp.asarray(groups))
    return mass.reshape(batch)


def _product(bits: Any, theta: Any) -> Any:
    return bits.astype(theta.dtype) @ theta


@supported_mass.register
def _own_category(
    mechanism: RandomizedResponse, z: ArrayLike, theta: ArrayLike, groups: ArrayLike | None = None
) -> jax.Array:
    """Entry z of theta."""
    z, theta = jnp.asarray(z).astype(jnp.int32), jnp.asarray(theta)
    if groups is not None:
        return theta[jnp.asarray(groups), z]
    if theta.ndim == 1:
        return theta[z]
    batch = jnp.broadcast_shapes(z.shape, theta.shape[:-1])
    theta, z = jnp.broadcast_to(theta, (*batch, theta.shape[-1])), jnp.broadcast_to(z, batch)
    return jnp.take_along_axis(theta, z[..., None], axis=-1)[..., 0]


def _by_digits(mechanism: PureProtocol, count: int, theta: jax.Array) -> bool:
    """Whether the masses of so many released values are left to `bit_product`: where it is faster, and suffices.

    It has absolute precision, which is enough if p(z | theta) is at least exp(-7) of its largest.
    """
    many = mechanism.categories >= FEWEST and count * mechanism.categories > 2 * CHUNK
    fast = many and pays() and theta.dtype == jnp.float64
    return fast and is_concrete(mechanism.epsilon) and bool(np.max(mechanism.epsilon) <= 7)
