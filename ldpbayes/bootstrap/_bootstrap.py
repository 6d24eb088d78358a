"""The parametric bootstrap: replicates of a private estimator at its own estimate, and corrections of bias."""

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from ldpbayes._core.checks import ONE_ABOVE_0, at_least, checked, warn
from ldpbayes._core.types import Array, Key, PyTree
from ldpbayes.bootstrap._estimators import AdaptedEstimator, Estimated, PrivateEstimator, Simulator, with_simulator
from ldpbayes.bootstrap._intervals import Interval, interval_kind
from ldpbayes.bootstrap._result import BootstrapEstimate, BootstrapWarning
from ldpbayes.data import Release
from ldpbayes.estimation.estimates import names_of

BATCH_SIZE = 50  # replicates that run at once by default
OUTSIDE_SHARE = 0.1  # share of replicates outside the domain above which there is a warning
MAX_STEP = 100.0  # length of a step of `Matched`, in standard deviations of the replicates
FLAT = 1e-3  # no step in directions in which the replicates move by less than this share of the largest move
STEP_SHARES = (1.0, 0.5, 0.25, 0.125)  # shares of such a step that are tried until one leads closer


class Replicates(NamedTuple):
    """Estimates from simulated releases, one a row."""

    unconstrained: Array  # all parameters (draws, q), as `PrivateEstimator.unconstrained` has them
    target: Array  # the reported parameters (draws, p)
    standard_error: Array | None  # of the target (draws, p), by a formula
    outside: Array  # whether the release was outside the domain (draws,)


@jax.jit
def estimate_with_target(estimator: PrivateEstimator, values: PyTree) -> tuple[Estimated, PyTree]:
    """The estimate from released values, and its reported part."""
    estimate = estimator.estimate(values)
    return estimate, estimator.target(estimate.params)


@functools.partial(jax.jit, static_argnames="batch_size")
def simulate_replicates(
    estimator: PrivateEstimator, params: PyTree, keys: Key, batch_size: int = BATCH_SIZE
) -> Replicates:
    """Replicates at these parameters, one for each of the keys (draws,); ``batch_size`` of them run at once."""

    def replicate(key: Key) -> Replicates:
        estimate = estimator.estimate(estimator.simulate_release(key, params))
        target = ravel_pytree(estimator.target(estimate.params))[0]
        return Replicates(estimator.unconstrained(estimate.params), target, estimate.standard_error, estimate.outside)

    draws = len(keys)
    batches = -(-draws // batch_size)
    size = -(-draws // batches)
    # the last batch is padded with the first keys, so that all have one size, for which the replicate is compiled
    padded = keys[np.arange(batches * size) % draws].reshape(batches, size)
    rows = lax.map(jax.vmap(replicate), padded)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:draws], rows)


ReplicatesAt = Callable[[PyTree], Replicates]  # at some parameters, with the same random numbers each time
Corrected = tuple[np.ndarray, Replicates]  # a target (p,) with its replicates


class BiasCorrection(abc.ABC):
    """How an estimate is moved, and its replicates with it."""

    @abc.abstractmethod
    def corrected(self, estimator: PrivateEstimator, params: PyTree, replicates_at: ReplicatesAt) -> Corrected:
        """The corrected target for estimated parameters, and its replicates."""


def _mean(array: Array) -> np.ndarray:
    return np.nanmean(np.asarray(array), axis=0)


@dataclasses.dataclass(frozen=True)
class OneStep(BiasCorrection):
    """2τ̂ − mean(τ*): right to first order, and where the bias depends little on the parameters ([FWS] sec. 3.1).

    Where that is no parameter, such as a negative scale, it is the nearest.
    """

    def corrected(self, estimator: PrivateEstimator, params: PyTree, replicates_at: ReplicatesAt) -> Corrected:
        replicates = replicates_at(params)
        flat, unravel = ravel_pytree(estimator.target(params))
        bias = _mean(replicates.target) - np.asarray(flat)
        nearest = jax.vmap(lambda target: ravel_pytree(estimator.nearest(unravel(target)))[0])
        # replicates of the corrected estimate around it, of which the truth was τ̂ and is τ̂ − bias
        target = np.asarray(nearest(jnp.concatenate([(flat - bias)[None], replicates.target - 2 * bias])))
        return target[0], replicates._replace(target=target[1:], standard_error=None)


