"""Results of OpenDP: released data frames as noisy tables, and the mechanisms of its measurements."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ldpbayes._core.checks import guess, require
from ldpbayes.data import NoisyTable
from ldpbayes.data.frames import column, columns_of, is_missing
from ldpbayes.mechanisms import AdditiveMechanism, Floored, Mechanism, RandomizedResponse, SymmetricUnaryEncoding
from ldpbayes.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace

__all__ = ["read_mechanism", "read_table"]

LAWS: dict[Any, Any] = {"Integer Laplace": DiscreteLaplace, "Integer Gaussian": DiscreteGaussian}
LAWS |= {"Float Laplace": Laplace, "Float Gaussian": Gaussian}
RESTATED = {"make_pureDP_to_zCDP", "make_zCDP_to_approxDP", "make_fix_delta", "make_approximate"}
"""Measurements that state the privacy of another one in other terms."""
FINEST = 1e-6  # of the scale: on a grid as fine as this, noise on floats is continuous


def read_table(
    released: Any,
    summary: Any,
    value: str,
    keys: str | Sequence[str] | None = None,
    *,
    cells: Any = None,
    signed: bool | None = None,
    sensitivity: float | None = None,
    privacy: str | None = None,
) -> NoisyTable:
    """Read a noisy table from a column of a data frame that an OpenDP query released; see ``docs/how_to/opendp.md``.

    The summary names the noise and its scale. Numbers of an unsigned type, OpenDP's default for counts, are printed as
    0 if the noisy number is negative (`Floored`). A query with a threshold omits rows whose noisy count is at most the
    threshold. With `cells`, such a count is `Withheld`, and other columns are missing. OpenDP need not be installed.

    Parameters
    ----------
    released : data frame or dict of columns
        ``query.release().collect()``.
    summary : data frame or dict of columns
        ``query.summarize()`` of the same query.
    value : str
        Name of a column with one noise. Raises ValueError for quantiles, and for means, which divide two noisy numbers:
        query ``sum`` and ``len`` instead, and divide draws of them.
    keys : str or sequence of str, optional
        Names of the columns of keys, outermost first. Default: all columns that are not in the summary.
    cells : data frame or dict of columns, optional
        For queries with a threshold: keys of all cells that could have been released, chosen without looking at the
        data (otherwise withheld cells say less than the likelihood assumes). Default: the released rows only.
    signed : bool, optional
        True if negative numbers are released. Default: by the type of the column, which a CSV file does not keep.
    sensitivity, privacy : float, str, optional
        See `NoisyTable.from_frame`: the largest change of a value by one person, which a summary omits; a statement.
    """
    columns, rows = columns_of(released), _rows(columns_of(summary))
    own = [row for row in rows if row["column"] == value]
    if not own:
        known = [row["column"] for row in rows]
        raise ValueError(f"the summary has no column {value!r}{guess(value, known)}; it has {', '.join(known)}")
    if len(own) > 1:
        parts = " and ".join(row["aggregate"] for row in own)
        advice = "query them as columns of their own, such as sum and len, and divide draws of the two"
        raise ValueError(f"column {value!r} is made of several noisy numbers, {parts}, and has no law here: {advice}")
    made = own[0]
    if made["distribution"] not in LAWS:
        raise ValueError(f"column {value!r} has {made['distribution']} as its distribution, not {', '.join(LAWS)}")
    values, law = column(columns, value), LAWS[made["distribution"]]
    names = [name for name in columns if name not in {row["column"] for row in rows}] if keys is None else keys
    names = [names] if isinstance(names, str) else [*names]
    if signed is None and law.discrete and values.dtype.kind not in "iu":
        why = "which does not tell whether negative numbers were released: say signed=True or signed=False"
        raise ValueError(f"column {value!r} holds {values.dtype}, {why}")
    signed = values.dtype.kind != "u" if signed is None else signed
    labels = {name: column(columns, name) for name in names}
    if cells is not None:
        if all(row["threshold"] is None for row in rows):
            raise ValueError("cells= is for a query with a threshold; the summary has none, so no row is left out")
        released_labels, wanted = labels, columns_of(cells)
        labels = {name: column(wanted, name) for name in names}
        place = {cell: row for row, cell in enumerate(_tuples(released_labels))}
        if strangers := place.keys() - {*_tuples(labels)}:
            raise ValueError(f"cells= lacks {len(strangers)} released cells, such as {min(map(str, strangers))}")
        # position -1 is that of NaN
        values = np.append(values.astype(float), np.nan)[[place.get(cell, -1) for cell in _tuples(labels)]]
    # OpenDP prints whole numbers *above* its threshold, `Withheld` from its threshold on.
    threshold = None if made["threshold"] is None else made["threshold"] + 1
    return NoisyTable.from_frame(
        {**labels, value: values},
        value,
        names,
        law,
        scale=float(made["scale"]),
        sensitivity=sensitivity,
        privacy=privacy,
        floor=None if signed or threshold else 0,
        threshold=threshold,
    )


def read_mechanism(measurement: Any, *, d_in: float | None = None, categories: int | None = None) -> Mechanism:
    """Read the mechanism of an OpenDP measurement from the arguments of its constructor.

    Randomized response becomes `RandomizedResponse`; its codes are positions in OpenDP's ``categories``, or False and
    True. Laplace and Gaussian noise on a number or vector become an `AdditiveMechanism`, with discrete noise for
    integers, and `Floored` at 0 for unsigned integers. For a chain, the result is the mechanism after the
    transformations.

    Parameters
    ----------
    measurement : opendp.mod.Measurement or str
        A measurement, such as ``query.resolve()``, or its text from ``opendp.prelude.serialize``. The text must be from
        a trusted source: OpenDP calls the functions that it names. Enable the features of OpenDP that it needs. Raises
        ImportError without OpenDP. Raises ValueError for other measurements.
    d_in : float, optional
        Distance of two inputs that differ in one person, in the input metric, which determines the sensitivity; for
        vectors, a bound for each value. Default: no guarantee is known.
    categories : int, optional
        For bit vectors with exactly one bit set: their length; the mechanism is then `SymmetricUnaryEncoding`. Default:
        the `RandomizedResponse` of one bit. Before version 0.15.0, OpenDP did not randomize the last bit (issue 2707).
    """
    require("opendp", "opendp")
    import opendp.prelude as dp

    def rebuilt(part: Any) -> Any:
        return dp.deserialize(json.dumps(part))

    made = json.loads(measurement if isinstance(measurement, str) else dp.serialize(measurement))
    while made.get("__function__") in RESTATED | {"make_chain_mt"}:
        arguments = made["__kwargs__"]
        if d_in is not None and "transformation0" in arguments:
            d_in = rebuilt(arguments["transformation0"]).map(d_in)
        made = arguments.get("measurement1", arguments.get("measurement"))
    name, arguments = made.get("__function__"), made.get("__kwargs__", {})
    if name in ("make_randomized_response", "make_randomized_response_bool"):
        others = len(arguments.get("categories", (False, True))) - 1
        return RandomizedResponse(_log_odds(arguments["prob"]) + math.log(others), others + 1)
    if name == "make_randomized_response_bitvec":
        log_odds = _log_odds(1 - arguments["f"] / 2)
        return RandomizedResponse(log_odds) if categories is None else SymmetricUnaryEncoding(2 * log_odds, categories)
    if name not in ("make_laplace", "make_gaussian"):
        allowed = "make_randomized_response, ..._bool or ..._bitvec, make_laplace or make_gaussian"
        raise ValueError(f"measurement must be made by {allowed}, got {name}; read_table reads queries of data frames")
    kind, scale, k = str(rebuilt(arguments["input_domain"]).carrier_type), arguments["scale"], arguments["k"]
    number = re.fullmatch(r"(?:Vec<)?([iuf])(?:\d+|size)>?", kind)
    if number is None or (k is not None and 2.0**k > FINEST * scale):
        grid = "" if k is None else f" on a grid of 2^{k}"
        raise ValueError(f"measurement must be of numbers, floats on a grid below {FINEST:g} scales, got {kind}{grid}")
    law = LAWS[f"{'Float' if number[1] == 'f' else 'Integer'} {name.removeprefix('make_').capitalize()}"]
    mechanism = AdditiveMechanism(law(scale), sensitivity=math.inf if d_in is None else float(d_in))
    return Floored(mechanism) if number[1] == "u" else mechanism


def _rows(summary: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Rows of a summary, with None for what is missing; ValueError without the columns of one."""
    names = ("column", "aggregate", "distribution", "scale")
    columns = {name: column(summary, name).tolist() for name in names}
    columns["threshold"] = np.asarray(summary.get("threshold", [None] * len(columns["scale"]))).tolist()
    rows = zip(*columns.values(), strict=True)
    return [{name: None if is_missing(each) else each for name, each in zip(columns, row, strict=True)} for row in rows]


def _tuples(labels: dict[str, np.ndarray]) -> list[tuple]:
    return [*zip(*(each.tolist() for each in labels.values()), strict=True)]


def _log_odds(probability: float) -> float:
    return math.log(probability / (1 - probability)) if probability < 1 else math.inf
