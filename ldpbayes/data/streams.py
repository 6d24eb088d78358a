"""Sketches of releases that are larger than memory: read in parts, added up, perhaps by several processes."""

import contextlib
import csv
import dataclasses
import functools
import glob
import hashlib
import itertools
import json
import os
import pathlib
import uuid
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np
from tqdm.auto import tqdm

from ldpbayes._core import archive
from ldpbayes._core.archive import read_arrays, reading
from ldpbayes._core.checks import warn
from ldpbayes._core.running import completed
from ldpbayes.data.category_sketches import CategoryRecords, ExpandedSketch, frame_at_mode
from ldpbayes.data.readers.files import parquet_file, pyarrow, spec_text, values_of
from ldpbayes.data.release import Release, ReleaseWarning, mechanism_and_more
from ldpbayes.data.sketches import Sketch, Source, TotalSketch
from ldpbayes.mechanisms.protocol import Mechanism, parts_of

ROWS_PER_PIECE = 1 << 22  # of a large file, that are one task
CSV_BYTES_AT_ONCE = 1 << 24  # bytes of a CSV file that are read at a time
DIGEST_KEY = '"digest"'  # in the description of values that have one
STREAMED_ENDINGS = (".csv", ".npy", ".npz", ".parquet", ".tsv")


def sketch_from(
    source: Any,
    mechanism: Mechanism | None = None,
    *,
    column: str | Sequence[str] | None = None,
    levels: Sequence[str] | None = None,
    different_people: bool = False,
    executor: Executor | None = None,
    progress_bar: bool = True,
    **options: Any,
) -> Sketch:
    """Make one sketch of the released values in large files or arrays, of which a few million are in memory at a time.

    The sketch does not keep the values. Its privacy statement treats each file as one release, except if
    ``different_people`` is True, and all arrays together as one release. Raises ValueError if there are no values, or
    if two files have the same content, because its records would count twice; such sketches cannot be added, either.

    Parameters
    ----------
    source : path or sequence of paths, array or iterable of arrays
        Files, folders, or patterns such as ``"day-*.parquet"``, of ``.parquet``, ``.csv`` and ``.tsv`` (which need
        pyarrow), ``.npy``, and ``.npz`` from `Release.save` or `Sketch.save`. Or arrays of released values (N, *event).
    mechanism : Mechanism, optional
        The mechanism of the values, if the files, unlike those of `Release.save`, do not state it. A file whose
        mechanism has an array, with one number for each record, is read into memory as a whole. Raises ValueError if
        the mechanisms of two files are of different kinds.
    column, levels : str or sequence of str, optional
        The column of released values (default: ``value``), or all columns of released rows; and the words there that
        stand for the codes 0, 1, ..., in this order (default: the columns hold numbers).
    different_people : bool
        True if nobody is in two of the files, such as chunks of one data set, which then count as one release in
        privacy statements. Default: False.
    executor, progress_bar : optional
        A `concurrent.futures.Executor`, whose workers read and sketch the files under the given paths
        (`ldpbayes.studies.sbc` gives examples); and False for no progress bar on a terminal.
    **options
        The options ``panels``, ``lattice``, ``expand`` and ``at`` of `Release.sketch`. For an `ExpandedSketch` without
        ``at``, the values are read three to five times: ValueError for an iterable of arrays, which is read only once.
    """
    unknown = options.keys() - {"panels", "lattice", "expand", "at"}
    if unknown:
        raise TypeError(f"sketch_from has no option {min(unknown)!r}")
    columns = [column or "value"] if isinstance(column, str | None) else [*column]
    reader = _Reader(mechanism, columns, tuple(levels or ()), options)
    ready: list[Sketch] = []
    source = [source] if isinstance(source, str | os.PathLike) else source
    if not isinstance(source, np.ndarray | Sequence):  # it may be readable only once
        head, source = itertools.tee(source)
        source = [*source] if isinstance(next(head, None), str | os.PathLike) else source
        del head  # which would keep all arrays
    if isinstance(source, Sequence) and all(isinstance(path, str | os.PathLike) for path in source):
        paths = _paths(source)
        ready = [_loaded(path, mechanism) for path in paths if holds_sketch(path)]
        pieces = [piece for path in paths if not holds_sketch(path) for piece in reader.pieces(path)]
    else:
        if executor is not None or mechanism is None:
            raise ValueError("arrays need mechanism=, and executor=None: only files can be read by workers")
        pieces, reader = [_Piece()], dataclasses.replace(reader, arrays=source)
    rows, hidden = sum(piece.rows for piece in pieces) or None, None if progress_bar else True
    with tqdm(total=rows, unit=" values", unit_scale=True, desc="sketching", disable=hidden) as bar:
        if pieces:
            reader = reader.expanding(pieces, ready, executor)
        files = itertools.groupby(reader.read_all(pieces, executor, bar), lambda part: part.path)
        sketches: Iterable[Sketch] = itertools.chain(ready, (_of_release([*parts]) for _, parts in files))
        if different_people:
            whole = uuid.uuid4().hex
            sketches = (dataclasses.replace(sketch, added=parts_of(whole, sketch.promises)) for sketch in sketches)
        total = _sum(sketches)
    if total is None:
        raise ValueError("there is no released value to sketch")
    if total.doubts:
        warn(total.doubts[0], ReleaseWarning)
    return total


