"""The protocol of a law of noise: draws, density, kinks, tails, and the privacy that the noise buys."""

import abc
import inspect
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ldpbayes._core.pytrees import check_fields
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array, Key
from ldpbayes.numerics.special import log1mexp
from ldpbayes.privacy import Tradeoff
from ldpbayes.privacy.tradeoffs import WorstTradeoff


class Noise(abc.ABC):
    """A law of what is added to a number, or to the columns of a row, centred at zero.

    Subclasses are frozen dataclasses decorated with ``@ldpbayes.noise.pytree``. Parameters are in the unit of the data:
    numbers, or one a record. Draws, and values at which there is a density, have a last axis of columns, if only one.
    The traits below, in the unit of the data too, are class variables, fields or properties.
    """

    discrete: ClassVar[bool] = False  # whether the noise takes integer values only
    # The length over which the log density falls by a fixed amount wherever it begins on a side of zero; None where
    # that holds for any length, or for none.
    period: Array = None
    linear_tails: ClassVar[bool]  # whether the log density is linear on either side of zero, if only over each `period`
    # Where the density of noise in one column is not smooth; empty where that depends on the bounds: then
    # `breakpoints` names these points.
    kinks: ClassVar[tuple[float, ...]]
    has_variance: bool = True
    symmetric: ClassVar[bool] = True  # whether the density is symmetric about zero, and falls off on either side
    standard_deviation: Array  # of the noise in one column; infinite without a variance
    resolution: ClassVar[Array]  # shortest length on which the density in one column varies: by e, for an exponential
    reach: ClassVar[Array]  # there is no noise beyond it, to 1e-32; 0 if `linear_tails` hold from zero on
    # The norm, 1 or 2, in which the noise hides a distance over several columns: inputs within some distance in it are
    # no easier to tell apart than at that distance in the first column alone (else override `tradeoff_within`). Where
    # columns have scales of their own, a difference in one counts by the first column's scale over its own.
    norm: ClassVar[int]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        bases = cls.__mro__[: cls.__mro__.index(Noise)]
        declared = {name for base in bases for name in (*vars(base), *inspect.get_annotations(base))}
        traits = ("linear_tails", "kinks", "standard_deviation", "resolution", "reach", "norm")
        missing = [name for name in traits if name not in declared]
        if missing and not inspect.isabstract(cls):
            raise TypeError(f"{cls.__name__} must say {', '.join(missing)}; see ldpbayes.noise.Noise")

    def __post_init__(self) -> None:
        check_fields(self)

    @abc.abstractmethod
    def sample(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        """Draw noise of a floating-point type and a shape (*batch, columns); the parameters broadcast to the batch."""

    @abc.abstractmethod
    def log_prob(self, value: jax.Array) -> jax.Array:
        """Log density (for discrete noise, log probability) at values (*batch, columns), shape (*batch)."""

    def continued(self, value: jax.Array) -> jax.Array:
        """`log_prob`; of discrete noise its formula, at any real values: of what is added to a latent real number."""
        return self.log_prob(value)

    def log_tail(self, distance: jax.Array) -> jax.Array:
        """Log P(noise in one column ≥ distance) for distances ≥ 0 (*batch); of discrete noise the sum of its formula at
        distance, distance + 1, ..., for any real distance. Reporting rules need it, of noise symmetric about zero.
        """
        name = type(self).__name__
        raise ValueError(f"{name} has no log_tail, the log of P(noise ≥ distance), which reporting rules and cdf need")

    def log_interval(self, low: Array, high: Array) -> jax.Array:
        """Log P(low ≤ noise ≤ high) in one column, −∞ ≤ low ≤ high ≤ ∞ (*batch), accurate in both tails; of discrete
        noise from whole steps between low and high, real as in `log_tail`. By symmetry the nearer tail is subtracted.
        """
        flip, step = jnp.add(low, high) < 0, 1.0 if self.discrete else 0.0
        near, far = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
        aside = near >= 0

        def tail(start: jax.Array) -> jax.Array:
            finite = start < jnp.inf
            return jnp.where(finite, self.log_tail(jnp.where(finite, start, 0.0)), -jnp.inf)

        beyond, start = tail(far + step), tail(jnp.where(aside, near, step - near))
        around = jnp.log1p(-jnp.where(aside, 0.0, jnp.exp(beyond) + jnp.exp(start)))
        return jnp.where(aside, start + log1mexp(beyond - start), around)

    @abc.abstractmethod
    def depth(self, distance: np.ndarray) -> np.ndarray:
        """Minus the binary logarithm of P(noise in one column > distance), distances ≥ 0 in standard deviations."""

    @abc.abstractmethod
    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """The exact trade-off curve of two inputs, or one pair a record, `distance` (*batch, columns) apart."""

    def tradeoff_within(self, sensitivity: float, columns: int) -> Tradeoff:
        """The curve of the worst two inputs within a distance in `norm`: they differ in the first column alone."""
        return self.tradeoff(np.where(np.arange(columns) == 0, sensitivity, 0.0))

    def tradeoff_in_one_column(self, distance: np.ndarray) -> Tradeoff:
        """The curve of the worst two inputs that differ in one column only, by at most `distance` (*batch, columns)."""
        columns = np.arange(np.shape(distance)[-1])
        # of columns with equal noise, the widest is the worst
        alike = np.shape(self.over_columns(self.standard_deviation))[-1] == 1
        worst = [np.argmax(distance, axis=-1)[..., None]] if alike else columns
        curves = [self.tradeoff(np.where(columns == column, distance, 0.0)) for column in worst]
        return curves[0] if len(curves) == 1 else WorstTradeoff(curves)

    def breakpoints(self, z: Array, lower: Array, upper: Array) -> Array:
        """Where the density of noise z − clip(x) is not smooth in x, a number: here by `kinks`. An array (*z, m), of
        NumPy or JAX as z is. Only points between the bounds matter; None stands for no bounds.
        """
        at, kinks = z[..., None], self.kinks
        if not kinks:
            return at[..., :0]
        xp = np if is_concrete(kinks) else jnp
        offsets = xp.stack(xp.broadcast_arrays(*kinks), axis=-1)
        return at if len(kinks) == 1 and is_concrete(offsets) and not offsets.any() else at - offsets

    def released_breakpoints(self, lower: Array, upper: Array) -> np.ndarray:
        """Where the law of released numbers may bend or jump, besides the bounds (concrete, or None), whatever that of
        records is. Nowhere, as here, for smooth noise and for linear tails without a period.
        """
        return np.empty(0)

    def check_records(self, lower: Array, upper: Array, numbers: bool) -> None:
        """ValueError where this noise is not for such records; here never. The bounds are None for a statistic, and
        `numbers` says that each record is a number that gets noise for certain.
        """
        return None

    variance = property(lambda self: self.standard_deviation**2)  # of the noise in one column

    def over_columns(self, moment: Array) -> Array:
        """A standard deviation or variance with an axis of columns, of length 1 where all columns have equal noise."""
        return jnp.asarray(moment)[..., None]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the parameters: () or (N,)."""
        return np.broadcast_shapes(*(np.shape(leaf) for leaf in jax.tree.leaves(self)))

    def astype(self, dtype: DTypeLike) -> "Noise":
        """The law with parameters in the floating-point type of the data, which they must not promote."""
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), self)
