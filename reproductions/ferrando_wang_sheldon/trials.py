"""Settings of the experiments of [FWS] sec. 7, and trials: data at the truth, a release, an estimate, its bootstrap.

`ldpbayes.bootstrap.parametric_bootstrap` is for one release. A thousand trials run in one compiled call here, and each
keeps only the quantiles of its replicates.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from numpyro.distributions import constraints
from scipy import stats

from ldpbayes import bootstrap
from ldpbayes.studies import Checkpoint

BOUNDING_RECORDS = 1000
NEGLIGIBLE = 1e-13  # probability of a record beyond the bounds of estimates that are not private
LEVEL = 0.95
TAILS = (0.025, 0.975)


@dataclasses.dataclass(frozen=True)
class FamilySetting:
    """A family, from its bounds, with true parameters and the scipy.stats law of a record (None: it has bounds)."""

    truth: Mapping[str, Any]
    family: Callable[[Any, Any], bootstrap.ParametricFamily]
    law: Any = None

    @property
    def positive(self):
        """Which flat parameters are positive: these have intervals on the logarithmic scale."""
        allowed = self.unclamped().constraints
        parts = {
            name: np.full(np.shape(value), allowed[name] is constraints.positive) for name, value in self.truth.items()
        }
        return np.asarray(ravel_pytree(parts)[0])

    def clamped(self, seed):
        """The family with the range of 1,000 other records as bounds: the paper's stand-in for public knowledge."""
        if self.law is None:
            return self.family(None, None)
        others = self.law.rvs(BOUNDING_RECORDS, random_state=np.random.default_rng(seed))
        return self.family(others.min(axis=0), others.max(axis=0))

    def unclamped(self):
        """The family with bounds beyond which there are no records, for estimates that are not private."""
        if self.law is None:
            return self.family(None, None)
        return self.family(self.law.ppf(NEGLIGIBLE), self.law.isf(NEGLIGIBLE))


FAMILIES = {
    "Bernoulli": FamilySetting({"probs": 0.3}, lambda low, high: bootstrap.Bernoulli()),
    "binomial": FamilySetting({"probs": 0.3}, lambda low, high: bootstrap.Binomial(10)),
    "Poisson": FamilySetting({"rate": 8.0}, lambda low, high: bootstrap.Poisson(int(high)), stats.poisson(8.0)),
    "exponential": FamilySetting({"rate": 0.5}, lambda low, high: bootstrap.Exponential(high), stats.expon(scale=2.0)),
    "Gaussian, known variance": FamilySetting(
        {"loc": 1.0}, lambda low, high: bootstrap.NormalMean(2.0, low, high), stats.norm(1.0, 2.0)
    ),
    "Gaussian": FamilySetting({"loc": 1.0, "scale": 2.0}, bootstrap.Normal, stats.norm(1.0, 2.0)),
    "gamma, known shape": FamilySetting(
        {"rate": 0.5}, lambda low, high: bootstrap.GammaRate(3.0, low, high), stats.gamma(3.0, scale=2.0)
    ),
    "gamma": FamilySetting({"concentration": 3.0, "rate": 0.5}, bootstrap.Gamma, stats.gamma(3.0, scale=2.0)),
    "beta": FamilySetting({"concentration1": 2.0, "concentration0": 3.0}, bootstrap.Beta, stats.beta(2.0, 3.0)),
    "multinomial": FamilySetting({"probs": np.array([0.5, 0.3, 0.2])}, lambda low, high: bootstrap.Multinomial(3)),
}
"""Families of Figure 1. The paper's true parameters are not known."""

COVARIANCE = np.array([[1.0, 0.5], [0.5, 2.0]])
MULTIVARIATE = FamilySetting(
    {"loc": np.array([0.0, 1.0]), "covariance_matrix": COVARIANCE},
    bootstrap.NormalVector,
    stats.multivariate_normal([0.0, 1.0], COVARIANCE),
)
"""The bivariate normal law of the appendix."""


def settings_of(names):
    """Settings by name; ValueError for a name that is not in `FAMILIES`."""
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        raise ValueError(f"families must be out of {', '.join(FAMILIES)}; got {', '.join(unknown)}")
    return {name: FAMILIES[name] for name in names}


class Trials(NamedTuple):
    """Estimates and summaries of their replicates, one trial a row."""

    estimate: Any  # (trials, p), flat as `PrivateEstimator.target` has it
    error: Any  # (trials, p), standard errors without the noise, for private Fisher intervals; NaN without a formula
    quantiles: Any  # (trials, 2, p), of the replicates at the probabilities TAILS
    log_quantiles: Any  # (trials, 2, p), of their logarithms
    mean: Any  # (trials, p), of the replicates
    deviation: Any  # (trials, p), of the replicates
    outside: Any  # (trials,), whether the release was outside the domain


class NonPrivate(NamedTuple):
    """Estimates (trials, p) that are not private, with standard errors from the Fisher information there."""

    estimate: Any
    error: Any


def run_trials(estimator, truth, *, trials, draws, seed, release=None):
    """Run an estimator and its bootstrap on many data sets, drawn at the truth.

    `release` is a function (estimator, key, truth); by default the release is the estimator's own replicate.
    """
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), trials)
        if release is None and hasattr(getattr(estimator, "family", None), "law"):
            # Sums are drawn, not records: the number of records can be a traced number, and one program serves all.
            results = _run(_with_count(estimator, 0), float(estimator.count), truth, keys, draws, None)
        else:
            results = _run(estimator, None, truth, keys, draws, release)
        return Trials(*map(np.asarray, results))


