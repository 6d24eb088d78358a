"""Probability of a response whose predictor is known up to a normal error: E[p(y | t + √v U)], U standard normal."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

from ldpbayes._tracing import is_concrete
from ldpbayes.numerics._smoothed import smoothed_log
from ldpbayes.numerics._special import log_sum

__all__ = ["ChebyshevExpansion", "log_mean_response"]

BINARY = np.arange(2)
MOST_LABELS = 32


@dataclasses.dataclass(frozen=True)
class ChebyshevExpansion:
    """Expansion of the sigmoid in Chebyshev polynomials, whose mean over a normal predictor is a polynomial.

    It need not lie between 0 and 1: its mean is clipped to that, and where responses are released as they are, to
    `floor` and 1 − `floor`, with no gradient where it is. Of the second order it is a straight line, since the sigmoid
    less 1/2 is odd.

    Parameters
    ----------
    order : int
        Of the last polynomial, at least 1.
    half_width : float
        The sigmoid is expanded on [−half_width, half_width], in the unit of the predictor; positive.
    floor : float
        Least probability of a response that is released as it is, between 0 and 1/2, exclusive.

    Raises
    ------
    ValueError
        If one of them is out of range.

    Notes
    -----
    Source: [KJKH] supplement 7 and 12.2, the defaults from its Figure 6.
    """

    order: int = 2
    half_width: float = 3.0
    floor: float = 1e-6

    def __post_init__(self) -> None:
        if self.order < 1 or self.order != int(self.order):
            raise ValueError(f"order must be a positive integer, got {self.order!r}")
        if not 0 < self.half_width < math.inf:
            raise ValueError(f"half_width must be positive and finite, got {self.half_width!r}")
        if not 0 < self.floor < 0.5:
            raise ValueError(f"floor must be between 0 and 1/2, exclusive, got {self.floor!r}")

    @property
    def coefficients(self) -> np.ndarray:
        """Coefficients of the powers 0, 1, ..., order of the predictor."""
        many = 2 * self.order + 200
        angles = np.pi * (np.arange(many) + 0.5) / many
        values = 0.5 * (1 + np.tanh(0.5 * self.half_width * np.cos(angles)))
        k = np.arange(self.order + 1)
        series = np.cos(k[:, None] * angles) @ values * np.where(k, 2, 1) / many
        powers = np.polynomial.chebyshev.cheb2poly(series)
        return np.append(powers, np.zeros(self.order + 1 - len(powers))) / float(self.half_width) ** k

    def mean(self, t: Any, v: Any) -> jax.Array:
        """Mean of the expansion over N(t, v), not clipped.

        Parameters
        ----------
        t, v : array_like
            Mean and variance of the predictor, of shapes that broadcast.
        """
        before, moment, total = jnp.zeros_like(t), jnp.ones_like(t), jnp.zeros_like(t)
        for k, coefficient in enumerate(self.coefficients):
            total = total + float(coefficient) * moment
            before, moment = moment, t * moment + k * v * before
        return total


def log_mean_response(base: Any, y: Any, t: Any, v: Any, floor: float | None = None) -> jax.Array:
    """Log E[p(y | t + √v U)] for standard normal U, −inf for y that the response cannot be.

    Responses with finitely many values are tabulated (`smoothed_log`), unless the law depends on traced parameters
    besides the predictor: the table has no derivatives in these. Others are integrated by ``base.nodes`` Gauss-Hermite
    nodes.

    Parameters
    ----------
    base : RegressionRows
        Says what the response is.
    y : array (*batch)
        Responses.
    t : array (q, *batch), or (*batch)
        Means of the predictor.
    v : array (q,), or a number
        Its variances.
    floor : float, optional
        Least probability by an expansion; by default that of the expansion.

    Returns
    -------
    Array of the shape of t
    """
    if base.expansion is not None:
        one = base.expansion.mean(t, v.reshape(*v.shape, *(1,) * y.ndim))
        least = base.expansion.floor if floor is None else floor
        return jnp.log(jnp.clip(jnp.where(y == 1, one, 1 - one), least, 1.0 - least)) + _unless_in(BINARY, y)
    flat = jnp.reshape(t, (*v.shape, -1))
    if base.response is dist.BernoulliLogits:
        # p(0 | η) = p(1 | −η): one label is enough
        flat = flat * jnp.where(y == 1, 1.0, -1.0).ravel()
        value = smoothed_log(_log_sigmoid, 1, jnp.zeros(flat.shape[-1:], int), flat, v)
        return value.reshape(t.shape) + _unless_in(BINARY, y)
    labels = _labels(base.response)
    if labels is not None:
        log_p = _of_labels(base.response, labels)
        hoisted = jax.closure_convert(log_p, jnp.zeros((len(labels), 1), t.dtype))[1]
        if not hoisted:
            which = jnp.sum(jnp.arange(len(labels)) * (y.reshape(-1, 1) == labels), axis=-1)
            return smoothed_log(log_p, len(labels), which, flat, v).reshape(t.shape) + _unless_in(labels, y)
    return _by_quadrature(base, y, t, v)


def _unless_in(labels: np.ndarray, y: Any) -> jax.Array:
    """−inf for y that is none of the labels, NaN where it is not a number."""
    return jnp.where(jnp.any(y[..., None] == labels, axis=-1), 0.0, jnp.where(y == y, -jnp.inf, jnp.nan))


def _log_sigmoid(s: Any) -> jax.Array:
    return jnp.minimum(s, 0.0) - jnp.log1p(jnp.exp(-jnp.abs(s)))


def _labels(response: Callable[[Any], dist.Distribution]) -> np.ndarray | None:
    """Values of the response in order, None if they are many or depend on what is traced."""
    support = response(jnp.zeros((1, 1))).support
    if support is constraints.boolean:
        return BINARY
    low, high = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    if low is None or high is None or not support.is_discrete or not is_concrete(low, high):
        return None
    if np.size(low) > 1 or np.size(high) > 1:
        return None
    first, last = int(np.ravel(low)[0]), int(np.ravel(high)[0])
    return np.arange(first, last + 1) if last - first < MOST_LABELS else None


def _of_labels(response: Callable[[Any], dist.Distribution], labels: np.ndarray) -> Callable[[Any], jax.Array]:
    def log_p(s: Any) -> jax.Array:
        return response(s).log_prob(labels.reshape(-1, *(1,) * (s.ndim - 1)))

    return log_p


def _by_quadrature(base: Any, y: Any, t: Any, v: Any) -> jax.Array:
    if not v.ndim:
        return _by_quadrature(base, y, t[None], v[None])[0]
    nodes, weights = np.polynomial.hermite_e.hermegauss(base.nodes)
    # the square root has no derivative at 0; moved by this little the sum over pairs of nodes still gives that in v
    spread = jnp.sqrt(jnp.maximum(v, 0.0) + float(jnp.finfo(v.dtype).eps) ** (2 / 3))
    law = base.response(jnp.moveaxis(t, 0, -1)[..., None] + spread[:, None] * nodes)
    terms = law.log_prob(y[..., None, None]) + np.log(weights / np.sqrt(2 * np.pi))
    return jnp.moveaxis(log_sum(terms), -1, 0)
