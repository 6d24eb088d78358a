"""Losses of records, for `ldpbayes.m_estimate`.

Most are for regressions: functions of the response y and the linear predictor η of a record.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from scipy import special

from ldpbayes._core.checks import INSIDE_0_1, ONE_INSIDE_0_1, ONE_POSITIVE, POSITIVE, checked, is_integer
from ldpbayes._core.types import Array
from ldpbayes.numerics.minimise import Derivatives, value_gradient_hessian

__all__ = ["Loss", "RegressionLoss", "absolute", "as_loss", "hinge", "huber", "logistic", "pinball", "squared"]

Columns = Sequence[int | str]  # positions or names


def __dir__() -> list[str]:
    """Public names, so that completion with Tab does not show imports."""
    return sorted(__all__)


class Loss(abc.ABC):
    """Base class of losses, which are functions of a record and of parameters.

    Records are rows of an array (*shape, columns), with one column if a record is a number. Your own loss must define
    `values`. It must be hashable, for example a frozen dataclass.

    ``smooth`` is True if the corrections for smooth losses may be used (see the notes of `m_estimate`), and False if
    the loss has kinks. If it is None (default), `m_estimate` looks for kinks numerically.
    """

    smooth: bool | None = None
    value_of_normal: float | None = None  # its mean at the minimum for normal residuals, a share of their deviation

    @abc.abstractmethod
    def values(self, rows: jax.Array, theta: Array) -> jax.Array:
        """Return the loss of each row of `rows` (*shape, columns) for the parameters `theta`, as an array (*shape)."""

    def laplacians(self, rows: jax.Array, theta: Array, index: tuple[int, ...]) -> jax.Array:
        """Return the Laplacians of `values`, sums of the second derivatives in the columns at the positions `index`."""
        directions = jnp.asarray(np.eye(rows.shape[-1])[list(index)], rows.dtype)

        def laplacian(row: jax.Array) -> jax.Array:
            # forward over reverse: the Hessian's diagonal in one batched pass
            gradient = jax.grad(lambda r: self.values(r, theta))
            return jnp.sum(jax.vmap(lambda v: jax.jvp(gradient, (row,), (v,))[1] @ v)(directions))

        return jax.vmap(laplacian)(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape[:-1])

    def total(self, rows: jax.Array, weights: jax.Array, theta: Array) -> Derivatives:
        """Return the sum of the losses of all rows with `weights` (*shape), and its derivatives in `theta`."""
        return value_gradient_hessian(lambda at: jnp.sum(weights * self.values(rows, at)), theta)

    def total_laplacian(self, rows: jax.Array, weights: jax.Array, theta: Array, index: tuple[int, ...]) -> Derivatives:
        """Return the sum of the `laplacians` of all rows with `weights` (*shape), and its derivatives in `theta`."""
        return value_gradient_hessian(lambda at: jnp.sum(weights * self.laplacians(rows, at, index)), theta)

    def smoothed(self, width: Array) -> "Loss":
        """Return a loss without kinks, closer to this one for a smaller `width` (in the unit of the residuals)."""
        return self

    def width(self, rows: jax.Array) -> Array:
        """Return a suitable unit of the width in `smoothed`, computed from `rows`. None if there are no kinks."""
        return None

    def names(self, columns: tuple[str, ...]) -> list[str] | None:
        """Return the names of the parameters, given those of the columns. None if the loss does not name them."""
        return None

    def of(self, columns: tuple[str, ...]) -> "Loss":
        """Return a loss that uses positions instead of names of columns. `columns` are all names in order."""
        return self

    def check(self, rows: np.ndarray, index: tuple[int, ...]) -> None:
        """Raise ValueError if a value in `rows` (N, columns) is not allowed, such as a response 2 of `logistic`.

        Columns with noise, at the positions `index`, are not checked.
        """
        return None


def as_loss(loss: Loss | Callable, *, scalar: bool = False) -> Loss:
    """Convert a function of a record and a parameter to a `Loss`. A `Loss` is returned unchanged.

    Parameters
    ----------
    loss : Loss or callable
        A loss, or a function ``loss(x, theta)`` of one row x and parameters theta.
    scalar : bool
        True if x is a number instead of a row. Default: False.
    """
    if isinstance(loss, Loss):
        return loss
    if not callable(loss):
        raise TypeError(f"loss must be a function loss(x, theta) of one record, got {type(loss).__name__}")
    return FunctionLoss(loss, scalar)


@dataclasses.dataclass(frozen=True)
class FunctionLoss(Loss):
    """A user's function of one record and a parameter, of which `unravel` makes the form that the function takes."""

    function: Callable
    scalar: bool
    unravel: Callable = lambda theta: theta
    smooth: bool | None = None

    def smoothed(self, width: Array) -> Loss:
        # a normal density that is as wide as the logistic one of this scale, in units of the parameters
        return _BlurredLoss(self, np.pi / np.sqrt(3) * width)

    def values(self, rows: jax.Array, theta: Array) -> jax.Array:
        def value(row: jax.Array) -> jax.Array:
            return self.function(row[0] if self.scalar else row, self.unravel(theta))

        return jax.vmap(value)(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape[:-1])


