"""A histogram of categories released under optimal unary encoding, or any other pure protocol."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, observe
from ldpbayes.models._kinds import check_kind
from ldpbayes.models._shown import shows_priors

__all__ = ["oue_histogram"]


@shows_priors(theta="Dirichlet([1, ..., 1])")
def oue_histogram(theta: dist.Distribution | None = None) -> Callable[[Release | Sketch], None]:
    """Posterior of the shares of the categories: none is negative, and they sum to one ([KJKH] sec. 3.2.2).

    Parameters
    ----------
    theta : numpyro.distributions.Distribution, optional
        Prior of the shares; by default uniform, a Dirichlet with all concentrations one ([KJKH] Figure 8).

    Returns
    -------
    callable
        model(release) with sites ``theta`` (a share a category) and ``z``, for a release under
        ``OptimalUnaryEncoding(epsilon, categories)`` or another pure protocol; TypeError for other releases.
    """

    def model(release: Release | Sketch) -> None:
        check_kind("oue_histogram", release, "categories")
        protocol: Any = release.mechanism
        prior = dist.Dirichlet(jnp.ones(protocol.categories)) if theta is None else theta
        observe("z", dist.Categorical(numpyro.sample("theta", prior)), release)

    return model
