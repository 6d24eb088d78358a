"""The methods and attributes of every law of noise: draws, density, kinks, tails, and the privacy guarantee."""

import abc
import inspect
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ldpbayes._core.pytrees import Owed, check_fields, undeclared_traits
from ldpbayes._core.types import Array, Key, is_concrete
from ldpbayes.numerics.special import log1mexp
from ldpbayes.privacy import Tradeoff
from ldpbayes.privacy.tradeoffs import WorstTradeoff


class Noise(abc.ABC):
    """Base of laws of noise. All laws are centred at zero.

    To write your own law, decorate a subclass with ``@ldpbayes.noise.pytree`` above
    ``@dataclasses.dataclass(frozen=True)``. Each parameter is one number, or one for each record. Lengths are in the
    unit of the data. The last axis of drawn noise and of the arguments of densities is for the columns of a row, even
    if there is only one. The attributes below are class variables, fields or properties; a class that lacks one without
    a default raises a TypeError.
    """

    discrete: ClassVar[bool] = False  #: True if the noise takes integer values only.
    #: Length over which the log density falls by a fixed amount, wherever the length begins on one side of zero. None
    #: if every length has this property, or no length.
    period: Array = None
    #: True if the log density is linear on each side of zero, or from period to period.
    linear_tails: Annotated[bool, Owed("True if the log density is linear on each side of zero, or over whole periods")]
    #: Places where the density in one column is not smooth. Empty if they depend on the bounds (see `breakpoints`).
    kinks: Annotated[tuple[float, ...], Owed("places where the density in one column is not smooth")]
    has_variance: bool = True  #: True if the noise has a finite variance.
    monotone: bool = False  #: True if the trade-off curve is monotone in every parameter and in the distance.
    assumption: str = ""  #: A condition of the trade-off curves, which statements of the guarantee quote.
    symmetric: ClassVar[bool] = True  #: True if the density is symmetric about zero and falls off on each side.
    per_column: ClassVar[bool] = False  #: True if every column has a parameter of its own.
    omitted: ClassVar[bool] = False  #: True if some records may get no noise, as in `ZeroInflated`.
    #: Standard deviation in one column, infinite if there is no variance.
    standard_deviation: Annotated[Array, Owed("standard deviation in one column, infinite if there is no variance")]
    #: Shortest length on which the density in one column changes, such as by a factor e for an exponential density.
    resolution: Annotated[Array, Owed("shortest length on which the density changes by a factor e")]
    #: Distance beyond which the noise has a probability of at most 1e-32, or 0 if tails are linear from zero on.
    reach: Annotated[Array, Owed("distance beyond which at most 1e-32 is left, or 0 if tails are linear from zero on")]
    #: Norm, 1 or 2, of distances over several columns: a difference in a column is divided by the column's scale, and
    #: multiplied by that of the first column. Two inputs at a distance are no easier to distinguish than two that
    #: differ by this distance in the first column; a law for which this is not true overrides `tradeoff_within`.
    norm: Annotated[int, Owed("1 or 2, the norm in which distances over several columns are measured")]
    chance: ClassVar[Array] = 0.0  #: Probability that the noise is left out of a record whose scale is positive.

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if (missing := undeclared_traits(cls)) and not inspect.isabstract(cls):
            raise TypeError(f"{cls.__name__} must define, as attributes, properties or fields:{missing}")

    def __post_init__(self) -> None:
        check_fields(self)

    @abc.abstractmethod
    def sample(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        """Draw noise of a floating-point `dtype` and a `shape` (*batch, columns). Parameters broadcast to the batch."""

    @abc.abstractmethod
    def log_prob(self, value: jax.Array) -> jax.Array:
        """Return the log density (or log probability) at `value` (*batch, columns), summed over the columns."""

    def continued(self, value: jax.Array) -> jax.Array:
        """Return `log_prob`; for discrete noise its formula, also at values that are not integers, as of a record that
        a model treats as a real number.
        """
        return self.log_prob(value)

    def log_tail(self, distance: jax.Array) -> jax.Array:
        """Return log P(noise in one column ≥ distance), for distances ≥ 0 in an array (*batch), of symmetric noise. For
        discrete noise, it is the sum of the formula of the law at distance, distance + 1, ..., for any real distance.
        Reporting rules need this method.
        """
        name = type(self).__name__
        raise ValueError(f"{name} has no log_tail, the log of P(noise ≥ distance), which reporting rules and cdf need")

    def log_interval(self, low: Array, high: Array) -> jax.Array:
        """Return log P(low ≤ noise in one column ≤ high), accurate in both tails, for −∞ ≤ low ≤ high ≤ ∞ (*batch)."""
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
        """Return −log2 P(noise in one column > distance), for distances ≥ 0 in standard deviations of the noise."""

    @abc.abstractmethod
    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """Return the exact trade-off curve of two inputs that differ by `distance`, an array (*batch, columns)."""

    def tradeoff_within(self, sensitivity: float, columns: int) -> Tradeoff:
        """Return the curve of the worst inputs at most `sensitivity` apart over some `columns`, in the norm `norm`."""
        return self.tradeoff(np.where(np.arange(columns) == 0, sensitivity, 0.0))

    def tradeoff_in_one_column(self, distance: np.ndarray) -> Tradeoff:
        """Return the curve of the worst inputs that differ in one column, by at most `distance` (*batch, columns)."""
        columns = np.arange(np.shape(distance)[-1])
        # of columns with equal noise, the widest is the worst
        alike = np.shape(self.over_columns(self.standard_deviation))[-1] == 1
        worst = [np.argmax(distance, axis=-1)[..., None]] if alike else columns
        curves = [self.tradeoff(np.where(columns == column, distance, 0.0)) for column in worst]
        return curves[0] if len(curves) == 1 else WorstTradeoff(curves)

    def breakpoints(self, z: Array, lower: Array, upper: Array) -> Array:
        """Return the points x where the density of z − clip(x) is not smooth, (*z.shape, m), in NumPy if `z` is.
        Default: z − `kinks`. Only points between the bounds `lower` and `upper` matter, which may be None.
        """
        at, kinks = z[..., None], self.kinks
        if not kinks:
            return at[..., :0]
        xp = np if is_concrete(kinks) else jnp
        offsets = xp.stack(xp.broadcast_arrays(*kinks), axis=-1)
        return at if len(kinks) == 1 and is_concrete(offsets) and not offsets.any() else at - offsets

    def released_breakpoints(self, lower: Array, upper: Array) -> np.ndarray:
        """Return further points z, besides `lower` and `upper`, where released densities may bend or jump."""
        return np.empty(0)

    def check_records(self, lower: Array, upper: Array, numbers: bool) -> None:
        """Raise ValueError if this law is not for such records: with bounds, which are None for a statistic, and with
        `numbers` True if they are numbers that all get noise.
        """
        return None

    variance = property(lambda self: self.standard_deviation**2, doc="Variance of the noise in one column.")

    def over_columns(self, moment: Array) -> Array:
        """Return a `moment` with an axis at the end for the columns, of length 1 if all have equal noise."""
        return jnp.asarray(moment)[..., None]

    #: The law of noise without omission.
    underlying = property(lambda self: self)
    present = property(lambda self: self, doc="The law of the noise of the records that get noise.")
    absent = property(lambda self: 0.0, doc="Probability that a record gets no noise, in the shape of the parameters.")

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the parameters: (N,) if there is one number for each of N records, and () otherwise."""
        return np.broadcast_shapes(*(np.shape(leaf) for leaf in jax.tree.leaves(self)))

    def astype(self, dtype: DTypeLike) -> "Noise":
        """Return the law with its parameters in the floating-point `dtype`."""
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), self)
