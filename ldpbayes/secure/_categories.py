"""Randomized answers: each is decided by comparing random 64-bit words with whole-number thresholds."""

import decimal
import math
import secrets
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from ldpbayes.mechanisms import (
    HadamardResponse,
    LocalHashing,
    OptimalUnaryEncoding,
    RandomizedResponse,
    SubsetSelection,
    SymmetricUnaryEncoding,
)

WHOLE = 1 << 64  # a probability is a whole number of parts in 2^64
AT_ONCE = 1 << 22  # random words that are held at a time, of answers with a word a category


def random_words(*shape: int) -> np.ndarray:
    """Independent uniform integers from 0 to 2^64 − 1, by the operating system's cryptographic generator."""
    return np.frombuffer(bytearray(secrets.token_bytes(8 * math.prod(shape))), np.uint64).reshape(shape)


def uniform(number: int, size: int) -> np.ndarray:
    """Integers 0, ..., number − 1, exactly equally likely: words beyond the last whole multiple are drawn again."""
    words, last = random_words(size), np.uint64(WHOLE - WHOLE % number - 1)
    while (beyond := words > last).any():
        words[beyond] = random_words(beyond.sum())
    return (words % np.uint64(number)).astype(np.int64)


def flip_threshold(odds: Fraction, epsilon: float) -> int:
    """The least t, in parts of 2^64, with odds·(2^64 − t)/t ≤ e^epsilon: the probability of an answer that does not
    support the record, where there are `odds` times as many such answers as others. ValueError if the ratio is below 1.
    """
    with decimal.localcontext(prec=50):  # `exp` rounds to the nearest; of large budgets e^100 is a lower bound
        ratio = Fraction(decimal.Decimal(min(epsilon, 100.0)).exp()) * (1 - Fraction(1, 10**45))
    t = math.ceil(WHOLE * odds / (ratio + odds))
    if odds * (WHOLE - t) < t:
        raise ValueError(f"epsilon is too small for probabilities in multiples of 2^-64, got {epsilon}")
    return t


def thresholds(mechanism: Any, epsilon: float) -> tuple[int, int]:
    """Of a budget, in parts of 2^64: the probability that an answer does not support the record's own code (for unary
    encodings, that its own bit is 0); and, for unary encodings, that another bit is 1.
    """
    odds = Fraction(SAMPLERS[type(mechanism)][1](mechanism))
    if isinstance(mechanism, SymmetricUnaryEncoding):  # two codes differ in two bits, which tell them apart alike
        return (flip_threshold(odds, epsilon / 2),) * 2
    t = flip_threshold(odds, epsilon)
    return (WHOLE // 2, t) if isinstance(mechanism, OptimalUnaryEncoding) else (t, 0)


def answers(mechanism: Any, x: np.ndarray) -> tuple[np.ndarray, str]:
    """Answers to codes (n,), and who drew them."""
    budgets, budget_of = np.unique(np.broadcast_to(mechanism.epsilon, len(x)), return_inverse=True)
    pairs = np.array([thresholds(mechanism, float(epsilon)) for epsilon in budgets], np.uint64)[budget_of]
    draw, size = SAMPLERS[type(mechanism)][0], max(1, AT_ONCE // math.prod(mechanism.event_shape))
    chunks = (slice(start, start + size) for start in range(0, len(x), size))
    parts = [draw(mechanism, x[rows], *pairs[rows].T) for rows in chunks]
    return np.concatenate(parts), "Python's secrets, probabilities in parts of 2^64"


def _flipped(own: np.ndarray, flip: np.ndarray, number: int) -> np.ndarray:
    other = uniform(number - 1, len(own))
    return np.where(random_words(len(own)) < flip, other + (other >= own), own)


def _bits(mechanism: Any, x: np.ndarray, off: np.ndarray, on: np.ndarray) -> np.ndarray:
    words, own = random_words(len(x), mechanism.categories), x[:, None] == np.arange(mechanism.categories)
    return np.where(own, words >= off[:, None], words < on[:, None]).astype(np.uint8)


def _subset(mechanism: SubsetSelection, x: np.ndarray, flip: np.ndarray, _: np.ndarray) -> np.ndarray:
    """The own code is in the set or not; the others are the first ones of a random order, drawn again where it ties."""
    d, held = mechanism.categories, random_words(len(x)) >= flip
    words, own = random_words(len(x), d - 1), x[:, None] == np.arange(d)
    while (ties := (np.diff(np.sort(words, axis=1), axis=1) == 0).any(axis=1)).any():
        words[ties] = random_words(ties.sum(), d - 1)
    z, rank = np.empty((len(x), d), np.uint8), np.argsort(np.argsort(words, axis=1), axis=1)
    z[own], z[~own] = held, (rank < (mechanism.subset_size - held)[:, None]).ravel()
    return z


def _column(mechanism: HadamardResponse, x: np.ndarray, flip: np.ndarray, _: np.ndarray) -> np.ndarray:
    row, column = x + 1, uniform(mechanism.columns, len(x))
    odd = np.bitwise_count(row & column) % 2 == 1
    # the lowest bit of the row maps the columns that support x onto the others
    return np.where(odd == (random_words(len(x)) < flip), column, column ^ (row & -row))


def _seed_and_hash(mechanism: LocalHashing, x: np.ndarray, flip: np.ndarray, _: np.ndarray) -> np.ndarray:
    seed = uniform(1 << 32, len(x))
    own = np.asarray(mechanism.hash(seed.astype(np.uint32), x), np.int64)
    return np.stack([seed, _flipped(own, flip, mechanism.hash_range)], axis=-1)


# How each class is drawn, and its odds (`flip_threshold`); not those of others derived from these classes.
SAMPLERS: dict[type, tuple[Callable, Callable]] = {
    HadamardResponse: (_column, lambda m: 1),
    LocalHashing: (_seed_and_hash, lambda m: m.hash_range - 1),
    OptimalUnaryEncoding: (_bits, lambda m: 1),
    RandomizedResponse: (lambda m, x, flip, _: _flipped(x, flip, m.categories), lambda m: m.categories - 1),
    SubsetSelection: (_subset, lambda m: Fraction(m.categories - m.subset_size, m.subset_size)),
    SymmetricUnaryEncoding: (_bits, lambda m: 1),
}
