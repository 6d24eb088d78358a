"""Posterior modes of regressions on many records, for which a chain takes too long."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.infer import init_to_median
from scipy import optimize

from ldpbayes.data import Release
from ldpbayes.inference._density import Density

__all__ = ["posterior_modes"]

MOST_ITERATIONS = 500


def posterior_modes(model: Callable, key: jax.Array, releases: Sequence[Release]) -> dict[str, Any]:
    """Values of a model's sites at the modes of its posteriors, in the unconstrained parameters that NUTS would have.

    Found by L-BFGS from the priors' medians. With as many records as make a chain slow, and a budget that lets them say
    something, a mode differs from the mean by less than the posterior's standard deviation.

    Parameters
    ----------
    model : callable
        NumPyro model of one release.
    key : jax.Array
        A JAX random key, for the draws whose medians are the start.
    releases : sequence of Release
        Made by one mechanism, all of the same number of records.

    Returns
    -------
    dict of str to ndarray (releases, *site)
    """
    with jax.enable_x64(True):
        start, unflatten = ravel_pytree(Density(model, (releases[0],), {}).start(key, init_to_median(num_samples=100)))

        def potential(flat: jax.Array, values: Any) -> jax.Array:
            return Density(model, (dataclasses.replace(releases[0], values=values),), {}).potential(unflatten(flat))

        slope = jax.jit(jax.value_and_grad(potential))
        modes = []
        for release in releases:
            values = jax.device_put(release.values)
            found = optimize.minimize(
                lambda flat, values=values: tuple(np.asarray(part) for part in slope(flat, values)),
                start,
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": MOST_ITERATIONS},
            )
            modes.append(Density(model, (release,), {}).constrained(unflatten(found.x)))
        return {name: np.stack([np.asarray(mode[name]) for mode in modes]) for name in modes[0]}
