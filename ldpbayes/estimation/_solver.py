"""Minimising a criterion from several starts, for the records of one release or of another one after it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._compiling import quick_jit
from ldpbayes._warnings import warn
from ldpbayes.estimation._arguments import Records, records_of
from ldpbayes.estimation._estimator import Estimator, Fit
from ldpbayes.estimation._examine import check_values
from ldpbayes.estimation._result import EstimationWarning, MEstimate
from ldpbayes.estimation._solve import Minimum
from ldpbayes.estimation.corrections import Evidence
from ldpbayes.mechanisms import Additive

__all__ = ["Solver"]

APART = 1e-3  # of the parameters' units: minima nearer than that are the same


@dataclasses.dataclass(frozen=True, eq=False)
class Solver:
    """All of an M-estimation but the records.

    Parameters
    ----------
    estimator : Estimator
        Whose method is as it was given: what it takes from the mechanism is filled in for each release anew.
    unravel : callable
        From a flat parameter to the form of the start.
    starts : int
        Number of starts, all but the first uniform in the space.
    """

    estimator: Estimator
    unravel: Callable
    starts: int

    def solve(self, records: Records, start: np.ndarray, seed: int, earlier: MEstimate | None = None) -> MEstimate:
        """Minimise from every start, and warn of what went wrong.

        Parameters
        ----------
        records : Records
            Of the estimator's mechanism.
        start : array (p,)
            The first start.
        seed : int
            For the analyst's own noise and the other starts.
        earlier : MEstimate, optional
            To whose evidence that of the records is added.
        """
        settled, keys, first = self.estimator.settled, jax.random.split(jax.random.key(seed)), jnp.asarray(start)
        others = settled.space.sample(keys[1], (self.starts - 1,), len(first), first.dtype)
        starts = jnp.concatenate([first[None], others])
        known = None if earlier is None else earlier._evidence
        evidence, ends, fit = _run(settled, keys[0], jnp.asarray(records.rows), starts, known)
        params = np.asarray(fit.theta)
        result = MEstimate(
            self.estimator.method.name,
            jax.tree.map(np.asarray, self.unravel(fit.theta)),
            params,
            np.asarray(fit.covariance),
            self._names(params),
            int(evidence.criteria[0].count),
            self.estimator.space,
            bool(fit.converged),
            int(fit.iterations),
            np.asarray(fit.boundary),
            _distinct(ends, self.estimator.units),
            self,
            evidence,
            (*(() if earlier is None else earlier._mechanisms), self.estimator.mechanism),
        )
        _warn(result)
        return result

    def for_release(self, release: Any, theta: np.ndarray) -> tuple["Solver", Records]:
        """The same for another release of the same kind, and its records.

        Parameters
        ----------
        release : Release
            See `MEstimate.update`.
        theta : array (p,)
            Where the loss must be finite.

        Raises
        ------
        ValueError
            If it cannot be added to the first one.
        """
        before = self.estimator
        records = records_of(release, before.method)
        mechanism = records.mechanism
        if _kind(mechanism) != _kind(before.mechanism):
            raise ValueError(f"an update needs records of a mechanism like {before.mechanism}, got {mechanism}")
        if mechanism.names != before.mechanism.names:
            raise ValueError(
                f"an update needs records with the columns {', '.join(before.mechanism.names)}, in this order, got "
                + ", ".join(mechanism.names)
            )
        before.loss.check(records.rows, mechanism.index)
        bounded = records.support is not None and not (before.method.beyond and before.everywhere)
        rows = records.inside(records.rows) if bounded else records.rows
        check_values(before.loss, rows, records, theta, bounded=bounded)
        estimator = dataclasses.replace(before, mechanism=mechanism)
        return dataclasses.replace(self, estimator=estimator), records

    def _names(self, params: np.ndarray) -> list[str]:
        names = self.estimator.loss.names(self.estimator.mechanism.names)
        return names or (["theta"] if params.size == 1 else [f"theta[{j}]" for j in range(params.size)])


def _kind(mechanism: Additive) -> tuple:
    return type(mechanism), jax.tree.structure(mechanism.noise), mechanism.event_shape, mechanism.index


@quick_jit
def _run(
    estimator: Estimator, key: jax.Array, rows: jax.Array, starts: jax.Array, earlier: Evidence | None
) -> tuple[Evidence, Minimum, Fit]:
    """Evidence, the minima found from each start, and the fit that follows from the lowest."""
    evidence = estimator.evidence(key, rows)
    evidence = evidence if earlier is None else earlier.joined(evidence)
    ends = jax.lax.map(lambda at: estimator.minimum(evidence, at), starts)
    lowest = jnp.argmin(jnp.where(jnp.isfinite(ends.value), ends.value, jnp.inf))
    best = jax.tree.map(lambda leaf: leaf[lowest], ends)
    return evidence, ends, estimator.finish(evidence, best)


def _distinct(ends: Minimum, units: np.ndarray | None) -> list[tuple[np.ndarray, float]]:
    """Minima that are further apart than what they are known to, lowest first."""
    thetas, values, hessians = (np.asarray(part) for part in (ends.theta, ends.value, ends.hessian))
    minima: list[tuple[np.ndarray, float]] = []
    for i in np.argsort(np.where(np.isfinite(values), values, np.inf)):
        with np.errstate(divide="ignore", invalid="ignore"):
            # what changes the criterion by its size, as far as a quadratic knows
            unit = np.sqrt(np.abs(values[i] / np.diagonal(hessians[i]))) if units is None else units
        near = APART * unit + 1e-9 * np.abs(thetas[i])
        if np.isfinite(values[i]) and all(np.any(np.abs(thetas[i] - theta) > near) for theta, _ in minima):
            minima.append((thetas[i], float(values[i])))
    return minima


def _warn(result: MEstimate) -> None:
    problems = []
    if not result.converged:
        problems.append(f"the minimisation has not converged in {result.iterations} iterations")
    if result.boundary.any():
        where = ", ".join(name for name, edge in zip(result.names, result.boundary, strict=True) if edge)
        problems.append(f"the estimate is on the boundary of the parameter space ({where}): no standard errors there")
    if len(result.minima) > 1:
        problems.append(f"{len(result.minima)} minima were found; the estimate is from the lowest")
    for problem in problems:
        warn(problem, EstimationWarning)
