"""Regressions: rows (x, y) under noise, and sums of statistics of many rows, normal by the central limit theorem."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from jax.scipy.special import erf
from numpyro.distributions import constraints

from ldpbayes._core.checks import ONE_POSITIVE, at_least, checked, ends_of, refuse
from ldpbayes._core.types import Array, Key, is_concrete
from ldpbayes.laws.numbers import normal_log_density
from ldpbayes.likelihood.closed_forms import register_closed_form
from ldpbayes.likelihood.closed_forms._numbers import mixing_precisions, mixing_rule, normal_rows_gaussian
from ldpbayes.mechanisms import LogisticRecordsMechanism
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.noise import Gaussian, IndependentGaussian, SymmetricLaplace
from ldpbayes.numerics.arrays import OFF_DIAGONALS, diagonal_first_pairs
from ldpbayes.numerics.smoothed import smoothed_log
from ldpbayes.numerics.special import log_sum

WIDE_DEVIATION = 4.5  # standard deviation of a predictor beyond which its expectations are sums over points around 0
BINARY_LABELS = np.arange(2)  # the labels 0 and 1
MOST_LABELS = 32  # that a response may have if it is tabulated
FEWEST_SCALES = 36  # nodes over the scale of symmetric Laplace noise, where the rest is exact to 1e-8


class SumOfStatistics(dist.Distribution):
    """Normal law of a sum of statistics over `count` independent records, which may be a latent variable: an
    approximation by the central limit theorem. The covariance of the statistics of one record may be singular.
    """

    support = constraints.real_vector
    pytree_data_fields = ("each_mean", "each_covariance", "count")
    mean = property(lambda self: jnp.asarray(self.count)[..., None] * self.each_mean)
    covariance_matrix = property(lambda self: jnp.asarray(self.count)[..., None, None] * self.each_covariance)
    variance = property(lambda self: jnp.diagonal(self.covariance_matrix, axis1=-2, axis2=-1))

    def __init__(self, each_mean: Array, each_covariance: Array, count: Array) -> None:
        self.each_mean, self.each_covariance, self.count = each_mean, each_covariance, count
        batch = jnp.broadcast_shapes(jnp.shape(each_mean)[:-1], jnp.shape(each_covariance)[:-2], jnp.shape(count))
        super().__init__(batch, jnp.shape(each_mean)[-1:])

    def sample(self, key: Key, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        # not Cholesky: statistics that do not vary, such as those of a constant column, make it singular
        values, vectors = jnp.linalg.eigh(self.covariance_matrix)
        root = vectors * jnp.sqrt(jnp.maximum(values, 0.0))[..., None, :]
        draw = jax.random.normal(key, sample_shape + self.batch_shape + self.event_shape, root.dtype)
        return self.mean + jnp.einsum("...ij,...j->...i", root, draw)

    def log_prob(self, value: Array, intermediates: Any = None) -> jax.Array:
        """Return the log density of sums (*batch, p) before noise. The covariance must not be singular."""
        return normal_log_density(dist.MultivariateNormal(self.mean, self.covariance_matrix), value)


# N(z; N μ, N Σ + noise) ([KJKH] eq. 3)
register_closed_form(SumOfStatistics, (Gaussian, IndependentGaussian), bounded=False)(normal_rows_gaussian)


def linear_rows(
    covariates: dist.MultivariateNormal, slopes: Array, standard_deviation: Array, intercept: Array = 0.0
) -> dist.MultivariateNormal:
    """Return the normal law of rows (x, y) of a linear regression with normal covariates x and a response y.

    With θ = `slopes`, y | x ~ N(intercept + θᵀx, σ²). The law has event shape (d + 1,), mean (m, intercept + θᵀm) and
    covariance [[Σ, Σθ], [θᵀΣ, θᵀΣθ + σ²]].

    Parameters
    ----------
    covariates : numpyro.distributions.MultivariateNormal
        Law N(m, Σ) of the d covariates x, event shape (d,).
    slopes : array (*batch, d)
        Coefficients of the covariates, in the unit of y for each unit of x.
    standard_deviation, intercept : array_like
        σ, and the mean of y if all covariates are 0 (default: 0), in the unit of y.
    """
    slopes, root, sigma = jnp.asarray(slopes), covariates.scale_tril, standard_deviation
    batch = jnp.broadcast_shapes(covariates.batch_shape, slopes.shape[:-1], jnp.shape(sigma), jnp.shape(intercept))
    mean_y = intercept + jnp.sum(covariates.loc * slopes, axis=-1)
    d = slopes.shape[-1]

    def row(of_covariates: Array, of_response: Array) -> jax.Array:
        parts = jnp.broadcast_to(of_covariates, (*batch, d)), jnp.broadcast_to(of_response, batch)[..., None]
        return jnp.concatenate(parts, axis=-1)

    loc, last = row(covariates.loc, mean_y), row(jnp.einsum("...ji,...j->...i", root, slopes), sigma)
    above = jnp.pad(jnp.broadcast_to(root, (*batch, d, d)), [(0, 0)] * (len(batch) + 1) + [(0, 1)])
    both = jnp.concatenate([above, last[..., None, :]], axis=-2)
    return dist.MultivariateNormal(loc, scale_tril=both, validate_args=False)


def linear_statistics(rows: dist.MultivariateNormal, count: Array, off_diagonal: str = "scaled") -> SumOfStatistics:
    """Return the law of a sum over records of products of normal covariates x and a normal response y.

    The products are x_j², s x_j x_k for j < k, x_j y and y², as `LinearStatisticsMechanism` releases them. Mean and
    covariance are exact, by Isserlis' theorem ([KJKH] supplement 13.1).

    Parameters
    ----------
    rows : numpyro.distributions.MultivariateNormal
        Law of a record (x, y), with the response last, such as the result of `linear_rows`.
    count : array_like
        Number of records in the sum.
    off_diagonal : {"scaled", "once"}
        The factor s, as in the mechanism: √2 for "scaled" (default), 1 for "once".
    """
    d = rows.event_shape[0] - 1
    first, second = diagonal_first_pairs(d)
    # products of covariates, then of covariates with the response, then its square
    i, j = np.concatenate([first, np.arange(d), [d]]), np.concatenate([second, np.full(d, d), [d]])
    factor = np.where((i != j) & (j < d), OFF_DIAGONALS[off_diagonal], 1.0)
    mean, covariance = _products(rows.loc, rows.covariance_matrix, i, j)
    return SumOfStatistics(factor * mean, factor[:, None] * factor * covariance, count)


def _products(m: Array, covariance: Array, i: np.ndarray, j: np.ndarray) -> tuple[Array, Array]:
    """Mean and covariance of the products w_i w_j of normal variables: Isserlis' theorem, means included."""
    moment = covariance + m[..., :, None] * m[..., None, :]  # E[w wᵀ]
    product, first, second = m[..., i] * m[..., j], i[:, None], j[:, None]
    pairs = moment[..., first, i] * moment[..., second, j] + moment[..., first, j] * moment[..., second, i]
    return moment[..., i, j], pairs - 2 * product[..., :, None] * product[..., None, :]


