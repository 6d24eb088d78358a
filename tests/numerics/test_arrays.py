"""The product of bits by digits against exact sums, and its derivatives against those of the plain product."""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import ldpbayes as ldp
from ldpbayes.likelihood.closed_forms import categories as _categories
from ldpbayes.likelihood.closed_forms.categories import supported_mass
from ldpbayes.numerics.arrays import bit_product
from tests.programs import randomize

RNG = np.random.default_rng(3)
BITS = (RNG.random((200, 61)) < 0.4).astype(np.uint8)
# of magnitudes from 1e-9 to 1e9, negative ones too
VECTOR = RNG.normal(size=61) * 10 ** RNG.uniform(-9, 9, 61)


product_of_bits = jax.jit(bit_product)


@pytest.mark.parametrize("factor", [1.0, -1.0, 1e-290, 1e290])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, bool])
def test_the_product_is_exact_but_for_fixed_point(factor, dtype, x64):
    vector = VECTOR * factor
    product = np.asarray(product_of_bits(BITS.astype(dtype), vector)).tolist()
    exact = [sum((Fraction(v) for v, b in zip(vector.tolist(), row, strict=True) if b), Fraction(0)) for row in BITS]
    error = max(abs(Fraction(p) - e) for p, e in zip(product, exact, strict=True))
    # 2^-54 of the largest entry a term; sums over a digit have 12 bits, so two of the eight steps that join them round
    allowed = 61 * 2**-54 * np.max(np.abs(vector)) + 2 * 2**-53 * float(max(map(abs, exact)))
    assert float(error) <= allowed


@pytest.mark.parametrize("entry", [np.nextafter(1, 0), 1.0, -np.nextafter(1, 0), 2.0**60, 0.0])
def test_the_digits_hold_the_largest_entry(entry, x64):
    np.testing.assert_array_equal(product_of_bits(np.eye(3, dtype=bool), np.full(3, entry)), np.full(3, entry))


@pytest.mark.parametrize("entry", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(entry, x64):
    assert not np.any(np.isfinite(product_of_bits(BITS, np.append(VECTOR[1:], entry))))


def test_derivatives_are_those_of_a_product(x64):
    def loss(v):
        return jnp.sum(jnp.log1p(bit_product(BITS, v) ** 2))

    points = RNG.normal(size=(3, 61))
    # products are off by 61 x 2^-54 of the largest entry; derivatives of log1p(p^2), up to the third, are less than 4;
    # 200 rows are added, in the same fixed point
    allowed = 4 * 200 * (61 * 2**-54 * np.max(np.abs(points)) + 2**-54)
    ways = (jax.grad, jax.hessian, lambda f: jax.jacrev(jax.jacrev(f)), lambda f: jax.jacfwd(jax.jacfwd(f)))

    p, bits = points @ BITS.T, BITS.astype(float)
    slope = 2 * p / (1 + p**2) @ bits
    curvature = np.einsum("mi,ij,ik->mjk", (2 - 2 * p**2) / (1 + p**2) ** 2, bits, bits, optimize=True)
    found = jax.jit(lambda points: [(f(points[0]), jax.vmap(f)(points)) for f in (way(loss) for way in ways)])(points)
    for (one, several), want in zip(found, (slope, curvature, curvature, curvature), strict=True):
        np.testing.assert_allclose(one, want[0], rtol=0, atol=allowed)
        np.testing.assert_allclose(several, want, rtol=0, atol=allowed)


def test_batches_of_bits_and_of_both(x64):
    bits, vectors = BITS.reshape(4, 50, 61), RNG.normal(size=(4, 61))

    @jax.jit
    def mapped(bits, vectors):
        one = jax.vmap(bit_product, (0, None))(bits, vectors[2])
        slopes = jax.grad(lambda vectors: jnp.sum(jax.vmap(bit_product)(bits, vectors)))(vectors)
        return (
            jax.vmap(bit_product)(bits, vectors),
            one,
            jax.vmap(bit_product, (None, 1), 1)(bits[1], vectors.T),
            slopes,
        )

    both, one, across, slopes = mapped(bits, vectors)
    # 61 x 2^-54 of the largest entry, and as much again for the rounding of sums in double precision
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=61 * 2**-53 * np.max(np.abs(vectors)))
    close(both, np.einsum("bij,bj->bi", bits, vectors))
    np.testing.assert_allclose(slopes, bits.sum(axis=1), rtol=1e-12)
    close(one, bits @ vectors[2])
    close(across, bits[1] @ vectors.T)


def test_other_precisions_and_endless_sums_are_refused(x64):
    with pytest.raises(ValueError, match="bit_product takes float64"):
        bit_product(BITS, VECTOR.astype(np.float32))
    with pytest.raises(ValueError, match="up to 16777216 rows"):
        jax.eval_shape(bit_product, jax.ShapeDtypeStruct((2**24 + 1, 3), bool), jax.ShapeDtypeStruct((3,), float))


@pytest.mark.parametrize("make", [ldp.OptimalUnaryEncoding, pytest.param(ldp.LocalHashing, marks=pytest.mark.slow)])
def test_a_likelihood_of_many_categories_is_the_same_by_digits(make, monkeypatch, x64):
    mechanism, theta = make(2.0, 64), np.random.default_rng(0).dirichlet(np.ones(64))
    z = randomize(mechanism, np.random.default_rng(1).choice(64, 3_000, p=theta))
    used = []

    def log_likelihood(logits, z, pays):
        monkeypatch.setattr(_categories, "pays", lambda: used.append(pays) or pays)
        monkeypatch.setattr(_categories, "BITS_AT_ONCE", 64 * 1_000)  # four chunks, of which two overlap
        return ldp.Privatized(dist.Categorical(logits=logits), mechanism).log_prob(z)

    # masses are off by 64 x 2^-54, and p(z | theta) is at least exp(-2) of its largest: its log is off by exp(2) times
    # that, and the derivative of its log by exp(4) times
    def both(pays):
        def function(logits, z):
            return log_likelihood(logits, z, pays)

        return jax.jit(lambda *at: (function(*at), jax.jacrev(function)(*at)))(np.log(theta), z)

    for fast, plain in zip(both(True), both(False), strict=True):
        np.testing.assert_allclose(fast, plain, rtol=0, atol=64 * 2**-54 * np.exp(4))
    assert True in used and False in used


@pytest.mark.parametrize("epsilon", [np.inf, 8.0])
def test_large_budgets_keep_relative_precision(epsilon, monkeypatch, x64):
    monkeypatch.setattr(_categories, "pays", lambda: True)
    mechanism = ldp.OptimalUnaryEncoding(epsilon, 64)
    theta = np.append(np.full(63, 1 / 63), 1e-30)
    z = np.zeros((2_000, 64), np.uint8)
    z[:, -1] = 1
    mass = jax.jit(lambda z: supported_mass(mechanism, z, theta))(z)
    np.testing.assert_allclose(mass, 1e-30, rtol=1e-14)
