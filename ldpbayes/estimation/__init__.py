"""Point estimates from releases, with standard errors from theory.

The estimates are M-estimates, frequencies of categories, and densities.
"""

from ldpbayes.estimation import losses
from ldpbayes.estimation._corrections import (
    Combined,
    Corrected,
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
from ldpbayes.estimation.estimates import Estimate
from ldpbayes.estimation.m_estimation import EstimationWarning, Estimator, MEstimationResult, m_estimate
from ldpbayes.estimation.priors import label_prior
from ldpbayes.estimation.smoothing import DensityEstimate, SmoothFamily, estimate_density
from ldpbayes.numerics.minimise import Ball, Box

__all__ = [
    "Ball",
    "Box",
    "Combined",
    "Corrected",
    "Correction",
    "DensityEstimate",
    "DoublyRandom",
    "Estimate",
    "EstimationWarning",
    "Estimator",
    "EvidenceCorrection",
    "FrequencyEstimate",
    "IndependentLaplaceCorrection",
    "Laplacians",
    "MEstimationResult",
    "Naive",
    "Oracle",
    "Points",
    "SmoothFamily",
    "SmoothedDoublyRandom",
    "SymmetricLaplaceCorrection",
    "estimate_density",
    "frequencies",
    "label_prior",
    "losses",
    "m_estimate",
]
