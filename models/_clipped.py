"""Models of clipped numbers under noise."""

from collections.abc import Callable

import numpyro
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, observe
from ldpbayes.models._printing import check_kind, shows_priors


@shows_priors()
def clipped_gaussian(
    mu: dist.Distribution = dist.Normal(0, 5), sigma: dist.Distribution = dist.Gamma(2, 1)
) -> Callable[[Release | Sketch], None]:
    """Posterior of a normal mean and standard deviation ([KJKH] sec. 3.2.1 and Figure 8).

    Parameters
    ----------
    mu, sigma : numpyro.distributions.Distribution
        Priors of the mean, by default normal with standard deviation 5, and of the standard deviation, by default gamma
        with shape 2 and rate 1 (mean 2), in the units of the data.

    Returns
    -------
    callable
        model(release) with sites ``mu``, ``sigma`` and ``z``; TypeError for releases of anything but numbers.
    """

    def model(release: Release | Sketch) -> None:
        check_kind("clipped_gaussian", release, "numbers")
        observe("z", dist.Normal(numpyro.sample("mu", mu), numpyro.sample("sigma", sigma)), release)

    return model


@shows_priors()
def clipped_exponential(rate: dist.Distribution = dist.Gamma(2, 1)) -> Callable[[Release | Sketch], None]:
    """Posterior of an exponential rate ([KJKH] sec. 3.2.1 and Figure 8).

    Parameters
    ----------
    rate : numpyro.distributions.Distribution
        Prior, in records per unit of the data; by default gamma with shape 2 and rate 1 (mean 2).

    Returns
    -------
    callable
        model(release) with sites ``rate`` and ``z``; TypeError for releases of anything but numbers.
    """

    def model(release: Release | Sketch) -> None:
        check_kind("clipped_exponential", release, "numbers")
        observe("z", dist.Exponential(numpyro.sample("rate", rate)), release)

    return model


@shows_priors()
def clipped_counts(
    mean: dist.Distribution = dist.LogNormal(0, 2), concentration: dist.Distribution = dist.LogNormal(0, 1)
) -> Callable[[Release | Sketch], None]:
    """Posterior of a negative binomial's mean and concentration; its variance is mean + mean²/concentration.

    Parameters
    ----------
    mean, concentration : numpyro.distributions.Distribution
        Priors, the mean's of that of the counts before clipping; by default their logarithms are normal with mean 0 and
        standard deviations 2 and 1.

    Returns
    -------
    callable
        model(release) with sites ``mean``, ``concentration`` and ``z``; TypeError for releases of anything but numbers.
    """

    def model(release: Release | Sketch) -> None:
        check_kind("clipped_counts", release, "numbers")
        law = dist.NegativeBinomial2(numpyro.sample("mean", mean), numpyro.sample("concentration", concentration))
        observe("z", law, release)

    return model
