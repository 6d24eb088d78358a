"""A network of labels, trained on what was released of them."""

import dataclasses
from typing import Any

import jax
import numpy as np

from ldpbayes._warnings import warn
from ldpbayes.data import Release
from ldpbayes.learning._arguments import (
    LearningWarning,
    centre_and_unit,
    checked_bounds,
    checked_features,
    checked_labels,
    privacy_of,
)
from ldpbayes.learning._network import Network, Trained, train_network
from ldpbayes.learning._objectives import MarginalLikelihood, Objective

__all__ = ["NetworkFit", "network_fit", "trained_once"]


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkFit:
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
            As of `LinearFit.predict`.

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
) -> NetworkFit:
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
    NetworkFit

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
    return NetworkFit(network, objective, trained, losses, len(release), privacy_of(release), names)


trained_once = jax.jit(train_network, static_argnums=1)
"""`train_network`, compiled once for all data of a shape."""


@jax.jit
def _predicted(network: Network, trained: Trained, features: Any) -> Any:
    return network.predictor(trained, features)
