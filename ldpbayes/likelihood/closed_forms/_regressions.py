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

from ldpbayes._core.checks import ONE_POSITIVE, at_least, checked, refuse
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array, Key
from ldpbayes.likelihood.closed_forms._normal import mixing_precisions, mixing_rule, normal_rows_gaussian
from ldpbayes.likelihood.families import ends_of, normal_log_density
from ldpbayes.likelihood.registry import register_closed_form
from ldpbayes.mechanisms import LogisticRecordsMechanism
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.noise import Gaussian, IndependentGaussian, SymmetricLaplace
from ldpbayes.numerics.arrays import OFF_DIAGONALS, diagonal_first_pairs
from ldpbayes.numerics.smoothed import smoothed_log
from ldpbayes.numerics.special import log_sum

WIDE = 4.5  # standard deviation of a predictor beyond which its expectations are sums over points around 0
BINARY = np.arange(2)  # the labels 0 and 1
MOST_LABELS = 32  # that a response may have if it is tabulated
FEWEST_SCALES = 36  # nodes over the scale of symmetric Laplace noise, where the rest is exact to 1e-8


class SumOfStatistics(dist.Distribution):
    """Law of a sum of statistics t(record) over independent records: a normal law with mean and covariance of the sum.

    ``each_mean`` (p,) and ``each_covariance`` (p, p), which may be singular, are mean and covariance of t of one
    record. The number of records, ``count``, may be a latent variable of the model.
    """

    arg_constraints = {
        "each_mean": constraints.real_vector,
        "each_covariance": constraints.independent(constraints.real, 2),
        "count": constraints.positive,
    }
    support = constraints.real_vector
    mean = property(lambda self: jnp.asarray(self.count)[..., None] * self.each_mean)
    covariance_matrix = property(lambda self: jnp.asarray(self.count)[..., None, None] * self.each_covariance)
    variance = property(lambda self: jnp.diagonal(self.covariance_matrix, axis1=-2, axis2=-1))

    def __init__(self, each_mean: Array, each_covariance: Array, count: Array, *, validate_args: bool | None = None):
        self.each_mean, self.each_covariance, self.count = each_mean, each_covariance, count
        batch = jnp.broadcast_shapes(jnp.shape(each_mean)[:-1], jnp.shape(each_covariance)[:-2], jnp.shape(count))
        super().__init__(batch, jnp.shape(each_mean)[-1:], validate_args=validate_args)

    def sample(self, key: Key, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        # not Cholesky: statistics that do not vary, such as those of a constant column, make it singular
        values, vectors = jnp.linalg.eigh(self.covariance_matrix)
        root = vectors * jnp.sqrt(jnp.maximum(values, 0.0))[..., None, :]
        draw = jax.random.normal(key, sample_shape + self.batch_shape + self.event_shape, root.dtype)
        return self.mean + jnp.einsum("...ij,...j->...i", root, draw)

    def log_prob(self, value: Array, intermediates: Any = None) -> jax.Array:
        """Return the log density of unperturbed sums (*batch, p). The covariance must not be singular."""
        return normal_log_density(dist.MultivariateNormal(self.mean, self.covariance_matrix), value)


# N(z; N μ, N Σ + noise) ([KJKH] eq. 3)
register_closed_form(SumOfStatistics, (Gaussian, IndependentGaussian), bounded=False)(normal_rows_gaussian)


def linear_rows(
    covariates: dist.MultivariateNormal, slopes: Array, standard_deviation: Array, intercept: Array = 0.0
) -> dist.MultivariateNormal:
    """Law of rows (x, y) of a linear regression: x ~ N(m, Σ), y | x ~ N(intercept + slopes·x, σ²).

    It has event shape (d + 1,), mean (m, intercept + θᵀm) and covariance [[Σ, Σθ], [θᵀΣ, θᵀΣθ + σ²]]; θ are the slopes.

    Parameters
    ----------
    covariates : numpyro.distributions.MultivariateNormal
        Law of the covariates, event shape (d,).
    slopes : array (*batch, d)
        Coefficients, in the unit of y for each unit of x.
    standard_deviation, intercept : array_like
        σ, and the mean of y where all covariates are 0, in the unit of y.
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
    """Law of the sum of [x_j², s x_j x_k, x_j y, y²] over records (x, y) with a normal law.

    By Isserlis' theorem the products w_i w_j and w_k w_l of entries of w = (x, y) have the covariance M_ik M_jl + M_il
    M_jk − 2 m_i m_j m_k m_l, where m and M are the first and second moments ([KJKH] supplement 13.1).

    ``rows`` is the law of a record (x, y), with the response last, such as `linear_rows`. ``count`` is the number of
    records. ``off_diagonal``, "scaled" or "once", determines s, as in `LinearStatisticsMechanism`.
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
    """Law of the sum of [x_j², s x_j x_k, x_j y] over records of a logistic regression, y in {−1, 1}.

    With x ~ N(m, Σ) and g(η) = E[y | η] = tanh(η/2) of the predictor η = intercept + slopes·x, moments with y follow
    from Stein's identity: with a = Σ·slopes, E[g x_i] = m_i E[g] + a_i E[g′], and so on up to three derivatives, whose
    expectations are integrals in one dimension. [KJKHK] expands the sigmoid instead.

    Parameters
    ----------
    covariates : numpyro.distributions.MultivariateNormal
        Law of the covariates, event shape (d,), without a batch.
    slopes, intercept : array (d,), float
        Coefficients, in log-odds for each unit of x, and the predictor at x = 0, in log-odds.
    count, off_diagonal : array_like, {"scaled", "once"}
        Number of records in the sum; the rule for the factor s (√2 or 1) in `LogisticStatisticsMechanism`.
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
    each = jnp.block([[factor[:, None] * factor * second, cross], [cross.T, last]])
    return SumOfStatistics(jnp.concatenate([factor * mean, with_y]), each, count)


def _expected_tanh(mean: Array, variance: Array) -> tuple[Array, ...]:
    """Expectations of g(η) = tanh(η/2) and its first three derivatives, η normal, to 1e-11 by the trapezoid rule, whose
    error is of order exp(−2π · π/step): poles of g are π away from the real line. Steps are σ/8.
    """
    points = np.arange(-64, 65)
    # if σ is wide the points are around 0, beyond which g less erf(η/2), of known expectation, vanishes
    wide = variance > WIDE**2
    narrow = jnp.sqrt(jnp.where(wide | (variance <= 0), WIDE**2, variance))
    far = jnp.sqrt(jnp.where(wide, variance, WIDE**2))
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
    """Polynomial that replaces the sigmoid. The mean of the polynomial over a normal predictor is a polynomial, too.

    The mean is clipped to [0, 1]. If responses are released without noise, it is clipped to [`floor`, 1 − `floor`]. Its
    gradient is 0 beyond. Source: [KJKH] supplement 7 and 12.2; defaults of Figure 6.

    Parameters
    ----------
    order : int
        Order of the last Chebyshev polynomial, at least 1.
    half_width, floor : float
        The sigmoid is expanded on [−half_width, half_width], in the unit of the predictor (log-odds). ``floor`` is the
        least probability of a response that is released without noise, inside (0, 1/2).
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
        """Coefficients of the powers 0, 1, ..., order of the predictor."""
        sigmoid, terms = lambda x: 0.5 * (1 + np.tanh(0.5 * self.half_width * x)), self.order + 1
        series = np.polynomial.chebyshev.chebinterpolate(sigmoid, 2 * self.order + 199)[:terms]
        powers = np.polynomial.chebyshev.cheb2poly(series)  # without trailing zeros
        return np.pad(powers, (0, terms - len(powers))) / float(self.half_width) ** np.arange(terms)

    def mean(self, t: Array, v: Array) -> jax.Array:
        """Return the mean of the unclipped expansion over a predictor with mean t and variance v; shapes broadcast."""
        before, moment, total = jnp.zeros_like(t), jnp.ones_like(t), jnp.zeros_like(t)
        for k, coefficient in enumerate(self.coefficients):
            total = total + float(coefficient) * moment
            before, moment = moment, t * moment + k * v * before
        return total


Response = Callable[[Any], dist.Distribution]  # linear predictors → law of the responses


class RegressionRows(dist.Distribution):
    """Law of rows of covariates x ~ N(m, C) and a response y ~ response(intercept + xᵀ slopes).

    A mechanism perturbs all columns except the response, or also the response by randomized response
    (`LogisticRecordsMechanism`). The latent x, and y if it is perturbed, are integrated out. Given the released
    covariates and, under symmetric Laplace noise, the scale W of their noise, the predictor is normal. W is integrated
    out, too. For logit and probit responses, the log density is exact to 1e-8 if every principal standard deviation of
    the covariates is at least a tenth of the standard deviation of the noise, except for extremely improbable rows
    (Notes). Clipping is ignored: the bounds should contain (nearly) all x.

    Parameters
    ----------
    covariates : numpyro.distributions.MultivariateNormal
        Law of the covariates, event shape (d,), batch shape ().
    response : callable
        Linear predictor (an array) → numpyro.distributions.Distribution of y, such as ``BernoulliLogits``.
    slopes, intercept : array (d,) and array_like
        Coefficients of the covariates, in the unit of the predictor for each unit of a covariate; the predictor where
        all covariates are 0.
    place, scales, nodes : int
        Position of the response in a row; number of nodes of the integral over W (at least 36 are used); number of
        Gauss-Hermite nodes over the predictor, for responses that cannot be tabulated: with infinitely many values, or
        a law that depends on other traced parameters, such as an overdispersion.
    expansion : ChebyshevExpansion, optional
        Polynomial that replaces the sigmoid of a logistic response (``BernoulliLogits`` only), as in [KJKH]. Default:
        none.

    Notes
    -----
    For a row whose log density is L below the largest, 12 ≤ L ≤ 40, the rule over W has an error near 2 exp(−2π²/(L
    h²)), with h = (6.7 − 0.7 log s)/(scales − 1) and s the smallest principal variance of the covariates over that of
    the noise, at most 1. With 36 scales and s = 1/100 this is 1e-5 at L = 20 and 5e-4 at 30, with 72 scales less than
    1e-7. Beyond L = 40 densities are too small. A response with a probability below exp(−20) is exact to 1e-4.
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
            raise ValueError(f"expansion is one of the sigmoid, for BernoulliLogits only; the response is {response!r}")
        self.covariates, self.response, self.slopes, self.intercept = covariates, response, slopes, intercept
        self.place, self.scales, self.nodes, self.expansion = place % width, scales, nodes, expansion
        super().__init__((), (width,), validate_args=validate_args)

    def sample(self, key: Key, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        keys = jax.random.split(key)
        x = self.covariates.sample(keys[0], sample_shape)
        y = self.response(self.intercept + x @ self.slopes).sample(keys[1])
        return jnp.insert(x, self.place, y.astype(x.dtype), axis=-1)

    def log_prob(self, value: Array, intermediates: Array = None) -> jax.Array:
        """Return the log density (*batch) of unperturbed rows (*batch, columns)."""
        x, y = self.parts(value)
        return normal_log_density(self.covariates, x) + self.response(self.intercept + x @ self.slopes).log_prob(y)

    def parts(self, value: Array) -> tuple[Array, Array]:
        """Return covariates (*batch, d) and responses (*batch) of rows. NumPy arrays stay NumPy arrays."""
        xp = np if isinstance(value, np.ndarray) else jnp
        return xp.delete(value, self.place, axis=-1), value[..., self.place]


@register_closed_form(RegressionRows, SymmetricLaplace)
def regression_rows(base: RegressionRows, mechanism: Additive, z: Array) -> jax.Array:
    """Rows (z, y) under symmetric Laplace noise in all columns but the response."""
    sigma, x, y = _checked(base, mechanism, z)
    smallest = jnp.linalg.eigvalsh(lax.stop_gradient(base.covariates.covariance_matrix))[0] / sigma**2
    tiny = float(jnp.finfo(smallest.dtype).eps)
    w, log_weights = mixing_rule(max(base.scales, FEWEST_SCALES), jnp.maximum(lax.stop_gradient(smallest), tiny))
    log_density, mean, variance = _given_covariates(base, sigma, w, x)
    terms = log_weights.reshape(-1, *(1,) * y.ndim) + log_density + _log_mean_response(base, y, mean, variance)
    return log_sum(terms, axis=0)


@register_closed_form(RegressionRows, (Gaussian, IndependentGaussian))
def regression_rows_gaussian(base: RegressionRows, mechanism: Additive, z: Array) -> jax.Array:
    """Rows (z, y) under Gaussian noise in all columns but the response."""
    sigma, x, y = _checked(base, mechanism, z)
    log_density, mean, variance = _given_covariates(base, sigma, None, x)
    return log_density + _log_mean_response(base, y, mean, variance)


@register_closed_form(RegressionRows, LogisticRecordsMechanism)
def regression_rows_logistic(base: RegressionRows, mechanism: LogisticRecordsMechanism, z: Array) -> jax.Array:
    """Log N(z_x) + log(q + (1 − 2q) p), p = P(y is as released | z_x) and q = 1/(1 + exp(epsilon)) that of a flip."""
    if base.response(jnp.zeros((1, 1))).support is not constraints.boolean:
        raise ValueError(f"randomized response is for responses of 0 and 1, and not for {base.response!r}")
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
        raise ValueError(f"the mechanism must perturb all columns but the response, {base.place}; got {mechanism}")
    sigma = jnp.asarray(mechanism.noise.standard_deviation)
    if sigma.ndim > (1 if isinstance(mechanism.noise, IndependentGaussian) else 0):
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
        return jnp.log(jnp.clip(jnp.where(y == 1, p, 1 - p), least, 1.0 - least)) + _log_in(BINARY, y)
    flat = jnp.reshape(t, (*v.shape, -1))
    if base.response is dist.BernoulliLogits:
        # p(0 | η) = p(1 | −η): one label is enough
        flat = flat * jnp.where(y == 1, 1.0, -1.0).ravel()
        value = smoothed_log(jax.nn.log_sigmoid, 1, jnp.zeros(flat.shape[-1:], int), flat, v)
        return value.reshape(t.shape) + _log_in(BINARY, y)
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
