"""What Chrome's interfaces of measurement send, as JSON: summary reports, and confidences of navigation timings."""

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ldpbayes._core.checks import ONE_POSITIVE, checked
from ldpbayes.data.readers import Contents, reader
from ldpbayes.data.readers.files import FileError
from ldpbayes.data.release import Release
from ldpbayes.mechanisms import RandomizedResponse

AGGREGATION = "https://github.com/WICG/attribution-reporting-api/blob/main/AGGREGATION_SERVICE_TEE.md"
CONTRIBUTIONS = 65_536  # the most that a source contributes to all buckets
CONFIDENCES = ["low", "high"]


@reader("chrome-summary-report")
def read_summary(path: str | os.PathLike, keys: Sequence[str], numbers: Sequence[str], *, epsilon: float) -> Contents:
    """The metric of each bucket of a summary report of the Aggregation Service, by the hexadecimal bucket."""
    budget, rows = float(checked("epsilon", epsilon, *ONE_POSITIVE)), _objects(path)
    buckets, metrics = (_field(path, rows, name, kind) for name, kind in (("bucket", "U"), ("metric", "i")))
    labels = ["0x" + ("".join(f"{ord(byte):02x}" for byte in bucket).lstrip("0") or "0") for bucket in buckets]
    promise = f"Aggregation Service: epsilon = {budget:g} for one source of contributions ({AGGREGATION})."
    stated = {"value": "metric", "keys": ["bucket"], "noise": "discrete_laplace", "scale": CONTRIBUTIONS / budget}
    return Contents({"bucket": np.array(labels), "metric": np.array(metrics)}, {**stated, "privacy": promise})


def read_confidences(path: str | os.PathLike) -> Release:
    """Codes 0 (low) and 1 (high), each with its `randomizedTriggerRate`, of timings or of their confidences."""
    rows = [row.get("confidence", row) if isinstance(row, dict) else row for row in _objects(path)]
    words = _field(path, rows, "value", "U", "low or high", CONFIDENCES.__contains__)
    between = "at least 0 and below 1", lambda rate: 0 <= rate < 1
    rates = np.array(_field(path, rows, "randomizedTriggerRate", "if", *between), float)
    mechanism = RandomizedResponse(random=rates[0] if (rates == rates[0]).all() else rates)
    return Release(np.array([*map(CONFIDENCES.index, words)]), mechanism, about={"levels": CONFIDENCES})


def _objects(path: str | os.PathLike) -> list[Any]:
    """The objects of a file: a JSON array, or one JSON object in each line."""
    text = pathlib.Path(path).read_text("utf-8").rstrip()
    array, found = text.lstrip().startswith("["), list[Any]()
    for line, part in enumerate([text] if array else text.split("\n"), start=1):
        try:
            found += json.loads(part) if array else [json.loads(part)]
        except json.JSONDecodeError as error:
            raise FileError(f"{path}, line {line + error.lineno - 1}: this is no JSON ({error})") from None
    return found


def _field(path: Any, rows: Sequence[Any], name: str, kinds: str, allowed: str = "", check: Any = bool) -> list[Any]:
    """A field of all objects; FileError where it is absent, or not of the kinds of NumPy's types, or not allowed."""
    values = [row.get(name) if isinstance(row, dict) else None for row in rows]
    for number, value in enumerate(values, start=1):
        if np.asarray(value).dtype.kind not in kinds or (allowed and not check(value)):
            problem = "is missing" if value is None else f"holds {value!r}{allowed and ', and must be '}{allowed}"
            raise FileError(f"{path}, object {number}: the field {name!r} {problem}")
    if not values:
        raise FileError(f"{path} holds no objects")
    return values
