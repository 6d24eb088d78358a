"""Models of clipped numbers, and of categories: shares, a sensitive yes or no."""

from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, observe
from ldpbayes.inference import factory


@factory("numbers", summary="Model of normal numbers that were clipped.")
def clipped_gaussian(
    release: Release | Sketch, mu: dist.Distribution = dist.Normal(0, 5), sigma: dist.Distribution = dist.Gamma(2, 1)
) -> None:
    """Model of normal numbers that were clipped and released with noise ([KJKH] sec. 3.2.1 and Figure 8). Sites: ``mu``
    and ``sigma``, the mean and the standard deviation of the original numbers, in their unit. Default priors: normal
    with mean 0 and standard deviation 5, and gamma with shape 2 and rate 1.
    """
    observe("z", dist.Normal(numpyro.sample("mu", mu), numpyro.sample("sigma", sigma)), release)


@factory("numbers", summary="Model of exponential numbers, such as waiting times, that were clipped.")
def clipped_exponential(release: Release | Sketch, rate: dist.Distribution = dist.Gamma(2, 1)) -> None:
    """Model of exponential numbers, such as waiting times, that were clipped and released with noise ([KJKH] sec. 3.2.1
    and Figure 8). Site: ``rate``, one divided by the mean of the original numbers. Default prior: gamma with shape 2
    and rate 1.
    """
    observe("z", dist.Exponential(numpyro.sample("rate", rate)), release)


@factory("numbers", summary="Model of counts that were clipped and released with noise: negative binomial.")
def clipped_counts(
    release: Release | Sketch,
    mean: dist.Distribution = dist.LogNormal(0, 2),
    concentration: dist.Distribution = dist.LogNormal(0, 1),
) -> None:
    """Model of counts that were clipped and released with noise. The original counts have a negative binomial law with
    the variance mean + mean²/concentration. Sites: ``mean`` and ``concentration``. Default priors: their logarithms are
    normal with mean 0, and standard deviations 2 and 1.
    """
    law = dist.NegativeBinomial2(numpyro.sample("mean", mean), numpyro.sample("concentration", concentration))
    observe("z", law, release)


@factory("yes-or-no answers", summary="Model of yes-or-no answers: the share of true answers yes.")
def warner(release: Release | Sketch, theta: dist.Distribution = dist.Beta(1, 1)) -> None:
    """Model of yes-or-no answers ([Warner]), under `RandomizedResponse` or another mechanism of two categories. Site:
    ``theta``, the share of true "yes" answers in the population. Default prior: uniform on [0, 1].
    """
    observe("z", dist.Bernoulli(numpyro.sample("theta", theta)), release)


@factory(
    "categories",
    summary="Model of categories: the share of each category in the population.",
    theta="Dirichlet([1, ..., 1])",
)
def oue_histogram(release: Release | Sketch, theta: dist.Distribution | None = None) -> None:
    """Model of categories ([KJKH] sec. 3.2.2), under `OptimalUnaryEncoding` or another mechanism of categories. Site:
    ``theta``, the share of each category in the population. Default prior: uniform, a Dirichlet law with all
    concentrations 1 ([KJKH] Figure 8).
    """
    protocol: Any = release.mechanism
    prior = dist.Dirichlet(jnp.ones(protocol.categories)) if theta is None else theta
    observe("z", dist.Categorical(numpyro.sample("theta", prior)), release)
