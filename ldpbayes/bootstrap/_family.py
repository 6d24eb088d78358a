"""Families of the bootstrap: their protocol, and families on the line."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree

from ldpbayes._core.checks import check_order
from ldpbayes._core.pytrees import checked_field, pytree, static
from ldpbayes.bootstrap._sums import ORDER, PointMasses, sum_inside, sum_of_draws
from ldpbayes.numerics.quadrature import gauss_legendre

Params = dict[str, Any]


class Family(abc.ABC):
    """An exponential family whose statistics are bounded by clamping records; parameters are dicts, named as NumPyro's.

    Subclasses are frozen dataclasses and pytrees. A record is clamped before its statistics are taken; these are in
    units in which they are of size one, or the record's own where it is the only statistic, so that the noise does not
    depend on the unit of the data.
    """

    columns: ClassVar[tuple[str, ...] | None] = None
    """Names of the statistics; None for a single one, which is then released as a number. May be a property."""

    step: ClassVar[float | None] = None
    """Of the lattice on which records and their statistics are, 1 for whole numbers; None for densities."""

    accounts_for_clamping: ClassVar[bool] = True
    """Whether there is a `solve_clamped`."""

    @abc.abstractmethod
    def distribution(self, params: Mapping[str, Any]) -> dist.Distribution:
        """Law of a record before it is clamped.

        Parameters
        ----------
        params : mapping of str to array
            Parameters of the family.
        """

    @abc.abstractmethod
    def statistics(self, x: Any) -> jax.Array:
        """Statistics of clamped records.

        Parameters
        ----------
        x : array (*batch, *event)
            Records.

        Returns
        -------
        array (*batch) or (*batch, statistics)
        """

    @abc.abstractmethod
    def sensitivity(self, order: int) -> float:
        """How far replacing one record can move the sum of the statistics; exactly, attained by two records.

        Parameters
        ----------
        order : {1, 2}
            Sum of absolute differences, or Euclidean distance.
        """

    @abc.abstractmethod
    def solve(self, mean: jax.Array) -> tuple[Params, jax.Array]:
        """Maximum likelihood from a mean of statistics, as if no record had been clamped.

        Parameters
        ----------
        mean : array () or (statistics,)
            Possibly with noise, so possibly no mean of any records.

        Returns
        -------
        params : dict of str to array
            In the ranges.
        outside : array () of bool
            Whether there is no such maximum inside the ranges, so that the nearest was taken.
        """

    @abc.abstractmethod
    def solve_clamped(self, mean: jax.Array) -> tuple[Params, jax.Array]:
        """Parameters under which *clamped* records have these expected statistics: the method of moments.

        Parameters
        ----------
        mean : array () or (statistics,)
            As for `solve`. What no parameters inside the ranges have is replaced by the nearest that some have.
        """

    def covariance(self, params: Mapping[str, Any], noise: Any, count: Any, *, clamped: bool) -> jax.Array | None:
        """Asymptotic covariance (p, p) of the flat estimate from a noisy sum of statistics; None where it has none.

        Parameters
        ----------
        params : mapping of str to array
            Of the family.
        noise : array ()
            Variance of the noise in each statistic's sum; 0 for what is usual where nothing is private.
        count : array ()
            Number of records.
        clamped : bool
            Whether the estimate is that of `solve_clamped`, or of `solve`.
        """
        return None

    @abc.abstractmethod
    def nearest(self, params: Mapping[str, Any]) -> Params:
        """The nearest parameters that are allowed.

        Parameters
        ----------
        params : mapping of str to array
            Of the family's form, with any finite values.
        """

    def free(self, params: Mapping[str, Any]) -> jax.Array:
        """Parameters as a vector in which any step is allowed: `params` takes each to parameters of the family.

        Parameters
        ----------
        params : mapping of str to array
            Of the family.
        """
        return ravel_pytree(dict(params))[0]

    def params(self, free: jax.Array, like: Any = None) -> Params:
        """Inverse of `free`; here the nearest parameters that are allowed, which may be at an edge.

        Parameters
        ----------
        free : array (q,)
            The vector.
        like : mapping of str to array, optional
            Parameters of the same form.
        """
        return self.nearest(ravel_pytree(like)[1](free))

    @abc.abstractmethod
    def total(self, key: Any, params: Mapping[str, Any], count: Any) -> jax.Array:
        """Sum of the statistics of records that are drawn, and clamped.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        params : mapping of str to array
            Of the family.
        count : array ()
            Number of records.
        """

    @abc.abstractmethod
    def checked(self, data: Any) -> np.ndarray:
        """Records as an array (n, *event), or ValueError."""

    def simulate(self, key: Any, params: Mapping[str, Any], count: int) -> jax.Array:
        """Records (count, *event), before they are clamped.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        params : mapping of str to array
            Of the family.
        count : int
            Number of records.
        """
        return self.distribution(params).sample(key, (count,))


MASSES = 12  # that stand for a record between the bounds in sums of several statistics: 23 moments
FEW = 64  # records between the bounds that are drawn themselves
STEPS = 30  # of Newton's method at most, each at most a unit of a logarithm
SETTLED = 1e-6  # the last of them, of a parameter's range; Newton's method squares what is left
EDGE = 1e-6  # of a range: a parameter that is nearer to its end was brought there


@pytree
@dataclasses.dataclass(frozen=True)
class Range:
    """Where a parameter is looked for.

    Parameters
    ----------
    lower, upper : array_like
        Ends, in the parameter's unit.
    positive : bool
        Whether steps are taken in its logarithm.
    """

    lower: Any
    upper: Any
    positive: bool = static(default=False)


class OnTheLine(Family):
    """A family of numbers whose clamped law has a rule of nodes; fields ``lower`` and ``upper``."""

    lower: Any
    upper: Any
    natural: ClassVar[tuple[float, float]] = (-np.inf, np.inf)
    """Interval in which records are, whatever the parameters; bounds are inside it."""

    coordinate: ClassVar[tuple[Callable[[Any], Any], Callable[[Any], Any]] | None] = None
    """In which all statistics are smooth, so that few masses have their moments; and its inverse. None: the record."""

    def __post_init__(self) -> None:
        low, high = self.natural
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
    def width(self) -> Any:
        """Distance of the bounds."""
        return self.upper - self.lower

    def clamp(self, x: Any) -> jax.Array:
        """Records between the bounds.

        Parameters
        ----------
        x : array
            Records.
        """
        x = jnp.asarray(x)
        return jnp.clip(x.astype(jnp.result_type(x, float)), self.lower, self.upper)

    def statistics(self, x: Any) -> jax.Array:
        """See `Family.statistics`: here the clamped record itself."""
        return self.clamp(x)

    def sensitivity(self, order: int) -> float:
        """See `Family.sensitivity`: here the distance of the bounds."""
        return self.width

    @abc.abstractmethod
    def law(self, params: Mapping[str, Any]) -> PointMasses:
        """Law of a clamped record: a rule for its density, and what the bounds get.

        Parameters
        ----------
        params : mapping of str to array
            Of the family.
        """

    def moments(self, params: Mapping[str, Any]) -> tuple[jax.Array, jax.Array]:
        """Expectation (k,) and covariance (k, k) of the statistics of a clamped record.

        Parameters
        ----------
        params : mapping of str to array
            Of the family.
        """
        law = self.law(params)
        values = self.statistics(law.nodes).reshape(len(law.nodes), -1)
        center = law.expectation(values)
        away = values - center
        return center, (law.weights * away.T) @ away

    def total(self, key: Any, params: Mapping[str, Any], count: Any) -> jax.Array:
        """See `Family.total`: a single statistic from the table of its law, several from counts of point masses."""
        law = self.law(params)
        if self.columns is None:
            return sum_of_draws(key, law, count, self.step)
        keys, masses = jax.random.split(key), self.masses(law)
        counts, values = masses.counts(keys[0], count), self.statistics(masses.nodes)
        inside = jnp.sum(counts[:-2])
        few = inside <= FEW
        there, back = self.coordinate or (lambda x: x, lambda x: x)
        smooth = PointMasses(there(law.nodes), law.weights)
        one_by_one = sum_inside(keys[1], smooth, jnp.where(few, inside, 0), lambda at: self.statistics(back(at)))
        return counts[-2:] @ values[-2:] + jnp.where(few, one_by_one, counts[:-2] @ values[:-2])

    def masses(self, law: PointMasses) -> PointMasses:
        """Few masses that stand for a clamped record in sums of several statistics; last those at the bounds.

        Parameters
        ----------
        law : PointMasses
            Of the record.
        """
        there, back = self.coordinate or (lambda x: x, lambda x: x)
        inside = jnp.sum(law.weights[:-2])
        weights = law.weights[:-2] / jnp.where(inside > 0, inside, 1.0)
        few = PointMasses(there(law.nodes[:-2]), weights).compressed(MASSES)
        return PointMasses(
            jnp.append(back(few.nodes), law.nodes[-2:]), jnp.append(inside * few.weights, law.weights[-2:])
        )

    def checked(self, data: Any) -> np.ndarray:
        """See `Family.checked`."""
        x = np.asarray(data)
        if x.ndim != 1 or not x.size or x.dtype.kind not in "iufb":
            raise ValueError(
                f"{type(self).__name__} takes an array of numbers (n,), got shape {x.shape} of {x.dtype} (drop or "
                "impute missing records first)"
            )
        low, high = self.natural
        bad = ~np.isfinite(x) | (x < low) | (x > high) | (self.step is not None and x != np.round(x))
        if bad.any():
            what = "whole numbers" if self.step is not None else "finite numbers"
            raise ValueError(
                f"records must be {what} from {low:g} to {high:g}; {bad.sum()} are not, the first "
                f"({x[bad][0]!r}) at {np.argmax(bad)}"
            )
        return x.astype(float)

    @property
    @abc.abstractmethod
    def ranges(self) -> dict[str, Range]:
        """Where each parameter, a number, is looked for; by NumPyro's names."""

    @abc.abstractmethod
    def mean(self, params: Mapping[str, Any]) -> jax.Array:
        """Expectation of the statistics of a record that is not clamped, in closed form."""

    def nearest(self, params: Mapping[str, Any]) -> Params:
        """See `Family.nearest`: in the ranges."""
        return {name: jnp.clip(params[name], there.lower, there.upper) for name, there in self.ranges.items()}

    def free(self, params: Mapping[str, Any]) -> jax.Array:
        """See `Family.free`: logarithms of positive parameters."""
        parts = {name: jnp.asarray(params[name], float) for name in self.ranges}
        return ravel_pytree(
            {name: jnp.log(part) if self.ranges[name].positive else part for name, part in parts.items()}
        )[0]

    def params(self, free: jax.Array, like: Any = None) -> Params:
        """See `Family.params`."""
        names = sorted(self.ranges)
        parts = dict(zip(names, free, strict=True))
        return {name: jnp.exp(part) if self.ranges[name].positive else part for name, part in parts.items()}

    def solve(self, mean: jax.Array) -> tuple[Params, jax.Array]:
        """See `Family.solve`: where records that are not clamped have this expectation; most families have formulas."""
        return self._matched(self.mean, mean, {name: jnp.ones(()) for name in self.ranges})

    def solve_clamped(self, mean: jax.Array) -> tuple[Params, jax.Array]:
        """See `Family.solve_clamped`; the search starts from `solve`."""
        return self._matched(lambda params: self.moments(params)[0], mean, self.solve(mean)[0])

    def _matched(self, expectation: Any, mean: jax.Array, start: Mapping[str, Any]) -> tuple[Params, jax.Array]:
        """Parameters with an expectation, by Newton steps inside the ranges; and whether there are none in them."""
        names, ranges = sorted(self.ranges), self.ranges
        ends = [[getattr(ranges[name], end) for name in names] for end in ("lower", "upper")]
        low, high = (self.free(dict(zip(names, end, strict=True))) for end in ends)
        target = jnp.atleast_1d(mean)

        def gap(free: jax.Array) -> tuple[jax.Array, jax.Array]:
            away = jnp.atleast_1d(expectation(self.params(free))) - target
            return away, away

        def step(state: tuple) -> tuple:
            free, _, number = state
            slope, away = jax.jacfwd(gap, has_aux=True)(free)
            most = jnp.where(jnp.array([ranges[name].positive for name in names]), 1.0, (high - low) / 8)
            ahead = jnp.clip(free - jnp.clip(_solved(slope, away), -most, most), low, high)
            return ahead, jnp.max(jnp.abs(ahead - free) / (high - low)), number + 1

        def unfinished(state: tuple) -> jax.Array:
            _, moved, number = state
            return (moved > SETTLED) & (number < STEPS)

        start_at = jnp.clip(self.free(start), low, high)
        free, _, _ = jax.lax.while_loop(unfinished, step, (start_at, jnp.ones(()), 0))
        edge = EDGE * (high - low)
        at_edge = jnp.any((free <= low + edge) | (free >= high - edge))
        left = jnp.max(jnp.abs(gap(free)[0]) / (1 + jnp.abs(target)))
        return self.params(free), at_edge | (left > SETTLED)

    def covariance(self, params: Mapping[str, Any], noise: Any, count: Any, *, clamped: bool) -> jax.Array:
        """See `Family.covariance`: J⁻¹ (V/n + noise/n²) J⁻ᵀ, V the covariance of a clamped record's statistics.

        J is the derivative of the expectation that the estimate inverts. Where nothing is clamped and there is no noise
        that is the inverse of the Fisher information.
        """
        flat, unravel = ravel_pytree({name: jnp.asarray(params[name], float) for name in self.ranges})
        of_clamped = lambda theta: self.moments(unravel(theta))[0]  # noqa: E731
        slope = jax.jacfwd(of_clamped if clamped else lambda theta: jnp.atleast_1d(self.mean(unravel(theta))))(flat)
        spread = self.moments(params)[1] / count + noise / count**2 * jnp.eye(len(flat))
        return _solved(slope, _solved(slope, spread).T)


