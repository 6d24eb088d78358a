"""The linear regression of Figure 1 of [FWS]: least squares from noisy second moments, with the hybrid bootstrap."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ldpbayes.bootstrap import least_squares
from ldpbayes.studies.papers.ferrando_wang_sheldon._scores import scores
from ldpbayes.studies.papers.ferrando_wang_sheldon._trials import Plain, Trials, intervals, normal, trials

__all__ = ["NAME", "regression_cells", "regression_rows"]

NAME = "linear regression"
COEF = np.array([1.0, -0.5])
SCALE = 0.5
BOUNDS = np.array([1.0, 1.0, 3.5])  # of |x1|, |x2| and |y|: four standard deviations of the errors
TRUTH = {"coef": COEF, "scale": SCALE}


def regression_cells(
    counts: Sequence[int], epsilons: Sequence[float], trials: int, replicates: int, seed: int
) -> dict[str, Any]:
    """What is computed: two regressors, uniform on [−1, 1], coefficients 1 and −0.5, normal errors of scale 0.5.

    There is no intercept, as in the paper. Bounds are known: those of x, and ±3.5 for y, to which it is clamped.

    Parameters
    ----------
    counts, epsilons, trials, replicates, seed
        As for `figure_1`.

    Returns
    -------
    dict
        For `computed`.
    """
    cells: dict[str, Any] = {}
    for count in counts:
        cells[f"{NAME} {count}"] = Plain, functools.partial(_plain, count, trials, seed)
        for epsilon in epsilons:
            drawn = functools.partial(_private, count, epsilon, trials, replicates, seed)
            cells[f"{NAME} {count} {epsilon}"] = Trials, drawn
    return cells


def regression_rows(found: dict[str, Any], counts: Sequence[int], epsilons: Sequence[float]) -> list[dict[str, Any]]:
    """Rows of `figure_1`, of the two coefficients.

    Parameters
    ----------
    found : dict
        Results of the cells.
    counts, epsilons
        As for `figure_1`.
    """
    rows = []
    for epsilon in epsilons:
        for count in counts:
            made, fisher = found[f"{NAME} {count} {epsilon}"], normal(*found[f"{NAME} {count}"])
            said = {"setting": NAME, "epsilon": epsilon, "count": count, "outside": float(made.outside.mean())}
            for method, ends in (intervals(made) | {"Fisher": fisher}).items():
                rows += scores(said | {"method": method}, ("coef[0]", "coef[1]"), COEF, ends, fisher)
    return rows


def _rows(key: Any, count: int) -> jax.Array:
    keys = jax.random.split(key)
    x = jax.random.uniform(keys[0], (count, len(COEF)), minval=-1.0)
    y = x @ jnp.asarray(COEF) + SCALE * jax.random.normal(keys[1], (count,))
    return jnp.concatenate([x, y[:, None]], axis=1)


def _observed(estimator: Any, key: Any, truth: Any) -> jax.Array:
    keys = jax.random.split(key)
    return estimator.randomize(keys[1], _rows(keys[0], estimator.count))


def _private(count: int, epsilon: float, size: int, draws: int, seed: int) -> Trials:
    made = least_squares(lower=-BOUNDS, upper=BOUNDS, count=count, epsilon=epsilon, intercept=False)
    return trials(made, TRUTH, trials=size, draws=draws, seed=seed, observe=_observed)


def _plain(count: int, size: int, seed: int) -> Plain:
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), size)
        return Plain(*map(np.asarray, _least_squares(keys, count)))


@functools.partial(jax.jit, static_argnames="count")
def _least_squares(keys: jax.Array, count: int) -> Plain:
    def one(key: jax.Array) -> Plain:
        rows = _rows(jax.random.split(jax.random.split(key)[0])[0], count)  # those of the private trial
        x, y = rows[:, :-1], rows[:, -1]
        inverse = jnp.linalg.inv(x.T @ x)
        coef = inverse @ (x.T @ y)
        variance = jnp.sum((y - x @ coef) ** 2) / (count - len(COEF))
        return Plain(coef, jnp.sqrt(variance * jnp.diagonal(inverse)))

    return lax.map(one, keys)
