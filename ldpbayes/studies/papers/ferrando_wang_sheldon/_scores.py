"""What is said of intervals: coverage with its band and verdict, tails, widths and bias; and tables of that."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ldpbayes.studies._coverage import binomial_band
from ldpbayes.studies.papers.ferrando_wang_sheldon._trials import LEVEL

__all__ = ["scores", "table"]

MARKS = {"inside": " ", "below": "-", "above": "+"}
CURVE = ("setting", "parameter", "epsilon", "count", "threshold", "method")
SHARES = ("coverage", "left", "right", "outside")
ACROSS = {"bias correction": "threshold", "budgets": "epsilon"}
"""Along what the curves of a part run, if not along the number of records."""
APART = ("bias correction",)
"""Parts in which every setting has its own points."""


def scores(
    label: dict[str, Any], names: Sequence[str], truth: Any, found: Any, fisher: Any = None
) -> list[dict[str, Any]]:
    """Rows for one method, one a parameter that it has intervals of.

    Parameters
    ----------
    label : dict
        What the row is of.
    names : sequence of str
        Of the parameters.
    truth : array (p,)
        Their true values.
    found : tuple of array (trials, p)
        Estimates, lower and upper ends.
    fisher : tuple of array (trials, p), optional
        The same of what is not private.

    Returns
    -------
    list of dict
        With ``parameter``, ``coverage``, ends ``low`` and ``high`` of the 99 % binomial band, ``verdict`` (inside,
        below or above it), ``left`` and ``right`` (shares of intervals above and below the truth), mean ``width``,
        its ratio ``relative_width`` to that of intervals that are not private, ``bias`` with its standard error
        ``bias_error``, and ``rmse``.
    """
    rows = []
    for j, name in enumerate(names):
        estimate, low, high = (np.asarray(part)[:, j] for part in found)
        if np.isnan(low).all():
            continue
        size, miss = len(estimate), estimate - truth[j]
        left, right = int(np.sum(low > truth[j])), int(np.sum(high < truth[j]))
        covered = size - left - right
        least, most = binomial_band(size, LEVEL)
        rows.append(
            label
            | {"parameter": name, "coverage": covered / size, "low": least / size, "high": most / size}
            | {"verdict": "below" if covered < least else "above" if covered > most else "inside"}
            | {"left": left / size, "right": right / size, "width": float(np.mean(high - low))}
            | {"bias": float(np.mean(miss)), "bias_error": float(np.std(miss) / np.sqrt(size))}
            | {"rmse": float(np.sqrt(np.mean(miss**2)))}
        )
        if fisher is not None:
            rows[-1]["relative_width"] = float(np.mean(high - low) / np.mean((fisher[2] - fisher[1])[:, j]))
    return rows


def table(rows: Sequence[dict[str, Any]], value: str = "coverage") -> str:
    """Rows of a figure as text: a curve a line, the parts of a figure below one another.

    Parameters
    ----------
    rows : sequence of dict
        From `figure_1`, `figure_2`, `figure_3` or `appendix`.
    value : str
        What is printed of them: ``coverage``, ``width``, ``bias``, ... Coverages below their 99 % band are marked
        with -, those above with +.

    Returns
    -------
    str
    """
    parts: dict[tuple, list] = {}
    for row in rows:
        part = row.get("part")
        parts.setdefault((part, row["setting"] if part in APART else None), []).append(row)
    return "\n\n".join(_part(of_part, value) for of_part in parts.values())


def _part(rows: Sequence[dict[str, Any]], value: str) -> str:
    part = rows[0].get("part")
    across = ACROSS.get(str(part), "count")
    curve = [key for key in CURVE if key in rows[0] and key != across]
    points = sorted({row[across] for row in rows})
    lines: dict[tuple, dict] = {}
    for row in rows:
        text = f"{row[value]:.3f}" if value in SHARES else f"{row[value]:.4g}"
        mark = MARKS[row["verdict"]] if value == "coverage" else ""
        lines.setdefault(tuple(str(row[key]) for key in curve), {})[row[across]] = text + mark
    heads = [[*curve, *(f"{across} {point:g}" if i == 0 else f"{point:g}" for i, point in enumerate(points))]]
    body = [[*line, *(cells.get(point, "") for point in points)] for line, cells in lines.items()]
    widths = [max(len(line[i]) for line in heads + body) for i in range(len(heads[0]))]

    def padded(line: list[str]) -> str:
        pieces = enumerate(zip(line, widths, strict=True))
        return "  ".join(text.ljust(w) if i < len(curve) else text.rjust(w) for i, (text, w) in pieces).rstrip()

    title = [] if part is None else [f"{part}: {value}"]
    return "\n".join([*title, *map(padded, heads + body)])
