"""The law of a sum of draws that were clipped."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ldpbayes._core.types import Array, Key
from ldpbayes.numerics.polynomial import lagrange_from_legendre

PANEL_NODES = 64  # Gauss-Legendre nodes of each panel of the rule for a density
GRID_POINTS = 4096  # cells of the table of a sum
REACH = 10.0  # half the table's length, in standard deviations of the sum
FREQUENCIES = 256  # used for a density, up to π · 256/REACH per standard deviation
NEGLIGIBLE_TRANSFORM = 1e-8  # at frequencies beyond the table's; its distribution function is off by a few times that
FEW_INSIDE = 40  # draws inside the bounds; if more are expected, the rule resolves all frequencies of the table
CELLS = 2048  # of each panel in the table of one draw, whose error is below 2e-6
BLOCK = 16  # draws that are made at a time


class PointMasses(NamedTuple):
    """Points on the line (m,), and their probabilities (m,), which sum to one."""

    nodes: jax.Array
    weights: jax.Array

    def expectation(self, values: Array) -> jax.Array:
        """Mean (...) of a function of the variable from its values (m, ...) at the nodes."""
        return jnp.tensordot(self.weights, values, axes=1)

    def compressed(self, size: int) -> "PointMasses":
        """At most ``size`` masses with the same moments up to 2 size − 1; the law itself, where it has no more points.
        By Lanczos' method with full reorthogonalisation, and the eigenvalues of its tridiagonal matrix ([GW]).
        """
        if len(self.nodes) <= size:
            return self
        middle = self.expectation(self.nodes)
        spread = jnp.sqrt(self.expectation((self.nodes - middle) ** 2))
        unit = jnp.where(spread > 0, spread, 1.0)
        at, root = (self.nodes - middle) / unit, jnp.sqrt(self.weights)

        def step(state: tuple, number: jax.Array) -> tuple[tuple, tuple]:
            basis, vector = state
            basis, new = basis.at[number].set(vector), at * vector
            diagonal = new @ vector
            for _ in range(2):  # once is not enough to be orthogonal to rounding
                new = new - (basis @ new) @ basis
            length = jnp.linalg.norm(new)
            # a law with fewer points: the rest is rounding, and gets no mass
            ended = length < 1e-13 * jnp.max(jnp.abs(at))
            following = jnp.where(ended, 0.0, new / jnp.where(ended, 1.0, length))
            return (basis, following), (diagonal, jnp.where(ended, 0.0, length))

        start = jnp.zeros((size, len(root)), root.dtype), root / jnp.linalg.norm(root)
        _, (diagonal, lengths) = lax.scan(step, start, jnp.arange(size))
        off = lengths[:-1]
        values, vectors = jnp.linalg.eigh(jnp.diag(diagonal) + jnp.diag(off, 1) + jnp.diag(off, -1))
        masses = vectors[0] ** 2
        return PointMasses(middle + unit * values, masses / jnp.sum(masses))

    def counts(self, key: Key, count: Array) -> jax.Array:
        """Numbers (m,) of ``count`` draws on each node, in floating point: multinomial, as successive binomials."""
        dtype = self.weights.dtype
        order = jnp.argsort(-self.weights)  # the largest first, so that the remaining mass is no small difference
        weights = self.weights[order]
        left = jnp.cumsum(weights[::-1])[::-1]
        chances = jnp.clip(weights / jnp.where(left > 0, left, 1.0), 0.0, 1.0)

        def draw(remaining: jax.Array, at: tuple) -> tuple[jax.Array, jax.Array]:
            node_key, chance = at
            number = jax.random.binomial(node_key, remaining, chance, dtype=dtype)
            # a sampler need not know the degenerate laws
            number = jnp.where((remaining > 0) & (chance > 0), number, 0.0)
            number = jnp.where(chance < 1, number, remaining)
            return remaining - number, number

        keys = jax.random.split(key, len(weights) - 1)
        last, numbers = lax.scan(draw, jnp.asarray(count, dtype), (keys, chances[:-1]))
        return jnp.zeros_like(weights).at[order].set(jnp.append(numbers, last))


def sum_of_draws(key: Key, law: PointMasses, count: Array, step: float | None = None) -> jax.Array:
    """Draw the sum of ``count`` independent variables; the distribution function is off by less than 1e-5.
    The law has nodes of panels of `PANEL_NODES` and last its bounds, or all points of a lattice of a ``step``. There
    the sum is on the lattice too, unless its standard deviation is over two hundred steps: then the table is exact only
    if the sum is smooth over a step. Mapped over keys alone, tables are made once.
    """
    edges, below, smooth = table_of_sum(law, count, step)
    keys = jax.random.split(key, 4)
    total = jnp.interp(jax.random.uniform(keys[0], (), below.dtype), below, edges)
    if step is not None:
        exact = edges[1] - edges[0] < 1.5 * step
        return jnp.where(exact, step * jnp.round(total / step), total)
    lower, upper = law.weights[-2:]
    of_upper = PointMasses(jnp.arange(2.0), jnp.stack([1 - upper, upper]))
    at_upper = jnp.clip(jnp.round(sum_of_draws(keys[1], of_upper, count, 1.0)), 0, count)
    others = jnp.where(smooth, 0, count - at_upper)
    inside = _binomial(keys[2], others, 1 - lower / jnp.where(upper < 1, 1 - upper, 1.0))
    ends = (count - at_upper - inside) * law.nodes[-2] + at_upper * law.nodes[-1]
    return jnp.where(smooth, total, ends + sum_inside(keys[3], law, inside, lambda x: x))


def _binomial(key: Key, trials: Array, chance: Array) -> jax.Array:
    """A binomial draw by waiting times; JAX's own sampler takes seconds to compile."""

    def wait(state: tuple) -> tuple:
        number, at, successes = state
        uniform = jax.random.uniform(jax.random.fold_in(key, number), (BLOCK,), chance.dtype, tiny)
        ahead = at + jnp.cumsum(1 + jnp.floor(jnp.log(uniform) / jnp.log1p(-jnp.clip(chance, tiny, 1 - 1e-16))))
        return number + 1, ahead[-1], successes + jnp.sum(ahead <= trials)

    tiny, zero = jnp.finfo(chance.dtype).tiny, jnp.zeros((), chance.dtype)
    return lax.while_loop(lambda state: state[1] < trials, wait, (0, zero, zero))[2]


