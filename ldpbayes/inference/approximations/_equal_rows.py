"""Fewer rows in place of all records: equal rows of the arguments count once, and numbers of one law are sketched."""

import contextlib
import dataclasses
import functools
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.primitives import Messenger

from ldpbayes._core.pytrees import unchecked
from ldpbayes._core.tabular import Table
from ldpbayes._core.types import Array, Key, Message, Model, Params
from ldpbayes.data import Release
from ldpbayes.inference._handlers import privatize
from ldpbayes.inference.chains import Sampling
from ldpbayes.inference.compiled_programs import program_of
from ldpbayes.inference.density import Density, Site, log_likelihood_shape, sites_of
from ldpbayes.inference.problem import Problem
from ldpbayes.laws.compound import unwrapped
from ldpbayes.laws.families import unexpanded
from ldpbayes.likelihood.privatized import Privatized
from ldpbayes.mechanisms import NumericMechanism

MIN_COMPARED_RECORDS = 500  # from which on a step of a chain takes so long that the comparison pays
MIN_RECORDS_A_ROW = 2  # records a kind
COMPARED_POINTS, MIN_COMPARED_POINTS = 6, 2  # of both densities; those of them that must have a density
COMPARED_POINTS_SD = 0.1  # standard deviation of these points around the starts of chains, which may all be one point
# Of the sum of a site's |log p|: n numbers of double precision add up to n 2^-53 of it, which this is for 9 million.
MAX_ROUNDING_ERROR = 1e-9


def reduced(problem: Problem, sampling: Sampling) -> Problem:
    """The problem with fewer rows, or itself if rows differ, or if an expansion needs all."""
    if problem.expansion is not None:
        return problem
    sketched = sketched_releases(problem) if problem.expand is None else None
    return sketched or equal_rows_once(problem, sampling.kernel._init_strategy, sampling.key) or problem


def equal_rows_once(problem: Problem, strategy: Callable, key: Key) -> Problem | None:
    """The problem with equal rows counted once; None if few are equal, or if the model uses its data not row by row."""
    density, sites = problem.density, problem.sites
    sizes = {size for site in sites.values() for size in site.batch_shape if size >= MIN_COMPARED_RECORDS}
    # Sketches have counted their records. A model that reads the keys of a table fails without them.
    if all(isinstance(data, Release) for data in density.data):
        for size in sorted(sizes, reverse=True):
            # A model may do anything with its arguments, and fail or warn if these are fewer.
            with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
                counted, rows = _counted(density, sites, size)
                sites_now = sites_of(counted)
                fewer = any(sites_now[name].rows < site.rows for name, site in sites.items())
                same = all(sites_now[name].shape == site.shape for name, site in sites.items() if site.latent)
                if fewer and same and _agree(counted, density, strategy, key):
                    report = {"ran": "equal rows counted once", "rows": rows, "records": size}
                    return _in_place(problem, counted, sites_now, report)
    return None


def sketched_releases(problem: Problem) -> Problem | None:
    """The problem with sketches of its releases of numbers; None if they are hardly shorter, or laws differ."""

    def sketched(data: Any) -> Any:
        numbers = type(data) is Release and isinstance(data.mechanism, NumericMechanism)
        if not numbers or data.mechanism.support.is_discrete or data.mechanism.record_shape:
            return data
        sketch = data.sketch()
        return sketch if MIN_RECORDS_A_ROW * np.size(sketch.weights) <= data.count else data

    # A model may do anything with its arguments, and fail or warn with a sketch, as it does for laws of each record.
    with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
        density = problem.density.replace_data(sketched)
        if all(one is other for one, other in zip(density.data, problem.density.data, strict=True)):
            return None
        example, rng = problem.density.example(), np.random.default_rng(0)
        points = [jax.tree.map(lambda x: rng.uniform(-2, 2, x.shape), example) for _ in range(MIN_COMPARED_POINTS)]
        ours, theirs = _at_points(_laws, (density, problem.density), points)
        close = functools.partial(np.allclose, rtol=MAX_ROUNDING_ERROR, atol=0, equal_nan=True)
        if all(jax.tree.leaves(jax.tree.map(close, ours, theirs))):
            sites = sites_of(density)
            rows, records = (sum(site.rows for site in part.values()) for part in (sites, problem.sites))
            return _in_place(problem, density, sites, {"ran": "sketch", "rows": rows, "records": records})
    return None


def _in_place(problem: Problem, density: Density, sites: dict[str, Site], report: dict[str, Any]) -> Problem:
    density = dataclasses.replace(density, whole=problem.density)
    return dataclasses.replace(problem, density=density, sites=sites, fewer=report)


def _at_points(function: Callable, densities: tuple[Density, Density], points: list[Params]) -> list[list[Any]]:
    """Values of ``function(density, parameters)`` for both densities at all points."""
    programs = [program_of("compared", functools.partial(function, density), points[0]) for density in densities]
    return [[*map(program, points)] for program in programs]


def _laws(density: Density, parameters: Params) -> dict[str, Any]:
    """Laws by site at unconstrained parameters; of records if the site is privatized."""
    sites = density.at(parameters).items()
    laws = {name: unwrapped(site["fn"])[0] for name, site in sites if site["type"] == "sample"}
    return {name: unexpanded(law.base_dist) if isinstance(law, Privatized) else law for name, law in laws.items()}


