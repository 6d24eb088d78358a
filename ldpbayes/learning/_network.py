"""Networks as predictors of released labels."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._core.checks import at_least, missing, warn
from ldpbayes._core.pytrees import checked_field, pytree, static
from ldpbayes.data import Release
from ldpbayes.learning._labels import label_spread, plausible_labels
from ldpbayes.learning._objectives import (
    LearningWarning,
    MarginalLikelihood,
    Objective,
    centre_and_unit,
    checked_bounds,
    checked_features,
    checked_labels,
    privacy_of,
)

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


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkPredictor:
    """A network that predicts labels.

    Attributes
    ----------
    network : Network
        Its layers and how it was trained.
    objective : Objective
        What was minimised.
    trained : Trained
        Weights, biases and scale: a pytree of arrays.
    losses : array (epochs,)
        Mean loss of the labels in each epoch.
    count : int
        Number of labels.
    privacy : str
        What was promised to those whose labels were released.
    names : list of str
        Of the features.
    """

    network: Network
    objective: Objective
    trained: Trained
    losses: np.ndarray
    count: int
    privacy: str
    names: list[str]

    @property
    def scale(self) -> float | None:
        """The law's scale, None where the objective has none."""
        if not self.objective.scaled:
            return None
        return float(np.exp(self.trained.log_scale))

    def predict(self, features: Any, *, bounds: tuple[float, float] | None = None) -> np.ndarray:
        """Expected labels, shape (m,).

        Parameters
        ----------
        features : array_like (m, d)
            In the columns of the fit.
        bounds : (float, float), optional
            As of `LinearPredictor.predict`.

        Raises
        ------
        ValueError
            For another number of columns, other names of them, or what is not a finite number.
        """
        matrix, _ = checked_features(features, width=len(self.names), like=self.names)
        centre, unit = self.trained.centre, self.trained.unit
        standard = ((matrix - centre) / unit).astype(np.float32)
        trained = self.trained._replace(centre=np.zeros_like(standard[0]), unit=np.ones_like(standard[0]))
        with jax.enable_x64(False):
            prediction, scale = _predicted(self.network, trained, standard)
            return np.asarray(self.objective.mean(prediction, scale, checked_bounds(bounds)))


def network_fit(
    features: Any,
    release: Release,
    *,
    objective: Objective | None = None,
    seed: int = 0,
    network: Network | None = None,
    **options: Any,
) -> NetworkPredictor:
    """Train a fully connected network on released labels, in single precision.

    Parameters
    ----------
    features : array_like (n, d) or data frame
        Public features, a row a label.
    release : Release
        Released labels.
    objective : Objective, optional
        By default ``MarginalLikelihood()``: normal labels, integrated out, whose scale is learned with the network.
    seed : int
        For the start and the order of the labels.
    network : Network, optional
        What is trained, and how.
    **options
        Parameters of `Network`, instead of one: ``widths``, ``activation``, ``epochs``, ``batch``, ``optimiser``,
        ``weight_decay``, ``standardise``.

    Returns
    -------
    NetworkPredictor

    Raises
    ------
    ImportError
        Without optax, which the extra ``learning`` installs.
    TypeError
        If the release or the objective is something else, or both a network and options are given.
    ValueError
        For a release without values or of rows, features of another length or not finite, or an option out of range.

    Warns
    -----
    LearningWarning
        If the loss is not a finite number at the end.
    """
    objective = MarginalLikelihood() if objective is None else objective
    checked_labels(release, objective)
    matrix, names = checked_features(features, len(release))
    if network is not None and options:
        raise TypeError(f"give a network or its options, not both; got {', '.join(options)}")
    network = Network(**options) if network is None else network
    # in double precision: the rest is in single
    centre, unit = centre_and_unit(matrix) if network.standardise else (0.0, 1.0)
    with jax.enable_x64(False):
        data = (
            ((matrix - centre) / unit).astype(np.float32),
            np.asarray(release.values, np.float32),
            release.mechanism,
        )
        trained, losses = trained_once(network, objective, jax.random.key(seed), *data)
    trained, losses = jax.tree.map(np.asarray, (trained, losses))
    trained = trained._replace(centre=centre + unit * trained.centre, unit=unit * trained.unit)
    if not np.isfinite(losses[-1]):
        problem = "the loss is not a finite number at the end of the training: take a lower rate, or standardise"
        warn(problem, LearningWarning)
    return NetworkPredictor(network, objective, trained, losses, len(release), privacy_of(release), names)


trained_once = jax.jit(train_network, static_argnums=1)
"""`train_network`, compiled once for all data of a shape."""


@jax.jit
def _predicted(network: Network, trained: Trained, features: Any) -> Any:
    return network.predictor(trained, features)
