"""Pure protocols: p(z | x) enumerated, samplers against it, guarantees against every test, and what is refused.

Statistical tests use fixed seeds and fail by chance with probability 1e-4 each when a seed is changed.
"""

import itertools
import json

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import ldpbayes as ldp
from ldpbayes.mechanisms import (
    DiscreteMechanism,
    NumericMechanism,
    RandomizedResponse,
    mechanism_from_spec,
)
from tests.programs import call, constant, evaluate, log_prob, randomize
from tests.protocols import PROTOCOLS

pytestmark = pytest.mark.usefixtures("x64")

ERROR_RATE = 1e-4
NO_HASH = [name for name in PROTOCOLS if "hashing" not in name]
SLOW = ("sue", "binary-hashing")  # optimal unary encodings and hashes to four values have the same code


def some_of(names, slow=SLOW):
    """Protocols by name, of which `slow` ones are not in the default suite."""
    return pytest.mark.parametrize(
        "make", [pytest.param(PROTOCOLS[n], marks=pytest.mark.slow if n in slow else (), id=n) for n in names]
    )


protocols, protocols_without_seeds = some_of(PROTOCOLS), some_of(NO_HASH)


def outputs(mechanism, seeds=range(7)):
    """Every value that can be released; for local hashing those with some seeds."""
    if isinstance(mechanism, ldp.LocalHashing):
        return np.array(list(itertools.product(seeds, range(mechanism.hash_range))), np.uint32)
    if mechanism.event_shape:
        bits = np.array(list(itertools.product([0, 1], repeat=mechanism.categories)), np.uint8)
        return bits[np.asarray(mechanism.support(bits))]
    return np.arange(int(mechanism.support.upper_bound) + 1)


def of_each_code(mechanism, z):
    """Log densities, codes along the first axis, and which codes each value supports."""
    return mechanism.log_prob(z, jnp.expand_dims(jnp.arange(mechanism.categories), -1)), mechanism.membership(z)


def table(mechanism, z):
    """p(z | x), codes along the first axis."""
    return np.exp(evaluate(of_each_code, mechanism, z)[0])


@some_of(PROTOCOLS, slow=())
@pytest.mark.parametrize(
    ("epsilon", "d"),
    [
        (6.0, 3),
        *(pytest.param(e, d, marks=pytest.mark.slow) for e in (0.01, 1.0, 6.0) for d in (3, 6) if (e, d) != (6.0, 3)),
    ],
)
def test_probabilities_sum_to_one_and_their_worst_ratio_is_the_budget(make, epsilon, d):
    mechanism = make(epsilon, d)
    z = outputs(mechanism)
    p = table(mechanism, z)
    if isinstance(mechanism, ldp.LocalHashing):  # 2^32 seeds are equally likely, and each has all hashes
        p = p * 2.0**32 / 7
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    ratio = p.max(axis=0) / p.min(axis=0)
    assert ratio.max() == pytest.approx(np.exp(epsilon), rel=1e-12)
    # exactly two values: exp(epsilon) for the members of S(z)
    members = evaluate(of_each_code, mechanism, z)[1].T != 0
    np.testing.assert_allclose(
        p, p.min(axis=0) * np.where(members & (ratio > 1 + 1e-9), np.exp(epsilon), 1), rtol=1e-12
    )


@protocols_without_seeds
def test_stated_support_probabilities_and_separation_are_the_enumerated_ones(make):
    for epsilon, d in ((0.3, 3), (2.0, 4)):
        mechanism = make(epsilon, d)
        z = outputs(mechanism)
        p, members = table(mechanism, z), evaluate(of_each_code, mechanism, z)[1].astype(float)
        inside = p @ members  # (x, k): P(k in S(z) | x)
        own, other = mechanism.support_probabilities
        np.testing.assert_allclose(inside, np.where(np.eye(d, dtype=bool), own, other), rtol=1e-12)
        apart = [np.sum(p[x] * members[:, x] * (1 - members[:, y])) for x, y in itertools.permutations(range(d), 2)]
        assert mechanism.separation == pytest.approx(max(apart), rel=1e-12)


