"""The law of a sum of draws that were clipped."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ldpbayes.numerics.quadrature import lagrange_from_legendre


class PointMasses(NamedTuple):
    """Masses on points of the line.

    Attributes
    ----------
    nodes : array (m,)
        The points.
    weights : array (m,)
        Their probabilities, which sum to one.
    """

    nodes: jax.Array
    weights: jax.Array

    def expectation(self, values: jax.Array) -> jax.Array:
        """Mean of a function of the variable.

        Parameters
        ----------
        values : array (m, ...)
            The function at the nodes.

        Returns
        -------
        array (...)
        """
        return jnp.tensordot(self.weights, values, axes=1)

    def compressed(self, size: int) -> "PointMasses":
        """At most so many masses with the same moments up to 2 size − 1; the same law, where it has no more points.

        By Lanczos' method, each vector made orthogonal to all before it, and the eigenvalues of the matrix it leads to
        ([GW]).

        Parameters
        ----------
        size : int
            How many.
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
            # a law with fewer points than that: what is left is rounding, and gets no mass
            ended = length < 1e-13 * jnp.max(jnp.abs(at))
            following = jnp.where(ended, 0.0, new / jnp.where(ended, 1.0, length))
            return (basis, following), (diagonal, jnp.where(ended, 0.0, length))

        start = jnp.zeros((size, len(root)), root.dtype), root / jnp.linalg.norm(root)
        _, (diagonal, beside) = lax.scan(step, start, jnp.arange(size))
        off = beside[:-1]
        values, vectors = jnp.linalg.eigh(jnp.diag(diagonal) + jnp.diag(off, 1) + jnp.diag(off, -1))
        masses = vectors[0] ** 2
        return PointMasses(middle + unit * values, masses / jnp.sum(masses))

    def counts(self, key: Any, count: Any) -> jax.Array:
        """How many of some draws fall on each node: a multinomial variable, as one binomial after the other.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        count : array ()
            Number of draws.

        Returns
        -------
        array (m,)
            In floating point.
        """
        dtype = self.weights.dtype
        order = jnp.argsort(-self.weights)  # the largest first, so that what is left is never a small difference
        weights = self.weights[order]
        left = jnp.cumsum(weights[::-1])[::-1]
        chance = jnp.clip(weights / jnp.where(left > 0, left, 1.0), 0.0, 1.0)

        def draw(remaining: jax.Array, at: tuple) -> tuple[jax.Array, jax.Array]:
            drawn = jax.random.binomial(at[0], remaining, at[1], dtype=dtype)
            # nothing left, and no chance or certainty, are laws that a sampler need not know
            drawn = jnp.where((remaining > 0) & (at[1] > 0), drawn, 0.0)
            drawn = jnp.where(at[1] < 1, drawn, remaining)
            return remaining - drawn, drawn

        keys = jax.random.split(key, len(weights) - 1) if len(weights) > 1 else jax.random.split(key, 1)[:0]
        last, drawn = lax.scan(draw, jnp.asarray(count, dtype), (keys, chance[:-1]))
        return jnp.zeros_like(weights).at[order].set(jnp.append(drawn, last))

    def total(self, key: Any, count: Any, values: jax.Array) -> jax.Array:
        """Sum of a function of the variable over some draws.

        Parameters
        ----------
        key, count
            As for `counts`.
        values : array (m, ...)
            The function at the nodes.

        Returns
        -------
        array (...)
        """
        return jnp.tensordot(self.counts(key, count), values, axes=1)


ORDER = 64  # nodes of each panel of the rule for a density
POINTS = 4096
REACH = 10.0  # standard deviations on either side
FREQUENCIES = 256  # of a density, up to π · 256/REACH per standard deviation
LEFT = (
    1e-8  # size of the transform beyond the table's frequencies: the distribution function is off by a few times that
)
FEW = 40  # draws inside the bounds: with as many expected, the rule resolves all frequencies of the table
CELLS = 2048  # of each panel in the table of one draw, whose error is below 2e-6
BLOCK = 16  # draws at a time


