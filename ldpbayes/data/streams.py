"""Sketches of releases that are larger than memory: read in parts, added up, perhaps by several processes."""

import contextlib
import dataclasses
import functools
import glob
import hashlib
import itertools
import os
import pathlib
import uuid
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np
from tqdm.auto import tqdm

from ldpbayes._core.checks import warn
from ldpbayes._core.executors import completed
from ldpbayes.data._parquet import pyarrow, values_of
from ldpbayes.data._sketches import Sketch, Source
from ldpbayes.data.category_sketches import CategoryRecords, ExpandedSketch, frame_at_mode
from ldpbayes.data.release import SPEC_KEY, Release, ReleaseWarning, mechanism_and_more
from ldpbayes.mechanisms import Mechanism
from ldpbayes.mechanisms.protocol import parts_of

CHUNK = 1 << 20  # released values that are read and sketched at a time
PIECE = 1 << 22  # of a large file, that are one task
BLOCK = 1 << 24  # bytes of a CSV file that are read at a time
BAR: dict[str, Any] = {"unit": " values", "unit_scale": True, "desc": "sketching"}
FILES = (".csv", ".npy", ".npz", ".parquet", ".tsv")


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
    """Make one sketch of the released values in large files or arrays, with only a few million values in memory at a
    time.

    The privacy statement of the sketch treats each file as one release, except if ``different_people`` is True, and all
    arrays together as one release. Two sketches cannot be added if both contain a file with the same content, because
    its records would count twice.

    Parameters
    ----------
    source : path or sequence of paths, array or iterable of arrays
        Paths of files or folders, or patterns such as ``"day-*.parquet"``. Files can be ``.parquet``, ``.csv`` and
        ``.tsv`` (which need pyarrow), ``.npy``, and ``.npz`` from `Release.save` or `Sketch.save`. Or arrays of
        released values (N, *event), where ``event`` is the shape of one value.
    mechanism : Mechanism, optional
        The mechanism of the values, with one budget for all records. Not needed for files from `Release.save`, which
        contain the mechanism. Raises ValueError if the mechanisms of two files differ.
    column : str or sequence of str, optional
        Only for ``.parquet``, ``.csv`` and ``.tsv`` files: the name of the column of released values. If each released
        value is a row of numbers, give the names of all columns of the row. Default: ``value``.
    levels : sequence of str, optional
        Only if the files hold words: the words that are replaced by the codes 0, 1, ..., in this order. Default: the
        files hold numbers.
    different_people : bool
        True if nobody is in two of the files, for example because they are chunks of one data set. The files then count
        as one release in privacy statements. Default: False.
    executor : concurrent.futures.Executor, optional
        An executor whose workers read and sketch the files. `ldpbayes.studies.sbc` gives examples. Each worker must
        find the files under the given paths. Default: this process reads the files.
    progress_bar : bool
        True (default) if a progress bar is shown on stderr. The bar is shown only if stderr is a terminal.
    **options
        The options ``panels``, ``lattice``, ``expand`` and ``at`` of `Release.sketch`. For an `ExpandedSketch` without
        ``at``, the function must read the values three to five times. Therefore it raises ValueError if the arrays come
        from an iterable, which can be read only once.

    Returns
    -------
    Sketch
        The sketch of all released values. It does not keep these values.

    Raises
    ------
    ValueError
        There are no values, or two files have the same content. If an error is about a file, the message begins with
        the name of the file.
    """
    unknown = options.keys() - {"panels", "lattice", "expand", "at"}
    if unknown:
        raise TypeError(f"sketch_from has no option {min(unknown)!r}")
    columns = [column or "value"] if isinstance(column, str | None) else [*column]
    reader = _Reader(mechanism, columns, tuple(levels or ()), options)
    ready: list[Sketch] = []
    source = [source] if isinstance(source, str | os.PathLike) else source
    if isinstance(source, Sequence) and all(isinstance(each, str | os.PathLike) for each in source):
        paths = _paths(source)
        ready = [Sketch.load(path) for path in paths if holds_sketch(path)]
        pieces = [piece for path in paths if not holds_sketch(path) for piece in reader.pieces(path)]
    else:
        if executor is not None or mechanism is None:
            raise ValueError("arrays need mechanism=, and executor=None: only files can be read by workers")
        pieces, reader = [_Piece()], dataclasses.replace(reader, arrays=source)
    with tqdm(total=sum(piece.rows for piece in pieces) or None, **BAR, disable=None if progress_bar else True) as bar:
        if pieces:
            reader = reader.expanding(pieces, [each for each in ready if isinstance(each, ExpandedSketch)], executor)
        found = filter(None, _in_order(reader.sketched, pieces, executor, bar))
        files = itertools.groupby(found, lambda part: part.path)
        sketches: Iterable[Sketch] = itertools.chain(ready, (_of_release([*parts]) for _, parts in files))
        if different_people:
            whole = uuid.uuid4().hex
            sketches = (dataclasses.replace(each, added=parts_of(whole, each.promises)) for each in sketches)
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


