"""Reproductions for Liu & Huang [LH], *RPWithPrior: label differential privacy in regression*.

Tables 1, 2 and 4 (`table_1` of `communities`, `table_2` of a local copy that `criteo` reads, `table_4` of `california`)
with columns for learning that knows the noise, and the run times of Table 6 (`run_times`).
"""

from ldpbayes.studies.papers.liu_huang._criteo import criteo
from ldpbayes.studies.papers.liu_huang._data import california, communities
from ldpbayes.studies.papers.liu_huang._picture import draw_errors
from ldpbayes.studies.papers.liu_huang._runtimes import run_times
from ldpbayes.studies.papers.liu_huang._tables import COLUMNS, Table, table_1, table_2, table_4

__all__ = [
    "COLUMNS",
    "Table",
    "california",
    "communities",
    "criteo",
    "draw_errors",
    "run_times",
    "table_1",
    "table_2",
    "table_4",
]
