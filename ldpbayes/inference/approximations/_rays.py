"""The tails of a posterior: its mass where draws of its surrogate have none, found along rays out of the draws."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

import numpy as np

from ldpbayes.numerics.polynomial import Frame

TAIL_TOLERANCE = 0.02  # relative error of a variance, which moves a standard deviation by 1 %
RAY_START = 1.5  # standard deviations at which a ray begins: further inside, draws are many
RAY_RATIO = 1.5  # ratio of successive distances along a ray
RAY_END = 1e3  # standard deviations at which a ray ends at the latest
MAX_BENDS = 4  # steps towards higher density at a fixed distance along the ray
MAX_DIRECTIONS = 128  # directions, each of which is followed both ways
SKEWED_DIRECTIONS = 4  # further directions, in which the draws are most skewed
MAX_COSINE = 0.98  # of the angle between two directions; with a larger one they count as one
# Standard deviations.
RAY_DISTANCES = RAY_START * RAY_RATIO ** np.arange(1 + np.ceil(np.log(RAY_END / RAY_START) / np.log(RAY_RATIO)))
# Log density, relative to the centre, that is negligible even as a plateau which reaches `RAY_END`.
NEGLIGIBLE_DENSITY = np.log(TAIL_TOLERANCE * np.sqrt(2 * np.pi) / RAY_END**3)
# From parameters (m, n) to the posterior's log densities (m,), their gradients (m, n), and the errors (m,) of the
# surrogate, which are the posterior's log densities less its own.
Compare: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


class Rays(NamedTuple):
    """Points on straight rays out of draws."""

    points: np.ndarray  # (1 + rays · distances, n), parameters: the mean of the draws, then points outwards ray by ray
    farthest: np.ndarray  # (rays,), largest t of a draw


def tail_errors(farthest: np.ndarray, log_density: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """Largest relative error of a variance along a ray, from `RAY_START` and from the farthest draw: ∫ (1 + t²) |p(t) −
    q(t)| dt for the posterior p and the surrogate q, normalised as a normal, if other coordinates spread alike at every
    t. Log densities and errors (less their mean at the draws) are at the draws' mean, then outwards, ray by ray.
    """
    finite = np.isfinite(log_density)  # elsewhere there is no mass
    height = np.where(finite, log_density, -np.inf)
    height = height - height.max()  # of the mean, if the draws are the surrogate's and not those of a part of its data
    with np.errstate(over="ignore"):
        gap = np.abs(np.exp(height) - np.exp(height - np.where(finite, errors, 0.0)))
    moments = gap[1:].reshape(len(farthest), -1) * (1 + RAY_DISTANCES**2) * RAY_DISTANCES / np.sqrt(2 * np.pi)
    beyond = np.where(farthest[:, None] <= RAY_DISTANCES, moments, 0.0)
    near, far = (float(np.max(np.trapezoid(part, np.log(RAY_DISTANCES), axis=1))) for part in (moments, beyond))
    return near, far


def follow_rays(draws: np.ndarray, coordinates: np.ndarray, compare: Compare) -> tuple[np.ndarray, ...]:
    """Arguments of `tail_errors`, on rays out of draws (draws, n) that have the highest density at each distance."""
    frame, directions, farthest = _directions(draws, coordinates)

    def at(y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        log_density, gradient, errors = compare(frame.center + y @ frame.lift.T)
        log_density = np.where(np.isfinite(log_density), log_density, -np.inf)
        return log_density, np.nan_to_num(gradient, posinf=0.0, neginf=0.0) @ frame.lift, errors

    log_density = np.full(1 + len(directions) * len(RAY_DISTANCES), -np.inf)
    errors = np.zeros(len(log_density))
    log_density[:1], _, errors[:1] = at(np.zeros((1, directions.shape[1])))
    alive, y, step = np.arange(len(directions)), RAY_START * directions, 0
    while len(alive) and step < len(RAY_DISTANCES):
        y, height, off = _climb(at, directions[alive], y, log_density[0])
        place = 1 + alive * len(RAY_DISTANCES) + step
        log_density[place], errors[place] = height, off
        continues = height - log_density[0] > NEGLIGIBLE_DENSITY
        alive, y, step = alive[continues], RAY_RATIO * y[continues], step + 1
    return farthest, log_density, errors


def straight_rays(draws: np.ndarray, coordinates: np.ndarray) -> Rays:
    """Straight rays of full length, which no posterior bends or ends: they serve any part of the records."""
    frame, directions, farthest = _directions(draws, coordinates)
    points = (RAY_DISTANCES[:, None] * directions[:, None] @ frame.lift.T).reshape(-1, len(frame.center))
    return Rays(frame.center + np.concatenate([np.zeros((1, points.shape[1])), points]), farthest)


def _climb(at: Compare, rays: np.ndarray, y: np.ndarray, top: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points of nearly the highest density at their distances along the rays, with log densities and errors there."""
    log_density, slope, errors = at(y)
    length = np.ones(len(y))
    for _ in range(MAX_BENDS):
        across = slope - np.sum(slope * rays, axis=1, keepdims=True) * rays
        rise = np.sum(across**2, axis=1)  # half of this is gained where the surrogate's covariance is right
        moving = np.flatnonzero((rise > 1) & (log_density - top + rise > NEGLIGIBLE_DENSITY))
        if not len(moving):
            break
        trial = y[moving] + length[moving, None] * across[moving]
        after = at(trial)
        better = after[0] > log_density[moving]
        length[moving[~better]] /= 4
        improved = moving[better]
        y[improved], log_density[improved] = trial[better], after[0][better]
        slope[improved], errors[improved] = after[1][better], after[2][better]
    return y, log_density, errors


def _directions(draws: np.ndarray, coordinates: np.ndarray) -> tuple[Frame, np.ndarray, np.ndarray]:
    """A frame of the draws, unit vectors (rays, r) in it, both ways, and how far the draws reach along each."""
    frame = Frame.of_draws(draws)
    y = frame.coordinates(draws)  # of mean 0 and covariance 1
    spread = coordinates.reshape(len(coordinates), -1)
    spread = spread - spread.mean(axis=0)
    # Where parameters vary, and where the records' coordinates do.
    linear = np.concatenate([frame.lift, spread.T @ y / len(y)])
    lengths = np.linalg.norm(linear, axis=1)
    linear = linear[lengths > 0] / lengths[lengths > 0, None]
    skewness = np.abs(np.mean((y @ linear.T) ** 3, axis=0))
    linear = linear[np.sort(np.argsort(-skewness)[:MAX_DIRECTIONS])]
    # Power iteration for the third moments: a direction of locally largest skewness from each start.
    skewed = linear
    for _ in range(10):
        skewed = ((y @ skewed.T) ** 2).T @ y / len(y)
        skewed = skewed / np.linalg.norm(skewed, axis=1, keepdims=True)
    skewed = skewed[np.argsort(-np.mean((y @ skewed.T) ** 3, axis=0))]
    directions = _distinct([*_distinct(linear), *_distinct(skewed)[:SKEWED_DIRECTIONS]])
    directions = np.concatenate([directions, -directions])
    return frame, directions, np.max(y @ directions.T, axis=0)


def _distinct(directions: Iterable[np.ndarray]) -> np.ndarray:
    distinct: list[np.ndarray] = []
    for direction in directions:
        if all(abs(direction @ other) < MAX_COSINE for other in distinct):
            distinct.append(direction)
    return np.array(distinct)
