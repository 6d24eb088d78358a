"""Continuous noise: Laplace, symmetric Laplace for rows, and Gaussian; and such noise that some records do not get."""

import dataclasses
import math
from operator import attrgetter
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from scipy import special

from ldpbayes._core.checks import INSIDE_0_1, NOT_NEGATIVE, POSITIVE
from ldpbayes._core.pytrees import pytree_dataclass, ruled
from ldpbayes._core.types import Array, Key, is_concrete
from ldpbayes.noise._noise import Noise
from ldpbayes.numerics.radial_law import log_density
from ldpbayes.numerics.special import log_ndtr
from ldpbayes.privacy import GaussianTradeoff, LaplaceTradeoff, PureProtocolTradeoff, Tradeoff, ZeroInflatedTradeoff
from ldpbayes.privacy.symmetric_laplace import SymmetricLaplaceTradeoff

DEVIATIONS_OF_PUBLIC = 1e200  # a distance at which no epsilon is finite, as of records without noise


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
    """Laplace noise, independent in every column, with density exp(−|x|/b) / (2 b) at x, for b = `scale` ≥ 0 in the
    unit of the data: one number, or one for each record. The standard deviation is √2 b.
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
        """Return the exact curve of inputs that differ in one column; else that of randomized response, just below."""
        with np.errstate(divide="ignore"):
            budget = np.sum(distance, axis=-1) / np.asarray(self.scale)
        if np.all(np.count_nonzero(distance, axis=-1) == 1) and np.all(np.isfinite(budget)):
            return LaplaceTradeoff(budget)
        return PureProtocolTradeoff(budget, 1 / (1 + np.exp(-budget)))


@pytree_dataclass
class SymmetricLaplace(_LaplaceColumns):
    """Symmetric Laplace noise in d columns, uncorrelated but dependent between columns ([LCQ] sec. 3.2; [KKP]).

    The law SL_d(λ² I) is that of λ √W X, for independent W ~ Exp(1) and X ~ N(0, I); in one column, that of Laplace
    noise of scale λ/√2. The `standard_deviation` λ ≥ 0 in each column, in the unit of the data, is one number, or one
    for each record.
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
    """Normal noise, independent in every column, with equal `standard_deviation` ≥ 0 in all columns, in the unit of the
    data: one number, or one for each record.
    """

    standard_deviation: Array = ruled(NOT_NEGATIVE)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        with np.errstate(divide="ignore"):
            mu = np.linalg.norm(distance, axis=-1) / np.asarray(self.standard_deviation)
        return GaussianTradeoff(np.minimum(mu, DEVIATIONS_OF_PUBLIC))


@pytree_dataclass
class IndependentGaussian(_NormalColumns):
    """Normal noise, independent in every column, of positive `standard_deviations` (*batch, columns) in their units."""

    standard_deviations: Array = ruled(("positive and finite, one a column", lambda a: POSITIVE[1](a) & (a.ndim > 0)))
    per_column = True
    standard_deviation = property(lambda self: self.standard_deviations)
    batch_shape = property(lambda self: np.shape(self.standard_deviations)[:-1])

    def over_columns(self, moment: Array) -> Array:
        return jnp.asarray(moment)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        return GaussianTradeoff(np.linalg.norm(distance / np.asarray(self.standard_deviations), axis=-1))


@dataclasses.dataclass(frozen=True)
class Omitted(Noise):
    """Base of noise that some records do not get, in no column. A record with scale 0 never gets noise."""

    omitted = True
    underlying = property(attrgetter("noise"))
    noise: Noise  #: Continuous noise with one parameter, its scale ≥ 0 in the unit of the data.
    depth, kinks, linear_tails, monotone, norm, reach, resolution, standard_deviation = (  # type: ignore[assignment]
        property(attrgetter(f"noise.{name}"))
        for name in ("depth", "kinks", "linear_tails", "monotone", "norm", "reach", "resolution", "standard_deviation")
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
        """Return the log density, or of a record without noise the log of the unit mass at zero."""
        absent = jnp.asarray(self.absent, value.dtype)
        noisy = self.present.log_prob(value) + jnp.log1p(-jnp.where(absent < 1, absent, 0.0))
        noisy = jnp.where(absent < 1, noisy, -jnp.inf)
        atom = jnp.where(absent > 0, jnp.log(jnp.where(absent > 0, absent, 1.0)), noisy)
        return jnp.where(jnp.all(value == 0, axis=-1), atom, noisy)

    @property
    def variance(self) -> Array:
        return (1 - jnp.asarray(self.chance)) * jnp.asarray(self.noise.standard_deviation) ** 2


@pytree_dataclass
class ZeroInflated(Omitted):
    """Continuous noise that is omitted for a record with probability δ ([LCQ] Definition 3.1, there ZIL(δ, λ² I)).

    Parameters
    ----------
    noise : Noise
        Continuous noise with one parameter, its scale ≥ 0 in the unit of the data.
    probability : array_like
        Probability δ in (0, 1) that a record gets no noise: one number, or one number for each record.
    """

    probability: Array = ruled(INSIDE_0_1)
    chance = property(attrgetter("probability"))

    def sample(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        keys = jax.random.split(key)
        without = jax.random.bernoulli(keys[0], jnp.asarray(self.probability, dtype), shape[:-1])
        return jnp.where(without[..., None], 0.0, self.noise.sample(keys[1], shape, dtype))

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """Return the curve of inputs that differ by `distance`, below that of `noise` ([LCQ] Theorem 3.3)."""
        return ZeroInflatedTradeoff(self.noise.tradeoff(distance), self.probability)

    def tradeoff_within(self, sensitivity: float, columns: int) -> Tradeoff:
        return ZeroInflatedTradeoff(self.noise.tradeoff_within(sensitivity, columns), self.probability)


@pytree_dataclass
class WithPublicRecords(Omitted):
    """Continuous `noise`, as in `ZeroInflated`. A record with scale 0 is public, and is released without noise."""

    chance = 0.0  # only public records, of scale 0, get no noise
    sample, tradeoff, tradeoff_within = (  # type: ignore[assignment]
        property(attrgetter(f"noise.{name}")) for name in ("sample", "tradeoff", "tradeoff_within")
    )
