"""Corrected losses: unbiased for the loss on the original records, computed from the released ones.

Every method of Lu, Chen & Qiu is a weighted sum over points: of the loss at some points and of its Laplacian at others.
So is averaging over the analyst's own noise, and leaving out points where no record can be. With δ and λ the zero
probability and the scale, X⁽¹⁾ a released record and S ~ SL(δ λ² I),

- dr: ℓ(X⁽¹⁾)/δ + (1 − 1/δ) ℓ(X⁽¹⁾ + S) (Theorem 5.1),
- sdr: ℓ(X⁽¹⁾) − ½ (1 − δ) λ² Δℓ(X⁽¹⁾ + S) (sec. 6),
- sl: ℓ(X⁽¹⁾ + S) − ½ λ² Δℓ(X⁽¹⁾ + S) (eq. 6.1).

dr is unbiased for any loss that is integrable, so also for ℓ(x)·1[x ∈ 𝒳] with the known support 𝒳 of the records. S is
the analyst's own, so the mean over many draws is as unbiased as one draw, and varies less.
"""

import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri
from scipy.stats import qmc

from ldpbayes.estimation.loss import Derivatives, Loss
from ldpbayes.mechanisms import RowMechanism

__all__ = ["Corrected", "Deconvolved", "Points", "controls", "corrected"]

METHODS = ("oracle", "naive", "dr", "sdr", "sl")
LEGENDRE, LAGUERRE = 16, 32
PIECES = (-32.0, -8.0, -2.0, 0.0, 2.0, 8.0, 32.0)  # where integrals over Laplace noise are cut, in its scales


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Points:
    """Rows (points, N, columns) at which something is evaluated, and their weights (points, N)."""

    rows: Any
    weights: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Corrected:
    """A corrected loss of N records: a weighted sum of the loss at some points and of its Laplacian at others.

    Attributes
    ----------
    loss, laplacian : Points or None
    """

    loss: Points | None
    laplacian: Points | None = None

    def values(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> jax.Array:
        """Corrected loss of each record, shape (N,); `index` has the columns that the Laplacian is about."""
        total = 0.0
        if self.loss is not None:
            total = total + jnp.sum(self.loss.weights * loss.values(self.loss.rows, theta), axis=0)
        if self.laplacian is not None:
            bends = loss.laplacians(self.laplacian.rows, theta, index)
            total = total + jnp.sum(self.laplacian.weights * bends, axis=0)
        return total

    def derivatives(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> Derivatives:
        """Mean of the corrected losses, with its gradient and Hessian."""
        parts = []
        if self.loss is not None:
            parts.append(loss.total(self.loss.rows, self.loss.weights, theta))
        if self.laplacian is not None:
            parts.append(loss.total_laplacian(self.laplacian.rows, self.laplacian.weights, theta, index))
        return tuple(sum(terms) / self.count for terms in zip(*parts, strict=True))

    def scores(self, loss: Loss, theta: Any, index: tuple[int, ...]) -> jax.Array:
        """Gradient of the corrected loss of each record, shape (N, p)."""
        return jax.jacfwd(lambda at: self.values(loss, at, index))(theta)

    def weighted(self, weights: jax.Array) -> "Corrected":
        """The same with every record's part multiplied by its weight."""
        return jax.tree.map(
            lambda points: Points(points.rows, points.weights * weights),
            self,
            is_leaf=lambda leaf: isinstance(leaf, Points),
        )

    @property
    def count(self) -> int:
        """Number of records."""
        return (self.loss or self.laplacian).rows.shape[1]

    def __add__(self, other: "Corrected") -> "Corrected":
        """The records of both, those of the second one after those of the first."""
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), self, other)


