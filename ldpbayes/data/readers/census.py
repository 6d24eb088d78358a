"""Noisy measurement files as the U.S. Census Bureau publishes them: Parquet, an array of noisy answers a row."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ldpbayes._core.checks import require
from ldpbayes.data._tables import NoisyTable
from ldpbayes.data.readers import Contents, reader


def read_measurements(
    path: str | os.PathLike | Sequence[str],
    query: str,
    geocodes: str = "",
    *,
    axes: Mapping[str, Sequence[Any]] | None = None,
    **options: Any,
) -> NoisyTable:
    """Read the noisy counts of one query (a cross table) from a noisy measurement file of the U.S. Census Bureau.

    Each row of the file is for one area, with the columns ``geocode``, ``query_name``, ``query_shape``, ``value`` (the
    noisy counts, as a flat list in C order) and ``variance`` (of the noise, for all counts or for each count). The keys
    of the table are ``geocode`` and the axes of the query.

    Parameters
    ----------
    path : str, path-like or sequence of str
        A Parquet file, a folder of Parquet files, or several of them. Raises ImportError without pyarrow.
    query, geocodes : str
        Name of the query, as in the column ``query_name`` (ValueError if no row has it), and the beginning of the
        geocodes of the areas that are read. Default: all areas.
    axes : dict of str to sequence, optional
        For each axis of the query that has more than one entry, its name and the labels of its entries, such as
        ``{"sex": ["male", "female"]}``. Default: names ``axis_0``, ``axis_1``, ..., and labels 0, 1, ...
    **options
        Options of `NoisyTable.from_frame`, for example ``privacy``, or ``noise`` (default: "discrete_gaussian").
    """
    columns, stated = read_answers(path, query=query, geocodes=geocodes, axes=axes)
    return NoisyTable.from_frame(columns, **{**stated, **options})


@reader("census")
def read_answers(
    path: str | os.PathLike | Sequence[str],
    keys: Sequence[str] = (),
    numbers: Sequence[str] = (),
    *,
    query: str,
    geocodes: str = "",
    axes: Mapping[str, Sequence[Any]] | None = None,
) -> Contents:
    """The answers to a query, as `read_measurements` describes them, with the variance of their noise."""
    require("parquet", "pyarrow")
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    data = ds.dataset(path, format="parquet")
    wanted = (pc.field("query_name") == query) & pc.starts_with(pc.field("geocode"), geocodes)
    rows = data.to_table(["geocode", "query_shape", "value", "variance"], filter=wanted)
    if not rows.num_rows:
        names = sorted({name for batch in data.to_batches(["query_name"]) for name in pc.unique(batch[0]).to_pylist()})
        raise ValueError(f"no query {query!r} for geocodes {geocodes!r} in {path}: the file has {', '.join(names)}")
    shapes = {tuple(shape) for shape in rows["query_shape"].to_pylist()}
    size, lengths = math.prod(min(shapes)), pc.unique(pc.list_value_length(rows["value"])).to_pylist()
    shape = [places for places in min(shapes) if places > 1]
    labels = {f"axis_{i}": range(places) for i, places in enumerate(shape)} if axes is None else axes
    if len(shapes) > 1 or lengths != [size] or [*map(len, labels.values())] != shape:
        got = f"shapes {sorted(shapes)}, and {lengths} values in each row"
        raise ValueError(f"query {query!r} has {got}; axes must label each axis with several places, got {axes!r}")
    spread, columns = rows["variance"].combine_chunks(), {"geocode": np.repeat(rows["geocode"].to_numpy(), size)}
    for (key, each), place in zip(labels.items(), np.indices(shape), strict=True):
        columns[key] = np.tile(np.asarray(each)[place.ravel()], rows.num_rows)
    stated = {"value": "value", "keys": [*columns], "noise": "discrete_gaussian", "variance": "variance"}
    columns["value"] = pc.list_flatten(rows["value"]).to_numpy()
    columns["variance"] = spread.flatten() if pa.types.is_nested(spread.type) else np.repeat(spread, size)
    return Contents(columns, stated)
