"""Figures 4 and 5 of [KJKH]: regressions of real tables under local privacy, by several routes."""

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from scipy import stats
from scipy.optimize import brentq

from ldpbayes._checks import checked
from ldpbayes.estimation.losses import logistic, squared
from ldpbayes.mechanisms import (
    LinearRecordsMechanism,
    LinearStatisticsMechanism,
    LogisticRecordsMechanism,
    LogisticStatisticsMechanism,
)
from ldpbayes.privacy import gaussian_scale, linear_sensitivity_bound
from ldpbayes.studies._replicates import ReplicatedFit
from ldpbayes.studies.papers.kulkarni_et_al._comparison import (
    Comparison,
    Method,
    Score,
    fingerprints,
    linear_coefficients,
    logistic_coefficients,
    modes,
    posterior_means,
)
from ldpbayes.studies.papers.kulkarni_et_al._splits import Splits

__all__ = ["linear_regression_error", "logistic_regression_auc"]


def linear_regression_error(
    model: Callable,
    covariates: ArrayLike,
    response: ArrayLike,
    *,
    methods: Sequence[str] | None = None,
    epsilons: Sequence[float] = (0.4, 0.8, 1.6, 4.0),
    delta: float = 1e-5,
    radius: float = 1.0,
    response_bound: float = 2.0,
    split: float = 0.5,
    replicates: int = 30,
    seed: int = 0,
    num_warmup: int = 200,
    num_samples: int = 200,
    checkpoint: str | os.PathLike | None = None,
) -> list[dict[str, Any]]:
    """Test errors of linear regressions under local privacy (Figure 4, with the table `wine`).

    Every replicate trains on a random 80 % of the records, which are clipped where they are released, and tests on the
    rest, which are not. The methods are

    - ``statistics``: the posterior given the sum of locally perturbed sufficient statistics;
    - ``statistics, bound``: the same with as much noise as the bound of Lemma 3.1 asks for, in place of the
      sensitivity: what the mechanism adds at some smaller budget, and a multiple of the noise of the other;
    - ``statistics, scaled``: the same with noise in proportion to the size of a statistic, 1 : q : q² with q the
      response's bound over the radius; the paper has the same noise in all;
    - ``records``: the posterior given perturbed records;
    - ``ldp-sgd``: the baseline `ldp_sgd`, with the step length and the constant of the group size, out of 15 and 5 that
      are tried, that have the least mean test error at the largest budget; and ``ldp-sgd, tuned`` with those that have
      the least at its own budget. Nobody could know these without the test records;
    - ``non-private``: the posterior given the records as they are, for slopes from N(0, 5 I) and the variance of the
      residuals of least squares.

    None has an intercept unless the model does: covariates and response should be centred.

    Parameters
    ----------
    model : callable
        NumPyro model of a release of rows or of statistics, with a site ``slopes``, such as ``linear_regression()``.
    covariates : array_like (N, d)
        Of all records, such as those of `wine`.
    response : array_like (N,)
        Of the same records.
    methods : sequence of str, optional
        Some of those above, ``ldp-sgd`` for both of its rows; by default all.
    epsilons : sequence of float
        Budgets of a record.
    delta : float
        The other part of the budgets.
    radius, response_bound : float
        To which norm and absolute value records are clipped.
    split : float
        Share of a perturbed record's budget that goes to the response.
    replicates : int
        Splits, each with releases of its own; two at least.
    seed : int
        Results are a function of the seed and the library versions.
    num_warmup, num_samples : int
        Iterations of each posterior's one NUTS chain.
    checkpoint : path, optional
        An ``.npz`` file to which what is finished is added, and from which an interrupted study resumes.

    Returns
    -------
    list of dict
        A row for each ``epsilon`` (infinite for the non-private posterior) and ``method``: ``rmse``, the root mean
        square test error of the posterior mean, as a mean over replicates, its standard deviation ``sd`` over
        replicates, and ``away``, the root mean square distance of predictions from the non-private ones; all in the
        unit of the response. Rows of the baseline have their ``step`` and constant ``group``.

    Raises
    ------
    ValueError
        If an argument is out of range, or the checkpoint is another study's.
    """
    splits = Splits.of(covariates, response, replicates, seed)
    fit = ReplicatedFit(model, num_warmup=num_warmup, num_samples=num_samples)
    bounds = (delta, radius, response_bound, splits.columns)

    def statistics(epsilon: float) -> LinearStatisticsMechanism:
        return LinearStatisticsMechanism(epsilon, *bounds, ratios=(1.0, 1.0, 1.0), clip=True)

    def bound(epsilon: float) -> LinearStatisticsMechanism:
        ratio = linear_sensitivity_bound(radius, response_bound) / statistics(epsilon).sensitivity
        return statistics(_budget_of(ratio * gaussian_scale(epsilon, delta), epsilon, delta))

    def records(epsilon: float) -> LinearRecordsMechanism:
        return LinearRecordsMechanism(epsilon, *bounds, split=split, clip=True)

    def scaled(epsilon: float) -> LinearStatisticsMechanism:
        return LinearStatisticsMechanism(epsilon, *bounds, clip=True)

    def of_statistics(mechanism: Callable) -> Method:
        return lambda key, epsilon: posterior_means(fit, key, splits.totals(key, mechanism(epsilon)))

    every: dict[str, Method] = {
        "statistics": of_statistics(statistics),
        "statistics, bound": of_statistics(bound),
        "statistics, scaled": of_statistics(scaled),
        "records": lambda key, epsilon: posterior_means(
            fit, key, [release.sketch() for release in splits.releases(key, records(epsilon))]
        ),
        "ldp-sgd": lambda key, epsilon: splits.descents(key, squared(intercept=False), epsilon, delta),
    }
    settings = {"bounds": bounds, "split": split, "num_warmup": num_warmup, "num_samples": num_samples}
    models = {"statistics": (model, statistics(1.0).total(10), 1), "records": (model, records(1.0), 10)}
    comparison = Comparison(splits, Score("rmse", _root_mean_square_error, np.argmin), linear_coefficients, every)
    return comparison.only(methods).table(epsilons, seed, settings | fingerprints(models, checkpoint), checkpoint)


