"""Models of clipped numbers, and of categories: shares, shares by region, a sensitive yes or no."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import special

from ldpbayes import Release, Sketch, observe
from ldpbayes.data import ExpandedSketch
from ldpbayes.models._factory import factory
from ldpbayes.models._pooled import pooled_relative

SHARP = 8.0  # precision at which a rough logit has half of its weight: less sharp posteriors are skewed
MOST_NUMBERS = 1 << 24  # entries of a matrix of released values and categories that rough logits are computed from
ROUGH_SCALES = 3.0, 0.7  # standard deviations of the mean logits and of those of a region, in their rough estimates


@factory("numbers")
def clipped_gaussian(
    release: Release | Sketch, mu: dist.Distribution = dist.Normal(0, 5), sigma: dist.Distribution = dist.Gamma(2, 1)
) -> None:
    """Model of normal numbers that were clipped and released with noise ([KJKH] sec. 3.2.1 and Figure 8).

    Returns ``model(release)`` with sites ``mu`` and ``sigma`` (the mean and the standard deviation of the original
    numbers), and ``z`` (the released values).

    Parameters
    ----------
    mu : numpyro.distributions.Distribution
        Prior of the mean of the original numbers, in the unit of the data. Default: normal with mean 0 and standard
        deviation 5.
    sigma : numpyro.distributions.Distribution
        Prior of the standard deviation of the original numbers, in the unit of the data. Default: gamma with shape 2
        and rate 1.
    """
    observe("z", dist.Normal(numpyro.sample("mu", mu), numpyro.sample("sigma", sigma)), release)


@factory("numbers")
def clipped_exponential(release: Release | Sketch, rate: dist.Distribution = dist.Gamma(2, 1)) -> None:
    """Model of exponential numbers, such as waiting times, that were clipped and released with noise.

    The model is from [KJKH] sec. 3.2.1 and Figure 8.

    Returns ``model(release)`` with sites ``rate`` (one divided by the mean of the original numbers) and ``z`` (the
    released values).

    Parameters
    ----------
    rate : numpyro.distributions.Distribution
        Prior of the rate, which is one divided by the mean of the original numbers. Default: gamma with shape 2 and
        rate 1.
    """
    observe("z", dist.Exponential(numpyro.sample("rate", rate)), release)


@factory("numbers")
def clipped_counts(
    release: Release | Sketch,
    mean: dist.Distribution = dist.LogNormal(0, 2),
    concentration: dist.Distribution = dist.LogNormal(0, 1),
) -> None:
    """Model of counts that were clipped and released with noise. The original counts have a negative binomial law.

    The variance of this law is mean + mean²/concentration.

    Returns ``model(release)`` with sites ``mean``, ``concentration`` and ``z`` (the released values).

    Parameters
    ----------
    mean : numpyro.distributions.Distribution
        Prior of the mean of the original counts. Default: its logarithm is normal with mean 0 and standard deviation 2.
    concentration : numpyro.distributions.Distribution
        Prior of the concentration of the original counts. Default: its logarithm is standard normal.
    """
    law = dist.NegativeBinomial2(numpyro.sample("mean", mean), numpyro.sample("concentration", concentration))
    observe("z", law, release)


@factory("yes-or-no answers")
def warner(release: Release | Sketch, theta: dist.Distribution = dist.Beta(1, 1)) -> None:
    """Model of yes-or-no answers: the share of true "yes" answers ([Warner]).

    Returns ``model(release)`` with sites ``theta`` (the share of true "yes" answers in the population) and ``z`` (the
    released answers). The mechanism of the release is ``RandomizedResponse(epsilon)``, or another mechanism of two
    categories.

    Parameters
    ----------
    theta : numpyro.distributions.Distribution
        Prior of the share of true "yes" answers. Default: uniform on [0, 1].
    """
    observe("z", dist.Bernoulli(numpyro.sample("theta", theta)), release)


@factory("categories", theta="Dirichlet([1, ..., 1])")
def oue_histogram(release: Release | Sketch, theta: dist.Distribution | None = None) -> None:
    """Model of categories: the share of each category in the population ([KJKH] sec. 3.2.2).

    Returns ``model(release)`` with sites ``theta`` (the share of each category) and ``z`` (the released values). The
    mechanism of the release is ``OptimalUnaryEncoding(epsilon, categories)``, or another mechanism of categories.

    Parameters
    ----------
    theta : numpyro.distributions.Distribution, optional
        Prior of the vector of shares, whose sum is one. Default: uniform, a Dirichlet law with all concentrations 1
        ([KJKH] Figure 8).
    """
    protocol: Any = release.mechanism
    prior = dist.Dirichlet(jnp.ones(protocol.categories)) if theta is None else theta
    observe("z", dist.Categorical(numpyro.sample("theta", prior)), release)


def _rough_logits(regions: Any, **_: Any) -> tuple[Any, Any]:
    """Logits (regions, categories) by the released values, up to a number for each region, and their precisions."""
    parts = []
    for data in [regions] if isinstance(regions, Sketch) else regions:
        sketch: Any = data.sketch(expand=False) if isinstance(data, Release) else data
        sketch = sketch.exact if isinstance(sketch, ExpandedSketch) else sketch
        weights, categories, count = np.asarray(sketch.weights), sketch.mechanism.categories, len(sketch.weights)
        if count * categories > MOST_NUMBERS:
            return 0.0, 0.0
        columns = [sketch.mechanism.log_prob(sketch.nodes, np.full(count, k)) for k in range(categories)]
        masses = np.exp(np.stack(columns, axis=-1))
        codes = np.zeros(count, int) if sketch.groups is None else np.asarray(sketch.groups)
        rows = [codes == group for group in range(math.prod(sketch.law_shape))]
        parts += [(masses[own], weights[own]) for own in rows]
    masses, weights = (np.concatenate(each) for each in zip(*parts, strict=True))
    overall = _rough(masses, weights, np.zeros(categories), ROUGH_SCALES[0])[0]
    logits, precisions = zip(*(_rough(*part, overall, ROUGH_SCALES[1]) for part in parts), strict=True)
    return np.stack(logits), np.stack(precisions)


def _rough(masses: np.ndarray, weights: np.ndarray, mean: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Most probable logits (categories,) by Fisher scoring from probabilities (n, categories) of weighted values, given
    their prior mean and scale, and the numbers of answers without noise that would tell as much.
    """
    logits = mean
    for _ in range(30):
        shares = special.softmax(logits)
        mixed = masses * shares
        excess = mixed / mixed.sum(axis=1, keepdims=True) - shares
        information, slope = (weights * excess.T) @ excess, weights @ excess - (logits - mean) / scale**2
        step = np.linalg.solve(information + np.eye(len(logits)) / scale**2, slope)
        logits = logits + step / max(1.0, np.abs(step).max())
        if np.abs(step).max() < 1e-3:
            break
    precision = np.diag(information) / np.maximum(1 - shares, 1e-6)
    return logits, precision**2 / (precision + SHARP)


