"""Logistic regression on covariates that were released with symmetric or zero-inflated Laplace noise."""

from collections.abc import Callable
from typing import Any

import numpyro
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, observe
from ldpbayes.likelihood import RegressionRows
from ldpbayes.models._kinds import check_kind
from ldpbayes.models._normal_covariates import normal_covariates
from ldpbayes.models._shown import shows_priors

__all__ = ["perturbed_covariates"]


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
