"""Simulation studies: plans of surveys, and checks of calibration.

`design` computes how precise the results of a survey will be. `sbc` fits a model to many simulated releases, and counts
how often posterior intervals contain the true parameters.
"""

from ldpbayes.studies._checkpoint import Checkpoint
from ldpbayes.studies._design import SurveyDesign, design
from ldpbayes.studies._replicated_fit import ReplicatedFit
from ldpbayes.studies._sbc import CalibrationStudy, sbc

__all__ = ["CalibrationStudy", "Checkpoint", "ReplicatedFit", "SurveyDesign", "design", "sbc"]
