"""Normal records, clipped to the mechanism's bounds and released with noise."""

from collections.abc import Callable

import numpyro
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, observe
from ldpbayes.models._kinds import check_kind
from ldpbayes.models._shown import shows_priors

__all__ = ["clipped_gaussian"]


@shows_priors()
def clipped_gaussian(
    mu: dist.Distribution = dist.Normal(0, 5), sigma: dist.Distribution = dist.Gamma(2, 1)
) -> Callable[[Release | Sketch], None]:
    """Posterior of a normal mean and standard deviation ([KJKH] sec. 3.2.1 and Figure 8).

    Parameters
    ----------
    mu : numpyro.distributions.Distribution
        Prior of the mean, in the units of the data; by default normal with mean 0 and standard deviation 5.
    sigma : numpyro.distributions.Distribution
        Prior of the standard deviation; by default gamma with shape 2 and rate 1 (mean 2).

    Returns
    -------
    callable
        model(release) with sites ``mu``, ``sigma`` and ``z``; TypeError for releases of anything but numbers.
    """

    def model(release: Release | Sketch) -> None:
        check_kind("clipped_gaussian", release, "numbers")
        observe("z", dist.Normal(numpyro.sample("mu", mu), numpyro.sample("sigma", sigma)), release)

    return model
