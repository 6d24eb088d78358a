"""A law without a parametric family by penalised maximum likelihood, and the normal law of the penalty."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._core.checks import at_least, warn
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array
from ldpbayes.data import Release, Sketch
from ldpbayes.estimation.estimates import Estimate
from ldpbayes.estimation.m_estimation import EstimationWarning
from ldpbayes.functionals import mean, quantile, sd
from ldpbayes.likelihood import SmoothDensity
from ldpbayes.likelihood.families import ends_of
from ldpbayes.likelihood.nodes import PreparedLikelihood
from ldpbayes.mechanisms.protocol import Promise, statements

KNOTS = 41  # whose 40 pieces are the panels of most channels
ROUGHNESS = 2.0  # scale of the half-normal prior of the roughness
ATOMS = -3.0, 1.5  # mean and deviation of the prior of an atom's log odds against the interval: 0.3 to 50 % of it
STEPS = 200  # Newton steps, of which ten to thirty are taken
NEAR = 1.0  # standard errors within which a step is near enough to the mode for a step of the roughness
FAR = 2.0  # the largest step of log τ²
SMALL = 5e-3  # standard errors and logarithms of the roughness, by which the last step may change them
LEAST, MOST = 1e-6, 1e6  # bounds of the squared roughness
DEFAULTS: dict[str, Callable[[Any], Any]] = {
    "mean": mean,
    "sd": sd,
    "quantile": quantile(np.array([0.05, 0.25, 0.5, 0.75, 0.95])),
}
AT_A_BOUND = 0.95  # probability of the first or the last piece, with its atom, that leaves the rest unknown


@functools.lru_cache
def smooth_basis(knots: int) -> np.ndarray:
    """A basis (knots, knots − 1) of log densities at equally spaced knots, without their constant.

    With independent normal coefficients of standard deviation τ, the roughness, the second differences of the log
    density are independent, and its straight line and its bends vary by about τ each: as τ falls to 0 the law becomes
    uniform. Columns go from smooth to rough.
    """
    line = np.sqrt(3) * np.linspace(-1, 1, at_least(4, "knots", knots))
    differences = np.diff(np.eye(knots), n=2, axis=0)
    squares, bends = np.linalg.eigh(differences.T @ differences)
    bends = bends[:, 2:] / np.sqrt(squares[2:])
    return np.column_stack([line, bends / np.sqrt(np.mean(np.sum(bends**2, axis=1)))])


class Penalised(NamedTuple):
    """Coefficients θ of a law, those of `smooth_basis` and then the log odds of two atoms, if any, at the maximum of
    log-likelihood and log prior; the roughness τ; and the information F (p, p) of the released values about θ.
    """

    coefficients: Array
    roughness: Array
    information: Array
    covariance: Array  # (p, p) of the coefficients, with the error of the roughness
    converged: Array


def law_of(coefficients: Array, lower: float, upper: float, knots: int) -> SmoothDensity:
    """The law with coefficients (p,): knots − 1 of the basis, and perhaps two log odds of atoms."""
    odds = coefficients[knots - 1 :]
    outside = jax.nn.softmax(jnp.append(odds, 0.0))[:2] if len(odds) else None
    basis = jnp.asarray(smooth_basis(knots), coefficients.dtype)
    return SmoothDensity(basis @ coefficients[: knots - 1], lower, upper, outside)


def prior_of(roughness: Array, knots: int, outside: bool) -> tuple[np.ndarray, Array]:
    """Prior means and precisions (p,) of the coefficients, of which the last two are log odds of atoms, if any."""
    size = knots + 1 if outside else knots - 1
    means = np.append(np.zeros(knots - 1), [ATOMS[0]] * 2)[:size]
    return means, jnp.append(jnp.full(knots - 1, 1 / roughness**2), jnp.full(2, 1 / ATOMS[1] ** 2))[:size]


def _roughness_at(coefficients: Array, covariance: Array, square: Array) -> tuple[Array, Array]:
    """Slope of the log density of log τ by log τ at τ², which Laplace's method approximates, and minus its derivative
    by log τ², or more, at the mode of the coefficients (knots − 1,) of the basis and their covariance.
    """
    errors, prior = covariance / square, square / ROUGHNESS**2
    size = jnp.sum(coefficients**2) / square
    freedom = len(errors) - jnp.trace(errors)
    bend = jnp.trace(errors) - jnp.sum(errors**2) + size - 2 * coefficients @ errors @ coefficients / square + prior
    # it is no less than half of what it can be at most, so that steps by it do not go to and fro
    return 1 - freedom + size - prior, jnp.maximum(bend, 0.5 * (0.5 + freedom + size + prior))


def log_likelihood_at(
    theta: Array, likelihood: PreparedLikelihood, *, lower: float, upper: float, knots: int
) -> tuple[Array, Array, Array]:
    """Log-likelihood of coefficients θ (p,), its slope (p,), and the information (p, p) of the released values."""

    def log_prob(theta: Array) -> Array:
        return likelihood.log_prob(law_of(theta, lower, upper, knots))

    values, scores = log_prob(theta), jax.jacfwd(log_prob)(theta)
    weighted = scores.T * likelihood.weights
    slope, information = jnp.sum(weighted, axis=1), weighted @ scores
    own, odds = theta[: knots - 1], theta[knots - 1 :]
    if len(odds):  # where few records are at a bound, their scores say less than the second derivatives
        bends = jax.hessian(lambda odds: likelihood.weights @ log_prob(jnp.append(own, odds)))(odds)
        places = np.arange(knots - 1, knots + 1)
        information = information.at[places, places].max(-jnp.diagonal(bends))
    return likelihood.weights @ values, slope, information


@functools.partial(jax.jit, static_argnames=("outside", "lower", "upper", "knots"))
def penalised(likelihood: PreparedLikelihood, outside: bool, *, lower: float, upper: float, knots: int) -> Penalised:
    """The coefficients' posterior mode, by Newton steps with the information in place of the second derivative, and
    between them log τ by a step to the mode of its marginal posterior, which Laplace's method approximates.
    """
    at = functools.partial(log_likelihood_at, likelihood=likelihood, lower=lower, upper=upper, knots=knots)
    own = slice(knots - 1)  # coefficients of the basis

    def step(state: Any) -> Any:
        count, _, theta, move, square, damping, here = state
        means, precisions = prior_of(jnp.sqrt(square), knots, outside)

        def objective(theta: Array, value: Array) -> Array:
            return value - 0.5 * jnp.sum(precisions * (theta - means) ** 2)

        there = at(theta + move)
        better = objective(theta + move, there[0]) >= objective(theta, here[0]) - 1e-9
        theta, here = jax.tree.map(lambda new, old: jnp.where(better, new, old), (theta + move, there), (theta, here))
        damping = jnp.where(better, 0.1 * damping, 10 * jnp.maximum(damping, 0.1))
        _, slope, information = here
        covariance = jnp.linalg.inv(information + jnp.diag(precisions))
        rise, bend = _roughness_at(theta[own], covariance[own, own], square)
        rise = jnp.clip(rise / bend, -FAR, FAR)
        moved = jnp.max(jnp.abs(move) / jnp.sqrt(jnp.diagonal(covariance)))
        rise = jnp.where(better & (count > 0) & (moved < NEAR), rise, 0.0)
        done = better & (count > 0) & (moved < SMALL) & (jnp.abs(rise) < 2 * SMALL)
        ahead = jnp.clip(square * jnp.exp(rise), LEAST, MOST)
        means, precisions = prior_of(jnp.sqrt(ahead), knots, outside)
        curvature = information + jnp.diag(precisions)
        damped = curvature + damping * jnp.diag(jnp.diagonal(curvature))
        move = jnp.linalg.solve(damped, slope - precisions * (theta - means))
        return count + 1, done, theta, move, ahead, damping, here

    start = jnp.asarray(prior_of(jnp.asarray(1.0), knots, outside)[0])
    nothing = jnp.zeros_like(start)
    unknown = jnp.asarray(-jnp.inf), nothing, jnp.diag(nothing)
    state = 0, False, start, nothing, jnp.asarray(1.0), jnp.asarray(0.0), unknown
    _, done, theta, _, square, _, (*_, information) = jax.lax.while_loop(
        lambda state: (state[0] < STEPS) & ~state[1], step, state
    )
    _, precisions = prior_of(jnp.sqrt(square), knots, outside)
    covariance = jnp.linalg.inv(information + jnp.diag(precisions))
    drift = covariance[:, own] @ (precisions * theta)[own]  # of the mode, by log τ²
    covariance += 2 / _roughness_at(theta[own], covariance[own, own], square)[1] * jnp.outer(drift, drift)
    return Penalised(theta, jnp.sqrt(square), information, covariance, done)


@functools.partial(jax.jit, static_argnames=("lower", "upper", "knots"))
def mean_information(points: Array, likelihood: PreparedLikelihood, **options: Any) -> Array:
    """The information (p, p) of the released values, on average over coefficients (n, p)."""
    return jnp.mean(jax.lax.map(lambda theta: log_likelihood_at(theta, likelihood, **options)[2], points), axis=0)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class DensityEstimate(Estimate):
    """An estimated law without a parametric family, and functionals of it as named parameters with errors.

    ``law`` is the `SmoothDensity`, ``roughness`` the scale τ of its log density, and `of` gives other functionals. The
    errors are those of the posterior, by Laplace's method for coefficients and roughness and the delta method, so that
    they hold the error of the penalty, too. For quantiles in a tail and small shares they are rather too small.
    """

    law: SmoothDensity
    roughness: float
    params: np.ndarray
    covariance: np.ndarray
    names: list[str]
    _fit: tuple[Any, Any]  # coefficients (p,) and their covariance (p, p)
    _promises: tuple[Promise, ...]

    estimate = property(lambda self: dict(zip(self.names, self.params.tolist(), strict=True)))
    privacy = functools.cached_property(lambda self: statements(self._promises))
    _title = property(lambda self: f"Smooth density on [{self.law.lower:g}, {self.law.upper:g}]")

    def of(self, functionals: Mapping[str, Callable[[Any], Any]]) -> "DensityEstimate":
        """The estimate with other functionals: functions of a law, of `ldpbayes.functionals` or your own, by name; an
        array of k values is k parameters. ValueError without any.
        """
        if not functionals:
            raise ValueError(f"functionals must be one or more functions by name, got {functionals!r}")
        with jax.enable_x64(True):
            shape = self.law.lower, self.law.upper, self.law.log_density.shape[-1]
            values, slopes = _values(self._fit[0], shape, tuple(functionals.values()))
        names = [
            name if not np.ndim(value) else f"{name}[{label}]"
            for (name, functional), value in zip(functionals.items(), values, strict=True)
            for label in (getattr(functional, "labels", None) or range(np.size(value)))[: np.size(value)]
        ]
        slopes = np.concatenate([np.reshape(each, (-1, len(self._fit[0]))) for each in slopes])
        params = np.concatenate([np.ravel(each) for each in values])
        return dataclasses.replace(self, params=params, covariance=slopes @ self._fit[1] @ slopes.T, names=names)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _values(coefficients: Array, shape: tuple[float, float, int], functionals: tuple) -> tuple[list, list]:
    """Functionals of a law, and their derivatives by the coefficients."""

    def values(coefficients: Array) -> list[Array]:
        law = law_of(coefficients, *shape)
        return [jnp.asarray(functional(law)) for functional in functionals]

    return values(coefficients), jax.jacrev(values)(coefficients)


def estimate_density(
    data: Release | Sketch,
    lower: float | None = None,
    upper: float | None = None,
    *,
    knots: int = KNOTS,
    outside: bool = False,
    functionals: Mapping[str, Callable[[Any], Any]] | None = None,
) -> DensityEstimate:
    """Estimate the law of original numbers without a parametric family, by [Efron]'s g-modelling.

    The log density is linear between equally spaced knots, and its second differences are penalised: the estimate is
    the mode of the posterior of `ldpbayes.models.smooth_density` given the roughness, and the roughness the mode of its
    own marginal posterior, by Laplace's method. A release that tells nothing gives nearly the uniform law.

    Parameters
    ----------
    data : Release or Sketch
        Of numbers, with one budget or one a record. Prefer a sketch of many records.
    lower, upper : float, optional
        Ends of the law's interval, which holds the bounds of the mechanism. Default: these.
    knots : int
        Of the log density, at least 4.
    outside : bool
        Whether there may be records beyond the ends, which the mechanism clips: an atom at each end.
    functionals : dict, optional
        Functions of a law by name, with scalar or 1-d values, such as those of `ldpbayes.functionals`. Default: mean,
        sd and quantiles. They are of the records as clipped to the interval.

    Returns
    -------
    DensityEstimate

    Raises
    ------
    TypeError, ValueError
        For data of another kind, without values or of groups, or an interval that does not hold the bounds.

    Warns
    -----
    EstimationWarning
        Nearly all records are at one bound, so that the law between the bounds is unknown, or the search did not end.
    """
    fit, _, options = fitted(data, lower, upper, knots, outside)
    with jax.enable_x64(True):
        law = law_of(jnp.asarray(fit.coefficients), **options)
    nothing = np.empty(0), np.empty((0, 0)), list[str]()
    estimate = DensityEstimate(law, float(fit.roughness), *nothing, (fit.coefficients, fit.covariance), data.promises)
    return estimate.of(DEFAULTS if functionals is None else functionals)


def fitted(
    data: Any, lower: float | None, upper: float | None, knots: int, outside: bool
) -> tuple[Penalised, PreparedLikelihood, dict[str, Any]]:
    """`penalised` on the host, the likelihood, and the options of both; errors and warnings of `estimate_density`."""
    knots = at_least(4, "knots", knots)
    if not isinstance(data, Release) and not (isinstance(data, Sketch) and data.law_shape == ()):
        raise TypeError(f"a smooth density is of one release or sketch without groups, got {type(data).__name__}")
    ends = interval_of(data.mechanism, lower, upper)
    if isinstance(data, Release) and data.values is None:
        raise ValueError("a density needs released values; this release has none")
    law = SmoothDensity(np.zeros(knots), *ends)
    likelihood = PreparedLikelihood.of(data, law)
    options: dict[str, Any] = {"lower": law.lower, "upper": law.upper, "knots": knots}
    with jax.enable_x64(True):
        if not outside and not np.isfinite(likelihood.log_prob(law)).all():
            raise ValueError("values are released at a bound as they were: their law has atoms there, outside=")
        fit = jax.tree.map(np.asarray, penalised(likelihood, outside, **options))
        law = law_of(jnp.asarray(fit.coefficients), **options)
        at_ends = np.asarray([law.cdf(law.knots[1]), 1 - law.cdf(law.knots[-2])])
    if not fit.converged:
        warn(f"the search for the most likely density has not ended after {STEPS} steps", EstimationWarning)
    if at_ends.max() > AT_A_BOUND:
        end = ("lower", "upper")[np.argmax(at_ends)]
        problem = f"{at_ends.max():.1%} of the records are at the {end} end of [{law.lower:g}, {law.upper:g}]"
        warn(f"{problem}: the law between the ends is hardly known; choose other bounds", EstimationWarning)
    return fit, likelihood, options


def interval_of(mechanism: Any, lower: float | None, upper: float | None) -> tuple[float, float]:
    """Ends of an interval, by default a mechanism's bounds; ValueError if it does not hold them."""
    bounds = ends_of(mechanism.domain)
    if lower is not None and upper is not None and not is_concrete(*bounds):
        return lower, upper
    low, high = float(np.min(bounds[0])), float(np.max(bounds[1]))
    if not np.isfinite([low, high]).all():
        raise ValueError(f"a density needs a mechanism that clips numbers to bounds, got {mechanism!r}")
    first, last = low if lower is None else lower, high if upper is None else upper
    if not (first <= low and high <= last):
        wanted = f"lower and upper must hold the bounds {low:g} and {high:g} of the mechanism"
        raise ValueError(f"{wanted}, got {first:g} and {last:g}")
    return first, last
