"""Families of the bootstrap: their protocol, and families of numbers."""

import abc
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree

from ldpbayes._core.checks import check_order
from ldpbayes._core.pytrees import checked_field
from ldpbayes._core.types import Array, Key, Params
from ldpbayes.bootstrap._clamped_sums import PANEL_NODES, PointMasses, sum_inside, sum_of_draws
from ldpbayes.numerics.quadrature import gauss_legendre

COMPRESSED_MASSES = 12  # stand for a record between the bounds in sums of several statistics: 23 moments are right
FEW_INSIDE = 64  # so many records between the bounds, or fewer, are drawn one by one
NEWTON_STEPS = 30  # at most, each at most a unit of a logarithm
SETTLED = 1e-6  # length of the last step, as a share of a parameter's range; Newton's method squares the error
EDGE = 1e-6  # share of a range: a parameter nearer to an end than that was brought there


class ParametricFamily(abc.ABC):
    """An exponential family whose statistics are bounded by clamping records; parameters are dicts, named as NumPyro's.

    Subclasses are frozen dataclasses and pytrees. A record is clamped before its statistics are taken; these are of
    size one, or the record itself where it is the only one, so that the noise does not depend on the data's unit.
    """

    columns: ClassVar[tuple[str, ...] | None] = None
    """Names of the statistics; None for a single one, which is then released as a number. May be a property."""
    lattice_step: ClassVar[float | None] = None
    """Step of the lattice on which records and their statistics are, 1 for whole numbers; None for densities."""
    accounts_for_clamping: ClassVar[bool] = True
    """Whether there is a `solve_clamped`."""
    base: ClassVar[type[dist.Distribution]]
    """NumPyro's law of a record before it is clamped, whose arguments are the `known` and the other parameters."""
    known: ClassVar[dict[str, str]] = {}
    """Known parameters, by NumPyro's names: the family's fields."""

    def distribution(self, params: Params) -> dist.Distribution:
        """Law of a record before it is clamped."""
        return self.base(**{name: getattr(self, field) for name, field in self.known.items()}, **params)

    @abc.abstractmethod
    def statistics(self, x: Array) -> jax.Array:
        """Statistics (*batch) or (*batch, statistics) of records (*batch, *event), which are clamped first."""

    @abc.abstractmethod
    def sensitivity(self, order: int) -> float:
        """Largest L1 (order 1) or L2 (order 2) change of the sum of statistics, exactly, if one record is replaced."""

    @abc.abstractmethod
    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        """Maximum likelihood from a noisy mean of statistics, as if no record had been clamped.

        Second, whether there is no such maximum inside the ranges, so that the nearest was taken.
        """

    def solve_clamped(self, mean: Array) -> tuple[Params, jax.Array]:
        """Parameters under which *clamped* records have these expected statistics: the method of moments.

        Second, whether there are none inside the ranges, so that the nearest were taken. By default nothing is clamped.
        """
        return self.solve(mean)

    def covariance(self, params: Params, noise: Array, count: Array, *, clamped: bool) -> jax.Array | None:
        """Asymptotic covariance (p, p) of the flat estimate of `solve` or `solve_clamped`; None where it is not known.

        ``noise`` is the variance of the noise in each statistic's sum, 0 for estimates that are not private.
        """
        return None

    @abc.abstractmethod
    def nearest(self, params: Params) -> Params:
        """The nearest allowed parameters, for any finite values."""

    def unconstrained(self, params: Params) -> jax.Array:
        """Parameters as a vector (q,) in which any step is allowed."""
        return ravel_pytree(dict(params))[0]

    def constrained(self, vector: Array, like: Params | None = None) -> Params:
        """Inverse of `unconstrained`; here the nearest allowed parameters, of the form of ``like``."""
        return self.nearest(ravel_pytree(like)[1](vector))

    @abc.abstractmethod
    def total(self, key: Key, params: Params, count: Array) -> jax.Array:
        """Sum of the statistics of ``count`` records that are drawn, and clamped."""

    @abc.abstractmethod
    def checked(self, data: Array) -> np.ndarray:
        """Records as an array (n, *event), or ValueError."""

    def simulate(self, key: Key, params: Params, count: int) -> jax.Array:
        """Records (count, *event), before they are clamped."""
        return self.distribution(params).sample(key, (count,))


class Range(NamedTuple):
    """The interval in which a parameter is looked for; steps are in the logarithm of a ``positive`` parameter."""

    lower: Array
    upper: Array
    positive: bool = False


