"""Laws of numbers, and normal rows: their facts, and their families for the bootstrap."""

import abc
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy import special
from jax.scipy.linalg import solve_triangular
from jax.scipy.stats import norm

from ldpbayes._core.pytrees import pytree_dataclass
from ldpbayes._core.types import Array, Key, Params
from ldpbayes.laws.families import Family, is_empty, register_family
from ldpbayes.laws.parametric import NumberFamily, OneParameterFamily, ParametricFamily, Range, check_bounds
from ldpbayes.numerics.arrays import diagonal_first_pairs, packed, unpacked
from ldpbayes.numerics.special import betainc, log1mexp, log_ndtr, relative_expm1, stacked, student_t_cdf

NORMAL_REACH_DEVIATIONS = 9.0  # standard deviations that hold all of a normal law but 2e-19
LEAST_VARIANCE = 4e-6  # in any direction, for bounds -1 and 1: a thousandth of their distance, squared
ROWS_PER_BLOCK = 2048  # records that are drawn at a time


@register_family(dist.Beta)
class _OfBeta(Family):
    def cdf(self, x: Array) -> jax.Array:
        """With derivatives in both concentrations, which NumPyro's own lacks."""
        return betainc(1.0 * self.law.concentration1, 1.0 * self.law.concentration0, x)  # perhaps whole numbers


@register_family(dist.Cauchy, dist.HalfCauchy)
class _OfCauchy(Family):
    tame = True

    def centres(self) -> list[tuple[Array, Array]]:
        """Without moments, of which there are none, or which may be infinite."""
        return [(getattr(self.law, "loc", 0.0), self.law.scale)]


@register_family(dist.Exponential)
class _OfExponential(Family):
    tame = True

    def log_mass_outside(self, first: Array, last: Array) -> jax.Array:
        below = -np.inf if is_empty(first, 0.0, -1) else log1mexp(-self.law.rate * jnp.maximum(first, 0.0))
        return stacked(below, -self.law.rate * jnp.maximum(last, 0.0))


@register_family(dist.HalfNormal)
class _OfHalfNormal(Family):
    tame = True


@register_family(dist.AsymmetricLaplace, dist.AsymmetricLaplaceQuantile)
class _OfAsymmetricLaplace(Family):
    def breaks(self) -> list[Array]:
        return [self.law.loc]


class _OfSymmetric(Family):
    """The law of loc + scale·X, by facts about X, which is symmetric about 0."""

    tame = True

    def standard_tail(self, x: Array) -> jax.Array:
        """P(X ≤ x) at x ≤ 0."""
        raise NotImplementedError

    def first_moments(self, x: Array) -> jax.Array:
        """∫ s f(s) ds (n − 1, ...) between neighbouring x (n, ...), with the density f of X."""
        raise NotImplementedError(f"{type(self.law).__name__} has no integrated tail")

    def cdf(self, x: Array) -> jax.Array:
        """With derivatives at the centre and in all parameters, of which NumPyro's own lack some."""
        return self.tails(x)[0]

    def tails(self, x: Array) -> jax.Array:
        x = (x - self.law.loc) / self.law.scale
        smaller = self.standard_tail(jnp.where(x < 0, x, -x))  # abs() would have no derivative at the centre
        larger = 1.0 - smaller
        return jnp.stack([jnp.where(x < 0, smaller, larger), jnp.where(x < 0, larger, smaller)])

    def integrated_tail(self, edges: Array) -> jax.Array:
        """By parts: the change of s P(X > s), and the first moments."""
        x = (edges - self.law.loc) / self.law.scale
        products = x * self.tails(edges)[1]
        return self.law.scale * (products[1:] - products[:-1] + self.first_moments(x))


@register_family(dist.Logistic)
class _OfLogistic(_OfSymmetric):
    def standard_tail(self, x: Array) -> jax.Array:
        return jax.nn.sigmoid(x)


@register_family(dist.Normal)
class _OfNormal(_OfSymmetric):
    def standard_tail(self, x: Array) -> jax.Array:
        return special.ndtr(x)

    def first_moments(self, x: Array) -> jax.Array:
        density = norm.pdf(x)
        return density[:-1] - density[1:]

    def log_mass_outside(self, first: Array, last: Array) -> jax.Array:
        # both in one call: compilation time grows with the traced graph
        loc, scale = self.law.loc, self.law.scale
        return log_ndtr(stacked((first - loc) / scale, (loc - last) / scale))


@register_family(dist.Laplace)
class _OfLaplace(_OfSymmetric, _OfAsymmetricLaplace):
    def standard_tail(self, x: Array) -> jax.Array:
        return 0.5 * jnp.exp(x)

    def first_moments(self, x: Array) -> jax.Array:
        far = jnp.where(x < 0, -x, x)
        beyond = 0.5 * (1.0 + far) * jnp.exp(-far)  # ∫ s f(s) ds from there to infinity
        return beyond[:-1] - beyond[1:]


