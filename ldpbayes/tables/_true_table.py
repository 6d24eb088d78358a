"""The true table: draws of what the cells of published tables were before noise was added, also given exact sums."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy import optimize, signal, special

from ldpbayes._core.checks import at_least, checked, ends_of
from ldpbayes._core.types import Array, ArrayModule
from ldpbayes.data import NoisyTable
from ldpbayes.data.release import promises
from ldpbayes.inference.density import Site
from ldpbayes.inference.result import UNCERTAINTY, inference_data, labels
from ldpbayes.laws.compound import law_of_records
from ldpbayes.laws.families import CATEGORICAL, family_of, unexpanded
from ldpbayes.tables._least_squares import Workload, by_name, sample_cells

MAX_PLACES = 1 << 14  # numbers of a cell whose probabilities are listed; of more, and of real numbers, equal blocks are
WINDOW_NATS = 42.0  # nats by which a cell's log probability has fallen at the ends of its window: e^-42 is 6e-19
BLOCK_MOVES = 6  # in which blocks may be moved (in the last three of them to twice as many), until their
CDF_ERROR = 1e-5  # distribution function is as exact
HIDDEN_MASS = 0.01  # that is looked for in long blocks with the centre of a prior, or an end of whole numbers
END_GAP, LEAST_GAP = 1e-8, 1e-300  # distance from an end, in sizes of the end and in all, within which nothing is moved
FIXED_SHARE = 0.1  # share of the blocks that stays where it is
CELL_ROWS = 128  # cells whose probabilities are evaluated at once
FEW_CELL_ROWS = 8  # or these, where there are no more: with 128 rows most of the time would go into repeated cells
DRAWS_AT_ONCE = 1 << 20  # draws that are made at once
END_SHARE = 1e-15  # share of the largest probability below which ends of a sum's law are cut off
MAX_PROBABILITIES = 1 << 23  # probabilities of parts given their sum that are held at once
MAX_TILT = 1e5  # largest slope of log probabilities, a whole number, by which laws are tilted
WHOLE_NUMBER = "a whole number", lambda a: a == np.round(a)


def true_table(
    tables: NoisyTable | Mapping[str, NoisyTable],
    *,
    prior: Any = None,
    whole: Any = None,
    nonnegative: Any = None,
    total: Any = None,
    zeros: Any = None,
    queries: Any = None,
    num_samples: int = 1000,
    seed: int = 0,
    **options: Any,
) -> Any:
    """Draw the true table (the cells before noise was added) from its posterior, given the released table.

    The draws include only the uncertainty from the noise. They do not describe a population from which the people in
    the table are a sample. Compute sums and ratios of cells from the draws, for example
    ``posterior["n"].groupby("state").sum()``.

    Parameters
    ----------
    tables : NoisyTable, or dict of them by name
        One or several released tables with independent noise. Each of the arguments ``prior`` to
        ``total`` below is for all tables, or is a dict with one value for each name of a table.
    prior : numpyro distribution, optional
        Prior of a cell before noise, with a single mode. Its batch shape is () for all cells, or (N,) for N cells.
        Default: a flat prior.
    whole, nonnegative, zeros : bool, and array of bool (N,), optional
        Whether the cells before noise are whole numbers (by default if the noise or the prior is discrete), whether
        they are at least 0 (by default if they are whole), and which cells are known to be 0.
    total : int, dict or series of pandas, optional
        Only for cells that are whole numbers: sums that are known exactly. An integer is the sum of all cells. A dict
        has sums by keys and labels. For example, with ``{None: 90, "state": {"A": 51}}`` the sum of all cells is 90,
        and the sum of state A is 51. A series has sums by the labels of its index, which has the name of the key.
        Raises ValueError if sums contradict each other, or if two sums overlap and neither contains the other.
    queries : "keys", or matrices, optional
        Only if the released values are sums of cells of one table: "keys" if the sums follow from the keys, or matrices
        as in `estimate_table`. The cells are then real numbers, and the draws come from chains, or from a normal law
        with ``nonnegative=False`` and (discrete) Gaussian noise.
    num_samples, seed, **options
        Number of draws (if they come from chains, for each chain), random seed, and, only if the draws come from
        chains, options of `fit`.

    Returns
    -------
    arviz.InferenceData (ArviZ 0.23) or xarray.DataTree (ArviZ ≥ 1.0)
        The draws, in the group ``posterior``: a variable for each name in ``tables``, or "cells" for a single table and
        with ``queries``. The keys of the table are coordinates of the variable. Attributes state the privacy guarantees
        and the mechanisms.
    """
    num_samples, seed = at_least(1, "num_samples", num_samples), at_least(0, "seed", seed)
    about = {"prior": prior, "whole": whole, "total": total, "zeros": zeros, "nonnegative": nonnegative}
    named, statistics = by_name(tables), dict[str, Any]()

    def of_table(value: Any, name: str) -> Any:
        split = isinstance(tables, Mapping) and isinstance(value, Mapping) and value.keys() <= named.keys()
        return value.get(name) if split else value

    if queries is not None:
        if misplaced := [name for name, value in about.items() if value is not None and name != "nonnegative"]:
            raise ValueError(f"{misplaced[0]} is not possible with queries=, because tables then hold sums of cells")
        work = Workload(tables, None if isinstance(queries, str) and queries == "keys" else queries)
        draws, statistics = sample_cells(work, nonnegative is not False, num_samples, seed, options)
        result, cells = {"cells": draws}, {"cells": work.cells}
    elif options:
        raise TypeError(f"true_table has no option {', '.join(options)} (options of fit are only for queries=)")
    else:
        laws = [
            _TablePosterior(name, table, **{option: of_table(value, name) for option, value in about.items()})
            for name, table in named.items()
        ]
        with jax.enable_x64(True), ThreadPoolExecutor() as pool:
            result = {law.name: law.sample([seed, i], num_samples, pool)[None] for i, law in enumerate(laws)}
        cells = dict(named)
        for name, table in named.items():  # one order of equal cells, by their keys
            first = next(other for other in named.values() if other is table or table.rows_of(other) is not None)
            rows, cells[name] = slice(None) if first is table else table.rows_of(first), first
            result[name] = result[name][..., rows]
    sites = {
        name: Site(True, False, [] if cells[name] else ["cell"], False, shape=draws.shape[2:], release=cells[name])
        for name, draws in result.items()
    }
    data = inference_data({"posterior": result, "sample_stats": statistics}, *labels(None, None, sites))
    specs = json.dumps([table.mechanism.spec() for table in named.values()])
    data.attrs.update(uncertainty=UNCERTAINTY[True], privacy=promises([*named.values()]), mechanisms=specs, seed=seed)
    return data


class _TablePosterior:
    """The posterior of one table's cells, independent of each other but for sums that are known."""

    def __init__(self, name: str, table: Any, prior: Any, whole: Any, nonnegative: Any, total: Any, zeros: Any) -> None:
        self.name, self.table, self.mechanism, self.prior = name, table, table.mechanism, prior
        self.z, self.noise, shape = np.asarray(table.values, float), table.mechanism.noise, (table.count,)
        if prior is not None and not (isinstance(prior, dist.Distribution) and prior.shape() in ((), shape)):
            raise ValueError(f"{name}: prior must be a NumPyro law of batch shape () or {shape}, got {prior!r}")
        fixed = np.zeros(shape, bool) if zeros is None else np.asarray(zeros)
        if fixed.shape != shape or fixed.dtype != bool:
            raise ValueError(f"{name}: zeros must be {table.count} bools, one for each cell, got {zeros!r}")
        discrete = self.noise.discrete or (prior is not None and prior.support.is_discrete)
        self.whole = discrete if whole is None else bool(whole)
        if discrete and not self.whole:
            raise ValueError(f"{name}: whole=False is not possible, because the noise or the prior is discrete")
        least, most = ends_of(None if prior is None else prior.support)
        least = np.maximum(least, 0.0 if (self.whole if nonnegative is None else nonnegative) else -math.inf)
        self.least = np.where(fixed, 0.0, np.ceil(least) if self.whole else least)
        self.most = np.where(fixed, 0.0, np.floor(most) if self.whole else most)
        self.scale = np.broadcast_to(self.noise.standard_deviation, shape)
        if total is not None and not self.whole:
            need = "total is only for whole numbers: give other sums as a table with small noise, and queries='keys'"
            raise ValueError(f"{name}: {need}")
        self.sums = [] if total is None else known_sums(table, total, self.least, self.most)

    def sample(self, seed: list[int], count: int, pool: ThreadPoolExecutor) -> np.ndarray:
        n = len(self.z)
        plain = self.mechanism is self.mechanism.innermost and self.prior is None and not self.whole
        if plain and np.isinf(self.least).all():  # noise is symmetric about 0
            key = jax.random.fold_in(jax.random.key(seed[0]), seed[1])
            return self.z - np.asarray(self.noise.sample(key, (count, n, 1), float))[..., 0]
        result = np.empty((n, count), np.int64 if self.whole else float)
        rngs = (np.random.Generator(np.random.SFC64([*seed, part])) for part in itertools.count())
        summed = [row for rows, _ in self.sums for row in rows]
        free = np.setdiff1d(np.argsort(self.scale), summed, assume_unique=True)  # cells side by side are as wide
        size = min(CELL_ROWS, -(-DRAWS_AT_ONCE // count))

        def draw(rng: np.random.Generator, rows: np.ndarray) -> None:
            with jax.enable_x64(True):  # which is an affair of each thread
                edges, log_p = self.window(rows)
            counts = rng.multinomial(count, special.softmax(log_p, axis=1))
            place = np.repeat(np.nonzero(counts)[1], counts[counts > 0]).reshape(len(rows), count)
            place = rng.permuted(place, axis=1)
            x, end = (np.take_along_axis(edges, place + side, axis=1) for side in range(2))
            if np.max(end - x) > self.whole:  # anywhere in a block
                x += (end - x) * rng.random(place.shape)
            result[rows] = np.floor(x) if self.whole else x

        list(pool.map(draw, rngs, (free[start : start + size] for start in range(0, len(free), size))))
        for rows, total in self.sums:
            edges, log_p = self.window(rows, total)
            tree = tree_of_sums(list(zip(edges[:, 0].astype(int), np.exp(log_p), strict=True)))
            result[rows] = draw_given_sums(next(rngs), tree, np.full(count, total))
        return result.T

    def window(self, rows: np.ndarray, total: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Edges (n, blocks + 1) and log probabilities of blocks, tilted to a known sum so that nothing underflows."""
        least, most, whole, z = self.least[rows], self.most[rows], self.whole, self.z[rows]
        room = FEW_CELL_ROWS if len(rows) <= FEW_CELL_ROWS else CELL_ROWS
        padded = np.resize(rows, -(-len(rows) // room) * room)  # so that few functions are compiled
        prior = self.prior
        prior = law_of_records(prior, padded) if prior is not None and prior.batch_shape else prior
        laws = self.mechanism.of_records(self.z.shape, padded), prior
        of_cells = [of_all[padded] for of_all in (self.z, self.least, self.most)]

        def log_masses(edges: np.ndarray) -> np.ndarray:
            edges = edges if len(rows) == len(padded) else np.resize(edges, (len(padded), edges.shape[1]))
            return np.asarray(_log_masses(whole, *laws, *of_cells, edges))[: len(rows)]

        reach = (30.0 if self.noise.linear_tails else 9.3) * self.scale[rows] + 3 * whole
        centre = np.clip(np.nan_to_num(z), least, most)
        low, high = centre - reach, centre + reach
        while True:
            low, high = np.clip(low, least, most), np.clip(high, least, most)
            low, high = (np.floor(low), np.ceil(high)) if whole else (low, high)
            span = high - low + whole
            places = min(MAX_PLACES, 2 ** math.ceil(math.log2(max(32, span.max())))) if whole else MAX_PLACES
            step = np.ceil(span / places) if whole else span / places
            step = step + (1 - step % 2) * whole  # an odd number of whole numbers, whose middle is one
            edges = low[:, None] + step[:, None] * np.arange(places + 1.0)
            edges = np.minimum(edges, most[:, None] + whole)
            edges[:, -1] = np.maximum(edges[:, -1], high + whole)
            high = edges[:, -1] - whole
            log_p = log_masses(edges)
            if total is not None:
                if step.max() > 1:
                    raise ValueError(f"{self.name}: a cell of a known total has more than {MAX_PLACES:,} likely values")
                log_p = tilted(log_p, total - low.sum())
            peak = log_p.max(axis=1, keepdims=True)
            likely = log_p > peak - WINDOW_NATS
            first, end = likely.argmax(axis=1), places - likely[:, ::-1].argmax(axis=1)
            below, above = (first == 0) & (low > least), (end == places) & (high < most)
            lost = ~np.isfinite(peak[:, 0]) | ((below | above) & (span > 2.0**40 * (1 + self.scale[rows])))
            if lost.any():
                first = np.argmax(lost)
                why = (
                    "this prior"
                    if prior is not None
                    else "a flat prior without bounds: give bounds (--between), in Python prior="
                )
                why += ", whose density is infinite at a whole number" * bool(peak[first, 0] > 0)
                cell = f"cell {str(self.table.labels[rows[first]])!r}, reported as {z[first]:g},"
                raise ValueError(f"{self.name}: {cell} has no proper posterior under {why}")
            following = np.ceil((end - first + 2) * step / places)
            finer = following + (1 - following % 2) < step if whole else True
            coarse = (step > whole) & (end - first < places // 2) & finer
            if not (below | above | coarse).any():
                break
            high = np.where(above, high + span, low + step * (end + 1) - whole)
            low = np.where(below, low - span, low + step * (first - 1))
        apart = (low > least) & isinstance(unexpanded(prior), dist.discrete.ZeroInflatedProbs) & (total is None)
        if apart.any():  # 0 is likely by itself
            edges[apart, :2] = np.arange(2.0)
            log_p = log_masses(edges)
        if prior is None or (step.max() <= whole and not apart.any()):
            return edges, log_p
        ends = least[:, None], most[:, None] + whole
        at_ends = [(ends[0], 1.0), (ends[1] - 1, 1.0)] if whole else []
        points = [*family_of(prior).centres(), *at_ends]  # with the least widths of blocks that hide them
        hidden = [[np.resize(value, (len(padded), 1))[: len(rows)] for value in pair] for pair in points]
        for attempt in range(BLOCK_MOVES):
            error, need = _needs(whole, edges, log_p, ends, hidden)
            if np.max(error) <= CDF_ERROR:
                break
            count, hidden = places * (1 + (attempt >= BLOCK_MOVES / 2)), []
            edges = _moved(edges, np.asarray(need), count, ends, whole)
            log_p = log_masses(edges)
        return edges, log_p


@partial(jax.jit, static_argnums=0)
def _log_masses(whole: bool, mechanism: Any, prior: Any, z: Array, least: Array, most: Array, edges: Array) -> Array:
    """Log probabilities (n, blocks) by densities at middles, and next to an end by the power that these follow."""
    length = jnp.diff(edges)
    middle = edges[:, :-1] + (jnp.maximum(length - 1, 0) // 2 if whole else length / 2)
    log_p = mechanism.log_prob(z, middle.T).T
    if prior is not None:
        possible = prior.support(middle.T).T if prior.support.is_discrete else True  # 0 may be an open end
        x = middle.astype(int) if isinstance(unexpanded(prior), CATEGORICAL) else middle
        log_p += jnp.where(possible, prior.log_prob(x.T).T, -jnp.inf)
    overflown = ~whole & jnp.isposinf(log_p)  # of a prior near an end, at which no middle is
    log_p = jnp.where(jnp.isnan(log_p) | overflown, -jnp.inf, log_p)
    for end, outer, next_one in ((least, 0, 1), (most, -1, -2)) if prior is not None and not whole else ():
        away = jnp.log(jnp.abs(middle[:, outer] - end) / jnp.abs(middle[:, next_one] - end))
        power = jnp.clip((log_p[:, outer] - log_p[:, next_one]) / away, -0.999, 1.0)
        touches = (edges[:, outer] == end) & jnp.isfinite(power)
        log_p = log_p.at[:, outer].add(jnp.where(touches, power * jnp.log(2) - jnp.log1p(power), 0.0))
    return log_p + jnp.log(length)


def _nearer(xp: ArrayModule, edges: Array, ends: Any, whole: bool) -> tuple[Array, Array]:
    """The nearer end (n, blocks) of the support of each block, and the least distance from there that tells blocks."""
    end = xp.where(edges[:, :-1] - ends[0] <= ends[1] - edges[:, 1:], *ends)
    span = edges[:, -1:] - edges[:, :1]
    return end, xp.ones_like(end) if whole else xp.maximum(END_GAP * xp.minimum(xp.abs(end), span), LEAST_GAP)


@partial(jax.jit, static_argnums=0)
def _needs(whole: bool, edges: Array, log_p: Array, ends: Any, hidden: list) -> tuple[Array, Array]:
    """Bounds (n,) on errors of distribution functions, and how densely blocks (n, blocks) should lie to lower them."""
    length, p = jnp.diff(edges), jax.nn.softmax(log_p, axis=1)
    slope = jnp.abs(jnp.diff(log_p - jnp.log(length)) / jnp.diff(edges[:, :-1] + length / 2))
    slope = jnp.pad(jnp.where(jnp.isfinite(slope), slope, 0.0), ((0, 0), (1, 1)))
    change = length * jnp.maximum(slope[:, 1:], slope[:, :-1])  # of the log density within a block
    long = length > _nearer(jnp, edges, ends, whole)[1]  # others are exact
    for point, width in hidden:
        holds = (edges[:, :-1] <= point) & (point < edges[:, 1:]) & long & (length > width)
        p, change = jnp.maximum(p, HIDDEN_MASS * holds), jnp.maximum(change, holds)
    error = p * change * long
    worst = jnp.maximum((error * change).sum(axis=1) / 24, error.max(axis=1) / 8)  # of sums, and inside a block
    return worst, jnp.cbrt(p * jnp.minimum(change, 1) ** 2)


def _moved(edges: np.ndarray, need: np.ndarray, count: int, ends: Any, whole: bool) -> np.ndarray:
    """Edges (n, count + 1) of blocks, the shorter the greater the need (n, blocks) there; graded to finite ends."""
    need = need / need.sum(axis=1, keepdims=True) + FIXED_SHARE / need.shape[1]
    total = np.pad(np.cumsum(need, axis=1), ((0, 0), (1, 0)))
    even, numbers = np.linspace(0, 1 + FIXED_SHARE, count + 1), np.arange(count + 1.0)
    place = np.stack([np.interp(even, row, np.arange(need.shape[1] + 1)) for row in total])
    block = np.minimum(place.astype(int), need.shape[1] - 1)
    (end, least), left, right = _nearer(np, edges, ends, whole), edges[:, :-1], edges[:, 1:]
    end, least, left, right = (np.take_along_axis(array, block, axis=1) for array in (end, least, left, right))
    near, far = (np.maximum(np.abs(x - end), least) for x in (left, right))
    with np.errstate(invalid="ignore"):
        graded = end + np.where(left < end, -near, near) * (far / near) ** (place - block)
    result = np.where(np.isfinite(end), graded, left + (right - left) * (place - block))
    result[:, 0], result[:, -1] = edges[:, 0], edges[:, -1]
    if whole:  # an odd number of them in each block
        even = np.maximum.accumulate(result - edges[:, :1] - numbers, axis=1)
        result = np.minimum(edges[:, :1] + numbers + 2 * np.rint(even / 2), ends[1])
    return result


def known_sums(table: NoisyTable, total: Any, least: np.ndarray, most: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Rows and sum of disjoint cells, of nested sums the outer without the inner; these limit `most` in place."""
    stated: list[tuple[str, np.ndarray, int]] = []
    if isinstance(names := getattr(getattr(total, "index", None), "names", None), Sequence):  # a series of pandas
        total = {names[0] if len(names) == 1 else (*names,): total}
        if None in names:
            raise ValueError(f"total is a series whose index has no name; name it by a key of {', '.join(table.keys)}")
    for key, sums in (total if isinstance(total, Mapping) else {None: total}).items():
        names = () if key is None else key if isinstance(key, tuple) else (key,)
        if unknown := set(names) - set(table.keys):
            keys = ", ".join(table.keys) or "none"
            raise ValueError(f"total names the key {unknown.pop()!r}; the table's keys are {keys}")
        for label, value in sums.items() if hasattr(sums, "items") else [((), sums)]:
            pairs = dict(zip(names, label if isinstance(label, tuple) else (label,), strict=True))
            name = ", ".join(f"{key} = {label!r}" for key, label in pairs.items()) or "all cells"
            inside = np.all([np.ones(table.count, bool), *(table.keys[key] == pairs[key] for key in pairs)], axis=0)
            if not inside.any():
                raise ValueError(f"total of {name}: the table has no such cell")
            stated.append((name, inside, int(checked(f"total of {name}", value, *WHOLE_NUMBER))))
    stated.sort(key=lambda entry: np.count_nonzero(entry[1]))
    owner, result = np.full(table.count, -1), []  # the widest known sum so far that a cell is in
    for number, (name, inside, value) in enumerate(stated):
        inner = np.setdiff1d(owner[inside], -1)
        if (crossing := np.isin(owner, inner) & ~inside).any():
            other = stated[owner[crossing][0]][0]
            hint = "give such sums as tables with small noise, and queries='keys'"
            raise ValueError(f"total of {name} and total of {other} have only a part of their cells in common: {hint}")
        rest = np.flatnonzero(inside & (owner < 0))
        taken = sum(stated[i][2] for i in inner)
        left, low, high = value - taken, least[rest].sum(), most[rest].sum()
        if not low <= left <= high:
            parts = f", and known sums of its parts add up to {taken}" if len(inner) else ""
            bounds = f"whose sum must be from {low:g} to {high:g}"
            raise ValueError(f"total of {name} is {value}{parts}: {left} is left for {len(rest)} cells, {bounds}")
        owner[inside] = number
        if np.isfinite(low):
            most[rest] = np.minimum(most[rest], left - (low - least[rest]))
        result += [(rest, left)] if len(rest) else []
    return result


def tilted(log_p: np.ndarray, target: float) -> np.ndarray:
    """Normalised log probabilities (n, places) in proportion to p·exp(θ place), where the mean sum is `target`."""
    places = np.arange(float(log_p.shape[1]))

    def convex(theta: float) -> float:  # whose derivative is the mean sum less the target
        return special.logsumexp(log_p + theta * places, axis=1).sum() - theta * target

    theta = optimize.minimize_scalar(convex, bounds=(-MAX_TILT, MAX_TILT), method="bounded").x
    return special.log_softmax(log_p + theta * places, axis=1)


def tree_of_sums(laws: list) -> tuple:
    """The law of a sum of whole numbers, and the trees of its two halves; a law is a first number and probabilities."""
    if len(laws) == 1:
        return laws[0], None, None
    left, right = (tree_of_sums(half) for half in (laws[: len(laws) // 2], laws[len(laws) // 2 :]))
    # a fast Fourier transform, which serves long laws, leaves rounding errors of either sign
    p = np.maximum(signal.convolve(left[0][1], right[0][1]), 0.0)
    kept = np.flatnonzero(p > END_SHARE * p.max())
    return (left[0][0] + right[0][0] + int(kept[0]), p[kept[0] : kept[-1] + 1] / p.max()), left, right


def draw_given_sums(rng: np.random.Generator, tree: tuple, sums: np.ndarray) -> np.ndarray:
    """Draws (n, count) of the numbers of a tree given their sums (count,), which are split in two, and so on."""
    _, left, right = tree
    if left is None:
        return sums[None]
    distinct, which = np.unique(sums, return_inverse=True)
    if len(distinct) > 1 and len(distinct) * len(left[0][1]) > MAX_PROBABILITIES:
        return np.hstack([draw_given_sums(rng, tree, half) for half in np.array_split(sums, 2)])
    cumulative = np.cumsum(split_weights(left[0], right[0], distinct), axis=1)
    cumulative = cumulative / cumulative[:, -1:] + np.arange(len(distinct))[:, None]
    places = cumulative.ravel().searchsorted(which + rng.random(len(sums)))
    part = left[0][0] + places - which * cumulative.shape[1]
    return np.concatenate([draw_given_sums(rng, left, part), draw_given_sums(rng, right, sums - part)])


def split_weights(a: tuple, b: tuple, sums: np.ndarray) -> np.ndarray:
    """Weights (sums, numbers) of the numbers of law a, given sums of two numbers of laws a and b."""
    other = sums[:, None] - a[0] - np.arange(len(a[1])) - b[0]
    return np.where((other >= 0) & (other < len(b[1])), b[1][np.clip(other, 0, len(b[1]) - 1)], 0.0) * a[1]
