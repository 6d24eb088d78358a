"""What is promised: trade-off functions, guarantees, and the noise that keeps them. NumPy and SciPy only."""

from ldpbayes.privacy._calibrate import ZILParameters, gaussian_scale, zil_parameters
from ldpbayes.privacy._discrete import DiscreteGaussianTradeoff, DiscreteLaplaceTradeoff
from ldpbayes.privacy._discrete_rows import DiscreteGaussianRowsTradeoff
from ldpbayes.privacy._finite import FiniteTradeoff
from ldpbayes.privacy._guarantee import Guarantee
from ldpbayes.privacy._sensitivity import (
    linear_sensitivity,
    linear_sensitivity_bound,
    logistic_sensitivity,
)
from ldpbayes.privacy._symmetric_laplace import SymmetricLaplaceTradeoff
from ldpbayes.privacy._tradeoff import GaussianTradeoff, LaplaceTradeoff, PureProtocolTradeoff, Tradeoff
from ldpbayes.privacy._with_response import GaussianWithResponseTradeoff, gaussian_beside_response
from ldpbayes.privacy._worst import WorstTradeoff
from ldpbayes.privacy._zero_inflated import ZeroInflatedTradeoff, approximate_tradeoff

__all__ = [
    "DiscreteGaussianRowsTradeoff",
    "DiscreteGaussianTradeoff",
    "DiscreteLaplaceTradeoff",
    "FiniteTradeoff",
    "GaussianTradeoff",
    "GaussianWithResponseTradeoff",
    "Guarantee",
    "LaplaceTradeoff",
    "PureProtocolTradeoff",
    "SymmetricLaplaceTradeoff",
    "Tradeoff",
    "WorstTradeoff",
    "ZILParameters",
    "ZeroInflatedTradeoff",
    "approximate_tradeoff",
    "gaussian_beside_response",
    "gaussian_scale",
    "linear_sensitivity",
    "linear_sensitivity_bound",
    "logistic_sensitivity",
    "zil_parameters",
]
