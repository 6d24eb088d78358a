"""A posterior of many shares, of which most are zero: estimates shrunk by a prior that is fitted to all of them."""

import dataclasses
import functools
import math
from collections.abc import Callable
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import ArrayLike
from scipy import special

from ldpbayes._core.checks import ONE_INSIDE_0_1, at_least, checked
from ldpbayes._core.types import Array
from ldpbayes.estimation._frequencies import SUMMARY_CATEGORIES
from ldpbayes.estimation.estimates import Estimate, cells, table
from ldpbayes.numerics.arrays import evenly_spaced
from ldpbayes.numerics.minimise import likeliest_shares

LEAST_SCALE, STEP = 0.5, math.sqrt(2)  # the least mean of a component in standard errors, and that over the one before
WIDTH = 0.2  # standard deviation of a component over its mean
PSEUDO_ZEROS = 9.0  # shares of 0 that are added to the likelihood of the weights, as by [Stephens]
MOST_CORRELATION = 0.2  # between the errors of two shares, below which they count as independent
ENTRIES_AT_ONCE = 1 << 22  # probabilities of components that are held at a time
FITTED = 1 << 16  # estimates to which a prior is fitted, of the largest and of the others
BURN_IN = 200  # sweeps of the Gibbs sampler that are not kept
HALVINGS = 40


