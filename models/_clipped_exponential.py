"""Exponential records (waiting times, say), clipped from above and released with noise."""

from collections.abc import Callable

import numpyro
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, observe
from ldpbayes.models._kinds import check_kind
from ldpbayes.models._shown import shows_priors

__all__ = ["clipped_exponential"]


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
