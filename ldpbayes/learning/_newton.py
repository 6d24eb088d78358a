"""Minimising a smooth criterion by damped Newton steps on the host."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy

from ldpbayes.learning._criterion import Derivatives

__all__ = ["Minimum", "newton"]

MOST_STEPS = 100
TOLERANCE = 1e-8  # of what a step promises, in nats: the estimate is then off by 1e-4 of its standard errors
ROUNDING = 1e-12  # of the criterion itself, where a step promises less
FLAT = 1e-10  # of the largest curvature: less is none


class Minimum(NamedTuple):
    """Where a minimisation ended.

    Attributes
    ----------
    theta : array (p,)
        The parameters.
    at : Derivatives
        The criterion there.
    converged : bool
        Whether the last step promised next to nothing.
    steps : int
        How many were tried.
    """

    theta: np.ndarray
    at: Derivatives
    converged: bool
    steps: int


def newton(criterion: Callable[[np.ndarray], Derivatives], start: np.ndarray, tolerance: float = TOLERANCE) -> Minimum:
    """Minimise by Newton steps with the absolute values of the curvatures, damped until the criterion decreases.

    Parameters
    ----------
    criterion : callable
        From parameters to `Derivatives`.
    start : array (p,)
        Where to begin; the criterion is finite there.
    tolerance : float
        Of the decrease that a step promises, in the unit of the criterion.
    """
    theta, at, damping = np.array(start, float), criterion(start), 0.0
    for steps in range(MOST_STEPS):
        towards, promise = _step(at, damping)
        if steps and promise <= tolerance + ROUNDING * abs(at.value):
            return Minimum(theta, at, bool(np.isfinite(at.value)), steps)
        ahead = theta + towards
        there = criterion(ahead)
        if there.value <= at.value + ROUNDING * abs(at.value):  # a value that is not a number is not smaller
            theta, at, damping = ahead, there, damping / 10 if damping > 1e-6 else 0.0
        else:
            damping = max(10 * damping, 1e-3)
            if damping > 1e8:
                return Minimum(theta, at, promise <= 1e3 * tolerance + 1e3 * ROUNDING * abs(at.value), steps)
    return Minimum(theta, at, False, MOST_STEPS)


def _step(at: Derivatives, damping: float) -> tuple[np.ndarray, float]:
    """The step, and how much of the criterion a step without damping would take away."""
    bend = np.abs(np.diagonal(at.hessian))
    unit = np.where(bend > 0, 1 / np.sqrt(np.where(bend > 0, bend, 1.0)), 1.0)
    hessian, slope = unit[:, None] * at.hessian * unit, unit * at.gradient
    try:
        if damping:
            raise np.linalg.LinAlgError
        step = scipy.linalg.cho_solve(scipy.linalg.cho_factor(hessian), slope)
        return -unit * step, 0.5 * float(slope @ step)
    except np.linalg.LinAlgError:
        sizes, vectors = np.linalg.eigh(hessian)
        sizes = np.maximum(np.abs(sizes), FLAT * np.max(np.abs(sizes)))
        slope = vectors.T @ slope
        step = vectors @ (slope / (sizes + damping * np.max(sizes)))
        return -unit * step, 0.5 * float(np.sum(slope**2 / sizes))
