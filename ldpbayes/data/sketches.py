"""Sketches: their common base; moments of normal rows, totals of statistics, and panels of numbers."""

import dataclasses
import io
import math
import os
import pathlib
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpy.polynomial.legendre import leggauss

from ldpbayes._core.archive import load_arrays, reading, save_arrays, whole_file
from ldpbayes._core.checks import at_least, is_integer
from ldpbayes._core.pytrees import Holding, host, pytree_dataclass, shown, static
from ldpbayes._core.tabular import entries_of, is_missing, levels_in_order
from ldpbayes._core.types import Array, array_of, is_concrete
from ldpbayes.mechanisms import Mechanism, mechanism_from_spec
from ldpbayes.mechanisms.protocol import Promise, joined_mechanism
from ldpbayes.noise import Gaussian, IndependentGaussian
from ldpbayes.numerics.arrays import evenly_spaced, snapped
from ldpbayes.numerics.polynomial import Polynomial, lagrange_from_legendre
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
    #: Batch shape of the law of the records: () if all have one law, or (G,) if each of G groups has its own law.
    law_shape = property(lambda self: () if self.num_groups is None else (self.num_groups,))
    _parts = property(lambda self: (self,))  # sketches of one mechanism each, whose sum it is
    promises = property(lambda self: self.added or (Promise(self.mechanism),), doc="The guarantee of each release.")

    #: The array ``nodes``, without those of weight 0, where log-likelihoods may be infinite, but equally long.
    occupied = property(lambda self: np.where(self.weights != 0, self.nodes, self.nodes[np.abs(self.weights).argmax()]))
    _counts = property(lambda self: {"records": self.size, "groups": self.num_groups})
    #: Of sketches that add; their budgets, and numbers of groups, may differ.
    _common = property(lambda self: (jax.tree.structure(self.mechanism), self.num_groups is None))

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
        doubts, sources = self.doubts + other.doubts, self.sources + other.sources
        added = (*counted_once(self.promises + other.promises),)
        return dataclasses.replace(self._plus(other), coords=self.coords, added=added, doubts=doubts, sources=sources)

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
        """Read a sketch from a file that `save` wrote; ValueError if it was changed since, or is another file."""
        with reading(path, " is not a valid sketch file") as file:
            return Sketch._read(file)

    @staticmethod
    def _read(file: BinaryIO) -> "Sketch":
        header, arrays = load_arrays(file, "sketch")
        if "digest" not in header:  # with it, the content is that of a sketch
            raise ValueError("it has no digest, so `save` has not written it")
        if (form := header.pop("format")) != SKETCH_FORMAT:
            raise ValueError(f"its format is {form!r}, of another version of ldpbayes")
        kind, mechanism, _ = header.pop("kind"), mechanism_from_spec(header.pop("mechanism")), header.pop("digest")
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
        return cls(mechanism=mechanism, **fields)


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


DEFAULT_PANELS = 40
NODES_PER_SKETCH_PANEL = 8  # nodes a panel
MOMENTS_PER_PANEL = 12  # kept of each panel; the certificate compares the nodes, of which there are fewer, with them
KEPT_PROBES = 256  # released values that are kept, to check a sketch against them
RECORDS_READ_AT_ONCE = 1 << 15  # records that are read at a time, so that temporary arrays stay in a core's cache
MOST_BUDGETS = 64  # different budgets: the time of a gradient grows with their number
EQUAL_BUDGETS_RTOL = 1e-13  # relative difference up to which two budgets are taken as one
MOST_LATTICE_CUTS = 128  # integers between the bounds below which panels are cut there by default
MOST_COUNTED_ATOMS = 1024  # integers inside the bounds that are counted one by one, at most
HEAVY_TAIL_REACH = 4096  # in resolutions: normal noise ends, to 1e-32, after 12, power laws after very many
PANEL_GROWTH = 0.5  # width of graded panels over their distance from a bound: 8 nodes leave 1e-8 of a power law
FAR_RANGES = 100  # ranges or resolutions from a bound, from where on the growth increases
MOST_INNER_PANELS = 1024  # panels between the bounds, where others are graded


