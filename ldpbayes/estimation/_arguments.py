"""The records that `m_estimate` is given: what it accepts, and what it says of the rest."""

import dataclasses
from typing import Any

import numpy as np

from ldpbayes.data._release import Release
from ldpbayes.data._table import arrays_of_frames
from ldpbayes.estimation.corrections import Correction
from ldpbayes.estimation.corrections._table import check_noise
from ldpbayes.mechanisms import Additive, SymmetricLaplaceMechanism
from ldpbayes.noise import Noise
from ldpbayes.numerics._rounding import snapped

__all__ = ["Records", "records_of"]


@dataclasses.dataclass(frozen=True)
class Records:
    """Records as a method takes them.

    Attributes
    ----------
    mechanism : Additive
        That made them; of original records one that adds nothing.
    rows : array (N, columns)
        In double precision, those that were on a bound of the support before they were rounded again on it.
    scalar : bool
        Whether a record is a number.
    support : (array, array) or None
        Where the method takes the original records to lie, in the perturbed columns.
    """

    mechanism: Additive
    rows: np.ndarray
    scalar: bool
    support: tuple[np.ndarray, np.ndarray] | None

    def inside(self, rows: np.ndarray) -> np.ndarray:
        """Any rows, brought into the support."""
        if self.support is None:
            return rows
        rows = np.array(rows, float)
        index = list(self.mechanism.index)
        rows[..., index] = np.clip(rows[..., index], *self.support)
        return rows


def records_of(release: Any, method: Correction) -> Records:
    """The records of a release, or original ones for a method that is given those.

    Parameters
    ----------
    release : Release or array
        What `m_estimate` was given.
    method : Correction
        With which they are to be used.

    Raises
    ------
    TypeError
        If it is not a release, or not one of additive noise.
    ValueError
        If it holds no values, for a method that is not for its noise, or public records outside the support.
    """
    if method.original:
        if isinstance(release, Release):
            raise ValueError("the oracle uses original records, and a release holds none: pass an array of records")
        return _originals(release)
    if not isinstance(release, Release):
        raise TypeError(f"release must be a Release (an array only for method='oracle'), got {type(release).__name__}")
    mechanism: Any = release.mechanism
    if release.values is None:
        raise ValueError("m_estimate needs released values; a release with only a count is for simulation")
    if not isinstance(getattr(mechanism, "noise", None), Noise):
        raise TypeError(
            f"m_estimate takes releases with additive noise, got {type(mechanism).__name__}; for others use "
            "ldpbayes.fit"
        )
    check_noise(method, mechanism)
    support = method.settled(mechanism).support
    rows = np.asarray(release.values)
    scalar = not mechanism.event_shape
    return Records(mechanism, _supported(rows[:, None] if scalar else rows, mechanism, support), scalar, support)


def _originals(records: Any) -> Records:
    records = arrays_of_frames(records)
    rows = np.asarray(records, float)
    if rows.ndim not in (1, 2) or not rows.size:
        raise ValueError(f"original records must be an array (N,) or (N, columns), got shape {rows.shape}")
    if not np.isfinite(rows).all():
        raise ValueError(f"original records must be finite; {(~np.isfinite(rows)).sum()} numbers are not")
    scalar = rows.ndim == 1
    rows = rows[:, None] if scalar else rows
    low, high = rows.min(axis=0) - 1, rows.max(axis=0) + 1
    bounds = (low[0], high[0], None) if scalar else (low, high, _width(records, rows.shape[1]))
    return Records(SymmetricLaplaceMechanism(0.0, *bounds), rows, scalar, None)


def _width(table: Any, columns: int) -> int | tuple[str, ...]:
    """What a data frame calls its columns, so that a loss takes them by name; else how many there are."""
    names = tuple(getattr(table, "columns", ()))
    return names if names and all(isinstance(name, str) for name in names) else columns


def _supported(rows: np.ndarray, mechanism: Additive, support: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    """Rows in double precision, on the support where they were; ValueError if public records lie outside."""
    if support is None:
        return rows.astype(float)
    index = list(mechanism.index)
    part = snapped(rows[:, index], support).astype(float)
    public = np.broadcast_to(np.equal(mechanism.noise.standard_deviation, 0), len(rows))
    bad = public & np.any((part < support[0]) | (part > support[1]), axis=1)
    if bad.any():
        raise ValueError(
            f"{bad.sum()} public records lie outside the support, the first at {np.argmax(bad)}: "
            f"{part[np.argmax(bad)]}; give another support, or None"
        )
    rows = rows.astype(float)
    rows[:, index] = part
    return rows
