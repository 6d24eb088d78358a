"""Posteriors: releases, the handlers that bring them into a NumPyro model, and `fit`."""

from ldpbayes.inference._expand import expand
from ldpbayes.inference._expansion import Expansion
from ldpbayes.inference._fit import ConvergenceWarning, ExpansionWarning, SketchWarning, fit
from ldpbayes.inference._observe import observe
from ldpbayes.inference._privatize import privatize

__all__ = [
    "ConvergenceWarning",
    "Expansion",
    "ExpansionWarning",
    "SketchWarning",
    "expand",
    "fit",
    "observe",
    "privatize",
]
