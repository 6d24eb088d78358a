"""The true table: draws of what the cells of published tables were before noise was added."""

import itertools
import json
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy import special, stats

from ldpbayes._core.checks import at_least
from ldpbayes._core.types import Array
from ldpbayes.data import NoisyTable
from ldpbayes.inference.result import assign_coords, inference_data
from ldpbayes.likelihood.privatized import law_of_records
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.mechanisms.protocol import statements
from ldpbayes.noise import Gaussian, Laplace
from ldpbayes.tables._known_sums import KnownSum, draw_given_sums, known_sums, tree_of_sums
from ldpbayes.tables._least_squares import Workload, by_name, cell_names, sample_cells

UNCERTAINTY = "of the table: what the cells were before noise was added; not of a population that they are drawn from"
PLACES = 1 << 14  # numbers of a cell whose probabilities are listed; of more, and of real numbers, equal blocks are
DROP = 42.0  # nats by which a cell's log probability has fallen at the ends of its window: e^-42 is 6e-19
CHUNK = 1 << 18  # probabilities that are evaluated at once
GUIDE = 1024  # buckets of the unit interval, most of which belong to one number
_CLOSED = {Gaussian: stats.norm(), Laplace: stats.laplace(scale=math.sqrt(0.5))}  # of standard deviation 1

