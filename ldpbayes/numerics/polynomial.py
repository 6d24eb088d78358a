"""Polynomials of up to the fourth order in many variables: how a log-likelihood of many records is kept as tensors.

A polynomial is kept in coordinates y = root (x − center), in which what it stands for has standard deviations of about
one, with its symmetric tensors packed: each product y_i y_j, i ≤ j, stands once.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._core.pytrees import pytree

BEYOND = 1.1  # times the distance of the farthest point, up to which a polynomial is believed,
REACH = 3.0  # or so many standard deviations beyond the typical distance √r, within which hardly a draw is not
RANK = 1e-10  # variance, in units of the largest among standardised variables, from which a direction counts as one


@functools.lru_cache(maxsize=64)
def pairs(r: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the upper triangle of an r × r matrix, in the order in which products are packed."""
    return np.triu_indices(r)


@functools.lru_cache(maxsize=64)
def _unpacking(r: int) -> np.ndarray:
    """Where entry (i, j) of a symmetric matrix is in its packed upper triangle."""
    where = np.zeros((r, r), int)
    rows, columns = pairs(r)
    where[rows, columns] = where[columns, rows] = np.arange(len(rows))
    return where


class Frame(NamedTuple):
    """Coordinates y = root (x − center) in which draws have mean 0 and covariance 1; x = center + lift y for all draws.

    Attributes
    ----------
    center : ndarray (..., n)
        Where y is 0.
    root : ndarray (..., r, n)
        Of rank r ≤ n, the number of directions in which there is any spread (in any batch; 0 in a direction without).
    lift : ndarray (..., n, r)
        A right inverse of the root.
    """

    center: np.ndarray
    root: np.ndarray
    lift: np.ndarray

    @classmethod
    def of_draws(cls, draws: np.ndarray) -> "Frame":
        """The frame of a sample's mean and covariance.

        Parameters
        ----------
        draws : ndarray (draws, ..., n)
            More of them than there are variables. The axes between are batches, with a frame each.
        """
        center = draws.mean(axis=0)
        away = np.moveaxis(draws - center, 0, -2)
        sd = np.sqrt(np.mean(away**2, axis=-2))
        sd = np.where(sd > 0, sd, 1.0)
        away = away / sd[..., None, :]
        values, vectors = np.linalg.eigh(np.swapaxes(away, -1, -2) @ away / len(draws))
        some = values > RANK * values[..., -1:]
        rank = max(1, int(np.max(np.sum(some, axis=-1))))
        # In a batch of lower rank the coordinates of the other directions are 0 at all draws.
        some, kept, spread = some[..., -rank:], vectors[..., -rank:], np.sqrt(np.maximum(values[..., -rank:], 0.0))
        steep = np.where(some, 1 / np.where(some, spread, 1.0), 0.0)
        root = np.swapaxes(kept * steep[..., None, :], -1, -2) / sd[..., None, :]
        return cls(center, root, sd[..., :, None] * kept * np.where(some, spread, 0.0)[..., None, :])

    def coordinates(self, x: ArrayLike) -> Any:
        """Y of points (..., n), (..., r)."""
        return np.einsum("...kn,...n->...k", self.root, x - self.center)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Polynomial:
    """A polynomial of the second to the fourth order in coordinates y = root (x − center), or a batch of them.

    Beyond a radius in y, where hardly a draw is, it falls as the standard normal log density does, from the value that
    it has there in the same direction: a polynomial would otherwise rise without limit in some of them.

    Attributes
    ----------
    center : array (..., n)
        Where it was made.
    root : array (..., r, n)
        From x to y.
    constant : array (...)
        Value at the center.
    slope : array (..., r)
        Gradient there, in y.
    curvature : array (..., r, r)
        Matrix of second derivatives, symmetric.
    radius : array (...)
        Distance from the center, in y, beyond which it is a polynomial no more.
    third : array (..., r, r(r+1)/2)
        The matrix that takes packed products y_i y_j to the gradient of the cubic part.
    fourth : array (..., r(r+1)/2, r(r+1)/2), optional
        The symmetric matrix of the quartic part as a quadratic form in packed products.
    """

    center: Any
    root: Any
    constant: Any
    slope: Any
    curvature: Any
    radius: Any
    third: Any
    fourth: Any = None

    def __call__(self, x: ArrayLike) -> jax.Array:
        """Values (...) at points (..., n)."""
        y = jnp.einsum("...kn,...n->...k", self.root, x - self.center)
        return _value((self.constant, self.slope, self.curvature, self.radius, self.third, self.fourth), y)

    @property
    def order(self) -> int:
        """Of the highest terms that are kept, zero or not."""
        return 3 if self.fourth is None else 4

    @property
    def size(self) -> int:
        """How many different coefficients a polynomial of this order and number of directions has."""
        r = self.slope.shape[-1]
        return math.comb(r + self.order, self.order)

    def plus(self, other: "Polynomial") -> "Polynomial":
        """Sum of two polynomials with the same center and root, of the lower of their orders.

        Parameters
        ----------
        other : Polynomial
            With the center and the root that this one has.

        Raises
        ------
        ValueError
            If it has others.
        """
        same = self.root.shape == other.root.shape and np.array_equal(self.root, other.root)
        if not same or not np.array_equal(self.center, other.center):
            raise ValueError("expansions add only if they were made at the same point: make one with at= the other")
        fourth = None if self.fourth is None or other.fourth is None else self.fourth + other.fourth
        sums = {
            name: getattr(self, name) + getattr(other, name) for name in ("constant", "slope", "curvature", "third")
        }
        return Polynomial(self.center, self.root, radius=self.radius, fourth=fourth, **sums)


