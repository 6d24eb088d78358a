"""What a loss ℓ(x, θ) of one record is for M-estimation: values, Laplacians, and sums with their derivatives."""

import abc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["Derivatives", "Loss"]


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
