"""Models of clipped numbers, and of categories: shares, shares by region, a sensitive yes or no."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, observe
from ldpbayes.models._factory import factory


@factory("numbers")
def clipped_gaussian(
    release: Release | Sketch, mu: dist.Distribution = dist.Normal(0, 5), sigma: dist.Distribution = dist.Gamma(2, 1)
) -> None:
    """Posterior of a normal mean and standard deviation ([KJKH] sec. 3.2.1 and Figure 8).

    Returns model(release) with sites ``mu``, ``sigma`` and ``z``; TypeError for anything but numbers.

    Parameters
    ----------
    mu, sigma : numpyro.distributions.Distribution
        Priors of the mean, by default normal with standard deviation 5, and of the standard deviation, by default gamma
        with shape 2 and rate 1 (mean 2), in the units of the data.
    """
    observe("z", dist.Normal(numpyro.sample("mu", mu), numpyro.sample("sigma", sigma)), release)


@factory("numbers")
def clipped_exponential(release: Release | Sketch, rate: dist.Distribution = dist.Gamma(2, 1)) -> None:
    """Posterior of an exponential rate ([KJKH] sec. 3.2.1 and Figure 8).

    Returns model(release) with sites ``rate`` and ``z``; TypeError for anything but numbers.

    Parameters
    ----------
    rate : numpyro.distributions.Distribution
        Prior, in records per unit of the data; by default gamma with shape 2 and rate 1 (mean 2).
    """
    observe("z", dist.Exponential(numpyro.sample("rate", rate)), release)


@factory("numbers")
def clipped_counts(
    release: Release | Sketch,
    mean: dist.Distribution = dist.LogNormal(0, 2),
    concentration: dist.Distribution = dist.LogNormal(0, 1),
) -> None:
    """Posterior of a negative binomial's mean and concentration; its variance is mean + mean²/concentration.

    Returns model(release) with sites ``mean``, ``concentration`` and ``z``; TypeError for anything but numbers.

    Parameters
    ----------
    mean, concentration : numpyro.distributions.Distribution
        Priors, the mean's of that of the counts before clipping; by default their logarithms are normal with mean 0 and
        standard deviations 2 and 1.
    """
    law = dist.NegativeBinomial2(numpyro.sample("mean", mean), numpyro.sample("concentration", concentration))
    observe("z", law, release)


@factory("yes-or-no answers")
def warner(release: Release | Sketch, theta: dist.Distribution = dist.Beta(1, 1)) -> None:
    """Posterior of the share of true "yes" answers ([Warner]).

    Returns model(release) with sites ``theta`` and ``z``, for a release under ``RandomizedResponse(epsilon)`` or
    another mechanism of two categories.

    Parameters
    ----------
    theta : numpyro.distributions.Distribution
        Prior of the share; by default uniform on [0, 1].
    """
    observe("z", dist.Bernoulli(numpyro.sample("theta", theta)), release)


@factory("categories", theta="Dirichlet([1, ..., 1])")
def oue_histogram(release: Release | Sketch, theta: dist.Distribution | None = None) -> None:
    """Posterior of the shares of the categories: none is negative, and they sum to one ([KJKH] sec. 3.2.2).

    Returns model(release) with sites ``theta`` (a share a category) and ``z``, for a release under
    ``OptimalUnaryEncoding(epsilon, categories)`` or another mechanism of categories.

    Parameters
    ----------
    theta : numpyro.distributions.Distribution, optional
        Prior of the shares; by default uniform, a Dirichlet with all concentrations one ([KJKH] Figure 8).
    """
    protocol: Any = release.mechanism
    prior = dist.Dirichlet(jnp.ones(protocol.categories)) if theta is None else theta
    observe("z", dist.Categorical(numpyro.sample("theta", prior)), release)


@factory("categories", groups=True)
def regional_histograms(
    regions: Any, mu: dist.Distribution = dist.Normal(0, 2), tau: dist.Distribution = dist.HalfNormal(1)
) -> None:
    """Posterior of the shares of the categories in each region, logistic-normal around those of the population.

    Returns model(regions) with sites ``mu``, ``tau``, ``theta`` (a row a region) and ``z``; for a sketch made with
    ``by=`` the region of each record, or a sequence of releases or sketches, one a region (see `observe` for regions of
    different kinds). TypeError for releases of different categories.

    Parameters
    ----------
    mu, tau : numpyro.distributions.Distribution
        Priors of the population's logits, one a category, by default normal with standard deviation 2, and of each
        logit's standard deviation over regions, by default half-normal with scale 1.
    """
    grouped = isinstance(regions, Sketch)
    categories = sorted({release.mechanism.categories for release in ([regions] if grouped else regions)})
    if len(categories) != 1:
        raise TypeError(f"regional_histograms takes releases of the same categories, got {categories} of them")
    count = regions.law_shape[0] if grouped else len(regions)
    with numpyro.plate("category", categories[0]):
        population, spread = numpyro.sample("mu", mu), numpyro.sample("tau", tau)
        with numpyro.plate("region", count):
            # The parametrisation is non-centred, since privacy noise often leaves little to tell regions apart.
            offset = numpyro.sample("offset", dist.Normal(0, 1))
            theta = numpyro.deterministic("theta", jax.nn.softmax(population + spread * offset, axis=-1))
    observe("z", dist.Categorical(theta), regions if grouped else list(regions))