class SparsePrior(NamedTuple):
    """A prior law of a share: 0 with probability `weights[0]`, else from one of the normal laws with means `scales`
    (components,) and standard deviations of a fifth of them, truncated at 0, by the other `weights` (1 + components,).
    """

    scales: Array
    weights: Array

    def components(self, centre: Array, error: Array, xp: Any = np) -> tuple[Array, Array, Array]:
        """Of a share with a normal estimate: logs of posterior weights (..., 1 + components), not normed; and standard
        deviations (..., components) and means in these of normal laws, which are the components if truncated at 0.
        """
        log_ndtr = special.log_ndtr if xp is np else jax.scipy.special.log_ndtr
        centre, error, width = centre[..., None], error[..., None], WIDTH * self.scales
        total = xp.hypot(error, width)
        sd = error * width / total
        mean = (centre / error**2 + self.scales / width**2) * sd
        density = xp.log(error / total) + (centre / error) ** 2 / 2 - ((centre - self.scales) / total) ** 2 / 2
        density += log_ndtr(mean) - math.log(special.ndtr(1 / WIDTH))  # over that of 0
        return xp.log(self.weights) + xp.concatenate([xp.zeros_like(density[..., :1]), density], axis=-1), sd, mean

    @classmethod
    def fitted(cls, centre: np.ndarray, error: np.ndarray) -> "SparsePrior":
        """The most likely weights, as [Stephens] has them, on a geometric grid of scales from half of an error on."""
        least = LEAST_SCALE * error.min()
        number = 1 + math.ceil(math.log(max(centre.max(), error.max()) / least) / math.log(STEP))
        scales = least * STEP ** np.arange(number)
        # of many estimates all of the largest, and of the others evenly spaced ones for all
        order = np.argsort(centre / error)
        some = evenly_spaced(order[:-FITTED], FITTED)
        kept = np.concatenate([some, order[-FITTED:]])
        logs = cls(scales, np.ones(1 + number)).components(centre[kept], error[kept])[0]
        rows = np.vstack([np.exp(logs - logs.max(axis=1, keepdims=True)), np.eye(1, 1 + number)])
        count = np.append(np.ones(len(kept)), PSEUDO_ZEROS)
        count[: len(some)] = (len(centre) - FITTED) / max(len(some), 1)
        total = count.sum()

        def mass(weights: np.ndarray) -> np.ndarray:
            return np.maximum(rows @ weights, 1e-100)

        def likelihood(weights: np.ndarray) -> tuple[float, np.ndarray]:
            return count @ np.log(mass(weights)) / total, (count / mass(weights)) @ rows / total

        def information(weights: np.ndarray) -> np.ndarray:
            scaled = rows * (np.sqrt(count / total) / mass(weights))[:, None]
            return scaled.T @ scaled

        return cls(scales, likeliest_shares(likelihood, information, 1 + number, total, 1e-3, 200).theta)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SparseEstimate(Estimate):
    """The posterior law of each share, made by `sparse_posterior`: an `Estimate` with these attributes and methods.

    - ``params``, ``standard_error`` (d,): posterior means and standard deviations; `interval` has posterior quantiles;
    - ``prior``: the `SparsePrior`; ``correlated``: whether correlations of the estimates were used;
    - `above`, `q_values`, `discoveries`: which shares are above a threshold.

    There is no joint law of several shares, so that `contrast` and `transform` raise ValueError.
    """

    prior: SparsePrior
    names: list[str]
    privacy: str
    _centres: np.ndarray  # (draws, d): the law of a share is the mean of those given normal estimates here
    _error: np.ndarray  # (d,): with these errors

    covariance = None
    estimate = property(lambda self: self._moments[0])
    params = property(attrgetter("estimate"), doc="Posterior means (d,).")
    standard_error = property(lambda self: self._moments[1], doc="Posterior standard deviations (d,).")
    correlated = property(lambda self: len(self._centres) > 1)
    _moments = cached_property(lambda self: self._of_laws(_moments))
    _title = property(
        lambda self: f"Sparse posterior of {len(self._error)} shares, {self.prior.weights[0]:.4g} of which are 0"
    )

    def above(self, threshold: float = 0.0) -> np.ndarray:
        """Return the posterior probability (d,) that each share is above a `threshold`, at least 0 (default)."""
        threshold = checked("threshold", threshold, "a number of at least 0", lambda a: (a >= 0) & np.isfinite(a))
        return self._of_laws(functools.partial(_above, threshold))

    def q_values(self, threshold: float = 0.0) -> np.ndarray:
        """Return for each share (d,) the expected portion of shares at or below the `threshold` among all that are
        above it with at least the same probability.
        """
        false = 1 - self.above(threshold)
        order, result = np.argsort(false, kind="stable"), np.empty_like(false)
        result[order] = np.cumsum(false[order]) / np.arange(1, len(false) + 1)
        return result

    def discoveries(self, fdr: float = 0.1, threshold: float = 0.0) -> np.ndarray:
        """Return the codes of as many categories as possible, the surest first, of which an expected portion of at most
        `fdr` (false discovery rate, default 0.1) have shares at or below the `threshold`.
        """
        fdr, rates = checked("fdr", fdr, *ONE_INSIDE_0_1), self.q_values(threshold)
        order = np.argsort(rates, kind="stable")
        return order[: np.searchsorted(rates[order], fdr, side="right")]

    def summary(self, level: float = 0.95) -> str:
        """Return a table as text, of the 40 largest posterior means, with intervals of probability `level` (0.95)."""
        shown = np.sort(np.argsort(-self.params, kind="stable")[:SUMMARY_CATEGORIES])
        few = dataclasses.replace(
            self,
            names=[self.names[code] for code in shown],
            _centres=self._centres[:, shown],
            _error=self._error[shown],
        )
        columns = {"mean": few.params, "sd": few.standard_error, "P(> 0)": few.above()} | few._ends(level)
        return table(self._title, few.names, cells(columns))

    def _quantile(self, probability: float) -> np.ndarray:
        return self._of_laws(functools.partial(_quantile, probability))

    def _variances(self, weights: np.ndarray) -> np.ndarray:
        raise ValueError("a sparse posterior has no joint law of several shares; use the estimate it was made from")

    def _of_laws(self, function: Callable[..., np.ndarray]) -> np.ndarray:
        """A function of posterior weights, each over the probability of its normal law to be above 0, and of the laws'
        standard deviations, and means in these, all (draws, n, components), for some shares at a time.
        """
        size, parts = max(1, ENTRIES_AT_ONCE // (len(self._centres) * len(self.prior.weights))), []
        for start in range(0, len(self._error), size):
            some = slice(start, start + size)
            with np.errstate(divide="ignore"):
                logs, sd, mean = self.prior.components(self._centres[:, some], self._error[some])
            # where no estimate is, that far below 0, probabilities are at least those of double precision
            weights = special.softmax(logs, axis=-1)[..., 1:] * np.exp(-np.maximum(special.log_ndtr(mean), -600))
            parts.append(function(weights, sd, mean))
        return np.concatenate(parts, axis=-1)


def _above(threshold: ArrayLike, weights: np.ndarray, sd: np.ndarray, mean: np.ndarray) -> np.ndarray:
    return np.sum(weights * special.ndtr(mean - np.asarray(threshold)[..., None] / sd), axis=-1).mean(axis=0)


def _moments(weights: np.ndarray, sd: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Means and standard deviations (2, n)."""
    tail, density = special.ndtr(mean), np.exp(-(mean**2) / 2) / math.sqrt(2 * math.pi)
    first = mean * tail + density
    parts = sd * first, sd**2 * (tail + mean * first)
    average, square = (np.sum(weights * part, axis=-1).mean(axis=0) for part in parts)
    return np.stack([average, np.sqrt(np.maximum(square - average**2, 0))])


def _quantile(probability: float, weights: np.ndarray, sd: np.ndarray, mean: np.ndarray) -> np.ndarray:
    high = np.max(sd * (10 + np.maximum(mean, 0)), axis=(0, 2))
    low = np.zeros_like(high)
    zero = _above(low, weights, sd, mean) <= 1 - probability
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        beyond = _above(middle, weights, sd, mean) > 1 - probability
        low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
    return np.where(zero, 0.0, high)


def sparse_posterior(
    estimate: Estimate,
    *,
    prior: SparsePrior | None = None,
    correlated: bool | None = None,
    draws: int = 500,
    seed: int = 0,
) -> SparseEstimate:
    """Shrink estimated shares of many categories, most of which are 0 or rare, to posterior laws of the shares.

    The estimate of each share is taken as normal, with its standard error. The prior law of a share is 0 with some
    probability, and otherwise a mixture of normal laws above 0. Its weights are the most likely ones for all estimates
    (empirical Bayes, [Stephens]), so that posteriors ignore how uncertain the weights are, which matters for few
    categories. That shares sum to 1 is used only to centre estimates whose covariance is estimated from the records,
    such as those of `frequencies` under a pure protocol.

    Parameters
    ----------
    estimate : Estimate
        Shares with standard errors, such as those of `frequencies` by its default method.
    prior : SparsePrior, optional
        Means of the normal laws, and weights. Default: means from half of the least standard error on, doubled in two
        steps up to the largest estimate, with fitted weights. Much smaller shares count as 0.
    correlated : bool, optional
        True to use the correlations of estimates, by a Gibbs sampler. If False, the posterior of each share is that
        given its own estimate: this is valid, too, but less is known. Default: True for up to 4096 shares with a
        correlation beyond ±0.2, but not under a pure protocol: its correlations are weak, and estimated from the
        records, of which there must be hundreds for each category.
    draws, seed : int
        Sweeps of the Gibbs sampler (500), after 200 others, and the seed of its random numbers (0).

    Examples
    --------
    >>> import ldpbayes as ldp
    >>> release = ldp.Release([0] * 60 + [1, 2, 3, 4] * 10, ldp.RandomizedResponse(epsilon=2.0, categories=5))
    >>> ldp.estimation.sparse_posterior(ldp.frequencies(release)).discoveries(fdr=0.05).tolist()
    [0]
    """
    if not isinstance(estimate, Estimate):
        raise TypeError(f"estimate must be an Estimate, such as that of frequencies, got {type(estimate).__name__}")
    draws = at_least(1, "draws", draws)
    centre = checked("estimate", estimate.params, "finite numbers", np.isfinite)
    error = np.full(1, np.nan) if estimate.standard_error is None else np.asarray(estimate.standard_error)
    if not np.all((error > 0) & np.isfinite(error)):
        raise ValueError("a sparse posterior needs a positive standard error of each share; use method='unbiased'")
    sampled = estimate.of_sampled_shares
    covariance = None if correlated is False or (sampled and correlated is None) else estimate.covariance
    if correlated and covariance is None:
        raise ValueError("correlated=True needs the covariance of the estimates, which there is for up to 4096 of them")
    if covariance is not None and correlated is None:
        spread = np.sqrt(np.diagonal(covariance))
        largest = np.max(np.abs(covariance / np.outer(spread, spread) - np.eye(len(spread))))
        covariance = covariance if largest > MOST_CORRELATION else None
    if covariance is None and sampled:
        centre = centre - (centre.sum() - 1) / len(centre)  # without the error that all shares have in common
    prior = SparsePrior.fitted(centre, error) if prior is None else _checked_prior(prior)
    centres = centre[None]
    if covariance is not None:
        precision = _inverse(np.asarray(covariance))
        with jax.enable_x64(True):
            centres = np.asarray(_sweeps(jax.random.key(seed), centre, precision, prior, draws))[BURN_IN:]
        error = np.diagonal(precision) ** -0.5
    return SparseEstimate(prior, estimate.names, estimate.privacy, centres, error)


def _checked_prior(prior: SparsePrior) -> SparsePrior:
    scales = np.atleast_1d(checked("scales", prior.scales, "positive and finite", lambda a: (a > 0) & np.isfinite(a)))
    weights = checked("weights", prior.weights, "at least 0", lambda a: a >= 0)
    if np.shape(weights) != (len(scales) + 1,) or abs(np.sum(weights) - 1) > 1e-9:
        raise ValueError(f"weights must be {len(scales) + 1} numbers with sum 1, for 0 and each scale, got {weights}")
    return SparsePrior(scales, weights)


def _inverse(covariance: np.ndarray) -> np.ndarray:
    """The precision; a combination of shares without error, such as their sum, gets the mean variance of all others."""
    values, vectors = np.linalg.eigh(covariance)
    values = np.where(values < 1e-9 * values[-1], values.mean(), values)
    return (vectors / values) @ vectors.T


@functools.partial(jax.jit, static_argnames="draws")
def _sweeps(key: Array, centre: Array, precision: Array, prior: SparsePrior, draws: int) -> jax.Array:
    """For each sweep of a Gibbs sampler and each share, the normal estimate of the share, given all other shares."""
    error = jnp.diagonal(precision) ** -0.5
    size = (len(centre), len(prior.weights))

    def sweep(state: tuple, key: jax.Array) -> tuple[tuple, jax.Array]:
        first, second = jax.random.split(key)
        choice, law = jax.random.gumbel(first, size), jax.random.uniform(second, size[:1], minval=1e-300)

        def update(k: jax.Array, state: tuple) -> tuple:
            theta, pull, centres = state
            here = theta[k] + pull[k] * error[k] ** 2
            logs, *laws = prior.components(here, error[k], jnp)
            chosen = jnp.argmax(logs + choice[k])
            sd, mean = (part[jnp.maximum(chosen - 1, 0)] for part in laws)
            upper = law[k] * jax.scipy.special.ndtr(mean)  # the truncated law, by its tail; exponential far from it
            steps = jnp.where(mean < -30, jnp.log(law[k]) / mean, mean - jax.scipy.special.ndtri(upper))
            new = jnp.where(chosen > 0, sd * steps, 0.0)
            return theta.at[k].set(new), pull - precision[k] * (new - theta[k]), centres.at[k].set(here)

        theta, pull, centres = lax.fori_loop(0, len(centre), update, (*state, centre))
        return (theta, pull), centres

    theta = jnp.maximum(centre, 0.0)
    return lax.scan(sweep, (theta, precision @ (centre - theta)), jax.random.split(key, BURN_IN + draws))[1]
