"""Sketches of numbers: Legendre moments of the released values on panels, tails, and counts at atoms."""

import dataclasses
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._checks import at_least
from ldpbayes._pytree import host, pytree, static
from ldpbayes._shown import seen
from ldpbayes.data._panels import (
    MOMENTS,
    atom_places,
    bends,
    grid_of,
    is_graded,
    merged,
    panel_edges,
    panel_moments,
    selected,
)
from ldpbayes.data._sketch import Sketch
from ldpbayes.numerics._quadrature import gauss_legendre, lagrange_from_legendre

__all__ = ["PanelSketch"]

ORDER = 8  # nodes a panel
PROBES = 256  # so many released values are kept, to check a sketch against them


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PanelSketch(Sketch):
    """Legendre moments of the released values on panels.

    Attributes
    ----------
    mechanism : NumericMechanism
        What made the release, with one budget for all records.
    moments : array (panels, 12)
        Σ P_n(t_i) over the records of a panel, t the panel's local coordinate in [−1, 1].
    tails : array (2, 2)
        Count and sum of the values below the first (row 0) and above the last panel (row 1), where log p is linear.
        Where it is so from period to period only, values are moved into the panels by whole periods: no count, and the
        sum of the moves.
    atoms : array (places,)
        How many values equal the bounds and the integers between them (see `atom_places`), which are in no panel; empty
        for mechanisms that release nothing without noise.
    edges : tuple of float
        Panel edges, increasing.
    order : int
        Nodes a panel: 8, or 12, which uses every moment and serves as the reference of the certificate.
    grid : int, optional
        Panels of the channel, in x (twice as many for the reference). Default: as many as there are in z.
    chosen : bool
        Whether its maker asked for this number of panels, which `coarser` then leaves as it is.
    records : tuple of arrays, optional
        The values that the sketch was made from, with which it can refine itself.
    probes : array, optional
        A few of these values, evenly spread, which the certificate looks at one by one.
    doubts : tuple of str
        The warnings that were given when the releases were made.
    added : tuple of Mechanism
        See `Sketch`.
    """

    mechanism: Any
    moments: Any
    tails: Any
    atoms: Any
    edges: tuple[float, ...] = static()
    order: int = static(default=ORDER)
    grid: int | None = static(default=None)
    chosen: bool = static(default=False)
    records: tuple | None = host(default=None)
    probes: Any = host(default=None)
    doubts: tuple[str, ...] = host(default=())
    added: tuple[Any, ...] = host(default=())

    @classmethod
    def of(
        cls,
        values: ArrayLike,
        mechanism: Any,
        panels: int | None = None,
        lattice: bool | None = None,
        keep_records: bool = True,
    ) -> "PanelSketch":
        """Compress released numbers.

        Parameters
        ----------
        values, mechanism, panels, lattice, keep_records
            As in `ldpbayes.data.sketch`, whose errors are raised, too.
        """
        if any(np.ndim(leaf) for leaf in jax.tree.leaves(mechanism)):
            raise ValueError(
                "only records with one common budget can be sketched, and this mechanism's parameters are arrays; "
                "sketch the records of each budget on their own, or fit the release itself"
            )
        array = np.asarray(values)
        edges, graded = panel_edges(mechanism, panels, lattice), is_graded(mechanism)
        moments, tails, atoms = panel_moments(array, edges, places_of(mechanism, edges), mechanism.period)
        if not mechanism.linear_tails and tails[:, 0].any():
            worst = array[np.argmax(np.abs(array - 0.5 * (edges[0] + edges[-1])))]
            raise ValueError(
                f"{type(mechanism).__name__} cannot have released {worst:g}: that is beyond [{edges[0]:g}, "
                f"{edges[-1]:g}], which it leaves less than once in 10^32 records; check the mechanism's parameters"
            )
        return cls(
            mechanism,
            moments,
            tails,
            atoms,
            tuple(edges.tolist()),
            grid=grid_of(mechanism) if graded else None,
            chosen=panels is not None or graded,  # graded panels are not equally wide, and are left as they are
            records=(array,) if keep_records else None,
            probes=few(array),
        )

    arrays = ("moments", "tails", "atoms")
    """The fields in which sketches on the same panels differ."""

    @property
    def size(self) -> Any:
        """Number of records."""
        return self.moments[..., 0].sum() + self.tails[..., 0].sum() + self.atoms.sum()

    @cached_property
    def nodes(self) -> np.ndarray:  # type: ignore[override]
        """Node values, shape (panels × order + 4 + places,).

        They depend on the panels alone, not on the records, so that the weights of several sketches can be stacked.
        Four nodes carry the tails: a linear function is known from its values at an edge and one range further out. The
        atoms come last; where there are some, the tails' nodes start one range beyond the edge, at which an atom lies.
        """
        edges = np.asarray(self.edges)
        t, _ = gauss_legendre(self.order)
        inner = (edges[:-1, None] + 0.5 * np.diff(edges)[:, None] * (1 + t)).ravel()
        low, high = edges[0], edges[-1]
        near, far = self._out, (self._out + 1)
        span = high - low
        tails = [low - near * span, low - far * span, high + near * span, high + far * span]
        first, last = inner[0], inner[-1]
        if self.mechanism.period is not None:  # their weights only say how far values were moved, by whole periods
            tails = [first, first - span, last, last + span]
        elif not self.mechanism.linear_tails:  # nothing lies there, and nothing may be possible there
            tails = [first, first, last, last]
        return np.concatenate([inner, tails, self.places])

    @property
    def places(self) -> np.ndarray:
        """Where the atoms are, shape (places,)."""
        return places_of(self.mechanism, self.edges)

    @property
    def _out(self) -> int:
        """How many ranges beyond the edges the nearer nodes of the tails are."""
        return 1 if self.mechanism.has_atoms else 0

    @cached_property
    def weights(self) -> Any:  # type: ignore[override]
        """Node weights, shape (nodes,); they sum to the number of records."""
        xp: Any = np if isinstance(self.moments, np.ndarray) else jnp
        inner = self.moments[:, : self.order] @ lagrange_from_legendre(self.order)
        low, high = self.edges[0], self.edges[-1]
        (below, sum_below), (above, sum_above) = self.tails
        beyond = xp.stack([below, above])
        far = xp.stack([below * low - sum_below, sum_above - above * high]) / (high - low) - self._out * beyond
        tails = xp.stack([beyond - far, far], axis=1).ravel()
        return xp.concatenate([inner.ravel(), tails, self.atoms])

    law_shape = ()

    @property
    def channel_panels(self) -> int:
        """Panels in x of the channel at its nodes."""
        return self.grid or len(self.edges) - 1

    def coarser(self, panels: int = 10, grid: int = 12, lattice: bool | None = None) -> "PanelSketch":
        """The same records on fewer panels, with the 12 moments a panel that a sketch of the records would have there.

        Parameters
        ----------
        panels : int
            How many in z: somewhat more where panels are to end at integers, and never more than there are now.
        grid : int
            How many in x (see the attribute `grid`), and never more than there are now.
        lattice : bool, optional
            Whether edges at integers are kept (for counts). Default: where all integers between the ends are edges.

        Returns
        -------
        PanelSketch
            This one where its maker chose the panels, or it has no more.

        Raises
        ------
        ValueError
            If a number of panels is not a positive integer.
        """
        at_least(1, "panels", panels)
        at_least(1, "grid", grid)
        cuts = bends(self.mechanism, self.edges[0], self.edges[-1])
        keep = selected(np.asarray(self.edges), panels, lattice, cuts)
        grid = min(grid, self.channel_panels)
        if self.chosen or (len(keep) == len(self.edges) and grid == self.channel_panels):
            return self
        edges = tuple(self.edges[i] for i in keep)
        return dataclasses.replace(self, moments=merged(self.moments, self.edges, keep), edges=edges, grid=grid)

    @property
    def thinned(self) -> "PanelSketch":
        """A sketch of the probes alone on the same panels, each of which counts for size / probes records."""
        parts = panel_moments(self.probes, np.asarray(self.edges), self.places, self.mechanism.period)
        share = self.size / len(self.probes)
        return dataclasses.replace(self, **{name: share * part for name, part in zip(self.arrays, parts, strict=True)})

    @property
    def reference(self) -> "PanelSketch":
        """The same moments on 12 nodes a panel, with a finer channel: what `fit` certifies the sketch against."""
        return dataclasses.replace(self, order=MOMENTS)

    def refine(self, lattice: bool | None = None) -> "PanelSketch | None":
        """Sketch the records again on panels four times narrower.

        Parameters
        ----------
        lattice : bool, optional
            Whether panels are cut at the integers (for counts); see `sketch`.

        Returns
        -------
        PanelSketch or None
            None where the records were not kept.
        """
        if self.records is None:
            return None
        panels = 4 * (len(self.edges) - 1)
        finer: Any = sum(PanelSketch.of(values, self.mechanism, panels, lattice) for values in self.records)
        return dataclasses.replace(finer, doubts=self.doubts, added=self.added)

    def _counts(self) -> dict[str, Any]:
        moments, tails, atoms = (seen(getattr(self, name)) for name in self.arrays)
        if moments is None or tails is None or atoms is None or min(moments.ndim, tails.ndim, atoms.ndim + 1) < 2:
            return {}
        nodes = moments.shape[-2] * self.order + 4 + atoms.shape[-1]
        return {"records": moments[..., 0].sum() + tails[..., 0].sum() + atoms.sum(), "nodes": nodes}

    def _plus(self, other: Any) -> "PanelSketch":
        """Sketch of the two releases together; both must come from the same mechanism and be on the same panels."""
        if self.mechanism != other.mechanism:
            raise ValueError(f"sketches of different mechanisms do not add: {self.mechanism} and {other.mechanism}")
        if self.edges != other.edges:
            raise ValueError(
                f"sketches on different panels do not add ({len(self.edges) - 1} and {len(other.edges) - 1} panels); "
                "make both with the same panels="
            )
        records = None if self.records is None or other.records is None else self.records + other.records
        probes = [] if self.probes is None or other.probes is None else [self.probes, other.probes]
        return PanelSketch(
            self.mechanism,
            self.moments + other.moments,
            self.tails + other.tails,
            self.atoms + other.atoms,
            self.edges,
            min(self.order, other.order),
            self.grid if self.grid == other.grid else max(self.channel_panels, other.channel_panels),
            self.chosen or other.chosen,
            records,
            few(np.concatenate(probes)) if probes else None,
        )


def few(values: np.ndarray) -> np.ndarray:
    """Some of the values, evenly spread over their order, at most `PROBES`."""
    return np.array(values[np.linspace(0, len(values) - 1, min(PROBES, len(values))).astype(int)], float)


def places_of(mechanism: Any, edges: Any) -> np.ndarray:
    """Where the atoms of a mechanism's releases are, if it makes any."""
    return atom_places(edges[0], edges[-1]) if mechanism.has_atoms else np.empty(0)
