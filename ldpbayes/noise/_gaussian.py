"""Gaussian noise: one standard deviation for all columns, or one for each."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from scipy import special

from ldpbayes._core.checks import NOT_NEGATIVE
from ldpbayes._core.pytrees import pytree_dataclass, ruled
from ldpbayes._core.types import Array, Key
from ldpbayes.noise._noise import Noise
from ldpbayes.privacy import GaussianTradeoff, Tradeoff


class _NormalColumns(Noise):
    """Normal noise, independent in the columns."""

    linear_tails: ClassVar[bool] = False
    kinks: ClassVar[tuple[float, ...]] = ()
    norm: ClassVar[int] = 2
    resolution = property(lambda self: self.standard_deviation)
    reach = property(lambda self: 12.0 * self.standard_deviation)

    def sample(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        sigma = self.over_columns(jnp.asarray(self.standard_deviation, dtype))
        return sigma * jax.random.normal(key, shape, dtype)

    def log_prob(self, value: jax.Array) -> jax.Array:
        sigma = self.over_columns(self.standard_deviation)
        constant = value.shape[-1] * math.log(2 * math.pi) / 2
        return jnp.sum(-((value / sigma) ** 2) / 2 - jnp.log(sigma), axis=-1) - constant

    def depth(self, distance: np.ndarray) -> np.ndarray:
        return -np.log2(np.maximum(special.ndtr(-distance), np.finfo(float).tiny))


@pytree_dataclass
class Gaussian(_NormalColumns):
    """Normal noise in every column, independently; the standard deviation is a number ≥ 0, or one a record."""

    standard_deviation: Array = ruled(NOT_NEGATIVE)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        return GaussianTradeoff(np.linalg.norm(distance, axis=-1) / np.asarray(self.standard_deviation))


@pytree_dataclass
class IndependentGaussian(_NormalColumns):
    """Normal noise, independent in the columns, each with a positive standard deviation of its own, in its unit: arrays
    (columns,), or (*batch, columns) for several groups or records.
    """

    standard_deviations: Array = ruled(
        ("positive and finite, one a column", lambda a: (a > 0) & (a < np.inf) & (a.ndim > 0))
    )
    standard_deviation = property(lambda self: self.standard_deviations)
    batch_shape = property(lambda self: np.shape(self.standard_deviations)[:-1])

    def over_columns(self, moment: Array) -> Array:
        return jnp.asarray(moment)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        return GaussianTradeoff(np.linalg.norm(distance / np.asarray(self.standard_deviations), axis=-1))