class _Piece(NamedTuple):
    """Released values of a file: row groups of Parquet, rows of ``.npy``, else all; or of arrays, without a path."""

    path: pathlib.Path | None = None
    start: int = 0
    stop: int = 0
    rows: int = 0  # as far as they are known before reading


class _ReadPiece(NamedTuple):
    """A piece that has been read, the SHA-256 of its file if it is the first, and blocks if values have a digest."""

    path: pathlib.Path | None
    sketch: Sketch
    digest: str | None
    blocks: list[str]


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reads pieces, in processes of its own perhaps."""

    mechanism: Mechanism | None
    columns: list[str]
    levels: tuple[str, ...]
    options: dict[str, Any]
    arrays: Any = None

    def pieces(self, path: pathlib.Path) -> list[_Piece]:
        with reading(path):
            if path.suffix == ".npy":
                rows = len(np.load(path, mmap_mode="r"))
                size = max(1, rows) if self._personal(path) else ROWS_PER_PIECE
                return [_Piece(path, i, i + size, min(size, rows - i)) for i in range(0, rows, size)]
            if path.suffix != ".parquet":
                return [_Piece(path)]
            file = parquet_file(path)
            if self._personal(path):
                return [_Piece(path, 0, file.num_row_groups, file.metadata.num_rows)]
            groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            starts = np.cumsum([0, *groups[:-1]])
            number = starts // ROWS_PER_PIECE
            if DIGEST_KEY in spec_text(file):  # then a piece must hold whole blocks, each of which has a digest
                number = np.maximum.accumulate(np.where(starts % archive.ROWS_PER_DIGEST, 0, number))
            ends = np.flatnonzero(np.diff(number, prepend=-1, append=-1)).tolist()
            return [_Piece(path, a, b, sum(groups[a:b])) for a, b in itertools.pairwise(ends)] or [_Piece(path)]

    def read_all(self, pieces: list[_Piece], executor: Executor | None, bar: Any) -> Iterator[_ReadPiece]:
        """Pieces that have values, in their order, so that the sum does not depend on who was first."""
        function = self.sketched if executor else functools.partial(self.sketched, bar=bar)  # moves it within a piece
        for (piece,), part in completed(function, [(piece,) for piece in pieces], executor, in_order=True):
            bar.update(piece.rows if executor else 0)
            if part is not None:
                yield part

    def sketched(self, piece: _Piece, bar: Any = None) -> _ReadPiece | None:
        """The sketch of a piece, without one where it is empty."""
        with _naming(piece.path) as file:
            released_by, times, signed = self._made(piece.path)
            blocks = list[str]()

            def read(values: Any) -> Sketch:
                blocks.extend(archive.blocks_of(values=values) if signed else ())
                return self._sketch(values, released_by, times, bar)

            total = _sum(map(read, self._chunks(piece)))
            if total is None and signed:
                raise ValueError("it is damaged: it has no values")
            if total is None:
                return None
            whole = file is not None and piece.start == 0 and not signed
            digest = hashlib.file_digest(file, "sha256").hexdigest() if whole else None
            return _ReadPiece(piece.path, total, digest, blocks)

    def expanding(self, pieces: list[_Piece], ready: Sequence[Sketch], executor: Executor | None) -> "_Reader":
        """The same, with one kind of sketch for all categories; and if they are expanded, the place: their mode."""
        if self.options.get("at") is not None or self.options.get("expand") is False:
            return self
        once = not (self.arrays is None or isinstance(self.arrays, np.ndarray))
        largest = max(pieces, key=lambda piece: piece.path.stat().st_size if piece.path else 0)
        with _naming(largest.path):
            chunks, (mechanism, times, _) = self._chunks(largest), self._made(largest.path)
            first = next(chunks, None)
            codes = first is not None and not mechanism.record_shape and mechanism.support.is_discrete
            example = ready[0] if ready else self._sketch(first, mechanism, times) if codes else None
            expands = codes and (self.options.get("expand") or isinstance(example, ExpandedSketch))
        if expands and once and not ready:
            raise ValueError("an expansion reads the values several times: give files, one array, at=, or expand=False")
        options: dict[str, Any] = {"expand": False} if codes else {}
        if expands:
            derivatives = functools.partial(self.derivatives, pieces, executor)
            at = ready[0] if ready else frame_at_mode(CategoryRecords(first, mechanism), derivatives)
            options = {"expand": True, "at": at}
        arrays = itertools.chain([] if first is None else [first], chunks) if once else self.arrays
        return dataclasses.replace(self, options=self.options | options, arrays=arrays)

    def derivatives(self, pieces: list[_Piece], executor: Executor | None, theta: np.ndarray) -> list[Any]:
        """Those of `CategoryRecords`, of all pieces."""
        tasks = [(theta, piece) for piece in pieces]
        return _total(part for _, part in completed(self._derivatives, tasks, executor, in_order=True))

    def _derivatives(self, theta: np.ndarray, piece: _Piece) -> list[Any]:
        mechanism, *_ = self._made(piece.path)
        return _total(CategoryRecords(values, mechanism).derivatives(theta) for values in self._chunks(piece))

    def _sketch(self, values: Any, mechanism: Mechanism, times: int | None, bar: Any = None) -> Sketch:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReleaseWarning)  # which the whole gives once
            sketch = Release(values, mechanism, times=times).sketch(keep_records=False, **self.options)
        if bar is not None:
            bar.update(len(values))
        return sketch

    def _made(self, path: pathlib.Path | None) -> tuple[Mechanism, int | None, bool]:
        """The mechanism of a file's values, at most how many are about one person, and whether they have a digest."""
        text = _text(path) if path else ""
        mechanism, beside = mechanism_and_more(json.loads(text)) if text else (self.mechanism, {})
        if mechanism is None:
            raise ValueError("the file does not state its mechanism: name the mechanism")
        if self.mechanism is not None and mechanism != self.mechanism:
            raise ValueError(f"the file was released by {mechanism!r}, not by {self.mechanism!r}")
        if beside.keys() & {"neighbours", "privacy"}:
            raise ValueError("a table whose publisher states its privacy cannot be read in parts: load it whole")
        return mechanism, beside.get("times"), DIGEST_KEY in text

    def _personal(self, path: pathlib.Path | None) -> bool:
        """Whether records have different budgets, which are in memory: then all values are, too."""
        return self._made(path)[0].batch_shape != ()

    def _chunks(self, piece: _Piece) -> Iterator[Any]:
        parts = self._parts(piece)
        return iter([np.concatenate([*parts])] if self._personal(piece.path) else parts)

    def _parts(self, piece: _Piece) -> Iterator[Any]:
        path = piece.path
        if path is None:
            arrays = [self.arrays] if isinstance(self.arrays, np.ndarray) else self.arrays
        elif path.suffix == ".parquet":
            file = parquet_file(path)
            self._check_names(file.schema_arrow.names)
            batches = file.iter_batches(archive.ROWS_PER_DIGEST, range(piece.start, piece.stop), self.columns)
            arrays = map(self._values, batches)
        elif path.suffix == ".npy":
            arrays = [np.load(path, mmap_mode="r")[piece.start : piece.stop]]
        elif path.suffix == ".npz":
            with reading(path) as file:
                arrays = [*read_arrays(file, "values").values()]
        else:
            arrays = self._blocks(path)
        for array in arrays:
            values = np.asanyarray(array)
            for start in range(0, len(values), archive.ROWS_PER_DIGEST):
                yield values[start : start + archive.ROWS_PER_DIGEST]

    def _blocks(self, path: pathlib.Path) -> Iterator[Any]:
        """Values of a CSV file, block by block."""
        arrow, delimiter = pyarrow().csv, "\t" if path.suffix == ".tsv" else ","
        with open(path, encoding="utf-8-sig", newline="") as text:
            self._check_names(next(csv.reader(text, delimiter=delimiter), []))
        # The first block does not show whether numbers further down are whole; an empty line is a missing value.
        codes = self.mechanism is not None and self.mechanism.support.is_discrete
        types = dict.fromkeys(() if codes else self.columns, "float64")
        types |= dict.fromkeys(self.columns if self.levels else (), "string")
        parts = arrow.ParseOptions(delimiter=delimiter, ignore_empty_lines=False)
        convert = arrow.ConvertOptions(include_columns=self.columns, column_types=types)
        with arrow.open_csv(path, arrow.ReadOptions(block_size=CSV_BYTES_AT_ONCE), parts, convert) as file:
            yield from map(self._values, file)

    def _check_names(self, names: list[str]) -> None:
        for name in self.columns:
            if (count := names.count(name)) != 1:
                raise ValueError(f"it has {count} columns {name!r}; its columns are {', '.join(names)}")

    def _values(self, batch: Any) -> np.ndarray:
        pa, arrays = pyarrow(), []
        for name in self.columns:
            column, what = batch[name], f"column {name!r} has nulls"
            if self.levels:
                values_of(column, what)
                column = pa.compute.index_in(column, pa.array(self.levels))
                what = f"column {name!r} has words that are not among the levels"
            arrays.append(values_of(column, what))
        return arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=-1)


