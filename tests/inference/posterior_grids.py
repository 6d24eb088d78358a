"""Posteriors of one to three parameters by brute force: Gauss-Legendre nodes on a box, in NumPy.

The references of `test_integrated_settings.py` come from here, so nothing of JAX, NumPyro or ldpbayes is used.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable

import numpy as np
from scipy import optimize
from scipy.stats import qmc

LEVELS = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
NODES = 8  # Gauss-Legendre nodes a panel
PANELS = {1: 160, 2: 18, 3: 10}  # panels an axis
FINER = {1: 2.0, 2: 1.6, 3: 1.5}  # factor of the second, finer grid
FIRST = 1.5  # factor of the panels on the first axis, where quantiles are sought
COARSE = {1: 801, 2: 61, 3: 25}  # points an axis when the box is searched
CHUNK = 4096  # points at which a density is evaluated at once


@dataclasses.dataclass
class View:
    """A posterior density in coordinates in which some quantities are functions of one coordinate.

    `log_density` takes one array (m,) a coordinate and `fine`, 1 or 2, by which its own quadrature has more nodes. It
    is a density with respect to the coordinates, not normalised: its integral is the evidence. `entries` has for each
    quantity the number of its coordinate, a monotone function of it, and how many moments exist (0, 1 or 2).
    """

    log_density: Callable
    dimension: int
    entries: dict
    start: tuple = (0.0, 0.0, 0.0)  # a point of the posterior's region ...
    scale: tuple = (1.0, 1.0, 1.0)  # ... and its rough size
    sheared: bool = True  # whether the axes follow the curvature at the mode
    depth: float = 40.0  # the box has all points whose log density is at most so far below the mode's
    refine: float = 1.0  # factor of the number of panels
    limits: dict = dataclasses.field(default_factory=dict)  # bounds of coordinates, if the axes are not sheared

    def at(self, points, fine=1):
        """Log density at points (..., dimension), in chunks."""
        flat = np.reshape(points, (-1, self.dimension))
        with np.errstate(all="ignore"):
            parts = [self.log_density(*flat[i : i + CHUNK].T, fine=fine) for i in range(0, len(flat), CHUNK)]
        values = np.concatenate(parts)
        return np.where(np.isnan(values), -np.inf, values).reshape(np.shape(points)[:-1])

    @functools.cached_property
    def mode(self):
        start, scale = np.array(self.start[: self.dimension]), np.array(self.scale[: self.dimension])
        points = start + scale * 3 * (2 * qmc.Sobol(self.dimension, seed=1).random(1024) - 1)
        points = np.concatenate([start[None], points])
        best = points[np.argmax(self.at(points))]
        value = lambda t: -float(self.at(best + scale * t))  # noqa: E731
        found = optimize.minimize(
            value, np.zeros(len(scale)), method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-10}
        )
        return best + scale * found.x

    def axes(self, order):
        """Lower triangular matrix whose columns are the axes of the box, for coordinates in this order."""
        scale = np.array(self.scale[: self.dimension])[list(order)]
        if not self.sheared:
            return np.diag(scale)
        n, inverse = self.dimension, np.argsort(order)
        matrix = np.diag(scale)
        for _ in range(3):  # differences over steps of half a standard deviation, which the matrix estimates

            def value(t, matrix=matrix):
                return float(self.at(self.mode + (matrix @ np.array(t))[inverse]))

            unit, h, center = np.eye(n), 0.5, value(np.zeros(n))
            hessian = np.zeros((n, n))
            for i, j in itertools.product(range(n), range(n)):
                if i == j:
                    hessian[i, i] = (value(h * unit[i]) + value(-h * unit[i]) - 2 * center) / h**2
                else:
                    signs = ((1, 1), (1, -1), (-1, 1), (-1, -1))
                    total = sum(a * b * value(h * (a * unit[i] + b * unit[j])) for a, b in signs)
                    hessian[i, j] = total / (4 * h**2)
            values, vectors = np.linalg.eigh(-hessian)
            if not np.isfinite(values).all():
                return np.diag(scale)
            covariance = (vectors / np.clip(values, 0.05, 1e6)) @ vectors.T
            matrix = np.linalg.cholesky(matrix @ covariance @ matrix.T)
        return matrix


@dataclasses.dataclass
class _Chart:
    """The view in coordinates y of a box whose first axis is one coordinate u of the view, as a linear function."""

    view: View
    first: int

    @functools.cached_property
    def order(self):
        return (self.first, *(i for i in range(self.view.dimension) if i != self.first))

    @functools.cached_property
    def matrix(self):
        return self.view.axes(self.order)

    def points(self, y):
        return self.view.mode + (y @ self.matrix.T)[..., np.argsort(self.order)]

    def log_density(self, y, fine=1):
        return self.view.at(self.points(y), fine) + math.log(abs(np.prod(np.diag(self.matrix))))

    @functools.cached_property
    def box(self):
        """Bounds (dimension, 2) of y, beyond which the density is negligible."""
        n, depth = self.view.dimension, self.view.depth
        limits = np.array([self.view.limits.get(coordinate, (-np.inf, np.inf)) for coordinate in self.order])
        limits = (limits - self.view.mode[list(self.order)][:, None]) / np.diag(self.matrix)[:, None]
        box, known = np.tile([-4.0, 4.0], (n, 1)), np.zeros((n, 2), bool)
        box = np.clip(box, limits[:, :1], limits[:, 1:])
        for _ in range(60):
            axes = [np.linspace(*side, COARSE[n]) for side in box]
            values = self.log_density(_tensor(axes))
            self.top = values.max()
            new, self.profiles = box.copy(), []
            for j, axis in enumerate(axes):
                profile = values.max(axis=tuple(i for i in range(n) if i != j)) - self.top
                self.profiles.append((axis, profile))
                inside, width = np.flatnonzero(profile > -depth), np.ptp(axis)
                for side, (end, step) in enumerate(((inside[0], -1), (inside[-1], 1))):
                    edge = end == (0 if side == 0 else len(axis) - 1)
                    new[j, side] = axis[end] + step * (0.4 * width if edge else width / (len(axis) - 1))
                    known[j, side] = not edge
                known[j] |= [new[j, 0] <= limits[j, 0], new[j, 1] >= limits[j, 1]]
                new[j] = np.clip(new[j], *limits[j])
            settled = known.all() and np.all(np.abs(new - box) < 0.1 * np.ptp(box, axis=1)[:, None])
            box = new
            if settled:
                return box
        raise RuntimeError("the posterior has no end")

    def edges(self, counts):
        """Edges of so many panels on each axis, narrow where the density is high, which saves panels."""
        result = []
        for side, (axis, profile), count in zip(self.box, self.profiles, counts, strict=True):
            t = np.linspace(*side, 4001)
            crowd = np.exp(np.interp(t, axis, np.maximum(profile, -self.view.depth)) / 8) + 0.03
            below = np.concatenate([[0.0], np.cumsum((crowd[1:] + crowd[:-1]) / 2)])
            result.append(np.interp(np.linspace(0, below[-1], count + 1), below, t))
        return result

    def marginal(self, fine):
        """Edges (P + 1,) of the first axis's panels, and the density of y there at their nodes (P, NODES)."""
        n, _ = self.view.dimension, self.box
        count = PANELS[n] * self.view.refine * (FINER[n] if fine == 2 else 1.0)
        counts = [math.ceil(count * (FIRST if n > 1 and j == 0 else 1.0)) for j in range(n)]
        edges = self.edges(counts)
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        ends = [np.interp(np.arange(2 * len(edge) - 1) / 2, np.arange(len(edge)), edge) for edge in edges]
        corners = self.log_density(_tensor(ends)) - self.top
        active = np.ones(counts, bool)
        if n > 1:
            view = np.lib.stride_tricks.sliding_window_view(corners, (3,) * n)[(slice(None, None, 2),) * n]
            active = view.max(axis=tuple(range(n, 2 * n))) > -self.view.depth
            for j in range(n):  # and their neighbours
                wide = np.pad(active, [(1, 1) if i == j else (0, 0) for i in range(n)])
                active = wide.take(range(counts[j]), j) | active | wide.take(range(2, counts[j] + 2), j)
        cells = np.argwhere(active)
        result = np.zeros((counts[0], NODES))
        offsets = _tensor([(nodes + 1) / 2] * n)  # (NODES, ..., n), in units of a cell
        measure = np.ones((NODES,) * (n - 1))
        for j in range(n - 1):
            measure = measure * weights.reshape([-1 if i == j else 1 for i in range(n - 1)])
        for part in np.array_split(cells, max(1, len(cells) // 256)):
            corner = np.stack([edge[part[:, j]] for j, edge in enumerate(edges)], axis=-1)
            width = np.stack([np.diff(edge)[part[:, j]] for j, edge in enumerate(edges)], axis=-1)
            y = corner.reshape(-1, *(1,) * n, n) + offsets * width.reshape(-1, *(1,) * n, n)
            density = np.exp(self.log_density(y, fine) - self.top)
            sums = (density * measure).sum(axis=tuple(range(2, n + 1)))
            np.add.at(result, part[:, 0], sums * np.prod(width[:, 1:] / 2, axis=1)[:, None])
        return edges[0], result

    def summary(self, fine):
        """Log evidence, and for each quantity of the first coordinate its mean, sd and quantiles."""
        edges, density = self.marginal(fine)
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        halves = np.diff(edges) / 2
        masses = halves * (density @ weights)
        total = masses.sum()
        y = edges[:-1, None] + halves[:, None] * (nodes + 1)
        # within a panel a polynomial interpolates the log density; at a bound, where this may be −∞, the density
        inverse = np.linalg.inv(np.polynomial.legendre.legvander(nodes, NODES - 1))
        fine_nodes, fine_weights = np.polynomial.legendre.leggauss(32)
        below = np.concatenate([[0.0], np.cumsum(masses)])

        def quantile(level):
            panel = min(np.searchsorted(below, level * total, side="right") - 1, len(masses) - 1)
            plain = self.first in self.view.limits and panel in (0, len(masses) - 1)
            series = inverse @ (density[panel] if plain else np.log(density[panel]))

            def integral(t):
                inner = np.polynomial.legendre.legval(-1 + (t + 1) * (fine_nodes + 1) / 2, series)
                return (t + 1) * ((inner if plain else np.exp(inner - series[0])) @ fine_weights)

            share = (level * total - below[panel]) / masses[panel]
            whole = integral(1.0)
            place = optimize.brentq(lambda t: integral(t) / whole - share, -1 - 1e-9, 1 + 1e-9, xtol=1e-13)
            return edges[panel] + halves[panel] * (place + 1)

        at = lambda t: self.view.mode[self.first] + self.matrix[0, 0] * t  # noqa: E731
        levels = np.array([quantile(level) for level in LEVELS])
        probability, result = halves[:, None] * density * weights / total, {}
        for name, (first, function, moments) in self.view.entries.items():
            if first != self.first:
                continue
            quantiles, values = np.sort(function(at(levels))), function(at(y))
            if function(at(levels))[0] > function(at(levels))[-1]:  # a decreasing function; the levels are symmetric
                quantiles = function(at(levels))[::-1]
            mean = float((probability * values).sum()) if moments else None
            sd = math.sqrt((probability * (values - mean) ** 2).sum()) if moments > 1 else None
            result[name] = {"mean": mean, "sd": sd, "quantiles": quantiles.tolist()}
        return math.log(total) + self.top, result


def _tensor(axes):
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)


def reference(views):
    """Evidence and summaries of a posterior, and the largest change when all grids are made finer.

    The change of the log evidence includes differences between charts; changes of means, sds and quantiles are in
    units of the sd, or of half the distance of the quartiles where there is none.
    """
    evidences, entries, change = [], {}, 0.0
    for view in views:
        for first in sorted({coordinate for coordinate, *_ in view.entries.values()}):
            chart = _Chart(view, first)
            (rough, before), (evidence, after) = chart.summary(1), chart.summary(2)
            evidences += [rough, evidence]
            for name, entry in after.items():
                unit = entry["sd"] or (entry["quantiles"][5] - entry["quantiles"][3]) / 2
                pairs = list(zip(before[name]["quantiles"], entry["quantiles"], strict=True))
                pairs += [(before[name][what], entry[what]) for what in ("mean", "sd") if entry[what] is not None]
                # a far quantile of a heavy tail is compared on its own scale
                own = lambda a, unit=unit: max(unit, abs(a) * 1e-2) if not entry["sd"] else unit  # noqa: E731, B023
                change = max([change, *(abs(a - b) / own(b) for a, b in pairs)])
                entries[name] = entry
    return {
        "log_evidence": evidences[-1],
        "entries": entries,
        "change": change,
        "evidence_change": float(np.ptp(evidences)),
    }
