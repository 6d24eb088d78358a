"""A law without a parametric family by penalised maximum likelihood, and the normal law of the penalty."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._core.checks import at_least, ends_of, warn
from ldpbayes._core.types import Array, is_concrete
from ldpbayes.data import Release, Sketch
from ldpbayes.data.release import warn_of_repeats
from ldpbayes.data.sampling import SamplingDesign, design_in, refuse_population
from ldpbayes.estimation.estimates import Estimate, EstimationWarning
from ldpbayes.laws.functionals import mean, names_of_values, quantile, sd
from ldpbayes.likelihood import SmoothDensity, SmoothMass
from ldpbayes.likelihood.privatized import PreparedLikelihood
from ldpbayes.mechanisms import Categories
from ldpbayes.mechanisms.protocol import Promise, statements

KNOTS = 41  # whose 40 pieces are the panels of most channels
ROUGHNESS = 2.0  # scale of the half-normal prior of the roughness
ATOMS = -3.0, 1.5  # mean and deviation of the prior of an atom's log odds against the interval: 0.3 to 50 % of it
NEWTON_STEPS = 200  # Newton steps, of which ten to thirty are taken
NEAR_ERRORS = 1.0  # standard errors within which a step is near enough to the mode for a step of the roughness
LARGEST_RISE = 2.0  # the largest step of log τ²
LAST_STEP_ERRORS = 5e-3  # standard errors and logarithms of the roughness, by which the last step may change them
LEAST_SQUARE, LARGEST_SQUARE = 1e-6, 1e6  # bounds of the squared roughness
DEFAULTS: dict[str, Callable[[Any], Any]] = {
    "mean": mean,
    "sd": sd,
    "quantile": quantile(np.array([0.05, 0.25, 0.5, 0.75, 0.95])),
}
END_PROBABILITY = 0.95  # probability of the first or the last piece, with its atom, that leaves the rest unknown


@functools.lru_cache
def smooth_basis(knots: int) -> np.ndarray:
    """A basis (knots, knots − 1) of log densities at equally spaced knots, from smooth to rough, without their
    constant.

    `SmoothFamily.law` says what their coefficients mean. As τ falls to 0 the law becomes uniform.
    """
    line = np.sqrt(3) * np.linspace(-1, 1, at_least(4, "knots", knots))
    differences = np.diff(np.eye(knots), n=2, axis=0)
    squares, bends = np.linalg.eigh(differences.T @ differences)
    bends = bends[:, 2:] / np.sqrt(squares[2:])
    return np.column_stack([line, bends / np.sqrt(np.mean(np.sum(bends**2, axis=1)))])


class Penalised(NamedTuple):
    """Posterior mode: coefficients of `smooth_basis`, then the log odds of two atoms, if any; and the roughness τ."""

    coefficients: np.ndarray
    roughness: float
    covariance: np.ndarray  # (p, p) of the coefficients, with the error of the roughness
    at_ends: np.ndarray  # probabilities (2,) of the first and the last piece, with their atoms
    converged: bool


class SmoothFamily(NamedTuple):
    """The laws on an interval whose log density is linear between equally spaced points (knots).

    `of` makes the family for a mechanism.

    Parameters
    ----------
    lower, upper : float
        Ends of the interval, in the unit of the data.
    knots : int
        Number of knots.
    whole : bool
        True for laws of whole numbers.
    """

    lower: float
    upper: float
    knots: int
    whole: bool

    @classmethod
    def of(
        cls, mechanism: Any, lower: float | None = None, upper: float | None = None, knots: int = KNOTS
    ) -> "SmoothFamily":
        """Return the family of laws of the records of a mechanism, on its clipping bounds or a wider interval.

        Whole numbers have at most one knot each. Raises ValueError for categories, for a mechanism without clipping
        bounds, and for an interval that does not include the bounds.
        """
        if isinstance(mechanism, Categories):
            raise ValueError(f"a density needs numbers, but {mechanism!r} takes categories: see estimation.frequencies")
        bounds, knots, whole = ends_of(mechanism.domain), at_least(4, "knots", knots), mechanism.domain.is_discrete
        if lower is None or upper is None or is_concrete(*bounds):
            low, high = float(np.min(bounds[0])), float(np.max(bounds[1]))
            if not np.isfinite([low, high]).all():
                raise ValueError(f"a density needs a mechanism that clips numbers to bounds, got {mechanism!r}")
            lower, upper = low if lower is None else lower, high if upper is None else upper
            if not (lower <= low and high <= upper):
                wanted = f"lower and upper must include the bounds {low:g} and {high:g} of the mechanism"
                raise ValueError(f"{wanted}, got {lower:g} and {upper:g}")
        return cls(float(lower), float(upper), min(knots, int(upper - lower) + 1) if whole else knots, whole)

    def law(self, coefficients: Array) -> SmoothDensity:
        """Return the law with coefficients (knots − 1,), or (knots + 1,) with the log odds of two atoms at the ends.

        Independent standard normal coefficients, times a roughness τ, are a random walk of second order of the log
        density at the knots. Its straight line and its bends then vary by about τ each.
        """
        odds = coefficients[self.knots - 1 :]
        outside = jax.nn.softmax(jnp.append(odds, 0.0))[:2] if len(odds) else None
        basis = jnp.asarray(smooth_basis(self.knots), coefficients.dtype)
        kind = SmoothMass if self.whole else SmoothDensity
        return kind(basis @ coefficients[: self.knots - 1], self.lower, self.upper, outside)

    def fit(
        self, data: Release | Sketch, outside: bool = False, sampling: SamplingDesign | None = None
    ) -> tuple["Penalised", PreparedLikelihood]:
        """Return the posterior mode of the coefficients and of the roughness, and the likelihood of the data.

        The mode has the ``coefficients``, the ``roughness`` τ and the ``covariance`` of the coefficients. `outside`,
        `sampling`, errors and warnings are those of `estimate_density`.
        """
        if isinstance(data, Release) and data.values is None:
            raise ValueError("a density needs released values; this release has none")
        with jax.enable_x64(True):
            likelihood = PreparedLikelihood.of(data, self.law(np.zeros(self.knots - 1)))
            if sampling is not None:
                weights = sampling.normalised / sampling.kish_design_effect
                likelihood = dataclasses.replace(likelihood, weights=weights)
            fit = penalised(likelihood, outside, self)
            if sampling is not None:
                information = self.information(fit.coefficients, likelihood)
                bread = np.linalg.inv(information + np.diag(prior_of(fit.roughness, self.knots, outside)[1]))
                spread = np.asarray(sampling.covariance(weights[:, None] * _scores(fit.coefficients, likelihood, self)))
                fit = fit._replace(covariance=fit.covariance + bread @ (spread - information) @ bread)
        if not fit.converged:
            problem = f"the search for the most likely density has not converged after {NEWTON_STEPS} steps"
            warn(problem, EstimationWarning)
        if fit.at_ends.max() > END_PROBABILITY:
            end = ("lower", "upper")[np.argmax(fit.at_ends)]
            problem = f"{fit.at_ends.max():.1%} of the records are at the {end} end of [{self.lower:g}, {self.upper:g}]"
            advice = "the values say little about the law between the ends; choose other bounds"
            warn(f"{problem}: {advice}", EstimationWarning)
        return fit, likelihood

    def information(self, coefficients: Array, likelihood: PreparedLikelihood) -> np.ndarray:
        """Return the information matrix (p, p) of the released values about p coefficients."""
        with jax.enable_x64(True):
            return np.asarray(log_likelihood_at(coefficients, likelihood, self)[2])


def prior_of(roughness: float, knots: int, outside: bool) -> tuple[np.ndarray, np.ndarray]:
    """Prior means and precisions (p,) of the coefficients, of which the last two are log odds of atoms, if any."""
    size = knots + 1 if outside else knots - 1
    means = np.append(np.zeros(knots - 1), [ATOMS[0]] * 2)[:size]
    return means, np.append(np.full(knots - 1, 1 / roughness**2), np.full(2, 1 / ATOMS[1] ** 2))[:size]


def _roughness_at(coefficients: np.ndarray, covariance: np.ndarray, square: float) -> tuple[float, float]:
    """Slope by log τ of the (Laplace) log density of log τ at τ², and minus its derivative by log τ², or more, at the
    mode of the coefficients (knots − 1,) and their covariance.
    """
    errors, prior = covariance / square, square / ROUGHNESS**2
    size = coefficients @ coefficients / square
    freedom = len(errors) - np.trace(errors)
    bend = np.trace(errors) - np.sum(errors**2) + size - 2 * coefficients @ errors @ coefficients / square + prior
    # it is no less than half of what it can be at most, so that steps by it do not go to and fro
    return 1 - freedom + size - prior, max(bend, 0.5 * (0.5 + freedom + size + prior))


@functools.partial(jax.jit, static_argnames="family")
def log_likelihood_at(
    theta: Array, likelihood: PreparedLikelihood, family: SmoothFamily
) -> tuple[Array, Array, Array, Array]:
    """Log-likelihood of θ (p,), its slope (p,), the information (p, p), and probabilities (2,) of both end pieces."""

    def log_prob(theta: Array) -> Array:
        return likelihood.log_prob(family.law(theta))

    values, scores = log_prob(theta), jax.jacfwd(log_prob)(theta)
    weighted = scores.T * likelihood.weights
    slope, information = jnp.sum(weighted, axis=1), weighted @ scores
    coefficients, odds = theta[: family.knots - 1], theta[family.knots - 1 :]
    if len(odds):  # where few records are at a bound, their scores say less than the second derivatives
        bends = jax.hessian(lambda odds: likelihood.weights @ log_prob(jnp.append(coefficients, odds)))(odds)
        places = np.arange(family.knots - 1, family.knots + 1)
        information = information.at[places, places].max(-jnp.diagonal(bends))
    law = family.law(theta)
    below = law.cdf(law.knots[np.array([1, -2])])
    return likelihood.weights @ values, slope, information, jnp.stack([below[0], 1 - below[1]])


@functools.partial(jax.jit, static_argnames="family")
def _scores(theta: Array, likelihood: PreparedLikelihood, family: SmoothFamily) -> Array:
    """Scores (N, p) of single records."""
    return jax.jacfwd(lambda theta: likelihood.log_prob(family.law(theta)))(theta)


def penalised(likelihood: PreparedLikelihood, outside: bool, family: SmoothFamily) -> Penalised:
    """The posterior mode: Newton steps of the coefficients with the information as curvature, and between them a step
    of log τ to the mode of its marginal posterior by Laplace's method.
    """

    def at(theta: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(part) for part in log_likelihood_at(theta, likelihood, family)]

    basis = slice(family.knots - 1)
    square, damping, converged = 1.0, 0.0, False
    theta, precisions = means, _ = prior_of(1.0, family.knots, outside)
    here = at(theta)
    if not np.isfinite(here[0]):
        raise ValueError("some records at a bound were released without noise: in Python, give outside=True")
    for _ in range(NEWTON_STEPS):
        value, slope, information, _ = here
        curvature = information + np.diag(precisions)
        pull = slope - precisions * (theta - means)
        move = np.linalg.solve(curvature + damping * np.diag(np.diagonal(curvature)), pull)
        there = at(theta + move)
        gain = there[0] - value + 0.5 * precisions @ ((theta - means) ** 2 - (theta + move - means) ** 2)
        if not gain >= -1e-9:
            damping = 10 * max(damping, 0.1)
            continue
        theta, here, damping = theta + move, there, 0.1 * damping
        covariance = np.linalg.inv(here[2] + np.diag(precisions))
        slope_of_roughness, bend = _roughness_at(theta[basis], covariance[basis, basis], square)
        moved = np.max(np.abs(move) / np.sqrt(np.diagonal(covariance)))
        rise = np.clip(slope_of_roughness / bend, -LARGEST_RISE, LARGEST_RISE) if moved < NEAR_ERRORS else 0.0
        converged = moved < LAST_STEP_ERRORS and abs(rise) < 2 * LAST_STEP_ERRORS
        square = float(np.clip(square * np.exp(rise), LEAST_SQUARE, LARGEST_SQUARE))
        _, precisions = prior_of(np.sqrt(square), family.knots, outside)
        if converged:
            break
    _, _, information, at_ends = here
    covariance = np.linalg.inv(information + np.diag(precisions))
    drift = covariance[:, basis] @ (precisions * theta)[basis]  # of the mode, by log τ²
    covariance += 2 / _roughness_at(theta[basis], covariance[basis, basis], square)[1] * np.outer(drift, drift)
    return Penalised(theta, np.sqrt(square), covariance, at_ends, converged)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class DensityEstimate(Estimate):
    """Result of `estimate_density`: an estimated law (probability distribution) without a parametric family.

    It is an `Estimate` of functionals of the law, such as its mean and its quantiles; `of` estimates others.

    - ``law``: the estimated law, a `SmoothDensity`;
    - ``roughness``: the estimated roughness τ of the log density, 0 for a uniform law. A larger τ allows more bends.

    Notes
    -----
    Standard errors are posterior standard deviations, from a normal approximation at the mode and the delta method,
    with the bias of the penalty. For quantiles in a tail and for small shares, they are often too small. If the law is
    narrow beside the bounds and the noise is strong, the estimated law is too wide, and the standard errors of the Gini
    coefficient and of quantiles are far too small.
    """

    law: SmoothDensity
    roughness: float
    params: np.ndarray
    covariance: np.ndarray
    names: list[str]
    _fit: tuple[Any, Any, SmoothFamily]  # coefficients (p,), their covariance (p, p)
    _promises: tuple[Promise, ...]

    estimate = property(lambda s: dict(zip(s.names, s.params.tolist(), strict=True)), doc="The estimates by name.")
    privacy = functools.cached_property(lambda self: statements(self._promises))
    _title = property(lambda self: f"Smooth density on [{self.law.lower:g}, {self.law.upper:g}]")

    def of(self, functionals: Mapping[str, Callable[[Any], Any]]) -> "DensityEstimate":
        """Return an estimate of other functionals of the estimated law, such as ``{"gini": gini}``.

        `functionals` is a dict of functions of a law, by name: functions of `ldpbayes.functionals`, or your own. An
        array of k numbers gives k parameters. Raises ValueError if the dict is empty.
        """
        if not functionals:
            raise ValueError(f"functionals must be one or more functions by name, got {functionals!r}")
        with jax.enable_x64(True):
            coefficients, covariance, family = self._fit
            values, slopes = _values(coefficients, family, tuple(functionals.values()))
        names = names_of_values(functionals, values)
        slopes = np.concatenate([np.reshape(slope, (-1, len(coefficients))) for slope in slopes])
        params = np.concatenate([np.ravel(value) for value in values])
        return dataclasses.replace(self, params=params, covariance=slopes @ covariance @ slopes.T, names=names)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _values(coefficients: Array, family: SmoothFamily, functionals: tuple) -> tuple[list, list]:
    """Functionals of a law, and their derivatives by the coefficients."""

    def values(coefficients: Array) -> list[Array]:
        law = family.law(coefficients)
        return [jnp.asarray(functional(law)) for functional in functionals]

    return values(coefficients), jax.jacrev(values)(coefficients)


def estimate_density(
    data: Release | Sketch,
    lower: float | None = None,
    upper: float | None = None,
    *,
    sampling: SamplingDesign | None = None,
    domain: ArrayLike | None = None,
    knots: int = KNOTS,
    outside: bool = False,
    functionals: Mapping[str, Callable[[Any], Any]] | None = None,
) -> DensityEstimate:
    """Estimate the law (probability distribution) of original numbers without a parametric family ([Efron]).

    The logarithm of the density (of the probabilities of whole numbers) is linear between equally spaced knots. A
    penalty keeps its second differences, whose scale is the roughness, small. The result is the posterior mode of the
    model `ldpbayes.models.smooth_density`, nearly a uniform law if the release has no information.

    Parameters
    ----------
    data : Release or Sketch
        Released numbers, with one budget for all or one for each. For many records, a sketch is faster.
    lower, upper : float, optional
        Ends of the law's interval, in the unit of the data. It must include the clipping bounds, the default.
    sampling, domain : SamplingDesign, array_like (N,) of bool, optional
        How the people were sampled, and True for the records of a subgroup; only for a release. The log-likelihood is
        then weighted, its weights sum to N divided by the design effect of [Kish], and the sandwich formula has the
        linearised covariance of the scores, so that all is approximate. Default: all records are independent.
    knots : int
        Number of knots, at least 4, and at most one for each whole number if the mechanism takes these. Default: 41.
    outside : bool
        True if original records may lie outside the interval. Its ends then have atoms. Default: False.
    functionals : dict of str to callable, optional
        As in `DensityEstimate.of`, for the law of the records after clipping to the interval. Default: the mean, the
        standard deviation (``sd``) and, except for whole numbers, the 5, 25, 50, 75 and 95 % quantiles.

    Raises
    ------
    TypeError, ValueError
        Data without numbers, values, or with groups; an interval that does not contain the clipping bounds.

    Warns
    -----
    EstimationWarning
        Nearly all records are at one end of the interval, or the search for the mode did not converge.
    RepeatedAnswersWarning
        Several released numbers may be about one person, but the estimate treats them as independent.
    """
    if not isinstance(data, Release) and not (isinstance(data, Sketch) and data.law_shape == ()):
        raise TypeError(f"data must be one release, or one sketch without groups, got {type(data).__name__}")
    if isinstance(data, Sketch) and not (sampling is None and domain is None):
        raise TypeError("sampling and domain need the release itself, because a sketch has no single records")
    family = SmoothFamily.of(data.mechanism, lower, upper, knots)
    design = design_in(sampling, domain, data.count if isinstance(data, Release) else 0, release=data)
    refuse_population(design, "a density")
    fit, _ = family.fit(data, outside, design)
    if design is None or design.clusters is None:
        warn_of_repeats(data.promises)
    with jax.enable_x64(True):
        law = family.law(jnp.asarray(fit.coefficients))
    nothing, mode = (np.empty(0), np.empty((0, 0)), list[str]()), (fit.coefficients, fit.covariance, family)
    estimate = DensityEstimate(law, float(fit.roughness), *nothing, mode, data.promises)
    # the quantiles of whole numbers do not move with the coefficients, but at jumps
    defaults = {name: DEFAULTS[name] for name in ("mean", "sd")} if family.whole else DEFAULTS
    return estimate.of(defaults if functionals is None else functionals)
