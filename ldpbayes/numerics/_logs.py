"""Sums in log space."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ldpbayes.numerics._special import log_sum

__all__ = ["log_normal", "log_or_nothing", "logsumexp", "stacked"]


def log_or_nothing(x: Any) -> jax.Array:
    """Log that is −inf, with zero gradient, at and below zero.

    Parameters
    ----------
    x : array_like
        Any numbers.
    """
    return jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1.0)), -jnp.inf)


def log_normal(z: Any, mean: Any, scale: Any) -> jax.Array:
    """Log density of a normal law, in the broadcast shape.

    Parameters
    ----------
    z : array_like
        Where it is evaluated.
    mean : array_like
        Mean of the law.
    scale : array_like
        Standard deviation of the law, positive.
    """
    return -0.5 * ((z - mean) / scale) ** 2 - jnp.log(scale) - 0.5 * math.log(2 * math.pi)


def stacked(*terms: ArrayLike) -> jax.Array:
    """Arrays along a new first axis, broadcast to one shape.

    Parameters
    ----------
    *terms : array_like
        Of shapes that broadcast.
    """
    return jnp.stack(jnp.broadcast_arrays(*terms))


def logsumexp(*terms: ArrayLike) -> jax.Array:
    """Log of the sum of exp of some terms, in the broadcast shape.

    Parameters
    ----------
    *terms : array_like
        Of shapes that broadcast.
    """
    return log_sum(stacked(*terms), axis=0)
