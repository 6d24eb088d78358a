"""Models of normal rows, and regressions: from records, statistics or labels that were released."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from ldpbayes import Release, Sketch, observe
from ldpbayes.inference import factory
from ldpbayes.likelihood import RegressionRows, linear_rows, linear_statistics, logistic_statistics
from ldpbayes.mechanisms import LinearStatisticsMechanism, LogisticStatisticsMechanism, StatisticsMechanism
from ldpbayes.noise import Gaussian, Laplace


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


@factory("rows", summary="Model of normal rows: means, standard deviations and correlations of the columns.")
def multivariate_normal(
    release: Release | Sketch,
    mean: dist.Distribution = dist.Normal(0, 1),
    scale: dist.Distribution = dist.HalfNormal(1),
    concentration: float | None = 2.0,
) -> None:
    """Model of rows with a multivariate normal law, whose columns were released with or without noise.

    Returns ``model(release)`` with sites ``mean`` and ``scale`` (the means and standard deviations of the original
    columns), ``root`` (the Cholesky factor of their correlation matrix, for two columns or more) and ``z``. The
    coefficients of a linear regression on covariates with noise follow from the covariance matrix of the columns. The
    model ignores clipping, so choose clipping bounds that contain nearly all records.

    Parameters
    ----------
    mean, scale : numpyro.distributions.Distribution
        Priors of each column, in its unit. Default: standard normal, and half-normal with scale 1.
    concentration : float or None
        Concentration of the LKJ (Lewandowski-Kurowicka-Joe) prior of the correlation matrix, which is uniform with 1.
        With None, the columns are independent. Default: 2.
    """
    observe("z", _normal_rows(release.mechanism.record_shape[0], mean, scale, concentration), release)


@factory("rows", summary="Model of a regression whose covariates are released with noise, and the response without.")
def perturbed_covariates(
    release: Release | Sketch,
    slope: dist.Distribution = dist.Normal(0, 2),
    intercept: dist.Distribution | None = dist.Normal(0, 2),
    mean: dist.Distribution = dist.Normal(0, 1),
    scale: dist.Distribution = dist.HalfNormal(1),
    concentration: float | None = 2.0,
    response: Callable[[Any], dist.Distribution] = dist.BernoulliLogits,
) -> None:
    """Model of a regression in which the covariates are released with noise, and the response without noise.

    Returns ``model(release)`` of rows, in which exactly one column, the response, has no noise. Sites: ``slopes``,
    ``intercept``, ``z``, and ``mean``, ``scale`` and ``root`` of the covariates, as in `multivariate_normal`. If some
    rows are released without noise, call `fit` with ``init_strategy=init_to_median``. Otherwise, chains may stay in a
    wrong mode, in which a covariate does not vary.

    Parameters
    ----------
    slope, intercept, mean, scale, concentration
        Priors of each slope and of the intercept (None for no intercept), by default normal with mean 0 and standard
        deviation 2, and of the covariates, as in `multivariate_normal`.
    response : callable
        A function from the linear predictor to the law of the response, by default that of a logistic regression.
    """
    mechanism: Any = release.mechanism
    d = mechanism.dimension
    slopes, alpha = _coefficients(d, slope, intercept)
    covariates = _normal_rows(d, mean, scale, concentration)
    place = next(j for j in range(d + 1) if j not in mechanism.index)
    observe("z", RegressionRows(covariates, response, slopes, alpha, place=place), release)


@factory(
    "rows or linear statistics",
    summary="Model of a linear regression of y on normal covariates x, of rows (x, y) or sums.",
)
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
    """Model of a linear regression of y on normal covariates x, from released rows (x, y) or sums of statistics of rows
    ([KJKH] sec. 3.1.1 and 3.2.3; priors of Figure 8).

    Returns ``model(release)`` with sites ``slopes``, ``intercept``, ``sigma`` (the standard deviation of y given x),
    ``z``, and ``mean``, ``scale`` and ``root`` of the covariates, as in `multivariate_normal`. The release has rows
    whose last column is y, under ``LinearRecordsMechanism`` or other Gaussian noise (a sketch of the rows is faster),
    or sums of products such as Σ x y, under ``LinearStatisticsMechanism``. Raises ValueError if the number of records
    in a sum is not known. The model ignores clipping, so choose clipping bounds that contain nearly all records.

    Parameters
    ----------
    slope, sigma, intercept, mean, scale, concentration
        Priors of each slope, of ``sigma``, of the intercept and the mean of each covariate (None for 0), and of the
        scales and correlations of the covariates, as in `multivariate_normal`. Default: normal with mean 0 and variance
        5, half-normal with scale 1, None, None, half-normal with scale √2.5, and 2.
    count : float or Release, optional
        Only for a sum of statistics whose mechanism does not state the number of records: this number, or a release of
        it with noise. The posterior then has a site ``count`` for the true number.
    exact : bool
        Only for a sum of statistics: True for the exact law of the sum before noise, a Wishart law. This needs
        ``mean=None`` and ``intercept=None``, and adds a site ``bartlett``. False for a normal law, which is nearly
        exact for many records.
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
            sums = linear_statistics(dist.MultivariateNormal(scale_tril=root), 1.0, mechanism.off_diagonal).mean
            no_spread = jnp.zeros((len(sums),) * 2)  # besides that of the noise
            law = dist.MultivariateNormal(sums, scale_tril=no_spread, validate_args=False)
    observe("z", law, release)


