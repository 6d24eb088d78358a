"""The true table: draws of what the cells of published tables were before noise was added."""

import itertools
import json
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy import special

from ldpbayes._core.checks import at_least
from ldpbayes._core.types import Array
from ldpbayes.data import NoisyTable
from ldpbayes.inference.result import assign_coords, inference_data
from ldpbayes.likelihood.privatized import law_of_records
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.mechanisms.protocol import statements
from ldpbayes.noise import Gaussian, Laplace
from ldpbayes.tables._known_sums import KnownSum, draw_given_sum, known_sums
from ldpbayes.tables._least_squares import Workload, cell_names, sample_latent

UNCERTAINTY = "of the table: what the cells were before noise was added; not of a population that they are drawn from"
PLACES = 1 << 14  # numbers of a cell whose probabilities are listed; of more, and of real numbers, equal blocks are
DROP = 42.0  # nats by which a cell's log probability has fallen at the ends of its window: e^-42 is 6e-19
CHUNK = 1 << 18  # probabilities that are evaluated at once
GUIDE = 1024  # buckets of the unit interval, most of which belong to one number
_LOG_2 = math.log(2)


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
    ratios and ranks are arithmetic of the draws: ``post["sum"] / post["n"]``, ``post["n"].groupby("state").sum()``.

    Parameters
    ----------
    tables : NoisyTable, or dict of them by name
        Of independent noise. The next five arguments are for all tables, or dicts by the name of a table.
    prior : numpyro distribution, optional
        Law of a cell, with one mode, of batch shape () or (N,). Default: flat.
    whole, nonnegative : bool, optional
        Whether cells are whole numbers (default: where noise or prior is discrete), and at least 0 (default: if whole).
    total : float or dict, optional
        Known sums, of all cells or by key and label: ``{None: 900, "state": {"A": 510}, ("state", "age"): {("A", "0-9"):
        40}}``. Of whole numbers, or of real ones without bounds under Gaussian noise.
    zeros : array of bool (N,), optional
        Cells that are known to be 0.
    queries : "keys", or matrices, optional
        The tables hold sums of one table's cells, which are drawn: see `least_squares`, also for ``cells``. They are
        real numbers, from the normal law of least squares if they have no bounds and all noise is Gaussian (for
        discrete noise this is an approximation), else by chains.
    num_samples, num_chains : int, optional
        Draws a chain, and chains. Default: 4 chains where any run, else 1, of independent draws.
    seed : int
        Draws are a function of the seed, the data and the library versions.
    **options
        Of `fit`, where chains run.

    Returns
    -------
    arviz.InferenceData (ArviZ 0.23) or xarray.DataTree (ArviZ ≥ 1.0)
        Group posterior, with a variable a table ("cells" if there is no dict, or with queries) along the table's
        dimension; keys are coordinates. Attributes: ``uncertainty``, ``privacy``, ``mechanisms``, ``seed``.

    Raises
    ------
    ValueError
        For a cell without a proper posterior; for known sums that contradict each other, or overlap but are not nested.
    """
    num_samples, seed = at_least(1, "num_samples", num_samples), at_least(0, "seed", seed)
    chains = None if num_chains is None else at_least(1, "num_chains", num_chains)
    about_cells = {"prior": prior, "whole": whole, "nonnegative": nonnegative, "total": total, "zeros": zeros}
    if queries is not None or cells is not None:
        if misplaced := [name for name in ("prior", "whole", "total", "zeros") if about_cells[name] is not None]:
            raise ValueError(
                f"{misplaced[0]} is for tables of cells; with queries= tables are sums of one table's cells"
            )
        work = Workload.of(tables, None if isinstance(queries, str) and queries == "keys" else queries, cells)
        draws, statistics = sample_latent(work, nonnegative is not False, num_samples, chains, seed, options)
        return _described({"cells": (work.keys, draws)}, statistics, list(work.tables.values()), seed)
    if options:
        raise TypeError(f"{', '.join(options)}: options of fit are for chains, and independent cells need none")
    named, result = dict(tables) if isinstance(tables, Mapping) else {"cells": tables}, {}
    split = [name for name, value in about_cells.items() if isinstance(value, Mapping) and set(value) <= set(named)]
    split = split if isinstance(tables, Mapping) else []
    laws = [
        _Law(name, table, **{each: v.get(name) if each in split else v for each, v in about_cells.items()})
        for name, table in named.items()
    ]
    with jax.enable_x64(True), ThreadPoolExecutor() as pool:
        for number, law in enumerate(laws):
            rngs = (np.random.Generator(np.random.SFC64([seed, number, part])) for part in itertools.count())
            values = law.sample(rngs, (chains or 1) * num_samples, pool).reshape(-1, chains or 1, num_samples)
            result[law.name] = law.keys, np.moveaxis(values, 0, -1)
    return _described(result, {}, list(named.values()), seed)


class _Window(NamedTuple):
    """Log probabilities (n, places) of some cells, up to a constant a cell: of the numbers, or blocks, from `low` on."""

    rows: np.ndarray
    low: np.ndarray
    step: np.ndarray
    log_p: np.ndarray


# noise of scale 1: how it is drawn, log P(noise ≤ t), and its inverse
_CLOSED = {
    Gaussian: (np.random.Generator.standard_normal, special.log_ndtr, special.ndtri_exp),
    Laplace: (
        partial(np.random.Generator.laplace, loc=0.0, scale=1.0),
        lambda t: np.where(t < 0, t - _LOG_2, np.log1p(-np.exp(-np.abs(t)) / 2)),
        lambda y: np.where(y < -_LOG_2, y + _LOG_2, -_LOG_2 - np.log(-np.expm1(np.minimum(y, -1e-300)))),
    ),
}


class _Law:
    """The posterior of one table's cells, independent of each other but for sums that are known."""

    def __init__(self, name: str, table: Any, prior: Any, whole: Any, nonnegative: Any, total: Any, zeros: Any) -> None:
        if not isinstance(table, NoisyTable) or table.values is None:
            raise TypeError(f"{name}: true_table takes a NoisyTable with values, or a dict of them, got {table!r}")
        self.name, self.prior, self.keys, self.mechanism = name, prior, table.keys, table.mechanism
        self.z, self.noise, shape = np.asarray(table.values, float), table.mechanism.noise, (table.count,)
        if prior is not None and not (isinstance(prior, dist.Distribution) and prior.shape() in ((), (1,), shape)):
            raise ValueError(f"{name}: prior must be a NumPyro law of batch shape () or {shape}, got {prior!r}")
        fixed = np.zeros(shape, bool) if zeros is None else np.asarray(zeros)
        if fixed.shape != shape or fixed.dtype != bool:
            raise ValueError(f"{name}: zeros must be {table.count} bools, one a cell, got {zeros!r}")
        discrete = self.noise.discrete or (prior is not None and prior.support.is_discrete)
        self.whole = discrete if whole is None else bool(whole)
        if discrete and not self.whole:
            raise ValueError(f"{name}: whole=False, but the noise or the prior is of whole numbers")
        support = None if prior is None else prior.support
        least = np.maximum(
            getattr(support, "lower_bound", -math.inf),
            0.0 if nonnegative is None and self.whole or nonnegative else -math.inf,
        )
        most = getattr(support, "upper_bound", math.inf)
        self.least, self.most = (
            np.where(fixed, 0.0, np.ceil(least) if self.whole else least),
            np.where(fixed, 0.0, most),
        )
        self.scale = np.broadcast_to(self.noise.standard_deviation, shape)
        self.closed = (
            isinstance(self.mechanism, Additive) and prior is None and type(self.noise) in _CLOSED and not self.whole
        )
        self.sums = [] if total is None else known_sums(table, total, self.least, self.most, self.whole)
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
        parts = (
            self.window(part)
            for size in np.unique(places)
            for part in np.array_split(free[places == size], -(-np.sum(places == size) * size // CHUNK))
        )
        list(pool.map(partial(_draw, result, self.whole), rngs, parts))
        for known in self.sums:
            part = self.window(known.rows, known)
            laws = [(int(low), np.exp(log_p)) for low, log_p in zip(part.low, part.log_p, strict=True)]
            result[known.rows] = draw_given_sum(next(rngs), laws, int(known.value), count)
        return result

    def _draw_closed(self, result: np.ndarray, rng: np.random.Generator, rows: np.ndarray) -> None:
        """Released values less noise, which is at most what leaves a cell its least number."""
        draw, log_cdf, inverse = _CLOSED[type(self.noise)]
        scale = self.scale[rows, None] / (math.sqrt(2) if isinstance(self.noise, Laplace) else 1)
        z, least, shape = self.z[rows, None], self.least[rows, None], (len(rows), result.shape[1])
        free = np.isinf(least).all()
        noise = draw(rng, size=shape) if free else inverse(np.log1p(-rng.random(shape)) + log_cdf((z - least) / scale))
        result[rows] = np.clip(z - scale * noise, least, self.most[rows, None])

    def _start(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Windows around released values, beyond which noise is negligible."""
        mean = np.nan if self.prior is None else np.asarray(self.prior.mean)
        unknown = np.where(np.isfinite(mean), mean, np.where(np.isfinite(self.least), self.least, 0.0))
        centre = np.clip(np.where(np.isnan(self.z), unknown, self.z), self.least, self.most)[rows]
        reach = (30.0 if self.noise.linear_tails else 9.3) * self.scale[rows] + 3 * self.whole
        ends = np.maximum(centre - reach, self.least[rows]), np.minimum(centre + reach, self.most[rows])
        return (np.floor(ends[0]), np.ceil(ends[1])) if self.whole else ends

    def _places(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """How many numbers or blocks windows have: powers of 2, so that few functions are compiled."""
        numbers = high - low + 1 if self.whole else np.full(len(low), np.inf)
        return np.clip(2 ** np.ceil(np.log2(numbers)), 32, PLACES).astype(int)

    def window(self, rows: np.ndarray, known: KnownSum | None = None) -> _Window:
        """Windows that are widened until the probabilities at their ends are negligible.

        With a known sum p_j(k) becomes p_j(k)·exp(θ k): given the sum the law of the cells is the same for any θ, and
        where the sum is the mean of this law nothing underflows.
        """
        least, most, (low, high) = self.least[rows], self.most[rows], self._start(rows)
        if known is not None and np.isfinite(least).all():
            most = np.minimum(most, known.value - (least.sum() - least))
        size = 2 ** math.ceil(math.log2(len(rows)))  # few sizes, as a function is compiled for each
        at = np.pad(rows, (0, size - len(rows)), "edge")
        prior = (
            self.prior
            if self.prior is None or not self.prior.batch_shape
            else law_of_records(self.prior, at * (self.prior.batch_shape != (1,)))
        )
        parts = self.mechanism.of_records(self.z.shape, at), prior, self.z[at]
        while True:
            low, high = np.clip(low, least, most), np.clip(high, least, most)
            places, span = int(self._places(low, high).max()), high - low + self.whole
            step = np.ceil(span / places) if self.whole else span / places
            step = step + (1 - step % 2) * self.whole  # an odd number of whole numbers, whose middle is one
            padded = [
                np.pad(each, (0, size - len(rows)), "edge") for each in (low + (step - self.whole) / 2, step, most)
            ]
            log_p = np.asarray(_log_probabilities(places, *parts, *padded))[: len(rows)]
            log_p = log_p if known is None else _tilted(log_p, known.value - low.sum())
            peak = log_p.max(axis=1)
            last = np.clip(np.ceil(span / np.where(step > 0, step, 1)).astype(int) - 1, 0, places - 1)
            below = (log_p[:, 0] > peak - DROP) & (low > least)
            above = (log_p[np.arange(len(rows)), last] > peak - DROP) & (high < most)
            lost = ~np.isfinite(peak) | ((below | above) & (span > 2.0**35 * (1 + self.scale[rows])))
            if lost.any():
                row = rows[np.argmax(lost)]
                cell = f"cell {str(cell_names(self.keys, len(self.z))[row])!r}, reported as {self.z[row]:g},"
                why = "flat prior, as nothing limits it: state its law, prior=" if self.prior is None else "prior"
                raise ValueError(f"{self.name}: {cell} has no proper posterior under this {why}")
            if known is not None and step.max() > 1:
                raise ValueError(f"{self.name}: total of {known.name}: cells have more than {PLACES:,} likely numbers")
            low, high = low - below * span, high + above * span
            if not (below | above).any():
                if step.max() <= self.whole:
                    return _Window(rows, low, step, log_p)
                likely = log_p > peak[:, None] - DROP
                first, stop = likely.argmax(axis=1), places - likely[:, ::-1].argmax(axis=1)
                coarse = stop - first < places // 2 - 2
                if not coarse.any():
                    return _Window(rows, low, step, log_p)
                high = np.where(coarse, low + step * (stop + 1), high)
                low = np.where(coarse, low + step * (first - 1), low)


@partial(jax.jit, static_argnums=0)
def _log_probabilities(
    places: int, mechanism: Any, prior: Any, z: Array, low: Array, step: Array, most: Array
) -> Array:
    x = low + step * jnp.arange(float(places))[:, None]
    inside = jnp.minimum(x, most)
    log_p = mechanism.log_prob(z, inside) + (0.0 if prior is None else prior.log_prob(inside))
    return jnp.where((x <= most) & ~jnp.isnan(log_p), log_p, -jnp.inf).T


def _tilted(log_p: np.ndarray, target: float) -> np.ndarray:
    """Normalised log probabilities (n, places) in proportion to p·exp(θ place), where places sum to `target` in mean."""
    places = np.arange(float(log_p.shape[1]))
    steepest = np.abs(np.diff(np.maximum(log_p, log_p.max(axis=1, keepdims=True) - 1e5), axis=1)).max(initial=0.0)
    ends = [-50.0 - steepest, 50.0 + steepest]
    for _ in range(100):
        tilted = log_p + sum(ends) / 2 * places
        tilted -= special.logsumexp(tilted, axis=1, keepdims=True)
        excess = float(np.sum(np.exp(tilted) @ places)) - target
        if abs(excess) < 0.01:
            break
        ends[int(excess > 0)] = sum(ends) / 2
    return tilted


def _draw(result: np.ndarray, whole: bool, rng: np.random.Generator, part: _Window) -> None:
    """Draws by inversion. Most buckets of the unit interval lie in one number, found in a table; others are searched."""
    cumulative = np.cumsum(np.exp(part.log_p - part.log_p.max(axis=1, keepdims=True)), axis=1)
    cumulative /= cumulative[:, -1:]
    count = result.shape[1]
    for some in np.array_split(np.arange(len(cumulative)), 1 + len(cumulative) * count // (1 << 16)):
        c, row = cumulative[some], np.arange(len(some))[:, None]
        bucket = np.minimum((c * GUIDE).astype(np.int64), GUIDE) + row * (GUIDE + 1)
        steps = np.bincount(bucket.ravel(), minlength=len(c) * (GUIDE + 1)).reshape(len(c), -1)[:, :GUIDE]
        guide = np.where(steps > 0, -1, np.cumsum(steps, axis=1))
        bucket = rng.integers(0, GUIDE, (len(c), count), dtype=np.uint16)
        place = guide.ravel().take(bucket + row * GUIDE)
        (shared,) = np.nonzero(place.ravel() < 0)
        u, whose = (bucket.ravel()[shared] + rng.random(len(shared))) / GUIDE, shared // count
        place.ravel()[shared] = (c + row).ravel().searchsorted(u + whose) - whose * c.shape[1]
        low, step = part.low[some, None], part.step[some, None]
        if not whole or step.max() > 1:  # anywhere in the block
            inside = rng.random(place.shape) * step
            result[part.rows[some]] = low + step * place + (np.floor(inside) if whole else inside)
        else:
            result[part.rows[some]] = low.astype(np.int64) + place


def _described(draws: dict[str, tuple[Mapping, np.ndarray]], statistics: Any, tables: list, seed: int) -> Any:
    """ArviZ data of draws (chains, draws, N) by name, with their keys."""
    dims: dict[str, list[str]] = {}
    coords: dict[str, np.ndarray] = {}
    beside: dict[str, tuple[str, np.ndarray]] = {}
    for name, (keys, values) in draws.items():
        labels, dim = cell_names(keys, values.shape[-1]), next(iter(keys)) if len(keys) == 1 else "cell"
        dim = dim if np.array_equal(coords.get(dim, labels), labels) else f"{name}_{dim}"
        dims[name], coords[dim] = [dim], labels
        beside |= {key: (dim, each) for key, each in keys.items() if key not in {dim, *beside}}
    groups = {"posterior": {name: values for name, (_, values) in draws.items()}, "sample_stats": statistics}
    result = inference_data(groups, dims, coords)
    assign_coords(result, "posterior", beside)
    specs = json.dumps([table.mechanism.spec() for table in tables])
    privacy = statements([table.mechanism for table in tables])
    result.attrs.update(uncertainty=UNCERTAINTY, privacy=privacy, mechanisms=specs, seed=seed)
    return result
