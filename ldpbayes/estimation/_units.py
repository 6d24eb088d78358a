"""The natural unit of each parameter: how far it has to be moved for a loss to bend."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._compiling import quick_jit
from ldpbayes.estimation.losses._loss import Loss

__all__ = ["natural_units"]

LENGTHS = 2.0 ** np.arange(-64, 65)
BENT = 0.5  # what the linear approximation misses there, against the change that it predicts
ROUNDING = 2.0**-40


@functools.partial(quick_jit, static_argnames="loss")
def natural_units(loss: Loss, rows: jax.Array, theta: jax.Array) -> jax.Array:
    """For each parameter the shortest move over which a linear approximation of the losses fails by half.

    It follows the units of records, parameters and loss. Where there is none, as for a loss that is linear in a
    parameter, it is one plus the parameter's size.

    Parameters
    ----------
    loss : Loss
        Of a flat parameter.
    rows : array (N, columns)
        Records at which it is looked at.
    theta : array (p,)
        The parameter that is moved.

    Returns
    -------
    array (p,)
    """

    def size(values: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.mean(values**2, axis=-1))

    def one(direction: jax.Array) -> jax.Array:
        def moved(length: Any) -> jax.Array:
            return loss.values(rows, theta + length * direction)

        here, slope = jax.jvp(moved, (0.0,), (1.0,))
        lengths = jnp.asarray(LENGTHS)
        missed = jax.lax.map(lambda length: size(moved(length) - here - length * slope), lengths)
        # what rounding alone would miss says nothing
        blind = ROUNDING * (size(here) + jnp.abs(theta @ direction) * size(slope))
        share = jnp.where(missed <= blind, 0.0, missed / (lengths * size(slope)))
        bent = ~(share < BENT)  # also where the loss is not defined
        first = jnp.argmax(bent)
        low, high = share[first - 1], share[first]
        between = jnp.log(BENT / low) / jnp.log(high / low)  # log-linear, so that the lengths' grid does not matter
        length = lengths[first] * 2.0 ** jnp.where(jnp.isfinite(between), between - 1, 0.0)
        found = jnp.any(bent) & (first > 0) & (size(slope) > 0)
        return jnp.where(found, length, 1 + jnp.abs(theta @ direction))

    return jax.lax.map(one, jnp.eye(theta.shape[0], dtype=theta.dtype))
