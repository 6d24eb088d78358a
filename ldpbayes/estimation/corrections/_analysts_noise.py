"""Noise of the analyst's own, S ~ SL(δ λ² I): with it the noise on a released record is SL(λ² I) in all.

S costs no privacy and may be drawn as often as one likes; the mean over many draws is as unbiased as one draw, and
varies less.
"""

import itertools
import math
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.scipy.special import ndtr, ndtri

from ldpbayes._checks import is_integer
from ldpbayes.estimation.corrections._correction import Correction, left_out
from ldpbayes.estimation.corrections._evidence import Points
from ldpbayes.estimation.corrections._support import inside
from ldpbayes.mechanisms import Additive

__all__ = ["DRAWS", "WithDraws", "again", "scales"]

DRAWS = 16
LEGENDRE, LAGUERRE = 16, 32
PIECES = (-32.0, -8.0, -2.0, 0.0, 2.0, 8.0, 32.0)  # where integrals over Laplace noise are cut, in its scales


class WithDraws(Correction):
    """A method that averages over the analyst's own noise. Subclasses have the fields ``draws`` and ``cuts``."""

    draws: Any
    cuts: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", _checked_draws(self.draws))
        object.__setattr__(self, "cuts", _checked_cuts(self.cuts))

    def settled(self, mechanism: Additive) -> Self:
        """The method itself, if its draws are for so many perturbed columns; see `Correction.settled`."""
        if self.draws == "exact" and mechanism.dimension != 1:
            raise ValueError(f"draws='exact' integrates over one perturbed column, and here are {mechanism.dimension}")
        return self


def _checked_draws(draws: Any) -> int | str:
    """A number of draws, or "exact".

    Parameters
    ----------
    draws : int or "exact"
        What a method was given.

    Raises
    ------
    ValueError
        For anything else.
    """
    if isinstance(draws, str) and draws == "exact":
        return draws
    if not is_integer(draws) or draws < 1:
        raise ValueError(f"draws must be a positive integer or 'exact', got {draws!r}")
    return int(draws)


def _checked_cuts(cuts: Any) -> tuple[float, ...]:
    """The cuts as a tuple of finite numbers.

    Parameters
    ----------
    cuts : sequence of float
        What a method was given.

    Raises
    ------
    ValueError
        For anything else.
    """
    try:
        numbers = tuple(float(cut) for cut in cuts)
    except (TypeError, ValueError):
        raise ValueError(f"cuts must be a sequence of finite numbers, got {cuts!r}") from None
    if not np.all(np.isfinite(numbers)):
        raise ValueError(f"cuts must be a sequence of finite numbers, got {cuts!r}")
    return numbers


def scales(mechanism: Additive, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """δ and λ of each record: the zero probability and the noise's standard deviation in each column.

    Parameters
    ----------
    mechanism : Additive
        That made the release.
    rows : array (N, columns)
        Released records, whose floating-point type they get.

    Returns
    -------
    tuple of two arrays (1, N)
    """
    ones = jnp.ones((1, rows.shape[0]), rows.dtype)
    noise = mechanism.noise
    delta, scale = (jnp.asarray(v, rows.dtype) * ones for v in (left_out(noise), noise.standard_deviation))
    return delta, scale


def again(
    mechanism: Additive, rows: jax.Array, key: Any, draws: int | str, support: Any, cuts: tuple[float, ...]
) -> Points:
    """X⁽¹⁾ + S, as points whose weights are 1/draws, or less where S leads out of the support.

    Parameters
    ----------
    mechanism : Additive
        Whose noise is symmetric Laplace noise, zero-inflated or not.
    rows : array (N, columns)
        X⁽¹⁾: released records.
    key : jax.Array
        A JAX random key.
    draws : int or "exact"
        Draws a record: one at random, or more as a randomly shifted low-discrepancy sequence. "exact" integrates over
        S, where one column is perturbed.
    support : (array, array) or None
        Bounds of the perturbed columns outside of which there are no records.
    cuts : tuple of float
        Where exact integration is to be cut: kinks of the loss.
    """
    index = mechanism.index
    delta, scale = scales(mechanism, rows)
    part, scale = rows[:, index], (jnp.sqrt(delta) * scale)[0]
    if isinstance(draws, str):
        points, weights = _integrated(part[:, 0], scale, support, cuts)
        points = points[..., None]
    else:
        points, weights = _drawn(part, scale, key, draws, support)
    spread = jnp.broadcast_to(rows, (points.shape[0], *rows.shape))
    return Points(spread.at[..., index].set(points), weights)


def _drawn(part: jax.Array, scale: jax.Array, key: Any, draws: int, support: Any) -> tuple[jax.Array, jax.Array]:
    n, d = part.shape
    keys = jax.random.split(key)
    # a randomly shifted lattice of points in the unit cube: each point is uniform, together they fill it evenly
    lattice = scipy.stats.qmc.Sobol(d + 1, scramble=False).random(1 << max(draws - 1, 0).bit_length())[:draws]
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
    mass = jnp.where(spread > 0, mass, (part >= lower) & (part <= upper))
    return points, jnp.prod(mass, axis=-1) / draws


def _integrated(z: jax.Array, scale: jax.Array, support: Any, cuts: tuple[float, ...]) -> tuple[jax.Array, jax.Array]:
    """Nodes and weights (nodes, N) of ∫ f(u) Laplace(u − z) du, exact for f smooth between the cuts.

    The noise may be far narrower than the support: the integral is cut around z, so that a piece never has more of its
    decay than a Gauss rule can follow.
    """
    scale = scale / math.sqrt(2)
    safe = jnp.where(scale > 0, scale, 1.0)
    t, w = (jnp.asarray(rule) for rule in np.polynomial.legendre.leggauss(LEGENDRE))
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
    pieces: list[tuple[jax.Array, jax.Array]] = []
    for low, high in itertools.pairwise(edges):
        u = low + (high - low) * ((1 + t) / 2)[:, None]
        pieces.append((u, (high - low) * (w / 2)[:, None] * jnp.exp(-jnp.abs(u - z) / safe) / (2 * safe)))
    if support is None:
        s, v = (jnp.asarray(rule) for rule in np.polynomial.laguerre.laggauss(LAGUERRE))
        for edge, sign in ((edges[0], -1), (edges[-1], 1)):
            pieces.append((edge + sign * safe * s[:, None], 0.5 * v[:, None] * jnp.exp(-jnp.abs(edge - z) / safe)))
    nodes, weights = (jnp.concatenate(parts) for parts in zip(*pieces, strict=True))
    public = jnp.zeros_like(weights).at[0].set(inside(z[:, None], support).astype(weights.dtype))
    return jnp.where(scale > 0, nodes, jnp.broadcast_to(z, nodes.shape)), jnp.where(scale > 0, weights, public)
