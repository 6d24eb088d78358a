"""Normal covariates with the prior of [KJKH] Figure 8 on their covariance: what regressions on perturbed ones share."""

from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from ldpbayes import Release
from ldpbayes.data import TotalSketch
from ldpbayes.mechanisms import StatisticsMechanism
from ldpbayes.noise import Gaussian, Laplace

__all__ = ["normal_covariates", "statistics_of"]


def normal_covariates(
    d: int, mean: dist.Distribution | None, scale: dist.Distribution, concentration: float | None
) -> dist.MultivariateNormal:
    """Law of the covariates, with sites ``mean`` (d,), ``scale`` (d,) and ``root`` (d, d), of the correlations.

    Parameters
    ----------
    d : int
        Number of covariates.
    mean, scale : numpyro.distributions.Distribution
        Priors of each covariate's mean (None for 0) and standard deviation.
    concentration : float or None
        Of the correlations' prior, that of Lewandowski, Kurowicka and Joe; None for independent covariates.
    """
    m = jnp.zeros(d) if mean is None else numpyro.sample("mean", mean.expand([d]).to_event(1))
    s = numpyro.sample("scale", scale.expand([d]).to_event(1))
    independent = concentration is None or d == 1
    root = jnp.eye(d) if independent else numpyro.sample("root", dist.LKJCholesky(d, concentration))
    return dist.MultivariateNormal(m, scale_tril=s[:, None] * root)


def statistics_of(release: Any, count: Any) -> tuple[Any, Any]:
    """A release or sketch of statistics as one of a single sum, and the number of records in it.

    Parameters
    ----------
    release : Release or Sketch
        Of statistics; those of one record each are summed.
    count : float, Release or None
        The number of records, or a release of it with Gaussian or Laplace noise, where the mechanism does not say it.
        Then there are a site ``count`` and one, ``count_error``, of its noise in scales.

    Raises
    ------
    ValueError
        If the number of records is not known.
    """
    mechanism: StatisticsMechanism = release.mechanism
    if isinstance(release, Release) and mechanism.trust_model == "local" and mechanism.count is None:
        if release.values is None:
            release = Release(None, mechanism.total(release.count), 1)
        else:
            release = TotalSketch.of(release.values, mechanism)
    if release.mechanism.count is not None:
        return release, release.mechanism.count
    if count is None:
        raise ValueError(
            "the number of records N is missing: make the mechanism with count=N, or give the model count=N, or count= "
            "the release of a noisy count"
        )
    return release, _noisy(count) if isinstance(count, Release) else count


def _noisy(count: Release) -> Any:
    """A number seen with noise, under a flat prior: what was released less the noise."""
    noise: Any = getattr(count.mechanism, "noise", None)
    laws: dict[type, Any] = {Gaussian: dist.Normal, Laplace: dist.Laplace}
    if type(noise) not in laws or count.values is None or count.values.shape != (1,):
        raise ValueError(f"count must be a number, or a release of one with Gaussian or Laplace noise, got {count!r}")
    error = numpyro.sample("count_error", laws[type(noise)](0.0, 1.0))
    return numpyro.deterministic("count", count.values[0] - noise.resolution * error)
