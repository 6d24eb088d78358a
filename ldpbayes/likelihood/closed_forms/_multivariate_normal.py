"""Multivariate normal rows, some columns of which are perturbed; clipping is left out."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ldpbayes.likelihood._dispatch import register_closed_form
from ldpbayes.likelihood._mixing import conditional_normal, mixing_rule, normal_log_density, normal_mixture
from ldpbayes.noise import Gaussian, IndependentGaussian, Laplace, SymmetricLaplace
from ldpbayes.numerics._special import log_sum

__all__ = ["normal_rows", "normal_rows_gaussian", "normal_rows_laplace"]

PRODUCT_NODES = {1: 64, 2: 48, 3: 32}  # of the mixing rule in each column, by the number of columns


@register_closed_form(dist.MultivariateNormal, SymmetricLaplace)
def normal_rows(base: dist.MultivariateNormal, mechanism: Any, z: Any) -> jax.Array:
    """Multivariate normal rows plus symmetric Laplace noise in the perturbed columns; clipping is left out.

    Columns that are not perturbed have their normal density, the others that of a normal mixture given them.
    """
    mean, covariance, log_rest = conditional_normal(base, z, mechanism.index)
    return log_rest + normal_mixture(z[..., mechanism.index] - mean, covariance, mechanism.noise.standard_deviation)


@register_closed_form(dist.MultivariateNormal, Gaussian)
@register_closed_form(dist.MultivariateNormal, IndependentGaussian)
def normal_rows_gaussian(base: dist.MultivariateNormal, mechanism: Any, z: Any) -> jax.Array:
    """Multivariate normal rows plus Gaussian noise in the perturbed columns: normal with a larger covariance."""
    index = jnp.asarray(mechanism.index)
    variance = mechanism.noise.over_columns(mechanism.noise.standard_deviation) ** 2
    added = jnp.zeros(jnp.shape(variance)[:-1] + base.event_shape).at[..., index].set(variance)
    covariance = base.covariance_matrix + added[..., None] * jnp.eye(base.event_shape[0])
    return normal_log_density(dist.MultivariateNormal(base.loc, covariance, validate_args=False), z)


@register_closed_form(dist.MultivariateNormal, Laplace)
def normal_rows_laplace(base: dist.MultivariateNormal, mechanism: Any, z: Any) -> jax.Array:
    """Multivariate normal rows plus independent Laplace noise in up to three perturbed columns.

    Laplace noise of scale b is a normal with variance 2 b² W, W ~ Exp(1), one W a column: a mixture of normals over a
    product rule. Where every principal standard deviation is at least a tenth of the noise's scale it is exact to 1e-10
    in one column, 1e-8 in two and 5e-6 in three; from half of it on to 1e-8 in three, too.

    Raises
    ------
    ValueError
        For more than three perturbed columns.
    """
    d = mechanism.dimension
    if d not in PRODUCT_NODES:
        raise ValueError(
            f"multivariate normal rows have a likelihood under independent Laplace noise in up to {max(PRODUCT_NODES)} "
            f"columns, here are {d}; symmetric Laplace or Gaussian noise has one in any number"
        )
    mean, covariance, log_rest = conditional_normal(base, z, mechanism.index)
    away = jnp.asarray(z)[..., mechanism.index] - mean
    w, log_weights = mixing_rule(PRODUCT_NODES[d])
    w = np.array(list(itertools.product(w, repeat=d)))
    log_weights = np.array([sum(part) for part in itertools.product(log_weights, repeat=d)])
    variance = jnp.asarray(mechanism.noise.variance)[..., None, None] * w  # (*batch, nodes, d)
    total = covariance[..., None, :, :] + variance[..., None] * jnp.eye(d)
    away = jnp.broadcast_to(away, jnp.broadcast_shapes(away.shape[:-1], total.shape[:-3]) + (d,))
    # by Cramer's rule, so that rows and nodes share one elimination instead of a factorisation each
    log_root, squares = _quadratic(total, away[..., None, :])
    return log_rest + log_sum(log_weights - log_root - 0.5 * squares) - 0.5 * d * math.log(2 * math.pi)


def _quadratic(matrix: jax.Array, vector: jax.Array) -> tuple[Any, Any]:
    """Half the log determinant of matrices (*, d, d), and vectorᵀ matrix⁻¹ vector, by elimination column by column."""
    log_root: Any = 0.0
    squares: Any = 0.0
    for _ in range(matrix.shape[-1]):
        pivot = matrix[..., 0, 0]
        log_root = log_root + 0.5 * jnp.log(pivot)
        squares = squares + vector[..., 0] ** 2 / pivot
        gain = matrix[..., 1:, 0] / pivot[..., None]
        vector = vector[..., 1:] - gain * vector[..., :1]
        matrix = matrix[..., 1:, 1:] - gain[..., None] * matrix[..., :1, 1:]
    return log_root, squares