@factory(
    "rows or logistic statistics",
    summary="Model of a logistic regression of y on normal covariates x, of rows (x, y) or sums.",
)
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
    """Model of a logistic regression of y on normal covariates x, from released rows (x, y) or sums of statistics of
    rows ([KJKH] sec. 3.1.2 and 3.2.3; priors of Figure 8).

    Returns ``model(release)`` with the sites of `linear_regression` except ``sigma``. The release has rows whose last
    column is the label y (0 or 1), under ``LogisticRecordsMechanism``, or with noise only in x, or sums of statistics,
    under ``LogisticStatisticsMechanism``. Raises ValueError if the number of records in a sum is not known. The model
    ignores clipping, so choose clipping bounds that contain nearly all records.

    Parameters
    ----------
    slope, intercept, mean, scale, concentration, count
        Priors, and the number of records in a sum, as in `linear_regression`.
    expansion : ldpbayes.likelihood.ChebyshevExpansion, optional
        Only for rows: a polynomial that replaces the sigmoid function, as in [KJKH]. Default: none, for an accuracy of
        1e-8.
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


@factory("labels", summary="Model of a regression of private labels on public features (--features).")
def label_regression(
    release: Release,
    features: ArrayLike,
    slope: dist.Distribution = dist.Normal(0, 1),
    intercept: dist.Distribution = dist.Normal(0, 10),
    sigma: dist.Distribution | None = dist.HalfNormal(5),
    response: Callable[..., dist.Distribution] = dist.Normal,
) -> None:
    """Model of a regression of private labels, which are numbers or categories, on public features. Unlike [LH], the
    model includes the noise of the labels.

    Returns ``model(release)`` with sites ``intercept``, ``slopes``, ``sigma`` and ``z``. Raises TypeError for a sketch,
    because each label has its own features, and ValueError if the numbers of labels and of rows of ``features`` differ.

    Parameters
    ----------
    features : array (N, d)
        The d features of each of N labels, in the order of the release. Standardise the features, because all slopes
        have the same prior.
    slope, intercept, sigma
        Priors of each slope and of the intercept, in the unit of the linear predictor, and of the second argument of
        ``response``, such as a standard deviation (None if it has none). Default: standard normal, normal with mean 0
        and standard deviation 10, and half-normal with scale 5.
    response : callable
        A function from the linear predictor (N,) and ``sigma`` to the law of the labels, such as ``dist.Normal``,
        ``dist.Laplace`` or ``dist.LogNormal``.
    """
    features = jnp.asarray(features)
    if len(release) != len(features):
        raise ValueError(f"features must have one row for each label, got {len(features)} rows, {len(release)} labels")
    alpha = numpyro.sample("intercept", intercept)
    beta = numpyro.sample("slopes", slope.expand([features.shape[1]]).to_event(1))
    scale = () if sigma is None else (numpyro.sample("sigma", sigma),)
    observe("z", response(alpha + features @ beta, *scale), release)


def _sum_and_count(release: Any, count: Any) -> tuple[Any, Any]:
    """A single sum of statistics, and the number of its records: a site with a flat prior if the number is noisy."""
    mechanism: StatisticsMechanism = release.mechanism
    if isinstance(release, Release) and mechanism.trust_model == "local" and mechanism.count is None:
        planned = release.values is None
        release = Release(None, mechanism.total(release.count), 1) if planned else release.sketch()
    if release.mechanism.count is not None:
        return release, release.mechanism.count
    if count is None:
        advice = "state the count of the mechanism, or give the model a count: N, or the release of a noisy count"
        raise ValueError(f"the number of records N is missing: {advice}")
    if not isinstance(count, Release):
        return release, count
    noise: Any = count.mechanism.noise
    laws: dict[type, Any] = {Gaussian: dist.Normal, Laplace: dist.Laplace}
    if type(noise) not in laws or count.values is None or count.values.shape != (1,):
        raise ValueError(f"count must be a number, or the release of one with Gaussian or Laplace noise, got {count!r}")
    error = numpyro.sample("count_error", laws[type(noise)](0.0, 1.0))
    return release, numpyro.deterministic("count", count.values[0] - noise.resolution * error)
