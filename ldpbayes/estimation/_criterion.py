"""The penalised sum of losses of a linear predictor, and rules that choose its penalty from the released labels."""

import abc
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from ldpbayes._core.checks import NOT_NEGATIVE, at_least, checked
from ldpbayes._core.types import Array
from ldpbayes.estimation._objectives import Objective
from ldpbayes.mechanisms import Mechanism, mechanism_from_spec
from ldpbayes.numerics.minimise import minimise_on_host

ROUGH_NATS = 1e-2  # tolerance of fits that are only compared with each other
NORMAL_INFORMATION = 100.0  # on the logarithm of the scale: a normal law of the standard deviation 0.1 describes it
SCALE_STEPS = 14  # at most, to each side of the most likely scale
SCALE_STEP_SIZES = 0.1, 0.5  # smallest and largest, in the logarithm of the scale
HELD_PRECISION = 1e12  # of the prior of the logarithm of a scale that is held fixed
NODE_DEPTH = 3.0  # nats below the most probable at which a posterior of penalties, or of scales, ends
PENALTY_GRID = tuple(10.0 ** (k / 2) for k in range(-6, 7))  # multiples of the labels' information on one coefficient
PATIENCE = 2  # a search ends after so many penalties in a row that do worse than the best


class Rows(NamedTuple):
    """A chunk of labels; its `design` (n, width) has ones, if there is an intercept, and the standardised features."""

    design: Array
    values: Array  # (n,)
    weights: Array  # (n,)
    mechanism: Mechanism


class LossSums(NamedTuple):
    """A sum of losses, its gradient (p,) and Hessian (p, p), and the sum (p, p) of the gradients' outer products."""

    value: Array
    gradient: Array
    hessian: Array
    spread: Array


@functools.partial(jax.jit, static_argnames=("objective", "spec"))
def _loss_sums(theta: Array, rows: Rows, objective: Objective, spec: str | None) -> LossSums:
    design, values, weights, mechanism = rows
    if spec is not None:
        mechanism = mechanism_from_spec(json.loads(spec))
    # inputs of the loss, the prediction and perhaps the logarithm of the scale; and their derivatives by the parameters
    columns = [design] + [jnp.ones((len(design), 1))] * objective.scaled
    inputs = [design @ theta[: design.shape[1]]] + [jnp.broadcast_to(theta[-1], values.shape)] * objective.scaled
    kinds = range(len(inputs))

    def losses(prediction: jax.Array, log_scale: Array = 0.0) -> jax.Array:
        return objective.loss(prediction, jnp.exp(jnp.broadcast_to(log_scale, prediction.shape)), values, mechanism)

    # A label's loss depends on its own prediction and scale only, so one tangent serves all labels.
    # Forward-over-forward differentiation takes half the time of forward-over-reverse here.
    def derivative(function: Callable, k: int) -> Callable:
        tangent = tuple(jnp.full_like(part, float(j == k)) for j, part in enumerate(inputs))
        return lambda *at: jax.jvp(function, at, tangent)

    second = {(i, j): derivative(derivative(losses, i), j)(*inputs) for i in kinds for j in kinds if i <= j}
    slopes = [second[i, i][0][1] for i in kinds]

    def block(i: int, j: int) -> jax.Array:
        bend = second[min(i, j), max(i, j)][1][1]
        # where rounding leaves no curvature, take the square of the score: their averages are equal
        bend = jnp.where(jnp.isfinite(bend), bend, slopes[i] * slopes[j])
        return columns[i].T @ ((weights * bend)[:, None] * columns[j])

    hessian = jnp.block([[block(i, j) for j in kinds] for i in kinds])
    scores = jnp.concatenate([(weights * slopes[i])[:, None] * columns[i] for i in kinds], axis=1)
    return LossSums(jnp.sum(weights * second[0, 0][0][0]), jnp.sum(scores, axis=0), hessian, scores.T @ scores)


