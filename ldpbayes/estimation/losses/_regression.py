"""Losses of regressions: squared, logistic, check, absolute, hinge, Huber.

They are functions of a linear predictor η and a response y; where they have kinks they know a smooth version. Any JAX
function of one record will do, too: see `m_estimate`.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from ldpbayes._checks import checked
from ldpbayes.estimation.losses._regression_loss import RegressionLoss

__all__ = [
    "absolute",
    "check",
    "hinge",
    "huber",
    "logistic",
    "squared",
]


@jax.custom_jvp
def _softplus(t: jax.Array) -> jax.Array:
    return jnp.maximum(t, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(t)))


@_softplus.defjvp
def _softplus_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    # so that higher derivatives are polynomials of one logistic function
    return _softplus(primals[0]), jax.nn.sigmoid(primals[0]) * tangents[0]


_PROPORTIONS = ("between 0 and 1", lambda y: (y >= 0) & (y <= 1))
_SIGNS = ("-1 and 1", lambda y: np.abs(y) == 1)


def squared(response: int | str = -1, *, features: Any = None, intercept: bool = True) -> RegressionLoss:
    """½ (y − η)²: least squares.

    Parameters
    ----------
    response : int or str
        Column of the response, by position or name.
    features : sequence of int or str, optional
        Columns of the predictor, by default all others.
    intercept : bool
        Whether the first parameter is an intercept.
    """
    return RegressionLoss(_squared, response, features, intercept, smooth=True)


def _squared(eta: jax.Array, y: jax.Array) -> jax.Array:
    return 0.5 * (y - eta) ** 2


def logistic(response: int | str = -1, *, features: Any = None, intercept: bool = True) -> RegressionLoss:
    """log(1 + exp(η)) − y η: logistic regression of y in {0, 1}.

    Parameters
    ----------
    response : int or str
        Column of the response, by position or name.
    features : sequence of int or str, optional
        Columns of the predictor, by default all others.
    intercept : bool
        Whether the first parameter is an intercept.
    """
    return RegressionLoss(_logistic, response, features, intercept, smooth=True, admits=_PROPORTIONS)


def _logistic(eta: jax.Array, y: jax.Array) -> jax.Array:
    return _softplus(eta) - y * eta


def check(tau: float, response: int | str = -1, *, features: Any = None, intercept: bool = True) -> RegressionLoss:
    """(y − η) (τ − 1[y < η]): regression of the τ-quantile ([KB]).

    Its smooth version convolves it with a logistic density of scale `width`.

    Parameters
    ----------
    tau : float
        Between 0 and 1, exclusive.
    response : int or str
        Column of the response, by position or name.
    features : sequence of int or str, optional
        Columns of the predictor, by default all others.
    intercept : bool
        Whether the first parameter is an intercept.

    Raises
    ------
    ValueError
        For another `tau`.
    """
    tau = checked("tau", tau, "between 0 and 1, exclusive", lambda a: (a.ndim == 0) & (a > 0) & (a < 1))
    kernel, smooth = _check_kernels(tau)
    density = float(np.exp(-(special.ndtri(tau) ** 2) / 2) / np.sqrt(2 * np.pi))
    return RegressionLoss(kernel, response, features, intercept, smooth, False, value_of_normal=density)


@functools.cache  # so that two losses of one kind are equal, and share what is compiled
def _check_kernels(tau: float) -> tuple[Callable, Callable]:
    def kernel(eta: jax.Array, y: jax.Array) -> jax.Array:
        return (y - eta) * (tau - (y < eta))

    def smooth(eta: jax.Array, y: jax.Array, width: Any) -> jax.Array:
        return tau * (y - eta) + width * _softplus((eta - y) / width)

    return kernel, smooth


def absolute(response: int | str = -1, *, features: Any = None, intercept: bool = True) -> RegressionLoss:
    """|y − η|: median regression.

    Parameters
    ----------
    response : int or str
        Column of the response, by position or name.
    features : sequence of int or str, optional
        Columns of the predictor, by default all others.
    intercept : bool
        Whether the first parameter is an intercept.
    """
    mean = float(np.sqrt(2 / np.pi))
    return RegressionLoss(_absolute, response, features, intercept, _smooth_absolute, False, value_of_normal=mean)


def _absolute(eta: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.abs(y - eta)


def _smooth_absolute(eta: jax.Array, y: jax.Array, width: Any) -> jax.Array:
    return y - eta + 2 * width * _softplus((eta - y) / width)


def hinge(response: int | str = -1, *, features: Any = None, intercept: bool = True) -> RegressionLoss:
    """max(0, 1 − y η): support vector classification of y in {−1, 1}.

    Parameters
    ----------
    response : int or str
        Column of the response, by position or name.
    features : sequence of int or str, optional
        Columns of the predictor, by default all others.
    intercept : bool
        Whether the first parameter is an intercept.
    """
    return RegressionLoss(_hinge, response, features, intercept, _smooth_hinge, False, "margin", admits=_SIGNS)


def _hinge(eta: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.maximum(1 - y * eta, 0.0)


def _smooth_hinge(eta: jax.Array, y: jax.Array, width: Any) -> jax.Array:
    return width * _softplus((1 - y * eta) / width)


def huber(
    threshold: float, response: int | str = -1, *, features: Any = None, intercept: bool = True
) -> RegressionLoss:
    """½ r² for |r| ≤ threshold, threshold (|r| − ½ threshold) beyond, with r = y − η ([Huber64]).

    Its second derivatives jump, so that it is for `DoublyRandom` and `Combined`, not for methods that differentiate.

    Parameters
    ----------
    threshold : float
        In the unit of the response, positive and finite.
    response : int or str
        Column of the response, by position or name.
    features : sequence of int or str, optional
        Columns of the predictor, by default all others.
    intercept : bool
        Whether the first parameter is an intercept.

    Raises
    ------
    ValueError
        For another threshold.
    """
    allowed = "positive and finite"
    threshold = checked("threshold", threshold, allowed, lambda a: (a.ndim == 0) & (a > 0) & (a < np.inf))
    return RegressionLoss(_huber_kernel(threshold), response, features, intercept, smooth=False)


@functools.cache
def _huber_kernel(threshold: float) -> Callable:
    def kernel(eta: jax.Array, y: jax.Array) -> jax.Array:
        r = y - eta
        inside = jnp.clip(r, -threshold, threshold)
        return inside * (r - 0.5 * inside)

    return kernel
