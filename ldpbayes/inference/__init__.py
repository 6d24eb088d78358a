"""Posteriors: releases, the handlers that bring them into a NumPyro model, and `fit`."""

from ldpbayes.inference.fit import ConvergenceWarning, SketchWarning, fit
from ldpbayes.inference.handlers import observe, privatize
from ldpbayes.inference.release import Release, ReleaseWarning

__all__ = ["ConvergenceWarning", "Release", "ReleaseWarning", "SketchWarning", "fit", "observe", "privatize"]