def corrected(
    method: str, mechanism: RowMechanism, rows: Any, key: Any, *, draws: Any = 1, support: Any = None, cuts: tuple = ()
) -> Corrected:
    """Points and weights of a method; traceable.

    Parameters
    ----------
    method : str
        ``oracle`` and ``naive`` (the loss itself, at original or at released records), ``dr``, ``sdr`` or ``sl``.
    mechanism : RowMechanism
    rows : array (N, columns)
        Released records.
    key : jax.Array
        A JAX random key, for S.
    draws : int or "exact"
        Draws of S a record: one at random, or more as a randomly shifted low-discrepancy sequence. "exact" integrates
        over S, where one column is perturbed.
    support : (array, array), optional
        Bounds of the perturbed columns outside of which there are no records, for ``dr``.
    cuts : tuple of float
        Where exact integration is to be cut: kinks of the loss.

    Returns
    -------
    Corrected
    """
    rows = jnp.asarray(rows)
    n = rows.shape[0]
    ones = jnp.ones((1, n), rows.dtype)
    if method in ("oracle", "naive"):
        return Corrected(Points(rows[None], ones))
    delta = jnp.asarray(mechanism.kept, rows.dtype) * ones
    scale = jnp.asarray(mechanism.scale, rows.dtype) * ones
    second = _second_points(mechanism.index, rows, jnp.sqrt(delta) * scale, key, draws, support, cuts)
    if method == "dr":
        here = _inside(rows[:, mechanism.index], support).astype(rows.dtype) / delta
        # a point outside is never looked at: the loss need not be defined there
        first = rows if support is None else _brought_inside(rows, mechanism.index, support)
        return Corrected(
            Points(
                jnp.concatenate([first[None], second.rows]),
                jnp.concatenate([here, (1 - 1 / delta) * second.weights]),
            )
        )
    if method == "sdr":
        return Corrected(Points(rows[None], ones), Points(second.rows, -0.5 * (1 - delta) * scale**2 * second.weights))
    return Corrected(second, Points(second.rows, -0.5 * scale**2 * second.weights))


def controls(mechanism: RowMechanism, rows: Any, support: Any) -> jax.Array:
    """Functions of released records that have mean zero because no record lies outside its support.

    For each side of each perturbed column, dr applied to the indicator of lying beyond it: the mean over S is a
    Laplace tail.

    Parameters
    ----------
    mechanism : ZeroInflatedLaplaceMechanism
    rows : array (N, columns)
    support : (array, array)

    Returns
    -------
    array (N, 2 × perturbed columns)
    """
    part = jnp.asarray(rows)[:, mechanism.index]
    delta, scale = (jnp.asarray(v, part.dtype).reshape(-1, 1) for v in (mechanism.kept, mechanism.scale))
    lower, upper = (jnp.asarray(bound, part.dtype) for bound in support)
    root = math.sqrt(2) / jnp.where(scale > 0, jnp.sqrt(delta) * scale, jnp.inf)
    columns = []
    for excess in (lower - part, part - upper):
        beyond = jnp.where(
            excess > 0, 1 - 0.5 * jnp.exp(-root * jnp.abs(excess)), 0.5 * jnp.exp(-root * jnp.abs(excess))
        )
        beyond = jnp.where(scale > 0, beyond, excess > 0)
        columns.append((excess > 0) / delta + (1 - 1 / delta) * beyond)
    return jnp.concatenate(columns, axis=1)


def _inside(part: jax.Array, support: Any) -> jax.Array:
    if support is None:
        return jnp.ones(part.shape[:-1], bool)
    lower, upper = support
    return jnp.all((part >= lower) & (part <= upper), axis=-1)


def _brought_inside(rows: jax.Array, index: tuple[int, ...], support: Any) -> jax.Array:
    return rows.at[..., index].set(jnp.clip(rows[..., index], *(jnp.asarray(b, rows.dtype) for b in support)))


def _second_points(index, rows, scale, key, draws, support, cuts) -> Points:
    """X⁽¹⁾ + S, as points whose weights are 1/draws, or less where S leads out of the support."""
    part = rows[:, index]
    if draws == "exact":
        points, weights = _integrated(part[:, 0], scale[0], support, cuts)
        points = points[..., None]
    else:
        points, weights = _drawn(part, scale[0], key, draws, support)
    spread = jnp.broadcast_to(rows, (points.shape[0], *rows.shape))
    return Points(spread.at[..., index].set(points), weights)


