"""What a data provider does to one record: a mechanism x -> z with a known density p(z | x) and a stated guarantee."""

from ldpbayes.mechanisms.additive import AdditiveMechanism, GaussianMechanism, LaplaceMechanism
from ldpbayes.mechanisms.bit_vectors import OptimalUnaryEncoding, SubsetSelection, SymmetricUnaryEncoding
from ldpbayes.mechanisms.categorical import HadamardResponse, RandomizedResponse
from ldpbayes.mechanisms.local_hashing import LocalHashing
from ldpbayes.mechanisms.mechanism import (
    Mechanism,
    mechanism,
    mechanism_class,
    mechanism_from_spec,
    mechanism_names,
    register,
)
from ldpbayes.mechanisms.pure_protocol import PureProtocol
from ldpbayes.mechanisms.row_laplace import (
    IndependentLaplaceMechanism,
    SymmetricLaplaceMechanism,
    ZeroInflatedLaplaceMechanism,
)
from ldpbayes.mechanisms.rows import RowMechanism

__all__ = [
    "AdditiveMechanism",
    "GaussianMechanism",
    "HadamardResponse",
    "IndependentLaplaceMechanism",
    "LaplaceMechanism",
    "LocalHashing",
    "Mechanism",
    "OptimalUnaryEncoding",
    "PureProtocol",
    "RandomizedResponse",
    "RowMechanism",
    "SubsetSelection",
    "SymmetricLaplaceMechanism",
    "SymmetricUnaryEncoding",
    "ZeroInflatedLaplaceMechanism",
    "mechanism",
    "mechanism_class",
    "mechanism_from_spec",
    "mechanism_names",
    "register",
]