@protocols
def test_no_test_beats_the_stated_curve_and_the_best_ones_lie_on_it(make):
    mechanism = make(1.3, 4)
    z = outputs(mechanism, seeds=[11])
    p = table(mechanism, z) * (2.0**32 if isinstance(mechanism, ldp.LocalHashing) else 1)
    stated, attained = mechanism.guarantee.tradeoff, np.inf
    for x, y in itertools.permutations(range(4), 2):
        order = np.argsort(-p[y] / p[x], kind="stable")
        alpha = np.clip(np.concatenate([[0], np.cumsum(p[x][order])]), 0, 1)
        slack = 1 - np.concatenate([[0], np.cumsum(p[y][order])]) - stated(alpha)
        assert slack.min() > -1e-12
        attained = min(attained, slack.max())
        stick = np.sum(np.maximum(p[y] - np.exp(0.4) * p[x], 0))
        assert stick <= mechanism.guarantee.delta(0.4) + 1e-14
    assert attained < 1e-12


@protocols_without_seeds
@pytest.mark.parametrize("epsilon", [2.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_samples_have_the_stated_probabilities(make, epsilon):
    mechanism, n = make(epsilon, 4), 20_000
    z = outputs(mechanism)
    for x in (0, 3):
        drawn = randomize(mechanism, np.full(n, x), seed=x)
        assert drawn.shape == (n, *mechanism.event_shape)
        hits = (drawn[:, None] == z).reshape(n, len(z), -1).all(axis=-1)
        assert hits.sum() == n
        assert stats.chisquare(hits.sum(axis=0), n * table(mechanism, z)[x], sum_check=False).pvalue > ERROR_RATE


def released_with_support(mechanism, x):
    z = mechanism.randomize(jax.random.key(8), x)
    return z, mechanism.supports(z, x), mechanism.log_prob(z, x)


@protocols
def test_personal_budgets_follow_their_records_and_infinity_leaves_no_perturbation(make):
    budgets = np.tile([0.2, 1.0, 4.0, np.inf], 8_000)
    mechanism, x = make(budgets, 5), np.repeat(np.arange(5), 6_400)
    z, held, log_p = evaluate(released_with_support, mechanism, x)
    for i, budget in enumerate((0.2, 1.0, 4.0, np.inf)):
        p = np.broadcast_to(mechanism.support_probabilities[0], budgets.shape)[i]
        assert p == make(budget, 5).support_probabilities[0]
        count, n = held[i::4].sum(), len(held[i::4])
        assert stats.binomtest(int(count), n, min(p, 1.0)).pvalue > ERROR_RATE
    assert held[3::4].all()
    assert np.isfinite(log_p).all() and log_p[3::4].max() <= 0
    if isinstance(mechanism, ldp.OptimalUnaryEncoding | ldp.SymmetricUnaryEncoding):
        np.testing.assert_array_equal(z[3::4], np.eye(5)[x[3::4]])
    if isinstance(mechanism, ldp.RandomizedResponse):
        np.testing.assert_array_equal(z[3::4], x[3::4])


@protocols
def test_mechanisms_are_pytrees_with_specs(make):
    for budget in (0.7, [0.2, np.inf]):
        mechanism = make(budget, 4)
        assert mechanism_from_spec(json.loads(json.dumps(mechanism.spec()))) == mechanism
        again = jax.tree.unflatten(*reversed(jax.tree.flatten(mechanism)))
        assert again == mechanism
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3))
    drawn = jax.eval_shape(jax.vmap(lambda key: make(0.7, 4).randomize(key, np.arange(4))), keys)
    assert drawn.shape == (3, 4, *make(0.7, 4).event_shape)


@pytest.mark.parametrize("make", [ldp.OptimalUnaryEncoding, ldp.SymmetricUnaryEncoding, ldp.SubsetSelection])
def test_moments_are_those_of_the_released_bits(make):
    mechanism = make(0.8, 4)
    z = outputs(mechanism).astype(float)
    p = table(mechanism, z)
    mean, variance = call("moments", constant(mechanism), np.arange(4))
    np.testing.assert_allclose(mean, p @ z, rtol=1e-12)
    np.testing.assert_allclose(variance, p @ z - (p @ z) ** 2, rtol=1e-12)


def test_labels_have_no_moments():
    for make in (PROTOCOLS["hadamard"], PROTOCOLS["binary-hashing"]):
        mechanism = make(1.0, 4)
        for moment in mechanism.moments(np.arange(4)):
            assert moment.shape == (4, *mechanism.event_shape) and np.isnan(moment).all()


