"""Published tables with noise, one or several: draws or estimates of the cells before noise was added."""

from ldpbayes.data import NoisyTable
from ldpbayes.data.readers.census import read_measurements
from ldpbayes.tables._least_squares import TableEstimate, estimate_table
from ldpbayes.tables._true_table import true_table

__all__ = ["NoisyTable", "TableEstimate", "estimate_table", "read_measurements", "true_table"]
