"""Laplace noise, independent in every column."""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._pytree import pytree
from ldpbayes.noise._noise import Noise
from ldpbayes.privacy import LaplaceTradeoff, PureProtocolTradeoff, Tradeoff

__all__ = ["Laplace"]


@pytree
@dataclasses.dataclass(frozen=True)
class Laplace(Noise):
    """Density exp(−|x|/b) / (2 b) in every column, independently.

    Parameters
    ----------
    scale : array_like
        b, non-negative; the standard deviation is √2 b. A number, or one a record.

    Raises
    ------
    ValueError
        If the scale is negative or not finite.
    """

    scale: Any

    linear_tails: ClassVar[bool] = True
    kinks: ClassVar[tuple[float, ...]] = (0.0,)
    # what the log ratio of inputs lacks of their whole budget is a sum over the columns, and in the widest of them, up
    # to the budget, it has the law that it would have if there were no others: one column alone is the worst
    norm: ClassVar[int] = 1

    def __post_init__(self) -> None:
        self._check("scale", "non-negative and finite", lambda a: (a >= 0) & (a < np.inf))

    def sample(self, key: ArrayLike, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """See `Noise.sample`."""
        return jnp.asarray(self.scale, dtype)[..., None] * jax.random.laplace(key, shape, dtype)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """See `Noise.log_prob`."""
        scale = jnp.asarray(self.scale)[..., None]
        return jnp.sum(-jnp.abs(value / scale) - jnp.log(scale), axis=-1) - value.shape[-1] * math.log(2)

    @property
    def standard_deviation(self) -> Any:
        """√2 b."""
        return math.sqrt(2) * self.scale

    @property
    def resolution(self) -> Any:
        """The scale."""
        return self.scale

    @property
    def reach(self) -> float:
        """0: the tails are linear."""
        return 0.0

    def depth(self, distance: np.ndarray) -> np.ndarray:
        """See `Noise.depth`."""
        return 1 + math.sqrt(2) / math.log(2) * distance

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """The curve of inputs apart in one column; in several, what its epsilon alone implies, a little below it."""
        with np.errstate(divide="ignore"):
            budget = np.sum(distance, axis=-1) / np.asarray(self.scale)
        if np.all(np.count_nonzero(distance, axis=-1) == 1) and np.all(np.isfinite(budget)):
            return LaplaceTradeoff(budget)
        return PureProtocolTradeoff(budget, 1 / (1 + np.exp(-budget)))
