"""Errors of sketches on panels, measured at draws of the posterior."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
import numpyro.distributions as dist

from ldpbayes._core.types import Array, Params, PyTree
from ldpbayes.data import PanelSketch, Sketch
from ldpbayes.inference.compiled_programs import trace
from ldpbayes.inference.density import Density
from ldpbayes.likelihood.nodes import method_at_nodes

Measure: TypeAlias = Callable[[Density, Params], Array]
DRAWS = 64  # posterior draws at which densities are compared
COARSE_TOLERANCE = 1e-4  # nats that a sketch on fewer panels may be off by
CACHED_SKETCHES = 2  # the matrices of so many sketches on 20 panels stay in a core's cache together


class Certificate:
    """Largest difference in log density between sketches and their references. Two comparisons are made at the same
    nodes. The sketches of ``density`` are compared with the references of those in ``exact``, which have more nodes for
    the same moments. If all sketches keep probes, the sketch of the probes alone is also compared with the probes
    themselves, of which nothing has been left out. ``measure`` is `Density.potential` or `Density.log_density`;
    ``example`` has its parameters, or their shapes.
    """

    def __init__(self, density: Density, exact: Density, example: Params, measure: Measure = Density.potential) -> None:
        coarse, fine = panel_sketches(density), [sketch.reference for sketch in panel_sketches(exact)]
        self._probed = all(sketch.probes is not None for sketch in coarse)
        coarse_nodes, fine_nodes = ([sketch.nodes for sketch in side] for side in (coarse, fine))
        if self._probed:
            fine_nodes = [np.concatenate([nodes, s.probes]) for nodes, s in zip(fine_nodes, coarse, strict=True)]
        self._weights, self._example = self._weightings(coarse, fine), example

        def difference(_: tuple, weights: PyTree, parameters: Params) -> Array:
            ours = measure(_reweight(density, coarse, coarse_nodes, weights[0]), parameters)
            return ours - measure(_reweight(exact, fine, fine_nodes, weights[1]), parameters)

        first = jax.tree.map(lambda each: each[0], self._weights)
        traced, (self._arrays,) = trace(difference, first, example)
        draws = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((DRAWS, *leaf.shape), leaf.dtype), example)
        mapped = jax.vmap(jax.vmap(traced, (None, 0, None)), (None, None, 0))
        self._program = traced.program("certificate", mapped, self._arrays, self._weights, draws)

    def _weightings(self, coarse: Sequence[PanelSketch], fine: Sequence[PanelSketch]) -> list[list[np.ndarray]]:
        """Weights of the nodes of each sketch, for both sides, a row a comparison: of all records, and of the probes.
        The exact side has the probes as further nodes, of weight 0 in the first comparison; its own nodes have weight 0
        in the second.
        """
        sides: list[list[Any]] = [[[sketch.weights] for sketch in coarse], [[sketch.weights] for sketch in fine]]
        if self._probed:
            for sketch, coarse_rows, fine_rows in zip(coarse, *sides, strict=True):
                coarse_rows.append(sketch.thinned.weights)
                share = np.full(len(sketch.probes), sketch.size / len(sketch.probes))
                own = fine_rows[0]
                fine_rows[:] = np.pad(own, (0, len(share))), np.pad(share, (len(own), 0))
        return [[np.stack(rows) for rows in side] for side in sides]

    def error(self, positions: Params, sketches: Sequence[Sequence[PanelSketch]] | None = None) -> float:
        """The largest difference, in nats, at `DRAWS` of some positions (chains, draws, ...). ``sketches`` is a pair of
        lists, of those that are judged and of the exact ones, which take the places of the densities' own: on the same
        panels, without probes.
        """
        flat = {name: positions[name].reshape(-1, *positions[name].shape[2:]) for name in self._example}
        pick = np.linspace(0, len(jax.tree.leaves(flat)[0]) - 1, DRAWS).astype(int)
        weights = self._weights
        if sketches is not None:
            weights = self._weightings(sketches[0], [sketch.reference for sketch in sketches[1]])
        differences = self._program(self._arrays, weights, {name: values[pick] for name, values in flat.items()})
        return float(np.max(np.abs(differences)))


@dataclasses.dataclass(frozen=True, eq=False)
class _Reweighted(Sketch):
    """A sketch with other nodes and weights, under the law of the original."""

    original: PanelSketch
    nodes: Array
    weights: Array


@method_at_nodes.register
def _(sketch: _Reweighted, base_dist: dist.Distribution) -> dict[str, Any]:
    return method_at_nodes(sketch.original, base_dist)


def _reweight(density: Density, sketches: list[PanelSketch], nodes: list[Array], weights: list[Array]) -> Density:
    parts = iter(map(_Reweighted, [sketch.mechanism for sketch in sketches], sketches, nodes, weights))
    return replace_sketches(density, lambda _: next(parts))


def coarser(sketches: Sequence[PanelSketch], lattice: bool) -> list[PanelSketch]:
    """Sketches on fewer panels, with which sampling begins: the matrices of all of them stay in a core's cache."""
    panels, grid = (20, 20) if len(sketches) <= CACHED_SKETCHES else (10, 12)
    return [sketch.coarser(panels, grid, lattice) for sketch in sketches]


def panel_sketches(density: Density) -> list[PanelSketch]:
    """The sketches on panels among the arguments of a density, in their order there."""
    return [data for data in density.data if isinstance(data, PanelSketch)]


def panel_counts(density: Density) -> list[int]:
    """Numbers of panels of these sketches."""
    return [len(sketch.edges) - 1 for sketch in panel_sketches(density)]


def replace_sketches(density: Density, function: Callable[[PanelSketch], Sketch]) -> Density:
    """A density with ``function(sketch)`` in the place of each sketch on panels."""
    return density.replace_data(lambda data: function(data) if isinstance(data, PanelSketch) else data)
