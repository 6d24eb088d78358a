"""Correction of an estimate's bias by its replicates: one step, or parameters that are matched."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ldpbayes._checks import at_least, checked
from ldpbayes._warnings import warn
from ldpbayes.bootstrap._private_estimator import PrivateEstimator
from ldpbayes.bootstrap._replicates import Replicates
from ldpbayes.bootstrap._result import BootstrapWarning

__all__ = ["BiasCorrection", "Matched", "OneStep"]

FURTHEST = 100.0  # a step, in standard deviations of the replicates
HALVES = (1.0, 0.5, 0.25, 0.125)  # of a step that leads away

Run = Callable[[Any], Replicates]
"""Replicates at some parameters, with the same random numbers each time."""


class BiasCorrection(abc.ABC):
    """How an estimate is moved, and its replicates with it."""

    @abc.abstractmethod
    def corrected(self, estimator: PrivateEstimator, params: Any, run: Run) -> tuple[np.ndarray, Replicates]:
        """The corrected estimate (p,), and its replicates.

        Parameters
        ----------
        estimator : PrivateEstimator
            Whose bias it is.
        params : pytree of arrays
            What it estimated.
        run : callable
            From parameters to `Replicates`.
        """


def _mean(array: Any) -> np.ndarray:
    return np.nanmean(np.asarray(array), axis=0)


@dataclasses.dataclass(frozen=True)
class OneStep(BiasCorrection):
    """2τ̂ − mean(τ*): right to first order, and where the bias depends little on the parameters ([FWS] sec. 3.1)."""

    def corrected(self, estimator: PrivateEstimator, params: Any, run: Run) -> tuple[np.ndarray, Replicates]:
        """See `BiasCorrection.corrected`."""
        made = run(params)
        flat = np.asarray(ravel_pytree(estimator.target(params))[0])
        bias = _mean(made.target) - flat
        # replicates of the corrected estimate around it, of which the truth was τ̂ and is τ̂ − bias
        return flat - bias, made._replace(target=made.target - 2 * bias, standard_error=None)


@dataclasses.dataclass(frozen=True)
class Matched(BiasCorrection):
    """Parameters whose replicates have the estimate as their mean: the bootstrap iterated until it stands still.

    That is the simulated method of moments with the private estimate as the moment ([GMR]). How the mean of the
    replicates moves with the parameters is found by differences; its inverse takes the replicates to those of the
    corrected estimate. So an estimator that clamping makes insensitive gets an interval that is wide enough, which
    neither `OneStep` nor an interval of the biased estimate has.

    Parameters
    ----------
    steps : int
        At most.
    tolerance : float
        Of the distance between the mean and the estimate, in standard deviations of the replicates.
    """

    steps: int = 12
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        at_least(1, "steps", self.steps)
        checked("tolerance", self.tolerance, "a positive number", lambda a: (a.ndim == 0) & (a > 0))

    def corrected(self, estimator: PrivateEstimator, params: Any, run: Run) -> tuple[np.ndarray, Replicates]:
        """See `BiasCorrection.corrected`."""

        def at(free: np.ndarray) -> Replicates:
            return run(estimator.params(jnp.asarray(free), params))

        aim = np.asarray(estimator.free(params))
        here, made = aim, at(aim)
        unit = np.nanstd(np.asarray(made.free), axis=0)
        unit = np.where(unit > 0, unit, 1e-8)

        def response(free: np.ndarray) -> np.ndarray:
            moved = [(_mean(at(free + step).free) - _mean(at(free - step).free)) / 2 for step in np.diag(unit)]
            return np.stack(moved, axis=1) / unit[:, None]

        gap = (_mean(made.free) - aim) / unit
        for _ in range(self.steps):
            if np.abs(gap).max() <= self.tolerance:
                break
            step = np.clip(_solved(response(here), gap), -FURTHEST, FURTHEST)
            for share in HALVES:
                ahead = here - share * unit * step
                there = at(ahead)
                gap_there = (_mean(there.free) - aim) / unit
                if np.abs(gap_there).max() < np.abs(gap).max():
                    break
            here, made, gap = ahead, there, gap_there
        if np.abs(gap).max() > max(self.tolerance, 0.1):
            warn(
                f"the bias correction has not settled: after {self.steps} steps the mean of the replicates is still "
                f"{np.abs(gap).max():.2g} standard deviations from the estimate. Where nearly all records are clamped "
                "the release says little of the parameters; take wider bounds",
                BootstrapWarning,
            )
        away = (np.asarray(made.free) - aim) / unit
        moved = here + unit * _solved(response(here), away.T).T
        report = jax.vmap(lambda free: ravel_pytree(estimator.target(estimator.params(free, params)))[0])
        target = np.asarray(report(jnp.concatenate([here[None], moved])))
        return target[0], made._replace(target=target[1:], standard_error=None)


def _solved(slope: np.ndarray, gap: np.ndarray) -> np.ndarray:
    """slope⁻¹ gap; directions in which the replicates hardly move are left."""
    return np.linalg.pinv(slope, rcond=1e-3) @ gap
