"""Every protocol for categories, as a function of the budget and the number of categories."""

import functools

import ldpbayes as ldp

__all__ = ["PROTOCOLS"]

PROTOCOLS = {
    "k-rr": ldp.RandomizedResponse,
    "hadamard": ldp.HadamardResponse,
    "oue": ldp.OptimalUnaryEncoding,
    "sue": ldp.SymmetricUnaryEncoding,
    "subset": functools.partial(ldp.SubsetSelection, subset_size=2),
    "local-hashing": functools.partial(ldp.LocalHashing, hash_range=4),
    "binary-hashing": functools.partial(ldp.LocalHashing, hash_range=2),
}
