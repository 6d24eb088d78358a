"""Linear queries of one table, released with noise: exact least squares, and draws of the table."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import linalg, sparse

from ldpbayes._core.types import Array
from ldpbayes.data import NoisyTable
from ldpbayes.data.release import promises
from ldpbayes.estimation.estimates import Estimate, cells
from ldpbayes.inference import fit, observe
from ldpbayes.mechanisms import Incomplete
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.noise import DiscreteGaussian, Gaussian

SINGULAR_SHARE = 1e-10  # least share of a cell's own precision that is left when the other cells are accounted for
NAMED_CELLS = 6  # cells that an error names


def estimate_table(tables: Any, queries: Any = None) -> "TableEstimate":
    """Estimate the cells of a table before noise, from noisy cells or noisy sums of cells, by generalised least
    squares.

    The released values are A x plus noise of known variance, where x are the cells before noise, and each row of A says
    which cells are summed. Standard errors include only the noise, and not sampling from a population. The result is
    the best linear unbiased estimate of x. If the noise is Gaussian, the posterior under a flat prior is normal, with
    this mean. For other noise, intervals are approximate. Estimates can be negative. `true_table` can exclude negative
    cells.

    Parameters
    ----------
    tables : NoisyTable, or dict of them by name
        One or several tables with independent noise. Missing values (NaN) are ignored. Raises TypeError if the
        mechanism of a table is a reporting rule, such as rounding.
    queries : matrix (N, cells), or dict of them by table, optional
        For each table, its matrix A, as an array or a sparse matrix of SciPy. By default, A follows from the keys: x
        are the cells of the table with most keys. A table with only some of these keys has the sums over the missing
        keys, and a table without keys has the sum of all cells. Raises ValueError if the tables do not determine all
        cells.
    """
    work = Workload(tables, queries)
    for name, table in work.tables.items():
        if not _unbiased(table.mechanism):
            rule = f"{name} has the reporting rule {type(table.mechanism).__name__}, which makes least squares biased"
            raise TypeError(f"{rule}; true_table(..., queries=...) uses the likelihood of the rule")
    estimate, covariance = work.solve()
    return TableEstimate(estimate, [*map(str, work.labels)], covariance, promises([*work.tables.values()]))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TableEstimate(Estimate):
    """Result of `estimate_table`: the estimated cells before noise was added, an `ldpbayes.estimation.Estimate`."""

    estimate: np.ndarray
    names: list[str]
    covariance: np.ndarray
    privacy: str
    params = property(lambda self: self.estimate, doc="The estimated cells (N,).")
    _title = "Least squares: the table before noise"

    def _columns(self, level: float) -> dict[str, list[str]]:
        return cells({"estimate": self.params, "std err": self.standard_error} | self._ends(level), "10.4g")


def _unbiased(mechanism: Any) -> bool:
    """Whether reported values, but for those missing at random, are true ones plus noise."""
    return isinstance(mechanism.mechanism if isinstance(mechanism, Incomplete) else mechanism, Additive)


def by_name(tables: Any) -> dict[str, Any]:
    """Tables by name, "cells" if there is one without a name."""
    named = dict(tables) if isinstance(tables, Mapping) else {"cells": tables}
    for name, table in named.items():
        if not isinstance(table, NoisyTable) or table.values is None:
            raise TypeError(f"{name} must be a NoisyTable with values, got {table!r}")
    return named


class Workload:
    """Releases of matrices times the cells of one table, with ``matrix`` and ``values`` over the noise's deviations."""

    def __init__(self, tables: Any, queries: Any) -> None:
        self.tables = by_name(tables)
        queries = dict(queries or {}) if queries is None or isinstance(tables, Mapping) else {"cells": queries}
        by_keys = [table for name, table in self.tables.items() if queries.get(name) is None]
        self.cells = max(by_keys, key=lambda table: len(table.keys), default=None)
        self.matrices, values = list[sparse.csr_array](), []
        for name, table in self.tables.items():
            query = _by_keys(name, table, self.cells) if queries.get(name) is None else queries[name]
            self.matrices.append(sparse.csr_array(query, dtype=float))
            shape, noise = self.matrices[-1].shape, table.mechanism.noise
            if shape[0] != table.count or not np.isfinite(self.matrices[-1].data).all():
                raise ValueError(f"queries of {name} must be {table.count} rows of finite numbers, got {shape}")
            values.append(np.broadcast_arrays(np.asarray(table.values, float), 1 / noise.standard_deviation))
        if len(sizes := {matrix.shape[1] for matrix in self.matrices}) > 1:
            raise ValueError(f"queries must all have one column for each cell, got matrices with {sizes} columns")
        self.labels = np.arange(max(sizes)) if self.cells is None else self.cells.labels
        z, weights = np.concatenate(values, axis=1)
        self.matrix = sparse.diags_array(weights * ~np.isnan(z)) @ sparse.vstack(self.matrices, format="csr")
        self.values, self.precision = weights * np.nan_to_num(z), (self.matrix.T @ self.matrix).toarray()

    def solve(self) -> tuple[np.ndarray, np.ndarray]:
        """Estimate and covariance by least squares; ValueError with the cells that the queries do not determine."""
        precisions = np.diagonal(self.precision)
        scale = 1 / np.sqrt(np.where(precisions > 0, precisions, 1.0))
        scaled = self.precision * scale * scale[:, None]
        factor, failed = linalg.lapack.dpotrf(scaled, lower=True, clean=True)
        if failed or np.diagonal(factor).min() ** 2 < SINGULAR_SHARE:
            levels, vectors = linalg.eigh(scaled)
            free = vectors[:, levels < SINGULAR_SHARE * len(levels)]
            loose = self.labels[np.sum(free**2, axis=1) > 1e-6]
            some = ", ".join(map(str, loose[:NAMED_CELLS])) + (", ..." if len(loose) > NAMED_CELLS else "")
            rank = f"the queries have rank {len(scale) - free.shape[1]}, and {len(loose)} of {len(scale)} cells"
            raise ValueError(f"{rank} are not determined ({some}); true_table(..., queries=...) can bound them")
        estimate = np.zeros(len(scale))
        for _ in range(2):  # the second time corrects rounding errors of the normal equations
            gradient = scale * (self.matrix.T @ (self.values - self.matrix @ estimate))
            estimate = estimate + scale * linalg.cho_solve((factor, True), gradient)
        root = linalg.solve_triangular(factor, np.diag(scale), lower=True)
        return estimate, root.T @ root


