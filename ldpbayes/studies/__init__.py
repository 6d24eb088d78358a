"""Studies: many simulated releases, many fits; long ones checkpoint and resume."""

from ldpbayes.studies._checkpoint import Checkpoint
from ldpbayes.studies._coverage import CoverageTable, ReplicatedFit, binomial_band, coverage

__all__ = ["Checkpoint", "CoverageTable", "ReplicatedFit", "binomial_band", "coverage"]
