"""The parametric bootstrap: replicates of a private estimator at its own estimate, and corrections of bias."""

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from ldpbayes._core.checks import at_least, checked, warn
from ldpbayes.bootstrap._estimators import Estimated, PrivateEstimator
from ldpbayes.bootstrap._function import FunctionEstimator, WithSimulator, WithTarget, check_count, check_function
from ldpbayes.bootstrap._intervals import interval_kind
from ldpbayes.bootstrap._result import BootstrapEstimate, BootstrapWarning

BATCH_SIZE = 50


class Replicates(NamedTuple):
    """What was estimated of simulated releases, one a row.

    Attributes
    ----------
    free : array (draws, q)
        All parameters, as `PrivateEstimator.free` has them.
    target : array (draws, p)
        What is reported of them.
    standard_error : array (draws, p) or None
        Of that, by formula.
    outside : array (draws,) of bool
        Whether the release was outside the domain.
    """

    free: Any
    target: Any
    standard_error: Any
    outside: Any


def _one(estimator: PrivateEstimator, params: Any, key: jax.Array) -> Replicates:
    found = estimator.estimate(estimator.replicate(key, params))
    flat = ravel_pytree(estimator.target(found.params))[0]
    return Replicates(estimator.free(found.params), flat, found.standard_error, found.outside)


@jax.jit
def estimated(estimator: PrivateEstimator, released: Any) -> tuple[Estimated, Any]:
    """What is estimated of a release, and what is reported of that.

    Parameters
    ----------
    estimator : PrivateEstimator
        That made it.
    released : pytree of arrays
        As `PrivateEstimator.released` has it.
    """
    found = estimator.estimate(released)
    return found, estimator.target(found.params)


@functools.partial(jax.jit, static_argnames="batch_size")
def replicates(estimator: PrivateEstimator, params: Any, keys: jax.Array, batch_size: int | None = None) -> Replicates:
    """Replicates at some parameters.

    Parameters
    ----------
    estimator : PrivateEstimator
        What is replicated.
    params : pytree of arrays
        With which data are simulated.
    keys : array (draws,) of keys
        One a replicate.
    batch_size : int, optional
        How many run at once; by default `BATCH_SIZE`.
    """
    draws = len(keys)
    batches = -(-draws // (BATCH_SIZE if batch_size is None else batch_size))
    size = -(-draws // batches)
    # the last batch is filled up with the first keys, so that all have one size, for which the replicate is compiled
    filled = keys[np.arange(batches * size) % draws].reshape(batches, size)
    made = lax.map(jax.vmap(functools.partial(_one, estimator, params)), filled)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:draws], made)


FURTHEST = 100.0  # a step, in standard deviations of the replicates
HALVES = (1.0, 0.5, 0.25, 0.125)  # of a step that leads away

Run = Callable[[Any], Replicates]
"""Replicates at some parameters, with the same random numbers each time."""


class BiasCorrection(abc.ABC):
    """How an estimate is moved, and its replicates with it."""

    @abc.abstractmethod
    def corrected(self, estimator: PrivateEstimator, params: Any, run: Run) -> tuple[np.ndarray, Replicates]:
        """The corrected estimate (p,), and its replicates.

        Parameters
        ----------
        estimator : PrivateEstimator
            Whose bias it is.
        params : pytree of arrays
            What it estimated.
        run : callable
            From parameters to `Replicates`.
        """


def _mean(array: Any) -> np.ndarray:
    return np.nanmean(np.asarray(array), axis=0)


@dataclasses.dataclass(frozen=True)
class OneStep(BiasCorrection):
    """2τ̂ − mean(τ*): right to first order, and where the bias depends little on the parameters ([FWS] sec. 3.1).

    Where that is no parameter, such as a negative scale, it is the nearest.
    """

    def corrected(self, estimator: PrivateEstimator, params: Any, run: Run) -> tuple[np.ndarray, Replicates]:
        """See `BiasCorrection.corrected`."""
        made = run(params)
        flat, unravel = ravel_pytree(estimator.target(params))
        bias = _mean(made.target) - np.asarray(flat)
        nearest = jax.vmap(lambda target: ravel_pytree(estimator.nearest(unravel(target)))[0])
        # replicates of the corrected estimate around it, of which the truth was τ̂ and is τ̂ − bias
        target = np.asarray(nearest(jnp.concatenate([(flat - bias)[None], made.target - 2 * bias])))
        return target[0], made._replace(target=target[1:], standard_error=None)