def _by_keys(name: str, release: NoisyTable, cells: Any) -> np.ndarray:
    """Which cells (N, cells) have a release's labels, in the keys that the release has."""
    if not release.keys.keys() <= cells.keys.keys() or (not release.keys and release.count > 1):
        have = f"{name} has keys {list(release.keys)}, but the cells have keys {list(cells.keys)}"
        raise ValueError(f"{have}: give the queries of {name} as a matrix")
    inside = np.ones((release.count, cells.count), bool)
    for key, labels in release.keys.items():
        inside &= labels[:, None] == cells.keys[key]
    if len(absent := release.labels[~inside.any(axis=1)]):
        raise ValueError(f"{name}: {len(absent)} released values have labels of no cell, the first {absent[0]}")
    return inside


def sample_cells(work: Workload, bounded: bool, num_samples: int, seed: int, options: dict) -> tuple[Any, dict]:
    """Draws (chains, draws, cells); by chains, which may diverge, where there are bounds, rules, or other noise."""
    mechanisms = [table.mechanism for table in work.tables.values()]
    if not bounded and all(_unbiased(m) and isinstance(m.noise, (Gaussian, DiscreteGaussian)) for m in mechanisms):
        estimate, covariance = work.solve()
        numbers = np.random.default_rng(seed).standard_normal((1, num_samples, len(estimate)))
        return estimate + numbers @ linalg.cholesky(covariance), {}
    # a little more precision, for cells that are determined by their bounds alone
    widest = 1 + max(np.abs(np.nan_to_num(table.values)).max() for table in work.tables.values())
    covariance = linalg.inv(work.precision + np.eye(len(work.labels)) / widest**2)
    scale = np.sqrt(np.diagonal(covariance))
    # x = scale·softplus(v), or scale·v: v is whitened by its precision where the cells are estimated to be
    above = covariance @ (work.matrix.T @ work.values) / scale
    above = np.maximum(above, 0.5) if bounded else above
    slope = -np.expm1(-above) if bounded else np.ones(len(scale))
    bent = work.precision * np.outer(slope * scale, slope * scale) + np.diag(slope * (1 - slope) + 1e-6)
    whitening = linalg.solve_triangular(linalg.cholesky(bent), np.eye(len(scale)))
    matrices = [(matrix.data, *sparse.coo_array(matrix).coords) for matrix in work.matrices]
    start = numpyro.infer.init_to_value(values={"whitened": np.zeros(len(scale))})
    arguments = list(work.tables.values()), matrices, above + np.log(slope), scale, whitening
    options = {"init_strategy": start, "num_samples": num_samples, "seed": seed} | options
    result = fit(partial(_model, bounded), *arguments, **options)
    return result["posterior"]["cells"].values, {"diverging": result["sample_stats"]["diverging"].values}


def _model(bounded: bool, releases: list, matrices: list, centre: Array, scale: Array, whitening: Array) -> None:
    """Cells with a flat prior, if bounded of numbers at least 0, in whitened coordinates."""
    flat = dist.ImproperUniform(dist.constraints.real_vector, (), jnp.shape(centre))
    v = jnp.asarray(centre) + jnp.asarray(whitening) @ numpyro.sample("whitened", flat)
    if bounded:  # the derivative of the cells by their coordinates
        numpyro.factor("flat", jnp.sum(jax.nn.log_sigmoid(v)))
    x = numpyro.deterministic("cells", jnp.asarray(scale) * (jax.nn.softplus(v) if bounded else v))
    for i, (release, (weights, rows, columns)) in enumerate(zip(releases, matrices, strict=True)):
        sums = jax.ops.segment_sum(jnp.asarray(weights) * x[columns], rows, release.count)
        observe(f"release_{i}", dist.Delta(sums), release)
