"""Results of passes over records at points of a posterior: they add over shards, and give a polynomial."""

import dataclasses

import jax
import numpy as np

from ldpbayes._core.checks import is_integer
from ldpbayes.inference._tails import Rays
from ldpbayes.numerics.polynomial import Frame, Polynomial, polynomial_of_slopes, terms_of_slopes

SPARE_POINTS = 16  # points of a fit, beyond twice the number of coefficients of an entry of the gradient
OUTSIDE = 2.0  # standard deviations beyond the typical distance √r: at most one draw in 300 of a normal law is there
HELD_OUT_EVERY = 4  # every fourth point tests the polynomial and is not used to fit it


@dataclasses.dataclass(frozen=True, eq=False)
class Expansion:
    """Log-likelihoods of records, and their gradients, at points of a posterior: all that `fit` needs of the records.

    Expansions of shards add if they were made at the same points.

    Attributes
    ----------
    names : tuple of str
        Sites of the model that the records depend on, in the order of the coordinates.
    order : int
        Of the polynomial: 2, 3 or 4.
    count : int
        Number of records.
    frame : Frame
        Coordinates of the polynomial, in which draws of the posterior have covariance 1.
    points : ndarray (points, n) or (points, groups, n)
        Values of these sites at draws.
    values : ndarray (points,)
        Log-likelihoods of the records.
    slopes : ndarray of the shape of the points
        Gradients of the log-likelihood.
    rays : Rays, optional
        Points outwards of these draws, at which the polynomial is compared with the records.
    outwards : ndarray (m,), optional
        Log-likelihoods of the records at the points of the rays.
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

    def __add__(self, other: object) -> "Expansion":
        """Expansion of the records of both."""
        if not isinstance(other, Expansion):
            return NotImplemented
        if self.names != other.names or not np.array_equal(self.points, other.points):
            raise ValueError(
                "expansions add only if they were made at the same points: make the second with at=the first"
            )
        outwards = None if self.outwards is None or other.outwards is None else self.outwards + other.outwards
        count, values, slopes = self.count + other.count, self.values + other.values, self.slopes + other.slopes
        return dataclasses.replace(self, count=count, values=values, slopes=slopes, outwards=outwards)

    def __radd__(self, other: object) -> "Expansion":
        """Let ``sum`` start from 0."""
        return self if is_integer(other) and other == 0 else NotImplemented

    @property
    def polynomial(self) -> Polynomial:
        """The polynomial with the nearest slopes."""
        return self._fitted(np.ones(len(self.points), bool))

    def _fitted(self, used: np.ndarray) -> Polynomial:
        return polynomial_of_slopes(self.frame, self.points[used], self.values[used], self.slopes[used], self.order)

    def errors(self) -> np.ndarray:
        """Errors in nats, up to a constant, at every fourth point of a polynomial that is fitted to the others."""
        test = np.arange(len(self.points)) % HELD_OUT_EVERY == 0
        errors = self.values[test] - values_of(self._fitted(~test), self.points[test])
        return errors - errors.mean()


def passes_for(frame: Frame, order: int) -> int:
    """Number of points to which a polynomial of an order is fitted."""
    return 2 * terms_of_slopes(frame.root.shape[-2], order) + SPARE_POINTS


def values_of(polynomial: Polynomial, points: np.ndarray) -> np.ndarray:
    """Values (points,) of a polynomial, or of a batch of them, summed over groups, at points (points, ..., n)."""
    with jax.enable_x64(True):
        return np.asarray(jax.vmap(polynomial)(points)).reshape(len(points), -1).sum(axis=1)


def share_outside(polynomial: Polynomial, points: np.ndarray) -> float:
    """Share of points (points, ..., n), in any of the groups, that are far from the points of the fit."""
    y = np.einsum("...kn,m...n->m...k", polynomial.root, points - polynomial.center)
    return float(np.mean(np.linalg.norm(y, axis=-1) > np.sqrt(y.shape[-1]) + OUTSIDE))
