"""Learning to predict labels from released labels: losses that know the mechanism, linear predictors, and networks.

Only `LabelPrivateRegressor` needs scikit-learn, which is imported when the class is first used.
"""

import importlib
from typing import Any

from ldpbayes._core.checks import require
from ldpbayes.learning._labels import LabelRelease, release_labels
from ldpbayes.learning._linear import CrossValidation, Evidence, LinearModel, LinearPredictor, Penalty, linear_fit
from ldpbayes.learning._network import Network, NetworkPredictor, network_fit, train_network
from ldpbayes.learning._objectives import (
    LearningWarning,
    MarginalLikelihood,
    Objective,
    SquaredError,
    UnbiasedLabels,
    bernoulli_labels,
    laplace_labels,
    log_normal_labels,
    normal_labels,
    poisson_labels,
    student_t_labels,
)
from ldpbayes.learning._prediction import Prediction

__all__ = [
    "CrossValidation",
    "Evidence",
    "LabelPrivateRegressor",
    "LabelRelease",
    "LearningWarning",
    "LinearModel",
    "LinearPredictor",
    "MarginalLikelihood",
    "Network",
    "NetworkPredictor",
    "Objective",
    "Penalty",
    "Prediction",
    "SquaredError",
    "UnbiasedLabels",
    "bernoulli_labels",
    "laplace_labels",
    "linear_fit",
    "log_normal_labels",
    "network_fit",
    "normal_labels",
    "poisson_labels",
    "release_labels",
    "student_t_labels",
    "train_network",
]


def __getattr__(name: str) -> Any:
    if name == "LabelPrivateRegressor":
        require("learning", "sklearn")
        return importlib.import_module("ldpbayes.learning._regressor").LabelPrivateRegressor
    raise AttributeError(f"module 'ldpbayes.learning' has no attribute {name!r}")
