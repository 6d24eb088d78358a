"""Records with bounds: which columns they have, how they are clipped, and what is then known of released values."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._checks import check_order
from ldpbayes._shown import shown_fields
from ldpbayes._tracing import array_of, is_concrete
from ldpbayes.mechanisms._columns import Columns, checked_columns
from ldpbayes.mechanisms._mechanism import Mechanism
from ldpbayes.noise import Noise
from ldpbayes.numerics._rounding import rounded

__all__ = ["Bounded"]


class Bounded(Mechanism):
    """A mechanism that clips a number, or some columns of a row; or none of it, where a statistic is released.

    Subclasses have the fields below. Perturbed columns are kept in the order of the row, and arrays of bounds with
    them.
    """

    lower: Any
    upper: Any
    columns: Any
    perturbed: Any
    sensitivity: Any = None

    clips = True

    def _check_columns_and_bounds(self) -> None:
        """Bring columns and bounds into the form in which they are kept, or say what is wrong with them."""
        columns, order = checked_columns(self.columns, self.perturbed)
        object.__setattr__(self, "columns", columns.columns)
        object.__setattr__(self, "perturbed", columns.perturbed)
        if self.lower is None or self.upper is None:
            if self.sensitivity is None or not (self.lower is None and self.upper is None):
                raise ValueError(
                    "give both bounds, lower and upper, of a record; or, for a statistic of many records, sensitivity: "
                    "how far one record can move it (math.inf for records that were not clipped, to which the noise "
                    f"promises nothing). Got {self!r}"
                )
            self._check("sensitivity", "a positive number", lambda a: (a.ndim == 0) & (a > 0))
            return
        if self.sensitivity is not None:
            raise ValueError(f"sensitivity is for a statistic without bounds, got {self!r}")
        for name in ("lower", "upper"):
            self._check(name, "finite", np.isfinite)
            shape = np.shape(getattr(self, name))
            if columns.columns is not None and shape not in ((), (columns.dimension,)):
                raise ValueError(
                    f"{name} must be a number, or one a perturbed column (here {columns.dimension}), got shape {shape}"
                )
            if shape and columns.perturbed is not None and len(order) > 1:
                object.__setattr__(self, name, getattr(self, name)[order])
                self._check(name, "finite", np.isfinite)
        if self.columns is None:
            numbers = {name: value for name, value in shown_fields(self) if not isinstance(value, Noise)}
            shapes = {name: np.shape(value) for name, value in numbers.items() if value is not None}
            try:
                np.broadcast_shapes(*shapes.values())
            except ValueError:
                raise ValueError(f"parameters must broadcast against each other, got shapes {shapes}") from None
        check_order(self.lower, self.upper)

    @property
    def _columns(self) -> Columns:
        return Columns(self.columns, self.perturbed)

    @property
    def bounded(self) -> bool:
        """Whether records are clipped; if not, what is released is a statistic of many."""
        return self.lower is not None

    @property
    def index(self) -> tuple[int, ...]:
        """Positions of the perturbed columns in a row."""
        return self._columns.index

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns: x0, x1, ... where they were not given any."""
        return self._columns.names

    @property
    def dimension(self) -> int:
        """Number of perturbed columns."""
        return self._columns.dimension

    @property
    def event_shape(self) -> tuple[int, ...]:
        """() for a number, (columns,) for a row."""
        return self._columns.event_shape

    @property
    def record_shape(self) -> tuple[int, ...]:
        """As the released value's."""
        return self.event_shape

    def _bounds_as(self, dtype: Any) -> tuple[jax.Array, jax.Array]:
        """Bounds that broadcast with perturbed columns (*batch, dimension)."""
        bounds = (jnp.asarray(bound, dtype) for bound in (self.lower, self.upper))
        lower, upper = (bound[..., None] if self.columns is None else bound for bound in bounds)
        return lower, upper

    def _clip(self, part: jax.Array) -> jax.Array:
        return jnp.clip(part, *self._bounds_as(part.dtype)) if self.bounded else part

    def clipped(self, x: ArrayLike) -> jax.Array:
        """Records with their perturbed columns clipped to the bounds."""
        x = jnp.asarray(x)
        x = x.astype(jnp.result_type(x, float))
        return self._columns.join(x, self._clip(self._columns.split(x)))

    @property
    def _full_bounds(self) -> tuple[Any, Any]:
        """The bounds of a number, or of every column of a row: infinite in those that are not perturbed."""
        if not self.bounded:
            return -math.inf, math.inf
        if self.perturbed is None:
            return self.lower, self.upper
        xp = np if is_concrete(self.lower, self.upper) else jnp
        # which bound a column has, if any: what is not perturbed takes the infinite one at the end
        which = np.full(self._columns.width, self.dimension)
        which[list(self.index)] = np.arange(self.dimension)
        sides = ((self.lower, -math.inf), (self.upper, math.inf))
        lower, upper = (xp.append(xp.broadcast_to(bound, (self.dimension,)), end)[which] for bound, end in sides)
        return lower, upper

    def at_bounds(self, z: ArrayLike) -> tuple[Any, Any]:
        """Whether released values are at the lower bound and whether at the upper one, rounded or not; see `snapped`.

        Both in the shape of `z`, and False in columns that are not perturbed. NumPy in, NumPy out; JAX in, JAX out.
        """
        given = array_of(z)
        values = given if given.dtype.kind == "f" else given.astype(float)

        def at(bound: Any) -> Any:
            xp: Any = np if isinstance(values, np.ndarray) and is_concrete(bound) else jnp
            return (values == xp.asarray(bound, values.dtype)) | (values == rounded(xp, bound, values.dtype))

        lower, upper = (at(bound) for bound in self._full_bounds)
        return lower, upper

    @property
    def ranges(self) -> np.ndarray:
        """Upper less lower bound of each perturbed column, shape (dimension,); of a number, of every record."""
        return (
            np.subtract(self.upper, self.lower)[..., None]
            if self.columns is None
            else np.broadcast_to(np.subtract(self.upper, self.lower), (self.dimension,))
        )
