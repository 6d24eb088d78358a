"""A model of clipped numbers without a parametric family."""

import contextlib
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, observe
from ldpbayes.estimation import SmoothFamily
from ldpbayes.inference import factory
from ldpbayes.models._coordinates import AlongAxes, Located

POSTERIOR_DRAWS = 32  # of the approximate posterior, over which the information is averaged
ODDS_DEVIATION = 1.5  # prior standard deviation of the log odds of an end in the penalised estimate


class RoughPosterior(NamedTuple):
    """A normal likelihood of coefficients c of a basis and log odds a of atoms: c with the information Q diag(λ) Qᵀ; a
    given c with mean centre − gain c and covariance P diag(μ) Pᵀ.
    """

    axes: Any  # Q
    sizes: Any  # λ
    pull: Any
    of_atoms: tuple[Any, Any, Any, Any] | None = None  # centre, gain, μ, P

    def located_coefficients(self, prior: dist.Distribution, roughness: Any) -> dist.Distribution:
        precisions = self.sizes + 1 / roughness**2
        axes = AlongAxes(self.axes, 1 / jnp.sqrt(precisions))
        return Located(prior, self.axes @ (self.pull / precisions), 1.0, linear=axes)

    def located_odds(self, prior: dist.Distribution, coefficients: Any) -> dist.Distribution:
        if self.of_atoms is None:
            return prior
        centre, gain, variances, axes = self.of_atoms
        return Located(prior, centre - gain @ coefficients, 1.0, linear=AlongAxes(axes, np.sqrt(variances)))


def _rough_posterior(
    release: Any, lower: float | None, upper: float | None, knots: int, outside: Any, **_: Any
) -> RoughPosterior:
    with contextlib.suppress(ValueError):  # more budgets than a sketch holds
        release = release.sketch(keep_records=False) if isinstance(release, Release) else release
    family = SmoothFamily.of(release.mechanism, lower, upper, knots)
    fit, likelihood = family.fit(release, outside is not None)
    draws = np.random.default_rng(0).multivariate_normal(fit.coefficients, fit.covariance, POSTERIOR_DRAWS)
    information = np.mean([family.information(theta, likelihood) for theta in draws], axis=0)
    inner, odds = slice(family.knots - 1), slice(family.knots - 1, None)
    c, a = fit.coefficients[inner], fit.coefficients[odds]
    of_atoms = None
    if outside is not None:
        covariance = np.linalg.inv(information[odds, odds] + np.eye(2) / ODDS_DEVIATION**2)
        gain = covariance @ information[odds, inner]
        of_atoms = (a + gain @ c, gain, *np.linalg.eigh(covariance))
        information = information[inner, inner] - information[inner, odds] @ gain
    sizes, axes = np.linalg.eigh(information)
    sizes = np.maximum(sizes, 0.0)
    return RoughPosterior(axes, sizes, (sizes + 1 / fit.roughness**2) * (c @ axes), of_atoms)


@factory(
    "numbers",
    summary="Model of numbers or counts whose law has no parametric family: a smooth density.",
    coordinates=_rough_posterior,
)
def smooth_density(
    release: Release | Sketch,
    lower: float | None = None,
    upper: float | None = None,
    *,
    knots: int = 41,
    roughness: dist.Distribution = dist.HalfNormal(2.0),
    outside: dist.Distribution | None = None,
    coordinates: RoughPosterior | None = None,
) -> None:
    """Model of numbers or counts whose law (probability distribution) has no parametric family: a smooth density.

    The log density is linear between equally spaced points (knots). The prior of its values at the knots is a random
    walk of second order, as for smoothing splines. The law is a `SmoothDensity`, or a `SmoothMass` if the mechanism
    takes whole numbers. Use `predict` with `ldpbayes.functionals` to compute quantiles, shares or the Gini coefficient.

    Returns ``model(release)`` with sites ``roughness`` (the scale τ of the random walk prior), ``coefficients`` (knots
    − 1,), from which ``log_density`` (the log density at the knots) is computed, and ``z``. With the option
    ``outside``, the site ``outside`` (2,) has the probabilities of the two ends of the interval, and ``odds`` (2,)
    their log odds.

    Parameters
    ----------
    lower, upper : float, optional
        Ends of the interval of the law, in the unit of the data, at or beyond the clipping bounds. Default: the
        clipping bounds.
    knots : int
        Number of knots of the log density, at least 4. For whole numbers, at most as many are used as there are whole
        numbers in the interval.
    roughness : numpyro.distributions.Distribution
        Prior of τ, about the standard deviation of the log density over the interval (0 for a uniform law). Default:
        half-normal with scale 2.
    outside : numpyro.distributions.Distribution, optional
        Only if original records may lie outside the interval: they count as records at the nearest end, which then has
        a positive probability. This prior is for the log odds of this probability, compared with the probability
        inside, such as ``dist.Normal(-3, 1.5)``.
    """
    family = SmoothFamily.of(release.mechanism, lower, upper, knots)
    size = family.knots - 1
    tau = numpyro.sample("roughness", roughness)
    rough = coordinates or RoughPosterior(np.eye(size), np.zeros(size), np.zeros(size))
    prior = dist.Normal(0.0, tau).expand([size]).to_event(1)
    parameters = numpyro.sample("coefficients", rough.located_coefficients(prior, tau))
    if outside is not None:
        odds = numpyro.sample("odds", rough.located_odds(outside.expand([2]).to_event(1), parameters))
        parameters = jnp.append(parameters, odds)
    law = family.law(parameters)
    numpyro.deterministic("log_density", law.log_density)
    if outside is not None:
        numpyro.deterministic("outside", law.outside)
    observe("z", law, release)
