"""Logistic regression on records or statistics that were released with noise."""

from collections.abc import Callable
from typing import Any

import numpyro
import numpyro.distributions as dist

from ldpbayes import LogisticStatisticsMechanism, Release, Sketch, observe
from ldpbayes.likelihood import RegressionRows, logistic_statistics
from ldpbayes.models._kinds import check_kind
from ldpbayes.models._normal_covariates import normal_covariates, statistics_of
from ldpbayes.models._shown import shows_priors

__all__ = ["logistic_regression"]


@shows_priors()
def logistic_regression(
    slope: dist.Distribution = dist.Normal(0, 5**0.5),
    intercept: dist.Distribution | None = None,
    mean: dist.Distribution | None = None,
    scale: dist.Distribution = dist.HalfNormal(2.5**0.5),
    concentration: float | None = 2.0,
    count: Any = None,
    expansion: Any = None,
) -> Callable[[Release | Sketch], None]:
    """Posterior of a logistic regression whose covariates are normal, from released rows (x, y) or sums of statistics.

    Clipping is left out: the bounds should hold (nearly) all records.

    Parameters
    ----------
    slope : numpyro.distributions.Distribution
        Prior of each slope; by default normal with mean 0 and variance 5.
    intercept : numpyro.distributions.Distribution or None
        Prior of the intercept; by default None: there is none.
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
    expansion : ldpbayes.likelihood.ChebyshevExpansion, optional
        For rows, what stands for the sigmoid as in [KJKH]; by default its expectation is computed to 1e-8.

    Returns
    -------
    callable
        model(release) with sites ``slopes``, ``intercept``, ``mean``, ``scale``, ``root`` (of the correlations) and
        ``z``, for a release of rows whose last column is the label (0 or 1), under ``LogisticRecordsMechanism`` or with
        noise in the covariates only, or of statistics under ``LogisticStatisticsMechanism``; TypeError for other
        releases, ValueError where the number of records is missing.

    Notes
    -----
    Source: [KJKH] sec. 3.1.2 and 3.2.3; priors of Figure 8.
    """

    def model(release: Release | Sketch) -> None:
        check_kind("logistic_regression", release, "rows or logistic statistics")
        mechanism: Any = release.mechanism
        statistics = isinstance(mechanism, LogisticStatisticsMechanism)
        d = mechanism.covariates if statistics else mechanism.record_shape[0] - 1
        slopes = numpyro.sample("slopes", slope.expand([d]).to_event(1))
        alpha = 0.0 if intercept is None else numpyro.sample("intercept", intercept)
        covariates = normal_covariates(d, mean, scale, concentration)
        if not statistics:
            observe("z", RegressionRows(covariates, dist.BernoulliLogits, slopes, alpha, expansion=expansion), release)
            return
        total, n = statistics_of(release, count)
        law = logistic_statistics(covariates, slopes, alpha, count=n, off_diagonal=mechanism.off_diagonal)
        observe("z", law, total)

    return model