def logistic_regression_auc(
    model: Callable,
    covariates: ArrayLike,
    response: ArrayLike,
    *,
    expansion: Callable | None = None,
    methods: Sequence[str] | None = None,
    epsilons: Sequence[float] = (0.4, 0.8, 1.6, 4.0),
    delta: float = 1e-5,
    radius: float = 1.0,
    split: float = 0.5,
    replicates: int = 30,
    seed: int = 0,
    num_warmup: int = 150,
    num_samples: int = 150,
    checkpoint: str | os.PathLike | None = None,
) -> list[dict[str, Any]]:
    """Areas under the curve of logistic regressions under local privacy (Figure 5, with the table `adult`).

    Splits are those of `linear_regression_error`, and the area is that of the predictor at the posterior mean, or where
    it says so at the posterior's mode. All records for training are used, where the paper perturbs 10,000. The methods
    are

    - ``statistics``: the posterior given the sum of locally perturbed statistics. The bound of Lemma 13.1 is reached,
      so there is no other version;
    - ``records``: the posterior given perturbed records;
    - ``records, expansion``: that of the same releases under another model;
    - ``records, mode`` and ``records, expansion, mode``: the modes of both, which take a few per cent of the time;
    - ``ldp-sgd`` and ``ldp-sgd, tuned``: the baseline, as there;
    - ``non-private``: the mode of the posterior given the records as they are, for slopes from N(0, 5 I).

    Parameters
    ----------
    model : callable
        NumPyro model of a release of rows or of statistics, with a site ``slopes``, such as ``logistic_regression()``.
    covariates : array_like (N, d)
        Of all records, such as those of `adult`.
    response : array_like (N,)
        Of the same records, 0 or 1.
    expansion : callable, optional
        NumPyro model of a release of rows, such as the one with the paper's expansion of the sigmoid.
    methods : sequence of str, optional
        Some of those above, ``ldp-sgd`` for both of its rows; by default all.
    epsilons : sequence of float
        Budgets of a record.
    delta : float
        The other part of the budgets.
    radius : float
        To which norm records are clipped.
    split : float
        Share of a perturbed record's epsilon that goes to the response.
    replicates : int
        Splits, each with releases of its own; two at least.
    seed : int
        Results are a function of the seed and the library versions.
    num_warmup, num_samples : int
        Iterations of each posterior's one NUTS chain.
    checkpoint : path, optional
        An ``.npz`` file to which what is finished is added, and from which an interrupted study resumes.

    Returns
    -------
    list of dict
        A row for each ``epsilon`` (infinite for the non-private posterior) and ``method``: ``auc``, a mean over
        replicates, its standard deviation ``sd`` over replicates, and ``away``, the root mean square distance of linear
        predictors from the non-private ones. Rows of the baseline have their ``step`` and constant ``group``.

    Raises
    ------
    ValueError
        If an argument is out of range, or the checkpoint is another study's.
    """
    checked("response", response, "0 or 1", lambda y: (y == 0) | (y == 1))
    splits = Splits.of(covariates, response, replicates, seed)
    bounds = (delta, radius, splits.columns)
    iterations: dict[str, Any] = {"num_warmup": num_warmup, "num_samples": num_samples}
    fit = ReplicatedFit(model, **iterations)

    def statistics(epsilon: float) -> LogisticStatisticsMechanism:
        return LogisticStatisticsMechanism(epsilon, *bounds, ratios=(1.0, 1.0), clip=True)

    def records(epsilon: float) -> LogisticRecordsMechanism:
        return LogisticRecordsMechanism(epsilon, *bounds, split=split, clip=True)

    def of_records(name: str, model: Callable, fit: ReplicatedFit) -> dict[str, Method]:
        return {
            name: lambda key, epsilon: posterior_means(fit, key, splits.releases(key, records(epsilon))),
            f"{name}, mode": lambda key, epsilon: modes(model, key, splits.releases(key, records(epsilon))),
        }

    every: dict[str, Method] = {
        "statistics": lambda key, epsilon: posterior_means(fit, key, splits.totals(key, statistics(epsilon))),
        "ldp-sgd": lambda key, epsilon: splits.descents(key, logistic(intercept=False), epsilon, delta),
        **of_records("records", model, fit),
    }
    models = {"statistics": (model, statistics(1.0).total(10), 1), "records": (model, records(1.0), 10)}
    if expansion is not None:
        every |= of_records("records, expansion", expansion, ReplicatedFit(expansion, **iterations))
        models["records, expansion"] = (expansion, records(1.0), 10)
    settings = {"bounds": bounds, "split": split} | iterations
    comparison = Comparison(splits, Score("auc", _area_under_curve, np.argmax), logistic_coefficients, every)
    return comparison.only(methods).table(epsilons, seed, settings | fingerprints(models, checkpoint), checkpoint)


def _budget_of(scale: float, most: float, delta: float) -> float:
    """The epsilon at which a sensitivity of 1 takes this scale; at most `most`."""

    def excess(log_epsilon: float) -> float:
        return gaussian_scale(math.exp(log_epsilon), delta) - scale

    least = math.log(most)
    while excess(least) < 0:
        least -= 1.0
    return math.exp(brentq(excess, least, math.log(most) + 1e-9, xtol=1e-13, rtol=1e-13))


def _root_mean_square_error(predictors: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean((predictors - y) ** 2, axis=-1))


def _area_under_curve(predictors: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Probability that a record of class 1 has a larger predictor than one of class 0, ties counted half."""
    ones, count = y.sum(axis=-1), y.shape[-1]
    ranks = np.sum(stats.rankdata(predictors, axis=-1) * y, axis=-1)
    return (ranks - ones * (ones + 1) / 2) / (ones * (count - ones))
