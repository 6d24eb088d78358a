"""Fully connected networks of labels, and how they are trained: pure functions of keys and data."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._checks import at_least
from ldpbayes._extras import missing
from ldpbayes._pytree import checked_field, pytree, static
from ldpbayes.learning._labels import label_spread, plausible_labels
from ldpbayes.learning._objectives import Objective

__all__ = ["Network", "Trained", "train_network"]

RATE = 1e-3
DECAY = 0.1  # of the rate, at half of the epochs


class Trained(NamedTuple):
    """What training a network gives, all arrays: a pytree that can be vmapped over.

    Attributes
    ----------
    layers : tuple of (array (inputs, outputs), array (outputs,))
        Weights and biases of each layer.
    log_scale : array ()
        Logarithm of the scale; it stays as it is where the objective has none.
    centre, unit : array (d,)
        What is subtracted from the features, and what they are divided by.
    middle, label_unit : array ()
        The prediction is the middle and so many label units as the last layer gives.
    """

    layers: Any
    log_scale: Any
    centre: Any
    unit: Any
    middle: Any
    label_unit: Any


@pytree
@dataclasses.dataclass(frozen=True)
class Network:
    """A fully connected network and its training.

    Parameters
    ----------
    widths : tuple of int
        Of the hidden layers; with the one that predicts, (128, 64) makes the three of [LH].
    activation : callable
        Of the hidden layers: `jax.nn.relu`, for one.
    epochs : int
        How often each label is used.
    batch : int
        Labels a step.
    optimiser : optax.GradientTransformation, optional
        By default Adam with the rate 0.001, a tenth of it from half of the epochs on.
    weight_decay : float
        Multiple of the weights and biases that is added to their gradient before the optimiser sees it, 0 or more.
        PyTorch's ``weight_decay`` of Adam.
    standardise : bool
        Whether features are standardised, and predictions start from the middle of the labels, in units of a sixth of
        what lies between their bounds. Without, the network sees the features as they are, as in [LH].

    Raises
    ------
    ValueError
        If a number is out of its range.
    TypeError
        If the activation is not callable.
    """

    widths: tuple[int, ...] = static(default=(128, 64))
    activation: Callable[[Any], Any] = static(default=jax.nn.relu)
    epochs: int = static(default=50)
    batch: int = static(default=256)
    optimiser: Any = static(default=None)
    weight_decay: Any = 1e-4
    standardise: bool = static(default=True)

    def __post_init__(self) -> None:
        """Check everything."""
        object.__setattr__(self, "widths", tuple(at_least(1, "widths", width) for width in self.widths))
        at_least(1, "epochs", self.epochs)
        at_least(1, "batch", self.batch)
        checked_field(self, "weight_decay", "a finite number, 0 or more", lambda a: (a >= 0) & (a < np.inf))
        if not callable(self.activation):
            raise TypeError(f"activation must be a function such as jax.nn.relu, got {self.activation!r}")

    def start(self, objective: Objective, key: Any, features: Any, values: Any, mechanism: Any) -> Trained:
        """Weights and biases before training, uniform between ±1/√inputs, as PyTorch's linear layers have them.

        Parameters
        ----------
        objective : Objective
            Whose scale is learned.
        key : jax.Array
            A JAX random key.
        features, values, mechanism
            As for `train_network`.
        """
        features = jnp.asarray(features)
        sizes = (features.shape[1], *self.widths, 1)
        layers = []
        for layer_key, inputs, outputs in zip(jax.random.split(key, len(sizes) - 1), sizes, sizes[1:], strict=False):
            draws = jax.random.uniform(layer_key, (inputs + 1, outputs), features.dtype, -1, 1) / np.sqrt(inputs)
            layers.append((draws[:-1], draws[-1]))
        scale = jnp.asarray(objective.plausible_scale(values, mechanism), features.dtype)
        none, one = jnp.zeros(features.shape[1], features.dtype), jnp.ones((), features.dtype)
        if not self.standardise:
            return Trained(tuple(layers), jnp.log(scale), none, none + 1, 0 * one, one)
        deviation = jnp.std(features, axis=0)
        unit = jnp.where(deviation > 0, deviation, 1.0)
        middle = one * jnp.mean(plausible_labels(values, mechanism))
        layers[-1] = (layers[-1][0], 0 * layers[-1][1])
        centre = jnp.mean(features, axis=0)
        return Trained(tuple(layers), jnp.log(scale), centre, unit, middle, one * label_spread(values, mechanism))

    def predictor(self, trained: Trained, features: Any) -> tuple[jax.Array, jax.Array]:
        """Predictions (n,), before any link, and the scale.

        Parameters
        ----------
        trained : Trained
            From `train_network`.
        features : array (n, d)
            In the columns of the training.
        """
        hidden = (features - trained.centre) / trained.unit
        for weights, bias in trained.layers[:-1]:
            hidden = self.activation(hidden @ weights + bias)
        weights, bias = trained.layers[-1]
        prediction = trained.middle + trained.label_unit * (hidden @ weights + bias)[:, 0]
        return prediction, jnp.exp(trained.log_scale)


def train_network(
    network: Network, objective: Objective, key: Any, features: Any, values: Any, mechanism: Any
) -> tuple[Trained, jax.Array]:
    """Train a network on released labels; pure, for `jax.jit` with a static objective, and `jax.vmap` over the rest.

    Parameters
    ----------
    network : Network
        What is trained; its weight decay may be vmapped over.
    objective : Objective
        What is minimised: the mean of its losses.
    key : jax.Array
        A JAX random key, for the start and the order of the labels.
    features : array (n, d)
        Public features. Their type is that of all computations.
    values : array (n,)
        Released labels.
    mechanism : Mechanism
        What released them, with one budget or one a label.

    Returns
    -------
    tuple of Trained and array (epochs,)
        The network, and the mean loss in each epoch.
    """
    optax = _optax()
    features = jnp.asarray(features)
    values = jnp.asarray(values, features.dtype)
    count = features.shape[0]
    batch = min(network.batch, count)
    steps = -(-count // batch)
    start_key, order_key = jax.random.split(key)
    trained = network.start(objective, start_key, features, values, mechanism)
    fixed = trained._replace(layers=None, log_scale=None)
    optimiser = network.optimiser
    if optimiser is None:
        schedule = optax.piecewise_constant_schedule(RATE, {steps * max(network.epochs // 2, 1): DECAY})
        optimiser = optax.adam(schedule)

    def loss(learned: tuple, index: jax.Array, counts: jax.Array) -> jax.Array:
        layers, log_scale = learned
        prediction, scale = network.predictor(fixed._replace(layers=layers, log_scale=log_scale), features[index])
        own = jax.tree.map(lambda leaf: jnp.asarray(leaf)[index] if jnp.shape(leaf) == (count,) else leaf, mechanism)
        losses = objective.loss(prediction, jnp.broadcast_to(scale, prediction.shape), values[index], own)
        beyond = log_scale - trained.log_scale
        return jnp.sum(counts * losses) / jnp.sum(counts) + 0.5 * objective.scale_precision() * beyond**2 / count

    def step(state: tuple, labels: tuple) -> tuple[tuple, jax.Array]:
        learned, memory = state
        value, slope = jax.value_and_grad(loss)(learned, *labels)
        # the scale has no weight decay: it is no weight
        decayed = jax.tree.map(lambda g, w: g + network.weight_decay * w, slope[0], learned[0])
        change, memory = optimiser.update((decayed, slope[1]), memory, learned)
        return (optax.apply_updates(learned, change), memory), value

    def epoch(state: tuple, epoch_key: jax.Array) -> tuple[tuple, jax.Array]:
        order = jax.random.permutation(epoch_key, count)
        # what the last batch lacks is filled up with labels that do not count
        index = jnp.concatenate([order, order[: steps * batch - count]]).reshape(steps, batch)
        counts = (jnp.arange(steps * batch) < count).astype(features.dtype).reshape(steps, batch)
        state, values_of_steps = jax.lax.scan(step, state, (index, counts))
        return state, values_of_steps @ counts.sum(axis=1) / count

    learned = (trained.layers, trained.log_scale)
    keys = jax.random.split(order_key, network.epochs)
    (learned, _), losses = jax.lax.scan(epoch, (learned, optimiser.init(learned)), keys)
    return trained._replace(layers=learned[0], log_scale=learned[1]), losses


def _optax() -> Any:
    try:
        import optax
    except ImportError:
        raise ImportError(missing("training a network needs optax", "learning")) from None
    return optax
