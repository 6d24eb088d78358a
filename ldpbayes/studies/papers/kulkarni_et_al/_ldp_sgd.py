"""The baseline of [KJKH] sec. 4.2: stochastic gradient descent from one noisy gradient a user."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._checks import at_least, checked
from ldpbayes.estimation.losses import Loss
from ldpbayes.privacy import gaussian_scale

__all__ = ["ldp_sgd"]

CLIP = 1.0


def ldp_sgd(
    key: jax.Array,
    rows: ArrayLike,
    loss: Loss,
    *,
    parameters: int,
    epsilon: float,
    delta: float,
    steps: ArrayLike,
    group: float = 1.0,
) -> np.ndarray:
    """Minimise a loss by stochastic gradients under local privacy, as [KJKH] sec. 4.2 has it.

    Each user takes part once: users form groups of about G = group·p·log(p)/ε², in the order of their rows. All users
    of a group get the current parameters and send back the gradient of their loss, clipped to norm 1 and with Gaussian
    noise that makes it exactly (ε, δ)-private at an L2 sensitivity of 2. The mean of a group's gradients moves the
    parameters by −step/√t, where t = 1, 2, ... numbers the groups. They start from zero, and the last ones are the
    estimate. [KJKH] gives G up to a constant, and no steps: a study has to try some of both.

    Parameters
    ----------
    key : jax.Array
        A JAX random key.
    rows : array_like (replicates, N, columns)
        Original records; replicates differ in their records or just in their order.
    loss : Loss
        Such as ``ldpbayes.estimation.losses.logistic(intercept=False)``.
    parameters : int
        p, how many parameters the loss has.
    epsilon, delta : float
        Budget of each user.
    steps : array_like (steps,)
        Positive step lengths; each has a run of its own, on the same noise.
    group : float
        The constant in G. A group has at least one user and at most N, and the groups differ in size from G by as
        little as lets them use all users but a remainder of fewer than there are groups.

    Returns
    -------
    ndarray (replicates, steps, p)
        The estimates, in double precision.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    records = checked(
        "rows", rows, "finite, of shape (replicates, N, columns)", lambda a: (a.ndim == 3) & np.isfinite(a)
    )
    lengths = checked("steps", steps, "positive and finite", lambda a: (a > 0) & (a < np.inf))
    at_least(1, "parameters", parameters)
    size = checked("group", group, "a positive and finite number", lambda a: (a.ndim == 0) & (a > 0) & (a < np.inf))
    epsilon = checked(
        "epsilon", epsilon, "a positive and finite number", lambda a: (a.ndim == 0) & (a > 0) & (a < np.inf)
    )
    scale = gaussian_scale(epsilon, delta, 2 * CLIP)
    users = records.shape[1]
    groups = math.floor(users / min(max(1.0, size * parameters * math.log(parameters) / epsilon**2), users))
    with jax.enable_x64(True):
        keys = jax.random.split(key, len(records))
        estimates = _descend(loss, groups, parameters, keys, jnp.asarray(records), scale, jnp.atleast_1d(lengths))
        return np.asarray(estimates)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _descend(loss: Loss, groups: int, p: int, keys: Any, rows: jax.Array, scale: Any, steps: jax.Array) -> jax.Array:
    size = rows.shape[1] // groups

    def one(key: jax.Array, rows: jax.Array, step: jax.Array) -> jax.Array:
        grouped = rows[: groups * size].reshape(groups, size, -1)
        # the mean of a group's noises is normal too, with a standard deviation of scale/√size
        noise = scale / math.sqrt(size) * jax.random.normal(key, (groups, p))
        lengths = step / jnp.sqrt(1.0 + jnp.arange(groups))

        def update(theta: jax.Array, of: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            group, perturbation, length = of
            gradients = jax.vmap(jax.grad(lambda at, row: loss.values(row, at)), (None, 0))(theta, group)
            norms = jnp.linalg.norm(gradients, axis=1, keepdims=True)
            return theta - length * (jnp.mean(gradients / jnp.maximum(norms / CLIP, 1.0), axis=0) + perturbation), None

        return jax.lax.scan(update, jnp.zeros(p), (grouped, noise, lengths))[0]

    return jax.vmap(jax.vmap(one, (None, None, 0)), (0, 0, None))(keys, rows, steps)
