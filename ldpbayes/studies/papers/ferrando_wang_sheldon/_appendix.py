"""The appendix of [FWS]: budgets from 0.1 to 10, widths, and a multivariate normal law."""

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from ldpbayes.bootstrap import sufficient_statistics
from ldpbayes.bootstrap._bootstrap import names_of
from ldpbayes.studies.papers.ferrando_wang_sheldon._cells import computed
from ldpbayes.studies.papers.ferrando_wang_sheldon._figure_1 import family_cells, family_rows
from ldpbayes.studies.papers.ferrando_wang_sheldon._scores import scores
from ldpbayes.studies.papers.ferrando_wang_sheldon._settings import MULTIVARIATE, chosen
from ldpbayes.studies.papers.ferrando_wang_sheldon._trials import Plain, Trials, intervals, normal, trials

__all__ = ["appendix"]

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
TRIED = ("Poisson", "Gaussian, known variance", "Gaussian", "gamma, known shape")
WIDE = (1000, 10_000, 100_000, 1_000_000)


def appendix(
    *,
    trials: int = 1000,
    replicates: int = 1000,
    families: Sequence[str] = TRIED,
    epsilons: Sequence[float] = EPSILONS,
    counts: Sequence[int] = WIDE,
    multivariate: Sequence[int] = (100, 300, 1000),
    seed: int = 0,
    workers: int = 2,
    checkpoint: Mapping[str, str | os.PathLike] | None = None,
) -> list[dict[str, Any]]:
    """Coverage against the budget at n = 1,000; widths against n at ε = 1; and a bivariate normal law.

    The failures of the left and right tails are columns of all rows, those of `figure_1` among them.

    Parameters
    ----------
    trials, replicates, seed, workers
        As for `figure_1`.
    families : sequence of str
        Out of those of Figure 1, for the first two parts.
    epsilons : sequence of float
        Budgets of the part ``budgets``.
    counts : sequence of int
        Numbers of records of the part ``widths``, and of ``widths, clamping accounted for``: where there are many
        records, bounds that clamp one in a thousand bias more than the standard error.
    multivariate : sequence of int
        The same of the part ``multivariate normal``, at ε = 0.5 and 1; records are drawn one by one there.
    checkpoint : mapping of str to path, optional
        Of each part an ``.npz`` file, as for `figure_1`.

    Returns
    -------
    list of dict
        As for `figure_1`, with the ``part``, and the ``relative_width``: mean width over that of Fisher intervals that
        are not private.
    """
    kept = checkpoint or {}
    of_all = {"trials": trials, "replicates": replicates, "seed": seed}
    settings, rows = chosen(families), []
    parts: dict[str, Any] = {
        "budgets": ((1000,), epsilons, False),
        "widths": (counts, (1.0,), False),
        "widths, clamping accounted for": (counts, (1.0,), True),
    }
    for name, (sizes, budgets, accounting) in parts.items():
        cells = family_cells(settings, sizes, budgets, trials, replicates, accounting, seed)
        found = computed(cells, of_all, kept.get(name), workers)
        rows += family_rows(found, settings, sizes, budgets, {"part": name})
    cells = _multivariate_cells(multivariate, trials, replicates, seed)
    return rows + _multivariate_rows(computed(cells, of_all, kept.get("multivariate normal"), workers), multivariate)


def _multivariate_cells(counts: Sequence[int], trials: int, replicates: int, seed: int) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for count in counts:
        cells[f"{count}"] = Plain, functools.partial(_plain, count, trials, seed)
        for epsilon in (0.5, 1.0):
            drawn = functools.partial(_private, count, epsilon, trials, replicates, seed)
            cells[f"{count} {epsilon}"] = Trials, drawn
    return cells


def _multivariate_rows(found: Mapping[str, Any], counts: Sequence[int]) -> list[dict[str, Any]]:
    truth, names = ravel_pytree(dict(MULTIVARIATE.truth))[0], names_of(dict(MULTIVARIATE.truth))
    once = [j for j, name in enumerate(names) if name != "covariance_matrix[1,0]"]
    rows = []
    for epsilon in (0.5, 1.0):
        for count in counts:
            made, fisher = found[f"{count} {epsilon}"], normal(*found[f"{count}"])
            with jax.enable_x64(True):
                error = np.asarray(jax.vmap(lambda flat: _errors(flat, count))(made.estimate))  # noqa: B023
            ways = intervals(made) | {"private Fisher": normal(made.estimate, error), "Fisher": fisher}
            said = {"part": "multivariate normal", "setting": "bivariate normal", "epsilon": epsilon, "count": count}
            said |= {"outside": float(made.outside.mean())}
            for method, ends in ways.items():
                kept = tuple(np.asarray(part)[:, once] for part in ends)
                whole = tuple(np.asarray(part)[:, once] for part in fisher)
                rows += scores(said | {"method": method}, [names[j] for j in once], truth[np.array(once)], kept, whole)
    return rows


def _private(count: int, epsilon: float, size: int, draws: int, seed: int) -> Trials:
    made = sufficient_statistics(MULTIVARIATE.clamped(seed), count=count, epsilon=epsilon)
    return trials(made, dict(MULTIVARIATE.truth), trials=size, draws=draws, seed=seed)


def _errors(flat: jax.Array, count: int) -> jax.Array:
    """Standard errors of covariances and means by the Fisher information: (σ_jj σ_kk + σ_jk²)/n, and σ_jj/n."""
    size = len(MULTIVARIATE.truth["loc"])
    covariance = flat[: size**2].reshape(size, size)
    squared = jnp.diagonal(covariance)
    of_covariance = squared[:, None] * squared[None] + covariance**2
    return jnp.sqrt(jnp.concatenate([of_covariance.ravel(), squared]) / count)


def _plain(count: int, size: int, seed: int) -> Plain:
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), size)
        return Plain(*map(np.asarray, _likeliest(dict(MULTIVARIATE.truth), keys, count)))


@functools.partial(jax.jit, static_argnames="count")
def _likeliest(truth: Any, keys: jax.Array, count: int) -> Plain:
    root = jnp.linalg.cholesky(truth["covariance_matrix"])

    def one(key: jax.Array) -> Plain:
        rows = truth["loc"] + jax.random.normal(key, (count, len(root)), root.dtype) @ root.T
        mean = jnp.mean(rows, axis=0)
        flat = jnp.concatenate([((rows - mean).T @ (rows - mean) / count).ravel(), mean])
        return Plain(flat, _errors(flat, count))

    return lax.map(one, keys)
