"""Private labels: losses that compare predictions with released labels, what a fit reads, and how labels are released
with a prior.
"""

import abc
import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpy.polynomial.hermite_e import hermegauss
from scipy import special

from ldpbayes._core.checks import FINITE_NUMBERS, ONE_ABOVE_0, check_order, checked, ends_of
from ldpbayes._core.pytrees import check_fields, ruled
from ldpbayes._core.tabular import column_names
from ldpbayes._core.types import Array
from ldpbayes.data import Release, Sketch
from ldpbayes.data.release import simulated_release, warn_of_repeats
from ldpbayes.estimation.smoothing import SmoothFamily, estimate_density
from ldpbayes.laws.functionals import cdf
from ldpbayes.likelihood import Privatized
from ldpbayes.mechanisms import AdditiveMechanism, LaplaceMechanism, Mechanism, NumericMechanism, RPWithPrior
from ldpbayes.mechanisms.design import Histogram, optimal_half_width
from ldpbayes.noise import Gaussian
from ldpbayes.privacy import Guarantee, approximate_tradeoff

Bounds = tuple[float, float]

LAWS_WITH_SCALE = (dist.Normal, dist.Laplace, dist.Cauchy, dist.Logistic, dist.LogNormal)
LINKS: dict[Callable, Callable] = {dist.Poisson: jnp.exp, dist.BernoulliLogits: lambda prediction: prediction}
"""From a prediction to the parameter of a law without a scale."""


def plausible_labels(values: Array, mechanism: Mechanism) -> Array:
    """Labels to start a fit from, shape (n,): unbiased ones if the mechanism has some, else the released values."""
    try:
        return mechanism.unbiased(values)
    except ValueError:
        return values


def label_range(mechanism: Mechanism) -> tuple[Array, Array]:
    """The widest bounds of any label, infinite if there is none."""
    lower, upper = ends_of(mechanism.domain)
    return jnp.min(lower), jnp.max(upper)


def label_spread(values: Array, mechanism: Mechanism) -> Array:
    """A plausible scale of labels: a sixth of their range, or without bounds the released values' deviation."""
    lower, upper = label_range(mechanism)
    deviation = jnp.std(plausible_labels(jnp.asarray(values, float), mechanism))
    return jnp.where(jnp.isfinite(upper - lower), (upper - lower) / 6, jnp.where(deviation > 0, deviation, 1.0))


class Objective(abc.ABC):
    """Base of losses that compare a predicted label with the released value of the label.

    If `likelihood` is True, the loss is a negative log-likelihood, and standard errors come from the observed
    information; otherwise from the sandwich formula ([Huber67]). A subclass must be a frozen dataclass.
    """

    likelihood: ClassVar[bool] = False

    @property
    def scaled(self) -> bool:
        """True if the loss has a scale parameter that is estimated together with the predictor."""
        return False

    @property
    def counts(self) -> bool:
        """True if the original labels are whole numbers, whose bounds JAX must know before compilation."""
        return False

    @abc.abstractmethod
    def loss(self, prediction: Array, scale: Array, values: Array, mechanism: Mechanism) -> jax.Array:
        """Return the loss (n,) of each label, given the released values `values` (n,) of the labels.

        The loss must be twice differentiable in `prediction` and `scale`. `prediction` (n,) is on the scale of the link
        function, such as log-odds. Without a link, it is in the unit of the label. `scale`, of shape () or (n,), is
        positive, in the unit of the label. It has no effect unless `scaled` is True.
        """

    def scale_prior(self, values: Array, mechanism: Mechanism) -> tuple[Array, float]:
        """Return the median of the log-normal prior of the scale, and the prior precision of log(scale)."""
        return label_spread(values, mechanism), 0.0

    def mean(self, prediction: Array, scale: Array, bounds: Bounds | None = None) -> Array:
        """Return the expected labels (n,) for predictions (n,) and a scale; clipped to `bounds`, if these are given."""
        return prediction if bounds is None else jnp.clip(prediction, *bounds)


