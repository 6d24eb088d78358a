"""Base families: what is taught of each is in one file. Importing this registers it.

Its closed forms (`register_closed_form`) and what the generic ways ask of it (`Family`: masses, tails, cdf, kinks). A
family without a file here is served by the generic ways alone.
"""

from ldpbayes.likelihood.closed_forms import (  # noqa: F401
    _beta,
    _binomial,
    _cauchy,
    _exponential,
    _laplace,
    _logistic,
    _mixture,
    _multivariate_normal,
    _negative_binomial,
    _noisy_counts,
    _normal,
    _piecewise,
    _poisson,
    _student_t,
    _transformed,
    _truncated,
    _zero_inflated,
)
from ldpbayes.likelihood.closed_forms._categorical import Grouped
from ldpbayes.likelihood.closed_forms._regression_response import ChebyshevExpansion
from ldpbayes.likelihood.closed_forms._regression_rows import RegressionRows
from ldpbayes.likelihood.closed_forms._statistics import (
    SumOfStatistics,
    linear_rows,
    linear_statistics,
    logistic_statistics,
)

__all__ = [
    "ChebyshevExpansion",
    "Grouped",
    "RegressionRows",
    "SumOfStatistics",
    "linear_rows",
    "linear_statistics",
    "logistic_statistics",
]
