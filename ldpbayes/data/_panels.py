"""Panels over a mechanism's released range, the Legendre moments of released values on them, and counts at atoms."""

import itertools
import math
from typing import Any

import numpy as np

from ldpbayes._checks import at_least
from ldpbayes.numerics._rounding import snapped

__all__ = [
    "MOMENTS",
    "atom_places",
    "bends",
    "grid_of",
    "is_graded",
    "merged",
    "panel_edges",
    "panel_moments",
    "selected",
]

PANELS = 40
MOMENTS = 12  # moments are kept of each panel; the certificate compares the nodes, of which there are fewer, with them
CHUNK = 1 << 15  # so many records are looked at at a time, so that temporary arrays stay in a core's cache
MAX_LATTICE = 128  # panels are cut at the integers by default where there are fewer of them than this
HEAVY = 4096  # resolutions: normal noise ends, to 1e-32, after 12 of its own, power laws after very many
GROWTH = 0.5  # of graded panels' distance from a bound is their width: 8 nodes leave 1e-8 of a power law
MOST_INSIDE = 1024  # panels between the bounds, where others are graded
MAX_ATOMS = 1024  # so many integers inside the bounds are counted one by one, at most


def panel_edges(mechanism: Any, panels: int | None = None, lattice: bool | None = None) -> np.ndarray:
    """Panel edges over a mechanism's released range, shape (panels + 1,).

    Parameters
    ----------
    mechanism : NumericMechanism
        With one budget.
    panels, lattice
        As in `ldpbayes.data.sketch`, whose errors are raised, too.
    """
    if mechanism.released_range is None:
        why = "releases rows" if mechanism.event_shape else "names no released_range"
        raise ValueError(f"{type(mechanism).__name__} {why}, so there is no sketch; use the release itself")
    if panels is not None:
        at_least(1, "panels", panels)
    low, high = (float(end) for end in mechanism.released_range)
    lower, upper = float(mechanism.domain.lower_bound), float(mechanism.domain.upper_bound)
    if is_graded(mechanism):
        inside, ends = grid_of(mechanism), (low, lower, upper, high)
        edges = _graded(inside, GROWTH, ends)
        share = 1.0 if panels is None else (len(edges) - 1) / panels
        return _graded(math.ceil(inside / share), GROWTH * share, ends)
    if panels is None:
        # log p bends on the scale s of the noise, and on s²/(upper − lower) between two atoms at the bounds.
        bend = float(mechanism.resolution) * min(1.0, float(mechanism.resolution) / (upper - lower))
        panels = PANELS if mechanism.linear_tails else max(PANELS, min(4096, math.ceil((high - low) / bend)))
        panels *= 1 if mechanism.period is None else 3  # of whose range the bounds are a third
    first, last = math.ceil(low), math.floor(high)
    if lattice is None:
        lattice = mechanism.linear_tails and mechanism.period is None and last - first < MAX_LATTICE
    cuts = np.arange(first, last + 1.0) if lattice else np.empty(0)
    cells = np.unique(np.concatenate([[low], cuts, bends(mechanism, low, high), [high]]))
    width = (high - low) / panels
    pieces = np.maximum(1, np.ceil(np.diff(cells) / width - 1e-9).astype(int))
    starts = [np.linspace(a, b, k, endpoint=False) for a, b, k in zip(cells[:-1], cells[1:], pieces, strict=True)]
    return np.concatenate([*starts, [high]])


def is_graded(mechanism: Any) -> bool:
    """Whether noise reaches so many times further than it varies that it falls off like a power.

    Parameters
    ----------
    mechanism : NumericMechanism
        With one budget.
    """
    if mechanism.linear_tails or mechanism.resolution is None:
        return False
    reach = float(mechanism.released_range[1]) - float(mechanism.domain.upper_bound)
    return bool(reach > HEAVY * float(mechanism.resolution))


def grid_of(mechanism: Any) -> int:
    """Panels between the bounds where those beyond are graded: two a resolution, as the density has poles there.

    Parameters
    ----------
    mechanism : NumericMechanism
        With one budget.
    """
    width = float(mechanism.domain.upper_bound) - float(mechanism.domain.lower_bound)
    return max(PANELS, min(MOST_INSIDE, math.ceil(2 * width / float(mechanism.resolution))))


def _graded(inside: int, growth: float, ends: tuple[float, float, float, float]) -> np.ndarray:
    """Edges equally far apart between the bounds, and beyond them as far as a share of the distance from a bound.

    There the log density is smooth in the logarithm of the distance.
    """
    low, lower, upper, high = ends
    width, reach = (upper - lower) / inside, max(lower - low, high - upper)
    out = [width]
    while out[-1] < reach:
        out.append(out[-1] + max(width, growth * out[-1]))
    beyond = np.append(out[:-1], reach)
    return np.concatenate([lower - beyond[::-1], np.linspace(lower, upper, inside + 1), upper + beyond])


def bends(mechanism: Any, low: float, high: float) -> np.ndarray:
    """A mechanism's `released_breakpoints` between two ends, one of those that rounding alone keeps apart.

    Parameters
    ----------
    mechanism : NumericMechanism
        With one budget.
    low, high : float
        Ends of the panels.
    """
    points = np.unique(np.asarray(mechanism.released_breakpoints, float))
    apart = 1e-9 * (high - low)
    points = points[(points > low + apart) & (points < high - apart)]
    return points[np.diff(points, prepend=low) > apart]


