"""What a fit of released labels minimises, a number a label."""

import abc
import dataclasses
import functools
import inspect
import json
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ldpbayes._checks import checked
from ldpbayes.learning._labels import label_spread
from ldpbayes.learning._laws import TYPICAL_SCALES, normal
from ldpbayes.likelihood import Privatized
from ldpbayes.mechanisms import AdditiveMechanism, mechanism_from_spec
from ldpbayes.noise import Gaussian

__all__ = ["MarginalLikelihood", "Objective", "OneMechanism", "SquaredError", "UnbiasedLabels"]

NODES = 1 << 22  # of labels' laws, held at a time while clipped labels are averaged


class Objective(abc.ABC):
    """A loss of a predicted label, given what was released of it.

    Objects are compared and hashed by their fields: they are static arguments of compiled functions.
    """

    likelihood: ClassVar[bool] = False
    """Whether the loss is a negative log-likelihood."""

    @property
    def scaled(self) -> bool:
        """Whether the loss has a scale that is learned with the prediction."""
        return False

    @property
    def counts(self) -> bool:
        """Whether labels are whole numbers, whose law is summed between bounds that a compiled function has to know."""
        return False

    @abc.abstractmethod
    def loss(self, prediction: Any, scale: Any, release_values: Any, mechanism: Any) -> jax.Array:
        """The loss of each label, shape (n,); twice differentiable in the prediction and the scale.

        Parameters
        ----------
        prediction : array (n,)
            Of a linear predictor or a network, in the unit of the label (for a law with a link, before it).
        scale : array_like
            Positive, () or (n,), in the unit of the label; ignored unless `scaled`.
        release_values : array (n,)
            Released labels.
        mechanism : Mechanism
            What released them.
        """

    def plausible_scale(self, values: Any, mechanism: Any) -> Any:
        """A plausible scale, which fits start from: the median of its prior, where it has one.

        Parameters
        ----------
        values : array (n,)
            Released labels.
        mechanism : Mechanism
            What released them.
        """
        return label_spread(values, mechanism)

    def scale_precision(self) -> float:
        """Precision of the logarithm of the scale in its normal prior."""
        return 0.0

    def mean(self, prediction: Any, scale: Any, bounds: tuple[float, float] | None = None) -> Any:
        """The expected label, shape (n,).

        Parameters
        ----------
        prediction, scale
            See `loss`.
        bounds : (float, float), optional
            Between which labels lie, or are clipped.
        """
        return prediction if bounds is None else jnp.clip(prediction, *bounds)

    def covariance(self, hessian: np.ndarray, spread: np.ndarray) -> np.ndarray:
        """Covariance (p, p) of the minimiser: the sandwich of curvature and spread of scores ([Huber67]).

        Parameters
        ----------
        hessian : array (p, p)
            Second derivatives of the sum of losses and the penalty.
        spread : array (p, p)
            Sum of outer products of the losses' gradients.
        """
        inverse = np.linalg.inv(hessian)
        return inverse @ spread @ inverse.T

    def information(self, hessian: np.ndarray, spread: np.ndarray) -> np.ndarray:
        """What the labels say of each parameter alone, shape (p,), in the unit of a ridge penalty.

        Parameters
        ----------
        hessian, spread : array (p, p)
            Of the sum of losses, near its minimum or not; see `covariance`.
        """
        return np.diagonal(hessian)


@dataclasses.dataclass(frozen=True)
class SquaredError(Objective):
    """(z − prediction)², the released label taken as if it were the label ([LH]).

    A label that is clipped, or noise that depends on the label, biases it.
    """

    def loss(self, prediction: Any, scale: Any, release_values: Any, mechanism: Any) -> jax.Array:
        """See `Objective.loss`."""
        return jnp.square(release_values - prediction)


@dataclasses.dataclass(frozen=True)
class UnbiasedLabels(Objective):
    """(u(z) − prediction)², where u(z) has the mean y given a label y: `Mechanism.unbiased`.

    Its minimiser is consistent wherever labels lie between the mechanism's bounds. A ValueError says that a mechanism
    has no such u.
    """

    def loss(self, prediction: Any, scale: Any, release_values: Any, mechanism: Any) -> jax.Array:
        """See `Objective.loss`."""
        return jnp.square(mechanism.unbiased(release_values) - prediction)