def _higher(third: Any, fourth: Any, y: Any) -> tuple[Any, Any]:
    """Value and gradient of the cubic and the quartic part at y."""
    rows, columns = pairs(y.shape[-1])
    products = y[..., rows] * y[..., columns]
    slope = jnp.einsum("...kp,...p->...k", third, products)
    value = jnp.sum(y * slope, axis=-1) / 3
    if fourth is not None:
        form = jnp.einsum("...pq,...q->...p", fourth, products)
        value = value + jnp.sum(products * form, axis=-1)
        full = form[..., _unpacking(y.shape[-1])] * (1.0 + np.eye(y.shape[-1]))
        slope = slope + 2 * jnp.einsum("...ij,...j->...i", full, y)
    return value, slope


def _value_and_slope(tensors: Any, y: Any) -> tuple[Any, Any]:
    constant, slope, curvature, radius, third, fourth = tensors
    # The norm has no derivative at 0, but this function is its own derivative, so that none is taken of it.
    distance, limit = jnp.sqrt(jnp.sum(y**2, axis=-1, keepdims=True)), jnp.expand_dims(radius, -1)
    outside = distance > limit
    shrunk = jnp.where(outside, limit / jnp.where(outside, distance, 1.0), 1.0)
    near = y * shrunk
    value, rise = _higher(third, fourth, near)
    bent = jnp.einsum("...ij,...j->...i", curvature, near)
    value = constant + jnp.sum((slope + 0.5 * bent) * near, axis=-1) + value
    rise = slope + bent + rise
    along = y * jnp.sum(rise * y, axis=-1, keepdims=True) / jnp.where(outside, distance**2, 1.0)
    value = value - 0.5 * jnp.sum(y**2 - near**2, axis=-1)
    return value, jnp.where(outside, shrunk * (rise - along) - y, rise)


@jax.custom_jvp
def _value(tensors: Any, y: Any) -> Any:
    return _value_and_slope(tensors, y)[0]


@_value.defjvp
def _(primals: Any, tangents: Any) -> Any:
    # The gradient comes with the value in one contraction, where differentiating would scatter products back.
    value, slope = _value_and_slope(*primals)
    return value, jnp.sum(slope * tangents[1], axis=-1)


def terms_of_slopes(r: int, order: int) -> int:
    """Number of coefficients that an entry of the gradient of a polynomial of r variables has.

    Parameters
    ----------
    r : int
        Number of variables.
    order : int
        Of the polynomial.
    """
    return math.comb(r + order - 1, order - 1)


