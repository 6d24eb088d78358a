"""Discrete Laplace noise, also called geometric: integers, independent in every column."""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._pytree import pytree
from ldpbayes._tracing import is_concrete
from ldpbayes.noise._noise import Noise
from ldpbayes.numerics._special import log1mexp
from ldpbayes.privacy import DiscreteLaplaceTradeoff, PureProtocolTradeoff, Tradeoff

__all__ = ["DiscreteLaplace"]


@pytree
@dataclasses.dataclass(frozen=True)
class DiscreteLaplace(Noise):
    """P(k) = (1 − a)/(1 + a)·a^|k| on the integers, a = exp(−1/scale), in every column, independently.

    The scale is that of OpenDP: probabilities are proportional to exp(−|k|/scale). The law is also called geometric, or
    two-sided geometric ([GRS]).

    Parameters
    ----------
    scale : array_like
        Positive and finite; a number, or one a record.

    Raises
    ------
    ValueError
        If the scale is out of range.
    """

    scale: Any

    discrete: ClassVar[bool] = True
    linear_tails: ClassVar[bool] = True
    kinks: ClassVar[tuple[float, ...]] = (0.0,)
    norm: ClassVar[int] = 1  # as of Laplace noise

    def __post_init__(self) -> None:
        self._check("scale", "positive and finite", lambda a: (a > 0) & (a < np.inf))

    def sample(self, key: ArrayLike, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Draw integers, in a floating-point type: the difference of two geometric variables; see `Noise.sample`."""
        # the whole part of an exponential variable is geometric; it is drawn in the best precision that there is
        scale = jnp.asarray(self.scale, jnp.promote_types(dtype, jnp.result_type(float)))[..., None]
        first, second = jnp.floor(scale * jax.random.exponential(key, (2, *shape), scale.dtype))
        return (first - second).astype(dtype)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Log probability, −inf where a column is no integer; see `Noise.log_prob`."""
        rate = 1.0 / jnp.asarray(self.scale)[..., None]
        log_prob = -jnp.abs(value) * rate + log1mexp(-rate) - jnp.log1p(jnp.exp(-rate))
        return jnp.sum(jnp.where(value == jnp.round(value), log_prob, -jnp.inf), axis=-1)

    @property
    def standard_deviation(self) -> Any:
        """√(2 a)/(1 − a)."""
        xp = np if is_concrete(self.scale) else jnp
        half = 0.5 / xp.asarray(self.scale)
        return -math.sqrt(2) * xp.exp(-half) / xp.expm1(-2 * half)

    @property
    def resolution(self) -> Any:
        """The scale."""
        return self.scale

    @property
    def reach(self) -> float:
        """0: the tails are linear, on the integers."""
        return 0.0

    def depth(self, distance: np.ndarray) -> np.ndarray:
        """See `Noise.depth`."""
        scale = np.asarray(self.scale)
        # P(noise ≥ m) = a^m/(1 + a); a distance that should be an integer may be one only to rounding
        beyond = np.floor(np.multiply(distance, self.standard_deviation) * (1 + 1e-12)) + 1
        return (beyond / scale + np.log1p(np.exp(-1 / scale))) / math.log(2)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """The curve of inputs apart in one column; in several, what its epsilon alone implies, a little below it.

        Parameters
        ----------
        distance : array (*batch, columns)
            How far apart the inputs are, column by column: integers.

        Raises
        ------
        ValueError
            If a distance is no integer, or all are 0.
        """
        apart, alone = integer_distances(distance)
        if alone:
            return DiscreteLaplaceTradeoff(self.scale, apart)
        budget = apart / np.asarray(self.scale)
        return PureProtocolTradeoff(budget, 1 / (1 + np.exp(-budget)))


def integer_distances(distance: np.ndarray) -> tuple[Any, bool]:
    """How far two inputs are apart in all columns together, and whether it is in one column; ValueError if it is 0.

    Parameters
    ----------
    distance : array (*batch, columns)
        Column by column, integers; ValueError if they are not.
    """
    distance = np.abs(np.atleast_1d(np.asarray(distance, float)))
    if not np.all(np.isfinite(distance) & (distance == np.round(distance))) or not distance.any(axis=-1).all():
        raise ValueError(f"under discrete noise the distance of inputs must be integers, not all 0, got {distance}")
    return distance.sum(axis=-1)[()], bool(np.all(np.count_nonzero(distance, axis=-1) == 1))
