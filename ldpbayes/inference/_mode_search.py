"""Passes over the records of a model that is cut, their expansion, and the mode and spread of its posterior."""

import dataclasses
import functools
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree

from ldpbayes._core.checks import is_integer
from ldpbayes._core.types import Array, Key, Params
from ldpbayes.inference._missed_tails import Rays, tail_errors
from ldpbayes.inference._split_model import Cut, cut_model
from ldpbayes.inference.compiled_programs import PROGRAMS, Program, program_of, trace
from ldpbayes.inference.density import Density, Site
from ldpbayes.numerics.polynomial import Frame, Polynomial, polynomial_of_slopes, terms_of_slopes

SPARE_POINTS = 16  # points of a fit, beyond twice the number of coefficients of an entry of the gradient
OUTSIDE = 2.0  # standard deviations beyond the typical distance √r: at most one draw in 300 of a normal law is there
HELD_OUT_EVERY = 4  # every fourth point tests the polynomial and is not used to fit it


@dataclasses.dataclass(frozen=True, eq=False)
class Expansion:
    """Log-likelihoods of records, and their gradients, at points of a posterior: all that `fit` needs of the records.

    Expansions of shards add if they were made at the same points. `expand` makes them.
    """

    names: tuple[str, ...]  # sites of the model that the records depend on, in the order of the coordinates
    order: int  # of the polynomial: 2, 3 or 4
    count: int  # number of records
    frame: Frame  # coordinates of the polynomial, in which draws of the posterior have covariance 1
    points: np.ndarray  # (points, n) or (points, groups, n): values of these sites at draws
    values: np.ndarray  # (points,): log-likelihoods of the records
    slopes: np.ndarray  # of the shape of the points: gradients of the log-likelihood
    rays: Rays | None = None  # points outwards of these draws, where the polynomial is compared with the records
    outwards: np.ndarray | None = None  # (m,): log-likelihoods of the records at the points of the rays

    def __add__(self, other: object) -> "Expansion":
        if not isinstance(other, Expansion):
            return NotImplemented
        if self.names != other.names or not np.array_equal(self.points, other.points):
            raise ValueError(
                "expansions add only if they were made at the same points: make the second with at=the first"
            )
        outwards = None if self.outwards is None or other.outwards is None else self.outwards + other.outwards
        count, values, slopes = self.count + other.count, self.values + other.values, self.slopes + other.slopes
        return dataclasses.replace(self, count=count, values=values, slopes=slopes, outwards=outwards)

    def __radd__(self, other: object) -> "Expansion":
        """Let ``sum`` start from 0."""
        return self if is_integer(other) and other == 0 else NotImplemented

    @property
    def polynomial(self) -> Polynomial:
        return self._fitted(np.ones(len(self.points), bool))

    def _fitted(self, used: np.ndarray) -> Polynomial:
        return polynomial_of_slopes(self.frame, self.points[used], self.values[used], self.slopes[used], self.order)

    def errors(self) -> np.ndarray:
        """Errors in nats, up to a constant, at every fourth point of a polynomial that is fitted to the others."""
        test = np.arange(len(self.points)) % HELD_OUT_EVERY == 0
        errors = self.values[test] - values_of(self._fitted(~test), self.points[test])
        return errors - errors.mean()


def passes_for(frame: Frame, order: int) -> int:
    """Number of points to which a polynomial of an order is fitted."""
    return 2 * terms_of_slopes(frame.root.shape[-2], order) + SPARE_POINTS


def values_of(polynomial: Polynomial, points: np.ndarray) -> np.ndarray:
    """Values (points,) of a polynomial, or of a batch of them, summed over groups, at points (points, ..., n)."""
    return polynomial.values(points).reshape(len(points), -1).sum(axis=1)


def share_outside(polynomial: Polynomial, points: np.ndarray) -> float:
    """Share of points (points, ..., n), in any of the groups, that are far from the points of the fit."""
    y = np.einsum("...kn,m...n->m...k", polynomial.root, points - polynomial.center)
    return float(np.mean(np.linalg.norm(y, axis=-1) > np.sqrt(y.shape[-1]) + OUTSIDE))


