"""What a data provider does to one record: a mechanism x -> z with a known density p(z | x) and a stated guarantee."""

from ldpbayes._pytree import static
from ldpbayes.mechanisms._additive import Additive, AdditiveMechanism
from ldpbayes.mechanisms._discrete import DiscreteGaussianMechanism, DiscreteLaplaceMechanism
from ldpbayes.mechanisms._gaussian import GaussianMechanism
from ldpbayes.mechanisms._hadamard_response import HadamardResponse
from ldpbayes.mechanisms._half_width import OptimalHalfWidth, explained_variance, optimal_half_width
from ldpbayes.mechanisms._histogram import Histogram
from ldpbayes.mechanisms._independent_laplace import IndependentLaplaceMechanism
from ldpbayes.mechanisms._laplace import LaplaceMechanism
from ldpbayes.mechanisms._linear_records import LinearRecordsMechanism
from ldpbayes.mechanisms._linear_statistics import LinearStatisticsMechanism
from ldpbayes.mechanisms._local_hashing import LocalHashing
from ldpbayes.mechanisms._logistic_records import LogisticRecordsMechanism
from ldpbayes.mechanisms._logistic_statistics import LogisticStatisticsMechanism
from ldpbayes.mechanisms._mechanism import DiscreteMechanism, Mechanism, NumericMechanism
from ldpbayes.mechanisms._optimal_bins import OptimalBins, optimal_bins
from ldpbayes.mechanisms._optimal_interval import optimal_interval
from ldpbayes.mechanisms._optimal_unbiased import UnbiasedLaws, optimal_unbiased
from ldpbayes.mechanisms._piecewise import PiecewiseConstant, PiecewiseLinear
from ldpbayes.mechanisms._pure_protocol import PureProtocol
from ldpbayes.mechanisms._randomized_response import RandomizedResponse
from ldpbayes.mechanisms._registry import (
    mechanism,
    mechanism_class,
    mechanism_from_spec,
    mechanism_names,
    register,
)
from ldpbayes.mechanisms._rp_with_prior import RPWithPrior
from ldpbayes.mechanisms._rr_on_bins import RROnBins
from ldpbayes.mechanisms._staircase import StaircaseMechanism
from ldpbayes.mechanisms._statistics import StatisticsMechanism
from ldpbayes.mechanisms._subset_selection import SubsetSelection
from ldpbayes.mechanisms._symmetric_laplace import SymmetricLaplaceMechanism
from ldpbayes.mechanisms._unary_encoding import OptimalUnaryEncoding, SymmetricUnaryEncoding
from ldpbayes.mechanisms._unbiased_randomizer import UnbiasedRandomizer
from ldpbayes.mechanisms._zero_inflated_laplace import ZeroInflatedLaplaceMechanism

__all__ = [
    "Additive",
    "AdditiveMechanism",
    "DiscreteGaussianMechanism",
    "DiscreteLaplaceMechanism",
    "DiscreteMechanism",
    "GaussianMechanism",
    "HadamardResponse",
    "Histogram",
    "IndependentLaplaceMechanism",
    "LaplaceMechanism",
    "LinearRecordsMechanism",
    "LinearStatisticsMechanism",
    "LocalHashing",
    "LogisticRecordsMechanism",
    "LogisticStatisticsMechanism",
    "Mechanism",
    "NumericMechanism",
    "OptimalBins",
    "OptimalHalfWidth",
    "OptimalUnaryEncoding",
    "PiecewiseConstant",
    "PiecewiseLinear",
    "PureProtocol",
    "RPWithPrior",
    "RROnBins",
    "RandomizedResponse",
    "StaircaseMechanism",
    "StatisticsMechanism",
    "SubsetSelection",
    "SymmetricLaplaceMechanism",
    "SymmetricUnaryEncoding",
    "UnbiasedLaws",
    "UnbiasedRandomizer",
    "ZeroInflatedLaplaceMechanism",
    "explained_variance",
    "mechanism",
    "mechanism_class",
    "mechanism_from_spec",
    "mechanism_names",
    "optimal_bins",
    "optimal_half_width",
    "optimal_interval",
    "optimal_unbiased",
    "register",
    "static",
]
