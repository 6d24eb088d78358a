"""Sketches: their common base, moments of normal rows, and totals of statistics."""

import dataclasses
import io
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._core.archive import load_arrays, reading, save_arrays, whole_file
from ldpbayes._core.checks import is_integer
from ldpbayes._core.printing import Holding, shown
from ldpbayes._core.pytrees import host, pytree_dataclass, static
from ldpbayes._core.tabular import entries_of, is_missing, levels_in_order
from ldpbayes._core.tracing import array_of
from ldpbayes.mechanisms import mechanism_from_spec
from ldpbayes.mechanisms.protocol import Promise
from ldpbayes.noise import Gaussian, IndependentGaussian
from ldpbayes.numerics.polynomial import Polynomial
from ldpbayes.privacy.guarantee import counted_once

ROWS_READ_AT_ONCE = 1 << 14  # rows that are read at a time, which bounds the memory and suits a cache
SKETCH_FORMAT = 1  # of files of sketches


class Source(NamedTuple):
    """A file whose records are in a sketch: its name, their number, and the SHA-256 of its contents."""

    name: str
    records: int
    digest: str


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Sketch(Holding):
    """Base class of sketches: small summaries, made by `Release.sketch`, that replace the values of a release.

    Most sketches consist of weighted nodes: ``nodes`` (nodes, *event) are possible released values, where ``event`` is
    the shape of one value, and ``weights`` (nodes,) say how many records each node replaces; some may be negative. An
    `ExpandedSketch` has a polynomial instead. Every sketch has these attributes:

    - ``mechanism``: the mechanism of the released values;
    - ``num_groups``: the number of groups, or None if there are no groups;
    - ``coords``: a dict with the labels of the groups, by the name of an axis in the results of `fit`, or None;
    - ``doubts``: the text of each `ReleaseWarning` about the released values;
    - ``sources``: the files from which `sketch_from` read the released values;
    - ``added``: for each release in the sketch, its mechanism and the number of values about one person; () for a
      single release with one value for each person.

    Examples
    --------
    >>> ldp.Release([1, 0, 1, 1], ldp.RandomizedResponse(epsilon=1.0)).sketch()
    CountSketch(4 records, 2 nodes, RandomizedResponse(epsilon=1.0, categories=2))
    """

    mechanism: Any
    _: dataclasses.KW_ONLY
    num_groups: int | None = static(default=None)
    doubts: tuple[str, ...] = host(default=())
    added: tuple[Promise, ...] = host(default=())
    coords: dict[str, tuple] | None = host(default=None)
    sources: tuple[Source, ...] = host(default=())

    if TYPE_CHECKING:  # fields or properties of a subclass
        nodes = weights = property()

    size = property(lambda self: self.weights.sum(), doc="Number of records.")
    _tallies = property(lambda self: self.weights)  # numbers of records, in any parts of the sketch
    #: Batch shape of the law of the records: () if all have one law, or (G,) if each of G groups has its own law.
    law_shape = property(lambda self: () if self.num_groups is None else (self.num_groups,))
    _parts = property(lambda self: (self,))  # sketches of one mechanism each, whose sum it is
    promises = property(lambda self: self.added or (Promise(self.mechanism),), doc="The guarantee of each release.")

    #: The array ``nodes``, without those of weight 0, where log-likelihoods may be infinite, but equally long.
    occupied = property(lambda self: np.where(self.weights != 0, self.nodes, self.nodes[np.abs(self.weights).argmax()]))
    _counts = property(lambda self: {"records": self.size, "groups": self.num_groups})
    _common = property(lambda self: jax.tree.structure(self.mechanism))  # of sketches that add; budgets may differ

    def _plus(self, other: Any) -> Any:
        """Sum with another sketch of the class and of a mechanism in common; ValueError if the two do not add."""
        raise TypeError(f"objects of {type(self).__name__} cannot be added")

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, Sketch):
            return NotImplemented
        if type(self._parts[0]) is not type(other._parts[0]):
            hint = "; make them with the same expand= (True or False)" if self.mechanism == other.mechanism else ""
            raise ValueError(f"sketches of different kinds cannot be added: {self} and {other}{hint}")
        if not (self._common == other._common and self.coords == other.coords):
            raise ValueError(f"sketches of different mechanisms or groups cannot be added: {self} and {other}")
        names = {source.digest: source.name for source in self.sources}
        twice = [f"{names[digest]} and {name}" for name, _, digest in other.sources if digest in names]
        if twice:
            hint = "if they hold different people, note in one of them what tells the files apart, such as the day"
            raise ValueError(f"records would count twice: {twice[0]} are the same file, or have equal content; {hint}")
        both: Any = {name: getattr(self, name) + getattr(other, name) for name in ("doubts", "sources")}
        both["added"] = (*counted_once(self.promises + other.promises),)
        return dataclasses.replace(self._plus(other), coords=self.coords, **both)

    def __radd__(self, other: Any) -> Any:
        return self if is_integer(other) and other == 0 else NotImplemented  # where ``sum`` starts

    def save(self, path: str | os.PathLike) -> None:
        """Write an ``.npz`` file without the released values; a failed write leaves an old file as it is."""
        if pathlib.Path(path).suffix != ".npz":
            raise ValueError(f"the name of a sketch file must end in .npz, got {os.fspath(path)!r}")
        with whole_file(path) as file:
            self._write(file)

    def _write(self, file: BinaryIO) -> None:
        added = [(mechanism.spec(), *more) for mechanism, *more in self.added]
        header: dict[str, Any] = {"format": SKETCH_FORMAT, "kind": type(self).__name__, "added": added}
        header["mechanism"] = self.mechanism.spec()
        arrays = dict[str, Any]()
        for name, value in _fields(self).items():
            if name == "parts":  # files in the file
                for place, part in enumerate(value):
                    part._write(buffer := io.BytesIO())
                    arrays[f"{name}.{place}"] = np.frombuffer(buffer.getvalue(), np.uint8)
            elif isinstance(value, Polynomial):
                arrays |= {f"{name}.{part}": array for part, array in _fields(value).items() if array is not None}
            elif isinstance(value, np.ndarray):
                arrays[name] = value
            elif name not in ("mechanism", "added", "records"):
                header[name] = value
        save_arrays(file, "sketch", header, arrays)

    @staticmethod
    def load(path: str | os.PathLike) -> "Sketch":
        """Read a sketch from a file that `save` wrote; ValueError if it is damaged, or another file."""
        with reading(path, " is not a valid sketch file") as file:
            return Sketch._read(file)

    @staticmethod
    def _read(file: BinaryIO) -> "Sketch":
        header, arrays = load_arrays(file, "sketch")
        finite = all(np.isfinite(array).all() for name, array in arrays.items() if name != "nodes")
        if (form := header.pop("format")) != SKETCH_FORMAT:
            raise ValueError(f"its format is {form!r}, of another version of ldpbayes")
        kind, mechanism, _ = header.pop("kind"), mechanism_from_spec(header.pop("mechanism")), header.pop("digest", "")
        (cls,) = (sketch_class for sketch_class in Sketch.__subclasses__() if sketch_class.__name__ == kind)
        polynomial = {part: arrays.pop(f"polynomial.{part}", None) for part in Polynomial.__dataclass_fields__}
        fields: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in header.items()}
        if parts := [arrays.pop(name).tobytes() for name in [*arrays] if name.startswith("parts.")]:
            fields["parts"] = tuple(Sketch._read(io.BytesIO(part)) for part in parts)
        fields |= arrays | ({"polynomial": Polynomial(**polynomial)} if polynomial["center"] is not None else {})
        fields["added"] = tuple(Promise(mechanism_from_spec(spec), *more) for spec, *more in header["added"])
        fields["sources"] = tuple(Source(*source) for source in header["sources"])
        if header["coords"] is not None:
            fields["coords"] = {axis: tuple(places) for axis, places in header["coords"].items()}
        if lacking := {field.name for field in dataclasses.fields(cls)} - {*fields, "mechanism", "records"}:
            raise ValueError(f"it lacks {', '.join(sorted(lacking))}")
        sketch = cls(mechanism=mechanism, **fields)
        if not finite or np.any(np.less(sketch._tallies, 0)):
            raise ValueError("some of its numbers are not finite, or count fewer than 0 records")
        if "nodes" in arrays:
            mechanism.validated(sketch.nodes)
        return sketch


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


