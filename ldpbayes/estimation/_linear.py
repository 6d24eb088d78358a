"""Linear predictors of released labels: their fit, standard errors and predictions."""

import dataclasses
import functools
import json

import jax
import numpy as np
from scipy import special

from ldpbayes._core.checks import ONE_INSIDE_0_1, checked, warn
from ldpbayes._core.types import Array
from ldpbayes.data import Release
from ldpbayes.estimation import _labels as labels
from ldpbayes.estimation._criterion import (
    ROUGH_NATS,
    SCALE_STEPS,
    Criterion,
    CrossValidation,
    Evidence,
    Penalty,
    Rows,
    held,
    mixture,
    step_of_scales,
)
from ldpbayes.estimation._objectives import (
    MarginalLikelihood,
    Objective,
    Prediction,
    label_range,
    plausible_labels,
    predicted,
)
from ldpbayes.estimation.estimates import Estimate, EstimationWarning
from ldpbayes.numerics.minimise import FLAT_CURVATURE, HOST_NATS, Minimum, minimise_on_host

LABELS_AT_A_TIME = 1 << 15  # labels at a time, since some hundred numbers are held of each
CHUNKED_NATS = 1e-6  # tolerance for several chunks: the estimate is then off by 1.4e-3 of its standard errors
START_CONSTANTS = 9  # constant predictions between the bounds, of which the best is where a fit starts
START_INFORMATION = 1e-2  # share of the largest information at any constant: a fit starts at none with less
PROFILE_DEPTH = 16.0  # twice the nats below the maximum at which a profile ends: four standard errors
PROFILE_FLAT_STEP = 0.01  # nats: after two smaller steps downwards the likelihood is taken for its limit at scale 0


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
    - ``converged``, ``steps``: True if the minimisation converged, and the number of its steps.
    """

    names: list[str]
    params: np.ndarray
    covariance: np.ndarray
    count: int
    objective: Objective
    penalty: float
    loss: float
    converged: bool
    steps: int
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
            return predicted(self.objective, inputs, rows @ self.covariance @ rows.mT, ends, level)

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
    loss = float(minimum.at.value - criterion.prior(minimum.theta)[0])
    theta, covariance = minimum.theta, np.full((len(minimum.theta),) * 2, np.nan)
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
        steps=minimum.iterations,
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
    plausible = np.asarray(plausible_labels(np.asarray(rows.values, float), rows.mechanism), float)
    design = rows.design[:, criterion.coefficients]
    middle = float(plausible.mean()) if criterion.intercept else 0.0
    gram = design.T @ design
    size = np.trace(gram) / len(gram) or 1.0  # 0 if all features are constant: there is nothing to solve
    ridge = np.linalg.solve(gram + size * np.eye(len(gram)), design.T @ (plausible - middle))

    low, high = map(float, label_range(rows.mechanism))
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
