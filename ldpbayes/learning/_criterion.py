"""The sum of losses of a linear predictor with its derivatives: one compiled function for all data of a shape."""

import dataclasses
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes.learning._objectives import Objective

__all__ = ["ROWS", "Criterion", "Derivatives", "Rows"]

ROWS = 1 << 15  # labels at a time: some hundred numbers are held of each


class Rows(NamedTuple):
    """Labels of equal length, as the compiled function takes them.

    Attributes
    ----------
    features : array (n, d)
        Public features.
    values : array (n,)
        Released labels.
    weights : array (n,)
        How often each counts.
    mechanism : Mechanism
        What released them.
    """

    features: Any
    values: Any
    weights: Any
    mechanism: Any


class Derivatives(NamedTuple):
    """A sum of losses with its derivatives in p parameters.

    Attributes
    ----------
    value : float
        The sum.
    gradient : array (p,)
        First derivatives.
    hessian : array (p, p)
        Second derivatives.
    spread : array (p, p)
        Sum of outer products of the labels' gradients.
    """

    value: Any
    gradient: Any
    hessian: Any
    spread: Any


@dataclasses.dataclass(frozen=True)
class Criterion:
    """Sum of losses and a ridge penalty on the coefficients of standardised features.

    The parameters are the intercept, if there is one, the coefficients, and the logarithm of the scale, if there is
    one, with a normal prior around that of a plausible scale.

    Parameters
    ----------
    objective : Objective
        The loss.
    chunks : tuple of Rows
        The labels.
    centre, unit : array (d,)
        What is subtracted from the features, and what they are divided by.
    intercept : bool
        Whether there is one.
    penalty : float
        Precision of the coefficients' normal prior: half of it times their squares is added.
    scale : float
        A plausible scale.
    """

    objective: Objective
    chunks: tuple[Rows, ...]
    centre: np.ndarray
    unit: np.ndarray
    intercept: bool
    penalty: float
    scale: float

    @property
    def penalised(self) -> np.ndarray:
        """Which parameters have a prior of this precision: 1 for coefficients, 0 for others."""
        ends = (np.zeros(int(self.intercept)), np.zeros(int(self.objective.scaled)))
        return np.concatenate([ends[0], np.ones(len(self.unit)), ends[1]])

    def losses(self, theta: np.ndarray) -> Derivatives:
        """The sum of losses without penalty and prior.

        Parameters
        ----------
        theta : array (p,)
            The parameters.
        """

        def part(rows: Rows) -> Derivatives:
            with jax.enable_x64(True):  # a setting of each thread
                found = _derivatives(theta, rows, self.centre, self.unit, self.objective, self.intercept)
                return jax.block_until_ready(found)

        if len(self.chunks) == 1:
            parts = [part(self.chunks[0])]
        else:  # compiled functions of a chunk keep one core busy, not two
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                parts = list(pool.map(part, self.chunks))
        return Derivatives(*(np.sum([np.asarray(part[k]) for part in parts], axis=0) for k in range(4)))

    def __call__(self, theta: np.ndarray) -> Derivatives:
        """All that is minimised.

        Parameters
        ----------
        theta : array (p,)
            The parameters.
        """
        value, gradient, hessian, spread = self.losses(theta)
        more = self.prior(theta)
        return Derivatives(float(value + more[0]), gradient + more[1], hessian + np.diag(more[2]), spread)

    def prior(self, theta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """What the priors add, up to a constant: its value, gradient (p,) and diagonal of second derivatives (p,).

        Parameters
        ----------
        theta : array (p,)
            The parameters.
        """
        bend = self.penalty * self.penalised
        value, gradient = 0.5 * np.sum(bend * theta**2), bend * theta
        if self.objective.scaled:
            beyond, bend[-1] = theta[-1] - np.log(self.scale), self.objective.scale_precision()
            value, gradient[-1] = value + 0.5 * bend[-1] * beyond**2, bend[-1] * beyond
        return float(value), gradient, bend

    def reweighted(self, weights: np.ndarray) -> "Criterion":
        """The same with other weights of labels.

        Parameters
        ----------
        weights : array (n,)
            One a label.
        """
        sizes = np.cumsum([len(rows.weights) for rows in self.chunks])[:-1]
        padded = np.zeros(sum(len(rows.weights) for rows in self.chunks))
        padded[: len(weights)] = weights
        chunks = [rows._replace(weights=w) for rows, w in zip(self.chunks, np.split(padded, sizes), strict=True)]
        return dataclasses.replace(self, chunks=tuple(chunks))


@functools.partial(jax.jit, static_argnames=("objective", "intercept"))
def _derivatives(
    theta: jax.Array, rows: Rows, centre: jax.Array, unit: jax.Array, objective: Objective, intercept: bool
) -> Derivatives:
    """Derivatives in the parameters, from those in each label's prediction and logarithm of the scale."""
    features, values, weights, mechanism = rows
    design = (features - centre) / unit
    if intercept:
        design = jnp.concatenate([jnp.ones((len(design), 1)), design], axis=1)
    width = design.shape[1]
    of_label = (design @ theta[:width], jnp.broadcast_to(theta[-1], values.shape))[: 1 + objective.scaled]

    def losses(*of_label: jax.Array) -> jax.Array:
        scale = jnp.exp(of_label[1]) if objective.scaled else jnp.ones_like(of_label[0])
        return objective.loss(of_label[0], scale, values, mechanism)

    # a label's loss depends on its own prediction and scale only, so that one tangent serves all labels; forwards twice
    # takes half of the time of forwards and backwards
    def along(function: Callable, k: int) -> Callable:
        tangent = tuple(jnp.full_like(part, float(j == k)) for j, part in enumerate(of_label))
        return lambda *at: jax.jvp(function, at, tangent)

    kinds = range(len(of_label))
    second = {(i, j): along(along(losses, i), j)(*of_label) for i in kinds for j in kinds if i <= j}
    loss = second[0, 0][0][0]
    slope = jnp.stack([second[i, i][0][1] for i in kinds])
    bend = jnp.stack([jnp.stack([second[min(i, j), max(i, j)][1][1] for j in kinds]) for i in kinds])
    # where rounding leaves no curvature, the score's square, which it has on average, stands for it
    bend = jnp.where(jnp.isfinite(bend), bend, slope[:, None] * slope)
    columns = [design] + [jnp.ones((len(design), 1))] * objective.scaled

    def products(weight: Any) -> jax.Array:
        return jnp.block(
            [
                [columns[i].T @ ((weights * weight(i, j))[:, None] * columns[j]) for j in range(len(columns))]
                for i in range(len(columns))
            ]
        )

    gradient = jnp.concatenate([column.T @ (weights * part) for column, part in zip(columns, slope, strict=True)])
    hessian = products(lambda i, j: bend[i, j])
    spread = products(lambda i, j: weights * slope[i] * slope[j])
    return Derivatives(jnp.sum(weights * loss), gradient, hessian, spread)