@pytree_dataclass(eq=False, repr=False)
class PanelSketch(Sketch):
    """Sketch of released numbers of one budget: the moments of the values in each of many intervals (panels).

    For a record x, its released value z, and parameters θ of the model, log p(z | θ) is a smooth function of z within a
    panel. Therefore the moments determine the log-likelihood Σ log p(z_i | θ) of all values almost exactly.

    - ``moments`` (panels, 12): the sums Σ P_n(t_i) over the values of each panel, for n = 0, ..., 11. P_n is the
      Legendre polynomial of degree n, and t_i is the position of value i in the panel, from −1 to 1.
    - ``tails`` (2, 2): the number and the sum of the values below the first panel (row 0) and above the last panel (row
      1), where log p is linear in z. Under staircase noise, these values are moved into the panels by multiples of the
      step. A row then has the number 0 and the sum of all moves.
    - ``atoms`` (places,): only if the mechanism releases some records without noise: the number of released values that
      are equal to each of ``places``, the clipping bounds and the integers between them.
    - ``edges`` (panels + 1,): the ends of the panels, in the unit of the data.
    - ``order``, ``grid``: numbers of nodes (at most 12) that replace the values of a panel, and of intervals for the
      integral over x (None: as many as panels). ``chosen``: whether `coarser` leaves the panels as they are.
    - ``records``, ``probes``: the released values, if they were kept, and at most 256 of them, for the check by `fit`.
    """

    moments: Any
    tails: Any
    atoms: Any
    edges: tuple[float, ...] = static()
    order: int = static(default=NODES_PER_SKETCH_PANEL)
    grid: int | None = static(default=None)
    chosen: bool = static(default=False)
    records: tuple | None = host(default=None)
    probes: Any = host(default=None)

    arrays = ("moments", "tails", "atoms")  # the fields in which sketches on equal panels differ
    size = property(lambda self: self.moments[..., 0].sum() + self.tails[..., 0].sum() + self.atoms.sum())
    _counts = property(lambda self: {"records": self.size, "nodes": len(self.nodes)})
    #: The numbers at which ``atoms`` are counted, as an array (places,).
    places = property(lambda self: atom_places(self.mechanism, self.edges))
    channel_panels = property(lambda self: self.grid or len(self.edges) - 1, doc="Number of panels in x.")
    #: A more exact sketch with 12 nodes for each panel. `fit` compares this sketch with it.
    reference = property(lambda self: dataclasses.replace(self, order=MOMENTS_PER_PANEL))

    @classmethod
    def of(
        cls,
        values: ArrayLike,
        mechanism: Any,
        panels: int | None = None,
        lattice: bool | None = None,
        keep_records: bool = True,
    ) -> "PanelSketch":
        """Compress N released numbers (N,) to a sketch. `Release.sketch` describes the options and errors."""
        if any(np.ndim(leaf) for leaf in jax.tree.leaves(mechanism)):
            raise ValueError("a PanelSketch needs one budget for all; release.sketch() takes a few budgets")
        array = np.asarray(values)
        edges, grid = panel_edges(mechanism, panels, lattice)
        chosen = panels is not None or grid is not None  # graded panels, not equally wide, are left as they are
        records, probes = (array,) if keep_records else None, evenly_spaced(array, KEPT_PROBES).astype(float)
        sums, ends = panel_moments(mechanism, array, edges), tuple(edges.tolist())
        return cls(mechanism, *sums, ends, NODES_PER_SKETCH_PANEL, grid, chosen, records, probes)

    @cached_property
    def nodes(self) -> np.ndarray:
        """Gauss-Legendre nodes of each panel, two nodes below and two above all panels, and ``places``."""
        edges = np.asarray(self.edges)
        t, _ = leggauss(self.order)
        inner = (edges[:-1, None] + 0.5 * np.diff(edges)[:, None] * (1 + t)).ravel()
        low, high, span = edges[0], edges[-1], edges[-1] - edges[0]
        near = int(self.mechanism.has_atoms)
        tails = [low - near * span, low - (near + 1) * span, high + near * span, high + (near + 1) * span]
        first, last = inner[0], inner[-1]
        if self.mechanism.period is not None:  # their weights only say how far values were moved, by whole periods
            tails = [first, first - span, last, last + span]
        elif not self.mechanism.linear_tails:  # nothing lies there, and nothing may be possible there
            tails = [first, first, last, last]
        return np.concatenate([inner, tails, self.places])

    @cached_property
    def weights(self) -> Any:
        """For each node, how many records the node replaces (nodes,)."""
        xp = np if isinstance(self.moments, np.ndarray) else jnp
        inner = self.moments[:, : self.order] @ lagrange_from_legendre(self.order)
        low, high = self.edges[0], self.edges[-1]
        (below, sum_below), (above, sum_above) = self.tails
        beyond = xp.stack([below, above])
        far = xp.stack([below * low - sum_below, sum_above - above * high]) / (high - low)
        far = far - beyond if self.mechanism.has_atoms else far
        tails = xp.stack([beyond - far, far], axis=1).ravel()
        return xp.concatenate([inner.ravel(), tails, self.atoms])

    def coarser(self, panels: int, grid: int, lattice: bool) -> "PanelSketch":
        """Return a sketch of about so many panels and at most `grid` intervals of x, or this one if ``chosen``.
        `lattice`: whether every integer must be an end of a panel.
        """
        edges, grid = np.asarray(self.edges), min(grid, self.channel_panels)
        whole = edges == np.rint(edges)
        cuts = [edges[0], *_bends(self.mechanism, edges[0], edges[-1]), edges[-1]]
        targets = _split(edges[whole & lattice | np.isin(edges, cuts)], panels)
        keep = np.unique(np.argmin(np.abs(edges - targets[:, None]), axis=1))
        if self.chosen or (len(keep) == len(edges) and grid == self.channel_panels):
            return self
        kept = tuple(edges[keep].tolist())
        return dataclasses.replace(self, moments=_merged(self.moments, edges, keep), edges=kept, grid=grid)

    @property
    def thinned(self) -> "PanelSketch":
        """A sketch of only the values in ``probes``, each of which stands for equally many records."""
        parts = panel_moments(self.mechanism, self.probes, np.asarray(self.edges))
        share = self.size / len(self.probes)
        return dataclasses.replace(self, **{name: share * part for name, part in zip(self.arrays, parts, strict=True)})

    def refine(self, lattice: bool | None = None) -> "PanelSketch | None":
        """Return a sketch of the released values with four times as many panels; None if they were not kept."""
        if self.records is None:
            return None
        panels = 4 * (len(self.edges) - 1)
        finer: Any = sum(PanelSketch.of(values, self.mechanism, panels, lattice) for values in self.records)
        return dataclasses.replace(finer, doubts=self.doubts, added=self.added)

    def _plus(self, other: Any) -> Any:
        if self.mechanism != other.mechanism:
            return MixedSketch.of((self, *other._parts))
        if self.edges != other.edges:
            panels = f"{len(self.edges) - 1} and {len(other.edges) - 1}"
            raise ValueError(f"sketches with different panels cannot be added ({panels}); give both the same number")
        records = None if self.records is None or other.records is None else self.records + other.records
        probes = None
        if self.probes is not None and other.probes is not None:
            kept = round(KEPT_PROBES * float(self.size / (self.size + other.size)))  # of the records, the same share
            probes = np.concatenate([evenly_spaced(self.probes, kept), evenly_spaced(other.probes, KEPT_PROBES - kept)])
        moments, tails, atoms = (getattr(self, name) + getattr(other, name) for name in self.arrays)
        grid = self.grid if self.grid == other.grid else max(self.channel_panels, other.channel_panels)
        order, chosen = min(self.order, other.order), self.chosen or other.chosen
        return PanelSketch(self.mechanism, moments, tails, atoms, self.edges, order, grid, chosen, records, probes)


