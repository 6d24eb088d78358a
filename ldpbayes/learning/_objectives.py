"""Objectives: losses of predicted labels, given the released labels, and laws of labels."""

import abc
import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ldpbayes._core.checks import ONE_ABOVE_0, ONE_POSITIVE, LdpBayesWarning
from ldpbayes._core.pytrees import check_fields, optional, ruled
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array
from ldpbayes.likelihood import Privatized
from ldpbayes.mechanisms import AdditiveMechanism, Mechanism
from ldpbayes.noise import Gaussian

Bounds = tuple[float, float]


class LearningWarning(LdpBayesWarning):
    """Warning that a fit should be checked before it is used. The message states the reason."""


def plausible_labels(values: Array, mechanism: Mechanism) -> Array:
    """Labels to start a fit from, shape (n,): unbiased ones if the mechanism has some, else the released values."""
    try:
        return mechanism.unbiased(values)
    except ValueError:
        return values


def label_range(mechanism: Mechanism) -> tuple[Array, Array]:
    """The widest bounds of any label, infinite if there is none."""
    domain, xp = mechanism.domain, np if is_concrete(mechanism) else jnp
    return xp.min(getattr(domain, "lower_bound", -np.inf)), xp.max(getattr(domain, "upper_bound", np.inf))


def label_spread(values: Array, mechanism: Mechanism) -> Array:
    """A plausible scale of labels: a sixth of their range, or without bounds the released values' deviation."""
    lower, upper = label_range(mechanism)
    xp = np if is_concrete(values, mechanism) else jnp
    labels = plausible_labels(xp.asarray(values, float), mechanism)
    xp = np if is_concrete(labels) else jnp  # while something else is traced, JAX's results are traced, too
    deviation = xp.std(xp.asarray(labels))
    return xp.where(xp.isfinite(upper - lower), (upper - lower) / 6, xp.where(deviation > 0, deviation, 1.0))


class Objective(abc.ABC):
    """Base of losses that compare a predicted label with the released value of the label.

    If `likelihood` is True, the loss is a negative log-likelihood, and the standard errors of a fit come from the
    observed information. Otherwise, they come from the sandwich formula ([Huber67]). A subclass must be a frozen
    dataclass, because JAX compares and hashes objectives.
    """

    likelihood: ClassVar[bool] = False

    @property
    def scaled(self) -> bool:
        """True if the loss has a scale parameter that is estimated together with the predictor."""
        return False

    @property
    def counts(self) -> bool:
        """True if the original labels are whole numbers.

        The likelihood then sums over whole numbers between bounds. JAX must know these bounds before compilation.
        """
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
        """Return the expected labels (n,), given the predictions (n,) and the scale.

        If `bounds` are given, all results are between them, as in `LinearPredictor.predict`.
        """
        return prediction if bounds is None else jnp.clip(prediction, *bounds)


@dataclasses.dataclass(frozen=True)
class SquaredError(Objective):
    """Squared error (z − prediction)², in which the released label z takes the place of the original label ([LH]).

    The predictor is biased if the mechanism clips labels, or if the expected noise depends on the label.
    """

    def loss(self, prediction: Array, scale: Array, values: Array, mechanism: Mechanism) -> jax.Array:
        return jnp.square(values - prediction)


@dataclasses.dataclass(frozen=True)
class UnbiasedLabels(Objective):
    """Squared error (u(z) − prediction)², where u(z) is an unbiased estimate of the label from its released value z.

    `Mechanism.unbiased` computes u(z). The predictor is consistent if all labels are between the bounds of the
    mechanism. Raises ValueError if the mechanism has no such estimate.
    """

    def loss(self, prediction: Array, scale: Array, values: Array, mechanism: Mechanism) -> jax.Array:
        return jnp.square(mechanism.unbiased(values) - prediction)


def normal_labels(prediction: Array, scale: Array) -> dist.Distribution:
    """Return the normal law with mean `prediction` and standard deviation `scale`, in units of the labels."""
    return dist.Normal(prediction, scale, validate_args=False)


def laplace_labels(prediction: Array, scale: Array) -> dist.Distribution:
    """Return the Laplace law with median `prediction` and mean absolute deviation `scale`, in units of the labels."""
    return dist.Laplace(prediction, scale, validate_args=False)


