"""Read results of the library OpenDP: released data frames become noisy tables, and measurements become mechanisms."""

import json
import math
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ldpbayes._core.checks import ArgumentError, guess, require
from ldpbayes._core.tabular import column, columns_of, is_missing
from ldpbayes.data._tables import NoisyTable
from ldpbayes.data.readers import Contents, format_of, reader
from ldpbayes.mechanisms import AdditiveMechanism, Floored, Mechanism, RandomizedResponse, SymmetricUnaryEncoding
from ldpbayes.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace

__all__ = ["read_mechanism", "read_table"]

OPENDP_NOISES: dict[Any, Any] = {"Integer Laplace": DiscreteLaplace, "Integer Gaussian": DiscreteGaussian}
OPENDP_NOISES |= {"Float Laplace": Laplace, "Float Gaussian": Gaussian}
RESTATING_FUNCTIONS = {"make_pureDP_to_zCDP", "make_zCDP_to_approxDP", "make_fix_delta", "make_approximate"}
"""Measurements that state the privacy of another one in other terms."""
FINE_GRID_PER_SCALE = 1e-6  # of the scale: on a grid as fine as this, noise on floats is continuous


def read_table(
    released: Any,
    summary: Any,
    value: str,
    keys: str | Sequence[str] | None = None,
    *,
    cells: Any = None,
    signed: bool | None = None,
    **options: Any,
) -> NoisyTable:
    """Read a noisy table from a data frame that an OpenDP query released; ``docs/how_to/opendp.md`` has examples.

    OpenDP need not be installed. The summary of the query has the law and the scale of the noise. By default, OpenDP
    releases 0 in place of negative counts: the table then has the reporting rule `Floored`. A query with a threshold
    omits the rows whose noisy count is at most the threshold. With ``cells``, they are in the table, too: their counts
    are known to be small (reporting rule `Withheld`), and their values in other columns are missing.

    Parameters
    ----------
    released, summary : data frame, dict of columns, or path of a CSV or Parquet file
        The released data, ``query.release().collect()``, and the summary of this query, ``query.summarize()``.
    value : str
        Name of a released column of counts or sums. Raises ValueError for quantiles, and for means, which are ratios of
        two noisy numbers: query ``sum`` and ``len`` instead, and divide their posterior draws.
    keys : str or sequence of str, optional
        Names of the key columns, as in `NoisyTable.from_frame`. Default: all columns that are not in the summary.
    cells : data frame, dict of columns, or path, optional
        Only for queries with a threshold: the labels of all cells that could have been released. Choose these cells
        without looking at the released rows, otherwise results are wrong. Default: only the released cells.
    signed : bool, optional
        True if negative numbers can be released. Default: True unless the column has an unsigned type, which CSV files
        do not store.
    **options
        Options of `NoisyTable.from_frame`: ``sensitivity``, ``privacy``, ``neighbours`` and ``times``.
    """
    columns, stated = read_released(released, keys or [], [value], summary=summary, cells=cells, signed=signed)
    return NoisyTable.from_frame(columns, **stated, **options)


@reader("opendp")
def read_released(
    released: Any,
    keys: str | Sequence[str],
    numbers: Sequence[str],
    *,
    summary: Any,
    cells: Any = None,
    signed: bool | None = None,
) -> Contents:
    """Columns of released data, frames or files, and the noise of one of them, as `read_table` describes them."""
    keys, value = [keys] if isinstance(keys, str) else [*keys], numbers[0]
    columns, rows = _columns(released, keys), _rows(_columns(summary))
    matches = [row for row in rows if row["column"] == value]
    if not matches:
        names = [row["column"] for row in rows]
        raise ValueError(f"the summary has no column {value!r}{guess(value, names)}; it has {', '.join(names)}")
    if len(matches) > 1:
        parts = " and ".join(row["aggregate"] for row in matches)
        advice = "query each of them as a separate column, and combine their posterior draws"
        raise ValueError(f"column {value!r} is computed from several noisy numbers ({parts}): {advice}")
    query = matches[0]
    if query["distribution"] not in OPENDP_NOISES:
        raise ArgumentError(f"noise of column {value!r}", f"one of {', '.join(OPENDP_NOISES)}", query["distribution"])
    values, law = column(columns, value), OPENDP_NOISES[query["distribution"]]
    names = keys or [name for name in columns if name not in {row["column"] for row in rows}]
    if signed is None and law.discrete and values.dtype.kind not in "iu":
        why = "which does not show if negative numbers are possible: give signed=True or signed=False"
        raise ValueError(f"column {value!r} holds {values.dtype}, {why}")
    signed = values.dtype.kind != "u" if signed is None else signed
    labels = {name: column(columns, name) for name in names}
    if cells is not None:
        if all(row["threshold"] is None for row in rows):
            raise ValueError("cells= is only for a query with a threshold, and this query released all rows")
        released_labels, wanted = labels, _columns(cells, names)
        labels = {name: column(wanted, name) for name in names}
        place = {cell: row for row, cell in enumerate(_tuples(released_labels))}
        if strangers := place.keys() - {*_tuples(labels)}:
            raise ValueError(f"cells= lacks {len(strangers)} released cells, such as {min(map(str, strangers))}")
        # position -1 is that of NaN
        values = np.append(values.astype(float), np.nan)[[place.get(cell, -1) for cell in _tuples(labels)]]
    # OpenDP prints whole numbers *above* its threshold, `Withheld` from its threshold on.
    threshold = None if query["threshold"] is None else query["threshold"] + 1
    stated = {"value": value, "keys": names, "noise": law, "scale": float(query["scale"]), "threshold": threshold}
    return Contents({**labels, value: values}, stated | {"floor": None if signed or threshold else 0})


