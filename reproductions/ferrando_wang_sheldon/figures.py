"""Figures 1 to 3 and the appendix of [FWS]: coverage, bias and width of bootstrap intervals and of their rivals.

A figure is a list of rows, one a point, parameter and method ("percentile", "pivotal", "log", "private Fisher", and
"Fisher", which is not private), with what `report.scores` says of it; `report.table` prints them. All points of a
setting have the same random numbers, so that chance moves neighbouring points alike.
"""

import functools
import math
import types
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from scipy import stats

from ldpbayes.bootstrap import (
    BootstrapWarning,
    Matched,
    NormalMean,
    Poisson,
    least_squares,
    one_posterior_sample,
    sufficient_statistics,
)
from reproductions.ferrando_wang_sheldon.baselines import subsample_and_aggregate
from reproductions.ferrando_wang_sheldon.report import scores
from reproductions.ferrando_wang_sheldon.trials import (
    FAMILIES,
    MULTIVARIATE,
    TAILS,
    NonPrivate,
    Trials,
    intervals,
    normal_interval,
    replicates_at,
    run_cells,
    run_trials,
    settings_of,
    without_privacy,
)

COUNTS = (50, 100, 300, 1000, 3000, 10_000)
NORMAL_MEAN = "Gaussian, known variance"

REGRESSION = "linear regression"
COEF = np.array([1.0, -0.5])
SCALE = 0.5
BOUNDS = np.array([1.0, 1.0, 3.5])  # of |x1|, |x2| and |y|; that of y is beyond four standard deviations of its error


def flat_truth(setting):
    """Flat true parameters and their names, such as ``covariance_matrix[0,1]``."""
    names = []
    for name, value in sorted(setting.truth.items()):
        indices = [",".join(map(str, index)) for index in np.ndindex(np.shape(value))]
        names += [f"{name}[{index}]" for index in indices] if np.shape(value) else [name]
    return ravel_pytree(dict(setting.truth))[0], names


def rows_of(label, names, truth, methods, fisher):
    """Rows of a point, for each method and for the intervals without privacy."""
    return [
        row
        for method, ends in (methods | {"Fisher": fisher}).items()
        for row in scores(label | {"method": method}, names, truth, ends, fisher)
    ]


# Figure 1


def figure_1(
    *,
    families=(*FAMILIES, REGRESSION),
    counts=COUNTS,
    epsilons=(0.5, 1.0),
    trials=1000,
    replicates=1000,
    account_for_clamping=False,
    seed=0,
    workers=2,
    checkpoint=None,
):
    """Coverage against the number of records: exponential families and linear regression, with Laplace noise.

    Bounds of families are the range of 1,000 other records of the same law. Estimates that are not private are of the
    same records, not clamped.
    """
    settings = settings_of([name for name in families if name != REGRESSION])
    cells = family_cells(settings, counts, epsilons, trials, replicates, account_for_clamping, seed)
    if REGRESSION in families:
        cells |= regression_cells(counts, epsilons, trials, replicates, seed)
    study = {"trials": trials, "replicates": replicates, "seed": seed, "account_for_clamping": account_for_clamping}
    results = run_cells(cells, study, checkpoint, workers)
    rows = family_rows(results, settings, counts, epsilons, {})
    return rows + (regression_rows(results, counts, epsilons) if REGRESSION in families else [])


def family_cells(settings, counts, epsilons, trials, replicates, account_for_clamping, seed):
    """Cells for `run_cells`, one without privacy for each count and one for each budget."""
    cells = {}
    size = {"trials": trials, "seed": seed}
    for name, setting in settings.items():
        clamped, whole = setting.clamped(seed), setting.unclamped()
        for count in counts:
            cells[f"{name} {count}"] = (
                NonPrivate,
                functools.partial(without_privacy, whole, setting.truth, count, **size),
            )
            for epsilon in epsilons:
                cell = functools.partial(
                    _family_trials, clamped, setting.truth, count, epsilon, account_for_clamping, replicates, **size
                )
                cells[f"{name} {count} {epsilon}"] = Trials, cell
    return cells


