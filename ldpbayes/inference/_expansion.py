"""What passes over records say at points of a posterior: numbers that add up over shards, and make a polynomial."""

import dataclasses
from typing import Any

import jax
import numpy as np

from ldpbayes._core.checks import is_integer
from ldpbayes.inference._tails import Rays
from ldpbayes.numerics.polynomial import Frame, Polynomial, polynomial_of_slopes, terms_of_slopes

SPARE = 16  # points at which a polynomial is fitted, beyond twice the coefficients of an entry of its gradient
OUTSIDE = 2.0  # standard deviations beyond the typical distance √r, where at most one draw in 300 is of a normal law
HELD_OUT = 4  # every such point is left out of the polynomial that is judged by them


def passes_for(frame: Frame, order: int) -> int:
    """Points at which a polynomial is fitted: twice as many as an entry of its gradient has coefficients, and some.

    Parameters
    ----------
    frame : Frame
        Its coordinates.
    order : int
        Of the polynomial.
    """
    return 2 * terms_of_slopes(frame.root.shape[-2], order) + SPARE


@dataclasses.dataclass(frozen=True, eq=False)
class Expansion:
    """Log-likelihoods of records, and their slopes, at points of a posterior: all that `fit` needs of the records.

    Expansions of shards add if they were made at the same points.

    Attributes
    ----------
    names : tuple of str
        Sites of the model whose values the records see, in the order of the coordinates.
    order : int
        Of the polynomial: 2, 3 or 4.
    count : int
        Number of records.
    frame : Frame
        Coordinates of the polynomial, in which draws of the posterior have covariance 1.
    points : ndarray (points, n) or (points, groups, n)
        Values of these sites at some of these draws.
    values : ndarray (points,)
        Log-likelihoods of the records.
    slopes : ndarray of the shape of the points
        Their gradients.
    rays : Rays, optional
        Points outwards of these draws, at which the polynomial is compared with the records.
    outwards : ndarray (m,), optional
        Log-likelihoods of the records there.
    """

    names: tuple[str, ...]
    order: int
    count: int
    frame: Frame
    points: np.ndarray
    values: np.ndarray
    slopes: np.ndarray
    rays: Rays | None = None
    outwards: np.ndarray | None = None

    def __add__(self, other: Any) -> "Expansion":
        """Expansion of both lots of records."""
        if not isinstance(other, Expansion):
            return NotImplemented
        if self.names != other.names or not np.array_equal(self.points, other.points):
            raise ValueError(
                "expansions add only if they were made at the same points: make the second with at=the first"
            )
        outwards = None if self.outwards is None or other.outwards is None else self.outwards + other.outwards
        count, values, slopes = self.count + other.count, self.values + other.values, self.slopes + other.slopes
        return dataclasses.replace(self, count=count, values=values, slopes=slopes, outwards=outwards)

    def __radd__(self, other: Any) -> Any:
        """Let ``sum`` start from 0."""
        return self if is_integer(other) and other == 0 else NotImplemented

    @property
    def polynomial(self) -> Polynomial:
        """The polynomial with the nearest slopes."""
        return self._fitted(np.ones(len(self.points), bool))

    def _fitted(self, kept: np.ndarray) -> Polynomial:
        return polynomial_of_slopes(self.frame, self.points[kept], self.values[kept], self.slopes[kept], self.order)

    def errors(self) -> np.ndarray:
        """Errors in nats, up to a constant, of a polynomial from some of the points at the others."""
        out = np.arange(len(self.points)) % HELD_OUT == 0
        off = self.values[out] - values_of(self._fitted(~out), self.points[out])
        return off - off.mean()


def values_of(polynomial: Polynomial, points: np.ndarray) -> np.ndarray:
    """Values (points,) of a polynomial, summed over groups.

    Parameters
    ----------
    polynomial : Polynomial
        Or a batch of them.
    points : ndarray (points, ..., n)
        Places.
    """
    with jax.enable_x64(True):
        return np.asarray(jax.vmap(polynomial)(points)).reshape(len(points), -1).sum(axis=1)


def outside(polynomial: Polynomial, points: np.ndarray) -> float:
    """Share of the points, in any of the groups, that are far from where a polynomial was made.

    Parameters
    ----------
    polynomial : Polynomial
        Or a batch of them.
    points : ndarray (points, ..., n)
        Places.
    """
    y = np.einsum("...kn,m...n->m...k", polynomial.root, points - polynomial.center)
    return float(np.mean(np.linalg.norm(y, axis=-1) > np.sqrt(y.shape[-1]) + OUTSIDE))