def _total(parts: Iterable[Sequence[Any]]) -> list[Any]:
    """Sums of values, gradients and information matrices."""
    total: list[Any] = [0.0, 0.0, 0.0]
    for part in parts:
        total = [x + y for x, y in zip(total, part, strict=True)]
    return total


def _sum(sketches: Iterable[Sketch]) -> Any:
    """Sum of sketches, None without any: of equally many each time, so that what stands for all does so in the end."""
    stack: list[tuple[int, Any]] = []
    for sketch in sketches:
        stack.append((1, sketch))
        while len(stack) > 1 and stack[-1][0] == stack[-2][0]:
            (count, right), (_, left) = stack.pop(), stack.pop()
            stack.append((2 * count, left + right))
    return functools.reduce(lambda right, left: left + right, (part for _, part in reversed(stack))) if stack else None


def _of_release(parts: Sequence[_ReadPiece]) -> Sketch:
    """The sketch of one release, whose parts have one promise together and are of one file."""
    total, (path, sketch, digest, blocks) = _sum(part.sketch for part in parts), parts[0]
    if path and blocks:
        with reading(path):
            archive.verified(text := _text(path), lambda: [block for part in parts for block in part.blocks])
            digest = hashlib.sha256(text.encode()).hexdigest()
    sources = (Source(path.name, round(float(total.size)), digest),) if path and digest else ()
    added = tuple(promise._replace(mechanism=total.mechanism) for promise in sketch.added[:1])
    return dataclasses.replace(total, added=added, doubts=total.doubts[:1], sources=sources)


