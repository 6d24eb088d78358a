"""Log of a probability averaged over a normal predictor, L(t, v) = log E[p(t + √v U)], U standard normal, for many t
and few v: tabulated as polynomials on cells of t, wider with |t|, then looked up. They give the derivatives in t, and
by the heat equation ∂L/∂v is (∂²L/∂t² + (∂L/∂t)²)/2.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.polynomial.chebyshev import chebpts1

OCTAVES = 12  # doublings of the width of cells; beyond the last, at |t| = 4,095 √(1 + v), L is continued linearly
SPLITS = 3  # an octave of 1 + |t|/√(1 + v) has 2**SPLITS cells on either side
POWERS = {np.dtype(np.float64): 7, np.dtype(np.float32): 4}  # coefficients of the polynomial of a cell
OCTAVE_NODES = {np.dtype(np.float64): 12, np.dtype(np.float32): 7}  # on half an octave, of Chebyshev
VARIANCE_NODES = 14  # Chebyshev nodes of log(1 + v) from which the tables for more variances than this are interpolated
RULE_POINTS = 16  # points of the trapezoidal rule that are added at once
LOOKUPS = 1 << 13  # look-ups at once, so that their intermediate arrays stay in the cache


def smoothed_log(log_p: Callable[[Any], Any], labels: int, which: Any, t: Any, v: Any) -> jax.Array:
    """Log E[p_k(t + √v U)] for k = `which` (n,), t (q, n) or (n,) and v (q,) or (), with first and second derivatives
    in t and v. `log_p`, from arrays (labels, *shape) to log p_k of the k-th part, must be (nearly) log-concave, change
    little in steps of 0.1, and contain no differentiated variables.
    """
    # Logit and probit responses in double precision, v < 100: the error is at most 3e-9 if v < 10 or if the probability
    # is above 1e-10, else 1e-6. With more than 14 variances that holds for v < 6, and for v < 30 the probability's
    # error is at most 1e-8.
    dtype = jnp.result_type(t, v, float)
    t, v = jnp.asarray(t, dtype), jnp.asarray(v, dtype)
    mean, variance = lax.stop_gradient((t, v))
    furthest = jnp.max(jnp.abs(mean) / jnp.sqrt(1 + variance)[..., None])
    # the octave of the furthest mean, and the next one where rounding could move it there
    octaves = jnp.clip(jnp.floor(jnp.log2(1 + furthest) + 1e-3) + 1, 1, OCTAVES).astype(int)
    table = lax.stop_gradient(_table(log_p, labels, jnp.atleast_1d(variance), octaves))
    return _jet(0, t, v, jnp.asarray(which, np.int32), table)[0]


def _table(log_p: Callable, labels: int, v: Any, octaves: Any) -> jax.Array:
    """Coefficients of the powers of the place in a cell, shape (v, powers, cells); cells by label, side and octave."""
    nodes = chebpts1(OCTAVE_NODES[v.dtype])
    base = 1 + (np.arange(2)[:, None] + (1 + nodes) / 2) / 2  # of 1 + |t|/√(1 + v), in the first octave
    tabulated, interpolation = (v, None) if len(v) <= VARIANCE_NODES else _interpolation(v)
    r, unit = jnp.sqrt(tabulated)[:, None], jnp.sqrt(1 + tabulated)[:, None]
    # the integrand has a width of at least 1/√(1 + v) about and, of a logistic response, poles at a distance of π/√v
    chunks = jnp.clip(jnp.ceil(jnp.maximum(28, 22 * jnp.max(r)) / RULE_POINTS), 2, 256).astype(int)

    def octave(e: Any, table: Any) -> Any:
        x = jnp.exp2(e.astype(v.dtype)) * base.astype(v.dtype) - 1
        t = jnp.broadcast_to(unit * jnp.stack([x, -x]).ravel(), (labels, len(tabulated), 2 * base.size))
        return table.at[e].set(_log_mean(log_p, t, r, chunks))

    table = jnp.zeros((OCTAVES, labels, len(tabulated), 2 * base.size), v.dtype)
    table = lax.fori_loop(0, octaves, octave, table)
    if interpolation is not None:
        table = interpolation @ table
    table = table.reshape(OCTAVES, labels, len(v), 2, 2, len(nodes)) @ _narrower(nodes, POWERS[v.dtype]).astype(v.dtype)
    table = table.reshape(OCTAVES, labels, len(v), 2, 1 << SPLITS, POWERS[v.dtype])
    return jnp.transpose(table, (2, 5, 1, 3, 0, 4)).reshape(len(v), POWERS[v.dtype], -1)


def _narrower(nodes: np.ndarray, powers: int) -> np.ndarray:
    """Matrix (nodes, cells · powers) from values at nodes of half an octave to coefficients of its cells."""
    cells, place = 1 << (SPLITS - 1), chebpts1(powers)
    inside = (2 * np.arange(cells)[:, None] + 1 + place) / cells - 1
    values = np.vander(inside.ravel(), len(nodes), increasing=True) @ np.linalg.inv(np.vander(nodes, increasing=True))
    coefficients = np.linalg.inv(np.vander(place, increasing=True)) @ values.reshape(cells, powers, -1)
    return coefficients.reshape(cells * powers, -1).T


def _interpolation(v: Any) -> tuple[jax.Array, jax.Array]:
    """Variances at Chebyshev nodes of log(1 + v), and the matrix (v, nodes) of the polynomial through values there."""
    nodes = chebpts1(VARIANCE_NODES)
    low, high = jnp.log1p(jnp.min(v)), jnp.log1p(jnp.max(v))
    wide = high > low
    x = jnp.where(wide, 2 * (jnp.log1p(v) - low) / jnp.where(wide, high - low, 1) - 1, 0)
    apart = nodes[:, None] - nodes + np.eye(VARIANCE_NODES)
    factors = (x[:, None, None] - nodes.astype(v.dtype)) / apart.astype(v.dtype)  # of Lagrange's formula
    matrix = jnp.prod(jnp.where(np.eye(VARIANCE_NODES, dtype=bool), 1, factors), axis=-1)
    return jnp.expm1(low + (high - low) * ((1 + nodes) / 2).astype(v.dtype)), matrix


def _log_mean(log_p: Callable, t: Any, r: Any, chunks: Any) -> jax.Array:
    """Log E[p(t + r U)] at t (labels, v, nodes), by the trapezoidal rule on 8 either side of the integrand's mode."""

    def pull(u: Any) -> jax.Array:
        s = t + r * u
        return r * jax.jvp(log_p, (s,), (jnp.ones_like(s),))[1]

    def unsettled(state: tuple) -> Any:
        return (state[2] < 40) & (jnp.max((state[1] - state[0]) * jnp.maximum(r, 4)) > 1)

    def halve(state: tuple) -> tuple:
        low, high, steps = state
        middle = (low + high) / 2
        right = pull(middle) > middle
        return jnp.where(right, middle, low), jnp.where(right, high, middle), steps + 1

    end = pull(jnp.zeros_like(t))
    low, high, _ = lax.while_loop(unsettled, halve, (jnp.minimum(end, 0), jnp.maximum(end, 0), 0))
    mode = (low + high) / 2
    top = log_p(t + r * mode) - 0.5 * mode * mode
    step = 16 / (RULE_POINTS * chunks.astype(t.dtype))

    def add_points(chunk: Any, total: Any) -> Any:
        away = step * (chunk * RULE_POINTS + np.arange(RULE_POINTS, dtype=t.dtype) + 0.5) - 8
        u = mode[:, None] + away[:, None, None]
        return total + jnp.sum(jnp.exp(log_p(t[:, None] + r * u) - 0.5 * u * u - top[:, None]), axis=1)

    return top + jnp.log(lax.fori_loop(0, chunks, add_points, jnp.zeros_like(t)) * step / math.sqrt(2 * math.pi))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _jet(order: int, t: Any, v: Any, which: Any, table: Any) -> tuple[jax.Array, ...]:
    """L and its derivatives in t up to an order, of the shape of t."""
    rows, powers, cells = table.shape
    first = which * (2 * OCTAVES << SPLITS) + jnp.arange(rows, dtype=which.dtype)[:, None] * cells
    per_unit = jnp.broadcast_to(1 / jnp.sqrt(1 + v)[..., None], t.shape)
    # in one dimension: look-ups of arrays (1, n) are compiled into code five times as slow
    table = jnp.swapaxes(table, 0, 1).reshape(powers, rows * cells)
    flat = t.ravel(), first.ravel(), per_unit.ravel()
    if t.size <= LOOKUPS:
        jet = _looked_up(order, *flat, table)
    else:
        blocks = tuple(jnp.pad(a, (0, -t.size % LOOKUPS), mode="edge").reshape(-1, LOOKUPS) for a in flat)
        jet = lax.map(lambda b: _looked_up(order, b[0], b[1], b[2], table), blocks)
    return tuple(d.ravel()[: t.size].reshape(t.shape) for d in jet)