def logistic_statistics(
    covariates: dist.MultivariateNormal,
    slopes: Array,
    intercept: Array = 0.0,
    *,
    count: Array,
    off_diagonal: str = "scaled",
) -> SumOfStatistics:
    """Return the law of a sum over records of products of normal covariates x and a logistic response y in {−1, 1}.

    The products are x_j², s x_j x_k for j < k, and x_j y, as `LogisticStatisticsMechanism` releases them. Mean and
    covariance are exact, by Stein's identity. [KJKHK] approximates the sigmoid instead.

    Parameters
    ----------
    covariates : numpyro.distributions.MultivariateNormal
        Law N(m, Σ) of the d covariates x, event shape (d,), without a batch.
    slopes, intercept : array (d,) and float
        Coefficients of the covariates, in log-odds for each unit of x, and the log-odds if all are 0 (default: 0).
    count, off_diagonal
        As in `linear_statistics`.
    """
    m, covariance = covariates.loc, covariates.covariance_matrix
    a = covariance @ slopes
    g, g1, g2, g3 = _expected_tanh(intercept + m @ slopes, slopes @ a)
    i, j = diagonal_first_pairs(covariates.event_shape[0])
    factor = np.where(i == j, 1.0, OFF_DIAGONALS[off_diagonal])
    mean, second = _products(m, covariance, i, j)
    moment = covariance + m[:, None] * m
    with_y = m * g + a * g1  # E[g x_k]
    third = (  # E[g x_i x_j x_k]
        g * (mean[:, None] * m + m[i][:, None] * covariance[j] + m[j][:, None] * covariance[i])
        + g1 * (mean[:, None] * a + a[i][:, None] * moment[j] + a[j][:, None] * moment[i])
        + g2 * ((a[i] * a[j])[:, None] * m + (a[i] * m[j] + a[j] * m[i])[:, None] * a)
        + g3 * (a[i] * a[j])[:, None] * a
    )
    cross = factor[:, None] * (third - mean[:, None] * with_y)
    last = moment - with_y[:, None] * with_y  # y² = 1
    covariance_of_one = jnp.block([[factor[:, None] * factor * second, cross], [cross.T, last]])
    return SumOfStatistics(jnp.concatenate([factor * mean, with_y]), covariance_of_one, count)


