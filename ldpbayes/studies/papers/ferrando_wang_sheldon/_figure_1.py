"""Figure 1 of [FWS]: coverage of 95 % intervals against the number of records."""

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from jax.flatten_util import ravel_pytree

from ldpbayes.bootstrap import sufficient_statistics
from ldpbayes.bootstrap._bootstrap import names_of
from ldpbayes.studies.papers.ferrando_wang_sheldon import _regression as regression
from ldpbayes.studies.papers.ferrando_wang_sheldon._cells import computed
from ldpbayes.studies.papers.ferrando_wang_sheldon._scores import scores
from ldpbayes.studies.papers.ferrando_wang_sheldon._settings import FAMILIES, FamilySetting, chosen
from ldpbayes.studies.papers.ferrando_wang_sheldon._trials import Plain, Trials, intervals, normal, plain, trials

__all__ = ["COUNTS", "family_cells", "family_rows", "figure_1"]

COUNTS = (50, 100, 300, 1000, 3000, 10_000)


def figure_1(
    *,
    families: Sequence[str] = (*FAMILIES, regression.NAME),
    counts: Sequence[int] = COUNTS,
    epsilons: Sequence[float] = (0.5, 1.0),
    trials: int = 1000,
    replicates: int = 1000,
    account_for_clamping: bool = False,
    seed: int = 0,
    workers: int = 2,
    checkpoint: str | os.PathLike | None = None,
) -> list[dict[str, Any]]:
    """Coverage of bootstrap and Fisher intervals: exponential families and linear regression, with Laplace noise.

    Bounds of families are the range of 1,000 other records from the same law, drawn once a family. True parameters are
    in ``_settings``: the paper's are not known. Estimates that are not private are from the same records, not clamped.
    All points of a family have the same random numbers, so that what chance does to one, it does to others. Linear
    regression is described at ``_regression.regression_cells``.

    Parameters
    ----------
    families : sequence of str
        Out of those of the figure.
    counts : sequence of int
        Numbers of records.
    epsilons : sequence of float
        Budgets, for all statistics together.
    trials, replicates : int
        Number of data sets for each point, and of bootstrap replicates for each data set.
    account_for_clamping : bool
        Whether the families' estimator does, see `ldpbayes.bootstrap.SufficientStatistics`; the paper's does not.
    seed : int
        Of the data; results are a function of it and of the library versions.
    workers : int
        Points that are computed at a time.
    checkpoint : path, optional
        An ``.npz`` file to which every finished point is added, and from which an interrupted study resumes.

    Returns
    -------
    list of dict
        A row a point, parameter and method (``percentile``, ``pivotal``, ``log``, ``private Fisher``, and ``Fisher``
        for what is not private): ``setting``, ``parameter``, ``epsilon``, ``count`` and ``method``; ``coverage``, the
        ends ``low`` and ``high`` of its 99 % binomial band and the ``verdict`` on it; shares ``left`` and ``right`` of
        intervals above and below the truth; mean ``width``, and as ``relative_width`` its ratio to that of intervals
        that are not private; ``bias`` with its standard error ``bias_error``, ``rmse``; and the share of releases
        ``outside`` the domain.
    """
    settings = chosen([name for name in families if name != regression.NAME])
    cells = family_cells(settings, counts, epsilons, trials, replicates, account_for_clamping, seed)
    if regression.NAME in families:
        cells |= regression.regression_cells(counts, epsilons, trials, replicates, seed)
    of_all = {"trials": trials, "replicates": replicates, "seed": seed, "account_for_clamping": account_for_clamping}
    found = computed(cells, of_all, checkpoint, workers)
    rows = family_rows(found, settings, counts, epsilons, {})
    return rows + (regression.regression_rows(found, counts, epsilons) if regression.NAME in families else [])


def family_cells(
    settings: Mapping[str, FamilySetting],
    counts: Sequence[int],
    epsilons: Sequence[float],
    trials: int,
    replicates: int,
    account_for_clamping: bool,
    seed: int,
) -> dict[str, Any]:
    """What is computed for families.

    Parameters
    ----------
    settings : mapping of str to FamilySetting
        By name.
    counts, epsilons, trials, replicates, account_for_clamping, seed
        As for `figure_1`.

    Returns
    -------
    dict
        For `computed`.
    """
    cells: dict[str, Any] = {}
    for name, setting in settings.items():
        clamped, whole = setting.clamped(seed), setting.unclamped()
        for count in counts:
            likeliest = functools.partial(plain, whole, setting.truth, count, trials=trials, seed=seed)
            cells[f"{name} {count}"] = Plain, likeliest
            for epsilon in epsilons:
                of_cell = setting.truth, count, epsilon, account_for_clamping, trials, replicates, seed
                cells[f"{name} {count} {epsilon}"] = Trials, functools.partial(_private, clamped, *of_cell)
    return cells


def family_rows(
    found: Mapping[str, Any],
    settings: Mapping[str, FamilySetting],
    counts: Sequence[int],
    epsilons: Sequence[float],
    label: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """The rows of `figure_1` for families.

    Parameters
    ----------
    found : mapping
        Results of the cells.
    settings, counts, epsilons
        As for `family_cells`.
    label : mapping
        What else all rows have.
    """
    rows = []
    for name, setting in settings.items():
        truth, names = ravel_pytree(dict(setting.truth))[0], names_of(dict(setting.truth))
        for epsilon in epsilons:
            for count in counts:
                made, fisher = found[f"{name} {count} {epsilon}"], normal(*found[f"{name} {count}"])
                said = {**label, "setting": name, "epsilon": epsilon, "count": count}
                said["outside"] = float(made.outside.mean())
                for method, ends in (intervals(made, setting.positive) | {"Fisher": fisher}).items():
                    rows += scores(said | {"method": method}, names, truth, ends, fisher)
    return rows


def _private(
    family: Any, truth: Any, count: int, epsilon: float, clamped: bool, size: int, draws: int, seed: int
) -> Trials:
    made = sufficient_statistics(family, count=count, epsilon=epsilon, account_for_clamping=clamped)
    return trials(made, truth, trials=size, draws=draws, seed=seed)
