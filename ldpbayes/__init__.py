"""Probabilistic programming and inference for differentially private releases, on NumPyro and JAX.

Write an ordinary NumPyro model, name the mechanism that privatized the data, and get a posterior that carries both the
sampling noise and the privacy noise. Importing the package changes no JAX setting.

What an analyst types every day is here. What an extender needs (protocols, registries, result types) is in the modules
`ldpbayes.noise`, `mechanisms`, `privacy`, `data`, `likelihood`, `inference`, `estimation` and `bootstrap`; `learning`,
`models`, `studies` and `plots` come when they are first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ldpbayes import bootstrap, noise, privacy
from ldpbayes._compiled_code import keep_compiled_code
from ldpbayes._warnings import LdpBayesWarning
from ldpbayes.bootstrap import BootstrapEstimate, BootstrapWarning, parametric_bootstrap
from ldpbayes.data import Release, ReleaseWarning, Sketch
from ldpbayes.estimation import Ball, Box, EstimationWarning, MEstimate, frequencies, losses, m_estimate
from ldpbayes.inference import (
    ConvergenceWarning,
    Expansion,
    ExpansionWarning,
    SketchWarning,
    expand,
    fit,
    observe,
    privatize,
)
from ldpbayes.likelihood import Privatized, RegressionRows, register_closed_form
from ldpbayes.mechanisms import (
    AdditiveMechanism,
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    HadamardResponse,
    IndependentLaplaceMechanism,
    LaplaceMechanism,
    LinearRecordsMechanism,
    LinearStatisticsMechanism,
    LocalHashing,
    LogisticRecordsMechanism,
    LogisticStatisticsMechanism,
    Mechanism,
    OptimalUnaryEncoding,
    PureProtocol,
    RandomizedResponse,
    RPWithPrior,
    RROnBins,
    StaircaseMechanism,
    SubsetSelection,
    SymmetricLaplaceMechanism,
    SymmetricUnaryEncoding,
    UnbiasedRandomizer,
    ZeroInflatedLaplaceMechanism,
    mechanism,
    mechanism_from_spec,
    mechanism_names,
    register,
)

if TYPE_CHECKING:  # editors and type checkers see what comes when it is first asked for
    from ldpbayes import learning as learning
    from ldpbayes import models as models  # type: ignore[attr-defined]  # a folder that is installed there
    from ldpbayes import plots as plots
    from ldpbayes import studies as studies

__all__ = [
    "AdditiveMechanism",
    "Ball",
    "BootstrapEstimate",
    "BootstrapWarning",
    "Box",
    "ConvergenceWarning",
    "DiscreteGaussianMechanism",
    "DiscreteLaplaceMechanism",
    "EstimationWarning",
    "Expansion",
    "ExpansionWarning",
    "GaussianMechanism",
    "HadamardResponse",
    "IndependentLaplaceMechanism",
    "LaplaceMechanism",
    "LdpBayesWarning",
    "LinearRecordsMechanism",
    "LinearStatisticsMechanism",
    "LocalHashing",
    "LogisticRecordsMechanism",
    "LogisticStatisticsMechanism",
    "MEstimate",
    "Mechanism",
    "OptimalUnaryEncoding",
    "Privatized",
    "PureProtocol",
    "RPWithPrior",
    "RROnBins",
    "RandomizedResponse",
    "RegressionRows",
    "Release",
    "ReleaseWarning",
    "Sketch",
    "SketchWarning",
    "StaircaseMechanism",
    "SubsetSelection",
    "SymmetricLaplaceMechanism",
    "SymmetricUnaryEncoding",
    "UnbiasedRandomizer",
    "ZeroInflatedLaplaceMechanism",
    "bootstrap",
    "expand",
    "fit",
    "frequencies",
    "keep_compiled_code",
    "losses",
    "m_estimate",
    "mechanism",
    "mechanism_from_spec",
    "mechanism_names",
    "noise",
    "observe",
    "parametric_bootstrap",
    "privacy",
    "privatize",
    "register",
    "register_closed_form",
]

__version__ = "0.1.0"

_LAZY = ("learning", "models", "plots", "studies")
_MODULES = ("data", "estimation", "inference", "likelihood", "mechanisms")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"ldpbayes.{name}")
    raise AttributeError(f"module 'ldpbayes' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, *_LAZY, "__version__"})