def _family_trials(family, truth, count, epsilon, account_for_clamping, draws, **size):
    estimator = sufficient_statistics(family, count=count, epsilon=epsilon, account_for_clamping=account_for_clamping)
    return run_trials(estimator, truth, draws=draws, **size)


def family_rows(results, settings, counts, epsilons, label):
    """Rows of the cells of `family_cells`, all with this label."""
    rows = []
    for name, setting in settings.items():
        truth, names = flat_truth(setting)
        for epsilon in epsilons:
            for count in counts:
                trials, fisher = results[f"{name} {count} {epsilon}"], normal_interval(*results[f"{name} {count}"])
                point = {**label, "setting": name, "epsilon": epsilon, "count": count}
                point["outside"] = float(trials.outside.mean())
                rows += rows_of(point, names, truth, intervals(trials, setting.positive), fisher)
    return rows


def regression_cells(counts, epsilons, trials, replicates, seed):
    """Two regressors uniform on [−1, 1], no intercept (as in the paper), normal errors; bounds are known."""
    cells = {}
    for count in counts:
        cells[f"{REGRESSION} {count}"] = NonPrivate, functools.partial(_least_squares_trials, count, trials, seed)
        for epsilon in epsilons:
            cell = functools.partial(_regression_trials, count, epsilon, trials, replicates, seed)
            cells[f"{REGRESSION} {count} {epsilon}"] = Trials, cell
    return cells


def regression_rows(results, counts, epsilons):
    """Rows of the two coefficients."""
    rows = []
    for epsilon in epsilons:
        for count in counts:
            trials = results[f"{REGRESSION} {count} {epsilon}"]
            fisher = normal_interval(*results[f"{REGRESSION} {count}"])
            point = {"setting": REGRESSION, "epsilon": epsilon, "count": count, "outside": float(trials.outside.mean())}
            rows += rows_of(point, ("coef[0]", "coef[1]"), COEF, intervals(trials), fisher)
    return rows


def _regression_records(key, count):
    keys = jax.random.split(key)
    x = jax.random.uniform(keys[0], (count, len(COEF)), minval=-1.0)
    y = x @ jnp.asarray(COEF) + SCALE * jax.random.normal(keys[1], (count,))
    return jnp.concatenate([x, y[:, None]], axis=1)


def _regression_release(estimator, key, truth):
    keys = jax.random.split(key)
    return estimator.randomize(keys[1], _regression_records(keys[0], estimator.count))


def _regression_trials(count, epsilon, trials, draws, seed):
    estimator = least_squares(lower=-BOUNDS, upper=BOUNDS, count=count, epsilon=epsilon, intercept=False)
    truth = {"coef": COEF, "scale": SCALE}
    return run_trials(estimator, truth, trials=trials, draws=draws, seed=seed, release=_regression_release)


def _least_squares_trials(count, trials, seed):
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), trials)
        return NonPrivate(*map(np.asarray, _least_squares(keys, count)))


@functools.partial(jax.jit, static_argnames="count")
def _least_squares(keys, count):
    def one(key):
        rows = _regression_records(jax.random.split(jax.random.split(key)[0])[0], count)  # those of the private trial
        x, y = rows[:, :-1], rows[:, -1]
        inverse = jnp.linalg.inv(x.T @ x)
        coef = inverse @ (x.T @ y)
        variance = jnp.sum((y - x @ coef) ** 2) / (count - len(COEF))
        return NonPrivate(coef, jnp.sqrt(variance * jnp.diagonal(inverse)))

    return lax.map(one, keys)


# Figure 2

RANGES = {"Bernoulli": (0.02, 0.98), "Poisson": (2.0, 30.0), "exponential": (0.1, 2.5), NORMAL_MEAN: (-3.0, 5.0)}
"""Families with conjugate priors, and the known range of the parameter."""

CLAMPED = {
    "Poisson": (tuple(map(float, (6, 7, 8, 9, 10, 12, 14))), lambda high: Poisson(int(high)), stats.poisson(8.0)),
    NORMAL_MEAN: (tuple(map(float, range(7))), lambda high: NormalMean(2.0, -7.0, high), stats.norm(1.0, 2.0)),
}
"""Thresholds above which records are clamped, families with such a bound, and laws of records."""


