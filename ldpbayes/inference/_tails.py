"""Whether a posterior has mass where draws of its surrogate have none, and are no evidence."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from ldpbayes.numerics.polynomial import Frame

TOLERANCE = 0.02  # of a variance, which moves a standard deviation by 1 %
NEAR = 1.5  # standard deviations at which a ray begins: further inside, draws are many
FACTOR = 1.5  # between distances along a ray
FAR = 1e3  # standard deviations at which a ray ends at the latest
BENDS = 4  # steps at most towards higher density, with the distance along the ray fixed
DIRECTIONS = 128  # at most, each of which is followed both ways
SKEWED = 4  # further directions, in which the draws are most skewed
ALIKE = 0.98  # cosine from which on two directions are one

DISTANCES = NEAR * FACTOR ** np.arange(1 + np.ceil(np.log(FAR / NEAR) / np.log(FACTOR)))
"""Along a ray, in standard deviations."""

NEGLIGIBLE = np.log(TOLERANCE * np.sqrt(2 * np.pi) / FAR**3)
"""Log density, relative to the centre, that is negligible even as a plateau which reaches `FAR`."""

Compare = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""From parameters (m, n) to the posterior's log densities (m,), their gradients (m, n), and their distance (m,) from
the surrogate's, both up to a constant."""


class Rays(NamedTuple):
    """Points on rays that lead out of draws.

    In coordinates y in which the draws have mean 0 and covariance 1, a ray is the set of the highest densities at given
    values t of a linear function of y.

    Attributes
    ----------
    points : ndarray (m, n)
        Unconstrained parameters: first the mean of the draws, then points outwards along one ray after another.
    place : ndarray (m, 2)
        Number of the ray, and that of the distance t in `DISTANCES`; (0, 0) for the mean.
    farthest : ndarray (rays,)
        Largest t of a draw.
    """

    points: np.ndarray
    place: np.ndarray
    farthest: np.ndarray


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


def tails(rays: Rays, log_density: np.ndarray, errors: np.ndarray) -> Tails:
    """How far off a surrogate is along rays.

    Up to a constant, the density along a ray is that of t if the other coordinates have the same spread at every t. The
    error of the variance is then ∫ (1 + t²) |p(t) − q(t)| dt, where p is the density of the posterior and q is that of
    the surrogate, both normalised as a normal density is.

    Parameters
    ----------
    rays : Rays
        From the draws of the surrogate.
    log_density : ndarray (m,)
        Of the posterior at the points, up to a constant.
    errors : ndarray (m,)
        By how much these are larger than the surrogate's log densities, less the mean of that at the draws.
    """
    fine = np.isfinite(log_density)  # what has no density has no mass
    height = np.where(fine, log_density, -np.inf)
    height = height - height.max()  # of the mean, if the draws are the surrogate's and not those of a part of its data
    with np.errstate(over="ignore"):
        gap = np.abs(np.exp(height) - np.exp(height - np.where(fine, errors, 0.0)))
    moments = np.zeros((len(rays.farthest), len(DISTANCES)))
    moments[tuple(rays.place[1:].T)] = gap[1:]
    moments *= (1 + DISTANCES**2) * DISTANCES / np.sqrt(2 * np.pi)
    outside = rays.farthest[:, None] <= DISTANCES
    return Tails(*(_largest(np.where(kept, moments, 0.0)) for kept in (True, outside)))


def _largest(moments: np.ndarray) -> float:
    return float(np.max(np.trapezoid(moments, np.log(DISTANCES), axis=1)))


def follow(draws: np.ndarray, seen: np.ndarray, compare: Compare) -> tuple[Rays, np.ndarray, np.ndarray]:
    """Rays out of draws, to where a posterior is negligible, with its log densities and its errors there.

    Parameters
    ----------
    draws : ndarray (draws, n)
        Unconstrained parameters, of a surrogate.
    seen : ndarray (draws, ...)
        The numbers that the records see there: directions in which these vary are looked at, too.
    compare : callable
        See `Compare`.
    """
    frame, directions, farthest = _out_of(draws, seen)

    def at(y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        log_density, gradient, off = compare(frame.center + y @ frame.lift.T)
        log_density = np.where(np.isfinite(log_density), log_density, -np.inf)
        return log_density, np.nan_to_num(gradient, posinf=0.0, neginf=0.0) @ frame.lift, off

    y = np.zeros((1, directions.shape[1]))
    log_density, _, off = at(y)
    top = log_density[0]
    parts = [(y, np.zeros((1, 2), int), log_density, off)]
    alive, y = np.arange(len(directions)), NEAR * directions
    for step in range(len(DISTANCES)):
        y, log_density, off = _highest(at, directions[alive], y, top)
        parts.append((y, np.stack([alive, np.full(len(alive), step)], axis=1), log_density, off))
        going = log_density - top > NEGLIGIBLE
        alive, y = alive[going], FACTOR * y[going]
        if not len(alive):
            break
    points, place, log_density, off = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Rays(frame.center + points @ frame.lift.T, place, farthest), log_density, off


def straight(draws: np.ndarray, seen: np.ndarray) -> Rays:
    """Rays out of draws that no posterior bends or ends, so that they are those of any part of the records.

    Parameters
    ----------
    draws, seen
        As `follow` takes them.
    """
    frame, directions, farthest = _out_of(draws, seen)
    place = np.array(list(np.ndindex(len(directions), len(DISTANCES))))
    points = DISTANCES[place[:, 1], None] * directions[place[:, 0]] @ frame.lift.T
    center = np.zeros((1, points.shape[1]))
    return Rays(frame.center + np.concatenate([center, points]), np.concatenate([[[0, 0]], place]), farthest)


def _out_of(draws: np.ndarray, seen: np.ndarray) -> tuple[Frame, np.ndarray, np.ndarray]:
    """Coordinates of draws, unit vectors (rays, r) out of them, and how far the draws reach along each."""
    frame = Frame.of_draws(draws)
    away = frame.coordinates(draws)
    directions = _directions(frame, away, seen.reshape(len(seen), -1))
    directions = np.concatenate([directions, -directions])
    return frame, directions, np.max(away @ directions.T, axis=0)


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
