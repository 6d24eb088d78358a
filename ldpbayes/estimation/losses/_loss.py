"""Losses: their protocol, and losses made from a user's function."""

import abc
import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.typing import ArrayLike
from scipy import special

from ldpbayes._core.types import Array
from ldpbayes.numerics.minimise import Derivatives, value_gradient_hessian


class Loss(abc.ABC):
    """A loss on arrays of records; rows have the columns of a release on their last axis, one for a number.

    Subclasses define `values`. A loss is a static argument of compiled functions, so it must be hashable: a frozen
    dataclass, for instance. `smooth` says whether it has the derivatives in records and parameters that Laplacians and
    their Hessians need: four, of which the last may jump; for `IndependentLaplaceCorrection` two, and two more for each
    perturbed column. If it is None, `m_estimate` searches for jumps.
    """

    smooth: bool | None = None
    value_of_normal: float | None = None  # its mean at the minimum for normal residuals, a share of their deviation
    settles: bool = True  # whether minimising the smooth version settles to rounding error, not just within its width

    @abc.abstractmethod
    def values(self, rows: jax.Array, theta: Array) -> jax.Array:
        """Loss of each row, from (*shape, columns) to shape."""

    def laplacians(self, rows: jax.Array, theta: Array, index: tuple[int, ...]) -> jax.Array:
        """Sum over the columns in `index` of the second derivatives, from (*shape, columns) to shape."""
        directions = jnp.asarray(np.eye(rows.shape[-1])[list(index)], rows.dtype)

        def laplacian(row: jax.Array) -> jax.Array:
            # forward over reverse: the Hessian's diagonal in one batched pass
            gradient = jax.grad(lambda r: self.values(r, theta))
            return jnp.sum(jax.vmap(lambda v: jax.jvp(gradient, (row,), (v,))[1] @ v)(directions))

        return jax.vmap(laplacian)(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape[:-1])

    def total(self, rows: jax.Array, weights: jax.Array, theta: Array) -> Derivatives:
        """Weighted sum of the losses of rows, with its gradient and Hessian in the parameters."""
        return value_gradient_hessian(lambda at: jnp.sum(weights * self.values(rows, at)), theta)

    def total_laplacian(self, rows: jax.Array, weights: jax.Array, theta: Array, index: tuple[int, ...]) -> Derivatives:
        """Weighted sum of the Laplacians of rows, with its gradient and Hessian in the parameters."""
        return value_gradient_hessian(lambda at: jnp.sum(weights * self.laplacians(rows, at, index)), theta)

    def smoothed(self, width: Array) -> "Loss":
        """A smooth loss whose kinks are rounded off over a `width`, in the unit of the residuals; else the loss."""
        return self

    def width(self, rows: jax.Array) -> Array:
        """Unit of the widths of `smoothed`, for these records; None if the loss has no kinks to round off."""
        return None

    def names(self, columns: tuple[str, ...]) -> list[str] | None:
        """Names of the parameters, for records with columns of these names; None if the loss does not know them."""
        return None

    def of(self, columns: tuple[str, ...]) -> "Loss":
        """The loss with positions in place of columns' names."""
        return self

    def check(self, rows: np.ndarray, index: tuple[int, ...]) -> None:
        """Raise ValueError if an unperturbed column (not in `index`) holds a value that the loss is not for."""
        return None


def as_loss(
    loss: Loss | Callable, *, scalar: bool = False, unravel: Callable[[jax.Array], object] = lambda theta: theta
) -> Loss:
    """The loss itself, or as a loss a function ``loss(x, theta)`` of one record, a row.

    `scalar` says that records are numbers, `unravel` maps a flat array of parameters to the form that the function
    takes. TypeError for anything else.
    """
    if isinstance(loss, Loss):
        return loss
    if not callable(loss):
        raise TypeError(f"loss must be a function loss(x, theta) of one record, got {type(loss).__name__}")
    return FunctionLoss(loss, scalar, unravel)


@dataclasses.dataclass(frozen=True)
class FunctionLoss(Loss):
    """A user's function of one record and a flat parameter; `rough` if it has kinks in it, and is to be rounded off."""

    function: Callable
    scalar: bool
    unravel: Callable
    smooth: bool | None = None
    rough: bool = False

    @property
    def settles(self) -> bool:  # type: ignore[override]
        return not self.rough

    def smoothed(self, width: Array) -> Loss:
        # a normal density that is as wide as the logistic one of this scale
        return _BlurredLoss(self, np.pi / np.sqrt(3) * width) if self.rough else self

    def values(self, rows: jax.Array, theta: Array) -> jax.Array:
        def value(row: jax.Array) -> jax.Array:
            return self.function(row[0] if self.scalar else row, self.unravel(theta))

        return jax.vmap(value)(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape[:-1])


