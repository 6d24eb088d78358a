"""Programs: arrays are arguments, structure is the key, and nothing stale is ever run."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ldpbayes.inference._programs import Compiled, Programs, trace

X = np.arange(6.0).reshape(2, 3)


def loss(matrix, power=2.0, branch=True):
    """A function that closes over an array, a number, and a decision."""

    def function(_, theta):
        inner = jax.jit(lambda x: jnp.where(x > 0, x, power))
        value = jnp.sum(inner(matrix @ theta))
        return {"value": value if branch else -value, "theta": theta}

    return function


def test_other_arrays_are_another_argument_of_the_same_program():
    theta = np.array([1.0, -2.0, 0.5], np.float32)
    first, (arrays,) = trace(loss(X), theta)
    second, (others,) = trace(loss(X + 1), theta)
    assert first.key == second.key
    assert [array.shape for array in arrays] == [(2, 3)]
    for own, matrix in ((arrays, X), (others, X + 1)):
        direct = loss(matrix)(None, theta)
        np.testing.assert_allclose(first(own, theta)["value"], direct["value"], rtol=1e-6)  # single precision
        np.testing.assert_array_equal(first(own, theta)["theta"], theta)


@pytest.mark.parametrize(
    "other",
    [
        loss(X, power=3.0),  # a number, within a jitted function
        loss(X, branch=False),  # a decision of Python's
        loss(np.ones((4, 3))),  # a shape
        loss(X.astype(int)),  # a type
        lambda _, theta: loss(X)(_, theta)["value"],  # another tree
        lambda _, theta: loss(X)(_, theta[::-1]),
        lambda _, theta: loss(X)(_, jax.pure_callback(np.asarray, theta, theta)),  # a function that nobody can read
    ],
)
def test_what_is_not_an_array_is_in_the_key(other):
    theta = np.ones(3, np.float32)
    assert trace(loss(X), theta)[0].key != trace(other, theta)[0].key


def test_the_same_function_within_may_occur_again_with_other_variables():
    inner = jax.jit(lambda x, y: x - 2 * y)
    theta = np.array([1.0, 2.0], np.float32)

    def function(a, b):
        return lambda _, t: inner(t[a], t[b]) + inner(t[b], t[0])

    assert trace(function(0, 1), theta)[0].key != trace(function(1, 0), theta)[0].key


def test_what_depends_on_arrays_alone_is_computed_once():
    big = np.random.default_rng(0).normal(size=(100, 100)).astype(np.float32)
    theta = np.ones(100, np.float32)

    def function(data, theta):
        return jnp.sum(jnp.exp(-((data["x"] @ data["x"].T) ** 2)) @ theta)

    data = [{"x": big}, {"x": 2 * big}]
    traced, arrays = trace(function, theta, data=data)
    products = [equation for equation in jax.make_jaxpr(traced)(arrays[0], theta).eqns if "dot" in str(equation)]
    assert len(products) == 1  # with theta
    for own, each in zip(arrays, data, strict=True):
        np.testing.assert_allclose(traced(own, theta), function(each, theta), rtol=1e-5)  # single precision, 1e4 terms


def test_effects_are_kept(capsys):
    def function(_, theta):
        jax.debug.print("theta is {}", theta)
        return theta

    traced, (arrays,) = trace(function, np.float32(0.0))
    Compiled(traced, arrays, np.float32(0.0))(arrays, np.float32(1.5))
    jax.effects_barrier()
    assert "theta is 1.5" in capsys.readouterr().out


def test_only_so_many_programs_are_kept_and_the_oldest_go_first():
    programs, built = Programs(2), []
    for key in "abacab":
        programs.get((key,), lambda key=key: built.append(key) or key)
    assert built == ["a", "b", "c", "b"]


def test_other_settings_of_jax_are_another_program():
    programs = Programs(4)
    first = programs.get(("a",), object)
    with jax.default_matmul_precision("float32"):
        assert programs.get(("a",), object) is not first
    assert programs.get(("a",), object) is first


def test_what_goes_wrong_in_the_background_is_raised_where_it_is_called():
    class Bad(Compiled):
        def _compile(self, lowered):
            super()._compile(None)

    with pytest.raises(AttributeError):
        Bad(jnp.sin, np.float32(0.0))(np.float32(0.0))


def test_compiling_ends_with_its_thread():
    program = Compiled(jnp.sin, np.float32(0.0))
    assert float(program(np.float32(0.0))) == 0.0
    for thread in threading.enumerate():
        if thread.name == "ldpbayes-compile":
            thread.join()
    assert program.ready()
