"""Counts (visits, purchases, ...), clipped from above and released with noise."""

from collections.abc import Callable

import numpyro
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, observe
from ldpbayes.models._kinds import check_kind
from ldpbayes.models._shown import shows_priors

__all__ = ["clipped_counts"]


@shows_priors()
def clipped_counts(
    mean: dist.Distribution = dist.LogNormal(0, 2), concentration: dist.Distribution = dist.LogNormal(0, 1)
) -> Callable[[Release | Sketch], None]:
    """Posterior of a negative binomial's mean and concentration; its variance is mean + mean²/concentration.

    Parameters
    ----------
    mean, concentration : numpyro.distributions.Distribution
        Priors, the mean's of that of the counts before clipping; by default the logarithm of the mean is normal with
        mean 0 and standard deviation 2, that of the concentration with mean 0 and standard deviation 1.

    Returns
    -------
    callable
        model(release) with sites ``mean``, ``concentration`` and ``z``; TypeError for releases of anything but numbers.
    """

    def model(release: Release | Sketch) -> None:
        check_kind("clipped_counts", release, "numbers")
        observe(
            "z",
            dist.NegativeBinomial2(numpyro.sample("mean", mean), numpyro.sample("concentration", concentration)),
            release,
        )

    return model
