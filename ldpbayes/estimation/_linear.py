"""Linear predictors of released labels: the penalised sum of losses, rules that choose its penalty, fit and errors."""

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

from ldpbayes._core.checks import NOT_NEGATIVE, ONE_INSIDE_0_1, at_least, checked, warn
from ldpbayes._core.types import Array
from ldpbayes.data import Release
from ldpbayes.estimation import _labels as labels
from ldpbayes.estimation._labels import MarginalLikelihood, Objective, Prediction
from ldpbayes.estimation.estimates import Estimate, EstimationWarning
from ldpbayes.mechanisms import Mechanism, mechanism_from_spec
from ldpbayes.numerics.minimise import FLAT_CURVATURE, HOST_NATS, Minimum, minimise_on_host

LABELS_AT_A_TIME = 1 << 15  # labels at a time, since some hundred numbers are held of each
CHUNKED_NATS = 1e-6  # tolerance for several chunks: the estimate is then off by 1.4e-3 of its standard errors
START_CONSTANTS = 9  # constant predictions between the bounds, of which the best is where a fit starts
START_INFORMATION = 1e-2  # share of the largest information at any constant: a fit starts at none with less
PROFILE_DEPTH = 16.0  # twice the nats below the maximum at which a profile ends: four standard errors
PROFILE_FLAT_STEP = 0.01  # nats: after two smaller steps downwards the likelihood is taken for its limit at scale 0
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
    def weighed(self, criterion: Criterion, start: np.ndarray) -> tuple[float, "list[Node]"]:
        """The penalty, and the nodes of a posterior of penalties and scales, if the rule has one, for a sum of losses
        without a penalty (`criterion`) and a start (p,) of fits.
        """

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

    def weighed(self, criterion: Criterion, start: np.ndarray) -> tuple[float, "list[Node]"]:
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

        return _best(self._penalties(criterion, start), loss), []


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


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LinearPredictor(Estimate):
    """A linear predictor of labels, with the standard errors of its parameters.

    The parameters are the intercept (if any), the coefficients, and the scale (if any), in the units of features and
    labels. For `MarginalLikelihood` and a given penalty, their covariance is the inverse of the information with that
    of the prior; with `Evidence`, that of the posterior over all penalties and scales; for squared errors, from the
    sandwich formula. It is NaN if the labels do not identify the parameters. Intervals of coefficients are normal. That
    of the scale has all scales that a likelihood ratio test without the prior accepts, from 0 if the labels do not
    exclude 0.

    Further attributes than those of `Estimate` are:

    - ``count``: the number of released labels;
    - ``objective``, ``loss``: the objective, and the sum of its losses without the penalty;
    - ``penalty``: the penalty that was used; with `Evidence`, the most probable penalty;
    - ``converged``: True if the minimisation converged.
    """

    names: list[str]
    params: np.ndarray
    covariance: np.ndarray
    count: int
    objective: Objective
    penalty: float
    loss: float
    converged: bool
    privacy: str
    _intercept: bool
    _profile: tuple[np.ndarray, np.ndarray] | None

    @property
    def intercept(self) -> float:
        """The linear predictor (before any inverse link function) if all features are 0."""
        return float(self.params[0]) if self._intercept else 0.0

    @property
    def coefficients(self) -> np.ndarray:
        """Coefficients (d,): the change of the linear predictor for each unit of a feature."""
        return self.params[self._features]

    _features = property(lambda self: slice(int(self._intercept), len(self.params) - self.objective.scaled))

    @property
    def scale(self) -> float | None:
        """Scale parameter of the law of labels, or None if this law has no scale."""
        return float(self.params[-1]) if self.objective.scaled else None

    estimate = functools.cached_property(lambda self: dict(zip(self.names, self.params.tolist(), strict=True)))

    def predict(
        self, features: Array, *, bounds: tuple[float, float] | None = None, interval: float | None = None
    ) -> np.ndarray | Prediction:
        """Return the expected original labels (m,) for `features` (m, d), with the columns in the order of the fit.

        Labels are clipped to ``bounds``, if given, usually those of the mechanism. With a probability ``interval``,
        such as 0.95, the result is a `Prediction` with such intervals: NaN for a label if its law has no cdf,
        ValueError if the objective has no law of labels.
        """
        matrix, _ = labels.checked_features(features, fit_names=self.names[self._features])
        prediction, ends = self.intercept + matrix @ self.coefficients, labels.checked_bounds(bounds)
        with jax.enable_x64(True):
            if interval is None:
                return np.asarray(self.objective.mean(prediction, self.scale, ends))
            if not isinstance(self.objective, MarginalLikelihood):
                raise ValueError(f"intervals need a law of labels, but {type(self.objective).__name__} has none")
            level = float(checked("interval", interval, *ONE_INSIDE_0_1))
            scale, rows = self.scale or 1.0, np.zeros((len(matrix), 2, len(self.params)))
            rows[:, 0, self._features], rows[:, 0, : int(self._intercept)] = matrix, 1.0
            rows[:, 1, len(self.params) - self.objective.scaled :] = 1 / scale  # of its logarithm
            inputs = np.stack([prediction, np.full(len(matrix), np.log(scale))], axis=1)
            return labels.predicted(self.objective, inputs, rows @ self.covariance @ rows.mT, ends, level)

    def _quantile(self, probability: float) -> np.ndarray:
        ends, z = super()._quantile(probability), special.ndtri(probability)
        if self._profile is not None:
            ends[-1] = np.exp(np.interp(z, *self._profile, left=-np.inf, right=np.inf))
        elif self.objective.scaled:
            ends[-1] = self.params[-1] * np.exp(z * self.standard_error[-1] / self.params[-1])
        return ends

    @property
    def _title(self) -> str:
        end = "" if self.converged else ", NOT CONVERGED"
        return f"{type(self.objective).__name__} of {self.count} released labels, penalty {self.penalty:.4g}{end}"

    def _columns(self, level: float) -> dict[str, list[str]]:
        columns = super()._columns(level)
        if self.objective.scaled:  # a scale is positive: there is no hypothesis that it is 0
            columns["z"][-1] = columns["P>|z|"][-1] = ""
        return columns