@dataclasses.dataclass(frozen=True)
class SquaredError(Objective):
    """Squared error (z − prediction)² of released labels z ([LH]).

    The predictor is biased if the mechanism clips labels, or if the expected noise depends on the label.
    """

    def loss(self, prediction: Array, scale: Array, values: Array, mechanism: Mechanism) -> jax.Array:
        return jnp.square(values - prediction)


@dataclasses.dataclass(frozen=True)
class UnbiasedLabels(Objective):
    """Squared error (u(z) − prediction)², where `Mechanism.unbiased` computes an estimate u(z) of the label from z.

    The predictor is consistent if all labels are between the bounds of the mechanism. Raises ValueError if the
    mechanism has no such estimate.
    """

    def loss(self, prediction: Array, scale: Array, values: Array, mechanism: Mechanism) -> jax.Array:
        return jnp.square(mechanism.unbiased(values) - prediction)


@dataclasses.dataclass(frozen=True)
class MarginalLikelihood(Objective):
    """Loss −log p(z | prediction, scale) of a released label z, where the original label is integrated out.

    In your own model in JAX, use this loss as ``-ldp.Privatized(law(prediction, scale), mechanism).log_prob(z)``.

    Parameters
    ----------
    law : callable
        Law of the original label: a class of NumPyro, or your own function from a prediction and a scale to a NumPyro
        distribution, or of the prediction alone for a law without a scale. Default: ``dist.Normal``. The classes are:

        - ``dist.Normal``, ``dist.Laplace``, ``dist.Cauchy``, ``dist.Logistic``: the prediction is the location, in the
          unit of the label;
        - ``dist.LogNormal``: the mean and the standard deviation of the logarithm of a positive label;
        - ``dist.Poisson``, for counts: the prediction is the logarithm of the mean (log link);
        - ``dist.BernoulliLogits``, for labels 0 and 1 under a mechanism for categories: the prediction is the log-odds.
    scale : float, optional
        A plausible scale, the median of its log-normal prior. Default: a sixth of the range between the bounds of the
        mechanism (for ``dist.LogNormal``: 1/2). With much noise, a fit needs this prior: the likelihood may be largest
        at the scale 0.
    deviation : float
        Standard deviation of the logarithm of the scale in this prior; infinite for no prior. Default: 1.5, so that the
        default prior has 95 % of its probability between 1/114 and 3.2 times the range between the bounds.
    """

    likelihood: ClassVar[bool] = True

    law: Callable[..., dist.Distribution] = dist.Normal
    scale: float | None = ruled(ONE_ABOVE_0, default=None)
    deviation: float = ruled(ONE_ABOVE_0, default=1.5)

    def __post_init__(self) -> None:
        if not callable(self.law) or _positional(self.law) not in (1, 2):
            classes = ", ".join(f"dist.{law.__name__}" for law in (*LAWS_WITH_SCALE, *LINKS))
            allowed = "a function from a prediction and a scale, or from a prediction alone, to a NumPyro distribution"
            raise TypeError(f"law must be {allowed}, or one of {classes}; got {self.law!r}")
        check_fields(self)

    @property
    def scaled(self) -> bool:
        return _positional(self.law) == 2

    @property
    def counts(self) -> bool:
        return bool(self.label(jnp.zeros(1), jnp.ones(1)).support.is_discrete)

    def scale_prior(self, values: Array, mechanism: Mechanism) -> tuple[Array, float]:
        if self.scale is not None:
            return self.scale, self.deviation**-2
        return 0.5 if self.law is dist.LogNormal else label_spread(values, mechanism), self.deviation**-2

    def label(self, prediction: Array, scale: Array) -> dist.Distribution:
        """Return the law of the original label for a prediction and a scale, a NumPyro distribution."""
        if self.law in LINKS:
            return self.law(LINKS[self.law](prediction), validate_args=False)
        if self.law in LAWS_WITH_SCALE:
            return self.law(prediction, scale, validate_args=False)
        return self.law(prediction, scale) if self.scaled else self.law(prediction)

    def loss(self, prediction: Array, scale: Array, values: Array, mechanism: Mechanism) -> jax.Array:
        return -Privatized(self.label(prediction, scale), mechanism, validate_args=False).log_prob(values)

    def mean(self, prediction: Array, scale: Array, bounds: Bounds | None = None) -> Array:
        if bounds is None:
            return self.label(prediction, scale).mean
        prediction = jnp.asarray(prediction)
        scale = jnp.broadcast_to(1.0 if scale is None else scale, prediction.shape)
        constant = (float(bounds[0]), float(bounds[1])) if self.counts else None
        return _clipped_mean(self, constant, bounds, prediction, scale)


