"""Published tables with noise: draws or estimates of the cells before noise was added.

Several tables can be combined, for example a table by state and a table by county.
"""

from ldpbayes.data import NoisyTable
from ldpbayes.data.readers.census import read_measurements
from ldpbayes.tables._least_squares import TableEstimate, estimate_table
from ldpbayes.tables._true_table import true_table

__all__ = ["NoisyTable", "TableEstimate", "estimate_table", "read_measurements", "true_table"]
