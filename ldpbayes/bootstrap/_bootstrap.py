"""`parametric_bootstrap`: replicates of a private estimate on data that its own parameters simulate."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ldpbayes._checks import at_least
from ldpbayes._warnings import warn
from ldpbayes.bootstrap._bias import BiasCorrection
from ldpbayes.bootstrap._function import FunctionEstimator, WithSimulator, WithTarget, check_count, check_function
from ldpbayes.bootstrap._intervals import interval_kind
from ldpbayes.bootstrap._private_estimator import PrivateEstimator
from ldpbayes.bootstrap._replicates import estimated, replicates
from ldpbayes.bootstrap._result import BootstrapEstimate, BootstrapWarning

__all__ = ["names_of", "parametric_bootstrap"]

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
