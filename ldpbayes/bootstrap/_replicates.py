"""Replicates of a private estimate, compiled once for all estimators of a structure, some at a time."""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from ldpbayes.bootstrap._private_estimator import Estimated, PrivateEstimator

__all__ = ["Replicates", "estimated", "replicates"]

BATCH_SIZE = 50


class Replicates(NamedTuple):
    """What was estimated of simulated releases, one a row.

    Attributes
    ----------
    free : array (draws, q)
        All parameters, as `PrivateEstimator.free` has them.
    target : array (draws, p)
        What is reported of them.
    standard_error : array (draws, p) or None
        Of that, by formula.
    outside : array (draws,) of bool
        Whether the release was outside the domain.
    """

    free: Any
    target: Any
    standard_error: Any
    outside: Any


def _one(estimator: PrivateEstimator, params: Any, key: jax.Array) -> Replicates:
    found = estimator.estimate(estimator.replicate(key, params))
    flat = ravel_pytree(estimator.target(found.params))[0]
    return Replicates(estimator.free(found.params), flat, found.standard_error, found.outside)


@jax.jit
def estimated(estimator: PrivateEstimator, released: Any) -> tuple[Estimated, Any]:
    """What is estimated of a release, and what is reported of that.

    Parameters
    ----------
    estimator : PrivateEstimator
        That made it.
    released : pytree of arrays
        As `PrivateEstimator.released` has it.
    """
    found = estimator.estimate(released)
    return found, estimator.target(found.params)


@functools.partial(jax.jit, static_argnames="batch_size")
def replicates(estimator: PrivateEstimator, params: Any, keys: jax.Array, batch_size: int | None = None) -> Replicates:
    """Replicates at some parameters.

    Parameters
    ----------
    estimator : PrivateEstimator
        What is replicated.
    params : pytree of arrays
        With which data are simulated.
    keys : array (draws,) of keys
        One a replicate.
    batch_size : int, optional
        How many run at once; by default `BATCH_SIZE`.
    """
    draws = len(keys)
    batches = -(-draws // (BATCH_SIZE if batch_size is None else batch_size))
    size = -(-draws // batches)
    # the last batch is filled up with the first keys, so that all have one size, for which the replicate is compiled
    filled = keys[np.arange(batches * size) % draws].reshape(batches, size)
    made = lax.map(jax.vmap(functools.partial(_one, estimator, params)), filled)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:draws], made)