@dataclasses.dataclass(frozen=True)
class student_t_labels:
    """Student's t law of labels. A few outliers among the labels hardly change a regression with this law.

    An object of this class is a function (prediction, scale) → law. The prediction is the centre of the law, in the
    unit of the label (identity link). The scale is smaller than the standard deviation.

    Parameters
    ----------
    df : float
        Degrees of freedom, positive. Default: 4.
    """

    df: float = ruled(ONE_POSITIVE, default=4.0)

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, prediction: Array, scale: Array) -> dist.Distribution:
        return dist.StudentT(self.df, prediction, scale, validate_args=False)


def poisson_labels(prediction: Array) -> dist.Distribution:
    """Return the Poisson law of labels that are counts. `prediction` is the logarithm of the mean count (log link)."""
    return dist.Poisson(jnp.exp(prediction), validate_args=False)


def log_normal_labels(prediction: Array, scale: Array) -> dist.Distribution:
    """Return the law of positive labels with normal logarithm: mean `prediction`, standard deviation `scale`."""
    return dist.LogNormal(prediction, scale, validate_args=False)


def bernoulli_labels(prediction: Array) -> dist.Distribution:
    """Return the law of labels 0 and 1, where `prediction` is the log-odds of 1.

    The law is for mechanisms for categories, such as `RandomizedResponse`.
    """
    return dist.BernoulliLogits(prediction, validate_args=False)


@dataclasses.dataclass(frozen=True)
class MarginalLikelihood(Objective):
    """Loss −log p(z | prediction, scale) of a released label z, where the original label is integrated out.

    In your own model in JAX, use this loss as ``-ldp.Privatized(law(prediction, scale), mechanism).log_prob(z)``.

    Parameters
    ----------
    law : callable
        Function (prediction, scale) → law of the original label, a NumPyro distribution. It is a law of
        `ldpbayes.learning`, or your own function. A function of the prediction alone means a law without a scale.
        Default: `normal_labels`.
    scale : float, optional
        A plausible scale, which is the median of the log-normal prior of the scale. Default: a sixth of the range
        between the bounds of the mechanism (for `log_normal_labels`: 1/2, because the scale has no unit). With much
        noise, a fit needs this prior. Without it, the likelihood may be largest at the scale 0, or may hardly decrease
        towards 0.
    deviation : float
        Standard deviation of the logarithm of the scale in this prior. Infinite means no prior. Default: 1.5. With the
        default scale, the prior has 95 % of its probability between 1/114 of the range between the bounds and 3.2 times
        this range. With an even larger scale, nearly all labels are at a bound.
    """

    likelihood: ClassVar[bool] = True

    law: Callable[..., dist.Distribution] = normal_labels
    scale: float | None = optional(ONE_ABOVE_0)
    deviation: float = ruled(ONE_ABOVE_0, default=1.5)

    def __post_init__(self) -> None:
        if not callable(self.law) or _positional(self.law) not in (1, 2):
            allowed = "a function from a prediction and a scale, or from a prediction alone, to a NumPyro distribution"
            raise TypeError(f"law must be {allowed}, got {self.law!r}")
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
        return 0.5 if self.law is log_normal_labels else label_spread(values, mechanism), self.deviation**-2

    def label(self, prediction: Array, scale: Array) -> dist.Distribution:
        """Return the law of the original label for a prediction and a scale, a NumPyro distribution."""
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
    """Number of positional arguments of a law; of NumPyro's own classes those with a location and a scale serve."""
    if isinstance(law, type) and issubclass(law, dist.Distribution):
        return 2 if law in (dist.Normal, dist.Laplace, dist.Cauchy, dist.Logistic) else 0
    parameters = inspect.signature(law).parameters.values()
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


MAX_NODES = 1 << 22  # nodes of labels' laws that are held at a time while the means of clipped labels are computed


@functools.partial(jax.jit, static_argnums=(0, 1))
def _clipped_mean(
    objective: MarginalLikelihood, constant: Bounds | None, bounds: Bounds, prediction: Array, scale: Array
) -> jax.Array:
    """Means of clipped labels; bounds of counts are constants of the compiled function."""
    # A release under unbiased noise has the mean of the clipped label.
    mechanism = AdditiveMechanism(Gaussian(1.0), *(constant or bounds))

    def mean(label: tuple[jax.Array, jax.Array]) -> jax.Array:
        return Privatized(objective.label(*label), mechanism, validate_args=False).mean

    batch = max(1, MAX_NODES // int(2000 + max(map(abs, constant or (0.0,)))))
    return jax.lax.map(mean, (prediction, scale), batch_size=min(batch, len(prediction)))
