"""What is added: laws of noise, each with its scale in the unit of the data, its density and its privacy."""

from ldpbayes._core.pytrees import pytree
from ldpbayes.noise._continuous import Gaussian, IndependentGaussian, Laplace, SymmetricLaplace
from ldpbayes.noise._discrete import DiscreteGaussian, DiscreteLaplace
from ldpbayes.noise._from_density import FromDensity
from ldpbayes.noise._noise import Noise
from ldpbayes.noise._staircase import Staircase, optimal_gamma
from ldpbayes.noise.zero_inflated import WithPublicRecords, ZeroInflated

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
    "WithPublicRecords",
    "ZeroInflated",
    "optimal_gamma",
    "pytree",
]
