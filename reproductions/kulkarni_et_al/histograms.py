"""Figures 2, 3 and 9 of [KJKH]: histograms. Figure 10 is `ldpbayes.studies.sbc` of `oue_histogram()`.

Models are NumPyro models of one release with a site ``theta``, such as `ldpbayes.models.oue_histogram()`.
"""

import collections

import jax
import numpy as np
from scipy import stats

from ldpbayes.data import Release
from ldpbayes.estimation import frequencies
from ldpbayes.mechanisms import OptimalUnaryEncoding
from ldpbayes.studies import Checkpoint, ReplicatedFit
from reproductions.splits import data_file


def histogram_error(
    model,
    theta=(0.7, 0.2, 0.1),
    *,
    epsilons=(0.25, 0.5, 1.0, 2.0),
    counts=(100, 200, 500, 1000, 2000, 5000),
    replicates=200,
    seed=0,
    num_warmup=500,
    num_samples=500,
    checkpoint=None,
):
    """Error of the posterior mean against that of the point estimate projected onto the simplex (Figures 3 and 9).

    Rows have the ``rmse`` of both and their ``ratio`` with its standard error (delta method), and the shares of
    ``trivial`` (a category at exactly zero) and ``unordered`` estimates; theta is in decreasing order.
    """
    truth = np.asarray(theta, float)
    settings = {"theta": truth.tolist(), "replicates": replicates, "seed": seed}
    settings |= {"num_warmup": num_warmup, "num_samples": num_samples}
    rows = []
    with Checkpoint(checkpoint, settings, _example(model, len(truth))) as saved:
        for epsilon in epsilons:
            mechanism = OptimalUnaryEncoding(epsilon, len(truth))
            fit = ReplicatedFit(model, num_warmup=num_warmup, num_samples=num_samples)
            for count in counts:
                cell = f"{epsilon} {count}"
                if cell not in saved:
                    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), count), round(1e6 * epsilon))
                    keys = jax.random.split(key, 3)
                    x = jax.random.choice(keys[0], len(truth), (replicates, count), p=truth)
                    releases = [Release(z, mechanism) for z in np.asarray(mechanism.randomize(keys[1], x))]
                    projected = [frequencies(release, method="projection").estimate for release in releases]
                    saved[cell] = np.stack([fit(keys[2], releases)["theta"].mean(axis=1), projected])
                    saved.save()
                rows.append({"epsilon": epsilon, "count": count} | _errors(saved[cell], truth))
    return rows


def _example(model, categories):
    """The model of a `Checkpoint`, at one budget and count: cells differ in these alone."""
    return model, Release(None, OptimalUnaryEncoding(1.0, categories), 10)


def _errors(estimates, theta):
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


def kosarak_records(items=10, top=100, total=11_000, folder=None):
    """Clicks on a few items, one record a click, from the head of the Kosarak click-streams.

    The paper draws 10 of the 10,000 most frequent items of all 990,000 streams, about 11,000 records. The head of the
    file has a 27th of them, so the items are drawn here from the 100 most frequent, by the first seed whose clicks are
    within 5 % of 11,000. Code 0 is the most frequent item.
    """
    clicks = collections.Counter()
    with open(data_file("kosarak_head.dat", folder)) as file:
        for line in file:
            clicks.update(set(line.split()))
    frequent = np.array([count for _, count in clicks.most_common(top)])
    for seed in range(10_000):
        counts = np.sort(np.random.default_rng(seed).choice(frequent, items, replace=False))[::-1]
        if abs(counts.sum() - total) <= 0.05 * total:
            return np.repeat(np.arange(items), counts)
    raise ValueError(f"no draw of {items} of the {top} most frequent items has about {total} clicks")


def histogram_distance(
    model,
    records,
    *,
    epsilons=(0.1, 0.25, 0.5, 1.0, 2.0, 4.0),
    replicates=50,
    seed=0,
    num_warmup=500,
    num_samples=1000,
    checkpoint=None,
):
    """Distance between private and non-private posteriors of a histogram under a uniform prior (Figure 2).

    By budget, (replicates, d): the mean over t in [0, 1] of |F(t) − G(t)|, the Wasserstein distance of the posteriors
    of a category, F from draws and G the beta law through its quantiles.
    """
    codes = np.asarray(records)
    counts = np.bincount(codes)
    d, alpha = len(counts), 1.0 + counts
    settings = {"counts": counts.tolist(), "replicates": replicates, "seed": seed}
    settings |= {"num_warmup": num_warmup, "num_samples": num_samples}
    levels = (np.arange(num_samples) + 0.5) / num_samples
    exact = stats.beta.ppf(levels[:, None], alpha, alpha.sum() - alpha)
    with Checkpoint(checkpoint, settings, _example(model, d)) as saved:
        for epsilon in epsilons:
            cell = str(epsilon)
            if cell in saved:
                continue
            mechanism = OptimalUnaryEncoding(epsilon, d)
            keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), round(1e6 * epsilon)), replicates + 1)
            releases = [Release(mechanism.randomize(key, codes), mechanism) for key in keys[1:]]
            fit = ReplicatedFit(model, num_warmup=num_warmup, num_samples=num_samples)
            draws = np.sort(fit(keys[0], releases)["theta"], axis=1)
            # The area between the cdfs of two samples of n is the mean of |x_(i) − y_(i)| over their order statistics.
            saved[cell] = np.mean(np.abs(draws - exact), axis=1)
            saved.save()
        return {epsilon: saved[str(epsilon)] for epsilon in epsilons}
