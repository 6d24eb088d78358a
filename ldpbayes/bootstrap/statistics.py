"""Estimators of exponential families from released statistics ([FWS] sec. 5)."""

import abc

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro.distributions import constraints

from ldpbayes._core.checks import at_least
from ldpbayes._core.pytrees import pytree_dataclass, static
from ldpbayes._core.types import Array, Key, Params, is_concrete
from ldpbayes.bootstrap._bootstrap import Estimated, PrivateEstimator
from ldpbayes.data import Release
from ldpbayes.laws.numbers import LEAST_VARIANCE, NormalVector, with_least_eigenvalue
from ldpbayes.laws.parametric import ParametricFamily, free_parameters
from ldpbayes.mechanisms import GaussianMechanism, LaplaceMechanism, Mechanism
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.numerics.arrays import packed


def values_released_by(mechanism: Mechanism, release: Release) -> Array:
    """The values of a release; ValueError unless it has some, and they are of this mechanism."""
    if release.mechanism != mechanism:
        advice = "give the estimator the mechanism and count of the release"
        raise ValueError(f"the release is by {release.mechanism!r}, but the estimator is for {mechanism!r}: {advice}")
    if release.values is None:
        raise ValueError("a release without values has nothing to estimate from")
    return release.values


class FamilyEstimator(PrivateEstimator):
    """An estimator of a ``family`` from a perturbed sum of the statistics of ``count`` records, a public number."""

    family: ParametricFamily
    count: int
    fewest = 1  # records

    def __post_init__(self) -> None:
        if self.count is None:
            raise ValueError("count is missing: give a public number, or a number released with a part of the budget")
        object.__setattr__(self, "count", at_least(self.fewest, "count", self.count))

    constraints = property(lambda self: self.family.constraints)

    def unconstrained(self, params: Params) -> jax.Array:
        return free_parameters(self.constraints, params)[0]

    def constrained(self, vector: Array, like: Params) -> Params:
        return free_parameters(self.constraints, like)[1](vector)

    @abc.abstractmethod
    def perturbed(self, key: Key, total: Array) -> jax.Array:
        """Values released of the sum of the statistics."""

    def randomize(self, key: Key, data: Array) -> jax.Array:
        if len(data) != self.count:
            raise ValueError(f"the estimator is for {self.count} records, got {len(data)}")
        return self.perturbed(key, self.family.statistics(data).sum(axis=0))

    def simulate_release(self, key: Key, params: Params) -> jax.Array:
        # sums are drawn, not records, where their law is known
        keys = jax.random.split(key)
        return self.perturbed(keys[1], self.family.total(keys[0], params, self.count))

    def release(self, data: Array, *, seed: int) -> Release | np.ndarray:
        """Compute released values from records `data` (n, *event), only for simulations: the noise is not secure."""
        with jax.enable_x64(True):
            return np.asarray(jax.jit(FamilyEstimator.randomize)(self, jax.random.key(seed), self.family.checked(data)))