def test_subset_size_and_hash_range_default_to_the_best():
    def loss(mechanism):
        p, q = mechanism.support_probabilities
        return q * (1 - q) / (p - q) ** 2

    for epsilon in (0.1, 1.0, 3.0):
        chosen = ldp.SubsetSelection(epsilon, 12)
        assert loss(chosen) <= min(loss(ldp.SubsetSelection(epsilon, 12, w)) for w in range(1, 12)) + 1e-12
        hashing = ldp.LocalHashing(epsilon, 12)
        assert hashing.hash_range == round(np.exp(epsilon)) + 1


def of_types(mechanism, codes, records):
    """What is released of records of several types, and its log densities, of values released of the codes."""
    z, key = mechanism.randomize(jax.random.key(0), codes), jax.random.key(0)
    return [(mechanism.randomize(key, x), mechanism.log_prob(z, x)) for x in records]


@some_of(PROTOCOLS, slow=("k-rr", "hadamard", "subset", "local-hashing", *SLOW))
def test_codes_of_any_type_are_the_same_categories(make):
    mechanism = make(0.1, 200)
    codes = {dtype: np.arange(100).astype(dtype) for dtype in (np.int8, np.uint8, bool, np.int64)}
    released = evaluate(of_types, mechanism, codes[np.int64], [*codes.values(), codes[bool].astype(int)])
    *others, (z, log_p), as_integers = released
    for dtype, (value, density) in zip(codes, [*others, (z, log_p)], strict=True):
        same = as_integers if dtype is bool else (z, log_p)
        np.testing.assert_array_equal(value, same[0])
        # in one program XLA may round equal sums differently
        np.testing.assert_allclose(density, same[1], rtol=1e-13)
    ldp.Release(others[0][0], mechanism)


@pytest.mark.parametrize("x", [-1, 4, 1.5, np.nan])
@protocols
def test_codes_out_of_range_are_refused(make, x):
    with pytest.raises(ValueError, match=r"x must be an integer from 0 to 3, got x\[1\] = "):
        make(1.0, 4).randomize(jax.random.key(0), np.array([0, x]))


@protocols
def test_labels_are_refused_and_lists_of_codes_are_not(make):
    with pytest.raises(ValueError, match="x must be an integer from 0 to 3, got an array of strings"):
        make(1.0, 4).randomize(jax.random.key(0), np.array(["a", "b"]))
    for epsilon in (1.0, [1.0, 2.0]):
        drawn = jax.eval_shape(lambda e=epsilon: make(e, 4).randomize(jax.random.key(0), [0, 3]))
        assert drawn.shape[0] == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ldp.OptimalUnaryEncoding(0.0, 4), "epsilon must be positive, got 0.0"),
        (lambda: ldp.HadamardResponse([1.0, np.nan], 4), r"epsilon must be positive, got epsilon\[1\] = nan"),
        (lambda: ldp.SymmetricUnaryEncoding(1.0, 1), "categories must be an integer of at least 2, got 1"),
        (lambda: ldp.SubsetSelection(1.0, 4, 0), "subset_size must be an integer from 1 to 3, got 0"),
        (lambda: ldp.SubsetSelection(1.0, 4, 4), "subset_size must be an integer from 1 to 3, got 4"),
        (lambda: ldp.SubsetSelection(1.0, 4, 2.0), "subset_size must be an integer from 1 to 3, got 2.0"),
        (lambda: ldp.SubsetSelection([1.0, 2.0], 4), "subset_size must be given if epsilon is an array"),
        (lambda: ldp.LocalHashing(1.0, 4, 1), "hash_range must be an integer from 2 to 2147483648, got 1"),
        (lambda: ldp.LocalHashing(np.inf, 4), "hash_range must be given if epsilon is an array, infinite"),
        (
            lambda: ldp.SubsetSelection(1.0, 2**64),
            "categories must be an integer from 2 to 2147483647",
        ),
        (lambda: ldp.LocalHashing(1.0, 10**7 + 1), "categories must be an integer from 2 to 10000000"),
    ],
)
def test_impossible_parameters_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


BITS = ldp.OptimalUnaryEncoding(1.0, 3)


