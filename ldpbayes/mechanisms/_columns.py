"""Which columns a row has, and which of them a mechanism touches."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._checks import LARGEST_CODE, at_least, is_integer

__all__ = ["Columns", "checked_columns"]


@dataclasses.dataclass(frozen=True)
class Columns:
    """Columns of a record; where it is a number, one without an axis of its own.

    Parameters
    ----------
    columns : int, tuple of str or None
        How many there are, or what they are called; None for a number.
    perturbed : tuple of int or str, or None
        Those that a mechanism touches, in the order of the row; None for all.
    """

    columns: Any
    perturbed: Any

    @property
    def width(self) -> int:
        """Number of columns."""
        return 1 if self.columns is None else len(self.columns) if isinstance(self.columns, tuple) else self.columns

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns: x0, x1, ... where they were not given any."""
        return self.columns if isinstance(self.columns, tuple) else tuple(f"x{j}" for j in range(self.width))

    @property
    def index(self) -> tuple[int, ...]:
        """Positions of the perturbed columns in a row."""
        if self.perturbed is None:
            return tuple(range(self.width))
        return tuple(self.columns.index(c) if isinstance(self.columns, tuple) else c for c in self.perturbed)

    @property
    def dimension(self) -> int:
        """Number of perturbed columns."""
        return self.width if self.perturbed is None else len(self.perturbed)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """() for a number, (columns,) for a row."""
        return () if self.columns is None else (self.width,)

    @property
    def others(self) -> np.ndarray:
        """Positions of the columns that are not perturbed."""
        return np.setdiff1d(np.arange(self.width), self.index)

    def split(self, rows: ArrayLike) -> jax.Array:
        """The perturbed columns, with an axis of columns also for a number."""
        rows = jnp.asarray(rows)
        return rows[..., None] if self.columns is None else jnp.take(rows, np.array(self.index), axis=-1)

    def join(self, rows: jax.Array, part: jax.Array) -> jax.Array:
        """Rows with their perturbed columns replaced; inverse of `split`."""
        if self.columns is None:
            return part[..., 0]
        if self.perturbed is None:
            return part
        return jnp.broadcast_to(rows, part.shape[:-1] + rows.shape[-1:]).at[..., self.index].set(part)

    def in_order(self, frame: Any) -> Any:
        """A data frame with these columns in their order; anything else, and where they have no names, as it is.

        Raises
        ------
        ValueError
            If the data frame has other columns.
        """
        names = getattr(frame, "columns", None)
        if names is None or not isinstance(self.columns, tuple):
            return frame
        if set(names) != set(self.columns) or len(names) != len(self.columns):
            raise ValueError(f"the mechanism's columns are {', '.join(self.columns)}; got {', '.join(map(str, names))}")
        return frame[list(self.columns)]


def checked_columns(columns: Any, perturbed: Any) -> tuple[Columns, np.ndarray]:
    """Columns as they are kept, and the order in which the perturbed ones were named.

    Parameters
    ----------
    columns, perturbed
        As a user gives them to `AdditiveMechanism`.

    Returns
    -------
    tuple of Columns and array of int (dimension,)
        Bounds are given in the order of the names, and kept in that of the row: ``bounds[order]``.

    Raises
    ------
    ValueError
        For columns that are neither distinct names nor a positive number, and perturbed ones that are not among them.
    """
    if isinstance(columns, (list, tuple)):
        names: Any = tuple(columns)
        if not names or not all(isinstance(c, str) for c in names) or len(set(names)) < len(names):
            raise ValueError(f"columns must be distinct names, or how many there are, got {columns!r}")
        columns = names
    elif columns is not None:
        if not is_integer(columns) or columns < 1:
            raise ValueError(f"columns must be a positive integer, or names, got {columns!r}")
        columns = at_least(1, "columns", columns, LARGEST_CODE)
        names = range(columns)
    if perturbed is None:
        whole = Columns(columns, None)
        return whole, np.arange(whole.dimension)
    if columns is None:
        raise ValueError("perturbed names columns of a row, so it needs columns=")
    chosen = tuple(perturbed) if isinstance(perturbed, (list, tuple)) else (perturbed,)
    if all(is_integer(name) and 0 <= name < len(names) for name in chosen):
        chosen = tuple(names[position] for position in chosen)
    # a bool is a number to Python, and would be a column
    known = all((isinstance(name, str) or is_integer(name)) and name in names for name in chosen)
    if not known or not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"perturbed must be distinct columns out of {tuple(names)}, got {perturbed!r}")
    ordered = tuple(sorted(chosen, key=names.index))
    return Columns(columns, ordered), np.array([chosen.index(name) for name in ordered])