def _expected_tanh(mean: Array, variance: Array) -> tuple[Array, ...]:
    """Expectations of tanh(η/2) and its first three derivatives, η normal, to 1e-11 by trapezoids in steps of σ/8,
    whose error is of order exp(−2π · π/step), as poles are π away from the real line.
    """
    points = np.arange(-64, 65)
    # if σ is wide the points are around 0, beyond which g less erf(η/2), of known expectation, vanishes
    wide = variance > WIDE_DEVIATION**2
    narrow = jnp.sqrt(jnp.where(wide | (variance <= 0), WIDE_DEVIATION**2, variance))
    far = jnp.sqrt(jnp.where(wide, variance, WIDE_DEVIATION**2))
    t = jnp.where(wide, points / 2, mean + jnp.where(variance > 0, narrow, 0.0) * points / 8)
    around = 0.5 * jnp.exp(-jnp.square((points / 2 - mean) / far) / 2) / (far * np.sqrt(2 * np.pi))
    normal = np.exp(-np.square(points / 8) / 2)
    weights = jnp.where(wide, around, normal / normal.sum())
    g = jnp.tanh(t / 2)
    g1 = (1 - g) * (1 + g) / 2
    g2 = -g * g1
    g3 = -g1 * g1 - g * g2
    expected, *derivatives = (weights * jnp.stack([g - erf(t / 2), g1, g2, g3])).sum(axis=-1)
    return expected + erf(mean / jnp.sqrt(4 + 2 * variance)), *derivatives


@dataclasses.dataclass(frozen=True)
class ChebyshevExpansion:
    """Polynomial that replaces the sigmoid of a logistic regression, as in [KJKH] supplement 7 and 12.2.

    Of a normal predictor, its mean is a polynomial in mean and variance, clipped (with gradient 0) to [0, 1], or to
    [`floor`, 1 − `floor`] if responses are released without noise. The defaults are those of Figure 6 in [KJKH].

    Parameters
    ----------
    order : int
        Degree of the last Chebyshev polynomial in the expansion, at least 1. Default: 2.
    half_width : float
        The sigmoid is expanded on [−half_width, half_width], in the unit of the predictor (log-odds). Default: 3.
    floor : float
        Least probability of a response that is released without noise, in (0, 1/2). Default: 1e-6.
    """

    order: int = 2
    half_width: float = 3.0
    floor: float = 1e-6

    def __post_init__(self) -> None:
        at_least(1, "order", self.order)
        checked("half_width", self.half_width, *ONE_POSITIVE)
        checked("floor", self.floor, "between 0 and 1/2, exclusive", lambda floor: (floor > 0) & (floor < 0.5))

    @property
    def coefficients(self) -> np.ndarray:
        """Coefficients for the powers 0, 1, ..., `order` of the linear predictor."""
        sigmoid, terms = lambda x: 0.5 * (1 + np.tanh(0.5 * self.half_width * x)), self.order + 1
        series = np.polynomial.chebyshev.chebinterpolate(sigmoid, 2 * self.order + 199)[:terms]
        powers = np.polynomial.chebyshev.cheb2poly(series)  # without trailing zeros
        return np.pad(powers, (0, terms - len(powers))) / float(self.half_width) ** np.arange(terms)

    def mean(self, t: Array, v: Array) -> jax.Array:
        """Return the unclipped mean of the polynomial, for normal predictors with means t and variances v."""
        before, moment, total = jnp.zeros_like(t), jnp.ones_like(t), jnp.zeros_like(t)
        for k, coefficient in enumerate(self.coefficients):
            total = total + float(coefficient) * moment
            before, moment = moment, t * moment + k * v * before
        return total


