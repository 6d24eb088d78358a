"""The mechanism as a matrix, the same for any base: p(z_j | θ) is Σ_k K[k, j] p_θ(x_k) over latent nodes, with K[k, j]
= ∫ ℓ_k(x) p(z_j | x) dx of Lagrange bases ℓ_k of a panel's nodes, cut at kinks of p(z | ·), so exact to rounding.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpy.polynomial.legendre import leggauss

from ldpbayes._core.pytrees import pytree_dataclass
from ldpbayes._core.types import Array, ArrayModule, is_concrete
from ldpbayes.laws.families import NODES_PER_PANEL, aligned
from ldpbayes.likelihood.latent import Latent, latent_nodes, log_density_at
from ldpbayes.mechanisms import Mechanism
from ldpbayes.numerics.polynomial import lagrange_from_legendre

INTEGRATION_ORDER = 12  # between kinks p(z | x) varies by a factor e at most over a panel: exact to rounding
MOST_MATRIX_ENTRIES = 1 << 27  # 1 GiB in double precision; a traced function carries them as a constant
BUILD_COPIES = 3  # while it is built, the matrix takes this many times its own room
BUILD_ENTRIES_AT_ONCE = 1 << 22  # entries of the largest temporary while the matrix is built
PAIRS_AT_ONCE = 1 << 14  # pairs of x and z whose densities are computed at once


@pytree_dataclass(eq=False)
class Channel:
    """A discretised mechanism at given released values."""

    latent: Latent  # nodes of x; the last two rows of the matrix belong to its ends
    matrix: Array  # (n + 2, *z): ∫ ℓ_k(x) p(z | x) dx, divided by exp(log_scale)
    log_scale: Array  # (*z): largest log p(z | x) over the nodes, so that no value is too far out to be represented
    mechanism: Mechanism
    z: Array  # (*z, *event): for rows of the matrix of panels that a kink or a jump of a base density cuts

    def log_prob(self, base: dist.Distribution) -> jax.Array:
        """Log density of the released values when x ~ base, in the broadcast shape of z and ``base.batch_shape``."""
        grid = self.latent.cut(base)
        density = grid.density(base)
        if grid.pieces is None:
            total = _product(density, self.matrix)
        else:
            fixed = len(self.matrix) - 2
            of_nodes = jnp.concatenate([density[:fixed], density[-2:]])
            total = _product(of_nodes, self.matrix) + _product(density[fixed:-2], self._rows(*grid.pieces[:2]))
        return self.log_scale + jnp.log(jnp.maximum(total, jnp.finfo(total.dtype).tiny))

    def _rows(self, left: Array, right: Array) -> jax.Array:
        """Rows of the matrix for panels that are only known now, (panels, *batch), and need not touch each other."""
        kernel = _Kernel(jnp, self.mechanism, self.z)
        rank = max(self.matrix.ndim, left.ndim)
        left, right = aligned(left, rank), aligned(right, rank)
        holders = [(left <= cut) & (cut < right) for cut in kernel.cuts]
        return kernel.integrals(kernel.log_at_gauss_points(left, right), self.log_scale, left, right, holders)


def _product(density: Array, matrix: Array) -> jax.Array:
    rows = matrix.T  # nodes last, which is how `build_channel` has laid them out
    if density.ndim == 1:  # on a CPU, a product with a matrix takes a third of the time of one with a 3-d array
        return jnp.reshape(rows.reshape(-1, rows.shape[-1]) @ density, rows.shape[:-1]).T
    if density.ndim == 2 and rows.ndim == 3 and len(rows) == 1:  # one matrix for all laws
        return jnp.tensordot(rows[0], density, axes=1)
    if density.ndim == 2 and rows.ndim == 3 and len(rows) == density.shape[1]:  # one a law
        return jnp.einsum("gzn,ng->zg", rows, density)
    rank = max(density.ndim, matrix.ndim)
    return jnp.sum(aligned(density, rank) * aligned(matrix, rank), axis=0)


def build_channel(base: dist.Distribution, mechanism: Mechanism, z: Array, panels: int | None = None) -> Channel:
    """The channel at released values z: in NumPy and double precision for concrete ones. ValueError beyond 1 GiB."""
    grid = latent_nodes(base, mechanism, panels)
    n = grid.nodes.shape[0] + 2
    event = mechanism.event_shape
    shape = np.broadcast_shapes(jnp.shape(z)[: jnp.ndim(z) - len(event)], grid.nodes.shape[1:], mechanism.batch_shape)
    concrete = is_concrete(z, mechanism, grid.nodes)
    if n * math.prod(shape) * (1 if concrete else BUILD_COPIES) > MOST_MATRIX_ENTRIES:
        # a sketch passes `panels`, and would not be helped by being sketched
        instead = "release.sketch()" if panels is None else "the release itself instead of a sketch"
        size = f"a channel of {n} nodes for values of shape {shape} would need more than 1 GiB"
        hint = "" if concrete else ", or pass the released values outside jit, where the channel can be built in chunks"
        raise ValueError(f"{size}; use {instead}, or fewer panels{hint}")
    if not concrete:
        z = jnp.broadcast_to(z, shape + event)
        return Channel(grid, *_matrix(jnp, grid, mechanism, z), mechanism, z)
    z = np.broadcast_to(np.asarray(z) if event else np.asarray(z, dtype=float), shape + event)
    # in double precision whatever the caller's setting, and never part of a trace
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        if not shape:
            return Channel(grid, *_matrix(np, grid, mechanism, z), mechanism, z)
        # a product with a law that several values share goes from value to value and reads all nodes of each: they
        # then lie next to each other
        order: Literal["F", "C"] = "F" if len(base.batch_shape) < len(shape) else "C"
        matrix, log_scale = np.empty((n, *shape), order=order), np.empty(shape)
        width = max(1, BUILD_ENTRIES_AT_ONCE // (n * BUILD_COPIES * math.prod(shape[:-1])))
        for start in range(0, shape[-1], width):
            part = slice(start, start + width)
            values = z[(..., part, *(slice(None),) * len(event))]
            matrix[..., part], log_scale[..., part] = _matrix(np, *_cut(grid, mechanism, shape[-1], part), values)
    return Channel(grid, matrix, log_scale, mechanism, z)


def _cut(grid: Latent, mechanism: Mechanism, size: int, part: slice) -> tuple[Latent, Any]:
    """Points and mechanism of a part of a batch's last axis, of this size; what lacks that axis stays whole."""

    def cut(leaf: Array) -> Array:
        return leaf[..., part] if np.shape(leaf)[-1:] == (size,) else leaf

    if grid.nodes.ndim > 1:
        grid = replace(grid, nodes=cut(grid.nodes), edges=cut(grid.edges), ends=(cut(grid.ends[0]), cut(grid.ends[1])))
    return grid, mechanism._map_personal(cut)


