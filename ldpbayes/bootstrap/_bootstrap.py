"""Private estimators, their replicates, corrections of bias, and the parametric bootstrap."""

import abc
import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.flatten_util import ravel_pytree

from ldpbayes._core.checks import at_least, warn
from ldpbayes._core.pytrees import pytree_dataclass, static
from ldpbayes._core.types import Array, Key, PyTree
from ldpbayes.bootstrap._result import BootstrapEstimate, BootstrapWarning, Interval, interval_kind
from ldpbayes.data import Release
from ldpbayes.data.release import warn_of_repeats
from ldpbayes.estimation.estimates import names_of

BATCH_SIZE = 50  # replicates that run at once by default
WARNED_OUTSIDE_SHARE = 0.1  # share of replicates outside the domain above which there is a warning
MATCHING_STEPS = 12  # of the search of `Matched`
MATCHED_DEVIATIONS = 0.01  # difference of estimate and mean replicate, in standard deviations, at which it ends
WARNED_DEVIATIONS = 0.1  # such a difference above which there is a warning
MOST_STEP_DEVIATIONS = 100.0  # length of such a step, in standard deviations of the replicates
FLAT_RESPONSE_SHARE = 1e-3  # of the largest move of replicates: no step in directions in which they move by less
STEP_SHARES = (1.0, 0.5, 0.25, 0.125)  # shares of such a step that are tried until one leads closer
Simulator = Callable[[Key, PyTree], PyTree]  # from a random key and parameters to data
Target = Callable[[PyTree], PyTree]  # of parameters


class Estimated(NamedTuple):
    """Parameters that `PrivateEstimator.estimate` computed from released values.

    - ``params``: a pytree of arrays, with all parameters that are necessary to simulate data;
    - ``standard_error`` (p,): of the p numbers in `PrivateEstimator.target`, or None without a formula;
    - ``outside``: True if the released values are outside the domain of the estimator: no valid parameters fit, as
      when the noise has made a variance negative.
    """

    params: PyTree
    standard_error: Array | None
    outside: Array  # ()


class PrivateEstimator(abc.ABC):
    """Base class of estimators with a privacy guarantee.

    Only `randomize` reads original data; the other methods use no privacy budget. A subclass is a frozen dataclass with
    the decorator ``@ldpbayes.noise.pytree``, whose `randomize`, `estimate` and `simulate_release` JAX can trace.
    """

    @abc.abstractmethod
    def randomize(self, key: Key, data: Array) -> PyTree:
        """Compute released values from the records `data` (n, *event), with noise. `key` is a key of JAX."""

    @abc.abstractmethod
    def estimate(self, values: PyTree) -> Estimated:
        """Return the parameters that are estimated from the released `values`, as `randomize` returns them."""

    @abc.abstractmethod
    def simulate_release(self, key: Key, params: PyTree) -> PyTree:
        """Simulate data with the parameters `params`, and return what `randomize` returns for them."""

    def target(self, params: PyTree) -> PyTree:
        """Return the quantities that need intervals, computed from `params`. Default: all parameters."""
        return params

    def nearest(self, target: PyTree) -> PyTree:
        """Return the valid values nearest to `target`, which a correction may make negative. Default: `target`."""
        return target

    def unconstrained(self, params: PyTree) -> jax.Array:
        """Transform the parameters `params` to a vector (q,), such that every real vector means valid parameters."""
        return ravel_pytree(params)[0]

    def constrained(self, vector: Array, like: PyTree) -> PyTree:
        """Transform a vector of `unconstrained` back to parameters, with the names and shapes of `like`."""
        return ravel_pytree(like)[1](vector)

    def release_values(self, release: Release | PyTree) -> PyTree:
        """Return the values in `release` for `estimate`. Raises ValueError if this estimator did not make them."""
        return jax.tree.map(jnp.asarray, release)

    @property
    @abc.abstractmethod
    def privacy(self) -> str:
        """The privacy guarantee in words, for the people whose records `randomize` reads."""


