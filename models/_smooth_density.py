"""A model of clipped numbers without a parametric family."""

import contextlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import Transform

from ldpbayes import Release, Sketch, observe
from ldpbayes._core.types import Array, Key
from ldpbayes.estimation.smoothing import ATOMS, KNOTS, ROUGHNESS, fitted, law_of, log_likelihood_at, shape_of
from ldpbayes.inference import factory

DRAWS = 32  # of the approximate posterior, over which the information is averaged


class Coordinates(NamedTuple):
    """Where the coefficients c of a basis and the log odds a of atoms are likely, by a normal likelihood: c with the
    information Q diag(λ) Qᵀ and the score Q pull at 0; a given c with mean centre − gain c and covariance P diag(μ) Pᵀ.
    """

    axes: Array  # Q
    sizes: Array  # λ
    pull: Array
    of_atoms: tuple[Array, Array, Array, Array] | None = None  # centre, gain, μ, P

    def of_coefficients(self, prior: dist.Distribution, roughness: Array) -> "InCoordinates":
        precisions = self.sizes + 1 / roughness**2
        return InCoordinates(prior, self.axes @ (self.pull / precisions), self.axes, 1 / jnp.sqrt(precisions))

    def of_odds(self, prior: dist.Distribution, coefficients: Array) -> dist.Distribution:
        if self.of_atoms is None:
            return prior
        centre, gain, variances, axes = self.of_atoms
        return InCoordinates(prior, centre - gain @ coefficients, axes, np.sqrt(variances))


def _coordinates(
    release: Any, lower: float | None, upper: float | None, knots: int, outside: Any, **_: Any
) -> Coordinates:
    """Coordinates in which the posterior is nearly standard normal, from the penalised estimate."""
    with contextlib.suppress(ValueError):  # more budgets than a sketch holds
        release = release.sketch(keep_records=False) if isinstance(release, Release) else release
    fit, likelihood, shape = fitted(release, lower, upper, knots, outside is not None)
    draws = np.random.default_rng(0).multivariate_normal(fit.coefficients, fit.covariance, DRAWS)
    with jax.enable_x64(True):
        information = np.mean([log_likelihood_at(theta, likelihood, shape)[2] for theta in draws], axis=0)
    own, odds = slice(shape.knots - 1), slice(shape.knots - 1, None)
    c, a = fit.coefficients[own], fit.coefficients[odds]
    of_atoms = None
    if outside is not None:
        covariance = np.linalg.inv(information[odds, odds] + np.eye(2) / ATOMS[1] ** 2)
        gain = covariance @ information[odds, own]
        of_atoms = (a + gain @ c, gain, *np.linalg.eigh(covariance))
        information = information[own, own] - information[own, odds] @ gain
    sizes, axes = np.linalg.eigh(information)
    sizes = np.maximum(sizes, 0.0)
    return Coordinates(axes, sizes, (sizes + 1 / fit.roughness**2) * (c @ axes), of_atoms)


