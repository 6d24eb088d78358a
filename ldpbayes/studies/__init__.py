"""Studies: many simulated releases, many fits; long ones checkpoint and resume."""

from ldpbayes.studies._checkpoint import Checkpoint
from ldpbayes.studies._coverage import CoverageTable, ReplicatedFit, binomial_band, coverage
from ldpbayes.studies._design import SurveyDesign, design

__all__ = ["Checkpoint", "CoverageTable", "SurveyDesign", "ReplicatedFit", "binomial_band", "coverage", "design"]
