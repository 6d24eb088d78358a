"""Polynomials of up to the fourth order in many variables, which replace a log-likelihood of many records."""

import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import legendre

from ldpbayes._core.pytrees import pytree_dataclass
from ldpbayes._core.types import Array, ArrayModule

# A polynomial is believed up to the larger of two distances from its center: a factor times that of the farthest point,
# and so many standard deviations beyond the typical distance √r, within which nearly all draws are.
RADIUS_FACTOR, RADIUS_MARGIN = 1.1, 3.0
OUTSIDE_MARGIN = 2.0  # standard deviations beyond the typical distance: fewer than one normal draw in 300 is there
RANK_SHARE = 1e-10  # least variance of a direction that counts, over the largest, among standardised variables


def lagrange_from_legendre(order: int) -> np.ndarray:
    """The matrix C with ℓ_k(t) = Σ_n C[n, k] P_n(t): Lagrange's, of Gauss nodes, from Legendre polynomials."""
    t, w = legendre.leggauss(order)
    return (np.arange(order)[:, None] + 0.5) * legendre.legvander(t, order - 1).T * w


class Frame(NamedTuple):
    """Coordinates y = root (x − center) of draws x, of mean 0 and covariance 1: r ≤ n, for directions with a spread."""

    center: np.ndarray  # (..., n)
    root: np.ndarray  # (..., r, n): 0 in a direction in which a batch has no spread, but another has
    lift: np.ndarray  # (..., n, r): right inverse of the root; x = center + lift y for all draws

    @classmethod
    def of_draws(cls, draws: np.ndarray) -> "Frame":
        """For the mean and the covariance of more than n `draws` (draws, ..., n)."""
        center = draws.mean(axis=0)
        away = np.moveaxis(draws - center, 0, -2)
        sd = np.sqrt(np.mean(away**2, axis=-2))
        sd = np.where(sd > 0, sd, 1.0)
        away = away / sd[..., None, :]
        values, vectors = np.linalg.eigh(np.swapaxes(away, -1, -2) @ away / len(draws))
        wide = values > RANK_SHARE * values[..., -1:]
        rank = max(1, int(np.max(np.sum(wide, axis=-1))))
        # In a batch of lower rank the coordinates of the other directions are 0 at all draws.
        wide, kept, spread = wide[..., -rank:], vectors[..., -rank:], np.sqrt(np.maximum(values[..., -rank:], 0.0))
        steep = np.where(wide, 1 / np.where(wide, spread, 1.0), 0.0)
        root = np.swapaxes(kept * steep[..., None, :], -1, -2) / sd[..., None, :]
        return cls(center, root, sd[..., :, None] * kept * np.where(wide, spread, 0.0)[..., None, :])

    def coordinates(self, x: Array) -> Any:
        return np.einsum("...kn,...n->...k", self.root, x - self.center)


