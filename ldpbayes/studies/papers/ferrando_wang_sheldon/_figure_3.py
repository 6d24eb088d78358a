"""Figure 3 of [FWS]: the bootstrap against subsample and aggregate, for the mean of normal records."""

import functools
import math
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from ldpbayes.bootstrap import subsample_and_aggregate, sufficient_statistics
from ldpbayes.studies.papers.ferrando_wang_sheldon._cells import computed
from ldpbayes.studies.papers.ferrando_wang_sheldon._scores import scores
from ldpbayes.studies.papers.ferrando_wang_sheldon._settings import FAMILIES
from ldpbayes.studies.papers.ferrando_wang_sheldon._trials import Plain, Trials, intervals, normal, plain, trials

__all__ = ["figure_3"]

NAME = "Gaussian, known variance"
BLOCKS = {"√n blocks": lambda count: max(2, math.isqrt(count)), "n/5 blocks": lambda count: max(2, count // 5)}


def figure_3(
    *,
    counts: Sequence[int] = (50, 100, 300, 1000, 3000, 10_000),
    epsilons: Sequence[float] = (0.5, 1.0),
    trials: int = 1000,
    replicates: int = 1000,
    seed: int = 0,
    workers: int = 2,
    checkpoint: str | os.PathLike | None = None,
) -> list[dict[str, Any]]:
    """Error, coverage and width of the bootstrap and of subsample and aggregate, with the same bounds and budget.

    Blocks are √n or n/5; half of their budget is for the mean. The bounds of records are those of the mean too.

    Parameters
    ----------
    counts, epsilons, trials, replicates, seed, workers, checkpoint
        As for `figure_1`.

    Returns
    -------
    list of dict
        As for `figure_1`; look at ``rmse`` and ``width`` too.
    """
    setting = FAMILIES[NAME]
    family = setting.clamped(seed)
    size: dict[str, Any] = {"trials": trials, "seed": seed}
    cells: dict[str, Any] = {}
    for count in counts:
        cells[f"{count}"] = Plain, functools.partial(plain, setting.unclamped(), setting.truth, count, **size)
        for epsilon in epsilons:
            at = f"{count} {epsilon}"
            cells[at] = Trials, functools.partial(_bootstrap, family, count, epsilon, replicates, **size)
            for kind, blocks in BLOCKS.items():
                aggregate = functools.partial(_aggregate, family, count, epsilon, blocks(count), **size)
                cells[f"{at} {kind}"] = Plain, aggregate
    settings = {"trials": trials, "replicates": replicates, "seed": seed}
    found = computed(cells, settings, checkpoint, workers)
    truth, rows = ravel_pytree(dict(setting.truth))[0], []
    for epsilon in epsilons:
        for count in counts:
            at, fisher = f"{count} {epsilon}", normal(*found[f"{count}"])
            ways = {"bootstrap": intervals(found[at])["percentile"]}
            ways |= {f"aggregate, {kind}": normal(*found[f"{at} {kind}"]) for kind in BLOCKS}
            for method, ends in (ways | {"Fisher": fisher}).items():
                said = {"setting": NAME, "epsilon": epsilon, "count": count, "method": method}
                rows += scores(said, list(setting.truth), truth, ends, fisher)
    return rows


def _bootstrap(family: Any, count: int, epsilon: float, draws: int, **size: Any) -> Trials:
    made = sufficient_statistics(family, count=count, epsilon=epsilon)
    return trials(made, FAMILIES[NAME].truth, draws=draws, **size)


def _aggregate(family: Any, count: int, epsilon: float, blocks: int, *, trials: int, seed: int) -> Plain:
    made = subsample_and_aggregate(
        jnp.mean, lower=family.lower, upper=family.upper, count=count, blocks=blocks, epsilon=epsilon
    )
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), trials)
        return Plain(*map(np.asarray, _aggregates(made, family, dict(FAMILIES[NAME].truth), keys)))


@jax.jit
def _aggregates(estimator: Any, family: Any, truth: Any, keys: jax.Array) -> Plain:
    def one(key: jax.Array) -> Plain:
        data, noise = jax.random.split(key)
        estimated = estimator.estimate(estimator.randomize(noise, family.simulate(data, truth, estimator.count)))
        return Plain(ravel_pytree(estimated.params)[0], estimated.standard_error)

    return lax.map(one, keys)
