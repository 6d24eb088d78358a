"""Reproductions for Kulkarni et al. [KJKH], *Locally differentially private Bayesian inference*.

Histograms: Figures 2, 3 and 9; Figure 10 is `ldpbayes.studies.coverage` of `ldpbayes.models.oue_histogram`.
Regression: Figures 4 (`linear_regression_error` of `wine`), 5 (`logistic_regression_auc` of `adult`) and 6
(`expansion_error`), with the baseline `ldp_sgd`; and `regression_coverage`.
"""

from ldpbayes.studies.papers.kulkarni_et_al._coverage import regression_coverage
from ldpbayes.studies.papers.kulkarni_et_al._expansion import expansion_error
from ldpbayes.studies.papers.kulkarni_et_al._histograms import histogram_distance, histogram_error, kosarak_records
from ldpbayes.studies.papers.kulkarni_et_al._ldp_sgd import ldp_sgd
from ldpbayes.studies.papers.kulkarni_et_al._regression import linear_regression_error, logistic_regression_auc
from ldpbayes.studies.papers.kulkarni_et_al._tables import adult, wine

__all__ = [
    "adult",
    "expansion_error",
    "histogram_distance",
    "histogram_error",
    "kosarak_records",
    "ldp_sgd",
    "linear_regression_error",
    "logistic_regression_auc",
    "regression_coverage",
    "wine",
]