def selected(
    edges: np.ndarray, panels: int, lattice: bool | None = None, always: np.ndarray | None = None
) -> np.ndarray:
    """Which edges to keep for fewer panels, as equally wide as may be.

    Parameters
    ----------
    edges : array (old + 1,)
        Increasing.
    panels : int
        How many, or some more where edges at integers are kept.
    lattice : bool, optional
        Keep the edges at integers. Default: where all integers between the ends are edges.
    always : array, optional
        Edges that are kept besides.

    Returns
    -------
    array of int (new + 1,)
        Increasing, from 0 to ``old``.
    """
    whole = edges == np.rint(edges)
    if lattice is None:
        lattice = whole[1:-1].sum() == math.ceil(edges[-1]) - math.floor(edges[0]) - 1
    kept = np.concatenate([edges[[0, -1]], [] if always is None else always])
    fixed = np.flatnonzero(whole & lattice | np.isin(edges, kept))
    width = (edges[-1] - edges[0]) / panels
    keep = []
    for first, last in itertools.pairwise(fixed):
        pieces = max(1, math.ceil((edges[last] - edges[first]) / width - 1e-9))
        wanted = np.linspace(edges[first], edges[last], pieces + 1)
        keep.append(first + np.argmin(np.abs(edges[first : last + 1] - wanted[:, None]), axis=1))
    return np.unique(np.concatenate(keep))


def merged(moments: Any, edges: Any, keep: np.ndarray) -> np.ndarray:
    """Legendre moments on the panels between the edges that are kept, from those on all of them.

    On a part of a panel the panel's P_n is a combination of the part's P_0, ..., P_n: nothing is lost.

    Parameters
    ----------
    moments : array (old, MOMENTS)
        Of all panels.
    edges : array (old + 1,)
        Between which they lie.
    keep : array of int (new + 1,)
        See `selected`.

    Returns
    -------
    array (new, MOMENTS)
    """
    edges = np.asarray(edges)
    t, w = np.polynomial.legendre.leggauss(MOMENTS)
    whole = np.repeat(np.arange(len(keep) - 1), np.diff(keep))  # the new panel of each old one
    start, stop = (edges[keep[whole + side]][:, None] for side in (0, 1))
    points = edges[:-1, None] + 0.5 * np.diff(edges)[:, None] * (1 + t)
    wide = np.polynomial.legendre.legvander((2 * points - start - stop) / (stop - start), MOMENTS - 1)
    own = np.polynomial.legendre.legvander(t, MOMENTS - 1) * w[:, None] * (np.arange(MOMENTS) + 0.5)
    parts = np.einsum("pm,qm,pqn->pn", moments, own, wide, optimize=True)
    return np.add.reduceat(parts, keep[:-1])


def atom_places(low: float, high: float) -> np.ndarray:
    """Where records that are released without noise gather: at both bounds, and counts at every integer between them.

    The integers are left out where there are more than 1,024.

    Parameters
    ----------
    low, high : float
        The bounds.

    Returns
    -------
    array (places,)
        Increasing.
    """
    first, last = math.floor(low) + 1, math.ceil(high) - 1
    return np.concatenate([[low], np.arange(first, last + 1.0) if last - first < MAX_ATOMS else [], [high]])


def panel_moments(
    values: np.ndarray, edges: np.ndarray, places: np.ndarray, period: float | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Legendre moments of released values on panels, counts and sums beyond the panels, and counts at atoms.

    Parameters
    ----------
    values : array (N,)
        Released values.
    edges : array (panels + 1,)
        Increasing.
    places : array (places,)
        The atoms, increasing, possibly none: values there are counted and are in no panel.
    period : float, optional
        By whole ones of which values beyond the panels are moved in, and not counted but their moves summed.

    Returns
    -------
    tuple of three ndarray
        Moments (panels, MOMENTS), tails (2, 2), a row a side with count and sum, and counts at atoms (places,).
    """
    panels = len(edges) - 1
    widths = np.diff(edges)
    uniform = np.allclose(widths, widths[0], rtol=1e-12, atol=0.0)
    moments, tails, atoms = np.zeros((MOMENTS, panels)), np.zeros((2, 2)), np.zeros(len(places))
    for start in range(0, len(values), CHUNK):
        z = np.asarray(values[start : start + CHUNK])
        if len(places):
            z = snapped(z, (edges[0], edges[-1]))
            special = np.flatnonzero((z == np.rint(z)) | (z == edges[0]) | (z == edges[-1]))
            index = np.minimum(np.searchsorted(places, z[special]), len(places) - 1)
            there = places[index] == z[special]
            atoms += np.bincount(index[there], minlength=len(places))
            z = np.delete(z, special[there])
        z = np.asarray(z, dtype=float)
        below, above = z < edges[0], z > edges[-1]
        if period is not None:
            low, high = (np.ceil(np.maximum(gap, 0) / period) for gap in (edges[0] - z, z - edges[-1]))
            tails[:, 1] += -period * low.sum(), period * high.sum()
            z = np.clip(z + period * (low - high), edges[0], edges[-1])
        else:
            for row, mask in enumerate((below, above)):
                outside = z[mask]
                tails[row] += len(outside), outside.sum()
            z = z[~(below | above)]
        if uniform:
            scaled = (z - edges[0]) * (panels / (edges[-1] - edges[0]))
            index = np.minimum(scaled.astype(np.intp), panels - 1)
        else:
            index = np.minimum(np.searchsorted(edges, z, side="right") - 1, panels - 1)
        t = (z - edges[index]) * (2.0 / widths[index]) - 1.0
        previous, current = np.ones_like(t), t
        moments[0] += np.bincount(index, minlength=panels)
        moments[1] += np.bincount(index, t, panels)
        for n in range(1, MOMENTS - 1):
            previous, current = current, ((2 * n + 1) / (n + 1)) * t * current - (n / (n + 1)) * previous
            moments[n + 1] += np.bincount(index, current, panels)
    return moments.T.copy(), tails, atoms
