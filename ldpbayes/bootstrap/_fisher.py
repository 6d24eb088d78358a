"""Fisher intervals: what the bootstrap is compared with ([FWS] sec. 7)."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ldpbayes.bootstrap._absolute_deviation import GaussianAbsoluteDeviation
from ldpbayes.bootstrap._bootstrap import names_of
from ldpbayes.bootstrap._least_squares import LeastSquares
from ldpbayes.bootstrap._normal_estimate import NormalEstimate
from ldpbayes.bootstrap._sufficient_statistics import SufficientStatistics
from ldpbayes.bootstrap.families import Family, MultivariateNormal

__all__ = ["fisher", "fisher_of_data", "likeliest"]

STEPS = 50  # of Newton's method, which starts from the likeliest parameters of clamped records
SETTLED = 1e-10

NOTHING = "privacy: none; the estimate and its errors are those of the records themselves, and promise nothing"


Known = SufficientStatistics | LeastSquares | GaussianAbsoluteDeviation
"""Estimators with a formula for the asymptotic covariance."""


def fisher(estimator: Known, release: Any, *, noise: bool = False) -> NormalEstimate:
    """Private Fisher intervals: normal, with the asymptotic covariance at the private estimate ([FWS] eq. 7).

    Parameters
    ----------
    estimator : SufficientStatistics, LeastSquares or GaussianAbsoluteDeviation
        What the release is of.
    release : Release or array
        What was released of the data.
    noise : bool
        Whether the noise for privacy counts. By default it is ignored, as in the paper: asymptotically it does not
        matter, but at moderate sizes such intervals are far too short.

    Returns
    -------
    NormalEstimate

    Raises
    ------
    TypeError
        If the estimator is none of them.
    ValueError
        If the release is not one of the estimator, or it has no formula for the covariance.
    """
    if not isinstance(estimator, Known):
        raise TypeError(
            "Fisher intervals are for sufficient_statistics, least_squares and gaussian_absolute_deviation, whose "
            f"asymptotic covariance is known; got {estimator!r}"
        )
    with jax.enable_x64(True):
        reported, covariance = _at(estimator, estimator.released(release), noise)
    if covariance is None:
        raise ValueError(f"{type(estimator).__name__} has no formula for the covariance of this family; bootstrap it")
    counted = "sampling and the noise for privacy" if noise else "sampling alone"
    return _normal(reported, covariance, estimator.privacy, f"Private Fisher intervals, for {counted}")


@functools.partial(jax.jit, static_argnames="noise")
def _at(estimator: Any, released: Any, noise: bool) -> tuple[Any, Any]:
    params = estimator.estimate(released).params
    return estimator.target(params), estimator.covariance(params, noise=noise)


def fisher_of_data(family: Family | LeastSquares, data: Any) -> NormalEstimate:
    """Fisher intervals of the records themselves: maximum likelihood without clamping or noise, and so no privacy.

    Parameters
    ----------
    family : Family or LeastSquares
        Of `ldpbayes.bootstrap`; its bounds are not used. Of `least_squares` the intercept is, and nothing else.
    data : array (n, *event)
        Records.

    Returns
    -------
    NormalEstimate

    Raises
    ------
    TypeError
        If the family is neither.
    ValueError
        If data are not what the family takes.
    """
    if not isinstance(family, (Family, LeastSquares)):
        raise TypeError(f"family must be one of ldpbayes.bootstrap, or least_squares, got {family!r}")
    records = (family if isinstance(family, Family) else family.rows).checked(data)
    with jax.enable_x64(True):
        params, covariance = jax.jit(likeliest)(family, records)
    return _normal(params, covariance, NOTHING, f"Fisher intervals of {len(records)} records, without privacy")


def _normal(reported: Any, covariance: Any, privacy: str, title: str) -> NormalEstimate:
    reported = jax.tree.map(np.asarray, reported)
    with jax.enable_x64(True):
        flat = np.asarray(ravel_pytree(reported)[0])
    return NormalEstimate(reported, flat, names_of(reported), np.atleast_2d(np.asarray(covariance)), privacy, title)


def likeliest(family: Family | LeastSquares, data: jax.Array) -> tuple[Any, jax.Array]:
    """Maximum likelihood and the inverse of the observed Fisher information, records as they are; traceable.

    Parameters
    ----------
    family : Family or LeastSquares
        Which parameters, and whether anything is clamped.
    data : array (n, *event)
        Records that the family takes.

    Returns
    -------
    params : dict of str to array
        The likeliest.
    covariance : array (p, p)
        Of the flat parameters.
    """
    data, count = jnp.asarray(data), len(data)
    if isinstance(family, LeastSquares):
        return _regression(data, family.intercept)
    if isinstance(family, MultivariateNormal):
        return _normal_rows(family, data)
    start, _ = family.solve(family.statistics(data).mean(axis=0))
    if not {"lower", "upper"} & {field.name for field in dataclasses.fields(family)}:  # type: ignore[arg-type]
        covariance = family.covariance(start, 0.0, count, clamped=False)
        assert covariance is not None, "families that clamp nothing have a formula"
        return start, covariance

    def mean_loss(params: Any) -> jax.Array:
        return -family.distribution(params).log_prob(data).mean()

    def of_free(free: jax.Array) -> jax.Array:
        return mean_loss(family.params(free, start))

    def step(state: tuple) -> tuple:
        free, _, number = state
        slope, curvature = jax.grad(of_free)(free), jax.hessian(of_free)(free)
        # away from the maximum the curvature may be of either sign: its absolute value still points downhill
        values, vectors = jnp.linalg.eigh(curvature)
        along = (vectors.T @ slope) / jnp.maximum(jnp.abs(values), 1e-12)
        move = vectors @ along
        move = move / jnp.maximum(1.0, jnp.max(jnp.abs(move) / (1 + jnp.abs(free))))
        return free - move, jnp.max(jnp.abs(move) / (1 + jnp.abs(free))), number + 1

    def unfinished(state: tuple) -> jax.Array:
        return (state[1] > SETTLED) & (state[2] < STEPS)

    free, _, _ = jax.lax.while_loop(unfinished, step, (family.free(start), jnp.ones(()), 0))
    params = family.params(free, start)
    flat, unravel = ravel_pytree(params)
    return params, jnp.linalg.inv(count * jax.hessian(lambda theta: mean_loss(unravel(theta)))(flat))


def _normal_rows(family: MultivariateNormal, rows: jax.Array) -> tuple[Any, jax.Array]:
    """The same of normal rows, in closed form."""
    loc = rows.mean(axis=0)
    covariance = (rows - loc).T @ (rows - loc) / len(rows)
    params = {"covariance_matrix": covariance, "loc": loc}
    return params, family.covariance(params, 0.0, len(rows), clamped=False)


def _regression(rows: jax.Array, intercept: bool) -> tuple[Any, jax.Array]:
    """The same of least squares, as `LeastSquares.covariance` has it; the error variance without bias."""
    x, y = rows[:, :-1], rows[:, -1]
    n, d = x.shape
    x = jnp.concatenate([x, jnp.ones((n, 1))], axis=1) if intercept else x
    gram, p = x.T @ x, d + intercept
    theta = jnp.linalg.solve(gram, x.T @ y)
    variance = jnp.sum((y - x @ theta) ** 2) / (n - p)
    params = {"coef": theta[:d], "scale": jnp.sqrt(variance)}
    covariance = jax.scipy.linalg.block_diag(variance * jnp.linalg.inv(gram), variance / (2 * (n - p)))
    return params | ({"intercept": theta[d]} if intercept else {}), covariance
