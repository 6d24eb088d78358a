"""Linear predictors of released labels."""

import dataclasses
import json
from typing import Any

import jax
import numpy as np
from scipy import special

from ldpbayes._core.checks import warn
from ldpbayes.data import Release
from ldpbayes.estimation.estimates import Estimate, normal_interval, table, tails
from ldpbayes.learning._criterion import FLAT, ROWS, TOLERANCE, Criterion, Rows, ScaleProfile, newton, scale_profile
from ldpbayes.learning._labels import label_range, plausible_labels
from ldpbayes.learning._objectives import (
    LearningWarning,
    MarginalLikelihood,
    Objective,
    OneMechanism,
    centre_and_unit,
    checked_bounds,
    checked_features,
    checked_labels,
    privacy_of,
)
from ldpbayes.learning._penalty import CrossValidation, Evidence, Fixed, Penalty


@dataclasses.dataclass(frozen=True, eq=False)
class LinearPredictor:
    """A linear predictor of labels with its errors; an `Estimate`.

    Attributes
    ----------
    names : list of str
        Of the parameters: "intercept", the features, "scale", as far as there are such.
    params : array (p,)
        The parameters in the units of features and labels.
    covariance : array (p, p)
        Of the marginal likelihood the inverse of the observed information, the prior's included; of squared errors the
        sandwich. NaN where parameters cannot be told apart.
    count : int
        Number of labels.
    objective : Objective
        What was minimised.
    penalty : float
        Precision of the prior of standardised features' coefficients.
    loss : float
        Sum of the labels' losses, without the penalty.
    converged : bool
        Whether the minimisation has.
    steps : int
        Of the minimisation.
    privacy : str
        What was promised to those whose labels were released.
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
    _intercept: bool = dataclasses.field(repr=False)
    _profile: ScaleProfile | None = dataclasses.field(repr=False)

    @property
    def intercept(self) -> float:
        """The prediction where all features are 0."""
        return float(self.params[0]) if self._intercept else 0.0

    @property
    def coefficients(self) -> np.ndarray:
        """One a feature, shape (d,), in units of the label (before a link) a unit of the feature."""
        return self.params[int(self._intercept) : len(self.params) - self.objective.scaled]

    @property
    def scale(self) -> float | None:
        """The law's scale, None where there is none."""
        return float(self.params[-1]) if self.objective.scaled else None

    @property
    def estimate(self) -> dict[str, float]:
        """The parameters by their names."""
        return dict(zip(self.names, self.params.tolist(), strict=True))

    @property
    def standard_error(self) -> np.ndarray:
        """Standard errors, shape (p,)."""
        return np.sqrt(np.diagonal(self.covariance))

    def linear_predictor(self, features: Any) -> np.ndarray:
        """The linear predictor, before any link, shape (m,).

        Parameters
        ----------
        features : array_like (m, d) or data frame
            In the columns of the fit.

        Raises
        ------
        ValueError
            For another number of columns, other names of them, or what is not a finite number.
        """
        names = self.names[int(self._intercept) : len(self.names) - self.objective.scaled]
        matrix, _ = checked_features(features, width=len(names), like=names)
        return self.intercept + matrix @ self.coefficients

    def predict(self, features: Any, *, bounds: tuple[float, float] | None = None) -> np.ndarray:
        """Expected labels, shape (m,).

        Parameters
        ----------
        features : array_like (m, d)
            In the columns of the fit.
        bounds : (float, float), optional
            Between which all labels are known to lie, such as those of the mechanism: the label of the fit is then
            clipped, as the mechanism does it. By default predictions may be any numbers.

        Raises
        ------
        ValueError
            See `linear_predictor`.
        """
        with jax.enable_x64(True):
            return np.asarray(self.objective.mean(self.linear_predictor(features), self.scale, checked_bounds(bounds)))

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Confidence intervals, two arrays (p,).

        Those of all parameters but the scale are normal. That of the scale has all scales that the labels do not
        refuse, by the ratio of likelihoods without the scale's prior: it begins with 0 where they do not tell a small
        scale from none. Where they tell it to 10 %, it is normal in the logarithm.

        Parameters
        ----------
        level : float
            Coverage, between 0 and 1.

        Raises
        ------
        ValueError
            For another level.
        """
        lower, upper = normal_interval(self.params, self.standard_error, level)
        if self._profile is not None:
            lower[-1], upper[-1] = self._profile.interval(special.ndtri(0.5 + 0.5 * level))
        elif self.objective.scaled:
            scale = self.params[-1]
            ends = normal_interval(np.log(scale), self.standard_error[-1] / scale, level)
            lower[-1], upper[-1] = np.exp(ends)
        return lower, upper

    def summary(self, level: float = 0.95) -> str:
        """Return a table of the parameters in plain text.

        Parameters
        ----------
        level : float
            Coverage of the intervals, between 0 and 1.
        """
        lower, upper = tails(level)
        head = f"{'coef':>10} {'std err':>10} {'z':>8} {'P>|z|':>7} {lower:>10} {upper:>10}"
        rows = []
        for name, coef, error, low, high in zip(
            self.names, self.params, self.standard_error, *self.interval(level), strict=True
        ):
            z = coef / error
            p = 2 * special.ndtr(-abs(z))
            rows.append((name, f"{coef:10.4f} {error:10.4f} {z:8.3f} {p:7.3f} {low:10.4f} {high:10.4f}"))
        if self.objective.scaled:  # it is positive: that it is 0 is no hypothesis
            name, numbers = rows[-1]
            rows[-1] = (name, numbers[:22] + f"{'':16}" + numbers[38:])
        done = "" if self.converged else ", NOT CONVERGED"
        title = f"{type(self.objective).__name__} of {self.count} released labels, penalty {self.penalty:.4g}{done}"
        return table(title, "parameter", head, rows)


_PROTOCOL: type[Estimate] = LinearPredictor  # for the type checker


CONSTANTS = 9  # between the bounds, of which the best is where a fit starts
TOLD = 1e-2  # of the most that labels say of the parameters at any of them: less is next to nothing
ENOUGH = 1e-6  # nats: of a fit in several chunks, which is then off by 1.4e-3 of its standard errors


@dataclasses.dataclass(frozen=True)
class LinearModel:
    """A linear predictor, for `LabelPrivateRegressor`.

    Parameters
    ----------
    penalty : float or Penalty, optional
        See `linear_fit`.
    intercept : bool
        See `linear_fit`.
    """

    penalty: float | Penalty | None = None
    intercept: bool = True


def linear_fit(
    features: Any,
    release: Release,
    *,
    objective: Objective | None = None,
    penalty: float | Penalty | None = None,
    intercept: bool = True,
) -> LinearPredictor:
    """Fit a linear predictor to released labels: maximum a posteriori, or least squares with a ridge.

    What is minimised is the sum of losses + penalty/2 · the sum of squared coefficients of standardised features
    (each less its mean, over its standard deviation). For a likelihood the penalty is the precision of a normal prior;
    scikit-learn's ``Ridge(alpha)`` on standardised features is ``SquaredError()`` with the penalty 2·alpha.

    Parameters
    ----------
    features : array_like (n, d) or data frame
        Public features, a row a label.
    release : Release
        Released labels.
    objective : Objective, optional
        By default ``MarginalLikelihood()``: normal labels, integrated out.
    penalty : float or Penalty, optional
        The penalty, 0 or more, or how it is chosen from the released labels: by default by
        `Evidence` for a likelihood, by `CrossValidation` for squared errors. The scale of a law has a prior of its own;
        see `MarginalLikelihood`.
    intercept : bool
        Whether there is one; it is not penalised.

    Returns
    -------
    LinearPredictor

    Raises
    ------
    TypeError
        If the release or the objective is something else.
    ValueError
        For a release without values or of rows, features of another length or not finite, a negative penalty, or an
        objective that the mechanism does not allow.

    Warns
    -----
    LearningWarning
        If the minimisation has not converged, or parameters cannot be told apart.

    Notes
    -----
    Newton steps in double precision; the compiled function takes all data as arguments, so that other labels,
    penalties, folds and seeds of the same shape are served by it. Labels are summed in chunks.
    """
    objective = MarginalLikelihood() if objective is None else objective
    checked_labels(release, objective)
    told = objective
    if objective.counts and not release.mechanism.batch_shape:
        objective = OneMechanism(objective, json.dumps(release.mechanism.spec()))
    matrix, names = checked_features(features, len(release))
    rule = penalty if isinstance(penalty, Penalty) else _rule(objective) if penalty is None else Fixed(penalty)
    with jax.enable_x64(True):
        criterion = _criterion(matrix, release, objective, bool(intercept))
        some = _some(matrix, release, criterion)
        starts = _starts(some)
        strength = rule.chosen(some, starts[0])
        criterion, some = (dataclasses.replace(c, penalty=strength) for c in (criterion, some))
        start = min(starts, key=lambda theta: np.nan_to_num(some(theta).value, nan=np.inf))
        several = len(criterion.chunks) > 1
        if several:  # all labels are gone through as seldom as possible
            start = newton(some, start).theta
        minimum = newton(criterion, start, ENOUGH if several else TOLERANCE)
        told_apart = _told_apart(minimum.at.hessian)
        profile = scale_profile(criterion, minimum) if told_apart and objective.scaled else None
    criterion = dataclasses.replace(criterion, objective=told)
    return _result(criterion, minimum, told_apart, profile, names, release)


def _rule(objective: Objective) -> Penalty:
    return Evidence() if objective.likelihood else CrossValidation()


def _criterion(matrix: np.ndarray, release: Release, objective: Objective, intercept: bool) -> Criterion:
    """The criterion of all labels, without a penalty yet."""
    count = len(release)
    centre, unit = centre_and_unit(matrix)
    centre = centre if intercept else 0 * centre
    if count <= ROWS:
        chunks = [np.arange(count)]
    else:
        chunks = [np.arange(start, start + ROWS) for start in range(0, count, ROWS)]
    rows = tuple(_rows(matrix, release, index) for index in chunks)
    return Criterion(
        objective,
        rows,
        centre,
        unit,
        intercept,
        0.0,
        float(objective.plausible_scale(release.values, release.mechanism)),
    )


def _rows(matrix: np.ndarray, release: Release, index: np.ndarray) -> Rows:
    """Some labels; beyond the last there is the first again, which does not count."""
    there = index < len(release)
    index = np.where(there, index, 0)
    mechanism = release.mechanism.of_records((len(release),), index)
    return Rows(matrix[index], np.asarray(release.values)[index], there.astype(float), mechanism)


def _some(matrix: np.ndarray, release: Release, criterion: Criterion) -> Criterion:
    """The criterion of at most a chunk of labels, from all over the release."""
    if len(criterion.chunks) == 1:
        return criterion
    index = np.random.default_rng(0).choice(len(release), ROWS, replace=False)
    return dataclasses.replace(criterion, chunks=(_rows(matrix, release, index),))


def _starts(criterion: Criterion) -> tuple[np.ndarray, np.ndarray]:
    """The best of some constant predictions, before any link, and a ridge on plausible labels around one of them.

    With strong noise, labels that all lie at a bound are a maximum of the likelihood too, if a low one as a rule:
    Newton's steps only decrease the criterion, so that from a good constant they do not end there.
    """
    (rows,) = criterion.chunks
    labels = np.asarray(plausible_labels(np.asarray(rows.values, float), rows.mechanism), float)
    design = (rows.features - criterion.centre) / criterion.unit
    middle = float(labels.mean()) if criterion.intercept else 0.0
    gram = design.T @ design
    size = np.trace(gram) / len(gram) or 1.0  # of features that are all constant there is nothing to solve
    ridge = np.linalg.solve(gram + size * np.eye(len(gram)), design.T @ (labels - middle))

    def point(constant: float, slopes: np.ndarray) -> np.ndarray:
        scale = [np.log(criterion.scale)] * criterion.objective.scaled
        return np.concatenate([[constant] * criterion.intercept, slopes, scale])

    bounds = label_range(rows.mechanism) if criterion.intercept else None
    between = np.empty(0) if bounds is None else np.linspace(float(bounds[0]), float(bounds[1]), CONSTANTS)
    levels = np.array([middle, *between])
    constants = [0.0, *levels, *np.log(np.maximum(levels, 1e-3 * criterion.scale))]
    points = [point(constant, 0 * ridge) for constant in constants]
    found = [criterion(each) for each in points]
    # where labels that all lie at a bound explain the release, they say nothing of slopes, nor how large these may be
    told = np.nan_to_num([np.trace(at.spread) for at in found])
    values = np.array([at.value for at in found])
    values = np.where(np.isfinite(values) & (told > TOLD * told.max(initial=0)), values, np.inf)
    if not np.isfinite(values.min()):
        raise ValueError(f"{criterion.objective!r} is infinite for all linear predictors that were tried")
    return points[int(np.argmin(values))], point(middle, ridge)


def _told_apart(hessian: np.ndarray) -> bool:
    """Whether no direction is without curvature."""
    unit = np.sqrt(np.abs(np.diagonal(hessian)) + 1e-300)
    sizes = np.linalg.eigvalsh(hessian / np.outer(unit, unit))
    return bool(sizes[0] > FLAT * sizes[-1])


def _result(
    criterion: Criterion, minimum: Any, told_apart: bool, profile: Any, names: list[str], release: Release
) -> LinearPredictor:
    """The fit in the units of features and labels."""
    theta, at = minimum.theta, minimum.at
    first, d = int(criterion.intercept), len(criterion.unit)
    back = np.eye(len(theta))  # derivative of what is reported in the parameters
    back[first : first + d, first : first + d] /= criterion.unit
    if criterion.intercept:
        back[0, 1 : 1 + d] = -criterion.centre / criterion.unit
    params = back @ theta
    if criterion.objective.scaled:
        params[-1] = np.exp(theta[-1])
        back[-1, -1] = params[-1]
    if told_apart:
        covariance = back @ criterion.objective.covariance(at.hessian, at.spread) @ back.T
    else:
        covariance = np.full((len(theta),) * 2, np.nan)
        warn(
            "the labels do not tell the parameters apart: there are no standard errors; take a larger penalty",
            LearningWarning,
        )
    if not minimum.converged:
        warn(f"not converged in {minimum.steps} steps", LearningWarning)
    head, tail = ["intercept"] * criterion.intercept, ["scale"] * criterion.objective.scaled
    return LinearPredictor(
        names=[*head, *names, *tail],
        params=params,
        covariance=covariance,
        count=len(release),
        objective=criterion.objective,
        penalty=criterion.penalty,
        loss=float(at.value - criterion.prior(theta)[0]),
        converged=minimum.converged,
        steps=minimum.steps,
        privacy=privacy_of(release),
        _intercept=criterion.intercept,
        _profile=profile,
    )
