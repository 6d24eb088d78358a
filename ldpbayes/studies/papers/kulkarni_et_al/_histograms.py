"""Figures 2, 3 and 9 of [KJKH]: histograms."""

import collections
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike
from scipy import stats

from ldpbayes.data import Release
from ldpbayes.estimation import frequencies
from ldpbayes.mechanisms import OptimalUnaryEncoding
from ldpbayes.studies._checkpoint import Checkpoint
from ldpbayes.studies._replicates import ReplicatedFit

__all__ = ["histogram_distance", "histogram_error", "kosarak_records"]


def histogram_error(
    model: Callable,
    theta: Sequence[float] = (0.7, 0.2, 0.1),
    *,
    epsilons: Sequence[float] = (0.25, 0.5, 1.0, 2.0),
    counts: Sequence[int] = (100, 200, 500, 1000, 2000, 5000),
    replicates: int = 200,
    seed: int = 0,
    num_warmup: int = 500,
    num_samples: int = 500,
    checkpoint: str | os.PathLike | None = None,
) -> list[dict[str, Any]]:
    """Error of the posterior mean against that of the point estimate projected onto the simplex (Figures 3 and 9).

    Parameters
    ----------
    model : callable
        NumPyro model of a release with a site ``theta``, such as ``oue_histogram()``.
    theta : sequence of float
        True probabilities, in decreasing order.
    epsilons, counts : sequence
        Budgets, and numbers of records.
    replicates : int
        Releases a cell.
    seed : int
        Results are a function of the seed and the library versions.
    num_warmup, num_samples : int
        Iterations of each posterior's one NUTS chain.
    checkpoint : path, optional
        An ``.npz`` file to which every finished cell is added, and from which an interrupted study resumes.

    Returns
    -------
    list of dict
        A row a cell: ``epsilon``, ``count``; ``rmse`` of the ``posterior`` mean and of the ``projection`` (root mean
        square over categories, averaged over replicates) and their ``ratio`` with its standard error (delta method);
        the shares of ``trivial`` (a category at exactly zero) and ``unordered`` estimates of both.
    """
    truth = np.asarray(theta, float)
    settings = {"theta": truth.tolist(), "replicates": replicates, "seed": seed}
    settings |= {"num_warmup": num_warmup, "num_samples": num_samples}
    rows = []
    with Checkpoint(checkpoint, settings, _looked_at(model, len(truth))) as done:
        for epsilon in epsilons:
            mechanism = OptimalUnaryEncoding(epsilon, len(truth))
            fit = ReplicatedFit(model, num_warmup=num_warmup, num_samples=num_samples)
            for count in counts:
                cell = f"{epsilon} {count}"
                if cell not in done:
                    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), count), round(1e6 * epsilon))
                    keys = jax.random.split(key, 3)
                    x = jax.random.choice(keys[0], len(truth), (replicates, count), p=truth)
                    releases = [Release(z, mechanism) for z in np.asarray(mechanism.randomize(keys[1], x))]
                    projected = [frequencies(release, method="projection").estimate for release in releases]
                    done[cell] = np.stack([fit(keys[2], releases)["theta"].mean(axis=1), projected])
                    done.save()
                rows.append({"epsilon": epsilon, "count": count} | _errors(done[cell], truth))
    return rows


def _looked_at(model: Callable, categories: int) -> tuple[Callable, OptimalUnaryEncoding, int]:
    """The model of a `Checkpoint`, at one budget and count: cells differ in these alone."""
    return model, OptimalUnaryEncoding(1.0, categories), 10


def _errors(estimates: np.ndarray, theta: np.ndarray) -> dict[str, float]:
    """A row of `histogram_error` from estimates (2, replicates, categories)."""
    error = np.sqrt(np.mean((estimates - theta) ** 2, axis=-1))
    posterior, projection = error.mean(axis=1)
    ratio = posterior / projection
    spread = np.std(error[0] - ratio * error[1], ddof=1) / np.sqrt(error.shape[1]) / projection
    shares = {
        "trivial": np.mean(np.any(estimates == 0, axis=-1), axis=1),
        "unordered": np.mean(np.any(np.diff(estimates, axis=-1) >= 0, axis=-1), axis=1),
    }
    row = {"rmse posterior": posterior, "rmse projection": projection, "ratio": ratio, "ratio se": spread}
    row |= {f"{k} {n}": v for k, pair in shares.items() for n, v in zip(("posterior", "projection"), pair, strict=True)}
    return {name: float(value) for name, value in row.items()}