class _Part(NamedTuple):
    """A piece that has been read, and the SHA-256 of its file where it is the first one."""

    path: pathlib.Path | None
    sketch: Sketch
    digest: str | None


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reads pieces, in processes of its own perhaps."""

    mechanism: Mechanism | None
    columns: list[str]
    levels: tuple[str, ...]
    options: dict[str, Any]
    arrays: Any = None

    def pieces(self, path: pathlib.Path) -> list[_Piece]:
        with _naming(path):
            if path.suffix == ".npy":
                rows = len(np.load(path, mmap_mode="r"))
                return [_Piece(path, i, i + PIECE, min(PIECE, rows - i)) for i in range(0, rows, PIECE)]
            if path.suffix != ".parquet":
                return [_Piece(path)]
            file = pyarrow().parquet.ParquetFile(path)
            groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            number = np.cumsum([0, *groups[:-1]]) // PIECE
            ends = np.flatnonzero(np.diff(number, prepend=-1, append=-1)).tolist()
            return [_Piece(path, a, b, sum(groups[a:b])) for a, b in itertools.pairwise(ends)]

    def sketched(self, piece: _Piece, bar: Any = None) -> _Part | None:
        """The sketch of a piece, without one where it is empty."""
        with _naming(piece.path):
            made, times = self._made(piece.path)
            sketches = (self._sketch(values, made, times, bar) for values in self._chunks(piece))
            total = _sum(sketches)
            if total is None:
                return None
            digest = None
            if piece.path is not None and piece.start == 0:
                with open(piece.path, "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
            return _Part(piece.path, total, digest)

    def expanding(self, pieces: list[_Piece], ready: Sequence[ExpandedSketch], executor: Executor | None) -> "_Reader":
        """The same, with the place to expand at if the values are to be expanded: the mode of all of them."""
        if self.options.get("at") is not None or self.options.get("expand") is False:
            return self
        once = not (self.arrays is None or isinstance(self.arrays, np.ndarray))
        with _naming(pieces[0].path):
            chunks, (mechanism, times) = self._chunks(pieces[0]), self._made(pieces[0].path)
            first = next(chunks, None)
            plain = first is None or mechanism.record_shape or not mechanism.support.is_discrete
            expands = not plain and isinstance(self._sketch(first, mechanism, times), ExpandedSketch)
        if expands and once and not ready:
            raise ValueError("an expansion reads the values several times: give files, one array, at=, or expand=False")
        options: dict[str, Any] = {}
        if expands:
            records = _AllRecords(self, pieces, executor, CategoryRecords(first, mechanism))
            options = {"expand": True, "at": ready[0] if ready else frame_at_mode(records)}
        arrays = itertools.chain([] if first is None else [first], chunks) if once else self.arrays
        return dataclasses.replace(self, options=self.options | options, arrays=arrays)

    def derivatives(self, theta: np.ndarray, piece: _Piece) -> list[Any]:
        """Those of `CategoryRecords`, of a piece."""
        mechanism, _ = self._made(piece.path)
        parts = (CategoryRecords(values, mechanism).derivatives(theta) for values in self._chunks(piece))
        return functools.reduce(_plus, parts, [0.0, 0.0, 0.0])

    def _sketch(self, values: Any, mechanism: Mechanism, times: int | None, bar: Any = None) -> Sketch:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReleaseWarning)  # which the whole gives once
            sketch = Release(values, mechanism, times=times).sketch(keep_records=False, **self.options)
        if bar is not None:
            bar.update(len(values))
        return sketch

    def _made(self, path: pathlib.Path | None) -> tuple[Mechanism, int | None]:
        """The mechanism of a file's values, and at most how many of them are about one person."""
        text = None
        if path is not None and path.suffix == ".parquet":
            metadata = pyarrow().parquet.ParquetFile(path).schema_arrow.metadata or {}
            text = metadata.get(SPEC_KEY.encode(), b"").decode()
        elif path is not None and path.suffix == ".npz":
            text = np.load(path)["mechanism"].item()
        mechanism, beside = mechanism_and_more(text, path.name) if text and path else (self.mechanism, {})
        if mechanism is None:
            raise ValueError("the file does not state its mechanism: name the mechanism")
        if self.mechanism is not None and mechanism != self.mechanism:
            raise ValueError(f"the file was released by {mechanism!r}, not by {self.mechanism!r}")
        if mechanism.batch_shape:
            raise ValueError("a file with different budgets cannot be read in parts: load it whole, as a release")
        return mechanism, beside.get("times")

    def _chunks(self, piece: _Piece) -> Iterator[Any]:
        path = piece.path
        if path is None:
            arrays = [self.arrays] if isinstance(self.arrays, np.ndarray) else self.arrays
        elif path.suffix == ".parquet":
            file = pyarrow().parquet.ParquetFile(path)
            arrays = map(self._values, file.iter_batches(CHUNK, range(piece.start, piece.stop), self.columns))
        elif path.suffix == ".npy":
            arrays = [np.load(path, mmap_mode="r")[piece.start : piece.stop]]
        elif path.suffix == ".npz":
            arrays = [Release.load(path).values]
        else:
            arrays = self._blocks(path)
        for array in arrays:
            values = np.asanyarray(array)
            for start in range(0, len(values), CHUNK):
                yield values[start : start + CHUNK]

    def _blocks(self, path: pathlib.Path) -> Iterator[Any]:
        """Values of a CSV file, block by block."""
        csv = pyarrow().csv
        types = dict.fromkeys(self.columns, "string") if self.levels else {}
        parts = csv.ParseOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
        convert = csv.ConvertOptions(include_columns=self.columns, column_types=types)
        with csv.open_csv(path, csv.ReadOptions(block_size=BLOCK), parts, convert) as file:
            yield from map(self._values, file)

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


