"""Corrected losses: one file a method of estimating the loss of original records from released ones."""

from ldpbayes.estimation.corrections._combined import Combined
from ldpbayes.estimation.corrections._correction import Correction
from ldpbayes.estimation.corrections._doubly_random import DoublyRandom
from ldpbayes.estimation.corrections._evidence import Corrected, Evidence, Laplacians, Points
from ldpbayes.estimation.corrections._independent_laplace import IndependentLaplaceCorrection
from ldpbayes.estimation.corrections._naive import Naive
from ldpbayes.estimation.corrections._oracle import Oracle
from ldpbayes.estimation.corrections._smoothed_doubly_random import SmoothedDoublyRandom
from ldpbayes.estimation.corrections._symmetric_laplace import SymmetricLaplaceCorrection

__all__ = [
    "Combined",
    "Corrected",
    "Correction",
    "DoublyRandom",
    "Evidence",
    "IndependentLaplaceCorrection",
    "Laplacians",
    "Naive",
    "Oracle",
    "Points",
    "SmoothedDoublyRandom",
    "SymmetricLaplaceCorrection",
]