@pytree_dataclass(eq=False, repr=False)
class MixedSketch(Sketch):
    """Sketch of released numbers of one law, with a few different budgets, clipping bounds or noise scales.

    - ``parts``: a `PanelSketch` of each of them, at most 64, in ascending order of the budgets (or bounds, or scales);
    - ``mechanism``: the mechanism of all parts. A parameter in which the parts differ is an array (parts,);
    - ``nodes`` and ``weights`` (nodes, parts): the nodes and weights of the parts, in columns.
    """

    parts: tuple[Any, ...]

    @classmethod
    def of(cls, parts: Sequence[Any]) -> Any:
        """The sketch of all records of some sketches, those of equal mechanisms added; ValueError for too many."""
        sums: list[Any] = []
        for part in parts:
            place = next((i for i, other in enumerate(sums) if other.mechanism == part.mechanism), None)
            sums += [part] if place is None else [sums.pop(place)._plus(part)]
        if len(sums) > MOST_BUDGETS:
            most = f"a sketch of numbers can hold at most {MOST_BUDGETS} different budgets, bounds or noise scales"
            raise ValueError(f"{most}, but these records have more; use the release itself")
        # in ascending order, so that a sum does not depend on the order of its terms
        sums.sort(key=lambda part: [np.ravel(leaf).tolist() for leaf in jax.tree.leaves(part.mechanism)])
        bare = tuple(dataclasses.replace(part, doubts=(), added=(), sources=()) for part in sums)
        return cls(joined_mechanism([part.mechanism for part in bare]), bare) if len(bare) > 1 else sums[0]

    # A part with fewer nodes than others has its last one repeated, with weight 0.
    weights = cached_property(lambda self: _columns([part.weights for part in self.parts], "constant"))
    occupied = property(lambda self: _columns([part.occupied for part in self.parts], "edge"))
    size = property(lambda self: sum(part.size for part in self.parts))
    _parts = property(lambda self: self.parts)

    @cached_property
    def nodes(self) -> Any:
        nodes = _columns([part.nodes for part in self.parts], "edge")
        return nodes[:, :1] if is_concrete(nodes) and np.all(nodes == nodes[:, :1]) else nodes

    def _plus(self, other: Any) -> Any:
        return MixedSketch.of(self.parts + other._parts)


