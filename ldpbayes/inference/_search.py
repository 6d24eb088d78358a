"""The search for the mode and the spread of a posterior."""

import functools
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree

from ldpbayes.inference._cut import SEVERAL, Cut, cut
from ldpbayes.inference._expansion import Expansion, passes_for, values_of
from ldpbayes.inference._tails import Tails, tails
from ldpbayes.inference.density import Density, Site
from ldpbayes.inference.programs import PROGRAMS, Compiled, Traced, trace
from ldpbayes.numerics.polynomial import Frame, Polynomial


class Passes:
    """What all records below a cut say at points, each of which costs one pass over them.

    Parameters
    ----------
    cut : Cut
        Where the model meets its records.

    Attributes
    ----------
    made : int
        How many passes there have been.
    """

    def __init__(self, cut: Cut) -> None:
        self._cut, self.made, self._lock = cut, 0, threading.Lock()
        self._example = jax.ShapeDtypeStruct(cut.shape, np.dtype(float))
        self._traced = self._trace(jax.value_and_grad(cut.likelihood))
        self._programs: dict[bool, Any] = {}

    @property
    def numbers(self) -> int:
        """How many numbers a pass handles: what it costs, on any machine."""
        return self._traced[0].numbers

    def _trace(self, function: Callable) -> tuple[Traced, Any]:
        traced, (arrays,) = trace(lambda _, x: function(x), self._example)
        return traced, arrays

    def _program(self, slopes: bool) -> Callable:
        """With slopes or without, compiled when it is first asked for."""
        if slopes not in self._programs:
            traced, arrays = self._traced if slopes else self._trace(self._cut.likelihood)
            program = PROGRAMS.get(("pass", traced.key), lambda: Compiled(traced, arrays, self._example))
            self._programs[slopes] = functools.partial(program, arrays)
        return self._programs[slopes]

    def slopes(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log-likelihoods (points,) and their gradients (points, *cut.shape) at points (points, *cut.shape)."""
        values, slopes = zip(*self._run(True, points), strict=True)
        return np.array(values), np.stack(slopes)

    def values(self, points: np.ndarray) -> np.ndarray:
        """Log-likelihoods (points,) at points (points, *cut.shape)."""
        return np.array(self._run(False, points))

    def _run(self, slopes: bool, points: np.ndarray) -> list[Any]:
        program = self._program(slopes)
        with self._lock:  # searches for the mode run in threads
            self.made += len(points)

        def one(point: np.ndarray) -> Any:
            with jax.enable_x64(True):
                return jax.tree.map(np.asarray, program(point))

        if len(points) == 1:
            return [one(points[0])]
        with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="ldpbayes-pass") as pool:
            return list(pool.map(one, points))


GRADIENT = 0.05  # of the potential at the mode: where a standard deviation is one, it is off by a twentieth of that
ITERATIONS = 500  # of a search
STEP = 0.3  # standard deviations over which slopes are differenced
WIDEST = 3.0  # standard deviation of an unconstrained parameter beyond which none is believed
REPEATS = 3  # times that slopes are differenced, if the steps of the last time turn out to have been of a wrong length
NEARLY = 12.0  # nats by which the log mass of another mode is lower at least, if it may be left out: e^12 is 160,000
STEEP = 1.0  # gradient in standard deviations, a parameter, beyond which the end of a search is no mode
SAME = 6.0  # standard deviations, beyond the typical distance of a draw, within which two modes are the same

Slopes = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""From points (m, *cut.shape) to log-likelihoods (m,) and their gradients."""


class NoMode(ValueError):
    """No mode was found, or several, far from each other, of which one expansion would know one only."""


class Above:
    """What is above a cut, compiled, in flat unconstrained parameters.

    Parameters
    ----------
    cut : Cut
        Where the model meets its records.
    example : dict of str to array
        Unconstrained parameters.

    Attributes
    ----------
    size : int
        Number of unconstrained parameters.
    names : list of str
        Their sites, in order.
    """

    def __init__(self, cut: Cut, example: dict[str, Any]) -> None:
        flat, self.unravel = ravel_pytree(example)
        self.size, self._shape = len(flat), cut.shape
        self.names = sorted(example)
        self._rank = np.ndim(example[self.names[0]])

        def coordinates(flat: Any) -> Any:
            return cut.coordinates(self.unravel(flat))

        def tilted(flat: Any, slope: Any) -> Any:
            """Rest and its gradient less that of the numbers that the records see, along the likelihood's slope."""

            def both(flat: Any) -> Any:
                rest = cut.rest(self.unravel(flat))
                return rest - jnp.sum(slope * coordinates(flat)), rest

            gradient, rest = jax.grad(both, has_aux=True)(flat)
            return rest, gradient

        like = jax.ShapeDtypeStruct(flat.shape, flat.dtype)
        seen = jax.ShapeDtypeStruct(cut.shape, flat.dtype)
        self._coordinates = self._program("coordinates", coordinates, like)
        self._tilted = self._program("tilted", tilted, like, seen)

    @staticmethod
    def _program(name: str, function: Callable, *examples: Any) -> Callable:
        traced, (arrays,) = trace(lambda _, *parts: function(*parts), *examples)
        return functools.partial(PROGRAMS.get((name, traced.key), lambda: Compiled(traced, arrays, *examples)), arrays)

    def coordinates(self, points: np.ndarray) -> np.ndarray:
        """The numbers that the records see, (m, *cut.shape), at parameters (m, size)."""
        if not len(points):
            return np.zeros((0, *self._shape))
        return np.stack([np.asarray(self._coordinates(point)) for point in points])

    def gradients(self, points: np.ndarray, slopes: Slopes) -> tuple[np.ndarray, np.ndarray]:
        """Potentials (m,) and their gradients at parameters (m, size), under a likelihood with these slopes."""
        return self.with_likelihood(points, *slopes(self.coordinates(points)))

    def with_likelihood(
        self, points: np.ndarray, values: np.ndarray, slopes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Potentials (m,) and their gradients, where the likelihood has these values (m,) and slopes."""
        parts = [self._tilted(point, slope) for point, slope in zip(points, slopes, strict=True)]
        rest = np.array([part[0] for part in parts])
        return rest - values, np.stack([np.asarray(part[1]) for part in parts])

    def flat(self, positions: dict[str, Any]) -> np.ndarray:
        """Parameters (draws, size) from positions (..., *shape) of each."""
        lead = np.ndim(positions[self.names[0]]) - self._rank
        parts = [np.reshape(positions[name], (*np.shape(positions[name])[:lead], -1)) for name in self.names]
        return np.concatenate(parts, axis=-1).reshape(-1, self.size)


class Mode(NamedTuple):
    """Where the posterior is highest, and its normal approximation there.

    Attributes
    ----------
    at : ndarray (size,)
        Unconstrained parameters.
    root : ndarray (size, size)
        A root of their covariance: at + root u for standard normal u.
    """

    at: np.ndarray
    root: np.ndarray


def mode(above: Above, slopes: Slopes, starts: Sequence[np.ndarray]) -> Mode:
    """Find the mode from several starts.

    Parameters
    ----------
    above : Above
        What is above the cut.
    slopes : callable
        Of the likelihood below.
    starts : sequence of ndarray of ``size`` numbers
        Where the searches begin.

    Returns
    -------
    Mode

    Raises
    ------
    NoMode
        If they end in places far from each other, of densities that are not, or none ends anywhere.
    """

    def potential(flat: np.ndarray) -> tuple[float, np.ndarray]:
        (value,), (gradient,) = above.gradients(flat[None], slopes)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return np.inf, np.zeros_like(flat)
        return float(value), gradient

    options = {"gtol": GRADIENT, "maxiter": ITERATIONS}

    def search(start: np.ndarray) -> Any:
        with jax.enable_x64(True):
            return scipy.optimize.minimize(potential, start.ravel(), jac=True, method="BFGS", options=options)

    # A search that ends early, as SciPy warns, is judged by where it ends.
    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count() or 1, "ldpbayes-mode") as pool:
        warnings.simplefilter("ignore")
        found = list(pool.map(search, starts))
    found.sort(key=lambda end: end.fun)
    if not np.isfinite(found[0].fun):
        raise NoMode(f"the posterior has no density at any of {len(starts)} starts")
    modes: list[tuple[float, Mode]] = []  # with the logarithms of their masses, up to a constant
    steep: list[Mode] = []  # ends that are no modes: the density rises further, perhaps without bound
    for end in found:
        if not np.isfinite(end.fun) or any(_apart(other, end.x) <= 0 for other in [*(m for _, m in modes), *steep]):
            continue
        here = Mode(end.x, _spread(above, slopes, end.x, _root(np.asarray(end.hess_inv))))
        if np.linalg.norm(end.jac @ here.root) > STEEP * np.sqrt(above.size):
            steep.append(here)
        else:
            # The highest density may be that of a narrow place which hardly any draw is in.
            modes.append((np.linalg.slogdet(here.root)[1] - end.fun, here))
    if not modes:
        raise NoMode(f"none of {len(starts)} searches ends at a mode; the density may have no bound")
    modes.sort(key=lambda each: -each[0])
    (most, best), *others = modes
    for mass, other in others:
        if most - mass < NEARLY:
            raise NoMode(
                f"searches from different starts end {_distance(best, other.at):.0f} standard deviations apart, at "
                f"modes whose masses differ by a factor e^{most - mass:.1f}"
            )
    return best


def _distance(mode: Mode, at: np.ndarray) -> float:
    return float(np.linalg.norm(np.linalg.solve(mode.root, at - mode.at)))


def _apart(mode: Mode, at: np.ndarray) -> float:
    """Standard deviations by which a place is too far from a mode to belong to it."""
    return _distance(mode, at) - np.sqrt(len(at)) - SAME


def _root(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    return vectors * np.sqrt(np.clip(values, 1e-16, WIDEST**2))


def _spread(above: Above, slopes: Slopes, at: np.ndarray, root: np.ndarray) -> np.ndarray:
    """A root of the inverse of the potential's second derivatives, from differences of slopes along a first guess."""
    for _ in range(REPEATS):
        steps = STEP * root.T
        after = above.gradients(np.concatenate([at + steps, at - steps]), slopes)[1]
        along = (after[: len(steps)] - after[len(steps) :]) / (2 * STEP)
        bent = along @ root  # second derivatives along the columns of the root: one on the diagonal, if that was right
        if not np.isfinite(bent).all():
            break
        values, vectors = np.linalg.eigh(0.5 * (bent + bent.T))
        root = _root((turned := root @ vectors / np.sqrt(np.maximum(values, 1e-4))) @ turned.T)
        if values[0] > 0.25 and values[-1] < 4:
            break
    return root


ORDERS = (2, 3, 4)
SEARCHES = 8  # for the mode at least: two modes that attract alike escape with probability 1/128
DRAWS = 4000  # from the normal approximation: a frame of few would be too close around them, in many directions
FEW = 400  # passes that a first expansion may take, if it is to be of a higher order than the second


class Search:
    """A model cut where it meets its records.

    Parameters
    ----------
    density : Density
        The model with its arguments.
    sites : dict of str to Site
        Of the model.
    strategy : callable
        How chains of the kernel start; see `Density.start`.
    key : jax.Array
        A JAX random key.
    many : int
        Records that an observed site has at least, if it is to be expanded.

    Attributes
    ----------
    cut : Cut
        Where it is cut.
    passes : Passes
        Over the records.
    key : jax.Array
        As it was given.

    Raises
    ------
    Uncut
        If the model cannot be cut.
    """

    def __init__(
        self, density: Density, sites: dict[str, Site], strategy: Callable, key: jax.Array, many: int = SEVERAL
    ) -> None:
        self._strategy, self.key = strategy, key
        self._first = self._start(density, 0)
        self.cut: Cut = cut(density, sites, self._first, many)
        self.passes = Passes(self.cut)

    @functools.cached_property
    def above(self) -> Above:
        """What is above the cut."""
        return Above(self.cut, self._first)

    def _start(self, density: Density, number: int) -> dict[str, Any]:
        return jax.tree.map(np.asarray, density.start(jax.random.fold_in(self.key, number), self._strategy))

    def mode(self, searches: int, given: Expansion | None = None) -> Mode:
        """The posterior's mode, by the records or by what an expansion says of them; raises NoMode.

        Parameters
        ----------
        searches : int
            How many there are, from different starts.
        given : Expansion, optional
            What stands for the records.
        """
        starts = [self._first, *(self._start(self.cut.density, number) for number in range(1, searches))]
        return mode(
            self.above, self.passes.slopes if given is None else _slopes(given), [*map(self.above.flat, starts)]
        )

    def normal_draws(self, at: Mode) -> np.ndarray:
        """Parameters (draws, n) from the normal approximation."""
        noise = np.asarray(jax.random.normal(jax.random.fold_in(self.key, 1), (DRAWS, self.above.size)))
        return at.at + noise @ at.root.T

    def seen(self, positions: dict[str, Any]) -> np.ndarray:
        """Numbers that the records see at draws of the chains."""
        return self.above.coordinates(self.above.flat(positions))

    def expansion(self, draws: np.ndarray, order: int | None = None, tail: np.ndarray | None = None) -> Expansion:
        """The expansion of an order, that of few passes by default, at some of these draws and of their tail's."""
        frame = Frame.of_draws(draws)
        if order is None:
            order = max((order for order in ORDERS if passes_for(frame, order) <= FEW), default=ORDERS[0])
        count = passes_for(frame, order)
        points = evenly(draws, count)
        if tail is not None:
            points = np.concatenate([points, evenly(tail, count // 2)])
        return self.at(points, frame, order)

    def at(self, points: np.ndarray, frame: Frame, order: int) -> Expansion:
        """The expansion at these points."""
        return Expansion(self.cut.names, order, self.cut.count, frame, points, *self.passes.slopes(points))

    def compared(self, polynomial: Polynomial, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The posterior's log densities at parameters, their gradients, and the errors of a polynomial."""
        x = self.above.coordinates(points)
        values, slopes = self.passes.slopes(x)
        potential, gradient = self.above.with_likelihood(points, values, slopes)
        return -potential, -gradient, values - values_of(polynomial, x)

    def tails(self, given: Expansion) -> Tails:
        """How far an expansion of records that are elsewhere is off along its rays."""
        if given.rays is None or given.outwards is None:
            return Tails(np.nan, np.nan)
        polynomial = given.polynomial
        x = self.above.coordinates(given.rays.points)
        potential, _ = self.above.with_likelihood(given.rays.points, given.outwards, np.zeros_like(x))
        inside = np.mean(given.values - values_of(polynomial, given.points))
        return tails(given.rays, -potential, given.outwards - values_of(polynomial, x) - inside)


def _slopes(given: Expansion) -> Slopes:
    """Those of the polynomial, in the place of passes over records."""
    polynomial = given.polynomial
    both = jax.jit(jax.vmap(jax.value_and_grad(lambda x: jnp.sum(polynomial(x)))))

    def slopes(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, both(points))

    return slopes


def evenly(draws: np.ndarray, count: int) -> np.ndarray:
    """As many of the draws, evenly picked, or all if they are fewer.

    Parameters
    ----------
    draws : ndarray (draws, ...)
        From which is picked.
    count : int
        How many.
    """
    return draws[np.linspace(0, len(draws) - 1, min(count, len(draws))).astype(int)]