@register_family(dist.StudentT)
class _OfStudentT(_OfSymmetric, _OfCauchy):
    tame = False

    def standard_tail(self, x: Array) -> jax.Array:
        return student_t_cdf(self.law.df, x)

    def first_moments(self, x: Array) -> jax.Array:
        # From a to b they are f(0) ν/2 · A^(−m) · L · (1 − exp(−m L))/(m L), with A = 1 + a²/ν, B = 1 + b²/ν, L =
        # log(B/A) and m = (ν − 1)/2, also for ν = 1, where X has no mean.
        df, logs = self.law.df, jnp.log1p(x * x / self.law.df)
        at_center = jnp.exp(special.gammaln(0.5 * (df + 1)) - special.gammaln(0.5 * df)) / jnp.sqrt(df * math.pi)
        m, step = 0.5 * (df - 1), logs[1:] - logs[:-1]
        return 0.5 * at_center * df * jnp.exp(-m * logs[:-1]) * step * relative_expm1(m * step)


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
    unit = property(lambda self: jnp.outer(self.half, self.half), doc="What covariances of scaled columns are times.")

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
        covariance, _ = with_least_eigenvalue(params["covariance_matrix"] / self.unit, LEAST_VARIANCE)
        return {"loc": jnp.clip(params["loc"], self.lower, self.upper), "covariance_matrix": covariance * self.unit}

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        first, second = self.split(mean)
        within = jnp.clip(first, -1.0, 1.0)
        covariance, raised = with_least_eigenvalue(second - jnp.outer(within, within), LEAST_VARIANCE)
        params = {"loc": self.centre + self.half * within, "covariance_matrix": covariance * self.unit}
        return params, raised | jnp.any(within != first)

    def covariance(self, params: Params, noise: Array, count: Array, *, clamped: bool) -> jax.Array:
        covariance, d = params["covariance_matrix"], self.dimension
        once = jnp.einsum("ik,jl->ijkl", covariance, covariance)
        of_second = (once + once.swapaxes(0, 1)).reshape(d * d, d * d)
        first = self.standardised(params["loc"])
        second = covariance / self.unit + jnp.outer(first, first)

        def flat_params(mean: jax.Array) -> jax.Array:
            one, two = self.split(mean)
            return jnp.concatenate([((two - jnp.outer(one, one)) * self.unit).ravel(), self.half * one])

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


class WaitingTimes(OneParameterFamily):
    """Gamma records of a known field ``concentration``; the parameter is their ``rate``."""

    concentration: Array
    record_range = (0.0, math.inf)
    ranges = property(lambda self: {"rate": tuple(c * self.concentration / self.upper for c in (0.1, 1e3))})

    def of_mean(self, mean: Array) -> Array:
        return self.concentration / mean


@pytree_dataclass
class Exponential(WaitingTimes):
    """Family of exponential records. The parameter is ``rate``; 1/``rate`` is from ``upper``/1000 to 10 ``upper``."""

    option: ClassVar = "exponential"
    upper: Array = None
    base: ClassVar = dist.Exponential
    concentration = 1.0
    lower = 0.0

    def reach(self, record: dist.Exponential) -> tuple[Array, Array, Array]:
        return 0.0, 3 / record.rate, 42 / record.rate  # beyond which there is 1e-18


class GammaLaw(NumberFamily):
    """The gamma law, whose density is smooth in the logarithm, falling by exp(−concentration) a unit."""

    base: ClassVar = dist.Gamma
    record_range = (0.0, math.inf)
    open_range: ClassVar[str | None] = "and positive, because the logarithm of a record is a statistic"
    coordinate: ClassVar = (jnp.log, jnp.exp)

    def reach(self, record: dist.Gamma) -> tuple[Array, Array, Array]:
        concentration, mode = record.concentration, jnp.log(record.concentration / record.rate)
        left = jnp.sqrt(74 / concentration) + 37 / concentration  # exp(−37) of the density at the mode is left there
        return mode - left, mode, mode + jnp.log1p(jnp.sqrt(74 / concentration) + 40 / concentration)

    def density(self, record: dist.Gamma, y: Array) -> jax.Array:
        concentration = record.concentration
        away = y - jnp.log(concentration / record.rate)
        at_mode = concentration * (jnp.log(concentration) - 1) - special.gammaln(concentration)
        return jnp.exp(at_mode - concentration * (jnp.exp(away) - 1 - away))


@pytree_dataclass
class GammaRate(WaitingTimes, GammaLaw):
    """Family of gamma records of a known shape ``concentration`` (positive), with positive bounds.

    The parameter is ``rate``. The estimated mean is limited to the range from ``upper``/1000 to 10 ``upper``.
    """

    option: ClassVar = "gamma_rate"
    option_help: ClassVar = {"concentration": "known shape"}
    concentration: Array
    lower: Array = None
    upper: Array = None
    known_arguments: ClassVar = ("concentration",)


