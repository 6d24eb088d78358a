"""Intervals of predicted labels: for the expected label, and for a new label."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy import special

from ldpbayes._core.types import Array
from ldpbayes.learning._objectives import Bounds, MarginalLikelihood

NODES = 9  # of each input's normal law; exact for polynomials of degree 17
BISECTIONS = 60  # of an interval that is at most twice as far from 0 as its end: ends are exact to rounding
BATCH = 1000  # labels at a time


class Prediction(NamedTuple):
    """Predictions of m labels. Each attribute is an array (m,), in the unit of the labels.

    ``mean`` is the expected label. Its confidence interval is from ``mean_lower`` to ``mean_upper``. The prediction
    interval of a new original label is from ``label_lower`` to ``label_upper``. ``label_sd`` is the standard deviation
    of the new label.
    """

    mean: np.ndarray  # expected labels
    mean_lower: np.ndarray  # interval of the expectation
    mean_upper: np.ndarray
    label_lower: np.ndarray  # interval of a new original label
    label_upper: np.ndarray
    label_sd: np.ndarray  # standard deviation of a new original label


def predicted(
    objective: MarginalLikelihood, inputs: Array, covariance: Array, bounds: Bounds | None, level: float
) -> Prediction:
    """Predictions from the inputs (m, 2) of the labels' law, the prediction and the logarithm of the scale, of these
    normal errors (m, 2, 2). The parameters of a new label are integrated out, by Gauss-Hermite quadrature.
    """
    inputs, covariance = np.asarray(inputs), np.asarray(covariance)
    fixed = bounds if objective.counts else None  # bounds of counts are constants of a compiled function
    means = _means(objective, fixed, bounds, inputs, covariance, special.ndtri((1 + level) / 2))
    label = np.asarray(_labels(objective, inputs, covariance, (1 - level) / 2))
    lower, upper = label[:2] if bounds is None else np.clip(label[:2], *bounds)
    return Prediction(*map(np.asarray, (*means, lower, upper, label[2])))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _means(
    objective: MarginalLikelihood,
    fixed: Bounds | None,
    bounds: Bounds | None,
    inputs: Array,
    covariance: Array,
    quantile: Array,
) -> tuple[Array, Array, Array]:
    """Expected labels (m,), and the ends of their intervals, each a quantile away."""

    def mean(inputs: Array) -> Array:
        return objective.mean(inputs[:, 0], jnp.exp(inputs[:, 1]), fixed or bounds)

    # Of all errors of a given size the one along which the mean varies most: exact for a monotone link.
    expected, slopes = jax.vjp(mean, inputs)
    (gradient,) = slopes(jnp.ones_like(expected))
    along = jnp.einsum("mij,mj->mi", covariance, gradient)
    size = jnp.sqrt(jnp.sum(gradient * along, axis=1, keepdims=True))
    step = quantile * along / jnp.where(size > 0, size, 1.0)
    lower, upper = jnp.sort(mean(jnp.concatenate([inputs - step, inputs + step])).reshape(2, -1), axis=0)
    return expected, lower, upper


@functools.partial(jax.jit, static_argnums=0)
def _labels(objective: MarginalLikelihood, inputs: Array, covariance: Array, tail: Array) -> Array:
    """Two quantiles and the standard deviation (3, m) of new labels; NaN for what the law does not have."""
    nodes, weights = hermegauss(NODES)
    first, second = (each.ravel() for each in np.meshgrid(nodes, nodes if objective.scaled else [0.0]))
    weights = np.outer(weights if objective.scaled else [1.0], weights).ravel()
    weights = weights / weights.sum()

    def quantiles(label: tuple[Array, Array]) -> Array:
        at, covariance = label
        own = jnp.sqrt(covariance[0, 0])
        shared = covariance[0, 1] / jnp.where(own > 0, own, 1.0)
        rest = jnp.sqrt(jnp.maximum(covariance[1, 1] - shared**2, 0.0))
        law = objective.label(at[0] + own * first, jnp.exp(at[1] + shared * first + rest * second))
        mean = law.mean @ weights
        deviation = jnp.sqrt((law.variance + law.mean**2) @ weights - mean**2)
        least = jnp.asarray(getattr(law.support, "lower_bound", -jnp.inf))
        probabilities = jnp.stack([tail, 1 - tail])

        def below(values: Array) -> Array:
            return jnp.stack([law.cdf(value) @ weights for value in values]) < probabilities

        def widen(ends: Array) -> Array:
            low, high = ends
            low = jnp.where(below(low), low, jnp.maximum(2 * low, least))
            return jnp.stack([low, jnp.where(below(high), 2 * high, high)])

        def narrow(ends: Array) -> Array:
            return jnp.any(~below(ends[0]) & (ends[0] > least)) | jnp.any(below(ends[1]))

        def halve(_: int, ends: Array) -> Array:
            middle = ends.mean(axis=0)
            return jnp.where(below(middle), jnp.stack([middle, ends[1]]), jnp.stack([ends[0], middle]))

        start = jnp.stack([jnp.full(2, jnp.maximum(-1.0, least)), jnp.ones(2)])
        try:
            _, found = jax.lax.fori_loop(0, BISECTIONS, halve, jax.lax.while_loop(narrow, widen, start))
        except NotImplementedError:  # the law has no cdf
            found = jnp.full(2, jnp.nan)
        found = jnp.rint(found) if law.support.is_discrete else found
        return jnp.append(jnp.where(jnp.isnan(covariance).any(), jnp.nan, found), deviation)  # of errors that are known

    return jax.lax.map(quantiles, (inputs, covariance), batch_size=BATCH).T
