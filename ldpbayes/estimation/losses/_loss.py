"""Losses: their protocol, and losses made from a user's function."""

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.typing import ArrayLike
from scipy import special

Derivatives = tuple[jax.Array, jax.Array, jax.Array]
"""Value, gradient (p,) and Hessian (p, p)."""


def _differentiated(function: Callable, theta: jax.Array) -> Derivatives:
    def gradient(at: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        value, slope = jax.value_and_grad(function)(at)
        return slope, (value, slope)

    hessian, (value, slope) = jax.jacfwd(gradient, has_aux=True)(theta)
    return value, slope, hessian


class Loss(abc.ABC):
    """A loss on arrays of records; rows have the columns of a release on their last axis, one for a number."""

    smooth: bool | None = None
    """Whether the loss has the derivatives in records and parameters that Laplacians and their Hessians need.

    They are four, of which the last may jump; for `IndependentLaplaceCorrection` two, and two more for each perturbed
    column. None where that has to be found out.
    """

    value_of_normal: float | None = None
    """Mean of the loss at its minimum for residuals from a standard normal, where it is proportional to their scale."""

    settles: bool = True
    """Whether the smooth version is so smooth that a minimisation settles to rounding, not just within its width."""

    @abc.abstractmethod
    def values(self, rows: jax.Array, theta: Any) -> jax.Array:
        """Loss of each row, from (*shape, columns) to shape."""

    @abc.abstractmethod
    def laplacians(self, rows: jax.Array, theta: Any, index: tuple[int, ...]) -> jax.Array:
        """Sum over the columns in `index` of the second derivatives, from (*shape, columns) to shape."""

    def total(self, rows: jax.Array, weights: jax.Array, theta: Any) -> Derivatives:
        """Weighted sum of the losses of rows, with its gradient and Hessian in the parameters."""
        return _differentiated(lambda at: jnp.sum(weights * self.values(rows, at)), theta)

    def total_laplacian(self, rows: jax.Array, weights: jax.Array, theta: Any, index: tuple[int, ...]) -> Derivatives:
        """Weighted sum of the Laplacians of rows, with its gradient and Hessian in the parameters."""
        return _differentiated(lambda at: jnp.sum(weights * self.laplacians(rows, at, index)), theta)

    def smoothed(self, width: Any) -> "Loss":
        """A smooth loss in which kinks are rounded off over a `width`, in the unit of the residuals; else the loss."""
        return self

    def width(self, rows: jax.Array) -> Any:
        """Unit of the widths of `smoothed`, for these records; None for a loss that has nothing to round off."""
        return None

    def names(self, columns: tuple[str, ...]) -> list[str] | None:
        """Names of the parameters, for records whose columns are called so; None where the loss does not know."""
        return None

    def of(self, columns: tuple[str, ...]) -> "Loss":
        """The loss with positions in place of columns' names."""
        return self

    def check(self, rows: np.ndarray, index: tuple[int, ...]) -> None:
        """Raise ValueError where a column that is not perturbed (not in `index`) holds what the loss is not for."""
        return None


PANELS, NODES = 16, 3
LEVELS = 5  # so that the last panel is a millionth of the line
UNEXPLAINED = 2.0  # times the most that the derivatives seen in a panel explain; where they jump, once is missing
ROUNDING = 1e-9  # against the largest derivatives on the line
FAINT = 1e-13  # against those on any line: a tail that ends in rounding to zero ends in steps


def has_kinks(loss: Loss, rows: ArrayLike, thetas: ArrayLike, order: int) -> bool:
    """Whether the loss or one of its derivatives below the `order`-th jumps, on some lines.

    Each line is searched by zooming in, always to the panel where most of a change is not the derivative's integral. At
    a jump that stays as it is, while a curve, however steep, straightens; so the units of records, parameters and loss
    do not matter.

    Parameters
    ----------
    loss : Loss
        Of a flat parameter.
    rows : array (2, lines, columns)
        The records at both ends of each line.
    thetas : array (2, lines, p)
        The parameters there.
    order : int
        Of the highest derivative, which may jump.

    Returns
    -------
    bool
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

        derivatives = jax.vmap(_derivatives(value, order))

        def zoomed(k: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            def level(place: Any, width: Any) -> tuple[Any, tuple]:
                at = jnp.stack(derivatives(place + width * jnp.asarray(np.concatenate([edges, nodes]))))
                at = jnp.where(jnp.isfinite(at), at, 0.0)
                ends, slopes = at[k, : PANELS + 1], at[k + 1, PANELS + 1 :].reshape(PANELS, NODES)
                missing = jnp.abs(jnp.diff(ends) - slopes @ w * width / (2 * PANELS))
                worst = jnp.argmax(missing)
                steepest = jnp.maximum(jnp.max(jnp.abs(slopes[worst])), jnp.max(jnp.abs(at[k + 1, worst + edge])))
                sizes = jnp.max(jnp.abs(at), axis=1)
                return place + width * worst / PANELS, (missing[worst], steepest * width / PANELS, sizes)

            _, (missing, change, sizes) = jax.lax.scan(level, 0.0, float(PANELS) ** -np.arange(LEVELS))
            return missing[-1], change[-1], jnp.max(sizes, axis=0)

        missing, change, sizes = jax.vmap(zoomed)(jnp.arange(order))
        sizes = jnp.max(sizes, axis=0)
        # a derivative is made of terms like those below it and that above it; a large constant only hides a jump
        return missing, change, jax.lax.cummax(sizes[1:]) + 1e-3 * sizes[0]

    edge = jnp.arange(2)
    missing, change, sizes = jax.vmap(along, (1, 1))(rows, thetas)
    return missing > UNEXPLAINED * change + ROUNDING * sizes + FAINT * jnp.max(sizes, axis=0)


def _derivatives(function: Callable, order: int) -> Callable:
    """The function of a number with its derivatives up to an order, as a tuple."""
    if order == 0:
        return lambda s: (function(s),)
    lower = _derivatives(function, order - 1)

    def both(s: Any) -> tuple:
        values, slopes = jax.jvp(lower, (s,), (jnp.ones_like(s),))
        return (*values, slopes[-1])

    return both


@dataclasses.dataclass(frozen=True)
class _Function(Loss):
    """A user's function of one record and a parameter, which here is flat.

    `rough` says that it has kinks in the parameter: it is rounded off over lengths of the parameter.
    """

    function: Callable
    scalar: bool
    unravel: Callable
    smooth: bool | None = None
    rough: bool = False

    @property
    def settles(self) -> bool:  # type: ignore[override]
        """See `Loss.settles`."""
        return not self.rough

    def smoothed(self, width: Any) -> Loss:
        """See `Loss.smoothed`."""
        # a normal density that is as wide as the logistic one of this scale
        return _Blurred(self, np.pi / np.sqrt(3) * width) if self.rough else self

    def _one(self, row: jax.Array, theta: jax.Array) -> jax.Array:
        return self.function(row[0] if self.scalar else row, self.unravel(theta))

    def values(self, rows: jax.Array, theta: Any) -> jax.Array:
        """See `Loss.values`."""
        flat = jax.vmap(self._one, (0, None))(rows.reshape(-1, rows.shape[-1]), theta)
        return flat.reshape(rows.shape[:-1])

    def laplacians(self, rows: jax.Array, theta: Any, index: tuple[int, ...]) -> jax.Array:
        """Forward over reverse: the diagonal of the Hessian, all its entries in one batched pass."""
        directions = np.eye(rows.shape[-1])[list(index)]

        def one(row: jax.Array) -> jax.Array:
            gradient = jax.grad(lambda r: self._one(r, theta))
            along = jax.vmap(lambda v: jax.jvp(gradient, (row,), (v,))[1] @ v)
            return jnp.sum(along(jnp.asarray(directions, row.dtype)))

        return jax.vmap(one)(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape[:-1])


@dataclasses.dataclass(frozen=True)
class _Blurred(Loss):
    """A loss averaged over normal displacements of its parameter, which has second derivatives where the loss has none.

    They follow from first ones: the Hessian of E f(θ + h u) is E ∇f(θ + h u) uᵀ/h (Stein's identity). The displacements
    are a fixed low-discrepancy set and its mirror image.
    """

    loss: Loss
    widths: Any

    def values(self, rows: jax.Array, theta: Any) -> jax.Array:
        """See `Loss.values`."""
        moves = self._moves(theta) * self.widths
        return jnp.mean(jax.lax.map(lambda move: self.loss.values(rows, theta + move), moves), axis=0)

    def laplacians(self, rows: jax.Array, theta: Any, index: tuple[int, ...]) -> jax.Array:
        """None: what has no second derivatives is corrected without them."""
        raise NotImplementedError("a loss with kinks in its parameter is corrected without derivatives")

    def total(self, rows: jax.Array, weights: jax.Array, theta: Any) -> Derivatives:
        """See `Loss.total`."""

        def at(move: jax.Array) -> tuple[jax.Array, jax.Array]:
            return jax.value_and_grad(lambda t: jnp.sum(weights * self.loss.values(rows, t)))(
                theta + move * self.widths
            )

        moves = self._moves(theta)
        values, slopes = jax.lax.map(at, moves)
        # the slopes' regression on the displacements, of which the mean is zero
        bend = jnp.linalg.solve(moves.T @ moves, moves.T @ slopes) / self.widths[:, None]
        return jnp.mean(values), jnp.mean(slopes, axis=0), (bend + bend.T) / 2

    @staticmethod
    def _moves(theta: jax.Array) -> jax.Array:
        half = max(16, 1 << int(2 * len(theta)).bit_length())
        uniform = scipy.stats.qmc.Sobol(len(theta), seed=0).random(half)
        normal = special.ndtri(np.clip(uniform, 1e-9, 1 - 1e-9))
        return jnp.asarray(np.concatenate([normal, -normal]), theta.dtype)


def as_loss(loss: Any, *, scalar: bool = False, unravel: Callable = lambda theta: theta) -> Loss:
    """The loss itself, or a function of a record and a parameter as one.

    Parameters
    ----------
    loss : Loss or callable
        A function is called as ``loss(x, theta)`` with one record, a row.
    scalar : bool
        Whether records are numbers, not rows.
    unravel : callable
        From a flat array of parameters to what the function takes.

    Raises
    ------
    TypeError
        If it is neither.
    """
    if isinstance(loss, Loss):
        return loss
    if not callable(loss):
        raise TypeError(f"loss must be a function loss(x, theta) of one record, got {type(loss).__name__}")
    return _Function(loss, scalar, unravel)