@pytree_dataclass(eq=False)
class Polynomial:
    """A polynomial of order 2 to 4 in coordinates y = root (x − center) of x, or a batch of such. Farther from 0 than
    ``radius``, it falls like the standard normal log density: a polynomial might grow.
    """

    center: Array  # (..., n)
    root: Array  # (..., r, n)
    constant: Array  # (...): value at the center
    slope: Array  # (..., r): gradient at the center, in y
    curvature: Array  # (..., r, r): second derivatives, symmetric
    radius: Array  # (...): distance from the center, in y, up to which it is a polynomial
    third: Array  # (..., r, r(r+1)/2): takes products y_i y_j, as of `numpy.triu_indices`, to the cubic part's gradient
    fourth: Array = None  # (..., r(r+1)/2, r(r+1)/2): the quartic part, a symmetric quadratic form in packed products
    order = property(lambda self: 3 if self.fourth is None else 4)  # of the highest terms that are kept, zero or not
    size = property(lambda self: math.comb(self.slope.shape[-1] + self.order, self.order))  # different coefficients

    def __call__(self, x: Array) -> jax.Array:
        return _value(self, jnp.einsum("...kn,...n->...k", self.root, x - self.center))

    def values(self, points: np.ndarray) -> np.ndarray:
        """Values (points,) at points x (points, ..., n), where the polynomials of a batch are added."""
        return self.values_and_slopes(points)[0]

    def values_and_slopes(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The `values`, and the gradients (points, ..., n) with respect to x."""
        polynomial = jax.device_get(self)
        value, slope = _value_and_slope(np, polynomial, polynomial.coordinates(points))
        return value.reshape(len(points), -1).sum(axis=1), np.einsum("...kn,m...k->m...n", polynomial.root, slope)

    def share_outside(self, points: np.ndarray) -> float:
        """Share of points x (points, ..., n) with |y| > √r + 2 for r coordinates y: outside of the fit."""
        y = self.coordinates(points)
        return float(np.mean(np.linalg.norm(y, axis=-1) > np.sqrt(y.shape[-1]) + OUTSIDE_MARGIN))

    def coordinates(self, points: np.ndarray) -> np.ndarray:
        return np.einsum("...kn,m...n->m...k", self.root, points - self.center, optimize="greedy")

    def plus(self, other: "Polynomial") -> "Polynomial":
        """The sum with a polynomial of the same center and root, of the smaller one of the two orders."""
        if not np.array_equal(self.root, other.root) or not np.array_equal(self.center, other.center):
            raise ValueError("expansions can be added only if they have the same centre: make one with at=, the other")
        fourth = None if self.fourth is None or other.fourth is None else self.fourth + other.fourth
        sums = {n: getattr(self, n) + getattr(other, n) for n in ("constant", "slope", "curvature", "third")}
        return dataclasses.replace(self, fourth=fourth, **sums)


def _value_and_slope(xp: ArrayModule, polynomial: Polynomial, y: Any) -> tuple[Any, Any]:
    """Values at coordinates y, and gradients in them."""
    slope, fourth = polynomial.slope, polynomial.fourth
    # The norm has no derivative at 0, but this function is its own derivative, so that none is taken of it.
    distance, limit = xp.sqrt(xp.sum(y**2, axis=-1, keepdims=True)), xp.expand_dims(polynomial.radius, -1)
    outside = distance > limit
    shrunk = xp.where(outside, limit / xp.where(outside, distance, 1.0), 1.0)
    near, r = y * shrunk, y.shape[-1]
    rows, columns = np.triu_indices(r)
    products = near[..., rows] * near[..., columns]
    rise = xp.einsum("...kp,...p->...k", polynomial.third, products, optimize="greedy")
    value = xp.sum(near * rise, axis=-1) / 3
    if fourth is not None:
        form = xp.einsum("...pq,...q->...p", fourth, products, optimize="greedy")
        value = value + xp.sum(products * form, axis=-1)
        packed = np.zeros((r, r), int)  # index of entry (i, j) of a symmetric matrix in its packed upper triangle
        packed[rows, columns] = packed[columns, rows] = np.arange(len(rows))
        full = form[..., packed] * (1.0 + np.eye(r))
        rise = rise + 2 * xp.einsum("...ij,...j->...i", full, near, optimize="greedy")
    bent = xp.einsum("...ij,...j->...i", polynomial.curvature, near, optimize="greedy")
    value = polynomial.constant + xp.sum((slope + 0.5 * bent) * near, axis=-1) + value
    rise = slope + bent + rise
    along = y * xp.sum(rise * y, axis=-1, keepdims=True) / xp.where(outside, distance**2, 1.0)
    value = value - 0.5 * xp.sum(y**2 - near**2, axis=-1)
    return value, xp.where(outside, shrunk * (rise - along) - y, rise)


@jax.custom_jvp
def _value(polynomial: Polynomial, y: Any) -> Any:
    return _value_and_slope(jnp, polynomial, y)[0]


@_value.defjvp
def _(primals: Any, tangents: Any) -> Any:
    # The gradient comes with the value in one contraction, where differentiating would scatter products back.
    value, slope = _value_and_slope(jnp, *primals)
    return value, jnp.sum(slope * tangents[1], axis=-1)


def polynomial_of_slopes(frame: Frame, points: Array, values: Array, slopes: Array, order: int) -> Polynomial:
    """The polynomial, of order 2 to 4, of gradients nearest to `slopes` (points, ..., n) and the mean of `values`."""
    y, g = frame.coordinates(points), np.einsum("...nk,...n->...k", frame.lift, slopes)
    batch, r = y.shape[1:-1], y.shape[-1]
    flat = [np.moveaxis(a.reshape(len(a), -1, r), 1, 0) for a in (y, g)]
    tensors = [_fitted_tensors(a, b, order) for a, b in zip(*flat, strict=True)]
    parts = [np.reshape(np.stack(part), batch + part[0].shape) for part in zip(*tensors, strict=True)]
    slope, curvature, third, fourth = (*parts, None)[:4]
    radius = np.maximum(RADIUS_FACTOR * np.linalg.norm(y, axis=-1).max(axis=0), math.sqrt(r) + RADIUS_MARGIN)
    centred = Polynomial(frame.center, frame.root, np.zeros(batch), slope, curvature, radius, third, fourth)
    constant = np.mean(values - centred.values(points)) / max(1, math.prod(batch))
    return dataclasses.replace(centred, constant=np.full(batch, constant))


def _fitted_tensors(y: np.ndarray, g: np.ndarray, order: int) -> list[np.ndarray]:
    """Slope, curvature, third and (order 4) fourth, by one least-squares fit of all entries of gradients g at y."""
    r = y.shape[1]
    indices = [np.array([*itertools.combinations_with_replacement(range(r), k)], int).T for k in range(1, order)]
    monomials = [np.ones((len(y), 1)), *(np.prod(y[:, index], axis=1) for index in indices)]
    coefficients = np.linalg.lstsq(np.concatenate(monomials, axis=1), g, rcond=None)[0]
    slope, *parts = np.split(coefficients, np.cumsum([part.shape[1] for part in monomials])[:-1])
    curvature, *higher = map(_symmetric, indices, parts)
    rows, columns = np.triu_indices(r)
    twice = np.where(rows == columns, 1.0, 2.0)
    third = twice * higher[0][rows, columns].T if higher else np.zeros((r, len(rows)))
    # The quartic part is Σ T[i, j, k, l] y_i y_j y_k y_l / 4.
    fourth = [0.25 * tensor[rows, columns][:, rows, columns] * twice[:, None] * twice for tensor in higher[1:]]
    return [slope[0], curvature, third, *fourth]


def _symmetric(indices: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """The tensor T (r, ..., r) of a gradient Σ T[i, ..., l] y_i ..., averaged over the places of l, from coefficients
    (terms, r) of the monomials with sorted indices (k, terms).
    """
    k, r = len(indices), coefficients.shape[1]
    full = np.zeros((r,) * (k + 1))
    for order in itertools.permutations(indices):
        full[order] += coefficients / math.factorial(k)  # several times where indices are equal
    return np.mean([full.swapaxes(place, k) for place in range(k + 1)], axis=0)