def _text(path: pathlib.Path) -> str:
    """The description of its values that a file states; empty if it states none."""
    if path.suffix == ".npz":
        with reading(path) as file:
            return str(read_arrays(file, "mechanism")["mechanism"])
    return spec_text(parquet_file(path)) if path.suffix == ".parquet" else ""


def _loaded(path: pathlib.Path, mechanism: Mechanism | None) -> Sketch:
    sketch = Sketch.load(path)
    of_sketch = sketch._common if isinstance(sketch, TotalSketch) else sketch.mechanism  # of one record
    if mechanism is not None and mechanism != of_sketch:
        raise ValueError(f"{path.name}: the sketch is of values released by {of_sketch!r}, not by {mechanism!r}")
    return sketch


def _paths(sources: Iterable[str | os.PathLike]) -> list[pathlib.Path]:
    """Files in the order given, those of a folder or a pattern in that of their names."""
    paths: dict[str, pathlib.Path] = {}
    for source in sources:
        path = pathlib.Path(source)
        files = path.iterdir() if path.is_dir() else [path] if path.exists() else glob.glob(os.fspath(source))
        here = sorted(file for file in map(pathlib.Path, files) if file.suffix in STREAMED_ENDINGS or not path.is_dir())
        if not here:
            raise FileNotFoundError(f"there is no file {os.fspath(source)!r}")
        for file in here:
            if file.suffix not in STREAMED_ENDINGS:
                possible = f"possible files are {', '.join(STREAMED_ENDINGS)}"
                raise ValueError(f"{file.name} cannot be read in parts; {possible}")
            if os.path.realpath(file) in paths:
                raise ValueError(f"records would count twice: {file.name} is given twice")
            paths[os.path.realpath(file)] = file
    return [*paths.values()]


def holds_sketch(path: pathlib.Path) -> bool:
    """Whether a file is one of `Sketch.save`."""
    with contextlib.suppress(Exception):  # nearly anything, of a damaged archive
        if path.suffix == ".npz" and path.is_file():
            with zipfile.ZipFile(path) as file:
                return "sketch.npy" in file.namelist()
    return False


def _naming(path: pathlib.Path | None) -> contextlib.AbstractContextManager:
    """Errors of a file get its name in front."""
    return contextlib.nullcontext() if path is None else reading(path)