class ScaledStatistics(NumberFamily):
    """Families of two monotone statistics of a record, each moved and scaled to be 0 at a bound and 1 at the other."""

    @abc.abstractmethod
    def natural(self, x: Array) -> jax.Array:
        """The statistics (*batch, 2) in their own units."""

    def extremes(self) -> tuple[jax.Array, jax.Array]:
        """Their least and their largest values (2,) between the bounds."""
        ends = [self.natural(jnp.asarray(end, float)) for end in (self.lower, self.upper)]
        return jnp.minimum(*ends), jnp.maximum(*ends)

    def scaled(self, natural: jax.Array) -> jax.Array:
        least, most = self.extremes()
        return (natural - least) / (most - least)

    def statistics(self, x: Array) -> jax.Array:
        return self.scaled(self.natural(self.clamp(x)))

    def sensitivity(self, order: int) -> float:
        return {1: 2.0, 2: math.sqrt(2.0)}[order]  # between the bounds: both statistics move from 0 to 1 or back


@pytree_dataclass
class Gamma(ScaledStatistics, GammaLaw):
    """Family of gamma records, with positive bounds. The parameters are ``concentration``, the shape, and ``rate``.

    The statistics are log x and x, scaled to the range from 0 to 1 between the bounds. The concentration is estimated
    from 0.01 to 1000, and the rate from 0.001/``upper`` to 1000/``lower``.
    """

    option: ClassVar = "gamma"
    lower: Array = None
    upper: Array = None
    columns: ClassVar[tuple[str, ...]] = ("log x", "x")
    ranges = property(lambda self: {"concentration": (0.01, 1e3), "rate": (1e-3 / self.upper, 1e3 / self.lower)})

    def natural(self, x: Array) -> jax.Array:
        return jnp.stack([jnp.log(x), x], axis=-1)

    def mean(self, params: Params) -> jax.Array:
        concentration, rate = params["concentration"], params["rate"]
        return self.scaled(jnp.stack([special.digamma(concentration) - jnp.log(rate), concentration / rate]))

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        """Solve log k − ψ(k) = log mean(x) − mean(log x) for the concentration k, ψ the digamma function ([Minka]). If
        the right side is not positive, the likelihood has no maximum, and k is the largest allowed number.
        """
        least, most = self.extremes()
        log_x, x = least + (most - least) * mean
        inside = jnp.clip(x, self.lower, self.upper)
        ks, rates = self.ranges["concentration"], self.ranges["rate"]
        gap = jnp.log(inside) - log_x
        clipped = jnp.clip(gap, *(jnp.log(k) - special.digamma(k) for k in ks[::-1]))
        k = (3 - clipped + jnp.sqrt((clipped - 3) ** 2 + 24 * clipped)) / (12 * clipped)
        for _ in range(5):  # each squares the relative error, which starts below 0.015 ([Minka])
            error = jnp.log(k) - special.digamma(k) - clipped
            k = 1 / (1 / k + error / (k**2 * (1 / k - special.polygamma(1, k))))
        k = jnp.clip(k, *ks)
        return {"concentration": k, "rate": jnp.clip(k / inside, *rates)}, (inside != x) | (clipped != gap)


@pytree_dataclass
class Beta(ScaledStatistics):
    """Family of beta records, of density ∝ x^(``concentration1`` − 1) (1 − x)^(``concentration0`` − 1).

    The statistics are log x and log(1 − x), scaled to the range from 0 to 1 between the bounds, which must be strictly
    between 0 and 1. Both parameters, the concentrations, are estimated from 0.01 to 1000.
    """

    option: ClassVar = "beta"
    lower: Array = None
    upper: Array = None
    base: ClassVar = dist.Beta
    record_range = (0.0, 1.0)
    open_range: ClassVar[str | None] = "but not an end, because log(x) and log(1 - x) are the statistics"
    columns: ClassVar[tuple[str, ...]] = ("log x", "log(1 - x)")
    coordinate: ClassVar = (special.logit, special.expit)
    ranges = {"concentration0": (0.01, 1e3), "concentration1": (0.01, 1e3)}

    def natural(self, x: Array) -> jax.Array:
        return jnp.stack([jnp.log(x), jnp.log1p(-x)], axis=-1)

    def mean(self, params: Params) -> jax.Array:
        both = jnp.stack([params["concentration1"], params["concentration0"]])
        return self.scaled(special.digamma(both) - special.digamma(jnp.sum(both)))

    def reach(self, record: dist.Beta) -> tuple[Array, Array, Array]:
        one, zero = record.concentration1, record.concentration0
        mode, near = jnp.log(one / zero), jnp.sqrt(74 * (1 / one + 1 / zero))
        return mode - near - 37 / one, mode, mode + near + 37 / zero  # the density falls exponentially on both sides

    def density(self, record: dist.Beta, y: Array) -> jax.Array:
        one, zero = record.concentration1, record.concentration0
        log_x, log_rest = -jnp.logaddexp(0.0, -y), -jnp.logaddexp(0.0, y)
        return jnp.exp(one * log_x + zero * log_rest - special.betaln(one, zero))
