"""Normal rows, released with symmetric or zero-inflated Laplace noise."""

from collections.abc import Callable

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, observe
from ldpbayes.models._printing import check_kind, shows_priors


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
    mean : numpyro.distributions.Distribution
        Prior of each column's mean, in the units of the data; by default normal with mean 0 and standard deviation 1.
    scale : numpyro.distributions.Distribution
        Prior of each column's standard deviation; by default half-normal with scale 1.
    concentration : float
        Of the correlations' prior, that of Lewandowski, Kurowicka and Joe; 1 is uniform, and the default 2 leans
        towards none.

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
