"""Files of RAPPOR's collectors: counts of bits by cohort, a map of candidates, and the parameters."""

import csv
import os
import pathlib

import numpy as np

from ldpbayes.data.category_sketches import BitCounts
from ldpbayes.data.readers.files import CsvFile, FileError
from ldpbayes.mechanisms import Rappor
from ldpbayes.numerics.arrays import equal_pairs


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
    table = CsvFile(pathlib.Path(params))
    table.read(table.columns([*"khmpqf"]))
    if len(table.lines) > 1:
        raise FileError(f"{params}, line {table.lines[1]}: a second row of parameters; all cohorts have the same ones")
    stated = {name: float(table.numbers(name)[0]) for name in "khmpqf"}
    for name in "khm":
        if not (stated[name].is_integer() and 1 <= stated[name] < 1 << 31):
            problem = f"column {name!r} holds {stated[name]:g}, which is not a whole number above 0"
            raise FileError(f"{params}, line {table.lines[0]}: {problem}")
    width, hashes, cohorts = (int(stated[name]) for name in "khm")
    table = CsvFile(pathlib.Path(counts), headless=True)
    table.read(table.names)
    values = np.stack([table.numbers(name) for name in table.names], axis=-1)
    if values.shape != (cohorts, width + 1):
        allowed = f"{cohorts} rows of a number of reports and {width} sums"
        raise FileError(f"{counts} has {len(values)} rows of {values.shape[1]} numbers, but {params} states {allowed}")
    for row, place in np.argwhere((values > values[:, :1]) | (values < 0) | (values != np.floor(values))):
        problem = f"{values[row, place]:g} is not a whole number from 0 to the number of reports, {values[row, 0]:g}"
        raise FileError(f"{counts}, line {table.lines[row]}, column {place + 1}: {problem}")
    if not pathlib.Path(map).is_file():
        raise FileError(f"no file {map}")
    with open(map, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, skipinitialspace=True)
        candidates = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(row)]
    if not candidates:
        raise FileError(f"{map} has no candidates")
    bits = np.zeros((cohorts, len(candidates), width), np.uint8)
    for row, (line, (_, *cells)) in enumerate(candidates):
        for place, cell in enumerate(cells, start=2):
            bit = int(cell) - 1 if cell.isdecimal() else -1
            if cell and not 0 <= bit < cohorts * width:
                allowed = f"a bit from 1 to {cohorts * width} ({cohorts} cohorts of {width}, as {params} states)"
                raise FileError(f"{map}, line {line}, column {place}: {cell!r} is not {allowed}")
            if cell:
                bits[bit // width, row, bit % width] = 1
        number = bits[:, row].sum(axis=1)
        for cohort in np.flatnonzero((number == 0) | (number > hashes)):
            problem = f"{number[cohort]} bits in cohort {cohort + 1}, but a candidate has 1 to {hashes}"
            raise FileError(f"{map}, line {line}: {problem}, as {params} states")
    words = [cells[0] for _, cells in candidates]
    for what, rows in (("bits, and cannot be told apart", np.moveaxis(bits, 1, 0)), ("word", np.array(words))):
        if pairs := equal_pairs(rows):
            lines = ", ".join(f"{candidates[i][0]} and {candidates[j][0]}" for i, j in pairs)
            raise FileError(f"{map}: the candidates in lines {lines} have the same {what}")
    mechanism = Rappor(bits, hashes, stated["p"], stated["q"], stated["f"], rest=rest)
    return BitCounts(mechanism, values[:, 1:], values[:, 0], about={"levels": words})
