"""The penalised criterion of a linear predictor: its minimisation, the profile of its scale, and the penalty."""

import abc
import dataclasses
import functools
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._core.checks import NOT_NEGATIVE, at_least, checked
from ldpbayes._core.types import Array
from ldpbayes.learning._objectives import Objective
from ldpbayes.mechanisms import Mechanism, mechanism_from_spec
from ldpbayes.numerics.minimise import Minimum, minimise_on_host


class Rows(NamedTuple):
    """A chunk of labels; its `design` (n, width) has ones, if there is an intercept, and the standardised features."""

    design: Array
    values: Array  # (n,)
    weights: Array  # (n,)
    mechanism: Mechanism


class Derivatives(NamedTuple):
    """A sum of losses, its gradient (p,) and Hessian (p, p), and the sum (p, p) of the gradients' outer products."""

    value: Array
    gradient: Array
    hessian: Array
    spread: Array


@dataclasses.dataclass(frozen=True)
class Criterion:
    """Sum of losses and a ridge penalty on the coefficients of standardised features, (features - centre) / unit. The
    parameters are the intercept, if any, the coefficients, and the logarithm of the scale, if any.
    """

    objective: Objective
    chunks: tuple[Rows, ...]
    centre: np.ndarray
    unit: np.ndarray
    intercept: bool
    scale: float  # a plausible one: the median of its log-normal prior
    scale_precision: float  # of that prior, of the logarithm
    spec: str | None = None  # JSON of the mechanism, if it has to be a constant of the compiled function
    penalty: float = 0.0  # precision of the coefficients' normal prior

    @property
    def coefficients(self) -> slice:
        return slice(int(self.intercept), int(self.intercept) + len(self.unit))

    def losses(self, theta: np.ndarray) -> Derivatives:
        def chunk_losses(rows: Rows) -> Derivatives:
            with jax.enable_x64(True):  # a setting of each thread
                return jax.block_until_ready(_derivatives(theta, rows, self.objective, self.spec))

        if len(self.chunks) == 1:
            parts = [chunk_losses(self.chunks[0])]
        else:  # the compiled function keeps only one core busy
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                parts = list(pool.map(chunk_losses, self.chunks))
        return Derivatives(*(np.sum([np.asarray(part[k]) for part in parts], axis=0) for k in range(4)))

    def __call__(self, theta: np.ndarray) -> Derivatives:
        """The whole criterion: losses, penalty and the prior of the scale."""
        value, gradient, hessian, spread = self.losses(theta)
        prior, slope, curvature = self.prior(theta)
        return Derivatives(float(value + prior), gradient + slope, hessian + np.diag(curvature), spread)

    def prior(self, theta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Minus the logarithm of the priors, up to a constant: value, gradient (p,), diagonal of the Hessian (p,)."""
        curvature, centre = np.zeros(len(theta)), np.zeros(len(theta))
        curvature[self.coefficients] = self.penalty
        if self.objective.scaled:
            curvature[-1], centre[-1] = self.scale_precision, np.log(self.scale)
        gradient = curvature * (theta - centre)
        return 0.5 * float(np.sum(gradient * (theta - centre))), gradient, curvature

    def in_units_of_data(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Parameters (p,) in the units of features and labels, and their Jacobian (p, p) in those of the criterion."""
        jacobian, own = np.eye(len(theta)), self.coefficients
        jacobian[own, own] /= self.unit
        if self.intercept:
            jacobian[0, own] = -self.centre / self.unit
        params = jacobian @ theta
        if self.objective.scaled:
            params[-1] = jacobian[-1, -1] = np.exp(theta[-1])
        return params, jacobian

    def covariance(self, at: Derivatives) -> np.ndarray:
        """Covariance (p, p) of the minimiser; a penalty and the scale's prior count as information."""
        inverse = np.linalg.inv(at.hessian)
        return inverse if self.objective.likelihood else inverse @ at.spread @ inverse.T

    def information(self, theta: np.ndarray) -> float:
        """Mean information of the labels on a coefficient, in the unit of the penalty."""
        at = self.losses(theta)
        # The spread is positive even if a likelihood bends the wrong way.
        each = np.diagonal(at.spread if self.objective.likelihood else at.hessian)
        return float(np.mean(each[self.coefficients]))


@functools.partial(jax.jit, static_argnames=("objective", "spec"))
def _derivatives(theta: Array, rows: Rows, objective: Objective, spec: str | None) -> Derivatives:
    design, values, weights, mechanism = rows
    if spec is not None:
        mechanism = mechanism_from_spec(json.loads(spec))
    width = design.shape[1]
    inputs = (design @ theta[:width], jnp.broadcast_to(theta[-1], values.shape))[: 1 + objective.scaled]

    def losses(*inputs: jax.Array) -> jax.Array:
        scale = jnp.exp(inputs[1]) if objective.scaled else jnp.ones_like(inputs[0])
        return objective.loss(inputs[0], scale, values, mechanism)

    # A label's loss depends on its own prediction and scale only, so one tangent serves all labels.
    # Forward-over-forward differentiation takes half the time of forward-over-reverse here.
    def derivative(function: Callable, k: int) -> Callable:
        tangent = tuple(jnp.full_like(part, float(j == k)) for j, part in enumerate(inputs))
        return lambda *at: jax.jvp(function, at, tangent)

    kinds = range(len(inputs))
    second = {(i, j): derivative(derivative(losses, i), j)(*inputs) for i in kinds for j in kinds if i <= j}
    loss = second[0, 0][0][0]
    slope = jnp.stack([second[i, i][0][1] for i in kinds])
    bend = jnp.stack([jnp.stack([second[min(i, j), max(i, j)][1][1] for j in kinds]) for i in kinds])
    # where rounding leaves no curvature, take the square of the score: their averages are equal
    bend = jnp.where(jnp.isfinite(bend), bend, slope[:, None] * slope)
    columns = [design] + [jnp.ones((len(design), 1))] * objective.scaled

    def products(factors: Array) -> jax.Array:
        return jnp.block([[columns[i].T @ (factors[i, j][:, None] * columns[j]) for j in kinds] for i in kinds])

    gradient = jnp.concatenate([column.T @ (weights * part) for column, part in zip(columns, slope, strict=True)])
    spread = products(weights * weights * slope[:, None] * slope)
    return Derivatives(jnp.sum(weights * loss), gradient, products(weights * bend), spread)


ROUGH_TOLERANCE = 1e-2  # nats, for fits that are only compared with each other
NORMAL_INFORMATION = 100.0  # on the logarithm of the scale: a normal law of the standard deviation 0.1 describes it
PROFILE_DEPTH = 16.0  # twice the nats below the maximum at which a profile ends: four standard errors
PROFILE_STEPS = 14  # at most, to each side
PROFILE_STEP_SIZES = 0.1, 0.5  # smallest and largest, in the logarithm of the scale
PROFILE_FLAT_STEP = 0.01  # nats: after two smaller steps downwards the likelihood is taken for its limit at scale 0


@dataclasses.dataclass(frozen=True, eq=False)
class ScaleProfile:
    """Likelihood of a scale: logarithms of scales (m,), ascending, and twice the nats (m,) below the maximum."""

    logs: np.ndarray
    deviances: np.ndarray

    def interval(self, quantile: float) -> tuple[float, float]:
        """Scales whose deviance is at most the square of a normal quantile; an end is 0 or infinity if none is more."""
        k = int(np.argmin(self.deviances))
        ends = []
        for sign, side in ((-1, slice(k, None, -1)), (1, slice(k, None))):
            # the last place at which a deviance passes the square: roots are linear in the logarithm for a normal law
            roots = np.sqrt(np.minimum.accumulate(self.deviances[side][::-1])[::-1])
            end = np.interp(quantile, roots, sign * self.logs[side]) if roots[-1] > quantile else np.inf
            ends.append(float(np.exp(sign * end)))
        return ends[0], ends[1]


def scale_profile(criterion: Criterion, minimum: Minimum) -> ScaleProfile | None:
    """The profile around a minimum of positive definite information; None if the scale's logarithm is normal."""
    information = 1 / np.linalg.inv(minimum.at.hessian)[-1, -1] - criterion.scale_precision
    if information >= NORMAL_INFORMATION:
        return None

    def profile(others: np.ndarray, log_scale: float) -> tuple[np.ndarray, float]:
        """The best other parameters given a scale, and minus the log-likelihood there, without the scale's prior."""

        def rest(part: np.ndarray) -> Derivatives:
            value, gradient, hessian, spread = criterion(np.append(part, log_scale))
            return Derivatives(value, gradient[:-1], hessian[:-1, :-1], spread[:-1, :-1])

        best = minimise_on_host(rest, others, ROUGH_TOLERANCE)
        distance = log_scale - np.log(criterion.scale)
        return best.theta, best.at.value - 0.5 * criterion.scale_precision * distance**2

    start = minimum.theta[-1]
    step = float(np.clip(1 / np.sqrt(max(information, 1e-9)), *PROFILE_STEP_SIZES))
    points = {start: profile(minimum.theta[:-1], start)}
    for side in (1, -1):
        log_scale, flat = start, 0
        for _ in range(PROFILE_STEPS):
            last, log_scale = points[log_scale], log_scale + side * step
            points[log_scale] = profile(last[0], log_scale)
            nats = [value for _, value in points.values()]
            flat = flat + 1 if abs(nats[-1] - last[1]) < PROFILE_FLAT_STEP else 0
            if 2 * (nats[-1] - min(nats)) > PROFILE_DEPTH or (side < 0 and flat == 2):
                break
    logs = np.sort(list(points))
    nats_at = np.array([points[log_scale][1] for log_scale in logs])
    return ScaleProfile(logs, 2 * (nats_at - nats_at.min()))


GRID = tuple(10.0 ** (k / 2) for k in range(-6, 7))  # multiples of the labels' information on one coefficient
PATIENCE = 2  # a search ends after so many penalties in a row that do worse than the best


class Penalty(abc.ABC):
    """A way to choose the precision of the normal prior of standardised features' coefficients."""

    grid: tuple[float, ...]

    def __post_init__(self) -> None:
        grid = np.atleast_1d(checked("grid", self.grid, "finite numbers, 0 or more", NOT_NEGATIVE[1]))
        object.__setattr__(self, "grid", tuple(np.sort(grid).tolist()))

    @abc.abstractmethod
    def chosen(self, criterion: Criterion, start: np.ndarray) -> float:
        """The penalty, for a criterion without one, of one chunk of labels; fits begin at `start` (p,)."""

    def _best(self, criterion: Criterion, start: np.ndarray, score: Callable[[float], float]) -> float:
        """The smallest score's penalty, from fits without coefficients on to those that overfit, while it helps."""
        information = criterion.information(start)
        if not information:  # all features are constant
            return 0.0
        scores: dict[float, float] = {}
        for penalty in (np.array(self.grid)[::-1] * information).tolist():
            scores[penalty] = score(penalty)
            if len(scores) - 1 - np.argmin(list(scores.values())) >= PATIENCE:
                break
        return min(scores, key=lambda penalty: scores[penalty])


@dataclasses.dataclass(frozen=True)
class CrossValidation(Penalty):
    """The penalty with the smallest loss on held-out released labels; no original label is looked at.

    Parameters
    ----------
    folds : int
        Parts of the labels, of which each is held out once.
    grid : sequence of float
        Penalties to choose from, 0 or more, as multiples of the labels' information on the coefficient of one
        standardised feature.
    seed : int
        For the folds.
    """

    folds: int = 5
    grid: tuple[float, ...] = GRID
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(2, "folds", self.folds)

    def chosen(self, criterion: Criterion, start: np.ndarray) -> float:
        (rows,) = criterion.chunks
        fold = np.random.default_rng(self.seed).permutation(len(rows.weights)) % self.folds

        def part(used: np.ndarray) -> Criterion:
            return dataclasses.replace(criterion, chunks=(rows._replace(weights=rows.weights * used),))

        training = [part(fold != k) for k in range(self.folds)]
        held_out = [part(fold == k) for k in range(self.folds)]
        points = [start] * self.folds

        def loss(penalty: float) -> float:
            for k, each in enumerate(training):
                penalised = dataclasses.replace(each, penalty=penalty)
                points[k] = minimise_on_host(penalised, points[k], ROUGH_TOLERANCE).theta
            return float(np.sum([each.losses(theta).value for each, theta in zip(held_out, points, strict=True)]))

        return self._best(criterion, start, loss)


@dataclasses.dataclass(frozen=True)
class Evidence(Penalty):
    """The penalty under which the released labels are most probable, coefficients integrated out ([MacKay]).

    By Laplace's approximation, for likelihoods. The grid is that of `CrossValidation`, but without 0.
    """

    grid: tuple[float, ...] = GRID

    def chosen(self, criterion: Criterion, start: np.ndarray) -> float:
        theta = start

        def minus_log_evidence(penalty: float) -> float:
            nonlocal theta
            minimum = minimise_on_host(dataclasses.replace(criterion, penalty=penalty), theta, ROUGH_TOLERANCE)
            theta, curvature = minimum.theta, np.linalg.slogdet(minimum.at.hessian)[1]
            return float(minimum.at.value + 0.5 * curvature - 0.5 * len(criterion.unit) * np.log(penalty))

        return self._best(criterion, start, minus_log_evidence)
