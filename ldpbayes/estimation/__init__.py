"""M-estimators and other point estimates, with the standard errors that theory gives them."""

from ldpbayes.estimation import losses
from ldpbayes.estimation._estimate import Contrast, Estimate
from ldpbayes.estimation._estimator import Estimator, Fit
from ldpbayes.estimation._frequencies import Frequencies, frequencies
from ldpbayes.estimation._label_prior import label_prior
from ldpbayes.estimation._m_estimate import m_estimate
from ldpbayes.estimation._result import EstimationWarning, MEstimate
from ldpbayes.estimation._solve import Ball, Box
from ldpbayes.estimation.corrections import (
    Combined,
    Corrected,
    Correction,
    DoublyRandom,
    Evidence,
    IndependentLaplaceCorrection,
    Laplacians,
    Naive,
    Oracle,
    Points,
    SmoothedDoublyRandom,
    SymmetricLaplaceCorrection,
)

__all__ = [
    "Ball",
    "Box",
    "Combined",
    "Contrast",
    "Corrected",
    "Correction",
    "DoublyRandom",
    "Estimate",
    "EstimationWarning",
    "Estimator",
    "Evidence",
    "Fit",
    "Frequencies",
    "IndependentLaplaceCorrection",
    "Laplacians",
    "MEstimate",
    "Naive",
    "Oracle",
    "Points",
    "SmoothedDoublyRandom",
    "SymmetricLaplaceCorrection",
    "frequencies",
    "label_prior",
    "losses",
    "m_estimate",
]