def table_of_sum(law: PointMasses, count: Array, step: float | None) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Edges of cells (points + 1,), the sum's distribution function there, and whether it is exact to 1e-5."""
    mean = law.expectation(law.nodes)
    away = law.nodes - mean
    spread = jnp.sqrt(count * law.expectation(away**2))
    least = jnp.finfo(spread.dtype).tiny if step is None else step
    width = jnp.maximum(2 * REACH * spread / GRID_POINTS, least)
    first = count * mean - width * (GRID_POINTS // 2)
    if step is not None:
        first = step * jnp.round(first / step)
    frequencies = FREQUENCIES if step is None else GRID_POINTS // 2 + 1
    frequency = 2 * jnp.pi / (GRID_POINTS * width) * jnp.arange(frequencies)
    waves = [f(jnp.outer(away, frequency)) for f in (jnp.cos, jnp.sin)]
    # φ(t)ⁿ, turned to where the table starts; the phase of each factor is small, so that its power is not a large angle
    real, imaginary = (law.expectation(wave) for wave in waves)
    log_size = 0.5 * count * jnp.log(jnp.maximum(real**2 + imaginary**2, 1e-300))
    phase = count * jnp.arctan2(imaginary, real) + frequency * (count * mean - first)
    cell = 1.0 if step is not None else jnp.sinc(frequency * width / (2 * jnp.pi))  # the mean over a cell
    mass = jnp.maximum(jnp.fft.irfft(cell * jnp.exp(log_size) * jnp.exp(-1j * phase), GRID_POINTS), 0.0)
    below = jnp.concatenate([jnp.zeros(1, mass.dtype), jnp.cumsum(mass)])
    # |φ| is at most the mass of the bounds and the size of the part of the density, which falls with the frequency
    inside, ends = law.weights[:-2], jnp.sum(law.weights[-2:])
    size = ends + jnp.hypot(*(inside @ wave[:-2, frequencies // 2 :] for wave in waves))
    smooth = (jnp.max(size) ** count < NEGLIGIBLE_TRANSFORM) & (count * jnp.sum(inside) > FEW_INSIDE)
    return first + width * (jnp.arange(GRID_POINTS + 1) - 0.5), below / below[-1], smooth


def sum_inside(key: Key, law: PointMasses, number: Array, values: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Sum, () or (k,), of a function (m,) → (m,) or (m, k) of draws inside the bounds of a law of `sum_of_draws`."""
    at, below = table_of_one(law)

    def draw(state: tuple) -> tuple:
        block, total = state
        uniform = jax.random.uniform(jax.random.fold_in(key, block), (BLOCK,), below.dtype)
        terms = values(jnp.interp(uniform, below, at))
        counted = (block * BLOCK + jnp.arange(BLOCK) < number).reshape(-1, *[1] * (terms.ndim - 1))
        return block + 1, total + jnp.sum(jnp.where(counted, terms, 0.0), axis=0)

    start = 0, jnp.zeros_like(values(at[:1])[0])
    return lax.while_loop(lambda state: state[0] * BLOCK < number, draw, start)[1]


def table_of_one(law: PointMasses) -> tuple[jax.Array, jax.Array]:
    """Points between the bounds, and the share of draws inside that are below, by the polynomials through the nodes.
    Points are closer together towards the ends of a panel, where densities that start or are cut there are steepest.
    """
    legendre, weights = lagrange_from_legendre(PANEL_NODES), np.polynomial.legendre.leggauss(PANEL_NODES)[1]
    below = np.polynomial.legendre.legint(legendre / weights, lbnd=-1)
    nodes, masses = (part[:-2].reshape(-1, PANEL_NODES) for part in law)
    coefficients = jnp.concatenate([jnp.pad(nodes @ legendre.T, ((0, 0), (0, 1))), masses @ below.T])
    t = -jnp.cos(jnp.pi * jnp.arange(CELLS + 1) / CELLS)

    def clenshaw(state: tuple, at: tuple) -> tuple:
        k, coefficient = at
        first, second = state
        return (coefficient[:, None] + (2 * k + 1) / (k + 1) * t * first - (k + 1) / (k + 2) * second, first), None

    zeros = jnp.zeros((len(coefficients), len(t)), coefficients.dtype)
    (first, second), _ = lax.scan(clenshaw, (zeros, zeros), (jnp.arange(PANEL_NODES, 0, -1), coefficients.T[:0:-1]))
    x, share = (coefficients[:, :1] + t * first - second / 2).reshape(2, -1, len(t))
    before = jnp.cumsum(share[:, -1]) - share[:, -1]
    share = lax.cummax(jnp.maximum(share + before[:, None], 0.0).ravel())
    return x.ravel(), share / jnp.where(share[-1] > 0, share[-1], 1.0)
