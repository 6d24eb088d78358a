"""Figures 4 to 6 of [KJKH]: regressions of real tables under local privacy, and the expansion of the sigmoid."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.polynomial import Chebyshev
from numpyro.infer import init_to_median
from scipy import optimize, special, stats

from ldpbayes.data import Release
from ldpbayes.estimation.losses import logistic, squared
from ldpbayes.inference.density import Density
from ldpbayes.mechanisms import (
    LinearRecordsMechanism,
    LinearStatisticsMechanism,
    LogisticRecordsMechanism,
    LogisticStatisticsMechanism,
)
from ldpbayes.privacy import gaussian_scale, linear_sensitivity_bound
from ldpbayes.studies import Checkpoint, ReplicatedFit
from reproductions.splits import Splits, data_file

# tables, with their covariates reduced as in [KJKH] sec. 4.2

ADULT_CATEGORIES = (1, 3, 5, 6, 7, 8, 9, 13)
"""Columns of Adult that hold words; the last one is the income, all others hold numbers."""


def wine(components=6, *, radius=1.0, folder=None):
    """Principal components of 6,497 wines' eleven properties (N, components), and their centred quality (N,).

    The paper says neither how many components it keeps nor how it brings x into a ball: here 95 % of the norms are
    below the radius. Scales and components are of the records themselves and not private, alike for all methods.
    """
    paths = [data_file(f"winequality-{colour}.csv", folder) for colour in ("red", "white")]
    table = np.concatenate([np.loadtxt(path, delimiter=",") for path in paths])
    return _reduced(table[:, :-1], components, radius), table[:, -1] - table[:, -1].mean()


def adult(components=6, *, radius=1.0, folder=None):
    """Principal components of 48,842 answers to the census of 1994, and whether the income is above 50,000 dollars.

    Six columns hold numbers; the other eight become an indicator for each category, "?" included.
    """
    from sklearn.preprocessing import OneHotEncoder

    paths = [data_file(name, folder) for name in ("adult.data", "adult.test")]
    lines = [line.strip().rstrip(".").split(", ") for path in paths for line in path.read_text().splitlines()]
    table = np.array([line for line in lines if len(line) > 1])  # one file has a title, and both end in empty lines
    numbers = [j for j in range(table.shape[1] - 1) if j not in ADULT_CATEGORIES]
    indicators = OneHotEncoder(sparse_output=False).fit_transform(table[:, ADULT_CATEGORIES])
    features = np.concatenate([table[:, numbers].astype(float), indicators], axis=1)
    return _reduced(features, components, radius), (table[:, -1] == ">50K").astype(int)


def _reduced(features, components, radius):
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler

    standard = StandardScaler().fit_transform(features)
    reduced = PCA(components, svd_solver="covariance_eigh").fit_transform(standard)
    return reduced * (radius / np.quantile(np.linalg.norm(reduced, axis=1), 0.95))


# the baseline

CLIP = 1.0
STEPS = 2.0 ** np.arange(-8, 7)
GROUPS = (1.0, 4.0, 16.0, 64.0, 256.0)
"""Step lengths and constants of the group size that the baseline is tried with."""


def ldp_sgd(key, rows, loss, *, parameters, epsilon, delta, steps, group=1.0):
    """The baseline of [KJKH] sec. 4.2: gradient descent from one noisy gradient a user, (replicates, steps, p).

    Users form groups of about group·p·log(p)/ε², in the order of the rows (replicates, N, columns). Each sends the
    gradient of the loss at the current parameters, clipped to norm 1 and with Gaussian noise for (ε, δ) at an L2
    sensitivity of 2. The mean of the t-th group moves the parameters by −step/√t, from zero. The paper gives the
    size of a group up to the constant, and no steps.
    """
    scale, users = gaussian_scale(epsilon, delta, 2 * CLIP), rows.shape[1]
    groups = math.floor(users / min(max(1.0, group * parameters * math.log(parameters) / epsilon**2), users))
    with jax.enable_x64(True):
        keys = jax.random.split(key, len(rows))
        return np.asarray(_descend(loss, groups, parameters, keys, jnp.asarray(rows), scale, jnp.asarray(steps)))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _descend(loss, groups, p, keys, rows, scale, steps):
    size = rows.shape[1] // groups

    def one(key, rows, step):
        grouped = rows[: groups * size].reshape(groups, size, -1)
        # The mean of a group's noises is normal with a standard deviation of scale/√size.
        noise = scale / math.sqrt(size) * jax.random.normal(key, (groups, p))
        lengths = step / jnp.sqrt(1.0 + jnp.arange(groups))

        def update(theta, turn):
            group, perturbation, length = turn
            gradients = jax.vmap(jax.grad(lambda at, row: loss.values(row, at)), (None, 0))(theta, group)
            norms = jnp.linalg.norm(gradients, axis=1, keepdims=True)
            return theta - length * (jnp.mean(gradients / jnp.maximum(norms / CLIP, 1.0), axis=0) + perturbation), None

        return jax.lax.scan(update, jnp.zeros(p), (grouped, noise, lengths))[0]

    return jax.vmap(jax.vmap(one, (None, None, 0)), (0, 0, None))(keys, rows, steps)


# methods: (key, epsilon) → coefficients (replicates, settings tried, 1 + d), the intercept first

PRIOR_VARIANCE = 5.0  # of a coefficient, for the posteriors that are not private


def with_intercept(slopes):
    """Coefficients (..., 1 + d): an intercept of zero before slopes (..., d)."""
    return np.concatenate([np.zeros_like(slopes[..., :1]), slopes], axis=-1)


def _coefficients(sites):
    coefficients = with_intercept(sites["slopes"])
    if "intercept" in sites:
        coefficients[:, 0] = sites["intercept"]
    return coefficients[:, None]


def posterior_means(fit, key, releases):
    """Coefficients at the posterior means, (replicates, 1, 1 + d)."""
    return _coefficients({name: draws.mean(axis=1) for name, draws in fit(key, releases).items()})


def posterior_modes(model, key, releases):
    """Coefficients at the modes of the unconstrained posteriors, by L-BFGS from the priors' medians.

    For as many records as make a chain slow: there a mode is within a posterior standard deviation of the mean.
    """
    with jax.enable_x64(True):
        start, unflatten = ravel_pytree(Density(model, (releases[0],), {}).start(key, init_to_median(num_samples=100)))

        def potential(flat, values):
            return Density(model, (dataclasses.replace(releases[0], values=values),), {}).potential(unflatten(flat))

        slope = jax.jit(jax.value_and_grad(potential))
        modes = []
        for release in releases:
            values = jax.device_put(release.values)
            result = optimize.minimize(
                lambda flat, values=values: tuple(np.asarray(part) for part in slope(flat, values)),
                start,
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": 500},
            )
            modes.append(Density(model, (release,), {}).constrained(unflatten(result.x)))
        return _coefficients({name: np.stack([np.asarray(mode[name]) for mode in modes]) for name in modes[0]})


def linear_coefficients(rows):
    """Posterior means (replicates, 1 + d) under slopes from N(0, 5 I), at the variance of least squares' residuals."""
    means = []
    for x, y in zip(rows[..., :-1], rows[..., -1], strict=True):
        variance = np.mean((y - x @ np.linalg.lstsq(x, y)[0]) ** 2)
        means.append(np.linalg.solve(x.T @ x + variance / PRIOR_VARIANCE * np.eye(x.shape[1]), x.T @ y))
    return with_intercept(np.stack(means))