@factory("categories", groups=True, tune=_rough_logits)
def regional_histograms(
    regions: Any,
    mu: dist.Distribution = dist.Normal(0, 2),
    tau: dist.Distribution = dist.HalfNormal(1),
    _coordinates: tuple[Any, Any] = (0.0, 0.0),
) -> None:
    """Model of categories in several regions, where the shares of the regions vary around common shares.

    The shares of a region are softmax(l), where l is a vector of logits, one for each category. The logits of the
    regions are normal, with mean ``mu`` and standard deviation ``tau``.

    Returns ``model(regions)`` with sites ``mu``, ``tau``, ``theta`` and ``z``. The argument ``regions`` is
    ``release.sketch(by=region)``, or a sequence with a release or a sketch for each region. Raises TypeError if the
    releases have different numbers of categories.

    ``theta`` has a row of shares for each region. ``z`` are the released values. If the mechanisms of the regions have
    different classes, ``z`` becomes several sites ``z_0``, ``z_1``, ... (see `observe`).

    Parameters
    ----------
    mu : numpyro.distributions.Distribution
        Prior of the mean logit of each category over regions. Default: normal with mean 0 and standard deviation 2.
    tau : numpyro.distributions.Distribution
        Prior of the standard deviation of the logit of each category over regions. Default: half-normal with scale 1.
    """
    grouped = isinstance(regions, Sketch)
    categories = sorted({release.mechanism.categories for release in ([regions] if grouped else regions)})
    if len(categories) != 1:
        raise TypeError(f"regional_histograms takes releases with equal numbers of categories, got {categories}")
    count = regions.law_shape[0] if grouped else len(regions)
    with numpyro.plate("category", categories[0]):
        population, spread = numpyro.sample("mu", mu), numpyro.sample("tau", tau)
    with numpyro.plate("region", count):
        # These are Normal(population, spread): the rest says in which coordinates they are sampled well.
        logits = numpyro.sample("logits", pooled_relative(population, spread, *_coordinates))
    with numpyro.plate("category", categories[0]), numpyro.plate("region", count):
        theta = numpyro.deterministic("theta", jax.nn.softmax(logits, axis=-1))
    observe("z", dist.Categorical(theta), regions if grouped else list(regions))
