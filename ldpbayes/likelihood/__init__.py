"""The likelihood p(z | θ) of a released value z, the original record integrated out: exactly, or by quadrature."""

from ldpbayes.laws.families import Family, register_family
from ldpbayes.laws.smooth_density import SmoothDensity, SmoothMass
from ldpbayes.likelihood.closed_forms import register_closed_form
from ldpbayes.likelihood.closed_forms._regressions import (
    ChebyshevExpansion,
    RegressionRows,
    linear_rows,
    linear_statistics,
    logistic_statistics,
)
from ldpbayes.likelihood.privatized import Privatized, law_of_nodes

__all__ = [
    "ChebyshevExpansion",
    "Family",
    "Privatized",
    "RegressionRows",
    "SmoothDensity",
    "SmoothMass",
    "law_of_nodes",
    "linear_rows",
    "linear_statistics",
    "logistic_statistics",
    "register_closed_form",
    "register_family",
]
