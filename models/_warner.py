"""A yes-or-no answer under randomized response."""

from collections.abc import Callable

import numpyro
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, observe
from ldpbayes.models._kinds import check_kind

__all__ = ["warner"]


def warner(theta: dist.Distribution = dist.Beta(1, 1)) -> Callable[[Release | Sketch], None]:
    """Posterior of the share of true "yes" answers ([Warner]).

    Parameters
    ----------
    theta : numpyro.distributions.Distribution
        Prior on [0, 1].

    Returns
    -------
    callable
        model(release) with sites ``theta`` and ``z``, for a release under ``RandomizedResponse(epsilon)`` or another
        pure protocol with two categories; TypeError for other releases.
    """

    def model(release: Release | Sketch) -> None:
        check_kind("warner", release, "yes-or-no answers")
        observe("z", dist.Bernoulli(numpyro.sample("theta", theta)), release)

    return model