@pytree_dataclass(eq=False)
class Groups(Sequence):
    """A sequence with one sketch or release for each group of records, for `observe` and for models of groups, as made
    by ``Release.sketch(by=...)`` if the released values are not discrete.

    Parameters
    ----------
    parts : sequence of Sketch or Release
        One for each group, in the order of the groups.
    coords : dict of str to tuple, optional
        Names of the groups, by the name of their axis in the results of `fit`: ``{"region": ("north", "south")}``.
    """

    parts: Sequence[Any]
    coords: dict[str, tuple] | None = host(default=None)

    def __getitem__(self, place: Any) -> Any:
        return self.parts[place]

    def __len__(self) -> int:
        return len(self.parts)


def levels_of(by: Any, n: int) -> tuple[np.ndarray, dict[str, tuple] | None]:
    """Codes (n,) of groups, and their levels in order, by the names of an axis; integers are codes, without levels."""
    words = entries_of(by) if getattr(by, "ndim", 1) == 1 else []
    distinct, order = dict.fromkeys(words), levels_in_order(by)
    integers = order is None and all(map(is_integer, distinct))
    if len(words) != n or (integers and min(distinct) < 0):
        raise ValueError(f"by must hold a level, or an integer ≥ 0, for each of the {n} records; got {shown(by)}")
    if integers:
        return np.asarray(words), None
    if any(map(is_missing, distinct)):
        raise ValueError(f"by has no level in row {[*map(is_missing, words)].index(True)}")
    levels = tuple(sorted(distinct) if order is None else [level for level in order if level in distinct])
    codes, axis = {level: code for code, level in enumerate(levels)}, getattr(by, "name", None) or "group"
    return np.array([codes[word] for word in words]), {"group": levels, str(axis): levels}


