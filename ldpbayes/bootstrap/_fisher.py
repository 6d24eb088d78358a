"""Fisher intervals: what the bootstrap is compared with ([FWS] sec. 7)."""

import functools
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from ldpbayes.bootstrap._bootstrap import names_of
from ldpbayes.bootstrap._estimators import NormalEstimate
from ldpbayes.bootstrap._sufficient_statistics import SufficientStatistics
from ldpbayes.bootstrap.regression import LeastSquares

Known = SufficientStatistics | LeastSquares
"""Estimators with a formula for the asymptotic covariance."""


def fisher(estimator: Known, release: Any, *, noise: bool = False) -> NormalEstimate:
    """Private Fisher intervals: normal, with the asymptotic covariance at the private estimate ([FWS] eq. 7).

    Parameters
    ----------
    estimator : SufficientStatistics or LeastSquares
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
        If the estimator is neither.
    ValueError
        If the release is not one of the estimator, or it has no formula for the covariance.
    """
    if not isinstance(estimator, Known):
        raise TypeError(
            "Fisher intervals are for sufficient_statistics and least_squares, whose asymptotic covariance is known; "
            f"got {estimator!r}"
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


def _normal(reported: Any, covariance: Any, privacy: str, title: str) -> NormalEstimate:
    reported = jax.tree.map(np.asarray, reported)
    with jax.enable_x64(True):
        flat = np.asarray(ravel_pytree(reported)[0])
    return NormalEstimate(reported, flat, names_of(reported), np.atleast_2d(np.asarray(covariance)), privacy, title)
