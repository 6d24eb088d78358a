"""What is promised: trade-off functions, guarantees, and the noise that keeps them. NumPy and SciPy only."""

from ldpbayes.privacy.calibrate import ZILParameters, gaussian_scale, zil_parameters
from ldpbayes.privacy.symmetric_laplace import SymmetricLaplaceTradeoff
from ldpbayes.privacy.tradeoff import (
    GaussianTradeoff,
    Guarantee,
    LaplaceTradeoff,
    PureProtocolTradeoff,
    Tradeoff,
)
from ldpbayes.privacy.zero_inflated import ZeroInflatedTradeoff, approximate_tradeoff

__all__ = [
    "GaussianTradeoff",
    "Guarantee",
    "LaplaceTradeoff",
    "PureProtocolTradeoff",
    "SymmetricLaplaceTradeoff",
    "Tradeoff",
    "ZILParameters",
    "ZeroInflatedTradeoff",
    "approximate_tradeoff",
    "gaussian_scale",
    "zil_parameters",
]