@pytree_dataclass(eq=False, repr=False)
class MomentSketch(Sketch):
    """Sketch of released rows by their number, mean and covariance ([KJKH] sec. 3.2.3), exact if original rows are
    normal.

    For rows of D columns, ``nodes`` (2D, D) are points with the mean and covariance of the rows, of equal ``weights``
    (2D,), whose sum is the number of records.
    """

    nodes: Any
    weights: Any

    _counts = property(lambda self: {"records": self.size, "columns": self.nodes.shape[-1]})
    _common = property(lambda self: self.mechanism)

    @classmethod
    def of(cls, values: ArrayLike, mechanism: Any) -> "MomentSketch":
        """Compress rows (N, D); ValueError if the noise is not Gaussian, or if records have different budgets."""
        if {Gaussian, IndependentGaussian}.isdisjoint(mechanism.form_classes):
            raise ValueError(f"rows can be sketched under Gaussian noise in numeric columns; got {mechanism!r}")
        if mechanism.batch_shape != ():
            raise ValueError("a sketch of rows needs one budget for all; sketch the rows of each budget separately")
        array = np.asarray(values)
        chunks = (array[start : start + ROWS_READ_AT_ONCE] for start in range(0, len(array), ROWS_READ_AT_ONCE))
        parts = [_nodes_of_moments(np.asarray(rows, float), np.ones(len(rows))) for rows in chunks]
        return cls(mechanism, *_nodes_of_moments(*map(np.concatenate, zip(*parts, strict=True))))

    def _plus(self, other: Any) -> "MomentSketch":
        nodes, weights = (np.concatenate([getattr(one, n) for one in (self, other)]) for n in ("nodes", "weights"))
        return MomentSketch(self.mechanism, *_nodes_of_moments(nodes, weights))


def _nodes_of_moments(rows: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (2D, D) of equal weights (2D,), with the count, mean and second moments of weighted rows."""
    count, d = weights.sum(), rows.shape[1]
    center = weights @ rows / count
    away = rows - center
    # not Cholesky: records that are few, or all equal in a column, have a singular covariance
    values, vectors = np.linalg.eigh((weights[:, None] * away).T @ away / count)
    arms = np.sqrt(d) * (vectors * np.sqrt(np.maximum(values, 0.0))).T
    return np.concatenate([center + arms, center - arms]), np.full(2 * d, count / (2 * d))


@pytree_dataclass(eq=False, repr=False)
class TotalSketch(Sketch):
    """Sketch of noisy statistics of each record, such as x² and x y: their sum over all records ([KJKH] sec. 3.1).

    For k statistics, ``nodes`` (1, k) has the sums, in the units of the statistics, and ``weights`` is [1].
    ``mechanism`` is that of the sum, and ``mechanism.count`` is the number of records.
    """

    nodes: Any
    weights: Any

    size = property(lambda self: self.mechanism.count)
    _common = property(lambda self: dataclasses.replace(self.mechanism, count=None))

    @classmethod
    def of(cls, values: ArrayLike, mechanism: Any) -> "TotalSketch":
        """Sum statistics (N, k) of N records; ValueError if `mechanism` is for sums over several records."""
        array: Any = array_of(values)
        return cls(mechanism.total(len(array)), array.sum(axis=0)[None], np.ones(1))

    def _plus(self, other: Any) -> "TotalSketch":
        return TotalSketch(self._common.total(self.size + other.size), self.nodes + other.nodes, np.ones(1))
