"""Gaussian noise, independent in every column."""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy import special

from ldpbayes._pytree import pytree
from ldpbayes.noise._noise import Noise
from ldpbayes.privacy import GaussianTradeoff, Tradeoff

__all__ = ["Gaussian"]


@pytree
@dataclasses.dataclass(frozen=True)
class Gaussian(Noise):
    """Normal noise in every column, independently.

    Parameters
    ----------
    standard_deviation : array_like
        Non-negative; a number, or one a record.

    Raises
    ------
    ValueError
        If it is negative or not finite.
    """

    standard_deviation: Any

    linear_tails: ClassVar[bool] = False
    kinks: ClassVar[tuple[float, ...]] = ()
    norm: ClassVar[int] = 2

    def __post_init__(self) -> None:
        self._check("standard_deviation", "non-negative and finite", lambda a: (a >= 0) & (a < np.inf))

    def sample(self, key: ArrayLike, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """See `Noise.sample`."""
        return jnp.asarray(self.standard_deviation, dtype)[..., None] * jax.random.normal(key, shape, dtype)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """See `Noise.log_prob`."""
        scale = jnp.asarray(self.standard_deviation)[..., None]
        constant = value.shape[-1] * math.log(2 * math.pi) / 2
        return jnp.sum(-((value / scale) ** 2) / 2 - jnp.log(scale), axis=-1) - constant

    @property
    def resolution(self) -> Any:
        """The standard deviation."""
        return self.standard_deviation

    @property
    def reach(self) -> Any:
        """12 standard deviations."""
        return 12.0 * self.standard_deviation

    def depth(self, distance: np.ndarray) -> np.ndarray:
        """See `Noise.depth`."""
        return -np.log2(np.maximum(special.ndtr(-distance), np.finfo(float).tiny))

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """The curve of two normal laws, their distance in standard deviations apart."""
        return GaussianTradeoff(np.linalg.norm(distance, axis=-1) / np.asarray(self.standard_deviation))