@dataclasses.dataclass(frozen=True)
class MarginalLikelihood(Objective):
    """−log p(z | prediction, scale), the label integrated out: the loss that knows the mechanism.

    Parameters
    ----------
    law : callable
        From the prediction and the scale to the label's NumPyro distribution: one of `ldpbayes.learning` (`normal`,
        `laplace`, `student_t`, `log_normal`, `poisson`, `bernoulli`) or your own function. One that takes the
        prediction alone has no scale.
    scale : float, optional
        A plausible scale, the median of its log-normal prior: by default a sixth of what lies between the mechanism's
        bounds (of `log_normal` 1/2, which has no unit). A posterior mode needs such a prior: with much noise the
        likelihood of many coefficients may grow all the way to the scale 0, or say no more of the scale than how large
        it is at most.
    deviation : float
        Standard deviation of the logarithm of the scale in this prior; infinite for none. By default 1.5, so that 95 %
        of the prior lie between 1/114 and 3.2 times what lies between the bounds: labels of a larger scale are all at a
        bound, and bounds more than a hundred times wider than the labels are a mistake. `LinearFit.interval` of the
        scale leaves the prior out.

    Raises
    ------
    TypeError
        If the law is not callable with one or two arguments.
    ValueError
        If the scale or the deviation is not positive.

    Notes
    -----
    ``-ldp.Privatized(law(prediction, scale), mechanism).log_prob(z)`` is the same loss for any model in JAX.
    """

    likelihood: ClassVar[bool] = True

    law: Callable[..., Any] = normal
    scale: float | None = None
    deviation: float = 1.5

    def __post_init__(self) -> None:
        """Check everything."""
        if not callable(self.law) or _positional(self.law) not in (1, 2):
            raise TypeError(
                "law must be a function from a prediction and a scale, or from a prediction alone, to a NumPyro "
                f"distribution, got {self.law!r}"
            )
        allowed = "a positive number"
        for name in ("scale", "deviation") if self.scale is not None else ("deviation",):
            value = checked(name, getattr(self, name), allowed, lambda a: (a.ndim == 0) & (a > 0))
            object.__setattr__(self, name, value)

    @property
    def scaled(self) -> bool:
        """See `Objective.scaled`: whether the law takes a scale."""
        return _positional(self.law) == 2

    @property
    def counts(self) -> bool:
        """See `Objective.counts`: whether the law is one of whole numbers."""
        return bool(self.label(jnp.zeros(1), jnp.ones(1)).support.is_discrete)

    def plausible_scale(self, values: Any, mechanism: Any) -> Any:
        """See `Objective.plausible_scale`."""
        scale = TYPICAL_SCALES.get(self.law) if self.scale is None else self.scale
        return label_spread(values, mechanism) if scale is None else scale

    def scale_precision(self) -> float:
        """See `Objective.scale_precision`."""
        return self.deviation**-2

    def label(self, prediction: Any, scale: Any) -> Any:
        """The law of the label, a NumPyro distribution.

        Parameters
        ----------
        prediction, scale
            See `loss`.
        """
        return self.law(prediction, scale) if self.scaled else self.law(prediction)

    def loss(self, prediction: Any, scale: Any, release_values: Any, mechanism: Any) -> jax.Array:
        """See `Objective.loss`."""
        label = self.label(prediction, scale)
        return -Privatized(label, mechanism, validate_args=False).log_prob(release_values)

    def mean(self, prediction: Any, scale: Any, bounds: tuple[float, float] | None = None) -> Any:
        """See `Objective.mean`: that of the label's law, clipped at the bounds where there are some."""
        if bounds is None:
            return self.label(prediction, scale).mean
        prediction = jnp.asarray(prediction)
        scale = jnp.ones_like(prediction) if scale is None else jnp.broadcast_to(scale, prediction.shape)
        # of which the released labels have the means of the clipped ones
        mechanism = AdditiveMechanism(Gaussian(1.0), *bounds)
        spec = json.dumps(mechanism.spec()) if self.counts else None
        return _clipped_mean(self, spec, mechanism, prediction, scale)

    def covariance(self, hessian: np.ndarray, spread: np.ndarray) -> np.ndarray:
        """See `Objective.covariance`: the inverse of the observed information, the penalty's included."""
        return np.linalg.inv(hessian)

    def information(self, hessian: np.ndarray, spread: np.ndarray) -> np.ndarray:
        """See `Objective.information`: squares of scores, which are positive where a likelihood bends the wrong way."""
        return np.diagonal(spread)


@dataclasses.dataclass(frozen=True)
class OneMechanism(Objective):
    """An objective under one mechanism, which becomes part of a compiled function.

    Parameters
    ----------
    objective : MarginalLikelihood
        Of whole numbers.
    spec : str
        The mechanism's spec as JSON.
    """

    likelihood: ClassVar[bool] = True

    objective: Objective
    spec: str

    @property
    def scaled(self) -> bool:
        """See `Objective.scaled`."""
        return self.objective.scaled

    def plausible_scale(self, values: Any, mechanism: Any) -> Any:
        """See `Objective.plausible_scale`."""
        return self.objective.plausible_scale(values, mechanism)

    def scale_precision(self) -> float:
        """See `Objective.scale_precision`."""
        return self.objective.scale_precision()

    def information(self, hessian: np.ndarray, spread: np.ndarray) -> np.ndarray:
        """See `Objective.information`."""
        return self.objective.information(hessian, spread)

    def loss(self, prediction: Any, scale: Any, release_values: Any, mechanism: Any) -> jax.Array:
        """See `Objective.loss`; the mechanism is the objective's own."""
        own = mechanism_from_spec(json.loads(self.spec))
        return self.objective.loss(prediction, scale, release_values, own)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _clipped_mean(objective: Any, spec: str | None, mechanism: Any, prediction: Any, scale: Any) -> jax.Array:
    """Means of what a mechanism releases, which is part of the compiled function where its spec is given."""
    most = 0.0  # counts
    if spec is not None:
        mechanism = mechanism_from_spec(json.loads(spec))
        most = max(abs(float(mechanism.lower)), abs(float(mechanism.upper)))

    def mean(label: tuple[Any, Any]) -> jax.Array:
        return Privatized(objective.label(*label), mechanism, validate_args=False).mean

    batch = max(1, NODES // int(2000 + most))
    return jax.lax.map(mean, (prediction, scale), batch_size=min(batch, len(prediction)))


@functools.cache
def _positional(law: Callable[..., Any]) -> int:
    """How many positional arguments a law needs; of NumPyro's own classes those with a location and a scale serve."""
    if isinstance(law, type) and issubclass(law, dist.Distribution):
        return 2 if law in (dist.Normal, dist.Laplace, dist.Cauchy, dist.Logistic) else 0
    parameters = inspect.signature(law).parameters.values()
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