@pytree_dataclass
class SufficientStatisticsEstimator(FamilyEstimator):
    """What `sufficient_statistics` makes: its ``mechanism`` has the sensitivity of the sums or more, and no bounds."""

    family: ParametricFamily
    mechanism: Additive
    count: int = static()
    account_for_clamping: bool = static(default=False)
    fewest = 2

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Additive):
            kind = "one that adds noise to statistics, such as LaplaceMechanism(epsilon, columns=..., sensitivity=...)"
            raise TypeError(f"mechanism must be {kind}, got {self.mechanism!r}: its releases are not sums")
        super().__post_init__()
        noise = self.mechanism.noise
        if self.mechanism.bounded:
            raise ValueError("the mechanism must have a sensitivity, but no bounds: the estimator clamps records")
        if noise.discrete and self.family.lattice_step is None:
            problem = "the mechanism must have continuous noise: the statistics are real numbers"
            raise ValueError(f"{problem}, got {self.mechanism!r}")
        if is_concrete(self.family, self.mechanism):
            sensitivity = float(self.family.sensitivity(noise.norm))
            with jax.enable_x64(True):
                scales = np.asarray(noise.over_columns(noise.standard_deviation))
            if scales.shape[-1] > 1:  # a sensitivity is in units of the first column; another one may have less noise
                sensitivity *= float(np.max(scales[..., :1] / scales))
            if self.mechanism.sensitivity < sensitivity * (1 - 1e-12):
                stated = f"the sensitivity of the mechanism is {self.mechanism.sensitivity:g}"
                raise ValueError(f"one record can change the statistics by {sensitivity:g}, but {stated}")
        if self.account_for_clamping and not self.family.accounts_for_clamping:
            raise ValueError(f"account_for_clamping is not possible for {type(self.family).__name__}")

    def perturbed(self, key: Key, total: Array) -> jax.Array:
        return self.mechanism.simulate(key, total)

    def estimate(self, values: Array) -> Estimated:
        params, outside = self.solve(values / self.count)
        variances = jnp.diagonal(self.covariance(params, noise=True))
        return Estimated(params, jnp.sqrt(jnp.maximum(variances, 0.0)), outside)

    def release(self, data: Array, *, seed: int) -> Release:
        return Release(np.asarray(super().release(data, seed=seed))[None], self.mechanism)

    def release_values(self, release: Release | Array) -> jax.Array:
        shape = self.mechanism.event_shape
        values = values_released_by(self.mechanism, release) if isinstance(release, Release) else release
        values = np.asarray(values, float)
        values = values[0] if values.shape == (1, *shape) else values
        if values.shape != shape:
            advice = "give raw records to the estimator's release(), and never to the bootstrap"
            raise ValueError(f"a release of statistics is one value of shape {shape}, got {values.shape}: {advice}")
        if not np.isfinite(values).all():
            raise ValueError(f"released statistics must be finite, got {values}")
        return jnp.asarray(values)

    privacy = property(lambda self: self.mechanism.guarantee.statement())

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        """Parameters from a noisy mean of statistics, and whether it was outside the domain."""
        return self.family.solve_clamped(mean) if self.account_for_clamping else self.family.solve(mean)

    def covariance(self, params: Params, *, noise: bool) -> jax.Array:
        """Asymptotic covariance of the flat target: of sampling, and of the noise for privacy where it counts."""
        variance = self.mechanism.noise.variance if noise else 0.0
        return self.family.covariance(params, variance, self.count, clamped=self.account_for_clamping)

    def nearest(self, target: Params) -> Params:
        return self.family.nearest(target)

    def law(self, params: Params) -> dist.Distribution:
        """Return a normal approximation, with exact mean and covariance, of the law of the sums before noise, for
        `params`.

        For example, analyse a release in a Bayesian model with the parameters mu and sigma: ``ldp.observe("sums",
        estimator.law({"loc": mu, "scale": sigma}), release)``.
        """
        center, spread = self.family.moments(params)
        if self.family.columns is None:
            return dist.Normal(self.count * center[0], jnp.sqrt(self.count * spread[0, 0]))
        return dist.MultivariateNormal(self.count * center, self.count * spread)


def statistics_mechanism(family: ParametricFamily, epsilon: float, delta: float | None) -> Additive:
    """Laplace noise for the L1 sensitivity of sums of statistics, or Gaussian for the L2 where delta is given."""
    if delta is None:
        return LaplaceMechanism(epsilon, columns=family.columns, sensitivity=family.sensitivity(1))
    return GaussianMechanism(epsilon, delta, columns=family.columns, sensitivity=family.sensitivity(2))


