"""Families whose records are clamped: their protocol, and those of codes, of rows and of numbers."""

import abc
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpy.polynomial.legendre import leggauss
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.constraints import Constraint

from ldpbayes._core.checks import ONE_POSITIVE, check_order, refuse
from ldpbayes._core.pytrees import checked_field
from ldpbayes._core.types import Array, Key, Params
from ldpbayes.laws._clamped_sums import PANEL_NODES, PointMasses, sum_inside, sum_of_draws
from ldpbayes.numerics.minimise import nearest_probabilities

COMPRESSED_MASSES = 12  # stand for a record between the bounds in sums of several statistics: 23 moments are right
FEW_INSIDE = 64  # so many records between the bounds, or fewer, are drawn one by one
NEWTON_STEPS = 30  # at most, each at most a unit of a logarithm
SETTLED = 1e-6  # length of the last step, as a share of a parameter's range; Newton's method squares the error
EDGE = 1e-6  # share of a range: a parameter nearer to an end than that was brought there
Range = tuple[Array, Array]  # the interval in which a parameter is looked for
Constraints = Mapping[str, Constraint]
FAMILIES: dict[str, type["ParametricFamily"]] = {}  # by their names on the command line


def free_parameters(allowed: Constraints, params: Params) -> tuple[jax.Array, Callable[[Array], Params]]:
    """Parameters as a vector (q,) in which any step is allowed, and the parameters of such vectors: by bijections of
    NumPyro, but for probabilities, which may be 0 and 1. A vector has these themselves, and the nearest stand for it.
    """

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

    Each record is clamped: a record outside the bounds is moved to the nearest bound. Then its statistics are computed.
    They are bounded, and therefore noise can give a privacy guarantee. Parameters of a family are dicts with the names
    that NumPyro uses. Subclasses are frozen dataclasses and pytrees.

    All statistics of a record get equal noise. Therefore several statistics are scaled to similar ranges, without a
    unit.
    """

    option: ClassVar[str | None] = None  # the name on the command line
    option_help: ClassVar[Mapping[str, str]] = {}  # what fields other than bounds are, on the command line
    columns: ClassVar[tuple[str, ...] | None] = None  # names of the statistics; None for one, released as a number
    lattice_step: ClassVar[float | None] = None  # of records and statistics, 1 for whole numbers; None for densities
    accounts_for_clamping: ClassVar[bool] = True  # whether there is a `solve_clamped`
    base: ClassVar[type[dist.Distribution]]  # NumPyro's law of a record before it is clamped
    known: ClassVar[tuple[str, ...]] = ()  # arguments of that law that are fields; the others are parameters
    event_shape: tuple[int, ...] = ()  # of a record
    record_range: tuple[float, float] = (-math.inf, math.inf)  # that records have, and bounds are inside
    lower: Array
    upper: Array

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "option" in vars(cls):
            FAMILIES[cls.option] = cls

    def distribution(self, params: Params) -> dist.Distribution:
        """Return the law (probability distribution) of a record before it is clamped, for the parameters `params`."""
        known = {name: getattr(self, name) for name in self.known}
        return self.base(**known, **params, validate_args=False)  # nodes may be at the end of the support

    @property
    def constraints(self) -> Constraints:
        """A dict from the names of the parameters to their constraints, which are objects of NumPyro."""
        return self.base.arg_constraints

    @property
    def centre(self) -> Array:
        """The middle between the bounds, in the unit of the data."""
        return (self.lower + self.upper) / 2

    @property
    def half(self) -> Array:
        """Half of the distance between the bounds, in the unit of the data."""
        return (self.upper - self.lower) / 2

    def clamp(self, x: Array) -> jax.Array:
        """Return the records `x` as floats. Records outside the bounds are moved to the nearest bound."""
        x = jnp.asarray(x)
        return jnp.clip(x.astype(jnp.result_type(x, float)), self.lower, self.upper)

    def standardised(self, x: Array) -> jax.Array:
        """Return the numbers `x` on the linear scale on which the bounds are −1 and 1."""
        return (x - self.centre) / self.half

    @abc.abstractmethod
    def statistics(self, x: Array) -> jax.Array:
        """Clamp the records `x` (*batch, *event), and return the statistics of each record.

        The result has the shape (*batch) if there is one statistic, and (*batch, k) if there are k statistics.
        """

    @abc.abstractmethod
    def sensitivity(self, order: int) -> float:
        """Return the sensitivity: the largest change of the sum of the statistics if one record is replaced.

        The change is measured in the L1 norm if `order` is 1, and in the L2 norm if `order` is 2.
        """

    @abc.abstractmethod
    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        """Estimate the parameters by maximum likelihood, as if no record had been clamped.

        `mean` is the noisy mean of the statistics. The second result is True if the maximum is not inside the allowed
        ranges of the parameters. The first result is then the nearest parameters in the ranges.
        """

    def solve_clamped(self, mean: Array) -> tuple[Params, jax.Array]:
        """Estimate the parameters by the method of moments for clamped records.

        The first result is parameters for which the expected statistics of a clamped record equal `mean`, the noisy
        mean of the statistics. The second result is True if the allowed ranges contain no such parameters. The first
        result is then the nearest parameters in the ranges. Default: `solve`, for families without clamping.
        """
        return self.solve(mean)

    @abc.abstractmethod
    def covariance(self, params: Params, noise: Array, count: Array, *, clamped: bool) -> jax.Array:
        """Return the asymptotic covariance (p, p) of the p estimated parameters.

        The estimate comes from `solve_clamped` if `clamped` is True, and otherwise from `solve`. `noise` is the
        variance of the noise in the sum of each statistic. `count` is the number of records. The parameters are in the
        alphabetical order of their names.
        """

    @abc.abstractmethod
    def nearest(self, params: Params) -> Params:
        """Return the valid parameters that are nearest to `params`, which may be any finite numbers."""

    @abc.abstractmethod
    def total(self, key: Key, params: Params, count: Array) -> jax.Array:
        """Simulate ``count`` records with the parameters `params`, clamp them, and return the sum of their statistics.

        `key` is a random key of JAX.
        """

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

    A subclass must define:

    - `base`: the NumPyro class of the law (probability distribution) of a record;
    - `ranges`: the allowed ranges of the parameters;
    - `statistics` of a record, with their `sensitivity` and their expectation `mean`;
    - `reach`: the interval that contains nearly all of the law;
    - `density`, only if the density of NumPyro is inaccurate in the tails.

    The other methods integrate numerically over the law of a clamped record. The variable of the integration is called
    y. By default, y is the record. For a gamma record x, y = log x. The attribute `coordinate` has two functions, from
    a record to y and back.
    """

    open_range: ClassVar[str | None] = None  # what bounds are, and why, if an end of the range of records is none
    coordinate: ClassVar[tuple[Callable[[Array], Array], Callable[[Array], Array]]] = (lambda x: x, lambda y: y)
    """The coordinate in which the density and all statistics are smooth, as a function of the record; its inverse."""

    def __post_init__(self) -> None:
        for name in self.known:  # scales and shapes
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
        """Return the expected statistics of a record without clamping, computed from `params` by a formula."""

    def reach(self, record: Any) -> tuple[Array, Array, Array]:
        """Return three values of y: the lower end of the law of a record, a point near the mode, and the upper end.

        Here y is the variable of the integration, such as the logarithm of a gamma record (see `NumberFamily`). Nearly
        all of the law is between the two ends. `record` is the NumPyro law of a record.
        """
        raise NotImplementedError(f"{type(self).__name__} must define the method `reach` or the method `law`")

    def density(self, record: Any, y: Array) -> jax.Array:
        """Return the density of the law of y, with respect to y, at points `y`.

        Here y is the variable of the integration, such as y = log x for a gamma record x (see `NumberFamily`). `record`
        is the NumPyro law of the record x itself.
        """
        return jnp.exp(record.log_prob(y))

    def law(self, params: Params) -> PointMasses:
        """Return the law of a clamped record with the parameters `params`, as points with probabilities.

        The last two points are the bounds, to which records are clamped. The other points are the nodes of a Gauss rule
        for the density between the bounds.
        """
        record, (forward, backward) = self.distribution(params), self.coordinate
        if record.support.is_discrete:
            raise TypeError(f"{type(self).__name__} has whole numbers: derive it from ldpbayes.bootstrap.Counts")
        bounds = [jnp.asarray(bound, float) for bound in (self.lower, self.upper)]
        low, high = map(forward, bounds)
        cuts = jnp.stack([jnp.asarray(cut, float) for cut in self.reach(record)])
        parts = jnp.stack([jnp.clip(cuts, low, high), jnp.minimum(cuts, low), jnp.maximum(cuts, high)])
        t, w = leggauss(PANEL_NODES)
        half = jnp.diff(parts)[..., None] / 2
        nodes = parts[:, :-1, None] + half * (1 + t)
        # An empty panel is at a bound, where a density may be 0 or infinite and have no derivative.
        masses = half * w * self.density(record, jnp.where(half > 0, nodes, cuts[1]))
        weights = jnp.append(masses[0], jnp.sum(masses[1:], axis=(1, 2)))
        return PointMasses(jnp.append(backward(nodes[0]), jnp.stack(bounds)), weights / jnp.sum(weights))

    @property
    def width(self) -> Array:
        return self.upper - self.lower

    def moments(self, params: Params) -> tuple[jax.Array, jax.Array]:
        """Return the expectation (k,) and the covariance (k, k) of the k statistics of a clamped record."""
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
        few = inside <= FEW_INSIDE
        forward, backward = self.coordinate
        smooth = PointMasses(forward(law.nodes), law.weights)
        one_by_one = sum_inside(keys[1], smooth, jnp.where(few, inside, 0), lambda at: self.statistics(backward(at)))
        return counts[-2:] @ values[-2:] + jnp.where(few, one_by_one, counts[:-2] @ values[:-2])

    def masses(self, law: PointMasses) -> PointMasses:
        """Return a few points with probabilities that replace the `law` of a clamped record when sums are simulated.

        The last two points are the bounds.
        """
        forward, backward = self.coordinate
        inside = jnp.sum(law.weights[:-2])
        weights = law.weights[:-2] / jnp.where(inside > 0, inside, 1.0)
        few = PointMasses(forward(law.nodes[:-2]), weights).compressed(COMPRESSED_MASSES)
        nodes = jnp.append(backward(few.nodes), law.nodes[-2:])
        return PointMasses(nodes, jnp.append(inside * few.weights, law.weights[-2:]))

    def nearest(self, params: Params) -> Params:
        return {name: jnp.clip(params[name], *allowed) for name, allowed in self.ranges.items()}

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        """Return the parameters for which the expected statistics of a record without clamping equal `mean`.

        The second result is True if such parameters do not exist inside the `ranges`. Most families replace this search
        by a formula.
        """
        return self._match(self.mean, mean, {name: jnp.ones(()) for name in self.ranges})

    def solve_clamped(self, mean: Array) -> tuple[Params, jax.Array]:
        return self._match(lambda params: self.moments(params)[0], mean, self.solve(mean)[0])

    def _match(
        self, expectation: Callable[[Params], jax.Array], mean: Array, start: Params
    ) -> tuple[Params, jax.Array]:
        """Parameters with an expectation, by Newton steps inside the ranges; and whether there are none in them.
        (`minimise` gives the same from squares of the gap, in 2.5 to 4 times the time and half as much code again.)
        """
        first, params_of = free_parameters(self.constraints, start)
        ends = [{name: allowed[end] for name, allowed in self.ranges.items()} for end in (0, 1)]
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
        vector, *_ = jax.lax.while_loop(lambda s: (s[1] > SETTLED) & (s[2] < NEWTON_STEPS), step, state)
        edge = EDGE * (high - low)
        at_edge = jnp.any((vector <= low + edge) | (vector >= high - edge))
        error = jnp.max(jnp.abs(gap(vector)[0]) / (1 + jnp.abs(target)))
        return params_of(vector), at_edge | (error > SETTLED)

    def covariance(self, params: Params, noise: Array, count: Array, *, clamped: bool) -> jax.Array:
        """Return the asymptotic covariance of the estimated parameters.

        It is J⁻¹ (V/n + noise/n²) J⁻ᵀ. V is the covariance of the statistics of a clamped record, and n = `count` is
        the number of records. `noise` is the variance of the noise in the sum of each statistic. J is the derivative of
        the expected statistics with respect to the parameters. Without clamping and noise, the result is the inverse of
        the Fisher information.
        """
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
    """Base class of families with one parameter, where the record itself is the only statistic.

    The parameter must be a monotone function of the expected record. A subclass must define `base` (the NumPyro class
    of the law of a record), the `ranges` of the parameter, and `reach`, as in `NumberFamily`.
    """

    def statistics(self, x: Array) -> jax.Array:
        return self.clamp(x)

    def sensitivity(self, order: int) -> float:
        return self.width

    def mean(self, params: Params) -> jax.Array:
        return jnp.asarray(self.distribution(params).mean)

    def of_mean(self, mean: Array) -> Array:
        """Return the parameter for which the expected record equals `mean`.

        By default, the parameter is the expected record itself.
        """
        return mean

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        ((name, allowed),) = self.ranges.items()
        ends = [self.mean({name: end}) for end in allowed]
        within = jnp.clip(mean, jnp.minimum(*ends), jnp.maximum(*ends))
        return {name: self.of_mean(within)}, within != mean