def linear_fit(
    features: Array,
    release: Release,
    *,
    objective: Objective | None = None,
    penalty: float | Penalty | None = None,
    intercept: bool = True,
) -> LinearPredictor:
    """Fit a linear predictor to released labels, by its posterior or by least squares with a ridge penalty.

    By default, parameters are the posterior mean, averaged over penalties and scales (`Evidence`). A given penalty
    gives the posterior mode, the minimum of the sum of losses plus penalty/2 times the sum of squared coefficients of
    standardised features (mean 0, standard deviation 1). For a likelihood, the penalty is the precision of their normal
    prior. ``Ridge(alpha)`` of scikit-learn on them is ``SquaredError()`` with the penalty 2·alpha.

    Issues an EstimationWarning if the minimisation has not converged, or if the labels do not identify the parameters,
    and a RepeatedAnswersWarning if several labels may be about one person.

    Parameters
    ----------
    features : array_like (n, d) or data frame
        Public features, finite numbers, with one row for each label.
    release : Release
        Released labels, one number or category for each record.
    objective : Objective, optional
        The loss. Default: ``MarginalLikelihood()``, for normal labels.
    penalty : float or Penalty, optional
        The penalty, 0 or more, or a rule that chooses it from the released labels. Default: `Evidence` for a
        likelihood, and `CrossValidation` for squared errors.
    intercept : bool
        True (default) if the model has an intercept, which is not penalised.
    """
    objective, matrix, names = labels.checked_data(features, release, objective)
    if penalty is None:
        penalty = Evidence() if objective.likelihood else CrossValidation()
    if not isinstance(penalty, Penalty):
        allowed = "a finite number, 0 or more"
        penalty = checked("penalty", penalty, allowed, lambda a: (a.ndim == 0) & (a >= 0) & (a < np.inf))
    with jax.enable_x64(True):
        criterion, sample = _criteria(matrix, release, objective, bool(intercept))
        chunked = sample is not criterion
        starts = _starts(sample)
        strength, nodes = penalty.weighed(sample, starts[0]) if isinstance(penalty, Penalty) else (penalty, [])
        criterion, sample = criterion.penalised(strength), sample.penalised(strength)
        start = min(starts, key=lambda theta: np.nan_to_num(sample(theta).value, nan=np.inf))
        if chunked:
            start = minimise_on_host(sample, start).theta
        minimum = minimise_on_host(criterion, start, CHUNKED_NATS if chunked else HOST_NATS)
        identified = _identified(minimum.at.hessian)
        profile = _scale_profile(criterion, minimum) if identified and objective.scaled else None
    theta, loss = minimum.theta, float(minimum.at.value - criterion.prior(minimum.theta)[0])
    covariance = np.full((len(theta), len(theta)), np.nan)
    if identified:  # a penalty and the scale's prior count as information
        inverse = np.linalg.inv(minimum.at.hessian)
        covariance = inverse if objective.likelihood else inverse @ minimum.at.spread @ inverse.T
        if nodes and not chunked:
            theta, covariance = mixture(nodes)
            with jax.enable_x64(True):
                loss = float(criterion.losses(theta).value)
    else:
        problem = "the labels do not identify all parameters: there are no standard errors; use a larger penalty"
        warn(problem, EstimationWarning)
    params, jacobian = criterion.in_units_of_data(theta)
    if not minimum.converged:
        warn(f"the fit has not converged in {minimum.iterations} steps", EstimationWarning)
    return LinearPredictor(
        names=["intercept"] * criterion.intercept + names + ["scale"] * objective.scaled,
        params=params,
        covariance=jacobian @ covariance @ jacobian.T,
        count=len(release),
        objective=objective,
        penalty=strength,
        loss=loss,
        converged=minimum.converged,
        privacy=labels.privacy_of(release),
        _intercept=criterion.intercept,
        _profile=profile,
    )


