"""Estimators fitted to many simulated releases, in one compiled call."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from ldpbayes.estimation.m_estimation import Estimator, Fit
from ldpbayes.mechanisms.additive import Additive


@dataclasses.dataclass(frozen=True)
class Setting:
    """A cell of a table: what is simulated, and how it is estimated.

    Attributes
    ----------
    simulate : callable
        Key → original records (N, columns).
    mechanism : Additive
        That releases them.
    truth : array (p,)
        What is to be estimated.
    start : array (p,)
        Where every minimisation starts.
    estimators : dict of str to Estimator
        Those by `Oracle` are given the original records.
    """

    simulate: Callable[[jax.Array], jax.Array]
    mechanism: Additive
    truth: np.ndarray
    start: np.ndarray
    estimators: dict[str, Estimator]


def replicate(setting: Setting, replicates: int, *, seed: int = 0, batch: int = 1) -> dict[str, Any]:
    """Fit all estimators to many simulated releases, in one compiled call and in double precision.

    Parameters
    ----------
    setting : Setting
        What is simulated and estimated.
    replicates : int
        How often.
    seed : int
        For records, their release and the analyst's own noise.
    batch : int
        Replications that are vectorised together.

    Returns
    -------
    dict of str to Fit
        With an axis of replications in front.
    """
    return replicator(setting, replicates, batch=batch)(seed)


def replicator(setting: Setting, replicates: int, *, batch: int = 1) -> Callable[[int], dict[str, Any]]:
    """`replicate` as a function of the seed that is compiled once.

    Replications are shared among JAX's devices: on a CPU each core can be one, with
    ``jax.config.update("jax_num_cpu_devices", 2)`` before the first computation.

    Parameters
    ----------
    setting, replicates, batch
        As for `replicate`.
    """

    def one(data: jax.Array) -> dict[str, Fit]:
        keys = jax.random.split(jax.random.wrap_key_data(data), 3)
        x = setting.simulate(keys[0])
        z = _rows(setting.mechanism.randomize(keys[1], _records(x, setting.mechanism)))
        start = jnp.asarray(setting.start)
        return {
            name: estimator(keys[2], x if estimator.method.original else z, start)
            for name, estimator in setting.estimators.items()
        }

    devices, parts = jax.local_devices(), PartitionSpec("replicates")
    rounds = -(-replicates // len(devices)) * len(devices)
    every = jax.jit(
        jax.shard_map(
            lambda keys: jax.lax.map(one, keys, batch_size=batch),
            mesh=Mesh(np.array(devices), ("replicates",)),
            in_specs=parts,
            out_specs=parts,
            check_vma=False,
        )
    )

    def run(seed: int) -> dict[str, Any]:
        with jax.enable_x64(True):
            fits = every(jax.random.key_data(jax.random.split(jax.random.key(seed), rounds)))
            return jax.tree.map(lambda leaf: np.asarray(leaf)[:replicates], fits)

    return run


def _records(rows: jax.Array, mechanism: Additive) -> jax.Array:
    return rows if mechanism.event_shape else rows[:, 0]


def _rows(records: jax.Array) -> jax.Array:
    return records if records.ndim > 1 else records[:, None]