def _counted(density: Density, sites: dict[str, Site], count: int) -> tuple[Density, int]:
    """The density with the distinct rows of all arrays (count, ...) as its data, and how many there are."""
    private = density.model if isinstance(density.model, privatize) else None
    arguments: Any = density.args, density.kwargs, private.mechanisms if private else {}
    # Rows may differ in columns of a data frame that the model does not read.
    in_use = functools.partial(jax.tree.map, lambda leaf: leaf.in_use if isinstance(leaf, Table) else leaf)
    leaves, structure = jax.tree.flatten(in_use(arguments, is_leaf=lambda leaf: isinstance(leaf, Table)))
    arrays = [isinstance(leaf, (np.ndarray, jax.Array)) and leaf.shape[:1] == (count,) for leaf in leaves]
    index, weights, rows = distinct_rows([np.asarray(leaf) for leaf in itertools.compress(leaves, arrays)], count)
    leaves = [leaf[index] if is_array else leaf for leaf, is_array in zip(leaves, arrays, strict=True)]
    args, kwargs, mechanisms = jax.tree.unflatten(structure, leaves)
    model = privatize(private.fn, mechanisms, **private.options) if private else density.model

    def recounted(data: Release) -> Release:
        return unchecked(Release, data.values, data.mechanism, len(data.values), data.doubts, data.times)

    return Density(_Weighted(model, weights, sites), args, kwargs).replace_data(recounted), rows


def distinct_rows(columns: list[np.ndarray], count: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Positions (m,) of rows, how many rows each stands for, the number of different rows; few m occur."""
    tables = [np.ascontiguousarray(column.reshape(count, -1)).view(np.uint8) for column in columns]
    words = [word for table in tables for word in np.pad(table, ((0, 0), (0, -table.shape[1] % 8))).view(np.uint64).T]
    marks = np.zeros(count, np.uint64)
    for word in words:
        marks = (marks ^ word) * np.uint64(0x9E3779B97F4A7C15)
        marks ^= marks >> np.uint64(32)
    rows = 1 + int(np.sum(np.diff(np.sort(marks)) > 0))  # `np.unique` takes 50 times as long if all are different
    if rows * MIN_RECORDS_A_ROW > count:
        raise ValueError(f"{rows} of {count} rows are different")
    _, first, kinds, copies = np.unique(marks, return_index=True, return_inverse=True, return_counts=True)
    if not all(np.array_equal(word, word[first][kinds]) for word in words):
        raise ValueError("different rows have equal marks")
    step = 1 << max(0, rows.bit_length() - 3)
    # Kinds are not repeated twice before others are: likelihoods of some kinds, such as withheld cells, take long.
    is_last, is_first = np.zeros((2, count), bool)
    is_last[np.unique(marks[::-1], return_index=True)[1]], is_first[first] = True, True
    others = [np.flatnonzero(part & ~is_first) for part in (is_last[::-1], ~is_last[::-1])]
    again = np.concatenate(others)[: -rows % step]
    weights = np.ones(count)
    weights[first] = copies - np.bincount(kinds[again], minlength=rows)
    index = np.sort(np.concatenate([first, again]))  # a model may know how its data are sorted
    return index, weights[index], rows


class _Weighted(Messenger):
    """Lets each row of observed sites count as often as its weight says, where they had more ``sites`` before."""

    def __init__(self, model: Model, weights: np.ndarray, sites: dict[str, Site]) -> None:
        self._weights, self._sites = weights, sites
        super().__init__(model)

    def process_message(self, msg: Message) -> None:
        # NumPyro makes sites of its own for the parameters' Jacobians.
        if msg["type"] != "sample" or not msg["is_observed"] or msg["name"] not in self._sites:
            return
        # Different rows are not what a mechanism has released, and may look as if it had not.
        msg["infer"] = msg["infer"] | {"released": True}
        shape, whole = log_likelihood_shape(msg), self._sites[msg["name"]].batch_shape
        axes = [axis for axis, sizes in enumerate(zip(shape, whole, strict=True)) if sizes[0] != sizes[1]]
        if axes:
            (axis,) = axes
            weights = np.expand_dims(self._weights, tuple(range(1, len(shape) - axis)))
            msg["scale"] = weights if msg["scale"] is None else weights * msg["scale"]


def _agree(counted: Density, whole: Density, strategy: Callable, key: Key) -> bool:
    """Whether the log densities of all sites are equal up to rounding near the starts of chains."""
    points = list[Params]()
    for subkey in jax.random.split(key, COMPARED_POINTS):
        flat, unravel = ravel_pytree(whole.start(subkey, strategy))
        points.append(unravel(flat + COMPARED_POINTS_SD * jax.random.normal(subkey, flat.shape)))
    ours, theirs = (np.array(values) for values in _at_points(_terms, (counted, whole), points))  # (points, sites, 2)
    finite = np.isfinite(theirs).all(axis=(1, 2))
    close = np.abs(ours - theirs)[..., 0] <= MAX_ROUNDING_ERROR * theirs[..., 1]
    return bool(np.sum(finite) >= MIN_COMPARED_POINTS and np.all(close[finite]))


def _terms(density: Density, parameters: Params) -> Array:
    """Sums of log p and of |log p| (sites, 2), at unconstrained parameters."""
    terms = list[Array]()
    for site in density.at(parameters).values():
        if site["type"] == "sample":
            log_prob = site["fn"].log_prob(site["value"]) * (1.0 if site["scale"] is None else site["scale"])
            terms.append(jnp.stack([jnp.sum(log_prob), jnp.sum(jnp.abs(log_prob))]))
    return jnp.stack(terms)
