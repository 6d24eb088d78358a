"""Reproductions for Ferrando, Wang & Sheldon [FWS], *Parametric bootstrap for differentially private intervals*.

True parameters and bounds are in ``_settings``; `table` prints the rows of any figure.
"""

from ldpbayes.studies.papers.ferrando_wang_sheldon._appendix import appendix
from ldpbayes.studies.papers.ferrando_wang_sheldon._figure_1 import figure_1
from ldpbayes.studies.papers.ferrando_wang_sheldon._figure_2 import figure_2
from ldpbayes.studies.papers.ferrando_wang_sheldon._figure_3 import figure_3
from ldpbayes.studies.papers.ferrando_wang_sheldon._picture import draw_coverage
from ldpbayes.studies.papers.ferrando_wang_sheldon._scores import table

__all__ = ["appendix", "draw_coverage", "figure_1", "figure_2", "figure_3", "table"]
