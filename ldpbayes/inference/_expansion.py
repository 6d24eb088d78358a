"""Expansions: models cut in two, modes of posteriors, and polynomials around these that stand for the records."""

import dataclasses
import functools
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from ldpbayes.data import ExpandedSketch
from ldpbayes.inference.arguments import prepared
from ldpbayes.inference.chains import Sampler, flat_rows
from ldpbayes.inference.compiled_programs import inputs_in_use, program_of, trace
from ldpbayes.inference.density import Density, Site, density_of, given, sites_of
from ldpbayes.inference.integrated import AS_LONG
from ldpbayes.inference.result import smoothed_weights
from ldpbayes.inference.surrogates import Report, Surrogate, panel_sketches
from ldpbayes.laws.compound import unwrapped
from ldpbayes.likelihood.privatized import ExpandedLaw
from ldpbayes.numerics.arrays import evenly_spaced
from ldpbayes.numerics.polynomial import Frame, Polynomial, polynomial_of_slopes

# --- a model that is cut in two ---------------------------------------------------------------------------------------

WORTHWHILE_RECORDS = 1000  # records from which on an observed site is worth expanding
REQUESTED_RECORDS = 10  # records from which on an observed site is expanded on request
MAX_COORDINATES = 128  # numbers in which a function is expanded, in each of its groups
MAX_ALL_COORDINATES = 1 << 14  # numbers of all groups together


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
        """The potential of unconstrained parameters without the likelihood below the cut."""
        above = numpyro.handlers.block(self.density.model, hide=list(self.observed))
        return dataclasses.replace(self.density, model=above).potential(parameters)

    def coordinates(self, parameters: Params) -> Array:
        values = self.density.constrained(parameters) | {name: parameters[name] for name in self.unconstrained}
        lead = () if self.groups is None else (self.groups,)
        return jnp.concatenate([jnp.reshape(values[name], (*lead, -1)) for name in self.names], axis=-1)

    def likelihood(self, x: Array) -> Array:
        """Log-likelihood of all records at coordinates."""
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
    real = [name for name, value in values.items() if jnp.issubdtype(value.dtype, jnp.floating)]
    small = [name for name in real if values[name].size <= MAX_ALL_COORDINATES and name not in parameters]
    for fixed in (small, []):
        ancestors = _ancestors(density, observed, {name: values[name] for name in fixed}, parameters)
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


# --- the posterior's mode, and its spread there -----------------------------------------------------------------------

GRADIENT_TOLERANCE = 0.05  # of the potential: the mode of a standard normal posterior is then off by a twentieth
MAX_ITERATIONS = 500  # of a search
STEP = 0.3  # standard deviations over which slopes are differenced
MAX_SPREAD = 3.0  # standard deviations of an unconstrained parameter; larger estimates are not believed
MAX_REPEATS = 3  # differences of slopes, repeated if the steps before were of a wrong length
NEGLIGIBLE_MODE = 12.0  # nats of log mass by which another mode is lower if it may be left out: e^12 is 160,000
STEEP = 1.0  # gradient in standard deviations, a parameter, beyond which the end of a search is no mode
SAME_MODE = 6.0  # standard deviations, beyond the typical distance of a draw, within which two modes count as one

# From parameters (m, n) to potentials (m,) and their gradients (m, n).
Gradients: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class Mode(NamedTuple):
    """The normal approximation at the highest density: at + root u for standard normal u."""

    at: np.ndarray  # (n,), unconstrained parameters
    root: np.ndarray  # (n, n), a root of their covariance

    def distance(self, point: np.ndarray) -> float:
        return float(np.linalg.norm(np.linalg.solve(self.root, point - self.at)))


