"""Families of the bootstrap: their protocol, and families of codes and of rows."""

import abc
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ldpbayes._core.checks import LARGEST_CODE, at_least, check_order
from ldpbayes._core.pytrees import checked_field, pytree_dataclass, static
from ldpbayes._core.types import Array, Key, Params
from ldpbayes.bootstrap._bootstrap import Constraints, PrivateEstimator
from ldpbayes.bootstrap._clamped_sums import PointMasses
from ldpbayes.data import Release
from ldpbayes.numerics.arrays import diagonal_first_pairs, packed, unpacked
from ldpbayes.numerics.minimise import nearest_probabilities

LEAST_VARIANCE = 4e-6  # in any direction, for bounds -1 and 1: a thousandth of their distance, squared
BLOCK = 2048  # records that are drawn at a time


class ParametricFamily(abc.ABC):
    """An exponential family whose statistics are bounded by clamping records; parameters are dicts, named as NumPyro's.

    Subclasses are frozen dataclasses and pytrees. A record is clamped before its statistics are taken; these are of
    size one, or the record itself where it is the only one, so that the noise does not depend on the data's unit.
    """

    columns: ClassVar[tuple[str, ...] | None] = None
    """Names of the statistics; None for a single one, which is then released as a number. May be a property."""
    lattice_step: ClassVar[float | None] = None
    """Step of the lattice on which records and their statistics are, 1 for whole numbers; None for densities."""
    accounts_for_clamping: ClassVar[bool] = True
    """Whether there is a `solve_clamped`."""
    base: ClassVar[type[dist.Distribution]]
    """NumPyro's law of a record before it is clamped, whose arguments are the `known` and the other parameters."""
    known: ClassVar[dict[str, str]] = {}
    """Known parameters, by NumPyro's names: the family's fields."""
    event_shape: tuple[int, ...] = ()
    """Shape of a record."""
    record_range: tuple[float, float] = (-math.inf, math.inf)
    """Interval in which the numbers of records are, whatever the parameters; bounds are inside it."""
    record_name: ClassVar[str] = "finite numbers"
    """What these numbers are, for error messages."""
    lower: Array
    upper: Array

    def distribution(self, params: Params) -> dist.Distribution:
        """Law of a record before it is clamped."""
        known = {name: getattr(self, field) for name, field in self.known.items()}
        return self.base(**known, **params, validate_args=False)  # nodes may be at the end of the support

    @property
    def constraints(self) -> Constraints:
        """NumPyro's, of all parameters."""
        return self.base.arg_constraints

    @abc.abstractmethod
    def statistics(self, x: Array) -> jax.Array:
        """Statistics (*batch) or (*batch, statistics) of records (*batch, *event), which are clamped first."""

    @abc.abstractmethod
    def sensitivity(self, order: int) -> float:
        """Largest L1 (order 1) or L2 (order 2) change of the sum of statistics, exactly, if one record is replaced."""

    @abc.abstractmethod
    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        """Maximum likelihood from a noisy mean of statistics, as if no record had been clamped.

        Second, whether there is no such maximum inside the ranges, so that the nearest was taken.
        """

    def solve_clamped(self, mean: Array) -> tuple[Params, jax.Array]:
        """Parameters under which *clamped* records have these expected statistics: the method of moments.

        Second, whether there are none inside the ranges, so that the nearest were taken. By default nothing is clamped.
        """
        return self.solve(mean)

    def covariance(self, params: Params, noise: Array, count: Array, *, clamped: bool) -> jax.Array | None:
        """Asymptotic covariance (p, p) of the flat estimate of `solve` or `solve_clamped`; None where it is not known.

        ``noise`` is the variance of the noise in each statistic's sum, 0 for estimates that are not private.
        """
        return None

    @abc.abstractmethod
    def nearest(self, params: Params) -> Params:
        """The nearest allowed parameters, for any finite values."""

    @abc.abstractmethod
    def total(self, key: Key, params: Params, count: Array) -> jax.Array:
        """Sum of the statistics of ``count`` records that are drawn, and clamped."""

    def checked(self, data: Array) -> np.ndarray:
        """Records as an array (n, *event), or ValueError."""
        x, (low, high) = np.asarray(data), self.record_range
        if x.ndim == 0 or x.shape[1:] != self.event_shape or not x.size or x.dtype.kind not in "iufb":
            takes = f"rows (n, {self.event_shape[0]}) of numbers" if self.event_shape else "an array of numbers (n,)"
            got = f"shape {x.shape} of {x.dtype} (drop or impute missing records first)"
            raise ValueError(f"{type(self).__name__} takes {takes}, got {got}")
        bad = ~np.isfinite(x) | (x < low) | (x > high) | (self.lattice_step is not None and x != np.round(x))
        if bad.any():
            raise ValueError(
                f"records must be {self.record_name} from {low:g} to {high:g}; {bad.sum()} are not, the first "
                f"({x[bad][0]!r}) at {np.argwhere(bad)[0].tolist()}"
            )
        return x.astype(float)

    def check_bounds(self, allowed: str, ok: Callable[[np.ndarray], Any]) -> None:
        """ValueError unless there are fields ``lower`` and ``upper`` in order, as `checked_field` allows them."""
        for name in ("lower", "upper"):
            if getattr(self, name) is None:
                raise ValueError(
                    f"{type(self).__name__} needs bounds to which records are clamped, chosen without looking at them: "
                    f"{name} is missing, and without it one record could move the statistics by any amount"
                )
            checked_field(self, name, allowed, ok)
        check_order(self.lower, self.upper)


