"""Answers drawn with `secrets`: their law in rational arithmetic, and draws against the mechanisms' own densities.

The draws cannot be seeded. Each test of draws fails a right sampler with probability 1e-7 (`LEVEL`).
"""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

import ldpbayes as ldp
from ldpbayes import secure as answers
from tests.programs import call

LEVEL = 1e-7
WHOLE = 1 << 64
MECHANISMS = {
    "RR of 2": lambda e: ldp.RandomizedResponse(e),
    "RR of 5": lambda e: ldp.RandomizedResponse(e, 5),
    "OUE": lambda e: ldp.OptimalUnaryEncoding(e, 3),
    "SUE": lambda e: ldp.SymmetricUnaryEncoding(e, 3),
    "sets of 2": lambda e: ldp.SubsetSelection(e, 5, subset_size=2),
    "Hadamard of 2": lambda e: ldp.HadamardResponse(e, 2),
    "Hadamard of 6": lambda e: ldp.HadamardResponse(e, 6),
    "hashes to 4": lambda e: ldp.LocalHashing(e, 6, hash_range=4),
}
SEED = 12345  # of local hashing, whose law is compared given the seed


def outputs(mechanism):
    """All values that can be released; of local hashing those with one seed."""
    d = mechanism.categories
    match mechanism:
        case ldp.RandomizedResponse():
            return np.arange(d)
        case ldp.HadamardResponse():
            return np.arange(mechanism.columns)
        case ldp.LocalHashing():
            return np.array([(SEED, h) for h in range(mechanism.hash_range)], np.uint32)
    bits = np.array(list(itertools.product([0, 1], repeat=d)), np.uint8)
    return bits[bits.sum(1) == mechanism.subset_size] if isinstance(mechanism, ldp.SubsetSelection) else bits


