"""Posteriors: releases, the handlers that bring them into a NumPyro model, and `fit`."""

from ldpbayes.inference._fit import ExpansionWarning, fit
from ldpbayes.inference._handlers import observe, privatize
from ldpbayes.inference._mode_search import Expansion
from ldpbayes.inference._sketch_sampling import SketchWarning
from ldpbayes.inference._surrogates import expand
from ldpbayes.inference.result import ConvergenceWarning

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
