"""Normal laws of numbers and of rows."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular

from ldpbayes._core.pytrees import pytree_dataclass
from ldpbayes._core.types import Array, Key, Params
from ldpbayes.laws.families import Family, register_family
from ldpbayes.laws.parametric import NumberFamily, OneParameterFamily, ParametricFamily, Range, check_bounds
from ldpbayes.numerics.arrays import diagonal_first_pairs, packed, unpacked
from ldpbayes.numerics.special import log_ndtr, stacked
from ldpbayes.numerics.tails import integrated_normal_tail, normal_tails

NORMAL_REACH_DEVIATIONS = 9.0  # standard deviations that hold all of a normal law but 2e-19
LEAST_VARIANCE = 4e-6  # in any direction, for bounds -1 and 1: a thousandth of their distance, squared
ROWS_PER_BLOCK = 2048  # records that are drawn at a time


@register_family(dist.HalfNormal)
class _OfHalfNormal(Family):
    tame = True


@register_family(dist.Normal)
class _OfNormal(Family):
    tame = True

    def tails(self, x: Array) -> jax.Array:
        return normal_tails((x - self.law.loc) / self.law.scale)

    def integrated_tail(self, edges: Array) -> jax.Array:
        return self.law.scale * integrated_normal_tail((edges - self.law.loc) / self.law.scale)

    def log_mass_outside(self, first: Array, last: Array) -> jax.Array:
        # both in one call: compilation time grows with the traced graph
        loc, scale = self.law.loc, self.law.scale
        return log_ndtr(stacked((first - loc) / scale, (loc - last) / scale))


def normal_log_density(base: dist.MultivariateNormal, z: Array) -> jax.Array:
    """``base.log_prob(z)`` of a multivariate normal, all rows in one triangular system where they have one law."""
    if base.batch_shape:
        return base.log_prob(z)
    d = base.event_shape[0]
    white = solve_triangular(base.scale_tril, (z - base.loc).reshape(-1, d).T, lower=True)
    log_root = jnp.sum(jnp.log(jnp.diagonal(base.scale_tril)))
    return -0.5 * jnp.sum(white * white, axis=0).reshape(z.shape[:-1]) - log_root - 0.5 * d * math.log(2 * math.pi)


class NormalLaw(NumberFamily):
    base: ClassVar = dist.Normal

    def reach(self, record: dist.Normal) -> tuple[Array, Array, Array]:
        reach = NORMAL_REACH_DEVIATIONS * record.scale
        return record.loc - reach, record.loc, record.loc + reach

    ranges = property(lambda self: {"loc": (self.lower - self.width, self.upper + self.width)})


@pytree_dataclass
class NormalMean(OneParameterFamily, NormalLaw):
    """Family of normal records of a known standard deviation ``scale`` (positive, in the unit of the data).

    The parameter is ``loc``, the mean, from ``lower`` − w to ``upper`` + w for w = ``upper`` − ``lower``.
    """

    option: ClassVar = "gaussian_mean"
    option_help: ClassVar = {"scale": "known standard deviation"}
    scale: Array
    lower: Array = None
    upper: Array = None
    known_arguments: ClassVar = ("scale",)


@pytree_dataclass
class Normal(NormalLaw):
    """Family of normal records. The parameters are ``loc``, the mean, and ``scale``, the standard deviation.

    The statistics are u and u² for the record u, scaled so that the bounds are −1 and 1. With w = ``upper`` −
    ``lower``, means are estimated from ``lower`` − w to ``upper`` + w, and standard deviations from w/1000 to 10 w.
    """

    option: ClassVar = "gaussian"
    lower: Array = None
    upper: Array = None
    columns: ClassVar[tuple[str, ...]] = ("u", "u*u")

    @property
    def ranges(self) -> dict[str, Range]:
        return super().ranges | {"scale": (1e-3 * self.width, 10 * self.width)}

    def statistics(self, x: Array) -> jax.Array:
        u = self.standardised(self.clamp(x))
        return jnp.stack([u, u**2], axis=-1)

    def sensitivity(self, order: int) -> float:
        """Return the sensitivity of the sum of the statistics: 9/4 for `order` 1 (L1 norm), 2 for `order` 2 (L2).

        Proof. For scaled records u and u', let m = |u − u'|/2 and p = |u + u'|/2 ≤ 1 − m. The L1 distance between (u,
        u²) and (u', u'²) is 2m + 4pm ≤ 6m − 4m², largest at m = 3/4, for u = 1 and u' = −1/2. The squared L2 distance
        is (2m)² + (4pm)² ≤ 4m² (1 + 4 (1 − m)²), which increases for m from 0 to 1, and is reached for u = 1 and u' =
        −1.
        """
        return {1: 2.25, 2: 2.0}[order]

    def mean(self, params: Params) -> jax.Array:
        loc = self.standardised(params["loc"])
        return jnp.stack([loc, loc**2 + (params["scale"] / self.half) ** 2])

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        (narrowest, widest), loc = self.ranges["scale"], self.centre + self.half * mean[0]
        variance = self.half**2 * (mean[1] - mean[0] ** 2)
        within = jnp.clip(loc, *self.ranges["loc"])
        clipped = jnp.clip(variance, narrowest**2, widest**2)
        return {"loc": within, "scale": jnp.sqrt(clipped)}, (within != loc) | (clipped != variance)


@pytree_dataclass
class NormalVector(ParametricFamily):
    """Family of normal rows of d columns. The parameters are ``loc`` (d,), the mean, and ``covariance_matrix`` (d, d).

    The statistics are u_j and u_j² for each column j, and √2 u_j u_k for j < k, of the row u scaled so that the bounds
    of each column, ``lower`` (d,) and ``upper`` (d,), are −1 and 1. An estimated mean outside the bounds is moved to
    the nearest one, and eigenvalues of the estimated covariance of u below 4e-6 are raised to it.
    """

    option: ClassVar = "multivariate_normal"
    lower: Array = None
    upper: Array = None
    base: ClassVar = dist.MultivariateNormal
    accounts_for_clamping: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_bounds(self, "finite numbers, one for each column", lambda a: np.isfinite(a) & (a.ndim == 1))

    event_shape = property(lambda self: (self.dimension,))
    dimension = property(lambda self: len(self.lower))

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        d = self.dimension
        first = tuple(f"u{j}" for j in range(d))
        return first + tuple(f"u{j}*u{k}" for j, k in zip(*diagonal_first_pairs(d), strict=True))

    def statistics(self, x: Array) -> jax.Array:
        u = self.standardised(self.clamp(x))
        return jnp.concatenate([u, packed(u[..., :, None] * u[..., None, :], "scaled")], axis=-1)

    def sensitivity(self, order: int) -> float:
        """Return the sensitivity of the sum of the statistics, in the L1 norm (`order` 1) or the L2 norm (`order` 2).

        With s = √2, it is d (6 + 2s (d − 1))²/(4 (2s d + 4 − 2s)) in the L1 norm, and √(2d (d + 1)) in the L2 norm.

        Proof. For scaled records u and u', in each column, let m = |u − u'|/2 and p = |u + u'|/2 ≤ 1 − m. Then |u_j u_k
        − u'_j u'_k| is at most 2 (p_j m_k + m_j p_k), so the distance of the statistics is largest for u = 1 in all
        columns, with u' = 1 − 2m. In the L1 norm it is (6 + 2s(d − 1)) M − 2s M² − (4 − 2s) Σm², with the sum M of m
        over the columns: a concave function, largest if all m are equal. The squared L2 distance is |1 − u'|² + d² +
        |u'|⁴ − 2 (1·u')². For d > 1, it is convex in each column, and so largest in a corner, where all entries of u'
        are −1 or 1: one where they sum to 0 or −1.
        """
        d, s = self.dimension, math.sqrt(2.0)
        if order == 2:
            return math.sqrt(2.0 * d * (d + 1))
        return d * (6 + 2 * s * (d - 1)) ** 2 / (4 * (2 * s * d + 4 - 2 * s))

    def split(self, mean: Array) -> tuple[jax.Array, jax.Array]:
        """Moments (d,) and (d, d) of scaled columns, from a noisy `mean` of the statistics."""
        d = self.dimension
        return mean[:d], unpacked(mean[d:], d, "scaled")

    def nearest(self, params: Params) -> Params:
        unit = jnp.outer(self.half, self.half)
        covariance, _ = with_least_eigenvalue(params["covariance_matrix"] / unit, LEAST_VARIANCE)
        return {"loc": jnp.clip(params["loc"], self.lower, self.upper), "covariance_matrix": covariance * unit}

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        first, second = self.split(mean)
        within = jnp.clip(first, -1.0, 1.0)
        covariance, raised = with_least_eigenvalue(second - jnp.outer(within, within), LEAST_VARIANCE)
        loc, unit = self.centre + self.half * within, jnp.outer(self.half, self.half)
        return {"loc": loc, "covariance_matrix": covariance * unit}, raised | jnp.any(within != first)

    def covariance(self, params: Params, noise: Array, count: Array, *, clamped: bool) -> jax.Array:
        covariance, d = params["covariance_matrix"], self.dimension
        once = jnp.einsum("ik,jl->ijkl", covariance, covariance)
        of_second = (once + once.swapaxes(0, 1)).reshape(d * d, d * d)
        first = self.standardised(params["loc"])
        second = covariance / jnp.outer(self.half, self.half) + jnp.outer(first, first)

        def flat_params(mean: jax.Array) -> jax.Array:
            one, two = self.split(mean)
            entries = (two - jnp.outer(one, one)) * jnp.outer(self.half, self.half)
            return jnp.concatenate([entries.ravel(), self.half * one])

        response = jax.jacfwd(flat_params)(jnp.concatenate([first, packed(second, "scaled")]))
        of_records = jax.scipy.linalg.block_diag(of_second, covariance) / count
        return of_records + noise / count**2 * response @ response.T

    def total(self, key: Key, params: Params, count: Array) -> jax.Array:
        # records are drawn and clamped, a block at a time
        root = jnp.linalg.cholesky(params["covariance_matrix"])

        def block_total(key: Key, size: int) -> jax.Array:
            rows = params["loc"] + jax.random.normal(key, (size, self.dimension), root.dtype) @ root.T
            return self.statistics(rows).sum(axis=0)

        whole, rest = divmod(int(count), ROWS_PER_BLOCK)
        keys = jax.random.split(key, whole + 1)
        start = block_total(keys[0], rest)
        return jax.lax.scan(lambda total, key: (total + block_total(key, ROWS_PER_BLOCK), None), start, keys[1:])[0]


def with_least_eigenvalue(matrix: jax.Array, least: Array) -> tuple[jax.Array, jax.Array]:
    """The nearest symmetric matrix with no eigenvalue below ``least``, and whether any had to be raised."""
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * jnp.maximum(values, least)) @ vectors.T, values[0] < least
