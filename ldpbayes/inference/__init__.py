"""Posteriors: releases, the handlers that bring them into a NumPyro model, and `fit`."""

from ldpbayes.inference.fit import ConvergenceWarning, SketchWarning, fit
from ldpbayes.inference.handlers import observe, privatize
from ldpbayes.inference.release import Release

__all__ = ["ConvergenceWarning", "Release", "SketchWarning", "fit", "observe", "privatize"]