def logistic_coefficients(rows):
    """Posterior modes (replicates, 1 + d) under slopes from N(0, 5 I), by Newton's method."""
    modes = []
    for x, y in zip(rows[..., :-1], rows[..., -1], strict=True):
        theta = np.zeros(x.shape[1])
        for _ in range(20):
            p = special.expit(x @ theta)
            curvature = x.T @ ((p * (1 - p))[:, None] * x) + np.eye(len(theta)) / PRIOR_VARIANCE
            theta = theta + np.linalg.solve(curvature, x.T @ (y - p) - theta / PRIOR_VARIANCE)
        modes.append(theta)
    return with_intercept(np.stack(modes))


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Methods on the same splits, scored by (predictors, responses) → scores; `best` is numpy's argmin or argmax."""

    splits: Splits
    score_name: str
    score: Callable[[np.ndarray, np.ndarray], np.ndarray]
    best: Callable[[Any], Any]
    non_private: Callable[[np.ndarray], np.ndarray]
    methods: Mapping[str, Callable]

    def table(self, names, epsilons, seed, settings, checkpoint, model):
        """A row for each budget and method, after one for the non-private regression.

        A method that tried several settings has a row for the one that is best at the largest budget, and another,
        "tuned", for the best at its own budget.
        """
        reference = self.non_private(self.splits.train)
        settings = settings | {"table": self.splits.digest, "replicates": len(reference), "seed": seed}
        tried = {}
        with Checkpoint(checkpoint, settings, model) as saved:
            for epsilon in epsilons:
                # One key for all methods: releases of one kind differ by the scale of their noise alone.
                key = jax.random.fold_in(jax.random.key(seed), round(1e6 * epsilon))
                for name in self.methods if names is None else names:
                    cell = f"{epsilon} {name}"
                    if cell not in saved:
                        saved[cell] = self.methods[name](key, epsilon)
                        saved.save()
                    tried[epsilon, name] = saved[cell]
        rows = [{"epsilon": np.inf, "method": "non-private"} | self._row(reference, reference)]
        best = {cell: self._best(coefficients) for cell, coefficients in tried.items()}
        for (epsilon, name), coefficients in tried.items():
            choices = {name: best[max(epsilons), name]}
            if coefficients.shape[1] > 1:
                choices[f"{name}, tuned"] = best[epsilon, name]
            for method, choice in choices.items():
                row = {"epsilon": epsilon, "method": method} | self._row(coefficients[:, choice], reference)
                if coefficients.shape[1] > 1:
                    group, step = np.unravel_index(choice, (len(GROUPS), len(STEPS)))
                    row |= {"group": GROUPS[group], "step": float(STEPS[step])}
                rows.append(row)
        return rows

    def _scores(self, coefficients):
        return self.score(self.splits.predictors(coefficients), self.splits.test[..., -1])

    def _best(self, tried):
        """Index of the setting with the best mean score."""
        return int(self.best([self._scores(tried[:, i]).mean() for i in range(tried.shape[1])]))

    def _row(self, coefficients, reference):
        scores = self._scores(coefficients)
        away = self.splits.predictors(coefficients) - self.splits.predictors(reference)
        distance = np.mean(np.sqrt(np.mean(away**2, axis=1)))
        return {self.score_name: float(scores.mean()), "sd": float(scores.std(ddof=1)), "away": float(distance)}


