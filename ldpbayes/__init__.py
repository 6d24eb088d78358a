"""Probabilistic programming and inference for differentially private releases, on NumPyro and JAX.

Write an ordinary NumPyro model, name the mechanism that privatized the data, and get a posterior that carries both the
sampling noise and the privacy noise. Importing the package changes no JAX setting.
"""

from ldpbayes._warnings import LdpBayesWarning
from ldpbayes.compiled_code import keep_compiled_code
from ldpbayes.estimation import Ball, Box, EstimationWarning, MEstimate, frequencies, losses, m_estimate
from ldpbayes.inference.fit import ConvergenceWarning, SketchWarning, fit
from ldpbayes.inference.handlers import observe, privatize
from ldpbayes.inference.release import Release, ReleaseWarning
from ldpbayes.likelihood.privatized import Privatized
from ldpbayes.likelihood.regression import PrivatizedRegression
from ldpbayes.likelihood.sketch import Sketch
from ldpbayes.mechanisms import (
    GaussianMechanism,
    HadamardResponse,
    IndependentLaplaceMechanism,
    LaplaceMechanism,
    LocalHashing,
    Mechanism,
    OptimalUnaryEncoding,
    PureProtocol,
    RandomizedResponse,
    SubsetSelection,
    SymmetricLaplaceMechanism,
    SymmetricUnaryEncoding,
    ZeroInflatedLaplaceMechanism,
    mechanism,
    mechanism_from_spec,
    mechanism_names,
    register,
)

__all__ = [
    "Ball",
    "Box",
    "ConvergenceWarning",
    "EstimationWarning",
    "GaussianMechanism",
    "HadamardResponse",
    "IndependentLaplaceMechanism",
    "LaplaceMechanism",
    "LdpBayesWarning",
    "LocalHashing",
    "MEstimate",
    "Mechanism",
    "OptimalUnaryEncoding",
    "Privatized",
    "PrivatizedRegression",
    "PureProtocol",
    "RandomizedResponse",
    "Release",
    "ReleaseWarning",
    "Sketch",
    "SketchWarning",
    "SubsetSelection",
    "SymmetricLaplaceMechanism",
    "SymmetricUnaryEncoding",
    "ZeroInflatedLaplaceMechanism",
    "fit",
    "frequencies",
    "keep_compiled_code",
    "losses",
    "m_estimate",
    "mechanism",
    "mechanism_from_spec",
    "mechanism_names",
    "observe",
    "privatize",
    "register",
]

__version__ = "0.1.0"
