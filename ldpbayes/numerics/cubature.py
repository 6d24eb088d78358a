"""Integrals of densities of one to three variables on adaptive cells, and draws from them. Coordinates are such that
the mode of most mass is at 0, with curvature 1. Cells are boxes, wider outwards, on each of which a polynomial stands
for the log density: of many records it is nearly quadratic, so few nodes are enough.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.polynomial import legendre
from scipy.spatial import KDTree

# By number of variables: nodes of a cell on an axis, at which the density is evaluated, and at which its polynomial is;
# and the error of a cell's mass, as a share of the integral, above which the cell is divided.
CELL_NODES, DENSE_NODES = {1: 9, 2: 7, 3: 5}, {1: 20, 2: 16, 3: 12}
MASS_TOLERANCE = {1: 1e-7, 2: 3e-6, 3: 1e-5}
COARSE_FACTOR = 30.0  # tolerances that are enough for one of many posteriors, or a density that stands for another one
NEGLIGIBLE_MASS = 0.1  # mass beyond a face that is not looked at, in tolerances
INNER_HALF, WIDENING = 2.0, 2.8  # half width of the innermost cell, in standard deviations, and ratio of further ends
RINGS = 28  # cells on each side of the innermost one: to 7e12 standard deviations
TESTS = 3  # places of a cell, where its mass is, at which the polynomial is compared with the density
CORNER_SHARE = 0.04  # share of a cell that another place stands for: its outermost nodes leave as much at the ends
DRAWS_PER_CALL = 1 << 12  # whose series, in three variables, have 2000 numbers each
INVERSION_STEPS = 45  # steps of inverting a cumulative distribution function
SEARCHES, SEARCH_ROUNDS, SEARCH_STEPS = 8, 6, 60  # searches for modes at once, how often, and their steps at most
LESSER_MODE_NATS = 25.0  # nats: difference of the masses of two modes
MAX_CONDITION = 1e13  # of the root of the inverse curvature at a mode
IMPROPER_REACH = 1e3  # spreads of the prior beyond which a density that does not fall is improper
MAX_GROWTH = 1e8  # spreads of the prior that are a standard deviation at most, if the density is flat
MAX_DIFFERENCE = 1e9  # nats, beyond which differences over a standard deviation are none
LOPSIDED_SHARE = 0.4  # share of a cell's width that has mass, on an axis
MAX_NATS = 50.0  # above the highest mode, where a polynomial is certainly wrong

# From points (m, n) to log densities (m,): −inf where the density is 0, NaN where it is undefined.
LogDensity: TypeAlias = Callable[[np.ndarray], np.ndarray]


class NotIntegrable(ValueError):
    """Cells do not resolve the density; the message says why."""


class ImproperDensity(ValueError):
    """The integral of the density is infinite."""


class _Rule(NamedTuple):
    """Nodes and matrices for cells from −1 to 1 in n variables."""

    nodes: np.ndarray  # (CELL_NODES^n, n): Gauss-Legendre nodes
    dense: np.ndarray  # (DENSE_NODES^n, n)
    weights: np.ndarray  # (DENSE_NODES^n,), of sum 1
    analysis: np.ndarray  # from values at the nodes of an axis to Legendre coefficients
    synthesis: np.ndarray  # from these to values at the dense nodes of an axis
    dense_analysis: np.ndarray  # from values at these to their Legendre coefficients
    lateral: np.ndarray  # (CELL_NODES^(n−1),): weights of the nodes of a face, of sum 1
    last: np.ndarray  # (2,): the last two nodes on an axis
    ends: np.ndarray  # (m, n): centres of faces, and corners


@functools.cache
def _rule(n: int) -> _Rule:
    (x, w), (y, v) = legendre.leggauss(CELL_NODES[n]), legendre.leggauss(DENSE_NODES[n])

    def analysis(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return (legendre.legvander(x, len(x) - 1) * w[:, None] * (np.arange(len(x)) + 0.5)).T

    def product(w: np.ndarray, n: int) -> np.ndarray:
        return functools.reduce(np.multiply.outer, [w / 2] * n, np.array(1.0)).ravel()

    signs, synthesis = _grid(np.array([-1.0, 0.0, 1.0]), n), legendre.legvander(y, CELL_NODES[n] - 1)
    ends = signs[np.isin(np.count_nonzero(signs, axis=1), (1, n))]
    matrices = analysis(x, w), synthesis, analysis(y, v)
    return _Rule(_grid(x, n), _grid(y, n), product(v, n), *matrices, product(w, n - 1), x[-2:], ends)


def _grid(x: np.ndarray, n: int) -> np.ndarray:
    return np.stack([axis.ravel() for axis in np.meshgrid(*[x] * n, indexing="ij")], axis=-1)


def _along_axes(matrix: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Tensors (m, k, ..., k) multiplied by a matrix (j, k) on each axis but the first."""
    for _ in range(values.ndim - 1):  # each axis in turn becomes the last one
        values = np.tensordot(values, matrix, (1, 1))
    return values