@pytest.mark.parametrize(
    ("values", "mechanism", "message"),
    [
        ([[0, 1], [1, 0]], BITS, r"releases a row of 3 numbers for each record; got values of shape \(2, 2\)"),
        ([0, 1, 2], BITS, r"releases a row of 3 numbers for each record; got values of shape \(3,\)"),
        ([[0, 1, 0], [1, 0]], BITS, "releases a row of 3 numbers for each record; got rows of different lengths"),
        ([[0, 1, 0], 2], BITS, "got rows of different lengths"),
        ([[0, 1, 0], [0, 2, 0], [3, 1, 1]], BITS, r"bits, 0 or 1; 2 of 3 rows .* the first \(2\) in row 1, bit 1"),
        ([[0, 0.5, 0]], BITS, r"the first \(0.5\) in row 0, bit 1"),
        ([[0, -1, 0]], BITS, r"the first \(-1\) in row 0, bit 1"),
        ([[0, 1, np.nan]], BITS, "values must be finite"),
        ([[1, 1, 0]], ldp.SubsetSelection(1.0, 3, 1), r"sets of 1 categories; 1 of 1 .* the first \(2\) at 0"),
        (
            [[0, 0, 1], [1, 0, 1]],
            ldp.OptimalUnaryEncoding([1.0, np.inf], 3),
            "infinite budget must be released as itself, with one bit set; 1 are not, the first in row 1",
        ),
        (
            [[5, 2]],
            ldp.LocalHashing(1.0, 3, 2),
            r"with hash an integer from 0 to 1; 1 are not, the first \(2\) in row 0",
        ),
        ([[2**32, 1]], ldp.LocalHashing(1.0, 3, 2), r"with seed an integer from 0 to 4294967295; .* \(4294967296\)"),
        (
            np.float32([[5, 1], [2**24 + 2, 1]]),
            ldp.LocalHashing(1.0, 3, 2),
            "float32, which rounds numbers above 16777216",
        ),
        (np.float16([1.0, 2050.0]), ldp.RandomizedResponse(1.0, 5000), "float16, which rounds numbers above 2048"),
        ([3, 3], ldp.HadamardResponse([1.0, np.inf], 2), "a column in which a category has a one; 1 are not, .* row 1"),
        (
            [[0, 1], [0, 0], [0, 2]],  # with this seed no category is hashed to 0
            ldp.LocalHashing(np.inf, 2, 3),
            "a seed with the hash of a category; 1 are not, the first in row 1",
        ),
        ([0, 4], ldp.HadamardResponse(1.0, 3), r"integers in 0..3 under HadamardResponse"),
        (np.empty((0, 3)), BITS, "values is empty"),
        ([["a", "b", "c"]], BITS, "values must be numbers"),
    ],
)
def test_values_that_were_not_released_are_refused(values, mechanism, message):
    with pytest.raises(ValueError, match=message):
        ldp.Release(values, mechanism)


@some_of(["oue", "sue"])
def test_other_than_one_bit_has_no_probability_at_an_infinite_budget(make):
    bits = np.array([[0, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 0]], np.uint8)
    expected = np.full((4, 3), -np.inf)
    expected[3, 1] = 0
    for mechanism in (make(np.inf, 3), make(np.full(4, np.inf), 3)):
        np.testing.assert_array_equal(evaluate(of_each_code, mechanism, bits)[0], expected.T)
        found = log_prob(dist.Categorical(np.array([0.2, 0.3, 0.5])), mechanism, bits)
        np.testing.assert_allclose(found, [-np.inf, -np.inf, -np.inf, np.log(0.3)])


def test_mixed_protocols_in_one_release_are_refused():
    with pytest.raises(TypeError, match="one for all records: make one release for each protocol"):
        ldp.Release([[0, 1, 0], [1, 0, 0]], [BITS, ldp.SymmetricUnaryEncoding(1.0, 3)])
    one, other = (ldp.Release([[0, 1, 0]], m).sketch() for m in (BITS, ldp.SymmetricUnaryEncoding(1.0, 3)))
    with pytest.raises(ValueError, match="sketches of different mechanisms or groups cannot be added"):
        one + other


@pytest.mark.parametrize(
    ("k", "x"), [(2, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 0), (5, 3), (5, 0), (5, 4)))]
)
def test_samples_of_randomized_response_have_the_stated_probabilities(k, x):
    mechanism, n = RandomizedResponse(0.7, k), 20_000
    z = randomize(mechanism, np.full(n, x), seed=k + x)
    expected = n * table(mechanism, np.arange(k))[x]
    counts = np.bincount(z, minlength=k)
    assert stats.chisquare(counts, expected, sum_check=False).pvalue > ERROR_RATE