@dataclasses.dataclass(frozen=True)
class Matched(BiasCorrection):
    """Parameters whose replicates have the estimate as their mean: the bootstrap iterated to its fixed point.

    That is the simulated method of moments with the private estimate as the moment ([GMR]). Differences give the
    response of the replicates' mean to the parameters; its inverse turns the replicates into those of the corrected
    estimate. So intervals are wide enough where clamping makes an estimator insensitive; those of `OneStep` and of
    the biased estimate are not. Parameters stay in their space; those of a function may become any numbers.

    Parameters
    ----------
    steps : int
        Largest number of steps.
    tolerance : float
        Accepted distance between the mean and the estimate, in standard deviations of the replicates.
    """

    steps: int = 12
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        at_least(1, "steps", self.steps)
        checked("tolerance", self.tolerance, *ONE_ABOVE_0)

    def corrected(self, estimator: PrivateEstimator, params: PyTree, replicates_at: ReplicatesAt) -> Corrected:
        def evaluate(vector: np.ndarray) -> tuple[np.ndarray, Replicates]:
            """The nearest vector that parameters have, and replicates there."""
            allowed = estimator.constrained(jnp.asarray(vector), params)
            return np.asarray(estimator.unconstrained(allowed)), replicates_at(allowed)

        aim = np.asarray(estimator.unconstrained(params))
        here, replicates = evaluate(aim)
        unit = np.nanstd(np.asarray(replicates.unconstrained), axis=0)
        unit = np.where(unit > 0, unit, 1e-8)

        def distance(replicates: Replicates) -> np.ndarray:
            return (_mean(replicates.unconstrained) - aim) / unit

        def response(vector: np.ndarray) -> np.ndarray:
            ends = [[evaluate(vector + step), evaluate(vector - step)] for step in np.diag(unit)]
            # at an edge, and on a simplex, parameters move by less or in another direction than the step
            moved = np.stack([(up[0] - down[0]) / unit for up, down in ends], axis=1)
            means = [[_mean(end[1].unconstrained) for end in pair] for pair in ends]
            slopes = np.stack([(up - down) / unit for up, down in means], axis=1)
            return slopes @ np.linalg.pinv(moved, rcond=1e-9)

        gap = distance(replicates)
        for _ in range(self.steps):
            if np.abs(gap).max() <= self.tolerance:
                break
            step = np.clip(np.linalg.pinv(response(here), rcond=FLAT) @ gap, -MAX_STEP, MAX_STEP)
            for share in STEP_SHARES:
                ahead, ahead_replicates = evaluate(here - share * unit * step)
                ahead_gap = distance(ahead_replicates)
                if np.abs(ahead_gap).max() < np.abs(gap).max():
                    break
            length = np.abs((ahead - here) / unit).max()
            here, replicates, gap = ahead, ahead_replicates, ahead_gap
            if length <= self.tolerance:  # at an edge of the parameter space
                break
        if np.abs(gap).max() > max(self.tolerance, 0.1):
            warn(
                f"the bias correction has not settled: after up to {self.steps} steps the mean of the replicates is "
                f"still {np.abs(gap).max():.2g} standard deviations from the estimate. Where the estimate is at an "
                "edge, such as a probability of 0, no parameters may have it as their mean, and the nearest are taken. "
                "Where nearly all records are clamped the release says little of the parameters; take wider bounds",
                BootstrapWarning,
            )
        away = (np.asarray(replicates.unconstrained) - _mean(replicates.unconstrained)) / unit
        moved = here + unit * (np.linalg.pinv(response(here), rcond=FLAT) @ away.T).T
        report = jax.vmap(lambda vector: ravel_pytree(estimator.target(estimator.constrained(vector, params)))[0])
        target = np.asarray(report(jnp.concatenate([here[None], moved])))
        return target[0], replicates._replace(target=target[1:], standard_error=None)