def sum_of_draws(key: Any, law: PointMasses, count: Any, step: float | None = None) -> jax.Array:
    """Draw the sum of independent variables; the distribution function is off by less than 1e-5.

    Parameters
    ----------
    key : jax.Array
        A JAX random key. Mapped over keys alone, tables are made once.
    law : PointMasses
        Of one draw: the nodes of Gauss-Legendre rules of `ORDER` in a coordinate in which its density is smooth, one
        panel after the other, and last its lower and upper bound with their masses. On a lattice all its points.
    count : array ()
        Number of draws.
    step : float, optional
        Of the lattice on which all nodes lie, with 0. By default they have none.

    Returns
    -------
    array ()
        On the lattice, unless the sum's standard deviation is over two hundred of its steps: then, too, the table is
        exact only if the sum is smooth over a step.
    """
    edges, below, smooth = table_of_sum(law, count, step)
    keys = jax.random.split(key, 4)
    drawn = jnp.interp(jax.random.uniform(keys[0], (), below.dtype), below, edges)
    if step is not None:
        exact = edges[1] - edges[0] < 1.5 * step
        return jnp.where(exact, step * jnp.round(drawn / step), drawn)
    lower, upper = law.weights[-2:]
    of_upper = PointMasses(jnp.arange(2.0), jnp.stack([1 - upper, upper]))
    at_upper = jnp.clip(jnp.round(sum_of_draws(keys[1], of_upper, count, 1.0)), 0, count)
    others = jnp.where(smooth, 0, count - at_upper)
    inside = _binomial(keys[2], others, 1 - lower / jnp.where(upper < 1, 1 - upper, 1.0))
    ends = (count - at_upper - inside) * law.nodes[-2] + at_upper * law.nodes[-1]
    return jnp.where(smooth, drawn, ends + sum_inside(keys[3], law, inside, lambda x: x))


def _binomial(key: Any, trials: Any, chance: Any) -> jax.Array:
    """How many of some trials succeed, by waiting times; JAX's own sampler takes seconds to compile."""

    def unfinished(state: tuple) -> jax.Array:
        return state[1] < trials

    def wait(state: tuple) -> tuple:
        number, at, successes = state
        uniform = jax.random.uniform(jax.random.fold_in(key, number), (BLOCK,), chance.dtype, tiny)
        ahead = at + jnp.cumsum(1 + jnp.floor(jnp.log(uniform) / jnp.log1p(-jnp.clip(chance, tiny, 1 - 1e-16))))
        return number + 1, ahead[-1], successes + jnp.sum(ahead <= trials)

    tiny, zero = jnp.finfo(chance.dtype).tiny, jnp.zeros((), chance.dtype)
    return lax.while_loop(unfinished, wait, (0, zero, zero))[2]