def _record_releases(key, splits, mechanism):
    """Perturbed records for training, a release a replicate."""
    with jax.enable_x64(True):
        keys = jax.random.split(key, len(splits.train))
        values = [mechanism.randomize(each, rows) for each, rows in zip(keys, splits.train, strict=True)]
        return [Release(np.asarray(each), mechanism) for each in values]


def _total_releases(key, splits, mechanism):
    """Sums of the locally perturbed statistics of the records for training, a release of one a replicate."""
    total = mechanism.total(splits.train.shape[1])
    with jax.enable_x64(True):
        # The sum of the records' noises is normal, and drawn as such.
        sums = np.stack([np.asarray(mechanism.statistics(rows)).sum(axis=0) for rows in splits.train])
        return [Release(value[None], total) for value in np.asarray(total.randomize(key, sums))]


def _descents(key, splits, loss, epsilon, delta):
    """The baseline for all `GROUPS` and `STEPS`."""
    settings = {"parameters": splits.train.shape[-1] - 1, "epsilon": epsilon, "delta": delta, "steps": STEPS}
    estimates = [ldp_sgd(key, splits.train, loss, group=group, **settings) for group in GROUPS]
    return with_intercept(np.concatenate(estimates, axis=1))


def linear_regression_error(
    model,
    covariates,
    response,
    *,
    methods=None,
    epsilons=(0.4, 0.8, 1.6, 4.0),
    delta=1e-5,
    radius=1.0,
    response_bound=2.0,
    split=0.5,
    replicates=30,
    seed=0,
    num_warmup=200,
    num_samples=200,
    checkpoint=None,
):
    """Test errors of linear regressions (Figure 4, with the table `wine`); response and covariates are centred.

    Rows have the ``rmse`` of the posterior mean with its ``sd`` over replicates, and its root mean square distance
    ``away`` from the non-private predictions. Records are clipped where they are released. The methods are

    - "statistics": the posterior given the sum of locally perturbed statistics, with one noise for all as in the paper;
    - "statistics, bound": with as much noise as the bound of Lemma 3.1 asks for, in place of the sensitivity;
    - "statistics, scaled": with noise in proportion to the size of a statistic;
    - "records": the posterior given perturbed records, `split` of whose budget goes to the response;
    - "ldp-sgd", with the step and group constant that are best at the largest budget, and "ldp-sgd, tuned".
    """
    splits = Splits.of(covariates, response, replicates, seed)
    fit = ReplicatedFit(model, num_warmup=num_warmup, num_samples=num_samples)
    bounds = (delta, radius, response_bound, splits.train.shape[-1])

    def unscaled(epsilon):
        return LinearStatisticsMechanism(epsilon, *bounds, ratios=(1.0, 1.0, 1.0), clip=True)

    def bound(epsilon):
        ratio = linear_sensitivity_bound(radius, response_bound) / unscaled(epsilon).sensitivity
        return unscaled(_budget_of(ratio * gaussian_scale(epsilon, delta), epsilon, delta))

    def scaled(epsilon):
        return LinearStatisticsMechanism(epsilon, *bounds, clip=True)

    def perturbed(epsilon):
        return LinearRecordsMechanism(epsilon, *bounds, split=split, clip=True)

    def statistics(mechanism):
        return lambda key, epsilon: posterior_means(fit, key, _total_releases(key, splits, mechanism(epsilon)))

    def records(key, epsilon):
        releases = _record_releases(key, splits, perturbed(epsilon))
        return posterior_means(fit, key, [release.sketch() for release in releases])

    known = {
        "statistics": statistics(unscaled),
        "statistics, bound": statistics(bound),
        "statistics, scaled": statistics(scaled),
        "records": records,
        "ldp-sgd": lambda key, epsilon: _descents(key, splits, squared(intercept=False), epsilon, delta),
    }
    settings = {"bounds": bounds, "split": split, "num_warmup": num_warmup, "num_samples": num_samples}
    comparison = Comparison(splits, "rmse", _root_mean_square_error, np.argmin, linear_coefficients, known)
    return comparison.table(methods, epsilons, seed, settings, checkpoint, (model, Release(None, perturbed(1.0), 10)))


