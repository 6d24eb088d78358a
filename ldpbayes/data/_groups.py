"""Sketches of several groups, each of which has a law of its own, as one."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._shown import Holding, seen
from ldpbayes._tracing import is_concrete
from ldpbayes.data._count_sketch import CountSketch
from ldpbayes.data._expanded_sketch import ExpandedSketch
from ldpbayes.mechanisms._joined import joined_mechanism

__all__ = ["SideBySide", "joined_sketch"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SideBySide(Holding):
    """Sketches of several groups: weights are (nodes, G), nodes too, or (nodes, 1) where all groups have the same."""

    sketches: tuple[Any, ...]
    mechanism: Any
    nodes: Any
    weights: Any

    def _counts(self) -> dict[str, Any]:
        weights = seen(self.weights)
        return {"records": None if weights is None else weights.sum(), "groups": len(self.sketches)}


def joined_sketch(sketches: Sequence[Any]) -> CountSketch | ExpandedSketch | SideBySide:
    """One sketch of several groups' records, of a law a group.

    Parameters
    ----------
    sketches : sequence of PanelSketch, of CountSketch, or of ExpandedSketch
        One a group, of mechanisms whose tree structures are equal; budgets, bounds and panels may differ. The order of
        expansions may not.

    Returns
    -------
    CountSketch, ExpandedSketch or SideBySide
        The first two for discrete outputs, with a law a group.
    """
    mechanisms = [part.mechanism for part in sketches]
    if isinstance(sketches[0], ExpandedSketch):
        polynomials = [part.polynomial for part in sketches]
        stacked = jax.tree.map(lambda *parts: (np if is_concrete(parts) else jnp).stack(parts), *polynomials)
        size = sum(part.size for part in sketches)
        return ExpandedSketch(sketches[0].mechanism, stacked, size, len(sketches), parts=tuple(sketches))
    nodes, weights = [part.nodes for part in sketches], [part.weights for part in sketches]
    if mechanisms[0].support.is_discrete:
        sizes = [len(part) for part in nodes]
        mechanism, groups = joined_mechanism(mechanisms, sizes), np.repeat(np.arange(len(sketches)), sizes)
        nodes, weights = ((np if is_concrete(parts) else jnp).concatenate(parts) for parts in (nodes, weights))
        return CountSketch(mechanism, nodes, weights, groups, len(sketches))
    # A group with fewer nodes than others has its last one repeated, with weight 0.
    nodes, weights = _columns(nodes, "edge"), _columns(weights, "constant")
    nodes = nodes[:, :1] if is_concrete(nodes) and np.all(nodes == nodes[:, :1]) else nodes
    return SideBySide(tuple(sketches), joined_mechanism(mechanisms), nodes, weights)


def _columns(parts: Sequence[Any], padding: str) -> Any:
    """Arrays of any lengths as the columns of one."""
    xp: Any = np if is_concrete(parts) else jnp
    most = max(map(len, parts))
    return xp.stack([xp.pad(part, (0, most - len(part)), padding) for part in parts], axis=1)
