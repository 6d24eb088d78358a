"""Figure 2 of [FWS]: one posterior sample, and the bias of clamping with its corrections."""

import functools
import os
import types
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import stats

from ldpbayes.bootstrap import (
    BootstrapWarning,
    Family,
    GaussianMean,
    Matched,
    Percentile,
    Poisson,
    SufficientStatistics,
    one_posterior_sample,
    sufficient_statistics,
)
from ldpbayes.bootstrap._replicates import replicates as replicates_at
from ldpbayes.studies.papers.ferrando_wang_sheldon._cells import computed
from ldpbayes.studies.papers.ferrando_wang_sheldon._scores import scores
from ldpbayes.studies.papers.ferrando_wang_sheldon._settings import FAMILIES
from ldpbayes.studies.papers.ferrando_wang_sheldon._trials import TAILS, Plain, Trials, intervals, normal, plain, trials

__all__ = ["figure_2"]

RANGES = {
    "Bernoulli": (0.02, 0.98),
    "Poisson": (2.0, 30.0),
    "exponential": (0.1, 2.5),
    "Gaussian, known variance": (-3.0, 5.0),
}
"""Families with conjugate priors, and where the parameter is taken to be before it is released."""

CLAMPED: dict[str, Any] = {
    "Poisson": (tuple(map(float, (6, 7, 8, 9, 10, 12, 14))), lambda high: Poisson(int(high)), stats.poisson(8.0)),
    "Gaussian, known variance": (
        (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
        lambda high: GaussianMean(2.0, -7.0, high),
        stats.norm(1.0, 2.0),
    ),
}
"""Thresholds above which records are clamped, families with such a bound, and laws of records; n = 1,000."""


class Corrected(NamedTuple):
    """Corrected estimates and their percentile intervals, one trial a row.

    Attributes
    ----------
    estimate, low, high : array (trials, p)
        Estimates and ends.
    """

    estimate: Any
    low: Any
    high: Any


def figure_2(
    *,
    counts: Sequence[int] = (50, 100, 300, 1000, 3000, 10_000),
    epsilons: Sequence[float] = (0.5, 1.0),
    clamped: int = 1000,
    trials: int = 1000,
    replicates: int = 1000,
    seed: int = 0,
    workers: int = 2,
    checkpoint: str | os.PathLike | None = None,
) -> list[dict[str, Any]]:
    """One posterior sample; and Poisson and normal records that are clamped on the right, with their bias corrected.

    Part ``posterior sample`` is coverage against the number of records, for a uniform prior on a known range of the
    parameter. Part ``bias correction`` is bias and coverage against the threshold at ε = 1: of the estimate as it is,
    after `OneStep` and `Matched`, and of the estimate that accounts for clamping. Plain and corrected estimates are of
    the same releases.

    Parameters
    ----------
    counts, epsilons : sequence of int, and of float
        Numbers of records, and budgets, of the first part.
    clamped : int
        Number of records of the second.
    trials, replicates, seed, workers, checkpoint
        As for `figure_1`.

    Returns
    -------
    list of dict
        As for `figure_1`, with the ``part``, and in the second the ``threshold``, the share of records ``beyond`` it,
        and which part of the plain estimate's clamping bias a correction
        ``removed``: of its distance from the estimate of the same records without clamping and noise.
    """
    cells: dict[str, Any] = {}
    size: dict[str, Any] = {"trials": trials, "seed": seed}
    for name in RANGES:
        setting = FAMILIES[name]
        for count in counts:
            found = functools.partial(plain, setting.unclamped(), setting.truth, count, **size)
            cells[f"{name} {count}"] = Plain, found
            for epsilon in epsilons:
                drawn = functools.partial(_sampled, name, count, epsilon, replicates, **size)
                cells[f"{name} {count} {epsilon}"] = Trials, drawn
    for name, (thresholds, family, _) in CLAMPED.items():
        setting = FAMILIES[name]
        found = functools.partial(plain, setting.unclamped(), setting.truth, clamped, **size)
        cells[f"{name} not clamped"] = Plain, found
        for threshold in thresholds:
            at = f"{name} clamped at {threshold}"
            arguments = (family(threshold), setting.truth, clamped, replicates)
            for accounting in (False, True):
                cells[f"{at} {accounting}"] = Trials, functools.partial(_plain, *arguments, accounting, **size)
            cells[f"{at} matched"] = Corrected, functools.partial(_matched, *arguments, **size)
    settings = {"trials": trials, "replicates": replicates, "seed": seed, "clamped": clamped}
    results = computed(cells, settings, checkpoint, workers)
    return _sample_rows(results, counts, epsilons) + _clamped_rows(results, clamped)


def _sample_rows(results: dict[str, Any], counts: Sequence[int], epsilons: Sequence[float]) -> list[dict[str, Any]]:
    rows = []
    for name in RANGES:
        truth, names = ravel_pytree(dict(FAMILIES[name].truth))[0], list(FAMILIES[name].truth)
        for epsilon in epsilons:
            for count in counts:
                fisher = normal(*results[f"{name} {count}"])
                ways = intervals(results[f"{name} {count} {epsilon}"], FAMILIES[name].positive) | {"Fisher": fisher}
                said = {"part": "posterior sample", "setting": name, "epsilon": epsilon, "count": count}
                for method, ends in ways.items():
                    rows += scores(said | {"method": method}, names, truth, ends, fisher)
    return rows


def _clamped_rows(results: dict[str, Any], clamped: int) -> list[dict[str, Any]]:
    rows = []
    for name, (thresholds, _, law) in CLAMPED.items():
        truth, names = ravel_pytree(dict(FAMILIES[name].truth))[0], list(FAMILIES[name].truth)
        fisher = normal(*results[f"{name} not clamped"])
        for threshold in thresholds:
            at = f"{name} clamped at {threshold}"
            made, accounted = results[f"{at} False"], results[f"{at} True"]
            step = made.mean - made.estimate
            kinds = intervals(made)
            ways = {
                "percentile": kinds["percentile"],
                "pivotal": kinds["pivotal"],
                "one step": (made.estimate - step, *(end - 2 * step for end in np.moveaxis(made.quantiles, 1, 0))),
                "matched": results[f"{at} matched"],
                "accounted for, percentile": intervals(accounted)["percentile"],
                "accounted for, pivotal": intervals(accounted)["pivotal"],
            }
            said = {"part": "bias correction", "setting": name, "epsilon": 1.0, "count": clamped}
            said |= {"threshold": threshold, "beyond": float(law.sf(threshold))}
            # the same records without clamping and noise have no bias, but for what the trials left to chance
            clamping = np.mean(made.estimate) - np.mean(fisher[0])
            for method, ends in (ways | {"Fisher": fisher}).items():
                left = np.mean(ends[0]) - np.mean(fisher[0])
                removed = {"removed": float(1 - abs(left) / abs(clamping))}
                rows += scores(said | {"method": method} | removed, names, truth, ends, fisher)
    return rows


def _sampled(name: str, count: int, epsilon: float, draws: int, **size: Any) -> Trials:
    setting, (low, high) = FAMILIES[name], RANGES[name]
    family = setting.clamped(size["seed"])
    made = one_posterior_sample(family, count=count, epsilon=epsilon, lower=low, upper=high)
    return trials(made, setting.truth, draws=draws, **size)


def _plain(family: Family, truth: Any, count: int, draws: int, accounting: bool, **size: Any) -> Trials:
    made = sufficient_statistics(family, count=count, epsilon=1.0, account_for_clamping=accounting)
    return trials(made, truth, draws=draws, **size)


def _matched(family: Family, truth: Any, count: int, draws: int, *, trials: int, seed: int) -> Corrected:
    """`Matched` corrects on the host, one trial after the other; with the random numbers of `_trials.trials`."""
    estimator = sufficient_statistics(family, count=count, epsilon=1.0)
    found = []
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore", BootstrapWarning)  # what has not settled counts as it is
        for key in jax.random.split(jax.random.key(seed), trials):
            params, keys = _started(estimator, truth, key, draws)
            run = functools.partial(replicates_at, estimator, keys=keys, memory=2.0**28)
            estimate, made = Matched().corrected(estimator, params, run)
            result: Any = types.SimpleNamespace(draws=np.asarray(made.target), params=estimate)
            found.append((estimate, *(Percentile().end(result, tail) for tail in TAILS)))
    return Corrected(*map(np.stack, zip(*found, strict=True)))


@functools.partial(jax.jit, static_argnames="draws")
def _started(estimator: SufficientStatistics, truth: Any, key: Any, draws: int) -> tuple[Any, jax.Array]:
    data, boot = jax.random.split(key)
    return estimator.estimate(estimator.replicate(data, truth)).params, jax.random.split(boot, draws)
