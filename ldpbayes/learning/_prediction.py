"""Intervals of predicted labels: of their expectation, and of one new label."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy import special

from ldpbayes._core.types import Array
from ldpbayes.learning._objectives import Bounds, MarginalLikelihood

NODES = 9  # of each input's normal law; exact for polynomials of degree 17
BISECTIONS = 80  # of an interval that began with [-1, 1]: ends are exact to rounding


class Prediction(NamedTuple):
    """Predictions of m labels: each field has shape (m,), in the unit of the labels."""

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

    def mean(inputs: Array) -> Array:
        return objective.mean(inputs[:, 0], jnp.exp(inputs[:, 1]), bounds)

    # Of all errors of a given size the one along which the mean varies most: exact for a monotone link.
    expected, gradient = mean(inputs), jax.grad(lambda inputs: jnp.sum(mean(inputs)))(inputs)
    along = jnp.einsum("mij,mj->mi", covariance, gradient)
    size = jnp.sqrt(jnp.sum(gradient * along, axis=1, keepdims=True))
    step = special.ndtri((1 + level) / 2) * along / jnp.where(size > 0, size, 1.0)
    ends = jnp.sort(jnp.stack([mean(inputs - step), mean(inputs + step)]), axis=0)
    lower, upper, deviation = _labels(objective, inputs, covariance, (1 - level) / 2)
    clipped = (lower, upper) if bounds is None else np.clip((lower, upper), *bounds)
    return Prediction(*map(np.asarray, (expected, *ends, *clipped, deviation)))


def _labels(objective: MarginalLikelihood, inputs: Array, covariance: Array, tail: float) -> tuple[Array, Array, Array]:
    """Two quantiles and the standard deviation of new labels; NaN for one that the law does not have."""
    nodes, weights = hermegauss(NODES)
    first, second = (each.ravel() for each in np.meshgrid(nodes, nodes if objective.scaled else [0.0]))
    weights = np.outer(weights if objective.scaled else [1.0], weights).ravel()
    weights = weights / weights.sum()
    own = jnp.sqrt(covariance[:, :1, 0])
    shared = covariance[:, :1, 1] / jnp.where(own > 0, own, 1.0)
    rest = jnp.sqrt(jnp.maximum(covariance[:, 1:, 1] - shared**2, 0.0))
    law = objective.label(inputs[:, :1] + own * first, jnp.exp(inputs[:, 1:] + shared * first + rest * second))
    means = law.mean @ weights
    deviation = jnp.sqrt((law.variance + law.mean**2) @ weights - means**2)
    least = jnp.asarray(getattr(law.support, "lower_bound", -jnp.inf))

    def quantile(probability: float) -> Array:
        def below(value: Array) -> Array:
            return law.cdf(value[:, None]) @ weights < probability

        def widen(_: int, ends: Array) -> Array:
            low, high = ends
            return jnp.stack(
                [jnp.where(below(low), low, jnp.maximum(2 * low, least)), jnp.where(below(high), 2 * high, high)]
            )

        def halve(_: int, ends: Array) -> Array:
            middle = ends.mean(axis=0)
            return jnp.where(below(middle), jnp.stack([middle, ends[1]]), jnp.stack([ends[0], middle]))

        one = jnp.ones(len(inputs))
        ends = jax.lax.fori_loop(0, BISECTIONS, widen, jnp.stack([jnp.maximum(-one, least), one]))
        ends = jax.lax.fori_loop(0, BISECTIONS, halve, ends)
        return jnp.rint(ends[1]) if law.support.is_discrete else ends[1]

    try:
        return quantile(tail), quantile(1 - tail), deviation
    except NotImplementedError:  # the law has no cdf
        nothing = jnp.full(len(inputs), jnp.nan)
        return nothing, nothing, deviation