@dataclasses.dataclass(frozen=True)
class Matched(BiasCorrection):
    """Parameters whose replicates have the estimate as their mean: the bootstrap iterated until it stands still.

    That is the simulated method of moments with the private estimate as the moment ([GMR]). How the mean of the
    replicates moves with the parameters is found by differences; its inverse takes the replicates to those of the
    corrected estimate. So an estimator that clamping makes insensitive gets an interval that is wide enough, which
    neither `OneStep` nor an interval of the biased estimate has.

    Parameters stay in their space, as far as the estimator knows it: a function's are moved as if any numbers were
    allowed.

    Parameters
    ----------
    steps : int
        At most.
    tolerance : float
        Of the distance between the mean and the estimate, in standard deviations of the replicates.
    """

    steps: int = 12
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        at_least(1, "steps", self.steps)
        checked("tolerance", self.tolerance, "a positive number", lambda a: (a.ndim == 0) & (a > 0))

    def corrected(self, estimator: PrivateEstimator, params: Any, run: Run) -> tuple[np.ndarray, Replicates]:
        """See `BiasCorrection.corrected`."""

        def at(free: np.ndarray) -> tuple[np.ndarray, Replicates]:
            """The nearest free values that parameters have, and replicates there."""
            allowed = estimator.params(jnp.asarray(free), params)
            return np.asarray(estimator.free(allowed)), run(allowed)

        aim = np.asarray(estimator.free(params))
        here, made = at(aim)
        unit = np.nanstd(np.asarray(made.free), axis=0)
        unit = np.where(unit > 0, unit, 1e-8)

        def response(free: np.ndarray) -> np.ndarray:
            ends = [[at(free + step), at(free - step)] for step in np.diag(unit)]
            # at an edge, and on a simplex, less or other than the step has been moved
            moved = np.stack([(up[0] - down[0]) / unit for up, down in ends], axis=1)
            means = np.stack([(_mean(up[1].free) - _mean(down[1].free)) / unit for up, down in ends], axis=1)
            return means @ np.linalg.pinv(moved, rcond=1e-9)

        gap = (_mean(made.free) - aim) / unit
        for _ in range(self.steps):
            if np.abs(gap).max() <= self.tolerance:
                break
            step = np.clip(_solved(response(here), gap), -FURTHEST, FURTHEST)
            for share in HALVES:
                ahead, there = at(here - share * unit * step)
                gap_there = (_mean(there.free) - aim) / unit
                if np.abs(gap_there).max() < np.abs(gap).max():
                    break
            length = np.abs((ahead - here) / unit).max()
            here, made, gap = ahead, there, gap_there
            if length <= self.tolerance:  # at an edge of what parameters can be
                break
        if np.abs(gap).max() > max(self.tolerance, 0.1):
            warn(
                f"the bias correction has not settled: after up to {self.steps} steps the mean of the replicates is "
                f"still {np.abs(gap).max():.2g} standard deviations from the estimate. Where the estimate is at an "
                "edge, such as a probability of 0, no parameters may have it as their mean, and the nearest are taken. "
                "Where nearly all records are clamped the release says little of the parameters; take wider bounds",
                BootstrapWarning,
            )
        away = (np.asarray(made.free) - _mean(made.free)) / unit
        moved = here + unit * _solved(response(here), away.T).T
        report = jax.vmap(lambda free: ravel_pytree(estimator.target(estimator.params(free, params)))[0])
        target = np.asarray(report(jnp.concatenate([here[None], moved])))
        return target[0], made._replace(target=target[1:], standard_error=None)


def _solved(slope: np.ndarray, gap: np.ndarray) -> np.ndarray:
    """slope⁻¹ gap; directions in which the replicates hardly move are left."""
    return np.linalg.pinv(slope, rcond=1e-3) @ gap


OFTEN = 0.1  # share of replicates outside the domain above which it is said


def names_of(tree: Any) -> list[str]:
    """Names of the numbers in a pytree, in the order in which they are flattened: ``loc``, ``probs[2]``, ``cov[0,1]``.

    Parameters
    ----------
    tree : pytree of arrays
        Parameters.
    """
    names = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        stem = ".".join(str(getattr(part, "key", getattr(part, "name", getattr(part, "idx", part)))) for part in path)
        index = [",".join(map(str, at)) for at in np.ndindex(np.shape(leaf))]
        names += [stem or "theta"] if not np.shape(leaf) else [f"{stem or 'theta'}[{at}]" for at in index]
    return names


