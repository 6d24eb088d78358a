"""Tables of any library, read in one way: names of columns, values, gaps, levels; and data frames inside models."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import jax
import narwhals as nw
import numpy as np
from jax.tree_util import DictKey, register_pytree_with_keys

from ldpbayes._core.checks import guess, refuse
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
        for name in names or ():
            if name not in self._columns:
                raise ValueError(f"new data lack the column {name!r} of the fit; the new columns are {self.columns}")
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

    `fit` does so itself. Call the function before you pass data frames to functions of NumPyro, such as
    `numpyro.infer.Predictive`. In the model, a column ``table["age"]`` is an array, and ``table @ slopes`` uses the
    table as a matrix. Raises ValueError if a series has missing numbers, or if two columns have the same name.

    Parameters
    ----------
    tree : pytree
        The arguments: frames or series, or a list, tuple or dict of them. All other objects are not changed.
    """
    return jax.tree.map(_arrays_of, tree)


def _arrays_of(leaf: Any) -> Any:
    if isinstance(leaf, (np.ndarray, np.generic, jax.Array, Table)):
        return leaf
    if column_names(leaf) is not None:
        return Table({part.name: values_of(part.to_native()) for part in nw.from_native(leaf).iter_columns()})
    series = _series(leaf)
    if series is None and not hasattr(leaf, "to_numpy"):  # as arrays of Arrow and indexes of pandas have
        return leaf
    array, name = values_of(leaf), getattr(leaf, "name", None) if series is None else series.name
    _refuse_missing(f"series {name!r}" if name else "a series", array)
    return array


def column_names(data: Any) -> list | None:
    """Names of the columns of a data frame, or of a `Table`; None for anything else. ValueError if two are equal."""
    if isinstance(data, Table):
        return data.columns
    try:
        frame = nw.from_native(data, eager_only=True, pass_through=True)
        return frame.columns if isinstance(frame, nw.DataFrame) else None
    except nw.exceptions.DuplicateError:
        names = getattr(data, "column_names", None) or data.columns  # of Arrow; of pandas
        (twice, _), *_ = Counter(names).most_common()
        raise ValueError(f"a data frame has several columns of the name {twice!r}; rename them") from None


def rows_of(frame: Any, names: Iterable[Any]) -> np.ndarray:
    """Columns of a data frame, or of a `Table`, as the columns of an array (rows, columns)."""
    columns = _arrays_of(frame)._columns
    return np.stack([columns[name] for name in names], axis=-1)


def _series(data: Any) -> Any:
    """A column of a data frame of any library as one of Narwhals; None for anything else."""
    series = nw.from_native(data, eager_only=True, allow_series=True, pass_through=True)
    return series if isinstance(series, nw.Series) else None


def values_of(data: Any) -> np.ndarray:
    """Values of a series, an array or a list, with NaN in the places of missing or masked numbers."""
    if isinstance(data, np.ma.MaskedArray) and np.ma.is_masked(data):
        entries: Any = data.data.astype(object)
        entries[np.ma.getmaskarray(data)] = None
        data = entries
    series = _series(data)
    array = series.to_numpy() if series is not None and series.dtype.is_numeric() else np.asarray(data)
    if isinstance(data, list) and array.dtype.kind == "f" and data and all(type(entry) is int for entry in data):
        array = np.array(data, object if min(data) < 0 else np.uint64)  # NumPy rounds those above 2^63
    if array.dtype.kind != "O":
        return array
    gaps = np.array([is_missing(entry) for entry in array.flat]).reshape(array.shape)
    exact = all(isinstance(entry, Decimal) for entry in array[~gaps])
    if exact or (gaps.any() and all(np.asarray(entry).dtype.kind in "iufb" for entry in array[~gaps])):
        array = np.where(gaps, np.nan, array).astype(float)
    return array


def entries_of(data: Any) -> list:
    """Entries of a series, an array or a sequence; of a list as they are, since an array would have NaN as a word."""
    return [*data] if isinstance(data, (list, tuple)) else values_of(data).tolist()


def array_and_gaps(data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Values as `values_of` has them, and which of its rows have a missing entry."""
    array = values_of(data)
    gaps = np.vectorize(is_missing, otypes=[bool])(array) if array.dtype.kind == "O" else array != array
    return array, gaps.reshape(len(array), -1).any(axis=1)


def codes_of(data: Any, levels: list, codes: int) -> Any:
    """Words as their places among levels for so many codes, NaN where they are missing; what has no words as it is."""
    if getattr(getattr(data, "dtype", None), "kind", "O") in "biuf":
        return data
    entries = entries_of(data)
    if not any(isinstance(entry, str) for entry in entries):
        return data
    if len(levels) != codes:
        raise ValueError(f"words need levels for each of {codes} released codes; got {', '.join(map(str, levels))}")
    places = {level: float(code) for code, level in enumerate(levels)}
    values = np.array([np.nan if is_missing(entry) else places.get(entry, -1) for entry in entries])
    problem = f"{{}} values are not among the levels {', '.join(map(str, levels))}"
    refuse(values < 0, problem, np.array(entries, object), "in row {}")
    return values


def levels_in_order(data: Any) -> tuple | None:
    """The levels of a categorical series, which have an order of their own; None for other data."""
    series = _series(data)
    if series is not None and isinstance(series.dtype, nw.Enum):
        return tuple(series.dtype.categories)
    levels = getattr(getattr(data, "cat", data), "categories", None)  # of pandas, a series or not
    return None if levels is None else tuple(levels)


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or missing as pandas says it."""
    # NAType is the type of pandas.NA; pandas need not be installed.
    return value is None or type(value).__name__ == "NAType" or value != value


def columns_of(frame: Any) -> dict[str, np.ndarray]:
    """Columns of a data frame, or of a dict of them, as arrays, with NaN in the places of missing numbers."""
    table = _arrays_of(frame)
    columns = table._columns if isinstance(table, Table) else frame
    if not isinstance(columns, dict):
        raise TypeError(f"a table is read from a data frame, or from a dict of columns; got {type(frame).__name__}")
    return {str(name): values_of(series) for name, series in columns.items()}


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