@pytree_dataclass
class FunctionEstimator(PrivateEstimator):
    """Private estimator that is given as a JAX function of a random key and data.

    Parameters
    ----------
    function : callable
        (key, data) → private estimates, a pytree of arrays. It must limit the influence of each record, and add the
        noise. It may contain other arrays, such as a grid, only if they are public.
    statement : str
        The privacy guarantee of the function, in words. Default: "privacy: as promised by the estimator that was given"
    """

    function: Callable[[Key, PyTree], PyTree] = static()
    statement: str = static(default="privacy: as promised by the estimator that was given")

    def __post_init__(self) -> None:
        if not callable(self.function):
            kinds = "one of ldpbayes.bootstrap, or a function (key, data) -> parameters"
            raise TypeError(f"estimator must be {kinds}, got {self.function!r}")

    def randomize(self, key: Key, data: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, float), self.function(key, data))

    def estimate(self, values: PyTree) -> Estimated:
        return Estimated(values, None, jnp.zeros((), bool))

    def simulate_release(self, key: Key, params: PyTree) -> PyTree:
        raise ValueError("an estimator that is a function needs simulator=, a function (key, parameters) -> data")

    privacy = property(lambda self: self.statement)


class Replicates(NamedTuple):
    """Estimates from simulated releases, one a row."""

    unconstrained: Array  # all parameters (draws, q), as `PrivateEstimator.unconstrained` has them
    target: Array  # the reported parameters (draws, p)
    standard_error: Array | None  # of the target (draws, p), by a formula
    outside: Array  # whether the release was outside the domain (draws,)


@jax.jit
def estimated(estimator: PrivateEstimator, values: PyTree) -> Estimated:
    """Parameters from released values, compiled once for all estimators of a kind."""
    return estimator.estimate(values)


