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
    """Posterior of the means, standard deviations and correlations of the columns, perturbed or not.

    Returns model(release) with sites ``mean``, ``scale``, ``root`` (of the correlations, for two columns or more),
    ``z``; TypeError for anything but rows.

    With a response among the columns this is linear regression on perturbed covariates: coefficients follow from the
    covariance matrix. Clipping is left out: the bounds should hold (nearly) all records.

    Parameters
    ----------
    mean, scale : numpyro.distributions.Distribution
        Priors of each column's mean, by default standard normal, and standard deviation, by default half-normal.
    concentration : float or None
        Of the Lewandowski-Kurowicka-Joe prior of the correlations (1: uniform); None for independent columns.
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
    """Posterior of a regression whose covariates are normal and seen with noise only.

    Returns model(release) with sites ``slopes``, ``intercept``, ``mean``, ``scale``, ``root`` (of the correlations) and
    ``z``; the release has one column that is not perturbed, the response. TypeError for anything but rows.

    Start the chains from ``init_to_median``: from a narrow start, among rows that are released as they are, they may
    end in a mode in which a covariate does not vary.

    Parameters
    ----------
    slope, intercept : numpyro.distributions.Distribution
        Priors, by default normal with standard deviation 2; None for no intercept.
    mean, scale, concentration
        As in `multivariate_normal`, of the covariates.
    response : callable
        Linear predictor → distribution of the response; by default logistic regression.
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
    """Posterior of a linear regression whose covariates are normal, from released rows (x, y) or sums of statistics.

    Returns model(release) with sites ``slopes``, ``intercept``, ``sigma``, ``mean``, ``scale``, ``root`` (of the
    correlations) and ``z``, for a release or sketch of rows whose last column is the response, under
    ``LinearRecordsMechanism`` or other Gaussian noise, or of statistics under ``LinearStatisticsMechanism``; ValueError
    where the number of records is missing.

    Clipping is left out: the bounds should hold (nearly) all records. A release of rows is best sketched first
    (``release.sketch()``), after which the cost does not depend on the number of records. Source: [KJKH] sec. 3.1.1 and
    3.2.3; priors of Figure 8.

    Parameters
    ----------
    slope, sigma, scale : numpyro.distributions.Distribution
        Priors of each slope, by default normal with variance 5, of the standard deviation of y given x, by default
        half-normal with scale 1, and of that of each covariate, by default half-normal with scale √2.5.
    intercept, mean : numpyro.distributions.Distribution or None
        Priors of the intercept and of each covariate's mean; by default None: they are 0.
    concentration : float or None
        As in `multivariate_normal`.
    count : float or Release, optional
        Number of records in a sum of statistics, if the mechanism does not say it; or the release of a noisy count,
        whose noise is then in the posterior (site ``count``).
    exact : bool
        Whether sums of statistics are Wishart and latent (site ``bartlett``), not normal, as they nearly are for many
        records. Only without ``mean`` and ``intercept``.
    """
    if exact and not (mean is None and intercept is None):
        raise ValueError("exact sums are Wishart only where all means are 0: leave out mean and intercept")
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
    """Posterior of a logistic regression whose covariates are normal, from released rows (x, y) or sums of statistics.

    Returns model(release) with sites ``slopes``, ``intercept``, ``mean``, ``scale``, ``root`` (of the correlations) and
    ``z``, for a release of rows whose last column is the label (0 or 1), under ``LogisticRecordsMechanism`` or with
    noise in the covariates only, or of statistics under ``LogisticStatisticsMechanism``; ValueError where the number of
    records is missing.

    Clipping is left out: the bounds should hold (nearly) all records. Source: [KJKH] sec. 3.1.2 and 3.2.3; priors of
    Figure 8.

    Parameters
    ----------
    slope, intercept, mean, scale, concentration, count
        As in `linear_regression`, with its default priors.
    expansion : ldpbayes.likelihood.ChebyshevExpansion, optional
        For rows, what stands for the sigmoid as in [KJKH]; by default its expectation is computed to 1e-8.
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
    """Posterior of a generalised linear model of private labels given public features.

    Returns model(release) with sites ``intercept``, ``slopes``, ``sigma`` and ``z``, for a release of labels, be they
    numbers or categories; TypeError for a sketch, in which labels have one law, ValueError for features of another
    number of labels.

    Source: [LH], whose release of labels this analyses with its noise.

    Parameters
    ----------
    features : array (N, d)
        Of each label, in the order of the release; standardise them, since all slopes have one prior.
    slope, intercept : numpyro.distributions.Distribution
        Priors in the unit of the labels (or of the response's link); by default normal, of deviations 1 and 10.
    sigma : numpyro.distributions.Distribution or None
        Prior of the response's second parameter, None where it has none; by default half-normal with scale 5.
    response : callable
        Linear predictor (N,) and sigma → law of the labels: ``dist.Normal``, ``dist.Laplace``, one of
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
