"""Published tables with noise: the cells before noise was added, and what several tables say together."""

from ldpbayes.data import NoisyTable
from ldpbayes.tables._least_squares import TableEstimate, estimate_table
from ldpbayes.tables._measurements import read_measurements
from ldpbayes.tables._true_table import true_table

__all__ = ["NoisyTable", "TableEstimate", "estimate_table", "read_measurements", "true_table"]
