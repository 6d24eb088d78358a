"""Closed forms of p(z | θ) by base law. Importing this registers them. Each file teaches one kind of base law: its
closed forms (`register_closed_form`) and its `Family` (masses, tails, cdf, kinks). The channel alone serves a law
without a file here.
"""

from ldpbayes.likelihood.closed_forms import _categories, _counts, _laplace, _normal, _small_families  # noqa: F401
from ldpbayes.likelihood.closed_forms._categories import Grouped
from ldpbayes.likelihood.closed_forms._regression_rows import ChebyshevExpansion, RegressionRows
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
