"""Symmetric, zero-inflated and independent Laplace noise on a number or on columns of a row."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes.mechanisms.mechanism import register
from ldpbayes.mechanisms.rows import RowMechanism
from ldpbayes.privacy import (
    LaplaceTradeoff,
    PureProtocolTradeoff,
    SymmetricLaplaceTradeoff,
    Tradeoff,
    ZeroInflatedTradeoff,
)

__all__ = ["IndependentLaplaceMechanism", "SymmetricLaplaceMechanism", "ZeroInflatedLaplaceMechanism"]


def _draw_symmetric_laplace(key: ArrayLike, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """SL_d(I) as √W·X with W ~ Exp(1) and X ~ N(0, I); d is the last axis of `shape`."""
    keys = jax.random.split(key)
    root = jnp.sqrt(jax.random.exponential(keys[0], shape[:-1], dtype))
    return root[..., None] * jax.random.normal(keys[1], shape, dtype)


@register("symmetric_laplace")
@dataclasses.dataclass(frozen=True)
class SymmetricLaplaceMechanism(RowMechanism):
    """Symmetric multivariate Laplace noise SL_d(λ² I) on a number or on columns of a row (Lu, Chen & Qiu, sec. 3).

    Parameters
    ----------
    scale : array_like
        λ, the standard deviation of the noise in each column, in the unit of the data; an array holds one a record. A
        record of scale 0 is public: released as it is.
    lower, upper : array_like
        Clipping bounds of the perturbed columns, numbers or arrays (d,) in the order in which `perturbed` names them.
        Choose them without looking at the data.
    columns : int or sequence of str, optional
        How many columns a row has, or what they are called. By default a record is one number.
    perturbed : sequence of int or str, optional
        The columns that get noise; the others are released as they are. By default all. They are kept in the order of
        the row, and arrays of bounds with them.

    Raises
    ------
    ValueError
        If a parameter is out of range or of the wrong shape.
    """

    scale: Any
    lower: Any
    upper: Any
    columns: Any = dataclasses.field(default=None, metadata={"static": True})
    perturbed: Any = dataclasses.field(default=None, metadata={"static": True})

    def _noise(self, key: ArrayLike, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return _draw_symmetric_laplace(key, (*shape, self.dimension), dtype)

    def _tradeoff(self, ranges: np.ndarray) -> Tradeoff:
        return SymmetricLaplaceTradeoff(self._distance(ranges), self.dimension)


@register("zero_inflated_laplace")
@dataclasses.dataclass(frozen=True)
class ZeroInflatedLaplaceMechanism(RowMechanism):
    """Symmetric Laplace noise that is left out with some probability: ZIL(δ, λ² I) (Lu, Chen & Qiu, Definition 3.1).

    With probability `zero_probability` a record is released exactly as it is, all its columns together. In many
    dimensions, or where the bounds are narrow against the scale, whoever sees the release can often tell which records
    those are.

    Parameters
    ----------
    zero_probability : array_like
        δ, between 0 and 1, exclusive; an array holds one a record.
    scale : array_like
        λ, the standard deviation of the noise where there is noise, in the unit of the data; an array holds one a
        record. A record of scale 0 is public.
    lower, upper, columns, perturbed
        As for `SymmetricLaplaceMechanism`.

    Raises
    ------
    ValueError
        If a parameter is out of range or of the wrong shape.

    See Also
    --------
    ldpbayes.privacy.zil_parameters : the scale for a privacy target.
    """

    zero_probability: Any
    scale: Any
    lower: Any
    upper: Any
    columns: Any = dataclasses.field(default=None, metadata={"static": True})
    perturbed: Any = dataclasses.field(default=None, metadata={"static": True})

    def __post_init__(self) -> None:
        self._check("zero_probability", "between 0 and 1, exclusive", lambda a: (a > 0) & (a < 1))
        super().__post_init__()

    @property
    def kept(self) -> Any:
        """The zero probability; see `RowMechanism.kept`."""
        return self.zero_probability

    @property
    def noise(self) -> SymmetricLaplaceMechanism:
        """The mechanism of the records that do get noise."""
        noise = SymmetricLaplaceMechanism(self.scale, self.lower, self.upper, self.columns, self.perturbed)
        return super(SymmetricLaplaceMechanism, noise).noise

    def randomize_again(self, key: ArrayLike, z: ArrayLike) -> jax.Array:
        """X⁽²⁾ = X⁽¹⁾ + S with S ~ SL_d(δ λ² I): released values with noise that makes the total noise SL_d(λ² I).

        It is the analyst's own noise: it costs no privacy and may be drawn as often as one likes (ibid., Algorithm 1).
        """
        z = jnp.asarray(z)
        dtype = jnp.result_type(z, float)
        shape = jnp.broadcast_shapes(z.shape[: z.ndim - len(self.event_shape)], self.batch_shape)
        scale = jnp.sqrt(jnp.asarray(self.zero_probability, dtype)) * jnp.asarray(self.scale, dtype)
        noise = _draw_symmetric_laplace(key, (*shape, self.dimension), dtype)
        return self._join(z.astype(dtype), self._split(z.astype(dtype)) + scale[..., None] * noise)

    def _noise(self, key: ArrayLike, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        keys = jax.random.split(key)
        kept = jax.random.bernoulli(keys[0], jnp.asarray(self.zero_probability, dtype), shape)
        return jnp.where(kept[..., None], 0.0, _draw_symmetric_laplace(keys[1], (*shape, self.dimension), dtype))

    def _tradeoff(self, ranges: np.ndarray) -> Tradeoff:
        return ZeroInflatedTradeoff(
            SymmetricLaplaceTradeoff(self._distance(ranges), self.dimension), self.zero_probability
        )


@register("independent_laplace")
@dataclasses.dataclass(frozen=True)
class IndependentLaplaceMechanism(RowMechanism):
    """Independent Laplace noise in every perturbed column.

    The guarantee for an attribute is the exact curve; that for a record of several columns is what its epsilon alone
    implies, the curve of randomized response, which is a little below the exact one.

    Parameters
    ----------
    scale : array_like
        λ, the standard deviation of the noise in each column (the Laplace scale is λ/√2), in the unit of the data; an
        array holds one a record. A record of scale 0 is public.
    lower, upper, columns, perturbed
        As for `SymmetricLaplaceMechanism`.

    Raises
    ------
    ValueError
        If a parameter is out of range or of the wrong shape.
    """

    scale: Any
    lower: Any
    upper: Any
    columns: Any = dataclasses.field(default=None, metadata={"static": True})
    perturbed: Any = dataclasses.field(default=None, metadata={"static": True})

    def _noise(self, key: ArrayLike, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return jax.random.laplace(key, (*shape, self.dimension), dtype) / math.sqrt(2)

    def _noise_log_prob(self, noise: jax.Array) -> jax.Array:
        return jnp.sum(-math.sqrt(2) * jnp.abs(noise) - math.log(2) / 2, axis=-1)

    def _tradeoff(self, ranges: np.ndarray) -> Tradeoff:
        with np.errstate(divide="ignore"):
            budget = math.sqrt(2) * np.sum(ranges) / np.asarray(self.scale)
        if np.count_nonzero(ranges) == 1 and np.all(np.isfinite(budget)):
            return LaplaceTradeoff(budget)
        return PureProtocolTradeoff(budget, 1 / (1 + np.exp(-budget)))