@_jet.defjvp
def _jet_jvp(order: int, primals: tuple, tangents: tuple) -> tuple:
    d = _jet(order + 2, *primals)
    dt, dv = tangents[0], tangents[1][..., None]
    products = [sum(math.comb(k, j) * d[1 + j] * d[1 + k - j] for j in range(k + 1)) for k in range(order + 1)]
    return d[: order + 1], tuple(d[k + 1] * dt + (d[k + 2] + square) / 2 * dv for k, square in enumerate(products))


def _looked_up(order: int, t: Any, first: Any, per_unit: Any, table: Any) -> tuple[jax.Array, ...]:
    """Derivatives in t (n,), by a table (powers, cells); `first` is the cell next to 0 of a label and variance."""
    info = jnp.finfo(t.dtype)
    integer = jnp.uint64 if info.bits == 64 else jnp.uint32
    one, below_one = (info.maxexp - 1) << info.nmant, (1 << info.nmant) - 1
    sign = jnp.where(t < 0, -1, 1).astype(t.dtype)
    # the exponent and the first bits of a number between 1 and 2**OCTAVES are its cell, the others its place there
    x = jnp.minimum(1 + jnp.abs(t) * per_unit, (1 << OCTAVES) * (1 - info.eps))
    bits = lax.bitcast_convert_type(x, integer)
    cell = (bits >> (info.nmant - SPLITS)).astype(first.dtype) - (one >> (info.nmant - SPLITS))
    rest = (bits << SPLITS) & integer(below_one)
    place = 2 * lax.bitcast_convert_type(rest | integer(one), t.dtype) - 3
    index = first + jnp.where(t < 0, OCTAVES << SPLITS, 0) + jnp.clip(cell, 0, (OCTAVES << SPLITS) - 1)
    # without the barrier XLA recomputes both for every coefficient
    index, place = lax.optimization_barrier((index, place))
    most = max(order, 1)
    jet = [jnp.zeros_like(t)] * (most + 1)
    for row in reversed(range(len(table))):
        for k in range(most, 0, -1):
            jet[k] = jet[k] * place + jet[k - 1]
        jet[0] = jet[0] * place + table[row].at[index].get(mode="promise_in_bounds")
    octave = lax.bitcast_convert_type(bits & ~integer(below_one), t.dtype)
    scale = sign * per_unit * (2 << SPLITS) / octave
    jet = [d * math.factorial(k) * scale**k for k, d in enumerate(jet)]
    # linear beyond the last cell; elsewhere `beyond` is a rounding error, or NaN where t is
    beyond = t - sign * (x - 1) / per_unit
    return (jet[0] + jet[1] * beyond, *jet[1 : order + 1])
