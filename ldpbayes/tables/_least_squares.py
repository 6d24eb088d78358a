"""Linear queries of one table, released with noise: exact least squares, and draws of the table."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import linalg, sparse

from ldpbayes._core.checks import FINITE, checked
from ldpbayes._core.types import Array
from ldpbayes.data import NoisyTable
from ldpbayes.estimation.estimates import Estimate, cells, table
from ldpbayes.inference import fit, observe
from ldpbayes.mechanisms import Incomplete
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.mechanisms.protocol import statements
from ldpbayes.noise import DiscreteGaussian, Gaussian

SINGULAR = 1e-10  # share of a cell's own precision that must be left when the other cells are accounted for
FEW = 6  # cells that an error names


def least_squares(tables: Any, queries: Any = None, *, cells: Mapping[str, Any] | None = None) -> "LeastSquares":
    """Generalised least squares of one table's cells, from releases of sums of them: exact, with covariance.

    Values are A x + noise of known variances, x the cells: uncertainty of the table, that of the noise alone. Under
    Gaussian noise this is the maximum-likelihood estimate and its normal law; under other noise the best linear
    unbiased estimate, with intervals by the normal law. Cells may come out negative; `true_table` bounds them.

    Parameters
    ----------
    tables : NoisyTable, or dict or sequence of them
        Releases of independent noise. TypeError where a rule (a floor, a threshold, rounding) changed the values: least
        squares would be biased. Missing values are left out.
    queries : matrix (N, cells), or dict or sequence of them, optional
        A matrix A a table, dense or of SciPy, or None. Default, and None: by keys. The cells are those of the table
        whose keys include all others'; a table with some of these keys holds sums over the other keys, and a table
        without keys the sum of all cells. ValueError for rows without cells, and for cells that the queries do not
        determine, by their names.
    cells : dict of str to array (cells,), optional
        Keys of the cells, where no table has all of them.

    Returns
    -------
    LeastSquares
        An `ldpbayes.estimation.Estimate`: ``estimate``, ``covariance``, ``interval()``, ``contrast()``, ``summary()``.
    """
    work = Workload.of(tables, queries, cells)
    for name, each in work.tables.items():
        if not isinstance(each.mechanism, (Additive, Incomplete)):
            rule = type(each.mechanism).__name__
            why = "its values are not true sums plus noise of mean 0, so that least squares would be biased"
            raise TypeError(f"{name} is reported by {rule}: {why}; use true_table(..., queries=...)")
    estimate, covariance = work.solve()
    statement = statements([each.mechanism for each in work.tables.values()])
    return LeastSquares(estimate, cell_names(work.keys, len(estimate)).tolist(), covariance, statement, len(work.tables))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LeastSquares(Estimate):
    """Cells before noise (N,) by least squares, with their covariance (N, N); all else is as in `Estimate`."""

    estimate: np.ndarray
    names: list[str]
    covariance: np.ndarray
    privacy: str
    releases: int
    params = property(lambda self: self.estimate)
    _title = property(lambda self: f"True table by least squares, {self.releases} releases (no population is meant)")

    def summary(self, level: float = 0.95) -> str:
        """Return a table of the cells in plain text, with intervals of coverage `level`, between 0 and 1."""
        columns = {"estimate": self.params, "std err": self.standard_error} | self._ends(level)
        return table(self._title, self.names, cells(columns, "10.4g"))


def cell_names(keys: Mapping[str, Any], count: int) -> np.ndarray:
    """A label a cell (count,): of its only key, the labels of its keys with commas between them, or its number."""
    labels = [np.asarray(each) for each in keys.values()]
    if len(labels) < 2:
        return labels[0] if labels else np.arange(count)
    return np.array([", ".join(map(str, row)) for row in zip(*labels, strict=True)])


@dataclasses.dataclass(frozen=True, eq=False)
class Workload:
    """Releases by name, of which each is a matrix times the cells of one table, plus noise."""

    tables: dict[str, NoisyTable]
    matrices: dict[str, sparse.csr_array]
    keys: dict[str, np.ndarray]  # of the cells

    @classmethod
    def of(cls, tables: Any, queries: Any, cells: Mapping[str, Any] | None) -> "Workload":
        """A workload from the arguments of `least_squares`, or TypeError or ValueError."""
        if not isinstance(tables, Mapping):
            listed = [tables] if isinstance(tables, NoisyTable) else list(tables)
            tables = {f"table {i}" if len(listed) > 1 else "the table": each for i, each in enumerate(listed)}
            if queries is not None:
                given = queries if isinstance(queries, (list, tuple)) else [queries]
                if len(given) != len(listed):
                    raise ValueError(f"queries must be one matrix a table, {len(listed)}, got {len(given)}")
                queries = dict(zip(tables, given, strict=True))
        for name, each in tables.items():
            if not isinstance(each, NoisyTable) or each.values is None:
                raise TypeError(f"{name} must be a NoisyTable with values, got {each!r}")
        queries = {name: (queries or {}).get(name) for name in tables}
        if cells is None:
            finest = max(tables.values(), key=lambda each: len(each.keys))
            other = next((each for each in tables.values() if not set(each.keys) <= set(finest.keys)), None)
            if other is not None and any(each is None for each in queries.values()):
                have = f"one table has keys {', '.join(finest.keys)}, another {', '.join(other.keys)}"
                raise ValueError(f"no table has all keys ({have}): name the keys of the cells, cells={{...}}")
            cells = finest.keys
        keys = {name: np.asarray(labels) for name, labels in cells.items()}
        matrices = {}
        for name, query in queries.items():
            matrix = by_keys(name, tables[name], keys) if query is None else sparse.csr_array(query, dtype=float)
            checked(f"queries of {name}", np.append(matrix.data, 0.0), *FINITE)
            matrices[name] = matrix
            if matrix.shape[0] != tables[name].count:
                raise ValueError(f"queries of {name} must have a row a value, {tables[name].count}, got {matrix.shape}")
        sizes = {name: matrix.shape[1] for name, matrix in matrices.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"queries must have equally many columns, one a cell, got {sizes}")
        if keys and len(next(iter(keys.values()))) != next(iter(sizes.values())):
            keys = {}
        return cls(dict(tables), matrices, keys)

    def equations(self) -> tuple[sparse.csr_array, np.ndarray]:
        """Reported values and their matrix, both over the standard deviation of the noise."""
        rows, values = [], []
        for name, each in self.tables.items():
            z, deviation = np.asarray(each.values, float), np.broadcast_to(each.mechanism.noise.standard_deviation, each.count)
            reported = np.flatnonzero(~np.isnan(z))
            rows.append(sparse.diags_array(1 / deviation[reported]) @ self.matrices[name][reported])
            values.append(z[reported] / deviation[reported])
        return sparse.vstack(rows, format="csr"), np.concatenate(values)

    def solve(self) -> tuple[np.ndarray, np.ndarray]:
        """Estimates and covariance by least squares; ValueError with the cells that the queries do not determine."""
        matrix, values = self.equations()
        precision = (matrix.T @ matrix).toarray()
        own = np.diagonal(precision)
        scale = 1 / np.sqrt(np.where(own > 0, own, 1.0))
        scaled = precision * scale * scale[:, None]
        try:
            factor = linalg.cholesky(scaled, lower=True)
        except linalg.LinAlgError:
            factor = np.zeros((1, 1))
        if np.diagonal(factor).min() ** 2 < SINGULAR:
            self._refuse(scaled)
        estimate = np.zeros(len(own))
        for _ in range(2):  # the second time corrects rounding errors of the normal equations
            gradient = scale * (matrix.T @ (values - matrix @ estimate))
            estimate = estimate + scale * linalg.cho_solve((factor, True), gradient)
        inverse = linalg.solve_triangular(factor, np.diag(scale), lower=True)
        return estimate, inverse.T @ inverse

    def _refuse(self, scaled: np.ndarray) -> None:
        levels, vectors = linalg.eigh(scaled)
        free = vectors[:, levels < SINGULAR * max(1.0, levels[-1]) * len(levels)]
        loose = np.flatnonzero(np.sum(free**2, axis=1) > 1e-6)
        names = cell_names(self.keys, len(scaled))[loose]
        some = ", ".join(map(repr, names[:FEW].tolist())) + (", ..." if len(loose) > FEW else "")
        what = f"{len(loose)} of {len(scaled)} cells are not determined: {some}"
        rank = f"the rank of all queries is {len(scaled) - free.shape[1]}"
        raise ValueError(f"{what} ({rank}); give further releases, or use true_table(..., queries=...) for bounded cells")


def by_keys(name: str, release: NoisyTable, keys: Mapping[str, np.ndarray]) -> sparse.csr_array:
    """The matrix of sums over the cells whose labels are those of a release, in the keys that it has."""
    if not set(release.keys) <= set(keys):
        raise ValueError(f"{name} has keys {', '.join(release.keys)}, and the cells {', '.join(keys)}: give its queries")
    count = len(next(iter(keys.values()))) if keys else 1
    if not release.keys and release.count > 1:
        raise ValueError(f"{name} has {release.count} values and no keys, so that its queries are unknown: give a matrix")
    labels = zip(*(release.keys[key].tolist() for key in release.keys), strict=True) if release.keys else [()]
    places = {label: row for row, label in enumerate(labels)}
    mine = list(zip(*(keys[key].tolist() for key in release.keys), strict=True)) if release.keys else [()] * count
    rows = np.array([places.get(label, -1) for label in mine])
    matrix = sparse.csr_array((np.ones(count), (rows, np.arange(count))), (release.count, count)) if (rows >= 0).all() else (
        sparse.csr_array((np.ones((rows >= 0).sum()), (rows[rows >= 0], np.flatnonzero(rows >= 0))), (release.count, count))
    )
    empty = np.flatnonzero(np.diff(matrix.indptr) == 0)
    if len(empty):
        label = cell_names(release.keys, release.count)[empty[0]]
        raise ValueError(f"{name}: {len(empty)} of its values are sums of no cell (or listed twice), the first {label!r}")
    return matrix


def sample_latent(
    work: Workload, bounded: bool, draws: int, chains: int | None, seed: int, options: dict
) -> tuple[np.ndarray, dict[str, Any]]:
    """Draws (chains, draws, cells), and statistics of the chains: of the normal law where there are neither bounds nor
    rules and all noise is Gaussian, else by chains.
    """
    noises = [each.mechanism.noise for each in work.tables.values()]
    plain = all(isinstance(each.mechanism, (Additive, Incomplete)) for each in work.tables.values())
    if not bounded and plain and all(isinstance(noise, (Gaussian, DiscreteGaussian)) for noise in noises):
        estimate, covariance = work.solve()
        rng, root = np.random.default_rng(seed), linalg.cholesky(covariance, lower=True)
        normal = rng.standard_normal((chains or 1, draws, len(estimate)))
        return estimate + normal @ root.T, {}
    matrix, values = work.equations()
    precision = (matrix.T @ matrix).toarray()
    # A little is added for cells that no release determines: their bounds do.
    widest = max(float(np.nanmax(np.abs(each.values), initial=0.0)) for each in work.tables.values()) + 1
    precision += np.eye(len(precision)) / widest**2
    root = linalg.cho_factor(precision, lower=True)
    estimate = linalg.cho_solve(root, matrix.T @ values)
    scale = np.sqrt(np.diagonal(linalg.cho_solve(root, np.eye(len(estimate)))))
    # x = scale·softplus(v), or scale·v; v is whitened by its precision where the cells are estimated to be
    centre = estimate / scale
    slope, bend = np.ones(len(scale)), np.zeros(len(scale))
    if bounded:
        above = np.maximum(centre, 0.5)
        centre = above + np.log(-np.expm1(-above))
        slope = -np.expm1(-above)
        bend = slope * (1 - slope)
    factor = linalg.cholesky((slope * scale)[:, None] * precision * (slope * scale) + np.diag(bend), lower=True)
    whitening = linalg.solve_triangular(factor, np.eye(len(scale)), lower=True).T
    parts = [(each.data, *sparse.coo_array(each).coords[::-1]) for each in work.matrices.values()]
    start = numpyro.infer.init_to_value(values={"whitened": np.zeros(len(scale))})
    arguments = list(work.tables.values()), parts, centre, scale, whitening
    options = {"init_strategy": start, "num_samples": draws, "num_chains": chains or 4, "seed": seed} | options
    posterior = fit(_bounded_model if bounded else _unbounded_model, *arguments, **options)
    statistics = posterior["sample_stats"]
    names = [name for name in statistics.data_vars]
    return posterior["posterior"]["cells"].values, {name: statistics[name].values for name in names}


def _unbounded_model(releases: list, matrices: list, centre: Array, scale: Array, whitening: Array) -> None:
    _observed(releases, matrices, scale * _coordinates(centre, whitening))


def _bounded_model(releases: list, matrices: list, centre: Array, scale: Array, whitening: Array) -> None:
    """Cells at least 0, with a flat prior: the factor is the derivative of the cells by the coordinates."""
    v = _coordinates(centre, whitening)
    numpyro.factor("flat", jnp.sum(jax.nn.log_sigmoid(v)))
    _observed(releases, matrices, scale * jax.nn.softplus(v))


def _coordinates(centre: Array, whitening: Array) -> Array:
    flat = dist.ImproperUniform(dist.constraints.real_vector, (), jnp.shape(centre))
    return jnp.asarray(centre) + jnp.asarray(whitening) @ numpyro.sample("whitened", flat)


def _observed(releases: list, matrices: list, x: Array) -> None:
    numpyro.deterministic("cells", x)
    for i, (release, (weights, columns, rows)) in enumerate(zip(releases, matrices, strict=True)):
        sums = jax.ops.segment_sum(jnp.asarray(weights) * x[columns], rows, release.count)
        observe(f"release_{i}", dist.Delta(sums), release)