def parametric_bootstrap(
    estimator: PrivateEstimator | Callable[[Key, PyTree], PyTree],
    release: Release | PyTree,
    simulator: Simulator | None = None,
    *,
    draws: int = 1000,
    seed: int = 0,
    target: Callable[[PyTree], PyTree] | None = None,
    correction: BiasCorrection | None = None,
    kind: str | Interval = "percentile",
    batch_size: int | None = None,
) -> BootstrapEstimate:
    """Confidence intervals for a private estimate, from replicates on simulated data ([FWS] Algorithm 1).

    Data were read once, when the release was made; everything here is post-processing and costs no privacy. A
    `BootstrapWarning` says that the release, or over a tenth of the replicates, is outside the estimator's domain, or
    that some replicates are not finite.

    Parameters
    ----------
    estimator : PrivateEstimator or callable
        One of `ldpbayes.bootstrap`, such as `sufficient_statistics`; or a JAX function (key, data) → parameters that
        bounds, perturbs and estimates all by itself. A function that holds an array as long as the data is refused,
        unless it comes as ``FunctionEstimator(function)``: then all arrays that it holds are public.
    release : Release or pytree of arrays
        What was released of the data: of a function, the parameters that it returned.
    simulator : callable, optional
        (key, parameters) → data, as the estimator takes them; see `simulator_of` for a NumPyro model. Needed for a
        function; it replaces the simulator of any other estimator.
    draws, seed : int
        Number of replicates, and their seed.
    target : callable, optional
        From parameters to the quantity of interest, a pytree of arrays; by default the estimator's own.
    correction : BiasCorrection, optional
        `OneStep()`, or `Matched()` where clamping or noise biases more than a step removes. By default none.
    kind : str or Interval
        Of the result's intervals; see `BootstrapEstimate.interval`.
    batch_size : int, optional
        Number of replicates that run at once, by default 50; fewer take less memory. It changes no replicate.

    Raises
    ------
    TypeError, ValueError
        If the release is not one of the estimator; or a function has no simulator, the two do not fit, or the function
        reads other data than its argument.
    """
    draws = at_least(2, "draws", draws)
    batch_size = at_least(1, "batch_size", BATCH_SIZE if batch_size is None else batch_size)
    interval_kind(kind)
    if correction is not None and not isinstance(correction, BiasCorrection):
        raise TypeError(f"correction must be OneStep() or Matched(), got {correction!r}")
    with jax.enable_x64(True):
        private = with_simulator(estimator, simulator, release)
        if target is not None:
            private = AdaptedEstimator(private, target_function=target)
        estimate, reported = estimate_with_target(private, private.release_values(release))
        reported = jax.tree.map(np.asarray, reported)
        vector, unravel = ravel_pytree(reported)
        uncorrected = np.asarray(vector, float)
        keys = jax.random.split(jax.random.key(seed), draws)
        replicates_at = functools.partial(simulate_replicates, private, keys=keys, batch_size=batch_size)
        if correction is None:
            params, replicates = uncorrected, replicates_at(estimate.params)
        else:
            params, replicates = correction.corrected(private, estimate.params, replicates_at)
            reported = jax.tree.map(np.asarray, unravel(jnp.asarray(params)))
        replicates = jax.tree.map(np.asarray, replicates)
    _warn(bool(estimate.outside), replicates)
    _, targets, errors, outside = replicates
    error = None if errors is None else np.asarray(estimate.standard_error)
    outsiders = bool(estimate.outside), int(outside.sum())
    return BootstrapEstimate(
        reported, params, names_of(reported), targets, error, errors, *outsiders, uncorrected, kind, private.privacy
    )


def _warn(outside: bool, replicates: Replicates) -> None:
    share, lost = replicates.outside.mean(), int((~np.isfinite(replicates.target)).any(axis=1).sum())
    problems = []
    if outside:
        problems.append("the release is outside the domain of the estimator: the noise outweighs what the records say")
    elif share > OUTSIDE_SHARE:
        problems.append(f"{share:.0%} of the replicates are outside the domain of the estimator, and were brought back")
    if lost:
        problems.append(f"{lost} replicates are not finite, and are left out of the intervals")
    if problems:
        warn("; ".join(problems), BootstrapWarning)
