"""Linear regression on records or statistics that were released with Gaussian noise."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from ldpbayes import LinearStatisticsMechanism, Release, Sketch, observe
from ldpbayes.likelihood import SumOfStatistics, linear_rows, linear_statistics
from ldpbayes.models._kinds import check_kind
from ldpbayes.models._normal_covariates import normal_covariates, statistics_of
from ldpbayes.models._shown import shows_priors
from ldpbayes.numerics._products import packed

__all__ = ["linear_regression"]


@shows_priors()
def linear_regression(
    slope: dist.Distribution = dist.Normal(0, 5**0.5),
    intercept: dist.Distribution | None = None,
    sigma: dist.Distribution = dist.HalfNormal(1),
    mean: dist.Distribution | None = None,
    scale: dist.Distribution = dist.HalfNormal(2.5**0.5),
    concentration: float | None = 2.0,
    count: Any = None,
    exact: bool = False,
) -> Callable[[Release | Sketch], None]:
    """Posterior of a linear regression whose covariates are normal, from released rows (x, y) or sums of statistics.

    Clipping is left out: the bounds should hold (nearly) all records. A release of rows is best sketched first
    (``release.sketch()``), after which the cost does not depend on the number of records.

    Parameters
    ----------
    slope : numpyro.distributions.Distribution
        Prior of each slope; by default normal with mean 0 and variance 5.
    intercept : numpyro.distributions.Distribution or None
        Prior of the intercept; by default None: there is none.
    sigma : numpyro.distributions.Distribution
        Prior of the standard deviation of y given x; by default half-normal with scale 1.
    mean : numpyro.distributions.Distribution or None
        Prior of each covariate's mean; by default None: all are 0.
    scale : numpyro.distributions.Distribution
        Prior of each covariate's standard deviation; by default half-normal with scale √2.5.
    concentration : float or None
        Of the correlations' prior, that of Lewandowski, Kurowicka and Joe, by default 2, which leans towards none; None
        for independent covariates.
    count : float or Release, optional
        Number of records that a statistic is the sum of, where the mechanism does not say it; or the release of a noisy
        count, whose noise is then in the posterior (site ``count``).
    exact : bool
        For statistics, take the sums to be Wishart, as they are, and not normal, as they nearly are for many records:
        then they are latent variables (site ``bartlett``, a root of a standard Wishart matrix). Only without ``mean``
        and ``intercept``.

    Returns
    -------
    callable
        model(release) with sites ``slopes``, ``intercept``, ``sigma``, ``mean``, ``scale``, ``root`` (of the
        correlations) and ``z``, for a release or sketch of rows whose last column is the response, under
        ``LinearRecordsMechanism`` or other Gaussian noise, or of statistics under ``LinearStatisticsMechanism``;
        TypeError for other releases, ValueError where the number of records is missing.

    Notes
    -----
    Source: [KJKH] sec. 3.1.1 and 3.2.3; priors of Figure 8.
    """
    if exact and not (mean is None and intercept is None):
        raise ValueError("exact sums are Wishart only where all means are 0: leave out mean and intercept")

    def model(release: Release | Sketch) -> None:
        check_kind("linear_regression", release, "rows or linear statistics")
        mechanism: Any = release.mechanism
        statistics = isinstance(mechanism, LinearStatisticsMechanism)
        d = mechanism.covariates if statistics else mechanism.record_shape[0] - 1
        slopes = numpyro.sample("slopes", slope.expand([d]).to_event(1))
        alpha = 0.0 if intercept is None else numpyro.sample("intercept", intercept)
        residual = numpyro.sample("sigma", sigma)
        rows = linear_rows(normal_covariates(d, mean, scale, concentration), slopes, residual, alpha)
        if not statistics:
            observe("z", rows, release)
            return
        total, n = statistics_of(release, count)
        law = linear_statistics(rows, n, mechanism.off_diagonal)
        if exact:
            # non-centred: Bartlett's factor of a standard Wishart matrix does not depend on the parameters
            root = rows.scale_tril @ numpyro.sample("bartlett", dist.WishartCholesky(n, scale_tril=jnp.eye(d + 1)))
            sums = root @ root.T
            each = [packed(sums[:d, :d], mechanism.off_diagonal), sums[:d, d], sums[d:, d]]
            law = SumOfStatistics(jnp.concatenate(each), jnp.zeros((law.event_shape[0],) * 2), 1.0)
        observe("z", law, total)

    return model
