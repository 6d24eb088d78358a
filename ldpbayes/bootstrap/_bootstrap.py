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

from ldpbayes._core.checks import ONE_ABOVE_0, at_least, checked, warn
from ldpbayes._core.pytrees import pytree_dataclass, static
from ldpbayes._core.types import Array, Key, PyTree
from ldpbayes.bootstrap._result import BootstrapEstimate, BootstrapWarning, Interval, interval_kind
from ldpbayes.data import Release
from ldpbayes.estimation.estimates import names_of

BATCH_SIZE = 50  # replicates that run at once by default
OUTSIDE_SHARE = 0.1  # share of replicates outside the domain above which there is a warning
MAX_STEP = 100.0  # length of a step of `Matched`, in standard deviations of the replicates
FLAT = 1e-3  # no step in directions in which the replicates move by less than this share of the largest move
STEP_SHARES = (1.0, 0.5, 0.25, 0.125)  # shares of such a step that are tried until one leads closer
Simulator = Callable[[Key, PyTree], PyTree]  # from a random key and parameters to data
Target = Callable[[PyTree], PyTree]  # of parameters


class Estimated(NamedTuple):
    """Parameters estimated from a release.

    ``params`` are all parameters that a simulator needs, a pytree of arrays. ``standard_error`` (p,) is the error by a
    formula of the flat `PrivateEstimator.target`, or None. ``outside`` is True if the release was outside the domain.
    """

    params: PyTree  # of arrays: all that a simulator needs
    standard_error: Array | None  # (p,) of the flat `PrivateEstimator.target`, by a formula; None where there is none
    outside: Array  # (), whether the release was outside the estimator's domain, so that it did as it documents


class PrivateEstimator(abc.ABC):
    """Base of estimators with a privacy guarantee. Only `randomize` reads data; all other methods cost no privacy.

    Subclasses are frozen dataclasses decorated with ``@ldpbayes.noise.pytree``: numbers are leaves, so that compiled
    replicates serve all estimators of a kind. `randomize`, `estimate` and `simulate_release` are traceable.
    """

    @abc.abstractmethod
    def randomize(self, key: Key, data: Array) -> PyTree:
        """Return released values of records (n, *event), with noise, under the guarantee that `privacy` states."""

    @abc.abstractmethod
    def estimate(self, values: PyTree) -> Estimated:
        """Return parameters estimated from released values, which have the form that `randomize` returns."""

    @abc.abstractmethod
    def simulate_release(self, key: Key, params: PyTree) -> PyTree:
        """Return released values, in the form that `randomize` returns, of data simulated with these parameters."""

    def target(self, params: PyTree) -> PyTree:
        """Return the reported part or function of the parameters; by default all parameters."""
        return params

    def nearest(self, target: PyTree) -> PyTree:
        """Return the valid target nearest to a target that a correction has moved; by default all values are valid."""
        return target

    def unconstrained(self, params: PyTree) -> jax.Array:
        """Return the parameters as a vector (q,) without constraints."""
        return ravel_pytree(params)[0]

    def constrained(self, vector: Array, like: PyTree) -> PyTree:
        """Return the inverse of `unconstrained`; ``like`` are parameters of the form that is returned."""
        return ravel_pytree(like)[1](vector)

    def release_values(self, release: Release | PyTree) -> PyTree:
        """Return the values for `estimate` from a release. Raises ValueError for a release by another estimator."""
        return jax.tree.map(jnp.asarray, release)

    @property
    @abc.abstractmethod
    def privacy(self) -> str:
        """The statement of the guarantee for the people whose records were read."""


