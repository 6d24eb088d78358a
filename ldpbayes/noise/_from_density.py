"""Noise that is given by its density."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from numpy.polynomial.legendre import leggauss

from ldpbayes._core.checks import FINITE_NUMBERS, POSITIVE, checked
from ldpbayes._core.pytrees import pytree_dataclass, ruled, static
from ldpbayes._core.types import Array, Key
from ldpbayes.noise._noise import Noise
from ldpbayes.privacy import Tradeoff
from ldpbayes.privacy.tradeoffs import Polygon, best_tests

LogDensity = Callable[[jax.Array], jax.Array]

PANEL_WIDTH = 1 / 64  # width of panels in arcsinh of the noise: steps of 1/64 around zero, and far out of 1.6 %
PANELS_PER_SIDE = 5888  # on either side, up to 4e39 scales
NEGLIGIBLE_TAIL = 1e-32  # probability beyond the reach of the noise
DENSITY_TOLERANCE = 1e-6  # of the integral of the density, and of its mean
VISIBLE_LOG_DENSITY = math.log(1e-2)  # log densities less the largest one, from which on their slopes count
VISIBLE_NODE_MASS = 1e-8  # of a node: nodes with less do not count where distances are compared
LARGEST_STATED_EPSILON = 500.0  # largest finite epsilon that is stated at delta = 0
GIVEN_AWAY_DELTA = 1e-14  # probability of what counts as given away where no epsilon holds at delta = 0
COMPARED_EPSILONS = np.linspace(0.0, 3.0, 13) ** 2  # at which distances of two inputs are compared
# Distances of two inputs. So much more power than at the worst ones found is stated (relative), as others may be worse
# between the epsilons that are compared; powers that differ by less than the next number are alike.
POWER_MARGIN, ALIKE_SHARE = 1e-3, 1e-4
MOST_EVEN_DISTANCES = 1024  # equally far apart; others are at steps of 1/64, and where jumps meet
ZOOM_ROUNDS = 4  # each with 16 times more distances around the worst ones
DISTANCES_AT_ONCE = 64
_T, _W = leggauss(4)


class _TabulatedLaw(NamedTuple):
    """Noise of scale one in panels between edges (n + 1,), in arcsinh of the noise."""

    edges: np.ndarray
    nodes: np.ndarray  # (m,) in the panels, with their probabilities, that are not negligible
    weights: np.ndarray
    below: np.ndarray  # (n + 1,): probability below each edge, relatively accurate however small it is
    above: np.ndarray
    deviation: float
    resolution: float
    reach: float


@functools.lru_cache(maxsize=64)
def _tabulated(log_density: LogDensity, breaks: tuple[float, ...]) -> _TabulatedLaw:
    # no panel ends at a round number, so that a kink there which is not stated is seen in the integral
    panel_ends = (np.arange(-PANELS_PER_SIDE, PANELS_PER_SIDE + 1) + 1 / 3) * PANEL_WIDTH
    edges = np.union1d(panel_ends, np.arcsinh(breaks))
    half = np.diff(edges)[:, None] / 2
    u = edges[:-1, None] + half * (1 + _T)
    t, logs = np.sinh(u), _logs(log_density, np.sinh(u))
    weights = np.exp(logs) * np.cosh(u) * half * _W
    mass, second = weights.sum(axis=1), (weights * t**2).sum(axis=1)
    total, mean = mass.sum(), np.sum(weights * t)
    if not abs(total - 1) < DENSITY_TOLERANCE:
        hint = "give all kinks and jumps as breaks, and a log_density of noise/scale with spread near 1"
        raise ValueError(f"exp(log_density) must be a density, but it integrates to {total:.9g}; {hint}")
    below, above = np.append(0.0, np.cumsum(mass)), np.append(np.cumsum(mass[::-1])[::-1], 0.0)
    if max(mass[0], mass[-1]) > NEGLIGIBLE_TAIL * PANEL_WIDTH:
        raise ValueError("the tails of log_density are too heavy: a probability above 1e-32 is beyond 1e39 scales")
    deviation = math.sqrt(second.sum()) if max(second[0], second[-1]) < 1e-9 * PANEL_WIDTH * second.sum() else math.inf
    if abs(mean) > DENSITY_TOLERANCE * deviation:
        raise ValueError(f"log_density must be of noise with mean zero, got mean {mean:.6g}; shift it by this number")
    seen = (logs[:, 1:] > logs.max() + VISIBLE_LOG_DENSITY) & (logs[:, :-1] > logs.max() + VISIBLE_LOG_DENSITY)
    with np.errstate(invalid="ignore"):
        slope = np.max(np.abs(np.diff(logs, axis=1) / np.diff(t, axis=1)), where=seen, initial=0.0)
    inside = edges[(below > NEGLIGIBLE_TAIL) & (above > NEGLIGIBLE_TAIL)]
    reach = math.sinh(max(abs(inside[0]), abs(inside[-1])) + PANEL_WIDTH)
    kept = weights > VISIBLE_NODE_MASS
    resolution = 1 / slope if slope else math.inf
    return _TabulatedLaw(edges, t[kept], weights[kept], below, above, deviation, resolution, reach)


def _logs(log_density: LogDensity, t: np.ndarray) -> np.ndarray:
    """Log densities in double precision, and never part of a trace; ValueError for NaN and infinite densities."""
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        logs = np.asarray(jax.jit(log_density)(t), float)
    if logs.shape != t.shape:
        raise ValueError(f"log_density must be elementwise, got shape {logs.shape} for values of shape {t.shape}")
    bad = np.isnan(logs) | (logs == np.inf)
    if bad.any():
        raise ValueError(f"log_density must be below infinity everywhere, got {logs[bad][0]} at {t[bad][0]:.6g}")
    return logs


@pytree_dataclass
class FromDensity(Noise):
    """Noise with any density, such as Cauchy noise: ``FromDensity(jax.scipy.stats.cauchy.logpdf, 2)``.

    The noise is only for records that are numbers, and not for files, which would contain only the name of the
    function. The guarantee is not proven, as its statement says: numerical integration computes it, with rounding
    towards less privacy. If the noise has several modes, inputs near each other may be easier to distinguish than
    inputs at the largest distance, so about a thousand distances are compared, and the worst are refined.

    Parameters
    ----------
    log_density : callable
        Log density of noise/scale, an elementwise JAX function, −inf where the density is zero. The density must
        integrate to one and, if it has a variance, have mean zero, both up to 1e-6. Each new function is compiled:
        define it once.
    scale : array_like
        Scale in the unit of the data, positive and finite: one number, or one number for each record. Default: 1.
    breaks : sequence of float
        Values of noise/scale where the density has a kink or a jump. Default: none.
    """

    log_density: LogDensity = static()
    scale: Array = ruled(POSITIVE, default=1.0)
    breaks: tuple[float, ...] = static(default=())

    linear_tails = False
    monotone = True
    norm = 1  # of one column only
    symmetric = False  # for all that is known
    kinks = property(lambda self: tuple(self.scale * place for place in self.breaks))  # type: ignore[assignment]
    assumption = "This was computed numerically, and no distance of two inputs is known to be worse."
    has_variance = property(lambda self: self._law.deviation < math.inf)  # type: ignore[assignment]
    standard_deviation = property(lambda self: self.scale * self._law.deviation)
    resolution = property(lambda self: self.scale * self._law.resolution)
    reach = property(lambda self: self.scale * self._law.reach)
    _law = property(lambda self: _tabulated(self.log_density, self.breaks))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.log_density):
            raise TypeError(f"log_density must be a function (files do not store functions), got {self.log_density!r}")
        breaks = np.ravel(checked("breaks", self.breaks, *FINITE_NUMBERS)).tolist() if np.size(self.breaks) else ()
        object.__setattr__(self, "breaks", tuple(sorted(breaks)))
        self._law  # noqa: B018  # a function that is no density is refused

    def sample(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        law, keys, middle = self._law, jax.random.split(key), PANELS_PER_SIDE
        above = jax.random.uniform(keys[0], shape, dtype) < law.above[middle]
        share = jnp.exp(-jax.random.exponential(keys[1], shape, dtype))

        def place(tail: np.ndarray, edges: np.ndarray) -> jax.Array:
            """Where a tail, given from the far end on, is this share of its whole."""
            return jnp.interp(share, jnp.asarray(tail / tail[-1], dtype), jnp.asarray(edges, dtype))

        up = place(law.above[middle:][::-1], law.edges[middle:][::-1])
        down = place(law.below[: middle + 1], law.edges[: middle + 1])
        return jnp.asarray(self.scale, dtype)[..., None] * jnp.sinh(jnp.where(above, up, down))

    def log_prob(self, value: jax.Array) -> jax.Array:
        scale = jnp.asarray(self.scale)[..., None]
        return jnp.sum(self.log_density(value / scale) - jnp.log(scale), axis=-1)

    def depth(self, distance: np.ndarray) -> np.ndarray:
        law, at = self._law, np.arcsinh(distance * self._law.deviation)
        tail = np.maximum(np.interp(at, law.edges, law.above), np.interp(-at, law.edges, law.below))
        return -np.log2(np.maximum(tail, np.finfo(float).tiny))

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """Return the curve of the worst inputs that differ by `distance` or less, of all records, or one below."""
        apart = float(np.max(np.abs(np.asarray(distance, float)[..., 0]) / self.scale))
        law = self.log_density, self.breaks
        curves = [_curve(*law, distance) for distance in _worst(*law, apart)]
        if len(curves) == 1:
            return curves[0]
        return Polygon(best_tests(np.minimum(curve.corners.T * [[1.0], [1 + POWER_MARGIN]], 1.0) for curve in curves))

    def released_breakpoints(self, lower: Array, upper: Array) -> np.ndarray:
        return np.ravel(np.add.outer([lower, upper], np.multiply(self.scale, self.breaks)))

    def check_records(self, lower: Array, upper: Array, numbers: bool) -> None:
        if not numbers:
            raise ValueError("FromDensity noise is only for numbers, each with noise, not for rows")


@functools.lru_cache(maxsize=256)
def _worst(log_density: LogDensity, breaks: tuple[float, ...], distance: float) -> list[float]:
    """Distances of inputs, up to one in scales, that are together the worst: for some epsilons the one of the largest
    delta, and the one of the largest likelihood ratio; the whole distance alone if it is the worst for all.
    """
    law = _tabulated(log_density, breaks)
    logs = _logs(log_density, law.nodes)

    def scores(apart: np.ndarray) -> np.ndarray:
        """Deltas and the largest log ratio of inputs so far apart, in their worse order, by sums over nodes."""
        rows, padded = [], np.append(apart, np.repeat(distance, -len(apart) % DISTANCES_AT_ONCE))
        for part in padded.reshape(-1, DISTANCES_AT_ONCE, 1):
            ratio = np.stack([_logs(log_density, law.nodes + shift) for shift in (-part, part)]) - logs
            kept = np.exp(np.minimum(ratio, 0.0))
            deltas = [np.maximum(1 - np.exp(epsilon) * kept, 0.0) @ law.weights for epsilon in COMPARED_EPSILONS]
            rows.append(np.max([*deltas, np.minimum(-ratio.min(axis=-1), LARGEST_STATED_EPSILON)], axis=1))
        return np.concatenate(rows, axis=1)[:, : len(apart)]

    number = int(np.clip(4 * distance / law.resolution, DISTANCES_AT_ONCE, MOST_EVEN_DISTANCES))
    even, steps = np.linspace(0.0, distance, number), np.sinh(np.arange(0.0, np.arcsinh(distance), PANEL_WIDTH))
    tried = np.unique(np.concatenate([even, steps, np.subtract.outer(breaks, breaks).ravel()]))
    tried = tried[(tried > 0) & (tried <= distance)]
    scored = scores(tried)
    for _ in range(ZOOM_ROUNDS):
        worse = scored.max(axis=1) > scored[:, -1] * (1 + ALIKE_SHARE)
        if not worse.any():
            return [distance]
        place = scored.argmax(axis=1)[worse]
        ends = tried[np.maximum(place - 1, 0)], tried[place + 1]
        new = np.setdiff1d(np.linspace(*ends, 33), tried)
        order = np.argsort(np.append(tried, new))
        scored, tried = np.append(scored, scores(new), axis=1)[:, order], np.append(tried, new)[order]
    chosen = [len(tried) - 1]
    for row in scored:
        if row.max() > row[chosen].max() * (1 + ALIKE_SHARE):
            alike = np.flatnonzero(row >= row.max() * (1 - 1e-9))  # sums see no more of where jumps meet
            chosen.append(int(alike[len(alike) // 2]))
    return tried[chosen].tolist()


@functools.lru_cache(maxsize=256)
def _curve(log_density: LogDensity, breaks: tuple[float, ...], distance: float) -> Polygon:
    """The curve of inputs so many scales apart. In a panel the ratio of the two densities is moved to the ends of its
    range, so that the panel keeps its two probabilities: no test is worse for that (a spread in Blackwell's order).
    """
    ends = np.sinh(_tabulated(log_density, breaks).edges)
    edges = np.sort(np.append(ends, ends + distance))  # of one length for all distances, for which JAX compiles once
    half = np.diff(edges)[:, None] / 2
    t = edges[:-1, None] + half * (1 + _T)
    logs = np.stack([_logs(log_density, t), _logs(log_density, t - distance)])
    mass, size = (np.exp(logs) * half * _W).sum(axis=-1), np.abs(logs).max(axis=(0, 2))
    ratio = np.subtract(*np.maximum(logs, -1e300))
    low, high = ratio.min(axis=1), ratio.max(axis=1)
    low, high = low - 0.1 * (high - low), high + 0.1 * (high - low)  # up to the panel's ends
    # logs beyond 1e7 are rounded too much; where the ratio still grows from 1e6 to 1e7, it has no bound
    largest, kept = np.maximum(high, -low), mass.max(axis=0) > GIVEN_AWAY_DELTA**3
    near, far = (np.max(largest, where=size < most, initial=0.0) for most in (1e6, 1e7))
    bounded = far <= 1.01 * near and not np.any(kept & (largest > LARGEST_STATED_EPSILON))
    one, other = mass[:, kept]
    down, up = np.exp(np.clip([low[kept], high[kept]], -LARGEST_STATED_EPSILON, LARGEST_STATED_EPSILON))
    at_up = np.clip((one - down * other) / np.where(up > down, up - down, np.inf), 0.0, np.minimum(other, one / up))
    laws = np.stack([np.append(at_up, other - at_up), np.append(up * at_up, np.maximum(one - up * at_up, 0.0))])
    laws = laws[:, np.argsort(-np.append(up, down), kind="stable")]
    # the two orders of the inputs, each from the outputs on that tell most
    tests = np.minimum(np.cumsum([laws, laws[::-1, ::-1]], axis=-1), 1.0)
    tests[:, 0] = np.where(bounded | (tests[:, 1] > GIVEN_AWAY_DELTA), tests[:, 0], 0.0)
    return Polygon(best_tests(tests[..., :-1]))
