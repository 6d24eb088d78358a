"""Polynomials that stand for the log-likelihood of many records: around the posterior's mode, or at its draws. A model
is cut where it sees the records by few numbers, which are the coordinates of the polynomial.
"""

import dataclasses
import functools
import math
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import scipy
from jax.flatten_util import ravel_pytree
from numpyro.infer import init_to_uniform

from ldpbayes._core.checks import is_integer
from ldpbayes._core.types import Array, Key, Model, Params
from ldpbayes.inference.approximations._expanded import (
    HOPELESS_SD_NATS,
    MODERATE_SD_NATS,
    NEGLIGIBLE_SD_NATS,
    TAIL_TOLERANCE,
    Expanded,
    straight_rays,
    tail_errors,
)
from ldpbayes.inference.approximations.integral import ITERATIONS_AS_LONG
from ldpbayes.inference.approximations.panels import panel_sketches, records_instead
from ldpbayes.inference.approximations.surrogates import Report, Surrogate
from ldpbayes.inference.chains import Sampling, flat_rows, some_draws
from ldpbayes.inference.compiled_programs import in_threads, inputs_in_use, program_of, stacked, trace
from ldpbayes.inference.density import Density, Site, density_of, sites_of
from ldpbayes.inference.model import model_of
from ldpbayes.inference.problem import Problem
from ldpbayes.numerics.arrays import evenly_spaced
from ldpbayes.numerics.polynomial import Frame, Polynomial, polynomial_of_slopes

ORDERS = (2, 3, 4)
SPARE_POINTS = 16
HELD_OUT_EVERY = 4  # every fourth point tests the polynomial and is not used to fit it
MIN_SEARCHES = 8  # for the mode: of two modes that attract alike, one is missed with probability 1/128
NORMAL_DRAWS = 4000  # from the normal approximation: a frame of few draws is too narrow in many dimensions
MAX_FIRST_PASSES = 400  # passes that a first expansion may take, if it is to be of a higher order than the second
PICKED_DRAWS = 8000  # draws of a posterior, among which points are picked
MAX_EXPANSIONS = 4  # expansions, each at the draws of the one before
MAX_PASSES = 6000  # passes for an expansion, beyond which no higher order is tried
NARROW_RATIO = 0.05  # squared number of directions over the number of records up to which an expansion is nearly exact
MIN_WORK_TO_EXPAND = 1.5e10  # array entries that a gradient an iteration handles, from which on an expansion pays
WORST_ONE_IN = 20  # one draw in twenty, with the largest errors, may be a further point of the next expansion
MAX_OUTSIDE = 0.02  # share of the draws that may be far from the points of an expansion
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


@dataclasses.dataclass(frozen=True, eq=False)
class Expansion:
    """A polynomial, made by `expand`, that replaces the log-likelihood of many records in `fit`.

    Expansions of different records can be added if they have the same points (argument ``at`` of `expand`): ``first +
    second``, or ``sum(expansions)``. The attributes are:

    - ``names``: the sites of the model that are the variables of the polynomial; ``order``: 2, 3 or 4;
    - ``count``: the number of records; ``promises`` and ``doubts``: the guarantees of their releases, and texts of
      warnings;
    - ``frame``: a linear transformation, after which the posterior covariance matrix of the variables is the identity;
    - ``points``, ``values`` and ``slopes``: approximate posterior draws of the variables, to which the polynomial is
      fitted, with the log-likelihoods there, in nats, and their gradients;
    - ``rays`` and ``outwards``: m points in the tails of the posterior, at which `fit` checks the polynomial, and the
      log-likelihoods there (m,).
    """

    names: tuple[str, ...]  # sites of the model that the records depend on, in the order of the coordinates
    order: int  # of the polynomial: 2, 3 or 4
    count: int  # number of records
    frame: Frame  # coordinates of the polynomial, in which draws of the posterior have covariance 1
    points: np.ndarray  # (points, n) or (points, groups, n): values of these sites at draws
    values: np.ndarray  # (points,): log-likelihoods of the records
    slopes: np.ndarray  # of the shape of the points: gradients of the log-likelihood
    rays: Any = None  # `Rays` out of these draws, where that of shards is compared with the records
    outwards: Any = None  # (m,): log-likelihoods of the records at the points of the rays
    promises: tuple[Any, ...] = ()  # of all different releases that the records are from
    doubts: tuple[str, ...] = ()  # about these releases

    def __add__(self, other: object) -> "Expansion":
        if not isinstance(other, Expansion):
            return NotImplemented
        if self.names != other.names or not np.array_equal(self.points, other.points):
            raise ValueError("expansions can be added only if their points are equal: make the second with at=first")
        sums = {name: getattr(self, name) + getattr(other, name) for name in ("count", "values", "slopes", "outwards")}
        for name in ("promises", "doubts"):
            here = getattr(self, name)
            sums[name] = here + tuple(fact for fact in getattr(other, name) if fact not in here)
        return dataclasses.replace(self, **sums)

    def __radd__(self, other: object) -> "Expansion":
        """Return this expansion if `other` is 0, where ``sum`` starts."""
        return self if is_integer(other) and other == 0 else NotImplemented

    @functools.cached_property
    def polynomial(self) -> Polynomial:
        """The polynomial, fitted to the values and slopes at all points."""
        return self._fitted(slice(None))

    def _fitted(self, used: Any) -> Polynomial:
        return polynomial_of_slopes(self.frame, self.points[used], self.values[used], self.slopes[used], self.order)

    def errors(self) -> np.ndarray:
        """Return errors in nats at one quarter of the points: exact log-likelihoods less a polynomial that is fitted to
        the other points, minus their mean, because a constant does not change the posterior.
        """
        test = np.arange(len(self.points)) % HELD_OUT_EVERY == 0
        errors = self.values[test] - self._fitted(~test).values(self.points[test])
        return errors - errors.mean()


