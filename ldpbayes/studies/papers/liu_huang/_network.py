"""The three-layer network of [LH] sec. 5 on the released labels of many splits, in one compiled call."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ldpbayes.learning import Network, Objective, train_network

__all__ = ["PAPER", "networks", "stacked"]

PAPER = Network(widths=(128, 64), epochs=50, batch=256, weight_decay=1e-4, standardise=False)
"""As the text of [LH] has it: Adam with the rate 0.001, a tenth of it from the 25th epoch on, features as they are."""


def stacked(mechanisms: Any) -> Any:
    """Mechanisms of one kind as one whose leaves have a row each.

    Parameters
    ----------
    mechanisms : sequence of Mechanism
        With leaves of equal shapes.
    """
    return jax.tree.map(lambda *leaves: np.stack(leaves), *mechanisms)


def networks(
    key: Any, features: Any, values: Any, mechanism: Any, tests: Any, network: Network, objective: Objective
) -> tuple[np.ndarray, np.ndarray]:
    """Train a network a split, and predict.

    Parameters
    ----------
    key : jax.Array
        A JAX random key, of initial weights and the order of labels.
    features : array (trials, n, d)
        Of the records for training.
    values : array (trials, n)
        Their released labels.
    mechanism : Mechanism
        What released them, `stacked`.
    tests : array (trials, m, d)
        Features of the records for testing.
    network : Network
        What is trained, and how.
    objective : Objective
        The loss of a released label.

    Returns
    -------
    predictions : ndarray (trials, m)
        In the unit of labels.
    scales : ndarray (trials,)
        Of the label's law; meaningless for an objective without.
    """
    given = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), (features, values, mechanism, tests))
    return jax.tree.map(np.asarray, _all(network, jax.random.split(key, len(values)), *given, objective))


@functools.partial(jax.jit, static_argnames="objective")
def _all(
    network: Network, keys: jax.Array, features: Any, values: Any, mechanism: Any, tests: Any, objective: Objective
) -> tuple[jax.Array, jax.Array]:
    def one(trial: Any) -> tuple[jax.Array, jax.Array]:
        key, x, z, mechanism, tests = trial
        trained = train_network(network, objective, key, x, z, mechanism)[0]
        return network.predictor(trained, tests)

    # one after the other: batched products of small matrices are slower than single ones on a processor
    return lax.map(one, (keys, features, values, mechanism, tests))
