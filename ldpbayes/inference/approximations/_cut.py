"""Where a model is expanded: in the few numbers by which it sees many records, and around its posterior's mode."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import scipy

from ldpbayes._core.types import Array, Params
from ldpbayes.inference.approximations.panels import panel_sketches
from ldpbayes.inference.compiled_programs import in_threads, inputs_in_use
from ldpbayes.inference.density import Density, Site

WORTHWHILE_RECORDS = 1000  # records from which on an observed site is worth expanding
REQUESTED_RECORDS = 10  # records from which on an observed site is expanded on request
MAX_COORDINATES = 128  # numbers in which a function is expanded, in each of its groups
MAX_ALL_COORDINATES = 1 << 14  # numbers of all groups together

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


class NoExpansion(ValueError):
    """The model has no place where it can be cut, or no mode, or several of which an expansion would know one only."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """A model cut in two: potential = rest(parameters) − likelihood(coordinates(parameters))."""

    density: Density
    observed: tuple[str, ...]  # sites whose log-likelihood is below the cut
    names: tuple[str, ...]  # sites whose values are coordinates: slopes, or a deterministic site below group effects
    unconstrained: frozenset[str]  # those of them whose unconstrained values are taken
    shapes: tuple[tuple[int, ...], ...]  # of the values of these sites
    groups: int | None  # number of groups if the likelihood is a sum over groups, each of its own coordinates
    count: int  # number of records below the cut
    parameters: Params  # any unconstrained values of the latent sites

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the coordinates, (n,) or (groups, n)."""
        total = sum(math.prod(shape) for shape in self.shapes)
        return (total,) if self.groups is None else (self.groups, total // self.groups)

    def rest(self, parameters: Params) -> Array:
        above = numpyro.handlers.block(self.density.model, hide=list(self.observed))
        return dataclasses.replace(self.density, model=above).potential(parameters)

    def coordinates(self, parameters: Params) -> Array:
        values = self.density.constrained(parameters) | {name: parameters[name] for name in self.unconstrained}
        lead = () if self.groups is None else (self.groups,)
        return jnp.concatenate([jnp.reshape(values[name], (*lead, -1)) for name in self.names], axis=-1)

    def likelihood(self, x: Array) -> Array:
        sizes = [math.prod(shape) // (self.groups or 1) for shape in self.shapes]
        parts = jnp.split(jnp.asarray(x), np.cumsum(sizes)[:-1], axis=-1)
        values = {name: jnp.reshape(p, s) for name, p, s in zip(self.names, parts, self.shapes, strict=True)}
        unconstrained = self.unconstrained | (set(self.parameters) - set(self.names))
        return self.density.log_likelihood(self.parameters | values, unconstrained, self.observed)


def cut_model(density: Density, sites: dict[str, Site], parameters: Params, least: int = WORTHWHILE_RECORDS) -> Cut:
    """Cut a model above its observed sites with enough records, by any parameters of finite density."""
    observed = tuple(name for name, site in sites.items() if site.records >= least)
    if not observed:
        raise NoExpansion(f"no observed site has {least} records or more")
    if panel_sketches(density):
        raise NoExpansion("the data include a PanelSketch, whose accuracy is checked in another way")
    count = sum(sites[name].records for name in observed)
    values = jax.eval_shape(density.constrained, parameters)
    real = {name: value for name, value in values.items() if jnp.issubdtype(value.dtype, jnp.floating)}
    small = {n: value for n, value in real.items() if value.size <= MAX_ALL_COORDINATES and n not in parameters}
    for fixed in (small, {}):
        ancestors = _ancestors(density, observed, fixed, parameters)
        # Two coordinates with a common latent ancestor are not free of each other: the cut is then at latent sites.
        if sum(map(len, ancestors.values())) == len(frozenset().union(*ancestors.values())):
            break
    names = tuple(ancestors)
    unconstrained = frozenset(name for name in names if name in parameters and not sites[name].expanded_constrained)
    shapes = tuple(np.shape(parameters[name]) if name in unconstrained else values[name].shape for name in names)
    whole = Cut(density, observed, names, unconstrained, shapes, None, count, parameters)
    lead = {shape[:1] for shape in shapes}
    if len(lead) == 1 and lead not in ({()}, {(1,)}):
        (groups,) = next(iter(lead))
        grouped = dataclasses.replace(whole, groups=groups)
        # Groups with one coordinate each, such as slopes, are taken apart only if there are too many for one vector.
        worthwhile = grouped.shape[1] > 1 or whole.shape[0] > MAX_COORDINATES
        if worthwhile and grouped.shape[1] <= MAX_COORDINATES and _is_sum(grouped, grouped.coordinates(parameters)):
            return grouped
    if whole.shape[0] > MAX_COORDINATES:
        sizes = ", ".join(f"{math.prod(shape)} of {name!r}" for name, shape in zip(names, shapes, strict=True))
        most = f"at most {MAX_COORDINATES} are allowed for a group of records (name fewer with numpyro.deterministic)"
        raise NoExpansion(f"the likelihood depends on {whole.shape[0]} numbers ({sizes}), but {most}")
    return whole


def _ancestors(density: Density, observed: tuple[str, ...], fixed: Params, parameters: Params) -> dict[str, frozenset]:
    """Sites that the observed sites depend on if deterministic ones are fixed, with the latent sites behind each."""

    def likelihood(latent: Params, fixed: Params) -> Array:
        return density.log_likelihood(latent | fixed, latent, observed)

    latent, deterministic = inputs_in_use(likelihood, parameters, fixed)
    ancestors = {name: frozenset([name]) for name in latent}
    for name in deterministic:
        ancestors[name] = frozenset(inputs_in_use(lambda u, name=name: density.constrained(u)[name], parameters)[0])
    return {name: roots for name, roots in ancestors.items() if roots}


def _is_sum(cut: Cut, x: Array) -> bool:
    """Whether the likelihood is a sum over groups: changing some leaves the slopes of all others unchanged."""
    slopes = jax.jit(jax.grad(cut.likelihood))
    step, before = 1e-3 * (1 + jnp.abs(x)), slopes(x)
    numbers = np.arange(x.shape[0])
    for bit in range(int(x.shape[0] - 1).bit_length()):
        side = (numbers >> bit & 1).astype(bool)
        for changed in (side, ~side):
            after = slopes(x + jnp.where(changed[:, None], step, 0.0))
            if not np.array_equal(np.asarray(after)[~changed], np.asarray(before)[~changed]):
                return False
    return True


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