def _with_count(estimator, count):
    """The estimator with another number of records, unchecked since it may be traced."""
    other = copy.copy(estimator)
    object.__setattr__(other, "count", count)
    return other


@functools.partial(jax.jit, static_argnames=("draws", "release"))
def _run(estimator, count, truth, keys, draws, release):
    estimator = estimator if count is None else _with_count(estimator, count)
    return lax.map(functools.partial(_trial, estimator, truth, draws, release), keys)


def _trial(estimator, truth, draws, release, key):
    data, boot = jax.random.split(key)
    released = estimator.simulate_release(data, truth) if release is None else release(estimator, data, truth)
    estimated = estimator.estimate(released)
    flat, error = _with_sampling_error(estimator, estimated.params)
    replicates = replicates_at(estimator, estimated.params, jax.random.split(boot, draws)).target
    ordered = jnp.sort(replicates, axis=0)
    quantiles, log_quantiles = (_quantiles(x, draws) for x in (ordered, jnp.log(jnp.maximum(ordered, 1e-300))))
    mean, deviation = jnp.mean(ordered, axis=0), jnp.std(ordered, axis=0)
    return Trials(flat, error, quantiles, log_quantiles, mean, deviation, estimated.outside)


def _with_sampling_error(estimator, params):
    """Flat target (p,), and its asymptotic standard errors without the noise; NaN where no formula is known."""
    flat = ravel_pytree(estimator.target(params))[0]
    covariance = estimator.covariance(params, noise=False) if hasattr(estimator, "covariance") else None
    if covariance is None:
        return flat, jnp.full(flat.shape, jnp.nan)
    return flat, jnp.sqrt(jnp.maximum(jnp.diagonal(covariance), 0.0))


class Replicates(NamedTuple):
    """What a bias correction reads of replicates, one a row."""

    unconstrained: Any
    target: Any
    standard_error: Any
    outside: Any


def replicates_at(estimator, params, keys):
    """Replicates of a private estimate, all at once."""

    def one(key):
        estimated = estimator.estimate(estimator.simulate_release(key, params))
        target = ravel_pytree(estimator.target(estimated.params))[0]
        return Replicates(estimator.unconstrained(estimated.params), target, None, estimated.outside)

    return jax.vmap(one)(keys)


def _quantiles(ordered, draws):
    """Quantiles k/(draws + 1), as `ldpbayes.bootstrap` has them."""
    at = np.clip(np.array(TAILS) * (draws + 1) - 1, 0, draws - 1)
    below = np.minimum(at.astype(int), draws - 2)
    share = (at - below)[:, None]
    return (1 - share) * ordered[below] + share * ordered[below + 1]


def without_privacy(family, truth, count, *, trials, seed):
    """Maximum likelihood estimates from the data of `run_trials`, without noise; the family clamps no record."""
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), trials)
        return NonPrivate(*map(np.asarray, _likeliest(family, truth, float(count), keys)))


@jax.jit
def _likeliest(family, truth, count, keys):
    def one(key):
        sums = jax.random.split(jax.random.split(key)[0])[0]  # the key with which the private trial draws its sums
        params, _ = family.solve(family.total(sums, truth, count) / count)
        covariance = family.covariance(params, 0.0, count, clamped=False)
        return NonPrivate(ravel_pytree(params)[0], jnp.sqrt(jnp.diagonal(covariance)))

    return lax.map(one, keys)


def fisher(estimator, release):
    """Estimate and ends, each (p,), of private Fisher intervals, which ignore the noise ([FWS] eq. 7)."""
    with jax.enable_x64(True):
        found = jax.jit(lambda values: _with_sampling_error(estimator, estimator.estimate(values).params))
        return normal_interval(*map(np.asarray, found(estimator.release_values(release))))


def intervals(trials, positive=False):
    """Estimates, lower and upper ends, each (trials, p), by the kind of interval; "log" of `positive` parameters."""
    estimate, (low, high) = trials.estimate, np.moveaxis(trials.quantiles, 1, 0)
    log_low, log_high = np.moveaxis(trials.log_quantiles, 1, 0)
    centre = 2 * np.log(np.where(positive, estimate, np.nan))
    kinds = {
        "percentile": (estimate, low, high),
        "pivotal": (estimate, 2 * estimate - high, 2 * estimate - low),
        "log": (estimate, np.exp(centre - log_high), np.exp(centre - log_low)),
    }
    if np.isfinite(trials.error).all():
        kinds["private Fisher"] = normal_interval(estimate, trials.error)
    return kinds


def normal_interval(estimate, error):
    """An estimate and the ends of its normal interval."""
    reach = stats.norm.ppf((1 + LEVEL) / 2) * error
    return estimate, estimate - reach, estimate + reach


def run_cells(cells, settings, checkpoint, workers):
    """Results of all cells, `workers` at a time; those that the checkpoint has are not computed again.

    A cell is the type of a named tuple and a function that returns one. Each is one compiled call on about one core.
    """
    results = {}
    with Checkpoint(checkpoint, settings) as saved, ThreadPoolExecutor(workers) as pool:
        waiting = {}
        for name, (kind, cell) in cells.items():
            stored = [saved.get(f"{name} {field}") for field in kind._fields]
            if all(array is not None for array in stored):
                results[name] = kind(*stored)
            else:
                waiting[pool.submit(cell)] = name
        try:
            for future in as_completed(waiting):
                name, result = waiting[future], future.result()
                results[name] = result
                saved.update({f"{name} {field}": np.asarray(array) for field, array in result._asdict().items()})
                saved.save()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return results
