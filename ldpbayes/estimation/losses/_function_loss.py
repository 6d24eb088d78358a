"""Any JAX function of one record and a parameter as a `Loss`; one with kinks in its parameter is blurred."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from scipy import special

from ldpbayes.estimation.losses._loss import Derivatives, Loss

__all__ = ["as_loss"]


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
