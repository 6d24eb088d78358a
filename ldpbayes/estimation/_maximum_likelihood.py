"""Frequencies by maximum likelihood: EM steps, extrapolated, and Newton steps over the simplex."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from ldpbayes._warnings import warn
from ldpbayes.estimation._frequencies_result import Dense, Frequencies
from ldpbayes.estimation._products import MOST, products
from ldpbayes.likelihood._supported_mass import supported_mass
from ldpbayes.mechanisms import PureProtocol

__all__ = ["Options", "Sample", "maximum_likelihood", "newton", "squarem"]

Evaluated = tuple[float, np.ndarray]
"""Mean log-likelihood and its gradient."""


class Sample(NamedTuple):
    """Released values, each once, with the number of records that have it.

    Attributes
    ----------
    mechanism : PureProtocol
        That released them, with one budget or one a value.
    nodes : array (n, ...)
        The values.
    weights : array (n,)
        How many records have each.
    """

    mechanism: PureProtocol
    nodes: jax.Array
    weights: jax.Array


class Options(NamedTuple):
    """Options of all methods; see `frequencies`.

    Attributes
    ----------
    alpha : float
        Of ``base_cut``: expected number of categories that do not occur but are kept, at most.
    tolerance : float
        Of ``mle``: how far the log-likelihood may be from its maximum, in nats.
    max_iterations : int
        Of ``mle``.
    """

    alpha: float
    tolerance: float
    max_iterations: int


def maximum_likelihood(sample: Sample, options: Options) -> Frequencies:
    """The frequencies under which the released values are most likely, with the observed information's errors.

    Parameters
    ----------
    sample : Sample
        What was released.
    options : Options
        Of which the tolerance and the number of iterations matter.
    """
    mechanism, z, weights = sample
    tolerance, max_iterations = options.tolerance, options.max_iterations
    size, d = float(weights.sum()), mechanism.categories

    def likelihood(theta: np.ndarray) -> Evaluated:
        mean, gradient = _likelihood(mechanism, z, weights, theta)
        return float(mean), np.asarray(gradient)

    def information(theta: np.ndarray) -> np.ndarray:
        return np.asarray(_information(mechanism, z, weights, theta))

    slack = 0.1 * tolerance / size
    theta = np.full(d, 1 / d)
    at = likelihood(theta)
    gap, iterations = math.inf, 0
    while gap > tolerance and iterations < max_iterations:
        theta, at = squarem(theta, at, likelihood, slack)
        if d <= MOST:
            theta, at = newton(theta, at, likelihood, information(theta), slack)
        gap, iterations = max(size * (float(at[1].max()) - 1), 0.0), iterations + 1
    if gap > tolerance:
        warn(
            f"maximum likelihood has not converged in {max_iterations} iterations: the log-likelihood may be "
            f"{gap:.3g} nats below its maximum, the tolerance is {tolerance:.3g}",
            RuntimeWarning,
        )
    error, covariance = _errors(theta, size, information(theta)) if d <= MOST else (None, None)
    joint = None if covariance is None else Dense(covariance)
    return Frequencies("mle", theta, error, gap <= tolerance, iterations, gap, joint)


def squarem(
    theta: np.ndarray, at: Evaluated, likelihood: Callable[[np.ndarray], Evaluated], slack: float
) -> tuple[np.ndarray, Evaluated]:
    """Two EM steps, extrapolated if that does not make the log-likelihood smaller ([VR], scheme S3).

    Parameters
    ----------
    theta : array (k,)
        Shares.
    at : tuple
        Mean log-likelihood and its gradient (k,) there.
    likelihood : callable
        From shares to these two.
    slack : float
        By how much the log-likelihood may get smaller: its rounding error.
    """
    mean, gradient = at
    first = theta * gradient
    second = first * likelihood(first)[1]
    step = first - theta
    bend = second - first - step
    if np.linalg.norm(step) > np.linalg.norm(bend) > 0:
        length = np.linalg.norm(step) / np.linalg.norm(bend)
        ahead = theta + 2 * length * step + length**2 * bend
        ahead = np.where(ahead > 0, ahead, second)
        ahead /= ahead.sum()
        there = likelihood(ahead)
        if there[0] >= mean - slack:
            return ahead, there
    second /= second.sum()
    return second, likelihood(second)


def newton(
    theta: np.ndarray,
    at: Evaluated,
    likelihood: Callable[[np.ndarray], Evaluated],
    information: np.ndarray,
    slack: float,
) -> tuple[np.ndarray, Evaluated]:
    """Maximize the quadratic model over θ ≥ 0, and go there as far as the log-likelihood does not get smaller.

    The model is of mean log-likelihood − Σθ, whose maximum over θ ≥ 0 sums to one, so that no constraint is needed.

    Parameters
    ----------
    theta : array (k,)
        Shares.
    at : tuple
        Mean log-likelihood and its gradient (k,) there.
    likelihood : callable
        From shares to these two.
    information : array (k, k)
        Minus the second derivative there.
    slack : float
        By how much the log-likelihood may get smaller: its rounding error.
    """
    mean, gradient = at
    diagonal = np.diag(information)
    damped = information + np.diag(np.where(diagonal > 0, 1e-10 * diagonal, 1.0))
    root = scipy.linalg.cholesky(damped, lower=True)
    aim = scipy.linalg.solve_triangular(root, damped @ theta + gradient - 1, lower=True)
    target, _ = scipy.optimize.nnls(root.T, aim, maxiter=10 * len(theta))
    if target.any():
        target /= target.sum()
        for fraction in 0.5 ** np.arange(10):
            ahead = theta + fraction * (target - theta)
            there = likelihood(ahead)
            if there[0] >= mean - slack:
                return ahead, there
    return theta, at


def _errors(theta: np.ndarray, size: float, information: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard errors and covariance: (size × information)⁻¹ − θθᵀ/size on the positive frequencies; NaN elsewhere.

    That is the inverse on the tangent space Σ δ = 0, since information @ θ = 1 at the maximum.
    """
    positive = theta > 0
    values, vectors = np.linalg.eigh(information[np.ix_(positive, positive)])
    values = np.maximum(values, np.finfo(float).eps * len(values) * values[-1])
    error = np.full(len(theta), np.nan)
    error[positive] = np.sqrt(np.maximum(np.sum(vectors**2 / values, axis=1) - theta[positive] ** 2, 0.0) / size)
    covariance = np.full((len(theta), len(theta)), np.nan)
    inverse = (vectors / values) @ vectors.T
    covariance[np.ix_(positive, positive)] = (inverse - np.outer(theta[positive], theta[positive])) / size
    return error, covariance


