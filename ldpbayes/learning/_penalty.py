"""How the precision of the coefficients' prior is chosen from released labels alone."""

import abc
import dataclasses
from typing import Any

import numpy as np

from ldpbayes._core.checks import at_least, checked
from ldpbayes.learning._criterion import Criterion, newton

GRID = tuple(10.0 ** (k / 2) for k in range(-6, 7))
"""Penalties as multiples of the information that the labels have on one coefficient: from 0.001 to 1,000, √10 apart."""
PATIENCE = 2  # penalties in a row that do worse than the best before
ROUGH = 1e-2  # nats: of fits that are only compared


class Penalty(abc.ABC):
    """A way to choose the precision of the normal prior of standardised features' coefficients."""

    @abc.abstractmethod
    def chosen(self, criterion: Criterion, start: np.ndarray) -> float:
        """The penalty.

        Parameters
        ----------
        criterion : Criterion
            Without penalty, of all labels or of some thousands of them.
        start : array (p,)
            Where minimisations begin.
        """


@dataclasses.dataclass(frozen=True)
class Fixed(Penalty):
    """A penalty that is known.

    Parameters
    ----------
    penalty : float
        Not negative and finite.

    Raises
    ------
    ValueError
        For another one.
    """

    penalty: float

    def __post_init__(self) -> None:
        """Check the penalty."""
        allowed = "a finite number, 0 or more"
        value = checked("penalty", self.penalty, allowed, lambda a: (a.ndim == 0) & (a >= 0) & (a < np.inf))
        object.__setattr__(self, "penalty", value)

    def chosen(self, criterion: Criterion, start: np.ndarray) -> float:
        """See `Penalty.chosen`."""
        return self.penalty


@dataclasses.dataclass(frozen=True)
class CrossValidation(Penalty):
    """The penalty whose fits do best on released labels that they were not made from.

    No original label is looked at: the objective of held-out released labels is compared.

    Parameters
    ----------
    folds : int
        Parts of the labels, of which each is held out once.
    grid : sequence of float
        Penalties to choose from, not negative, as multiples of the information that the labels have on the
        coefficient of one standardised feature.
    standard_errors : float
        By how many standard errors of its difference from the smallest loss a larger penalty may do worse and still be
        taken; 0 takes the smallest loss.
    seed : int
        For the folds.
    """

    folds: int = 5
    grid: tuple[float, ...] = GRID
    standard_errors: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check everything."""
        at_least(2, "folds", self.folds)
        object.__setattr__(self, "grid", _checked_grid(self.grid))
        checked("standard_errors", self.standard_errors, "0 or more", lambda a: (a.ndim == 0) & (a >= 0))

    def chosen(self, criterion: Criterion, start: np.ndarray) -> float:
        """See `Penalty.chosen`."""
        penalties = np.array(self.grid) * information(criterion, start)
        if not penalties.any():  # all features are constant
            return 0.0
        weights = np.concatenate([rows.weights for rows in criterion.chunks])
        fold = np.random.default_rng(self.seed).permutation(len(weights)) % self.folds
        parts = [(criterion.reweighted(weights * (fold != k)), fold == k) for k in range(self.folds)]
        parts = [(learned, criterion.reweighted(weights * held)) for learned, held in parts]
        points, losses = [start] * self.folds, []
        for penalty in penalties[::-1]:  # from fits without coefficients to those that overfit, while it helps
            for k, (learned, _) in enumerate(parts):
                points[k] = newton(dataclasses.replace(learned, penalty=float(penalty)), points[k], ROUGH).theta
            losses.append([held.losses(theta).value for (_, held), theta in zip(parts, points, strict=True)])
            if len(losses) - 1 - np.argmin(np.sum(losses, axis=1)) >= PATIENCE:
                break
        best = int(np.argmin(np.sum(losses, axis=1)))
        worse = np.array(losses) - losses[best]
        error = np.sqrt(self.folds) * np.std(worse, axis=1, ddof=1)
        enough = np.sum(worse, axis=1) <= self.standard_errors * error
        return float(penalties[::-1][np.argmax(enough)])


@dataclasses.dataclass(frozen=True)
class Evidence(Penalty):
    """The penalty under which the released labels are most probable, coefficients integrated out ([MacKay]).

    By Laplace's approximation, for objectives that are likelihoods.

    Parameters
    ----------
    grid : sequence of float
        See `CrossValidation`; positive.
    """

    grid: tuple[float, ...] = GRID

    def __post_init__(self) -> None:
        """Check the grid."""
        object.__setattr__(self, "grid", _checked_grid(self.grid))

    def chosen(self, criterion: Criterion, start: np.ndarray) -> float:
        """See `Penalty.chosen`."""
        penalties = np.array(self.grid) * information(criterion, start)
        if not penalties.any():  # all features are constant
            return 0.0
        size, theta, found = criterion.penalised.sum(), start, []
        for penalty in penalties[::-1]:
            minimum = newton(dataclasses.replace(criterion, penalty=float(penalty)), theta, ROUGH)
            theta = minimum.theta
            curvature = np.linalg.slogdet(minimum.at.hessian)[1]
            found.append(minimum.at.value + 0.5 * curvature - 0.5 * size * np.log(penalty))
            if len(found) - 1 - np.argmin(found) >= PATIENCE:
                break
        return float(penalties[::-1][int(np.argmin(found))])


def information(criterion: Criterion, theta: np.ndarray) -> float:
    """What the labels say of the coefficient of one standardised feature, on average.

    Parameters
    ----------
    criterion : Criterion
        Of which the losses matter.
    theta : array (p,)
        Where.
    """
    at = criterion.losses(theta)
    of_each = criterion.objective.information(at.hessian, at.spread)
    return float(np.mean(of_each[criterion.penalised > 0]))


def _checked_grid(grid: Any) -> tuple[float, ...]:
    array = np.atleast_1d(checked("grid", grid, "finite numbers, 0 or more", lambda a: (a >= 0) & (a < np.inf)))
    return tuple(float(multiple) for multiple in np.sort(array))