@dataclasses.dataclass(frozen=True)
class _BlurredLoss(Loss):
    """A loss averaged over normal displacements of its parameter, so that it has second derivatives everywhere.

    They follow from first ones: the Hessian of E f(θ + h u) is E ∇f(θ + h u) uᵀ/h (Stein's identity). The displacements
    are a fixed low-discrepancy set and its mirror image.
    """

    loss: Loss
    widths: Array

    def values(self, rows: jax.Array, theta: Array) -> jax.Array:
        moves = self._displacements(theta) * self.widths
        return jnp.mean(jax.lax.map(lambda move: self.loss.values(rows, theta + move), moves), axis=0)

    def total(self, rows: jax.Array, weights: jax.Array, theta: Array) -> Derivatives:
        value_and_slope = jax.value_and_grad(lambda at: jnp.sum(weights * self.loss.values(rows, at)))
        moves = self._displacements(theta)
        values, slopes = jax.lax.map(lambda move: value_and_slope(theta + move * self.widths), moves)
        # the slopes' regression on the displacements, whose mean is zero
        bend = jnp.linalg.solve(moves.T @ moves, moves.T @ slopes) / self.widths[:, None]
        return Derivatives(jnp.mean(values), jnp.mean(slopes, axis=0), (bend + bend.T) / 2)

    @staticmethod
    def _displacements(theta: jax.Array) -> jax.Array:
        half = max(16, 1 << int(2 * len(theta)).bit_length())
        uniform = scipy.stats.qmc.Sobol(len(theta), seed=0).random(half)
        normal = special.ndtri(np.clip(uniform, 1e-9, 1 - 1e-9))
        return jnp.asarray(np.concatenate([normal, -normal]), theta.dtype)


PANELS, NODES = 16, 3  # panels of a line at each level of the search, Gauss nodes in each panel
LEVELS = 5  # so that the last panel is a millionth of the line
UNEXPLAINED = 2.0  # times the largest change that the derivatives sampled in a panel explain; a jump misses all of it
ROUNDING = 1e-9  # against the largest derivatives on the line
FAINT = 1e-13  # against those on any line: a tail that ends in rounding to zero ends in steps


def has_kinks(loss: Loss, rows: ArrayLike, thetas: ArrayLike, order: int) -> bool:
    """Whether the loss or a derivative below the `order`-th jumps, between rows[0] (lines, columns) and rows[1].

    Parameters go from thetas[0] (lines, p) to thetas[1]. Each line is searched by zooming in, always to the panel where
    most of a change is not the derivative's integral. At a jump that part stays as large as it is, while a curve,
    however steep, straightens; so units do not matter.
    """
    with jax.enable_x64(True):
        return bool(jnp.any(_jumps(loss, jnp.asarray(rows), jnp.asarray(thetas), order)))


@functools.partial(jax.jit, static_argnames=("loss", "order"))
def _jumps(loss: Loss, rows: jax.Array, thetas: jax.Array, order: int) -> jax.Array:
    t, w = np.polynomial.legendre.leggauss(NODES)
    edges = np.arange(PANELS + 1) / PANELS
    nodes = (edges[:-1, None] + (1 + t) / (2 * PANELS)).ravel()

    def along(rows: jax.Array, thetas: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        def value(s: jax.Array) -> jax.Array:
            return loss.values(rows[0] + s * (rows[1] - rows[0]), thetas[0] + s * (thetas[1] - thetas[0]))

        derivatives = jax.vmap(derivatives_up_to(order, value))

        def zoomed(k: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            def zoom(place: Array, width: Array) -> tuple[Array, tuple]:
                at = jnp.stack(derivatives(place + width * jnp.asarray(np.concatenate([edges, nodes]))))
                at = jnp.where(jnp.isfinite(at), at, 0.0)
                ends, slopes = at[k, : PANELS + 1], at[k + 1, PANELS + 1 :].reshape(PANELS, NODES)
                missing = jnp.abs(jnp.diff(ends) - slopes @ w * width / (2 * PANELS))
                worst = jnp.argmax(missing)
                steepest = jnp.maximum(jnp.max(jnp.abs(slopes[worst])), jnp.max(jnp.abs(at[k + 1, worst + edge])))
                sizes = jnp.max(jnp.abs(at), axis=1)
                return place + width * worst / PANELS, (missing[worst], steepest * width / PANELS, sizes)

            _, (missing, change, sizes) = jax.lax.scan(zoom, 0.0, float(PANELS) ** -np.arange(LEVELS))
            return missing[-1], change[-1], jnp.max(sizes, axis=0)

        missing, change, sizes = jax.vmap(zoomed)(jnp.arange(order))
        sizes = jnp.max(sizes, axis=0)
        # a derivative is made of terms like those below it and that above it; a large constant only hides a jump
        return missing, change, jax.lax.cummax(sizes[1:]) + 1e-3 * sizes[0]

    edge = jnp.arange(2)
    missing, change, sizes = jax.vmap(along, (1, 1))(rows, thetas)
    return missing > UNEXPLAINED * change + ROUNDING * sizes + FAINT * jnp.max(sizes, axis=0)


def derivatives_up_to(order: int, function: Callable) -> Callable:
    """An elementwise function with its derivatives up to an order, as a tuple."""
    if order == 0:
        return lambda s: (function(s),)
    lower = derivatives_up_to(order - 1, function)

    def derivatives(s: Array) -> tuple:
        values, slopes = jax.jvp(lower, (s,), (jnp.ones_like(s),))
        return (*values, slopes[-1])

    return derivatives
