"""M-estimators and other point estimates, with the standard errors that theory gives them."""

from ldpbayes.estimation import losses
from ldpbayes.estimation._corrections import (
    Combined,
    Correction,
    DoublyRandom,
    Evidence,
    IndependentLaplaceCorrection,
    Naive,
    Oracle,
    SmoothedDoublyRandom,
    SymmetricLaplaceCorrection,
)
from ldpbayes.estimation._frequencies import Frequencies, frequencies
from ldpbayes.estimation.estimates import Estimate
from ldpbayes.estimation.m_estimation import EstimationWarning, MEstimate, m_estimate
from ldpbayes.estimation.minimise import Ball, Box
from ldpbayes.estimation.priors import label_prior

__all__ = [
    "Ball",
    "Box",
    "Combined",
    "Correction",
    "DoublyRandom",
    "Estimate",
    "EstimationWarning",
    "Evidence",
    "Frequencies",
    "IndependentLaplaceCorrection",
    "MEstimate",
    "Naive",
    "Oracle",
    "SmoothedDoublyRandom",
    "SymmetricLaplaceCorrection",
    "frequencies",
    "label_prior",
    "losses",
    "m_estimate",
]
