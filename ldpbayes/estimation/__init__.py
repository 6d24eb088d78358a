"""M-estimators and other point estimates, with the standard errors that theory gives them."""

from ldpbayes.estimation import losses
from ldpbayes.estimation.estimator import Estimator, Fit
from ldpbayes.estimation.frequencies import Frequencies, frequencies
from ldpbayes.estimation.m_estimate import m_estimate
from ldpbayes.estimation.result import EstimationWarning, MEstimate
from ldpbayes.estimation.solve import Ball, Box

__all__ = [
    "Ball",
    "Box",
    "EstimationWarning",
    "Estimator",
    "Fit",
    "Frequencies",
    "MEstimate",
    "frequencies",
    "losses",
    "m_estimate",
]