def expand(
    model: Model, *args: Any, at: Any = None, order: int | None = None, seed: int = 0, **kwargs: Any
) -> Expansion:
    """Compute a polynomial that `fit` can use in place of the log-likelihood of all records, with exact values to check
    it.

    Use this function if the data do not fit on one machine, and each machine holds a part of the records (a shard):

    - On the first machine, compute ``first = expand(model, shard)``.
    - On every other machine, compute ``expand(model, shard, at=first)``.
    - Add all expansions to ``total``, and call ``fit(model, shard, expand=total)`` with any one of the shards.
    - If `fit` warns that the expansion may be inexact, repeat these steps, where the first machine computes
      ``expand(model, shard, at=posterior)`` with the result of `fit`.

    Parameters
    ----------
    model, *args, **kwargs
        NumPyro model and its arguments, with all records or with one shard. Raises ValueError if no polynomial can
        replace the log-likelihood, for example because the model has too many parameters.
    at : Expansion or posterior, optional
        The points (values of the parameters) to which the polynomial is fitted: those of an expansion, to which the new
        one can then be added, or the posterior draws of a result of `fit`. Default: points around the posterior mode of
        the records in the arguments. Raises ValueError if there are several modes.
    order, seed : int
        Order of the polynomial: 2, 3 or 4 (by default that of ``at``, or chosen). A higher order is more exact, but
        needs more points. And the random seed for the choice of the points.

    Examples
    --------
    >>> import ldpbayes as ldp
    >>> release = ldp.Release([1, 0, 1] * 60, ldp.RandomizedResponse(epsilon=1.0))
    >>> ldp.expand(ldp.models.warner(), release, order=2).count
    180
    """
    if order not in (None, *ORDERS):
        raise ValueError(f"order must be 2, 3 or 4, got {order!r}")
    args, kwargs, _ = model_of(model).prepare(args, kwargs)
    density, key = density_of(model, args, kwargs), jax.random.key(seed)
    with jax.enable_x64(True):
        split = SplitModel(density, sites_of(density), init_to_uniform, key, REQUESTED_RECORDS)
        split.compile()
        if isinstance(at, Expansion):
            split.check("at", at)
            expansion, rays = split.expansion_at(at.points, at.frame, order or at.order), at.rays
        else:
            draws = split.normal_draws(split.mode(MIN_SEARCHES)) if at is None else split.posterior_draws(at)
            coordinates = split.coordinates(draws)
            expansion, rays = split.expansion(coordinates, order), straight_rays(draws, coordinates)
        values = split.values(split.coordinates(rays.points))
        promises = tuple(promise for data in density.data for promise in data.promises)
        doubts = tuple(doubt for data in density.data for doubt in data.doubts)
        return dataclasses.replace(expansion, rays=rays, outwards=values, promises=promises, doubts=doubts)


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
    with warnings.catch_warnings(action="ignore"):
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