def _kernel(mechanism: PureProtocol) -> tuple[jax.Array, jax.Array]:
    """Values of K_ik = p(z_i | k)/p(z_i | supported): e^−ε, and how much more a supported category has."""
    epsilon = jnp.asarray(mechanism.epsilon)
    return jnp.exp(-epsilon), -jnp.expm1(-epsilon)


def _evidence(mechanism: PureProtocol, z: jax.Array, theta: jax.Array) -> jax.Array:
    """K_i·θ for each node, for a θ that need not sum to one."""
    low, more = _kernel(mechanism)
    return low * jnp.sum(theta) + more * supported_mass(mechanism, z, theta)


@jax.jit
def _likelihood(
    mechanism: PureProtocol, z: jax.Array, weights: jax.Array, theta: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mean log-likelihood up to a constant, and its gradient, the mean of K_i/(K_i·θ)."""

    def mean(theta: jax.Array) -> jax.Array:
        return weights @ jnp.log(_evidence(mechanism, z, theta)) / weights.sum()

    return jax.value_and_grad(mean)(theta)


@jax.jit
def _information(mechanism: PureProtocol, z: jax.Array, weights: jax.Array, theta: jax.Array) -> jax.Array:
    """Mean of K_i K_iᵀ/(K_i·θ)², minus the Hessian of `_likelihood`: (categories, categories)."""
    scale = jnp.sqrt(weights / weights.sum()) / _evidence(mechanism, z, theta)
    low, more = (scale * part for part in _kernel(mechanism))
    return products(mechanism, z, more, low[:, None], jnp.ones((1, len(theta))))
