"""Simulation studies: plans of surveys (`design`), and checks of calibration on many simulated releases (`sbc`)."""

from ldpbayes.studies._checkpoint import Checkpoint
from ldpbayes.studies._design import SurveyDesign, design
from ldpbayes.studies._replicated_fit import ReplicatedFit
from ldpbayes.studies._sbc import CalibrationStudy, sbc

__all__ = ["CalibrationStudy", "Checkpoint", "ReplicatedFit", "SurveyDesign", "design", "sbc"]