Response = Callable[[Any], dist.Distribution]  # linear predictors → law of the responses


class RegressionRows(dist.Distribution):
    """Law of rows of covariates x ~ N(m, C) and a response y, whose law depends on the predictor intercept + xᵀ slopes.

    It is for mechanisms that add noise to all columns except the response, and for `LogisticRecordsMechanism`, which
    also perturbs the response. The likelihood integrates out the original values and the random scale W of symmetric
    Laplace noise. It ignores clipping: bounds should contain nearly all x. For logit and probit responses it is exact
    to 1e-8 if every principal standard deviation of the covariates (the root of an eigenvalue of C) is at least a tenth
    of the noise's.

    Parameters
    ----------
    covariates : numpyro.distributions.MultivariateNormal
        Law N(m, C) of the covariates x, event shape (d,), batch shape ().
    response : callable
        From linear predictors (an array) to the law of y, a NumPyro distribution such as ``BernoulliLogits``.
    slopes, intercept : array (d,) and float
        Coefficients, in units of the predictor for each unit of a covariate; the predictor if all are 0 (default: 0).
    place : int
        Position of the response in a row. Default: the last column.
    scales : int
        Number of nodes of the integral over W. At least 36 are used, also with the default of 24.
    nodes : int
        Number of Gauss-Hermite nodes of the integral over the predictor, for responses with more than 32 possible
        values or with further parameters in their law, such as an overdispersion. Default: 7.
    expansion : ChebyshevExpansion, optional
        Polynomial that replaces the sigmoid of the response ``BernoulliLogits``. Default: none.

    Notes
    -----
    In a row whose log density is L below the largest, 12 ≤ L ≤ 40, the integral over W has a relative error near 2
    exp(−2π²/(L h²)), h = (6.7 − 0.7 log s)/(scales − 1), where s is the smallest eigenvalue of C over the variance of
    the noise, at most 1. With 36 scales and s = 1/100 it is 1e-5 at L = 20 and 5e-4 at L = 30; with 72, below 1e-7. For
    L above 40, densities are too small. A row with a response of a probability below exp(−20) is exact to 1e-4.
    """

    support = constraints.real_vector
    pytree_data_fields = ("covariates", "slopes", "intercept")
    pytree_aux_fields = ("response", "place", "scales", "nodes", "expansion")
    index = property(lambda self: tuple(j for j in range(self.event_shape[0]) if j != self.place))

    def __init__(
        self,
        covariates: dist.MultivariateNormal,
        response: Response,
        slopes: Array,
        intercept: Array = 0.0,
        *,
        place: int = -1,
        scales: int = 24,
        nodes: int = 7,
        expansion: ChebyshevExpansion | None = None,
        validate_args: bool | None = None,
    ):
        if len(covariates.event_shape) != 1 or covariates.batch_shape:
            shapes = covariates.batch_shape, covariates.event_shape
            raise ValueError(f"covariates must have batch shape () and an event shape (d,), got {shapes}")
        width = covariates.event_shape[0] + 1
        if not -width <= place < width:
            raise ValueError(f"place must be a position in a row of {width} columns, got {place}")
        if expansion is not None and response is not dist.BernoulliLogits:
            raise ValueError(f"expansion is only for the sigmoid of BernoulliLogits; the response is {response!r}")
        self.covariates, self.response, self.slopes, self.intercept = covariates, response, slopes, intercept
        self.place, self.scales, self.nodes, self.expansion = place % width, scales, nodes, expansion
        super().__init__((), (width,), validate_args=validate_args)

    def sample(self, key: Key, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        keys = jax.random.split(key)
        x = self.covariates.sample(keys[0], sample_shape)
        y = self.response(self.intercept + x @ self.slopes).sample(keys[1])
        return jnp.insert(x, self.place, y.astype(x.dtype), axis=-1)

    def log_prob(self, value: Array, intermediates: Array = None) -> jax.Array:
        """Return the log density (*batch) of rows (*batch, columns) to which no noise was added."""
        x, y = self.parts(value)
        return normal_log_density(self.covariates, x) + self.response(self.intercept + x @ self.slopes).log_prob(y)

    def parts(self, value: Array) -> tuple[Array, Array]:
        """Split rows into covariates (*batch, d) and responses (*batch). NumPy arrays give NumPy arrays."""
        xp = np if isinstance(value, np.ndarray) else jnp
        return xp.delete(value, self.place, axis=-1), value[..., self.place]


@register_closed_form(RegressionRows, SymmetricLaplace)
def regression_rows(base: RegressionRows, mechanism: Additive, z: Array) -> jax.Array:
    sigma, x, y = _checked(base, mechanism, z)
    smallest = jnp.linalg.eigvalsh(lax.stop_gradient(base.covariates.covariance_matrix))[0] / sigma**2
    tiny = float(jnp.finfo(smallest.dtype).eps)
    w, log_weights = mixing_rule(max(base.scales, FEWEST_SCALES), jnp.maximum(lax.stop_gradient(smallest), tiny))
    log_density, mean, variance = _given_covariates(base, sigma, w, x)
    terms = log_weights.reshape(-1, *(1,) * y.ndim) + log_density + _log_mean_response(base, y, mean, variance)
    return log_sum(terms, axis=0)


@register_closed_form(RegressionRows, (Gaussian, IndependentGaussian))
def regression_rows_gaussian(base: RegressionRows, mechanism: Additive, z: Array) -> jax.Array:
    sigma, x, y = _checked(base, mechanism, z)
    log_density, mean, variance = _given_covariates(base, sigma, None, x)
    return log_density + _log_mean_response(base, y, mean, variance)


@register_closed_form(RegressionRows, LogisticRecordsMechanism)
def regression_rows_logistic(base: RegressionRows, mechanism: LogisticRecordsMechanism, z: Array) -> jax.Array:
    """Log N(z_x) + log(q + (1 − 2q) p), p = P(y is as released | z_x) and q = 1/(1 + exp(epsilon)) that of a flip."""
    if base.response(jnp.zeros((1, 1))).support is not constraints.boolean:
        raise ValueError(f"randomized response is only for responses of 0 and 1, not for {base.response!r}")
    sigma, x, y = _checked(base, mechanism, z)
    log_density, mean, variance = _given_covariates(base, sigma, None, x)
    tiny = float(jnp.finfo(mean.dtype).tiny)
    log_p = _log_mean_response(base, y, mean, variance, floor=tiny)
    flip = jax.nn.sigmoid(-jnp.asarray(mechanism.response_epsilon, mean.dtype))
    p = jnp.exp(log_p)
    return log_density + jnp.log(jnp.maximum(flip + (1 - 2 * flip) * p, tiny))


def _checked(base: RegressionRows, mechanism: Any, z: Array) -> tuple[jax.Array, Array, Array]:
    """Standard deviation of the noise in the covariates, a number or one a column; covariates; responses."""
    if tuple(mechanism.index) != base.index:
        wanted = f"all columns except the response, column {base.place}"
        raise ValueError(f"the mechanism must perturb {wanted}; got {mechanism}")
    sigma = jnp.asarray(mechanism.noise.standard_deviation)
    if sigma.ndim > int(mechanism.noise.per_column):
        raise ValueError("a regression on perturbed covariates needs one scale for all records")
    x, y = base.parts(z)
    law = base.response(jnp.zeros((1, 1)))
    inside = law.support(y[..., None, None])
    if isinstance(inside, np.ndarray):
        problem = f"{{}} responses (column {base.place}) are not in the support of {type(law).__name__}"
        refuse(~inside[..., 0, 0], problem, y)
    return sigma, x, y


def _given_covariates(base: RegressionRows, sigma: Array, w: Array, z: Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log density of covariates (w, *batch), mean and variance (w,) of the predictor, at noise of variance sigma² w."""
    m, covariance, slopes = base.covariates.loc, base.covariates.covariance_matrix, base.slopes
    single, w = w is None, np.ones(1) if w is None else w  # the axis of w is left out where w is None
    precisions, log_roots = mixing_precisions(covariance, sigma, w)
    # the predictor given z and w has mean θᵀm + gain (z − m) and variance θᵀ(C − C P C) θ, here without a difference
    load = covariance @ slopes
    gain = precisions @ load
    variance = jnp.maximum(w * (gain @ (sigma**2 * slopes)), 0.0)
    # z − m is a matrix times a row (z less a constant, 1), so nothing of the data's size depends on a parameter
    d = len(m)
    origin = lax.stop_gradient(m)
    rows = jnp.pad(z.reshape(-1, d) - origin, ((0, 0), (0, 1)), constant_values=1)
    frame = jnp.concatenate([jnp.eye(d, dtype=m.dtype), (origin - m)[:, None]], axis=1)
    forms, predictors = frame.T @ precisions @ frame, gain @ frame
    predictors = predictors.at[:, d].add(base.intercept + m @ slopes)
    constant = log_roots + 0.5 * d * np.log(2 * np.pi)
    if single:
        # a product with ones, as XLA adds up short rows slowly
        squares = ((rows @ forms[0]) * rows) @ np.ones(d + 1, rows.dtype)
        mean, constant, variance = rows @ predictors[0], constant[0], variance[0]
    else:
        columns, (i, j) = rows.T, diagonal_first_pairs(d + 1)
        squares = (forms[:, i, j] * np.where(i == j, 1, 2)) @ (columns[i] * columns[j])
        mean, constant = predictors @ columns, constant[:, None]
    batch = (*variance.shape, *z.shape[:-1])
    return (-0.5 * squares - constant).reshape(batch), mean.reshape(batch), variance


def _log_mean_response(base: RegressionRows, y: Array, t: Array, v: Array, floor: float | None = None) -> jax.Array:
    """Log E[p(y | t + √v U)], U standard normal; y (*batch), t (q, *batch) and v (q,), or t (*batch) and v (). Finitely
    many responses are tabulated, unless their law has traced parameters, in which a table has no derivatives.
    """
    if base.expansion is not None:
        p = base.expansion.mean(t, v.reshape(*v.shape, *(1,) * y.ndim))
        least = base.expansion.floor if floor is None else floor
        return jnp.log(jnp.clip(jnp.where(y == 1, p, 1 - p), least, 1.0 - least)) + _log_in(BINARY_LABELS, y)
    flat = jnp.reshape(t, (*v.shape, -1))
    if base.response is dist.BernoulliLogits:
        # p(0 | η) = p(1 | −η): one label is enough
        flat = flat * jnp.where(y == 1, 1.0, -1.0).ravel()
        value = smoothed_log(jax.nn.log_sigmoid, 1, jnp.zeros(flat.shape[-1:], int), flat, v)
        return value.reshape(t.shape) + _log_in(BINARY_LABELS, y)
    labels = _labels(base.response)
    if labels is not None:

        def log_p(s: Array, labels: np.ndarray = labels) -> jax.Array:
            return base.response(s).log_prob(labels.reshape(-1, *(1,) * (s.ndim - 1)))

        traced_parameters = jax.closure_convert(log_p, jnp.zeros((len(labels), 1), t.dtype))[1]
        if not traced_parameters:
            index = jnp.sum(jnp.arange(len(labels)) * (y.reshape(-1, 1) == labels), axis=-1)
            return smoothed_log(log_p, len(labels), index, flat, v).reshape(t.shape) + _log_in(labels, y)
    nodes, weights = np.polynomial.hermite_e.hermegauss(base.nodes)
    # the square root has no derivative at 0; moved by this little the sum over pairs of nodes still gives that in v
    spread = jnp.sqrt(jnp.maximum(v, 0.0) + float(jnp.finfo(v.dtype).eps) ** (2 / 3))
    points = t[..., None] + spread.reshape(*v.shape, *(1,) * (y.ndim + 1)) * nodes
    return log_sum(base.response(points).log_prob(y[..., None]) + np.log(weights / np.sqrt(2 * np.pi)))


def _log_in(labels: np.ndarray, y: Array) -> jax.Array:
    """0 for y that is one of the labels, −inf for other numbers, NaN for NaN."""
    return jnp.where(jnp.any(y[..., None] == labels, axis=-1), 0.0, jnp.where(y == y, -jnp.inf, jnp.nan))


def _labels(response: Response) -> np.ndarray | None:
    """Values of the response in order, None if they are many or depend on what is traced."""
    law = response(jnp.zeros((1, 1)))
    ends = ends_of(law.support)
    if not law.support.is_discrete or not is_concrete(ends) or max(map(np.size, ends)) > 1:
        return None
    low, high = (float(np.ravel(end)[0]) for end in ends)
    return np.arange(int(low), int(high) + 1) if high - low < MOST_LABELS else None
