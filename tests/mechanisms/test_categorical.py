"""Randomized response: samples, probabilities, moments, dtypes and what is refused.

Statistical tests use fixed seeds and fail by chance with probability 1e-4 each when a seed is changed.
"""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

from ldpbayes.mechanisms import DiscreteMechanism, NumericMechanism, RandomizedResponse

ERROR_RATE = 1e-4


@pytest.mark.parametrize(("k", "x"), [(2, 0), (2, 1), (5, 0), (5, 3), (5, 4)])
def test_samples_have_the_stated_probabilities(k, x):
    mechanism, n = RandomizedResponse(0.7, k), 20_000
    z = np.asarray(mechanism.randomize(jax.random.key(k + x), np.full(n, x)))
    expected = n * np.exp(np.asarray(mechanism.log_prob(np.arange(k), x), float))
    counts = np.bincount(z, minlength=k)
    assert stats.chisquare(counts, expected, sum_check=False).pvalue > ERROR_RATE


def test_samples_follow_personal_budgets():
    budgets = np.repeat([0.2, 1.0, 3.0], 10_000)
    mechanism = RandomizedResponse(budgets, 5)
    x = np.tile(np.arange(5), 6000)
    z = np.asarray(jax.jit(type(mechanism).randomize)(mechanism, jax.random.key(3), x))
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
    with jax.enable_x64(True):
        log_p = np.asarray(RandomizedResponse(epsilon, k).log_prob(np.arange(k), 1))
    with mpmath.workdps(330):
        keep = 1 / (1 + (k - 1) * mpmath.exp(-mpmath.mpf(epsilon)))
        exact = [float(mpmath.log(keep)), float(mpmath.log(keep) - epsilon)]
    # exp(-700 + log(k - 1)) cannot be better than the rounding of its argument
    np.testing.assert_allclose(log_p, np.where(np.arange(k) == 1, *exact), rtol=1e-13)
    assert np.exp(log_p).sum() == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("x64", [False, True])
def test_codes_may_be_integers_or_floats_traced_or_not(x64):
    with jax.enable_x64(x64):
        mechanism, codes = RandomizedResponse(1.2, 4), np.arange(4)
        table = mechanism.log_prob(codes, codes[:, None])
        assert table.dtype == (jnp.float64 if x64 else jnp.float32)
        for dtype in (np.int8, np.int32, np.float32, np.float64):
            z = codes.astype(dtype)
            traced = jax.jit(type(mechanism).log_prob)(mechanism, z, z[:, None])
            np.testing.assert_allclose(traced, table, rtol=1e-6)
            released = mechanism.randomize(jax.random.key(0), jnp.asarray(z))
            assert released.dtype == jnp.asarray(z).dtype
        assert mechanism.log_prob(codes.astype(np.float32), np.float32(1)).dtype == jnp.float32
        assert jnp.issubdtype(RandomizedResponse(1.0).randomize(jax.random.key(0), True).dtype, jnp.integer)


@pytest.mark.parametrize(("epsilon", "k"), [(0.5, 2), (1.0, 5), (30.0, 5)])
def test_moments_are_those_of_the_released_code(epsilon, k):
    mechanism, codes = RandomizedResponse(epsilon, k), np.arange(k)
    with jax.enable_x64(True):
        mean, variance = mechanism.moments(codes)
        p = np.exp(np.asarray(mechanism.log_prob(codes, codes[:, None])))
    np.testing.assert_allclose(mean, p @ codes, rtol=1e-13, atol=1e-15)
    offset = codes - codes[:, None]
    expected = np.sum(p * offset**2, axis=1) - np.sum(p * offset, axis=1) ** 2
    np.testing.assert_allclose(variance, expected, rtol=1e-12)


def test_gradient_with_respect_to_the_budget_is_finite_at_both_ends():
    for epsilon in (1e-3, 700.0):
        for z in (0, 1):
            assert np.isfinite(jax.grad(lambda m, z=z: m.log_prob(z, 0))(RandomizedResponse(epsilon, 3)).epsilon)


def test_domain_and_support_are_the_codes_and_nothing_is_numeric():
    mechanism = RandomizedResponse(1.0, 3)
    for constraint in (mechanism.domain, mechanism.support):
        np.testing.assert_array_equal(constraint(jnp.array([-1, 0, 2, 3])), [False, True, True, False])
    assert isinstance(mechanism, DiscreteMechanism) and not isinstance(mechanism, NumericMechanism)


@pytest.mark.parametrize("categories", [1, 0, 2.0, "3", True, None, np.array([2, 3])])
def test_categories_must_be_an_integer_of_at_least_two(categories):
    with pytest.raises(ValueError, match="categories must be an integer of at least 2, got"):
        RandomizedResponse(1.0, categories)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, np.nan, -np.inf, [1.0, np.nan]])
def test_bad_budgets_are_named(epsilon):
    with pytest.raises(ValueError, match="epsilon must be positive, got"):
        RandomizedResponse(epsilon, 3)


@pytest.mark.parametrize("code", [-1, 3, 0.5, np.nan])
def test_codes_out_of_range_are_refused(code):
    with pytest.raises(ValueError, match=r"x must be an integer from 0 to 2, got x\[1\] = "):
        RandomizedResponse(1.0, 3).randomize(jax.random.key(0), np.array([0, code]))
