"""Logistic regression on covariates that were released with symmetric or zero-inflated Laplace noise."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from ldpbayes import PrivatizedRegression

__all__ = ["perturbed_covariates"]


def perturbed_covariates(
    slope=dist.Normal(0, 2),
    intercept=dist.Normal(0, 2),
    mean=dist.Normal(0, 1),
    scale=dist.HalfNormal(1),
    response=dist.BernoulliLogits,
):
    """Posterior of a regression whose covariates are independent normals that are seen with noise only.

    Parameters
    ----------
    slope, intercept, mean, scale : numpyro.distributions.Distribution
        Priors of each slope, of the intercept (None for none), and of each covariate's mean and standard deviation.
    response : callable
        Linear predictor → distribution of the response.

    Returns
    -------
    callable
        model(release) with sites ``slopes``, ``intercept``, ``mean``, ``scale`` and ``z``; the release has one column
        that is not perturbed, the response.
    """

    def model(release):
        d = release.mechanism.dimension
        slopes = numpyro.sample("slopes", slope.expand([d]).to_event(1))
        alpha = 0.0 if intercept is None else numpyro.sample("intercept", intercept)
        m = numpyro.sample("mean", mean.expand([d]).to_event(1))
        s = numpyro.sample("scale", scale.expand([d]).to_event(1))
        covariates = dist.MultivariateNormal(m, scale_tril=jnp.diag(s))
        law = PrivatizedRegression(covariates, response, slopes, release.mechanism, alpha)
        numpyro.sample("z", law.expand([len(release)]), obs=release.values)

    return model
