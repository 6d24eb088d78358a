"""Files of RAPPOR's collectors: counts of bits by cohort, a map of candidates, and the parameters."""

import csv
import os
import pathlib

import numpy as np

from ldpbayes.data.category_sketches import BitCounts
from ldpbayes.data.readers.files import FileError
from ldpbayes.mechanisms import Rappor
from ldpbayes.numerics.arrays import equal_pairs

PARAMETERS = "khmpqf"  # names of columns


def read_rappor(
    counts: str | os.PathLike, map: str | os.PathLike, params: str | os.PathLike, *, rest: bool = True
) -> BitCounts:
    """Read counts of bits in the layout of ``counts.csv``, ``map.csv`` and ``params.csv`` of the program of [EPK].

    Parameters
    ----------
    counts : str or path-like
        Without names of columns: for each cohort a row with its number of reports, then the sums of its bits.
    map : str or path-like
        Without names of columns: for each candidate a row with its word and the bits that it sets, numbered from 1 on
        through all cohorts; empty cells count for nothing.
    params : str or path-like
        The names ``k,h,m,p,q,f``, and below them k bits, h hash functions, m cohorts, and probabilities of `Rappor`.
    rest : bool
        Whether there are values that are no candidates. Default: True.

    Raises
    ------
    ValueError
        If a file does not fit, with its line and column; if candidates have the same bits, with their lines.
    """
    (_, names), *rows = _rows(params)
    if {*names} != {*PARAMETERS} or len(rows) != 1 or len(rows[0][1]) != len(names):
        raise FileError(f"{params}: it must have the names {','.join(PARAMETERS)} in line 1, their values in line 2")
    line, cells = rows[0]
    stated = {name: _number(params, line, place, cells[place], name in "khm") for place, name in enumerate(names)}
    width, hashes, cohorts = (int(stated[name]) for name in "khm")
    table = _rows(counts)
    if len(table) != cohorts:
        raise FileError(f"{counts} has {len(table)} rows, but {params} states {cohorts} cohorts")
    for line, cells in table:
        if len(cells) != width + 1:
            allowed = f"the number of reports and {width} sums of bits, as {params} states"
            raise FileError(f"{counts}, line {line}: {len(cells)} cells, but a row has {allowed}")
    values = np.array([[_number(counts, line, j, cell) for j, cell in enumerate(cells)] for line, cells in table])
    if (beyond := np.argwhere(values > values[:, :1])).size:
        row, place = beyond[0]
        problem = f"the sum {values[row, place]:.0f} of a bit is above the number of reports in column 1"
        raise FileError(f"{counts}, line {table[row][0]}, column {place + 1}: {problem}")
    candidates = _rows(map)
    bits = np.zeros((cohorts, len(candidates), width), np.uint8)
    for row, (line, (_, *cells)) in enumerate(candidates):
        for place, cell in enumerate(cells, start=1):
            if cell:
                bit = int(_number(map, line, place, cell)) - 1
                if not 0 <= bit < cohorts * width:
                    allowed = f"a bit from 1 to {cohorts * width} (of {cohorts} cohorts of {width}, as {params} states)"
                    raise FileError(f"{map}, line {line}, column {place + 1}: {cell} is not {allowed}")
                bits[bit // width, row, bit % width] = 1
        number = bits[:, row].sum(axis=1)
        if (wrong := (number == 0) | (number > hashes)).any():
            cohort = int(np.argmax(wrong))
            problem = f"{number[cohort]} bits in cohort {cohort + 1}, but a candidate has 1 to {hashes}"
            raise FileError(f"{map}, line {line}: {problem}, as {params} states")
    if pairs := equal_pairs(np.moveaxis(bits, 1, 0)):
        lines = ", ".join(f"{candidates[i][0]} and {candidates[j][0]}" for i, j in pairs)
        raise FileError(f"{map}: the candidates in lines {lines} have the same bits, and cannot be told apart")
    mechanism = Rappor(bits, hashes, stated["p"], stated["q"], stated["f"], rest=rest)
    return BitCounts(mechanism, values[:, 1:], values[:, 0], about={"levels": [cells[0] for _, cells in candidates]})


def _rows(path: str | os.PathLike) -> list[tuple[int, list[str]]]:
    """Cells of the rows that are not empty, with their lines."""
    if not pathlib.Path(path).is_file():
        raise FileError(f"no file {path}")
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, skipinitialspace=True)
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(row)]
    if not rows:
        raise FileError(f"{path} is empty")
    return rows


def _number(path: str | os.PathLike, line: int, place: int, cell: str, whole: bool = True) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = np.nan
    if not (0 <= number < 2**53 and (not whole or number == int(number))):
        kind = "a whole number from 0 on" if whole else "a number from 0 on"
        raise FileError(f"{path}, line {line}, column {place + 1}: {cell!r} is not {kind}")
    return number
