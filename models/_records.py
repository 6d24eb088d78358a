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
    """Model of clipped normal numbers: their mean and standard deviation ([KJKH] sec. 3.2.1 and Figure 8).

    Returns model(release) with sites ``mu``, ``sigma`` and ``z``. Raises TypeError for anything but numbers.

    Parameters
    ----------
    mu, sigma : numpyro.distributions.Distribution
        Priors of the mean (default: normal with mean 0 and standard deviation 5) and of the standard deviation
        (default: gamma with shape 2 and rate 1, mean 2), in the unit of the data.
    """
    observe("z", dist.Normal(numpyro.sample("mu", mu), numpyro.sample("sigma", sigma)), release)


@factory("numbers")
def clipped_exponential(release: Release | Sketch, rate: dist.Distribution = dist.Gamma(2, 1)) -> None:
    """Model of clipped exponential numbers, such as waiting times: their rate ([KJKH] sec. 3.2.1 and Figure 8).

    Returns model(release) with sites ``rate`` and ``z``. Raises TypeError for anything but numbers.

    Parameters
    ----------
    rate : numpyro.distributions.Distribution
        Prior of the rate, in records for each unit of the data. Default: gamma with shape 2 and rate 1 (mean 2).
    """
    observe("z", dist.Exponential(numpyro.sample("rate", rate)), release)


@factory("numbers")
def clipped_counts(
    release: Release | Sketch,
    mean: dist.Distribution = dist.LogNormal(0, 2),
    concentration: dist.Distribution = dist.LogNormal(0, 1),
) -> None:
    """Model of clipped counts: mean and concentration of a negative binomial, whose variance is mean +
    mean²/concentration.

    Returns model(release) with sites ``mean``, ``concentration`` and ``z``. Raises TypeError for anything but numbers.

    Parameters
    ----------
    mean, concentration : numpyro.distributions.Distribution
        Priors of the mean (of counts before clipping) and of the concentration. Default: their logarithms are normal
        with mean 0 and standard deviations 2 and 1.
    """
    law = dist.NegativeBinomial2(numpyro.sample("mean", mean), numpyro.sample("concentration", concentration))
    observe("z", law, release)


@factory("yes-or-no answers")
def warner(release: Release | Sketch, theta: dist.Distribution = dist.Beta(1, 1)) -> None:
    """Model of yes-or-no answers: the share of true "yes" answers ([Warner]).

    Returns model(release) with sites ``theta`` and ``z``, for a release under ``RandomizedResponse(epsilon)`` or
    another mechanism of two categories.

    Parameters
    ----------
    theta : numpyro.distributions.Distribution
        Prior of the share. Default: uniform on [0, 1].
    """
    observe("z", dist.Bernoulli(numpyro.sample("theta", theta)), release)


@factory("categories", theta="Dirichlet([1, ..., 1])")
def oue_histogram(release: Release | Sketch, theta: dist.Distribution | None = None) -> None:
    """Model of categories: their shares, which are not negative and sum to one ([KJKH] sec. 3.2.2).

    Returns model(release) with sites ``theta`` (a share for each category) and ``z``, for a release under
    ``OptimalUnaryEncoding(epsilon, categories)`` or another mechanism of categories.

    Parameters
    ----------
    theta : numpyro.distributions.Distribution, optional
        Prior of the shares. Default: uniform, a Dirichlet with all concentrations one ([KJKH] Figure 8).
    """
    protocol: Any = release.mechanism
    prior = dist.Dirichlet(jnp.ones(protocol.categories)) if theta is None else theta
    observe("z", dist.Categorical(numpyro.sample("theta", prior)), release)


@factory("categories", groups=True)
def regional_histograms(
    regions: Any, mu: dist.Distribution = dist.Normal(0, 2), tau: dist.Distribution = dist.HalfNormal(1)
) -> None:
    """Model of categories in regions, whose shares are logistic-normal around population shares.

    Returns model(regions) with sites ``mu``, ``tau``, ``theta`` (a row for each region) and ``z``. ``regions`` is a
    sketch made with ``by=`` the region of each record, or a sequence of releases or sketches, one for each region (see
    `observe` for regions of different kinds). Raises TypeError for releases of different categories.

    Parameters
    ----------
    mu, tau : numpyro.distributions.Distribution
        Priors of the population's logits, one for each category (default: normal with mean 0 and standard deviation 2),
        and of each logit's standard deviation over regions (default: half-normal with scale 1).
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
