"""What an expansion is made with: a model's cut, passes over the records below it, and programs of what is above."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes.inference._cut import SEVERAL, Cut, cut
from ldpbayes.inference._density import Density, Site
from ldpbayes.inference._expansion import Expansion, passes_for, values_of
from ldpbayes.inference._mode import Above, Mode, Slopes, mode
from ldpbayes.inference._passes import Passes
from ldpbayes.inference._tails import Tails, tails
from ldpbayes.numerics._polynomial import Frame, Polynomial

__all__ = ["ORDERS", "SEARCHES", "Search", "evenly"]

ORDERS = (2, 3, 4)
SEARCHES = 8  # for the mode at least: two modes that attract alike escape with probability 1/128
DRAWS = 4000  # from the normal approximation: a frame of few would be too close around them, in many directions
FEW = 400  # passes that a first expansion may take, if it is to be of a higher order than the second


class Search:
    """A model cut where it meets its records.

    Parameters
    ----------
    density : Density
        The model with its arguments.
    sites : dict of str to Site
        Of the model.
    strategy : callable
        How chains of the kernel start; see `Density.start`.
    key : jax.Array
        A JAX random key.
    many : int
        Records that an observed site has at least, if it is to be expanded.

    Attributes
    ----------
    cut : Cut
        Where it is cut.
    passes : Passes
        Over the records.
    key : jax.Array
        As it was given.

    Raises
    ------
    Uncut
        If the model cannot be cut.
    """

    def __init__(
        self, density: Density, sites: dict[str, Site], strategy: Callable, key: jax.Array, many: int = SEVERAL
    ) -> None:
        self._strategy, self.key = strategy, key
        self._first = self._start(density, 0)
        self.cut: Cut = cut(density, sites, self._first, many)
        self.passes = Passes(self.cut)

    @functools.cached_property
    def above(self) -> Above:
        """What is above the cut."""
        return Above(self.cut, self._first)

    def _start(self, density: Density, number: int) -> dict[str, Any]:
        return jax.tree.map(np.asarray, density.start(jax.random.fold_in(self.key, number), self._strategy))

    def mode(self, searches: int, given: Expansion | None = None) -> Mode:
        """The posterior's mode, by the records or by what an expansion says of them; raises NoMode.

        Parameters
        ----------
        searches : int
            How many there are, from different starts.
        given : Expansion, optional
            What stands for the records.
        """
        starts = [self._first, *(self._start(self.cut.density, number) for number in range(1, searches))]
        return mode(
            self.above, self.passes.slopes if given is None else _slopes(given), [*map(self.above.flat, starts)]
        )

    def normal_draws(self, at: Mode) -> np.ndarray:
        """Parameters (draws, n) from the normal approximation."""
        noise = np.asarray(jax.random.normal(jax.random.fold_in(self.key, 1), (DRAWS, self.above.size)))
        return at.at + noise @ at.root.T

    def seen(self, positions: dict[str, Any]) -> np.ndarray:
        """Numbers that the records see at draws of the chains."""
        return self.above.coordinates(self.above.flat(positions))

    def expansion(self, draws: np.ndarray, order: int | None = None, tail: np.ndarray | None = None) -> Expansion:
        """The expansion of an order, that of few passes by default, at some of these draws and of their tail's."""
        frame = Frame.of_draws(draws)
        if order is None:
            order = max((order for order in ORDERS if passes_for(frame, order) <= FEW), default=ORDERS[0])
        count = passes_for(frame, order)
        points = evenly(draws, count)
        if tail is not None:
            points = np.concatenate([points, evenly(tail, count // 2)])
        return self.at(points, frame, order)

    def at(self, points: np.ndarray, frame: Frame, order: int) -> Expansion:
        """The expansion at these points."""
        return Expansion(self.cut.names, order, self.cut.count, frame, points, *self.passes.slopes(points))

    def compared(self, polynomial: Polynomial, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The posterior's log densities at parameters, their gradients, and the errors of a polynomial."""
        x = self.above.coordinates(points)
        values, slopes = self.passes.slopes(x)
        potential, gradient = self.above.with_likelihood(points, values, slopes)
        return -potential, -gradient, values - values_of(polynomial, x)

    def tails(self, given: Expansion) -> Tails:
        """How far an expansion of records that are elsewhere is off along its rays."""
        if given.rays is None or given.outwards is None:
            return Tails(np.nan, np.nan)
        polynomial = given.polynomial
        x = self.above.coordinates(given.rays.points)
        potential, _ = self.above.with_likelihood(given.rays.points, given.outwards, np.zeros_like(x))
        inside = np.mean(given.values - values_of(polynomial, given.points))
        return tails(given.rays, -potential, given.outwards - values_of(polynomial, x) - inside)


def _slopes(given: Expansion) -> Slopes:
    """Those of the polynomial, in the place of passes over records."""
    polynomial = given.polynomial
    both = jax.jit(jax.vmap(jax.value_and_grad(lambda x: jnp.sum(polynomial(x)))))

    def slopes(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, both(points))

    return slopes


def evenly(draws: np.ndarray, count: int) -> np.ndarray:
    """As many of the draws, evenly picked, or all if they are fewer.

    Parameters
    ----------
    draws : ndarray (draws, ...)
        From which is picked.
    count : int
        How many.
    """
    return draws[np.linspace(0, len(draws) - 1, min(count, len(draws))).astype(int)]
