"""Group means with partial pooling, each group released under its own budget."""

from collections.abc import Callable, Mapping, Sequence

import numpyro
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, observe
from ldpbayes.models._kinds import check_kind
from ldpbayes.models._pooled import Pooled, rough_means
from ldpbayes.models._shown import shows_priors

__all__ = ["hierarchical"]


@shows_priors()
def hierarchical(
    mu: dist.Distribution = dist.Normal(0, 5),
    tau: dist.Distribution = dist.HalfNormal(2),
    sigma: dist.Distribution = dist.Gamma(2, 1),
) -> Callable[[Sequence[Release | Sketch]], None]:
    """Posterior of normal group means that share a population mean and spread.

    Parameters
    ----------
    mu : numpyro.distributions.Distribution
        Prior of the population mean; by default normal with mean 0 and standard deviation 5.
    tau : numpyro.distributions.Distribution
        Prior of the standard deviation of the group means; by default half-normal with scale 2.
    sigma : numpyro.distributions.Distribution
        Prior of the standard deviation within groups; by default gamma with shape 2 and rate 1 (mean 2).

    Returns
    -------
    callable
        model(releases), a sequence with a release or a sketch a group, with sites ``mu``, ``tau``, ``sigma``,
        ``theta`` (a mean a group) and ``z`` (see `observe` for groups of different kinds); TypeError for a single one,
        none, or one of anything but numbers. The axis of ``theta`` is called ``group``: names of the groups are
        given to `fit` as ``coords={"group": names}``.
    """

    def model(releases: Sequence[Release | Sketch]) -> None:
        if isinstance(releases, Mapping):
            raise TypeError(
                "hierarchical takes a sequence of releases, one a group, got a dict: pass a list of releases, "
                "list(d.values()), and the names as coords={'group': list(d)}"
            )
        if isinstance(releases, (Release, Sketch)):
            raise TypeError(f"hierarchical takes a sequence of releases, one a group, got a {type(releases).__name__}")
        if not len(releases):
            raise TypeError("hierarchical takes a sequence of releases, one a group, got an empty one")
        for release in releases:
            check_kind("hierarchical", release, "numbers")
        population_mean, spread = numpyro.sample("mu", mu), numpyro.sample("tau", tau)
        within = numpyro.sample("sigma", sigma)
        with numpyro.plate("group", len(releases)):
            # This is Normal(population_mean, spread): the rest says in which coordinates it is sampled well.
            theta = numpyro.sample("theta", Pooled(population_mean, spread, *rough_means(releases, within)))
        observe("z", dist.Normal(theta, within), list(releases))

    return model
