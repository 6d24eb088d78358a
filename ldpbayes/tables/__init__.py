"""Published tables with noise: what the cells were before it, and what several tables say together."""

from ldpbayes.data import NoisyTable
from ldpbayes.tables._least_squares import LeastSquares, least_squares
from ldpbayes.tables._true_table import true_table

__all__ = ["LeastSquares", "NoisyTable", "least_squares", "true_table"]
