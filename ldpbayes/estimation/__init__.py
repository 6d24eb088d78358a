"""Estimates from releases, with standard errors from theory: M-estimates, frequencies of categories, densities, and
predictors of released labels.

Only `LabelPrivateRegressor` needs scikit-learn, which is imported when the class is first used.
"""

import importlib
from typing import Any

from ldpbayes._core.checks import require
from ldpbayes.estimation import losses
from ldpbayes.estimation._corrections import (
    Combined,
    Correction,
    DoublyRandom,
    EvidenceCorrection,
    IndependentLaplaceCorrection,
    Laplacians,
    Naive,
    Oracle,
    Points,
    SmoothedDoublyRandom,
    SymmetricLaplaceCorrection,
)
from ldpbayes.estimation._frequencies import FrequencyEstimate, frequencies
from ldpbayes.estimation._labels import (
    LabelRelease,
    MarginalLikelihood,
    Objective,
    Prediction,
    SquaredError,
    UnbiasedLabels,
    label_prior,
    release_labels,
)
from ldpbayes.estimation._linear import CrossValidation, Evidence, LinearPredictor, Penalty, linear_fit
from ldpbayes.estimation._network import Network, NetworkPredictor, network_fit, train_network
from ldpbayes.estimation._sparse import SparseEstimate, SparsePrior, sparse_posterior
from ldpbayes.estimation.estimates import Estimate, EstimationWarning
from ldpbayes.estimation.m_estimation import Estimator, MEstimationResult, m_estimate
from ldpbayes.estimation.smoothing import DensityEstimate, SmoothFamily, estimate_density
from ldpbayes.numerics.minimise import Ball, Box

__all__ = [
    "Ball",
    "Box",
    "Combined",
    "Correction",
    "CrossValidation",
    "DensityEstimate",
    "DoublyRandom",
    "Estimate",
    "EstimationWarning",
    "Estimator",
    "Evidence",
    "EvidenceCorrection",
    "FrequencyEstimate",
    "IndependentLaplaceCorrection",
    "LabelPrivateRegressor",
    "LabelRelease",
    "Laplacians",
    "LinearPredictor",
    "MEstimationResult",
    "MarginalLikelihood",
    "Naive",
    "Network",
    "NetworkPredictor",
    "Objective",
    "Oracle",
    "Penalty",
    "Points",
    "Prediction",
    "SmoothFamily",
    "SparseEstimate",
    "SparsePrior",
    "SmoothedDoublyRandom",
    "SquaredError",
    "SymmetricLaplaceCorrection",
    "UnbiasedLabels",
    "estimate_density",
    "frequencies",
    "label_prior",
    "linear_fit",
    "losses",
    "m_estimate",
    "network_fit",
    "release_labels",
    "sparse_posterior",
    "train_network",
]


def __getattr__(name: str) -> Any:
    if name == "LabelPrivateRegressor":
        require("learning", "sklearn")
        return importlib.import_module("ldpbayes.estimation._regressor").LabelPrivateRegressor
    raise AttributeError(f"module 'ldpbayes.estimation' has no attribute {name!r}")
