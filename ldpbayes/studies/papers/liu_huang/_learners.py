"""How predictions are learned from released labels: as in [LH], and knowing the mechanism."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ldpbayes.data import Release
from ldpbayes.learning import (
    CrossValidation,
    Evidence,
    LearningWarning,
    MarginalLikelihood,
    Network,
    Objective,
    Penalty,
    SquaredError,
    UnbiasedLabels,
    linear_fit,
)
from ldpbayes.mechanisms import LaplaceMechanism
from ldpbayes.studies.papers.kulkarni_et_al._splits import Splits
from ldpbayes.studies.papers.liu_huang._network import networks, stacked
from ldpbayes.studies.papers.liu_huang._releases import Released
from ldpbayes.studies.papers.liu_huang._setting import Setting

__all__ = ["LEARNERS", "PRECISIONS", "Learner"]

PRECISIONS = (4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""Of the normal prior of a network's weights, n times the weight decay; held-out released labels decide which."""
GRID = tuple(10.0 ** (k / 4) for k in range(-8, 13))
FOLDS = 5

Learner = Callable[[jax.Array, Splits, Sequence[Released], Setting, Network], np.ndarray]
"""(key, splits, released labels of each, setting, the paper's network) → predictions (trials, m)."""


def paper_network(
    key: jax.Array, splits: Splits, released: Sequence[Released], setting: Setting, network: Network
) -> np.ndarray:
    """The paper's network, by squared error on released labels as if they were the labels."""
    values = np.stack([release.values for release in released])
    unused = stacked([LaplaceMechanism(1.0, *setting.bounds)] * len(values))  # squared error does not look at it
    return networks(key, splits.train[..., :-1], values, unused, splits.test[..., :-1], network, SquaredError())[0]


def linear(
    objective: Objective,
    penalty: Penalty,
    key: jax.Array,
    splits: Splits,
    released: Sequence[Released],
    setting: Setting,
    network: Network,
) -> np.ndarray:
    """A linear predictor, its penalty chosen from released labels."""
    predictions = []
    for train, test, release in zip(splits.train, splits.test, released, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LearningWarning)  # of standard errors, which nobody asks for here
            fit = linear_fit(train[:, :-1], Release(*release), objective=objective, penalty=penalty)
        predictions.append(fit.predict(test[:, :-1], bounds=setting.bounds))
    return np.stack(predictions)


def held_out_network(
    objective: Objective,
    key: jax.Array,
    splits: Splits,
    released: Sequence[Released],
    setting: Setting,
    network: Network,
) -> np.ndarray:
    """The paper's network on standardised features, as often as fifths of the labels are held out; their mean.

    The weights have the one of `PRECISIONS` under which the held-out released labels are most probable.
    """
    trials, count, _ = splits.train.shape
    orders = np.stack([np.random.default_rng(trial).permutation(count) for trial in range(trials)])
    held = np.stack([orders[:, k * (count // FOLDS) : (k + 1) * (count // FOLDS)] for k in range(setting.rounds)], 1)
    used = np.stack([[np.setdiff1d(order, part) for part in parts] for order, parts in zip(orders, held, strict=True)])
    mechanism = stacked([release.mechanism for release in released for _ in range(setting.rounds)])
    values = np.stack([release.values for release in released])

    def of(rows: np.ndarray, which: np.ndarray) -> np.ndarray:
        """Rows (trials, rounds, n') of each trial, one trial and round after the other."""
        return np.concatenate([part[index] for part, index in zip(rows, which, strict=True)])

    features, tests = splits.train[..., :-1], np.repeat(splits.test[..., :-1], setting.rounds, axis=0)
    inputs = of(features, used), of(values, used), mechanism, np.concatenate([of(features, held), tests], axis=1)
    losses, predictions = [], []
    for precision in PRECISIONS:
        tried = dataclasses.replace(network, standardise=True, weight_decay=precision / used.shape[-1])
        found, scales = networks(key, *inputs, tried, objective)
        ahead, behind = np.split(found, [held.shape[-1]], axis=1)
        loss, expected = _judged(ahead, behind, scales, of(values, held), mechanism, setting.bounds, objective)
        losses.append(np.asarray(loss).reshape(trials, -1).sum(axis=1))
        predictions.append(np.asarray(expected).reshape(trials, setting.rounds, -1).mean(axis=1))
    best = np.argmin(losses, axis=0)
    return np.stack(predictions)[best, np.arange(trials)]


@functools.partial(jax.jit, static_argnames="objective")
def _judged(
    ahead: Any, behind: Any, scales: Any, values: Any, mechanism: Any, bounds: Any, objective: Objective
) -> tuple[jax.Array, jax.Array]:
    """Of each trial the sum of losses of held-out labels, and the expected labels of the records for testing."""

    def one(trial: Any) -> tuple[jax.Array, jax.Array]:
        ahead, behind, scale, values, mechanism = trial
        loss = objective.loss(ahead, jnp.full(ahead.shape, scale), values, mechanism)
        return jnp.sum(loss), objective.mean(behind, scale, bounds)

    return lax.map(one, (ahead, behind, scales, values, mechanism))


LIKELIHOOD = MarginalLikelihood(deviation=0.5)  # both ranges here are some six standard deviations of the labels wide
LEARNERS: dict[str, Learner] = {
    "paper": paper_network,
    "squared error, linear": functools.partial(linear, SquaredError(), CrossValidation(grid=GRID)),
    "unbiased labels, linear": functools.partial(linear, UnbiasedLabels(), CrossValidation(grid=GRID)),
    "marginal likelihood, linear": functools.partial(linear, LIKELIHOOD, Evidence(grid=GRID)),
    "marginal likelihood, network": functools.partial(held_out_network, LIKELIHOOD),
}
