"""p(z | θ): the likelihood of a released value with the latent record integrated out."""

from ldpbayes.likelihood._channel import Channel, channel
from ldpbayes.likelihood._dispatch import closed_form, register_closed_form
from ldpbayes.likelihood._expanded_law import ExpandedLaw
from ldpbayes.likelihood._families import Family, register_family
from ldpbayes.likelihood._law_of_nodes import law_of_nodes
from ldpbayes.likelihood._privatized import Privatized, privatized
from ldpbayes.likelihood.closed_forms import (
    ChebyshevExpansion,
    Grouped,
    RegressionRows,
    SumOfStatistics,
    linear_rows,
    linear_statistics,
    logistic_statistics,
)

__all__ = [
    "Channel",
    "ChebyshevExpansion",
    "ExpandedLaw",
    "Family",
    "Grouped",
    "Privatized",
    "RegressionRows",
    "SumOfStatistics",
    "channel",
    "closed_form",
    "law_of_nodes",
    "linear_rows",
    "linear_statistics",
    "logistic_statistics",
    "privatized",
    "register_closed_form",
    "register_family",
]
