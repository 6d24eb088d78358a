"""What a data provider does to one record: a mechanism x -> z with a known density p(z | x) and a stated guarantee."""

from ldpbayes.mechanisms.additive import AdditiveMechanism, GaussianMechanism, LaplaceMechanism
from ldpbayes.mechanisms.categorical import RandomizedResponse
from ldpbayes.mechanisms.mechanism import (
    Mechanism,
    mechanism,
    mechanism_class,
    mechanism_from_spec,
    mechanism_names,
    register,
)

__all__ = [
    "AdditiveMechanism",
    "GaussianMechanism",
    "LaplaceMechanism",
    "Mechanism",
    "RandomizedResponse",
    "mechanism",
    "mechanism_class",
    "mechanism_from_spec",
    "mechanism_names",
    "register",
]
