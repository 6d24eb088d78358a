"""The penalised criterion, its derivatives and its minimisation."""

import dataclasses
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from ldpbayes.learning._objectives import Objective

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


MOST_STEPS = 100
TOLERANCE = 1e-8  # of what a step promises, in nats: the estimate is then off by 1e-4 of its standard errors
ROUNDING = 1e-12  # of the criterion itself, where a step promises less
FLAT = 1e-10  # of the largest curvature: less is none


class Minimum(NamedTuple):
    """Where a minimisation ended.

    Attributes
    ----------
    theta : array (p,)
        The parameters.
    at : Derivatives
        The criterion there.
    converged : bool
        Whether the last step promised next to nothing.
    steps : int
        How many were tried.
    """

    theta: np.ndarray
    at: Derivatives
    converged: bool
    steps: int


def newton(criterion: Callable[[np.ndarray], Derivatives], start: np.ndarray, tolerance: float = TOLERANCE) -> Minimum:
    """Minimise by Newton steps with the absolute values of the curvatures, damped until the criterion decreases.

    Parameters
    ----------
    criterion : callable
        From parameters to `Derivatives`.
    start : array (p,)
        Where to begin; the criterion is finite there.
    tolerance : float
        Of the decrease that a step promises, in the unit of the criterion.
    """
    theta, at, damping = np.array(start, float), criterion(start), 0.0
    for steps in range(MOST_STEPS):
        towards, promise = _step(at, damping)
        if steps and promise <= tolerance + ROUNDING * abs(at.value):
            return Minimum(theta, at, bool(np.isfinite(at.value)), steps)
        ahead = theta + towards
        there = criterion(ahead)
        if there.value <= at.value + ROUNDING * abs(at.value):  # a value that is not a number is not smaller
            theta, at, damping = ahead, there, damping / 10 if damping > 1e-6 else 0.0
        else:
            damping = max(10 * damping, 1e-3)
            if damping > 1e8:
                return Minimum(theta, at, promise <= 1e3 * tolerance + 1e3 * ROUNDING * abs(at.value), steps)
    return Minimum(theta, at, False, MOST_STEPS)


def _step(at: Derivatives, damping: float) -> tuple[np.ndarray, float]:
    """The step, and how much of the criterion a step without damping would take away."""
    bend = np.abs(np.diagonal(at.hessian))
    unit = np.where(bend > 0, 1 / np.sqrt(np.where(bend > 0, bend, 1.0)), 1.0)
    hessian, slope = unit[:, None] * at.hessian * unit, unit * at.gradient
    try:
        if damping:
            raise np.linalg.LinAlgError
        step = scipy.linalg.cho_solve(scipy.linalg.cho_factor(hessian), slope)
        return -unit * step, 0.5 * float(slope @ step)
    except np.linalg.LinAlgError:
        sizes, vectors = np.linalg.eigh(hessian)
        sizes = np.maximum(np.abs(sizes), FLAT * np.max(np.abs(sizes)))
        slope = vectors.T @ slope
        step = vectors @ (slope / (sizes + damping * np.max(sizes)))
        return -unit * step, 0.5 * float(np.sum(slope**2 / sizes))


ENOUGH = 100.0  # information on the logarithm: a normal law of a standard deviation of 0.1 describes that
DEEP = 16.0  # twice the nats below the maximum at which a profile ends: four standard errors
MOST = 14  # steps to each side
STEPS = 0.1, 0.5  # least and largest first step in the logarithm
FLAT_PROFILE = 0.01  # nats a step: beyond two of them the likelihood has reached its limit at the scale 0
ROUGH = 1e-2  # nats of a minimum in the other parameters, of which 1.92 are asked for


@dataclasses.dataclass(frozen=True, eq=False)
class ScaleProfile:
    """The likelihood of a scale, other parameters at their best and without the scale's own prior.

    Parameters
    ----------
    logs : array (m,)
        Logarithms of scales, in ascending order.
    deviances : array (m,)
        Twice the nats below the largest.
    """

    logs: np.ndarray
    deviances: np.ndarray

    def interval(self, quantile: float) -> tuple[float, float]:
        """Scales whose deviance is at most the square of a normal quantile; from 0 and to infinity where all are.

        Parameters
        ----------
        quantile : float
            Positive.
        """
        k = int(np.argmin(self.deviances))
        lower, upper = (
            _crossing(quantile, side * self.logs[part], self.deviances[part])
            for side, part in ((-1, slice(k, None, -1)), (1, slice(k, None)))
        )
        return float(np.exp(-lower)), float(np.exp(upper))


def _crossing(quantile: float, places: np.ndarray, deviances: np.ndarray) -> float:
    """The last place, in ascending order, at which a deviance passes the square; infinity where none does."""
    roots = np.sqrt(np.minimum.accumulate(deviances[::-1])[::-1])  # linear in the place for a normal law
    return float(np.interp(quantile, roots, places)) if roots[-1] > quantile else np.inf


def scale_profile(criterion: Criterion, minimum: Minimum) -> ScaleProfile | None:
    """The profile around a minimum; None where the scale's logarithm is normal.

    Parameters
    ----------
    criterion : Criterion
        With a scale.
    minimum : Minimum
        Its minimum, where the information is positive definite.
    """
    precision = criterion.objective.scale_precision()
    information = 1 / np.linalg.inv(minimum.at.hessian)[-1, -1] - precision
    if information >= ENOUGH:
        return None

    def nats(others: np.ndarray, log_scale: float) -> tuple[np.ndarray, float]:
        def rest(part: np.ndarray) -> Derivatives:
            value, gradient, hessian, spread = criterion(np.append(part, log_scale))
            return Derivatives(value, gradient[:-1], hessian[:-1, :-1], spread[:-1, :-1])

        best = newton(rest, others, ROUGH)
        return best.theta, best.at.value - 0.5 * precision * (log_scale - np.log(criterion.scale)) ** 2

    start = minimum.theta[-1]
    step = float(np.clip(1 / np.sqrt(max(information, 1e-9)), *STEPS))
    found = {start: nats(minimum.theta[:-1], start)}
    for side in (1, -1):
        log_scale, flat = start, 0
        for _ in range(MOST):
            last, log_scale = found[log_scale], log_scale + side * step
            found[log_scale] = nats(last[0], log_scale)
            values = [value for _, value in found.values()]
            flat = flat + 1 if abs(values[-1] - last[1]) < FLAT_PROFILE else 0
            if 2 * (values[-1] - min(values)) > DEEP or (side < 0 and flat == 2):
                break
    logs = np.sort(list(found))
    nats_there = np.array([found[log_scale][1] for log_scale in logs])
    return ScaleProfile(logs, 2 * (nats_there - nats_there.min()))
