"""Standard errors of M-estimates: V⁻¹ A V⁻¹/N, from the curvature of a criterion and the spread of its scores."""

from typing import Any

import jax.numpy as jnp
from scipy import special

from ldpbayes._checks import checked

__all__ = ["normal_interval", "normal_quantile", "project_out", "sandwich"]


def normal_quantile(level: float) -> float:
    """Half the width, in standard errors, of a normal confidence interval.

    Parameters
    ----------
    level : float
        Coverage, between 0 and 1.

    Raises
    ------
    ValueError
        For another level.
    """
    level = checked("level", level, "between 0 and 1", lambda a: (a > 0) & (a < 1))
    return -special.ndtri((1 - level) / 2)


def normal_interval(estimate: Any, error: Any, level: float) -> tuple[Any, Any]:
    """Lower and upper ends of normal confidence intervals, NaN where the error is.

    Parameters
    ----------
    estimate, error : array
        Estimates and their standard errors.
    level : float
        See `normal_quantile`.
    """
    margin = normal_quantile(level) * error
    return estimate - margin, estimate + margin


def sandwich(curvature: Any, scores: Any, free: Any, *, spent: int) -> Any:
    """Covariance of an M-estimate ([Huber67]; [LCQ] Theorem 5.3).

    Parameters
    ----------
    curvature : array (p, p)
        Derivative of the mean score: the Hessian of the criterion, or of a smooth version of it.
    scores : array (N, p)
        Gradient of each record's term, at the estimate.
    free : array (p,) of bool
        Parameters that are not held by the boundary; the others have no standard error.
    spent : int
        Degrees of freedom to be subtracted from N: p, or more where scores were combined.

    Returns
    -------
    array (p, p)
        NaN in the rows and columns of parameters that are not free.
    """
    count, p = scores.shape
    centred = scores - jnp.mean(scores, axis=0)
    spread = centred.T @ centred / (count - spent)
    both = free[:, None] & free
    inverse = jnp.linalg.inv(jnp.where(both, curvature, jnp.eye(p)))
    spread = jnp.where(both, spread, 0.0)
    return jnp.where(both, inverse @ spread @ inverse.T / count, jnp.nan)


def project_out(scores: Any, nuisance: Any) -> Any:
    """Coefficients Γ (q, p) of the least-squares projection of scores on functions that have mean zero.

    scores − nuisance @ Γ has the same mean and the least variance. Directions in which the functions do not vary, such
    as those of a function that is given twice, are left out.

    Parameters
    ----------
    scores : array (N, p)
        What is projected.
    nuisance : array (N, q)
        The functions.
    """
    centred = nuisance - jnp.mean(nuisance, axis=0)
    size = jnp.sqrt(jnp.mean(centred**2, axis=0))
    safe = jnp.where(size > 0, size, 1.0)
    unit = centred / safe
    values, vectors = jnp.linalg.eigh(unit.T @ unit / len(unit))
    keep = values > 1e-8 * jnp.max(values)
    inverse = jnp.where(keep, 1 / jnp.where(keep, values, 1.0), 0.0)
    covariance = unit.T @ (scores - jnp.mean(scores, axis=0)) / len(unit)
    return (vectors @ (inverse[:, None] * (vectors.T @ covariance))) / safe[:, None]
