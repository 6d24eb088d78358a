"""Objectives: losses of predicted labels given released ones, and laws of labels."""

import abc
import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from ldpbayes._core.checks import ONE_ABOVE_0, ONE_POSITIVE, LdpBayesWarning
from ldpbayes._core.pytrees import check_fields, optional, ruled
from ldpbayes._core.types import Array
from ldpbayes.likelihood import Privatized
from ldpbayes.mechanisms import AdditiveMechanism, Mechanism
from ldpbayes.noise import Gaussian

Bounds = tuple[float, float]


class LearningWarning(LdpBayesWarning):
    """The fit should not be used without a check. The message says why."""


def plausible_labels(values: Array, mechanism: Mechanism) -> Array:
    """Labels to start a fit from, shape (n,): unbiased ones if the mechanism has some, else the released values."""
    try:
        return mechanism.unbiased(values)
    except ValueError:
        return values


def label_range(mechanism: Mechanism) -> tuple[jax.Array, jax.Array]:
    """The widest bounds of any label, infinite if there is none."""
    domain = mechanism.domain
    return jnp.min(getattr(domain, "lower_bound", -jnp.inf)), jnp.max(getattr(domain, "upper_bound", jnp.inf))


def label_spread(values: Array, mechanism: Mechanism) -> jax.Array:
    """A plausible scale of labels: a sixth of their range, or without bounds the released values' deviation."""
    lower, upper = label_range(mechanism)
    deviation = jnp.std(plausible_labels(jnp.asarray(values, float), mechanism))
    return jnp.where(jnp.isfinite(upper - lower), (upper - lower) / 6, jnp.where(deviation > 0, deviation, 1.0))


class Objective(abc.ABC):
    """Base of losses of a predicted label, given its released value.

    Objects are static arguments of compiled functions, compared and hashed by their fields. If the loss is a negative
    log-likelihood (`likelihood`), the errors of a fit come from its information. Otherwise they come from the sandwich
    formula ([Huber67]).
    """

    likelihood: ClassVar[bool] = False

    @property
    def scaled(self) -> bool:
        """True if the loss has a scale that is learned with the prediction."""
        return False

    @property
    def counts(self) -> bool:
        """True if labels are whole numbers, whose law is summed between bounds that a compiled function must know."""
        return False

    @abc.abstractmethod
    def loss(self, prediction: Array, scale: Array, values: Array, mechanism: Mechanism) -> jax.Array:
        """Return the loss (n,) of labels with released values (n,); twice differentiable in prediction and scale.

        The prediction (n,) is before the link of the law, in the unit of the label if there is none. The scale, () or
        (n,), is positive, in the unit of the label, and ignored unless `scaled`.
        """

    def scale_prior(self, values: Array, mechanism: Mechanism) -> tuple[Array, float]:
        """Return a plausible scale, where fits start, and the precision of its log-normal prior."""
        return label_spread(values, mechanism), 0.0

    def mean(self, prediction: Array, scale: Array, bounds: Bounds | None = None) -> Array:
        """Return the expected label, shape (n,), clipped at `bounds` if there are any."""
        return prediction if bounds is None else jnp.clip(prediction, *bounds)


@dataclasses.dataclass(frozen=True)
class SquaredError(Objective):
    """(z − prediction)²: the released label z replaces the original label ([LH]).

    Clipped labels, and noise that depends on the label, bias the predictor.
    """

    def loss(self, prediction: Array, scale: Array, values: Array, mechanism: Mechanism) -> jax.Array:
        return jnp.square(values - prediction)


@dataclasses.dataclass(frozen=True)
class UnbiasedLabels(Objective):
    """(u(z) − prediction)², where u(z) has the expectation y for a label y: `Mechanism.unbiased`.

    The minimiser is consistent if labels lie between the bounds of the mechanism. Raises ValueError if there is no u.
    """

    def loss(self, prediction: Array, scale: Array, values: Array, mechanism: Mechanism) -> jax.Array:
        return jnp.square(mechanism.unbiased(values) - prediction)


def normal_labels(prediction: Array, scale: Array) -> dist.Distribution:
    """Normal labels: `prediction` and `scale` are mean and standard deviation, in the unit of the labels."""
    return dist.Normal(prediction, scale, validate_args=False)


def laplace_labels(prediction: Array, scale: Array) -> dist.Distribution:
    """Laplace labels with median `prediction` and mean absolute deviation `scale`, in the unit of the labels."""
    return dist.Laplace(prediction, scale, validate_args=False)


@dataclasses.dataclass(frozen=True)
class student_t_labels:
    """Student's t labels with `df` degrees of freedom and identity link. Few outliers hardly change this regression.

    An object is a law, which is called with a prediction (the centre) and a scale (below the standard deviation).
    """

    df: float = ruled(ONE_POSITIVE, default=4.0)

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, prediction: Array, scale: Array) -> dist.Distribution:
        return dist.StudentT(self.df, prediction, scale, validate_args=False)


def poisson_labels(prediction: Array) -> dist.Distribution:
    """Poisson counts with a log link: `prediction` is the logarithm of their mean."""
    return dist.Poisson(jnp.exp(prediction), validate_args=False)


def log_normal_labels(prediction: Array, scale: Array) -> dist.Distribution:
    """Positive labels whose logarithms are normal: `prediction` and `scale` are their mean and standard deviation."""
    return dist.LogNormal(prediction, scale, validate_args=False)


def bernoulli_labels(prediction: Array) -> dist.Distribution:
    """Labels 0 and 1: `prediction` is the log-odds of 1. For mechanisms of categories such as `RandomizedResponse`."""
    return dist.BernoulliLogits(prediction, validate_args=False)


@dataclasses.dataclass(frozen=True)
class MarginalLikelihood(Objective):
    """Loss −log p(z | prediction, scale) of a released label z, with the original label integrated out.

    ``-ldp.Privatized(law(prediction, scale), mechanism).log_prob(z)`` is this loss for any model in JAX.

    Parameters
    ----------
    law : callable
        Function (prediction, scale) → NumPyro distribution of the label: a law of `ldpbayes.learning` (`normal_labels`,
        ...) or your own. A function of the prediction alone has no scale.
    scale : float, optional
        A plausible scale, the median of its log-normal prior. Default: a sixth of the range between the bounds of the
        mechanism (1/2 for `log_normal_labels`, where it has no unit). With much noise a posterior mode needs this
        prior: the likelihood of many coefficients may grow until the scale is 0, or only bound the scale from above.
    deviation : float
        Standard deviation of the logarithm of the scale in this prior; infinite for no prior. With 1.5, the prior has
        95 % of its probability between 1/114 and 3.2 times the range. With a larger scale, all labels are at a bound.
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
        """Return the law of the label, a NumPyro distribution."""
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
