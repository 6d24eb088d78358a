"""Normal rows, of which some columns are seen with noise only."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, observe
from ldpbayes.likelihood import RegressionRows
from ldpbayes.models._printing import check_kind, shows_priors


def normal_rows(
    d: int, mean: dist.Distribution | None, scale: dist.Distribution, concentration: float | None
) -> dist.MultivariateNormal:
    """Law of rows of d columns: sites ``mean`` and ``scale`` (d,), and ``root`` (d, d) of the correlations.

    Without a prior `mean` all means are 0; without a `concentration` of the Lewandowski-Kurowicka-Joe prior the
    columns are independent.
    """
    m = jnp.zeros(d) if mean is None else numpyro.sample("mean", mean.expand([d]).to_event(1))
    s = numpyro.sample("scale", scale.expand([d]).to_event(1))
    independent = concentration is None or d == 1
    root = jnp.eye(d) if independent else numpyro.sample("root", dist.LKJCholesky(d, concentration))
    return dist.MultivariateNormal(m, scale_tril=s[:, None] * root)


@shows_priors()
def multivariate_normal(
    mean: dist.Distribution = dist.Normal(0, 1),
    scale: dist.Distribution = dist.HalfNormal(1),
    concentration: float = 2.0,
) -> Callable[[Release | Sketch], None]:
    """Posterior of the means, standard deviations and correlations of the columns, perturbed or not.

    With a response among the columns this is linear regression on perturbed covariates: coefficients follow from the
    covariance matrix. Clipping is left out: the bounds should hold (nearly) all records.

    Parameters
    ----------
    mean, scale : numpyro.distributions.Distribution
        Priors of each column's mean and standard deviation, in the units of the data; by default standard normal, and
        half-normal with scale 1.
    concentration : float
        Of the Lewandowski-Kurowicka-Joe prior of the correlations: 1 is uniform, the default 2 leans towards none.

    Returns
    -------
    callable
        model(release) with sites ``mean``, ``scale``, ``root`` (of the correlations, for two columns or more), ``z``;
        TypeError for releases of anything but rows.
    """

    def model(release: Release | Sketch) -> None:
        check_kind("multivariate_normal", release, "rows")
        columns = release.mechanism.record_shape[0]
        observe("z", normal_rows(columns, mean, scale, concentration), release)

    return model


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
    slope, intercept : numpyro.distributions.Distribution
        Priors, by default normal with standard deviation 2; None for no intercept.
    mean, scale : numpyro.distributions.Distribution
        Priors of each covariate's mean and standard deviation; by default standard normal, and half-normal of scale 1.
    concentration : float or None
        As in `multivariate_normal`; None for independent covariates.
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
        covariates = normal_rows(d, mean, scale, concentration)
        place = next(j for j in range(d + 1) if j not in mechanism.index)
        observe("z", RegressionRows(covariates, response, slopes, alpha, place=place), release)

    return model