def _columns(parts: Sequence[Any], padding: str) -> Any:
    """Arrays of any lengths as the columns of one."""
    xp = np if is_concrete(parts) else jnp
    most = max(map(len, parts))
    return xp.stack([xp.pad(part, (0, most - len(part)), padding) for part in parts], axis=1)


def budgets_of(mechanism: Mechanism, count: int) -> tuple[np.ndarray, list[Mechanism]]:
    """Codes (count,) of the different budgets of records, and the mechanism of each; of too many, only some."""
    first, codes = np.zeros(1, int), np.zeros(count, int)
    for leaf in mechanism.personal_parameters():
        values, places = np.unique(np.broadcast_to(leaf, count), return_inverse=True)
        kinds = np.cumsum(np.diff(values, prepend=-np.inf) > EQUAL_BUDGETS_RTOL * np.abs(values))
        _, first, codes = np.unique(codes * (len(values) + 1) + kinds[places], return_index=True, return_inverse=True)
    records = (mechanism.of_records((count,), slice(row, row + 1)) for row in first[: MOST_BUDGETS + 1])
    return codes, [record._map_personal(lambda leaf: leaf[0]) for record in records]


def panel_edges(mechanism: Any, panels: int | None = None, lattice: bool | None = None) -> tuple[Array, int | None]:
    """Panel edges (panels + 1,), and the number of panels between the bounds if those beyond are graded."""
    if mechanism.released_range is None:
        why = "releases rows" if mechanism.event_shape else "has no released_range"
        raise ValueError(f"{type(mechanism).__name__} {why}, so there is no sketch; use the release itself")
    if panels is not None:
        at_least(1, "panels", panels)
    low, high = (float(end) for end in mechanism.released_range)
    lower, upper = float(mechanism.domain.lower_bound), float(mechanism.domain.upper_bound)
    linear, resolution = mechanism.linear_tails, float(mechanism.resolution)
    if not linear and high - upper > HEAVY_TAIL_REACH * resolution:
        # noise that reaches so much further than it varies falls off like a power; its density has poles at a
        # resolution's distance, hence two panels a resolution
        inside = max(DEFAULT_PANELS, min(MOST_INNER_PANELS, math.ceil(2 * (upper - lower) / resolution)))
        ends = (low, lower, upper, high)
        far = FAR_RANGES * max(upper - lower, resolution)
        share = 1.0 if panels is None else (len(_graded(inside, PANEL_GROWTH, ends, far)) - 1) / panels
        edges = _graded(math.ceil(inside / share), PANEL_GROWTH * share, ends, far)
        bends = mechanism.released_breakpoints
        apart = np.abs(bends[:, None] - edges).min(axis=1) > 1e-9 * (upper - lower)  # rounding makes no panels
        return np.union1d(edges, bends[apart]), inside
    if panels is None:
        # log p bends on the scale s of the noise, and on s²/(upper − lower) between two atoms at the bounds.
        bend = resolution * min(1.0, resolution / (upper - lower))
        panels = DEFAULT_PANELS if linear else max(DEFAULT_PANELS, min(4096, math.ceil((high - low) / bend)))
        panels *= 1 if mechanism.period is None else 3  # of whose range the bounds are a third
    first, last = math.ceil(low), math.floor(high)
    if lattice is None:
        lattice = linear and mechanism.period is None and last - first < MOST_LATTICE_CUTS
    cuts = np.arange(first, last + 1.0) if lattice else np.empty(0)
    cells = np.unique(np.concatenate([[low], cuts, _bends(mechanism, low, high), [high]]))
    return _split(cells, panels), None


