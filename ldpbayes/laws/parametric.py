"""Families whose records are clamped, with the law of a clamped record and of sums of the statistics of many."""

import abc
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from jax.flatten_util import ravel_pytree
from numpy.polynomial import legendre
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.constraints import Constraint

from ldpbayes._core.checks import ONE_POSITIVE, check_order, refuse
from ldpbayes._core.pytrees import checked_field
from ldpbayes._core.types import Array, Key, Params
from ldpbayes.numerics.minimise import nearest_probabilities
from ldpbayes.numerics.polynomial import lagrange_from_legendre

COMPRESSED_MASSES = 12  # stand for a record between the bounds in sums of several statistics: 23 moments are right
DRAWN_ONE_BY_ONE = 64  # so many records between the bounds, or fewer, are drawn one by one
MOST_NEWTON_STEPS = 30  # at most, each at most a unit of a logarithm
SETTLED_STEP_SHARE = 1e-6  # of a parameter's range: length of the last step, whose error Newton's method squares
RANGE_EDGE_SHARE = 1e-6  # share of a range: a parameter nearer to an end than that was brought there
Range = tuple[Array, Array]  # the interval in which a parameter is looked for
Constraints = Mapping[str, Constraint]
FAMILIES: dict[str, type["ParametricFamily"]] = {}  # by their names on the command line
NODES_PER_PIECE = 64  # Gauss-Legendre nodes of each panel of the rule for a density
SUM_TABLE_CELLS = 4096  # cells of the table of a sum
SUM_TABLE_DEVIATIONS = 10.0  # half the table's length, in standard deviations of the sum
SUM_FREQUENCIES = 256  # used for a density, up to π · 256/SUM_TABLE_DEVIATIONS per standard deviation
NEGLIGIBLE_TRANSFORM = 1e-8  # at frequencies beyond the table's; its distribution function is off by a few times that
FEWEST_INSIDE_FOR_TABLE = 40  # expected inside the bounds; with more the rule resolves all frequencies of the table
RECORD_TABLE_CELLS = 2048  # of each panel in the table of one draw, whose error is below 2e-6
DRAWS_PER_BLOCK = 16  # draws that are made at a time


class PointMasses(NamedTuple):
    """Points on the line (m,), and their probabilities (m,), which sum to one."""

    nodes: jax.Array
    weights: jax.Array

    def expectation(self, values: Array) -> jax.Array:
        """Mean (...) of a function of the variable from its values (m, ...) at the nodes."""
        return jnp.tensordot(self.weights, values, axes=1)

    def compressed(self, size: int) -> "PointMasses":
        """At most ``size`` masses with the moments up to 2 size − 1: Lanczos with reorthogonalisation ([GW])."""
        middle = self.expectation(self.nodes)
        spread = jnp.sqrt(self.expectation((self.nodes - middle) ** 2))
        unit = jnp.where(spread > 0, spread, 1.0)
        at, root = (self.nodes - middle) / unit, jnp.sqrt(self.weights)

        def step(state: tuple, number: jax.Array) -> tuple[tuple, tuple]:
            basis, vector = state
            basis, new = basis.at[number].set(vector), at * vector
            diagonal = new @ vector
            for _ in range(2):  # once is not enough to be orthogonal to rounding
                new = new - (basis @ new) @ basis
            length = jnp.linalg.norm(new)
            # a law with fewer points: the rest is rounding, and gets no mass
            ended = length < 1e-13 * jnp.max(jnp.abs(at))
            following = jnp.where(ended, 0.0, new / jnp.where(ended, 1.0, length))
            return (basis, following), (diagonal, jnp.where(ended, 0.0, length))

        start = jnp.zeros((size, len(root)), root.dtype), root / jnp.linalg.norm(root)
        _, (diagonal, lengths) = lax.scan(step, start, jnp.arange(size))
        off = lengths[:-1]
        values, vectors = jnp.linalg.eigh(jnp.diag(diagonal) + jnp.diag(off, 1) + jnp.diag(off, -1))
        masses = vectors[0] ** 2
        return PointMasses(middle + unit * values, masses / jnp.sum(masses))

    def counts(self, key: Key, count: Array) -> jax.Array:
        """Numbers (m,) of ``count`` draws on each node, in floating point."""
        order = jnp.argsort(-self.weights)  # the largest first, so that the remaining mass is no small difference
        numbers = jax.random.multinomial(key, jnp.asarray(count, self.weights.dtype), self.weights[order])
        return jnp.zeros_like(self.weights).at[order].set(numbers)


