"""Estimators fitted to many simulated releases, in one compiled call."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from ldpbayes._core.types import Key
from ldpbayes.estimation.m_estimation import Estimator, Solution
from ldpbayes.mechanisms.additive import Additive


@dataclasses.dataclass(frozen=True)
class Setting:
    """A cell of a table: a simulation, and its estimators.

    Attributes
    ----------
    simulate : callable
        Maps a key to original records (N, columns).
    mechanism : AdditiveMechanism
        Releases them.
    truth, start : array (p,)
        The true parameters, and the start of every minimisation.
    estimators : dict of str to Estimator
        By name; those by `Oracle` are given the original records.
    """

    simulate: Callable[[Key], jax.Array]
    mechanism: Additive
    truth: np.ndarray
    start: np.ndarray
    estimators: dict[str, Estimator]


def replicate(setting: Setting, replicates: int, *, seed: int = 0, batch: int = 1) -> dict[str, Solution]:
    """Fit all estimators to many simulated releases, in one compiled call and in double precision.

    Returns solutions by name of the estimator, with an axis of replicates in front. Replicates are shared among JAX's
    devices: on a CPU each core can be one, with ``jax.config.update("jax_num_cpu_devices", 2)`` before the first
    computation.

    Parameters
    ----------
    setting, replicates, batch : Setting, int, int
        The simulation and the estimators; number of releases, and of those that are vectorised together.
    seed : int
        For records, their release and the analyst's own noise.
    """
    return replicator(setting, replicates, batch=batch)(seed)


def replicator(setting: Setting, replicates: int, *, batch: int = 1) -> Callable[[int], dict[str, Solution]]:
    """`replicate` as a function of the seed that is compiled once."""
    mechanism = setting.mechanism

    def fit_one(key_data: jax.Array) -> dict[str, Solution]:
        record_key, release_key, estimator_key = jax.random.split(jax.random.wrap_key_data(key_data), 3)
        x = setting.simulate(record_key)
        z = mechanism.randomize(release_key, x if mechanism.event_shape else x[:, 0]).reshape(len(x), -1)
        return {
            name: estimator(estimator_key, x if estimator.method.original else z, jnp.asarray(setting.start))
            for name, estimator in setting.estimators.items()
        }

    devices, parts = jax.local_devices(), PartitionSpec("replicates")
    rounds = -(-replicates // len(devices)) * len(devices)
    mesh = Mesh(np.array(devices), ("replicates",))

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=parts, out_specs=parts, check_vma=False)
    def fit_all(keys: jax.Array) -> dict[str, Solution]:
        return jax.lax.map(fit_one, keys, batch_size=batch)

    def run(seed: int) -> dict[str, Solution]:
        with jax.enable_x64(True):
            fits = fit_all(jax.random.key_data(jax.random.split(jax.random.key(seed), rounds)))
            return jax.tree.map(lambda leaf: np.asarray(leaf)[:replicates], fits)

    return run