def _graded(inside: int, growth: float, ends: tuple[float, float, float, float], far: float) -> np.ndarray:
    """Edges ever further apart beyond the bounds: the log density is smooth in the logarithm of the distance, and from
    `far` on what it owes to the law of the records falls as the inverse of the distance.
    """
    low, lower, upper, high = ends
    width, reach = (upper - lower) / inside, max(lower - low, high - upper)
    distances = [width]
    while distances[-1] < reach:
        distances.append(distances[-1] + max(width, growth * distances[-1] * max(1.0, distances[-1] / far) ** 0.125))
    beyond = np.append(distances[:-1], reach)
    return np.concatenate([lower - beyond[::-1], np.linspace(lower, upper, inside + 1), upper + beyond])


def _bends(mechanism: Any, low: float, high: float) -> np.ndarray:
    """A mechanism's `released_breakpoints` between two ends, one of several that rounding alone keeps apart."""
    points = np.unique(np.asarray(mechanism.released_breakpoints, float))
    apart = 1e-9 * (high - low)
    points = points[(points > low + apart) & (points < high - apart)]
    return points[np.diff(points, prepend=low) > apart]


def _split(cells: np.ndarray, panels: int) -> np.ndarray:
    """Edges of cells that are cut into pieces of equal width, not wider than so many panels in the range of all."""
    width = (cells[-1] - cells[0]) / panels
    pieces = np.maximum(1, np.ceil(np.diff(cells) / width - 1e-9).astype(int))
    starts = [np.linspace(a, b, k, endpoint=False) for a, b, k in zip(cells[:-1], cells[1:], pieces, strict=True)]
    return np.concatenate([*starts, cells[-1:]])


