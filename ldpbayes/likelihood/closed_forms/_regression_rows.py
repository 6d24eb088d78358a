"""Regression on covariates that were perturbed: the law of rows of covariates and a response."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from numpyro.distributions import constraints

from ldpbayes.likelihood._dispatch import register_closed_form
from ldpbayes.likelihood._mixing import mixing_precisions, mixing_rule, normal_log_density
from ldpbayes.likelihood.closed_forms._regression_response import ChebyshevExpansion, log_mean_response
from ldpbayes.mechanisms import LogisticRecordsMechanism
from ldpbayes.noise import Gaussian, IndependentGaussian, SymmetricLaplace
from ldpbayes.numerics._products import pairs
from ldpbayes.numerics._special import log_sum

__all__ = ["RegressionRows", "regression_rows"]

SCALES = 36
"""Points of the integral over the scale of symmetric Laplace noise, where the rest is exact to 1e-8."""


class RegressionRows(dist.Distribution):
    """Law of rows of covariates x ~ N(m, C) and a response y ~ response(intercept + xᵀ slopes).

    Under a mechanism that perturbs all columns but the response the latent x is integrated out, and y where it passed
    randomized response (`LogisticRecordsMechanism`). Given released covariates z and the scale W of their noise, x is
    normal, hence the linear predictor too, with one variance for all records: the probability of a response is one
    function of the predictor's mean, which is tabulated where responses have finitely many values. Under normal noise
    nothing else is left, under symmetric Laplace noise an integral over W (`mixing_rule`). For logit and probit
    responses the log density is exact to 1e-8, and where every principal standard deviation of the covariates is at
    least a tenth of the noise's; see Notes for rows that are next to impossible. Clipping is left out: the bounds
    should hold (nearly) all covariates.

    Parameters
    ----------
    covariates : numpyro.distributions.MultivariateNormal
        Law of the covariates, event shape (d,), batch shape ().
    response : callable
        Linear predictor (an array) → numpyro.distributions.Distribution of y, such as ``BernoulliLogits``.
    slopes : array (d,)
        Coefficients of the covariates.
    intercept : array_like
        Value of the predictor where all covariates are 0.
    place : int
        Position of the response in a row; the last by default.
    scales, nodes : int
        Points of the integrals over W and, by Gauss-Hermite, over the predictor, for responses that are not tabulated:
        those with infinitely many values, and those whose law depends on traced parameters besides the predictor, such
        as an overdispersion. For others there are at least 36 over W.
    expansion : ChebyshevExpansion, optional
        What stands for the sigmoid of a logistic response instead, as in [KJKH]; by default nothing does.

    Raises
    ------
    ValueError
        If the covariates have a batch shape, the place is not one of the row, or there is an expansion and the response
        is not ``BernoulliLogits``.

    Notes
    -----
    Of a row whose log density is L below the largest, L from 12 to 40, the rule over W has an error of about
    2 exp(−2π²/(L h²)), with h = (6.7 − 0.7 log s)/(scales − 1) and s the smallest principal variance of the covariates
    over that of the noise, at most 1: the integrand is nearly normal in log W, with the variance 1/L. By 36 scales at
    s = 1/100 that is 1e-5 at L = 20 and 5e-4 at 30, by 72 less than 1e-7 up to there. Beyond 40, where the rule ends
    before the integrand does, densities are too small. A response whose probability is below exp(−20) is exact to 1e-4.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.real_vector
    pytree_data_fields = ("covariates", "slopes", "intercept")
    pytree_aux_fields = ("response", "place", "scales", "nodes", "expansion")

    def __init__(
        self,
        covariates: dist.MultivariateNormal,
        response: Callable[[Any], dist.Distribution],
        slopes: Any,
        intercept: Any = 0.0,
        *,
        place: int = -1,
        scales: int = 24,
        nodes: int = 7,
        expansion: ChebyshevExpansion | None = None,
        validate_args: bool | None = None,
    ):
        if len(covariates.event_shape) != 1 or covariates.batch_shape:
            raise ValueError(
                "covariates must have an event shape (d,) and no batch, got event shape "
                f"{covariates.event_shape} and batch shape {covariates.batch_shape}"
            )
        width = covariates.event_shape[0] + 1
        if not -width <= place < width:
            raise ValueError(f"place must be a position in a row of {width} columns, got {place}")
        if expansion is not None and response is not dist.BernoulliLogits:
            raise ValueError(f"expansion is one of the sigmoid, for BernoulliLogits only; the response is {response!r}")
        self.covariates, self.response, self.slopes, self.intercept = covariates, response, slopes, intercept
        self.place, self.scales, self.nodes, self.expansion = place % width, scales, nodes, expansion
        super().__init__((), (width,), validate_args=validate_args)

    @property
    def index(self) -> tuple[int, ...]:
        """Positions of the covariates in a row."""
        return tuple(j for j in range(self.event_shape[0]) if j != self.place)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draw rows."""
        keys = jax.random.split(key)
        x = self.covariates.sample(keys[0], sample_shape)
        y = self.response(self.intercept + x @ self.slopes).sample(keys[1])
        return jnp.insert(x, self.place, y.astype(x.dtype), axis=-1)

    def log_prob(self, value: Any, intermediates: Any = None) -> jax.Array:
        """Log density of rows that were not perturbed (*batch, columns)."""
        x, y = self.parts(value)
        return normal_log_density(self.covariates, x) + self.response(self.intercept + x @ self.slopes).log_prob(y)

    def parts(self, value: Any) -> tuple[Any, Any]:
        """Covariates (*batch, d) and responses (*batch) of rows, as NumPy arrays where the rows are one."""
        before, after = value[..., : self.place], value[..., self.place + 1 :]
        if not before.shape[-1] or not after.shape[-1]:  # nothing need be copied
            return before if before.shape[-1] else after, value[..., self.place]
        xp = np if isinstance(value, np.ndarray) else jnp
        return xp.concatenate([before, after], axis=-1), value[..., self.place]

    def check_responses(self, y: Any) -> None:
        """ValueError for responses that are not in the support of their law, where that can be seen."""
        law = self.response(jnp.zeros((1, 1)))
        inside = law.support(y[..., None, None])
        if isinstance(inside, np.ndarray) and not inside.all():
            bad = np.argwhere(~inside)[:, : y.ndim]
            raise ValueError(
                f"{len(bad)} responses (column {self.place}) are not in the support of {type(law).__name__}, "
                f"the first ({y[tuple(bad[0])]:g}) at {', '.join(map(str, bad[0]))}"
            )


@register_closed_form(RegressionRows, SymmetricLaplace)
def regression_rows(base: RegressionRows, mechanism: Any, z: Any) -> jax.Array:
    """Rows (z, y) under symmetric Laplace noise in all columns but the response.

    Raises
    ------
    ValueError
        If the mechanism perturbs other columns, or has a scale a record; if responses are not in the support of their
        law, where that can be seen: in concrete NumPy arrays.
    """
    scale = _scales(base, mechanism)
    x, y = base.parts(z)
    base.check_responses(y)
    smallest = jnp.linalg.eigvalsh(lax.stop_gradient(base.covariates.covariance_matrix))[0] / scale**2
    tiny = float(jnp.finfo(smallest.dtype).eps)
    w, log_weights = mixing_rule(max(base.scales, SCALES), jnp.maximum(lax.stop_gradient(smallest), tiny))
    log_density, mean, variance = _given_scales(base, scale, w, x)
    terms = log_weights.reshape(-1, *(1,) * y.ndim) + log_density + log_mean_response(base, y, mean, variance)
    return log_sum(terms, axis=0)


@register_closed_form(RegressionRows, Gaussian)
@register_closed_form(RegressionRows, IndependentGaussian)
def regression_rows_gaussian(base: RegressionRows, mechanism: Any, z: Any) -> jax.Array:
    """Rows (z, y) under Gaussian noise in all columns but the response; errors as for `regression_rows`."""
    scale = _scales(base, mechanism)
    x, y = base.parts(z)
    base.check_responses(y)
    log_density, mean, variance = _given_scales(base, scale, None, x)
    return log_density + log_mean_response(base, y, mean, variance)


@register_closed_form(RegressionRows, LogisticRecordsMechanism)
def regression_rows_logistic(base: RegressionRows, mechanism: Any, z: Any) -> jax.Array:
    """Rows under Gaussian noise in the covariates and randomized response on a response of 0 or 1, the last column.

    log N(z_x) + log(q + (1 − 2q) p), with p the probability that the response was the released one, given z_x, and
    q = 1/(1 + exp(epsilon)) that of a flip.

    Raises
    ------
    ValueError
        As for `regression_rows`; if the response is not 0 or 1.
    """
    if base.response(jnp.zeros((1, 1))).support is not constraints.boolean:
        raise ValueError(f"randomized response is for responses of 0 and 1, and not for {base.response!r}")
    scale = _scales(base, mechanism)
    x, y = base.parts(z)
    base.check_responses(y)
    log_density, mean, variance = _given_scales(base, scale, None, x)
    tiny = float(jnp.finfo(mean.dtype).tiny)
    log_p = log_mean_response(base, y, mean, variance, floor=tiny)
    flip = jax.nn.sigmoid(-jnp.asarray(mechanism.response_epsilon, mean.dtype))
    p = jnp.exp(log_p)
    return log_density + jnp.log(jnp.maximum(flip + (1 - 2 * flip) * p, tiny))


def _scales(base: RegressionRows, mechanism: Any) -> jax.Array:
    """Standard deviation of the noise in the covariates: a number, or one a column."""
    if tuple(mechanism.index) != base.index:
        raise ValueError(
            f"the mechanism must perturb all columns but the response, which is column {base.place}; got {mechanism}"
        )
    scale = jnp.asarray(mechanism.noise.standard_deviation)
    if scale.ndim > (1 if isinstance(mechanism.noise, IndependentGaussian) else 0):
        raise ValueError("a regression on perturbed covariates needs one scale for all records")
    return scale


def _given_scales(base: RegressionRows, scale: Any, w: Any, z: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log density of perturbed covariates, and mean and variance of the predictor, under normal noise.

    The noise has variance scale² w, or scale² where w is None. Shapes (w, *batch), (w, *batch) and (w,).
    """
    m, covariance, slopes = base.covariates.loc, base.covariates.covariance_matrix, base.slopes
    one, w = w is None, np.ones(1) if w is None else w
    precisions, log_roots = mixing_precisions(covariance, scale, w)
    # the predictor given z and w has mean θᵀm + gain (z − m) and variance θᵀ(C − C P C) θ, here without a difference
    load = covariance @ slopes
    gain = precisions @ load
    variance = jnp.maximum(w * (gain @ (scale**2 * slopes)), 0.0)
    # z − m is a matrix times a row (z less a constant, 1), so nothing of the data's size depends on a parameter
    d = len(m)
    origin = lax.stop_gradient(m)
    rows = jnp.pad(z.reshape(-1, d) - origin, ((0, 0), (0, 1)), constant_values=1)
    frame = jnp.concatenate([jnp.eye(d, dtype=m.dtype), (origin - m)[:, None]], axis=1)
    forms, predictors = frame.T @ precisions @ frame, gain @ frame
    predictors = predictors.at[:, d].add(base.intercept + m @ slopes)
    constant = log_roots + 0.5 * d * np.log(2 * np.pi)
    if one:
        # a product with ones, as XLA adds up short rows slowly
        squares = ((rows @ forms[0]) * rows) @ np.ones(d + 1, rows.dtype)
        mean, constant, variance = rows @ predictors[0], constant[0], variance[0]
    else:
        columns, (i, j) = rows.T, pairs(d + 1)
        squares = (forms[:, i, j] * np.where(i == j, 1, 2)) @ (columns[i] * columns[j])
        mean, constant = predictors @ columns, constant[:, None]
    batch = (*variance.shape, *z.shape[:-1])
    return (-0.5 * squares - constant).reshape(batch), mean.reshape(batch), variance
