"""Families of vectors: multinomial and multivariate normal."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ldpbayes._core.checks import LARGEST_CODE, at_least, check_order
from ldpbayes._core.pytrees import checked_field, pytree, static
from ldpbayes._core.types import Array, Key, Params
from ldpbayes.bootstrap._family import ParametricFamily
from ldpbayes.bootstrap._sums import PointMasses
from ldpbayes.numerics.arrays import diagonal_first_pairs, packed, unpacked

LEAST_VARIANCE = 4e-6  # in any direction, for bounds -1 and 1: a thousandth of their distance, squared
BLOCK = 2048  # records that are drawn at a time


@pytree
@dataclasses.dataclass(frozen=True)
class Multinomial(ParametricFamily):
    """Records that are codes of categories, whose counts are multinomial; parameter ``probs`` (categories,).

    Parameters
    ----------
    categories : int
        Number of categories, 2 at least.
    """

    categories: int = static()

    base: ClassVar = dist.CategoricalProbs
    lattice_step: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", at_least(2, "categories", self.categories, LARGEST_CODE))

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"category {k}" for k in range(self.categories))

    def statistics(self, x: Array) -> jax.Array:
        return jax.nn.one_hot(jnp.asarray(x), self.categories, dtype=float)

    def sensitivity(self, order: int) -> float:
        """One count falls by one, another rises."""
        return {1: 2.0, 2: math.sqrt(2.0)}[order]

    def nearest(self, params: Params) -> Params:
        """The nearest point of the simplex, by Euclidean distance ([WC])."""
        falling = jnp.sort(params["probs"])[::-1]
        excess = (jnp.cumsum(falling) - 1) / jnp.arange(1, self.categories + 1)
        kept = jnp.sum(falling > excess)
        probs = jnp.maximum(params["probs"] - excess[kept - 1], 0.0)
        return {"probs": probs / jnp.sum(probs)}

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        within = self.nearest({"probs": mean})
        return within, jnp.any(within["probs"] == 0)

    def solve_clamped(self, mean: Array) -> tuple[Params, jax.Array]:
        return self.solve(mean)

    def covariance(self, params: Params, noise: Array, count: Array, *, clamped: bool) -> jax.Array:
        """Covariance of shares that sum to one, but may be negative."""
        p, size = params["probs"], self.categories
        centred = jnp.eye(size) - 1 / size
        return (jnp.diag(p) - jnp.outer(p, p)) / count + noise / count**2 * centred

    def total(self, key: Key, params: Params, count: Array) -> jax.Array:
        return PointMasses(jnp.arange(self.categories), params["probs"]).counts(key, count)

    def checked(self, data: Array) -> np.ndarray:
        x = np.asarray(data)
        if x.ndim != 1 or not x.size or x.dtype.kind not in "iufb" or not (x == np.round(x)).all():
            raise ValueError(f"Multinomial takes an array of codes (n,), got shape {x.shape} of {x.dtype}")
        if x.min() < 0 or x.max() >= self.categories:
            raise ValueError(f"codes must be from 0 to {self.categories - 1}, got {x.min():g} to {x.max():g}")
        return x.astype(int)


@pytree
@dataclasses.dataclass(frozen=True)
class NormalVector(ParametricFamily):
    """Normal rows of unknown mean and covariance; parameters ``loc`` (d,) and ``covariance_matrix`` (d, d).

    The statistics are u_j, u_j² and √2 u_j u_k (j < k), with u = −1 and 1 at the bounds.

    Parameters
    ----------
    lower, upper : array_like (d,)
        Bounds to which the columns are clamped, in their units. A mean is brought between them; variances in any
        direction are at least a thousandth of the distance of the bounds, squared.
    """

    lower: Array = None
    upper: Array = None

    base: ClassVar = dist.MultivariateNormal
    accounts_for_clamping: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            if getattr(self, name) is None:
                raise ValueError(
                    f"{type(self).__name__} needs bounds to which columns are clamped, chosen without looking at them: "
                    f"{name} is missing"
                )
            checked_field(self, name, "finite numbers, one a column", np.isfinite)
        if np.ndim(self.lower) != 1 or np.shape(self.lower) != np.shape(self.upper):
            raise ValueError(
                f"lower and upper must be arrays, one a column; got shapes {np.shape(self.lower)} and "
                f"{np.shape(self.upper)}"
            )
        check_order(self.lower, self.upper)

    @property
    def dimension(self) -> int:
        """Number of columns."""
        return len(self.lower)

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        d = self.dimension
        first = tuple(f"u{j}" for j in range(d))
        return first + tuple(f"u{j}*u{k}" for j, k in zip(*diagonal_first_pairs(d), strict=True))

    @property
    def centre(self) -> Array:
        """Where u = 0."""
        return (self.lower + self.upper) / 2

    @property
    def half(self) -> Array:
        """Distance of the centre from the bounds."""
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

    def checked(self, data: Array) -> np.ndarray:
        x = np.asarray(data)
        if x.ndim != 2 or not len(x) or x.shape[1] != self.dimension or x.dtype.kind not in "iufb":
            raise ValueError(
                f"{type(self).__name__} takes rows (n, {self.dimension}) of numbers, got shape {x.shape} of {x.dtype}"
            )
        if not np.isfinite(x).all():
            raise ValueError(f"records must be finite; {(~np.isfinite(x).all(axis=1)).sum()} rows are not")
        return x.astype(float)

    def nearest(self, params: Params) -> Params:
        unit = jnp.outer(self.half, self.half)
        return {
            "loc": jnp.clip(params["loc"], self.lower, self.upper),
            "covariance_matrix": with_least_eigenvalue(params["covariance_matrix"] / unit, LEAST_VARIANCE)[0] * unit,
        }

    def unconstrained(self, params: Params) -> jax.Array:
        return jnp.concatenate([params["loc"], log_cholesky(params["covariance_matrix"])])

    def constrained(self, vector: Array, like: Params | None = None) -> Params:
        d = self.dimension
        return {"loc": vector[:d], "covariance_matrix": from_log_cholesky(vector[d:], d)}

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        first, second = self.split(mean)
        within = jnp.clip(first, -1.0, 1.0)
        covariance, raised = with_least_eigenvalue(second - jnp.outer(within, within), LEAST_VARIANCE)
        params = {
            "loc": self.centre + self.half * within,
            "covariance_matrix": covariance * jnp.outer(self.half, self.half),
        }
        return params, raised | jnp.any(within != first)

    def solve_clamped(self, mean: Array) -> tuple[Params, jax.Array]:
        raise NotImplementedError("the moments of a clamped normal row have no closed form")

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


def log_cholesky(covariance: jax.Array) -> jax.Array:
    """The Cholesky root of a positive matrix as a vector of any numbers: logarithms of its diagonal, entries below."""
    root = jnp.linalg.cholesky(covariance)
    return jnp.concatenate([jnp.log(jnp.diagonal(root)), root[np.tril_indices(len(root), -1)]])


def from_log_cholesky(vector: jax.Array, size: int) -> jax.Array:
    """Inverse of `log_cholesky`, for a matrix of ``size`` rows."""
    root = jnp.diag(jnp.exp(vector[:size])).at[np.tril_indices(size, -1)].set(vector[size:])
    return root @ root.T
