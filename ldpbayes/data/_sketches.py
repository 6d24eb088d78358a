"""Sketches: their common base, moments of normal rows, and totals of statistics."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike

from ldpbayes._core.checks import is_integer
from ldpbayes._core.printing import Holding, shown
from ldpbayes._core.pytrees import host, pytree_dataclass, static
from ldpbayes._core.tracing import array_of
from ldpbayes.data.frames import is_missing
from ldpbayes.mechanisms import mechanism_from_spec
from ldpbayes.mechanisms.protocol import Promise
from ldpbayes.noise import Gaussian, IndependentGaussian
from ldpbayes.numerics.polynomial import Polynomial

ROWS = 1 << 14  # rows that are read at a time, which bounds the memory and suits a cache
FORMAT = 1  # of files of sketches


class Source(NamedTuple):
    """A file whose records are in a sketch: its name, their number, and the SHA-256 of its contents."""

    name: str
    records: int
    digest: str


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Sketch(Holding):
    """Base of sketches. A sketch is a small summary that replaces the records of a release. `Release.sketch` makes one.

    A sketch has weighted nodes, except that an `ExpandedSketch` has a polynomial. Each node (nodes, *event) is a
    released value. The weight (nodes,) of a node is the number of records that it replaces. Weights can be negative.

    Every sketch has the attributes ``mechanism``; ``num_groups``, the number of groups, or None; ``coords``, the names
    of groups by axis, or None; ``doubts``, warnings about the release; ``sources``, the known files in the sketch; and
    ``added``, the guarantees of all releases in the sketch, or () for one release with one value for each person.

    Examples
    --------
    >>> ldp.Release([1, 0, 1, 1], ldp.RandomizedResponse(epsilon=1.0)).sketch()
    CountSketch(4 records, 2 nodes, RandomizedResponse(epsilon=1.0, categories=2))
    """

    mechanism: Any
    _: dataclasses.KW_ONLY
    num_groups: int | None = static(default=None)  #: Number of groups, or None.
    doubts: tuple[str, ...] = host(default=())  #: Warnings about the release.
    #: Promises of all releases in a sum of sketches, or of one release with several reports for each person; else ().
    added: tuple[Promise, ...] = host(default=())
    coords: dict[str, tuple] | None = host(default=None)  #: Names of the groups, along axes of these names.
    sources: tuple[Source, ...] = host(default=())  #: Known files in the sketch.

    if TYPE_CHECKING:  # fields or properties of a subclass
        nodes = weights = property()

    size = property(lambda self: self.weights.sum(), doc="Number of records.")
    #: Batch shape of the law of the records: () for one law of all, (G,) for one law for each group.
    law_shape = property(lambda self: () if self.num_groups is None else (self.num_groups,))
    promises = property(lambda self: self.added or (Promise(self.mechanism),), doc="The promise of each release.")

    @property
    def occupied(self) -> np.ndarray:
        """The nodes. Nodes of weight 0 are replaced by a node with records, because a law may be infinite there."""
        return np.where(self.weights != 0, self.nodes, self.nodes[np.argmax(np.abs(self.weights))])

    def _counts(self) -> dict[str, Any]:
        return {"records": self.size, "groups": self.num_groups}

    def _common(self) -> Any:
        """What sketches that add have in common: by default all of the mechanism."""
        return self.mechanism

    def _plus(self, other: Any) -> Any:
        """Sum with another sketch of the class and of a mechanism in common; ValueError if the two do not add."""
        raise TypeError(f"{type(self).__name__} does not add")

    def __add__(self, other: Any) -> Any:
        if type(self) is not type(other):
            return NotImplemented
        if not (self._common() == other._common() and self.coords == other.coords):
            raise ValueError(f"sketches of different mechanisms or groups do not add: {self} and {other}")
        known = {source.digest: source.name for source in self.sources}
        twice = [f"{known[digest]} and {name}" for name, _, digest in other.sources if digest in known]
        if twice:
            raise ValueError(f"records would count twice: {twice[0]} are one file, or equal")
        both: Any = {name: getattr(self, name) + getattr(other, name) for name in ("doubts", "sources")}
        both["added"] = self.promises + other.promises
        return dataclasses.replace(self._plus(other), coords=self.coords, **both)

    def __radd__(self, other: Any) -> Any:
        return self if is_integer(other) and other == 0 else NotImplemented  # where ``sum`` starts

    def save(self, path: str | os.PathLike) -> None:
        """Write an ``.npz`` file, without records, that `load` can read. Raises ValueError for another ending."""
        if pathlib.Path(path).suffix != ".npz":
            raise ValueError(f"a file of a sketch ends in .npz, got {os.fspath(path)!r}")
        header: dict[str, Any] = {"format": FORMAT, "kind": type(self).__name__, "mechanism": self.mechanism.spec()}
        header["added"] = [(mechanism.spec(), times) for mechanism, times in self.added]
        arrays = dict[str, Any]()
        for name, value in _fields(self).items():
            if isinstance(value, Polynomial):
                arrays |= {f"{name}.{part}": each for part, each in _fields(value).items() if each is not None}
            elif isinstance(value, np.ndarray):
                arrays[name] = value
            elif name not in ("mechanism", "added", "records"):
                header[name] = value
        part = pathlib.Path(f"{path}.part")  # so that an interrupted write leaves the old file as it is
        with open(part, "wb") as file:
            np.savez(file, **arrays, sketch=np.array(json.dumps(header, default=np.ndarray.tolist)))
        part.replace(path)

    @staticmethod
    def load(path: str | os.PathLike) -> "Sketch":
        """Read a file that `save` wrote. Raises ValueError if the file is another file or damaged."""
        name = pathlib.Path(path).name
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
            header = json.loads(str(arrays.pop("sketch")))
            form, kind, spec = (header.pop(key) for key in ("format", "kind", "mechanism"))
            (cls,) = (each for each in Sketch.__subclasses__() if each.__name__ == kind)
        except FileNotFoundError:
            raise
        except Exception as error:  # a damaged archive raises nearly anything
            raise ValueError(f"{name} is no file of a sketch, or damaged ({error})") from None
        if form != FORMAT:
            raise ValueError(f"{name} has format {form!r}, written by another version of ldpbayes")
        polynomial = {part: arrays.pop(f"polynomial.{part}", None) for part in Polynomial.__dataclass_fields__}
        fields: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in header.items()}
        fields |= arrays | ({"polynomial": Polynomial(**polynomial)} if polynomial["center"] is not None else {})
        fields["added"] = tuple(Promise(mechanism_from_spec(each), times) for each, times in header["added"])
        fields["sources"] = tuple(Source(*each) for each in header["sources"])
        if header["coords"] is not None:
            fields["coords"] = {axis: tuple(places) for axis, places in header["coords"].items()}
        return cls(mechanism=mechanism_from_spec(spec), **fields)


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


@pytree_dataclass(eq=False)
class Groups(Sequence):
    """A sequence of sketches or releases of groups, for `observe` and models. `Release.sketch` makes it with ``by=``.

    Parameters
    ----------
    parts : sequence of Sketch or Release
        One sketch or release for each group, in the order of the groups.
    coords : dict of str to tuple, optional
        Names of the groups by axis. They label the axes with this name and size in the result of `fit`.
    """

    parts: Sequence[Any]
    coords: dict[str, tuple] | None = host(default=None)

    def __getitem__(self, place: Any) -> Any:
        return self.parts[place]

    def __len__(self) -> int:
        return len(self.parts)


def levels_of(by: Any, n: int) -> tuple[np.ndarray, dict[str, tuple] | None]:
    """Codes (n,) of groups, and their levels in order, by the names of an axis; integers are codes, without levels."""
    # An array made of a list would have NaN as a word.
    words = [] if getattr(by, "ndim", 1) != 1 else by.tolist() if hasattr(by, "tolist") else [*by]
    found, order = dict.fromkeys(words), getattr(getattr(by, "cat", by), "categories", None)
    integers = order is None and all(map(is_integer, found))
    if len(words) != n or (integers and min(found) < 0):
        raise ValueError(f"by must hold a level for each of the {n} records, or an integer ≥ 0; got {shown(by)}")
    if integers:
        return np.asarray(words), None
    if any(map(is_missing, found)):
        raise ValueError(f"by has no level in row {[*map(is_missing, words)].index(True)}")
    levels = tuple(sorted(found) if order is None else [each for each in order if each in found])
    codes, axis = {level: code for code, level in enumerate(levels)}, getattr(by, "name", None) or "group"
    return np.array([codes[word] for word in words]), {"group": levels, str(axis): levels}


@pytree_dataclass(eq=False, repr=False)
class MomentSketch(Sketch):
    """Number, mean and covariance of released rows. This sketch is exact if the law of a row is normal.

    The sum of normal log densities depends on these moments only. The sketch stores them as 2D weighted points of
    dimension D: mean ± √D · (columns of a root of the covariance). Source: [KJKH] sec. 3.2.3. The points are ``nodes``
    (2D, D), in the units of the columns. Their ``weights`` (2D,) are equal and sum to the number of records.
    """

    nodes: Any  #: Weighted points (2D, D).
    weights: Any  #: Weights (2D,), all equal; they sum to the number of records.

    @classmethod
    def of(cls, values: ArrayLike, mechanism: Any) -> "MomentSketch":
        """Compress released rows (N, D) in one pass. Raises ValueError unless noise is Gaussian with one budget."""
        noise = getattr(mechanism, "noise", None)
        if not isinstance(noise, (Gaussian, IndependentGaussian)) or not hasattr(mechanism, "lower"):
            raise ValueError(f"rows can be sketched under Gaussian noise in numeric columns; got {mechanism!r}")
        if mechanism.batch_shape != ():
            raise ValueError("a sketch of rows needs one budget for all records; sketch the rows of each budget apart")
        array = np.asarray(values)
        chunks = (np.asarray(array[start : start + ROWS], float) for start in range(0, len(array), ROWS))
        parts = [_nodes_of_moments(rows, np.ones(len(rows))) for rows in chunks]
        return cls(mechanism, *_nodes_of_moments(*map(np.concatenate, zip(*parts, strict=True))))

    def _counts(self) -> dict[str, Any]:
        return {"records": self.size, "columns": self.nodes.shape[-1]}

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
    """The sum of locally perturbed statistics as one released value ([KJKH] sec. 3.1).

    ``mechanism`` is the mechanism of the sum, with its number of records as ``count``. Its only node is the sum:
    ``nodes`` are (1, statistics), in the units of the statistics, and ``weights`` are [1].
    """

    nodes: Any
    weights: Any

    size = property(lambda self: self.mechanism.count)

    @classmethod
    def of(cls, values: ArrayLike, mechanism: Any) -> "TotalSketch":
        """Sum the perturbed statistics (N, statistics) of single records. Raises ValueError for statistics of sums."""
        array: Any = array_of(values)
        return cls(mechanism.total(len(array)), array.sum(axis=0)[None], np.ones(1))

    def _common(self) -> Any:
        return dataclasses.replace(self.mechanism, count=None)

    def _plus(self, other: Any) -> "TotalSketch":
        return TotalSketch(self._common().total(self.size + other.size), self.nodes + other.nodes, np.ones(1))
