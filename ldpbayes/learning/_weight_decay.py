"""The weight decay of a network, chosen from released labels alone."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._checks import at_least, checked
from ldpbayes.data import Release
from ldpbayes.learning._arguments import centre_and_unit, checked_features, checked_labels
from ldpbayes.learning._network import Network, Trained
from ldpbayes.learning._network_fit import trained_once
from ldpbayes.learning._objectives import MarginalLikelihood, Objective

__all__ = ["DECAYS", "with_weight_decay"]

DECAYS = (1e-4, 3e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2)
"""Weight decays to choose from: the noisier labels are, and the fewer, the larger the one that does best."""


def with_weight_decay(
    network: Network,
    features: Any,
    release: Release,
    *,
    objective: Objective | None = None,
    decays: Sequence[float] = DECAYS,
    folds: int = 5,
    seed: int = 0,
) -> Network:
    """The network with the weight decay that does best on released labels that it was not trained on.

    No original label is looked at: the objective of held-out released labels is compared.

    Parameters
    ----------
    network : Network
        Whose other parameters are kept.
    features : array_like (n, d) or data frame
        Public features, a row a label.
    release : Release
        Released labels.
    objective : Objective, optional
        See `network_fit`.
    decays : sequence of float
        Weight decays to choose from.
    folds : int
        Parts of the labels, of which each is held out once.
    seed : int
        For the folds and the trainings.

    Returns
    -------
    Network

    Raises
    ------
    ValueError
        For a weight decay below 0, fewer than two folds, or labels that `network_fit` refuses.
    """
    objective = MarginalLikelihood() if objective is None else objective
    checked_labels(release, objective)
    matrix, _ = checked_features(features, len(release))
    if network.standardise:  # once more by each training; here in double precision
        centre, unit = centre_and_unit(matrix)
        matrix = (matrix - centre) / unit
    grid = np.atleast_1d(checked("decays", decays, "finite numbers, 0 or more", lambda a: (a >= 0) & (a < np.inf)))
    count, folds = len(release), at_least(2, "folds", folds, len(release))
    order = np.random.default_rng(seed).permutation(count)
    values, size = np.asarray(release.values, np.float32), count // folds  # of one size, for one compiled function

    def part(index: np.ndarray) -> tuple:
        return matrix[index].astype(np.float32), values[index], release.mechanism.of_records((count,), index)

    total = np.zeros(len(grid))
    with jax.enable_x64(False):
        for k in range(folds):
            held = np.arange(count) // size == k
            learned, apart = part(order[~held]), part(order[held])
            for j, decay in enumerate(grid):
                trial = dataclasses.replace(network, weight_decay=float(decay))
                trained, _ = trained_once(trial, objective, jax.random.key(seed), *learned)
                total[j] += float(_loss(trial, objective, trained, *apart))
    return dataclasses.replace(network, weight_decay=float(grid[int(np.nanargmin(total))]))


@functools.partial(jax.jit, static_argnums=1)
def _loss(network: Network, objective: Objective, trained: Trained, features: Any, values: Any, mechanism: Any) -> Any:
    prediction, scale = network.predictor(trained, features)
    return jnp.mean(objective.loss(prediction, jnp.broadcast_to(scale, prediction.shape), values, mechanism))
