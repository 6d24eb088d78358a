"""Private labels: how they are released, their prior, and how released labels and public features are read by a fit."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._core.checks import FINITE_NUMBERS, POSITIVE, at_least, check_order, checked
from ldpbayes._core.tabular import column_names
from ldpbayes._core.types import Array
from ldpbayes.data import Release, Sketch
from ldpbayes.data.release import simulated_release, warn_of_repeats
from ldpbayes.estimation._objectives import MarginalLikelihood, Objective
from ldpbayes.estimation.smoothing import SmoothFamily, estimate_density
from ldpbayes.laws.functionals import cdf
from ldpbayes.mechanisms import LaplaceMechanism, NumericMechanism, RPWithPrior
from ldpbayes.mechanisms.design import Histogram, optimal_half_width
from ldpbayes.privacy import Guarantee, approximate_tradeoff

PRIOR_BINS = 64  # of a deconvolved prior
PRIOR_SHARE = 0.9  # probability, under an estimated prior, of the interval in which labels keep their neighbourhood


@dataclasses.dataclass(frozen=True, eq=False)
class LabelRelease:
    """Released labels, with the prior that determined how they were released. All parts may be published.

    - ``release``: the labels that `RPWithPrior` released. A predictor learns from these labels;
    - ``prior``: a histogram of the labels, which determined the parameters of `RPWithPrior`;
    - ``prior_release``: the labels under Laplace noise from which the prior was estimated. None for a uniform prior.
    """

    release: Release
    prior_release: Release | None
    prior: Histogram
    _budgets: tuple[float, float]  # of the prior and of the labels

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of all releases together: pure differential privacy (δ = 0) with the sum of their ε.

        For two releases, the trade-off curve is a lower bound, which holds for every pair of mechanisms with these ε.
        """
        if self.prior_release is None:
            return self.release.guarantee
        return Guarantee(approximate_tradeoff(sum(self._budgets)), unit="label")

    @property
    def privacy(self) -> str:
        statement = self.guarantee.statement()
        if self.prior_release is None:
            return statement
        of_prior, of_label = (f"{epsilon:.4g}" for epsilon in self._budgets)
        parts = f"{of_prior} went into the prior of the labels and {of_label} into each label"
        return f"{statement} Of this epsilon, {parts}."


def release_labels(
    labels: ArrayLike,
    epsilon: float,
    *,
    lower: float,
    upper: float,
    prior_epsilon: float = 0.0,
    half_width: float | None = None,
    interval: tuple[float, float] | None = None,
    seed: int = 0,
) -> LabelRelease:
    """Release labels under `RPWithPrior`, for studies only: real labels need a cryptographically secure sampler.

    With the part ``prior_epsilon`` of the budget, labels are released under Laplace noise, from which `label_prior`
    estimates their prior; with the rest, under `RPWithPrior` ([LH], Algorithm 4). If ``prior_epsilon`` is 0, the prior
    is uniform. An estimated prior is useful if the bounds are several times wider than the range of the labels. For n
    labels, about 12/√n is enough to distinguish their law from a uniform law.

    Parameters
    ----------
    labels : array_like (n,)
        Original labels, without missing values, which are clipped to the bounds.
    epsilon, prior_epsilon : float
        The whole budget ε of each label in nats, positive and finite, and its part for the prior, 0 (default) or more.
    lower, upper : float
        Bounds in the unit of the labels, finite, lower < upper. Choose them without looking at the labels.
    half_width : float, optional
        Distance ζ of `RPWithPrior`, in the unit of the labels. Default: by `ldpbayes.mechanisms.optimal_half_width`.
    interval : pair of float, optional
        Interval of `RPWithPrior`, in the unit of the labels. Default: the bounds, or the interval of highest density
        with 90 % of an estimated prior.
    seed : int
        Random seed. Default: 0.
    """
    allowed = "a vector of numbers (drop or impute missing labels first)"
    values = checked("labels", labels, allowed, lambda a: ~np.isnan(a) & (a.ndim == 1))
    # Mechanisms check their parameters, before anything is released.
    LaplaceMechanism(epsilon, lower, upper)
    allowed = f"at least 0 and below epsilon = {epsilon:g}, the whole budget"
    prior_epsilon = checked("prior_epsilon", prior_epsilon, allowed, lambda a: (a >= 0) & (a < epsilon))
    label_epsilon = epsilon - prior_epsilon
    whole = (lower, upper)
    width = upper - lower if half_width is None else half_width
    RPWithPrior(label_epsilon, whole if interval is None else interval, width)

    prior_key, label_key = jax.random.split(jax.random.key(seed))
    if prior_epsilon > 0:
        prior_release = simulated_release(prior_key, values, LaplaceMechanism(prior_epsilon, lower, upper))
        prior = label_prior(prior_release).within(lower, upper)
    else:
        prior_release, prior = None, Histogram(np.array(whole), np.array([1 / (upper - lower)]))
    if interval is None:
        interval = whole if prior_release is None else prior.highest_density_interval(PRIOR_SHARE)
    if half_width is None:
        half_width, interval, _ = optimal_half_width(prior, label_epsilon, interval=interval)
    release = simulated_release(label_key, values, RPWithPrior(label_epsilon, interval, half_width))
    return LabelRelease(release, prior_release, prior, (prior_epsilon, label_epsilon))