class FamilyEstimator(PrivateEstimator):
    """An estimator of a ``family`` from a perturbed sum of the statistics of ``count`` records, a public number."""

    family: ParametricFamily
    count: int
    fewest = 1  # records

    def __post_init__(self) -> None:
        if self.count is None:
            raise ValueError(
                "count is missing: the number of records is taken to be public, since estimates and replicates need "
                "it. If it is private, release it with a share of the budget and give what was released"
            )
        object.__setattr__(self, "count", at_least(self.fewest, "count", self.count))

    @property
    def constraints(self) -> Constraints:  # type: ignore[override]
        return self.family.constraints

    @abc.abstractmethod
    def perturbed(self, key: Key, total: Array) -> jax.Array:
        """Values released of the sum of the statistics."""

    def randomize(self, key: Key, data: Array) -> jax.Array:
        return self.perturbed(key, self.family.statistics(data).sum(axis=0))

    def simulate_release(self, key: Key, params: Params) -> jax.Array:
        # sums are drawn, not records, where their law is known
        keys = jax.random.split(key)
        return self.perturbed(keys[1], self.family.total(keys[0], params, self.count))

    def release(self, data: Array, *, seed: int) -> Release | np.ndarray:
        """Read records (n, *event), and release values of them; for simulation and studies.

        To release real data use a cryptographically secure source of random numbers.
        """
        records = self.family.checked(data)
        if len(records) != self.count:
            raise ValueError(f"the estimator is for {self.count} records, got {len(records)}")
        with jax.enable_x64(True):
            return np.asarray(self.randomize(jax.random.key(seed), records))


@pytree_dataclass
class Multinomial(ParametricFamily):
    """Records that are codes of 2 or more categories; parameter ``probs`` (categories,)."""

    categories: int = static()

    base: ClassVar = dist.CategoricalProbs
    lattice_step: ClassVar[float] = 1.0
    record_name: ClassVar[str] = "codes"

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", at_least(2, "categories", self.categories, LARGEST_CODE))

    @property
    def record_range(self) -> tuple[float, float]:  # type: ignore[override]
        return 0, self.categories - 1

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"category {k}" for k in range(self.categories))

    def statistics(self, x: Array) -> jax.Array:
        return jax.nn.one_hot(jnp.asarray(x).astype(int), self.categories, dtype=float)

    def sensitivity(self, order: int) -> float:
        return {1: 2.0, 2: math.sqrt(2.0)}[order]  # one count falls by one, another rises

    def nearest(self, params: Params) -> Params:
        return {"probs": nearest_probabilities(params["probs"])}

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        within = self.nearest({"probs": mean})
        return within, jnp.any(within["probs"] == 0)

    def covariance(self, params: Params, noise: Array, count: Array, *, clamped: bool) -> jax.Array:
        """Covariance of shares that sum to one, but may be negative."""
        p, size = params["probs"], self.categories
        centred = jnp.eye(size) - 1 / size
        return (jnp.diag(p) - jnp.outer(p, p)) / count + noise / count**2 * centred

    def total(self, key: Key, params: Params, count: Array) -> jax.Array:
        return PointMasses(jnp.arange(self.categories), params["probs"]).counts(key, count)