class NumberFamily(ParametricFamily):
    """A family of numbers, clamped to ``lower`` and ``upper`` in their unit, whose clamped law has a rule of nodes."""

    lower: Array
    upper: Array
    record_range: ClassVar[tuple[float, float]] = (-np.inf, np.inf)
    """Interval in which records are, whatever the parameters; bounds are inside it."""
    smooth_coordinate: ClassVar[tuple[Callable[[Array], Array], Callable[[Array], Array]]] = (lambda x: x, lambda x: x)
    """A coordinate in which all statistics are smooth, so that few masses have their moments; and its inverse."""

    def __post_init__(self) -> None:
        low, high = self.record_range
        for name in ("lower", "upper"):
            if getattr(self, name) is None:
                raise ValueError(
                    f"{type(self).__name__} needs bounds to which records are clamped, chosen without looking at them: "
                    f"{name} is missing, and without it one record could move the statistics by any amount"
                )
            allowed = "a finite number" + ("" if (low, high) == (-np.inf, np.inf) else f" from {low:g} to {high:g}")
            checked_field(self, name, allowed, lambda a: (a.ndim == 0) & np.isfinite(a) & (a >= low) & (a <= high))
        check_order(self.lower, self.upper)

    @property
    @abc.abstractmethod
    def ranges(self) -> dict[str, Range]:
        """The range of each parameter, a number, by NumPyro's names."""

    @abc.abstractmethod
    def mean(self, params: Params) -> jax.Array:
        """Expectation of the statistics of a record that is not clamped, in closed form."""

    @abc.abstractmethod
    def law(self, params: Params) -> PointMasses:
        """Law of a clamped record: a rule for its density, and last the masses of the bounds."""

    @property
    def width(self) -> Array:
        return self.upper - self.lower

    def clamp(self, x: Array) -> jax.Array:
        x = jnp.asarray(x)
        return jnp.clip(x.astype(jnp.result_type(x, float)), self.lower, self.upper)

    def statistics(self, x: Array) -> jax.Array:
        return self.clamp(x)

    def sensitivity(self, order: int) -> float:
        return self.width

    def moments(self, params: Params) -> tuple[jax.Array, jax.Array]:
        """Expectation (k,) and covariance (k, k) of the statistics of a clamped record."""
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
        forward, inverse = self.smooth_coordinate
        smooth = PointMasses(forward(law.nodes), law.weights)
        one_by_one = sum_inside(keys[1], smooth, jnp.where(few, inside, 0), lambda at: self.statistics(inverse(at)))
        return counts[-2:] @ values[-2:] + jnp.where(few, one_by_one, counts[:-2] @ values[:-2])

    def masses(self, law: PointMasses) -> PointMasses:
        """Few masses that stand for a clamped record in sums of several statistics; last those at the bounds."""
        forward, inverse = self.smooth_coordinate
        inside = jnp.sum(law.weights[:-2])
        weights = law.weights[:-2] / jnp.where(inside > 0, inside, 1.0)
        few = PointMasses(forward(law.nodes[:-2]), weights).compressed(COMPRESSED_MASSES)
        nodes = jnp.append(inverse(few.nodes), law.nodes[-2:])
        return PointMasses(nodes, jnp.append(inside * few.weights, law.weights[-2:]))

    def checked(self, data: Array) -> np.ndarray:
        x = np.asarray(data)
        if x.ndim != 1 or not x.size or x.dtype.kind not in "iufb":
            got = f"shape {x.shape} of {x.dtype} (drop or impute missing records first)"
            raise ValueError(f"{type(self).__name__} takes an array of numbers (n,), got {got}")
        low, high = self.record_range
        bad = ~np.isfinite(x) | (x < low) | (x > high) | (self.lattice_step is not None and x != np.round(x))
        if bad.any():
            what = "whole numbers" if self.lattice_step is not None else "finite numbers"
            raise ValueError(
                f"records must be {what} from {low:g} to {high:g}; {bad.sum()} are not, the first "
                f"({x[bad][0]!r}) at {np.argmax(bad)}"
            )
        return x.astype(float)

    def nearest(self, params: Params) -> Params:
        return {name: jnp.clip(params[name], allowed.lower, allowed.upper) for name, allowed in self.ranges.items()}

    def unconstrained(self, params: Params) -> jax.Array:
        values = {name: (jnp.asarray(params[name], float), allowed) for name, allowed in self.ranges.items()}
        return ravel_pytree({name: jnp.log(x) if part.positive else x for name, (x, part) in values.items()})[0]

    def constrained(self, vector: Array, like: Params | None = None) -> Params:
        parts = dict(zip(sorted(self.ranges), vector, strict=True))
        return {name: jnp.exp(part) if self.ranges[name].positive else part for name, part in parts.items()}

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        """Parameters under which records that are not clamped have this expectation; most families have formulas."""
        return self._match(self.mean, mean, {name: jnp.ones(()) for name in self.ranges})

    def solve_clamped(self, mean: Array) -> tuple[Params, jax.Array]:
        return self._match(lambda params: self.moments(params)[0], mean, self.solve(mean)[0])

    def _match(
        self, expectation: Callable[[Params], jax.Array], mean: Array, start: Params
    ) -> tuple[Params, jax.Array]:
        """Parameters with an expectation, by Newton steps inside the ranges; and whether there are none in them."""
        names, ranges = sorted(self.ranges), self.ranges
        ends = [[getattr(ranges[name], end) for name in names] for end in ("lower", "upper")]
        low, high = (self.unconstrained(dict(zip(names, end, strict=True))) for end in ends)
        target = jnp.atleast_1d(mean)

        def gap(vector: jax.Array) -> tuple[jax.Array, jax.Array]:
            away = jnp.atleast_1d(expectation(self.constrained(vector))) - target
            return away, away

        def step(state: tuple) -> tuple:
            vector, _, number = state
            slope, away = jax.jacfwd(gap, has_aux=True)(vector)
            most = jnp.where(jnp.array([ranges[name].positive for name in names]), 1.0, (high - low) / 8)
            ahead = jnp.clip(vector - jnp.clip(_solve(slope, away), -most, most), low, high)
            return ahead, jnp.max(jnp.abs(ahead - vector) / (high - low)), number + 1

        first = jnp.clip(self.unconstrained(start), low, high), jnp.ones(()), 0
        vector, *_ = jax.lax.while_loop(lambda s: (s[1] > SETTLED) & (s[2] < NEWTON_STEPS), step, first)
        edge = EDGE * (high - low)
        at_edge = jnp.any((vector <= low + edge) | (vector >= high - edge))
        error = jnp.max(jnp.abs(gap(vector)[0]) / (1 + jnp.abs(target)))
        return self.constrained(vector), at_edge | (error > SETTLED)

    def covariance(self, params: Params, noise: Array, count: Array, *, clamped: bool) -> jax.Array:
        """J⁻¹ (V/n + noise/n²) J⁻ᵀ, V the covariance of a clamped record's statistics.

        J is the derivative of the expectation that the estimate inverts. Where nothing is clamped and there is no noise
        that is the inverse of the Fisher information.
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


def clamped_law(
    cuts: tuple[Array, Array, Array],
    lower: Array,
    upper: Array,
    density: Callable[[jax.Array], jax.Array],
    inverse: Callable[[jax.Array], jax.Array] | None = None,
) -> PointMasses:
    """Law of a clamped variable: Gauss-Legendre nodes between the bounds, and the masses of the bounds.

    Everything is in a coordinate in which the density is smooth; ``inverse`` leads back to the variable. Between the
    first and the last of the cuts is all of the density, to rounding. Panels meet in the middle one, near the mode,
    since nodes are closest together where they meet.
    """
    lower, upper = jnp.asarray(lower, float), jnp.asarray(upper, float)
    points = jnp.stack([jnp.asarray(cut, float) for cut in cuts])
    nodes, weights = _panel_rule(jnp.clip(points, lower, upper))
    outside = _panel_rule(jnp.minimum(points, lower)), _panel_rule(jnp.maximum(points, upper))
    masses = [w @ density(at) for at, w in outside]
    weights = jnp.concatenate([weights * density(nodes), jnp.stack(masses)])
    nodes = jnp.concatenate([nodes, jnp.stack([lower, upper])])
    return PointMasses(nodes if inverse is None else inverse(nodes), weights / jnp.sum(weights))


def _panel_rule(cuts: jax.Array) -> tuple[jax.Array, jax.Array]:
    t, w = gauss_legendre(PANEL_NODES)
    half = jnp.diff(cuts)[:, None] / 2
    return (cuts[:-1, None] + half * (1 + t)).ravel(), (half * w).ravel()