def parametric_bootstrap(
    estimator: PrivateEstimator | Callable[[Any, Any], Any],
    release: Any,
    simulator: Callable[[Any, Any], Any] | None = None,
    *,
    draws: int = 1000,
    seed: int = 0,
    target: Callable[[Any], Any] | None = None,
    correction: BiasCorrection | None = None,
    kind: Any = "percentile",
    batch_size: int | None = None,
) -> BootstrapEstimate:
    """Confidence intervals for a private estimate, from replicates on simulated data ([FWS] Algorithm 1).

    Data were read once, by the private estimator, when the release was made; everything here is post-processing, and
    costs no privacy.

    Parameters
    ----------
    estimator : PrivateEstimator or callable
        One of `ldpbayes.bootstrap`, such as `sufficient_statistics`; or a JAX function (key, data) → parameters that
        bounds, perturbs and estimates all by itself. One that holds an array as long as the data is refused, unless it
        is given as ``FunctionEstimator(function)``, which says that all arrays it holds are public.
    release : Release or pytree of arrays
        What was released of the data: of a function, the parameters that it returned.
    simulator : callable, optional
        (key, parameters) → data, as the estimator takes them; see `simulator_of` for a NumPyro model. Needed for a
        function; other estimators have their own, which this replaces.
    draws : int
        Number of replicates.
    seed : int
        Of the replicates.
    target : callable, optional
        From parameters to what is of interest, a pytree of arrays; by default the estimator's own.
    correction : BiasCorrection, optional
        `OneStep()`, or `Matched()` where clamping or noise biases more than a step removes. By default none.
    kind : str or Interval
        Of the result's intervals; see `BootstrapEstimate.interval`.
    batch_size : int, optional
        How many replicates run at once, by default 50; fewer take less memory. It changes no replicate.

    Returns
    -------
    BootstrapEstimate

    Warns
    -----
    BootstrapWarning
        If the release, or more than a tenth of the replicates, is outside the domain of the estimator, or replicates
        are not finite.

    Raises
    ------
    TypeError
        If the estimator is neither.
    ValueError
        If the release is not one of the estimator; a function has no simulator, the two do not fit, or the function
        reads other data than it is given; or an argument is out of range.
    """
    draws = at_least(2, "draws", draws)
    if batch_size is not None:
        batch_size = at_least(1, "batch_size", batch_size)
    interval_kind(kind)
    if correction is not None and not isinstance(correction, BiasCorrection):
        raise TypeError(f"correction must be OneStep() or Matched(), got {correction!r}")
    with jax.enable_x64(True):
        used = _with(estimator, simulator, release)
        if target is not None:
            used = WithTarget(used, target)
        found, reported = estimated(used, used.released(release))
        reported = jax.tree.map(np.asarray, reported)
        vector, unravel = ravel_pytree(reported)
        flat = np.asarray(vector, float)
        keys = jax.random.split(jax.random.key(seed), draws)
        run = functools.partial(replicates, used, keys=keys, batch_size=batch_size)
        if correction is None:
            params, made = flat, run(found.params)
        else:
            params, made = correction.corrected(used, found.params, run)
            reported = jax.tree.map(np.asarray, unravel(jnp.asarray(params)))
        made = jax.tree.map(np.asarray, made)
    _warn(bool(found.outside), made)
    return BootstrapEstimate(
        reported,
        params,
        names_of(reported),
        made.target,
        None if made.standard_error is None else np.asarray(found.standard_error),
        made.standard_error,
        bool(found.outside),
        int(made.outside.sum()),
        flat,
        kind,
        used.privacy,
    )


def _with(estimator: Any, simulator: Any, release: Any) -> PrivateEstimator:
    """The estimator with the simulator that it is to have, checked."""
    own = isinstance(estimator, FunctionEstimator)
    if isinstance(estimator, PrivateEstimator) and not own:
        if simulator is None:
            return estimator
        given = WithSimulator(estimator, simulator)
        check_count(given, release)
        return given
    if not own and not callable(estimator):
        raise TypeError(
            f"estimator must be one of ldpbayes.bootstrap, or a function (key, data) -> parameters, got {estimator!r}"
        )
    if simulator is None:
        raise ValueError("an estimator that is a function needs simulator=, a function (key, parameters) -> data")
    function = estimator if own else FunctionEstimator(estimator)
    both = WithSimulator(function, simulator)
    check_function(both, function.function, both.released(release), public=own)
    return both


def _warn(outside: bool, made: Any) -> None:
    share, lost = made.outside.mean(), int((~np.isfinite(made.target)).any(axis=1).sum())
    said = []
    if outside:
        said.append("the release is outside the domain of the estimator: the noise outweighs what the records say")
    elif share > OFTEN:
        said.append(f"{share:.0%} of the replicates are outside the domain of the estimator, and were brought back")
    if lost:
        said.append(f"{lost} replicates are not finite, and are left out of the intervals")
    if said:
        warn("; ".join(said), BootstrapWarning)