@pytree_dataclass
class Replication:
    """A private estimator with the keys (draws,) of its replicates; a user's simulator or target replaces its own."""

    estimator: PrivateEstimator
    keys: Key
    simulator: Simulator | None = static(default=None)
    target: Target | None = static(default=None)
    batch_size: int = static(default=BATCH_SIZE)

    def report(self, params: PyTree) -> PyTree:
        return (self.target or self.estimator.target)(params)

    @jax.jit
    def replicates(self, params: PyTree) -> Replicates:
        """Replicates at these parameters, with the same random numbers each time."""
        estimator = self.estimator

        def replicate(key: Key) -> Replicates:
            if self.simulator is None:
                values = estimator.simulate_release(key, params)
            else:
                keys = jax.random.split(key)
                values = estimator.randomize(keys[1], self.simulator(keys[0], params))
            params_of_replicate, error, outside = estimator.estimate(values)
            reported = ravel_pytree(self.report(params_of_replicate))[0]
            # an error by a formula is that of the estimator's own target
            error = error if self.target is None else None
            return Replicates(estimator.unconstrained(params_of_replicate), reported, error, outside)

        draws = len(self.keys)
        batches = -(-draws // self.batch_size)
        size = -(-draws // batches)
        # the last batch is padded with the first keys, so that all have one size, for which the replicate is compiled
        rows = lax.map(replicate, self.keys[np.arange(batches * size) % draws], batch_size=size)
        return jax.tree.map(lambda leaf: leaf[:draws], rows)


@jax.jit
def _allowed(estimator: PrivateEstimator, vector: Array, like: PyTree) -> tuple[PyTree, jax.Array]:
    """Parameters of a vector, and the vector that they have, which is another one at an edge."""
    params = estimator.constrained(vector, like)
    return params, estimator.unconstrained(params)


def _mean(array: Array) -> np.ndarray:
    return np.nanmean(np.asarray(array), axis=0)


@dataclasses.dataclass(frozen=True)
class OneStep:
    """Bias correction in one step: the estimated bias is subtracted from the estimate ([FWS] sec. 3.1).

    The corrected estimate is 2τ̂ − mean(τ*), for the estimate τ̂ and its replicates τ*, or the nearest valid estimate.
    This removes the bias if it depends little on the parameters.
    """

    def corrected(self, replication: Replication, params: PyTree) -> tuple[np.ndarray, Replicates]:
        """Return the corrected estimate (p,) of the target quantities, and its replicates."""
        replicates, nearest = replication.replicates(params), replication.estimator.nearest
        flat, unravel = ravel_pytree(replication.report(params))
        bias = _mean(replicates.target) - np.asarray(flat)
        # replicates of the corrected estimate around it, of which the truth was τ̂ and is τ̂ − bias
        moved = jnp.concatenate([(flat - bias)[None], replicates.target - 2 * bias])
        if replication.target is None:
            moved = jax.vmap(lambda vector: ravel_pytree(nearest(unravel(vector)))[0])(moved)
        return np.asarray(moved[0]), replicates._replace(target=moved[1:], standard_error=None)


@dataclasses.dataclass(frozen=True)
class Matched:
    """Bias correction that searches for parameters such that the mean of the replicates equals the estimate.

    The search is the simulated method of moments ([GMR]). The deviations of the replicates from their mean, times the
    inverse of the derivative of this mean in the parameters, give the replicates of the corrected estimate. If many
    records are clamped, and the estimate depends little on the parameters, its intervals are wide enough, where those
    of `OneStep` and without correction are too short. If the estimator is your own function, a corrected parameter may
    be invalid, such as a negative scale.
    """

    def corrected(self, replication: Replication, params: PyTree) -> tuple[np.ndarray, Replicates]:
        estimator = replication.estimator

        def evaluate(vector: np.ndarray) -> tuple[np.ndarray, Replicates]:
            """The nearest vector that parameters have, and replicates there."""
            allowed, free = _allowed(estimator, vector, params)
            return np.asarray(free), replication.replicates(allowed)

        aim = np.asarray(estimator.unconstrained(params))
        here, replicates = evaluate(aim)
        unit = np.nanstd(np.asarray(replicates.unconstrained), axis=0)
        unit = np.where(unit > 0, unit, 1e-8)

        def distance(replicates: Replicates) -> np.ndarray:
            return (_mean(replicates.unconstrained) - aim) / unit

        def inverse_response(vector: np.ndarray) -> np.ndarray:
            ends = [[evaluate(vector + step), evaluate(vector - step)] for step in np.diag(unit)]
            # at an edge, and on a simplex, parameters move by less or in another direction than the step
            moved = np.stack([(up[0] - down[0]) / unit for up, down in ends], axis=1)
            slopes = np.stack([distance(up[1]) - distance(down[1]) for up, down in ends], axis=1)
            return np.linalg.pinv(slopes @ np.linalg.pinv(moved, rcond=1e-9), rcond=FLAT_RESPONSE_SHARE)

        gap = distance(replicates)
        for _ in range(MATCHING_STEPS):
            if np.abs(gap).max() <= MATCHED_DEVIATIONS:
                break
            step = np.clip(inverse_response(here) @ gap, -MOST_STEP_DEVIATIONS, MOST_STEP_DEVIATIONS)
            for share in STEP_SHARES:
                ahead, ahead_replicates = evaluate(here - share * unit * step)
                ahead_gap = distance(ahead_replicates)
                if np.abs(ahead_gap).max() < np.abs(gap).max():
                    break
            length = np.abs((ahead - here) / unit).max()
            here, replicates, gap = ahead, ahead_replicates, ahead_gap
            if length <= MATCHED_DEVIATIONS:  # at an edge of the parameter space
                break
        if np.abs(gap).max() > WARNED_DEVIATIONS:
            warn(
                f"the bias correction has not converged: after up to {MATCHING_STEPS} steps the mean of replicates "
                f"is still {np.abs(gap).max():.2g} standard deviations from the estimate. At an edge, such as a "
                "probability of 0, a smaller distance may be impossible. If most records are clamped, use wider bounds",
                BootstrapWarning,
            )
        away = (np.asarray(replicates.unconstrained) - _mean(replicates.unconstrained)) / unit
        moved = here + unit * (away @ inverse_response(here).T)
        report = jax.vmap(lambda vector: ravel_pytree(replication.report(estimator.constrained(vector, params)))[0])
        targets = np.asarray(report(jnp.concatenate([here[None], moved])))
        return targets[0], replicates._replace(target=targets[1:], standard_error=None)


def parametric_bootstrap(
    estimator: PrivateEstimator | Callable[[Key, PyTree], PyTree],
    release: Release | PyTree,
    simulator: Simulator | None = None,
    *,
    draws: int = 1000,
    seed: int = 0,
    target: Target | None = None,
    correction: OneStep | Matched | None = None,
    kind: str | Interval = "percentile",
    batch_size: int = BATCH_SIZE,
) -> BootstrapEstimate:
    """Compute confidence intervals for a private estimate, by the parametric bootstrap ([FWS] Algorithm 1).

    It applies the private estimator to data sets that are simulated with the estimated parameters. The resulting
    replicates give the intervals. The original data are not read, so no privacy budget is used.

    Parameters
    ----------
    estimator : PrivateEstimator or callable
        A private estimator, such as the result of `sufficient_statistics`. Or your own JAX function (key, data) →
        parameters, which clamps the data, adds noise and computes the estimate. A ValueError is raised if the
        function contains another array with one row for each record. If such an array is public, pass
        ``FunctionEstimator(function)``.
    release : Release or pytree of arrays
        The release from which the estimate is computed. If the estimator is your own function: its result for the
        original data. ValueError if the estimator did not make it.
    simulator : callable, optional
        A function (random key, parameters) → simulated data, which the estimator can read (else ValueError), such as
        `simulator_of` makes. Your own function needs one. Default: that of the estimator.
    draws, seed : int
        Number of replicates, one for each simulated data set (default: 1000), and random seed (default: 0).
    target : callable, optional
        From the parameters to the quantities that need intervals, a pytree of arrays. Default: that of the estimator.
    correction : OneStep or Matched, optional
        Correction of a bias, such as `Matched()` if clamping or noise causes a large one. Default: none.
    kind : str or callable
        The kind of the intervals, as in `BootstrapEstimate.interval`. Default: "percentile".
    batch_size : int
        Number of data sets that are simulated at once: fewer need less memory, and give the same results. Default: 50.

    Warns
    -----
    BootstrapWarning
        If the release, or more than a tenth of the simulated releases, is outside the domain of the estimator: no
        valid parameters fit it. Also if some replicates are not finite.
    RepeatedAnswersWarning
        Several values may be about one person, but simulated records are independent.

    Examples
    --------
    >>> import ldpbayes as ldp
    >>> estimator = ldp.bootstrap.sufficient_statistics(ldp.bootstrap.Bernoulli(), count=100, epsilon=1.0)
    >>> release = estimator.release([1, 0, 1, 1] * 25, seed=1)
    >>> ldp.parametric_bootstrap(estimator, release, draws=200).draws.shape
    (200, 1)
    """
    draws = at_least(2, "draws", draws)
    batch_size = at_least(1, "batch_size", batch_size)
    interval_kind(kind)
    if correction is not None and not isinstance(correction, OneStep | Matched):
        raise TypeError(f"correction must be OneStep() or Matched(), got {correction!r}")
    private = estimator if isinstance(estimator, PrivateEstimator) else FunctionEstimator(estimator)
    with jax.enable_x64(True):
        values = private.release_values(release)
        estimate = estimated(private, values)
        if simulator is not None:
            check_simulator(private, simulator, values, estimate.params, public=private is estimator)
        keys = jax.random.split(jax.random.key(seed), draws)
        replication = Replication(private, keys, simulator, target, batch_size)
        reported = jax.tree.map(np.asarray, replication.report(estimate.params))
        vector, unravel = ravel_pytree(reported)
        uncorrected = np.asarray(vector, float)
        if correction is None:
            params, replicates = uncorrected, replication.replicates(estimate.params)
        else:
            params, replicates = correction.corrected(replication, estimate.params)
            reported = jax.tree.map(np.asarray, unravel(jnp.asarray(params)))
        _, targets, errors, outside = jax.tree.map(np.asarray, replicates)
    _warn(bool(estimate.outside), outside.mean(), targets)
    privacy = private.privacy
    if isinstance(release, Release):
        warn_of_repeats(release.promises)
        privacy = release.guarantee.statement() if release.times else privacy
    error = None if errors is None else np.asarray(estimate.standard_error)
    outsiders = bool(estimate.outside), int(outside.sum())
    return BootstrapEstimate(
        reported, params, names_of(reported), targets, error, errors, *outsiders, uncorrected, kind, privacy
    )


def _warn(outside: bool, share: float, targets: np.ndarray) -> None:
    problems, lost = [], int((~np.isfinite(targets)).any(axis=1).sum())
    if outside:
        problems.append("the release is outside the domain of the estimator: the noise is too large for these records")
    elif share > WARNED_OUTSIDE_SHARE:
        problems.append(f"{share:.0%} of the replicates are outside the domain of the estimator, and were moved inside")
    if lost:
        problems.append(f"{lost} replicates are not finite, and are left out of the intervals")
    if problems:
        warn("; ".join(problems), BootstrapWarning)


def check_simulator(
    estimator: PrivateEstimator, simulator: Simulator, values: PyTree, params: PyTree, public: bool = True
) -> None:
    """ValueError where a simulator does not fit released values and their estimate; or a function does not depend on
    its data, or, unless ``public``, holds arrays of as many rows as data have.
    """
    key = jax.random.key(0)
    try:
        data = jax.eval_shape(simulator, key, params)
        traced, simulated = jax.make_jaxpr(estimator.randomize, return_shape=True)(key, data)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        problem = "the estimator fails on data simulated with the estimated parameters"
        raise ValueError(f"simulator does not fit: {problem}. {type(error).__name__}: {error}") from error
    released, again = (jax.tree.map(np.shape, tree) for tree in (values, simulated))
    if released != again:
        problem = f"the estimator makes values of shapes {again} from simulated data, the release has {released}"
        raise ValueError(f"simulator or release does not fit: {problem}")
    if not isinstance(estimator, FunctionEstimator):
        return
    if not _depends_on_data(traced.jaxpr):
        raise ValueError("the estimator does not use its argument data, so every replicate would read other data")
    rows = {leaf.shape[0] for leaf in jax.tree.leaves(data) if leaf.shape and leaf.shape[0] > 1}
    held = [np.shape(const) for const in _constants(traced) if np.ndim(const) and len(const) in rows]
    if held and not public:
        raise ValueError(
            f"the estimator holds an array of shape {held[0]}, with one row for each record. If these are the data, "
            "every replicate reads them and costs privacy again. If the array is public, such as a grid, give "
            "ldpbayes.bootstrap.FunctionEstimator(function)"
        )


def _depends_on_data(jaxpr: core.Jaxpr) -> bool:
    """Whether every output of a function of (key, data) depends on the data."""
    reached = set(jaxpr.invars[1:])
    for eqn in jaxpr.eqns:
        if any(not isinstance(v, core.Literal) and v in reached for v in eqn.invars):
            reached.update(eqn.outvars)
    return all(not isinstance(v, core.Literal) and v in reached for v in jaxpr.outvars)


def _constants(jaxpr: core.Jaxpr | core.ClosedJaxpr) -> Iterator[Array]:
    """Arrays that a traced function holds, and that functions which it calls hold."""
    yield from getattr(jaxpr, "consts", ())
    for eqn in jaxpr.eqns:
        yield from (v.val for v in eqn.invars if isinstance(v, core.Literal) and np.ndim(v.val))
        for parameter in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            if hasattr(parameter, "eqns"):
                yield from _constants(parameter)
