"""Whether a posterior has mass where draws of its surrogate have none, and are no evidence."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from ldpbayes.numerics._polynomial import Frame

__all__ = ["Tails", "tails"]

TOLERANCE = 0.02  # of a variance, which moves a standard deviation by 1 %
NEAR = 1.5  # standard deviations at which a ray begins: further inside, draws are many
FACTOR = 1.5  # between distances along a ray
FAR = 1e3  # standard deviations at which a ray ends at the latest
BENDS = 4  # steps at most towards higher density, with the distance along the ray fixed
DIRECTIONS = 128  # at most, each of which is followed both ways
SKEWED = 4  # further directions, in which the draws are most skewed
ALIKE = 0.98  # cosine from which on two directions are one

NEGLIGIBLE = np.log(TOLERANCE * np.sqrt(2 * np.pi) / FAR**3)
"""Log density, relative to the centre, that is negligible even as a plateau which reaches `FAR`."""

Compare = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""From parameters (m, n) to the posterior's log densities (m,), their gradients (m, n), and their distance (m,) from
the surrogate's, both up to a constant."""


class Tails(NamedTuple):
    """The largest error of a variance along a ray, as a share of that variance.

    Attributes
    ----------
    all : float
        From `NEAR` on.
    beyond : float
        From the farthest draw on, where no draw can be reweighted.
    """

    all: float
    beyond: float


def tails(draws: np.ndarray, seen: np.ndarray, error: float, compare: Compare) -> Tails:
    """Compare a posterior with its surrogate on rays that lead out of the surrogate's draws.

    In coordinates y in which the draws have mean 0 and covariance 1, a ray is the set of the highest densities at given
    values t of a linear function of y. Up to a constant, its density is that of t if the other coordinates have the
    same spread at every t. The error of the variance is then ∫ (1 + t²) |p(t) − q(t)| dt, where p is the density of the
    posterior and q is that of the surrogate, both normalised as a normal density is.

    Parameters
    ----------
    draws : ndarray (draws, n)
        Unconstrained parameters.
    seen : ndarray (draws, ...)
        The numbers that the records see there: directions in which these vary are looked at, too.
    error : float
        Mean of the third value of ``compare`` over the draws.
    compare : callable
        See `Compare`.
    """
    frame = Frame.of_draws(draws)
    away = frame.coordinates(draws)
    directions = _directions(frame, away, seen.reshape(len(seen), -1))
    rays = np.concatenate([directions, -directions])

    def at(y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        log_density, gradient, off = compare(frame.center + y @ frame.lift.T)
        fine = np.isfinite(log_density)  # what has no density has no mass
        log_density = np.where(fine, log_density, -np.inf)
        return log_density, np.where(fine[:, None], gradient, 0.0) @ frame.lift, np.where(fine, off - error, 0.0)

    top = at(np.zeros((1, rays.shape[1])))[0][0]
    steps = int(np.ceil(np.log(FAR / NEAR) / np.log(FACTOR)))
    distances = NEAR * FACTOR ** np.arange(steps + 1)
    moments = np.zeros((len(rays), len(distances)))
    alive, y = np.arange(len(rays)), NEAR * rays
    for step, t in enumerate(distances):
        y, log_density, off = _highest(at, rays[alive], y, top)
        log_density = log_density - top
        with np.errstate(over="ignore"):
            gap = np.abs(np.exp(log_density) - np.exp(log_density - off))
        moments[alive, step] = (1 + t**2) * t * gap / np.sqrt(2 * np.pi)
        going = log_density > NEGLIGIBLE
        alive, y = alive[going], FACTOR * y[going]
        if not len(alive):
            break
    farthest = np.concatenate([np.max(away @ directions.T, axis=0), np.max(away @ -directions.T, axis=0)])
    outside = distances >= farthest[:, None]
    whole, beyond = (
        float(np.max(np.trapezoid(np.where(kept, moments, 0.0), np.log(distances), axis=1))) for kept in (True, outside)
    )
    return Tails(whole, beyond)


def _highest(at: Compare, rays: np.ndarray, y: np.ndarray, top: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points of nearly the highest density at their distances along the rays, with log densities and errors there."""
    log_density, slope, off = at(y)
    length = np.ones(len(y))
    for _ in range(BENDS):
        across = slope - np.sum(slope * rays, axis=1, keepdims=True) * rays
        rise = np.sum(across**2, axis=1)  # half of this is gained where the surrogate's covariance is right
        some = np.flatnonzero((rise > 1) & (log_density - top + rise > NEGLIGIBLE))
        if not len(some):
            break
        tried = y[some] + length[some, None] * across[some]
        after = at(tried)
        better = after[0] > log_density[some]
        length[some[~better]] /= 4
        won = some[better]
        y[won], log_density[won] = tried[better], after[0][better]
        slope[won], off[won] = after[1][better], after[2][better]
    return y, log_density, off


def _directions(frame: Frame, away: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Unit vectors along which parameters vary, then what the records see, then those along which draws are skewed."""
    spread = seen - seen.mean(axis=0)
    every = np.concatenate([frame.lift, spread.T @ away / len(away)])
    lengths = np.linalg.norm(every, axis=1)
    every = every[lengths > 0] / lengths[lengths > 0, None]
    skewness = np.abs(np.mean((away @ every.T) ** 3, axis=0))
    every = every[np.sort(np.argsort(-skewness)[:DIRECTIONS])]
    # Power iteration for the third moments: a direction of locally largest skewness from each start.
    skewed = every
    for _ in range(10):
        skewed = ((away @ skewed.T) ** 2).T @ away / len(away)
        skewed = skewed / np.linalg.norm(skewed, axis=1, keepdims=True)
    skewed = skewed[np.argsort(-np.mean((away @ skewed.T) ** 3, axis=0))]
    return _distinct([*_distinct(every), *_distinct(skewed)[:SKEWED]])


def _distinct(directions: Iterable[np.ndarray]) -> np.ndarray:
    kept: list[np.ndarray] = []
    for one in directions:
        if all(abs(one @ other) < ALIKE for other in kept):
            kept.append(one)
    return np.array(kept)
