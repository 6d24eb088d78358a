"""Gaussian noise: one scale for all columns, or one for each."""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy import special

from ldpbayes._core.pytrees import pytree
from ldpbayes.noise._noise import Noise
from ldpbayes.privacy import GaussianTradeoff, Tradeoff


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


@pytree
@dataclasses.dataclass(frozen=True)
class IndependentGaussian(Noise):
    """Normal noise, independent in the columns, each with a standard deviation of its own.

    Parameters
    ----------
    standard_deviations : array_like (columns,)
        Positive, in the unit of each column; of several groups or records, (*batch, columns).

    Raises
    ------
    ValueError
        If one is not positive and finite, or they have no axis of columns.
    """

    standard_deviations: Any

    linear_tails: ClassVar[bool] = False
    kinks: ClassVar[tuple[float, ...]] = ()
    norm: ClassVar[int] = 2

    def __post_init__(self) -> None:
        self._check(
            "standard_deviations",
            "positive and finite, one a column",
            lambda a: (a > 0) & (a < np.inf) & (a.ndim > 0),
        )

    @property
    def standard_deviation(self) -> Any:  # type: ignore[override]
        """Of the noise in each column."""
        return self.standard_deviations

    def over_columns(self, moment: Any) -> Any:
        """See `Noise.over_columns`: the axis is there."""
        return jnp.asarray(moment)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the parameters without the axis of columns."""
        return np.shape(self.standard_deviations)[:-1]

    def sample(self, key: ArrayLike, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """See `Noise.sample`."""
        return jnp.asarray(self.standard_deviations, dtype) * jax.random.normal(key, shape, dtype)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """See `Noise.log_prob`."""
        scale = jnp.asarray(self.standard_deviations)
        constant = value.shape[-1] * math.log(2 * math.pi) / 2
        return jnp.sum(-((value / scale) ** 2) / 2 - jnp.log(scale), axis=-1) - constant

    @property
    def resolution(self) -> Any:
        """The standard deviations."""
        return self.standard_deviations

    @property
    def reach(self) -> Any:
        """12 standard deviations."""
        return 12.0 * self.standard_deviations

    def depth(self, distance: np.ndarray) -> np.ndarray:
        """See `Noise.depth`."""
        return -np.log2(np.maximum(special.ndtr(-distance), np.finfo(float).tiny))

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """The curve of two normal laws, their distance in standard deviations apart."""
        return GaussianTradeoff(np.linalg.norm(distance / np.asarray(self.standard_deviations), axis=-1))