def _solved(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """matrix⁻¹ right; of small matrices by Cramer's rule, which is fast for many at a time, as no library is."""
    if len(matrix) == 1:
        return right / _away(matrix[0, 0])
    if len(matrix) == 2:
        (a, b), (c, d) = matrix
        return jnp.stack([d * right[0] - b * right[1], a * right[1] - c * right[0]]) / _away(a * d - b * c)
    return jnp.linalg.solve(matrix, right)


def _away(determinant: jax.Array) -> jax.Array:
    """The same, away from 0."""
    return jnp.where(jnp.abs(determinant) > 1e-200, determinant, 1e-200)


def rule_between(
    low: Any, middle: Any, high: Any, lower: Any, upper: Any, density: Any, back: Any = None
) -> PointMasses:
    """Law of a clamped variable: Gauss-Legendre nodes between the bounds, and on them the mass of what is beyond.

    Parameters
    ----------
    low, middle, high : array ()
        Between the first and the last the variable has all of its density, to rounding; in a coordinate in which that
        is smooth. Panels meet in the middle, near the mode, since nodes are closest together where they meet.
    lower, upper : array ()
        Bounds, in the same coordinate.
    density : callable
        Of the coordinate, vectorised.
    back : callable, optional
        From the coordinate to the variable.
    """
    lower, upper = jnp.asarray(lower, float), jnp.asarray(upper, float)
    cuts = jnp.stack([jnp.asarray(cut, float) for cut in (low, middle, high)])
    nodes, weights = _rule(jnp.clip(cuts, lower, upper))
    masses = [w @ density(at) for at, w in (_rule(jnp.minimum(cuts, lower)), _rule(jnp.maximum(cuts, upper)))]
    weights = jnp.concatenate([weights * density(nodes), jnp.stack(masses)])
    nodes = jnp.concatenate([nodes, jnp.stack([lower, upper])])
    return PointMasses(nodes if back is None else back(nodes), weights / jnp.sum(weights))


def _rule(cuts: jax.Array) -> tuple[jax.Array, jax.Array]:
    t, w = gauss_legendre(ORDER)
    half = jnp.diff(cuts)[:, None] / 2
    return (cuts[:-1, None] + half * (1 + t)).ravel(), (half * w).ravel()