@functools.cache
def _positional(law: Callable) -> int:
    """Number of positional arguments of a law; 0 for classes of NumPyro that do not take a prediction and a scale."""
    if isinstance(law, type):
        return 2 if law in LAWS_WITH_SCALE else int(law in LINKS)
    parameters = inspect.signature(law).parameters.values()
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


NODES_AT_A_TIME = 1 << 22  # nodes of laws that are held while the means of clipped labels are computed


@functools.partial(jax.jit, static_argnums=(0, 1))
def _clipped_mean(
    objective: MarginalLikelihood, constant: Bounds | None, bounds: Bounds, prediction: Array, scale: Array
) -> jax.Array:
    """Means of clipped labels; bounds of counts are constants of the compiled function."""
    # A release under unbiased noise has the mean of the clipped label.
    mechanism = AdditiveMechanism(Gaussian(1.0), *(constant or bounds))

    def mean(label: tuple[jax.Array, jax.Array]) -> jax.Array:
        return Privatized(objective.label(*label), mechanism, validate_args=False).mean

    batch = max(1, NODES_AT_A_TIME // int(2000 + max(map(abs, constant or (0.0,)))))
    return jax.lax.map(mean, (prediction, scale), batch_size=min(batch, len(prediction)))


HERMITE_NODES = 9  # of each input's normal law; exact for polynomials of degree 17
BISECTIONS = 60  # of an interval that is at most twice as far from 0 as its end: ends are exact to rounding


class Prediction(NamedTuple):
    """Predictions of m labels: arrays (m,), in the unit of the labels.

    ``mean`` is the expected label, with the confidence interval ``mean_lower`` to ``mean_upper``. ``label_lower``,
    ``label_upper`` and ``label_sd`` are the prediction interval and the standard deviation of a new original label.
    """

    mean: np.ndarray
    mean_lower: np.ndarray
    mean_upper: np.ndarray
    label_lower: np.ndarray
    label_upper: np.ndarray
    label_sd: np.ndarray


def predicted(
    objective: MarginalLikelihood, inputs: Array, covariance: Array, bounds: Bounds | None, level: float
) -> Prediction:
    """Predictions from inputs (m, 2), prediction and log scale, with normal errors (m, 2, 2), which Gauss-Hermite
    quadrature integrates out for new labels.
    """
    inputs, covariance = np.asarray(inputs), np.asarray(covariance)
    fixed = bounds if objective.counts else None  # bounds of counts are constants of a compiled function
    means = _means(objective, fixed, bounds, inputs, covariance, special.ndtri((1 + level) / 2))
    label = np.asarray(_labels(objective, inputs, covariance, (1 - level) / 2))
    lower, upper = label[:2] if bounds is None else np.clip(label[:2], *bounds)
    return Prediction(*map(np.asarray, (*means, lower, upper, label[2])))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _means(
    objective: MarginalLikelihood,
    fixed: Bounds | None,
    bounds: Bounds | None,
    inputs: Array,
    covariance: Array,
    quantile: Array,
) -> tuple[Array, Array, Array]:
    """Expected labels (m,), and the ends of their intervals, each a quantile away."""

    def mean(inputs: Array) -> Array:
        return objective.mean(inputs[:, 0], jnp.exp(inputs[:, 1]), fixed or bounds)

    # Of all errors of a given size the one along which the mean varies most: exact for a monotone link.
    expected, slopes = jax.vjp(mean, inputs)
    (gradient,) = slopes(jnp.ones_like(expected))
    along = jnp.einsum("mij,mj->mi", covariance, gradient)
    size = jnp.sqrt(jnp.sum(gradient * along, axis=1, keepdims=True))
    step = quantile * along / jnp.where(size > 0, size, 1.0)
    lower, upper = jnp.sort(mean(jnp.concatenate([inputs - step, inputs + step])).reshape(2, -1), axis=0)
    return expected, lower, upper


@functools.partial(jax.jit, static_argnums=0)
def _labels(objective: MarginalLikelihood, inputs: Array, covariance: Array, tail: Array) -> Array:
    """Two quantiles and the standard deviation (3, m) of new labels; NaN for what the law does not have."""
    nodes, weights = hermegauss(HERMITE_NODES)
    first, second = (grid.ravel() for grid in np.meshgrid(nodes, nodes if objective.scaled else [0.0]))
    weights = np.outer(weights if objective.scaled else [1.0], weights).ravel()
    weights = weights / weights.sum()

    def quantiles(label: tuple[Array, Array]) -> Array:
        at, covariance = label
        error = jnp.sqrt(covariance[0, 0])
        shared = covariance[0, 1] / jnp.where(error > 0, error, 1.0)
        rest = jnp.sqrt(jnp.maximum(covariance[1, 1] - shared**2, 0.0))
        laws = objective.label(at[0] + error * first, jnp.exp(at[1] + shared * first + rest * second))
        law = dist.MixtureSameFamily(dist.Categorical(jnp.asarray(weights)), laws, validate_args=False)
        least = jnp.asarray(ends_of(law.support)[0])
        probabilities = jnp.stack([tail, 1 - tail])

        def below(values: Array) -> Array:
            return law.cdf(values) < probabilities

        def widen(ends: Array) -> Array:
            low, high = ends
            low = jnp.where(below(low), low, jnp.maximum(2 * low, least))
            return jnp.stack([low, jnp.where(below(high), 2 * high, high)])

        def narrow(ends: Array) -> Array:
            return jnp.any(~below(ends[0]) & (ends[0] > least)) | jnp.any(below(ends[1]))

        def halve(_: int, ends: Array) -> Array:
            middle = ends.mean(axis=0)
            return jnp.where(below(middle), jnp.stack([middle, ends[1]]), jnp.stack([ends[0], middle]))

        start = jnp.stack([jnp.full(2, jnp.maximum(-1.0, least)), jnp.ones(2)])
        try:
            _, ends = jax.lax.fori_loop(0, BISECTIONS, halve, jax.lax.while_loop(narrow, widen, start))
        except NotImplementedError:  # the law has no cdf
            ends = jnp.full(2, jnp.nan)
        ends = jnp.rint(ends) if law.support.is_discrete else ends
        ends = jnp.where(jnp.isnan(covariance).any(), jnp.nan, ends)  # of errors that are known
        return jnp.append(ends, jnp.sqrt(law.variance))

    return jax.lax.map(quantiles, (inputs, covariance), batch_size=1000).T


def checked_data(
    features: Array, release: Release, objective: Objective | None
) -> tuple[Objective, np.ndarray, list[str]]:
    """The objective, features (n, d) and their names; TypeError or ValueError unless a fit can use them."""
    _check_labels(release)
    objective = MarginalLikelihood() if objective is None else objective
    if not isinstance(objective, Objective):
        raise TypeError(f"objective must be an Objective, such as MarginalLikelihood(dist.Normal), got {objective!r}")
    warn_of_repeats(release.promises)
    return objective, *checked_features(features, len(release))


def _check_labels(release: Release) -> None:
    if not isinstance(release, Release):
        hint = ": a sketch has one law for all labels" if isinstance(release, Sketch) else ""
        hint = ": pass its attribute .release" if isinstance(release, LabelRelease) else hint
        raise TypeError(f"release must be a Release of labels, got {type(release).__name__}{hint}")
    if release.mechanism.record_shape or release.mechanism.event_shape:
        raise ValueError(f"labels must be numbers, but {type(release.mechanism).__name__} releases rows")
    if release.values is None:
        raise ValueError("a release without values has no labels to learn from")


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
    seed: int = 0,
) -> LabelRelease:
    """Release labels under `RPWithPrior`, for studies only: real labels need a cryptographically secure sampler.

    With the part ``prior_epsilon`` of the budget, labels are released under Laplace noise, from which `label_prior`
    estimates their prior; with the rest, under `RPWithPrior` ([LH], Algorithm 4), whose interval is that of highest
    density with 90 % of the prior, and whose distance ζ is chosen by `ldpbayes.mechanisms.optimal_half_width`. If
    ``prior_epsilon`` is 0, the prior is uniform, and the interval has the bounds as ends. An estimated prior is useful
    if the bounds are several times wider than the range of the labels. For n labels, about 12/√n is enough to
    distinguish their law from a uniform law.

    Parameters
    ----------
    labels : array_like (n,)
        Original labels, without missing values, which are clipped to the bounds.
    epsilon, prior_epsilon : float
        The whole budget ε of each label in nats, positive and finite, and its part for the prior, 0 (default) or more.
    lower, upper : float
        Bounds in the unit of the labels, finite, lower < upper. Choose them without looking at the labels.
    seed : int
        Random seed. Default: 0.
    """
    allowed = "a vector of numbers (drop or impute missing labels first)"
    values = checked("labels", labels, allowed, lambda a: ~np.isnan(a) & (a.ndim == 1))
    LaplaceMechanism(epsilon, lower, upper)  # which checks its parameters, before anything is released
    allowed = f"at least 0 and below epsilon = {epsilon:g}, the whole budget"
    prior_epsilon = checked("prior_epsilon", prior_epsilon, allowed, lambda a: (a >= 0) & (a < epsilon))
    label_epsilon, interval = epsilon - prior_epsilon, (lower, upper)
    prior_key, label_key = jax.random.split(jax.random.key(seed))
    if prior_epsilon > 0:
        prior_release = simulated_release(prior_key, values, LaplaceMechanism(prior_epsilon, lower, upper))
        prior = label_prior(prior_release).within(lower, upper)
        interval = prior.highest_density_interval(PRIOR_SHARE)
    else:
        prior_release, prior = None, Histogram(np.array(interval), np.array([1 / (upper - lower)]))
    half_width, interval, _ = optimal_half_width(prior, label_epsilon, interval=interval)
    release = simulated_release(label_key, values, RPWithPrior(label_epsilon, interval, half_width))
    return LabelRelease(release, prior_release, prior, (prior_epsilon, label_epsilon))


