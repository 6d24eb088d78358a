"""A yes-or-no answer under randomized response."""

from collections.abc import Callable

import numpyro
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, observe
from ldpbayes.models._kinds import check_kind
from ldpbayes.models._shown import shows_priors

__all__ = ["warner"]


@shows_priors()
def warner(theta: dist.Distribution = dist.Beta(1, 1)) -> Callable[[Release | Sketch], None]:
    """Posterior of the share of true "yes" answers ([Warner]).

    Parameters
    ----------
    theta : numpyro.distributions.Distribution
        Prior of the share; by default uniform on [0, 1], a beta law with both parameters 1.

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