def _identified(hessian: np.ndarray) -> bool:
    unit = np.sqrt(np.abs(np.diagonal(hessian)) + 1e-300)
    curvatures = np.linalg.eigvalsh(hessian / np.outer(unit, unit))
    return bool(curvatures[0] > FLAT_CURVATURE * curvatures[-1])


def _criteria(
    matrix: np.ndarray, release: Release, objective: Objective, intercept: bool
) -> tuple[Criterion, Criterion]:
    """The criterion of all labels; and of a random chunk, which chooses the penalty and whose minimum saves steps."""
    count, mechanism = len(release), release.mechanism
    centre, unit = labels.centre_and_unit(matrix)
    centre = centre if intercept else 0 * centre

    def rows(index: np.ndarray) -> Rows:
        """The labels of an index; positions beyond the last label repeat the first with the weight 0."""
        inside = index < count
        index = np.where(inside, index, 0)
        design = np.column_stack([*[np.ones(len(index))] * intercept, (matrix[index] - centre) / unit])
        values = np.asarray(release.values)[index]
        return Rows(design, values, inside.astype(float), mechanism.of_records((count,), index))

    size = min(count, LABELS_AT_A_TIME)
    chunks = tuple(rows(np.arange(start, start + size)) for start in range(0, count, size))
    scale, precision = objective.scale_prior(release.values, mechanism)
    spec = json.dumps(mechanism.spec()) if objective.counts and not mechanism.batch_shape else None
    criterion = Criterion(objective, chunks, centre, unit, intercept, float(scale), precision, spec)
    if len(chunks) == 1:
        return criterion, criterion
    index = np.random.default_rng(0).choice(count, LABELS_AT_A_TIME, replace=False)
    return criterion, dataclasses.replace(criterion, chunks=(rows(index),))


def _starts(criterion: Criterion) -> tuple[np.ndarray, np.ndarray]:
    """The best of some constant predictions, before any link, and a ridge on plausible labels around one of them. From
    a good constant, Newton's steps do not end where all labels lie at a bound, a low maximum under strong noise.
    """
    (rows,) = criterion.chunks
    plausible = np.asarray(labels.plausible_labels(np.asarray(rows.values, float), rows.mechanism), float)
    design = rows.design[:, criterion.coefficients]
    middle = float(plausible.mean()) if criterion.intercept else 0.0
    gram = design.T @ design
    size = np.trace(gram) / len(gram) or 1.0  # 0 if all features are constant: there is nothing to solve
    ridge = np.linalg.solve(gram + size * np.eye(len(gram)), design.T @ (plausible - middle))

    low, high = map(float, labels.label_range(rows.mechanism))
    between = np.linspace(low, high, START_CONSTANTS) if criterion.intercept and np.isfinite(high - low) else ()
    levels = np.array([middle, *between])
    constants = [0.0, *levels, *np.log(np.maximum(levels, 1e-3 * criterion.scale))]
    points = [criterion.packed(constant, 0 * ridge, np.log(criterion.scale)) for constant in constants]
    values, information = np.array([(at.value, np.trace(at.spread)) for at in map(criterion, points)]).T
    # labels that all lie at a bound have no information on slopes, nor on how large slopes may be
    informative = np.nan_to_num(information) > START_INFORMATION * np.nan_to_num(information).max()
    values = np.where(np.isfinite(values) & informative, values, np.inf)
    if not np.isfinite(values.min()):
        raise ValueError(f"{criterion.objective!r} is infinite for all linear predictors that were tried")
    return points[int(np.argmin(values))], criterion.packed(middle, ridge, np.log(criterion.scale))


def _scale_profile(criterion: Criterion, minimum: Minimum) -> tuple[np.ndarray, np.ndarray] | None:
    """Signed roots (m,) of the deviances of some scales, ascending, and the logarithms (m,) of these scales; None if
    the logarithm is normal, so that a root is linear in it.
    """
    step, start = step_of_scales(criterion, np.linalg.inv(minimum.at.hessian)), minimum.theta[-1]
    if step is None:
        return None
    points = {start: minimise_on_host(*held(criterion, minimum.theta, start), ROUGH_NATS)}
    for side in (1, -1):
        log_scale, flat = start, 0
        for _ in range(SCALE_STEPS):
            last, log_scale = points[log_scale], log_scale + side * step
            points[log_scale] = minimise_on_host(*held(criterion, last.theta, log_scale), ROUGH_NATS)
            nats = [point.at.value for point in points.values()]
            flat = flat + 1 if abs(nats[-1] - last.at.value) < PROFILE_FLAT_STEP else 0
            if 2 * (nats[-1] - min(nats)) > PROFILE_DEPTH or (side < 0 and flat == 2):
                break
    logs, nats_at = np.array(sorted((log_scale, point.at.value) for log_scale, point in points.items())).T
    deviances, k = 2 * (nats_at - nats_at.min()), int(np.argmin(nats_at))
    # of several scales of one deviance the one furthest out counts
    below, above = np.minimum.accumulate(deviances[: k + 1]), np.minimum.accumulate(deviances[:k:-1])[::-1]
    return np.concatenate([-np.sqrt(below), np.sqrt(above)]), logs
