"""Counts (visits, purchases, ...), clipped from above and released with noise."""

from collections.abc import Callable

import numpyro
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, observe
from ldpbayes.models._kinds import check_kind

__all__ = ["clipped_counts"]


def clipped_counts(
    mean: dist.Distribution = dist.LogNormal(0, 2), concentration: dist.Distribution = dist.LogNormal(0, 1)
) -> Callable[[Release | Sketch], None]:
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

    def model(release: Release | Sketch) -> None:
        check_kind("clipped_counts", release, "numbers")
        observe(
            "z",
            dist.NegativeBinomial2(numpyro.sample("mean", mean), numpyro.sample("concentration", concentration)),
            release,
        )

    return model