class Corrected(NamedTuple):
    """Corrected estimates (trials, p) and their percentile intervals."""

    estimate: Any
    low: Any
    high: Any


def figure_2(
    *,
    counts=COUNTS,
    epsilons=(0.5, 1.0),
    families=tuple(RANGES),
    clamped=1000,
    thresholds=None,
    trials=1000,
    replicates=1000,
    seed=0,
    workers=2,
    checkpoint=None,
):
    """One posterior sample; and Poisson and normal records that are clamped on the right, with their bias corrected.

    Part "posterior sample" is coverage against the number of records, of `families`. Part "bias correction" is bias and
    coverage against the threshold, for `clamped` records at ε = 1, at `thresholds` by setting (by default those of
    `CLAMPED`); its rows have the ``threshold``, the share of records ``beyond`` it, and the share of the clamping bias
    that a correction ``removed``.
    """
    if thresholds is None:
        thresholds = {name: of_setting for name, (of_setting, _, _) in CLAMPED.items()}
    cells = {}
    size = {"trials": trials, "seed": seed}
    for name in families:
        setting = FAMILIES[name]
        for count in counts:
            plain = functools.partial(without_privacy, setting.unclamped(), setting.truth, count, **size)
            cells[f"{name} {count}"] = NonPrivate, plain
            for epsilon in epsilons:
                cell = functools.partial(_posterior_sample_trials, name, count, epsilon, replicates, **size)
                cells[f"{name} {count} {epsilon}"] = Trials, cell
    for name, asked in thresholds.items():
        setting, (_, family, _) = FAMILIES[name], CLAMPED[name]
        plain = functools.partial(without_privacy, setting.unclamped(), setting.truth, clamped, **size)
        cells[f"{name} not clamped"] = NonPrivate, plain
        for threshold in asked:
            at, bounded = f"{name} clamped at {threshold}", family(threshold)
            for accounting in (False, True):
                cells[f"{at} {accounting}"] = (
                    Trials,
                    functools.partial(
                        _family_trials, bounded, setting.truth, clamped, 1.0, accounting, replicates, **size
                    ),
                )
            matched = functools.partial(_matched_trials, bounded, setting.truth, clamped, replicates, **size)
            cells[f"{at} matched"] = Corrected, matched
    study = {"trials": trials, "replicates": replicates, "seed": seed, "clamped": clamped}
    results = run_cells(cells, study, checkpoint, workers)
    settings = {name: FAMILIES[name] for name in families}
    rows = family_rows(results, settings, counts, epsilons, {"part": "posterior sample"})
    return rows + _clamped_rows(results, clamped, thresholds)


def _clamped_rows(results, clamped, thresholds):
    rows = []
    for name, asked in thresholds.items():
        (truth, names), law = flat_truth(FAMILIES[name]), CLAMPED[name][2]
        fisher = normal_interval(*results[f"{name} not clamped"])
        for threshold in asked:
            at = f"{name} clamped at {threshold}"
            trials, accounted = results[f"{at} False"], intervals(results[f"{at} True"])
            bias, plain = trials.mean - trials.estimate, intervals(trials)
            methods = {
                "percentile": plain["percentile"],
                "pivotal": plain["pivotal"],
                "one step": (trials.estimate - bias, *(end - 2 * bias for end in np.moveaxis(trials.quantiles, 1, 0))),
                "matched": results[f"{at} matched"],
                "accounted for, percentile": accounted["percentile"],
                "accounted for, pivotal": accounted["pivotal"],
            }
            point = {"part": "bias correction", "setting": name, "epsilon": 1.0, "count": clamped}
            point |= {"threshold": threshold, "beyond": float(law.sf(threshold))}
            # The estimates without clamping and noise have no bias but that of these trials.
            clamping = np.mean(trials.estimate) - np.mean(fisher[0])
            for method, ends in (methods | {"Fisher": fisher}).items():
                left = np.mean(ends[0]) - np.mean(fisher[0])
                label = point | {"method": method, "removed": float(1 - abs(left) / abs(clamping))}
                rows += scores(label, names, truth, ends, fisher)
    return rows


