"""The sum of exp(−k²/(2σ²)) over all integers, and what follows from it, by whichever of its two series is short.

By Poisson summation it is σ√(2π) times the sum of exp(−2π²σ²k²). At σ² = 1/(2π), where the exponents are equal, both
fall like exp(−πk²): of either series `TERMS` terms on each side leave out less than 1e-30 wherever it is used.
"""

import math
from typing import Any

import numpy as np

__all__ = ["log_theta", "theta_variance"]

TERMS = 4
TURN = 1 / math.sqrt(2 * math.pi)
_K = np.arange(1, TERMS + 1)
_SQUARES = _K.astype(float) ** 2


def _series(xp: Any, scale: Any) -> tuple[Any, Any, Any]:
    """Whether the scale is small, and each series' terms; the scale that a series is not used for is never met."""
    scale = xp.asarray(scale)
    small = scale < TURN
    direct, dual = xp.where(small, scale, TURN)[..., None], xp.where(small, TURN, scale)[..., None]
    squares = xp.asarray(_SQUARES, direct.dtype)
    # beyond what a square can hold nothing is left of either
    direct = xp.maximum(direct, 1e-3)
    return small, xp.exp(-squares / (2 * direct**2)), xp.exp(-2 * math.pi**2 * squares * xp.minimum(dual, 1e3) ** 2)


def log_theta(xp: Any, scale: Any) -> Any:
    """Log of the sum of exp(−k²/(2σ²)) over the integers k, for NumPy (``xp = np``) or JAX (``jnp``).

    Parameters
    ----------
    xp : module
        ``numpy`` or ``jax.numpy``.
    scale : array
        σ, positive.

    Returns
    -------
    array
        Same shape, to rounding, and with a gradient.
    """
    small, direct, dual = _series(xp, scale)
    large = xp.log(xp.where(small, TURN, scale)) + math.log(2 * math.pi) / 2 + xp.log1p(2 * xp.sum(dual, axis=-1))
    return xp.where(small, xp.log1p(2 * xp.sum(direct, axis=-1)), large)


def theta_variance(xp: Any, scale: Any) -> Any:
    """Variance of k whose probability is proportional to exp(−k²/(2σ²)): nearly σ², unless σ is small.

    Parameters
    ----------
    xp, scale
        See `log_theta`.
    """
    small, direct, dual = _series(xp, scale)
    squares = xp.asarray(_SQUARES, direct.dtype)
    of_small = 2 * xp.sum(squares * direct, axis=-1) / (1 + 2 * xp.sum(direct, axis=-1))
    square = xp.where(small, TURN, scale) ** 2
    # σ² + σ³ d log(Σ exp(−2π²σ²k²))/dσ
    lost = 8 * math.pi**2 * square * xp.sum(squares * dual, axis=-1) / (1 + 2 * xp.sum(dual, axis=-1))
    return xp.where(small, of_small, square * (1 - lost))
