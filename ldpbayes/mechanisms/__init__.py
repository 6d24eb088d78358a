"""Mechanisms: what a data provider does to each record before the record is released.

A mechanism turns a record x into a released value z with a known density p(z | x), and has a privacy guarantee.
Examples are `LaplaceMechanism` for numbers and rows, `RandomizedResponse` for categories, `RPWithPrior` for labels, and
`LinearRecordsMechanism` for all columns of a regression. A reporting rule, such as `Rounded`, says how a noisy number
was changed before it was printed.
"""

from ldpbayes._core.pytrees import static
from ldpbayes.mechanisms._bounded import BoundedGaussianMechanism, BoundedLaplaceMechanism
from ldpbayes.mechanisms._categories import (
    Categories,
    HadamardResponse,
    LikelihoodTable,
    LocalHashing,
    MatrixProtocol,
    OptimalUnaryEncoding,
    PureProtocol,
    RandomizedResponse,
    SubsetSelection,
    SymmetricUnaryEncoding,
    TransitionMatrix,
    UnaryEncoding,
)
from ldpbayes.mechanisms._count_sketches import CountMeanSketch, CountSketchProtocol, HadamardCountMeanSketch
from ldpbayes.mechanisms._labels import RPWithPrior, RROnBins, SquareWaveMechanism, UnbiasedRandomizer
from ldpbayes.mechanisms._rappor import Rappor
from ldpbayes.mechanisms._regression import (
    LinearRecordsMechanism,
    LinearStatisticsMechanism,
    LogisticRecordsMechanism,
    LogisticStatisticsMechanism,
    StatisticsMechanism,
)
from ldpbayes.mechanisms._repeated import Repeated
from ldpbayes.mechanisms._scrambling import MultiplicativeScrambling
from ldpbayes.mechanisms._surveys import (
    Crosswise,
    ForcedResponse,
    Kuk,
    Mangat,
    MirroredQuestion,
    Noncompliance,
    Triangular,
    UnrelatedQuestion,
    YesNoDesign,
)
from ldpbayes.mechanisms.additive import (
    AdditiveMechanism,
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    IndependentLaplaceMechanism,
    LaplaceMechanism,
    StaircaseMechanism,
    SymmetricLaplaceMechanism,
    ZeroInflatedLaplaceMechanism,
)
from ldpbayes.mechanisms.design import Histogram, explained_variance, optimal_half_width, optimal_interval
from ldpbayes.mechanisms.protocol import (
    DiscreteMechanism,
    Mechanism,
    NumericMechanism,
    mechanism_from_spec,
    mechanism_names,
    register,
)
from ldpbayes.mechanisms.reporting import Banded, Capped, Floored, Incomplete, Published, Rounded, Withheld

__all__ = [
    "AdditiveMechanism",
    "Banded",
    "BoundedGaussianMechanism",
    "BoundedLaplaceMechanism",
    "Capped",
    "Categories",
    "CountMeanSketch",
    "CountSketchProtocol",
    "Crosswise",
    "DiscreteGaussianMechanism",
    "DiscreteLaplaceMechanism",
    "DiscreteMechanism",
    "Floored",
    "ForcedResponse",
    "GaussianMechanism",
    "HadamardCountMeanSketch",
    "HadamardResponse",
    "Histogram",
    "Incomplete",
    "IndependentLaplaceMechanism",
    "Kuk",
    "LaplaceMechanism",
    "LikelihoodTable",
    "LinearRecordsMechanism",
    "LinearStatisticsMechanism",
    "LocalHashing",
    "LogisticRecordsMechanism",
    "LogisticStatisticsMechanism",
    "Mangat",
    "MatrixProtocol",
    "Mechanism",
    "Noncompliance",
    "NumericMechanism",
    "OptimalUnaryEncoding",
    "PureProtocol",
    "RPWithPrior",
    "RROnBins",
    "RandomizedResponse",
    "Published",
    "Rappor",
    "Repeated",
    "Rounded",
    "SquareWaveMechanism",
    "StaircaseMechanism",
    "StatisticsMechanism",
    "SubsetSelection",
    "SymmetricLaplaceMechanism",
    "SymmetricUnaryEncoding",
    "TransitionMatrix",
    "Triangular",
    "UnaryEncoding",
    "UnbiasedRandomizer",
    "UnrelatedQuestion",
    "MirroredQuestion",
    "MultiplicativeScrambling",
    "Withheld",
    "YesNoDesign",
    "ZeroInflatedLaplaceMechanism",
    "explained_variance",
    "mechanism_from_spec",
    "mechanism_names",
    "optimal_half_width",
    "optimal_interval",
    "register",
    "static",
]
