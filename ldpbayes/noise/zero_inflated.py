"""Noise that some records do not get, by chance or because they are public."""

import dataclasses
from operator import attrgetter

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ldpbayes._core.checks import INSIDE_0_1
from ldpbayes._core.pytrees import pytree_dataclass, ruled
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array, Key
from ldpbayes.noise._noise import Noise
from ldpbayes.privacy import Tradeoff, ZeroInflatedTradeoff


@dataclasses.dataclass(frozen=True)
class Omitted(Noise):
    """Base of noise that some records do not get, in no column. A record with scale 0 never gets noise."""

    omitted = True
    underlying = property(attrgetter("noise"))
    noise: Noise  #: Continuous noise with one parameter, its scale ≥ 0 in the unit of the data.
    kinks, linear_tails, monotone, norm, reach, resolution, standard_deviation = (  # type: ignore[assignment]
        property(attrgetter(f"noise.{name}"))
        for name in ("kinks", "linear_tails", "monotone", "norm", "reach", "resolution", "standard_deviation")
    )

    def __post_init__(self) -> None:
        noise, parameters = self.noise, jax.tree.leaves(self.noise)
        continuous = isinstance(noise, Noise) and not noise.discrete and not noise.omitted
        # a parameter that is not in the shape of the records would be one a column
        if not continuous or [*map(np.shape, parameters)] != [noise.batch_shape]:
            wanted = "a `Noise` with a continuous law and one parameter, a scale for all columns"
            raise ValueError(f"noise must be {wanted}, got {noise!r}")
        super().__post_init__()

    @property
    def absent(self) -> Array:
        (scale,) = jax.tree.leaves(self.noise)
        xp = np if is_concrete(scale, self.chance) else jnp
        return xp.where(xp.asarray(scale) > 0, self.chance, 1.0)

    @property
    def present(self) -> Noise:
        if is_concrete(self.noise) and all(np.all(np.greater(scale, 0)) for scale in jax.tree.leaves(self.noise)):
            return self.noise
        return jax.tree.map(lambda scale: jnp.where(jnp.asarray(scale) > 0, jnp.asarray(scale), 1.0), self.noise)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Return the log density. A record without noise has a unit mass at zero."""
        absent = jnp.asarray(self.absent, value.dtype)
        noisy = self.present.log_prob(value) + jnp.log1p(-jnp.where(absent < 1, absent, 0.0))
        noisy = jnp.where(absent < 1, noisy, -jnp.inf)
        atom = jnp.where(absent > 0, jnp.log(jnp.where(absent > 0, absent, 1.0)), noisy)
        return jnp.where(jnp.all(value == 0, axis=-1), atom, noisy)

    @property
    def variance(self) -> Array:
        """Variance of the amount that is added in one column. It is 0 for records without noise."""
        return (1 - jnp.asarray(self.chance)) * jnp.asarray(self.noise.standard_deviation) ** 2

    def depth(self, distance: np.ndarray) -> np.ndarray:
        return self.noise.depth(distance)


@pytree_dataclass
class ZeroInflated(Omitted):
    """Continuous noise that is omitted for a record with probability δ ([LCQ] Definition 3.1).

    If the noise is symmetric Laplace noise, [LCQ] calls this law ZIL(δ, λ² I).

    Parameters
    ----------
    noise : Noise
        Continuous noise with one parameter, its scale ≥ 0 in the unit of the data.
    probability : array_like
        Probability δ in (0, 1) that a record gets no noise: one number, or one number for each record.
    """

    #: δ in (0, 1), that a record gets no noise: one number, or one for each record.
    probability: Array = ruled(INSIDE_0_1)

    chance = property(attrgetter("probability"))

    def sample(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        keys = jax.random.split(key)
        without = jax.random.bernoulli(keys[0], jnp.asarray(self.probability, dtype), shape[:-1])
        return jnp.where(without[..., None], 0.0, self.noise.sample(keys[1], shape, dtype))

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """Return the trade-off curve of two inputs that differ by `distance` ([LCQ] Theorem 3.3).

        The curve is below the curve of `noise`, because some records get no noise.
        """
        return ZeroInflatedTradeoff(self.noise.tradeoff(distance), self.probability)

    def tradeoff_within(self, sensitivity: float, columns: int) -> Tradeoff:
        return ZeroInflatedTradeoff(self.noise.tradeoff_within(sensitivity, columns), self.probability)


@pytree_dataclass
class WithPublicRecords(Omitted):
    """Continuous noise whose scale may be 0. A record with scale 0 is public, and is released without noise.

    Parameters
    ----------
    noise : Noise
        Continuous noise with one parameter, its scale ≥ 0 in the unit of the data.
    """

    chance = 0.0  # only public records, of scale 0, get no noise

    def sample(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        return self.noise.sample(key, shape, dtype)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        return self.noise.tradeoff(distance)

    def tradeoff_within(self, sensitivity: float, columns: int) -> Tradeoff:
        return self.noise.tradeoff_within(sensitivity, columns)