@dataclasses.dataclass(frozen=True)
class Criterion:
    """Sum of losses and a ridge penalty on the coefficients of (features - centre) / unit. The parameters are the
    intercept, if any, the coefficients, and the logarithm of the scale, if any.
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

    coefficients = property(lambda self: slice(int(self.intercept), int(self.intercept) + len(self.unit)))

    def packed(self, intercept: float, coefficients: np.ndarray, scale: float) -> np.ndarray:
        """Numbers of the parameters as an array (p,), without those of parameters that there are not."""
        return np.concatenate([[intercept] * self.intercept, coefficients, [scale] * self.objective.scaled])

    def penalised(self, penalty: float) -> "Criterion":
        return dataclasses.replace(self, penalty=penalty)

    def losses(self, theta: np.ndarray) -> LossSums:
        def chunk_losses(rows: Rows) -> LossSums:
            with jax.enable_x64(True):  # a setting of each thread
                return jax.tree.map(np.asarray, _loss_sums(theta, rows, self.objective, self.spec))

        if len(self.chunks) == 1:
            return chunk_losses(self.chunks[0])
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # the compiled function keeps only one core busy
            parts = pool.map(chunk_losses, self.chunks)
            return LossSums(*(np.sum(part, axis=0) for part in zip(*parts, strict=True)))

    def prior(self, theta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Minus the logarithm of the priors, up to a constant: value, gradient (p,), diagonal of the Hessian (p,)."""
        zero = np.zeros(len(self.unit))
        precision = self.packed(0.0, zero + self.penalty, self.scale_precision)
        distance = theta - self.packed(0.0, zero, np.log(self.scale))
        return 0.5 * float(np.sum(precision * distance**2)), precision * distance, precision

    def __call__(self, theta: np.ndarray) -> LossSums:
        """The whole criterion: losses, penalty and the prior of the scale."""
        value, gradient, hessian, spread = self.losses(theta)
        prior, slope, curvature = self.prior(theta)
        return LossSums(float(value + prior), gradient + slope, hessian + np.diag(curvature), spread)

    def in_units_of_data(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Parameters (p,) in the units of features and labels, and their Jacobian (p, p) in those of the criterion."""
        jacobian, slopes = np.eye(len(theta)), self.coefficients
        jacobian[slopes, slopes] /= self.unit
        if self.intercept:
            jacobian[0, slopes] = -self.centre / self.unit
        params = jacobian @ theta
        if self.objective.scaled:
            params[-1] = jacobian[-1, -1] = np.exp(theta[-1])
        return params, jacobian


def held(criterion: Criterion, theta: np.ndarray, log_scale: float) -> tuple[Criterion, np.ndarray]:
    """A criterion with a prior of the scale that holds it where it is, and parameters with this scale."""
    fixed = dataclasses.replace(criterion, scale=np.exp(log_scale), scale_precision=HELD_PRECISION)
    return fixed, np.append(theta[:-1], log_scale)


def step_of_scales(criterion: Criterion, covariance: np.ndarray) -> float | None:
    """Step of the logarithm of the scale, of which the labels have some information; None if it is normal."""
    information = 1 / covariance[-1, -1] - criterion.scale_precision
    if information >= NORMAL_INFORMATION:
        return None
    return float(np.clip(1 / np.sqrt(max(information, 1e-9)), *SCALE_STEP_SIZES))


class Penalty(abc.ABC):
    """Base of rules that choose the penalty of `linear_fit`, a prior precision, from the released labels."""

    grid: tuple[float, ...]

    def __post_init__(self) -> None:
        grid = np.atleast_1d(checked("grid", self.grid, "finite numbers, 0 or more", NOT_NEGATIVE[1]))
        object.__setattr__(self, "grid", tuple(np.sort(grid).tolist()))

    @abc.abstractmethod
    def chosen(self, criterion: Criterion, start: np.ndarray) -> float:
        """Return the penalty, for a sum of losses without a penalty (`criterion`) and a start (p,) of fits."""

    def weighed(self, criterion: Criterion, start: np.ndarray) -> tuple[float, "list[Node]"]:
        """The penalty, and the nodes of a posterior of penalties and scales, if the rule has one."""
        return self.chosen(criterion, start), []

    def _penalties(self, criterion: Criterion, start: np.ndarray) -> list[float]:
        """The grid, in the unit of the penalty, descending; none if all features are constant."""
        at = criterion.losses(start)
        # of all labels on each parameter; the spread is positive even if a likelihood bends the wrong way
        information = np.diagonal(at.spread if criterion.objective.likelihood else at.hessian)
        unit = np.mean(information[criterion.coefficients])
        return (np.array(self.grid)[::-1] * unit).tolist() if unit else []


def _best(penalties: list[float], score: Callable[[float], float], depth: float = 0.0) -> float:
    """The penalty of the smallest score, or 0; the search, from large penalties, ends at scores larger by `depth`."""
    scores: dict[float, float] = {}
    for penalty in penalties:
        scores[penalty] = score(penalty)
        since = len(scores) - 1 - np.argmin(list(scores.values()))
        if since >= PATIENCE and scores[penalty] > min(scores.values()) + depth:
            break
    return min(scores, key=lambda penalty: scores[penalty], default=0.0)


@dataclasses.dataclass(frozen=True)
class CrossValidation(Penalty):
    """Rule that chooses the penalty with the smallest loss on held-out released labels. It uses no original labels.

    Parameters
    ----------
    folds : int
        Number of random parts of the labels, each of which is held out once. Default: 5.
    grid : sequence of float
        Penalties to choose from, 0 or more, as multiples of the information in the labels about one coefficient (a mean
        over the standardised features). Default: 13 numbers from 0.001 to 1000.
    seed : int
        Random seed of the division into parts. Default: 0.
    """

    folds: int = 5
    grid: tuple[float, ...] = PENALTY_GRID
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(2, "folds", self.folds)

    def chosen(self, criterion: Criterion, start: np.ndarray) -> float:
        (rows,) = criterion.chunks
        fold = np.random.default_rng(self.seed).permutation(len(rows.weights)) % self.folds
        points = [start] * self.folds

        def part(used: np.ndarray) -> Criterion:
            return dataclasses.replace(criterion, chunks=(rows._replace(weights=rows.weights * used),))

        def loss(penalty: float) -> float:
            total = 0.0
            for k in range(self.folds):
                training = part(fold != k).penalised(penalty)
                points[k] = minimise_on_host(training, points[k], ROUGH_NATS).theta
                total += float(part(fold == k).losses(points[k]).value)
            return total

        return _best(self._penalties(criterion, start), loss)


class Node(NamedTuple):
    """A normal law of the parameters given a penalty and perhaps a scale, which have a log weight in the posterior."""

    log_weight: float
    penalty: float
    mean: np.ndarray  # (p,)
    covariance: np.ndarray  # (p, p)


@dataclasses.dataclass(frozen=True)
class Evidence(Penalty):
    """Rule that weighs penalties, and scales, by how probable the released labels are under them ([MacKay]).

    The probability is averaged over the prior of the coefficients, by Laplace's approximation for each scale.
    `linear_fit` takes the posterior mean over all penalties and scales; above 32,768 labels, the most probable penalty.
    The loss must be a negative log-likelihood. If the labels tell hardly anything about a coefficient, its interval is
    too short: sample `label_regression` instead.

    Parameters
    ----------
    grid : sequence of float
        Penalties to weigh, as in `CrossValidation`, but above 0. They are equally probable before the labels are seen.
    """

    grid: tuple[float, ...] = PENALTY_GRID

    def __post_init__(self) -> None:
        super().__post_init__()
        checked("grid", self.grid, "finite numbers above 0", lambda a: (a > 0) & np.isfinite(a))

    def chosen(self, criterion: Criterion, start: np.ndarray) -> float:
        return self.weighed(criterion, start)[0]

    def weighed(self, criterion: Criterion, start: np.ndarray) -> tuple[float, list[Node]]:
        penalties = self._penalties(criterion, start)
        if not penalties:
            return 0.0, []
        first = minimise_on_host(criterion.penalised(penalties[0]), start, ROUGH_NATS)
        step = step_of_scales(criterion, np.linalg.inv(first.at.hessian)) if criterion.objective.scaled else None
        nodes: list[Node] = []
        if step is None:
            nodes = _nodes(criterion, first.theta, penalties)
        else:  # the scale is not normal: a sum over scales takes the place of Laplace's method
            highest = -np.inf
            for side in (1, -1):
                theta, last, k, since = first.theta, list[Node](), int(side < 0), 0
                while since < SCALE_STEPS:
                    fixed, theta = held(criterion, theta, first.theta[-1] + side * k * step)
                    last = _nodes(fixed, theta, penalties, last, criterion)
                    nodes, total, k = nodes + last, _total(last), k + 1
                    highest, since = (total, 0) if total > highest else (highest, since + 1)
                    if total < highest - NODE_DEPTH:
                        break
        return max(penalties, key=lambda p: _total([n for n in nodes if n.penalty == p])), nodes


def _total(nodes: list[Node]) -> float:
    return float(special.logsumexp([node.log_weight for node in nodes])) if nodes else -np.inf


def _nodes(
    criterion: Criterion,
    start: np.ndarray,
    penalties: list[float],
    near: Sequence[Node] = (),
    free: Criterion | None = None,
) -> list[Node]:
    """Nodes of the penalties that count, from those of a scale nearby, if any; `free` has the prior of a free scale."""
    nodes: list[Node] = []
    starts = {node.penalty: node.mean for node in near}

    def minus_log_evidence(penalty: float) -> float:
        theta = starts.get(penalty, nodes[-1].mean if nodes else start)
        minimum = minimise_on_host(criterion.penalised(penalty), np.append(theta[:-1], start[-1]), ROUGH_NATS)
        theta = minimum.theta
        volume = 0.5 * (len(criterion.unit) * np.log(penalty) - np.linalg.slogdet(minimum.at.hessian)[1])
        prior = 0.5 * free.scale_precision * (theta[-1] - np.log(free.scale)) ** 2 if free else 0.0
        nodes.append(Node(float(volume - minimum.at.value - prior), penalty, theta, np.linalg.inv(minimum.at.hessian)))
        return -nodes[-1].log_weight

    _best(penalties, minus_log_evidence, NODE_DEPTH)
    return nodes


def mixture(nodes: list[Node]) -> tuple[np.ndarray, np.ndarray]:
    """Mean (p,) and covariance (p, p) of the mixture of some normal laws."""
    weights = special.softmax([node.log_weight for node in nodes])
    means = np.array([node.mean for node in nodes])
    mean = weights @ means
    within = np.tensordot(weights, [node.covariance for node in nodes], 1)
    return mean, within + (weights[:, None] * (means - mean)).T @ (means - mean)
