"""The arguments of `m_estimate`: what it accepts, and what it says of the rest."""

import numpy as np

from ldpbayes.inference.release import Release
from ldpbayes.mechanisms import (
    IndependentLaplaceMechanism,
    RowMechanism,
    SymmetricLaplaceMechanism,
    ZeroInflatedLaplaceMechanism,
)
from ldpbayes.mechanisms.rows import snapped
from ldpbayes.privacy.tradeoff import checked

__all__ = ["checked_cuts", "checked_draws", "checked_support", "records_of", "supported"]

DRAWS = 16


def records_of(release, method):
    """Mechanism, rows (N, columns) in the precision of the release, and whether a record is a number."""
    if method == "oracle" and not isinstance(release, Release):
        rows = np.asarray(release, float)
        if rows.ndim not in (1, 2) or not rows.size:
            raise ValueError(f"original records must be an array (N,) or (N, columns), got shape {rows.shape}")
        if not np.isfinite(rows).all():
            raise ValueError(f"original records must be finite; {(~np.isfinite(rows)).sum()} numbers are not")
        scalar = rows.ndim == 1
        rows = rows[:, None] if scalar else rows
        span = np.stack([rows.min(axis=0) - 1, rows.max(axis=0) + 1])
        low, high = (span[0, 0], span[1, 0]) if scalar else span
        return SymmetricLaplaceMechanism(0.0, low, high, None if scalar else rows.shape[1]), rows, scalar
    if not isinstance(release, Release):
        raise TypeError(f"release must be a Release (an array only for method='oracle'), got {type(release).__name__}")
    mechanism = release.mechanism
    if release.values is None:
        raise ValueError("m_estimate needs released values; a release with only a count is for simulation")
    if not isinstance(mechanism, RowMechanism):
        raise TypeError(
            "m_estimate takes releases with zero-inflated, symmetric or independent Laplace noise, got "
            f"{type(mechanism).__name__}; for others use ldpbayes.fit"
        )
    if method == "oracle":
        raise ValueError("the oracle uses original records, and a release holds none: pass an array of records")
    fits = {
        "dr": ZeroInflatedLaplaceMechanism,
        "sdr": ZeroInflatedLaplaceMechanism,
        "combined": ZeroInflatedLaplaceMechanism,
        "sl": (ZeroInflatedLaplaceMechanism, SymmetricLaplaceMechanism),
        "independent": IndependentLaplaceMechanism,
    }
    if method in fits and not isinstance(mechanism, fits[method]):
        instead = {SymmetricLaplaceMechanism: "'sl'", IndependentLaplaceMechanism: "'independent'"}
        raise ValueError(
            f"method {method!r} is not for {type(mechanism).__name__}; use "
            + instead.get(type(mechanism), "'combined', 'dr', 'sdr' or 'sl'")
        )
    if method == "independent" and np.ndim(mechanism.scale):
        raise ValueError("method 'independent' needs one scale for all records")
    rows = np.asarray(release.values)
    return mechanism, rows if mechanism.event_shape else rows[:, None], not mechanism.event_shape


def checked_draws(draws, method, mechanism):
    """The number of draws, or "exact" with one perturbed column; ValueError for anything else."""
    if draws is None:
        return DRAWS
    if draws == "exact":
        if mechanism.dimension != 1:
            raise ValueError(f"draws='exact' integrates over one perturbed column, and here are {mechanism.dimension}")
    elif isinstance(draws, bool) or not isinstance(draws, (int, np.integer)) or draws < 1:
        raise ValueError(f"draws must be a positive integer or 'exact', got {draws!r}")
    return draws


def checked_support(support, mechanism, method):
    """Lower and upper bounds of the perturbed columns, or None where nothing is made of them."""
    if support is None or method not in ("dr", "combined"):
        return None
    if isinstance(support, str):
        if support != "bounds":
            raise ValueError(f"support must be 'bounds', a pair (lower, upper) or None, got {support!r}")
        support = mechanism.lower, mechanism.upper
    try:
        lower, upper = support
    except (TypeError, ValueError):
        raise ValueError(f"support must be 'bounds', a pair (lower, upper) or None, got {support!r}") from None
    pair = []
    for name, bound in (("support's lower bound", lower), ("support's upper bound", upper)):
        bound = np.asarray(checked(name, bound, "finite", np.isfinite))
        if bound.shape not in ((), (mechanism.dimension,)):
            raise ValueError(f"the {name} must be a number, or one a perturbed column, got shape {bound.shape}")
        pair.append(np.broadcast_to(bound, (mechanism.dimension,)))
    if np.any(pair[0] >= pair[1]):
        raise ValueError(f"the support's lower bound must be below its upper one, got {support!r}")
    return tuple(pair)


def checked_cuts(cuts):
    """The cuts as a tuple of finite numbers; ValueError for anything else."""
    try:
        cuts = tuple(float(cut) for cut in cuts)
    except (TypeError, ValueError):
        raise ValueError(f"cuts must be a sequence of finite numbers, got {cuts!r}") from None
    if not np.all(np.isfinite(cuts)):
        raise ValueError(f"cuts must be a sequence of finite numbers, got {cuts!r}")
    return cuts


def supported(rows, mechanism, support):
    """Rows in double precision, those that were on a bound of the support before they were rounded again on it.

    Raises
    ------
    ValueError
        If records of scale 0, which are known as they are, lie outside the support.
    """
    if support is None:
        return rows.astype(float)
    index = list(mechanism.index)
    part = snapped(rows[:, index], support).astype(float)
    public = np.broadcast_to(np.equal(mechanism.scale, 0), len(rows))
    bad = public & np.any((part < support[0]) | (part > support[1]), axis=1)
    if bad.any():
        raise ValueError(
            f"{bad.sum()} public records lie outside the support, the first at {np.argmax(bad)}: "
            f"{part[np.argmax(bad)]}; give another support, or None"
        )
    rows = rows.astype(float)
    rows[:, index] = part
    return rows