def exact_law(mechanism, epsilon, z, x):
    """P(z | x) of what is run, from the integers that are compared; of local hashing given the seed."""
    first, second = (Fraction(t, WHOLE) for t in answers.ANSWERS[type(mechanism)][1](mechanism, epsilon))
    d = mechanism.categories
    match mechanism:
        case ldp.RandomizedResponse():
            return 1 - first if z == x else first / (d - 1)
        case ldp.SubsetSelection(subset_size=w):
            return (1 - first) / math.comb(d - 1, w - 1) if z[x] else first / math.comb(d - 1, w)
        case ldp.HadamardResponse(columns=columns):
            supported = (int(z) & (x + 1)).bit_count() % 2 == 0
            return (1 - first if supported else first) / (columns // 2)
        case ldp.LocalHashing(hash_range=g):
            own = int(mechanism.hash(SEED, x))
            return 1 - first if z[1] == own else first / (g - 1)
    factors = [(1 - first if bit else first) if k == x else (second if bit else 1 - second) for k, bit in enumerate(z)]
    return math.prod(factors)


@pytest.mark.parametrize("epsilon", [1e-6, 1.0, math.log(3), 30.0, 800.0])
@pytest.mark.parametrize("name", MECHANISMS)
def test_no_likelihood_ratio_exceeds_the_stated_epsilon_in_exact_arithmetic(name, epsilon):
    mechanism = MECHANISMS[name](epsilon)
    law = np.array(
        [[exact_law(mechanism, epsilon, z, x) for z in outputs(mechanism)] for x in range(mechanism.categories)]
    )
    assert all(row.sum() == 1 for row in law)
    greatest = max(a / b for column in law.T for a, b in itertools.permutations(column, 2))
    with mpmath.workdps(400):
        assert mpmath.mpf(greatest.numerator) / greatest.denominator <= mpmath.exp(mpmath.mpf(epsilon))
    zs = outputs(mechanism)
    x = np.repeat(np.arange(float(mechanism.categories)), len(zs))
    stated = np.exp(call("log_prob", mechanism, np.concatenate([zs] * mechanism.categories), x)).reshape(law.shape)
    stated = stated * (2.0**32 if isinstance(mechanism, ldp.LocalHashing) else 1)
    np.testing.assert_allclose(law.astype(float), stated, rtol=1e-12, atol=2.0**-63)


def test_thresholds_are_the_least_that_keep_the_ratio():
    for odds, epsilon in itertools.product([Fraction(1), Fraction(9), Fraction(7, 3), Fraction(2**31)], [1e-3, 1, 7.5]):
        t = answers.flip_threshold(odds, epsilon)
        with mpmath.workdps(60):
            limit = mpmath.exp(epsilon)
            ratio, closer = (
                mpmath.mpf((odds * (WHOLE - k) / k).numerator) / (odds * (WHOLE - k) / k).denominator
                for k in (t, t - 1)
            )
            assert ratio <= limit < closer
    with pytest.raises(ValueError, match="epsilon is too small"):
        answers.flip_threshold(Fraction(2), 1e-30)


def frequencies_agree(mechanism, z, x):
    zs = outputs(mechanism)
    places = {tuple(np.ravel(value)): place for place, value in enumerate(zs.tolist())}
    counts = np.bincount([places[tuple(np.ravel(value))] for value in z.tolist()], minlength=len(zs))
    expected = np.array([float(exact_law(mechanism, float(mechanism.epsilon), value, x)) for value in zs]) * len(z)
    few = expected < 10
    if few.any():
        counts, expected = np.append(counts[~few], counts[few].sum()), np.append(expected[~few], expected[few].sum())
    assert stats.chisquare(counts, expected).pvalue > LEVEL


@pytest.mark.parametrize("draws", [15_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [name for name in MECHANISMS if "hash" not in name])
def test_answers_have_their_law(name, draws):
    mechanism = MECHANISMS[name](0.9)
    x = mechanism.categories - 1
    frequencies_agree(mechanism, ldp.secure.release(mechanism, np.full(draws, x)).values, x)


def test_seeds_are_uniform_and_hashes_right_as_often_as_stated():
    mechanism, n = ldp.LocalHashing(1.1, 1000, hash_range=4), 60_000
    z = ldp.secure.release(mechanism, np.full(n, 873)).values
    assert stats.chisquare(np.bincount(z[:, 0] >> 28, minlength=16)).pvalue > LEVEL
    own = np.asarray(mechanism.hash(z[:, 0], 873))
    steps = (z[:, 1].astype(int) - own) % 4
    p = math.exp(1.1) / (math.exp(1.1) + 3)
    assert stats.chisquare(np.bincount(steps, minlength=4), n * np.array([p, *[(1 - p) / 3] * 3])).pvalue > LEVEL


def test_uniform_integers_and_personal_budgets():
    for number in (1, 3, 7, 2**33):
        values = answers.uniform(number, 30_000)
        cells = np.bincount(values * min(number, 7) // number, minlength=min(number, 7))
        assert number == 1 or stats.chisquare(cells).pvalue > LEVEL
    assert answers.uniform((1 << 63) + 1, 100).size  # half of the words are drawn again
    epsilon = np.tile([0.2, 3.0], 30_000)
    release = ldp.secure.release(ldp.RandomizedResponse(epsilon, 3), np.ones(60_000, int))
    for budget in (0.2, 3.0):
        frequencies_agree(ldp.RandomizedResponse(budget, 3), release.values[epsilon == budget], 1)
    np.testing.assert_array_equal(release.mechanism.epsilon, epsilon)


def test_answers_in_several_chunks(monkeypatch):
    monkeypatch.setattr(answers, "WORDS_AT_ONCE", 1000)
    x = np.arange(5000) % 4
    z = ldp.secure.release(ldp.OptimalUnaryEncoding(20.0, 4), x).values
    others = z[np.arange(4) != x[:, None]]
    assert z.shape == (5000, 4) and others.sum() == 0  # each with probability 2e-9
    # a tie of random words, which is drawn again
    words = answers.random_words

    def tied(*shape):
        result = words(*shape)
        if not tied.done and len(shape) == 2:
            result[:] = 5
            tied.done = True
        return result

    tied.done = False
    monkeypatch.setattr(answers, "random_words", tied)
    sets = ldp.secure.release(ldp.SubsetSelection(1.0, 5, subset_size=2), x[:10]).values
    assert tied.done and (sets.sum(1) == 2).all()