def table_of_sum(law: PointMasses, count: Any, step: float | None) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Distribution function of a sum, at the edges of cells.

    Parameters
    ----------
    law, count, step
        As for `sum_of_draws`.

    Returns
    -------
    edges, below : array (points + 1,)
        In the unit of the law, and probabilities from 0 to 1.
    smooth : array () of bool
        Whether the table is as exact as `sum_of_draws` says.
    """
    mean = law.expectation(law.nodes)
    away = law.nodes - mean
    spread = jnp.sqrt(count * law.expectation(away**2))
    least = jnp.finfo(spread.dtype).tiny if step is None else step
    width = jnp.maximum(2 * REACH * spread / POINTS, least)
    first = count * mean - width * (POINTS // 2)
    if step is not None:
        first = step * jnp.round(first / step)
    frequencies = FREQUENCIES if step is None else POINTS // 2 + 1
    frequency = 2 * jnp.pi / (POINTS * width) * jnp.arange(frequencies)
    waves = [f(jnp.outer(away, frequency)) for f in (jnp.cos, jnp.sin)]
    # φ(t)ⁿ, turned to where the table starts; the phase of each factor is small, so that its power is not a large angle
    real, imaginary = (law.expectation(wave) for wave in waves)
    log_size = 0.5 * count * jnp.log(jnp.maximum(real**2 + imaginary**2, 1e-300))
    phase = count * jnp.arctan2(imaginary, real) + frequency * (count * mean - first)
    cell = 1.0 if step is not None else jnp.sinc(frequency * width / (2 * jnp.pi))  # the mean over a cell
    mass = jnp.fft.irfft(cell * jnp.exp(log_size) * jnp.exp(-1j * phase), POINTS)
    mass = jnp.maximum(mass, 0.0)
    below = jnp.concatenate([jnp.zeros(1, mass.dtype), jnp.cumsum(mass)])
    # |φ| is at most the mass of the bounds and the size of the part of the density, which falls with the frequency
    inside, ends = law.weights[:-2], jnp.sum(law.weights[-2:])
    size = ends + jnp.hypot(*(inside @ wave[:-2, frequencies // 2 :] for wave in waves))
    smooth = (jnp.max(size) ** count < LEFT) & (count * jnp.sum(inside) > FEW)
    return first + width * (jnp.arange(POINTS + 1) - 0.5), below / below[-1], smooth


def sum_inside(key: Any, law: PointMasses, number: Any, values: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Sum of a function of draws that are inside the bounds, one after the other.

    Parameters
    ----------
    key, law
        As for `sum_of_draws`.
    number : array ()
        Of draws.
    values : callable
        From draws (m,) to their values, (m,) or (m, k).

    Returns
    -------
    array () or (k,)
    """
    at, below = table_of_one(law)

    def unfinished(state: tuple) -> jax.Array:
        return state[0] * BLOCK < number

    def draw(state: tuple) -> tuple:
        block, total = state
        uniform = jax.random.uniform(jax.random.fold_in(key, block), (BLOCK,), below.dtype)
        made = values(jnp.interp(uniform, below, at))
        drawn = (block * BLOCK + jnp.arange(BLOCK) < number).reshape(-1, *[1] * (made.ndim - 1))
        return block + 1, total + jnp.sum(jnp.where(drawn, made, 0.0), axis=0)

    return lax.while_loop(unfinished, draw, (0, jnp.zeros_like(values(at[:1])[0])))[1]


def table_of_one(law: PointMasses) -> tuple[jax.Array, jax.Array]:
    """Points between the bounds, and the share of draws inside that are below, by the polynomials through the nodes.

    Points are closer together towards the ends of a panel, where densities that start or are cut there are steepest.

    Parameters
    ----------
    law : PointMasses
        As for `sum_of_draws`.
    """
    legendre, weights = lagrange_from_legendre(ORDER), np.polynomial.legendre.leggauss(ORDER)[1]
    below = np.polynomial.legendre.legint(legendre / weights, lbnd=-1)
    nodes, masses = (part[:-2].reshape(-1, ORDER) for part in law)
    coefficients = jnp.concatenate([jnp.pad(nodes @ legendre.T, ((0, 0), (0, 1))), masses @ below.T])
    t = -jnp.cos(jnp.pi * jnp.arange(CELLS + 1) / CELLS)

    def clenshaw(state: tuple, at: tuple) -> tuple:
        k, coefficient = at
        first, second = state
        return (coefficient[:, None] + (2 * k + 1) / (k + 1) * t * first - (k + 1) / (k + 2) * second, first), None

    nothing = jnp.zeros((len(coefficients), len(t)), coefficients.dtype)
    (first, second), _ = lax.scan(clenshaw, (nothing, nothing), (jnp.arange(ORDER, 0, -1), coefficients.T[:0:-1]))
    x, share = (coefficients[:, :1] + t * first - second / 2).reshape(2, -1, len(t))
    before = jnp.cumsum(share[:, -1]) - share[:, -1]
    share = lax.cummax(jnp.maximum(share + before[:, None], 0.0).ravel())
    return x.ravel(), share / jnp.where(share[-1] > 0, share[-1], 1.0)