@dataclasses.dataclass(frozen=True)
class _AllRecords:
    """Records of all pieces, as `frame_at_mode` reads them; of the first chunk where it needs a few."""

    reader: _Reader
    pieces: list[_Piece]
    executor: Executor | None
    first: CategoryRecords

    mechanism = property(lambda self: self.first.mechanism)

    def thinned(self, count: int) -> CategoryRecords:
        return self.first.thinned(count)

    def derivatives(self, theta: np.ndarray) -> list[Any]:
        parts = _in_order(functools.partial(self.reader.derivatives, theta), self.pieces, self.executor)
        return functools.reduce(_plus, parts)


def _plus(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    return [x + y for x, y in zip(a, b, strict=True)]


def _in_order(
    function: Callable[..., Any], pieces: list[_Piece], executor: Executor | None, bar: Any = None
) -> Iterator[Any]:
    """Results in the order of the pieces, so that their sum does not depend on who was first."""
    if bar is not None and executor is None:
        function = functools.partial(function, bar=bar)  # which then moves within a piece
    waiting, place = dict[int, Any](), 0
    numbers = {piece: number for number, piece in enumerate(pieces)}
    for (piece,), result in completed(function, [(piece,) for piece in pieces], executor):
        waiting[numbers[piece]] = result
        if bar is not None and executor is not None:
            bar.update(piece.rows)
        while place in waiting:
            yield waiting.pop(place)
            place += 1


def _sum(sketches: Iterable[Sketch]) -> Any:
    """Sum of sketches, None without any: of equally many each time, so that what stands for all does so in the end."""
    stack: list[tuple[int, Any]] = []
    for sketch in sketches:
        stack.append((1, sketch))
        while len(stack) > 1 and stack[-1][0] == stack[-2][0]:
            (count, right), (_, left) = stack.pop(), stack.pop()
            stack.append((2 * count, left + right))
    return functools.reduce(lambda right, left: left + right, (part for _, part in reversed(stack))) if stack else None


def _of_release(parts: Sequence[_Part]) -> Sketch:
    """The sketch of one release, whose parts have one promise together and are of one file."""
    total, first = _sum(part.sketch for part in parts), parts[0]
    sources = (Source(first.path.name, round(float(total.size)), first.digest),) if first.path and first.digest else ()
    return dataclasses.replace(total, added=first.sketch.added[:1], doubts=total.doubts[:1], sources=sources)


def _paths(sources: Iterable[str | os.PathLike]) -> list[pathlib.Path]:
    """Files in the order given, those of a folder or a pattern in that of their names."""
    found: list[pathlib.Path] = []
    for source in sources:
        path = pathlib.Path(source)
        files = path.iterdir() if path.is_dir() else [path] if path.exists() else glob.glob(os.fspath(source))
        own = sorted(each for each in map(pathlib.Path, files) if each.suffix in FILES or not path.is_dir())
        if not own:
            raise FileNotFoundError(f"there is no file {os.fspath(source)!r}")
        found += own
    seen = set[pathlib.Path]()
    for path in found:
        if path.suffix not in FILES:
            raise ValueError(f"{path.name} cannot be read in parts; possible files are {', '.join(FILES)}")
        if path.resolve() in seen:
            raise ValueError(f"records would count twice: {path.name} is given twice")
        seen.add(path.resolve())
    return found


def holds_sketch(path: pathlib.Path) -> bool:
    """Whether a file is one of `Sketch.save`."""
    with contextlib.suppress(OSError, ValueError, zipfile.BadZipFile):
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as file:
                return "sketch.npy" in file.namelist()
    return False


@contextlib.contextmanager
def _naming(path: pathlib.Path | None) -> Iterator[None]:
    """ValueError and TypeError get the name of the file in front."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        if path is None:
            raise
        text = str(error.args[0]) if error.args else type(error).__name__
        raise (TypeError if isinstance(error, TypeError) else ValueError)(f"{path.name}: {text}") from None
