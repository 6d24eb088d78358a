"""Smooth likelihoods in place of the records', how they are checked at draws and in tails, and those of categories."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from jax.flatten_util import ravel_pytree

from ldpbayes._core.types import Array, Params
from ldpbayes.data import ExpandedSketch
from ldpbayes.inference.approximations.panels import records_instead
from ldpbayes.inference.approximations.surrogates import Report, Surrogate
from ldpbayes.inference.chains import Sampling, flat_rows
from ldpbayes.inference.compiled_programs import program_of, stacked
from ldpbayes.inference.problem import Problem
from ldpbayes.inference.result import smoothed_weights
from ldpbayes.laws.compound import unwrapped
from ldpbayes.likelihood.privatized import ExpandedLaw
from ldpbayes.numerics.arrays import evenly_spaced
from ldpbayes.numerics.polynomial import Frame

# Errors are the posterior's log density less the sampled one, at draws, up to a constant.
NEGLIGIBLE_SD_NATS = 0.01  # nats: such a standard deviation moves no mean by more than so many standard deviations
NEGLIGIBLE_ERROR_NATS = 0.1  # nats: largest error of a draw that counts as negligible
MODERATE_SD_NATS = 0.3  # nats up to which reweighting loses less than a tenth of the draws
HOPELESS_SD_NATS = 1.0  # nats beyond which there is no reweighting
CHECKED_DRAWS = 64  # draws at which errors are measured first
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


@dataclasses.dataclass(eq=False)
class Expanded(Surrogate):
    """A surrogate with a smooth likelihood in the place of the records', by which its draws can be reweighted."""

    rings = 1  # further out a polynomial is wrong, and may rise
    least_warmup = float(CHECKED_DRAWS)

    def report(self) -> Report:
        """What is sampled, and after how many passes over the records."""
        raise NotImplementedError

    def coordinates(self, rows: np.ndarray) -> np.ndarray:
        """What the likelihood depends on, from flat parameters (draws, n): by default these themselves."""
        return rows

    def errors(self, x: np.ndarray) -> np.ndarray:
        """Log-likelihoods (draws,) of the records less those sampled, at coordinates."""
        raise NotImplementedError

    def along(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The posterior's log densities (draws,) at flat parameters, their gradients (draws, n), and the errors."""
        raise NotImplementedError

    def give_up(self, why: str, report: Report) -> Surrogate:
        return records_instead(self.problem, self.sampling, why, report)

    def judge(self, positions: Params, final: bool = True) -> Surrogate | Report:
        rows = flat_rows(positions, self.chains.example)
        x = self.coordinates(rows)
        errors = self.errors(evenly_spaced(x, CHECKED_DRAWS))
        if not final:
            report, sd = self.report().of_errors(errors), np.std(errors)
            why = f"the error of the expansion is {sd:.2g} nats (standard deviation over posterior draws)"
            return self.again(x, errors, final) or (report if sd <= HOPELESS_SD_NATS else self.give_up(why, report))
        farthest, log_density, outwards = follow_rays(rows, x, self.along)
        tail, beyond = tail_errors(farthest, log_density, outwards - np.mean(errors))
        report = self.report().of_errors(errors, tail_error=tail)
        if not beyond <= TAIL_TOLERANCE:
            why = f"a variance is wrong by {beyond:.1%}, because the posterior has a tail that no draw reaches"
            return self.give_up(why, report)
        whole = tail <= TAIL_TOLERANCE
        if not (whole and report.error_sd_nats <= NEGLIGIBLE_SD_NATS and report.error_nats <= NEGLIGIBLE_ERROR_NATS):
            errors = self.errors(x)
            report = self.report().of_errors(errors, tail_error=tail)
        # The largest error does not count among all draws, of which a few may be off by more.
        if whole and report.error_sd_nats <= NEGLIGIBLE_SD_NATS:
            return report
        weights = smoothed_weights(errors)
        k, share = weights.pareto_k, weights.share
        report = dataclasses.replace(report, ran="expansion, reweighted", pareto_k=k, effective_share=share)
        if weights.good:
            return dataclasses.replace(report, weights=weights)
        why = f"importance weights are too uneven (Pareto k {k:.2f}, effective share of the draws {share:.0%})"
        return self.again(x, errors, final) or self.give_up(why, report)

    def again(self, draws: np.ndarray, errors: np.ndarray, final: bool) -> Surrogate | None:
        """An expansion at these draws; None if there is none, or if it would not help or is not necessary."""
        return None


@dataclasses.dataclass(eq=False)
class ExpandedCategories(Expanded):
    """A model of expanded sketches, whose reference are the records that they were made from, if these are kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        kept = [data.records is not None for data in self.density.data if isinstance(data, ExpandedSketch)]
        self.least_warmup = CHECKED_DRAWS if all(kept) else np.inf

    def prepare(self) -> None:
        self._sketches: list[ExpandedSketch] = []
        first, unravel = ravel_pytree(self.chains.example)

        def shares(row: Array) -> list[Array]:
            sites = self.density.at(unravel(row)).values()
            laws = [unwrapped(site["fn"])[0] for site in sites if site["type"] == "sample"]
            laws = [law for law in laws if isinstance(law, ExpandedLaw)]
            self._sketches[:] = [law.sketch for law in laws]
            return [law.theta for law in laws]

        self._shares = program_of("shares", shares, first)

    def _at(self, rows: np.ndarray) -> Iterator[tuple[ExpandedSketch, np.ndarray]]:
        """Each sketch with its shares (draws, ...)."""
        return zip(self._sketches, stacked(map(self._shares, rows)), strict=True)

    def report(self) -> Report:
        order = max(sketch.polynomial.order for sketch in self._sketches)
        return Report(ran="expansion", count=sum(int(sketch.size) for sketch in self._sketches), order=order)

    def errors(self, x: np.ndarray) -> np.ndarray:
        return sum(sketch.log_likelihood(theta) - sketch.polynomial.values(theta) for sketch, theta in self._at(x))

    def along(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        (potentials, gradients), errors = self.chains.potentials(rows), self.errors(rows)
        return errors - potentials, -gradients, errors

    def judge(self, positions: Params, final: bool = True) -> Surrogate | Report:
        if self.least_warmup < np.inf:
            return super().judge(positions, final)
        rows = evenly_spaced(flat_rows(positions, self.chains.example), CHECKED_DRAWS)
        share = max(sketch.polynomial.share_outside(theta) for sketch, theta in self._at(rows))
        far = f"{share:.0%} of the draws are far from the centre of the sketch; keep the records in it"
        doubt, ran = far if share > 0 else None, "expansion without records"
        return dataclasses.replace(self.report(), ran=ran, outside=share, doubt=doubt)


def propose(problem: Problem, sampling: Sampling) -> ExpandedCategories | None:
    """The model of expanded sketches, if there are any and they may be sampled as they are."""
    if not any(isinstance(data, ExpandedSketch) for data in problem.density.data):
        return None
    if problem.expansion is not None:
        raise ValueError("expand= cannot be an Expansion if the data are an expanded sketch; pass the release")
    return ExpandedCategories(problem, sampling) if problem.expand is not False else None
