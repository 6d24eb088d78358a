"""CSV files: their columns as numbers, and the messages where they are not."""

import csv
import math
import pathlib
import re
from collections.abc import Iterator, Sequence

import numpy as np

from ldpbayes.cli._input import BadInput, guess

CSV = (".csv", ".tsv")
DELIMITERS = ",;\t|"
MISSING = {"", "na", "n/a", "nan", "null", "none", "."}


class Table:
    """A CSV file in UTF-8 whose first line names the columns; the columns are read by the methods.

    Cells are divided by that of ``, ; | tab`` which is as frequent in the first line as in the second. A `headless`
    file may begin with numbers: then the columns are called ``x[0]``, ``x[1]``, ... Bad files raise `BadInput`.
    """

    def __init__(self, path: pathlib.Path, headless: bool = False) -> None:
        self.path = path
        if not path.is_file():
            raise BadInput(f"no file {path}")
        self.delimiter = self._delimiter()
        self.names = [name.strip() for name in next(self._rows(), [])]
        numbers = all(_is_number(name) or name.lower() in MISSING for name in self.names)
        if not any(self.names) or (numbers and not headless):
            problem = "holds numbers" if any(self.names) else "is empty"
            raise BadInput(f"{path}: the first line must be the names of the columns, and it {problem}")
        self._heads = int(not numbers)
        if numbers:
            self.names = [f"x[{j}]" for j in range(len(self.names))]

    def columns(self, texts: Sequence[str]) -> list[str]:
        """Names of columns as they are typed: each by itself, or several with commas between them."""
        names = [name for text in texts for name in ([text] if text in self.names else text.split(","))]
        for name in names:
            if self.names.count(name) != 1:
                count = "several columns" if name in self.names else "no column"
                known = ", ".join(other or "(one without a name)" for other in self.names)
                meant = "" if name in self.names else guess(name, self.names)
                raise BadInput(f"{self.path} has {count} {name!r}{meant}; its columns are {known}")
            if names.count(name) > 1:
                raise BadInput(f"column {name!r} of {self.path} is named twice")
        return names

    def cells(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Text of existing columns, by their names."""
        cells: dict[str, list[str]] = {name: [] for name in names}
        places = [(column.append, self.names.index(name)) for name, column in cells.items()]
        for row in self._records():
            for append, j in places:
                append(row[j])
        if not cells[names[0]]:
            raise BadInput(f"{self.path} has no records below the names of its columns")
        return cells

    def groups(self, name: str, cells: Sequence[str]) -> dict[str, np.ndarray]:
        """For each word among the `cells` of a column, in the order of the file, the records that have it."""
        words = np.array([cell.strip() for cell in cells])
        self._refuse_missing(name, words == "")
        different, first, counts = np.unique(words, return_index=True, return_counts=True)
        records = np.split(np.argsort(words, kind="stable"), np.cumsum(counts)[:-1])
        return {str(different[group]): records[group] for group in np.argsort(first)}

    def numbers(self, name: str, cells: Sequence[str], levels: Sequence[str] = (), hint: str = "") -> np.ndarray:
        """Values of the `cells` of a column; `levels` are words for the codes 0, 1, ...

        `hint` ends the message where there are words and no levels.
        """
        codes = {level: float(code) for code, level in enumerate(levels)}
        try:
            values = np.array([codes[cell.strip()] for cell in cells] if codes else [_number(cell) for cell in cells])
        except (KeyError, ValueError):
            values = np.array([math.nan])
        if not np.isnan(values).any():
            return values
        texts = [cell.strip() for cell in cells]
        self._refuse_missing(name, np.array([text not in codes and text.lower() in MISSING for text in texts]))
        bad = next(record for record, text in enumerate(texts) if not (text in codes if codes else _is_number(text)))
        wrong = f"which is none of the levels {', '.join(codes)}" if codes else f"which is no number{hint}"
        if not codes and _is_number(texts[bad].replace(",", ".")):
            wrong = "which is no number: decimals are written with a point"
        raise BadInput(f"{self.path}, line {self.line(bad)}: column {name!r} holds {texts[bad]!r}, {wrong}")

    def matrix(self, names: Sequence[str]) -> np.ndarray:
        """Numbers of existing columns, a row a record."""
        return np.stack([self.numbers(name, cells) for name, cells in self.cells(names).items()], axis=-1)

    def _refuse_missing(self, name: str, missing: np.ndarray) -> None:
        if missing.any():
            count = f"{missing.sum():,} of the {len(missing):,} values in column {name!r} are missing"
            raise BadInput(f"{self.path}: {count}, the first in line {self.line(int(np.argmax(missing)))}")

    def _delimiter(self) -> str:
        """The character that divides the cells; BadInput where two divide the first two rows alike."""
        rows: list[str] = []
        text = ""
        try:
            with self.path.open(encoding="utf-8-sig") as file:
                while len(rows) < 2 and (line := file.readline()):
                    text += line
                    if text.count('"') % 2 == 0:  # otherwise the row goes on: a line ends within quotes
                        rows.append(re.sub('"[^"]*"', "", text))
                        text = ""
        except UnicodeDecodeError as error:
            raise self._not_text(error) from None
        first, second = (*rows, "", "")[:2]
        # A comma in a name or for a decimal does not count where a semicolon divides both rows alike.
        fitting = [mark for mark in DELIMITERS if 0 < first.count(mark) == second.count(mark)]
        if len(fitting) > 1:
            advice = "write names that hold one of these in double quotes, and decimals with a point"
            raise BadInput(f"{self.path}: cells could be divided by {' or by '.join(map(repr, fitting))}; {advice}")
        return fitting[0] if fitting else max(DELIMITERS, key=first.count)

    def _rows(self) -> Iterator[list[str]]:
        try:
            with self.path.open(newline="", encoding="utf-8-sig") as file:
                # Strict: else a quote that nothing closes would take all lines below it into its cell.
                reader = csv.reader(file, delimiter=self.delimiter, skipinitialspace=True, strict=True)
                yield from reader
        except UnicodeDecodeError as error:
            raise self._not_text(error) from None
        except csv.Error as error:
            raise BadInput(f"{self.path} is not a CSV file: {error}, in line {reader.line_num}") from None

    def _records(self) -> Iterator[list[str]]:
        """Rows below the names; empty lines may be at the end only, since elsewhere they may be missing values."""
        rows, width, empty = self._rows(), len(self.names), None
        for _ in range(self._heads):
            next(rows)
        for record, row in enumerate(rows):
            if not row:
                empty = record if empty is None else empty
                continue
            if empty is not None:
                raise BadInput(f"{self.path}, line {self.line(empty)}: the line is empty, and others follow")
            if len(row) != width:
                cells, names = (f"{n} {noun}{'s' * (n != 1)}" for n, noun in ((len(row), "cell"), (width, "name")))
                text = f"it has {cells}, and the first line {names} of columns"
                raise BadInput(f"{self.path}, line {self.line(record)}: {text}")
            yield row

    def line(self, record: int) -> int:
        """Number of the line on which a record ends; `record` counts from 0."""
        with self.path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=self.delimiter, skipinitialspace=True)
            for _ in range(record + 1 + self._heads):
                next(reader)
            return reader.line_num

    def _not_text(self, error: UnicodeDecodeError) -> BadInput:
        return BadInput(f"{self.path} is not text in UTF-8: {error.reason} at byte {error.start}")


def _number(text: str) -> float:
    """The number that a cell holds; ValueError for Python's own ways of writing one, such as 1_000."""
    if "_" in text or not text.isascii():
        raise ValueError
    return float(text)


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(_number(text))
    except ValueError:
        return False