def _matrix(xp: ArrayModule, grid: Latent, mechanism: Any, z: Array) -> tuple[Array, Array]:
    kernel = _Kernel(xp, mechanism, z)
    batch = np.broadcast_shapes(z.shape[: z.ndim - len(mechanism.event_shape)], grid.nodes.shape[1:])
    ends = xp.stack([xp.broadcast_to(kernel.log(xp.asarray(end)), batch) for end in grid.ends])
    if grid.edges is None:
        log_values = kernel.log(aligned(grid.nodes, 1 + len(batch)))
        highest = xp.maximum(log_values.max(axis=0), ends.max(axis=0))
    else:
        edges = aligned(xp.asarray(grid.edges), 1 + len(batch))
        left, right = edges[:-1], edges[1:]
        log_values = kernel.log_at_gauss_points(left, right)
        peaks = [kernel.log(xp.clip(cut, edges[0], edges[-1])) for cut in kernel.cuts]
        highest = functools.reduce(xp.maximum, peaks, xp.maximum(log_values.max(axis=(0, 1)), ends.max(axis=0)))
    log_scale = xp.where(highest > -np.inf, highest, 0.0)  # it is −inf at a value that cannot be released
    if grid.edges is None:
        return xp.exp(xp.concatenate([log_values, ends]) - log_scale), log_scale
    number = np.arange(len(left)).reshape((-1,) + (1,) * len(batch))
    holders = [number == (edges[1:-1] <= cut).sum(axis=0) for cut in kernel.cuts]
    inside = kernel.integrals(log_values, log_scale, left, right, holders)
    return xp.concatenate([inside, xp.exp(ends - log_scale)]), log_scale


