"""How long releases and fits take: Table 6 of [LH]."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ldpbayes._checks import at_least
from ldpbayes.data import Release
from ldpbayes.learning import linear_fit
from ldpbayes.studies.papers.liu_huang._printed import TABLE_6
from ldpbayes.studies.papers.liu_huang._releases import RELEASES
from ldpbayes.studies.papers.liu_huang._setting import Setting, california_setting, communities_setting, criteo_setting

__all__ = ["MECHANISMS", "criteo_like", "run_times"]

MECHANISMS = {
    "Laplace": "Laplace",
    "Gaussian": "Gaussian",
    "staircase": "staircase",
    "RRonBins": "RRonBins",
    "RPWithPrior": "Algorithm 4",
    "Unbiased": "Unbiased",
    "RPWithPrior, public range": "public range",
}
"""By the name in the table, what is released."""
CRITEO = 1_316_781
LARGEST = 400.0
COEFFICIENTS = (0.6, 0.4, 0.3, 0.2, 0.1)
TRAINING = 0.8


def criteo_like(count: int = CRITEO, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Made-up sales of at most 400 euros, as many as [LH] trains with: log-normal, given five normal features.

    Parameters
    ----------
    count : int
        How many.
    seed : int
        Of NumPy's generator.

    Returns
    -------
    features : ndarray (count, 5)
        Standard normal.
    labels : ndarray (count,)
        In [0, 400], 60 on average; about one in a hundred is 400, where larger ones are clipped.
    """
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((count, len(COEFFICIENTS)))
    logarithm = 3.7 + 0.7 * features @ np.array(COEFFICIENTS) + 0.7 * rng.standard_normal(count)
    return features, np.minimum(np.exp(logarithm), LARGEST)


def run_times(
    folder: str | os.PathLike | None = None,
    *,
    epsilon: float = 1.0,
    mechanisms: Sequence[str] = tuple(MECHANISMS),
    count: int = CRITEO,
    repeats: int = 3,
    fits: bool = True,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Seconds that releases of the labels for training take, the choice of bins, intervals and priors included.

    What is compiled has been compiled before, and is not counted. The paper counts what its training loop does with
    the labels too, on another machine.

    Parameters
    ----------
    folder : path, optional
        With the tables; see `communities`.
    epsilon : float
        Budget, one of the paper's.
    mechanisms : sequence of str
        Out of `MECHANISMS`.
    count : int
        Of made-up labels in the place of Criteo's.
    repeats : int
        Of which the median is taken.
    fits : bool
        Whether linear predictors are fitted too, by maximum a posteriori, to the labels of ``RPWithPrior, public
        range``: their penalty is given.
    seed : int
        Of the releases.

    Returns
    -------
    list of dict
        A row a data set and mechanism: ``data``, ``count``, ``method``, ``seconds``, and the paper's as ``printed``,
        None where it has none.
    """
    at_least(1, "repeats", repeats)
    features, labels = criteo_like(count, seed)
    criteo = criteo_setting(features, labels)
    tables = {"communities": communities_setting(folder), "california": california_setting(folder), "criteo": criteo}
    rows = []
    for name, setting in tables.items():
        used = len(setting.labels) if setting is criteo else int(TRAINING * len(setting.labels))
        labels, about = setting.labels[:used], {"data": name, "count": used}

        def released(method: str, setting: Setting = setting, labels: np.ndarray = labels) -> Any:
            return RELEASES[MECHANISMS[method]](jax.random.key(seed), labels, epsilon, setting)

        for method in mechanisms:
            seconds = _median(lambda: released(method), repeats)  # noqa: B023
            rows.append(about | {"method": method, "seconds": seconds, "printed": TABLE_6.get(method, {}).get(name)})
        if fits:
            release = Release(*released("RPWithPrior, public range"))
            fitted = setting.features[:used]
            seconds = _median(lambda: linear_fit(fitted, release, penalty=1.0), repeats)  # noqa: B023
            rows.append(about | {"method": "linear fit", "seconds": seconds, "printed": None})
    return rows


def _median(run: Callable[[], Any], repeats: int) -> float:
    """Seconds, after a first run that is not counted."""
    run()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return statistics.median(found)
