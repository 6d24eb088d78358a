"""Normal rows, released with symmetric or zero-inflated Laplace noise."""

from collections.abc import Callable

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, observe
from ldpbayes.models._kinds import check_kind

__all__ = ["multivariate_normal"]


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
        Priors of each column, in the units of the data.
    concentration : float
        Of the correlations' prior, that of Lewandowski, Kurowicka and Joe; 1 is uniform.

    Returns
    -------
    callable
        model(release) with sites ``mean``, ``scale``, ``root`` (of the correlations, for two columns or more), ``z``;
        TypeError for releases of anything but rows.
    """

    def model(release: Release | Sketch) -> None:
        check_kind("multivariate_normal", release, "rows")
        columns = release.mechanism.record_shape[0]
        m = numpyro.sample("mean", mean.expand([columns]).to_event(1))
        s = numpyro.sample("scale", scale.expand([columns]).to_event(1))
        if columns == 1:
            root = s[:, None]
        else:
            root = s[:, None] * numpyro.sample("root", dist.LKJCholesky(columns, concentration))
        observe("z", dist.MultivariateNormal(jnp.broadcast_to(m, (columns,)), scale_tril=root), release)

    return model