@dataclass(frozen=True)
class _Kernel:
    """p(z | x) as a function of x at released values z (*z, *event), computed with ``xp``, and its integrals."""

    xp: ArrayModule
    mechanism: Any
    z: Array

    def log(self, x: Array) -> Array:
        if self.xp is not np or self.mechanism.event_shape or self.mechanism.batch_shape:
            return self.xp.asarray(log_density_at(self.mechanism, self.z, x))
        # Values of all shapes are computed by one program, so that it is compiled once.
        pairs = np.stack(np.broadcast_arrays(self.z, x))
        flat, logs = pairs.reshape(2, -1), np.empty(pairs[0].size)
        for start in range(0, len(logs), PAIRS_AT_ONCE):
            part = flat[:, start : start + PAIRS_AT_ONCE]
            padded = np.pad(part, ((0, 0), (0, PAIRS_AT_ONCE - part.shape[1])), mode="edge")
            logs[start : start + PAIRS_AT_ONCE] = np.asarray(log_density_at(self.mechanism, *padded))[: part.shape[1]]
        return logs.reshape(pairs.shape[1:])

    @functools.cached_property
    def cuts(self) -> Array:
        """Kinks of p(z | ·) in ascending order, shape (m, *z)."""
        return self.xp.moveaxis(self.xp.sort(self.mechanism.breakpoints(self.z), axis=-1), -1, 0)

    def log_at_gauss_points(self, left: Array, right: Array) -> Array:
        """Logs, (panels, 12, *z), at the nodes of a rule that integrates it over panels (panels, *z) without kinks."""
        t, _ = leggauss(INTEGRATION_ORDER)
        return self.log(left[:, None] + 0.5 * (right - left)[:, None] * (1 + t.reshape((-1,) + (1,) * (left.ndim - 1))))

    def integrals(self, log_values: Array, log_scale: Array, left: Array, right: Array, holders: list) -> Array:
        """Integrals (8 panels, *z) of the Lagrange bases against it, over exp(log_scale), from values of
        `log_at_gauss_points`; `holders` mark the panel (panels, *z) that each cut is in.
        """
        # every panel by one Gauss rule whose nodes all released values share ...
        t, w = leggauss(INTEGRATION_ORDER)
        panels, batch = len(left), log_values.shape[2:]
        legendre = np.polynomial.legendre.legvander(t, NODES_PER_PANEL - 1)
        basis = (legendre @ lagrange_from_legendre(NODES_PER_PANEL)).T * w
        values = self.xp.exp(log_values - log_scale).reshape((panels, INTEGRATION_ORDER, -1))
        integrals = self.xp.matmul(basis, values).reshape((panels, NODES_PER_PANEL) + batch)
        inside = 0.5 * (right - left)[:, None] * integrals
        # ... then those that a kink cuts again, piece by piece
        for holder in holders:
            start, stop = (self.xp.where(holder, end, 0.0).sum(axis=0) for end in (left, right))
            inside = self.xp.where(holder[:, None], self._pieces(log_scale, start, stop), inside)
        return inside.reshape((-1,) + batch)

    def _pieces(self, log_scale: Array, start: Array, stop: Array) -> Array:
        """Integrals of one panel's Lagrange basis, cut at the kinks, shape (8, *z)."""
        xp = self.xp
        bounds = xp.concatenate([start[None], xp.clip(self.cuts, start, stop), stop[None]])  # (m + 2, *z)
        t, w = (array.reshape((-1,) + (1,) * bounds.ndim) for array in leggauss(INTEGRATION_ORDER))
        half = 0.5 * (bounds[1:] - bounds[:-1])
        x = bounds[:-1] + half * (1 + t)  # (order, m + 1, *z)
        values = xp.exp(self.log(x) - log_scale) * (w * half)
        local = (2 * x - start - stop) / xp.where(stop > start, stop - start, 1.0)
        previous, current = xp.ones_like(local), local
        moments = [values.sum(axis=(0, 1)), (values * current).sum(axis=(0, 1))]
        for n in range(1, NODES_PER_PANEL - 1):
            previous, current = current, ((2 * n + 1) * local * current - n * previous) / (n + 1)
            moments.append((values * current).sum(axis=(0, 1)))
        return xp.tensordot(lagrange_from_legendre(NODES_PER_PANEL).T, xp.stack(moments), axes=(1, 0))
