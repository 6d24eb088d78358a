"""Polynomials of up to the fourth order: what they keep of a function, and how they go on where it was not seen."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ldpbayes.numerics.polynomial import Frame, polynomial_of_slopes

R = 4


@pytest.fixture(scope="module")
def quartic():
    """A polynomial of the fourth order, points, and its values and gradients there."""
    rng = np.random.default_rng(0)
    tensors = [rng.normal(size=(R,) * order) for order in range(5)]

    def function(x):
        return (
            tensors[0]
            + tensors[1] @ x
            + x @ tensors[2] @ x
            + jnp.einsum("ijk,i,j,k", tensors[3], x, x, x)
            + jnp.einsum("ijkl,i,j,k,l", tensors[4], x, x, x, x)
        )

    points = 3 + rng.normal(size=(2 * math.comb(R + 3, 3), R)) @ rng.normal(size=(R, R))
    with jax.enable_x64(True):
        values, slopes = jax.jit(jax.vmap(jax.value_and_grad(function)))(points)
        return function, points, np.asarray(values), np.asarray(slopes)


@jax.jit
def evaluated(polynomial, points):
    """Values and gradients of a polynomial at each of some points."""
    return jax.vmap(jax.value_and_grad(polynomial))(points)


def test_a_quartic_comes_back_from_its_slopes_with_its_own_gradient(x64, quartic):
    _, points, values, slopes = quartic
    made = polynomial_of_slopes(Frame.of_draws(points), points, values, slopes, 4)
    scale = np.abs(values).max()
    everywhere = np.concatenate([points, 9 * points])  # far points are beyond its radius
    own, gradients = evaluated(made, everywhere)
    np.testing.assert_allclose(made.values(everywhere), own, rtol=1e-12, atol=1e-12 * scale)
    own, gradients = own[: len(points)], gradients[: len(points)]
    assert np.abs(own - values).max() < 1e-11 * scale  # rounding, of a well-conditioned system
    assert np.abs(gradients - slopes).max() < 1e-11 * np.abs(slopes).max()


def test_a_lower_order_has_the_nearest_gradient_among_its_kind(x64, quartic):
    _, points, values, slopes = quartic
    frame = Frame.of_draws(points)
    made = polynomial_of_slopes(frame, points, values, slopes, 2)

    def distance(polynomial):
        off = evaluated(polynomial, points)[1] - slopes
        return np.sum((off @ frame.lift) ** 2)  # in units of the standard deviations

    least = distance(made)
    assert np.isclose(evaluated(made, points)[0].mean(), values.mean())
    # Symmetric tensors are averaged ones; nudging the slope, whose fit needs no averaging, only makes it worse.
    for step in np.vstack([np.eye(R), -np.eye(R)]):
        assert distance(dataclasses.replace(made, slope=made.slope + 1e-3 * step)) > least


def test_beyond_the_draws_it_falls_as_a_normal_density_does_and_the_gradient_is_its_own(x64, quartic):
    _, points, values, slopes = quartic
    frame = Frame.of_draws(points)
    made = polynomial_of_slopes(frame, points, values, slopes, 3)
    farthest = np.linalg.norm(frame.coordinates(points), axis=1).max()
    assert np.isclose(made.radius, max(1.1 * farthest, np.sqrt(R) + 3))
    direction = frame.lift @ np.eye(R)[0]
    step = np.random.default_rng(1).normal(size=R)
    places = [made.center + t * direction for t in (made.radius, 40.0, 20.0)]
    places += [places[2] + 1e-5 * step, places[2] - 1e-5 * step]
    (edge, far, _, above, below), gradients = evaluated(made, np.stack(places))
    assert np.isclose(edge - far, 0.5 * (40.0**2 - made.radius**2))
    assert np.isclose(gradients[2] @ step, (above - below) / 2e-5, rtol=1e-6)


def test_directions_without_spread_are_none(x64):
    rng = np.random.default_rng(2)
    shares = rng.dirichlet(np.ones(5), 200)
    frame = Frame.of_draws(shares)
    assert frame.root.shape == (4, 5)
    y = frame.coordinates(shares)
    assert np.allclose(frame.center + y @ frame.lift.T, shares)
    assert np.allclose(np.cov(y.T, bias=True), np.eye(4))


@pytest.mark.slow
def test_a_batch_is_each_of_its_polynomials_under_vmap_and_jit(x64, quartic):
    _, points, values, slopes = quartic
    both = np.stack([points, 1 + 2 * points], 1)
    made = polynomial_of_slopes(Frame.of_draws(both), both, 2 * values, np.stack([slopes, slopes / 2], 1), 4)
    one = polynomial_of_slopes(Frame.of_draws(points), points, values, slopes, 4)
    expected, _ = evaluated(one, points)

    @jax.jit
    def batched(polynomial, x):
        each = jax.vmap(lambda one, x: jax.vmap(one)(x), in_axes=(0, 1), out_axes=1)(polynomial, x)
        return jax.vmap(polynomial)(x), each

    together, each = batched(made, both)
    assert np.allclose(together.sum(axis=1), 2 * expected)
    assert np.allclose(each, together)


def test_polynomials_add_where_they_were_made_at_one_point_only(x64, quartic):
    _, points, values, slopes = quartic
    frame = Frame.of_draws(points)
    one, other = (polynomial_of_slopes(frame, points, k * values, k * slopes, 4) for k in (1.0, 2.0))
    assert np.allclose(evaluated(one.plus(other), points)[0], 3 * values)
    assert one.order == 4 and one.size == 70  # of C(4 + 4, 4) monomials
    elsewhere = Frame.of_draws(points[::2])
    with pytest.raises(ValueError, match="the same centre"):
        one.plus(polynomial_of_slopes(elsewhere, points, values, slopes, 4))