def logistic_regression_auc(
    model,
    covariates,
    response,
    *,
    expansion=None,
    methods=None,
    epsilons=(0.4, 0.8, 1.6, 4.0),
    delta=1e-5,
    radius=1.0,
    split=0.5,
    replicates=30,
    seed=0,
    num_warmup=150,
    num_samples=150,
    checkpoint=None,
):
    """Areas under the curve of logistic regressions of a response 0 or 1 (Figure 5, with the table `adult`).

    Rows and methods are as for `linear_regression_error`, with "records, expansion" for the posterior of the same
    releases under a second model, and ", mode" for the modes of both. The bound of Lemma 13.1 is reached, so there is
    one kind of statistics. All records for training are used, where the paper perturbs 10,000.
    """
    splits = Splits.of(covariates, response, replicates, seed)
    bounds = (delta, radius, splits.train.shape[-1])
    iterations = {"num_warmup": num_warmup, "num_samples": num_samples}
    fit = ReplicatedFit(model, **iterations)

    def perturbed(epsilon):
        return LogisticRecordsMechanism(epsilon, *bounds, split=split, clip=True)

    def statistics(key, epsilon):
        mechanism = LogisticStatisticsMechanism(epsilon, *bounds, ratios=(1.0, 1.0), clip=True)
        return posterior_means(fit, key, _total_releases(key, splits, mechanism))

    def records(name, model, fit):
        def releases(key, epsilon):
            return _record_releases(key, splits, perturbed(epsilon))

        return {
            name: lambda key, epsilon: posterior_means(fit, key, releases(key, epsilon)),
            f"{name}, mode": lambda key, epsilon: posterior_modes(model, key, releases(key, epsilon)),
        }

    known = {
        "statistics": statistics,
        "ldp-sgd": lambda key, epsilon: _descents(key, splits, logistic(intercept=False), epsilon, delta),
        **records("records", model, fit),
    }
    if expansion is not None:
        known |= records("records, expansion", expansion, ReplicatedFit(expansion, **iterations))
    settings = {"bounds": bounds, "split": split} | iterations
    comparison = Comparison(splits, "auc", _area_under_curve, np.argmax, logistic_coefficients, known)
    return comparison.table(methods, epsilons, seed, settings, checkpoint, (model, Release(None, perturbed(1.0), 10)))


