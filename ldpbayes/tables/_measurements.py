"""Noisy measurement files as the U.S. Census Bureau publishes them: Parquet, an array of noisy answers a row."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ldpbayes._core.checks import missing
from ldpbayes.data import NoisyTable


def read_measurements(
    path: str | os.PathLike | Sequence[str],
    query: str,
    geocodes: str | Callable[[str], bool] = "",
    *,
    axes: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    noise: str = "discrete_gaussian",
    **options: Any,
) -> NoisyTable:
    """The answers to a query in a noisy measurement file, a cell each, with the key ``geocode`` and one an axis.

    A row of the file has a ``geocode``, a ``query_name``, the ``query_shape``, the noisy answers ``value`` in C order,
    and the ``variance`` of their noise, a number or one an answer. Other rows are left out while the file is read.

    Parameters
    ----------
    path : str, path-like or sequence of str
        A Parquet file, a folder of them, or several files; ImportError without pyarrow.
    query, geocodes : str, str or callable
        A query's name, and a prefix of the geocodes that are read, or whether one is. ValueError if there is none.
    axes : sequence of str, or dict of str to sequence of str, optional
        Names of the query's axes with several places, and their labels. Default: ``axis_0``, ... and numbers.
    noise, **options
        As of `NoisyTable.from_frame`, such as ``privacy``.
    """
    try:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.dataset as ds
    except ImportError:
        raise ImportError(missing("noisy measurement files need pyarrow", "parquet")) from None
    data, prefix = ds.dataset(path, format="parquet"), geocodes if isinstance(geocodes, str) else ""
    wanted = (pc.field("query_name") == query) & pc.starts_with(pc.field("geocode"), prefix)
    rows = data.to_table(["geocode", "query_shape", "value", "variance"], filter=wanted)
    if not isinstance(geocodes, str):
        rows = rows.filter([bool(geocodes(each)) for each in rows["geocode"].to_pylist()])
    if not rows.num_rows:
        known = sorted({name for batch in data.to_batches(["query_name"]) for name in pc.unique(batch[0]).to_pylist()})
        raise ValueError(f"no query {query!r} for geocodes {geocodes!r} in {path}: its queries are {', '.join(known)}")
    shapes = {tuple(shape) for shape in rows["query_shape"].to_pylist()}
    size, lengths = math.prod(min(shapes)), pc.unique(pc.list_value_length(rows["value"])).to_pylist()
    shape = [places for places in min(shapes) if places > 1]
    keys = [f"axis_{number}" for number in range(len(shape))] if axes is None else [*axes]
    labels = [*axes.values()] if isinstance(axes, Mapping) else [range(places) for places in shape]
    if len(shapes) > 1 or lengths != [size] or [*map(len, labels)] != shape or len(keys) != len(shape):
        got = (
            f"shapes {sorted(shapes)}, and {lengths} values a row; axes must name those of several places, got {axes!r}"
        )
        raise ValueError(f"query {query!r} has {got}")
    spread = rows["variance"].combine_chunks()
    columns = {
        key: np.tile(np.asarray(each)[place.ravel()], rows.num_rows)
        for key, each, place in zip(keys, labels, np.indices(shape), strict=True)
    }
    columns["geocode"] = np.repeat(rows["geocode"].to_numpy(), size)
    columns["value"] = pc.list_flatten(rows["value"]).to_numpy()
    columns["variance"] = spread.flatten() if pa.types.is_nested(spread.type) else np.repeat(spread, size)
    return NoisyTable.from_frame(columns, "value", ["geocode", *keys], noise, variance="variance", **options)
