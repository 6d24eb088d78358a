"""Privacy guarantees: what a mechanism or several releases guarantee, and how much noise is needed.

A `Guarantee` is a trade-off curve, which describes the best test between two inputs of a mechanism, with the unit that
it protects and the people who must be trusted. This folder needs only NumPy and SciPy.
"""

from ldpbayes.privacy.calibration import (
    gaussian_scale,
    linear_sensitivity,
    linear_sensitivity_bound,
    logistic_sensitivity,
    zil_parameters,
)
from ldpbayes.privacy.discrete import DiscreteLaplaceTradeoff
from ldpbayes.privacy.guarantee import Guarantee, compose, shuffled
from ldpbayes.privacy.symmetric_laplace import SymmetricLaplaceTradeoff
from ldpbayes.privacy.tradeoffs import (
    FiniteTradeoff,
    GaussianTradeoff,
    LaplaceTradeoff,
    Tradeoff,
    ZeroInflatedTradeoff,
    approximate_tradeoff,
)

__all__ = [
    "DiscreteLaplaceTradeoff",
    "FiniteTradeoff",
    "GaussianTradeoff",
    "Guarantee",
    "LaplaceTradeoff",
    "SymmetricLaplaceTradeoff",
    "Tradeoff",
    "ZeroInflatedTradeoff",
    "approximate_tradeoff",
    "compose",
    "gaussian_scale",
    "linear_sensitivity",
    "linear_sensitivity_bound",
    "logistic_sensitivity",
    "shuffled",
    "zil_parameters",
]
