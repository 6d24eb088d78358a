"""Private least squares from perturbed moments."""

import jax
import jax.numpy as jnp
from numpyro.distributions import constraints

from ldpbayes._core.checks import at_least
from ldpbayes._core.pytrees import pytree_dataclass, static
from ldpbayes._core.types import Array, Key, Params
from ldpbayes.bootstrap.statistics import SufficientStatisticsEstimator, statistics_mechanism
from ldpbayes.laws.normal import LEAST_VARIANCE, NormalVector, with_least_eigenvalue
from ldpbayes.numerics.arrays import packed


@pytree_dataclass
class LeastSquaresEstimator(SufficientStatisticsEstimator):
    """Least squares from noisy sums of the first and second moments of rows (x, y).

    Parameters are ``coef`` (d,), ``intercept`` () where there is one, ``scale`` () of the errors, and, not reported,
    ``loc_x`` (d,) and ``covariance_x`` (d, d) of the clamped regressors. Moments are in units of half the distance of a
    column's bounds. There eigenvalues of the regressors' covariance matrix (of their second moments where there is no
    intercept) are raised to one standard deviation of the noise in a mean of squares, and they and the error variance
    to 4e-6; each of these repairs is flagged as outside the domain.
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
        at_least(self.regressors + 3, "count", self.count)

    @property
    def regressors(self) -> int:
        return self.family.dimension - 1

    @property
    def deviations(self) -> jax.Array:
        """Standard deviations of the noise in the mean of each statistic."""
        return jnp.broadcast_to(jnp.sqrt(self.mechanism.noise.variance) / self.count, len(self.family.columns))

    @property
    def origin(self) -> jax.Array:
        """Centres of the bounds, in units of half their distances."""
        return jnp.asarray(self.family.centre) / self.family.half

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        d, n, half = self.regressors, self.count, self.family.half
        first, second = self.family.split(mean)
        within = jnp.clip(first, -1.0, 1.0)
        central = second - jnp.outer(within, within)
        mean = within + self.origin
        least = jnp.maximum(self.deviations[d + 1], LEAST_VARIANCE)  # the first of the squares
        covariance, raised = with_least_eigenvalue(central[:d, :d], least if self.intercept else LEAST_VARIANCE)
        gram, right, square = covariance, central[:d, d], central[d, d]
        if not self.intercept:
            square_of_mean = jnp.outer(mean, mean)
            gram, gram_raised = with_least_eigenvalue(covariance + square_of_mean[:d, :d], least)
            covariance, raised = gram - square_of_mean[:d, :d], raised | gram_raised
            right, square = right + square_of_mean[:d, d], square + square_of_mean[d, d]
        slope = jnp.linalg.solve(gram, right)
        variance = (square - slope @ right) * n / (n - d - self.intercept)
        raised_variance = jnp.maximum(variance, LEAST_VARIANCE)
        params = {
            "coef": slope * half[d] / half[:d],
            "scale": half[d] * jnp.sqrt(raised_variance),
            "loc_x": half[:d] * mean[:d],
            "covariance_x": covariance * jnp.outer(half[:d], half[:d]),
        }
        if self.intercept:
            params["intercept"] = half[d] * (mean[d] - slope @ mean[:d])
        return params, raised | jnp.any(within != first) | (raised_variance != variance)

    def covariance(self, params: Params, *, noise: bool) -> jax.Array:
        """Asymptotic covariance of ``coef``, ``intercept`` and ``scale``, in this order.
        Without noise that is σ² (XᵀX)⁻¹, and σ²/2(n − p) for the scale. With it, that of the noise in the normal
        equations Xᵀ(y − Xβ) and the residual sum of squares, which are linear in the statistics, is added in between.
        """
        d, n = self.regressors, self.count
        p = d + self.intercept
        mean, root, slope, intercept, deviation = self._standardised(params)
        origin, half = self.origin, self.family.half
        second = root @ root.T
        # rows of the design in terms of (1, u): (1, u − mean) with an intercept, else x itself; and their moments
        if self.intercept:
            design = jnp.eye(d + 1).at[1:, 0].set(origin[:d] - mean)
            gram = jnp.eye(d + 1).at[1:, 1:].set(second)
        else:
            design = jnp.eye(d + 1)[1:].at[:, 0].set(origin[:d])
            gram = second + jnp.outer(mean, mean)
        design = jnp.pad(design, ((0, 0), (0, 1)))
        residual = jnp.concatenate([(origin[d] - intercept - slope @ origin[:d])[None], -slope, jnp.ones(1)])

        def equations(statistics: jax.Array) -> jax.Array:
            one, two = self.family.split(statistics)
            moments = jnp.block([[jnp.zeros((1, 1)), one[None]], [one[:, None], two]])
            return jnp.append(design @ moments @ residual, residual @ moments @ residual * n / (n - p))

        spread = jnp.zeros((p + 1, p + 1)).at[p, p].set(2 * deviation**4 / (n - p))
        spread = spread.at[:p, :p].set(deviation**2 / n * gram)
        if noise:
            linear = jax.jacfwd(equations)(jnp.zeros(len(self.family.columns))) * self.deviations
            spread = spread + linear @ linear.T
        # from the solution of the normal equations to the target
        turn = jnp.zeros((p + 1, p + 1)).at[p, p].set(half[d] / (2 * deviation))
        if self.intercept:
            turn = turn.at[:d, 1:p].set(jnp.diag(half[d] / half[:d]))
            turn = turn.at[d, 0].set(half[d]).at[d, 1:p].set(-half[d] * mean)
        else:
            turn = turn.at[:d, :d].set(jnp.diag(half[d] / half[:d]))
        solve = turn @ jnp.linalg.inv(jnp.eye(p + 1).at[:p, :p].set(gram))
        return solve @ spread @ solve.T

    def _standardised(self, params: Params) -> tuple[jax.Array, ...]:
        """Means of x, root of their covariance, slopes, intercept, error deviation; in half distances of the bounds."""
        d, half = self.regressors, self.family.half
        root = jnp.linalg.cholesky(params["covariance_x"] / jnp.outer(half[:d], half[:d]))
        intercept = params["intercept"] / half[d] if self.intercept else jnp.zeros(())
        slope = params["coef"] * half[:d] / half[d]
        return params["loc_x"] / half[:d], root, slope, intercept, params["scale"] / half[d]

    def simulate_release(self, key: Key, params: Params) -> jax.Array:
        """The hybrid bootstrap: moments of x are kept as they were estimated, and what the errors e add is drawn.
        That is Xᵀe, normal with covariance nσ²Q, and eᵀe, of which X explains a part and the rest is σ² χ²: only there
        errors are taken to be normal. Then all statistics get fresh noise. That rows are clamped is not replicated.
        """
        d, n, origin = self.regressors, self.count, self.origin
        mean, root, slope, intercept, deviation = self._standardised(params)
        keys = jax.random.split(key, 3)
        z = jax.random.normal(keys[0], (d + 1,), deviation.dtype)
        # means of e, (x − mean) e and e²
        alone = deviation * z[0] / n**0.5
        along = deviation * root @ z[1:] / n**0.5
        rest = 2 * jax.random.gamma(keys[1], (n - d - 1) / 2, dtype=deviation.dtype)
        squares = deviation**2 * (z @ z + rest) / n
        x, covariance = mean - origin[:d], root @ root.T
        at_mean = intercept + slope @ mean - origin[d]  # v at the mean of x
        v = at_mean + alone
        with_x = covariance @ slope + along + x * v
        explained = at_mean**2 + slope @ covariance @ slope + 2 * at_mean * alone + 2 * slope @ along
        corner = (explained + squares)[None, None]
        second = jnp.block([[covariance + jnp.outer(x, x), with_x[:, None]], [with_x[None], corner]])
        total = n * jnp.concatenate([x, v[None], packed(second, "scaled")])
        return self.perturbed(keys[2], total)

    def target(self, params: Params) -> Params:
        return {name: params[name] for name in ("coef", "intercept", "scale") if name in params}

    def nearest(self, target: Params) -> Params:
        return target | {"scale": jnp.maximum(target["scale"], LEAST_VARIANCE**0.5 * self.family.half[-1])}


def least_squares(
    *, lower: Array, upper: Array, count: int, epsilon: float, delta: float | None = None, intercept: bool = True
) -> LeastSquaresEstimator:
    """Return a private estimator of linear regression, which adds noise to sums of columns and of their products.

    The data are rows (x, y) of d regressors x and a response y. The noise is Laplace noise, or Gaussian noise if
    ``delta`` is given.

    Parameters
    ----------
    lower, upper : array_like (d + 1,)
        The bounds to which the columns of (x, y) are clamped, in the units of the columns. The response is the last
        column. Choose bounds that contain nearly all responses, because the bootstrap does not replicate the effect of
        clamping.
    count : int
        Public number of records. The guarantee compares data sets with equal numbers of records.
    epsilon, delta : float
        Privacy budget for replacing one record: ε in nats, and the probability δ. Without ``delta``, the noise is
        Laplace noise.
    intercept : bool
        True (default) if the model has an intercept.
    """
    rows = NormalVector(lower, upper)
    mechanism = statistics_mechanism(rows, epsilon, delta)
    return LeastSquaresEstimator(rows, mechanism, count, intercept=intercept)
