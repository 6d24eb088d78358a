"""Continuous noise: Laplace noise, symmetric Laplace noise for rows, and Gaussian noise."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from scipy import special

from ldpbayes._core.checks import NOT_NEGATIVE, POSITIVE
from ldpbayes._core.pytrees import pytree_dataclass, ruled
from ldpbayes._core.types import Array, Key
from ldpbayes.noise._noise import Noise
from ldpbayes.numerics.radial_law import log_density
from ldpbayes.numerics.special import log_ndtr
from ldpbayes.privacy import GaussianTradeoff, LaplaceTradeoff, PureProtocolTradeoff, Tradeoff
from ldpbayes.privacy.symmetric_laplace import SymmetricLaplaceTradeoff

PUBLIC = 1e200  # distance in standard deviations at which no epsilon is finite, as of records without noise


class _LaplaceColumns(Noise):
    """Noise whose law in one column is Laplace's."""

    linear_tails: ClassVar[bool] = True
    monotone = True
    kinks: ClassVar[tuple[float, ...]] = (0.0,)
    reach: ClassVar[float] = 0.0  # `linear_tails` hold from zero on

    def depth(self, distance: np.ndarray) -> np.ndarray:
        return 1 + math.sqrt(2) / math.log(2) * distance

    def log_tail(self, distance: jax.Array) -> jax.Array:
        return -distance / self.resolution - math.log(2)


@pytree_dataclass
class Laplace(_LaplaceColumns):
    """Laplace noise, independent in every column, with density exp(−|x|/b) / (2 b) at x.

    Parameters
    ----------
    scale : array_like
        Scale b ≥ 0 in the unit of the data: one number, or one number for each record. The standard deviation is √2 b.
    """

    scale: Array = ruled(NOT_NEGATIVE)

    # what the log ratio of inputs lacks of their whole budget is a sum over the columns, and in the widest of them, up
    # to the budget, it has the law that it would have if there were no others: one column alone is the worst
    norm: ClassVar[int] = 1
    standard_deviation = property(lambda self: math.sqrt(2) * self.scale)
    resolution = property(lambda self: self.scale)

    def sample(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        return jnp.asarray(self.scale, dtype)[..., None] * jax.random.laplace(key, shape, dtype)

    def log_prob(self, value: jax.Array) -> jax.Array:
        scale = jnp.asarray(self.scale)[..., None]
        return jnp.sum(-jnp.abs(value / scale) - jnp.log(scale), axis=-1) - value.shape[-1] * math.log(2)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """Return the trade-off curve of two inputs whose columns differ by `distance`.

        The curve is exact if the inputs differ in one column. If they differ in several columns, the result is a lower
        bound, slightly below the exact curve. The bound is the curve of randomized response with an equal epsilon.
        """
        with np.errstate(divide="ignore"):
            budget = np.sum(distance, axis=-1) / np.asarray(self.scale)
        if np.all(np.count_nonzero(distance, axis=-1) == 1) and np.all(np.isfinite(budget)):
            return LaplaceTradeoff(budget)
        return PureProtocolTradeoff(budget, 1 / (1 + np.exp(-budget)))


@pytree_dataclass
class SymmetricLaplace(_LaplaceColumns):
    """Symmetric Laplace noise in d columns, uncorrelated but dependent between columns ([LCQ] sec. 3.2; [KKP]).

    The law SL_d(λ² I) is the law of λ √W X, where W   Exp(1) and X   N(0, I) are independent. In one column, the noise
    is Laplace noise of scale λ/√2.

    Parameters
    ----------
    standard_deviation : array_like
        Standard deviation λ ≥ 0 in each column, in the unit of the data: one number, or one number for each record.
    """

    standard_deviation: Array = ruled(NOT_NEGATIVE)

    norm: ClassVar[int] = 2
    resolution = property(lambda self: self.standard_deviation / math.sqrt(2))

    def sample(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        keys = jax.random.split(key)
        root = jnp.sqrt(jax.random.exponential(keys[0], shape[:-1], dtype))
        noise = root[..., None] * jax.random.normal(keys[1], shape, dtype)
        return jnp.asarray(self.standard_deviation, dtype)[..., None] * noise

    def log_prob(self, value: jax.Array) -> jax.Array:
        sigma, dimension = jnp.asarray(self.standard_deviation), value.shape[-1]
        square = jnp.sum((value / sigma[..., None]) ** 2, axis=-1)
        apart = square > 0
        # the norm's gradient at 0 is guarded: NaN would spread even from where it is not selected
        radius = jnp.where(apart, jnp.sqrt(jnp.where(apart, square, 1.0)), 0.0)
        return log_density(jnp, radius, dimension) - dimension * jnp.log(sigma)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        with np.errstate(divide="ignore"):
            scaled_distance = np.linalg.norm(distance, axis=-1) / np.asarray(self.standard_deviation)
        return SymmetricLaplaceTradeoff(scaled_distance, np.shape(distance)[-1])


class _NormalColumns(Noise):
    """Normal noise, independent in the columns."""

    linear_tails: ClassVar[bool] = False
    monotone = True
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

    def log_tail(self, distance: jax.Array) -> jax.Array:
        return log_ndtr(-distance / self.standard_deviation)


@pytree_dataclass
class Gaussian(_NormalColumns):
    """Normal noise, independent in every column, with equal standard deviation in all columns.

    Parameters
    ----------
    standard_deviation : array_like
        Standard deviation ≥ 0 in the unit of the data: one number, or one number for each record.
    """

    standard_deviation: Array = ruled(NOT_NEGATIVE)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        with np.errstate(divide="ignore"):
            mu = np.linalg.norm(distance, axis=-1) / np.asarray(self.standard_deviation)
        return GaussianTradeoff(np.minimum(mu, PUBLIC))


@pytree_dataclass
class IndependentGaussian(_NormalColumns):
    """Normal noise, independent in every column, with a standard deviation for each column.

    Parameters
    ----------
    standard_deviations : array_like (*batch, columns)
        Standard deviation of each column, positive, in the unit of the column.
    """

    #: Standard deviations (*batch, columns), > 0, in the units of the columns.
    standard_deviations: Array = ruled(("positive and finite, one a column", lambda a: POSITIVE[1](a) & (a.ndim > 0)))
    standard_deviation = property(lambda self: self.standard_deviations)
    batch_shape = property(lambda self: np.shape(self.standard_deviations)[:-1])

    def over_columns(self, moment: Array) -> Array:
        return jnp.asarray(moment)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        return GaussianTradeoff(np.linalg.norm(distance / np.asarray(self.standard_deviations), axis=-1))
