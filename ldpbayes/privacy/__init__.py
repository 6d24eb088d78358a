"""Privacy guarantees: what a mechanism promises, what several promises amount to, and how much noise a promise needs.

A trade-off curve gives, for every false-alarm rate of a test between two inputs, the smallest share of missed
detections. A `Guarantee` is a curve with what it protects and against whom. This folder needs NumPy and SciPy only.
"""

from ldpbayes.privacy._composition import compose, shuffled
from ldpbayes.privacy._sensitivity import linear_sensitivity, linear_sensitivity_bound, logistic_sensitivity
from ldpbayes.privacy.calibration import gaussian_beside_response, gaussian_scale, zil_parameters
from ldpbayes.privacy.discrete import DiscreteGaussianTradeoff, DiscreteLaplaceTradeoff
from ldpbayes.privacy.guarantee import Guarantee
from ldpbayes.privacy.symmetric_laplace import SymmetricLaplaceTradeoff
from ldpbayes.privacy.tradeoffs import (
    FiniteTradeoff,
    GaussianTradeoff,
    LaplaceTradeoff,
    PureProtocolTradeoff,
    Tradeoff,
    ZeroInflatedTradeoff,
    approximate_tradeoff,
)

__all__ = [
    "DiscreteGaussianTradeoff",
    "DiscreteLaplaceTradeoff",
    "FiniteTradeoff",
    "GaussianTradeoff",
    "Guarantee",
    "LaplaceTradeoff",
    "PureProtocolTradeoff",
    "SymmetricLaplaceTradeoff",
    "Tradeoff",
    "ZeroInflatedTradeoff",
    "approximate_tradeoff",
    "compose",
    "gaussian_beside_response",
    "gaussian_scale",
    "linear_sensitivity",
    "linear_sensitivity_bound",
    "logistic_sensitivity",
    "shuffled",
    "zil_parameters",
]
