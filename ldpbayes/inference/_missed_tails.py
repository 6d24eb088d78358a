"""Whether a posterior has mass where draws of its surrogate have none, so that the draws cannot show it."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

import numpy as np

from ldpbayes.numerics.polynomial import Frame

TAIL_TOLERANCE = 0.02  # relative error of a variance, which moves a standard deviation by 1 %
NEAR = 1.5  # standard deviations at which a ray begins: further inside, draws are many
FACTOR = 1.5  # ratio of successive distances along a ray
FAR = 1e3  # standard deviations at which a ray ends at the latest
MAX_BENDS = 4  # steps towards higher density at a fixed distance along the ray
MAX_DIRECTIONS = 128  # directions, each of which is followed both ways
SKEWED_DIRECTIONS = 4  # further directions, in which the draws are most skewed
MAX_COSINE = 0.98  # of the angle between two directions; with a larger one they count as one
# along a ray, in standard deviations
DISTANCES = NEAR * FACTOR ** np.arange(1 + np.ceil(np.log(FAR / NEAR) / np.log(FACTOR)))
# Log density, relative to the centre, that is negligible even as a plateau which reaches `FAR`.
NEGLIGIBLE_DENSITY = np.log(TAIL_TOLERANCE * np.sqrt(2 * np.pi) / FAR**3)
# From parameters (m, n) to the posterior's log densities (m,), their gradients (m, n), and the errors (m,) of the
# surrogate, which are the posterior's log densities less its own.
Compare: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


class Rays(NamedTuple):
    """Points on rays that lead out of draws. In coordinates y in which the draws have mean 0 and covariance 1, a ray is
    the set of the highest densities at given values t of a linear function of y, or a straight line.
    """

    points: np.ndarray  # (1 + rays · distances, n), parameters: the mean of the draws, then points outwards ray by ray
    farthest: np.ndarray  # (rays,), largest t of a draw


class Tails(NamedTuple):
    """The largest error of a variance along a ray, as a share of that variance."""

    all: float  # from `NEAR` on
    beyond: float  # from the farthest draw on, where no draw can be reweighted


def tail_errors(farthest: np.ndarray, log_density: np.ndarray, errors: np.ndarray) -> Tails:
    """Errors of variances along rays from the draws of a surrogate, of which the mean error at the draws is taken off.
    Log densities and errors are those at the mean of the draws and at all distances, ray by ray. Up to a constant, the
    density along a ray is that of t if the other coordinates have the same spread at every t. The error of the variance
    is then ∫ (1 + t²) |p(t) − q(t)| dt, where p is the density of the posterior and q is that of the surrogate, both
    normalised as a normal density is.
    """
    finite = np.isfinite(log_density)  # elsewhere there is no mass
    height = np.where(finite, log_density, -np.inf)
    height = height - height.max()  # of the mean, if the draws are the surrogate's and not those of a part of its data
    with np.errstate(over="ignore"):
        gap = np.abs(np.exp(height) - np.exp(height - np.where(finite, errors, 0.0)))
    moments = gap[1:].reshape(len(farthest), -1) * (1 + DISTANCES**2) * DISTANCES / np.sqrt(2 * np.pi)
    parts = moments, np.where(farthest[:, None] <= DISTANCES, moments, 0.0)
    return Tails(*(float(np.max(np.trapezoid(part, np.log(DISTANCES), axis=1))) for part in parts))


def follow_rays(draws: np.ndarray, coordinates: np.ndarray, compare: Compare) -> tuple[np.ndarray, ...]:
    """Rays out of draws to where a posterior is negligible, as arguments of `tail_errors`. Draws are unconstrained
    parameters (draws, n); ``coordinates`` (draws, ...) are the numbers that the records depend on, whose directions of
    variation are followed, too.
    """
    frame, directions, farthest = _directions(draws, coordinates)

    def at(y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        log_density, gradient, errors = compare(frame.center + y @ frame.lift.T)
        log_density = np.where(np.isfinite(log_density), log_density, -np.inf)
        return log_density, np.nan_to_num(gradient, posinf=0.0, neginf=0.0) @ frame.lift, errors

    log_density = np.full(1 + len(directions) * len(DISTANCES), -np.inf)
    errors = np.zeros(len(log_density))
    log_density[:1], _, errors[:1] = at(np.zeros((1, directions.shape[1])))
    alive, y = np.arange(len(directions)), NEAR * directions
    for step in range(len(DISTANCES)):
        y, height, off = _climb(at, directions[alive], y, log_density[0])
        place = 1 + alive * len(DISTANCES) + step
        log_density[place], errors[place] = height, off
        continues = height - log_density[0] > NEGLIGIBLE_DENSITY
        alive, y = alive[continues], FACTOR * y[continues]
        if not len(alive):
            break
    return farthest, log_density, errors


def straight_rays(draws: np.ndarray, coordinates: np.ndarray) -> Rays:
    """Straight rays of full length, which no posterior bends or ends: they serve any part of the records."""
    frame, directions, farthest = _directions(draws, coordinates)
    points = (DISTANCES[:, None] * directions[:, None] @ frame.lift.T).reshape(-1, len(frame.center))
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
    """Coordinates y of draws, unit vectors (rays, r) in them, and how far the draws reach along each. Directions are
    those in which parameters vary, in which the records' coordinates vary, and in which draws are most skewed; each
    stands both ways.
    """
    frame = Frame.of_draws(draws)
    y = frame.coordinates(draws)
    spread = coordinates.reshape(len(coordinates), -1)
    spread = spread - spread.mean(axis=0)
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
