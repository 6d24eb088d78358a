"""Published tables with noise: what the cells were before it, and what several tables say together."""

from ldpbayes.data import NoisyTable
from ldpbayes.tables._measurements import read_measurements

__all__ = ["NoisyTable", "read_measurements"]