def read_mechanism(measurement: Any, *, d_in: float | None = None, categories: int | None = None) -> Mechanism:
    """Read the mechanism of an OpenDP measurement; ValueError if it is none of these.

    - Randomized response becomes `RandomizedResponse`. Its codes 0, 1, ... are the positions in the list ``categories``
      of OpenDP, or False and True.
    - Laplace and Gaussian noise on a number or a vector become an `AdditiveMechanism`, of discrete noise for integers.
      For unsigned integers, negative results are released as 0 (reporting rule `Floored`).
    - Of a chain of transformations and a measurement, the result is the mechanism for the transformed data.

    Parameters
    ----------
    measurement : opendp.mod.Measurement or str
        A measurement, such as ``query.resolve()``, or its text from ``opendp.prelude.serialize``. Use only texts from a
        trusted source, because OpenDP, which must be installed, calls the functions whose names are in the text. Call
        ``opendp.prelude.enable_features`` for all features that the measurement needs.
    d_in : float, optional
        The largest distance of two data sets that differ in one person, in the input metric of the measurement, for the
        sensitivity. Default: unknown, without a guarantee.
    categories : int, optional
        For randomized response on bits, of which exactly one is 1 and encodes a category: the number of bits, for a
        `SymmetricUnaryEncoding`. Default: the `RandomizedResponse` of a single bit. OpenDP before version 0.15.0 did
        not randomize the last bit (issue 2707).
    """
    require("opendp", "opendp")
    import opendp.prelude as dp

    def rebuilt(json_part: Any) -> Any:
        return dp.deserialize(json.dumps(json_part))

    part = json.loads(measurement if isinstance(measurement, str) else dp.serialize(measurement))
    while part.get("__function__") in RESTATING_FUNCTIONS | {"make_chain_mt"}:
        arguments = part["__kwargs__"]
        if d_in is not None and "transformation0" in arguments:
            d_in = rebuilt(arguments["transformation0"]).map(d_in)
        part = arguments.get("measurement1", arguments.get("measurement"))
    name, arguments = part.get("__function__"), part.get("__kwargs__", {})
    if name in ("make_randomized_response", "make_randomized_response_bool"):
        others = len(arguments.get("categories", (False, True))) - 1
        return RandomizedResponse(_log_odds(arguments["prob"]) + math.log(others), others + 1)
    if name == "make_randomized_response_bitvec":
        log_odds = _log_odds(1 - arguments["f"] / 2)
        return RandomizedResponse(log_odds) if categories is None else SymmetricUnaryEncoding(2 * log_odds, categories)
    if name not in ("make_laplace", "make_gaussian"):
        allowed = "make_randomized_response, ..._bool or ..._bitvec, make_laplace or make_gaussian"
        raise ValueError(f"measurement must be made by {allowed}, got {name}; for data frames use read_table")
    kind, scale, k = str(rebuilt(arguments["input_domain"]).carrier_type), arguments["scale"], arguments["k"]
    number = re.fullmatch(r"(?:Vec<)?([iuf])(?:\d+|size)>?", kind)
    if number is None or (k is not None and 2.0**k > FINE_GRID_PER_SCALE * scale):
        grid = "" if k is None else f" on a grid of 2^{k}"
        allowed = f"integers, or floats on a grid finer than {FINE_GRID_PER_SCALE:g} scales"
        raise ValueError(f"measurement must take {allowed}, got {kind}{grid}")
    law = OPENDP_NOISES[f"{'Float' if number[1] == 'f' else 'Integer'} {name.removeprefix('make_').capitalize()}"]
    mechanism = AdditiveMechanism(law(scale), sensitivity=math.inf if d_in is None else float(d_in))
    return Floored(mechanism) if number[1] == "u" else mechanism


def _rows(summary: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Rows of a summary, with None for what is missing; ValueError without the columns of one."""
    columns = {name: column(summary, name).tolist() for name in ("column", "aggregate", "distribution", "scale")}
    columns["threshold"] = np.asarray(summary.get("threshold", [None] * len(columns["scale"]))).tolist()
    rows = zip(*columns.values(), strict=True)
    return [{n: None if is_missing(entry) else entry for n, entry in zip(columns, row, strict=True)} for row in rows]


def _columns(source: Any, words: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Columns of a data frame, or of a file of one."""
    is_path = isinstance(source, str | os.PathLike)
    return columns_of(format_of(source, None)[1].read(source, words, ()).columns if is_path else source)


def _tuples(labels: dict[str, np.ndarray]) -> list[tuple]:
    return [*zip(*(column_labels.tolist() for column_labels in labels.values()), strict=True)]


def _log_odds(probability: float) -> float:
    return math.log(probability / (1 - probability)) if probability < 1 else math.inf