def test_samples_follow_personal_budgets():
    budgets = np.repeat([0.2, 1.0, 3.0], 10_000)
    mechanism = RandomizedResponse(budgets, 5)
    x = np.tile(np.arange(5), 6000)
    z = randomize(mechanism, x, seed=3)
    for budget in (0.2, 1.0, 3.0):
        part = budgets == budget
        keep = np.exp(budget) / (np.exp(budget) + 4)
        shift = np.bincount((z - x)[part] % 5, minlength=5)
        # shifts other than zero are equally likely, since x is uniform
        expected = 10_000 * np.array([keep] + 4 * [(1 - keep) / 4])
        assert stats.chisquare(shift, expected).pvalue > ERROR_RATE


@pytest.mark.parametrize("k", [2, 3, 50])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 40.0, 700.0])
def test_probabilities_are_exact_in_log_space_and_sum_to_one(epsilon, k):
    log_p = evaluate(of_each_code, RandomizedResponse(epsilon, k), np.arange(k))[0][1]
    with mpmath.workdps(330):
        keep = 1 / (1 + (k - 1) * mpmath.exp(-mpmath.mpf(epsilon)))
        exact = [float(mpmath.log(keep)), float(mpmath.log(keep) - epsilon)]
    # exp(-700 + log(k - 1)) cannot be better than the rounding of its argument
    np.testing.assert_allclose(log_p, np.where(np.arange(k) == 1, *exact), rtol=1e-13)
    assert np.exp(log_p).sum() == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("precise", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_codes_may_be_integers_or_floats_traced_or_not(precise):
    with jax.enable_x64(precise):
        mechanism, codes = RandomizedResponse(1.2, 4), np.arange(4)
        table = mechanism.log_prob(codes, codes[:, None])
        assert table.dtype == (jnp.float64 if precise else jnp.float32)
        records = [codes.astype(dtype) for dtype in (np.int8, np.int32, np.float32, np.float64)]
        for traced in jax.jit(lambda m, zs: [m.log_prob(z, z[:, None]) for z in zs])(mechanism, records):
            np.testing.assert_allclose(traced, table, rtol=1e-6)
        for z in records:
            wanted = jnp.asarray(z).dtype
            released = jax.eval_shape(lambda z: mechanism.randomize(jax.random.key(0), z), jnp.asarray(z))
            assert released.dtype == wanted
            assert jax.eval_shape(lambda z=z: mechanism.randomize(jax.random.key(0), z)).dtype == wanted
        assert mechanism.log_prob(codes.astype(np.float32), np.float32(1)).dtype == jnp.float32
        answer = jax.eval_shape(lambda: RandomizedResponse(1.0).randomize(jax.random.key(0), True))
        assert jnp.issubdtype(answer.dtype, jnp.integer)


@pytest.mark.parametrize(("epsilon", "k"), [(0.5, 2), (1.0, 5), (30.0, 5)])
def test_moments_are_those_of_the_released_code(epsilon, k):
    mechanism, codes = RandomizedResponse(epsilon, k), np.arange(k)
    mean, variance = call("moments", mechanism, codes)
    p = table(mechanism, codes)
    np.testing.assert_allclose(mean, p @ codes, rtol=1e-13, atol=1e-15)
    offset = codes - codes[:, None]
    expected = np.sum(p * offset**2, axis=1) - np.sum(p * offset, axis=1) ** 2
    np.testing.assert_allclose(variance, expected, rtol=1e-12)


def test_gradient_with_respect_to_the_budget_is_finite_at_both_ends():
    with jax.enable_x64(False):  # where less is finite
        slope = jax.jit(jax.grad(lambda m, z: m.log_prob(z, 0)))
        for epsilon in (1e-3, 700.0):
            for z in (0, 1):
                assert np.isfinite(slope(RandomizedResponse(epsilon, 3), z).epsilon)


def test_domain_and_support_are_the_codes_and_nothing_is_numeric():
    mechanism = RandomizedResponse(1.0, 3)
    for constraint in (mechanism.domain, mechanism.support):
        np.testing.assert_array_equal(constraint(np.array([-1, 0, 2, 3])), [False, True, True, False])
    assert isinstance(mechanism, DiscreteMechanism) and not isinstance(mechanism, NumericMechanism)


@pytest.mark.parametrize("categories", [1, 0, 2.0, "3", True, None, np.array([2, 3])])
def test_categories_must_be_an_integer_of_at_least_two(categories):
    with pytest.raises(ValueError, match="categories must be an integer of at least 2, got"):
        RandomizedResponse(1.0, categories)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, np.nan, -np.inf, [1.0, np.nan]])
