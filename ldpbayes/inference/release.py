"""A release: released values, the mechanism that made them, and nothing that was not released."""

import dataclasses
import json
import pathlib
import warnings
import zipfile
import zlib

import jax
import numpy as np

from ldpbayes._warnings import LdpBayesWarning
from ldpbayes.likelihood.latent import is_concrete
from ldpbayes.likelihood.sketch import sketch
from ldpbayes.mechanisms import Mechanism, mechanism_from_spec
from ldpbayes.mechanisms.plausibility import LEVEL

__all__ = ["Release", "ReleaseWarning", "doubts_about"]

SPEC_KEY = "ldpbayes.mechanism"  # Parquet schema metadata


class ReleaseWarning(LdpBayesWarning):
    """The stated mechanism could hardly have released these values, whatever the records; the message says why."""


def doubts_about(mechanism, values):
    """What speaks against values having been released by a mechanism, whatever the records; None where nothing does.

    Parameters
    ----------
    mechanism : Mechanism
    values : ndarray (N, *event)

    Returns
    -------
    str or None
    """
    said = mechanism.implausible(values)
    if not said:
        return None
    return (
        f"{mechanism!r} could hardly have released these values, whatever the records are (probability below "
        f"{LEVEL:g}): {'; '.join(said)}. Check its parameters, and that the values are as they were released"
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Release:
    """Released values with their mechanism; without values, a plan for ``count`` records that a model can simulate.

    A value belongs to one record, and so does the guarantee of the mechanism. A number published about many records (a
    noisy count, sum or mean) is not a release of one record here: a mechanism that is forced to make the same noise,
    such as ``LaplaceMechanism(n / scale, 0, n)`` for a count, would state the guarantee of a record that is a whole
    count, not that of a person in it. Such noise is written into the model itself (docs/mechanisms.md shows it).

    Parameters
    ----------
    values : array_like (N, *event) or None
        One released value a record: a number or a code, or a row of the mechanism's ``event_shape`` (bits, say).
    mechanism : Mechanism
        Parameters are scalars, or arrays of shape (N,) for personal budgets.
    count : int, optional
        Number of records; only without values.

    Raises
    ------
    TypeError
        If ``mechanism`` is not a mechanism.
    ValueError
        For an empty, non-finite or non-numeric release, values of another shape or outside the mechanism's support
        (see `Mechanism.validated`), personal budgets of another length, or a count that contradicts the values.

    Warns
    -----
    ReleaseWarning
        If the mechanism could hardly have released these values, whatever the records (`Mechanism.implausible`).

    Attributes
    ----------
    doubts : tuple of str
        What was warned of; `fit` says it again. A sketch of the release has it too.
    """

    values: object
    mechanism: Mechanism
    count: int | None = None
    doubts: tuple[str, ...] = dataclasses.field(default=(), init=False, repr=False)

    def __post_init__(self):
        """Check everything before any computation."""
        if not isinstance(self.mechanism, Mechanism):
            raise TypeError(
                "mechanism must be an ldpbayes mechanism (one for all records: make a release for each protocol), "
                f"got {type(self.mechanism).__name__}"
            )
        if self.values is None:
            if isinstance(self.count, bool) or not isinstance(self.count, (int, np.integer)) or self.count < 1:
                raise ValueError(
                    f"a release without values needs count, a positive number of records; got {self.count!r}"
                )
        elif isinstance(self.values, jax.core.Tracer):
            object.__setattr__(self, "count", self.values.shape[0])
        else:
            values = self.mechanism.validated(self.values)
            if self.count is not None and self.count != len(values):
                raise ValueError(f"count is {self.count}, but there are {len(values)} values; leave count out")
            object.__setattr__(self, "values", values)
            object.__setattr__(self, "count", len(values))
        if self.mechanism.batch_shape not in ((), (1,), (self.count,)):
            raise ValueError(
                f"the mechanism's parameters have shape {self.mechanism.batch_shape}, but there are {self.count} "
                "records: give one budget, or one a record"
            )
        if isinstance(self.values, np.ndarray) and is_concrete(self.mechanism):
            problem = doubts_about(self.mechanism, self.values)
            if problem:
                object.__setattr__(self, "doubts", (problem,))
                warnings.warn(problem, ReleaseWarning, stacklevel=3)

    def __len__(self):
        """Number of records."""
        return self.count

    def sketch(self, *, panels=None, lattice=None, keep_records=True, by=None):
        """Compress to weighted nodes, after which the cost of a posterior does not depend on the number of records.

        Parameters and errors as in `ldpbayes.likelihood.sketch.sketch`; and ValueError for a release without values.

        Returns
        -------
        Sketch
        """
        if self.values is None:
            raise ValueError("a release without values cannot be sketched; simulate first")
        options = {"panels": panels, "lattice": lattice, "keep_records": keep_records, "by": by}
        return dataclasses.replace(sketch(self.values, self.mechanism, **options), doubts=self.doubts)

    def save(self, path):
        """Write to ``.npz`` or ``.parquet``; see `Release.load` for both formats.

        Parameters
        ----------
        path : str or path-like

        Raises
        ------
        ValueError
            For another ending, or a release without values.
        """
        path = pathlib.Path(path)
        if self.values is None:
            raise ValueError("a release without values cannot be saved")
        spec = json.dumps(self.mechanism.spec())
        if path.suffix == ".npz":
            np.savez(path, values=self.values, mechanism=np.array(spec))
        elif path.suffix == ".parquet":
            pa, parquet = _pyarrow()
            column = self.values
            if column.ndim > 1:
                column = pa.FixedSizeListArray.from_arrays(column.ravel(), column.shape[1])
            table = pa.table({"value": column}).replace_schema_metadata({SPEC_KEY: spec})
            parquet.write_table(table, path)
        else:
            raise ValueError(f"a release file ends in .npz or .parquet, got {path.name!r}")

    @classmethod
    def load(cls, path):
        """Read a release file.

        ``.npz`` holds ``values``, shape (N, *event), and ``mechanism``, the mechanism's JSON spec as a string.
        ``.parquet`` holds a column ``value`` without nulls (of lists, where an event is a row), and the spec in the
        schema metadata under ``ldpbayes.mechanism``.

        Parameters
        ----------
        path : str or path-like

        Returns
        -------
        Release

        Raises
        ------
        ValueError
            If the file is not of this form, or damaged, or the release it holds is invalid.
        FileNotFoundError
            If there is no such file.
        """
        path = pathlib.Path(path)
        if not path.exists():
            raise FileNotFoundError(f"no release file {path}")
        if path.suffix == ".npz":
            values, spec = _read_npz(path)
        elif path.suffix == ".parquet":
            values, spec = _read_parquet(path)
        else:
            raise ValueError(f"a release file ends in .npz or .parquet, got {path.name!r}")
        try:
            parsed = json.loads(spec)
        except json.JSONDecodeError as error:
            raise ValueError(f"the mechanism spec in {path.name} is not JSON: {error}") from None
        return cls(values, mechanism_from_spec(parsed))


def _unflatten(count, children):
    release = object.__new__(Release)  # without the checks and their findings: leaves may be tracers, or anything
    for name, value in zip(("values", "mechanism", "count"), (*children, count), strict=True):
        object.__setattr__(release, name, value)
    return release


jax.tree_util.register_pytree_node(Release, lambda r: ((r.values, r.mechanism), r.count), _unflatten)


def _read_npz(path):
    """Values and spec in a file; ValueError saying what is wrong with it."""
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{path.name} is no .npz file, or not all of one: it does not end as a zip archive does")
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = {"values", "mechanism"} - set(file.files)
            if missing:
                raise ValueError(f"{path.name} lacks {' and '.join(sorted(missing))}; it has {', '.join(file.files)}")
            return file["values"], str(file["mechanism"])
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path.name} is damaged: {error}") from None


