"""Panels over a mechanism's released range, the Legendre moments of released values on them, and counts at atoms."""

import itertools
import math

import numpy as np

from ldpbayes.mechanisms.rows import snapped

__all__ = ["MOMENTS", "atom_places", "check_panels", "merged", "panel_edges", "panel_moments", "selected"]

PANELS = 40
MOMENTS = 12  # moments a panel: what the certificate compares the nodes with
CHUNK = 1 << 15  # records at a time: their temporaries stay in a core's cache
MAX_LATTICE = 128
MAX_ATOMS = 1024  # integers inside the bounds that are counted one by one


def panel_edges(mechanism, panels=None, lattice=None):
    """Panel edges over a mechanism's released range, shape (panels + 1,); arguments and errors as in `sketch`."""
    if mechanism.released_range is None:
        why = "releases rows" if mechanism.event_shape else "names no released_range"
        raise ValueError(f"{type(mechanism).__name__} {why}, so there is no sketch; use the release itself")
    if panels is not None:
        check_panels(panels)
    low, high = (float(end) for end in mechanism.released_range)
    lower, upper = float(mechanism.domain.lower_bound), float(mechanism.domain.upper_bound)
    if panels is None:
        # log p bends on the scale of the noise, and between two atoms at the bounds on that of noise²/range
        bend = float(mechanism.resolution) * min(1.0, float(mechanism.resolution) / (upper - lower))
        panels = PANELS if mechanism.linear_tails else max(PANELS, min(4096, math.ceil((high - low) / bend)))
    first, last = math.ceil(low), math.floor(high)
    if lattice is None:
        lattice = mechanism.linear_tails and last - first < MAX_LATTICE
    cuts = np.arange(first, last + 1.0) if lattice else np.empty(0)
    cells = np.unique(np.concatenate([[low], cuts, [high]]))
    width = (high - low) / panels
    pieces = np.maximum(1, np.ceil(np.diff(cells) / width - 1e-9).astype(int))
    starts = [np.linspace(a, b, k, endpoint=False) for a, b, k in zip(cells[:-1], cells[1:], pieces, strict=True)]
    return np.concatenate([*starts, [high]])


def check_panels(panels, name="panels"):
    """Refuse what is no positive integer, with ValueError."""
    if isinstance(panels, bool) or not (isinstance(panels, (int, np.integer)) and panels > 0):
        raise ValueError(f"{name} must be a positive integer, got {panels!r}")


def selected(edges, panels, lattice=None):
    """Which edges to keep for fewer panels, as equally wide as may be.

    Parameters
    ----------
    edges : array (old + 1,)
    panels : int
        How many, or some more where edges at integers are kept.
    lattice : bool, optional
        Keep the edges at integers. Default: where all integers between the ends are edges.

    Returns
    -------
    array of int (new + 1,)
        Increasing, from 0 to ``old``.
    """
    whole = edges == np.rint(edges)
    if lattice is None:
        lattice = whole[1:-1].sum() == math.ceil(edges[-1]) - math.floor(edges[0]) - 1
    fixed = np.flatnonzero(whole & lattice | np.isin(edges, edges[[0, -1]]))
    width = (edges[-1] - edges[0]) / panels
    keep = []
    for first, last in itertools.pairwise(fixed):
        pieces = max(1, math.ceil((edges[last] - edges[first]) / width - 1e-9))
        wanted = np.linspace(edges[first], edges[last], pieces + 1)
        keep.append(first + np.argmin(np.abs(edges[first : last + 1] - wanted[:, None]), axis=1))
    return np.unique(np.concatenate(keep))


def merged(moments, edges, keep):
    """Legendre moments on the panels between the edges that are kept, from those on all of them.

    On a part of a panel the panel's P_n is a combination of the part's P_0, ..., P_n: nothing is lost.

    Parameters
    ----------
    moments : array (old, MOMENTS)
    edges : array (old + 1,)
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


def atom_places(low, high):
    """Where records without noise gather: at both bounds, and counts at every integer between them.

    The integers are left out where there are more than 1,024.

    Parameters
    ----------
    low, high : float

    Returns
    -------
    array (places,)
        Increasing.
    """
    first, last = math.floor(low) + 1, math.ceil(high) - 1
    return np.concatenate([[low], np.arange(first, last + 1.0) if last - first < MAX_ATOMS else [], [high]])


def panel_moments(values, edges, places):
    """Legendre moments (panels, MOMENTS) of values, what lies outside (count and sum a side), and counts at places.

    Values at one of the `places` (increasing, possibly none) are counted there and are in no panel.
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
