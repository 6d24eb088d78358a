"""Linear predictors of released labels."""

import dataclasses
import functools
import json

import jax
import numpy as np
from scipy import special

from ldpbayes._core.checks import checked, warn
from ldpbayes._core.types import Array
from ldpbayes.data import Release
from ldpbayes.estimation.estimates import Estimate
from ldpbayes.learning import _criterion as criteria
from ldpbayes.learning import _labels as labels
from ldpbayes.learning._criterion import Criterion, CrossValidation, Evidence, Penalty, Rows
from ldpbayes.learning._objectives import LearningWarning, Objective, label_range, plausible_labels
from ldpbayes.numerics.minimise import FLAT_CURVATURE, NATS, minimise_on_host

CHUNK_ROWS = 1 << 15  # labels at a time, since some hundred numbers are held of each
CHUNKED_TOLERANCE = 1e-6  # nats, for several chunks: the estimate is then off by 1.4e-3 of its standard errors
START_CONSTANTS = 9  # constant predictions between the bounds, of which the best is where a fit starts
START_INFORMATION = 1e-2  # share of the largest information at any constant: a fit starts at none with less


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LinearPredictor(Estimate):
    """A linear predictor of labels with its errors.

    Intervals are normal but for the scale, whose interval has all scales that a likelihood ratio test accepts, without
    their prior: it begins with 0 if the labels do not tell a small scale from none. If the labels determine the scale
    to 10 %, the interval is normal in the logarithm.

    Attributes
    ----------
    names, params : list of str, array (p,)
        The intercept (if any), coefficients and scale (if any), in the units of features and labels.
    covariance : array (p, p)
        For the marginal likelihood the inverse of the observed information, the prior's included; for squared errors
        the sandwich. NaN if the labels do not identify the parameters.
    count, loss, penalty
        Number of labels, the sum of their losses without the penalty, and that of `linear_fit`.
    converged, steps
        Whether the minimisation converged, and its number of steps.
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
    _profile: criteria.ScaleProfile | None

    @property
    def intercept(self) -> float:
        """The prediction where all features are 0."""
        return float(self.params[0]) if self._intercept else 0.0

    @property
    def coefficients(self) -> np.ndarray:
        """One a feature, shape (d,), in units of the label (before a link) a unit of the feature."""
        return self.params[self._features]

    @property
    def _features(self) -> slice:
        return slice(int(self._intercept), len(self.params) - self.objective.scaled)

    @property
    def scale(self) -> float | None:
        """Of the law, None if it has none."""
        return float(self.params[-1]) if self.objective.scaled else None

    @functools.cached_property
    def estimate(self) -> dict[str, float]:
        return dict(zip(self.names, self.params.tolist(), strict=True))

    def predict(self, features: Array, *, bounds: tuple[float, float] | None = None) -> np.ndarray:
        """Expected labels, shape (m,), of features (m, d) in the columns of the fit.

        Labels are clipped at the bounds, such as those of the mechanism; by default predictions may be any numbers.
        """
        matrix, _ = labels.checked_features(features, fit_names=self.names[self._features])
        prediction = self.intercept + matrix @ self.coefficients
        with jax.enable_x64(True):
            return np.asarray(self.objective.mean(prediction, self.scale, labels.checked_bounds(bounds)))

    def _quantile(self, probability: float) -> np.ndarray:
        ends, z = super()._quantile(probability), special.ndtri(probability)
        if self._profile is not None:
            ends[-1] = self._profile.interval(abs(z))[int(z > 0)]
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


@dataclasses.dataclass(frozen=True)
class LinearModel:
    """A linear predictor, for `LabelPrivateRegressor`; the options are those of `linear_fit`."""

    penalty: float | Penalty | None = None
    intercept: bool = True


def linear_fit(
    features: Array,
    release: Release,
    *,
    objective: Objective | None = None,
    penalty: float | Penalty | None = None,
    intercept: bool = True,
) -> LinearPredictor:
    """Fit a linear predictor to released labels: maximum a posteriori, or least squares with a ridge.

    Minimises the sum of losses + penalty/2 · the sum of squared coefficients of standardised features (each less its
    mean, over its standard deviation), in double precision. For a likelihood the penalty is the precision of a normal
    prior; scikit-learn's ``Ridge(alpha)`` on standardised features is ``SquaredError()`` with the penalty 2·alpha.
    LearningWarning if the minimisation has not converged, or the labels do not identify the parameters.

    Parameters
    ----------
    features : array_like (n, d) or data frame
        Public features, finite numbers, a row a label.
    release : Release
        Released labels, one number or category a record.
    objective : Objective, optional
        By default ``MarginalLikelihood()``: normal labels, integrated out.
    penalty : float or Penalty, optional
        The penalty, 0 or more, or a rule that chooses it from the released labels: by default `Evidence` for a
        likelihood, `CrossValidation` for squared errors. The scale of a law has the prior of its `MarginalLikelihood`.
    intercept : bool
        Whether there is an intercept, which is not penalised.
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
        strength = penalty.chosen(sample, starts[0]) if isinstance(penalty, Penalty) else penalty
        criterion, sample = (dataclasses.replace(c, penalty=strength) for c in (criterion, sample))
        start = min(starts, key=lambda theta: np.nan_to_num(sample(theta).value, nan=np.inf))
        if chunked:
            start = minimise_on_host(sample, start).theta
        minimum = minimise_on_host(criterion, start, CHUNKED_TOLERANCE if chunked else NATS)
        identified = _identified(minimum.at.hessian)
        profile = criteria.scale_profile(criterion, minimum) if identified and objective.scaled else None
    params, jacobian = criterion.in_units_of_data(minimum.theta)
    if identified:
        covariance = jacobian @ criterion.covariance(minimum.at) @ jacobian.T
    else:
        covariance = np.full((len(params),) * 2, np.nan)
        problem = "the labels do not tell the parameters apart: there are no standard errors; take a larger penalty"
        warn(problem, LearningWarning)
    if not minimum.converged:
        warn(f"not converged in {minimum.iterations} steps", LearningWarning)
    return LinearPredictor(
        names=["intercept"] * criterion.intercept + names + ["scale"] * objective.scaled,
        params=params,
        covariance=covariance,
        count=len(release),
        objective=objective,
        penalty=strength,
        loss=float(minimum.at.value - criterion.prior(minimum.theta)[0]),
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

    size = min(count, CHUNK_ROWS)
    chunks = tuple(rows(np.arange(start, start + size)) for start in range(0, count, size))
    scale, precision = objective.scale_prior(release.values, mechanism)
    spec = json.dumps(mechanism.spec()) if objective.counts and not mechanism.batch_shape else None
    criterion = Criterion(objective, chunks, centre, unit, intercept, float(scale), precision, spec)
    if len(chunks) == 1:
        return criterion, criterion
    index = np.random.default_rng(0).choice(count, CHUNK_ROWS, replace=False)
    return criterion, dataclasses.replace(criterion, chunks=(rows(index),))


def _starts(criterion: Criterion) -> tuple[np.ndarray, np.ndarray]:
    """The best of some constant predictions, before any link, and a ridge on plausible labels around one of them. With
    strong noise, labels that all lie at a bound are a low maximum of the likelihood. Newton's steps only decrease the
    criterion, so from a good constant they do not end there.
    """
    (rows,) = criterion.chunks
    values = np.asarray(rows.values, float)
    plausible = np.asarray(plausible_labels(values, rows.mechanism), float)
    design = rows.design[:, criterion.coefficients]
    middle = float(plausible.mean()) if criterion.intercept else 0.0
    gram = design.T @ design
    size = np.trace(gram) / len(gram) or 1.0  # 0 if all features are constant: there is nothing to solve
    ridge = np.linalg.solve(gram + size * np.eye(len(gram)), design.T @ (plausible - middle))

    def point(constant: float, slopes: np.ndarray) -> np.ndarray:
        scale = [np.log(criterion.scale)] * criterion.objective.scaled
        return np.concatenate([[constant] * criterion.intercept, slopes, scale])

    bounds = label_range(rows.mechanism) if criterion.intercept else None
    between = np.empty(0) if bounds is None else np.linspace(float(bounds[0]), float(bounds[1]), START_CONSTANTS)
    levels = np.array([middle, *between])
    constants = [0.0, *levels, *np.log(np.maximum(levels, 1e-3 * criterion.scale))]
    points = [point(constant, 0 * ridge) for constant in constants]
    derivatives = [criterion(each) for each in points]
    # labels that all lie at a bound have no information on slopes, nor on how large slopes may be
    information = np.nan_to_num([np.trace(at.spread) for at in derivatives])
    informative = information > START_INFORMATION * information.max(initial=0)
    values = np.array([at.value for at in derivatives])
    values = np.where(np.isfinite(values) & informative, values, np.inf)
    if not np.isfinite(values.min()):
        raise ValueError(f"{criterion.objective!r} is infinite for all linear predictors that were tried")
    return points[int(np.argmin(values))], point(middle, ridge)
