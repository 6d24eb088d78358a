"""Learning from released labels: objectives that know the mechanism, linear predictors and networks.

`LabelPrivateRegressor` needs scikit-learn, and comes when it is first asked for.
"""

import importlib
from typing import Any

from ldpbayes.learning._arguments import LearningWarning
from ldpbayes.learning._laws import bernoulli, laplace, log_normal, normal, poisson, student_t
from ldpbayes.learning._linear_fit import LinearModel, linear_fit
from ldpbayes.learning._linear_result import LinearFit
from ldpbayes.learning._network import Network, Trained, train_network
from ldpbayes.learning._network_fit import NetworkFit, network_fit
from ldpbayes.learning._objectives import MarginalLikelihood, Objective, SquaredError, UnbiasedLabels
from ldpbayes.learning._penalty import CrossValidation, Evidence, Fixed, Penalty

__all__ = [
    "CrossValidation",
    "Evidence",
    "Fixed",
    "LearningWarning",
    "LabelPrivateRegressor",
    "LinearFit",
    "LinearModel",
    "MarginalLikelihood",
    "Network",
    "NetworkFit",
    "Objective",
    "Penalty",
    "SquaredError",
    "Trained",
    "UnbiasedLabels",
    "bernoulli",
    "laplace",
    "linear_fit",
    "log_normal",
    "network_fit",
    "normal",
    "poisson",
    "student_t",
    "train_network",
]

_LAZY = {
    "LabelPrivateRegressor": "_regressor",
    "LabelRelease": "_release_labels",
    "release_labels": "_release_labels",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"ldpbayes.learning.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'ldpbayes.learning' has no attribute {name!r}")
