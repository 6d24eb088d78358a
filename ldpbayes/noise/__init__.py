"""What is added: laws of noise, each with its scale in the unit of the data, its density and its privacy."""

from ldpbayes._pytree import pytree
from ldpbayes.noise._discrete_gaussian import DiscreteGaussian
from ldpbayes.noise._discrete_laplace import DiscreteLaplace
from ldpbayes.noise._gaussian import Gaussian
from ldpbayes.noise._independent_gaussian import IndependentGaussian
from ldpbayes.noise._laplace import Laplace
from ldpbayes.noise._noise import Noise
from ldpbayes.noise._omitted import Omitted, WithPublicRecords, ZeroInflated
from ldpbayes.noise._staircase import Staircase, optimal_gamma
from ldpbayes.noise._symmetric_laplace import SymmetricLaplace

__all__ = [
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Gaussian",
    "IndependentGaussian",
    "Laplace",
    "Noise",
    "Omitted",
    "Staircase",
    "SymmetricLaplace",
    "WithPublicRecords",
    "ZeroInflated",
    "optimal_gamma",
    "pytree",
]
