"""The mode of a posterior, and the posterior's spread there."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy

from ldpbayes.inference.approximations._cut import NoExpansion
from ldpbayes.inference.compiled_programs import in_threads

GRADIENT_TOLERANCE = 0.05  # of the potential: the mode of a standard normal posterior is then off by a twentieth
MAX_SEARCH_ITERATIONS = 500  # of a search
DIFFERENCE_SDS = 0.3  # standard deviations over which slopes are differenced
MAX_PARAMETER_SD = 3.0  # standard deviations of an unconstrained parameter; larger estimates are not believed
MAX_HESSIANS = 3  # differences of slopes, repeated if the steps before were of a wrong length
NEGLIGIBLE_MODE_NATS = 12.0  # nats of log mass by which another mode is lower if it may be left out: e^12 is 160,000
MAX_GRADIENT_AT_MODE = 1.0  # gradient in standard deviations, a parameter, beyond which the end of a search is no mode
SAME_MODE_SDS = 6.0  # standard deviations, beyond the typical distance of a draw, within which two modes count as one

# From parameters (m, n) to potentials (m,) and their gradients (m, n).
Gradients: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class PosteriorMode(NamedTuple):
    """The normal approximation at the highest density: at + root u for standard normal u."""

    at: np.ndarray  # (n,), unconstrained parameters
    root: np.ndarray  # (n, n), a root of their covariance

    def distance(self, point: np.ndarray) -> float:
        return float(np.linalg.norm(np.linalg.solve(self.root, point - self.at)))


def find_mode(gradients: Gradients, starts: Sequence[np.ndarray]) -> PosteriorMode:
    """The mode of most mass, by searches from starts (n,); `NoExpansion` if there is none or another matters."""

    def potential(point: np.ndarray) -> tuple[float, np.ndarray]:
        (value,), (gradient,) = gradients(point[None])
        finite = np.isfinite(value) and np.isfinite(gradient).all()
        return (float(value), gradient) if finite else (np.inf, np.zeros_like(point))

    def search(start: np.ndarray) -> Any:
        options = {"gtol": GRADIENT_TOLERANCE, "maxiter": MAX_SEARCH_ITERATIONS}
        return scipy.optimize.minimize(potential, start, jac=True, method="BFGS", options=options)

    # SciPy warns of a search that ends early; its end is judged below.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ends = sorted(in_threads(search, starts), key=lambda end: end.fun)
    if not np.isfinite(ends[0].fun):
        raise NoExpansion(f"the posterior density is zero or undefined at all {len(starts)} starting points")
    visited: list[PosteriorMode] = []  # where searches have ended, at modes or not
    modes: list[tuple[float, PosteriorMode]] = []  # with the logarithms of their masses, up to a constant
    typical = np.sqrt(starts[0].size)  # distance of a draw from its mode, in standard deviations
    for end in ends:
        if not np.isfinite(end.fun) or any(place.distance(end.x) - typical <= SAME_MODE_SDS for place in visited):
            continue
        here = PosteriorMode(end.x, _spread(gradients, end.x, _root(np.asarray(end.hess_inv))))
        visited.append(here)
        # Elsewhere the density rises further, perhaps without bound.
        if np.linalg.norm(end.jac @ here.root) <= MAX_GRADIENT_AT_MODE * typical:
            # The highest density may be in a narrow place of little mass.
            modes.append((np.linalg.slogdet(here.root)[1] - end.fun, here))
    if not modes:
        raise NoExpansion(f"none of {len(starts)} searches found a mode; the density may be unbounded")
    (most, best), *others = sorted(modes, key=lambda pair: -pair[0])
    for mass, other in others:
        if most - mass < NEGLIGIBLE_MODE_NATS:
            apart = f"{best.distance(other.at):.0f} standard deviations apart"
            factor = f"a factor e^{most - mass:.1f}"
            raise NoExpansion(f"the posterior has modes {apart}, whose probabilities differ only by {factor}")
    return best


def _root(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    return vectors * np.sqrt(np.clip(values, 1e-16, MAX_PARAMETER_SD**2))


def _spread(gradients: Gradients, at: np.ndarray, root: np.ndarray) -> np.ndarray:
    """A root of the inverse of the potential's second derivatives, from differences of slopes along a first guess."""
    for _ in range(MAX_HESSIANS):
        steps = DIFFERENCE_SDS * root.T
        after, before = np.split(gradients(np.concatenate([at + steps, at - steps]))[1], 2)
        hessian = (after - before) / (2 * DIFFERENCE_SDS) @ root  # the identity, if the root was right
        if not np.isfinite(hessian).all():
            break
        values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
        scaled = root @ vectors / np.sqrt(np.maximum(values, 1e-4))
        root = _root(scaled @ scaled.T)
        if values[0] > 0.25 and values[-1] < 4:
            break
    return root