# some cells (n,), the least number and the length of blocks in their windows (n,), and log probabilities (n, blocks)
_Window: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


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

    This is the uncertainty of the table, from noise alone: not of a population that the cells are a sample of. Sums,
    ratios, comparisons are arithmetic of the draws: ``post["sum"] / post["n"]``, ``post["n"].groupby("state").sum()``.

    Parameters
    ----------
    tables : NoisyTable, or dict of them by name
        Of independent noise. The next five arguments are for all tables, or dicts by the name of a table.
    prior : numpyro distribution, optional
        Law of a cell, with one mode, of batch shape () or (N,). Default: flat.
    whole, nonnegative : bool, optional
        Whether cells are whole numbers (default: where noise or prior is discrete), and at least 0 (default: if whole).
    total : float or dict, optional
        Known sums, of all cells or by keys and labels: ``{None: 90, "state": {"A": 51}, ("state", "sex"): {("A", "f"):
        4}}``; of whole numbers, or of real ones without bounds under Gaussian noise. ValueError for sums that
        contradict each other, or overlap and are not nested.
    zeros : array of bool (N,), optional
        Cells that are known to be 0.
    queries : "keys", or matrices, optional
        The tables hold sums of one table's cells, which are drawn: see `estimate_table`, also for ``cells``. They are
        real numbers; from the normal law of least squares if they have no bounds and all noise is Gaussian (or
        discrete Gaussian, as an approximation), else by chains, with the options of `fit`.
    num_samples, num_chains, seed : int, optional
        Draws a chain, chains (default: 4 where any run, else 1 of independent draws), and the seed that fixes draws.

    Returns
    -------
    arviz.InferenceData (ArviZ 0.23) or xarray.DataTree (ArviZ ≥ 1.0)
        Group posterior, with a variable a table ("cells" if there is no dict, or with queries) along the table's
        dimension; keys are coordinates. Attributes: ``uncertainty``, ``privacy``, ``mechanisms``, ``seed``.
    """
    num_samples, seed = at_least(1, "num_samples", num_samples), at_least(0, "seed", seed)
    chains = None if num_chains is None else at_least(1, "num_chains", num_chains)
    about = {"prior": prior, "whole": whole, "total": total, "zeros": zeros, "nonnegative": nonnegative}
    named, result = by_name(tables), {}
    if queries is not None or cells is not None:
        if misplaced := [name for name, value in about.items() if value is not None and name != "nonnegative"]:
            raise ValueError(f"{misplaced[0]} is for tables of cells, and with queries= tables hold sums of cells")
        work = Workload.of(tables, None if isinstance(queries, str) and queries == "keys" else queries, cells)
        draws, statistics = sample_cells(work, nonnegative is not False, num_samples, chains, seed, options)
        return _described({"cells": (work.keys, draws)}, named, seed, statistics)
    if options:
        raise TypeError(f"true_table has no option {', '.join(options)} (those of fit are for chains, with queries=)")

    def own(value: Any, name: str) -> Any:
        split = isinstance(tables, Mapping) and isinstance(value, Mapping) and value.keys() <= named.keys()
        return value.get(name) if split else value

    laws = [_Law(name, each, **{key: own(value, name) for key, value in about.items()}) for name, each in named.items()]
    with jax.enable_x64(True), ThreadPoolExecutor() as pool:
        for number, law in enumerate(laws):
            rngs = (np.random.Generator(np.random.SFC64([seed, number, part])) for part in itertools.count())
            values = law.sample(rngs, (chains or 1) * num_samples, pool).reshape(-1, chains or 1, num_samples)
            result[law.name] = law.keys, np.moveaxis(values, 0, -1)
    return _described(result, named, seed)


class _Law:
    """The posterior of one table's cells, independent of each other but for sums that are known."""

    def __init__(
        self, name: str, table: Any, *, prior: Any, whole: Any, nonnegative: Any, total: Any, zeros: Any
    ) -> None:
        self.name, self.prior, self.keys, self.mechanism = name, prior, table.keys, table.mechanism
        self.z, self.noise, shape = np.asarray(table.values, float), table.mechanism.noise, (table.count,)
        if prior is not None and not (isinstance(prior, dist.Distribution) and prior.shape() in ((), shape)):
            raise ValueError(f"{name}: prior must be a NumPyro law of batch shape () or {shape}, got {prior!r}")
        fixed = np.zeros(shape, bool) if zeros is None else np.asarray(zeros)
        if fixed.shape != shape or fixed.dtype != bool:
            raise ValueError(f"{name}: zeros must be {table.count} bools, one a cell, got {zeros!r}")
        discrete = self.noise.discrete or (prior is not None and prior.support.is_discrete)
        self.whole = discrete if whole is None else bool(whole)
        if discrete and not self.whole:
            raise ValueError(f"{name}: whole=False, but the noise or the prior is of whole numbers")
        support = None if prior is None else prior.support
        bounded = self.whole if nonnegative is None else nonnegative
        least = np.maximum(getattr(support, "lower_bound", -math.inf), 0.0 if bounded else -math.inf)
        self.least = np.where(fixed, 0.0, np.ceil(least) if self.whole else least)
        self.most = np.where(fixed, 0.0, getattr(support, "upper_bound", math.inf))
        self.scale = np.broadcast_to(self.noise.standard_deviation, shape)
        self.sums = [] if total is None else known_sums(table, total, self.least, self.most, self.whole)
        plain = isinstance(self.mechanism, Additive) and prior is None and not self.whole
        self.closed: Any = _CLOSED.get(type(self.noise)) if plain else None
        normal = self.closed and isinstance(self.noise, Gaussian) and np.isinf(self.least).all()
        if self.sums and not self.whole and not normal:
            need = "total is for whole numbers, or real ones without bounds, zeros and prior under Gaussian noise"
            raise ValueError(f"{name}: {need}; give the sums as a table of little noise, with queries='keys'")

    def sample(self, rngs: Any, count: int, pool: ThreadPoolExecutor) -> np.ndarray:
        """Draws (N, count)."""
        result = np.empty((len(self.z), count), np.int64 if self.whole else float)
        if self.closed:
            parts: Any = np.array_split(np.arange(len(self.z)), 1 + result.size // CHUNK)
            list(pool.map(partial(self._draw_closed, result), rngs, parts))
            for known in self.sums:  # a normal law given its sum
                shares = self.scale[known.rows, None] ** 2 / np.sum(self.scale[known.rows] ** 2)
                result[known.rows] += shares * (known.value - result[known.rows].sum(axis=0))
            return result
        free = np.setdiff1d(np.arange(len(self.z)), [row for known in self.sums for row in known.rows])
        places = self._places(*self._start(free))
        groups = [(free[places == size], size) for size in np.unique(places)]
        chunks = (part for rows, size in groups for part in np.array_split(rows, -(-len(rows) * size // CHUNK)))
        list(pool.map(partial(_draw, result, self.whole), rngs, map(self.window, chunks)))
        for known in self.sums:
            _, low, _, log_p = self.window(known.rows, known)
            tree = tree_of_sums(list(zip(low.astype(int), np.exp(log_p), strict=True)))
            result[known.rows] = draw_given_sums(next(rngs), tree, np.full(count, int(known.value)))
        return result

    def _draw_closed(self, result: np.ndarray, rng: np.random.Generator, rows: np.ndarray) -> None:
        """Released values less noise, which is at most what leaves a cell its least number."""
        z, scale, least, law = self.z[rows, None], self.scale[rows, None], self.least[rows, None], self.closed
        shape = len(rows), result.shape[1]
        if np.isinf(least).all():
            noise = law.rvs(shape, random_state=rng)
        else:  # the limit is for values so far below the least number that their probability underflows
            noise = law.ppf(np.maximum(rng.random(shape) * law.cdf((z - least) / scale), 1e-300))
        result[rows] = np.clip(z - scale * noise, least, self.most[rows, None])

    def _start(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Windows around released values, beyond which noise is negligible."""
        mean = np.nan if self.prior is None else np.asarray(self.prior.mean)
        unknown = np.where(np.isfinite(mean), mean, np.where(np.isfinite(self.least), self.least, 0.0))
        centre = np.clip(np.where(np.isnan(self.z), unknown, self.z), self.least, self.most)[rows]
        reach = (30.0 if self.noise.linear_tails else 9.3) * self.scale[rows] + 3 * self.whole
        low, high = np.maximum(centre - reach, self.least[rows]), np.minimum(centre + reach, self.most[rows])
        return (np.floor(low), np.ceil(high)) if self.whole else (low, high)

    def _places(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Numbers or blocks of windows: powers of 2, so that few functions are compiled."""
        return np.clip(2 ** np.ceil(np.log2(high - low + 1 if self.whole else PLACES + 0 * low)), 32, PLACES).astype(
            int
        )

    def window(self, rows: np.ndarray, known: KnownSum | None = None) -> _Window:
        """Windows that are widened until the probabilities at their ends are negligible.

        With a known sum p_j(k) becomes p_j(k)·exp(θ k), which changes no law given the sum; where the sum is the mean
        of this law nothing underflows.
        """
        least, most, (low, high), prior = self.least[rows], self.most[rows], self._start(rows), self.prior
        if known is not None and np.isfinite(least).all():
            most = np.minimum(most, known.value - (least.sum() - least))
        pad = partial(np.pad, pad_width=(0, 2 ** math.ceil(math.log2(len(rows))) - len(rows)), mode="edge")
        prior = law_of_records(prior, pad(rows)) if prior is not None and prior.batch_shape else prior
        parts = self.mechanism.of_records(self.z.shape, pad(rows)), prior, pad(self.z[rows])
        while True:
            low, high = np.clip(low, least, most), np.clip(high, least, most)
            places, span = int(self._places(low, high).max()), high - low + self.whole
            step = np.ceil(span / places) if self.whole else span / places
            step = step + (1 - step % 2) * self.whole  # an odd number of whole numbers, whose middle is one
            ends = map(pad, (low + (step - self.whole) / 2, step, most))
            log_p = np.asarray(_log_probabilities(places, *parts, *ends))[: len(rows)]
            log_p = log_p if known is None else _tilted(log_p, known.value - low.sum())
            peak = log_p.max(axis=1)
            last = np.clip(np.ceil(span / np.where(step > 0, step, 1)).astype(int) - 1, 0, places - 1)
            below = (log_p[:, 0] > peak - DROP) & (low > least)
            above = (log_p[np.arange(len(rows)), last] > peak - DROP) & (high < most)
            lost = ~np.isfinite(peak) | ((below | above) & (span > 2.0**24 * (1 + self.scale[rows])))
            if lost.any():
                row, why = rows[np.argmax(lost)], "this prior"
                why = "a flat prior, as nothing limits it: state its law, prior=" if prior is None else why
                cell = f"cell {str(cell_names(self.keys, len(self.z))[row])!r}, reported as {self.z[row]:g},"
                raise ValueError(f"{self.name}: {cell} has no proper posterior under {why}")
            if known is not None and step.max() > 1:
                raise ValueError(f"{self.name}: total of {known.name}: cells have more than {PLACES:,} likely numbers")
            wide = below | above
            start, stop = np.where(below, -span, 0), np.where(above, 2 * span, span)
            if not wide.any() and step.max() > self.whole:  # blocks: are the likely ones few?
                likely = log_p > peak[:, None] - DROP
                first, end = likely.argmax(axis=1) - 1, places + 1 - likely[:, ::-1].argmax(axis=1)
                wide = (end - first < places // 2) & (step > self.whole)
                start, stop = np.where(wide, step * first, start), np.where(wide, step * end, stop)
            if not wide.any():
                return rows, low, step, log_p
            low, high = low + start, low + stop - self.whole


@partial(jax.jit, static_argnums=0)
def _log_probabilities(places: int, mechanism: Any, prior: Any, z: Array, low: Array, step: Array, most: Array) -> Any:
    x = low + step * jnp.arange(float(places))[:, None]
    inside = jnp.minimum(x, most)
    log_p = mechanism.log_prob(z, inside) + (0.0 if prior is None else prior.log_prob(inside))
    return jnp.where((x <= most) & ~jnp.isnan(log_p), log_p, -jnp.inf).T


def _tilted(log_p: np.ndarray, target: float) -> np.ndarray:
    """Normalised log probabilities (n, places) in proportion to p·exp(θ place), where the mean sum is `target`."""
    places = np.arange(float(log_p.shape[1]))
    steepest = np.abs(np.diff(np.maximum(log_p, log_p.max(axis=1, keepdims=True) - 1e5), axis=1)).max(initial=0.0)
    ends = [-50.0 - steepest, 50.0 + steepest]
    for _ in range(100):
        tilted = special.log_softmax(log_p + sum(ends) / 2 * places, axis=1)
        excess = float(np.sum(np.exp(tilted) @ places)) - target
        if abs(excess) < 0.01:
            break
        ends[int(excess > 0)] = sum(ends) / 2
    return tilted


def _draw(result: np.ndarray, whole: bool, rng: np.random.Generator, window: _Window) -> None:
    """Draws by inversion. Most buckets of the unit interval lie in one number, which a table gives."""
    rows, low, step, log_p = window
    cumulative, count = np.cumsum(np.exp(log_p - log_p.max(axis=1, keepdims=True)), axis=1), result.shape[1]
    cumulative /= cumulative[:, -1:]
    for some in np.array_split(np.arange(len(rows)), 1 + len(rows) * count // (1 << 17)):
        c, row = cumulative[some], np.arange(len(some))[:, None]
        bucket = np.minimum((c * GUIDE).astype(np.int64), GUIDE) + row * (GUIDE + 1)
        steps = np.bincount(bucket.ravel(), minlength=len(c) * (GUIDE + 1)).reshape(len(c), -1)[:, :GUIDE]
        guide = np.where(steps > 0, -1, np.cumsum(steps, axis=1))
        bucket = rng.integers(0, GUIDE, (len(c), count), dtype=np.uint16)
        place = guide.ravel().take(bucket + row * GUIDE)
        (shared,) = np.nonzero(place.ravel() < 0)
        u, whose = (bucket.ravel()[shared] + rng.random(len(shared))) / GUIDE, shared // count
        place.ravel()[shared] = (c + row).ravel().searchsorted(u + whose) - whose * c.shape[1]
        values = (
            place
            if step.max() == 1 and whole
            else place * step[some, None] + rng.random(place.shape) * step[some, None]
        )
        result[rows[some]] = low[some, None].astype(result.dtype) + values.astype(result.dtype)  # anywhere in a block


def _described(draws: dict[str, tuple], tables: Mapping[str, NoisyTable], seed: int, statistics: Any = None) -> Any:
    """ArviZ data of draws (chains, draws, N) by name, with their keys."""
    dims, coords, beside = dict[str, list[str]](), dict[str, np.ndarray](), dict[str, tuple[str, np.ndarray]]()
    for name, (keys, values) in draws.items():
        labels, dim = cell_names(keys, values.shape[-1]), next(iter(keys)) if len(keys) == 1 else "cell"
        same = dim not in beside and np.array_equal(coords.get(dim, labels), labels)
        dims[name] = [dim := dim if same else f"{name}_{dim}"]
        coords[dim] = labels
        for key, each in keys.items() if len(keys) > 1 else ():
            own = key not in coords and beside.get(key, (dim,))[0] == dim
            beside[key if own else f"{name}_{key}"] = dim, each
    groups = {"posterior": {name: values for name, (_, values) in draws.items()}, "sample_stats": statistics or {}}
    result, mechanisms = inference_data(groups, dims, coords), [each.mechanism for each in tables.values()]
    assign_coords(result, "posterior", beside)
    specs = json.dumps([mechanism.spec() for mechanism in mechanisms])
    result.attrs.update(uncertainty=UNCERTAINTY, privacy=statements(mechanisms), mechanisms=specs, seed=seed)
    return result
