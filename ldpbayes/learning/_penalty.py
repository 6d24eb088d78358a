"""The precision of the coefficients' prior, known or chosen from released labels alone."""

import abc
import dataclasses
from collections.abc import Sequence

import numpy as np

from ldpbayes._core.checks import at_least, checked
from ldpbayes.learning._criterion import ROUGH_TOLERANCE, Criterion, newton

GRID = tuple(10.0 ** (k / 2) for k in range(-6, 7))  # multiples of the labels' information on one coefficient
PATIENCE = 2  # a search ends after so many penalties in a row that do worse than the best


class Penalty(abc.ABC):
    """A way to choose the precision of the normal prior of standardised features' coefficients."""

    @abc.abstractmethod
    def chosen(self, criterion: Criterion, start: np.ndarray) -> float:
        """The penalty, for a criterion without one of all labels or of some thousands; fits begin at `start` (p,)."""


@dataclasses.dataclass(frozen=True)
class Fixed(Penalty):
    """A known penalty, finite and 0 or more; else ValueError."""

    penalty: float

    def __post_init__(self) -> None:
        allowed = "a finite number, 0 or more"
        value = checked("penalty", self.penalty, allowed, lambda a: (a.ndim == 0) & (a >= 0) & (a < np.inf))
        object.__setattr__(self, "penalty", value)

    def chosen(self, criterion: Criterion, start: np.ndarray) -> float:
        return self.penalty


@dataclasses.dataclass(frozen=True)
class CrossValidation(Penalty):
    """The penalty with the smallest loss on held-out released labels; no original label is looked at.

    Parameters
    ----------
    folds : int
        Parts of the labels, of which each is held out once.
    grid : sequence of float
        Penalties to choose from, 0 or more, as multiples of the labels' information on the coefficient of one
        standardised feature.
    standard_errors : float
        The largest penalty is taken whose loss exceeds the smallest by at most so many standard errors of the excess.
    seed : int
        For the folds.
    """

    folds: int = 5
    grid: tuple[float, ...] = GRID
    standard_errors: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(2, "folds", self.folds)
        object.__setattr__(self, "grid", _checked_grid(self.grid))
        checked("standard_errors", self.standard_errors, "0 or more", lambda a: (a.ndim == 0) & (a >= 0))

    def chosen(self, criterion: Criterion, start: np.ndarray) -> float:
        penalties = _penalties(self.grid, criterion, start)
        if not penalties.any():  # all features are constant
            return 0.0
        weights = np.concatenate([rows.weights for rows in criterion.chunks])
        fold = np.random.default_rng(self.seed).permutation(len(weights)) % self.folds
        training = [criterion.reweighted(weights * (fold != k)) for k in range(self.folds)]
        held_out = [criterion.reweighted(weights * (fold == k)) for k in range(self.folds)]
        points, losses = [start] * self.folds, []
        for penalty in penalties:  # from fits without coefficients to those that overfit, while it helps
            for k, part in enumerate(training):
                points[k] = newton(dataclasses.replace(part, penalty=float(penalty)), points[k], ROUGH_TOLERANCE).theta
            losses.append([part.losses(theta).value for part, theta in zip(held_out, points, strict=True)])
            if len(losses) - 1 - np.argmin(np.sum(losses, axis=1)) >= PATIENCE:
                break
        best = int(np.argmin(np.sum(losses, axis=1)))
        excess = np.array(losses) - losses[best]
        error = np.sqrt(self.folds) * np.std(excess, axis=1, ddof=1)
        allowed = np.sum(excess, axis=1) <= self.standard_errors * error
        return float(penalties[np.argmax(allowed)])


@dataclasses.dataclass(frozen=True)
class Evidence(Penalty):
    """The penalty under which the released labels are most probable, coefficients integrated out ([MacKay]).

    By Laplace's approximation, for objectives that are likelihoods. The grid has the penalties to choose from, positive
    and in the unit of `CrossValidation`.
    """

    grid: tuple[float, ...] = GRID

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", _checked_grid(self.grid))

    def chosen(self, criterion: Criterion, start: np.ndarray) -> float:
        penalties = _penalties(self.grid, criterion, start)
        if not penalties.any():  # all features are constant
            return 0.0
        size, theta, nats = criterion.penalised.sum(), start, []  # nats: minus the logarithm of the evidence
        for penalty in penalties:
            minimum = newton(dataclasses.replace(criterion, penalty=float(penalty)), theta, ROUGH_TOLERANCE)
            theta = minimum.theta
            curvature = np.linalg.slogdet(minimum.at.hessian)[1]
            nats.append(minimum.at.value + 0.5 * curvature - 0.5 * size * np.log(penalty))
            if len(nats) - 1 - np.argmin(nats) >= PATIENCE:
                break
        return float(penalties[int(np.argmin(nats))])


def _checked_grid(grid: Sequence[float]) -> tuple[float, ...]:
    array = np.atleast_1d(checked("grid", grid, "finite numbers, 0 or more", lambda a: (a >= 0) & (a < np.inf)))
    return tuple(float(multiple) for multiple in np.sort(array))


def _penalties(grid: tuple[float, ...], criterion: Criterion, theta: np.ndarray) -> np.ndarray:
    """Penalties from the largest to the smallest: the grid times the mean information on a coefficient at theta."""
    at = criterion.losses(theta)
    information = criterion.objective.information(at.hessian, at.spread)[criterion.penalised > 0]
    return (np.array(grid) * float(np.mean(information)))[::-1]
