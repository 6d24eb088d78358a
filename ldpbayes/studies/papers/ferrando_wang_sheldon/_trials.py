"""Trials of a private estimator: data at the truth, a release, an estimate and its bootstrap, all in a compiled call.

`ldpbayes.bootstrap.parametric_bootstrap` is for one release. Here are a thousand, of which the replicates are reduced
to the quantiles that intervals are made of before the next trial starts.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from scipy import stats

from ldpbayes._pytree import unchecked
from ldpbayes.bootstrap import Family, PrivateEstimator

__all__ = ["LEVEL", "Plain", "Trials", "intervals", "plain", "trials"]

LEVEL = 0.95
TAILS = (0.025, 0.975)


class Trials(NamedTuple):
    """Estimates and what was found of their replicates, one trial a row.

    Attributes
    ----------
    estimate : array (trials, p)
        Flat, as `PrivateEstimator.target` has it.
    error : array (trials, p)
        Standard errors that do not count the noise, for private Fisher intervals; NaN where there is no formula.
    quantiles, log_quantiles : array (trials, 2, p)
        Of the replicates, and of their logarithms, at the probabilities 0.025 and 0.975.
    mean, deviation : array (trials, p)
        Of the replicates.
    outside : array (trials,)
        Whether the release was outside the domain.
    """

    estimate: Any
    error: Any
    quantiles: Any
    log_quantiles: Any
    mean: Any
    deviation: Any
    outside: Any


class Plain(NamedTuple):
    """Estimates that are not private, one trial a row.

    Attributes
    ----------
    estimate, error : array (trials, p)
        Maximum likelihood, with standard errors from the Fisher information at the estimate.
    """

    estimate: Any
    error: Any


def trials(
    estimator: PrivateEstimator,
    truth: Any,
    *,
    trials: int,
    draws: int,
    seed: int,
    observe: Callable[[Any, Any, Any], Any] | None = None,
) -> Trials:
    """Run an estimator and its bootstrap on many data sets.

    Parameters
    ----------
    estimator : PrivateEstimator
        What is tried. Budgets, bounds and parameters are arguments of the compiled function, and so is the number of
        records where `observe` is the default and nothing is drawn record by record.
    truth : pytree of arrays
        Parameters of the data.
    trials, draws : int
        Number of data sets, and of replicates for each.
    seed : int
        Of the trials: the same data for other estimators of the same family.
    observe : callable, optional
        (estimator, key, truth) → what is released of data; by default the estimator's own replicate at the truth.
        Compiled functions are kept by its identity.
    """
    count: Any = getattr(estimator, "count", None)
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), trials)
        if observe is None and _counted(estimator):
            made = _run(_with_count(estimator, 0), float(count), truth, keys, draws, None)
        else:
            made = _run(estimator, None, truth, keys, draws, observe)
        return Trials(*map(np.asarray, made))


def _counted(estimator: Any) -> bool:
    """Whether the number of records may be a traced number: sums are drawn, not the records."""
    return hasattr(estimator, "count") and hasattr(getattr(estimator, "family", None), "law")


def _with_count(estimator: Any, count: Any) -> Any:
    fields = dataclasses.fields(estimator)
    return unchecked(type(estimator), *(count if f.name == "count" else getattr(estimator, f.name) for f in fields))


@functools.partial(jax.jit, static_argnames=("draws", "observe"))
def _run(estimator: Any, count: Any, truth: Any, keys: jax.Array, draws: int, observe: Any) -> Trials:
    used = estimator if count is None else _with_count(estimator, count)
    return lax.map(functools.partial(_trial, used, truth, draws, observe), keys)


def _trial(estimator: Any, truth: Any, draws: int, observe: Any, key: jax.Array) -> Trials:
    data, boot = jax.random.split(key)
    released = estimator.replicate(data, truth) if observe is None else observe(estimator, data, truth)
    estimated = estimator.estimate(released)
    flat = ravel_pytree(estimator.target(estimated.params))[0]

    def one(key: jax.Array) -> jax.Array:
        params = estimator.estimate(estimator.replicate(key, estimated.params)).params
        return ravel_pytree(estimator.target(params))[0]

    rising = jnp.sort(jax.vmap(one)(jax.random.split(boot, draws)), axis=0)
    ends, log_ends = _ends(rising, draws), _ends(jnp.log(jnp.maximum(rising, 1e-300)), draws)
    spread = jnp.std(rising, axis=0)
    error = _sampling_error(estimator, estimated.params, flat)
    return Trials(flat, error, ends, log_ends, jnp.mean(rising, axis=0), spread, estimated.outside)


def _ends(rising: jax.Array, draws: int) -> jax.Array:
    """Quantiles k/(draws + 1), as `ldpbayes.bootstrap` has them."""
    at = np.clip(np.array(TAILS) * (draws + 1) - 1, 0, draws - 1)
    below = np.minimum(at.astype(int), draws - 2)
    share = (at - below)[:, None]
    return (1 - share) * rising[below] + share * rising[below + 1]


def _sampling_error(estimator: Any, params: Any, flat: jax.Array) -> jax.Array:
    covariance = getattr(estimator, "covariance", None)
    found = None if covariance is None else covariance(params, noise=False)
    return jnp.full(flat.shape, jnp.nan) if found is None else jnp.sqrt(jnp.maximum(jnp.diagonal(found), 0.0))


def plain(family: Family, truth: Any, count: int, *, trials: int, seed: int) -> Plain:
    """Maximum likelihood estimates of the same data without noise.

    Parameters
    ----------
    family : Family
        With bounds beyond which there is nothing.
    truth : dict of str to array
        Parameters of the data.
    count : int
        Number of records.
    trials, seed : int
        As for `trials`.
    """
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), trials)
        return Plain(*map(np.asarray, _plain(family, truth, float(count), keys)))


@jax.jit
def _plain(family: Any, truth: Any, count: Any, keys: jax.Array) -> Plain:
    def one(key: jax.Array) -> Plain:
        sums = jax.random.split(jax.random.split(key)[0])[0]  # the key with which the private trial draws its sums
        params, _ = family.solve(family.total(sums, truth, count) / count)
        covariance = family.covariance(params, 0.0, count, clamped=False)
        return Plain(ravel_pytree(params)[0], jnp.sqrt(jnp.diagonal(covariance)))

    return lax.map(one, keys)


def intervals(made: Trials, positive: Any = False) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Estimates, lower and upper ends, each (trials, p), by the kind of interval.

    Parameters
    ----------
    made : Trials
        With their quantiles.
    positive : array (p,) of bool
        Which parameters have an interval on the logarithmic scale; others' is NaN.
    """
    estimate, (low, high) = made.estimate, np.moveaxis(made.quantiles, 1, 0)
    found = {"percentile": (estimate, low, high), "pivotal": (estimate, 2 * estimate - high, 2 * estimate - low)}
    log_low, log_high = np.moveaxis(made.log_quantiles, 1, 0)
    centre = 2 * np.log(np.where(positive, estimate, np.nan))
    found["log"] = (estimate, np.exp(centre - log_high), np.exp(centre - log_low))
    if np.isfinite(made.error).all():
        found["private Fisher"] = normal(made.estimate, made.error)
    return found


def normal(estimate: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An estimate and its normal interval.

    Parameters
    ----------
    estimate, error : array (trials, p)
        With its standard errors.
    """
    reach = stats.norm.ppf((1 + LEVEL) / 2) * error
    return estimate, estimate - reach, estimate + reach
