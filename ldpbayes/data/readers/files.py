"""CSV and Parquet files: their columns as numbers and words, and the messages where they are not."""

import csv
import io
import itertools
import math
import os
import pathlib
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ldpbayes._core.archive import reading, refuse_growth
from ldpbayes._core.checks import guess, missing
from ldpbayes._core.tabular import columns_of
from ldpbayes.data.readers import Contents, reader

CSV_ENDINGS = (".csv", ".tsv")
DELIMITERS = ",;\t|"
MISSING_WORDS = {"", "na", "n/a", "nan", "null", "none", "."}
QUOTED_PATTERN = '"[^"]*"'
HEAD_CHARACTERS = 1 << 20  # characters of a file that tell how its cells are divided
ROW_PATTERN = f'([^"\r\n]*(?:{QUOTED_PATTERN}[^"\r\n]*)*)'


class FileError(ValueError):
    """A file cannot be used; the message begins with its name."""


class Notation(NamedTuple):
    """How a CSV file is written; `read_csv` describes the options."""

    encoding: str = "utf-8-sig"
    comment: str = ""
    withheld: str | Sequence[str] = ()
    percent: bool = False
    thousands: str = ""
    decimal: str = "."

    @property
    def plain(self) -> bool:
        """Whether numbers are written as they usually are."""
        return self[2:] == Notation()[2:]

    def options_for(self, cell: str) -> list[str]:
        """The options that a cell needs."""
        mark, point = re.escape(self.thousands), re.escape(self.decimal)
        marks = [self.withheld] if isinstance(self.withheld, str) else map(str, self.withheld)
        grouped = mark and re.match(rf"[-+]?\d{{1,3}}({mark}\d{{3}})+({point}\d*)?%?$", cell)
        needed = {"withheld": cell in marks, "percent": self.percent and cell.endswith("%"), "thousands": grouped}
        needed["decimal"] = self.decimal != "." and self.decimal in cell
        return [name for name, need in needed.items() if need]

    def number(self, cell: str) -> float:
        """The number that a cell holds, NaN if it is none, or is withheld."""
        needed = self.options_for(cell)
        text = cell.replace(self.thousands, "") if "thousands" in needed else cell
        if self.decimal != ".":
            text = text.replace(".", "_").replace(self.decimal, ".")  # with an underscore it is none
        return math.nan if "withheld" in needed else _number(text[:-1]) / 100 if "percent" in needed else _number(text)


#: By the option that reads them, what else numbers may look like.
OTHER_WAYS = {"thousands": Notation(thousands=","), "decimal": Notation(decimal=","), "percent": Notation(percent=True)}