def sum_of_draws(key: Key, law: PointMasses, count: Array, step: float | None = None) -> jax.Array:
    """A draw of the sum of ``count`` variables, its distribution function off by less than 1e-5. The law ends with its
    bounds, or has all points of a lattice of a ``step``: so does the sum, if its deviation is at most 200 steps.
    """
    edges, below, smooth = table_of_sum(law, count, step)
    keys = jax.random.split(key, 4)
    total = jnp.interp(jax.random.uniform(keys[0], (), below.dtype), below, edges)
    if step is not None:
        exact = edges[1] - edges[0] < 1.5 * step
        return jnp.where(exact, step * jnp.round(total / step), total)
    lower, upper = law.weights[-2:]
    of_upper = PointMasses(jnp.arange(2.0), jnp.stack([1 - upper, upper]))
    at_upper = jnp.clip(jnp.round(sum_of_draws(keys[1], of_upper, count, 1.0)), 0, count)
    others = jnp.where(smooth, 0, count - at_upper)
    inside = _binomial(keys[2], others, 1 - lower / jnp.where(upper < 1, 1 - upper, 1.0))
    ends = (count - at_upper - inside) * law.nodes[-2] + at_upper * law.nodes[-1]
    return jnp.where(smooth, total, ends + sum_inside(keys[3], law, inside, lambda x: x))


def _binomial(key: Key, trials: Array, chance: Array) -> jax.Array:
    """A binomial draw by waiting times; JAX's own sampler takes seconds to compile."""

    def wait(state: tuple) -> tuple:
        number, at, successes = state
        uniform = jax.random.uniform(jax.random.fold_in(key, number), (DRAWS_PER_BLOCK,), chance.dtype, tiny)
        ahead = at + jnp.cumsum(1 + jnp.floor(jnp.log(uniform) / jnp.log1p(-jnp.clip(chance, tiny, 1 - 1e-16))))
        return number + 1, ahead[-1], successes + jnp.sum(ahead <= trials)

    tiny, zero = jnp.finfo(chance.dtype).tiny, jnp.zeros((), chance.dtype)
    return lax.while_loop(lambda state: state[1] < trials, wait, (0, zero, zero))[2]


