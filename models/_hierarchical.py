"""Group means with partial pooling, each group released under its own budget."""

from collections.abc import Callable, Sequence

import numpyro
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, observe
from ldpbayes.models._kinds import check_kind

__all__ = ["hierarchical"]


def hierarchical(
    mu: dist.Distribution = dist.Normal(0, 5),
    tau: dist.Distribution = dist.HalfNormal(2),
    sigma: dist.Distribution = dist.Gamma(2, 1),
) -> Callable[[Sequence[Release | Sketch]], None]:
    """Posterior of normal group means that share a population mean and spread.

    Parameters
    ----------
    mu, tau : numpyro.distributions.Distribution
        Priors of the population mean and of the spread of the group means.
    sigma : numpyro.distributions.Distribution
        Prior of the standard deviation within groups.

    Returns
    -------
    callable
        model(releases), a sequence with a release or a sketch a group, with sites ``mu``, ``tau``, ``sigma``,
        ``theta`` (a mean a group) and ``z`` (see `observe` for groups of different kinds); TypeError for a single one,
        none, or one of anything but numbers.
    """

    def model(releases: Sequence[Release | Sketch]) -> None:
        if isinstance(releases, (Release, Sketch)):
            raise TypeError(f"hierarchical takes a sequence of releases, one a group, got a {type(releases).__name__}")
        if not len(releases):
            raise TypeError("hierarchical takes a sequence of releases, one a group, got an empty one")
        for release in releases:
            check_kind("hierarchical", release, "numbers")
        population_mean, spread = numpyro.sample("mu", mu), numpyro.sample("tau", tau)
        within = numpyro.sample("sigma", sigma)
        with numpyro.plate("group", len(releases)):
            # The parametrisation is non-centred, since privacy noise often leaves little to tell the groups apart.
            offset = numpyro.sample("offset", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", population_mean + spread * offset)
        observe("z", dist.Normal(theta, within), list(releases))

    return model
