"""What a law of noise is: how it is drawn, its density and its kinks, how it falls off, and what privacy it buys."""

import abc
import inspect
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._core.pytrees import checked_field
from ldpbayes._core.tracing import is_concrete
from ldpbayes.privacy import Tradeoff
from ldpbayes.privacy.tradeoffs import WorstTradeoff


class Noise(abc.ABC):
    """A law of what is added to a number, or to the columns of a row, centred at zero.

    Subclasses are frozen dataclasses decorated with ``@ldpbayes.noise.pytree``. Their parameters are in the unit of the
    data: numbers, or one a record. The last axis of what is drawn and of what has a density is that of the columns, one
    for a number.
    """

    discrete: ClassVar[bool] = False
    """Whether the noise takes integer values only."""

    period: Any = None
    """The length, in the unit of the data, over which the log density falls by the same amount wherever it begins on a
    side of zero; None where it does so over any length, or over none."""

    linear_tails: ClassVar[bool]
    """Whether the log density is linear on either side of zero, if only from `period` to period."""

    kinks: ClassVar[tuple[float, ...]]
    """Where the density of noise in one column is not smooth, in the unit of the noise; may be a property.

    Empty where these depend on the bounds: see `breakpoints`.
    """

    standard_deviation: Any
    """Of the noise in one column: a field or a property."""

    norm: ClassVar[int]
    """The norm in which the noise hides a distance over several columns; may be a property.

    1 for the sum of absolute differences, 2 for the Euclidean distance. Inputs that are no further apart in this norm
    than some distance are no easier to tell than inputs that far apart in the first column alone; noise for which that
    fails has a `tradeoff_within` of its own. Where columns have scales of their own, a difference in one counts in
    proportion to the first column's scale over its own.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if any(getattr(getattr(cls, name, None), "__isabstractmethod__", False) for name in dir(cls)):
            return
        said = {
            name
            for base in cls.__mro__[: cls.__mro__.index(Noise)]
            for name in (*vars(base), *inspect.get_annotations(base))
        }
        missing = [name for name in ("linear_tails", "kinks", "norm", "standard_deviation") if name not in said]
        if missing:
            raise TypeError(f"{cls.__name__} must say {', '.join(missing)}; see ldpbayes.noise.Noise")

    @abc.abstractmethod
    def sample(self, key: ArrayLike, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Draw noise.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        shape : tuple of int
            (*batch, columns); the batch is one that the parameters broadcast to.
        dtype : dtype
            Floating-point type of the result.

        Returns
        -------
        jax.Array
            Of this shape.
        """

    @abc.abstractmethod
    def log_prob(self, value: jax.Array) -> jax.Array:
        """Log density (for discrete noise, log probability) at values (*batch, columns), shape (*batch)."""

    @property
    @abc.abstractmethod
    def resolution(self) -> Any:
        """Shortest length on which the density of noise in one column varies: by a factor e, for an exponential."""

    @property
    @abc.abstractmethod
    def reach(self) -> Any:
        """Beyond this distance there is no noise, to 1e-32; 0 where `linear_tails` say all of what lies further."""

    @abc.abstractmethod
    def depth(self, distance: np.ndarray) -> np.ndarray:
        """Minus the binary logarithm of P(noise in one column > distance), distances ≥ 0 in standard deviations."""

    @abc.abstractmethod
    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """The exact trade-off curve of two inputs.

        Parameters
        ----------
        distance : array (*batch, columns)
            How far apart the inputs are, column by column; one pair for all records, or one a record.
        """

    def tradeoff_within(self, sensitivity: float, columns: int) -> Tradeoff:
        """The curve of the worst two inputs that are at most so far apart in `norm`: here in the first column alone.

        Parameters
        ----------
        sensitivity : float
            The largest distance.
        columns : int
            How many there are.
        """
        return self.tradeoff(np.where(np.arange(columns) == 0, sensitivity, 0.0))

    def tradeoff_in_one_column(self, distance: np.ndarray) -> Tradeoff:
        """The curve of the worst two inputs that differ in one column only.

        Parameters
        ----------
        distance : array (*batch, columns)
            How far apart they may be, whichever column it is.
        """
        columns = np.arange(np.shape(distance)[-1])
        # of columns with the same noise, the widest is the worst
        alike = np.shape(self.over_columns(self.standard_deviation))[-1] == 1
        worst = [np.argmax(distance, axis=-1)[..., None]] if alike else columns
        curves = [self.tradeoff(np.where(columns == column, distance, 0.0)) for column in worst]
        return curves[0] if len(curves) == 1 else WorstTradeoff(curves)

    def breakpoints(self, z: Any, lower: Any, upper: Any) -> Any:
        """Where the density of noise z − clip(x) is not smooth in x, a number: an array (*z, m); here by `kinks`.

        Parameters
        ----------
        z : array
            Released values; NumPy in, NumPy out; JAX in, JAX out.
        lower, upper : array_like
            The bounds between which x is of interest; None where there are none.
        """
        at, kinks = z[..., None], self.kinks
        if not kinks:
            return at[..., :0]
        xp: Any = np if is_concrete(kinks) else jnp
        offsets = xp.stack(xp.broadcast_arrays(*kinks), axis=-1)
        return at if len(kinks) == 1 and is_concrete(offsets) and not offsets.any() else at - offsets

    def released_breakpoints(self, lower: Any, upper: Any) -> np.ndarray:
        """Where the law of released numbers may bend or jump whatever that of the records is; here nowhere else.

        Where the noise has tails that are linear, or is smooth, the bounds (the ends of the released range) are enough.

        Parameters
        ----------
        lower, upper : array_like
            The bounds, concrete; None where there are none.
        """
        return np.empty(0)

    def check_records(self, lower: Any, upper: Any, numbers: bool) -> None:
        """ValueError where this noise is not for such records; here never.

        Parameters
        ----------
        lower, upper : array_like
            The bounds; None for a statistic.
        numbers : bool
            Whether each record is a number that gets noise for certain.
        """
        return None

    @property
    def variance(self) -> Any:
        """Of the noise in one column."""
        return self.standard_deviation**2

    def over_columns(self, moment: Any) -> Any:
        """A standard deviation or variance with an axis of columns, of length 1 where all columns have the same.

        Parameters
        ----------
        moment : array_like
            `standard_deviation` or `variance`.
        """
        return jnp.asarray(moment)[..., None]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the parameters: () or (N,)."""
        return np.broadcast_shapes(*(np.shape(leaf) for leaf in jax.tree.leaves(self)))

    def astype(self, dtype: Any) -> "Noise":
        """The same law with parameters in another floating-point type.

        Parameters
        ----------
        dtype : dtype
            Of the data, which parameters must not promote.
        """
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), self)

    def _check(self, name: str, allowed: str, ok: Any) -> None:
        checked_field(self, name, allowed, ok)
