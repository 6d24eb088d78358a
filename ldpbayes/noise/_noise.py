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
    """Base of laws of noise, which are centred at zero.

    A subclass is a frozen dataclass decorated with ``@ldpbayes.noise.pytree``. Each parameter is one number, or one for
    each record, in the unit of the data. Draws and arguments of densities have a last axis of columns, also for one
    column. The attributes below are class variables, fields or properties, in the unit of the data.
    """

    discrete: ClassVar[bool] = False  #: True if the noise takes integer values only.
    #: Length over which the log density falls by a fixed amount, wherever it begins on one side of zero; None if that
    #: holds for any length, or for none.
    period: Array = None
    linear_tails: ClassVar[bool]  #: True if the log density is linear on each side of zero, if only over each `period`.
    #: Places where the density in one column is not smooth; empty if they depend on the bounds (see `breakpoints`).
    kinks: ClassVar[tuple[float, ...]]
    has_variance: bool = True  #: True if the noise has a finite variance.
    symmetric: ClassVar[bool] = True  #: True if the density is symmetric about zero and falls off on each side.
    standard_deviation: Array  #: Standard deviation in one column; infinite without a variance.
    resolution: ClassVar[Array]  #: Shortest length on which the density in one column varies: by e, for an exponential.
    reach: ClassVar[Array]  #: Distance beyond which there is no noise, to 1e-32; 0 if tails are linear from zero on.
    #: Norm, 1 or 2, in which the noise hides a distance over several columns: inputs within a distance in this norm are
    #: no easier to tell apart than at that distance in the first column alone (else override `tradeoff_within`). If
    #: columns have different scales, a difference counts by the scale of the first column over that of its own.
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
        """Draw noise of a floating-point dtype and a shape (*batch, columns); parameters broadcast to the batch."""

    @abc.abstractmethod
    def log_prob(self, value: jax.Array) -> jax.Array:
        """Return the log density (for discrete noise, log probability) at values (*batch, columns), as (*batch)."""

    def continued(self, value: jax.Array) -> jax.Array:
        """Return `log_prob`; for discrete noise, its formula at any real values, for noise on a latent real number."""
        return self.log_prob(value)

    def log_tail(self, distance: jax.Array) -> jax.Array:
        """Return log P(noise in one column ≥ distance) for distances ≥ 0 (*batch). For discrete noise, it is the sum of
        its formula at distance, distance + 1, ..., also for real distances. Reporting rules need this method for
        symmetric noise.
        """
        name = type(self).__name__
        raise ValueError(f"{name} has no log_tail, the log of P(noise ≥ distance), which reporting rules and cdf need")

    def log_interval(self, low: Array, high: Array) -> jax.Array:
        """Return log P(low ≤ noise ≤ high) in one column, −∞ ≤ low ≤ high ≤ ∞ (*batch), accurate in both tails."""
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
        """Return −log2 P(noise in one column > distance), in bits, for distances ≥ 0 in standard deviations."""

    @abc.abstractmethod
    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """Return the exact trade-off curve of two inputs that differ by `distance` (*batch, columns)."""

    def tradeoff_within(self, sensitivity: float, columns: int) -> Tradeoff:
        """Return the curve of the worst two inputs within a distance in `norm`, which differ in the first column."""
        return self.tradeoff(np.where(np.arange(columns) == 0, sensitivity, 0.0))

    def tradeoff_in_one_column(self, distance: np.ndarray) -> Tradeoff:
        """Return the curve of the worst two inputs that differ in a column by at most `distance` (*batch, columns)."""
        columns = np.arange(np.shape(distance)[-1])
        # of columns with equal noise, the widest is the worst
        alike = np.shape(self.over_columns(self.standard_deviation))[-1] == 1
        worst = [np.argmax(distance, axis=-1)[..., None]] if alike else columns
        curves = [self.tradeoff(np.where(columns == column, distance, 0.0)) for column in worst]
        return curves[0] if len(curves) == 1 else WorstTradeoff(curves)

    def breakpoints(self, z: Array, lower: Array, upper: Array) -> Array:
        """Return the points x (*z, m) where the density of z − clip(x) is not smooth: z − `kinks` by default. Only
        points between the bounds matter (None: no bounds). NumPy arrays give NumPy arrays, and JAX arrays give JAX
        arrays.
        """
        at, kinks = z[..., None], self.kinks
        if not kinks:
            return at[..., :0]
        xp = np if is_concrete(kinks) else jnp
        offsets = xp.stack(xp.broadcast_arrays(*kinks), axis=-1)
        return at if len(kinks) == 1 and is_concrete(offsets) and not offsets.any() else at - offsets

    def released_breakpoints(self, lower: Array, upper: Array) -> np.ndarray:
        """Return the points, besides the bounds, where the law of released numbers may bend or jump; default: none."""
        return np.empty(0)

    def check_records(self, lower: Array, upper: Array, numbers: bool) -> None:
        """Raise ValueError if the noise is not for such records (bounds are None for a statistic); by default never."""
        return None

    variance = property(lambda self: self.standard_deviation**2, doc="Variance of the noise in one column.")

    def over_columns(self, moment: Array) -> Array:
        """Return a standard deviation or variance with one more axis at the end, for the columns. This axis has length
        1 if all columns have equal noise.
        """
        return jnp.asarray(moment)[..., None]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the parameters: () for numbers, or (N,) for one number for each record."""
        return np.broadcast_shapes(*(np.shape(leaf) for leaf in jax.tree.leaves(self)))

    def astype(self, dtype: DTypeLike) -> "Noise":
        """Return the law with parameters of the floating-point dtype of the data."""
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), self)
