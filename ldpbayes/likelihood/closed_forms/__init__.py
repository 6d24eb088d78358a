"""Marginal densities in closed form: one file a base family. Importing this registers them."""

import ldpbayes.likelihood.closed_forms._exponential
import ldpbayes.likelihood.closed_forms._multivariate_normal
import ldpbayes.likelihood.closed_forms._normal  # noqa: F401
from ldpbayes.likelihood.closed_forms._categorical import Grouped
from ldpbayes.likelihood.closed_forms._regression_rows import RegressionRows

__all__ = ["Grouped", "RegressionRows"]