@pytree_dataclass
class NormalVector(ParametricFamily):
    """Normal rows of unknown mean and covariance; parameters ``loc`` (d,) and ``covariance_matrix`` (d, d).

    The statistics are u_j, u_j² and √2 u_j u_k (j < k), with u = −1 and 1 at the bounds. A mean is brought between the
    bounds; variances in any direction are at least a thousandth of their distance, squared.

    Parameters
    ----------
    lower, upper : array_like (d,)
        Bounds to which the columns are clamped, in their units, finite and in order, else ValueError.
    """

    lower: Array = None
    upper: Array = None

    base: ClassVar = dist.MultivariateNormal
    accounts_for_clamping: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.check_bounds("finite numbers, one a column", lambda a: np.isfinite(a) & (a.ndim == 1))
        if np.shape(self.lower) != np.shape(self.upper):
            shapes = f"{np.shape(self.lower)} and {np.shape(self.upper)}"
            raise ValueError(f"lower and upper must be arrays, one a column; got shapes {shapes}")

    @property
    def event_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.dimension,)

    @property
    def dimension(self) -> int:
        return len(self.lower)

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        d = self.dimension
        first = tuple(f"u{j}" for j in range(d))
        return first + tuple(f"u{j}*u{k}" for j, k in zip(*diagonal_first_pairs(d), strict=True))

    @property
    def centre(self) -> Array:
        return (self.lower + self.upper) / 2

    @property
    def half(self) -> Array:
        return (self.upper - self.lower) / 2

    def statistics(self, x: Array) -> jax.Array:
        x = jnp.asarray(x)
        u = (jnp.clip(x.astype(jnp.result_type(x, float)), self.lower, self.upper) - self.centre) / self.half
        return jnp.concatenate([u, packed(u[..., :, None] * u[..., None, :], "scaled")], axis=-1)

    def sensitivity(self, order: int) -> float:
        """D (6 + 2√2 (d − 1))²/(4 (2√2 d + 4 − 2√2)), or √(2d (d + 1)).

        With m = |u − u'|/2 and p = |u + u'|/2 ≤ 1 − m in each column, |u_j u_k − u'_j u'_k| is at most
        2 (p_j m_k + m_j p_k), so that u = 1 everywhere is as good as anything, and u' = 1 − 2m. With M = Σm and s = √2
        the sum of the absolute differences is (6 + 2s(d − 1)) M − 2s M² − (4 − 2s) Σm²: concave, so largest where all m
        are equal. The squared distance is that of u' alone, |1 − u'|² + d² + |u'|⁴ − 2 (1·u')²; convex in each column
        for d > 1, so that u' is a corner, and largest where its columns sum to 0 or −1.
        """
        d, s = self.dimension, math.sqrt(2.0)
        if order == 2:
            return math.sqrt(2.0 * d * (d + 1))
        return d * (6 + 2 * s * (d - 1)) ** 2 / (4 * (2 * s * d + 4 - 2 * s))

    def split(self, mean: Array) -> tuple[jax.Array, jax.Array]:
        """First (d,) and second (d, d) moments of the standardised columns, from a noisy mean of statistics."""
        d = self.dimension
        return mean[:d], unpacked(mean[d:], d, "scaled")

    def nearest(self, params: Params) -> Params:
        unit = jnp.outer(self.half, self.half)
        covariance, _ = with_least_eigenvalue(params["covariance_matrix"] / unit, LEAST_VARIANCE)
        return {"loc": jnp.clip(params["loc"], self.lower, self.upper), "covariance_matrix": covariance * unit}

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        first, second = self.split(mean)
        within = jnp.clip(first, -1.0, 1.0)
        covariance, raised = with_least_eigenvalue(second - jnp.outer(within, within), LEAST_VARIANCE)
        loc, unit = self.centre + self.half * within, jnp.outer(self.half, self.half)
        return {"loc": loc, "covariance_matrix": covariance * unit}, raised | jnp.any(within != first)

    def covariance(self, params: Params, noise: Array, count: Array, *, clamped: bool) -> jax.Array:
        """Of the entries of the matrix Σ it is (Σ_ik Σ_jl + Σ_il Σ_jk)/n, and the noise's."""
        covariance, d = params["covariance_matrix"], self.dimension
        once = jnp.einsum("ik,jl->ijkl", covariance, covariance)
        of_second = (once + once.swapaxes(0, 1)).reshape(d * d, d * d)
        first = (params["loc"] - self.centre) / self.half
        second = covariance / jnp.outer(self.half, self.half) + jnp.outer(first, first)

        def flat_params(mean: jax.Array) -> jax.Array:
            one, two = self.split(mean)
            entries = (two - jnp.outer(one, one)) * jnp.outer(self.half, self.half)
            return jnp.concatenate([entries.ravel(), self.half * one])

        response = jax.jacfwd(flat_params)(jnp.concatenate([first, packed(second, "scaled")]))
        of_records = jax.scipy.linalg.block_diag(of_second, covariance) / count
        return of_records + noise / count**2 * response @ response.T

    def total(self, key: Key, params: Params, count: Array) -> jax.Array:
        # records are drawn and clamped, a block at a time
        root = jnp.linalg.cholesky(params["covariance_matrix"])

        def block_total(key: Key, size: int) -> jax.Array:
            rows = params["loc"] + jax.random.normal(key, (size, self.dimension), root.dtype) @ root.T
            return self.statistics(rows).sum(axis=0)

        whole, rest = divmod(int(count), BLOCK)
        keys = jax.random.split(key, whole + 1)
        start = block_total(keys[0], rest)
        return jax.lax.scan(lambda total, key: (total + block_total(key, BLOCK), None), start, keys[1:])[0]


def with_least_eigenvalue(matrix: jax.Array, least: Array) -> tuple[jax.Array, jax.Array]:
    """The nearest symmetric matrix with no eigenvalue below ``least``, and whether any had to be raised."""
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * jnp.maximum(values, least)) @ vectors.T, values[0] < least
