"""Neural networks as predictors of released labels."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._core.checks import NOT_NEGATIVE, at_least, require, warn
from ldpbayes._core.pytrees import check_fields, pytree_dataclass, ruled, static
from ldpbayes._core.types import Array, Key
from ldpbayes.data import Release
from ldpbayes.estimation import _labels as labels
from ldpbayes.estimation._labels import Objective
from ldpbayes.estimation.estimates import EstimationWarning
from ldpbayes.mechanisms import Mechanism

LEARNING_RATE = 1e-3  # of Adam, by default
RATE_DECAY = 0.1  # factor of the rate after half of the epochs


class TrainedNetwork(NamedTuple):
    """Arrays of a network, which can be vmapped; the prediction is middle + unit · (output of the last layer)."""

    layers: tuple[tuple[Array, Array], ...]  # weights (inputs, outputs) and biases (outputs,) of each
    log_scale: Array  # of the law, constant if the objective has no scale
    middle: Array
    unit: Array


@pytree_dataclass
class Network:
    """Layers of a fully connected network, and options of its training.

    Parameters
    ----------
    widths : tuple of int
        Widths of the hidden layers. Default: (128, 64), as in [LH].
    activation : callable
        Activation function of the hidden layers. Default: ``jax.nn.relu``.
    epochs, batch : int
        Number of passes through all labels, and number of labels in each training step. Default: 50 and 256.
    optimiser : optax.GradientTransformation, optional
        The optimiser. Default: Adam with the learning rate 0.001, and 0.0001 in the second half of the epochs.
    weight_decay : float
        This factor, 0 or more, times weights and biases adds to their gradient, as in PyTorch's Adam. Default: 1e-4.
    standardise : bool
        True (default) to standardise features and predictions. The network then predicts the distance from the mean
        released label, in sixths of the range between the bounds of the mechanism. [LH] has False.
    """

    widths: tuple[int, ...] = static(default=(128, 64))
    activation: Callable[[Array], Array] = static(default=jax.nn.relu)
    epochs: int = static(default=50)
    batch: int = static(default=256)
    optimiser: Any = static(default=None)
    weight_decay: Array = ruled(NOT_NEGATIVE, default=1e-4)
    standardise: bool = static(default=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", tuple(at_least(1, "widths", width) for width in self.widths))
        at_least(1, "epochs", self.epochs)
        at_least(1, "batch", self.batch)
        check_fields(self)
        if not callable(self.activation):
            raise TypeError(f"activation must be a function such as jax.nn.relu, got {self.activation!r}")

    def start(
        self, objective: Objective, key: Key, features: Array, values: Array, mechanism: Mechanism
    ) -> TrainedNetwork:
        """Return the untrained network. A layer with k inputs has uniform weights and biases in [−1/√k, 1/√k]."""
        dtype = jnp.result_type(features)
        sizes = (features.shape[1], *self.widths, 1)
        layers = []
        for layer_key, inputs, outputs in zip(jax.random.split(key, len(sizes) - 1), sizes, sizes[1:], strict=False):
            draws = jax.random.uniform(layer_key, (inputs + 1, outputs), dtype, -1, 1) / np.sqrt(inputs)
            layers.append((draws[:-1], draws[-1]))
        numbers = [jnp.log(objective.scale_prior(values, mechanism)[0]), 0.0, 1.0]
        if self.standardise:
            layers[-1] = (layers[-1][0], 0 * layers[-1][1])
            numbers[1:] = jnp.mean(labels.plausible_labels(values, mechanism)), labels.label_spread(values, mechanism)
        return TrainedNetwork(tuple(layers), *(jnp.asarray(number, dtype) for number in numbers))

    def predictor(self, trained: TrainedNetwork, features: Array) -> tuple[jax.Array, jax.Array]:
        """Return the predictions (n,), before any inverse link, for `features` (n, d), and the scale of the law of
        labels.
        """
        hidden, (*inner, (last, constant)) = features, trained.layers
        for weights, bias in inner:
            hidden = self.activation(hidden @ weights + bias)
        return trained.middle + trained.unit * (hidden @ last + constant)[:, 0], jnp.exp(trained.log_scale)


def train_network(
    network: Network, objective: Objective, key: Key, features: Array, values: Array, mechanism: Mechanism
) -> tuple[TrainedNetwork, jax.Array]:
    """Train one network on released labels: the pure function that `network_fit` compiles.

    It can be compiled by `jax.jit` with a static objective, and mapped by `jax.vmap` over everything else. The result
    is the `trained` network for `Network.predictor`, and the mean loss of each epoch (epochs,).

    Parameters
    ----------
    network, objective : Network, Objective
        The layers, the options of the training, and the loss. Features are not standardised, whatever the network says.
    key : jax.Array
        Random key of the first weights and of the order of the labels.
    features : array (n, d)
        Features, whose dtype is that of the computation.
    values, mechanism : array (n,), Mechanism
        Released labels and their mechanism, whose parameters are numbers, or have one entry for each label.
    """
    require("learning", "optax")
    import optax

    features = jnp.asarray(features)
    values, count = jnp.asarray(values, features.dtype), features.shape[0]
    batch_size = min(network.batch, count)
    steps = -(-count // batch_size)
    start_key, order_key = jax.random.split(key)
    start = network.start(objective, start_key, features, values, mechanism)
    precision, optimiser = objective.scale_prior(values, mechanism)[1], network.optimiser
    if optimiser is None:
        schedule = optax.piecewise_constant_schedule(LEARNING_RATE, {steps * max(network.epochs // 2, 1): RATE_DECAY})
        optimiser = optax.adam(schedule)
    params = {"layers": start.layers, "log_scale": start.log_scale}
    decayed = {"layers": True, "log_scale": False}  # the scale is no weight
    optimiser = optax.chain(optax.add_decayed_weights(network.weight_decay, mask=decayed), optimiser)

    def loss(params: dict[str, Any], index: jax.Array, weights: jax.Array) -> jax.Array:
        prediction, scale = network.predictor(start._replace(**params), features[index])
        mechanisms = jax.tree.map(
            lambda leaf: jnp.asarray(leaf)[index] if jnp.shape(leaf) == (count,) else leaf, mechanism
        )
        losses = objective.loss(prediction, jnp.broadcast_to(scale, prediction.shape), values[index], mechanisms)
        distance = params["log_scale"] - start.log_scale
        return jnp.sum(weights * losses) / jnp.sum(weights) + 0.5 * precision * distance**2 / count

    def step(state: tuple, batch: tuple[jax.Array, jax.Array]) -> tuple[tuple, jax.Array]:
        params, memory = state
        value, slope = jax.value_and_grad(loss)(params, *batch)
        change, memory = optimiser.update(slope, memory, params)
        return (optax.apply_updates(params, change), memory), value

    def epoch(state: tuple, epoch_key: jax.Array) -> tuple[tuple, jax.Array]:
        index = jnp.resize(jax.random.permutation(epoch_key, count), (steps, batch_size))
        weights = jnp.arange(index.size).reshape(index.shape) < count  # the last batch is filled with the first labels
        state, losses = jax.lax.scan(step, state, (index, weights))
        return state, losses @ weights.sum(axis=1) / count

    keys = jax.random.split(order_key, network.epochs)
    (params, _), losses = jax.lax.scan(epoch, (params, optimiser.init(params)), keys)
    return start._replace(**params), losses


_train_compiled = jax.jit(train_network, static_argnums=1)
_predict_compiled = jax.jit(Network.predictor)


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkPredictor:
    """A trained network that predicts labels.

    - ``network``, ``objective``: the layers with the options of the training, and the objective;
    - ``trained``, ``losses`` (epochs,): the weights, biases and scale, and the mean loss of the labels in each epoch;
    - ``count``, ``names``, ``privacy``: the number of labels, the names of the features, the guarantee of the labels.
    """

    network: Network
    objective: Objective
    trained: TrainedNetwork
    losses: np.ndarray
    count: int
    privacy: str
    names: list[str]
    _centre: Array  # of the features, in double precision
    _unit: Array

    @property
    def scale(self) -> float | None:
        """Scale parameter of the law of labels, or None if this law has no scale."""
        return float(np.exp(self.trained.log_scale)) if self.objective.scaled else None

    def predict(self, features: Array, *, bounds: tuple[float, float] | None = None) -> np.ndarray:
        """Return the expected original labels (m,), as `LinearPredictor.predict` does."""
        matrix, _ = labels.checked_features(features, fit_names=self.names)
        standard = ((matrix - self._centre) / self._unit).astype(np.float32)
        with jax.enable_x64(False):
            prediction, scale = _predict_compiled(self.network, self.trained, standard)
            return np.asarray(self.objective.mean(prediction, scale, labels.checked_bounds(bounds)))


def network_fit(
    features: Array,
    release: Release,
    *,
    objective: Objective | None = None,
    seed: int = 0,
    network: Network | None = None,
    **options: Any,
) -> NetworkPredictor:
    """Train a fully connected network on released labels, in single precision.

    The scale of a law of labels is learned, too. Issues an EstimationWarning if the loss is not finite at the end.
    Needs optax (the extra ``learning``).

    Parameters
    ----------
    features, release, objective
        As in `linear_fit`.
    seed : int
        Random seed for the first weights of the network and for the order of the labels. Default: 0.
    network, **options
        A `Network`, or parameters of `Network`, such as ``epochs=20``.
    """
    objective, matrix, names = labels.checked_data(features, release, objective)
    if network is not None and options:
        raise TypeError(f"give a network or its options, not both; got {', '.join(options)}")
    network = Network(**options) if network is None else network
    # features are standardised in double precision, since the network is trained in single precision
    centre, unit = labels.centre_and_unit(matrix) if network.standardise else (0.0, 1.0)
    with jax.enable_x64(False):
        standard = ((matrix - centre) / unit).astype(np.float32)
        values = np.asarray(release.values, np.float32)
        key = jax.random.key(seed)
        trained, losses = _train_compiled(network, objective, key, standard, values, release.mechanism)
    trained, losses = jax.tree.map(np.asarray, (trained, losses))
    if not np.isfinite(losses[-1]):
        problem = "the loss is not finite at the end of the training: use a lower learning rate, or standardise=True"
        warn(problem, EstimationWarning)
    privacy = labels.privacy_of(release)
    return NetworkPredictor(network, objective, trained, losses, len(release), privacy, names, centre, unit)
