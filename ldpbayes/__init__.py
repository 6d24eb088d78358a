"""Probabilistic programming and inference for differentially private releases, on NumPyro and JAX.

Write an ordinary NumPyro model, name the mechanism that privatized the data, and get a posterior that carries both the
sampling noise and the privacy noise. Importing the package changes no JAX setting.
"""

from ldpbayes.estimation import frequencies
from ldpbayes.inference.fit import ConvergenceWarning, SketchWarning, fit
from ldpbayes.inference.handlers import observe, privatize
from ldpbayes.inference.release import Release
from ldpbayes.likelihood.privatized import Privatized
from ldpbayes.likelihood.sketch import Sketch
from ldpbayes.mechanisms import (
    GaussianMechanism,
    HadamardResponse,
    LaplaceMechanism,
    LocalHashing,
    Mechanism,
    OptimalUnaryEncoding,
    PureProtocol,
    RandomizedResponse,
    SubsetSelection,
    SymmetricUnaryEncoding,
    mechanism,
    mechanism_from_spec,
    mechanism_names,
    register,
)

__all__ = [
    "ConvergenceWarning",
    "GaussianMechanism",
    "HadamardResponse",
    "LaplaceMechanism",
    "LocalHashing",
    "Mechanism",
    "OptimalUnaryEncoding",
    "Privatized",
    "PureProtocol",
    "RandomizedResponse",
    "Release",
    "Sketch",
    "SketchWarning",
    "SubsetSelection",
    "SymmetricUnaryEncoding",
    "fit",
    "frequencies",
    "mechanism",
    "mechanism_from_spec",
    "mechanism_names",
    "observe",
    "privatize",
    "register",
]

__version__ = "0.1.0"