def label_prior(release: Release, *, deconvolved: bool = True) -> Histogram:
    """Estimate the law (probability distribution) of labels from released labels, without further privacy budget.

    Parameters
    ----------
    release : Release
        The released labels, which are numbers. With ``deconvolved=True``, their mechanism must have clipping bounds,
        and very many labels must all have the same budget. Otherwise a ValueError is raised.
    deconvolved : bool
        True (default): a histogram of the original labels by `estimate_density`, with 64 bins between the bounds.
        False: a histogram of the released labels, including their noise, in bins that are one standard deviation of the
        released labels wide, but for the first and the last ([LH], Algorithm 3).
    """
    _check_labels(release)
    if not deconvolved:
        return _released_histogram(release)
    edges = np.linspace(*SmoothFamily.of(release.mechanism)[:2], PRIOR_BINS + 1)
    data = release if release.mechanism.batch_shape else release.sketch(keep_records=False)
    below = estimate_density(data, knots=len(edges), functionals={"below": cdf(edges[1:-1])}).params
    return Histogram(edges, np.diff(below, prepend=0.0, append=1.0) / np.diff(edges))


def _released_histogram(release: Release) -> Histogram:
    """[LH], Algorithm 3, with each bin's probability divided by its width."""
    mechanism = release.mechanism
    if not isinstance(mechanism, NumericMechanism) or mechanism.support.is_discrete:
        raise ValueError(f"released labels must be real numbers, one for each record; got values under {mechanism!r}")
    z = np.asarray(release.values, float)
    low, high, mean = z.min(), z.max(), z.mean()
    if not low < high:
        raise ValueError(f"the released labels are degenerate: all {len(z)} of them are {low:g}")
    width = z.std()
    first, last = np.floor((low - mean) / width) + 1, np.ceil((high - mean) / width)
    nodes = mean + width * np.arange(first, last)
    nodes = np.concatenate([[low], nodes[(nodes > low) & (nodes < high)], [high]])
    return Histogram(nodes, np.histogram(z, nodes)[0] / len(z) / np.diff(nodes))
