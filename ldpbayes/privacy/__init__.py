"""What is promised: trade-off functions, guarantees, and the noise that keeps them. NumPy and SciPy only."""

from ldpbayes.privacy._sensitivity import linear_sensitivity, linear_sensitivity_bound, logistic_sensitivity
from ldpbayes.privacy.calibration import gaussian_scale, zil_parameters
from ldpbayes.privacy.guarantee import Guarantee
from ldpbayes.privacy.tradeoffs import FiniteTradeoff, GaussianTradeoff, LaplaceTradeoff, Tradeoff, approximate_tradeoff

__all__ = [
    "FiniteTradeoff",
    "GaussianTradeoff",
    "Guarantee",
    "LaplaceTradeoff",
    "Tradeoff",
    "approximate_tradeoff",
    "gaussian_scale",
    "linear_sensitivity",
    "linear_sensitivity_bound",
    "logistic_sensitivity",
    "zil_parameters",
]
