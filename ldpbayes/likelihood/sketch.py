"""A release compressed to a few hundred weighted nodes, whose log-likelihood is that of all records to rounding error.

For records z_1..z_N with the same law, Σ log p(z_i | θ) only asks for the integral of a smooth function against the
empirical measure. On panels over the released range that measure is stored as Legendre moments; Gauss-Legendre nodes
with the weights that reproduce these moments stand for the records. Where log p is exactly linear (outside the bounds,
under Laplace noise), a count and a sum say everything. Records that were released without noise gather at atoms, the
bounds and (counts) the integers, where they are counted. Discrete outputs need values and counts only. Sketches add up.
"""

import abc
import dataclasses
import math
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes.likelihood.categorical import Grouped
from ldpbayes.likelihood.channel import lagrange_from_legendre
from ldpbayes.likelihood.latent import gauss_legendre, is_concrete
from ldpbayes.likelihood.panels import (
    MAX_ATOMS,
    MOMENTS,
    atom_places,
    check_panels,
    merged,
    panel_edges,
    panel_moments,
    selected,
)
from ldpbayes.likelihood.privatized import Privatized

__all__ = ["CountSketch", "PanelSketch", "Sketch", "joined_mechanism", "joined_sketch", "sketch"]

ORDER = 8  # nodes a panel
MAX_CHANNEL_PANELS = 200  # a sketch refined further has nodes enough for a closed form, if there is one, to be faster
ROWS = 1 << 20  # released values collapsed at a time
PROBES = 256  # released values that are kept to check a sketch against them
FEW_KINDS = 1 << 20  # below it kinds are counted in a table, without sorting


@dataclasses.dataclass(frozen=True, eq=False)
class Sketch(abc.ABC):
    """Weighted nodes that stand for a release; see `PanelSketch` and `CountSketch`.

    Attributes
    ----------
    nodes, weights : array (nodes,)
        Released values and how many records each of them stands for (weights can be negative: they integrate
        polynomials, they are not counts).
    mechanism : Mechanism
    doubts : tuple of str
        What was warned of when the releases were made; lost where the sketch is taken apart as a pytree.
    """

    def __add__(self, other):
        """Sketch of the two releases together; both must come from the same mechanism on the same panels."""
        if type(self) is not type(other):
            return NotImplemented
        if self.mechanism != other.mechanism:
            raise ValueError(f"sketches of different mechanisms do not add: {self.mechanism} and {other.mechanism}")
        return self._merge(other)

    @property
    @abc.abstractmethod
    def law_shape(self):
        """Batch shape that the law of the records must have: () for one common law."""

    @abc.abstractmethod
    def law_of_nodes(self, base_dist, **options):
        """The law of the nodes when records follow ``base_dist``.

        Parameters
        ----------
        base_dist : numpyro.distributions.Distribution
            Of batch shape `law_shape`.
        **options
            ``method`` and ``panels`` of `Privatized`, instead of the sketch's own choice.

        Returns
        -------
        Privatized
        """

    def __radd__(self, other):
        """Let ``sum`` start from 0."""
        return self if isinstance(other, int) and other == 0 else NotImplemented


