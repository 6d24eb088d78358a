"""Covariates that are normal: a law for those that were perturbed."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, observe
from ldpbayes.data import TotalSketch
from ldpbayes.likelihood import RegressionRows
from ldpbayes.mechanisms import StatisticsMechanism
from ldpbayes.models._printing import check_kind, shows_priors
from ldpbayes.noise import Gaussian, Laplace


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


@shows_priors()
def perturbed_covariates(
    slope: dist.Distribution = dist.Normal(0, 2),
    intercept: dist.Distribution | None = dist.Normal(0, 2),
    mean: dist.Distribution = dist.Normal(0, 1),
    scale: dist.Distribution = dist.HalfNormal(1),
    concentration: float | None = 2.0,
    response: Callable[[Any], dist.Distribution] = dist.BernoulliLogits,
) -> Callable[[Release | Sketch], None]:
    """Posterior of a regression whose covariates are normal and seen with noise only.

    Start the chains from ``init_to_median``: from a narrow start, among the rows that are released as they are, they
    may end in a mode in which a covariate does not vary.

    Parameters
    ----------
    slope : numpyro.distributions.Distribution
        Prior of each slope; by default normal with mean 0 and standard deviation 2.
    intercept : numpyro.distributions.Distribution or None
        Prior of the intercept, None for none; by default normal with mean 0 and standard deviation 2.
    mean : numpyro.distributions.Distribution
        Prior of each covariate's mean; by default normal with mean 0 and standard deviation 1.
    scale : numpyro.distributions.Distribution
        Prior of each covariate's standard deviation; by default half-normal with scale 1.
    concentration : float or None
        Of the correlations' prior, that of Lewandowski, Kurowicka and Joe, by default 2, which leans towards none; None
        for independent covariates.
    response : callable
        Linear predictor → distribution of the response; by default logistic regression.

    Returns
    -------
    callable
        model(release) with sites ``slopes``, ``intercept``, ``mean``, ``scale``, ``root`` (of the correlations) and
        ``z``; the release has one column that is not perturbed, the response. TypeError for releases of anything but
        rows.
    """

    def model(release: Release | Sketch) -> None:
        check_kind("perturbed_covariates", release, "rows")
        mechanism: Any = release.mechanism
        d = mechanism.dimension
        slopes = numpyro.sample("slopes", slope.expand([d]).to_event(1))
        alpha = 0.0 if intercept is None else numpyro.sample("intercept", intercept)
        covariates = normal_covariates(d, mean, scale, concentration)
        place = next(j for j in range(d + 1) if j not in mechanism.index)
        observe("z", RegressionRows(covariates, response, slopes, alpha, place=place), release)

    return model