def _posterior_sample_trials(name, count, epsilon, draws, **size):
    setting, (low, high) = FAMILIES[name], RANGES[name]
    family = setting.clamped(size["seed"])
    estimator = one_posterior_sample(family, count=count, epsilon=epsilon, lower=low, upper=high)
    return run_trials(estimator, setting.truth, draws=draws, **size)


def _matched_trials(family, truth, count, draws, *, trials, seed):
    """`Matched` corrects on the host, one trial after the other, with the random numbers of `run_trials`."""
    estimator = sufficient_statistics(family, count=count, epsilon=1.0)
    results = []
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore", BootstrapWarning)  # a correction that has not settled counts as it is
        for key in jax.random.split(jax.random.key(seed), trials):
            params, keys = _first_estimate(estimator, truth, key, draws)
            run = functools.partial(_replicates, estimator, keys=keys)
            replication = types.SimpleNamespace(estimator=estimator, report=estimator.target, replicates=run)
            estimate, replicates = Matched().corrected(replication, params)
            ends = (np.nanquantile(replicates.target, tail, axis=0, method="weibull") for tail in TAILS)
            results.append((estimate, *ends))
    return Corrected(*map(np.stack, zip(*results, strict=True)))


_replicates = jax.jit(replicates_at)


@functools.partial(jax.jit, static_argnames="draws")
def _first_estimate(estimator, truth, key, draws):
    data, boot = jax.random.split(key)
    return estimator.estimate(estimator.simulate_release(data, truth)).params, jax.random.split(boot, draws)


# Figure 3

BLOCKS = {"√n blocks": lambda count: max(2, math.isqrt(count)), "n/5 blocks": lambda count: max(2, count // 5)}


def figure_3(*, counts=COUNTS, epsilons=(0.5, 1.0), trials=1000, replicates=1000, seed=0, workers=2, checkpoint=None):
    """The mean of normal records by the bootstrap and by subsample and aggregate, with equal bounds and budgets.

    Blocks are √n or n/5; half of their budget is for the mean. The bounds of records are those of the mean too.
    """
    setting = FAMILIES[NORMAL_MEAN]
    family = setting.clamped(seed)
    size = {"trials": trials, "seed": seed}
    cells = {}
    for count in counts:
        plain = functools.partial(without_privacy, setting.unclamped(), setting.truth, count, **size)
        cells[f"{count}"] = NonPrivate, plain
        for epsilon in epsilons:
            at = f"{count} {epsilon}"
            private = functools.partial(
                _family_trials, family, setting.truth, count, epsilon, False, replicates, **size
            )
            cells[at] = Trials, private
            for kind, blocks in BLOCKS.items():
                aggregate = functools.partial(_aggregate_trials, family, count, epsilon, blocks(count), **size)
                cells[f"{at} {kind}"] = NonPrivate, aggregate
    study = {"trials": trials, "replicates": replicates, "seed": seed}
    results = run_cells(cells, study, checkpoint, workers)
    (truth, names), rows = flat_truth(setting), []
    for epsilon in epsilons:
        for count in counts:
            at, fisher = f"{count} {epsilon}", normal_interval(*results[f"{count}"])
            methods = {"bootstrap": intervals(results[at])["percentile"]}
            methods |= {f"aggregate, {kind}": normal_interval(*results[f"{at} {kind}"]) for kind in BLOCKS}
            rows += rows_of({"setting": NORMAL_MEAN, "epsilon": epsilon, "count": count}, names, truth, methods, fisher)
    return rows


def _aggregate_trials(family, count, epsilon, blocks, *, trials, seed):
    estimator = subsample_and_aggregate(
        jnp.mean, lower=family.lower, upper=family.upper, count=count, blocks=blocks, epsilon=epsilon
    )

    def one(key):
        data, noise = jax.random.split(key)
        records = family.distribution(dict(FAMILIES[NORMAL_MEAN].truth)).sample(data, (count,))
        estimate = estimator.randomize(noise, records)
        return NonPrivate(estimate["theta"][None], estimate["standard_error"][None])

    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), trials)
        return NonPrivate(*map(np.asarray, jax.jit(lambda keys: lax.map(one, keys))(keys)))


# the appendix

TRIED = ("Poisson", NORMAL_MEAN, "Gaussian", "gamma, known shape")


