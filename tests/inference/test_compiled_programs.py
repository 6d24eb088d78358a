"""Programs: arrays are arguments, structure is the key, and nothing stale is ever run."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

import ldpbayes as ldp
from ldpbayes.inference import compiled_programs
from ldpbayes.inference._predict import generator, log_likelihoods
from ldpbayes.inference.approximations.panels import Certificate
from ldpbayes.inference.compiled_programs import Program, kept, trace
from ldpbayes.inference.density import density_of

X = np.arange(6.0).reshape(2, 3)


def test_jax_still_has_what_programs_take_from_it():
    # The comment at the head of compiled_programs says what each of these is for, and what to do where one is missing.
    custom = jax.custom_jvp(jnp.sin)
    custom.defjvps(lambda tangent, _, x: jnp.cos(x) * tangent)

    def function(theta):
        looped, _ = jax.lax.scan(lambda x, _: (2.0 * x, None), theta, length=5)
        return jax.jit(jnp.exp)(looped) + custom(theta) + X[0]

    closed = jax.make_jaxpr(function)(np.ones(3, np.float32))
    jaxpr, equations = closed.jaxpr, {equation.primitive.name: equation for equation in closed.jaxpr.eqns}
    rules = [name for name, value in equations["custom_jvp_call"].params.items() if callable(value)]
    equation, literal = equations["scan"], equations["scan"].params["jaxpr"].jaxpr.eqns[0].invars[0]
    needed = [
        (closed, ["jaxpr", "consts"]),
        (jaxpr, ["constvars", "invars", "outvars", "eqns", "debug_info", "replace"]),
        (jaxpr.debug_info, ["arg_names", "result_paths", "_replace"]),
        (equation, ["primitive", "params", "invars", "outvars", "effects", "ctx"]),
        (equation.ctx, compiled_programs._CONTEXT),
        (equation.invars[-1].aval, ["size", "weak_type"]),
        (literal, ["val", "aval"]),
        (jax.config, [f"jax_{name}" for name in compiled_programs._SETTINGS]),
    ]
    missing = [f"{type(of).__name__}.{name}" for of, names in needed for name in names if not hasattr(of, name)]
    missing += [f"a rule named {name}" for name in rules if name not in compiled_programs._RULES]
    missing += [] if equation.params.get("length") == 5 else ["parameter length of scan"]
    missing += [] if isinstance(literal, Literal) else ["Literal for a number in an equation"]
    missing += [] if isinstance(equation.params["jaxpr"], (ClosedJaxpr, Jaxpr)) else ["jaxpr of a scan"]
    arrays = len(closed.consts) == len(jaxpr.constvars) == 1 and np.array_equal(closed.consts[0], X[0])
    missing += [] if arrays else ["arrays that a function closes over, as consts"]
    missing += [] if np.allclose(jaxpr_as_fun(closed)(np.ones(3, np.float32))[0], function(1.0)) else ["jaxpr_as_fun"]
    assert not missing, (
        f"JAX {jax.__version__} has changed what compiled_programs takes from its internals: {', '.join(missing)}. The "
        "comment at the head of that module says what each is for, and what to do."
    )


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


KEY = jax.random.wrap_key_data(np.array([0, 3], np.uint32))  # of the seed 3, compiling nothing


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # names of arguments, which a compiled function insists on
        ((lambda _, at: at["a"] + 1, {"a": 1.0}), (lambda _, at: at["b"] + 1, {"b": 1.0})),
        ((lambda _, at: at[0] + at[1], (1.0, 2.0)), (lambda _, at: at[0] + at[1], [1.0, 2.0])),
        # a weak type, which results inherit
        ((lambda _, at: at + 1, 1.0), (lambda _, at: at + 1, np.float32(1.0))),
        # a random key within a jitted function
        (
            (lambda _, at: jax.jit(lambda x: x + jax.random.normal(KEY))(at), 1.0),
            (lambda _, at: jax.jit(lambda x: x + jax.random.normal(jax.random.key(3, impl="rbg")))(at), 1.0),
        ),
        # settings of JAX that only some operations are under
        ((lambda _, at: jax.random.normal(KEY) + at, 1.0), (lambda _, at: drawn_otherwise() + at, 1.0)),
    ],
)
def test_what_else_a_program_depends_on_is_in_the_key(one, other):
    keys = [trace(*each)[0].key for each in (one, one, other)]
    assert keys[0] == keys[1] != keys[2]


def drawn_otherwise():
    with jax.threefry_partitionable(False):
        return jax.random.normal(KEY)


def test_a_program_is_of_the_devices_where_its_arrays_are():
    # with one device there are still two kinds of sharding: a single device, and a mesh of one
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("records",))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("records"))
    places = [jax.device_put(np.ones(3, np.float32), place) for place in (jax.devices()[0], spread, jax.devices()[0])]
    keys = [trace(lambda _, theta, x=x: jnp.sum(x * theta), np.float32(1.0))[0].key for x in places]
    assert keys[0] == keys[2] != keys[1]


def test_models_that_differ_by_the_name_of_a_site_have_programs_of_their_own(x64):
    mechanism = ldp.LaplaceMechanism(1.0, -5, 5)
    release = ldp.Release(np.linspace(-4, 4, 20), mechanism)
    sketch = release.sketch(panels=8)

    def of(name):
        return lambda data: ldp.observe("z", dist.Normal(numpyro.sample(name, dist.Normal(0, 1)), 1.0), data)

    errors, likelihoods = [], []
    for name in ("mu", "centre"):
        at = {name: np.linspace(-1, 1, 8).reshape(1, 8)}
        coarse, whole = (density_of(of(name), (data,), {}) for data in (sketch, release))
        errors.append(Certificate(coarse, coarse, {name: jax.ShapeDtypeStruct((), float)}).error(at))
        likelihoods.append(
            generator("log_likelihood", log_likelihoods(whole), {name: jax.ShapeDtypeStruct((), float)})(KEY, at)[0][
                "z"
            ]
        )
    assert errors[0] == errors[1] > 0
    np.testing.assert_array_equal(*likelihoods)


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
    Program(traced, arrays, np.float32(0.0))(arrays, np.float32(1.5))
    jax.effects_barrier()
    assert "theta is 1.5" in capsys.readouterr().out


def test_only_so_many_programs_are_kept_and_the_oldest_go_first(monkeypatch):
    monkeypatch.setattr(compiled_programs, "_place", functools.lru_cache(2)(compiled_programs._place.__wrapped__))
    built = []
    for key in "abacab":
        kept((key,), lambda key=key: built.append(key) or key)
    assert built == ["a", "b", "c", "b"]


def test_other_settings_of_jax_are_another_program():
    first = kept(("a",), object)
    for setting in (jax.default_matmul_precision("float32"), jax.debug_infs(True), jax.enable_x64(True)):
        with setting:
            assert kept(("a",), object) is not first
    assert kept(("a",), object) is first


def test_what_goes_wrong_in_the_background_is_raised_where_it_is_called():
    class Bad(Program):
        def _compile(self, lowered):
            super()._compile(None)

    with pytest.raises(AttributeError):
        Bad(jnp.sin, np.float32(0.0))(np.float32(0.0))


def test_compiling_ends_with_its_thread():
    program = Program(jnp.sin, np.float32(0.0))
    assert float(program(np.float32(0.0))) == 0.0
    for thread in threading.enumerate():
        if thread.name.startswith("ldpbayes-compile"):
            thread.join()
    assert program.ready()
