"""Laws of a label given a linear predictor and a scale, by the names that generalised linear models have for them."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist

from ldpbayes._checks import checked

__all__ = ["TYPICAL_SCALES", "bernoulli", "laplace", "log_normal", "normal", "poisson", "student_t"]


def normal(prediction: Any, scale: Any) -> dist.Distribution:
    """Normal labels, identity link.

    Parameters
    ----------
    prediction : array
        The mean.
    scale : array_like
        The standard deviation.
    """
    return dist.Normal(prediction, scale, validate_args=False)


def laplace(prediction: Any, scale: Any) -> dist.Distribution:
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
class student_t:
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


def poisson(prediction: Any) -> dist.Distribution:
    """Counts, log link.

    Parameters
    ----------
    prediction : array
        Logarithm of the mean.
    """
    return dist.Poisson(jnp.exp(prediction), validate_args=False)


def log_normal(prediction: Any, scale: Any) -> dist.Distribution:
    """Positive labels whose logarithms are normal.

    Parameters
    ----------
    prediction : array
        Logarithm of the median.
    scale : array_like
        Standard deviation of the logarithm.
    """
    return dist.LogNormal(prediction, scale, validate_args=False)


def bernoulli(prediction: Any) -> dist.Distribution:
    """Labels 0 and 1, logit link; for mechanisms of categories such as `RandomizedResponse`.

    Parameters
    ----------
    prediction : array
        Logarithm of the odds.
    """
    return dist.BernoulliLogits(prediction, validate_args=False)


TYPICAL_SCALES: dict[Any, float] = {log_normal: 0.5}
"""Plausible scales of laws whose scale is not in the unit of the label."""