@dataclass(frozen=True)
class Cells:
    """A density in n variables as polynomials on cells, and its integral."""

    log_integral: float
    error: float  # estimated total variation between the density and the one that `draws` are from
    evaluations: int  # how often the density was evaluated
    height: float  # log density to which that of cells is relative
    centre: np.ndarray  # (n,)
    root: np.ndarray  # (n, n): the variables are centre + root @ coordinates
    low: np.ndarray  # (cells, n), in these coordinates
    high: np.ndarray
    logs: np.ndarray  # (cells, k, ..., k): Legendre coefficients of the log density
    masses: np.ndarray  # (cells,), of sum 1

    def _points(self, cell: Any, places: np.ndarray) -> np.ndarray:
        """Points (..., n) at places from −1 to 1 in cells."""
        low, high = self.low[cell], self.high[cell]
        return self.centre + (0.5 * (low + high) + 0.5 * (high - low) * places) @ self.root.T

    @functools.cached_property
    def _series(self) -> np.ndarray:
        """Legendre coefficients of the density, relative to its largest value at the dense nodes of each cell."""
        rule = _rule(len(self.centre))
        logs = _along_axes(rule.synthesis, self.logs)
        density = np.exp(logs - logs.max(axis=tuple(range(1, logs.ndim)), keepdims=True))
        return _along_axes(rule.dense_analysis, density)

    def draws(self, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws (m, n), and log densities (m,), by numbers (m, 1 + n) in [0, 1) for a cell and a place on each axis."""
        blocks = np.split(uniforms, range(DRAWS_PER_CALL, len(uniforms), DRAWS_PER_CALL))
        points, logs = zip(*map(self._draws, blocks), strict=True)
        return np.concatenate(points), np.concatenate(logs)

    def _draws(self, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n, ends = len(self.centre), np.cumsum(self.masses)
        cell = np.searchsorted(ends / ends[-1], uniforms[:, 0], side="right").clip(0, len(ends) - 1)
        series, logs, places = self._series[cell], self.logs[cell], np.empty((len(cell), n))
        for axis in range(n):
            # Integrals over the later axes: those of Legendre polynomials of positive degree are 0.
            places[:, axis] = _inverted(series.reshape(*series.shape[:2], -1)[..., 0], uniforms[:, 1 + axis])
            basis = legendre.legvander(places[:, axis], series.shape[1] - 1)
            series, logs = _at(series, basis), _at(logs, basis)
        return self._points(cell, places), self.height + logs


def _at(series: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Legendre series (m, k, ...) on the first of their axes, at places with such polynomials (m, k or more)."""
    return np.einsum("mk,mk...->m...", basis[:, : series.shape[1]], series)


def _inverted(series: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Places from −1 to 1 up to which the integrals of Legendre series (m, k) are shares (m,) of the whole."""
    integral = legendre.legint(series, lbnd=-1, axis=1).T
    target = shares * 2 * series[:, 0]
    low, high = np.full(len(series), -1.0), np.ones(len(series))
    for _ in range(INVERSION_STEPS):
        middle = 0.5 * (low + high)
        below = legendre.legval(middle, integral, tensor=False) < target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)


def integrate(
    log_density: LogDensity,
    points: np.ndarray,
    scale: np.ndarray,
    reach: np.ndarray,
    limit: int,
    rings: int = RINGS,
    coarse: bool = False,
) -> Cells:
    """Integrate a density on `rings` of cells around its main mode. Modes are sought from the best of some points (m,
    n), by steps of the size `scale` (n,). Farther from the first point than `reach` (n,), a density above all modes is
    nonsense. `NotIntegrable` after `limit` evaluations, `ImproperDensity` if the mass has no end.
    """
    with np.errstate(all="ignore"):  # densities may be 0, and undefined where they are not evaluated
        cubature = _Cubature(log_density, points[0], reach, limit, rings)
        return cubature.cells(points, scale, MASS_TOLERANCE[len(scale)] * (COARSE_FACTOR if coarse else 1.0))


class _LocalMode(NamedTuple):
    height: float  # log density
    at: np.ndarray  # (n,)
    root: np.ndarray  # (n, n): of the inverse curvature


class _Cubature:
    """The work of `integrate`: log densities are relative to the highest mode, coordinates to the main one."""

    def __init__(self, log_density: LogDensity, first: np.ndarray, reach: np.ndarray, limit: int, rings: int) -> None:
        self._first, self._reach = first, reach
        self._log_density, self._limit, self._rings, self._evaluations = log_density, limit, rings, 0
        self._seen: list[tuple[np.ndarray, np.ndarray]] = []  # points outside of cells, and log densities there

    def _at(self, points: np.ndarray, undefined: float = -np.inf) -> np.ndarray:
        """Log densities (...) at points (..., n), −inf also where they are infinite."""
        self._evaluations += points[..., 0].size
        if self._evaluations > self._limit:
            raise NotIntegrable(f"more than {self._limit:,} evaluations of the density are necessary")
        flat = points.reshape(-1, points.shape[-1])
        values = self._log_density(flat)
        values = np.where(np.isnan(values), undefined, np.where(values == np.inf, -np.inf, values))
        if np.isneginf(undefined):
            self._seen.append((flat, values))
        return values.reshape(points.shape[:-1])

    def _heights(self, coordinates: np.ndarray, undefined: float = -np.inf) -> np.ndarray:
        return self._at(self._centre + coordinates @ self._root.T, undefined) - self._top

    def _within(self, points: np.ndarray) -> np.ndarray:
        return np.all(np.abs(points - self._first) <= self._reach, axis=-1)

    def _coordinates(self, points: np.ndarray) -> np.ndarray:
        return np.linalg.solve(self._root, (points - self._centre).T).T

    def cells(self, points: np.ndarray, scale: np.ndarray, tolerance: float) -> Cells:
        n, values = len(scale), self._at(points)
        if not np.isfinite(values).any():
            raise NotIntegrable(f"the density is zero or undefined at all {len(points)} starting points")
        modes = self._modes(points, values, scale)
        _, self._centre, self._root = modes[0]
        self._top = max(mode.height for mode in modes)
        self._tolerance = tolerance
        # Rays along the axes of the cells, their diagonals, and the axes of the variables.
        axes = np.linalg.solve(self._root, np.diag(np.linalg.norm(self._root, axis=1))).T
        rays = np.concatenate([_rule(n).ends, axes[:-1], -axes[:-1]])
        distances = INNER_HALF * WIDENING ** np.arange(0.25, self._rings, 0.5)  # two in each ring
        outwards = rays[:, None] * distances[:, None]
        heights = self._heights(outwards, undefined=np.nan)
        if self._rings == RINGS:
            ends = np.linalg.norm(outwards[:, -1] @ self._root.T / scale, axis=1)
            self._check_proper(heights + np.log(distances), ends)
        self._seen.append((self._centre + outwards.reshape(-1, n) @ self._root.T, heights.ravel() + self._top))
        places, heights = self._places()
        rings = _rings(places)
        low, high = _bounds(rings)
        seeds = heights + np.log(high - low).sum(axis=1) > np.log(NEGLIGIBLE_MASS * self._tolerance)
        return self._adapted(np.unique(rings[seeds], axis=0))

    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """Places outside of cells that were seen and may matter, and heights there."""
        points, values = (np.concatenate(part) for part in zip(*self._seen, strict=True))
        places, heights = self._coordinates(points), np.where(np.isnan(values), -np.inf, values - self._top)
        heights[(heights > 1) & ~self._within(points)] = -np.inf
        rings = np.abs(_rings(places))
        low, high = _bounds(rings)
        mass, far = heights + np.log(high - low).sum(axis=1), rings.max(axis=1)
        kept = (far <= 1) | ((mass > np.log(NEGLIGIBLE_MASS * self._tolerance)) & (far <= self._rings))
        return places[kept], heights[kept]

    def _check_proper(self, masses: np.ndarray, ends: np.ndarray) -> None:
        """Raise unless log masses (rays, distances) of cells, ending so many spreads away, become negligible."""
        for ray, end in zip(masses, ends, strict=True):
            defined = np.argmax(np.isnan(ray)) if np.isnan(ray).any() else len(ray)
            ray = ray[:defined]
            if defined and ray[-1] > np.log(NEGLIGIBLE_MASS * self._tolerance):
                if defined > 4 and ray[-1] >= ray[-5] - 1e-6 and end > IMPROPER_REACH:
                    raise ImproperDensity("its mass grows outwards without end")
                if defined == masses.shape[1]:
                    raise NotIntegrable("a tail of the density is too heavy")

    # --- modes --------------------------------------------------------------------------------------------------------

    def _modes(self, points: np.ndarray, values: np.ndarray, scale: np.ndarray) -> list[_LocalMode]:
        """Distinct modes, that of most mass first."""
        starts, modes = points[_peaks(points / scale, values)][: SEARCHES * SEARCH_ROUNDS], list[_LocalMode]()
        for first in range(0, len(starts), SEARCHES):
            part = starts[first : first + SEARCHES]
            at, root, height = self._climb(part.copy(), self._at(part).copy(), scale)
            earlier, hits = len(modes), np.zeros(len(modes) + len(part))
            for i in np.flatnonzero(np.linalg.cond(root) < MAX_CONDITION):
                apart = [np.linalg.norm(np.linalg.solve(mode.root, at[i] - mode.at)) for mode in modes]
                number = int(np.argmin(apart)) if apart and min(apart) < 1 else len(modes)
                if number == len(modes):
                    # Of all roots the triangular one: axes along which nothing is correlated stay.
                    modes.append(_LocalMode(height[i], at[i], np.transpose(np.linalg.qr(root[i].T, mode="r"))))
                hits[number] += 1
            # Further searches are for what one search in this round has found alone.
            if modes and (hits[earlier : len(modes)] > 1).all():
                break
        if not modes:
            raise NotIntegrable(f"none of {len(starts)} searches found a mode")
        modes = [mode for mode in modes if self._within(mode.at)] or modes
        mass = [mode.height + np.linalg.slogdet(mode.root)[1] for mode in modes]
        return [modes[i] for i in np.argsort(mass)[::-1] if mass[i] > max(mass) - LESSER_MODE_NATS]

    def _climb(self, x: np.ndarray, value: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ends (k, n) of searches uphill by Newton steps, roots (k, n, n) of inverse curvatures, log densities (k,)."""
        k, n = x.shape
        first, second = np.triu_indices(n, 1)
        moves = np.concatenate([np.eye(n), np.eye(n)[first] + np.eye(n)[second]])
        design, count = np.concatenate([moves, -moves]), len(moves)
        root, active, settled = np.tile(np.diag(scale), (k, 1, 1)), np.arange(k), np.zeros(k, int)
        for _ in range(SEARCH_STEPS):
            rows = np.arange(len(active))
            around = x[active, None] + design @ np.swapaxes(root[active], 1, 2)
            exact, f = self._at(around), value[active, None]
            # Beyond an edge the density is taken to be as on the other side, or else the next step is a quarter.
            mirrored = np.roll(exact, count, axis=1)
            near = [np.abs(values - f) < MAX_DIFFERENCE for values in (exact, mirrored)]
            v = np.select(near, [exact, mirrored], f - 8.0)
            slope, bends = 0.5 * (v[:, :n] - v[:, count : count + n]), v[:, :count] + v[:, count:] - 2 * f
            mixed, curve = 0.5 * (bends[:, n:] - bends[:, first] - bends[:, second]), np.empty((len(active), n, n))
            curve[:, range(n), range(n)] = bends[:, :n]
            curve[:, first, second] = curve[:, second, first] = mixed
            bend, axes = np.linalg.eigh(curve)
            lost = np.abs(bend) < 1e-10 * np.abs(bend).max(axis=1, keepdims=True)  # to rounding
            bend = np.where(lost, -1.0, bend)
            uphill = np.einsum("kij,ki->kj", axes, slope)
            step = np.where(bend < -0.05, -uphill / np.minimum(bend, -0.05), 3 * np.sign(uphill))
            step /= np.maximum(1, np.linalg.norm(step, axis=1, keepdims=True) / 4)
            turned = root[active] @ axes
            step = np.einsum("kij,kj->ki", turned, step)
            trials = x[active, None] + np.array([[0.1], [0.4], [1.0], [3.0]]) * step[:, None]
            candidates = np.concatenate([trials, around], axis=1)
            heights = np.concatenate([self._at(trials), exact], axis=1)
            best = np.argmax(heights, axis=1)
            gain = heights[rows, best] - value[active]
            better = gain > 0
            x[active[better]] = candidates[rows, best][better]
            value[active[better]] = heights[rows, best][better]
            grown = np.linalg.norm(turned / scale[:, None], axis=1) > MAX_GROWTH
            bend = np.where(grown, -1.0, bend)
            root[active] = turned * np.clip(1 / np.sqrt(np.maximum(-bend, 1e-4)), 0.125, 4)[:, None]
            calm = (np.abs(bend + 1) < 0.3).all(axis=1) & (gain < 0.03)
            settled[active] = np.where(calm, settled[active] + 1, 0)
            active = active[settled[active] < 2]
            if not len(active):
                break
        return x, root, value

    # --- cells --------------------------------------------------------------------------------------------------------

    def _adapted(self, rings: np.ndarray) -> Cells:
        """These cells, divided where necessary, and their neighbours with mass; they agree with all places seen."""
        n, rng, rings = len(self._centre), np.random.default_rng(0), rings.astype(int)
        visited, (low, high) = set[tuple[int, ...]](), _bounds(rings)
        finished, outside, total = list[_Batch](), dict[tuple[int, ...], float](), 1e-300  # the mass that is known
        while len(low):
            while len(low):
                visited |= set(map(tuple, rings.tolist()))
                batch = self._evaluated(low, high, rings)
                total = max(total, sum(part.mass[~part.rough].sum() for part in (*finished, batch)))
                enough = self._tolerance * total
                divide = batch.mass * batch.error > enough
                self._test(batch, np.flatnonzero(~divide & ~batch.rough & (batch.mass > enough)), rng)
                divide |= batch.mass * batch.error > enough
                reach = np.subtract(*_bounds(rings)[::-1]).prod(axis=1)
                if (batch.undefined & ~divide & (np.exp(batch.values.max(axis=1)) * reach > enough)).any():
                    raise NotIntegrable("the density is undefined (NaN) beside places where it is not negligible")
                finished.append(batch.part(~divide))
                for ring, beyond in self._beyond(finished[-1]):
                    outside[ring] = outside.get(ring, 0.0) + beyond
                fresh = [ring for ring in outside if outside[ring] > NEGLIGIBLE_MASS * enough and ring not in visited]
                # On the worst axis, and on all on which the polynomial is not exact enough.
                worst = batch.axis_errors == batch.axis_errors.max(axis=1, keepdims=True)
                cut = worst | (~batch.rough[:, None] & (batch.mass[:, None] * batch.axis_errors > enough))
                low, high, rings = _halves(batch.part(divide), cut[divide])
                rings = np.concatenate([rings, np.array(fresh, int).reshape(-1, n)])
                low, high = map(np.concatenate, zip((low, high), _bounds(rings[len(low) :]), strict=True))
            batch = _Batch(*map(np.concatenate, zip(*finished, strict=True)))
            off = CORNER_SHARE * batch.off(*self._places()) > enough
            finished, part = [batch.part(~off)], batch.part(off)
            low, high, rings = _halves(part, np.ones_like(part.low, bool))
        kept = batch.part(~batch.rough & (batch.mass > 0))
        integral = kept.mass.sum()
        if not integral > 0:
            raise NotIntegrable("no cell has mass")
        missing = batch.mass[batch.rough].sum() + sum(mass for ring, mass in outside.items() if ring not in visited)
        wrong = float((0.5 * (kept.mass @ kept.error) + missing) / integral)
        log_integral = float(self._top + math.log(integral) + np.linalg.slogdet(self._root)[1])
        frame, masses = (float(self._top), self._centre, self._root), kept.mass / integral
        return Cells(log_integral, wrong, self._evaluations, *frame, kept.low, kept.high, kept.logs, masses)

    def _evaluated(self, low: np.ndarray, high: np.ndarray, rings: np.ndarray) -> "_Batch":
        n = low.shape[1]
        rule, shape = _rule(n), (-1, *[CELL_NODES[n]] * n)
        middle, half = 0.5 * (low + high)[:, None], 0.5 * (high - low)[:, None]
        values = self._heights(middle + half * rule.nodes, undefined=np.nan)  # kept in the cells
        whole, undefined = np.isfinite(values).all(axis=1), np.isnan(values).any(axis=1)
        values = np.where(np.isnan(values), -np.inf, values)
        logs = _along_axes(rule.analysis, np.where(whole[:, None], values, 0.0).reshape(shape))
        dense = _along_axes(rule.synthesis, logs).reshape(len(low), -1)
        error, volume, top = _lacking(logs), np.prod(high - low, axis=1), dense.max(axis=1)
        peak = values.max(axis=1)
        rough = ~whole | (error.sum(axis=1) > 1) | (np.abs(top - peak) > 3)  # the dense nodes may miss a ridge, too
        # The mass of a rough cell may be between its nodes, where the polynomial sees it as far as it is exact.
        summit = np.maximum(peak, np.where(whole, top - error.sum(axis=1), -np.inf))
        density = np.exp(np.minimum(dense - top[:, None], 0.0)) * rule.weights
        filled = density.sum(axis=1)
        mass = volume * np.exp(np.minimum(np.where(rough, summit, top), MAX_NATS)) * np.where(rough, 1.0, filled)
        # A density that is steep on a cell is not resolved by its dense nodes.
        steep = _lacking(_along_axes(rule.dense_analysis, (density / rule.weights).reshape(-1, *[DENSE_NODES[n]] * n)))
        # A rough cell is first cut where its mass is at one end.
        profiles = _by_axis(np.exp(values - peak[:, None]).reshape(shape))
        filling = np.stack([profile.max(axis=-1).mean(axis=1) for profile in profiles], axis=1)
        lopsided = rough & (filling.min(axis=1) < LOPSIDED_SHARE)
        error = np.where(whole[:, None], error, half[:, 0] / half.sum())
        error = np.where(lopsided[:, None], 1 - filling, error + np.where(rough, 0.0, 1 / filled)[:, None] * steep)
        total = np.where(rough, 1.0, np.minimum(error.sum(axis=1), 1.0))
        return _Batch(low, high, rings, values, undefined, rough, logs, dense, density, mass, total, error)

    def _test(self, batch: "_Batch", tested: np.ndarray, rng: np.random.Generator) -> None:
        """Raise errors of cells where polynomials are off, at places where mass is and at their ends."""
        if not len(tested):
            return
        n, shares = batch.low.shape[1], np.cumsum(batch.density[tested], axis=1)
        levels = rng.random((len(tested), TESTS, 1)) * shares[:, None, -1:]
        pick = np.sum(shares[:, None] < levels, axis=-1).clip(0, shares.shape[1] - 1)
        ends = _rule(n).ends
        places = np.concatenate([_rule(n).dense[pick], np.tile(ends, (len(tested), 1, 1))], axis=1)
        low, high = batch.low[tested][:, None], batch.high[tested][:, None]
        exact = self._heights(0.5 * (low + high) + 0.5 * (high - low) * places)
        values = np.stack([_values(batch.logs[tested], np.tile(end, (len(tested), 1))) for end in ends], axis=1)
        off = np.abs(np.expm1(np.minimum(exact[:, :TESTS] - np.take_along_axis(batch.dense[tested], pick, 1), 1.0)))
        jumps = np.abs(np.exp(np.minimum(exact[:, TESTS:], MAX_NATS)) - np.exp(np.minimum(values, MAX_NATS)))
        jumps *= CORNER_SHARE * np.prod(high - low, axis=-1) / batch.mass[tested][:, None]
        batch.error[tested] = np.maximum(batch.error[tested], np.concatenate([off, jumps], axis=1).max(axis=1))

    def _beyond(self, batch: "_Batch") -> Iterator[tuple[tuple[int, ...], float]]:
        """Numbers of neighbours of cells, and the mass there, if the density falls as it does at the cell's face."""
        n, rings = batch.low.shape[1], batch.rings
        rule, grids = _rule(n), _by_axis(batch.values.reshape(len(rings), *[CELL_NODES[n]] * n))
        bounds, half, (before, last) = _bounds(rings), 0.5 * (batch.high - batch.low), rule.last
        for axis, side in itertools.product(range(n), (-1, 1)):
            of_cell, of_ring = ((batch.low, bounds[0]), (batch.high, bounds[1]))[side > 0]
            neighbour, layers = rings + side * np.eye(n, dtype=int)[axis], grids[axis][:, ::side]
            fall = (layers[:, -2] - layers[:, -1]) / ((last - before) * half[:, [axis]])
            fall = np.where(np.isfinite(fall), fall, 0.0)
            face = np.exp(np.minimum(layers[:, -1] - fall * (1 - last) * half[:, [axis]], MAX_NATS))
            low, high = _bounds(neighbour)
            width = (high - low)[:, [axis]]
            reach = np.where(fall * width > 1, 1 / np.maximum(fall, 1e-300), width)
            mass = (face * reach) @ rule.lateral * np.prod(np.delete(2 * half, axis, axis=1), axis=1)
            touches = (of_cell[:, axis] == of_ring[:, axis]) & (np.abs(neighbour[:, axis]) <= self._rings)
            yield from zip(map(tuple, neighbour[touches].tolist()), mass[touches].tolist(), strict=True)


class _Batch(NamedTuple):
    """Evaluated cells; log densities and masses are relative to the highest mode."""

    low: np.ndarray  # (cells, n)
    high: np.ndarray
    rings: np.ndarray  # (cells, n): numbers of the undivided cells that they are in
    values: np.ndarray  # (cells, nodes)
    undefined: np.ndarray  # whether the density is NaN at a node
    rough: np.ndarray  # whether no polynomial stands for the density, whose mass is then a bound
    logs: np.ndarray  # (cells, CELL_NODES, ...): Legendre coefficients
    dense: np.ndarray  # (cells, dense nodes): values of the polynomial
    density: np.ndarray  # (cells, dense nodes): shares of the mass, up to a factor
    mass: np.ndarray
    error: np.ndarray  # (cells,): relative error of the density
    axis_errors: np.ndarray  # (cells, n): as polynomials on each axis alone

    def part(self, chosen: np.ndarray) -> "_Batch":
        return _Batch(*(values[chosen] for values in self))

    def off(self, places: np.ndarray, heights: np.ndarray) -> np.ndarray:
        """Masses (cells,) by which cells, or nothing in the place of rough ones, are off at places that were seen."""
        result = np.zeros(len(self.low))
        cell, place = np.nonzero(np.all((self.low[:, None] <= places) & (places <= self.high[:, None]), axis=-1))
        local = (2 * places[place] - self.low[cell] - self.high[cell]) / (self.high - self.low)[cell]
        density = np.where(self.rough[cell], 0.0, np.exp(np.minimum(_values(self.logs[cell], local), MAX_NATS)))
        off = np.abs(np.exp(np.minimum(heights[place], MAX_NATS)) - density)
        np.maximum.at(result, cell, off * np.prod(self.high - self.low, axis=1)[cell])
        return result


def _halves(cells: _Batch, cut: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ends of cells that are halved on axes (cells, n), and their rings."""
    low, high, rings = cells.low, cells.high, cells.rings
    for axis in range(cut.shape[1]):
        halves = np.flatnonzero(cut[:, axis])
        first_high, second_low = high.copy(), low[halves]
        first_high[halves, axis] = second_low[:, axis] = 0.5 * (low + high)[halves, axis]
        low, high = np.concatenate([low, second_low]), np.concatenate([first_high, high[halves]])
        rings, cut = (np.concatenate([rows, rows[halves]]) for rows in (rings, cut))
    return low, high, rings


def _values(series: np.ndarray, places: np.ndarray) -> np.ndarray:
    for axis in places.T:
        series = _at(series, legendre.legvander(axis, series.shape[1] - 1))
    return series


def _by_axis(tensors: np.ndarray) -> list[np.ndarray]:
    """Tensors (m, k, ...) with one of their axes after the first, and the others as one: (m, k, others)."""
    shape = *tensors.shape[:2], math.prod(tensors.shape[2:])
    return [np.moveaxis(tensors, axis, 1).reshape(shape) for axis in range(1, tensors.ndim)]


def _lacking(series: np.ndarray) -> np.ndarray:
    """Sizes (m, n) of the terms that Legendre series (m, k, ...) lack on each axis, by how their coefficients fall."""
    tails = []
    for coefficients in _by_axis(np.abs(series)):
        sizes = coefficients.sum(axis=-1)
        last, earlier = sizes[:, -2:].max(axis=1), sizes[:, -4:-2].max(axis=1)
        ratio = np.minimum(np.sqrt(last / np.maximum(earlier, 1e-300)), 0.99)
        tails.append(last * ratio / (1 - ratio))
    return np.stack(tails, axis=1)


def _rings(places: np.ndarray) -> np.ndarray:
    """Numbers of the undivided cells that contain places, on each axis: 0 in the middle, to ± `RINGS`."""
    outside = np.maximum(np.abs(places) / INNER_HALF, 1.0)
    return np.sign(places) * np.where(outside > 1, np.minimum(np.ceil(np.log(outside) / math.log(WIDENING)), RINGS), 0)


def _bounds(rings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    outer = INNER_HALF * WIDENING ** np.abs(rings).astype(float)
    inner = np.where(rings == 0, -INNER_HALF, outer / WIDENING)
    return np.where(rings < 0, -outer, inner), np.where(rings < 0, -inner, outer)


def _peaks(points: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Numbers of the points whose values are largest among those of their neighbours, the highest first."""
    finite = np.flatnonzero(np.isfinite(values))
    shrunk = np.arcsinh(points[finite])
    near = KDTree(shrunk).query(shrunk, min(4 * points.shape[1] + 1, len(shrunk)))[1].reshape(len(shrunk), -1)
    chosen = finite[values[finite] >= values[finite][near].max(axis=1)]
    return chosen[np.argsort(-values[chosen])]
