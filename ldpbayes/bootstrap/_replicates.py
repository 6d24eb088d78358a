"""Replicates of a private estimate, compiled once for all estimators of a structure, in chunks that fit the memory."""

import functools
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.flatten_util import ravel_pytree

from ldpbayes.bootstrap._function import largest
from ldpbayes.bootstrap._private_estimator import Estimated, PrivateEstimator

__all__ = ["Replicates", "estimated", "replicates"]

COPIES = 4  # of its largest array that a replicate may hold at a time


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


@functools.partial(jax.jit, static_argnames="memory")
def replicates(estimator: PrivateEstimator, params: Any, keys: jax.Array, memory: float) -> Replicates:
    """Replicates at some parameters.

    Parameters
    ----------
    estimator : PrivateEstimator
        What is replicated.
    params : pytree of arrays
        With which data are simulated.
    keys : array (draws,) of keys
        One a replicate.
    memory : float
        Bytes that they may take together, roughly.
    """
    most = largest(jax.make_jaxpr(_one)(estimator, params, keys[0]), varying=1)
    batch = int(max(1, min(len(keys), memory // (COPIES * max(most, 1)))))
    one = functools.partial(_one, estimator, params)
    # within one batch nothing is carried from one replicate to the next, so that what they share is computed once
    return jax.vmap(one)(keys) if batch >= len(keys) else lax.map(one, keys, batch_size=batch)
