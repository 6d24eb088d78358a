"""Learners from released labels: the three-layer network of [LH] sec. 5, and learners that know the mechanism.

A learner is a function (key, splits, releases, setting, the paper's network) → predictions (trials, m).
"""

import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ldpbayes.data import Release
from ldpbayes.estimation import (
    CrossValidation,
    EstimationWarning,
    MarginalLikelihood,
    Network,
    SquaredError,
    UnbiasedLabels,
    linear_fit,
    train_network,
)
from ldpbayes.mechanisms import LaplaceMechanism

PAPER = Network(widths=(128, 64), epochs=50, batch=256, weight_decay=1e-4, standardise=False)
"""The text of [LH]: Adam with the rate 0.001, a tenth of it from the 25th epoch on, features as they are."""


def stacked(mechanisms):
    """Mechanisms of one kind, stacked leaf by leaf."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *mechanisms)


def networks(key, features, values, mechanism, tests, network, objective):
    """A network a split: predictions (trials, m) of the tests, and scales (trials,) of the law of labels."""
    arrays = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), (features, values, mechanism, tests))
    return jax.tree.map(np.asarray, _all(network, jax.random.split(key, len(values)), *arrays, objective))


@functools.partial(jax.jit, static_argnames="objective")
def _all(network, keys, features, values, mechanism, tests, objective):
    def one(trial):
        key, x, z, mechanism, tests = trial
        if network.standardise:
            deviation = jnp.std(x, axis=0)
            x, tests = ((rows - jnp.mean(x, axis=0)) / jnp.where(deviation > 0, deviation, 1.0) for rows in (x, tests))
        trained = train_network(network, objective, key, x, z, mechanism)[0]
        return network.predictor(trained, tests)

    # One after the other: on a CPU batched products of small matrices are slower.
    return lax.map(one, (keys, features, values, mechanism, tests))


PRECISIONS = (4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""Precisions of the normal prior of weights (n times the weight decay), chosen by held-out released labels."""
GRID = tuple(10.0 ** (k / 4) for k in range(-8, 13))
FOLDS = 5


def paper_network(key, splits, released, setting, network):
    """The paper's network, by squared error on released labels as if they were the labels."""
    values = np.stack([release.values for release in released])
    unused = stacked([LaplaceMechanism(1.0, *setting.bounds)] * len(values))  # by squared error
    return networks(key, splits.train[..., :-1], values, unused, splits.test[..., :-1], network, SquaredError())[0]


def linear(objective, penalty, key, splits, released, setting, network):
    """A linear predictor, its penalty chosen from released labels."""
    predictions = []
    for train, test, release in zip(splits.train, splits.test, released, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EstimationWarning)  # about standard errors, which are not used
            fit = linear_fit(train[:, :-1], Release(*release), objective=objective, penalty=penalty)
        predictions.append(fit.predict(test[:, :-1], bounds=setting.bounds))
    return np.stack(predictions)


def held_out_network(objective, key, splits, released, setting, network):
    """Mean prediction of the paper's network on standardised features, one for each fifth of labels that is held out.

    The prior is that of `PRECISIONS` under which the held-out released labels are most probable.
    """
    trials, count, _ = splits.train.shape
    orders = np.stack([np.random.default_rng(trial).permutation(count) for trial in range(trials)])
    held = np.stack([orders[:, k * (count // FOLDS) : (k + 1) * (count // FOLDS)] for k in range(setting.rounds)], 1)
    used = np.stack([[np.setdiff1d(order, part) for part in parts] for order, parts in zip(orders, held, strict=True)])
    mechanism = stacked([release.mechanism for release in released for _ in range(setting.rounds)])
    values = np.stack([release.values for release in released])

    def selected(rows, which):
        """Rows (trials, rounds, n') of each trial, one trial and round after the other."""
        return np.concatenate([part[index] for part, index in zip(rows, which, strict=True)])

    features, tests = splits.train[..., :-1], np.repeat(splits.test[..., :-1], setting.rounds, axis=0)
    inputs = (
        selected(features, used),
        selected(values, used),
        mechanism,
        np.concatenate([selected(features, held), tests], axis=1),
    )
    losses, predictions = [], []
    for precision in PRECISIONS:
        tried = dataclasses.replace(network, standardise=True, weight_decay=precision / used.shape[-1])
        predictors, scales = networks(key, *inputs, tried, objective)
        ahead, behind = np.split(predictors, [held.shape[-1]], axis=1)
        loss, expected = _judged(ahead, behind, scales, selected(values, held), mechanism, setting.bounds, objective)
        losses.append(np.asarray(loss).reshape(trials, -1).sum(axis=1))
        predictions.append(np.asarray(expected).reshape(trials, setting.rounds, -1).mean(axis=1))
    best = np.argmin(losses, axis=0)
    return np.stack(predictions)[best, np.arange(trials)]


@functools.partial(jax.jit, static_argnames="objective")
def _judged(ahead, behind, scales, values, mechanism, bounds, objective):
    """Each trial's sum of losses of held-out labels, and its expected labels of the records for testing."""

    def one(trial):
        ahead, behind, scale, values, mechanism = trial
        loss = objective.loss(ahead, jnp.full(ahead.shape, scale), values, mechanism)
        return jnp.sum(loss), objective.mean(behind, scale, bounds)

    return lax.map(one, (ahead, behind, scales, values, mechanism))


LIKELIHOOD = MarginalLikelihood(deviation=0.5)  # both ranges here are some six standard deviations of the labels wide
LEARNERS = {
    "paper": paper_network,
    "squared error, linear": functools.partial(linear, SquaredError(), CrossValidation(grid=GRID)),
    "unbiased labels, linear": functools.partial(linear, UnbiasedLabels(), CrossValidation(grid=GRID)),
    "marginal likelihood, linear": functools.partial(linear, None, None),  # the package's defaults
    "marginal likelihood, network": functools.partial(held_out_network, LIKELIHOOD),
}