class Passes:
    """The log-likelihood of all records below a cut; each point costs one pass over them, and `count` counts these."""

    def __init__(self, cut: Cut) -> None:
        self.count, self._lock, self._likelihood = 0, threading.Lock(), cut.likelihood
        self._example = jax.ShapeDtypeStruct(cut.shape, np.dtype(float))
        traced, (self._arrays,) = trace(lambda _, x: jax.value_and_grad(cut.likelihood)(x), self._example)
        self.work = traced.work  # number of array entries that a pass reads and writes: its cost on any machine
        self._traced = traced

    @functools.cached_property
    def _slopes(self) -> Callable:
        program = PROGRAMS.get(("pass", self._traced.key), lambda: Program(self._traced, self._arrays, self._example))
        return functools.partial(program, self._arrays)

    @functools.cached_property
    def _values(self) -> Callable:
        return program_of("pass", self._likelihood, self._example)

    def slopes(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log-likelihoods (points,) and their gradients (points, *cut.shape) at points (points, *cut.shape)."""
        values, slopes = zip(*self._run(self._slopes, points), strict=True)
        return np.array(values), np.stack(slopes)

    def values(self, points: np.ndarray) -> np.ndarray:
        """Log-likelihoods (points,) at points (points, *cut.shape)."""
        return np.array(self._run(self._values, points))

    def _run(self, program: Callable, points: np.ndarray) -> list[Any]:
        with self._lock:  # searches for the mode run in threads
            self.count += len(points)

        def at(point: np.ndarray) -> Any:
            with jax.enable_x64(True):
                return jax.tree.map(np.asarray, program(point))

        if len(points) == 1:
            return [at(points[0])]
        with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="ldpbayes-pass") as pool:
            return list(pool.map(at, points))


GRADIENT_TOLERANCE = 0.05  # of the potential: the mode of a standard normal posterior is then off by a twentieth
MAX_ITERATIONS = 500  # of a search
STEP = 0.3  # standard deviations over which slopes are differenced
MAX_SPREAD = 3.0  # standard deviations of an unconstrained parameter; larger estimates are not believed
MAX_REPEATS = 3  # differences of slopes, repeated if the steps before were of a wrong length
NEGLIGIBLE_MODE = 12.0  # nats of log mass by which another mode is lower if it may be left out: e^12 is 160,000
STEEP = 1.0  # gradient in standard deviations, a parameter, beyond which the end of a search is no mode
SAME_MODE = 6.0  # standard deviations, beyond the typical distance of a draw, within which two modes count as one

# From points (m, *cut.shape) to log-likelihoods (m,) and their gradients.
Slopes: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class NoMode(ValueError):
    """No mode was found, or several modes far from each other, of which one expansion would know only one."""


class Above:
    """The part of a model above its cut, compiled, in flat unconstrained parameters of `size` numbers by `names`."""

    def __init__(self, cut: Cut, example: Params) -> None:
        flat, self.unravel = ravel_pytree(example)
        self.size, self._shape, self._example = len(flat), cut.shape, example
        self.names = sorted(example)

        def coordinates(flat: Array) -> Array:
            return cut.coordinates(self.unravel(flat))

        def tilted(flat: Array, slope: Array) -> tuple[Array, Array]:
            """Rest, and the gradient of the rest less a likelihood that is linear in the coordinates."""

            def difference(flat: Array) -> tuple[Array, Array]:
                rest = cut.rest(self.unravel(flat))
                return rest - jnp.sum(slope * coordinates(flat)), rest

            gradient, rest = jax.grad(difference, has_aux=True)(flat)
            return rest, gradient

        parameters, slope = (jax.ShapeDtypeStruct(shape, flat.dtype) for shape in (flat.shape, cut.shape))
        self._coordinates = program_of("coordinates", coordinates, parameters)
        self._tilted = program_of("tilted", tilted, parameters, slope)

    def coordinates(self, points: np.ndarray) -> np.ndarray:
        """Coordinates (m, *cut.shape) of parameters (m, size)."""
        if not len(points):
            return np.zeros((0, *self._shape))
        return np.stack([np.asarray(self._coordinates(point)) for point in points])

    def gradients(self, points: np.ndarray, slopes: Slopes) -> tuple[np.ndarray, np.ndarray]:
        """Potentials (m,) and their gradients at parameters (m, size), under a likelihood with these slopes."""
        return self.potentials(points, *slopes(self.coordinates(points)))

    def potentials(self, points: np.ndarray, values: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Potentials (m,) and their gradients, from values (m,) and slopes of the likelihood."""
        parts = [self._tilted(point, slope) for point, slope in zip(points, slopes, strict=True)]
        rest = np.array([part[0] for part in parts])
        return rest - values, np.stack([np.asarray(part[1]) for part in parts])

    def flat(self, positions: Params) -> np.ndarray:
        return flat_rows(positions, self._example)


def flat_rows(positions: Params, example: Params) -> np.ndarray:
    """Flat parameters (draws, size), in the order of names, of positions (..., *shape) of each site."""
    names = sorted(example)
    lead = np.shape(positions[names[0]])[: np.ndim(positions[names[0]]) - np.ndim(example[names[0]])]
    rows = np.concatenate([np.reshape(positions[name], (*lead, -1)) for name in names], axis=-1)
    return rows.reshape(-1, rows.shape[-1])


class Mode(NamedTuple):
    """The normal approximation at the highest density: at + root u for standard normal u."""

    at: np.ndarray  # (size,), unconstrained parameters
    root: np.ndarray  # (size, size), a root of their covariance

    def distance(self, point: np.ndarray) -> float:
        return float(np.linalg.norm(np.linalg.solve(self.root, point - self.at)))


def find_mode(above: Above, slopes: Slopes, starts: Sequence[np.ndarray]) -> Mode:
    """The mode of most mass, by searches from several starts; `NoMode` if there is none, or another that matters."""

    def potential(flat: np.ndarray) -> tuple[float, np.ndarray]:
        (value,), (gradient,) = above.gradients(flat[None], slopes)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return np.inf, np.zeros_like(flat)
        return float(value), gradient

    options = {"gtol": GRADIENT_TOLERANCE, "maxiter": MAX_ITERATIONS}

    def search(start: np.ndarray) -> Any:
        with jax.enable_x64(True):
            return scipy.optimize.minimize(potential, start.ravel(), jac=True, method="BFGS", options=options)

    # SciPy warns of a search that ends early; its end is judged below.
    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count() or 1, "ldpbayes-mode") as pool:
        warnings.simplefilter("ignore")
        ends = sorted(pool.map(search, starts), key=lambda end: end.fun)
    if not np.isfinite(ends[0].fun):
        raise NoMode(f"the posterior has no density at any of {len(starts)} starts")
    modes: list[tuple[float, Mode]] = []  # with the logarithms of their masses, up to a constant
    steep: list[Mode] = []  # ends that are no modes: the density rises further, perhaps without bound
    typical = np.sqrt(above.size)  # distance of a draw from its mode, in standard deviations
    for end in ends:
        known = [*(each for _, each in modes), *steep]
        if not np.isfinite(end.fun) or any(each.distance(end.x) - typical <= SAME_MODE for each in known):
            continue
        here = Mode(end.x, _spread(above, slopes, end.x, _root(np.asarray(end.hess_inv))))
        if np.linalg.norm(end.jac @ here.root) > STEEP * typical:
            steep.append(here)
        else:
            # The highest density may be in a narrow place of little mass.
            modes.append((np.linalg.slogdet(here.root)[1] - end.fun, here))
    if not modes:
        raise NoMode(f"none of {len(starts)} searches ends at a mode; the density may have no bound")
    (most, best), *others = sorted(modes, key=lambda each: -each[0])
    for mass, other in others:
        if most - mass < NEGLIGIBLE_MODE:
            raise NoMode(
                f"searches from different starts end {best.distance(other.at):.0f} standard deviations apart, at "
                f"modes whose masses differ by a factor e^{most - mass:.1f}"
            )
    return best


