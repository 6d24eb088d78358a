"""What an expansion is made with: a model's cut, passes over the records below it, and programs of what is above."""

from typing import Any

import jax
import numpy as np

from ldpbayes.inference._cut import Cut, cut
from ldpbayes.inference._density import Density, Site
from ldpbayes.inference._expansion import Expansion, passes_for
from ldpbayes.inference._mode import Above, Mode, mode
from ldpbayes.inference._passes import Passes
from ldpbayes.numerics._polynomial import Frame

__all__ = ["FEW", "ORDERS", "Search", "evenly"]

ORDERS = (2, 3, 4)
FEW = 400  # passes that a first expansion may take, if it is to be of a higher order than the second


class Search:
    """A model cut where it meets its records.

    Parameters
    ----------
    density : Density
        The model with its arguments.
    sites : dict of str to Site
        Of the model.
    starts : list of dict
        Unconstrained parameters where a search for the mode begins.
    key : jax.Array
        A JAX random key.

    Attributes
    ----------
    cut : Cut
        Where it is cut.
    passes : Passes
        Over the records.
    above : Above
        The rest.

    Raises
    ------
    Uncut
        If the model cannot be cut.
    """

    def __init__(self, density: Density, sites: dict[str, Site], starts: list[dict[str, Any]], key: jax.Array) -> None:
        self.cut: Cut = cut(density, sites, starts[0])
        self.passes, self.above = Passes(self.cut), Above(self.cut, starts[0])
        self.starts, self.key = [self.above.flat(start)[0] for start in starts], key

    def mode(self, given: Expansion | None = None) -> Mode:
        """The posterior's mode, by the records or by what an expansion says of them; raises SeveralModes."""
        if given is None:
            return mode(self.above, self.passes.slopes, self.starts)
        polynomial = given.polynomial

        def slopes(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            with jax.enable_x64(True):
                total = jax.value_and_grad(lambda x: jax.numpy.sum(polynomial(x)))
                return jax.tree.map(np.asarray, jax.vmap(total)(points))

        return mode(self.above, slopes, self.starts)

    def normal_draws(self, at: Mode, order: int | None = None) -> tuple[np.ndarray, int]:
        """Numbers that the records see at draws from the normal approximation, as many as an expansion is made at.

        Parameters
        ----------
        at : Mode
            Where the approximation is.
        order : int, optional
            Of the expansion. By default the highest for which few passes suffice.
        """

        def seen(count: int) -> np.ndarray:
            noise = np.asarray(jax.random.normal(jax.random.fold_in(self.key, 1), (count, self.above.size)))
            return self.above.coordinates(at.at + noise @ at.root.T)

        some = seen(4 * self.above.size)
        order = self.order(some) if order is None else order
        return seen(passes_for(Frame.of_draws(some), order)), order

    def order(self, draws: np.ndarray) -> int:
        """The highest order of an expansion at such draws for which few passes suffice."""
        frame = Frame.of_draws(draws)
        return max((order for order in ORDERS if passes_for(frame, order) <= FEW), default=ORDERS[0])

    def seen(self, positions: dict[str, Any]) -> np.ndarray:
        """Numbers that the records see at draws of the chains."""
        return self.above.coordinates(self.above.flat(positions))

    def expansion(self, draws: np.ndarray, order: int) -> Expansion:
        """The expansion of an order at some of these draws."""
        points = evenly(draws, passes_for(Frame.of_draws(draws), order))
        return self.at(points, order)

    def at(self, points: np.ndarray, order: int) -> Expansion:
        """The expansion at these points."""
        return Expansion(self.cut.names, order, self.cut.count, points, *self.passes.slopes(points))


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
