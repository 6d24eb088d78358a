"""Regressions by several methods on the same random splits of a table, in one table of scores."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from scipy import special

from ldpbayes.data import Release
from ldpbayes.mechanisms import Mechanism
from ldpbayes.studies._checkpoint import Checkpoint
from ldpbayes.studies._fingerprint import model_fingerprint
from ldpbayes.studies._replicates import ReplicatedFit
from ldpbayes.studies.papers.kulkarni_et_al._modes import posterior_modes
from ldpbayes.studies.papers.kulkarni_et_al._splits import GROUPS, STEPS, Splits, with_intercept

__all__ = [
    "Comparison",
    "Score",
    "fingerprints",
    "linear_coefficients",
    "logistic_coefficients",
    "modes",
    "posterior_means",
]

PRIOR_VARIANCE = 5.0  # of a coefficient, for the posteriors that are not private

Method = Callable[[jax.Array, float], np.ndarray]
"""(key, epsilon) → coefficients (replicates, settings tried, 1 + d), the intercept first."""


def posterior_means(fit: ReplicatedFit, key: jax.Array, releases: Sequence[Any]) -> np.ndarray:
    """Posterior means of the coefficients, (replicates, 1, 1 + d)."""
    return _coefficients({name: draws.mean(axis=1) for name, draws in fit(key, releases).items()})


def modes(model: Callable, key: jax.Array, releases: Sequence[Release]) -> np.ndarray:
    """Coefficients at the posterior's modes, (replicates, 1, 1 + d)."""
    return _coefficients(posterior_modes(model, key, releases))


def _coefficients(sites: Mapping[str, np.ndarray]) -> np.ndarray:
    """Those of a model, whose intercept is 0 where it has no such site."""
    coefficients = with_intercept(sites["slopes"])
    if "intercept" in sites:
        coefficients[:, 0] = sites["intercept"]
    return coefficients[:, None]


def linear_coefficients(rows: np.ndarray) -> np.ndarray:
    """Posterior means (replicates, 1 + d) under slopes from N(0, 5 I), at the variance of least squares' residuals."""
    means = []
    for x, y in zip(rows[..., :-1], rows[..., -1], strict=True):
        variance = np.mean((y - x @ np.linalg.lstsq(x, y)[0]) ** 2)
        means.append(np.linalg.solve(x.T @ x + variance / PRIOR_VARIANCE * np.eye(x.shape[1]), x.T @ y))
    return with_intercept(np.stack(means))


def logistic_coefficients(rows: np.ndarray) -> np.ndarray:
    """Posterior modes (replicates, 1 + d) under slopes from N(0, 5 I), by Newton's method."""
    modes = []
    for x, y in zip(rows[..., :-1], rows[..., -1], strict=True):
        theta = np.zeros(x.shape[1])
        for _ in range(20):
            p = special.expit(x @ theta)
            bend = x.T @ ((p * (1 - p))[:, None] * x) + np.eye(len(theta)) / PRIOR_VARIANCE
            theta = theta + np.linalg.solve(bend, x.T @ (y - p) - theta / PRIOR_VARIANCE)
        modes.append(theta)
    return with_intercept(np.stack(modes))