def find_mode(gradients: Gradients, starts: Sequence[np.ndarray]) -> Mode:
    """The mode of most mass, by searches from starts (n,); `NoExpansion` if there is none or another matters."""

    def potential(point: np.ndarray) -> tuple[float, np.ndarray]:
        (value,), (gradient,) = gradients(point[None])
        finite = np.isfinite(value) and np.isfinite(gradient).all()
        return (float(value), gradient) if finite else (np.inf, np.zeros_like(point))

    def search(start: np.ndarray) -> Any:
        options = {"gtol": GRADIENT_TOLERANCE, "maxiter": MAX_ITERATIONS}
        with jax.enable_x64(True):
            return scipy.optimize.minimize(potential, start, jac=True, method="BFGS", options=options)

    # SciPy warns of a search that ends early; its end is judged below.
    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count() or 1, "ldpbayes-mode") as pool:
        warnings.simplefilter("ignore")
        ends = sorted(pool.map(search, starts), key=lambda end: end.fun)
    if not np.isfinite(ends[0].fun):
        raise NoExpansion(f"the posterior density is zero or undefined at all {len(starts)} starting points")
    known: list[Mode] = []  # where searches have ended, at modes or not
    modes: list[tuple[float, Mode]] = []  # with the logarithms of their masses, up to a constant
    typical = np.sqrt(starts[0].size)  # distance of a draw from its mode, in standard deviations
    for end in ends:
        if not np.isfinite(end.fun) or any(each.distance(end.x) - typical <= SAME_MODE for each in known):
            continue
        here = Mode(end.x, _spread(gradients, end.x, _root(np.asarray(end.hess_inv))))
        known.append(here)
        # Elsewhere the density rises further, perhaps without bound.
        if np.linalg.norm(end.jac @ here.root) <= STEEP * typical:
            # The highest density may be in a narrow place of little mass.
            modes.append((np.linalg.slogdet(here.root)[1] - end.fun, here))
    if not modes:
        raise NoExpansion(f"none of {len(starts)} searches found a mode; the density may be unbounded")
    (most, best), *others = sorted(modes, key=lambda each: -each[0])
    for mass, other in others:
        if most - mass < NEGLIGIBLE_MODE:
            apart = f"{best.distance(other.at):.0f} standard deviations apart"
            factor = f"a factor e^{most - mass:.1f}"
            raise NoExpansion(f"the posterior has modes {apart}, whose probabilities differ only by {factor}")
    return best