@factory("numbers", tune=_coordinates)
def smooth_density(
    release: Release | Sketch,
    lower: float | None = None,
    upper: float | None = None,
    *,
    knots: int = KNOTS,
    roughness: dist.Distribution = dist.HalfNormal(ROUGHNESS),
    outside: dist.Distribution | None = None,
    _coordinates: Coordinates | None = None,
) -> None:
    """Model of numbers or counts whose law (probability distribution) has no parametric family: a smooth density.

    The log density is linear between equally spaced points (knots). The prior of its values at the knots is a random
    walk of second order, as for smoothing splines. The law is a `SmoothDensity`, or a `SmoothMass` if the mechanism
    takes whole numbers. Use `predict` with `ldpbayes.functionals` to compute quantiles, shares or the Gini coefficient.

    Returns ``model(release)`` with sites ``roughness`` (the scale τ of the random walk prior), ``log_density`` (the log
    density at the knots), and ``z`` (the released values). ``log_density`` is computed from the site ``coefficients``
    (knots − 1,). With the option ``outside``, there are two more sites: ``outside`` (2,) has the probabilities of the
    two ends of the interval, and ``odds`` (2,) their log odds.

    Parameters
    ----------
    lower, upper : float, optional
        Ends of the interval of the law, in the unit of the data. Raises ValueError if the interval does not include the
        clipping bounds of the mechanism. Default: the clipping bounds.
    knots : int
        Number of knots of the log density, at least 4. For whole numbers, the model uses at most as many knots as there
        are whole numbers in the interval. Default: 41.
    roughness : numpyro.distributions.Distribution
        Prior of the roughness τ. About τ is the standard deviation of the log density over the interval. With τ = 0,
        the law is uniform. Default: half-normal with scale 2.
    outside : numpyro.distributions.Distribution, optional
        Give this prior if original records may lie outside the interval from ``lower`` to ``upper``. They count as
        records at the nearest end of the interval, which then has a positive probability. The prior is for the log odds
        of this probability, compared with the probability inside the interval. An example is ``dist.Normal(-3, 1.5)``.
        Default: no records lie outside.
    """
    shape = shape_of(release.mechanism, lower, upper, knots)
    size = shape.knots - 1
    tau = numpyro.sample("roughness", roughness)
    there = _coordinates or Coordinates(np.eye(size), np.zeros(size), np.zeros(size))
    prior = dist.Normal(0.0, tau).expand([size]).to_event(1)
    parameters = numpyro.sample("coefficients", there.of_coefficients(prior, tau))
    if outside is not None:
        odds = numpyro.sample("odds", there.of_odds(outside.expand([2]).to_event(1), parameters))
        parameters = jnp.append(parameters, odds)
    law = law_of(parameters, shape)
    numpyro.deterministic("log_density", law.log_density)
    if outside is not None:
        numpyro.deterministic("outside", law.outside)
    observe("z", law, release)


class InCoordinates(dist.Distribution):
    """A law of vectors (p,) for which samplers use coordinates u, x = mean + axes (spread u) with orthogonal axes, that
    make its posterior nearly standard normal. The law itself does not depend on them.
    """

    pytree_data_fields = ("base_dist", "coordinates")

    def __init__(self, base_dist: dist.Distribution, *coordinates: Array) -> None:
        self.base_dist, self.coordinates = base_dist, coordinates
        super().__init__(event_shape=base_dist.event_shape)

    support = property(lambda self: _AlongAxes(*self.coordinates))

    def sample(self, key: Key, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        return self.base_dist.sample(key, sample_shape)

    def log_prob(self, value: Array, intermediates: Any = None) -> jax.Array:
        return self.base_dist.log_prob(value)


class _AlongAxes(constraints.Constraint):
    """All real vectors, with the coordinates that `biject_to` gives them."""

    event_dim = 1

    def __init__(self, mean: Array, axes: Array, spread: Array) -> None:
        self.mean, self.axes, self.spread = mean, axes, spread

    def __call__(self, x: Array) -> Array:
        return jnp.all(jnp.isfinite(x), axis=-1)

    def feasible_like(self, prototype: Array) -> Array:
        return jnp.zeros_like(prototype)

    def tree_flatten(self) -> tuple:
        return (self.mean, self.axes, self.spread), (("mean", "axes", "spread"), {})


class _ToAxes(Transform):
    """From coordinates to vectors."""

    domain = codomain = constraints.real_vector

    def __init__(self, mean: Array, axes: Array, spread: Array) -> None:
        self.mean, self.axes, self.spread = mean, axes, spread

    def __call__(self, x: Array) -> Array:
        return self.mean + (self.spread * x) @ self.axes.T

    def _inverse(self, y: Array) -> Array:
        return (y - self.mean) @ self.axes / self.spread

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: Any = None) -> Array:
        return jnp.broadcast_to(jnp.sum(jnp.log(self.spread)), jnp.shape(x)[:-1])

    tree_flatten = _AlongAxes.tree_flatten


@biject_to.register(_AlongAxes)
def _to_axes(support: _AlongAxes) -> _ToAxes:
    return _ToAxes(support.mean, support.axes, support.spread)
