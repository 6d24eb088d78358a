"""Functions that return NumPyro models for common kinds of releases (model factories).

A factory takes priors, which are NumPyro distributions, and returns a model of a release or a sketch, for
`ldpbayes.fit`. The model raises TypeError if the release is of another kind, such as numbers instead of categories. The
docstrings list the sites (named variables) of each model; ``z`` has the released values. You can write such models
yourself with `ldpbayes.observe`. If [KJKH] states families of priors, the default priors are of these families.
"""

from ldpbayes.models._experiment import experiment
from ldpbayes.models._formula import regression
from ldpbayes.models._groups import hierarchical, regional_histograms
from ldpbayes.models._records import (
    clipped_counts,
    clipped_exponential,
    clipped_gaussian,
    oue_histogram,
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
from ldpbayes.models._surveys import (
    always_no,
    anchored_crosswise,
    cheating_detection,
    stochastic_lie_detector,
)

__all__ = [
    "always_no",
    "anchored_crosswise",
    "cheating_detection",
    "clipped_counts",
    "clipped_exponential",
    "clipped_gaussian",
    "experiment",
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
    "stochastic_lie_detector",
    "warner",
]