def kosarak_records(
    items: int = 10, top: int = 100, total: int = 11_000, path: str | os.PathLike | None = None
) -> np.ndarray:
    """Clicks on a few items, one record a click, from the head of the Kosarak click-streams.

    The paper draws 10 of the 10,000 most frequent items of all 990,000 streams, about 11,000 records. The head of the
    file has a 27th of them, so the items are drawn here from the 100 most frequent: the first draw, in the order of
    seeds 0, 1, ..., whose clicks are within 5 % of 11,000.

    Parameters
    ----------
    items, top, total : int
        How many items, from how many, and how many records to aim at.
    path : path, optional
        The file; ``kosarak_head.dat`` in the folder that the environment variable LDPBAYES_DATA names.

    Returns
    -------
    ndarray of int (records,)
        Codes 0, ..., items − 1, the most frequent item first.

    Raises
    ------
    FileNotFoundError
        If there is no such file, or no folder is named.
    """
    if path is None:
        folder = os.environ.get("LDPBAYES_DATA")
        if folder is None:
            raise FileNotFoundError("set LDPBAYES_DATA to the folder with kosarak_head.dat, or give path=")
        path = pathlib.Path(folder) / "kosarak_head.dat"
    clicks: collections.Counter[str] = collections.Counter()
    with open(path) as file:
        for line in file:
            clicks.update(set(line.split()))
    frequent = np.array([count for _, count in clicks.most_common(top)])
    for seed in range(10_000):
        counts = np.sort(np.random.default_rng(seed).choice(frequent, items, replace=False))[::-1]
        if abs(counts.sum() - total) <= 0.05 * total:
            return np.repeat(np.arange(items), counts)
    raise ValueError(f"no draw of {items} of the {top} most frequent items has about {total} clicks")


def histogram_distance(
    model: Callable,
    records: ArrayLike,
    *,
    epsilons: Sequence[float] = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0),
    replicates: int = 50,
    seed: int = 0,
    num_warmup: int = 500,
    num_samples: int = 1000,
    checkpoint: str | os.PathLike | None = None,
) -> dict[float, np.ndarray]:
    """Distance between private and non-private posteriors of a histogram under a uniform prior (Figure 2).

    Parameters
    ----------
    model : callable
        NumPyro model of a release with a site ``theta`` that has the uniform Dirichlet prior.
    records : array_like of int (N,)
        Codes 0, ..., d − 1.
    epsilons : sequence of float
        Budgets.
    replicates : int
        Releases of the same records, at each budget.
    seed : int
        Results are a function of the seed and the library versions.
    num_warmup, num_samples : int
        Iterations of each posterior's one NUTS chain.
    checkpoint : path, optional
        An ``.npz`` file to which every finished budget is added, and from which an interrupted study resumes.

    Returns
    -------
    dict of float to ndarray (replicates, d)
        For each budget the mean over t in [0, 1] of |F(t) − G(t)|, with F and G the posterior cdfs of a category's
        probability (their Wasserstein distance, in units of probability): F from draws, G the beta law of the
        non-private posterior through its quantiles.
    """
    codes = np.asarray(records)
    counts = np.bincount(codes)
    d, alpha = len(counts), 1.0 + counts
    settings = {"counts": counts.tolist(), "replicates": replicates, "seed": seed}
    settings |= {"num_warmup": num_warmup, "num_samples": num_samples}
    levels = (np.arange(num_samples) + 0.5) / num_samples
    exact = stats.beta.ppf(levels[:, None], alpha, alpha.sum() - alpha)
    with Checkpoint(checkpoint, settings, _looked_at(model, d)) as done:
        for epsilon in epsilons:
            cell = str(epsilon)
            if cell in done:
                continue
            mechanism = OptimalUnaryEncoding(epsilon, d)
            keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), round(1e6 * epsilon)), replicates + 1)
            releases = [Release(mechanism.randomize(key, codes), mechanism) for key in keys[1:]]
            fit = ReplicatedFit(model, num_warmup=num_warmup, num_samples=num_samples)
            draws = np.sort(fit(keys[0], releases)["theta"], axis=1)
            # The area between the cdfs of two samples of n is the mean of |x_(i) − y_(i)| over their order statistics.
            done[cell] = np.mean(np.abs(draws - exact), axis=1)
            done.save()
        return {epsilon: done[str(epsilon)] for epsilon in epsilons}
