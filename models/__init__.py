"""NumPyro model factories for common releases; each is a model that you could write yourself with `ldpbayes.observe`.

A factory takes priors, which are NumPyro distributions, and returns a model of a release or a sketch. The model raises
TypeError for a release of another kind. Default priors are of the families that [KJKH] uses, where it states them.
"""

from ldpbayes.models._formula import regression
from ldpbayes.models._hierarchical import hierarchical
from ldpbayes.models._records import (
    clipped_counts,
    clipped_exponential,
    clipped_gaussian,
    oue_histogram,
    regional_histograms,
    warner,
)
from ldpbayes.models._regression import (
    label_regression,
    linear_regression,
    logistic_regression,
    multivariate_normal,
    perturbed_covariates,
)
from ldpbayes.models._small_areas import small_areas
from ldpbayes.models._smooth_density import smooth_density

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
    "regression",
    "small_areas",
    "smooth_density",
    "warner",
]
