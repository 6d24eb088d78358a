"""M-estimators and other point estimates, with the standard errors that theory gives them."""

from ldpbayes.estimation.frequencies import Frequencies, frequencies

__all__ = ["Frequencies", "frequencies"]