def polynomial_of_slopes(
    frame: Frame, points: np.ndarray, values: np.ndarray, slopes: np.ndarray, order: int
) -> Polynomial:
    """The polynomial whose gradient is nearest to given ones, in the mean of squares over the points.

    Parameters
    ----------
    frame : Frame
        Coordinates of the polynomial; its center need not be one of the points.
    points : ndarray (points, ..., n)
        Places.
    values : ndarray (points,)
        Of the function, summed over batches.
    slopes : ndarray (points, ..., n)
        Its gradients in x.
    order : int
        2, 3 or 4.

    Returns
    -------
    Polynomial
        Of least squares in all entries of the gradient; the mean of its values at the points is that of the function.

    Notes
    -----
    An entry of the gradient has far fewer coefficients than the polynomial, the same monomials for every entry, so that
    all are fitted with one factorisation. Least squares of single entries need not be a gradient; the tensors are then
    averaged over permutations of their indices.
    """
    y = np.einsum("...kn,m...n->m...k", frame.root, points - frame.center)
    g = np.einsum("...nk,m...n->m...k", frame.lift, slopes)
    batch = y.shape[1:-1]
    flat = [_of_slopes(a, b, order) for a, b in zip(_batches(y), _batches(g), strict=True)]
    parts = [np.reshape(np.stack(each), batch + each[0].shape) for each in zip(*flat, strict=True)]
    slope, curvature, third = parts[:3]
    fourth = parts[3] if len(parts) > 3 else None
    radius = np.maximum(BEYOND * np.linalg.norm(y, axis=-1).max(axis=0), math.sqrt(y.shape[-1]) + REACH)
    made = Polynomial(frame.center, frame.root, np.zeros(batch), slope, curvature, radius, third, fourth)
    with jax.enable_x64(True):
        off = values - np.sum(np.reshape(jax.vmap(made)(points), (len(points), -1)), axis=1)
    return dataclasses.replace(made, constant=np.full(batch, np.mean(off) / max(1, math.prod(batch))))


def _batches(a: np.ndarray) -> list[np.ndarray]:
    flat = a.reshape(len(a), -1, a.shape[-1])
    return [flat[:, j] for j in range(flat.shape[1])]


def _of_slopes(y: np.ndarray, g: np.ndarray, order: int) -> list[np.ndarray]:
    """Slope, curvature, third and, for the fourth order, fourth of one polynomial."""
    m, r = y.shape
    rows, columns = pairs(r)
    pieces = [np.ones((m, 1)), y]
    if order > 2:
        pieces.append(y[:, rows] * y[:, columns])
    if order > 3:
        triples = _triples(r)
        pieces.append(y[:, triples[0]] * y[:, triples[1]] * y[:, triples[2]])
    coefficients = np.linalg.lstsq(np.concatenate(pieces, axis=1), g, rcond=None)[0]
    found = iter(np.split(coefficients, np.cumsum([piece.shape[1] for piece in pieces])[:-1]))
    slope, linear = next(found)[0], next(found)
    made = [slope, 0.5 * (linear + linear.T)]
    made.append(_third(next(found), r) if order > 2 else np.zeros((r, len(rows))))
    if order > 3:
        made.append(_fourth(next(found), r))
    return made


@functools.lru_cache(maxsize=16)
def _triples(r: int) -> tuple[np.ndarray, ...]:
    """Indices i ≤ j ≤ k of products of three."""
    i, j, k = np.indices((r, r, r))
    keep = (i <= j) & (j <= k)
    return i[keep], j[keep], k[keep]


def _third(coefficients: np.ndarray, r: int) -> np.ndarray:
    """Symmetric third order, as in `Polynomial`, from coefficients (pairs, r) of each entry of the gradient."""
    rows, columns = pairs(r)
    twice = np.where(rows == columns, 1.0, 2.0)
    full = np.zeros((r, r, r))  # entry k of the gradient is Σ_ij full[i, j, k] y_i y_j
    full[rows, columns] = full[columns, rows] = coefficients / twice[:, None]
    mean = (full + full.transpose(0, 2, 1) + full.transpose(2, 1, 0)) / 3
    return twice * mean[rows, columns].T


def _fourth(coefficients: np.ndarray, r: int) -> np.ndarray:
    """Symmetric fourth order, as in `Polynomial`, from coefficients (triples, r) of each entry of the gradient."""
    i, j, k = _triples(r)
    full = np.zeros((r, r, r, r))  # entry l of the gradient is Σ_ijk full[i, j, k, l] y_i y_j y_k
    orders = [(i, j, k), (i, k, j), (j, i, k), (j, k, i), (k, i, j), (k, j, i)]
    distinct = np.where((i == j) & (j == k), 1.0, np.where((i == j) | (j == k), 3.0, 6.0))
    for order in orders:
        full[order] = coefficients / distinct[:, None]
    mean = (full + full.transpose(3, 1, 2, 0) + full.transpose(0, 3, 2, 1) + full.transpose(0, 1, 3, 2)) / 4
    rows, columns = pairs(r)
    twice = np.where(rows == columns, 1.0, 2.0)
    # The quartic part is Σ mean[i, j, k, l] y_i y_j y_k y_l / 4.
    return 0.25 * mean[rows, columns][:, rows, columns] * twice[:, None] * twice