def panel_moments(mechanism: Any, values: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arrays `moments`, `tails` and `atoms` of a `PanelSketch` of released values."""
    places, period = atom_places(mechanism, edges), mechanism.period
    panels = len(edges) - 1
    widths = np.diff(edges)
    uniform = np.allclose(widths, widths[0], rtol=1e-12, atol=0.0)
    moments, tails, atoms = np.zeros((MOMENTS_PER_PANEL, panels)), np.zeros((2, 2)), np.zeros(len(places))
    for start in range(0, len(values), RECORDS_READ_AT_ONCE):
        z = np.asarray(values[start : start + RECORDS_READ_AT_ONCE])
        if len(places):
            z = snapped(z, (edges[0], edges[-1]))
            special = np.flatnonzero((z == np.rint(z)) | (z == edges[0]) | (z == edges[-1]))
            index = np.minimum(np.searchsorted(places, z[special]), len(places) - 1)
            there = places[index] == z[special]
            atoms += np.bincount(index[there], minlength=len(places))
            z = np.delete(z, special[there])
        z = np.asarray(z, dtype=float)
        if period is not None:
            low, high = (np.ceil(np.maximum(gap, 0) / period) for gap in (edges[0] - z, z - edges[-1]))
            tails[:, 1] += -period * low.sum(), period * high.sum()
            z = np.clip(z + period * (low - high), edges[0], edges[-1])
        else:
            sides = z < edges[0], z > edges[-1]
            if not mechanism.linear_tails and np.any(sides):
                worst = z[np.argmax(np.abs(z - 0.5 * (edges[0] + edges[-1])))]
                span = f"[{edges[0]:g}, {edges[-1]:g}], which has all but one in 10^32 released values"
                raise ValueError(f"{type(mechanism).__name__} cannot have released {worst:g}: it is outside {span}")
            for tail, side in zip(tails, sides, strict=True):
                tail += side.sum(), z[side].sum()
            z = z[~(sides[0] | sides[1])]
        if uniform:
            scaled = (z - edges[0]) * (panels / (edges[-1] - edges[0]))
            index = np.minimum(scaled.astype(np.intp), panels - 1)
        else:
            index = np.minimum(np.searchsorted(edges, z, side="right") - 1, panels - 1)
        t = (z - edges[index]) * (2.0 / widths[index]) - 1.0
        previous, current = np.ones_like(t), t
        moments[0] += np.bincount(index, minlength=panels)
        moments[1] += np.bincount(index, t, panels)
        for n in range(1, MOMENTS_PER_PANEL - 1):
            previous, current = current, ((2 * n + 1) / (n + 1)) * t * current - (n / (n + 1)) * previous
            moments[n + 1] += np.bincount(index, current, panels)
    return moments.T.copy(), tails, atoms


def _merged(moments: Array, edges: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Moments (new, 12) between kept edges: on part of a panel its P_n is a combination of the part's P_0..P_n."""
    t, w = np.polynomial.legendre.leggauss(MOMENTS_PER_PANEL)
    whole = np.repeat(np.arange(len(keep) - 1), np.diff(keep))  # the new panel of each old one
    start, stop = (edges[keep[whole + side]][:, None] for side in (0, 1))
    points = edges[:-1, None] + 0.5 * np.diff(edges)[:, None] * (1 + t)
    wide = np.polynomial.legendre.legvander((2 * points - start - stop) / (stop - start), MOMENTS_PER_PANEL - 1)
    degrees = np.arange(MOMENTS_PER_PANEL)
    weighted = np.polynomial.legendre.legvander(t, degrees[-1]) * w[:, None] * (degrees + 0.5)
    parts = np.einsum("pm,qm,pqn->pn", moments, weighted, wide, optimize=True)
    return np.add.reduceat(parts, keep[:-1])


def atom_places(mechanism: Any, edges: Any) -> np.ndarray:
    """Values of records released without noise, if any: both bounds, and up to 1,024 integers between for counts."""
    if not mechanism.has_atoms:
        return np.empty(0)
    low, high = edges[0], edges[-1]
    first, last = math.floor(low) + 1, math.ceil(high) - 1
    return np.concatenate([[low], np.arange(first, last + 1.0) if last - first < MOST_COUNTED_ATOMS else [], [high]])
