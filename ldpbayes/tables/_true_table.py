"""The true table: draws of what the cells of published tables were before noise was added."""

import functools
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy import special

from ldpbayes._core.checks import at_least, checked
from ldpbayes._core.types import Array
from ldpbayes.data import NoisyTable
from ldpbayes.inference.result import assign_coords, inference_data
from ldpbayes.likelihood.privatized import law_of_records
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.mechanisms.protocol import statements
from ldpbayes.noise import Gaussian, Laplace
from ldpbayes.tables._known_sums import KnownSum, Sums, known_sums
from ldpbayes.tables._least_squares import Workload, cell_names, sample_latent

UNCERTAINTY = "of the table: what the cells were before noise was added; not of a population that they are drawn from"
PLACES = 1 << 14  # numbers of a cell whose probabilities are listed; of more, and of real numbers, equal blocks are
DROP = 42.0  # nats by which a cell's log probability has fallen at the ends of its window: e^-42 is 6e-19
CHUNK = 1 << 18  # probabilities that are evaluated at once
GUIDE = 1024  # buckets of the unit interval, most of which belong to one number
ELSEWHERE = (
    "give what is known as another table with little noise, true_table({...}, queries='keys'), which runs chains"
)


def true_table(
    tables: NoisyTable | Mapping[str, NoisyTable],
    *,
    prior: Any = None,
    whole: Any = None,
    nonnegative: Any = None,
    total: Any = None,
    zeros: Any = None,
    queries: Any = None,
    cells: Mapping[str, Any] | None = None,
    num_samples: int = 1000,
    num_chains: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Any:
    """Draws of the true table: what the cells were before noise was added, under a flat prior or a stated one.

    This is uncertainty of the table, that of the noise alone: not of a population from which the cells are a sample.
    Cells are independent given the release, and drawn exactly, without chains. Sums, shares, ratios, differences, ranks
    are arithmetic of the draws: ``post["sum"] / post["n"]``, ``post["n"].groupby("state").sum()``.

    Parameters
    ----------
    tables : NoisyTable, or dict of them by name
        Of independent noise. What follows is for all of them, or a dict by the name of a table.
    prior : numpyro distribution, optional
        Law of a cell, batch shape () or (N,), with one mode. Default: flat.
    whole : bool, optional
        Whether cells are whole numbers. Default: where the noise or the prior is discrete.
    nonnegative : bool, optional
        Whether cells are at least 0. Default: if they are whole numbers.
    total : float or dict, optional
        Sums that are known exactly, of all cells, or by key and label: ``{"state": {"A": 510}, None: 900}``, of labels
        in several keys ``{("state", "age"): {("A", "0-9"): 40}}``. Of whole numbers, or of real ones without
        bounds under Gaussian noise. ValueError for sums that contradict one another, or overlap without being nested.
    zeros : array of bool (N,), optional
        Cells that are known to be 0.
    queries : "keys", or matrices, optional
        The tables are sums of the cells of one table: see `least_squares`, which also explains ``cells``. Draws are of
        these cells, real numbers: from the normal law of least squares where the noise is Gaussian (of discrete
        noise: nearly) and there are no bounds, else by chains.
    num_samples, num_chains : int, optional
        Draws a chain, and chains: by default 4 where chains run, else 1.
    seed : int
        Draws are a function of the seed, the data and the library versions.
    **options
        Of `fit`, where chains run.

    Returns
    -------
    arviz.InferenceData (ArviZ 0.23) or xarray.DataTree (ArviZ ≥ 1.0)
        Group posterior: a variable a table, by its name ("cells", if there is no dict or with queries), along the
        table's dimension, whose labels are those of the key, or of all keys, beside these keys' own. Attributes:
        ``uncertainty``, ``privacy``, ``mechanisms``, ``seed``.
    """
    num_samples, seed = at_least(1, "num_samples", num_samples), at_least(0, "seed", seed)
    chains = None if num_chains is None else at_least(1, "num_chains", num_chains)
    if queries is not None or cells is not None:
        work = Workload.of(tables, None if isinstance(queries, str) and queries == "keys" else queries, cells)
        for name, value in {"prior": prior, "total": total, "zeros": zeros, "whole": whole}.items():
            if value is not None:
                raise ValueError(f"{name} is for tables of cells, not for sums of one table's cells (queries=)")
        draws, statistics = sample_latent(work, nonnegative is not False, num_samples, chains, seed, options)
        return _described({"cells": (work.keys, draws)}, statistics, list(work.tables.values()), seed)
    if options:
        raise TypeError(f"{', '.join(options)}: options of fit are for chains, and independent cells need none")
    named, laws = _laws(tables, prior, whole, nonnegative, total, zeros)
    shape, draws = (chains or 1, num_samples), {}
    with jax.enable_x64(True), ThreadPoolExecutor() as pool:
        for number, (name, law) in enumerate(laws.items()):
            rngs = (np.random.Generator(np.random.SFC64([seed, number, part])) for part in itertools.count())
            values = law.sample(rngs, math.prod(shape), pool).reshape(-1, *shape)
            draws[name] = named[name].keys, np.moveaxis(values, 0, -1)
    return _described(draws, {}, list(named.values()), seed)


def cell_probabilities(
    table: NoisyTable,
    *,
    prior: Any = None,
    whole: Any = None,
    nonnegative: Any = None,
    total: Any = None,
    zeros: Any = None,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """What each true cell may have been, and with what probability: exact, without draws, for whole numbers.

    Parameters
    ----------
    table, prior, whole, nonnegative, total, zeros
        As for `true_table`. ValueError for real numbers, and for cells of more than 16,384 numbers worth listing.

    Returns
    -------
    list of (numbers, probabilities)
        Two arrays a cell: consecutive whole numbers, beyond which there is less than 1e-16, and probabilities.
    """
    law = _laws(table, prior, whole, nonnegative, total, zeros)[1]["cells"]
    result: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    if not law.whole:
        raise ValueError("cell_probabilities is for whole numbers: of real cells use the draws of true_table")
    with jax.enable_x64(True):
        for known in law.sums:
            parts = zip(known.rows, Sums(*law.tilted(known)).marginals(known.value), strict=True)
            result |= {row: (first + np.arange(len(p)), p) for row, (first, p) in parts}
        for part in law.windows(law.free):
            if np.any(part.step > 1):
                raise ValueError(f"{law.name(part.rows[0])} has more than {PLACES:,} likely numbers: use true_table")
            p = np.exp(part.log_p - special.logsumexp(part.log_p, axis=1, keepdims=True))
            result |= {row: (first + np.arange(len(q)), q) for row, first, q in zip(part.rows, part.low, p, strict=True)}
    return [(numbers[p > 0], p[p > 0]) for numbers, p in (result[row] for row in range(table.count))]


class _Window(NamedTuple):
    """Log probabilities (n, places) of some cells, up to a constant a cell: of the numbers, or blocks, from `low` on."""

    rows: np.ndarray
    low: np.ndarray
    step: np.ndarray
    log_p: np.ndarray


# log P(noise ≤ t) and its inverse, of noise of standard deviation, or scale, 1
_LOG_CDF: dict[type, tuple[Callable, Callable]] = {
    Gaussian: (special.log_ndtr, special.ndtri_exp),
    Laplace: (
        lambda t: np.where(t < 0, t - math.log(2), np.log1p(-np.exp(-np.abs(t)) / 2)),
        lambda y: np.where(y < -math.log(2), y + math.log(2), -math.log(2) - np.log(-np.expm1(np.minimum(y, 0.0)))),
    ),
}


class _Law:
    """The posterior of one table's cells, independent of each other but for sums that are known."""

    def __init__(self, name: str, table: NoisyTable, prior: Any, whole: Any, bounded: Any, total: Any, zeros: Any):
        if not isinstance(table, NoisyTable) or table.values is None:
            raise TypeError(f"{name}: true_table takes a NoisyTable with values, or a dict of them, got {table!r}")
        count, self.title, self.table, self.prior = table.count, name, table, prior
        if prior is not None and (not isinstance(prior, dist.Distribution) or prior.event_shape):
            raise TypeError(f"{name}: prior must be a NumPyro distribution of a number, got {prior!r}")
        if prior is not None and prior.batch_shape not in ((), (1,), (count,)):
            raise ValueError(f"{name}: prior must have batch shape () or ({count},), got {prior.batch_shape}")
        self.mechanism, self.noise = table.mechanism, table.mechanism.noise
        self.discrete = self.noise.discrete or (prior is not None and prior.support.is_discrete)
        self.whole = self.discrete if whole is None else bool(whole)
        if self.discrete and not self.whole:
            raise ValueError(f"{name}: whole=False, but the noise or the prior is of whole numbers")
        self.z = np.asarray(table.values, float)
        support = getattr(prior, "support", None)
        least = 0.0 if (self.whole if bounded is None else bounded) else -math.inf
        least = np.maximum(least, getattr(support, "lower_bound", -math.inf)) + np.zeros(count)
        most = np.asarray(getattr(support, "upper_bound", math.inf)) + np.zeros(count)
        fixed = np.zeros(count, bool) if zeros is None else np.asarray(zeros)
        if fixed.shape != (count,) or fixed.dtype != bool:
            raise ValueError(f"{name}: zeros must be {count} bools, one a cell, got {zeros!r}")
        self.least, self.most = (np.where(fixed, 0.0, end) for end in (np.ceil(least) if self.whole else least, most))
        self.sums: list[KnownSum] = [] if total is None else known_sums(table, total, self.least, self.most, self.whole)
        self.free = np.setdiff1d(np.arange(count), np.concatenate([[], *(known.rows for known in self.sums)]))
        self.free = self.free.astype(int)
        closed = isinstance(self.mechanism, Additive) and prior is None and type(self.noise) in _LOG_CDF
        self.closed = closed and not self.whole
        if self.sums and not self.whole and not (self.closed and type(self.noise) is Gaussian and not np.any(fixed | (least == 0))):
            need = "whole numbers, or real ones without bounds, zeros or prior under Gaussian noise"
            raise ValueError(f"{name}: total is for {need}; {ELSEWHERE}")
        self.deviation = np.broadcast_to(self.noise.standard_deviation, (count,))

    def name(self, row: int) -> str:
        return f"{self.title}: cell {str(cell_names(self.table.keys, self.table.count)[row])!r}"

    def starts(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Windows around released values, of the width where the noise is negligible."""
        unknown = np.where(np.isfinite(self.least), self.least, 0.0)
        if self.prior is not None:
            mean = np.asarray(self.prior.mean) + np.zeros(len(self.z))
            unknown = np.where(np.isfinite(mean), mean, unknown)
        centre = np.clip(np.where(np.isnan(self.z), unknown, self.z), self.least, self.most)[rows]
        reach = (30.0 if self.noise.linear_tails else 9.3) * self.deviation[rows] + 3 * self.whole
        low, high = np.maximum(centre - reach, self.least[rows]), np.minimum(centre + reach, self.most[rows])
        return (np.floor(low), np.ceil(high)) if self.whole else (low, high)

    def log_p(self, rows: np.ndarray, low: np.ndarray, step: np.ndarray, places: int) -> np.ndarray:
        """Log probabilities (n, places) of the numbers from `low` on, or of the middles of blocks."""
        size, n = CHUNK // places, len(rows)
        while size >= 16 * n:  # few shapes, since each is compiled
            size //= 16
        parts = []
        for start in range(0, n, size):
            at = np.minimum(np.arange(start, start + size), n - 1)
            whose, middle = rows[at], (step[at] - self.whole) / 2
            prior = None if self.prior is None else law_of_records(self.prior, whose if self.prior.batch_shape == self.z.shape else 0 * whose)
            mechanism = self.mechanism.of_records(self.z.shape, whose)
            ends = self.z[whose], low[at] + middle, step[at], self.most[whose]
            parts.append(np.asarray(_log_probabilities(places, mechanism, prior, *ends))[: n - start])
        return np.concatenate(parts)

    def windows(self, rows: np.ndarray) -> Iterator[_Window]:
        """The cells' log probabilities, in windows that are widened until these are negligible at the ends."""
        waiting = [(rows, *self.starts(rows))] if len(rows) else []
        while waiting:
            rows, low, high = waiting.pop()
            places = np.full(len(rows), PLACES)
            if self.whole:
                places = np.clip(2 ** np.ceil(np.log2(high - low + 1)), 32, PLACES).astype(int)
            if len(sizes := np.unique(places)) > 1 or len(rows) > CHUNK // sizes[0]:
                for size in sizes:
                    which = np.flatnonzero(places == size)
                    parts = np.split(which, range(CHUNK // size, len(which), CHUNK // size))
                    waiting += [(rows[part], low[part], high[part]) for part in parts]
                continue
            size = sizes[0]
            step = (high - low) / size
            if self.whole:  # an odd number, so that the middle of a block is whole
                step = 2 * np.floor(np.ceil((high - low + 1) / size) / 2) + 1
            high = np.minimum(low + step * size - self.whole, self.most[rows])
            log_p = self.log_p(rows, low, step, size)
            last = np.clip(np.ceil((high - low + self.whole) / np.where(step > 0, step, 1)) - 1, 0, size - 1).astype(int)
            peak, at_last = log_p.max(axis=1), log_p[np.arange(len(rows)), last]
            below, above = (
                (log_p[:, 0] > peak - DROP) & (low > self.least[rows]),
                (at_last > peak - DROP) & (high < self.most[rows]),
            )
            hopeless = ~np.isfinite(peak) | ((below | above) & (high - low > 2.0**35 * (1 + self.deviation[rows])))
            if hopeless.any():
                row = rows[np.argmax(hopeless)]
                flat = "under a flat prior, since nothing limits it: state a law of the cell, prior="
                why = flat if self.prior is None else "under this prior, near which the reported value has no probability"
                raise ValueError(f"{self.name(row)}, reported as {self.z[row]:g}, has no proper posterior {why}")
            likely = log_p > peak[:, None] - DROP
            start, stop = likely.argmax(axis=1), size - likely[:, ::-1].argmax(axis=1)
            coarse = (step > self.whole) & (stop - start < size // 2 - 2) & ~below & ~above
            done = ~(below | above | coarse)
            yield _Window(rows[done], low[done], step[done], log_p[done])
            span = high - low + 1
            lower = np.where(coarse, low + step * np.maximum(start - 1, 0), low - below * span)
            upper = np.where(coarse, low + step * (stop + 1), high + above * span)
            lower, upper = np.maximum(lower, self.least[rows]), np.minimum(upper, self.most[rows])
            if not done.all():
                waiting.append((rows[~done], lower[~done], upper[~done]))

    def tilted(self, known: KnownSum) -> tuple[np.ndarray, np.ndarray]:
        """First numbers (n,), and probabilities (n, places) in proportion to p_j(k)·exp(θ k): given their sum the cells
        have the same law for any θ, and θ is where the known sum is the mean, so that nothing underflows.
        """
        rows, least = known.rows, self.least[known.rows]
        most = np.minimum(self.most[rows], known.value - (least.sum() - least) if np.isfinite(least).all() else math.inf)
        low, high = (np.clip(end, least, most) for end in self.starts(rows))
        while True:
            places = 2 ** math.ceil(math.log2(np.max(high - low) + 1))
            if places > 4 * PLACES:
                raise ValueError(f"total of {known.name}: cells have too many likely numbers to add up; {ELSEWHERE}")
            log_p = self.log_p(rows, low, np.ones(len(rows)), places)
            steps = np.arange(float(places))
            log_p = np.where(low[:, None] + steps <= most[:, None], log_p, -math.inf)
            law = functools.partial(_tilted, log_p, steps)
            slopes = np.abs(np.diff(np.maximum(log_p, log_p.max(axis=1, keepdims=True) - 1e5), axis=1))
            most_tilt = 50.0 + slopes.max(initial=0.0)
            ends, target = [-most_tilt, most_tilt], known.value - low.sum()
            for _ in range(100):
                middle = sum(ends) / 2
                mean = float(np.sum(law(middle) @ steps))
                if abs(mean - target) < 0.01:
                    break
                ends[int(mean > target)] = middle
            p = law(middle)
            high = np.minimum(low + places - 1, most)
            tail = np.exp(-DROP) * p.max(axis=1)
            below = (p[:, 0] > tail) & (low > least)
            above = (p[np.arange(len(rows)), (high - low).astype(int)] > tail) & (high < most)
            if not (below | above).any():
                return low, p
            low, high = np.maximum(low - below * places, least), np.minimum(high + above * places, most)

    def sample(self, rngs: Iterator[np.random.Generator], count: int, pool: ThreadPoolExecutor) -> np.ndarray:
        """Draws (N, count)."""
        result = np.empty((len(self.z), count), np.int64 if self.whole else float)
        if self.closed:
            scale = self.deviation / (math.sqrt(2) if isinstance(self.noise, Laplace) else 1)
            jobs = [pool.submit(self._draw_closed, result, next(rngs), rows, scale) for rows in np.array_split(np.arange(len(self.z)), 1 + result.size // CHUNK)]
            for job in jobs:
                job.result()
            for known in self.sums:
                variance = self.deviation[known.rows] ** 2
                missing = known.value - result[known.rows].sum(axis=0)
                result[known.rows] += variance[:, None] / variance.sum() * missing
            return result
        jobs = [pool.submit(_draw, result, next(rngs), part, self.whole) for part in self.windows(self.free)]
        for known in self.sums:
            result[known.rows] = Sums(*self.tilted(known)).sample(next(rngs), known.value, count)
        for job in jobs:
            job.result()
        return result

    def _draw_closed(self, result: np.ndarray, rng: np.random.Generator, rows: np.ndarray, scale: np.ndarray) -> None:
        """Released values less noise, which is at most what leaves the cell its least number."""
        log_cdf, inverse = _LOG_CDF[type(self.noise)]
        shape, least = (len(rows), result.shape[1]), self.least[rows]
        if np.isinf(least).all():
            noise = (rng.laplace if isinstance(self.noise, Laplace) else rng.normal)(size=shape)
        else:
            limit = (self.z[rows] - least) / scale[rows]
            noise = inverse(np.log1p(-rng.random(shape)) + log_cdf(limit)[:, None])
        result[rows] = np.clip(self.z[rows, None] - scale[rows, None] * noise, least[:, None], self.most[rows, None])


@functools.partial(jax.jit, static_argnums=0)
def _log_probabilities(places: int, mechanism: Any, prior: Any, z: Array, low: Array, step: Array, most: Array) -> Array:
    x = low + step * jnp.arange(float(places))[:, None]
    inside = jnp.minimum(x, most)
    log_p = mechanism.log_prob(z, inside) + (0.0 if prior is None else prior.log_prob(inside))
    return jnp.where((x <= most) & ~jnp.isnan(log_p), log_p, -jnp.inf).T


def _tilted(log_p: np.ndarray, steps: np.ndarray, tilt: float) -> np.ndarray:
    log_p = log_p + tilt * steps
    p = np.exp(log_p - log_p.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def _draw(result: np.ndarray, rng: np.random.Generator, part: _Window, whole: bool) -> None:
    """Draws by inversion. Most buckets of the unit interval lie in one number, which a table gives; the others are
    searched.
    """
    cumulative = np.cumsum(np.exp(part.log_p - part.log_p.max(axis=1, keepdims=True)), axis=1)
    cumulative /= cumulative[:, -1:]
    count = result.shape[1]
    size = max(1, (1 << 16) // count)
    for start in range(0, len(part.rows), size):
        c = cumulative[start : start + size]
        row = np.arange(len(c))[:, None]
        bucket = np.minimum((c * GUIDE).astype(np.int64), GUIDE) + row * (GUIDE + 1)
        steps = np.bincount(bucket.ravel(), minlength=len(c) * (GUIDE + 1)).reshape(len(c), -1)[:, :GUIDE]
        guide = np.where(steps > 0, -1, np.cumsum(steps, axis=1))
        bucket = rng.integers(0, GUIDE, (len(c), count), dtype=np.uint16)
        place = guide.ravel().take(bucket + row * GUIDE)
        open_ = np.flatnonzero(place.ravel() < 0)
        whose = open_ // count
        u = (bucket.ravel()[open_] + rng.random(len(open_))) / GUIDE
        place.ravel()[open_] = (c + row).ravel().searchsorted(u + whose) - whose * c.shape[1]
        low, step = (end[start : start + size, None] for end in (part.low, part.step))
        if not whole or (step > 1).any():  # anywhere in the block
            inside = rng.random(place.shape) * step
            result[part.rows[start : start + size]] = low + step * place + (np.floor(inside) if whole else inside)
        else:
            result[part.rows[start : start + size]] = low.astype(np.int64) + place


def _laws(tables: Any, *arguments: Any) -> tuple[dict[str, NoisyTable], dict[str, _Law]]:
    """The tables by name, and their posteriors; arguments may be dicts by the names of tables."""
    named = dict(tables) if isinstance(tables, Mapping) else {"cells": tables}

    def own(name: str, value: Any) -> Any:
        by_name = isinstance(tables, Mapping) and isinstance(value, Mapping) and set(value) <= set(named)
        return value.get(name) if by_name else value

    return named, {name: _Law(name, table, *(own(name, each) for each in arguments)) for name, table in named.items()}


def _described(draws: dict[str, tuple[Mapping, np.ndarray]], statistics: Any, tables: list, seed: int) -> Any:
    """ArviZ data of draws (chains, draws, N) by name, with their keys."""
    dims: dict[str, list[str]] = {}
    coords: dict[str, np.ndarray] = {}
    beside: dict[str, tuple[str, np.ndarray]] = {}
    for name, (keys, values) in draws.items():
        labels = cell_names(keys, values.shape[-1])
        dim = next(iter(keys)) if len(keys) == 1 else "cell"
        if not np.array_equal(coords.get(dim, labels), labels):
            dim = f"{name}_{dim}"
        dims[name], coords[dim] = [dim], labels
        beside |= {key: (dim, each) for key, each in keys.items() if key != dim and key not in beside}
    groups = {"posterior": {name: values for name, (_, values) in draws.items()}, "sample_stats": statistics}
    result = inference_data(groups, dims, coords)
    assign_coords(result, "posterior", beside)
    mechanisms = [table.mechanism for table in tables]
    specs = json.dumps([mechanism.spec() for mechanism in mechanisms])
    result.attrs.update(uncertainty=UNCERTAINTY, privacy=statements(mechanisms), mechanisms=specs, seed=seed)
    return result