@dataclasses.dataclass(frozen=True)
class _PolynomialDensity(Density):
    """A density in which a polynomial stands for the log-likelihood of the records below a cut."""

    cut: Cut
    polynomial: Polynomial
    mode: PosteriorMode

    def start(self, key: Key, strategy: Callable = init_to_uniform) -> Params:
        """A draw from the normal approximation at the mode: far from it, the polynomial is wrong."""
        (at, root), (_, unravel) = self.mode, ravel_pytree(self.cut.parameters)
        return unravel(at + root @ jax.random.normal(key, at.shape, at.dtype))

    def spread(self) -> tuple[Params, Params]:
        (at, root), (_, unravel) = self.mode, ravel_pytree(self.cut.parameters)
        return unravel(jnp.asarray(at)), unravel(jnp.linalg.norm(jnp.asarray(root), axis=1))

    def potential(self, parameters: Params) -> Array:
        return self.cut.rest(parameters) - jnp.sum(self.polynomial(self.cut.coordinates(parameters)))


class SplitModel:
    """A model that is cut, with passes over its records; parameters are flat (m, n), coordinates (m, *cut.shape)."""

    def __init__(self, density: Density, sites: dict[str, Site], strategy: Callable, key: Key, least: int) -> None:
        self._density, self._strategy, self.key = density, strategy, key
        self.cut = cut = cut_model(density, sites, self._start(0), least)
        self.passes, self._lock = 0, threading.Lock()  # number of passes so far
        self._point = np.zeros(cut.shape)
        self._pass, (self._arrays,) = trace(lambda _, x: jax.value_and_grad(cut.likelihood)(x), self._point)
        self.work = self._pass.work  # number of array entries that a pass reads and writes: its cost on any machine

    def _start(self, number: int) -> Params:
        return jax.tree.map(np.asarray, self._density.start(jax.random.fold_in(self.key, number), self._strategy))

    def check(self, name: str, expansion: Expansion) -> None:
        """ValueError if the expansion in a named argument is of another model."""
        spaces = (expansion.names, expansion.points.shape[1:]), (self.cut.names, self.cut.shape)
        theirs, here = (f"{names}, of shape {shape}" for names, shape in spaces)
        if theirs != here:
            raise ValueError(f"{name} is an expansion of another model: it depends on {theirs}, but this one on {here}")

    def compile(self, passes: bool = True) -> None:
        """Begin to compile what is above the cut, and passes: searches for the mode, in threads, would each begin."""
        cut, (row, unravel) = self.cut, ravel_pytree(self.cut.parameters)

        def tilted(row: Array, slope: Array) -> tuple[Array, Array]:
            """Rest, and the gradient of the rest less a likelihood that is linear in the coordinates."""
            (rest, _), pulled_back = jax.vjp(lambda row: (cut.rest(unravel(row)), cut.coordinates(unravel(row))), row)
            return rest, pulled_back((jnp.ones_like(rest), -slope))[0]

        if passes:
            program = self._pass.program("pass", self._pass, self._arrays, self._point)
            self._slopes = functools.partial(program, self._arrays)
            self._values = program_of("pass", cut.likelihood, self._point)
        self._coordinates = program_of("coordinates", lambda row: cut.coordinates(unravel(row)), row)
        self._tilted = program_of("tilted", tilted, row, self._point)

    def slopes(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log-likelihoods (m,) of all records at coordinates, and their gradients: a pass each, as for `values`."""
        return self._passes(self._slopes, x)

    def values(self, x: np.ndarray) -> np.ndarray:
        return self._passes(self._values, x)

    def _passes(self, program: Callable, x: np.ndarray) -> Any:
        with self._lock:  # searches for the mode run in threads
            self.passes += len(x)
        return stacked(in_threads(lambda point: jax.block_until_ready(program(point)), x))

    def coordinates(self, rows: np.ndarray) -> np.ndarray:
        return stacked(map(self._coordinates, rows))

    def potentials(self, rows: np.ndarray, values: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Potentials (m,) and their gradients (m, n), from values and slopes of a likelihood at the coordinates."""
        rest, gradients = stacked(map(self._tilted, rows, slopes))
        return rest - values, gradients

    def mode(self, searches: int, expansion: Expansion | None = None) -> PosteriorMode:
        """The posterior's mode, of several searches, by the records or by an expansion, or raise `NoExpansion`."""
        starts = [self.cut.parameters, *map(self._start, range(1, searches))]
        slopes = self.slopes if expansion is None else expansion.polynomial.values_and_slopes

        def gradients(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return self.potentials(rows, *slopes(self.coordinates(rows)))

        return find_mode(gradients, [flat_rows(start, self.cut.parameters)[0] for start in starts])

    def normal_draws(self, mode: PosteriorMode) -> np.ndarray:
        noise = np.asarray(jax.random.normal(jax.random.fold_in(self.key, 1), (NORMAL_DRAWS, len(mode.at))))
        return mode.at + noise @ mode.root.T

    def posterior_draws(self, posterior: Any) -> np.ndarray:
        names = sorted(self.cut.parameters)
        try:
            values = {name: np.asarray(posterior["posterior"][name]) for name in names}
        except (KeyError, TypeError):
            allowed = f"an expansion, or a posterior with draws of {', '.join(names)}"
            raise ValueError(f"at must be {allowed}; got {posterior!r}") from None
        draws = jax.jit(jax.vmap(self.cut.density.unconstrained))(some_draws(values, PICKED_DRAWS))
        return flat_rows(draws, self.cut.parameters)

    def expansion(self, x: np.ndarray, order: int | None = None, tail: np.ndarray | None = None) -> Expansion:
        """The expansion at some of these draws and of their tail; by default of the highest order with few passes."""
        frame = Frame.of_draws(x)
        if order is None:
            order = max((n for n in ORDERS if passes_for(frame, n) <= MAX_FIRST_PASSES), default=ORDERS[0])
        count = passes_for(frame, order)
        tails = [] if tail is None else [evenly_spaced(tail, count // 2)]
        return self.expansion_at(np.concatenate([evenly_spaced(x, count), *tails]), frame, order)

    def expansion_at(self, points: np.ndarray, frame: Frame, order: int) -> Expansion:
        return Expansion(self.cut.names, order, self.cut.count, frame, points, *self.slopes(points))

    def report(self, ran: str | None = None, order: int | None = None) -> Report:
        cut = self.cut
        return Report(ran, sites=cut.names, shape=cut.shape, count=cut.count, passes=self.passes, order=order)


def passes_for(frame: Frame, order: int) -> int:
    """Number of points that a polynomial is fitted to: twice the coefficients of a slope, and some to spare."""
    return 2 * math.comb(frame.root.shape[-2] + order - 1, order - 1) + SPARE_POINTS


@dataclasses.dataclass(eq=False)
class ExpandedRecords(Expanded):
    """An expansion of the records, which are its reference, the first one or one at draws of the one before."""

    split: SplitModel
    expansion: Expansion
    mode: PosteriorMode
    given: bool = False  # by the user
    number: int = 0  # of expansions before

    def __post_init__(self) -> None:
        # Arrays of JAX stay arguments of what is compiled, also those of one number: NumPy's would become constants.
        polynomial, mode = jax.tree.map(jnp.asarray, (self.expansion.polynomial, self.mode))
        cut = self.split.cut
        self.density = _PolynomialDensity(**vars(cut.density), cut=cut, polynomial=polynomial, mode=mode)
        self._may_repeat = self.number < MAX_EXPANSIONS - 1 and self.split.passes < self.sampling.iterations

    key = property(lambda self: jax.random.fold_in(self.sampling.key, 2))

    def give_up(self, why: str, report: Report) -> Surrogate:
        # One by the user may be around another place, or of other records: then one around the mode is tried.
        return _begun(self.problem, self.sampling, self.split) if self.given else super().give_up(why, report)

    def coordinates(self, rows: np.ndarray) -> np.ndarray:
        return self.split.coordinates(rows)

    def report(self) -> Report:
        return self.split.report("expansion", self.expansion.order)

    def errors(self, x: np.ndarray) -> np.ndarray:
        return self.split.values(x) - self.expansion.polynomial.values(x)

    def along(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = self.split.coordinates(rows)
        values, slopes = self.split.slopes(x)
        potentials, gradients = self.split.potentials(rows, values, slopes)
        return -potentials, -gradients, values - self.expansion.polynomial.values(x)

    def again(self, draws: np.ndarray, errors: np.ndarray, final: bool) -> Surrogate | None:
        if not self._may_repeat:
            return None
        order, tail = self.expansion.order, None
        if final:
            tail = draws[np.argsort(-np.abs(errors - np.mean(errors)))[: len(draws) // WORST_ONE_IN]]
        else:
            sd, frame = np.std(errors), Frame.of_draws(draws)
            order += order < ORDERS[-1] and passes_for(frame, order + 1) <= MAX_PASSES
            # Reweighting takes a pass a draw, but no slopes and no other chains.
            passes, reweighting = 3 * passes_for(frame, order), self.sampling.num_samples * self.sampling.num_chains
            costly = order == self.expansion.order or passes > reweighting
            tolerable = MODERATE_SD_NATS if costly else NEGLIGIBLE_SD_NATS
            # A hopeless expansion by the user is replaced by one around the mode, not by one at its draws.
            if sd <= tolerable or (self.given and not sd <= HOPELESS_SD_NATS):
                return None
        expansion = self.split.expansion(draws, order, tail)
        return dataclasses.replace(self, expansion=expansion, given=False, number=self.number + 1)


class ExpandedShards(ExpandedRecords):
    """An expansion of records on other machines, which nothing is compared with: its errors are those at its points."""

    least_warmup = np.inf

    def judge(self, positions: Params, final: bool = True) -> Surrogate | Report:
        expansion, split, rays = self.expansion, self.split, self.expansion.rays
        polynomial, x = expansion.polynomial, split.coordinates(rays.points)
        share = polynomial.share_outside(split.coordinates(flat_rows(positions, split.cut.parameters)))
        potentials, _ = split.potentials(rays.points, expansion.outwards, np.zeros_like(x))
        errors = expansion.outwards - polynomial.values(x)
        errors -= np.mean(expansion.values - polynomial.values(expansion.points))
        tail, _ = tail_errors(rays.farthest, -potentials, errors)
        report = split.report("expansion of shards", expansion.order)
        report = report.of_errors(expansion.errors(), outside=share, tail_error=tail, count=expansion.count)
        doubts = []
        if share > MAX_OUTSIDE or not report.error_sd_nats <= NEGLIGIBLE_SD_NATS:
            off = f"the error of the expansion is {report.error_sd_nats:.2g} nats (standard deviation) at its points"
            elsewhere = f"{share:.0%} of the draws are far from these points"
            doubts.append(f"{off}, and {elsewhere}; expand the shards again, with at=this posterior")
        if not tail <= TAIL_TOLERANCE:
            off = f"a variance is wrong by {tail:.1%}; if this remains after another expansion"
            doubts.append(f"{off}, the posterior has a tail that the expansion lacks, so fit the records")
        return dataclasses.replace(report, doubt="; ".join(doubts) or None)


def propose(problem: Problem, sampling: Sampling) -> Surrogate | None:
    """Expansions of the records; None if neither requested nor worthwhile, ValueError if one is given and no use."""
    density, sites, expansion, unsolicited = problem.density, problem.sites, problem.expansion, problem.expand is None
    # Nothing is traced, let alone compiled, for the sketches that most fits are of.
    rows = 0 if panel_sketches(density) else problem.fewer.get("records", max(site.rows for site in sites.values()))
    few = unsolicited and rows < WORTHWHILE_RECORDS
    if few or problem.expand is False:
        return None
    least = WORTHWHILE_RECORDS if unsolicited else REQUESTED_RECORDS
    try:
        split = SplitModel(density, sites, sampling.kernel._init_strategy, sampling.key, least)
    except NoExpansion as reason:
        if expansion is not None:
            raise ValueError(f"expand is an Expansion, but this model cannot be expanded: {reason}") from None
        return None if unsolicited else records_instead(problem, sampling, str(reason))
    if expansion is not None:
        split.check("expand", expansion)
    cut = split.cut
    narrow = (cut.groups or 1) * cut.shape[-1] ** 2 <= NARROW_RATIO * cut.count
    # Whether it is worth its time and likely to be exact; no clock has a part in it.
    count = sum(np.size(value) for value in cut.parameters.values())
    iterations = sampling.iterations if sampling.chains_because else ITERATIONS_AS_LONG.get(count, sampling.iterations)
    if unsolicited and not (narrow and float(iterations) * float(split.work) >= MIN_WORK_TO_EXPAND):
        return None
    split.compile(passes=expansion is None or expansion.count == cut.count)
    return _begun(problem, sampling, split, expansion)


def _begun(problem: Problem, sampling: Sampling, split: SplitModel, expansion: Expansion | None = None) -> Surrogate:
    """The given expansion, or one around the mode; the records if there is none."""
    of_shards = expansion is not None and expansion.count != split.cut.count
    try:
        mode = split.mode(max(MIN_SEARCHES, sampling.num_chains), expansion)
    except NoExpansion as reason:
        if of_shards:
            why = f"the expansion has no mode at which chains can start: {reason}"
            raise ValueError(f"{why}; expand the shards again, with at= points nearer to the whole posterior") from None
        # A given one may be around another place, or of other records.
        if expansion is not None:
            return _begun(problem, sampling, split)
        return records_instead(problem, sampling, str(reason), split.report())
    given, kind = expansion is not None, ExpandedShards if of_shards else ExpandedRecords
    expansion = expansion or split.expansion(split.coordinates(split.normal_draws(mode)))
    return kind(problem, sampling, split, expansion, mode, given)
