"""NumPyro model factories for common releases; each is what you would write yourself with `ldpbayes.observe`.

A factory takes priors and returns a NumPyro model of a release or a sketch. Default priors are of the families that
[KJKH] uses, where it states them.
"""

from ldpbayes.models._clipped_counts import clipped_counts
from ldpbayes.models._clipped_exponential import clipped_exponential
from ldpbayes.models._clipped_gaussian import clipped_gaussian
from ldpbayes.models._hierarchical import hierarchical
from ldpbayes.models._label_regression import label_regression
from ldpbayes.models._linear_regression import linear_regression
from ldpbayes.models._logistic_regression import logistic_regression
from ldpbayes.models._multivariate_normal import multivariate_normal
from ldpbayes.models._oue_histogram import oue_histogram
from ldpbayes.models._perturbed_covariates import perturbed_covariates
from ldpbayes.models._regional_histograms import regional_histograms
from ldpbayes.models._warner import warner

__all__ = [
    "clipped_counts",
    "clipped_exponential",
    "clipped_gaussian",
    "hierarchical",
    "label_regression",
    "linear_regression",
    "logistic_regression",
    "multivariate_normal",
    "oue_histogram",
    "perturbed_covariates",
    "regional_histograms",
    "warner",
]
