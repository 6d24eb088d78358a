"""Statistical inference from differentially private releases, with NumPyro and JAX.

You write an ordinary NumPyro model and name the mechanism that made the released values. The package computes the
posterior. The posterior includes the uncertainty from sampling and the uncertainty from the privacy noise.

The names on this page are for everyday use, after ``import ldpbayes as ldp``. All other names are in submodules:
`ldpbayes.noise`, `mechanisms`, `privacy`, `data`, `likelihood`, `inference`, `estimation`, `bootstrap`, `functionals`,
`tables`, `opendp`, `secure`, `models`, `studies` and `plots`. To import the package changes no setting of
JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"  # the only place: setuptools and the documentation read it here

if TYPE_CHECKING:  # editors and type checkers see all names; others are imported where they are first used
    from ldpbayes import bootstrap as bootstrap
    from ldpbayes import data as data
    from ldpbayes import estimation as estimation
    from ldpbayes import inference as inference
    from ldpbayes import likelihood as likelihood
    from ldpbayes import mechanisms as mechanisms
    from ldpbayes import models as models  # type: ignore[attr-defined]  # a folder that is installed there
    from ldpbayes import noise as noise
    from ldpbayes import plots as plots
    from ldpbayes import privacy as privacy
    from ldpbayes import secure as secure
    from ldpbayes import studies as studies
    from ldpbayes import tables as tables
    from ldpbayes._core.checks import LdpBayesWarning
    from ldpbayes._core.running import keep_compiled_code
    from ldpbayes.bootstrap import parametric_bootstrap as parametric_bootstrap
    from ldpbayes.data import NoisyTable, Release, Sketch
    from ldpbayes.data.readers import opendp as opendp
    from ldpbayes.estimation import frequencies, losses, m_estimate
    from ldpbayes.inference import expand, fit, observe, observe_jointly, predict, privatize
    from ldpbayes.laws import functionals as functionals
    from ldpbayes.likelihood import Privatized
    from ldpbayes.mechanisms import (
        DiscreteGaussianMechanism,
        DiscreteLaplaceMechanism,
        GaussianMechanism,
        HadamardResponse,
        LaplaceMechanism,
        LocalHashing,
        OptimalUnaryEncoding,
        RandomizedResponse,
        RPWithPrior,
        RROnBins,
        SubsetSelection,
        SymmetricLaplaceMechanism,
        SymmetricUnaryEncoding,
        ZeroInflatedLaplaceMechanism,
    )

__all__ = [
    "DiscreteGaussianMechanism",
    "DiscreteLaplaceMechanism",
    "GaussianMechanism",
    "HadamardResponse",
    "LaplaceMechanism",
    "LdpBayesWarning",
    "LocalHashing",
    "NoisyTable",
    "OptimalUnaryEncoding",
    "Privatized",
    "RPWithPrior",
    "RROnBins",
    "RandomizedResponse",
    "Release",
    "Sketch",
    "SubsetSelection",
    "SymmetricLaplaceMechanism",
    "SymmetricUnaryEncoding",
    "ZeroInflatedLaplaceMechanism",
    "expand",
    "fit",
    "frequencies",
    "keep_compiled_code",
    "losses",
    "m_estimate",
    "observe",
    "observe_jointly",
    "parametric_bootstrap",
    "predict",
    "privatize",
]

_FOLDERS = ["bootstrap", "data", "estimation", "functionals", "inference", "likelihood", "mechanisms"]
_FOLDERS += ["models", "noise", "opendp", "plots", "privacy", "secure", "studies", "tables"]
# where names of `__all__` are, in the order of the imports
_HOMES = ("_core.checks", "_core.running", "mechanisms", "data", "likelihood", "estimation", "inference", "bootstrap")


def __getattr__(name: str) -> Any:
    if name in _FOLDERS:
        homes = {"functionals": "laws.functionals", "opendp": "data.readers.opendp"}
        return importlib.import_module(f"ldpbayes.{homes.get(name, name)}")
    for home in _HOMES if name in __all__ else ():
        module = importlib.import_module(f"ldpbayes.{home}")
        if hasattr(module, name):
            return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module 'ldpbayes' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_FOLDERS, "__version__"})
