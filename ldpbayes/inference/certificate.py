"""How far sketches are from what they stand for, at draws of the posterior."""

import dataclasses

import jax
import numpy as np

from ldpbayes.inference.density import Density
from ldpbayes.inference.programs import PROGRAMS, Compiled, trace
from ldpbayes.inference.release import Release
from ldpbayes.likelihood.sketch import PanelSketch, Sketch

__all__ = ["COARSE_TOLERANCE", "Certificate", "coarser", "leaves", "map_sketches", "panel_sketches"]

DRAWS = 64
COARSE_TOLERANCE = 1e-4  # nats: what fewer panels than a sketch has may cost
FEW = 2  # sketches whose matrices on 20 panels stay in a core's cache together


class Certificate:
    """Largest difference in log density between sketches and what they stand for.

    They are compared with their references, which know more of the same records; and a sketch of a few records, a
    weighted one, with these themselves, of which nothing has been left out.

    Parameters
    ----------
    density : Density
        With the sketches that are looked at among its arguments.
    exact : Density
        With those whose references they are compared with in their places.
    example : dict
        Parameters, or their shapes.
    measure : callable
        What the densities say of parameters: `Density.potential`, or `Density.log_density`.
    """

    def __init__(self, density, exact, example, measure=Density.potential):
        coarse, fine = panel_sketches(density), [sketch.reference for sketch in panel_sketches(exact)]
        self._few = all(sketch.probes is not None for sketch in coarse)
        nodes, others = [sketch.nodes for sketch in coarse], [sketch.nodes for sketch in fine]
        if self._few:
            others = [np.concatenate([each, sketch.probes]) for each, sketch in zip(others, coarse, strict=True)]
        self._weights = self._weightings(coarse, fine)

        def difference(_, weightings, parameters):
            sides = []
            for of, *side in zip((density, exact), (coarse, fine), (nodes, others), weightings, strict=True):
                parts = iter(map(_Reweighted, *side))
                args, kwargs = map_sketches(lambda _, parts=parts: next(parts), (of.args, of.kwargs))
                sides.append(measure(Density(of.model, args, kwargs), parameters))
            return sides[0] - sides[1]

        one = jax.tree.map(lambda each: each[0], self._weights)
        traced, (self._arrays,) = trace(difference, one, example)
        several = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((DRAWS, *leaf.shape), leaf.dtype), example)
        each = jax.vmap(jax.vmap(traced, (None, 0, None)), (None, None, 0))
        self._program = PROGRAMS.get(
            ("certificate", traced.key, self._few), lambda: Compiled(each, self._arrays, self._weights, several)
        )

    def _weightings(self, coarse, fine):
        """Weights of the same nodes under the same law, in two ways: of all records, and of the few."""
        sides = [[[sketch.weights] for sketch in coarse], [[sketch.weights] for sketch in fine]]
        if self._few:
            for sketch, mine, theirs in zip(coarse, *sides, strict=True):
                mine.append(sketch.thinned.weights)
                share = np.full(len(sketch.probes), sketch.size / len(sketch.probes))
                every = theirs[0]
                theirs[:] = np.pad(every, (0, len(share))), np.pad(share, (len(every), 0))
        return [[np.stack(each) for each in side] for side in sides]

    def error(self, positions, sketches=None):
        """The largest difference at some of these positions.

        Parameters
        ----------
        positions : dict of str to array (chains, draws, ...)
        sketches : tuple of two lists of PanelSketch, optional
            Others in the places of those that are looked at and of the exact ones, without probes, on their panels.

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
    """Nodes under the law of a sketch's, with weights of their own."""

    of: PanelSketch
    nodes: object
    weights: object

    law_shape = ()

    @property
    def mechanism(self):
        return self.of.mechanism

    def law_of_nodes(self, base_dist, **options):
        return self.of.law_of_nodes(base_dist, **options)

    def _options(self, base_dist):
        return self.of._options(base_dist)


def coarser(sketches, lattice):
    """Sketches on fewer panels, so that the matrices of all stay in a core's cache: what sampling begins with.

    Parameters
    ----------
    sketches : list of PanelSketch
    lattice : bool
        Whether records may be counts.

    Returns
    -------
    list of PanelSketch
    """
    panels, grid = (20, 20) if len(sketches) <= FEW else (10, 12)
    return [sketch.coarser(panels, grid, lattice) for sketch in sketches]


def leaves(tree):
    """Leaves of a pytree, a list in which each release and each sketch is one."""
    return jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, (Release, Sketch)))


def map_sketches(function, tree):
    """A tree with other sketches in the places of those on panels."""
    return jax.tree.map(
        lambda leaf: function(leaf) if isinstance(leaf, PanelSketch) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, (Release, Sketch)),
    )


def panel_sketches(density):
    """The sketches on panels among the arguments of a density, a list in their order there."""
    return [leaf for leaf in leaves((density.args, density.kwargs)) if isinstance(leaf, PanelSketch)]