def _root(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    return vectors * np.sqrt(np.clip(values, 1e-16, MAX_SPREAD**2))


def _spread(gradients: Gradients, at: np.ndarray, root: np.ndarray) -> np.ndarray:
    """A root of the inverse of the potential's second derivatives, from differences of slopes along a first guess."""
    for _ in range(MAX_REPEATS):
        steps = STEP * root.T
        after, before = np.split(gradients(np.concatenate([at + steps, at - steps]))[1], 2)
        hessian = (after - before) / (2 * STEP) @ root  # in the root's coordinates: the identity, if the root was right
        if not np.isfinite(hessian).all():
            break
        values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
        scaled = root @ vectors / np.sqrt(np.maximum(values, 1e-4))
        root = _root(scaled @ scaled.T)
        if values[0] > 0.25 and values[-1] < 4:
            break
    return root


# --- tails: mass of a posterior where draws of its surrogate have none ------------------------------------------------

TAIL_TOLERANCE = 0.02  # relative error of a variance, which moves a standard deviation by 1 %
NEAR = 1.5  # standard deviations at which a ray begins: further inside, draws are many
FACTOR = 1.5  # ratio of successive distances along a ray
FAR = 1e3  # standard deviations at which a ray ends at the latest
MAX_BENDS = 4  # steps towards higher density at a fixed distance along the ray
MAX_DIRECTIONS = 128  # directions, each of which is followed both ways
SKEWED_DIRECTIONS = 4  # further directions, in which the draws are most skewed
MAX_COSINE = 0.98  # of the angle between two directions; with a larger one they count as one
DISTANCES = NEAR * FACTOR ** np.arange(1 + np.ceil(np.log(FAR / NEAR) / np.log(FACTOR)))  # standard deviations
# Log density, relative to the centre, that is negligible even as a plateau which reaches `FAR`.
NEGLIGIBLE_DENSITY = np.log(TAIL_TOLERANCE * np.sqrt(2 * np.pi) / FAR**3)
# From parameters (m, n) to the posterior's log densities (m,), their gradients (m, n), and the errors (m,) of the
# surrogate, which are the posterior's log densities less its own.
Compare: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


class Rays(NamedTuple):
    """Points on straight rays out of draws."""

    points: np.ndarray  # (1 + rays · distances, n), parameters: the mean of the draws, then points outwards ray by ray
    farthest: np.ndarray  # (rays,), largest t of a draw


def tail_errors(farthest: np.ndarray, log_density: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """Largest relative error of a variance along a ray, from `NEAR` on and from the farthest draw on, by log densities
    and errors (less their mean at the draws) at the draws' mean, then outwards, ray by ray. If other coordinates spread
    alike at every t, it is ∫ (1 + t²) |p(t) − q(t)| dt for the posterior p and the surrogate q, normalised as a normal.
    """
    finite = np.isfinite(log_density)  # elsewhere there is no mass
    height = np.where(finite, log_density, -np.inf)
    height = height - height.max()  # of the mean, if the draws are the surrogate's and not those of a part of its data
    with np.errstate(over="ignore"):
        gap = np.abs(np.exp(height) - np.exp(height - np.where(finite, errors, 0.0)))
    moments = gap[1:].reshape(len(farthest), -1) * (1 + DISTANCES**2) * DISTANCES / np.sqrt(2 * np.pi)
    beyond = np.where(farthest[:, None] <= DISTANCES, moments, 0.0)
    near, far = (float(np.max(np.trapezoid(part, np.log(DISTANCES), axis=1))) for part in (moments, beyond))
    return near, far


def follow_rays(draws: np.ndarray, coordinates: np.ndarray, compare: Compare) -> tuple[np.ndarray, ...]:
    """Arguments of `tail_errors`, on rays out of draws (draws, n) that have the highest density at each distance."""
    frame, directions, farthest = _directions(draws, coordinates)

    def at(y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        log_density, gradient, errors = compare(frame.center + y @ frame.lift.T)
        log_density = np.where(np.isfinite(log_density), log_density, -np.inf)
        return log_density, np.nan_to_num(gradient, posinf=0.0, neginf=0.0) @ frame.lift, errors

    log_density = np.full(1 + len(directions) * len(DISTANCES), -np.inf)
    errors = np.zeros(len(log_density))
    log_density[:1], _, errors[:1] = at(np.zeros((1, directions.shape[1])))
    alive, y, step = np.arange(len(directions)), NEAR * directions, 0
    while len(alive) and step < len(DISTANCES):
        y, height, off = _climb(at, directions[alive], y, log_density[0])
        place = 1 + alive * len(DISTANCES) + step
        log_density[place], errors[place] = height, off
        continues = height - log_density[0] > NEGLIGIBLE_DENSITY
        alive, y, step = alive[continues], FACTOR * y[continues], step + 1
    return farthest, log_density, errors


def straight_rays(draws: np.ndarray, coordinates: np.ndarray) -> Rays:
    """Straight rays of full length, which no posterior bends or ends: they serve any part of the records."""
    frame, directions, farthest = _directions(draws, coordinates)
    points = (DISTANCES[:, None] * directions[:, None] @ frame.lift.T).reshape(-1, len(frame.center))
    return Rays(frame.center + np.concatenate([np.zeros((1, points.shape[1])), points]), farthest)


def _climb(at: Compare, rays: np.ndarray, y: np.ndarray, top: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points of nearly the highest density at their distances along the rays, with log densities and errors there."""
    log_density, slope, errors = at(y)
    length = np.ones(len(y))
    for _ in range(MAX_BENDS):
        across = slope - np.sum(slope * rays, axis=1, keepdims=True) * rays
        rise = np.sum(across**2, axis=1)  # half of this is gained where the surrogate's covariance is right
        moving = np.flatnonzero((rise > 1) & (log_density - top + rise > NEGLIGIBLE_DENSITY))
        if not len(moving):
            break
        trial = y[moving] + length[moving, None] * across[moving]
        after = at(trial)
        better = after[0] > log_density[moving]
        length[moving[~better]] /= 4
        improved = moving[better]
        y[improved], log_density[improved] = trial[better], after[0][better]
        slope[improved], errors[improved] = after[1][better], after[2][better]
    return y, log_density, errors


def _directions(draws: np.ndarray, coordinates: np.ndarray) -> tuple[Frame, np.ndarray, np.ndarray]:
    """A frame of the draws, unit vectors (rays, r) in it, both ways, and how far the draws reach along each."""
    frame = Frame.of_draws(draws)
    y = frame.coordinates(draws)  # of mean 0 and covariance 1
    spread = coordinates.reshape(len(coordinates), -1)
    spread = spread - spread.mean(axis=0)
    # Where parameters vary, and where the records' coordinates do.
    linear = np.concatenate([frame.lift, spread.T @ y / len(y)])
    lengths = np.linalg.norm(linear, axis=1)
    linear = linear[lengths > 0] / lengths[lengths > 0, None]
    skewness = np.abs(np.mean((y @ linear.T) ** 3, axis=0))
    linear = linear[np.sort(np.argsort(-skewness)[:MAX_DIRECTIONS])]
    # Power iteration for the third moments: a direction of locally largest skewness from each start.
    skewed = linear
    for _ in range(10):
        skewed = ((y @ skewed.T) ** 2).T @ y / len(y)
        skewed = skewed / np.linalg.norm(skewed, axis=1, keepdims=True)
    skewed = skewed[np.argsort(-np.mean((y @ skewed.T) ** 3, axis=0))]
    directions = _distinct([*_distinct(linear), *_distinct(skewed)[:SKEWED_DIRECTIONS]])
    directions = np.concatenate([directions, -directions])
    return frame, directions, np.max(y @ directions.T, axis=0)


def _distinct(directions: Iterable[np.ndarray]) -> np.ndarray:
    distinct: list[np.ndarray] = []
    for direction in directions:
        if all(abs(direction @ other) < MAX_COSINE for other in distinct):
            distinct.append(direction)
    return np.array(distinct)


# --- expansions -------------------------------------------------------------------------------------------------------

ORDERS = (2, 3, 4)
SPARE_POINTS = 16
HELD_OUT_EVERY = 4  # every fourth point tests the polynomial and is not used to fit it
MIN_SEARCHES = 8  # for the mode: of two modes that attract alike, one is missed with probability 1/128
NORMAL_DRAWS = 4000  # from the normal approximation: a frame of few draws is too narrow in many dimensions
MAX_FIRST_PASSES = 400  # passes that a first expansion may take, if it is to be of a higher order than the second
MAX_DRAWS = 8000  # draws of a posterior, among which points are picked
MAX_ROUNDS = 4  # expansions, each at the draws of the one before
MAX_PASSES = 6000  # passes for an expansion, beyond which no higher order is tried
NARROW_RATIO = 0.05  # squared number of directions over the number of records up to which an expansion is nearly exact
MIN_WORK = 1.5e10  # array entries that a gradient an iteration handles, from which on compiling an expansion pays
WORST_ONE_IN = 20  # one draw in twenty, with the largest errors, may be a further point of the next expansion
MAX_OUTSIDE = 0.02  # share of the draws that may be far from the points of an expansion


@dataclasses.dataclass(frozen=True, eq=False)
class Expansion:
    """A polynomial that replaces the log-likelihood of many records in `fit`. The function `expand` makes the
    expansion.

    Expansions of different records can be added if they have the same points (argument ``at`` of `expand`): ``first +
    second``, or ``sum(expansions)``. The attributes are:

    - ``names``: the sites (named variables) of the model that are the variables of the polynomial;
    - ``order``: the order of the polynomial: 2, 3 or 4;
    - ``count``: the number of records;
    - ``frame``: a linear transformation of the variables, after which their posterior covariance matrix is the
      identity;
    - ``points``: values of the variables, to which the polynomial is fitted. They are approximate posterior draws;
    - ``values`` and ``slopes``: the log-likelihood at each of the points, in nats, and its gradient;
    - ``rays``: m further points in the tails of the posterior, at which `fit` checks the polynomial;
    - ``outwards`` (m,): the log-likelihood at each point of ``rays``, in nats;
    - ``promises`` and ``doubts``: the guarantees of the releases of all records, and the texts of warnings about these
      releases.
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
            own = getattr(self, name)
            sums[name] = own + tuple(each for each in getattr(other, name) if each not in own)
        return dataclasses.replace(self, **sums)

    def __radd__(self, other: object) -> "Expansion":
        """Return this expansion if `other` is 0, so that ``sum`` can add expansions."""
        return self if is_integer(other) and other == 0 else NotImplemented

    @functools.cached_property
    def polynomial(self) -> Polynomial:
        """The polynomial, fitted to the values and slopes at all points."""
        return self._fitted(slice(None))

    def _fitted(self, used: Any) -> Polynomial:
        return polynomial_of_slopes(self.frame, self.points[used], self.values[used], self.slopes[used], self.order)

    def errors(self) -> np.ndarray:
        """Return errors of the polynomial at some of its points, in nats, as a measure of its accuracy.

        A polynomial is fitted to three quarters of the points. An error is the difference between the exact
        log-likelihood and this polynomial, at one of the other points, minus the mean of all these differences. (A
        constant does not change the posterior.)
        """
        test = np.arange(len(self.points)) % HELD_OUT_EVERY == 0
        errors = self.values[test] - self._fitted(~test).values(self.points[test])
        return errors - errors.mean()


def expand(
    model: Model, *args: Any, at: Any = None, order: int | None = None, seed: int = 0, **kwargs: Any
) -> Expansion:
    """Compute a polynomial (an expansion) that `fit` can use in place of the log-likelihood of all records.

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
        The points (values of the parameters) to which the polynomial is fitted.

        - An expansion: the points of this expansion. The two expansions can then be added.
        - A result of `fit`: its posterior draws.
        - Default: points around the posterior mode of the records in the arguments. Raises ValueError if there are
          several modes.
    order : int, optional
        Order of the polynomial: 2, 3 or 4. Default: the order of ``at``, if ``at`` is an expansion. Otherwise, the
        function chooses an order. A higher order is more exact, but needs more points.
    seed : int
        Random seed for the choice of the points. Default: 0.

    Returns
    -------
    Expansion
        The polynomial, together with exact log-likelihoods, with which `fit` checks the polynomial.

    Examples
    --------
    >>> import ldpbayes as ldp
    >>> release = ldp.Release([1, 0, 1] * 60, ldp.RandomizedResponse(epsilon=1.0))
    >>> ldp.expand(ldp.models.warner(), release, order=2).count
    180
    """
    if order not in (None, *ORDERS):
        raise ValueError(f"order must be 2, 3 or 4, got {order!r}")
    args, kwargs, _ = prepared(model, args, kwargs)
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
        promises = tuple(promise for each in density.data for promise in each.promises)
        doubts = tuple(doubt for each in density.data for doubt in each.doubts)
        return dataclasses.replace(expansion, rays=rays, outwards=values, promises=promises, doubts=doubts)


@dataclasses.dataclass(frozen=True)
class _PolynomialDensity(Density):
    """A density in which a polynomial stands for the log-likelihood of the records below a cut."""

    cut: Cut
    polynomial: Polynomial
    mode: Mode

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
    """A model that is cut, with passes over the records below its cut, and what is above, once `compile` was called.
    Parameters are flat, (m, n), in the order of names; coordinates are (m, *cut.shape). Raises `NoExpansion`.
    """

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
        values, slopes = zip(*self._passes(self._slopes, x), strict=True)
        return np.array(values), np.stack(slopes)

    def values(self, x: np.ndarray) -> np.ndarray:
        return np.array(self._passes(self._values, x))

    def _passes(self, program: Callable, x: np.ndarray) -> list[Any]:
        with self._lock:  # searches for the mode run in threads
            self.passes += len(x)

        def at(point: np.ndarray) -> Any:
            with jax.enable_x64(True):
                return jax.tree.map(np.asarray, program(point))

        if len(x) == 1:
            return [at(x[0])]
        with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="ldpbayes-pass") as pool:
            return list(pool.map(at, x))

    def coordinates(self, rows: np.ndarray) -> np.ndarray:
        return np.stack(list(map(self._coordinates, rows)))

    def potentials(self, rows: np.ndarray, values: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Potentials (m,) and their gradients (m, n), from values and slopes of a likelihood at the coordinates."""
        rest, gradients = zip(*map(self._tilted, rows, slopes), strict=True)
        return np.array(rest) - values, np.stack(gradients)

    def mode(self, searches: int, expansion: Expansion | None = None) -> Mode:
        """The posterior's mode, of several searches, by the records or by an expansion, or raise `NoExpansion`."""
        starts = [self.cut.parameters, *map(self._start, range(1, searches))]
        slopes = self.slopes if expansion is None else expansion.polynomial.values_and_slopes

        def gradients(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return self.potentials(rows, *slopes(self.coordinates(rows)))

        return find_mode(gradients, [flat_rows(start, self.cut.parameters)[0] for start in starts])

    def normal_draws(self, mode: Mode) -> np.ndarray:
        noise = np.asarray(jax.random.normal(jax.random.fold_in(self.key, 1), (NORMAL_DRAWS, len(mode.at))))
        return mode.at + noise @ mode.root.T

    def posterior_draws(self, posterior: Any) -> np.ndarray:
        """Parameters at draws of a posterior."""
        names = sorted(self.cut.parameters)
        try:
            values = {name: np.asarray(posterior["posterior"][name]) for name in names}
        except (KeyError, TypeError):
            allowed = f"an expansion, or a posterior with draws of {', '.join(names)}"
            raise ValueError(f"at must be {allowed}; got {posterior!r}") from None
        draws = {name: evenly_spaced(each.reshape(-1, *each.shape[2:]), MAX_DRAWS) for name, each in values.items()}
        return flat_rows(jax.jit(jax.vmap(self.cut.density.unconstrained))(draws), self.cut.parameters)

    def expansion(self, x: np.ndarray, order: int | None = None, tail: np.ndarray | None = None) -> Expansion:
        """The expansion at some of these draws and of their tail; by default of the highest order with few passes."""
        frame = Frame.of_draws(x)
        if order is None:
            order = max((each for each in ORDERS if passes_for(frame, each) <= MAX_FIRST_PASSES), default=ORDERS[0])
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


# --- surrogates -------------------------------------------------------------------------------------------------------

# Errors are the posterior's log density less the sampled one, at draws, up to a constant.
NEGLIGIBLE_SD = 0.01  # nats: such a standard deviation moves no mean by more than so many standard deviations
NEGLIGIBLE_MAX = 0.1  # nats: largest error of a draw that counts as negligible
MODERATE_SD = 0.3  # nats up to which reweighting loses less than a tenth of the draws
HOPELESS_SD = 1.0  # nats beyond which there is no reweighting
CHECKED_DRAWS = 64  # draws at which errors are measured first
# From why an expansion is given up, and its report, to the data as they are.
GiveUp: TypeAlias = Callable[..., Surrogate]


class Expanded(Surrogate):
    """A surrogate with a smooth likelihood in the place of the records', by which its draws can be reweighted."""

    least_warmup: float = CHECKED_DRAWS
    rings = 1  # further out a polynomial is wrong, and may rise
    records: GiveUp
    report: Callable[[], Report]  # what is sampled, and after how many passes over the records
    coordinates: Callable[[np.ndarray], np.ndarray]  # what the likelihood depends on, from flat parameters (draws, n)
    errors: Callable[[np.ndarray], np.ndarray]  # log-likelihoods of the records less those sampled, at coordinates
    along: Compare  # the posterior at flat parameters, and the errors

    def judge(self, positions: Params, final: bool = True) -> Surrogate | Report:
        rows = flat_rows(positions, self.chains.example)
        x = self.coordinates(rows)
        errors = self.errors(evenly_spaced(x, CHECKED_DRAWS))
        if not final:
            report, sd = self.report().of_errors(errors), np.std(errors)
            why = f"the error of the expansion is {sd:.2g} nats (standard deviation over posterior draws)"
            return self.again(x, errors, final) or (report if sd <= HOPELESS_SD else self.records(why, report))
        farthest, log_density, outwards = follow_rays(rows, x, self.along)
        tail, beyond = tail_errors(farthest, log_density, outwards - np.mean(errors))
        report = self.report().of_errors(errors, tail_error=tail)
        if not beyond <= TAIL_TOLERANCE:
            why = f"a variance is wrong by {beyond:.1%}, because the posterior has a tail that no draw reaches"
            return self.records(why, report)
        whole = tail <= TAIL_TOLERANCE
        if not (whole and report.error_sd_nats <= NEGLIGIBLE_SD and report.error_nats <= NEGLIGIBLE_MAX):
            errors = self.errors(x)
            report = self.report().of_errors(errors, tail_error=tail)
        # The largest error does not count among all draws, of which a few may be off by more.
        if whole and report.error_sd_nats <= NEGLIGIBLE_SD:
            return report
        weights = smoothed_weights(errors)
        k, share = weights.pareto_k, weights.share
        report = dataclasses.replace(report, ran="expansion, reweighted", pareto_k=k, effective_share=share)
        if weights.good:
            return dataclasses.replace(report, weights=weights)
        why = f"importance weights are too uneven (Pareto k {k:.2f}, effective share of the draws {share:.0%})"
        return self.again(x, errors, final) or self.records(why, report)

    def again(self, draws: np.ndarray, errors: np.ndarray, final: bool) -> Surrogate | None:
        """An expansion at these draws; None if there is none, or if it would not help or is not necessary."""
        return None


@dataclasses.dataclass(eq=False)
class ExpandedRecords(Expanded):
    """An expansion of the records, which are its reference, the first one or one at draws of the one before."""

    split: SplitModel
    sampler: Sampler
    records: GiveUp
    expansion: Expansion
    mode: Mode
    given: bool = False  # by the user
    number: int = 0  # of expansions before

    def __post_init__(self) -> None:
        # Arrays of JAX stay arguments of what is compiled, also those of one number: NumPy's would become constants.
        polynomial, mode = jax.tree.map(jnp.asarray, (self.expansion.polynomial, self.mode))
        cut = self.split.cut
        self.density = _PolynomialDensity(**vars(cut.density), cut=cut, polynomial=polynomial, mode=mode)
        self.key = jax.random.fold_in(self.sampler.key, 2)
        self.coordinates = self.split.coordinates
        self._may_repeat = self.number < MAX_ROUNDS - 1 and self.split.passes < self.sampler.iterations

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
        order = self.expansion.order
        if final:
            worst = np.argsort(-np.abs(errors - np.mean(errors)))[: len(draws) // WORST_ONE_IN]
            expansion = self.split.expansion(draws, order, draws[worst])
        else:
            sd, frame = np.std(errors), Frame.of_draws(draws)
            order += order < ORDERS[-1] and passes_for(frame, order + 1) <= MAX_PASSES
            # Reweighting takes a pass a draw, but no slopes and no other chains.
            passes, reweighting = 3 * passes_for(frame, order), self.sampler.num_samples * self.sampler.num_chains
            tolerable = MODERATE_SD if order == self.expansion.order or passes > reweighting else NEGLIGIBLE_SD
            # A hopeless expansion by the user is replaced by one around the mode, not by one at its draws.
            if sd <= tolerable or (self.given and not sd <= HOPELESS_SD):
                return None
            expansion = self.split.expansion(draws, order)
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
        if share > MAX_OUTSIDE or not report.error_sd_nats <= NEGLIGIBLE_SD:
            off = f"the error of the expansion is {report.error_sd_nats:.2g} nats (standard deviation) at its points"
            elsewhere = f"{share:.0%} of the draws are far from these points"
            doubts.append(f"{off}, and {elsewhere}; expand the shards again, with at=this posterior")
        if not tail <= TAIL_TOLERANCE:
            off = f"a variance is wrong by {tail:.1%}; if this remains after another expansion"
            doubts.append(f"{off}, the posterior has a tail that the expansion lacks, so fit the records")
        return dataclasses.replace(report, doubt="; ".join(doubts) or None)


@dataclasses.dataclass(eq=False)
class ExpandedCategories(Expanded):
    """A model of expanded sketches, whose reference are the records that they were made from, if these are kept."""

    coordinates = staticmethod(np.asarray)  # the parameters themselves
    density: Density
    sampler: Sampler
    records: GiveUp

    def __post_init__(self) -> None:
        kept = [data.records is not None for data in self.density.data if isinstance(data, ExpandedSketch)]
        self.least_warmup = CHECKED_DRAWS if all(kept) else np.inf
        self.key = jax.random.fold_in(self.sampler.key, self.sampler.num_chains)

    def prepare(self, chains: Any) -> None:
        super().prepare(chains)
        self._sketches: list[ExpandedSketch] = []
        first, unravel = ravel_pytree(chains.example)

        def shares(row: Array) -> list[Array]:
            parameters = unravel(row)
            sites = self.density.trace(given(self.density.model, parameters, parameters)).values()
            laws = [unwrapped(site["fn"])[0] for site in sites if site["type"] == "sample"]
            self._sketches[:] = [law.sketch for law in laws if isinstance(law, ExpandedLaw)]
            return [law.theta for law in laws if isinstance(law, ExpandedLaw)]

        self._shares = program_of("shares", shares, first)

    def _at(self, rows: np.ndarray) -> Iterator[tuple[ExpandedSketch, np.ndarray]]:
        """Each sketch with its shares (draws, ...)."""
        shares = zip(*map(self._shares, rows), strict=True)
        return zip(self._sketches, map(np.stack, shares), strict=True)

    def report(self) -> Report:
        order = max(sketch.polynomial.order for sketch in self._sketches)
        return Report(ran="expansion", count=sum(int(sketch.size) for sketch in self._sketches), order=order)

    def errors(self, x: np.ndarray) -> np.ndarray:
        return sum(sketch.log_likelihood(theta) - sketch.polynomial.values(theta) for sketch, theta in self._at(x))

    def along(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        (potentials, gradients), errors = self.chains.potentials(rows), self.errors(rows)
        return errors - potentials, -gradients, errors

    def judge(self, positions: Params, final: bool = True) -> Surrogate | Report:
        if self.least_warmup < np.inf:
            return super().judge(positions, final)
        rows = evenly_spaced(flat_rows(positions, self.chains.example), CHECKED_DRAWS)
        share = max(sketch.polynomial.share_outside(theta) for sketch, theta in self._at(rows))
        doubt = f"{share:.0%} of the draws are far from the centre of the sketch; keep the records in it"
        report = dataclasses.replace(self.report(), ran="expansion without records", outside=share)
        return dataclasses.replace(report, doubt=doubt if share > 0 else None)


def expanded_records(
    density: Density, sites: dict[str, Site], sampler: Sampler, expand: bool | Expansion | None, records: GiveUp
) -> Surrogate | None:
    """Expansions of the records; None if neither requested nor worthwhile, ValueError if one is given and no use."""
    given = expand if isinstance(expand, Expansion) else None
    # Nothing is traced, let alone compiled, for the sketches that most fits are of.
    if expand is None and (panel_sketches(density) or max(site.rows for site in sites.values()) < WORTHWHILE_RECORDS):
        return None
    least = WORTHWHILE_RECORDS if expand is None else REQUESTED_RECORDS
    try:
        split = SplitModel(density, sites, sampler.kernel._init_strategy, sampler.key, least)
    except NoExpansion as reason:
        if given is not None:
            raise ValueError(f"expand is an Expansion, but this model cannot be expanded: {reason}") from None
        return records(str(reason)) if expand else None
    if given is not None:
        split.check("expand", given)
    cut = split.cut
    narrow = (cut.groups or 1) * cut.shape[-1] ** 2 <= NARROW_RATIO * cut.count
    # Whether it is worth its time and likely to be exact; no clock has a part in it.
    count = sum(np.size(each) for each in cut.parameters.values())
    iterations = sampler.iterations if sampler.chains_because else AS_LONG.get(count, sampler.iterations)
    if expand is None and not (narrow and float(iterations) * float(split.work) >= MIN_WORK):
        return None
    split.compile(passes=given is None or given.count == cut.count)
    return _begun(split, sampler, records, given)


def _begun(split: SplitModel, sampler: Sampler, records: GiveUp, given: Expansion | None) -> Surrogate:
    """The given expansion, or one around the mode; the records if there is none."""
    of_shards = given is not None and given.count != split.cut.count
    try:
        mode = split.mode(max(MIN_SEARCHES, sampler.num_chains), given)
    except NoExpansion as reason:
        if of_shards:
            why = f"the expansion has no mode at which chains can start: {reason}"
            raise ValueError(f"{why}; expand the shards again, with at= points nearer to the whole posterior") from None
        # A given one may be around another place, or of other records.
        return records(str(reason), split.report()) if given is None else _begun(split, sampler, records, None)
    if given is None:
        expansion = split.expansion(split.coordinates(split.normal_draws(mode)))
        return ExpandedRecords(split, sampler, records, expansion, mode)
    if of_shards:
        return ExpandedShards(split, sampler, records, given, mode)
    # Where this fails, another one around the mode is tried.
    return ExpandedRecords(split, sampler, lambda *_: _begun(split, sampler, records, None), given, mode, given=True)