def table_of_sum(law: PointMasses, count: Array, step: float | None) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Edges of cells (points + 1,), the sum's distribution function there, and whether it is exact to 1e-5."""
    mean = law.expectation(law.nodes)
    away = law.nodes - mean
    spread = jnp.sqrt(count * law.expectation(away**2))
    least = jnp.finfo(spread.dtype).tiny if step is None else step
    width = jnp.maximum(2 * SUM_TABLE_DEVIATIONS * spread / SUM_TABLE_CELLS, least)
    first = count * mean - width * (SUM_TABLE_CELLS // 2)
    if step is not None:
        first = step * jnp.round(first / step)
    frequencies = SUM_FREQUENCIES if step is None else SUM_TABLE_CELLS // 2 + 1
    frequency = 2 * jnp.pi / (SUM_TABLE_CELLS * width) * jnp.arange(frequencies)
    waves = [f(jnp.outer(away, frequency)) for f in (jnp.cos, jnp.sin)]
    # φ(t)ⁿ, turned to where the table starts; the phase of each factor is small, so that its power is not a large angle
    real, imaginary = (law.expectation(wave) for wave in waves)
    log_size = 0.5 * count * jnp.log(jnp.maximum(real**2 + imaginary**2, 1e-300))
    phase = count * jnp.arctan2(imaginary, real) + frequency * (count * mean - first)
    cell = 1.0 if step is not None else jnp.sinc(frequency * width / (2 * jnp.pi))  # the mean over a cell
    mass = jnp.maximum(jnp.fft.irfft(cell * jnp.exp(log_size) * jnp.exp(-1j * phase), SUM_TABLE_CELLS), 0.0)
    below = jnp.concatenate([jnp.zeros(1, mass.dtype), jnp.cumsum(mass)])
    # |φ| is at most the mass of the bounds and the size of the part of the density, which falls with the frequency
    inside, ends = law.weights[:-2], jnp.sum(law.weights[-2:])
    size = ends + jnp.hypot(*(inside @ wave[:-2, frequencies // 2 :] for wave in waves))
    smooth = (jnp.max(size) ** count < NEGLIGIBLE_TRANSFORM) & (count * jnp.sum(inside) > FEWEST_INSIDE_FOR_TABLE)
    return first + width * (jnp.arange(SUM_TABLE_CELLS + 1) - 0.5), below / below[-1], smooth


def sum_inside(key: Key, law: PointMasses, number: Array, values: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Sum, () or (k,), of a function (m,) → (m,) or (m, k) of draws inside the bounds of a law of `sum_of_draws`."""
    at, below = table_of_one(law)

    def draw(state: tuple) -> tuple:
        block, total = state
        uniform = jax.random.uniform(jax.random.fold_in(key, block), (DRAWS_PER_BLOCK,), below.dtype)
        terms = values(jnp.interp(uniform, below, at))
        counted = (block * DRAWS_PER_BLOCK + jnp.arange(DRAWS_PER_BLOCK) < number).reshape(-1, *[1] * (terms.ndim - 1))
        return block + 1, total + jnp.sum(jnp.where(counted, terms, 0.0), axis=0)

    start = 0, jnp.zeros_like(values(at[:1])[0])
    return lax.while_loop(lambda state: state[0] * DRAWS_PER_BLOCK < number, draw, start)[1]


def table_of_one(law: PointMasses) -> tuple[jax.Array, jax.Array]:
    """Points between the bounds, denser near the ends of panels, and the share of draws inside that are below."""
    lagrange, (_, weights) = lagrange_from_legendre(NODES_PER_PIECE), legendre.leggauss(NODES_PER_PIECE)
    below = legendre.legint(lagrange / weights, lbnd=-1)
    at = legendre.legvander(-np.cos(np.pi * np.arange(RECORD_TABLE_CELLS + 1) / RECORD_TABLE_CELLS), NODES_PER_PIECE)
    nodes, masses = (part[:-2].reshape(-1, NODES_PER_PIECE) for part in law)
    x, share = nodes @ (at[:, :-1] @ lagrange).T, masses @ (at @ below).T
    before = jnp.cumsum(share[:, -1]) - share[:, -1]
    share = lax.cummax(jnp.maximum(share + before[:, None], 0.0).ravel())
    return x.ravel(), share / jnp.where(share[-1] > 0, share[-1], 1.0)


def free_parameters(allowed: Constraints, params: Params) -> tuple[jax.Array, Callable[[Array], Params]]:
    """Parameters as a free vector (q,), and back: probabilities stand for themselves, the nearest ones for others."""

    def bijection(constraint: Constraint) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
        if constraint is constraints.unit_interval:
            return (lambda p: p), (lambda p: jnp.clip(p, 0.0, 1.0))
        if constraint is constraints.simplex:
            return (lambda p: p), nearest_probabilities
        transform = biject_to(constraint)
        return transform.inv, transform

    ways = {name: bijection(allowed[name]) for name in params}
    vector, unravel = ravel_pytree({name: ways[name][0](jnp.asarray(value, float)) for name, value in params.items()})
    return vector, lambda vector: {name: ways[name][1](part) for name, part in unravel(vector).items()}


class ParametricFamily(abc.ABC):
    """Base class of exponential families whose parameters are estimated from noisy sums of statistics of the records.

    Each record is clamped (moved to the nearest bound), so that its statistics are bounded and noise can give a
    guarantee. All statistics get equal noise: several are scaled to similar ranges, without a unit. Parameters are
    dicts with the names of NumPyro. Subclasses are frozen dataclasses and pytrees.

    Parameters
    ----------
    lower, upper : array_like
        The bounds, in the unit of the data, if the family has some. ValueError if one is missing, not finite or outside
        the range of the records, or if ``lower`` is not below ``upper``.
    """

    option: ClassVar[str]  # the name on the command line, if the class itself has one
    option_help: ClassVar[Mapping[str, str]] = {}  # what fields other than bounds are, on the command line
    columns: ClassVar[tuple[str, ...] | None] = None  # names of the statistics; None for one, released as a number
    lattice_step: ClassVar[float | None] = None  # of records and statistics, 1 for whole numbers; None for densities
    accounts_for_clamping: ClassVar[bool] = True  # whether there is a `solve_clamped`
    known_arguments: ClassVar[tuple[str, ...]] = ()  # arguments of that law that are fields; the others are parameters
    event_shape: tuple[int, ...] = ()  # of a record
    record_range: tuple[float, float] = (-math.inf, math.inf)  # that records have, and bounds are inside
    lower: Array
    upper: Array

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "option" in vars(cls):
            FAMILIES[cls.option] = cls

    @property
    @abc.abstractmethod
    def base(self) -> type[dist.Distribution]:
        """The law of a record before it is clamped, a class of NumPyro."""

    def distribution(self, params: Params) -> dist.Distribution:
        """Return the law of a record before it is clamped, for the parameters `params`."""
        fields = {name: getattr(self, name) for name in self.known_arguments}
        return self.base(**fields, **params, validate_args=False)  # nodes may be at the end of the support

    constraints = property(lambda self: self.base.arg_constraints, doc="NumPyro's constraints of the parameters.")
    centre = property(lambda self: (self.lower + self.upper) / 2, doc="The middle between the bounds.")
    half = property(lambda self: (self.upper - self.lower) / 2, doc="Half of the distance between the bounds.")

    def clamp(self, x: Array) -> jax.Array:
        """Return the records `x` as floats, those outside the bounds moved to the nearest bound."""
        x = jnp.asarray(x)
        return jnp.clip(x.astype(jnp.result_type(x, float)), self.lower, self.upper)

    def standardised(self, x: Array) -> jax.Array:
        """Return the numbers `x` on the linear scale on which the bounds are −1 and 1."""
        return (x - self.centre) / self.half

    @abc.abstractmethod
    def statistics(self, x: Array) -> jax.Array:
        """Clamp records `x` (*batch, *event), and return their statistics: (*batch), or (*batch, k) if there are k."""

    @abc.abstractmethod
    def sensitivity(self, order: int) -> float:
        """Return by how much one record can change the sum of the statistics, in the L1 (`order` 1) or L2 norm (2)."""

    @abc.abstractmethod
    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        """Estimate the parameters by maximum likelihood from the noisy `mean` of the statistics, clamping ignored.

        If the maximum is not inside the allowed ranges of the parameters, these are the nearest ones, and the second
        result is True.
        """

    def solve_clamped(self, mean: Array) -> tuple[Params, jax.Array]:
        """Estimate parameters for which a clamped record's expected statistics are `mean`. Default: `solve`."""
        return self.solve(mean)

    @abc.abstractmethod
    def covariance(self, params: Params, noise: Array, count: Array, *, clamped: bool) -> jax.Array:
        """Return the asymptotic covariance (p, p) of the p parameters, in the alphabetical order of their names, by
        `solve_clamped` or, if not `clamped`, `solve`, from `count` records with noise of the variance `noise` in each
        sum.
        """

    def moments(self, params: Params) -> tuple[jax.Array, jax.Array]:
        """Return the expectation (k,) and the covariance (k, k) of the k statistics of a clamped record."""
        raise ValueError(f"moments of clamped records are known only for families of numbers, got {self!r}")

    @abc.abstractmethod
    def nearest(self, params: Params) -> Params:
        """Return the valid parameters that are nearest to `params`, which may be any finite numbers."""

    @abc.abstractmethod
    def total(self, key: Key, params: Params, count: Array) -> jax.Array:
        """Simulate ``count`` records with the parameters `params`, and return the sum of their statistics."""

    def checked(self, data: Array) -> np.ndarray:
        """Return the records `data` as an array (n, *event). Raises ValueError for impossible records."""
        x, (low, high), lattice = np.asarray(data), self.record_range, self.lattice_step is not None
        if x.ndim == 0 or x.shape[1:] != self.event_shape or not x.size or x.dtype.kind not in "iufb":
            takes = f"rows (n, {self.event_shape[0]}) of numbers" if self.event_shape else "an array of numbers (n,)"
            got = f"shape {x.shape} of {x.dtype} (drop or impute missing records first)"
            raise ValueError(f"{type(self).__name__} takes {takes}, got {got}")
        bad = ~np.isfinite(x) | (x < low) | (x > high) | (lattice & (x != np.round(x)))
        kind = f"{'whole' if lattice else 'finite'} numbers from {low:g} to {high:g}"
        refuse(bad, f"records of {type(self).__name__} are {kind}; {{}} are not", x)
        return x.astype(float)


def check_bounds(tree: Any, allowed: str, ok: Callable[[np.ndarray], Any]) -> None:
    """ValueError unless the fields ``lower`` and ``upper`` are given, allowed and in order."""
    for name in ("lower", "upper"):
        if getattr(tree, name) is None:
            raise ValueError(f"{type(tree).__name__} needs bounds, chosen without the data: {name} is missing")
        checked_field(tree, name, allowed, ok)
    if np.shape(tree.lower) != np.shape(tree.upper):
        raise ValueError(f"lower and upper must have one shape, got {np.shape(tree.lower)} and {np.shape(tree.upper)}")
    check_order(tree.lower, tree.upper)


class NumberFamily(ParametricFamily):
    """Base class of families of numbers, which are clamped to the bounds ``lower`` and ``upper``.

    A subclass defines `base` (NumPyro's class of the law of a record), the `ranges` of the parameters, the `statistics`
    of a record, their `sensitivity` and expectation `mean`, and `reach`. It defines `density` only if NumPyro's is
    inaccurate in the tails. The other methods integrate over y, by default the record: the attribute `coordinate` has
    the functions from a record to y and back, such as the logarithm and the exponential function for a gamma record.
    """

    open_range: ClassVar[str | None] = None  # what bounds are, and why, if an end of the range of records is none
    coordinate: ClassVar[tuple[Callable[[Array], Array], Callable[[Array], Array]]] = (lambda x: x, lambda y: y)
    """The coordinate in which the density and all statistics are smooth, as a function of the record; its inverse."""

    def __post_init__(self) -> None:
        for name in self.known_arguments:  # scales and shapes
            checked_field(self, name, *ONE_POSITIVE)
        (low, high), lattice = self.record_range, self.lattice_step is not None
        span = "" if math.isinf(low) else f" from {low:g} to {high:g}"

        def ok(bound: np.ndarray) -> np.ndarray:
            inside = (bound > low) & (bound < high) if self.open_range else (bound >= low) & (bound <= high)
            return (bound.ndim == 0) & np.isfinite(bound) & inside & (not lattice or bound == np.round(bound))

        reason = f", {self.open_range}" if self.open_range else ""
        check_bounds(self, f"a {'whole' if lattice else 'finite'} number{span}{reason}", ok)

    @property
    @abc.abstractmethod
    def ranges(self) -> dict[str, Range]:
        """A dict from the NumPyro name of each parameter to the two ends of its allowed range."""

    @abc.abstractmethod
    def mean(self, params: Params) -> jax.Array:
        """Return the expected statistics of a record that is not clamped."""

    def reach(self, record: Any) -> tuple[Array, Array, Array]:
        """Return y at the lower end of nearly all of the law `record`, near its mode, and at the upper end."""
        raise NotImplementedError(f"{type(self).__name__} must define the method `reach` or the method `law`")

    def density(self, record: Any, y: Array) -> jax.Array:
        """Return the density of y at points `y`. `record` is the law of the record."""
        return jnp.exp(record.log_prob(y))

    def law(self, params: Params) -> PointMasses:
        """Return the law of a clamped record as points with probabilities: Gauss nodes, then the bounds."""
        record, (forward, backward) = self.distribution(params), self.coordinate
        if record.support.is_discrete:
            raise TypeError(f"{type(self).__name__} has whole numbers: derive it from ldpbayes.bootstrap.Counts")
        bounds = [jnp.asarray(bound, float) for bound in (self.lower, self.upper)]
        low, high = map(forward, bounds)
        cuts = jnp.stack([jnp.asarray(cut, float) for cut in self.reach(record)])
        parts = jnp.stack([jnp.clip(cuts, low, high), jnp.minimum(cuts, low), jnp.maximum(cuts, high)])
        # Panels of 8 nodes graded around the centres, as in the likelihood, would take 1.6 to 3.5 times as long for a
        # bootstrap, and are off by 1e-5 at a beta law of concentration 0.05, whose coordinate here is the logit.
        t, w = legendre.leggauss(NODES_PER_PIECE)
        half = jnp.diff(parts)[..., None] / 2
        nodes = parts[:, :-1, None] + half * (1 + t)
        # An empty panel is at a bound, where a density may be 0 or infinite and have no derivative.
        masses = half * w * self.density(record, jnp.where(half > 0, nodes, cuts[1]))
        weights = jnp.append(masses[0], jnp.sum(masses[1:], axis=(1, 2)))
        return PointMasses(jnp.append(backward(nodes[0]), jnp.stack(bounds)), weights / jnp.sum(weights))

    width = property(lambda self: self.upper - self.lower)

    def moments(self, params: Params) -> tuple[jax.Array, jax.Array]:
        law = self.law(params)
        values = self.statistics(law.nodes).reshape(len(law.nodes), -1)
        center = law.expectation(values)
        away = values - center
        return center, (law.weights * away.T) @ away

    def total(self, key: Key, params: Params, count: Array) -> jax.Array:
        # a single statistic from the table of its law, several from counts of point masses
        law = self.law(params)
        if self.columns is None:
            return sum_of_draws(key, law, count, self.lattice_step)
        keys, masses = jax.random.split(key), self.masses(law)
        counts, values = masses.counts(keys[0], count), self.statistics(masses.nodes)
        inside = jnp.sum(counts[:-2])
        few = inside <= DRAWN_ONE_BY_ONE
        forward, backward = self.coordinate
        smooth = PointMasses(forward(law.nodes), law.weights)
        one_by_one = sum_inside(keys[1], smooth, jnp.where(few, inside, 0), lambda at: self.statistics(backward(at)))
        return counts[-2:] @ values[-2:] + jnp.where(few, one_by_one, counts[:-2] @ values[:-2])

    def masses(self, law: PointMasses) -> PointMasses:
        """Return a few points with probabilities, the bounds last, that replace the `law` of a record in sums."""
        forward, backward = self.coordinate
        inside = jnp.sum(law.weights[:-2])
        weights = law.weights[:-2] / jnp.where(inside > 0, inside, 1.0)
        few = PointMasses(forward(law.nodes[:-2]), weights).compressed(COMPRESSED_MASSES)
        nodes = jnp.append(backward(few.nodes), law.nodes[-2:])
        return PointMasses(nodes, jnp.append(inside * few.weights, law.weights[-2:]))

    def nearest(self, params: Params) -> Params:
        return {name: jnp.clip(params[name], *allowed) for name, allowed in self.ranges.items()}

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        return self._match(self.mean, mean, {name: jnp.ones(()) for name in self.ranges})

    def solve_clamped(self, mean: Array) -> tuple[Params, jax.Array]:
        return self._match(lambda params: self.moments(params)[0], mean, self.solve(mean)[0])

    def _match(
        self, expectation: Callable[[Params], jax.Array], mean: Array, start: Params
    ) -> tuple[Params, jax.Array]:
        """Parameters with an expectation, by Newton steps, and whether there are none (`minimise`: 2.5 × the time)."""
        first, params_of = free_parameters(self.constraints, start)
        ends = ({name: allowed[end] for name, allowed in self.ranges.items()} for end in (0, 1))
        low, high = (free_parameters(self.constraints, end)[0] for end in ends)
        positive = [self.constraints[name] is constraints.positive for name in sorted(self.ranges)]
        most = jnp.where(jnp.array(positive), 1.0, (high - low) / 8)
        target = jnp.atleast_1d(mean)

        def gap(vector: jax.Array) -> tuple[jax.Array, jax.Array]:
            away = jnp.atleast_1d(expectation(params_of(vector))) - target
            return away, away

        def step(state: tuple) -> tuple:
            vector, _, number = state
            slope, away = jax.jacfwd(gap, has_aux=True)(vector)
            ahead = jnp.clip(vector - jnp.clip(_solve(slope, away), -most, most), low, high)
            return ahead, jnp.max(jnp.abs(ahead - vector) / (high - low)), number + 1

        state = jnp.clip(first, low, high), jnp.ones(()), 0
        vector, *_ = jax.lax.while_loop(lambda s: (s[1] > SETTLED_STEP_SHARE) & (s[2] < MOST_NEWTON_STEPS), step, state)
        edge = RANGE_EDGE_SHARE * (high - low)
        at_edge = jnp.any((vector <= low + edge) | (vector >= high - edge))
        error = jnp.max(jnp.abs(gap(vector)[0]) / (1 + jnp.abs(target)))
        return params_of(vector), at_edge | (error > SETTLED_STEP_SHARE)

    def covariance(self, params: Params, noise: Array, count: Array, *, clamped: bool) -> jax.Array:
        """J⁻¹ (V/n + noise/n²) J⁻ᵀ, V the covariance of the statistics and J the slope of their mean."""
        flat, unravel = ravel_pytree({name: jnp.asarray(params[name], float) for name in self.ranges})

        def expectation(theta: jax.Array) -> jax.Array:
            return self.moments(unravel(theta))[0] if clamped else jnp.atleast_1d(self.mean(unravel(theta)))

        slope = jax.jacfwd(expectation)(flat)
        spread = self.moments(params)[1] / count + noise / count**2 * jnp.eye(len(flat))
        return _solve(slope, _solve(slope, spread).T)


def _solve(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """matrix⁻¹ right; of small matrices by Cramer's rule, which is fast for many at a time, as no library is."""
    if len(matrix) > 2:
        return jnp.linalg.solve(matrix, right)
    if len(matrix) == 1:
        determinant = matrix[0, 0]
    else:
        (a, b), (c, d) = matrix
        determinant = a * d - b * c
        right = jnp.stack([d * right[0] - b * right[1], a * right[1] - c * right[0]])
    return right / jnp.where(jnp.abs(determinant) > 1e-200, determinant, 1e-200)


class OneParameterFamily(NumberFamily):
    """Base class of families with one parameter, a monotone function of the expected record, the only statistic.

    A subclass must define `base`, the `ranges` of the parameter, and `reach`, as in `NumberFamily`.
    """

    def statistics(self, x: Array) -> jax.Array:
        return self.clamp(x)

    def sensitivity(self, order: int) -> float:
        return self.width

    def mean(self, params: Params) -> jax.Array:
        return jnp.asarray(self.distribution(params).mean)

    def of_mean(self, mean: Array) -> Array:
        """Return the parameter for which the expected record equals `mean`: by default `mean` itself."""
        return mean

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        ((name, allowed),) = self.ranges.items()
        ends = [self.mean({name: end}) for end in allowed]
        within = jnp.clip(mean, jnp.minimum(*ends), jnp.maximum(*ends))
        return {name: self.of_mean(within)}, within != mean