def _drawn(part, scale, key, draws, support):
    n, d = part.shape
    keys = jax.random.split(key)
    # a randomly shifted lattice of points in the unit cube: each point is uniform, together they fill it evenly
    lattice = qmc.Sobol(d + 1, scramble=False).random(1 << max(draws - 1, 0).bit_length())[:draws]
    u = (jnp.asarray(lattice, part.dtype)[:, None] + jax.random.uniform(keys[0], (n, d + 1), part.dtype)) % 1.0
    tiny = jnp.finfo(part.dtype).tiny
    spread = (scale * jnp.sqrt(-jnp.log1p(-u[..., 0])))[..., None]
    if support is None:
        return part + spread * ndtri(jnp.clip(u[..., 1:], tiny, None)), jnp.full((draws, n), 1 / draws, part.dtype)
    # given W each column of S is normal: draw it between the bounds, and weigh with the probability of that
    lower, upper = (jnp.asarray(bound, part.dtype) for bound in support)
    safe = jnp.where(spread > 0, spread, 1.0)
    low, high = (lower - part) / safe, (upper - part) / safe
    flip = low + high > 0  # the bounds in the left tail, where a cdf has its digits
    low, high = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
    below = ndtr(low)
    mass = ndtr(high) - below
    normal = ndtri(jnp.clip(below + u[..., 1:] * mass, tiny, None))
    points = jnp.clip(part + spread * jnp.where(flip, -normal, normal), lower, upper)
    inside = (part >= lower) & (part <= upper)
    mass = jnp.where(spread > 0, mass, inside)
    return points, jnp.prod(mass, axis=-1) / draws


def _integrated(z, scale, support, cuts):
    """Nodes and weights (nodes, N) of ∫ f(u) Laplace(u − z) du, exact for f smooth between the cuts.

    The noise may be far narrower than the support: the integral is cut around z, so that a piece never has more of its
    decay than a Gauss rule can follow.
    """
    scale = scale / math.sqrt(2)
    safe = jnp.where(scale > 0, scale, 1.0)
    t, w = np.polynomial.legendre.leggauss(LEGENDRE)
    ends = [z + piece * scale for piece in PIECES]
    ends += [jnp.broadcast_to(jnp.asarray(cut, z.dtype).reshape(()), z.shape) for cut in cuts]
    if support is None:
        edges = jnp.sort(jnp.stack(ends), axis=0)
    else:
        lower, upper = (jnp.asarray(bound, z.dtype).reshape(()) for bound in support)
        inner = jnp.clip(jnp.stack(ends), lower, upper)
        edges = jnp.sort(
            jnp.concatenate([jnp.full((1, *z.shape), lower), inner, jnp.full((1, *z.shape), upper)]), axis=0
        )
    nodes, weights = [], []
    for low, high in itertools.pairwise(edges):
        u = low + (high - low) * ((1 + t) / 2)[:, None]
        nodes.append(u)
        weights.append((high - low) * (w / 2)[:, None] * jnp.exp(-jnp.abs(u - z) / safe) / (2 * safe))
    if support is None:
        s, v = np.polynomial.laguerre.laggauss(LAGUERRE)
        for edge, sign in ((edges[0], -1), (edges[-1], 1)):
            nodes.append(edge + sign * safe * s[:, None])
            weights.append(0.5 * v[:, None] * jnp.exp(-jnp.abs(edge - z) / safe))
    nodes, weights = jnp.concatenate(nodes), jnp.concatenate(weights)
    public = jnp.zeros_like(weights).at[0].set(_inside(z[:, None], support).astype(weights.dtype))
    return jnp.where(scale > 0, nodes, jnp.broadcast_to(z, nodes.shape)), jnp.where(scale > 0, weights, public)


@dataclasses.dataclass(frozen=True)
class Deconvolved(Loss):
    """Π_j (1 − ½ λ² ∂²/∂x_j²) ℓ: its mean over records with independent Laplace noise is that of ℓ over the originals.

    See Lu, Chen & Qiu, preprint, eq. 4.9. With many columns it takes derivatives of a high order, and compiling them
    takes long.

    Parameters
    ----------
    loss : Loss
        ℓ.
    index : tuple of int
        Perturbed columns.
    scale : float
        λ: the standard deviation of the noise in each column.
    """

    loss: Loss
    index: tuple[int, ...]
    scale: float
    smooth = True

    def values(self, rows, theta):
        """See `Loss.values`."""
        size = rows.shape[-1]

        def corrected(function, j):
            direction = jnp.asarray(np.eye(size)[j], rows.dtype)

            def along(row, v):
                return jax.jvp(function, (row,), (v,))[1]

            return lambda row: (
                function(row) - 0.5 * self.scale**2 * jax.jvp(lambda r: along(r, direction), (row,), (direction,))[1]
            )

        function = functools.reduce(corrected, self.index, lambda row: self.loss.values(row, theta))
        return jax.vmap(function)(rows.reshape(-1, size)).reshape(rows.shape[:-1])

    def laplacians(self, rows, theta, index):
        """None: a corrected loss is not corrected again."""
        raise NotImplementedError("this loss is corrected already")

    def names(self, columns):
        """See `Loss.names`."""
        return self.loss.names(columns)
