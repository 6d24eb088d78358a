"""Laws of noise: what `AdditiveMechanism` adds to a number, or to the columns of a row.

A law has a scale in the unit of the data, a density, and a trade-off curve, which says how well the noise hides a
difference between two records. To write your own law, derive a class from `Noise`.
"""

from ldpbayes._core.pytrees import pytree
from ldpbayes.noise._from_density import FromDensity
from ldpbayes.noise._laws import (
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    IndependentGaussian,
    Laplace,
    Staircase,
    SymmetricLaplace,
    WithPublicRecords,  # noqa: F401  # the noise of mechanisms that take public records, which specs may name
    ZeroInflated,
)
from ldpbayes.noise._noise import Noise

__all__ = [
    "DiscreteGaussian",
    "DiscreteLaplace",
    "FromDensity",
    "Gaussian",
    "IndependentGaussian",
    "Laplace",
    "Noise",
    "Staircase",
    "SymmetricLaplace",
    "ZeroInflated",
    "pytree",
]
