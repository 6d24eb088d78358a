"""Studies: many simulated releases, many fits; long ones checkpoint and resume."""

from ldpbayes.studies._checkpoint import Checkpoint
from ldpbayes.studies._coverage import Coverage, binomial_band, coverage
from ldpbayes.studies._estimators import Setting, replicate, replicator

__all__ = ["Checkpoint", "Coverage", "Setting", "binomial_band", "coverage", "replicate", "replicator"]