def appendix(
    *,
    trials=1000,
    replicates=1000,
    families=TRIED,
    epsilons=(0.1, 0.3, 1.0, 3.0, 10.0),
    counts=(1000, 10_000, 100_000, 1_000_000),
    multivariate=(100, 300, 1000),
    seed=0,
    workers=2,
    checkpoint=None,
):
    """Coverage against the budget at n = 1,000; widths against n at ε = 1; and a bivariate normal law.

    Widths are shown with and without accounting for clamping: where there are many records, bounds that clamp one in a
    thousand bias more than the standard error. `checkpoint` has a path for each part.
    """
    paths = checkpoint or {}
    study = {"trials": trials, "replicates": replicates, "seed": seed}
    settings, rows = settings_of(families), []
    parts = {
        "budgets": ((1000,), epsilons, False),
        "widths": (counts, (1.0,), False),
        "widths, clamping accounted for": (counts, (1.0,), True),
    }
    for name, (sizes, budgets, accounting) in parts.items():
        cells = family_cells(settings, sizes, budgets, trials, replicates, accounting, seed)
        results = run_cells(cells, study, paths.get(name), workers)
        rows += family_rows(results, settings, sizes, budgets, {"part": name})
    cells = {}
    for count in multivariate:
        cells[f"{count}"] = NonPrivate, functools.partial(_multivariate_without_privacy, count, trials, seed)
        for epsilon in (0.5, 1.0):
            cells[f"{count} {epsilon}"] = (
                Trials,
                functools.partial(
                    _family_trials,
                    MULTIVARIATE.clamped(seed),
                    dict(MULTIVARIATE.truth),
                    count,
                    epsilon,
                    False,
                    replicates,
                    trials=trials,
                    seed=seed,
                ),
            )
    return rows + _multivariate_rows(run_cells(cells, study, paths.get("multivariate normal"), workers), multivariate)


def _multivariate_rows(results, counts):
    truth, names = flat_truth(MULTIVARIATE)
    once = np.array([j for j, name in enumerate(names) if name != "covariance_matrix[1,0]"])
    rows = []
    for epsilon in (0.5, 1.0):
        for count in counts:
            trials, fisher = results[f"{count} {epsilon}"], normal_interval(*results[f"{count}"])
            with jax.enable_x64(True):
                error = np.asarray(jax.vmap(functools.partial(_multivariate_errors, count=count))(trials.estimate))
            methods = intervals(trials) | {"private Fisher": normal_interval(trials.estimate, error)}
            point = {"part": "multivariate normal", "setting": "bivariate normal", "epsilon": epsilon, "count": count}
            point["outside"] = float(trials.outside.mean())
            methods = {method: [np.asarray(part)[:, once] for part in ends] for method, ends in methods.items()}
            whole = [np.asarray(part)[:, once] for part in fisher]
            rows += rows_of(point, [names[j] for j in once], truth[once], methods, whole)
    return rows


def _multivariate_errors(flat, count):
    """Standard errors of covariances and means by the Fisher information: (σ_jj σ_kk + σ_jk²)/n, and σ_jj/n."""
    size = len(MULTIVARIATE.truth["loc"])
    covariance = flat[: size**2].reshape(size, size)
    variances = jnp.diagonal(covariance)
    of_covariance = variances[:, None] * variances[None] + covariance**2
    return jnp.sqrt(jnp.concatenate([of_covariance.ravel(), variances]) / count)


def _multivariate_without_privacy(count, trials, seed):
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), trials)
        return NonPrivate(*map(np.asarray, _multivariate_estimates(dict(MULTIVARIATE.truth), keys, count)))


@functools.partial(jax.jit, static_argnames="count")
def _multivariate_estimates(truth, keys, count):
    root = jnp.linalg.cholesky(truth["covariance_matrix"])

    def one(key):
        rows = truth["loc"] + jax.random.normal(key, (count, len(root)), root.dtype) @ root.T
        mean = jnp.mean(rows, axis=0)
        flat = jnp.concatenate([((rows - mean).T @ (rows - mean) / count).ravel(), mean])
        return NonPrivate(flat, _multivariate_errors(flat, count))

    return lax.map(one, keys)