class CsvFile:
    """A CSV file; its first line names the columns, or holds numbers if `headless`: ``x[0]``, ``x[1]``, ...; or `names`
    has them, and cells have tabs between them and no quotation marks around them.
    """

    def __init__(
        self,
        path: pathlib.Path,
        headless: bool = False,
        private: bool = False,
        names: Sequence[str] = (),
        **notation: Any,
    ) -> None:
        self.path = path
        self.private = private  # if so, messages hold no data and no places; the first line could be a record
        self.notation, self.counts = Notation(**notation), Counter[str]()  # cells that have needed an option, by name
        encoding, comment = self.notation[:2]
        if not path.is_file():
            raise FileError(f"no file {path}")
        contents = path.read_bytes()
        try:
            self.text = contents.decode(encoding)
        except (LookupError, UnicodeDecodeError) as error:
            line = contents[: getattr(error, "start", 0)].count(b"\n") + 1
            place = f", line {line}: {error}; for another encoding, {_option('encoding', 'latin-1')}"
            name = encoding.removesuffix("-sig").upper()
            raise FileError(f"{path} is not text in {name}{'' if private else place}") from None
        self._places: list[int] = []  # of the lines in the file, if some are left out
        if comment:
            lines = enumerate(io.StringIO(self.text, newline=""), start=1)
            kept = [(number, line) for number, line in lines if not line.startswith(comment)]
            self._places, self.text = [number for number, _ in kept], "".join(line for _, line in kept)
        self._heads, self._quoting = int(not names), csv.QUOTE_NONE if names else csv.QUOTE_MINIMAL
        self.delimiter = "\t" if names else self._dividing()
        if names:
            self.names = [*names]
            return
        self.names = [name.strip() for _, row in itertools.islice(self._rows(), 1) for name in row]
        numbers = all(not math.isnan(_number(name)) or name.lower() in MISSING_WORDS for name in self.names)
        if not any(self.names) or (numbers and not headless):
            problem = "holds numbers" if any(self.names) else "is empty"
            raise FileError(f"{path}: the first line must be the names of the columns, but it {problem}")
        self._heads = int(not numbers)
        if numbers:
            self.names = [f"x[{j}]" for j in range(len(self.names))]

    def _dividing(self) -> str:
        """The character that divides the first two rows alike; FileError if several do."""
        rows = re.match(f"{ROW_PATTERN}(?:\r\n|\r|\n)?{ROW_PATTERN}", self.text[:HEAD_CHARACTERS])
        first, second = (re.sub(QUOTED_PATTERN, "", row) for row in rows.groups()) if rows else ("", "")
        # A comma in a name or for a decimal does not count where a semicolon divides both rows alike.
        fitting = [mark for mark in DELIMITERS if 0 < first.count(mark) == second.count(mark)]
        if len(fitting) > 1:
            advice = "write names with one of these characters in double quotes, and decimals with a point"
            raise FileError(f"{self.path}: columns could be separated by {' or '.join(map(repr, fitting))}; {advice}")
        return fitting[0] if fitting else max(DELIMITERS, key=first.count)

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Each row with the number of the line on which it ends."""
        # Strict: else a quote that nothing closes would take all lines below it into its cell.
        text = io.StringIO(self.text, newline="")
        form: Any = {"delimiter": self.delimiter, "quoting": self._quoting}
        reader = csv.reader(text, skipinitialspace=True, strict=True, **form)
        try:
            for row in reader:
                yield self._line(reader), row
        except csv.Error as error:
            place = "" if self.private else f": {error}, in line {self._line(reader)}"
            raise FileError(f"{self.path} is not a CSV file{place}") from None

    def _line(self, reader: Any) -> int:
        return self._places[reader.line_num - 1] if self._places else reader.line_num

    @property
    def _hint(self) -> str:
        """What helps if the first line is a comment and has no names."""
        return f"; to leave out lines with comments, {_option('comment', '#')}" if self.names[0].startswith("#") else ""

    def columns(self, texts: Sequence[str]) -> list[str]:
        """Names of columns as they are typed: each by itself, or several with commas between them."""
        names = [name for text in texts for name in ([text] if text in self.names else text.split(","))]
        for name in names:
            if self.names.count(name) != 1:
                count = "several columns" if name in self.names else "no column"
                if self.private:
                    raise FileError(f"{self.path} has {count} {name!r}; its first line must hold the columns' names")
                present = ", ".join(other or "(one without a name)" for other in self.names)
                meant = "" if name in self.names else guess(name, self.names)
                raise FileError(f"{self.path} has {count} {name!r}{meant}; its columns are {present}{self._hint}")
            if names.count(name) > 1:
                raise FileError(f"column {name!r} of {self.path} is given twice")
        return names

    def read(self, names: Sequence[str]) -> None:
        """Read the cells of existing columns, all at once, for the methods below."""
        self._cells: dict[str, list[str]] = {name: [] for name in names}
        self.lines: list[int] = []  # on which the records end
        places = [(column.append, self.names.index(name)) for name, column in self._cells.items()]
        width, empty = len(self.names), None
        for line, row in itertools.islice(self._rows(), self._heads, None):
            if not row:  # at the end only, since elsewhere the values may be missing
                empty = empty or line
                continue
            if self.private and (empty is not None or len(row) != width):
                raise FileError(f"{self.path}: some lines are empty, or do not have one cell for each column")
            if empty is not None:
                raise FileError(f"{self.path}, line {empty}: the line is empty, but more lines follow")
            if len(row) != width:
                cells, heads = (f"{n} {noun}{'s' * (n != 1)}" for n, noun in ((len(row), "cell"), (width, "name")))
                named = f"the first line has {heads} of columns" if self._heads else f"{heads} of columns are given"
                text = f"the line has {cells}, but {named}"
                raise FileError(f"{self.path}, line {line}: {text}{self._hint}")
            self.lines.append(line)
            for append, j in places:
                append(row[j])
        if not self.lines:
            raise FileError(f"{self.path} has no records below the names of its columns")

    def groups(self, name: str) -> dict[str, np.ndarray]:
        """For each word in a column, in the order of the file, the records that have it."""
        groups: dict[str, list[int]] = {}
        for record, cell in enumerate(self._cells[name]):
            groups.setdefault(cell.strip(), []).append(record)
        self._refuse_missing(name, groups.get("", []))
        return {word: np.array(records) for word, records in groups.items()}

    def words(self, name: str) -> np.ndarray:
        return np.array([cell.strip() for cell in self._cells[name]])

    def holds_numbers(self, name: str) -> bool:
        cells = map(str.strip, self._cells[name])
        return all(self._is_missing(cell) or not math.isnan(self.notation.number(cell)) for cell in cells)

    def _is_missing(self, cell: str) -> bool:
        return cell.lower() in MISSING_WORDS or "withheld" in self.notation.options_for(cell)

    def numbers(self, name: str, levels: Sequence[str] = (), hint: str = "", gaps: bool = False) -> np.ndarray:
        """Values of a column; `levels` are words for 0, 1, ..., `hint` ends the message on others; NaN for `gaps`."""
        codes = {level: float(code) for code, level in enumerate(levels)}
        cells, plain = [cell.strip() for cell in self._cells[name]], self.notation.plain
        read = (lambda cell: codes.get(cell, math.nan)) if codes else _number if plain else self.notation.number
        values = np.array([read(cell) for cell in cells])
        empty = [i for i in np.flatnonzero(np.isnan(values)).tolist() if self._is_missing(cells[i])]
        wrong = np.setdiff1d(np.flatnonzero(np.isnan(values)), empty if gaps else [])
        if not len(wrong):
            self.counts.update(
                [] if plain else [option for cell in cells for option in self.notation.options_for(cell)]
            )
            return values
        if self.private:
            kind = f"one of the levels {', '.join(codes)}" if codes else "a number"
            raise FileError(f"{self.path}: some cells of column {name!r} are missing, or are not {kind}")
        self._refuse_missing(name, [] if gaps else empty)
        text = cells[wrong[0]]
        problem = f"which is not one of the levels {', '.join(codes)}" if codes else f"which is not a number{hint}"
        if not codes and not hint:
            ways = {name: getattr(way, name) for name, way in OTHER_WAYS.items() if not math.isnan(way.number(text))}
            meant = "is one" if ways else "marks a withheld value"
            problem += f"; if it {meant}, {' or '.join(_option(*way) for way in (ways or {'withheld': text}).items())}"
        raise FileError(f"{self.path}, line {self.lines[wrong[0]]}: column {name!r} holds {text!r}, {problem}")

    def _refuse_missing(self, name: str, records: Sequence[int]) -> None:
        if len(records):
            count = f"{len(records):,} of the {len(self.lines):,} values in column {name!r} are missing"
            raise FileError(f"{self.path}: {count}, the first in line {self.lines[records[0]]}")


@reader("csv", *CSV_ENDINGS)
def read_csv(
    path: str | os.PathLike,
    keys: Sequence[str],
    numbers: Sequence[str],
    *,
    encoding: str = "utf-8-sig",
    comment: str = "",
    withheld: str | Sequence[str] = (),
    percent: bool = False,
    thousands: str = "",
    decimal: str = ".",
    names: Sequence[str] = (),
) -> Contents:
    """Columns of words and of numbers, NaN in empty cells; without `numbers` all columns, as their cells are. Lines
    that begin with `comment` are left out; cells that are one of `withheld` are missing; with `percent`, ``12%`` is
    0.12; `thousands` and `decimal` are the characters in ``1,204.5``. ``about["cells"]`` says what cells needed.
    `names` are those of the columns, if no line has them, cells have tabs between them, and quotes are part of cells.
    """
    notation = Notation(encoding, comment, withheld, percent, thousands, decimal)
    file = CsvFile(pathlib.Path(path), names=names, **notation._asdict())
    chosen = file.columns([*keys, *numbers] if numbers else file.names)
    file.read(chosen)
    words = {name for name in chosen if name in keys or (not numbers and not file.holds_numbers(name))}
    columns = {name: file.words(name) if name in words else file.numbers(name, gaps=True) for name in chosen}
    return Contents(columns, {"about": {"cells": dict(file.counts)}} if file.counts else {})


def _option(name: str, value: Any) -> str:
    """An option as it is given in Python and on the command line."""
    return f"give {name}={value!r} (--{name} {shlex.quote(value) if isinstance(value, str) else 'true'})"


def _number(text: str) -> float:
    """The number that a cell holds, NaN if it is none; Python's own ways of writing one, such as 1_000, are refused."""
    try:
        return math.nan if "_" in text or not text.isascii() else float(text)
    except ValueError:
        return math.nan


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
def read_parquet(path: str | os.PathLike, keys: Sequence[str], numbers: Sequence[str]) -> Contents:
    """All columns of a Parquet file."""
    with reading(path) as file:
        return Contents(columns_of(parquet_file(file).read()))
