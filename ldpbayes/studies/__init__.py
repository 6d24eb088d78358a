"""Simulation studies: the plan of a survey, and calibration over many simulated releases, with checkpoints."""

from ldpbayes.studies._checkpoint import Checkpoint
from ldpbayes.studies._design import SurveyDesign, design
from ldpbayes.studies._replicated_fit import ReplicatedFit
from ldpbayes.studies._sbc import CalibrationStudy, binomial_band, sbc

__all__ = ["CalibrationStudy", "Checkpoint", "ReplicatedFit", "SurveyDesign", "binomial_band", "design", "sbc"]
