"""How far sketches are from what they stand for, at draws of the posterior."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist

from ldpbayes.data import PanelSketch, Release, Sketch
from ldpbayes.inference.density import Density
from ldpbayes.inference.programs import PROGRAMS, Compiled, trace
from ldpbayes.likelihood.nodes import method_at_nodes

DRAWS = 64  # posterior draws at which densities are compared
COARSE_TOLERANCE = 1e-4  # nats that a sketch with fewer panels may be off by
FEW = 2  # the matrices of so many sketches on 20 panels stay in a core's cache together


class Certificate:
    """Largest difference in log density between sketches and what they stand for.

    Two comparisons are made at the same nodes. The sketches are compared with the references of those in ``exact``,
    which have more nodes for the same moments; and, where sketches keep probes, the sketch of the probes alone is
    compared with the probes themselves, of which nothing has been left out.

    Parameters
    ----------
    density : Density
        With the sketches that are looked at among its arguments.
    exact : Density
        With the sketches in their places whose references they are compared with.
    example : dict
        Parameters, or their shapes.
    measure : callable
        The function of a density and parameters that is compared: `Density.potential`, or `Density.log_density`.
    """

    def __init__(
        self,
        density: Density,
        exact: Density,
        example: Mapping[str, Any],
        measure: Callable[[Density, Any], Any] = Density.potential,
    ) -> None:
        coarse, fine = panel_sketches(density), [sketch.reference for sketch in panel_sketches(exact)]
        self._few = all(sketch.probes is not None for sketch in coarse)
        nodes: list[Any] = [sketch.nodes for sketch in coarse]
        others: list[Any] = [sketch.nodes for sketch in fine]
        if self._few:
            others = [np.concatenate([each, sketch.probes]) for each, sketch in zip(others, coarse, strict=True)]
        self._weights = self._weightings(coarse, fine)

        def difference(_: Any, weightings: Any, parameters: Any) -> Any:
            mine, theirs = weightings
            return measure(_reweighted(density, coarse, nodes, mine), parameters) - measure(
                _reweighted(exact, fine, others, theirs), parameters
            )

        one = jax.tree.map(lambda each: each[0], self._weights)
        traced, (self._arrays,) = trace(difference, one, example)
        several = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((DRAWS, *leaf.shape), leaf.dtype), example)
        each = jax.vmap(jax.vmap(traced, (None, 0, None)), (None, None, 0))
        self._program = PROGRAMS.get(
            ("certificate", traced.key, self._few), lambda: Compiled(each, self._arrays, self._weights, several)
        )

    def _weightings(self, coarse: Sequence[PanelSketch], fine: Sequence[PanelSketch]) -> list[list[np.ndarray]]:
        """For both sides the weights of each sketch's nodes, a row a comparison: of all records, and of the probes.

        The exact side has the probes as further nodes, of weight 0 in the first comparison; its own have weight 0 in
        the second.
        """
        sides: list[list[Any]] = [[[sketch.weights] for sketch in coarse], [[sketch.weights] for sketch in fine]]
        if self._few:
            for sketch, mine, theirs in zip(coarse, *sides, strict=True):
                mine.append(sketch.thinned.weights)
                share = np.full(len(sketch.probes), sketch.size / len(sketch.probes))
                every = theirs[0]
                theirs[:] = np.pad(every, (0, len(share))), np.pad(share, (len(every), 0))
        return [[np.stack(each) for each in side] for side in sides]

    def error(self, positions: Mapping[str, Any], sketches: Sequence[Sequence[PanelSketch]] | None = None) -> float:
        """The largest difference at some of these positions.

        Parameters
        ----------
        positions : dict of str to array (chains, draws, ...)
            Parameters, of which `DRAWS` are looked at.
        sketches : pair of lists of PanelSketch, optional
            Others, on the same panels and without probes, in the places of those that are looked at and of the exact
            ones. Default: those of the densities.

        Returns
        -------
        float
            In nats.
        """
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), positions)
        total = len(jax.tree.leaves(flat)[0])
        pick = np.linspace(0, total - 1, DRAWS).astype(int)
        picked = {name: flat[name][pick] for name in flat}
        weights = self._weights
        if sketches is not None:
            weights = self._weightings(sketches[0], [sketch.reference for sketch in sketches[1]])
        return float(np.max(np.abs(self._program(self._arrays, weights, picked))))


@dataclasses.dataclass(frozen=True, eq=False)
class _Reweighted(Sketch):
    """Nodes and weights that take the places of a sketch's own, whose law they have."""

    of: PanelSketch
    nodes: Any
    weights: Any

    law_shape = ()

    @property
    def mechanism(self) -> Any:  # type: ignore[override]
        return self.of.mechanism


@method_at_nodes.register
def _(sketch: _Reweighted, base_dist: dist.Distribution) -> dict[str, Any]:
    return method_at_nodes(sketch.of, base_dist)


def _reweighted(density: Density, sketches: list[PanelSketch], nodes: list[Any], weights: list[Any]) -> Density:
    """A density whose sketches have other nodes and weights, under the laws of these sketches."""
    parts = iter(map(_Reweighted, sketches, nodes, weights))
    return map_sketches(lambda _: next(parts), density)


def coarser(sketches: Sequence[PanelSketch], lattice: bool) -> list[PanelSketch]:
    """Sketches on fewer panels, with which sampling begins: the matrices of all of them stay in a core's cache.

    Parameters
    ----------
    sketches : list of PanelSketch
        All that a density has among its arguments.
    lattice : bool
        Whether records may be counts.

    Returns
    -------
    list of PanelSketch
    """
    panels, grid = (20, 20) if len(sketches) <= FEW else (10, 12)
    return [sketch.coarser(panels, grid, lattice) for sketch in sketches]


def leaves(tree: Any) -> list[Any]:
    """Leaves of a pytree, a list in which each release and each sketch is one leaf."""
    return jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, (Release, Sketch)))


def map_sketches(function: Callable[[PanelSketch], Any], density: Density) -> Density:
    """A density with ``function(sketch)`` in the place of each sketch on panels."""
    args, kwargs = jax.tree.map(
        lambda leaf: function(leaf) if isinstance(leaf, PanelSketch) else leaf,
        (density.args, density.kwargs),
        is_leaf=lambda leaf: isinstance(leaf, (Release, Sketch)),
    )
    return Density(density.model, args, kwargs)


def panel_sketches(density: Density) -> list[PanelSketch]:
    """The sketches on panels among the arguments of a density, in their order there."""
    return [leaf for leaf in leaves((density.args, density.kwargs)) if isinstance(leaf, PanelSketch)]