@dataclasses.dataclass(frozen=True, eq=False)
class PanelSketch(Sketch):
    """Legendre moments of the released values on panels.

    Attributes
    ----------
    mechanism : Mechanism
        With one budget for all records.
    moments : array (panels, 12)
        Σ P_n(t_i) over the records of a panel, t the panel's local coordinate in [−1, 1].
    tails : array (2, 2)
        Count and sum of the values below the first and above the last panel, where log p is linear.
    atoms : array (places,)
        How many values equal the bounds and the integers between them (see `atom_places`), which are in no panel; empty
        for mechanisms that release nothing without noise.
    edges : tuple of float
        Panel edges.
    order : int
        Nodes a panel (8; 12 uses every moment and serves as the reference of the certificate).
    grid : int, optional
        Panels of the channel, in x (twice as many for the reference). Default: as many as there are in z.
    chosen : bool
        Whether it is on as many panels as its maker asked for, of which there are then never fewer.
    records : tuple of arrays, optional
        The values the sketch was made from, as long as it is to refine itself.
    probes : array, optional
        A few of them, evenly spread: what the certificate looks at one by one.
    doubts : tuple of str
    """

    mechanism: object
    moments: object
    tails: object
    atoms: object
    edges: tuple
    order: int = ORDER
    grid: int | None = None
    chosen: bool = False
    records: tuple | None = None
    probes: object = None
    doubts: tuple[str, ...] = ()

    arrays = ("moments", "tails", "atoms")
    """What differs between sketches on the same panels."""

    @property
    def size(self):
        """Number of records."""
        return self.moments[..., 0].sum() + self.tails[..., 0].sum() + self.atoms.sum()

    @cached_property
    def nodes(self):
        """Node values, shape (panels × order + 4 + places,): of the panels alone, so that sketches can be stacked.

        Four nodes carry the tails: a linear function is known from its values at an edge and one range further out. The
        atoms come last; where there are some the tails start one range further out, since one is at the edge.
        """
        edges = np.asarray(self.edges)
        t, _ = gauss_legendre(self.order)
        inner = (edges[:-1, None] + 0.5 * np.diff(edges)[:, None] * (1 + t)).ravel()
        low, high = edges[0], edges[-1]
        near, far = self._out, (self._out + 1)
        span = high - low
        tails = [low - near * span, low - far * span, high + near * span, high + far * span]
        return np.concatenate([inner, tails, self.places])

    @property
    def places(self):
        """Where the atoms are."""
        return _places(self.mechanism, self.edges)

    @property
    def _out(self):
        """How many ranges beyond the edges the nearer nodes of the tails are."""
        return 1 if self.mechanism.has_atoms else 0

    @cached_property
    def weights(self):
        """Node weights, as many as nodes; they sum to the number of records."""
        xp = np if isinstance(self.moments, np.ndarray) else jnp
        inner = self.moments[:, : self.order] @ lagrange_from_legendre(self.order)
        low, high = self.edges[0], self.edges[-1]
        (below, sum_below), (above, sum_above) = self.tails
        beyond = xp.stack([below, above])
        far = xp.stack([below * low - sum_below, sum_above - above * high]) / (high - low) - self._out * beyond
        tails = xp.stack([beyond - far, far], axis=1).ravel()
        return xp.concatenate([inner.ravel(), tails, self.atoms])

    law_shape = ()

    def law_of_nodes(self, base_dist, **options):
        """The law of the nodes; see `Sketch.law_of_nodes`.

        Raises
        ------
        ValueError
            For counts of which some are released without noise, where too many integers lie between the bounds.
        """
        return Privatized(base_dist, self.mechanism, **self._options(base_dist) | options)

    def _options(self, base_dist):
        if base_dist.support.is_discrete and self.mechanism.has_atoms:
            self._check_counts()
        panels = self._grid * (2 if self.order == MOMENTS else 1)
        # one matrix product beats any closed form at a sketch's few nodes (docs/benchmarks.md)
        return {"method": "auto" if panels > MAX_CHANNEL_PANELS else "channel", "panels": panels}

    @property
    def _grid(self):
        return self.grid or len(self.edges) - 1

    def _check_counts(self):
        between = math.ceil(self.edges[-1]) - math.floor(self.edges[0]) - 1
        share = self.mechanism.unperturbed
        if between > len(self.places) - 2 and not (is_concrete(share) and not np.any(share)):
            raise ValueError(
                f"a sketch keeps the atoms of at most {MAX_ATOMS} counts between the bounds, and here are {between}, "
                "some of them released without noise; fit the release itself"
            )

    def coarser(self, panels=10, grid=12, lattice=None):
        """The same records on fewer panels: to 12 moments each they are what a sketch of the records would have there.

        Parameters
        ----------
        panels : int
            In z. Some more where panels end at integers, and no more than there are.
        grid : int
            In x; see the attribute.
        lattice : bool, optional
            Keep the panels' ends at the integers (for counts). Default: where they all are ends.

        Returns
        -------
        PanelSketch
            This one where its maker chose the panels, or it has no more.

        Raises
        ------
        ValueError
            If a number of panels is not a positive integer.
        """
        check_panels(panels)
        check_panels(grid, "grid")
        keep = selected(np.asarray(self.edges), panels, lattice)
        grid = min(grid, self._grid)
        if self.chosen or (len(keep) == len(self.edges) and grid == self._grid):
            return self
        edges = tuple(self.edges[i] for i in keep)
        return dataclasses.replace(self, moments=merged(self.moments, self.edges, keep), edges=edges, grid=grid)

    @property
    def thinned(self):
        """A sketch of the probes alone, of which each stands for many: on the same panels, as many records."""
        parts = panel_moments(self.probes, np.asarray(self.edges), self.places)
        share = self.size / len(self.probes)
        return dataclasses.replace(self, **{name: share * part for name, part in zip(self.arrays, parts, strict=True)})

    @property
    def one_by_one(self):
        """The same without any compression: what `fit` certifies against, too."""
        share = self.size / len(self.probes)
        return CountSketch(self.mechanism, self.probes, np.full(len(self.probes), share))

    @property
    def reference(self):
        """The same moments on 12 nodes a panel, and a finer channel: what `fit` certifies the sketch against."""
        return dataclasses.replace(self, order=MOMENTS)

    def refine(self, factor=4, lattice=None):
        """Sketch the records again on panels ``factor`` times narrower.

        Parameters
        ----------
        factor : int
        lattice : bool, optional
            Cut at the integers (for counts); see `sketch`.

        Returns
        -------
        PanelSketch or None
            None where the records were not kept.
        """
        if self.records is None:
            return None
        panels = factor * (len(self.edges) - 1)
        finer = sum(sketch(values, self.mechanism, panels=panels, lattice=lattice) for values in self.records)
        return dataclasses.replace(finer, doubts=self.doubts)

    def _merge(self, other):
        if self.edges != other.edges:
            raise ValueError(
                f"sketches on different panels do not add ({len(self.edges) - 1} and {len(other.edges) - 1} panels); "
                "make both with the same panels="
            )
        keep = self.records is not None and other.records is not None
        probes = [] if self.probes is None or other.probes is None else [self.probes, other.probes]
        return PanelSketch(
            self.mechanism,
            self.moments + other.moments,
            self.tails + other.tails,
            self.atoms + other.atoms,
            self.edges,
            min(self.order, other.order),
            self.grid if self.grid == other.grid else max(self._grid, other._grid),
            self.chosen or other.chosen,
            self.records + other.records if keep else None,
            _few(np.concatenate(probes)) if probes else None,
            self.doubts + other.doubts,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class _SideBySide:
    """Sketches of several groups: weights are (nodes, G), nodes too, or (nodes, 1) where all have the same."""

    sketches: tuple
    mechanism: object
    nodes: object
    weights: object

    def law_of_nodes(self, base_dist, **options):
        """The law of the nodes, from a law a group; see `Sketch.law_of_nodes`."""
        own = [part._options(base_dist) for part in self.sketches]
        finest = max(own, key=lambda choice: choice.get("panels", 0))
        return Privatized(base_dist, self.mechanism, **finest | options)


@dataclasses.dataclass(frozen=True, eq=False)
class CountSketch(Sketch):
    """Released values of which no two say the same, and how often each occurs: exact, for discrete outputs.

    Attributes
    ----------
    mechanism : Mechanism
        With one budget, or one a node: records are counted together only if they have the same budget.
    nodes : array (nodes, *event)
        One released value of each kind (see `Mechanism.equivalence`).
    weights : array (nodes,)
    groups : array of int (nodes,), optional
        The group of each node, in a sketch made with ``by=``.
    num_groups : int, optional
    doubts : tuple of str
    """

    mechanism: object
    nodes: object
    weights: object
    groups: object = None
    num_groups: int | None = None
    doubts: tuple[str, ...] = ()

    @property
    def size(self):
        """Number of records."""
        return self.weights.sum()

    @property
    def law_shape(self):
        """() for one law of all records, (G,) for a law a group."""
        return () if self.groups is None else (self.num_groups,)

    def law_of_nodes(self, base_dist, **options):
        """The law of the nodes; see `Sketch.law_of_nodes`."""
        base_dist = base_dist if self.groups is None else Grouped(base_dist, self.groups)
        return Privatized(base_dist, self.mechanism, **options)

    def _options(self, base_dist):
        return {}

    def __add__(self, other):
        """Sketch of the two releases together; the same protocol, but budgets may differ."""
        if type(self) is not type(other):
            return NotImplemented
        mechanisms = self.mechanism, other.mechanism
        trees = [jax.tree.structure(mechanism) for mechanism in mechanisms]
        if trees[0] != trees[1]:
            raise ValueError(f"sketches of different mechanisms do not add: {mechanisms[0]} and {mechanisms[1]}")
        if (self.groups is None) != (other.groups is None):
            raise ValueError("a sketch made with by= and one without do not add")

        both = _collapse(
            joined_mechanism(mechanisms, (len(self.nodes), len(other.nodes))),
            np.concatenate([self.nodes, other.nodes]),
            np.concatenate([self.weights, other.weights]),
            None if self.groups is None else np.concatenate([self.groups, other.groups]),
            None if self.groups is None else max(self.num_groups, other.num_groups),
        )
        return dataclasses.replace(both, doubts=self.doubts + other.doubts)


# as pytrees sketches drop their records, probes and doubts, which are only there for the host
jax.tree_util.register_pytree_node(
    PanelSketch,
    lambda s: ((s.mechanism, *(getattr(s, name) for name in s.arrays)), (s.edges, s.order, s.grid, s.chosen)),
    lambda aux, leaves: PanelSketch(*leaves, *aux),
)
jax.tree_util.register_pytree_node(
    CountSketch,
    lambda s: ((s.mechanism, s.nodes, s.weights, s.groups), s.num_groups),
    lambda aux, leaves: CountSketch(*leaves, aux),
)


def joined_mechanism(mechanisms, counts=None):
    """One mechanism of the records of several, whose tree structures are equal.

    Parameters
    ----------
    mechanisms : sequence of Mechanism
    counts : sequence of int, optional
        How many records each of them is of. Default: one.

    Returns
    -------
    Mechanism
        Parameters that are one number for all stay one.
    """

    def join(*leaves):
        first, known = leaves[0], is_concrete(leaves)
        if np.ndim(first) == 0 and all(leaf is first or (known and np.array_equal(leaf, first)) for leaf in leaves):
            return first
        xp = np if known else jnp
        if counts is None:
            return xp.stack(leaves)
        return xp.concatenate([xp.broadcast_to(leaf, n) for leaf, n in zip(leaves, counts, strict=True)])

    return jax.tree.map(join, *mechanisms)


def joined_sketch(sketches):
    """One sketch of several groups' records, of a law a group.

    Parameters
    ----------
    sketches : sequence of PanelSketch, or of CountSketch
        One a group, of mechanisms whose tree structures are equal; budgets, bounds and panels may differ.

    Returns
    -------
    CountSketch, or what has its ``law_of_nodes``, ``nodes`` and ``weights``
    """
    mechanisms = [part.mechanism for part in sketches]
    nodes, weights = [part.nodes for part in sketches], [part.weights for part in sketches]
    if mechanisms[0].support.is_discrete:
        sizes = [len(part) for part in nodes]
        mechanism, groups = joined_mechanism(mechanisms, sizes), np.repeat(np.arange(len(sketches)), sizes)
        nodes, weights = ((np if is_concrete(parts) else jnp).concatenate(parts) for parts in (nodes, weights))
        return CountSketch(mechanism, nodes, weights, groups, len(sketches))
    # where there are fewer nodes the last is repeated, and stands for nothing
    nodes, weights = _columns(nodes, "edge"), _columns(weights, "constant")
    nodes = nodes[:, :1] if is_concrete(nodes) and np.all(nodes == nodes[:, :1]) else nodes
    return _SideBySide(tuple(sketches), joined_mechanism(mechanisms), nodes, weights)


def _columns(parts, padding):
    """Arrays of any lengths as the columns of one."""
    xp, most = np if is_concrete(parts) else jnp, max(map(len, parts))
    return xp.stack([xp.pad(part, (0, most - len(part)), padding) for part in parts], axis=1)


def sketch(values, mechanism, *, panels=None, lattice=None, keep_records=True, by=None):
    """Compress released values to weighted nodes, in one streaming pass.

    Parameters
    ----------
    values : array (N, *event)
        Released values; a NumPy memory map is read in chunks.
    mechanism : Mechanism
        With one budget for all records; for discrete outputs personal budgets are counted apart.
    panels : int, optional
        Panels over the released range. Default: 40, more where the mechanism's noise is narrow.
    lattice : bool, optional
        Cut the panels at the integers, where a count's log-likelihood has kinks under Laplace noise. Default: where at
        most 128 integers lie between the bounds.
    keep_records : bool
        Keep a reference to ``values`` so that `fit` can refine a sketch that turns out too coarse.
    by : array of int (N,), optional
        Group of each record, 0, ..., G − 1, for discrete outputs: the records' law then has batch shape (G,).

    Returns
    -------
    PanelSketch or CountSketch

    Raises
    ------
    ValueError
        For personal budgets of a continuous release (sketch each budget's records apart), a mechanism that names no
        released range, values that the mechanism cannot have released, a non-positive number of panels, or groups of
        another length, negative, or of a continuous release.
    """
    if mechanism.support.is_discrete:
        values = np.asarray(values)
        return _collapse(mechanism, values, np.ones(len(values)), *_groups(by, len(values)))
    if by is not None:
        raise ValueError("by= is for releases with discrete outputs; make one sketch a group")
    if any(np.ndim(leaf) for leaf in jax.tree.leaves(mechanism)):
        raise ValueError(
            "only records with one common budget can be sketched, and this mechanism's parameters are arrays; "
            "sketch the records of each budget on their own, or fit the release itself"
        )
    values = np.asarray(values)
    edges = panel_edges(mechanism, panels, lattice)
    moments, tails, atoms = panel_moments(values, edges, _places(mechanism, edges))
    if not mechanism.linear_tails and tails[:, 0].any():
        worst = values[np.argmax(np.abs(values - 0.5 * (edges[0] + edges[-1])))]
        raise ValueError(
            f"{type(mechanism).__name__} cannot have released {worst:g}: that is beyond [{edges[0]:g}, {edges[-1]:g}], "
            "which it leaves less than once in 10^32 records; check the mechanism's parameters"
        )
    return PanelSketch(
        mechanism,
        moments,
        tails,
        atoms,
        tuple(edges.tolist()),
        chosen=panels is not None,
        records=(values,) if keep_records else None,
        probes=_few(values),
    )


def _few(values):
    return np.array(values[np.linspace(0, len(values) - 1, min(PROBES, len(values))).astype(int)], float)


def _places(mechanism, edges):
    return atom_places(edges[0], edges[-1]) if mechanism.has_atoms else np.empty(0)


def _groups(by, n):
    if by is None:
        return None, None
    groups = np.asarray(by)
    if groups.shape != (n,) or groups.dtype.kind not in "iu" or groups.min() < 0:
        raise ValueError(
            f"by must hold a group number for each of the {n} records, integers from 0; got shape {groups.shape}, "
            f"dtype {groups.dtype}" + (f", least {groups.min()}" if groups.dtype.kind in "iu" and groups.size else "")
        )
    return groups, int(groups.max()) + 1


def _collapse(mechanism, values, weights, groups, num_groups):
    """Count the values of each kind (and budget, and group), chunk by chunk and then once more."""
    n = len(values)

    def distinct(rows):
        mine = mechanism.of_records((n,), rows)
        columns = [_words(mechanism.equivalence(values[rows]))]
        columns += [np.asarray(leaf).view(np.uint64)[:, None] for leaf in jax.tree.leaves(mine) if np.ndim(leaf)]
        if groups is not None:
            columns.append(groups[rows].astype(np.uint64)[:, None])
        return columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)

    if n <= ROWS:
        first, weights = _distinct(distinct(slice(None)), weights)
    else:
        parts = [
            (start, *_distinct(distinct(slice(start, start + ROWS)), weights[start : start + ROWS]))
            for start in range(0, n, ROWS)
        ]
        first = np.concatenate([start + rows for start, rows, _ in parts])
        rows, weights = _distinct(distinct(first), np.concatenate([counts for *_, counts in parts]))
        first = first[rows]
    nodes = values if len(first) == n else values[first]
    return CountSketch(
        mechanism.of_records((n,), first), nodes, weights, None if groups is None else groups[first], num_groups
    )


def _words(integers):
    """Rows of integers as rows of 64-bit words, bytes eight at a time."""
    if integers.dtype != np.uint8 or integers.shape[1] == 1:
        return integers.astype(np.int64).view(np.uint64)
    padded = np.zeros((len(integers), -(-integers.shape[1] // 8) * 8), np.uint8)
    padded[:, : integers.shape[1]] = integers
    return padded.view(np.uint64)


def _distinct(words, weights):
    """A row of each kind (the first one) and the total weight of each kind."""
    if words.shape[1] == 1 and words.max() < FEW_KINDS:
        kind = words[:, 0].astype(np.intp)
        total, first = np.bincount(kind, weights), np.full(int(kind.max()) + 1, -1)
        first[kind[::-1]] = np.arange(len(kind))[::-1]
        return first[first >= 0], total[first >= 0]
    order = np.lexsort(words.T)
    words = words[order]
    starts = np.flatnonzero(np.concatenate([[True], (words[1:] != words[:-1]).any(axis=1)]))
    first, total = order[starts], np.add.reduceat(weights[order], starts)
    # in order of appearance, so that a release without duplicates stays as it is
    order = np.argsort(first)
    return first[order], total[order]
