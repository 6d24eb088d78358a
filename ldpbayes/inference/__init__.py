"""Posteriors: releases, the handlers that bring them into a NumPyro model, and `fit`."""

from ldpbayes.data import Release, ReleaseWarning
from ldpbayes.inference._fit import ConvergenceWarning, SketchWarning, fit
from ldpbayes.inference._observe import observe
from ldpbayes.inference._privatize import privatize

__all__ = ["ConvergenceWarning", "Release", "ReleaseWarning", "SketchWarning", "fit", "observe", "privatize"]
