"""What the papers print: Tables 1 to 3 of [LCQ], and how many replications its and [LH]'s figures are of.

Tables of [LH] are in `liu_huang.data`. [KJKH] and [FWS] print no tables.
"""

import numpy as np

REPLICATIONS = 5000
"""Replications of a cell, as [LCQ] states."""
TRIALS = 10
"""Random splits behind a mean and standard deviation of [LH]."""


def _parsed(lines):
    """Root mean square errors (columns,) by cell and method; a line has a cell of some words, a method and figures."""
    table = {}
    for line in lines.strip().splitlines():
        words = line.split()
        at = next(i for i, word in enumerate(words) if word.isalpha())
        table.setdefault(" ".join(words[:at]), {})[words[at]] = np.array(words[at + 1 :], dtype=float)
    return table


def _by_function(table):
    """Cells of one function, which is a column of Table 1."""
    return {
        f"{name} {cell}": {method: figures[j : j + 1] for method, figures in by_method.items()}
        for cell, by_method in table.items()
        for j, name in enumerate(("relu", "indicator", "abs_sin"))
    }


TABLE_1 = _by_function(
    _parsed("""
500 0.1 0.94 oracle 0.012 0.023 0.015
500 0.1 0.94 sl 0.173 0.259 0.433
500 0.1 0.94 dr 0.105 0.183 0.170
500 0.05 1.4 oracle 0.013 0.022 0.013
500 0.05 1.4 sl 0.252 0.294 0.796
500 0.05 1.4 dr 0.184 0.326 0.358
1000 0.1 0.94 oracle 0.009 0.016 0.011
1000 0.1 0.94 sl 0.174 0.258 0.433
1000 0.1 0.94 dr 0.072 0.128 0.123
1000 0.05 1.4 oracle 0.009 0.016 0.010
1000 0.05 1.4 sl 0.250 0.294 0.796
1000 0.05 1.4 dr 0.131 0.230 0.257
""")
)
"""Means; a cell is a function, a count, and δ and λ as they are stated."""

TABLE_2 = _parsed("""
5000 0.5 oracle 0.105 0.107 0.106 0.107 0.103 0.105
5000 0.5 naive 0.728 0.730 0.731 0.728 0.730 0.731
5000 0.5 sl 0.270 0.265 0.262 0.267 0.270 0.271
5000 0.5 sdr 0.244 0.239 0.234 0.238 0.242 0.242
5000 0.5 dr 0.495 0.498 0.495 0.489 0.494 0.495
5000 1.0 oracle 0.104 0.103 0.107 0.111 0.098 0.102
5000 1.0 naive 0.905 0.901 0.913 0.907 0.907 0.911
5000 1.0 sl 0.610 0.618 0.586 0.600 0.609 0.622
5000 1.0 sdr 0.536 0.542 0.517 0.535 0.551 0.557
5000 1.0 dr 0.769 0.751 0.749 0.752 0.782 0.766
7500 0.5 oracle 0.086 0.087 0.085 0.086 0.088 0.086
7500 0.5 naive 0.727 0.729 0.728 0.728 0.730 0.730
7500 0.5 sl 0.217 0.218 0.215 0.216 0.218 0.217
7500 0.5 sdr 0.195 0.197 0.191 0.193 0.197 0.193
7500 0.5 dr 0.409 0.407 0.402 0.407 0.411 0.408
7500 1.0 oracle 0.086 0.087 0.085 0.086 0.088 0.086
7500 1.0 naive 0.910 0.912 0.911 0.910 0.912 0.913
7500 1.0 sl 0.522 0.528 0.518 0.518 0.518 0.516
7500 1.0 sdr 0.445 0.455 0.437 0.441 0.447 0.438
7500 1.0 dr 0.706 0.705 0.707 0.713 0.713 0.713
10000 0.5 oracle 0.074 0.075 0.075 0.073 0.075 0.076
10000 0.5 naive 0.728 0.729 0.728 0.729 0.729 0.728
10000 0.5 sl 0.190 0.189 0.184 0.187 0.187 0.186
10000 0.5 sdr 0.170 0.168 0.165 0.168 0.169 0.168
10000 0.5 dr 0.355 0.348 0.351 0.353 0.356 0.360
10000 1.0 oracle 0.074 0.075 0.075 0.073 0.075 0.076
10000 1.0 naive 0.913 0.914 0.913 0.914 0.913 0.913
10000 1.0 sl 0.460 0.461 0.452 0.459 0.461 0.458
10000 1.0 sdr 0.390 0.387 0.380 0.386 0.388 0.388
10000 1.0 dr 0.672 0.660 0.669 0.665 0.664 0.671
""")
"""Logistic regression, six coefficients; a cell is a count and λ."""

TABLE_3 = _parsed("""
2500 2.0 oracle 0.020 0.037 0.038 0.038 0.037 0.037 0.037
2500 2.0 naive 0.037 0.912 0.912 0.911 0.911 0.912 0.912
2500 2.0 scl 0.111 0.632 0.630 0.637 0.631 0.634 0.635
2500 2.0 dr 0.094 0.443 0.438 0.444 0.438 0.446 0.439
2500 2.5 oracle 0.020 0.037 0.038 0.038 0.037 0.037 0.037
2500 2.5 naive 0.037 0.943 0.942 0.942 0.942 0.943 0.942
2500 2.5 scl 0.143 0.738 0.731 0.734 0.733 0.737 0.735
2500 2.5 dr 0.100 0.499 0.503 0.503 0.512 0.507 0.504
5000 2.0 oracle 0.014 0.026 0.026 0.027 0.026 0.027 0.026
5000 2.0 naive 0.027 0.911 0.911 0.911 0.912 0.911 0.911
5000 2.0 scl 0.074 0.484 0.488 0.487 0.487 0.491 0.488
5000 2.0 dr 0.061 0.302 0.296 0.299 0.296 0.300 0.297
5000 2.5 oracle 0.014 0.026 0.026 0.027 0.026 0.027 0.026
5000 2.5 naive 0.028 0.942 0.942 0.942 0.942 0.942 0.942
5000 2.5 scl 0.101 0.636 0.638 0.636 0.640 0.638 0.637
5000 2.5 dr 0.065 0.375 0.376 0.377 0.374 0.380 0.375
7500 2.0 oracle 0.011 0.021 0.022 0.021 0.022 0.021 0.022
7500 2.0 naive 0.021 0.911 0.912 0.911 0.912 0.912 0.912
7500 2.0 scl 0.058 0.392 0.395 0.391 0.392 0.392 0.394
7500 2.0 dr 0.049 0.246 0.245 0.244 0.244 0.242 0.240
7500 2.5 oracle 0.011 0.021 0.022 0.021 0.022 0.021 0.022
7500 2.5 naive 0.022 0.942 0.942 0.942 0.942 0.942 0.942
7500 2.5 scl 0.081 0.556 0.563 0.558 0.559 0.558 0.560
7500 2.5 dr 0.052 0.301 0.304 0.300 0.300 0.303 0.296
""")
"""Median regression, the intercept and six slopes; a cell is a count and λ."""


def overall(figures):
    """Root mean square of the last six, as ``overall`` in the rows of `lu_chen_qiu`."""
    return float(np.sqrt(np.mean(np.asarray(figures)[-6:] ** 2)))
