"""Posterior inference: `observe` or `privatize` puts releases into a NumPyro model, and `fit` samples its posterior."""

from ldpbayes.inference._fit import fit
from ldpbayes.inference._handlers import observe, observe_jointly, privatize, sharded
from ldpbayes.inference._predict import predict
from ldpbayes.inference.approximations.polynomial import Expansion, expand
from ldpbayes.inference.approximations.surrogates import ExpansionWarning, LikelihoodWarning, SketchWarning
from ldpbayes.inference.chains import Sampler
from ldpbayes.inference.model import Model, factory
from ldpbayes.inference.result import ConvergenceWarning

__all__ = [
    "ConvergenceWarning",
    "Expansion",
    "ExpansionWarning",
    "LikelihoodWarning",
    "Model",
    "Sampler",
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
