"""Posterior inference: `observe` or `privatize` puts releases into a NumPyro model, and `fit` samples its posterior."""

from ldpbayes.inference._expansion import Expansion, expand
from ldpbayes.inference._fit import fit
from ldpbayes.inference._handlers import observe, privatize
from ldpbayes.inference._joint import observe_jointly
from ldpbayes.inference._predict import predict
from ldpbayes.inference._sharding import sharded
from ldpbayes.inference.model import Model, factory
from ldpbayes.inference.result import ConvergenceWarning
from ldpbayes.inference.surrogates import ExpansionWarning, LikelihoodWarning, SketchWarning

__all__ = [
    "ConvergenceWarning",
    "Expansion",
    "ExpansionWarning",
    "LikelihoodWarning",
    "Model",
    "SketchWarning",
    "expand",
    "factory",
    "fit",
    "observe",
    "observe_jointly",
    "predict",
    "privatize",
    "sharded",
]
