"""Counts (visits, purchases, ...), clipped from above and released with noise."""

import numpyro
import numpyro.distributions as dist

from ldpbayes import observe
from ldpbayes.models._kinds import check_kind

__all__ = ["clipped_counts"]


def clipped_counts(mean=dist.LogNormal(0, 2), concentration=dist.LogNormal(0, 1)):
    """Posterior of a negative binomial's mean and concentration; its variance is mean + mean²/concentration.

    Parameters
    ----------
    mean, concentration : numpyro.distributions.Distribution
        Priors. The mean is that of the counts before clipping.

    Returns
    -------
    callable
        model(release) with sites ``mean``, ``concentration`` and ``z``; TypeError for releases of anything but numbers.
    """

    def model(release):
        check_kind("clipped_counts", release, "numbers")
        observe(
            "z",
            dist.NegativeBinomial2(numpyro.sample("mean", mean), numpyro.sample("concentration", concentration)),
            release,
        )

    return model
