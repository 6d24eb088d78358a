"""Symmetric, zero-inflated and independent Laplace noise: samplers against densities, and what is released as it is."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import integrate, special, stats

import ldpbayes as ldp
from ldpbayes.mechanisms import IndependentLaplaceMechanism, SymmetricLaplaceMechanism, ZeroInflatedLaplaceMechanism

pytestmark = pytest.mark.usefixtures("x64")

ERROR_RATE = 1e-4  # of each test of a sampler, at its fixed seed
N = 50_000


def sphere(d):
    return 2 * np.pi ** (d / 2) / special.gamma(d / 2)


@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_symmetric_sampler_follows_its_density(d):
    scale = 0.7
    mechanism = SymmetricLaplaceMechanism(scale, -1.0, 1.0, columns=d)
    x = np.linspace(-0.9, 0.9, d)
    noise = np.asarray(mechanism.randomize(jax.random.key(d), np.broadcast_to(x, (N, d)))) - x

    def radial(r):
        z = x + r * np.eye(d)[0]
        return sphere(d) * r ** (d - 1) * float(jnp.exp(mechanism.log_prob(z, x)))

    edges = scale * np.array([0, 0.2, 0.5, 0.8, 1.2, 1.7, 2.5, 4, 40]) * np.sqrt(d)
    share = [integrate.quad(radial, a, b)[0] for a, b in itertools.pairwise(edges)]
    assert sum(share) == pytest.approx(1, abs=1e-7)
    counts = np.histogram(np.linalg.norm(noise, axis=1), edges)[0]
    assert stats.chisquare(counts, N * np.array(share) / sum(share)).pvalue > ERROR_RATE
    # directions are uniform, and a column alone is Laplace with standard deviation λ
    for column in range(d):
        assert stats.kstest(noise[:, column], stats.laplace(scale=scale / np.sqrt(2)).cdf).pvalue > ERROR_RATE
    if d > 1:
        cosine = noise[:, 0] / np.linalg.norm(noise, axis=1)
        law = stats.beta((d - 1) / 2, (d - 1) / 2, loc=-1, scale=2)
        assert stats.kstest(cosine, law.cdf).pvalue > ERROR_RATE


def test_density_of_a_number_is_laplace_and_its_gradient_is_finite_everywhere():
    mechanism = SymmetricLaplaceMechanism(0.5, -1.0, 1.0)
    z = np.array([-3.0, 0.2, 0.2, 4.0])
    x = np.array([0.5, 0.2, -2.0, 0.0])
    law = stats.laplace(loc=np.clip(x, -1, 1), scale=0.5 / np.sqrt(2))
    np.testing.assert_allclose(mechanism.log_prob(z, x), law.logpdf(z), rtol=1e-14)
    rows = SymmetricLaplaceMechanism(0.5, -1.0, 1.0, columns=3)
    for at in (np.zeros(3), np.array([1e-9, 0, 0]), np.array([300.0, 0, 0])):
        assert np.all(np.isfinite(jax.grad(lambda x, at=at: rows.log_prob(at, x))(jnp.full(3, 0.1))))
    assert np.all(np.isfinite(jax.grad(rows.log_prob, 1)(jnp.full(3, 0.1), jnp.full(3, 0.1))))


def test_zero_inflated_records_are_kept_with_the_stated_probability_and_else_noisy():
    delta, scale = 0.2, 0.5
    mechanism = ZeroInflatedLaplaceMechanism(delta, scale, -1.0, 1.0, columns=3)
    x = np.asarray(jax.random.uniform(jax.random.key(0), (N, 3), minval=-1, maxval=1))
    z = np.asarray(mechanism.randomize(jax.random.key(1), x))
    kept = np.all(z == x, axis=1)
    assert stats.binomtest(int(kept.sum()), N, delta).pvalue > ERROR_RATE
    assert not np.any((z == x)[~kept])  # all columns together
    noisy = (z - x)[~kept, 1]
    assert stats.kstest(noisy, stats.laplace(scale=scale / np.sqrt(2)).cdf).pvalue > ERROR_RATE
    np.testing.assert_allclose(mechanism.log_prob(z, x)[kept], np.log(delta))
    np.testing.assert_allclose(
        mechanism.log_prob(z, x)[~kept], np.log1p(-delta) + mechanism.noise.log_prob(z, x)[~kept]
    )


def test_second_randomization_makes_the_noise_symmetric_laplace():
    delta, scale = 0.3, 0.5
    mechanism = ZeroInflatedLaplaceMechanism(delta, scale, -1.0, 1.0, columns=3, perturbed=(0, 2))
    x = np.zeros((N, 3))
    z = mechanism.randomize(jax.random.key(1), x)
    again = np.asarray(mechanism.randomize_again(jax.random.key(2), z))
    assert np.all(again[:, 1] == 0)
    for column in (0, 2):
        assert stats.kstest(again[:, column], stats.laplace(scale=scale / np.sqrt(2)).cdf).pvalue > ERROR_RATE
    # its own noise has variance δ λ², which the total of the two adds up to
    own = np.asarray(again - z)[:, 0]
    assert stats.kstest(own, stats.laplace(scale=np.sqrt(delta) * scale / np.sqrt(2)).cdf).pvalue > ERROR_RATE


def test_independent_noise_is_independent():
    mechanism = IndependentLaplaceMechanism(0.5, -1.0, 1.0, columns=2)
    noise = np.asarray(mechanism.randomize(jax.random.key(3), np.zeros((N, 2))))
    law = stats.laplace(scale=0.5 / np.sqrt(2))
    # both probability integral transforms together are uniform on the square
    u = law.cdf(noise)
    counts = np.histogram2d(*u.T, bins=6, range=[(0, 1), (0, 1)])[0]
    assert stats.chisquare(counts.ravel()).pvalue > ERROR_RATE
    np.testing.assert_allclose(
        mechanism.log_prob(noise, np.zeros(2)), law.logpdf(noise).sum(axis=1), rtol=1e-13, atol=1e-14
    )


def test_named_columns_are_clipped_perturbed_or_passed_through():
    mechanism = ZeroInflatedLaplaceMechanism(
        0.2, 0.5, [-1, 0], [1, 2], columns=("age", "answer", "income"), perturbed=("income", "age")
    )
    assert mechanism.index == (0, 2) and mechanism.dimension == 2 and mechanism.event_shape == (3,)
    x = np.array([[5.0, 77.0, -3.0], [0.5, -7.0, 1.5]])
    z = np.asarray(mechanism.randomize(jax.random.key(0), x))
    assert np.all(z[:, 1] == x[:, 1])
    mean, variance = mechanism.moments(x)
    np.testing.assert_allclose(mean, [[1, 77, 0], [0.5, -7, 1.5]])
    np.testing.assert_allclose(variance, np.broadcast_to([0.2, 0, 0.2], (2, 3)))
    assert mechanism.log_prob(z, x).shape == (2,)
    assert np.all(mechanism.log_prob(z + [0, 1, 0], x) == -np.inf)
    assert ldp.mechanism_from_spec(mechanism.spec()) == mechanism
    assert mechanism.guarantee.unit == "record" and mechanism.attribute_guarantee.unit == "attribute"
    statement = mechanism.guarantee.statement(epsilon=2.0)
    assert statement.startswith("Each record, answer aside, is protected") and "Nothing protects answer." in statement
    assert f"epsilon = 2 and delta = {mechanism.guarantee.delta(2.0):.4g}" in statement
    assert mechanism == dataclasses.replace(mechanism, perturbed=(0, 2))
    numbered = ZeroInflatedLaplaceMechanism(0.2, 0.5, 0, 1, 4, (0, 1)).guarantee.statement()
    assert numbered.startswith("Each record, x2 and x3 aside, is protected")


def test_columns_of_a_data_frame_are_found_by_their_names(rng):
    mechanism = ZeroInflatedLaplaceMechanism(0.2, 0.5, -1, 1, columns=("age", "income"))
    rows = rng.normal(size=(5, 2))
    frame = pd.DataFrame({"income": rows[:, 1], "age": rows[:, 0]})
    np.testing.assert_array_equal(ldp.Release(frame, mechanism).values, rows)
    key = jax.random.key(0)
    np.testing.assert_array_equal(mechanism.randomize(key, frame), mechanism.randomize(key, rows))
    for other in (frame.rename(columns=str.upper), frame.assign(extra=0), frame[["age"]]):
        with pytest.raises(ValueError, match="the mechanism's columns are age, income; got"):
            ldp.Release(other, mechanism)


def test_personal_parameters_and_public_records():
    scale = np.where(np.arange(1000) < 500, 0.0, 2.0)
    mechanism = ZeroInflatedLaplaceMechanism(0.2, scale, 0.0, 1.0)
    x = np.full(1000, 0.5)
    z = np.asarray(mechanism.randomize(jax.random.key(0), x))
    assert np.all(z[:500] == 0.5) and np.mean(z[500:] == 0.5) == pytest.approx(0.2, abs=0.08)  # 4.5 standard deviations
    np.testing.assert_array_equal(mechanism.log_prob(z, x)[:500], 0)
    assert np.all(mechanism.log_prob(z + 0.1, x)[:500] == -np.inf)
    release = ldp.Release(z, mechanism)
    assert "not protected" in release.mechanism.guarantee.statement()
    np.testing.assert_allclose(mechanism.guarantee.delta(1.0)[[0, -1]], [1.0, 0.2])
    with pytest.raises(ValueError, match="give one budget, or one a record"):
        ldp.Release(z[:-1], mechanism)


def test_in_many_columns_most_rows_inside_the_bounds_are_original_ones():
    mechanism = ZeroInflatedLaplaceMechanism(0.2, 2.0, -0.5, 0.5, columns=6)
    x = np.asarray(jax.random.uniform(jax.random.key(5), (400_000, 6), minval=-0.5, maxval=0.5))
    z = np.asarray(mechanism.randomize(jax.random.key(6), x))
    original, inside = np.all(z == x, axis=1), np.all(np.abs(z) <= 0.5, axis=1)
    assert np.mean(original[inside]) == pytest.approx(0.944, abs=0.004)  # as documented; five standard errors


def test_guarantees_are_the_papers_theorem():
    mechanism = ZeroInflatedLaplaceMechanism(0.2, 0.5, -1.0, 1.0, columns=6)
    record, attribute = mechanism.guarantee.tradeoff, mechanism.attribute_guarantee.tradeoff
    assert record.tradeoff.distance == pytest.approx(2 * np.sqrt(6) / 0.5)  # the diameter of [−M, M]^d is 2M√d
    assert attribute.tradeoff.distance == pytest.approx(4.0)  # Table 2's T_{6,4,0.2}
    assert record.tradeoff.dimension == attribute.tradeoff.dimension == 6
    statement = mechanism.attribute_guarantee.statement()
    assert "Each attribute" in statement and "With probability 0.2 it is released exactly as it is." in statement


def test_best_tests_between_numbers_are_on_the_stated_curve():
    mechanism = ZeroInflatedLaplaceMechanism(0.1, 0.94, 0.0, 1.0)
    z = np.linspace(-25, 25, 400_001)
    cells = (z[:-1] + z[1:]) / 2
    p, q = (0.9 * np.diff(stats.laplace(loc=at, scale=0.94 / np.sqrt(2)).cdf(z)) for at in (0.0, 1.0))
    order = np.argsort(-np.abs(cells) + np.abs(cells - 1), kind="stable")  # the density ratio grows with this
    level, power = np.cumsum(p[order]), np.cumsum(q[order]) + 0.1  # an atom at 1 is never a false alarm
    inner = slice(1000, len(cells) - 1000, 997)
    np.testing.assert_allclose(1 - power[inner], mechanism.guarantee.tradeoff(level[inner]), atol=1e-6)


def test_traced_mechanisms_can_be_mapped_over():
    def released(scale, key):
        return ZeroInflatedLaplaceMechanism(0.2, scale, -1.0, 1.0, 2).randomize(key, jnp.zeros((5, 2)))

    mapped = jax.jit(jax.vmap(released))(jnp.array([0.5, 1.0]), jax.random.split(jax.random.key(0), 2))
    assert mapped.shape == (2, 5, 2)
    np.testing.assert_allclose(mapped[1], released(1.0, jax.random.split(jax.random.key(0), 2)[1]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ZeroInflatedLaplaceMechanism(0.0, 1.0, 0, 1), "zero_probability must be between 0 and 1, exclusive"),
        (lambda: ZeroInflatedLaplaceMechanism(1.0, 1.0, 0, 1), "zero_probability must be between 0 and 1, exclusive"),
        (lambda: SymmetricLaplaceMechanism(-1.0, 0, 1), "scale must be non-negative and finite, got -1.0"),
        (lambda: SymmetricLaplaceMechanism(1.0, 1, 1), "lower must be below upper"),
        (lambda: SymmetricLaplaceMechanism(1.0, [0, 0], 1), "lower must be a number, or one a perturbed column"),
        (lambda: SymmetricLaplaceMechanism(1.0, [0, 0], 1, columns=3), r"\(here 3\), got shape \(2,\)"),
        (lambda: SymmetricLaplaceMechanism(1.0, 0, 1, columns=0), "columns must be a positive integer, or names"),
        (lambda: SymmetricLaplaceMechanism(1.0, 0, 1, columns=("a", "a")), "columns must be distinct names"),
        (lambda: SymmetricLaplaceMechanism(1.0, 0, 1, perturbed=(0,)), "needs columns="),
        (
            lambda: SymmetricLaplaceMechanism(1.0, 0, 1, 3, (0, 5)),
            r"perturbed must be distinct columns out of \(0, 1, 2\)",
        ),
        (lambda: SymmetricLaplaceMechanism([[1.0]], 0, 1), "scale must be a number, or one a record"),
        (
            lambda: SymmetricLaplaceMechanism(1.0, 0, 1, 3).randomize(jax.random.key(0), np.zeros((4, 2))),
            r"x must be rows of 3 columns, got an array of shape \(4, 2\)",
        ),
        (
            lambda: SymmetricLaplaceMechanism(1.0, 0, 1).randomize(jax.random.key(0), [0.1, np.nan]),
            "x must be a number",
        ),
        (lambda: ldp.Release(np.zeros((3, 2)), SymmetricLaplaceMechanism(1.0, 0, 1, 3)), "rows of 3 a record"),
        (lambda: ldp.Release([[0.0, np.inf]], SymmetricLaplaceMechanism(1.0, 0, 1, 2)), "values must be finite"),
        (
            lambda: ldp.Release([0.5, 1.5, 1.5], SymmetricLaplaceMechanism([0.0, 1.0, 0.0], 0, 1)),
            "public records lie between the bounds, being clipped without noise; 1 of these do not, the first at 2",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