def _read_parquet(path):
    """Values and spec in a file; ValueError saying what is wrong with it."""
    pa, parquet = _pyarrow()
    try:
        table = parquet.read_table(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path.name} is not a Parquet file, or damaged: {error}") from None
    metadata = table.schema.metadata or {}
    if "value" not in table.column_names or SPEC_KEY.encode() not in metadata:
        raise ValueError(f"{path.name} needs a column 'value' and schema metadata {SPEC_KEY!r} (the mechanism's spec)")
    column, spec = table["value"].combine_chunks(), metadata[SPEC_KEY.encode()].decode()
    fixed = pa.types.is_fixed_size_list(column.type)
    rows = fixed or pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    # what is null is left out of the lists when they are put together, or becomes NaN or None
    nulls = column.null_count + (column.flatten().null_count if rows else 0)
    if nulls:
        raise ValueError(
            f"{path.name} has nulls in its column 'value', {nulls} of them: each record must have its value"
        )
    if fixed:
        return column.flatten().to_numpy(zero_copy_only=False).reshape(-1, column.type.list_size), spec
    return column.to_pylist() if rows else column.to_numpy(zero_copy_only=False), spec


def _pyarrow():
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError("Parquet release files need pyarrow: pip install 'ldpbayes[parquet]', or use .npz") from None
    return pyarrow, pyarrow.parquet
