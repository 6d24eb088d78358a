"""Losses of a linear predictor against automatic differentiation of one record's loss."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ldpbayes.estimation import losses
from ldpbayes.estimation._corrections import Deconvolutions
from ldpbayes.estimation._problem import has_kinks, natural_units
from ldpbayes.estimation.losses import as_loss

pytestmark = pytest.mark.usefixtures("x64")

SMOOTH = {
    "squared": losses.squared(),
    "logistic": losses.logistic(intercept=False),
    "huber": losses.huber(0.7, response=0, features=(2, 1)),
    "pinball, rounded": losses.pinball(0.3).smoothed(0.2),
    "absolute, rounded": losses.absolute().smoothed(0.3),
    "hinge, rounded": losses.hinge(0, features=(2, 1)).smoothed(0.4),
}
INDEX = {"no response": (1, 2), "all": (0, 1, 2, 3)}


@pytest.fixture
def problem(rng):
    rows = rng.normal(size=(3, 5, 4))
    return rows, rng.normal(size=(3, 5)), rng.normal(size=4)


# all derivatives of a rounded hinge, which is made of logistic functions like the others, differ from zero
SLOW = tuple(SMOOTH.keys() - {"hinge, rounded"})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in SMOOTH]
)
def test_sums_and_derivatives_are_those_of_the_loss_of_one_record(name, problem):
    loss, (rows, weights, theta) = SMOOTH[name], problem
    theta = theta[: len(loss.names(("a", "b", "c", "d")))]
    one = as_loss(lambda x, theta: loss(x, theta))  # the same as a user's function

    @functools.partial(jax.jit, static_argnums=0)
    def all_sums(loss, rows, weights, theta):
        sums = [loss.total(rows, weights, theta)]
        for index in INDEX.values():
            sums += [loss.laplacians(rows, theta, index), loss.total_laplacian(rows, weights, theta, index)]
        return loss.values(rows, theta), sums

    (values, got), (same, want) = (all_sums(which, rows, weights, theta) for which in (loss, one))
    np.testing.assert_allclose(values, same, rtol=1e-13)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


def test_laplacian_of_a_users_function_is_the_trace_of_its_hessian(rng):
    def loss(x, theta):  # a small network
        return (x[0] - jnp.tanh(x[1:] @ theta["in"]) @ theta["out"]) ** 2

    theta = {"in": rng.normal(size=(2, 3)), "out": rng.normal(size=3)}
    rows = rng.normal(size=(4, 3))
    cases = ((0, 1, 2), (1,))

    @jax.jit
    def both(rows, theta):
        laplacians = [as_loss(loss).laplacians(rows, theta, index) for index in cases]
        return jax.vmap(jax.hessian(loss), (0, None))(rows, theta), laplacians

    hessians, laplacians = jax.tree.map(np.asarray, both(rows, theta))
    for index, found in zip(cases, laplacians, strict=True):
        np.testing.assert_allclose(found, sum(hessians[:, j, j] for j in index), rtol=1e-12)


@functools.partial(jax.jit, static_argnums=0)
def gap_of(loss, width, rows, theta):
    return loss.smoothed(width).values(rows, theta) - loss.values(rows, theta)


@pytest.mark.parametrize("name", ["pinball", "absolute", "hinge"])
def test_smooth_versions_are_above_and_approach_the_loss(name, rng):
    loss = {"pinball": losses.pinball(0.3), "absolute": losses.absolute(), "hinge": losses.hinge()}[name]
    rows, theta = rng.normal(size=(200, 3)), rng.normal(size=3)
    for width in (0.5, 0.01):
        gap = np.asarray(gap_of(loss, width, rows, theta))
        # the mean of a convex function over a symmetric density: never below, off by width log 2 at a kink of slope 1
        assert np.all(gap >= -1e-12) and np.max(gap) <= 2 * np.log(2) * width


def test_a_hinge_is_smoothed_over_shares_of_its_margin():
    assert float(losses.hinge().width(np.zeros((2, 3)))) == 1.0


def test_deconvolved_loss_is_the_product_of_its_operators(rng):
    def loss(x, theta):
        return jnp.exp(theta[0] * x[0] + theta[1] * x[1]) + x[2]

    theta, rows = jnp.array([0.3, -0.5]), rng.normal(size=(6, 3))
    points = Deconvolutions(rows[None], np.ones((1, 6)), np.full((1, 6), 0.8))
    got = jax.jit(lambda points, theta: points.values(as_loss(loss), theta, (0, 1))[0])(points, theta)
    factor = (1 - 0.32 * 0.3**2) * (1 - 0.32 * 0.5**2)
    np.testing.assert_allclose(got, factor * np.exp(rows[:, :2] @ theta) + rows[:, 2], rtol=1e-12)


KINKED = {
    "absolute value": lambda x, t: jnp.abs(x[0] - t[0]),
    "jump": lambda x, t: (t[0] - (x[0] > 0.5)) ** 2,
    "ReLU": lambda x, t: jnp.maximum(x[0], 0.0) * t[0],
    "squared sine": lambda x, t: (t[0] - jnp.abs(jnp.sin(2 * jnp.pi * x[1]))) ** 2,
}
CURVED = {
    "logistic": lambda x, t: jnp.logaddexp(0.0, t[0] * x[0]) - x[1] * t[0] * x[0],
    "steep": lambda x, t: jnp.logaddexp(0.0, 1e3 * (x[0] - t[0])),
    "narrow": lambda x, t: jnp.exp(-5e3 * (x[0] - t[0]) ** 2),
}
EASY = ("absolute value", "jump", "ReLU", "logistic", "steep")


@jax.enable_x64(True)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in EASY else n for n in KINKED | CURVED])
def test_kinks_and_jumps_are_found_and_curves_are_not_taken_for_them(name, rng):
    rows, thetas = rng.normal(size=(2, 256, 2)), rng.normal(size=(2, 256, 1))
    assert has_kinks(as_loss((KINKED | CURVED)[name]), rows, thetas, 4) == (name in KINKED)


@functools.cache  # the same function is compiled once
def power(k):
    """|x − t|ᵏ with different factors on both sides: its k-th derivative jumps, and none below that."""
    return lambda x, t: jnp.where(x > t[0], 0.9, 0.1) * jnp.abs(x - t[0]) ** k


ORDERS = [(3, 4), (4, 4), (1, 2), (2, 2)]  # the derivative that jumps, and the first that need not exist


@jax.enable_x64(True)
@pytest.mark.parametrize("unit", [1e-4, *(pytest.param(unit, marks=pytest.mark.slow) for unit in (1.0, 1e5))])
@pytest.mark.parametrize(
    ("k", "order"),
    [pytest.param(*pair, marks=() if pair in [(3, 4), (2, 2)] else pytest.mark.slow) for pair in ORDERS],
)
def test_a_jump_is_found_in_any_derivative_and_in_any_units(k, order, unit, rng):
    rows, thetas = unit * rng.uniform(size=(2, 64, 1)), unit * rng.uniform(size=(2, 64, 1))
    rows = rows if order == 4 else rows[[0, 0]]  # in the parameter alone
    assert has_kinks(as_loss(power(k), scalar=True), rows, thetas, order) == (k < order)


def test_natural_units_follow_the_units_of_records_and_losses(rng):
    rows = rng.uniform(size=(300, 1))

    @functools.partial(jax.jit, static_argnames="power")
    def unit(rows, at, power=0):
        one = as_loss(lambda x, t: 1000.0**power * jnp.abs(x - t[0]), scalar=True)
        return natural_units(one, rows, at[None])[0]

    # the linear approximation misses 2 (t + h − x) of the records that are passed: h = 3/16 for uniform ones, of which
    # the number that is passed has a standard deviation of 12 %, so that h has one of 12 %
    assert float(unit(rows, jnp.asarray(0.5))) == pytest.approx(3 / 16, rel=0.4)
    for power, factor, shift in ((0, 1e3, 0.0), (0, 1e-3, 5.0), (1, 1.0, 0.0)):
        got = unit(factor * rows + shift, jnp.asarray(0.5 * factor + shift), power)
        # interpolated between powers of two
        assert float(got) == pytest.approx(factor * float(unit(rows, jnp.asarray(0.5))), rel=0.1)
    flat = natural_units(as_loss(lambda x, t: x * t[0], scalar=True), rows, jnp.array([-3.0]))
    np.testing.assert_array_equal(flat, [4.0])


def test_parameters_are_named_after_columns():
    assert losses.logistic().names(("age", "income", "ill")) == ["intercept", "age", "income"]
    assert losses.squared(0, features=(2,), intercept=False).names(("y", "a", "b")) == ["b"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: losses.pinball(1.0), "tau must be between 0 and 1, exclusive, got 1.0"),
        (lambda: losses.huber(0.0), "threshold must be positive and finite, got 0.0"),
        (lambda: losses.squared(1, features=(0, 1)), "the response is column 1, which is among the features"),
        (lambda: losses.logistic()(np.zeros(3), np.zeros(4)), r"has 3 parameters \(2 columns and an intercept\)"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_losses_show_themselves_in_a_line_without_addresses():
    shown = {
        "RegressionLoss(absolute, response='score')": losses.absolute("score"),
        "RegressionLoss(pinball(tau=0.3), response=-1, intercept=False)": losses.pinball(0.3, intercept=False),
        "RegressionLoss(huber(threshold=0.7), response=0, features=(2, 1))": SMOOTH["huber"],
    }
    assert [repr(loss) for loss in shown.values()] == list(shown)
    assert all("0x" not in repr(loss) for loss in SMOOTH.values())
