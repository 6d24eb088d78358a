"""Data frames among a model's arguments: converted once, to arrays that keep the names of their columns."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import jax
import numpy as np
from jax.tree_util import DictKey, register_pytree_with_keys

from ldpbayes._core.checks import guess
from ldpbayes._core.types import Array, PyTree


class Table:
    """A data frame inside a model, whose columns are arrays.

    ``table["age"]`` and ``table.age`` are arrays (rows,). ``table[["age", "income"]]`` is a table of two columns.
    ``table @ slopes`` and ``jnp.asarray(table)`` use the table as a matrix (rows, columns) without labels.
    """

    columns = property(lambda self: list(self._columns))
    shape = property(lambda self: (len(self), len(self._columns)))
    T = property(lambda self: self.values.T)

    def __init__(self, columns: dict[Any, Any]) -> None:
        self._columns = columns
        self._read = set[Any]()  # columns that a model has read so far

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, list):
            return Table({name: self[name] for name in key})
        if isinstance(key, (slice, np.ndarray, jax.Array)):
            raise TypeError(f"a table can be indexed only by column names, {self.columns}; choose rows before the fit")
        if key not in self._columns:
            raise KeyError(f"there is no column {key!r}; the columns are {self.columns}")
        column = self._columns[key]
        self._read.add(key)
        _refuse_missing(f"column {key!r}", column)
        return column

    def __getattr__(self, name: str) -> Any:
        columns = self.__dict__.get("_columns", {})
        if name not in columns:
            raise AttributeError(f"a table has no column or attribute {name!r}; its columns are {list(columns)}")
        return self[name]

    @property
    def in_use(self) -> "Table":
        """The table of the columns that have been read so far; of all, if none has."""
        return Table({name: part for name, part in self._columns.items() if name in self._read} or self._columns)

    def ordered(self, names: list[Any] | None) -> "Table":
        """The table of columns of these names, in their order; itself for None. ValueError if one is missing."""
        missing = [name for name in names or () if name not in self._columns]
        if missing:
            raise ValueError(f"new data lack the column {missing[0]!r} of the fit; the new columns are {self.columns}")
        return self if names is None else Table({name: self._columns[name] for name in names})

    @property
    def values(self) -> Array:
        """All columns as a matrix (rows, columns), of NumPy unless they are being traced."""
        parts = {name: self[name] for name in self}
        for name, part in parts.items():
            if part.dtype.kind not in "biuf":
                hint = "choose other columns, table[[...]], or replace labels by codes"
                raise TypeError(f"column {name!r} holds {part.dtype}, but a matrix needs numbers: {hint}")
        xp = jax.numpy if any(isinstance(part, jax.Array) for part in parts.values()) else np
        return xp.stack([*parts.values()], axis=-1)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._columns)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.values, dtype)

    def __jax_array__(self) -> jax.Array:
        return jax.numpy.asarray(self.values)

    def __matmul__(self, other: Any) -> Array:
        return self.values @ other

    def __repr__(self) -> str:
        return f"Table({len(self)} rows, columns {self.columns})"


register_pytree_with_keys(
    Table,
    lambda table: (tuple((DictKey(name), table._columns[name]) for name in table), tuple(table)),
    lambda names, columns: Table(dict(zip(names, columns, strict=True))),
)


def arrays_of_frames(tree: PyTree) -> PyTree:
    """Replace each data frame in the arguments of a model by a table of arrays, and each series by an array.

    `fit` does this for the arguments of a model. Call the function yourself before you pass data frames to functions of
    NumPyro, such as `numpyro.infer.Predictive`. In the model, a column ``table["age"]`` is an array, and ``table @
    slopes`` uses the table as a matrix. Raises ValueError if a series has missing numbers, or if two columns have the
    same name.

    Parameters
    ----------
    tree : pytree
        The arguments: a data frame or a series, or a list, tuple or dict of them. All other objects are not changed.
    """
    return jax.tree.map(_arrays_of, tree)


def _arrays_of(leaf: Any) -> Any:
    if isinstance(leaf, (np.ndarray, np.generic, jax.Array)) or not hasattr(leaf, "to_numpy"):
        return leaf
    if hasattr(leaf, "columns") and hasattr(leaf, "dtypes"):
        twice = [name for name, count in Counter(leaf.columns).items() if count > 1]
        if twice:
            raise ValueError(f"a data frame has several columns of the name {twice[0]!r}; rename them")
        return Table({name: _array(leaf[name]) for name in leaf.columns})
    array, name = _array(leaf), getattr(leaf, "name", None)
    _refuse_missing("a series" if name is None else f"series {name!r}", array)
    return array


def _array(series: Any) -> np.ndarray:
    """Values of a series, with NaN in the places of missing numbers."""
    array = np.asarray(series)
    if isinstance(series, list) and array.dtype.kind == "f" and series and all(type(each) is int for each in series):
        array = np.array(series, object if min(series) < 0 else np.uint64)  # NumPy rounds those above 2^63
    # pandas, polars and Arrow call types of numbers, whose values may be missing, by such names; others are intervals.
    kind = str(getattr(series, "dtype", None) or getattr(series, "type", "")).lower()
    exact = array.dtype.kind == "O" and all(isinstance(each, Decimal) or is_missing(each) for each in array.flat)
    if array.dtype.kind == "O" and (exact or re.match(r"u?int\d|(half_?)?float|double|bool", kind)):
        array = np.array([np.nan if is_missing(each) else each for each in array], float)
    return array


def is_missing(value: Any) -> bool:
    # NAType is the type of pandas.NA; pandas need not be installed.
    return value is None or type(value).__name__ == "NAType" or value != value


def columns_of(frame: Any) -> dict[str, np.ndarray]:
    """Columns of a data frame, or of a dict of them, as arrays, with NaN in the places of missing numbers."""
    columns = getattr(_arrays_of(frame), "_columns", frame)
    if not isinstance(columns, dict):
        raise TypeError(f"a table is read from a data frame, or from a dict of columns; got {type(frame).__name__}")
    return {str(name): _array(series) for name, series in columns.items()}


def column(columns: Mapping[str, Any], name: str) -> Any:
    if name not in columns:
        raise ValueError(f"there is no column {name!r}{guess(name, columns)}; the columns are {', '.join(columns)}")
    return columns[name]


def _refuse_missing(owner: str, array: Any) -> None:
    """ValueError where numbers are missing, unless they are being traced."""
    if isinstance(array, np.ndarray) and array.dtype.kind == "f" and np.isnan(array).any():
        missing = np.flatnonzero(np.isnan(array))
        problem = f"{owner} has {len(missing)} missing values, the first in row {missing[0]}"
        raise ValueError(f"{problem}: drop these rows here and in the release, or pass an array and model the gaps")