@dataclasses.dataclass(frozen=True)
class Score:
    """How good predictors are.

    Attributes
    ----------
    name : str
        Of the column in the table.
    of : callable
        Linear predictors (..., n) and responses (..., n) → scores (...).
    best : callable
        ``numpy.argmin`` or ``numpy.argmax``.
    """

    name: str
    of: Callable[[np.ndarray, np.ndarray], np.ndarray]
    best: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Methods on the same splits, and how they are scored.

    Attributes
    ----------
    splits : Splits
        Records for training and testing.
    score : Score
        Of the records for testing.
    non_private : callable
        Rows (replicates, N, d + 1) → coefficients (replicates, 1 + d).
    methods : dict of str to callable
        (key, epsilon) → coefficients (replicates, settings tried, 1 + d), the intercept first.
    """

    splits: Splits
    score: Score
    non_private: Callable[[np.ndarray], np.ndarray]
    methods: Mapping[str, Method]

    def only(self, names: Sequence[str] | None) -> "Comparison":
        """With some of the methods.

        Parameters
        ----------
        names : sequence of str, optional
            Which; by default all.

        Raises
        ------
        ValueError
            If there is no such method.
        """
        if names is None:
            return self
        for name in names:
            if name not in self.methods:
                raise ValueError(f"methods must be among {', '.join(map(repr, self.methods))}, got {name!r}")
        return dataclasses.replace(self, methods={name: self.methods[name] for name in names})

    def table(
        self, epsilons: Sequence[float], seed: int, settings: dict[str, Any], checkpoint: str | os.PathLike | None
    ) -> list[dict[str, Any]]:
        """A row for each budget and method, after one for the non-private regression.

        A method that tried several settings has a row with the one that is best at the largest budget, and another,
        "tuned", with the best at its own budget.

        Parameters
        ----------
        epsilons : sequence of float
            Budgets.
        seed : int
            Of the releases and all else that is random.
        settings : dict
            What else a checkpoint must agree about, JSON-able.
        checkpoint : path, optional
            An ``.npz`` file to which what is finished is added, and from which an interrupted study resumes.
        """
        reference = self.non_private(self.splits.train)
        settings = settings | {"table": self.splits.digest, "replicates": len(reference), "seed": seed}
        found: dict[tuple[float, str], np.ndarray] = {}
        with Checkpoint(checkpoint, settings) as done:
            for epsilon in epsilons:
                # the same for all methods: releases of one kind differ by the scale of their noise alone
                key = jax.random.fold_in(jax.random.key(seed), round(1e6 * epsilon))
                for name, method in self.methods.items():
                    cell = f"{epsilon} {name}"
                    if cell not in done:
                        done[cell] = method(key, epsilon)
                        done.save()
                    found[epsilon, name] = done[cell]
        rows: list[dict[str, Any]] = [{"epsilon": np.inf, "method": "non-private"} | self._row(reference, reference)]
        best = {cell: self._best(coefficients) for cell, coefficients in found.items()}
        for (epsilon, name), tried in found.items():
            which: dict[str, Any] = {"epsilon": epsilon, "method": name}
            common, own = best[max(epsilons), name], best[epsilon, name]
            if tried.shape[1] == 1:
                rows.append(which | self._row(tried[:, 0], reference))
            else:
                rows.append(which | self._row(tried[:, common], reference) | _setting(common))
                rows.append(which | {"method": f"{name}, tuned"} | self._row(tried[:, own], reference) | _setting(own))
        return rows

    def _scores(self, coefficients: np.ndarray) -> np.ndarray:
        return self.score.of(self.splits.predictors(coefficients), self.splits.test[..., -1])

    def _best(self, tried: np.ndarray) -> int:
        """Which of the settings has the best mean score."""
        if tried.shape[1] == 1:
            return 0
        return int(self.score.best([self._scores(tried[:, i]).mean() for i in range(tried.shape[1])]))

    def _row(self, coefficients: np.ndarray, reference: np.ndarray) -> dict[str, float]:
        scores = self._scores(coefficients)
        away = self.splits.predictors(coefficients) - self.splits.predictors(reference)
        distance = np.mean(np.sqrt(np.mean(away**2, axis=1)))
        return {self.score.name: float(scores.mean()), "sd": float(scores.std(ddof=1)), "away": float(distance)}


def _setting(tried: int) -> dict[str, float]:
    """What `Splits.descents` tried there."""
    group, step = np.unravel_index(tried, (len(GROUPS), len(STEPS)))
    return {"group": GROUPS[group], "step": float(STEPS[step])}


def fingerprints(
    models: Mapping[str, tuple[Callable, Mechanism, int]], checkpoint: str | os.PathLike | None
) -> dict[str, Any]:
    """Settings by which a checkpoint knows the models; none where there is no checkpoint.

    Parameters
    ----------
    models : dict of str to (model, mechanism, count)
        As `model_fingerprint` takes them.
    checkpoint : path, optional
        Where to.
    """
    return {} if checkpoint is None else {"models": {name: model_fingerprint(*of) for name, of in models.items()}}
