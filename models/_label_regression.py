"""Regression of labels that were released under a mechanism, on public features."""

from collections.abc import Callable

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from ldpbayes import Release, observe
from ldpbayes.models._kinds import check_kind
from ldpbayes.models._shown import shows_priors

__all__ = ["label_regression"]


@shows_priors()
def label_regression(
    features: ArrayLike,
    slope: dist.Distribution = dist.Normal(0, 1),
    intercept: dist.Distribution = dist.Normal(0, 10),
    sigma: dist.Distribution | None = dist.HalfNormal(5),
    response: Callable[..., dist.Distribution] = dist.Normal,
) -> Callable[[Release], None]:
    """Posterior of a generalised linear model of private labels given public features.

    Parameters
    ----------
    features : array (N, d)
        Of each label, in the order of the release; standardise them, since all slopes have one prior.
    slope : numpyro.distributions.Distribution
        Prior of each slope, in the unit of the labels (or of the response's link); by default normal with mean 0 and
        standard deviation 1.
    intercept : numpyro.distributions.Distribution
        Prior of the intercept; by default normal with mean 0 and standard deviation 10.
    sigma : numpyro.distributions.Distribution or None
        Prior of the response's second parameter, None where it has none; by default half-normal with scale 5.
    response : callable
        Linear predictor (N,) and sigma → law of the labels: ``dist.Normal``, ``dist.Laplace``, one of
        ``ldpbayes.learning`` such as ``log_normal``, or your own.

    Returns
    -------
    callable
        model(release) with sites ``intercept``, ``slopes``, ``sigma`` and ``z``, for a release of labels, be they
        numbers or categories; TypeError for other releases and for sketches, in which labels have one law, ValueError
        for features of another number of labels.

    Notes
    -----
    Source: [LH], whose release of labels this analyses with its noise.
    """
    features = jnp.asarray(features)
    if features.ndim != 2 or not bool(jnp.all(jnp.isfinite(features))):
        raise ValueError(f"features must be an array (labels, features) of finite numbers, got shape {features.shape}")

    def model(release: Release) -> None:
        check_kind("label_regression", release, "labels")
        if len(release) != len(features):
            raise ValueError(f"features are those of {len(features)} labels, but the release has {len(release)}")
        alpha = numpyro.sample("intercept", intercept)
        beta = numpyro.sample("slopes", slope.expand([features.shape[1]]).to_event(1))
        scale = () if sigma is None else (numpyro.sample("sigma", sigma),)
        observe("z", response(alpha + features @ beta, *scale), release)

    return model
