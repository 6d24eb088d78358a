"""Noise that some records do not get: by chance, or because they are public."""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._core.pytrees import pytree
from ldpbayes._core.tracing import is_concrete
from ldpbayes.noise._noise import Noise
from ldpbayes.privacy import Tradeoff
from ldpbayes.privacy.tradeoffs import ZeroInflatedTradeoff


class Omitted(Noise):
    """A noise that is left out for some records, all columns together; a record of scale 0 never gets any.

    Parameters
    ----------
    noise : Noise
        What is added where anything is. It has one parameter, its scale.
    """

    noise: Noise

    def __post_init__(self) -> None:
        if not isinstance(self.noise, Noise) or self.noise.discrete:
            raise ValueError(
                f"noise that may be left out must be a continuous one of ldpbayes.noise, got {self.noise!r}"
            )

    @property
    @abc.abstractmethod
    def chance(self) -> Any:
        """Probability that the noise is left out of a record whose scale is positive."""

    @property
    def absent(self) -> Any:
        """Probability that a record gets no noise, in the shape of the parameters: 1 where the scale is 0."""
        (scale,) = jax.tree.leaves(self.noise)
        xp = np if is_concrete(scale, self.chance) else jnp
        return xp.where(xp.asarray(scale) > 0, self.chance, 1.0)

    @property
    def present(self) -> Noise:
        """The noise of the records that get some; for those of scale 0 one that is never used, of scale 1."""

        def positive(scale: Any) -> Any:
            if is_concrete(scale) and np.all(np.greater(scale, 0)):
                return scale
            return jnp.where(jnp.asarray(scale) > 0, jnp.asarray(scale), 1.0)

        return jax.tree.map(positive, self.noise)

    @property
    def linear_tails(self) -> bool:  # type: ignore[override]
        """Those of the noise."""
        return self.noise.linear_tails

    @property
    def kinks(self) -> tuple[float, ...]:  # type: ignore[override]
        """Those of the noise."""
        return self.noise.kinks

    @property
    def norm(self) -> int:  # type: ignore[override]
        """That of the noise: records without any are not hidden at all."""
        return self.noise.norm

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Log density with respect to Lebesgue's measure and a unit mass at zero; see `Noise.log_prob`."""
        absent = jnp.asarray(self.absent, value.dtype)
        noisy = self.present.log_prob(value) + jnp.log1p(-jnp.where(absent < 1, absent, 0.0))
        noisy = jnp.where(absent < 1, noisy, -jnp.inf)
        atom = jnp.where(absent > 0, jnp.log(jnp.where(absent > 0, absent, 1.0)), noisy)
        return jnp.where(jnp.all(value == 0, axis=-1), atom, noisy)

    @property
    def standard_deviation(self) -> Any:
        """Of the noise where there is some; `variance` is that of all."""
        return self.noise.standard_deviation

    @property
    def variance(self) -> Any:
        """Of what is added in one column, nothing included."""
        return (1 - jnp.asarray(self.chance)) * jnp.asarray(self.noise.standard_deviation) ** 2

    @property
    def resolution(self) -> Any:
        """That of the noise."""
        return self.noise.resolution

    @property
    def reach(self) -> Any:
        """That of the noise."""
        return self.noise.reach

    def depth(self, distance: np.ndarray) -> np.ndarray:
        """That of the noise where there is some; see `Noise.depth`."""
        return self.noise.depth(distance)


@pytree
@dataclasses.dataclass(frozen=True)
class ZeroInflated(Omitted):
    """Noise that is left out with some probability: ZIL(δ, λ² I) for symmetric Laplace noise ([LCQ] Definition 3.1).

    Parameters
    ----------
    noise : Noise
        What is added where anything is.
    probability : array_like
        δ: that there is none, between 0 and 1, exclusive; a number, or one a record.

    Raises
    ------
    ValueError
        If the probability is out of range.
    """

    noise: Noise
    probability: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("probability", "between 0 and 1, exclusive", lambda a: (a > 0) & (a < 1))

    @property
    def chance(self) -> Any:
        """The probability."""
        return self.probability

    def sample(self, key: ArrayLike, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """See `Noise.sample`."""
        keys = jax.random.split(key)
        without = jax.random.bernoulli(keys[0], jnp.asarray(self.probability, dtype), shape[:-1])
        return jnp.where(without[..., None], 0.0, self.noise.sample(keys[1], shape, dtype))

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """The noise's curve, shrunk ([LCQ] Theorem 3.3)."""
        return ZeroInflatedTradeoff(self.noise.tradeoff(distance), self.probability)

    def tradeoff_within(self, sensitivity: float, columns: int) -> Tradeoff:
        """The noise's curve, shrunk; see `Noise.tradeoff_within`."""
        return ZeroInflatedTradeoff(self.noise.tradeoff_within(sensitivity, columns), self.probability)


@pytree
@dataclasses.dataclass(frozen=True)
class WithPublicRecords(Omitted):
    """Noise whose scale may be 0: such a record is public, released as it is.

    Parameters
    ----------
    noise : Noise
        With a scale for all records, or one a record.
    """

    noise: Noise

    @property
    def chance(self) -> float:
        """0: only public records get none."""
        return 0.0

    def sample(self, key: ArrayLike, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """See `Noise.sample`."""
        return self.noise.sample(key, shape, dtype)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """The noise's curve; that of a public record promises nothing."""
        return self.noise.tradeoff(distance)

    def tradeoff_within(self, sensitivity: float, columns: int) -> Tradeoff:
        """The noise's curve; see `Noise.tradeoff_within`."""
        return self.noise.tradeoff_within(sensitivity, columns)
