"""Parquet files, and columns of Arrow as arrays of released values."""

import os
from collections.abc import Sequence
from typing import Any

from ldpbayes._core.archive import reading, refuse_growth
from ldpbayes._core.checks import missing
from ldpbayes._core.tabular import columns_of
from ldpbayes.data.readers import Contents, reader

SPEC_KEY = "ldpbayes.mechanism"  # of a mechanism's spec, in the metadata of a schema


def pyarrow() -> Any:
    try:
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        raise ImportError(missing("Parquet files, and CSV files in parts, need pyarrow", "parquet")) from None
    return pyarrow


def parquet_file(source: Any) -> Any:
    """A Parquet file, open; ValueError if it claims more rows or bytes than it can hold."""
    file = pyarrow().parquet.ParquetFile(source, page_checksum_verification=True)
    groups = [file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups)]
    stored = os.path.getsize(source) if isinstance(source, str | os.PathLike) else source.seek(0, os.SEEK_END)
    refuse_growth(stored, max(file.metadata.num_rows, sum(groups)))
    return file


def spec_text(file: Any) -> str:
    """The spec of the mechanism that a Parquet file states; empty if it states none."""
    return (file.schema_arrow.metadata or {}).get(SPEC_KEY.encode(), b"").decode()


def values_of(column: Any, what: str) -> Any:
    """A column, numbers or lists of them, as an array or a list of lists; ValueError, which says what, for nulls."""
    pa, column = pyarrow(), column.combine_chunks() if hasattr(column, "combine_chunks") else column
    fixed = pa.types.is_fixed_size_list(column.type)
    rows = fixed or pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    # PyArrow leaves nulls out where it puts lists together, and elsewhere makes NaN or None of them.
    nulls = column.null_count + (column.flatten().null_count if rows else 0)
    if nulls:
        raise ValueError(f"{what}, {nulls} of them: each record must have a value")
    if fixed:
        return column.flatten().to_numpy(zero_copy_only=False).reshape(-1, column.type.list_size)
    return column.to_pylist() if rows else column.to_numpy(zero_copy_only=False)


@reader("parquet", ".parquet")
def read_columns(path: str | os.PathLike, keys: Sequence[str], numbers: Sequence[str]) -> Contents:
    """All columns of a Parquet file."""
    with reading(path) as file:
        return Contents(columns_of(parquet_file(file).read()))
