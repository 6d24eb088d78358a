"""Rivals of the parametric bootstrap. Each is a `FunctionEstimator`, written with the public interface."""

import math

import jax
import jax.numpy as jnp

from ldpbayes.bootstrap import FunctionEstimator, Normal
from ldpbayes.mechanisms import GaussianMechanism, LaplaceMechanism


def aggregate_weights(width, blocks, share, norm=1):
    """Factors of the blocks' mean and variance by which one record moves both together by at most 1 in the norm.

    One record changes one block's estimate, clamped to a range of this width. So the mean moves by at most width/M, and
    the variance, (t − c)²/M with c the mean of the other blocks, by at most width²/M.
    """
    return share ** (1 / norm) * blocks / width, (1 - share) ** (1 / norm) * blocks / width**2


def subsample_and_aggregate(statistic, *, lower, upper, count, blocks, epsilon, delta=None, share=0.5):
    """A private mean of a scalar statistic over blocks of the data ([FWS] Algorithm 2; [NRS], [DHK]).

    Returns ``theta`` and its normal ``standard_error``, which counts the noise. Laplace noise, or Gaussian with delta.
    The mean has the bias of the statistic at ⌊count/blocks⌋ records, which no interval sees.
    """
    if delta is None:
        mechanism = LaplaceMechanism(epsilon, columns=("mean", "variance"), sensitivity=1.0)
    else:
        mechanism = GaussianMechanism(epsilon, delta, columns=("mean", "variance"), sensitivity=1.0)
    weights = aggregate_weights(upper - lower, blocks, share, mechanism.noise.norm)
    size = count // blocks

    def estimator(key, data):
        keys = jax.random.split(key)
        order = jax.random.permutation(keys[0], count)[: blocks * size]
        values = jnp.clip(jax.vmap(statistic)(data[order].reshape(blocks, size, *data.shape[1:])), lower, upper)
        values = jnp.where(jnp.isnan(values), (lower + upper) / 2, values)  # a NaN would tell what is in a block
        row = jnp.stack([weights[0] * values.mean(), weights[1] * values.var(ddof=1)])
        mean, variance = mechanism.simulate(keys[1], row) / jnp.asarray(weights)
        error = jnp.sqrt(jnp.maximum(variance, 0.0) / blocks + mechanism.noise.variance / weights[0] ** 2)
        return {"theta": mean, "standard_error": error}

    return FunctionEstimator(estimator, mechanism.guarantee.statement())


def deviation_weights(mean, lower, upper, share):
    """Factors of the sums of x and of |x − mean| by which one record moves both together by at most 1, at any mean.

    With R the width of the bounds, a the share of the mean and D the distance from it to the farther bound, these are
    a/R and w = min(1/D − a/R, (1 − a)/(2D − R)). Two records on one side of the mean, s ≤ D apart, move the row by
    (a/R + w) s; on different sides the worst pair is at distances D and R − D from the mean and moves it by
    a + w (2D − R). Both are at most 1, whatever noisy mean is released first.
    """
    width = upper - lower
    farther = jnp.maximum(mean - lower, upper - mean)
    first = share / width
    return first, jnp.minimum(1 / farther - first, (1 - share) / jnp.maximum(2 * farther - width, 1e-12 * width))


def gaussian_absolute_deviation(*, lower, upper, count, epsilon, share=0.5):
    """Mean and standard deviation of normal records from a noisy mean, then a noisy mean absolute deviation ([DFMBG]).

    The standard deviation is √(π/2) times the deviation. For the bootstrap: ``simulator=normal_records(count)``.
    """
    mechanism = LaplaceMechanism(epsilon, columns=("mean", "absolute deviation"), sensitivity=1.0)
    scales, centre = Normal(lower, upper).ranges["scale"], (lower + upper) / 2

    def estimator(key, data):
        noise, x = mechanism.simulate(key, jnp.zeros(2)), jnp.clip(data, lower, upper)
        total = share / (upper - lower) * jnp.sum(x - centre) + noise[0]
        mean = jnp.clip(centre + total * (upper - lower) / (share * count), lower, upper)
        weight = deviation_weights(mean, lower, upper, share)[1]
        deviation = (jnp.sum(jnp.abs(x - mean)) + noise[1] / weight) / count
        return {"loc": mean, "scale": jnp.clip(math.sqrt(math.pi / 2) * deviation, *scales)}

    return FunctionEstimator(estimator, mechanism.guarantee.statement())


def normal_records(count):
    """A simulator of normal records."""
    return lambda key, params: params["loc"] + params["scale"] * jax.random.normal(key, (count,))