@dataclasses.dataclass(frozen=True)
class _BlurredLoss(Loss):
    """E f(θ + h u) over a fixed set of normal u and −u; its Hessian is E ∇f(θ + h u) uᵀ/h (Stein's identity)."""

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


@dataclasses.dataclass(frozen=True, repr=False)
class RegressionLoss(Loss):
    """Loss of a regression: a function of a response y and a linear predictor η = θ_0 + Σ_j θ_j x_j.

    Parameters
    ----------
    kernel : callable
        The loss as a function of η and y, elementwise for arrays.
    response : int or str
        The column of the response: its position, negative to count from the end, or its name. Default: the last column.
    features : sequence of int or str, optional
        The features x_j: positions or names of columns, in the order of the parameters. Default: all columns except the
        response. ``()`` means no features, for example to estimate a mean.
    intercept : bool
        True (default) if the first parameter is an intercept θ_0.
    smooth_kernel : callable, optional
        Only if ``kernel`` has kinks: a function of η, y and a width that can be differentiated twice, and that is close
        to the kernel for a small width.
    smooth : bool, optional
        True if the kernel is smooth, so that the corrections for smooth losses are valid. Default: unknown.
    unit : {"response", "margin"}
        The unit of that width: the standard deviation of the residuals of least squares ("response", default), or 1
        ("margin").
    value_of_normal : float, optional
        Only for kernels with kinks that scale with y: the mean loss for standard normal y and the best constant η.
    admits : (str, callable), optional
        The allowed responses: a description in words, and a function that returns True for each entry of an array that
        is allowed. Default: all responses are allowed.
    """

    kernel: Callable
    response: int | str = -1
    features: Columns | None = None
    intercept: bool = True
    smooth_kernel: Callable | None = None
    smooth: bool | None = None
    unit: str = "response"
    value_of_normal: float | None = None
    admits: tuple[str, Callable] | None = None

    def __post_init__(self) -> None:
        if self.features is not None:
            single = isinstance(self.features, str) or is_integer(self.features)
            columns: Sequence = (self.features,) if single else self.features
            features = tuple(j if isinstance(j, str) else int(j) for j in columns)
            object.__setattr__(self, "features", features)
            if self.response in features:
                raise ValueError(f"the response is column {self.response}, which is among the features {features}")

    def __repr__(self) -> str:
        name = getattr(self.kernel, "__name__", type(self.kernel).__name__).lstrip("_")
        parts = [name, f"response={self.response!r}"]
        parts += [] if self.features is None else [f"features={self.features}"]
        return f"{type(self).__name__}({', '.join(parts + ([] if self.intercept else ['intercept=False']))})"

    def __call__(self, x: jax.Array, theta: jax.Array) -> jax.Array:
        return self.values(x, theta)

    def of(self, columns: tuple[str, ...]) -> "RegressionLoss":
        features = None if self.features is None else tuple(_position(column, columns) for column in self.features)
        return dataclasses.replace(self, response=_position(self.response, columns), features=features)

    def check(self, rows: np.ndarray, index: tuple[int, ...]) -> None:
        _, response = self._columns(rows.shape[-1])
        if self.admits is None or response in index:
            return
        words, admitted = self.admits
        bad = ~admitted(rows[:, response])
        if bad.any():
            others = f"{bad.sum()} other values, the first ({rows[np.argmax(bad), response]:g}) at {np.argmax(bad)}"
            raise ValueError(f"this loss is for responses {words}; column {response} has {others}")

    def _columns(self, width: int) -> tuple[np.ndarray, int]:
        names = tuple(f"x{j}" for j in range(width))
        response = _position(self.response, names)
        if self.features is None:
            return np.setdiff1d(np.arange(width), [response]), response
        return np.array([_position(j, names) for j in self.features], int), response

    def _linear(self, rows: jax.Array, theta: Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Design (*shape, p), and linear predictor and response (*shape); ValueError unless theta has p numbers."""
        features, response = self._columns(rows.shape[-1])
        design = rows[..., features]
        if self.intercept:
            design = jnp.concatenate([jnp.ones_like(rows[..., :1]), design], axis=-1)
        if theta.shape != design.shape[-1:]:
            parts = f"{len(features)} columns{' and an intercept' if self.intercept else ''}"
            count = f"{design.shape[-1]} parameters ({parts})"
            raise ValueError(f"this loss has {count}, got an array of shape {theta.shape}")
        return design, design @ theta, rows[..., response]

    def _slopes(self, width: int, index: tuple[int, ...]) -> tuple[np.ndarray, bool]:
        """1 for parameters (p,) that are slopes of columns in `index`, else 0; and whether the response is in it."""
        features, response = self._columns(width)
        return np.concatenate([np.zeros(int(self.intercept)), np.isin(features, index)]), response in index

    def _total(self, kernel: Callable, rows: jax.Array, weights: jax.Array, theta: Array) -> Derivatives:
        design, eta, y = self._linear(rows.reshape(-1, rows.shape[-1]), theta)
        parts = derivatives_up_to(2, lambda at: kernel(at, y))(eta)
        value, slope, bend = (weights.reshape(-1) * part for part in parts)
        return Derivatives(jnp.sum(value), slope @ design, design.T @ (bend[:, None] * design))

    def values(self, rows: jax.Array, theta: Array) -> jax.Array:
        _, eta, y = self._linear(rows, theta)
        return self.kernel(eta, y)

    def laplacians(self, rows: jax.Array, theta: Array, index: tuple[int, ...]) -> jax.Array:
        _, eta, y = self._linear(rows, theta)
        mask, noisy_response = self._slopes(rows.shape[-1], index)
        total = _second_derivative(self.kernel, 0)(eta, y) * jnp.sum(mask * theta**2)
        return total + _second_derivative(self.kernel, 1)(eta, y) if noisy_response else total

    def total(self, rows: jax.Array, weights: jax.Array, theta: Array) -> Derivatives:
        return self._total(self.kernel, rows, weights, theta)

    def total_laplacian(self, rows: jax.Array, weights: jax.Array, theta: Array, index: tuple[int, ...]) -> Derivatives:
        mask, noisy_response = self._slopes(rows.shape[-1], index)
        size, twice = jnp.sum(mask * theta**2), 2 * mask * theta
        # the product of the squared slopes with the sum of the kernel's second derivatives
        value, slope, bend = self._total(_second_derivative(self.kernel, 0), rows, weights, theta)
        total = Derivatives(
            size * value,
            twice * value + size * slope,
            2 * value * jnp.diag(mask) + jnp.outer(twice, slope) + jnp.outer(slope, twice) + size * bend,
        )
        if noisy_response:
            more = self._total(_second_derivative(self.kernel, 1), rows, weights, theta)
            return jax.tree.map(jnp.add, total, more)
        return total

    def smoothed(self, width: Array) -> "RegressionLoss":
        if self.smooth_kernel is None:
            return self
        smooth = self.smooth_kernel

        def smoothed(eta: jax.Array, y: jax.Array) -> jax.Array:
            return smooth(eta, y, width)

        return dataclasses.replace(self, kernel=smoothed, smooth_kernel=None, smooth=None)

    def width(self, rows: jax.Array) -> Array:
        if self.smooth_kernel is None:
            return None
        if self.unit == "margin":
            return jnp.ones((), rows.dtype)
        count = len(self._columns(rows.shape[-1])[0]) + self.intercept
        design, _, y = self._linear(rows, jnp.zeros(count, rows.dtype))
        gram = design.T @ design
        ridge = 1e-10 * jnp.diag(jnp.diag(gram))
        return jnp.std(y - design @ jnp.linalg.solve(gram + ridge, design.T @ y))

    def names(self, columns: tuple[str, ...]) -> list[str]:
        features, _ = self._columns(len(columns))
        return ["intercept"] * self.intercept + [columns[j] for j in features]


_PROPORTIONS = ("between 0 and 1", lambda y: (y >= 0) & (y <= 1))
_SIGNS = ("-1 and 1", lambda y: np.abs(y) == 1)


def squared(response: int | str = -1, *, features: Columns | None = None, intercept: bool = True) -> RegressionLoss:
    """Return the loss of least squares, ½ (y − η)², which estimates the mean of a response y.

    `RegressionLoss` describes η and the parameters `response`, `features` and `intercept`: by default, y is the last
    column, and all others are features.
    """
    return RegressionLoss(_squared, response, features, intercept, smooth=True)


def _squared(eta: jax.Array, y: jax.Array) -> jax.Array:
    return 0.5 * (y - eta) ** 2


def logistic(response: int | str = -1, *, features: Columns | None = None, intercept: bool = True) -> RegressionLoss:
    """Return the loss of a logistic regression, log(1 + exp(η)) − y η, for a response y in {0, 1}.

    `response`, `features` and `intercept` are as in `squared`.
    """
    return RegressionLoss(_logistic, response, features, intercept, smooth=True, admits=_PROPORTIONS)


def _logistic(eta: jax.Array, y: jax.Array) -> jax.Array:
    return _softplus(eta) - y * eta


def pinball(
    tau: float, response: int | str = -1, *, features: Columns | None = None, intercept: bool = True
) -> RegressionLoss:
    """Return the loss of a quantile regression, (y − η) (τ − 1[y < η]), also called check loss ([KB]).

    `m_estimate` smooths the loss by convolution with a narrow logistic density.

    Parameters
    ----------
    tau : float
        The probability τ of the quantile, strictly between 0 and 1.
    response, features, intercept
        As in `squared`.
    """
    tau = checked("tau", tau, INSIDE_0_1[0], ONE_INSIDE_0_1[1])
    kernel = _pinball_kernel(tau)
    density = float(np.exp(-(special.ndtri(tau) ** 2) / 2) / np.sqrt(2 * np.pi))
    return RegressionLoss(kernel, response, features, intercept, kernel, False, value_of_normal=density)


@functools.cache  # so that two losses of one kind are equal, and share what is compiled
def _pinball_kernel(tau: float) -> Callable:
    def kernel(eta: jax.Array, y: jax.Array, width: Array = None) -> jax.Array:
        return tau * (y - eta) + _positive_part(eta - y, width)

    kernel.__name__ = f"pinball({tau=:g})"
    return kernel


def absolute(response: int | str = -1, *, features: Columns | None = None, intercept: bool = True) -> RegressionLoss:
    """Return the loss of a median regression, |y − η|, for a response y.

    `response`, `features` and `intercept` are as in `squared`.
    """
    mean = float(np.sqrt(2 / np.pi))
    return RegressionLoss(_absolute, response, features, intercept, _absolute, False, value_of_normal=mean)


def _absolute(eta: jax.Array, y: jax.Array, width: Array = None) -> jax.Array:
    return y - eta + 2 * _positive_part(eta - y, width)


def hinge(response: int | str = -1, *, features: Columns | None = None, intercept: bool = True) -> RegressionLoss:
    """Return the loss of a support vector classifier, max(0, 1 − y η), for a response y in {−1, 1}.

    `response`, `features` and `intercept` are as in `squared`.
    """
    return RegressionLoss(_hinge, response, features, intercept, _hinge, False, "margin", admits=_SIGNS)


def _hinge(eta: jax.Array, y: jax.Array, width: Array = None) -> jax.Array:
    return _positive_part(1 - y * eta, width)


def huber(
    threshold: float, response: int | str = -1, *, features: Columns | None = None, intercept: bool = True
) -> RegressionLoss:
    """Return the Huber loss of the residual r = y − η: ½ r² if |r| ≤ threshold, else threshold (|r| − ½ threshold).

    See [Huber64]. Its second derivative jumps: use `DoublyRandom` or `Combined`, not the corrections for smooth losses.

    Parameters
    ----------
    threshold : float
        Positive and finite, in the unit of the response.
    response, features, intercept
        As in `squared`.
    """
    threshold = checked("threshold", threshold, POSITIVE[0], ONE_POSITIVE[1])
    return RegressionLoss(_huber_kernel(threshold), response, features, intercept, smooth=False)


@functools.cache
def _huber_kernel(threshold: float) -> Callable:
    def kernel(eta: jax.Array, y: jax.Array) -> jax.Array:
        r = y - eta
        inside = jnp.clip(r, -threshold, threshold)
        return inside * (r - 0.5 * inside)

    kernel.__name__ = f"huber({threshold=:g})"
    return kernel


def _position(column: int | str, columns: tuple[str, ...]) -> int:
    if isinstance(column, str) and column in columns:
        return columns.index(column)
    if isinstance(column, str) or not -len(columns) <= column < len(columns):
        raise ValueError(f"the loss uses column {column!r}, but the columns are {', '.join(columns)}")
    return range(len(columns))[column]


def derivatives_up_to(order: int, function: Callable) -> Callable:
    """An elementwise function with its derivatives up to an order, as a tuple."""
    if order == 0:
        return lambda s: (function(s),)
    lower = derivatives_up_to(order - 1, function)

    def derivatives(s: Array) -> tuple:
        values, slopes = jax.jvp(lower, (s,), (jnp.ones_like(s),))
        return (*values, slopes[-1])

    return derivatives


def _second_derivative(kernel: Callable, argument: int) -> Callable:
    """Elementwise second derivative of a kernel (η, y) in one of its arguments."""

    def derivative(eta: jax.Array, y: jax.Array) -> jax.Array:
        eta, y = jnp.broadcast_arrays(eta, y)
        along, at = ((lambda v: kernel(v, y)), eta) if argument == 0 else ((lambda v: kernel(eta, v)), y)
        return derivatives_up_to(2, along)(at)[-1]

    return derivative


def _positive_part(t: jax.Array, width: Array) -> jax.Array:
    """max(t, 0), or a smooth function that is as near to it as the width is small."""
    return jnp.maximum(t, 0.0) if width is None else width * _softplus(t / width)


@jax.custom_jvp
def _softplus(t: jax.Array) -> jax.Array:
    return jnp.maximum(t, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(t)))


@_softplus.defjvp
def _softplus_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    # Higher derivatives are then polynomials of one logistic function.
    return _softplus(primals[0]), jax.nn.sigmoid(primals[0]) * tangents[0]