def _budget_of(scale, most, delta):
    """The epsilon at which a sensitivity of 1 takes this scale; at most `most`."""

    def excess(log_epsilon):
        return gaussian_scale(math.exp(log_epsilon), delta) - scale

    least = math.log(most)
    while excess(least) < 0:
        least -= 1.0
    return math.exp(optimize.brentq(excess, least, math.log(most) + 1e-9, xtol=1e-13, rtol=1e-13))


def _root_mean_square_error(predictors, y):
    return np.sqrt(np.mean((predictors - y) ** 2, axis=-1))


def _area_under_curve(predictors, y):
    """Probability that a record of class 1 has a larger predictor than one of class 0, ties counted half."""
    ones, count = y.sum(axis=-1), y.shape[-1]
    ranks = np.sum(stats.rankdata(predictors, axis=-1) * y, axis=-1)
    return (ranks - ones * (ones + 1) / 2) / (ones * (count - ones))


# Figure 6

SERIES = 64
"""Degree of the interpolating series; at a half width of 3 its coefficients fall as exp(−asinh(π/3)) = 0.4 does."""

POINTS = np.linspace(-9.0, 9.0, 181)
"""Nodes of the trapezoidal rule for means over a standard normal.

The sigmoid's nearest poles are ±πi. So at a standard deviation s of the predictor the rule's error is of the order
exp(−2π²/(0.1 s)), below 1e-17 up to s = 5; the tails beyond hold 1e-18.
"""


def expansion_error(
    dimensions=(2, 4, 6, 8, 10), orders=(2, 3, 5, 9), *, replicates=50, count=1000, half_width=3.0, noise=1.0, seed=0
):
    """Absolute errors of Chebyshev expansions of the sigmoid, in the setting of [KJKH] supplement 7 (Figure 6).

    Rows have the error of the ``mean`` over records, as in the figure; of the sigmoid at a ``record``; of its mean
    given a ``release`` with normal noise, which the likelihood takes; and the share of such means ``outside`` [0, 1].
    The figure's error is one of sampling: with x also −x may occur, so that without end both means would be 1/2.
    """
    series = Chebyshev.interpolate(special.expit, SERIES, domain=[-half_width, half_width])
    rows = []
    for d in dimensions:
        rng = np.random.default_rng([seed, d])
        root = rng.standard_normal((d, d)) / np.sqrt(d)
        replicated = [ExpandedRecords(rng, root, count, noise) for _ in range(replicates)]
        for order in orders:
            expansion = series.truncate(order + 1)
            errors = np.mean([records.errors(expansion) for records in replicated], axis=0)
            named = zip(("mean", "record", "release", "outside"), errors, strict=True)
            rows.append({"dimension": d, "order": order} | {name: float(value) for name, value in named})
    return rows


class ExpandedRecords:
    """Normal records in the unit ball and slopes of one replicate, with the exact values of the sigmoid."""

    def __init__(self, rng, root, count, noise):
        d = len(root)
        theta = rng.standard_normal(d)
        x = rng.standard_normal((count, d)) @ root.T
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
        z = x + noise * rng.standard_normal((count, d))
        # x | z is normal with mean Gz and covariance noise² G, where G = S (S + noise²)⁻¹.
        second = x.T @ x / count
        gain = np.linalg.solve(second + noise**2 * np.eye(d), second).T
        self.deviation = noise * np.sqrt(theta @ gain @ theta)
        self.at_records, self.given_release = x @ theta, (z @ gain.T @ theta)[:, None]
        self.sigmoids = special.expit(self.at_records)
        self.means = self._mean(special.expit)

    def _mean(self, function):
        weights = np.exp(-0.5 * POINTS**2)
        return function(self.given_release + self.deviation * POINTS) @ (weights / weights.sum())

    def errors(self, expansion):
        """Errors of the mean, at records, given releases; and the share of means outside [0, 1]."""
        difference, means = expansion(self.at_records) - self.sigmoids, self._mean(expansion)
        outside = (means < 0) | (means > 1)
        errors = abs(np.mean(difference)), np.mean(np.abs(difference)), np.mean(np.abs(means - self.means))
        return [float(value) for value in (*errors, np.mean(outside))]
