"""Sums of regression statistics over many records: normal, by the central limit theorem."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import erf
from numpyro.distributions import constraints

from ldpbayes._core.types import Array, Key
from ldpbayes.likelihood._masses import normal_log_density
from ldpbayes.likelihood.registry import register_closed_form
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.noise import Gaussian, IndependentGaussian
from ldpbayes.numerics.arrays import OFF_DIAGONALS, diagonal_first_pairs

WIDE = 4.5  # standard deviation of a predictor beyond which its expectations are sums over points around 0


class SumOfStatistics(dist.Distribution):
    """Law of Σ t(record) over independent records, as the normal law of its mean and covariance.

    Parameters
    ----------
    each_mean, each_covariance : array (p,), array (p, p)
        E[t] and Cov[t] of one record; the covariance may be singular.
    count : array_like
        Number of records; may be a latent variable of the model.
    """

    arg_constraints = {
        "each_mean": constraints.real_vector,
        "each_covariance": constraints.independent(constraints.real, 2),
        "count": constraints.positive,
    }
    support = constraints.real_vector

    def __init__(
        self, each_mean: Array, each_covariance: Array, count: Array, *, validate_args: bool | None = None
    ) -> None:
        self.each_mean, self.each_covariance, self.count = each_mean, each_covariance, count
        batch = jnp.broadcast_shapes(jnp.shape(each_mean)[:-1], jnp.shape(each_covariance)[:-2], jnp.shape(count))
        super().__init__(batch, jnp.shape(each_mean)[-1:], validate_args=validate_args)

    @property
    def mean(self) -> jax.Array:
        return jnp.asarray(self.count)[..., None] * self.each_mean

    @property
    def covariance_matrix(self) -> jax.Array:
        return jnp.asarray(self.count)[..., None, None] * self.each_covariance

    @property
    def variance(self) -> jax.Array:
        return jnp.diagonal(self.covariance_matrix, axis1=-2, axis2=-1)

    def sample(self, key: Key, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        # not Cholesky: statistics that do not vary, such as those of a constant column, make it singular
        values, vectors = jnp.linalg.eigh(self.covariance_matrix)
        root = vectors * jnp.sqrt(jnp.maximum(values, 0.0))[..., None, :]
        draw = jax.random.normal(key, sample_shape + self.batch_shape + self.event_shape, root.dtype)
        return self.mean + jnp.einsum("...ij,...j->...i", root, draw)

    def log_prob(self, value: Array, intermediates: Any = None) -> jax.Array:
        """Of a sum that was not perturbed; its covariance must not be singular."""
        return normal_log_density(dist.MultivariateNormal(self.mean, self.covariance_matrix), value)


@register_closed_form(SumOfStatistics, (Gaussian, IndependentGaussian), bounded=False)
def statistics_gaussian(base: SumOfStatistics, mechanism: Additive, z: Array) -> jax.Array:
    """Sums of statistics plus Gaussian noise: N(z; N μ, N Σ + noise) ([KJKH] eq. 3)."""
    variance = jnp.broadcast_to(mechanism.noise.over_columns(mechanism.noise.variance), base.event_shape)
    total = base.covariance_matrix + variance[..., None] * jnp.eye(base.event_shape[0])
    return normal_log_density(dist.MultivariateNormal(base.mean, total, validate_args=False), z)


def linear_rows(
    covariates: dist.MultivariateNormal, slopes: Array, standard_deviation: Array, intercept: Array = 0.0
) -> dist.MultivariateNormal:
    """Law of rows (x, y) of a linear regression: x ~ N(m, Σ), y | x ~ N(intercept + slopes·x, σ²).

    It has event shape (d + 1,), mean (m, intercept + θᵀm) and covariance [[Σ, Σθ], [θᵀΣ, θᵀΣθ + σ²]], θ the slopes.

    Parameters
    ----------
    covariates : numpyro.distributions.MultivariateNormal
        Law of the covariates, event shape (d,).
    slopes : array (*batch, d)
        Coefficients, in the unit of y per that of each x.
    standard_deviation, intercept : array_like
        σ, and the mean of y where all covariates are 0.
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

    By Isserlis' theorem the products w_i w_j and w_k w_l of entries of w = (x, y) have the covariance
    M_ik M_jl + M_il M_jk − 2 m_i m_j m_k m_l, where m and M are the first and second moments ([KJKH] supplement 13.1).
    For a zero mean the sum of outer products is exactly Wishart; the normal law is that of many records.

    Parameters
    ----------
    rows : numpyro.distributions.MultivariateNormal
        Of a record (x, y), the response last, as of `linear_rows`.
    count : array_like
        Number of records.
    off_diagonal : {"scaled", "once"}
        s, as in `LinearStatisticsMechanism`.
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

    def block(rows: np.ndarray, columns: np.ndarray) -> jax.Array:
        return moment[..., rows[:, None], columns]

    product = m[..., i] * m[..., j]
    each = block(i, i) * block(j, j) + block(i, j) * block(j, i) - 2 * product[..., :, None] * product[..., None, :]
    return moment[..., i, j], each


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
    expectations are integrals in one dimension. [KJKHK] expands the sigmoid for these moments, which are exact here.

    Parameters
    ----------
    covariates, slopes, intercept
        As in `linear_rows`, without a batch; the intercept is the predictor where all covariates are 0.
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
    each = jnp.block([[factor[:, None] * factor * second, cross], [cross.T, last]])
    return SumOfStatistics(jnp.concatenate([factor * mean, with_y]), each, count)


def _expected_tanh(mean: Array, variance: Array) -> tuple[Array, Array, Array, Array]:
    """Expectations of g(η) = tanh(η/2) and its first three derivatives, η normal, to 1e-11 by the trapezoid rule. Its
    error is of order exp(−2π · π/step), as the poles of g are π away from the real line. Steps are an eighth of the
    standard deviation; where that is wide the 129 points are around 0 instead, beyond which g less an error function,
    whose expectation is known, vanishes.
    """
    points = np.arange(-64, 65)
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
    expected = (weights * jnp.stack([g - erf(t / 2), g1, g2, g3])).sum(axis=-1)
    return expected[0] + erf(mean / jnp.sqrt(4 + 2 * variance)), expected[1], expected[2], expected[3]