def _root(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    return vectors * np.sqrt(np.clip(values, 1e-16, MAX_SPREAD**2))


def _spread(above: Above, slopes: Slopes, at: np.ndarray, root: np.ndarray) -> np.ndarray:
    """A root of the inverse of the potential's second derivatives, from differences of slopes along a first guess."""
    for _ in range(MAX_REPEATS):
        steps = STEP * root.T
        after = above.gradients(np.concatenate([at + steps, at - steps]), slopes)[1]
        along = (after[: len(steps)] - after[len(steps) :]) / (2 * STEP)
        hessian = along @ root  # in the coordinates of the root: the identity, if the root was right
        if not np.isfinite(hessian).all():
            break
        values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
        scaled = root @ vectors / np.sqrt(np.maximum(values, 1e-4))
        root = _root(scaled @ scaled.T)
        if values[0] > 0.25 and values[-1] < 4:
            break
    return root


ORDERS = (2, 3, 4)
MIN_SEARCHES = 8  # for the mode: of two modes that attract alike, one is missed with probability 1/128
NORMAL_DRAWS = 4000  # from the normal approximation: a frame of few draws is too narrow in many dimensions
MAX_FIRST_PASSES = 400  # passes that a first expansion may take, if it is to be of a higher order than the second


class Search:
    """A model that is cut, with passes over its records, its mode and its expansions; raises `Uncut`."""

    def __init__(
        self, density: Density, sites: dict[str, Site], strategy: Callable, key: Key, min_records: int
    ) -> None:
        self._strategy, self.key = strategy, key
        self._first = self._start(density, 0)
        self.cut = cut_model(density, sites, self._first, min_records)
        self.passes = Passes(self.cut)

    @functools.cached_property
    def above(self) -> Above:
        return Above(self.cut, self._first)

    def _start(self, density: Density, number: int) -> Params:
        return jax.tree.map(np.asarray, density.start(jax.random.fold_in(self.key, number), self._strategy))

    def mode(self, searches: int, expansion: Expansion | None = None) -> Mode:
        """The posterior's mode, of several searches, by the records or by an expansion of them; raises `NoMode`."""
        starts = [self._first, *(self._start(self.cut.density, number) for number in range(1, searches))]
        slopes = self.passes.slopes if expansion is None else _polynomial_slopes(expansion.polynomial)
        return find_mode(self.above, slopes, [*map(self.above.flat, starts)])

    def normal_draws(self, mode: Mode) -> np.ndarray:
        noise = np.asarray(jax.random.normal(jax.random.fold_in(self.key, 1), (NORMAL_DRAWS, self.above.size)))
        return mode.at + noise @ mode.root.T

    def expansion(self, draws: np.ndarray, order: int | None = None, tail: np.ndarray | None = None) -> Expansion:
        """The expansion at some of these draws and of their tail; by default of the highest order with few passes."""
        frame = Frame.of_draws(draws)
        if order is None:
            order = max((each for each in ORDERS if passes_for(frame, each) <= MAX_FIRST_PASSES), default=ORDERS[0])
        count = passes_for(frame, order)
        tails = [] if tail is None else [evenly_spaced(tail, count // 2)]
        return self.expansion_at(np.concatenate([evenly_spaced(draws, count), *tails]), frame, order)

    def expansion_at(self, points: np.ndarray, frame: Frame, order: int) -> Expansion:
        return Expansion(self.cut.names, order, self.cut.count, frame, points, *self.passes.slopes(points))

    def compare(self, polynomial: Polynomial, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The posterior's log densities at parameters, their gradients, and the errors of a polynomial."""
        x = self.above.coordinates(points)
        values, slopes = self.passes.slopes(x)
        potential, gradient = self.above.potentials(points, values, slopes)
        return -potential, -gradient, values - values_of(polynomial, x)

    def tail_error(self, expansion: Expansion, polynomial: Polynomial) -> float:
        """Error along its rays of an expansion of records on other machines, NaN if it has none."""
        rays, outwards = expansion.rays, expansion.outwards
        if rays is None or outwards is None:
            return np.nan
        x = self.above.coordinates(rays.points)
        potential, _ = self.above.potentials(rays.points, outwards, np.zeros_like(x))
        inside = np.mean(expansion.values - values_of(polynomial, expansion.points))
        return tail_errors(rays, -potential, outwards - values_of(polynomial, x) - inside).all


def _polynomial_slopes(polynomial: Polynomial) -> Slopes:
    """Slopes of a polynomial, in the place of passes over records."""
    values_and_slopes = jax.jit(jax.vmap(jax.value_and_grad(lambda x: jnp.sum(polynomial(x)))))

    def slopes(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, values_and_slopes(points))

    return slopes


def evenly_spaced(draws: np.ndarray, count: int) -> np.ndarray:
    """``count`` evenly spaced draws, or all if they are fewer."""
    return draws[np.linspace(0, len(draws) - 1, min(count, len(draws))).astype(int)]