def sufficient_statistics(
    family: ParametricFamily,
    *,
    count: int,
    epsilon: float,
    delta: float | None = None,
    account_for_clamping: bool = False,
) -> SufficientStatisticsEstimator:
    """Return a private estimator of the parameters of a family of distributions, from sums of statistics with noise.

    Parameters
    ----------
    family : ParametricFamily
        A family of `ldpbayes.bootstrap`, such as `Normal`, with the bounds to which records are clamped.
    count : int
        Public number of records: the guarantee compares data sets with equal numbers of records.
    epsilon, delta : float
        Privacy budget for replacing one record: ε in nats, and the probability δ. With ``delta``, the noise is
        Gaussian, and without it Laplace noise.
    account_for_clamping : bool
        False (default): maximum likelihood, as if no record had been clamped ([FWS]), biased if many are. True, not for
        `NormalVector`: the method of moments, which finds the parameters for which the expected statistics of a clamped
        record equal the released mean statistics.
    """
    if not isinstance(family, ParametricFamily):
        raise TypeError(f"family must be one of ldpbayes.bootstrap, got {family!r}")
    mechanism = statistics_mechanism(family, epsilon, delta)
    return SufficientStatisticsEstimator(family, mechanism, count, account_for_clamping)


@pytree_dataclass
class LeastSquaresEstimator(SufficientStatisticsEstimator):
    """Least squares from noisy sums of the moments of rows (x, y); ``loc_x`` and ``covariance_x`` are not reported.
    Eigenvalues of the regressors' moments, in half distances of the bounds, are raised to a standard deviation of the
    noise, and they and the error variance to 4e-6; each repair is flagged as outside the domain.
    """

    family: NormalVector
    intercept: bool = static(default=True)
    constraints = {
        "coef": constraints.real_vector,
        "intercept": constraints.real,
        "scale": constraints.positive,
        "loc_x": constraints.real_vector,
        "covariance_x": constraints.positive_definite,
    }

    def __post_init__(self) -> None:
        if self.regressors < 1:
            raise ValueError("regression needs bounds of at least two columns, the response last; got one column")
        super().__post_init__()

    regressors = property(lambda self: self.family.dimension - 1)
    fewest = property(lambda self: self.regressors + 3)
    origin = property(lambda self: jnp.asarray(self.family.centre) / self.family.half)  # of scaled columns

    @property
    def deviations(self) -> jax.Array:
        # of the noise in the mean of each statistic
        return jnp.broadcast_to(jnp.sqrt(self.mechanism.noise.variance) / self.count, len(self.family.columns))

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        d, half = self.regressors, self.family.half
        first, second = self.family.split(mean)
        within = jnp.clip(first, -1.0, 1.0)
        central, mean = second - jnp.outer(within, within), within + self.origin
        least = jnp.maximum(self.deviations[d + 1], LEAST_VARIANCE)  # the first of the squares
        covariance, raised = with_least_eigenvalue(central[:d, :d], least if self.intercept else LEAST_VARIANCE)
        if not self.intercept:
            square_of_mean = jnp.outer(mean[:d], mean[:d])
            gram, gram_raised = with_least_eigenvalue(covariance + square_of_mean, least)
            covariance, raised = gram - square_of_mean, raised | gram_raised
        line, variance = self._line(mean, central.at[:d, :d].set(covariance))
        raised_variance = jnp.maximum(variance, LEAST_VARIANCE)
        params = line | {
            "scale": half[d] * jnp.sqrt(raised_variance),
            "loc_x": half[:d] * mean[:d],
            "covariance_x": covariance * jnp.outer(half[:d], half[:d]),
        }
        return params, raised | jnp.any(within != first) | (raised_variance != variance)

    def _line(self, mean: Array, central: Array) -> tuple[Params, jax.Array]:
        """Coefficients from the mean and the covariance of scaled rows, and the error variance of these."""
        d, n, half = self.regressors, self.count, self.family.half
        moments = central if self.intercept else central + jnp.outer(mean, mean)
        slope = jnp.linalg.solve(moments[:d, :d], moments[:d, d])
        variance = (moments[d, d] - slope @ moments[:d, d]) * n / (n - d - self.intercept)
        intercept = {"intercept": half[d] * (mean[d] - slope @ mean[:d])} if self.intercept else {}
        return {"coef": slope * half[d] / half[:d]} | intercept, variance

    def _moments(self, params: Params, errors: Array, square: Array) -> jax.Array:
        """Mean statistics of rows with errors e, from the means of e and of e times whitened x (``errors``), and of e²
        (``square``), in standard deviations of e.
        """
        d, half, origin = self.regressors, self.family.half, self.origin
        loc, slope, scale = params["loc_x"] / half[:d], params["coef"] * half[:d] / half[d], params["scale"] / half[d]
        root = jnp.linalg.cholesky(params["covariance_x"] / jnp.outer(half[:d], half[:d]))
        covariance, x = root @ root.T, loc - origin[:d]
        alone, along = scale * errors[0], scale * root @ errors[1:]
        explained = (params["intercept"] / half[d] if self.intercept else 0.0) + slope @ loc - origin[d]
        y = explained + alone
        with_x = covariance @ slope + along + x * y
        of_line = explained**2 + slope @ covariance @ slope + 2 * (explained * alone + slope @ along)
        corner = (of_line + scale**2 * square)[None, None]
        second = jnp.block([[covariance + jnp.outer(x, x), with_x[:, None]], [with_x[None], corner]])
        return jnp.concatenate([x, y[None], packed(second, "scaled")])

    def covariance(self, params: Params, *, noise: bool) -> jax.Array:
        """Asymptotic covariance of ``coef``, ``intercept`` and ``scale``, by the delta method. Given x, means of e and
        of e times whitened x have variance 1/n, and the mean of e² after a fit of p coefficients 2 (n − p)/n².
        """
        d, n = self.regressors, self.count
        free = n - d - self.intercept
        deviations = jnp.concatenate([jnp.full(d + 1, n**-0.5), jnp.array([(2 * free) ** 0.5 / n]), self.deviations])

        def fit(away: jax.Array) -> jax.Array:
            errors, square, noises = jnp.split(deviations * away, [d + 1, d + 2])
            first, second = self.family.split(self._moments(params, errors, free / n + square[0]) + noises)
            line, variance = self._line(first + self.origin, second - jnp.outer(first, first))
            return ravel_pytree(line | {"scale": self.family.half[d] * jnp.sqrt(variance)})[0]

        response = jax.jacfwd(fit)(jnp.zeros(len(deviations)))[:, : None if noise else d + 2]
        return response @ response.T

    def simulate_release(self, key: Key, params: Params) -> jax.Array:
        """The hybrid bootstrap: moments of x are kept; Xᵀe, of covariance nσ²Q, and eᵀe, which X explains in part, the
        rest σ² χ², are drawn. That rows are clamped is not replicated.
        """
        d, n, dtype = self.regressors, self.count, jnp.result_type(params["scale"], float)
        keys = jax.random.split(key, 3)
        z = jax.random.normal(keys[0], (d + 1,), dtype)
        rest = 2 * jax.random.gamma(keys[1], (n - d - 1) / 2, dtype=dtype)
        return self.perturbed(keys[2], n * self._moments(params, z / n**0.5, (z @ z + rest) / n))

    def target(self, params: Params) -> Params:
        return {name: params[name] for name in ("coef", "intercept", "scale") if name in params}

    def nearest(self, target: Params) -> Params:
        return target | {"scale": jnp.maximum(target["scale"], LEAST_VARIANCE**0.5 * self.family.half[-1])}


def least_squares(
    *, lower: Array, upper: Array, count: int, epsilon: float, delta: float | None = None, intercept: bool = True
) -> LeastSquaresEstimator:
    """Return a private estimator of linear regression of a response y on d regressors x, from noisy sums of products.

    Parameters
    ----------
    lower, upper : array_like (d + 1,)
        The bounds to which the columns of the rows (x, y) are clamped, in their units. They should contain nearly all
        responses, because the bootstrap does not replicate the effect of clamping.
    count, epsilon, delta
        As in `sufficient_statistics`.
    intercept : bool
        True (default) if the model has an intercept.
    """
    rows = NormalVector(lower, upper)
    mechanism = statistics_mechanism(rows, epsilon, delta)
    return LeastSquaresEstimator(rows, mechanism, count, intercept=intercept)
