"""The minimiser against SciPy and closed forms: bounds, saddles, many minima, vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from ldpbayes.estimation import Ball, Box
from ldpbayes.numerics import minimise as minimisation
from ldpbayes.numerics.minimise import likeliest_shares, minimise, minimise_on_host, value_gradient_hessian

pytestmark = pytest.mark.usefixtures("x64")


def derivatives(function):
    return lambda theta: value_gradient_hessian(function, theta)


@jax.jit
def minimise_quadratic(curvature, free, start, space):
    def quadratic(theta):
        return 0.5 * (theta - free) @ curvature @ (theta - free)

    return minimise(derivatives(quadratic), start, space)


def rosenbrock(theta):
    return jnp.sum(100 * (theta[1:] - theta[:-1] ** 2) ** 2 + (1 - theta[:-1]) ** 2)


@jax.jit
def minimise_rosenbrock(start, space):
    return minimise(derivatives(rosenbrock), start, space)


def test_quadratics_in_a_box_are_solved_to_rounding(rng):
    for _ in range(10):
        root = rng.normal(size=(5, 5))
        curvature, centre = root @ root.T + 0.1 * np.eye(5), 2 * rng.normal(size=5)
        box = Box(-1.0, np.array([1.0, 1.0, 0.5, 2.0, 1.0]))
        found = minimise_quadratic(curvature, centre, np.zeros(5), box)
        factor = np.linalg.cholesky(curvature).T
        want = optimize.lsq_linear(factor, factor @ centre, (-np.ones(5), box.upper), method="bvls", tol=1e-14).x
        # 2 to 21 iterations for 300 such boxes; rounding, which processors differ in, moves single counts
        assert found.converged and found.iterations <= 30
        np.testing.assert_allclose(found.theta, want, atol=1e-7)
        np.testing.assert_array_equal(box.boundary(found.theta), (want <= -1 + 1e-7) | (want >= box.upper - 1e-7))


def test_a_saddle_is_left_downhill():
    def saddle(theta):  # minima at (±1, 0)
        return theta[1] ** 2 + (theta[0] ** 2 - 1) ** 2

    found = jax.jit(lambda start: minimise(derivatives(saddle), start, Box(-5.0, 5.0)))(np.array([1e-3, 0.7]))
    assert found.converged and float(found.at.value) < 1e-12


def test_rosenbrocks_valley_agrees_with_scipy():
    minimum = minimise_rosenbrock(np.array([-1.2, 1.0, 0.3]), Box(-4.0, 4.0))
    assert minimum.converged
    np.testing.assert_allclose(minimum.theta, 1.0, rtol=1e-6)
    held = minimise_rosenbrock(np.array([-1.2, 1.0, 0.3]), Box(-4.0, 0.5))
    want = optimize.minimize(optimize.rosen, [0.3] * 3, bounds=[(-4, 0.5)] * 3, tol=1e-12)
    assert held.converged and float(held.at.value) == pytest.approx(want.fun, abs=1e-7)


def test_a_ball_holds_back_what_is_outside():
    target = np.array([3.0, 4.0])
    ball, wide = Ball(np.zeros(2), 1.0), Ball(np.zeros(2), 6.0)
    held, inside = (minimise_quadratic(2 * np.eye(2), target, np.zeros(2), space) for space in (ball, wide))
    np.testing.assert_allclose(held.theta, target / 5, atol=1e-6)
    assert np.all(ball.boundary(held.theta)) and not np.any(ball.boundary(np.zeros(2)))
    np.testing.assert_allclose(inside.theta, target, atol=1e-9)


def test_quadratics_in_a_ball_satisfy_the_conditions_of_a_minimum(rng):
    for _ in range(5):
        root = rng.normal(size=(4, 4))
        curvature, free, centre = root @ root.T + 0.01 * np.eye(4), 3 * rng.normal(size=4), rng.normal(size=4)
        ball = Ball(centre, 0.7)
        found = minimise_quadratic(curvature, free, centre + [0.7, 0, 0, 0], ball)
        assert found.converged and found.iterations <= 10 and np.all(ball.boundary(found.theta))
        # on the sphere the gradient points inwards, and nowhere else
        away, slope = np.asarray(found.theta) - centre, curvature @ (np.asarray(found.theta) - free)
        assert away @ slope < 0
        np.testing.assert_allclose(slope, (away @ slope) / 0.49 * away, atol=1e-8 * np.linalg.norm(slope))


def test_rosenbrocks_valley_cut_off_by_a_sphere_agrees_with_scipy():
    found = minimise_rosenbrock(np.array([-0.5, 0.3, 0.1]), Ball(0.0, 0.8))
    sphere = {"type": "ineq", "fun": lambda theta: 0.64 - theta @ theta}
    want = optimize.minimize(optimize.rosen, [0.3, 0.2, 0.1], constraints=[sphere], method="SLSQP", tol=1e-14)
    assert found.converged and float(found.at.value) == pytest.approx(want.fun, abs=1e-8)


def test_many_at_once_end_where_each_one_ends_alone(rng):
    centres = rng.normal(size=(7, 3))

    def solve_one(centre):
        return minimise(
            derivatives(lambda theta: jnp.sum(jnp.cosh(theta - centre)) + jnp.sin(3 * theta[0])),
            jnp.zeros(3),
            Box(-2, 2),
        )

    solve, together = jax.jit(solve_one), jax.jit(jax.vmap(solve_one))(centres)
    for i, centre in enumerate(centres):
        alone = solve(centre)
        assert alone.converged and together.converged[i]
        np.testing.assert_allclose(together.theta[i], alone.theta, atol=1e-7)


def test_the_units_of_parameters_and_of_the_criterion_do_not_matter(rng):
    x, y = rng.normal(size=(400, 2)), rng.integers(2, size=400)

    @jax.jit
    def solve(unit, size):
        def loss(theta):
            eta = (x * unit) @ theta + 0.5
            return size * jnp.mean(jnp.logaddexp(0.0, eta) - y * eta)

        return minimise(derivatives(loss), jnp.zeros(2), Box(-100.0, 100.0))

    alone = solve(np.ones(2), 1.0)
    assert alone.converged
    for unit, size in (((1e6, 1e6), 1.0), ((1.0, 1e7), 1.0), ((1.0, 1.0), 1e-12)):
        found = solve(np.array(unit), size)
        assert found.converged and found.iterations == alone.iterations
        # a last step of 1e-6, of Newton's method: what is left is its square
        np.testing.assert_allclose(found.theta * np.array(unit), alone.theta, rtol=1e-9)


def test_a_function_of_the_host_is_minimised_from_a_saddle_to_scipys_minimum():
    def saddle(theta):
        return theta[1] ** 2 + (theta[0] ** 2 - 1) ** 2

    def on_host(function):
        compiled = jax.jit(derivatives(function))
        return lambda theta: jax.tree.map(np.asarray, compiled(np.asarray(theta)))

    found = minimise_on_host(on_host(rosenbrock), [-1.2, 1.0, 0.3], 1e-12)
    assert found.converged and found.at.value < 1e-12
    np.testing.assert_allclose(found.theta, 1.0, rtol=1e-6)
    found = minimise_on_host(on_host(saddle), [1e-3, 0.7], 1e-12)
    assert found.converged and float(found.at.value) < 1e-12  # the minima are at (±1, 0)


def test_shares_are_those_of_a_table_and_zero_where_nothing_was_seen():
    counts = np.array([5.0, 0.0, 15.0])

    def likelihood(theta):
        seen = counts > 0
        return counts[seen] @ np.log(theta[seen]) / 20, np.divide(counts, 20 * theta, where=seen, out=np.zeros(3))

    def information(theta):
        return np.diag(np.divide(counts, 20 * theta**2, where=counts > 0, out=np.zeros(3)))

    for steps in (information, None):
        found = likeliest_shares(likelihood, steps, 3, 20.0, 1e-9, 100)
        assert found.gap <= 1e-9
        np.testing.assert_allclose(found.theta, [0.25, 0, 0.75], atol=1e-6)


def test_not_converging_is_said(monkeypatch):
    monkeypatch.setattr(minimisation, "MAX_NEWTON_STEPS", 3)
    few = jax.jit(lambda start: minimise(derivatives(rosenbrock), start, Box(-4.0, 4.0)))
    found = few(np.array([-1.2, 1.0, 0.3]))
    assert not found.converged and found.iterations == 3


def test_starts_are_uniform_in_the_space():
    box, ball = jax.jit(
        lambda key: (
            Box([0.0, -1.0], [1.0, 3.0]).sample(key, (4000,), 2, float),
            Ball(1.0, 2.0).sample(key, (4000,), 3, float),
        )
    )(jax.random.key(0))
    box, ball = np.asarray(box), np.asarray(ball)
    assert box.min() >= -1 and np.all(np.abs(box.mean(axis=0) - [0.5, 1.0]) < [0.03, 0.09])  # five standard errors
    radius = np.linalg.norm(ball - 1, axis=1)
    assert radius.max() <= 2 and abs(np.mean(radius**3) / 8 - 0.5) < 5 * np.sqrt(1 / 12 / 4000)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Box(0, 0), "lower must be below upper"),
        (lambda: Box(-np.inf, 1), "lower must be finite"),
        (lambda: Ball(0, 0), "radius must be a positive and finite number"),
        (lambda: Ball(np.nan, 1), "centre must be finite"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
