"""Objectives: what is minimised over a predictor, and laws of labels."""

import abc
import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ldpbayes._core.checks import LdpBayesWarning, check_order, checked
from ldpbayes.data import Release
from ldpbayes.learning._labels import label_spread
from ldpbayes.likelihood import Privatized
from ldpbayes.mechanisms import AdditiveMechanism, mechanism_from_spec
from ldpbayes.noise import Gaussian


def normal_labels(prediction: Any, scale: Any) -> dist.Distribution:
    """Normal labels, identity link.

    Parameters
    ----------
    prediction : array
        The mean.
    scale : array_like
        The standard deviation.
    """
    return dist.Normal(prediction, scale, validate_args=False)


def laplace_labels(prediction: Any, scale: Any) -> dist.Distribution:
    """Laplace labels, identity link: regression of medians.

    Parameters
    ----------
    prediction : array
        The median.
    scale : array_like
        Laplace's b, the mean absolute deviation.
    """
    return dist.Laplace(prediction, scale, validate_args=False)


@dataclasses.dataclass(frozen=True)
class student_t_labels:
    """Student's t labels, identity link: regression that few outliers do not move.

    Parameters
    ----------
    df : float
        Degrees of freedom, positive and finite; 4 by default.

    Raises
    ------
    ValueError
        For other degrees of freedom.
    """

    df: float = 4.0

    def __post_init__(self) -> None:
        """Check the degrees of freedom."""
        allowed = "a positive and finite number"
        df = checked("df", self.df, allowed, lambda a: (a.ndim == 0) & (a > 0) & (a < float("inf")))
        object.__setattr__(self, "df", df)

    def __call__(self, prediction: Any, scale: Any) -> dist.Distribution:
        """The law of labels.

        Parameters
        ----------
        prediction : array
            The centre.
        scale : array_like
            The scale, smaller than the standard deviation.
        """
        return dist.StudentT(self.df, prediction, scale, validate_args=False)


def poisson_labels(prediction: Any) -> dist.Distribution:
    """Counts, log link.

    Parameters
    ----------
    prediction : array
        Logarithm of the mean.
    """
    return dist.Poisson(jnp.exp(prediction), validate_args=False)


def log_normal_labels(prediction: Any, scale: Any) -> dist.Distribution:
    """Positive labels whose logarithms are normal.

    Parameters
    ----------
    prediction : array
        Logarithm of the median.
    scale : array_like
        Standard deviation of the logarithm.
    """
    return dist.LogNormal(prediction, scale, validate_args=False)


def bernoulli_labels(prediction: Any) -> dist.Distribution:
    """Labels 0 and 1, logit link; for mechanisms of categories such as `RandomizedResponse`.

    Parameters
    ----------
    prediction : array
        Logarithm of the odds.
    """
    return dist.BernoulliLogits(prediction, validate_args=False)


TYPICAL_SCALES: dict[Any, float] = {log_normal_labels: 0.5}
"""Plausible scales of laws whose scale is not in the unit of the label."""


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
        bound, and bounds more than a hundred times wider than the labels are a mistake. `LinearPredictor.interval` of the
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

    law: Callable[..., Any] = normal_labels
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


class LearningWarning(LdpBayesWarning):
    """A fit that should not be used as it is; the message says why."""


def checked_features(
    features: Any, count: int | None = None, width: int | None = None, like: Sequence[str] | None = None
) -> tuple[np.ndarray, list[str]]:
    """Features as a matrix, and what they are called.

    Parameters
    ----------
    features : array_like (n, d) or data frame
        Finite numbers.
    count : int, optional
        How many rows there have to be.
    width : int, optional
        How many columns there have to be.
    like : sequence of str, optional
        What the columns have to be called, if both these names and those of a data frame are somebody's choice.

    Raises
    ------
    ValueError
        If they are not, or not numbers.
    """
    matrix = np.asarray(features)
    if matrix.dtype.kind not in "iuf":
        try:
            matrix = matrix.astype(float)
        except (TypeError, ValueError) as error:
            raise ValueError(f"features must be numbers (encode categories as 0 and 1 first): {error}") from None
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"features must be a matrix of a row a label, got an array of shape {matrix.shape}")
    if count is not None and len(matrix) != count:
        raise ValueError(f"features must have a row a label: got {len(matrix)} rows, and {count} released labels")
    if width is not None and matrix.shape[1] != width:
        raise ValueError(f"features must have {width} columns, as those of the fit had, got {matrix.shape[1]}")
    matrix = checked("features", matrix, "finite numbers", np.isfinite)
    columns: Sequence[Any] = getattr(features, "columns", range(matrix.shape[1]))
    names = [name if isinstance(name, str) else f"x[{name}]" for name in columns]
    unnamed = [f"x[{j}]" for j in range(matrix.shape[1])]
    if like is not None and hasattr(features, "columns") and unnamed not in (names, list(like)) and names != list(like):
        raise ValueError(f"features must have the columns of the fit in their order, {list(like)}, got {names}")
    return matrix, names


def centre_and_unit(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of the columns and their standard deviations, 1 for a constant column, each of shape (d,).

    Parameters
    ----------
    matrix : array (n, d)
        Features in double precision: in single, a column far from 0 has lost what its numbers differ by.
    """
    unit = matrix.std(axis=0)
    return matrix.mean(axis=0), np.where(unit > 1e-12 * np.abs(matrix).max(axis=0), unit, 1.0)


def checked_bounds(bounds: Any) -> tuple[float, float] | None:
    """Bounds of labels as two finite numbers in order, or None.

    Parameters
    ----------
    bounds : (float, float) or None
        As they are given.

    Raises
    ------
    ValueError
        If they are not.
    """
    if bounds is None:
        return None
    pair = checked(
        "bounds", bounds, "two finite numbers, the lower first", lambda a: np.isfinite(a) & (a.shape == (2,))
    )
    check_order(*pair)
    return float(pair[0]), float(pair[1])


def checked_labels(release: Any, objective: Any) -> None:
    """Whether a release holds labels that can be learned from, by an objective.

    Parameters
    ----------
    release : Release
        Of one number, or category, a record.
    objective : Objective
        What is minimised.

    Raises
    ------
    TypeError
        If one of the two is something else.
    ValueError
        If the release has no values, or rows.
    """
    if not isinstance(release, Release):
        hint = {"LabelRelease": ": pass its .release", "PanelSketch": ": in a sketch labels have one law"}
        kind = type(release).__name__
        raise TypeError(f"release must be a Release of labels, got {kind}{hint.get(kind, '')}")
    if release.mechanism.record_shape or release.mechanism.event_shape:
        raise ValueError(f"labels must be numbers, but {type(release.mechanism).__name__} releases rows")
    if release.values is None:
        raise ValueError("a release without values has no labels to learn from")
    if not isinstance(objective, Objective):
        raise TypeError(f"objective must be an Objective, such as MarginalLikelihood(normal_labels), got {objective!r}")


def privacy_of(release: Release) -> str:
    """What was promised to those whose labels were released.

    Parameters
    ----------
    release : Release
        Of labels.
    """
    of_labels = dataclasses.replace(release.mechanism.guarantee, unit="label")
    return (
        f"{of_labels.statement()} The budget of whatever else was released of these labels, such as a prior, adds to "
        "that of this release. Features are public: nothing protects them."
    )