@pytree_dataclass
class FunctionEstimator(PrivateEstimator):
    """Private estimator by a JAX ``function`` (key, data) → private parameters (the release), a pytree of arrays.

    The function limits the influence of each record and adds the noise. Arrays that the function contains, such as a
    grid, are public. The ``statement`` is its guarantee, in words.
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

    @property
    def privacy(self) -> str:
        return self.statement


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
        """What is reported of parameters."""
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
            found, error, outside = estimator.estimate(values)
            reported = ravel_pytree(self.report(found))[0]
            # an error by a formula is that of the estimator's own target
            error = error if self.target is None else None
            return Replicates(estimator.unconstrained(found), reported, error, outside)

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
    """Bias correction in one step, 2τ̂ − mean(τ*), if the bias depends little on the parameters ([FWS] sec. 3.1).

    τ̂ is the estimate and τ* are its replicates. An invalid result, such as a negative scale, is replaced by the
    nearest valid one.
    """

    def corrected(self, replication: Replication, params: PyTree) -> tuple[np.ndarray, Replicates]:
        """Return the corrected target (p,) of estimated parameters, with its replicates."""
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
    """Bias correction that returns the parameters whose replicates have the estimate as their mean.

    It is the simulated method of moments with the private estimate as the moment ([GMR]). Differences show how the mean
    of the replicates responds to the parameters. The inverse of this response turns replicates into replicates of the
    corrected estimate. Intervals are therefore wide enough if clamping makes an estimator insensitive; intervals of
    `OneStep` and of the biased estimate are not. Parameters stay in their space, but parameters of a function may
    become any numbers. There are at most ``steps`` steps, until mean and estimate are within ``tolerance`` standard
    deviations of the replicates.
    """

    steps: int = 12
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        at_least(1, "steps", self.steps)
        checked("tolerance", self.tolerance, *ONE_ABOVE_0)

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
            return np.linalg.pinv(slopes @ np.linalg.pinv(moved, rcond=1e-9), rcond=FLAT)

        gap = distance(replicates)
        for _ in range(self.steps):
            if np.abs(gap).max() <= self.tolerance:
                break
            step = np.clip(inverse_response(here) @ gap, -MAX_STEP, MAX_STEP)
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
                f"still {np.abs(gap).max():.2g} standard deviations from the estimate. At an edge, such as a "
                "probability of 0, that may be the nearest. Where nearly all records are clamped, take wider bounds",
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
    """Compute confidence intervals for a private estimate, from replicates on simulated data ([FWS] Algorithm 1).

    Only the release reads data. The bootstrap costs no privacy. Returns a `BootstrapEstimate`. A `BootstrapWarning`
    says that the release, or more than a tenth of the replicates, is outside the domain of the estimator, or that some
    replicates are not finite. Raises ValueError if estimator, release and simulator do not fit.

    Parameters
    ----------
    estimator : PrivateEstimator or callable
        An estimator of `ldpbayes.bootstrap`, such as `sufficient_statistics`; or a JAX function (key, data) →
        parameters that clamps, adds noise and estimates. The function must depend on its data, and must not contain an
        array as long as the data, unless you pass ``FunctionEstimator(function)``. Then all its arrays are public.
    release : Release or pytree of arrays
        The released values; for a function, the parameters that the function returned.
    simulator : callable, optional
        Function (key, parameters) → data, in the form that the estimator takes; see `simulator_of` for a NumPyro model.
        A function needs a simulator. For any other estimator it replaces the built-in simulator.
    draws, seed : int
        Number of replicates, and random seed.
    target : callable, optional
        Function from parameters to the quantity of interest, a pytree of arrays. Default: the estimator's own target.
    correction : OneStep or Matched, optional
        Correction of the bias: `OneStep()`, or `Matched()` if clamping or noise causes a large bias. Default: none.
    kind : str or Interval
        Kind of the intervals; see `BootstrapEstimate.interval`.
    batch_size : int
        Number of replicates that run at once. Small numbers need less memory. The replicates do not depend on it.

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
    error = None if errors is None else np.asarray(estimate.standard_error)
    outsiders = bool(estimate.outside), int(outside.sum())
    privacy = release.guarantee.statement() if getattr(release, "times", None) else private.privacy
    return BootstrapEstimate(
        reported, params, names_of(reported), targets, error, errors, *outsiders, uncorrected, kind, privacy
    )


def _warn(outside: bool, share: float, targets: np.ndarray) -> None:
    """Warn of a release, or of too large a share of the replicates, outside the domain, and of infinite targets."""
    problems, lost = [], int((~np.isfinite(targets)).any(axis=1).sum())
    if outside:
        problems.append("the release is outside the domain of the estimator: the noise outweighs what the records say")
    elif share > OUTSIDE_SHARE:
        problems.append(f"{share:.0%} of the replicates are outside the domain of the estimator, and were brought back")
    if lost:
        problems.append(f"{lost} replicates are not finite, and are left out of the intervals")
    if problems:
        warn("; ".join(problems), BootstrapWarning)


def check_simulator(
    estimator: PrivateEstimator, simulator: Simulator, values: PyTree, params: PyTree, public: bool = True
) -> None:
    """ValueError where a simulator does not fit released values and their estimate; or a function reads other data than
    its argument: it has to depend on that, and unless ``public`` it must not hold arrays of as many rows as data have.
    """
    key = jax.random.key(0)
    try:
        data = jax.eval_shape(simulator, key, params)
        traced, simulated = jax.make_jaxpr(estimator.randomize, return_shape=True)(key, data)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        problem = "the estimator cannot be run on what it returns for the estimated parameters"
        raise ValueError(f"simulator does not fit: {problem}. {type(error).__name__}: {error}") from error
    released, again = (jax.tree.map(np.shape, tree) for tree in (values, simulated))
    if released != again:
        problem = f"of simulated data the estimator makes values of shapes {again}, those released have {released}"
        raise ValueError(f"simulator or release does not fit: {problem}")
    if not isinstance(estimator, FunctionEstimator):
        return
    if not _depends_on_data(traced.jaxpr):
        raise ValueError("the estimator does not depend on its argument, data: every replicate would read other data")
    rows = {leaf.shape[0] for leaf in jax.tree.leaves(data) if leaf.shape and leaf.shape[0] > 1}
    held = [np.shape(const) for const in _constants(traced) if np.ndim(const) and len(const) in rows]
    if held and not public:
        raise ValueError(
            f"the estimator holds an array of shape {held[0]}, as many rows as there are records: data would be read "
            "in every replicate, and cost privacy anew. If all that it holds is public, such as a grid, give "
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