def test_bad_budgets_are_named(epsilon):
    with pytest.raises(ValueError, match="epsilon must be positive, got"):
        RandomizedResponse(epsilon, 3)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 5.0])
@pytest.mark.parametrize("k", [2, 3, 6])
def test_every_test_between_categories_obeys_the_curve_and_its_corners_are_tests(k, epsilon):
    mechanism = RandomizedResponse(epsilon, k)
    codes = np.arange(k)
    p = table(mechanism, codes)
    regions = np.array(list(itertools.product([0, 1], repeat=k)))
    for x, other in itertools.permutations(range(k), 2):
        alpha, beta = np.clip(regions @ p[x], 0, 1), 1 - regions @ p[other]
        stated = mechanism.guarantee.tradeoff(alpha)
        assert np.all(beta >= stated - 1e-14)
        # all four corners of the polygon are attained; randomizing between them gives the rest
        order = np.argsort(-p[other] / p[x])
        alpha, power = (np.clip(np.append(0, np.cumsum(row[order])), 0, 1) for row in (p[x], p[other]))
        np.testing.assert_allclose(1 - power, mechanism.guarantee.tradeoff(alpha), atol=1e-14)
        stick = [np.sum(np.maximum(p[other] - np.exp(at) * p[x], 0)) for at in (0.0, epsilon / 2, epsilon)]
        np.testing.assert_allclose(mechanism.guarantee.delta([0.0, epsilon / 2, epsilon]), stick, atol=1e-14)


@pytest.mark.parametrize("g", [5, pytest.param(2, marks=pytest.mark.slow)])
def test_seeds_are_uniform_and_hashes_are_kept_as_stated(g):
    mechanism, n = ldp.LocalHashing(1.0, 50, g), 40_000
    x = np.arange(n) % 50
    z = randomize(mechanism, x, seed=5)
    for bits in (z[:, 0] >> 28, z[:, 0] & 15):
        assert stats.chisquare(np.bincount(bits, minlength=16)).pvalue > ERROR_RATE
    own = call("hash", mechanism, z[:, 0], x).astype(int)
    shift = np.bincount((z[:, 1].astype(int) - own) % g, minlength=g)
    keep = 1 / (1 + (g - 1) * np.exp(-1.0))
    assert stats.chisquare(shift, n * np.array([keep] + (g - 1) * [(1 - keep) / (g - 1)])).pvalue > ERROR_RATE
    # over random seeds another code is supported with probability 1/g
    others = call("supports", mechanism, z, (x + 1) % 50).mean()
    assert abs(others - 1 / g) < stats.norm.isf(ERROR_RATE / 2) * np.sqrt((g - 1) / g**2 / n)


def test_the_hash_is_xxh32_of_the_decimal_digits():
    xxhash = pytest.importorskip("xxhash")
    rng = np.random.default_rng(0)
    for largest in (9, 10, 999, 1000, 12_345, 9_999_999):
        mechanism = ldp.LocalHashing(1.0, largest + 1, 2**31 - 1)  # a prime, so that all bits of a hash count
        codes = np.concatenate([[0, largest], rng.integers(0, largest + 1, 200)])
        seeds = rng.integers(0, 2**32, len(codes), dtype=np.uint32)
        hashes = [xxhash.xxh32(str(x).encode(), seed=int(s)).intdigest() for x, s in zip(codes, seeds, strict=True)]
        expected = np.array(hashes) % (2**31 - 1)
        if largest == 999:
            known = jax.jit(lambda seeds, own=mechanism, x=codes: own.hash(seeds, x))
            np.testing.assert_array_equal(known(seeds), expected)
        np.testing.assert_array_equal(call("hash", mechanism, seeds, codes), expected)


def test_seeds_that_single_precision_holds_are_read():
    values = np.array([[2**24, 1], [7, 0]], np.float32)
    assert ldp.Release(values, ldp.LocalHashing(1.0, 3, 2)).values.tolist() == [[2**24, 1], [7, 0]]
