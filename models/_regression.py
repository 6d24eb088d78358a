"""Models of normal rows, and regressions: from records, statistics or labels that were released."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from ldpbayes import Release, Sketch, observe
from ldpbayes.data import TotalSketch
from ldpbayes.likelihood import RegressionRows, SumOfStatistics, linear_rows, linear_statistics, logistic_statistics
from ldpbayes.mechanisms import LinearStatisticsMechanism, LogisticStatisticsMechanism, StatisticsMechanism
from ldpbayes.models._factory import factory
from ldpbayes.noise import Gaussian, Laplace
from ldpbayes.numerics.arrays import packed


def _coefficients(d: int, slope: dist.Distribution, intercept: dist.Distribution | None) -> tuple[Any, Any]:
    slopes = numpyro.sample("slopes", slope.expand([d]).to_event(1))
    return slopes, 0.0 if intercept is None else numpyro.sample("intercept", intercept)


def _normal_rows(
    d: int, mean: dist.Distribution | None, scale: dist.Distribution, concentration: float | None
) -> dist.MultivariateNormal:
    """Law of rows of d columns: sites ``mean`` (else 0), ``scale`` (d,), and ``root`` (d, d) of any correlations."""
    m = jnp.zeros(d) if mean is None else numpyro.sample("mean", mean.expand([d]).to_event(1))
    s = numpyro.sample("scale", scale.expand([d]).to_event(1))
    independent = concentration is None or d == 1
    root = jnp.eye(d) if independent else numpyro.sample("root", dist.LKJCholesky(d, concentration))
    return dist.MultivariateNormal(m, scale_tril=s[:, None] * root)


@factory("rows")
def multivariate_normal(
    release: Release | Sketch,
    mean: dist.Distribution = dist.Normal(0, 1),
    scale: dist.Distribution = dist.HalfNormal(1),
    concentration: float | None = 2.0,
) -> None:
    """Model of normal rows: means, standard deviations and correlations of the columns, perturbed or not.

    Returns model(release) with sites ``mean``, ``scale``, ``root`` (of the correlations, for two columns or more),
    ``z``. Raises TypeError for anything but rows.

    If one of the columns is a response, this is linear regression on perturbed covariates: coefficients follow from the
    covariance matrix. Clipping is ignored: the bounds should contain (nearly) all records.

    Parameters
    ----------
    mean, scale : numpyro.distributions.Distribution
        Priors of each column's mean (default: standard normal) and standard deviation (default: half-normal with scale
        1), in the unit of the column.
    concentration : float or None
        Concentration of the Lewandowski-Kurowicka-Joe prior of correlations (1: uniform); None for independent columns.
    """
    observe("z", _normal_rows(release.mechanism.record_shape[0], mean, scale, concentration), release)


@factory("rows")
def perturbed_covariates(
    release: Release | Sketch,
    slope: dist.Distribution = dist.Normal(0, 2),
    intercept: dist.Distribution | None = dist.Normal(0, 2),
    mean: dist.Distribution = dist.Normal(0, 1),
    scale: dist.Distribution = dist.HalfNormal(1),
    concentration: float | None = 2.0,
    response: Callable[[Any], dist.Distribution] = dist.BernoulliLogits,
) -> None:
    """Model of a regression on normal covariates that are released with noise only, with an unperturbed response.

    Returns model(release) with sites ``slopes``, ``intercept``, ``mean``, ``scale``, ``root`` (of the correlations) and
    ``z``. The release has exactly one unperturbed column, the response. Raises TypeError for anything but rows.

    Start the chains from ``init_to_median``: from a narrow start, with some rows released without noise, they may end
    in a mode in which a covariate does not vary.

    Parameters
    ----------
    slope, intercept : numpyro.distributions.Distribution
        Priors. Default: normal with mean 0 and standard deviation 2; None for no intercept.
    mean, scale, concentration
        As in `multivariate_normal`, for the covariates.
    response : callable
        Linear predictor → distribution of the response. Default: logistic regression.
    """
    mechanism: Any = release.mechanism
    d = mechanism.dimension
    slopes, alpha = _coefficients(d, slope, intercept)
    covariates = _normal_rows(d, mean, scale, concentration)
    place = next(j for j in range(d + 1) if j not in mechanism.index)
    observe("z", RegressionRows(covariates, response, slopes, alpha, place=place), release)


@factory("rows or linear statistics")
def linear_regression(
    release: Release | Sketch,
    slope: dist.Distribution = dist.Normal(0, 5**0.5),
    intercept: dist.Distribution | None = None,
    sigma: dist.Distribution = dist.HalfNormal(1),
    mean: dist.Distribution | None = None,
    scale: dist.Distribution = dist.HalfNormal(2.5**0.5),
    concentration: float | None = 2.0,
    count: Any = None,
    exact: bool = False,
) -> None:
    """Model of a linear regression with normal covariates, from released rows (x, y) or sums of statistics.

    Returns model(release) with sites ``slopes``, ``intercept``, ``sigma``, ``mean``, ``scale``, ``root`` (of the
    correlations) and ``z``. The release has rows whose last column is the response, under ``LinearRecordsMechanism`` or
    other Gaussian noise (a sketch is possible), or statistics under ``LinearStatisticsMechanism``. Raises ValueError if
    the number of records is missing.

    Clipping is ignored: the bounds should contain (nearly) all records. Sketch a release of rows first
    (``release.sketch()``): the cost then does not depend on the number of records. Source: [KJKH] sec. 3.1.1 and 3.2.3;
    priors of Figure 8.

    Parameters
    ----------
    slope, sigma, scale : numpyro.distributions.Distribution
        Priors of each slope (default: normal with mean 0 and variance 5), of the standard deviation of y given x
        (default: half-normal with scale 1) and of each covariate (default: half-normal with scale √2.5).
    intercept, mean : numpyro.distributions.Distribution or None
        Priors of the intercept and of each covariate's mean. Default: None, both are 0.
    concentration : float or None
        As in `multivariate_normal`.
    count : float or Release, optional
        Number of records in a sum of statistics, if the mechanism does not state it. Or the release of a noisy count,
        whose noise the posterior then includes (site ``count``).
    exact : bool
        True if sums of statistics are Wishart and latent (site ``bartlett``). Default: they are normal, as they nearly
        are for many records. Only without ``mean`` and ``intercept``.
    """
    if exact and not (mean is None and intercept is None):
        raise ValueError("exact=True needs means of 0 (Wishart sums): leave out mean and intercept")
    mechanism: Any = release.mechanism
    statistics = isinstance(mechanism, LinearStatisticsMechanism)
    d = mechanism.covariates if statistics else mechanism.record_shape[0] - 1
    slopes, alpha = _coefficients(d, slope, intercept)
    residual = numpyro.sample("sigma", sigma)
    rows = linear_rows(_normal_rows(d, mean, scale, concentration), slopes, residual, alpha)
    law: dist.Distribution = rows
    if statistics:
        release, n = _sum_and_count(release, count)
        law = linear_statistics(rows, n, mechanism.off_diagonal)
        if exact:
            # non-centred: Bartlett's factor of a standard Wishart matrix does not depend on the parameters
            root = rows.scale_tril @ numpyro.sample("bartlett", dist.WishartCholesky(n, scale_tril=jnp.eye(d + 1)))
            sums = root @ root.T
            each = [packed(sums[:d, :d], mechanism.off_diagonal), sums[:d, d], sums[d:, d]]
            law = SumOfStatistics(jnp.concatenate(each), jnp.zeros((law.event_shape[0],) * 2), 1.0)
    observe("z", law, release)


@factory("rows or logistic statistics")
def logistic_regression(
    release: Release | Sketch,
    slope: dist.Distribution = dist.Normal(0, 5**0.5),
    intercept: dist.Distribution | None = None,
    mean: dist.Distribution | None = None,
    scale: dist.Distribution = dist.HalfNormal(2.5**0.5),
    concentration: float | None = 2.0,
    count: Any = None,
    expansion: Any = None,
) -> None:
    """Model of a logistic regression with normal covariates, from released rows (x, y) or sums of statistics.

    Returns model(release) with sites ``slopes``, ``intercept``, ``mean``, ``scale``, ``root`` (of the correlations) and
    ``z``. The release has rows whose last column is the label (0 or 1), under ``LogisticRecordsMechanism`` or with
    noise in the covariates only, or statistics under ``LogisticStatisticsMechanism``. Raises ValueError if the number
    of records is missing.

    Clipping is ignored: the bounds should contain (nearly) all records. Source: [KJKH] sec. 3.1.2 and 3.2.3; priors of
    Figure 8.

    Parameters
    ----------
    slope, intercept, mean, scale, concentration, count
        See `linear_regression`, also for the default priors.
    expansion : ldpbayes.likelihood.ChebyshevExpansion, optional
        For rows, a polynomial that replaces the sigmoid, as in [KJKH]. Default: the exact expectation, to 1e-8.
    """
    mechanism: Any = release.mechanism
    statistics = isinstance(mechanism, LogisticStatisticsMechanism)
    d = mechanism.covariates if statistics else mechanism.record_shape[0] - 1
    slopes, alpha = _coefficients(d, slope, intercept)
    covariates = _normal_rows(d, mean, scale, concentration)
    if statistics:
        release, n = _sum_and_count(release, count)
        law = logistic_statistics(covariates, slopes, alpha, count=n, off_diagonal=mechanism.off_diagonal)
    else:
        law = RegressionRows(covariates, dist.BernoulliLogits, slopes, alpha, expansion=expansion)
    observe("z", law, release)


@factory("labels")
def label_regression(
    release: Release,
    features: ArrayLike,
    slope: dist.Distribution = dist.Normal(0, 1),
    intercept: dist.Distribution = dist.Normal(0, 10),
    sigma: dist.Distribution | None = dist.HalfNormal(5),
    response: Callable[..., dist.Distribution] = dist.Normal,
) -> None:
    """Model of private labels with public features: a generalised linear regression.

    Returns model(release) with sites ``intercept``, ``slopes``, ``sigma`` and ``z``, for a release of labels, numbers
    or categories. Raises TypeError for a sketch, in which all labels have one law, and ValueError unless there is a
    label for each row of features. Source: [LH]; this model also includes the noise of the labels.

    Parameters
    ----------
    features : array (N, d)
        Features of each label, in the order of the release. Standardise them, since all slopes have one prior.
    slope, intercept : numpyro.distributions.Distribution
        Priors in the unit of the labels (or of the link of the response). Default: normal with mean 0 and standard
        deviations 1 and 10.
    sigma : numpyro.distributions.Distribution or None
        Prior of the second parameter of the response, None if it has none. Default: half-normal with scale 5.
    response : callable
        (linear predictor (N,), sigma) → law of the labels: ``dist.Normal``, ``dist.Laplace``, one of
        ``ldpbayes.learning`` such as ``log_normal_labels``, or your own.
    """
    features = jnp.asarray(features)
    if len(release) != len(features):
        raise ValueError(f"features are those of {len(features)} labels, but the release has {len(release)}")
    alpha = numpyro.sample("intercept", intercept)
    beta = numpyro.sample("slopes", slope.expand([features.shape[1]]).to_event(1))
    scale = () if sigma is None else (numpyro.sample("sigma", sigma),)
    observe("z", response(alpha + features @ beta, *scale), release)


def _sum_and_count(release: Any, count: Any) -> tuple[Any, Any]:
    """A release or sketch of statistics as one of a single sum, and the number of records in it. A `count` that was
    released with noise has a flat prior, and sites ``count`` and ``count_error``, the noise in scales.
    """
    mechanism: StatisticsMechanism = release.mechanism
    if isinstance(release, Release) and mechanism.trust_model == "local" and mechanism.count is None:
        total, values = mechanism.total, release.values
        release = Release(None, total(release.count), 1) if values is None else TotalSketch.of(values, mechanism)
    if release.mechanism.count is not None:
        return release, release.mechanism.count
    if count is None:
        advice = "make the mechanism with count=N, or give the model count=N, or count= the release of a noisy count"
        raise ValueError(f"the number of records N is missing: {advice}")
    if not isinstance(count, Release):
        return release, count
    noise: Any = getattr(count.mechanism, "noise", None)
    laws: dict[type, Any] = {Gaussian: dist.Normal, Laplace: dist.Laplace}
    if type(noise) not in laws or count.values is None or count.values.shape != (1,):
        raise ValueError(f"count must be a number, or a release of one with Gaussian or Laplace noise, got {count!r}")
    error = numpyro.sample("count_error", laws[type(noise)](0.0, 1.0))
    return release, numpyro.deterministic("count", count.values[0] - noise.resolution * error)
