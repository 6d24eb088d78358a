"""Release files: values with the spec of their mechanism, as ``.npz`` or ``.parquet`` (see `Release.load`)."""

import json
import pathlib
import zipfile
import zlib
from typing import Any

import numpy as np

from ldpbayes._core.checks import missing

SPEC_KEY = "ldpbayes.mechanism"  # of the spec, in the schema metadata of a Parquet file


def write_release(path: pathlib.Path, values: np.ndarray, spec: dict[str, Any]) -> None:
    text = json.dumps(spec)
    if _is_npz(path):
        np.savez(path, values=values, mechanism=np.array(text))
    else:
        pa = _pyarrow()
        column = pa.FixedSizeListArray.from_arrays(values.ravel(), values.shape[1]) if values.ndim > 1 else values
        pa.parquet.write_table(pa.table({"value": column}).replace_schema_metadata({SPEC_KEY: text}), path)


def read_release(path: pathlib.Path) -> tuple[Any, dict[str, Any]]:
    if not path.exists():
        raise FileNotFoundError(f"no release file {path}")
    values, spec = _read_npz(path) if _is_npz(path) else _read_parquet(path)
    try:
        return values, json.loads(spec)
    except json.JSONDecodeError as error:
        raise ValueError(f"the mechanism spec in {path.name} is not JSON: {error}") from None


def _is_npz(path: pathlib.Path) -> bool:
    if path.suffix not in (".npz", ".parquet"):
        raise ValueError(f"a release file ends in .npz or .parquet, got {path.name!r}")
    return path.suffix == ".npz"


def _read_npz(path: pathlib.Path) -> tuple[Any, str]:
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{path.name} is no .npz file, or not all of one: it does not end as a zip archive does")
    try:
        with np.load(path, allow_pickle=False) as archive:
            absent = {"values", "mechanism"} - set(archive.files)
            if absent:
                raise ValueError(f"{path.name} lacks {' and '.join(sorted(absent))}; it has {', '.join(archive.files)}")
            return _entry(archive, "values", path), str(_entry(archive, "mechanism", path))
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path.name} is damaged: {error}") from None


def _entry(archive: Any, name: str, path: pathlib.Path) -> np.ndarray:
    try:
        entry = archive[name]
    except ValueError as error:
        if "pickle" not in str(error):
            raise ValueError(f"{path.name} is damaged: {error}") from None
        kind = "values as an array of numbers" if name == "values" else "the mechanism's spec as a string of JSON"
        raise ValueError(
            f"{name} in {path.name} is an array of Python objects, which could hold code and is not read; save {kind}, "
            "or write the file with Release.save"
        ) from None
    if not isinstance(entry, np.ndarray):  # NumPy returns an entry of unknown form as bytes
        raise ValueError(f"{path.name} is damaged: {name} in it is no array")
    return entry


def _read_parquet(path: pathlib.Path) -> tuple[Any, str]:
    pa = _pyarrow()
    try:
        table = pa.parquet.read_table(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path.name} is not a Parquet file, or damaged: {error}") from None
    metadata = table.schema.metadata or {}
    if "value" not in table.column_names or SPEC_KEY.encode() not in metadata:
        raise ValueError(f"{path.name} needs a column 'value' and schema metadata {SPEC_KEY!r} (the mechanism's spec)")
    column, spec = table["value"].combine_chunks(), metadata[SPEC_KEY.encode()].decode()
    fixed = pa.types.is_fixed_size_list(column.type)
    rows = fixed or pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    # PyArrow leaves nulls out where it puts lists together, and elsewhere makes NaN or None of them.
    nulls = column.null_count + (column.flatten().null_count if rows else 0)
    if nulls:
        raise ValueError(f"{path.name} has nulls in its column 'value', {nulls} of them: each record must have a value")
    if fixed:
        return column.flatten().to_numpy(zero_copy_only=False).reshape(-1, column.type.list_size), spec
    return column.to_pylist() if rows else column.to_numpy(zero_copy_only=False), spec


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError(missing("Parquet release files, unlike .npz, need pyarrow", "parquet")) from None
    return pyarrow