def label_prior(release: Release, *, deconvolved: bool = True, width: float | None = None) -> Histogram:
    """Estimate the law (probability distribution) of labels from released labels, without further privacy budget.

    Parameters
    ----------
    release : Release
        The released labels, which are numbers. With ``deconvolved=True``, their mechanism must have clipping bounds,
        and very many labels must all have the same budget. Otherwise a ValueError is raised.
    deconvolved : bool
        True (default): a histogram of the original labels by `estimate_density`, with 64 bins between the bounds.
        False: a histogram of the released labels, including their noise ([LH], Algorithm 3).
    width : float, optional
        Only for ``deconvolved=False``: the width of the bins but the first and the last, in the unit of the labels.
        Default: the standard deviation of the released labels.
    """
    if not isinstance(release, Release):
        raise TypeError(f"release must be an ldpbayes Release, got {type(release).__name__}")
    if release.values is None:
        raise ValueError("the prior of labels needs released values; this release has none")
    if not deconvolved:
        return _released_histogram(release, width)
    if width is not None:
        raise ValueError(f"width is only for a histogram of released labels, deconvolved=False; got {width!r}")
    edges = np.linspace(*SmoothFamily.of(release.mechanism)[:2], PRIOR_BINS + 1)
    data = release if release.mechanism.batch_shape else release.sketch(keep_records=False)
    below = estimate_density(data, knots=len(edges), functionals={"below": cdf(edges[1:-1])}).params
    return Histogram(edges, np.diff(below, prepend=0.0, append=1.0) / np.diff(edges))


def _released_histogram(release: Release, width: float | None) -> Histogram:
    """[LH], Algorithm 3, with each bin's probability divided by its width."""
    mechanism = release.mechanism
    if not isinstance(mechanism, NumericMechanism) or mechanism.event_shape or mechanism.support.is_discrete:
        raise ValueError(f"released labels must be real numbers, one for each record; got values under {mechanism!r}")
    z = np.asarray(release.values, float)
    low, high, mean = z.min(), z.max(), z.mean()
    if not low < high:
        raise ValueError(f"the released labels are degenerate: all {len(z)} of them are {low:g}")
    width = checked("width", z.std() if width is None else width, *POSITIVE)
    first, last = np.floor((low - mean) / width) + 1, np.ceil((high - mean) / width)
    at_least(1, "the number of bins that width makes", int(last - first + 1), 10**6)
    nodes = mean + width * np.arange(first, last)
    nodes = np.concatenate([[low], nodes[(nodes > low) & (nodes < high)], [high]])
    return Histogram(nodes, np.histogram(z, nodes)[0] / len(z) / np.diff(nodes))


def checked_data(
    features: Array, release: Release, objective: Objective | None
) -> tuple[Objective, np.ndarray, list[str]]:
    """The objective, features (n, d) and their names; TypeError or ValueError unless a fit can use them."""
    if not isinstance(release, Release):
        hint = ": a sketch has one law for all labels" if isinstance(release, Sketch) else ""
        hint = ": pass its attribute .release" if isinstance(release, LabelRelease) else hint
        raise TypeError(f"release must be a Release of labels, got {type(release).__name__}{hint}")
    if release.mechanism.record_shape or release.mechanism.event_shape:
        raise ValueError(f"labels must be numbers, but {type(release.mechanism).__name__} releases rows")
    if release.values is None:
        raise ValueError("a release without values has no labels to learn from")
    objective = MarginalLikelihood() if objective is None else objective
    if not isinstance(objective, Objective):
        raise TypeError(f"objective must be an Objective, such as MarginalLikelihood(dist.Normal), got {objective!r}")
    warn_of_repeats(release.promises)
    return objective, *checked_features(features, len(release))


def privacy_of(release: Release) -> str:
    statement = dataclasses.replace(release.guarantee, unit="label").statement()
    others = "The budget of whatever else was released of these labels, such as a prior, adds to that of this release"
    return f"{statement} {others}. Features are public: nothing protects them."


def checked_bounds(bounds: tuple[float, float] | None) -> tuple[float, float] | None:
    if bounds is None:
        return None
    allowed = "two finite numbers, the lower first"
    lower, upper = checked("bounds", bounds, allowed, lambda a: np.isfinite(a) & (a.shape == (2,)))
    check_order(lower, upper)
    return float(lower), float(upper)


def checked_features(
    features: Array, count: int | None = None, fit_names: Sequence[str] | None = None
) -> tuple[np.ndarray, list[str]]:
    """Features as a matrix (n, d), and names of its columns: those of an earlier fit, `fit_names`, if that had some."""
    try:
        matrix = np.asarray(features, float)
    except (TypeError, ValueError) as error:
        advice = "convert text by pandas.get_dummies(features, drop_first=True)"
        raise ValueError(f"features must be numbers; {advice} ({error})") from None
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"features must be a matrix with one row for each label, got an array of shape {matrix.shape}")
    if count is not None and len(matrix) != count:
        counts = f"{len(matrix)} rows, and {count} released labels"
        raise ValueError(f"features must have one row for each label: got {counts}")
    width = matrix.shape[1]
    if fit_names is not None and width != len(fit_names):
        raise ValueError(f"features must have {len(fit_names)} columns, as in the fit, got {width}")
    matrix = checked("features", matrix, *FINITE_NUMBERS)
    unnamed = [f"x[{j}]" for j in range(width)]
    columns = column_names(features)
    if columns is None:
        return matrix, unnamed
    names = [name if isinstance(name, str) else f"x[{name}]" for name in columns]
    if fit_names is not None and unnamed not in (names, list(fit_names)) and names != list(fit_names):
        raise ValueError(f"features must have the columns of the fit in the same order, {list(fit_names)}, got {names}")
    return matrix, names


def centre_and_unit(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations (d,) of columns, 1 if constant; single precision fails for means far from 0."""
    unit = matrix.std(axis=0)
    return matrix.mean(axis=0), np.where(unit > 1e-12 * np.abs(matrix).max(axis=0), unit, 1.0)
