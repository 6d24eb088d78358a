"""What is promised: trade-off functions, guarantees, and the noise that keeps them. NumPy and SciPy only."""

from ldpbayes.privacy.calibrate import gaussian_scale
from ldpbayes.privacy.tradeoff import (
    GaussianTradeoff,
    Guarantee,
    LaplaceTradeoff,
    PureProtocolTradeoff,
    Tradeoff,
)

__all__ = [
    "GaussianTradeoff",
    "Guarantee",
    "LaplaceTradeoff",
    "PureProtocolTradeoff",
    "Tradeoff",
    "gaussian_scale",
]
