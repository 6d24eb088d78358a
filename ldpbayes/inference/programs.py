"""Compiled functions kept by structure: what a traced function closes over becomes its argument.

A function is traced to a jaxpr; the arrays in it are taken out, and what is left, the structure, is the key under which
the compiled program is found again: for other data of the same shapes, other seeds, other calls.
"""

import hashlib
import itertools
import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

__all__ = ["Compiled", "Programs", "Traced", "trace"]

# rules of differentiation, which nobody asks a program for that is only run
_RULES = ("jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "num_consts")
# what of equations on arrays alone, or of numbers that they read and write, is worth a program that runs before all
SEVERAL, WORTH = 10, 1 << 13
# XLA's newer way to write a CPU's loops takes twice as long to compile, and the loops are hardly faster; from some
# version on there is no other
_OPTIONS = {"xla_cpu_use_fusion_emitters": False}
# operations that cost less than the room for their results
_LAYOUT = ("broadcast_in_dim", "convert_element_type", "copy", "expand_dims", "reshape", "squeeze")


@dataclass(frozen=True, eq=False)
class Traced:
    """A function as equations, without the arrays that it is of.

    Attributes
    ----------
    key : tuple
        Equal for functions that differ by their arrays alone.
    """

    key: tuple
    _jaxpr: Jaxpr
    _tree: object

    def __call__(self, arrays, *args):
        """Value of the function with these arrays in the places of its own."""
        results = jaxpr_as_fun(ClosedJaxpr(self._jaxpr, list(arrays)))(*jax.tree.leaves(args))
        return jax.tree.unflatten(self._tree, results)


def trace(function, *examples, data=((),)):
    """Trace a function, take the arrays out that it is of, and compute from them what depends on nothing else.

    Parameters
    ----------
    function : callable
        Of some data and the examples; the arrays that it closes over are data, too.
    *examples
        Arguments, or `jax.ShapeDtypeStruct` in their places.
    data : sequence of pytrees of arrays
        Of one structure. The function is traced with the first of them.

    Returns
    -------
    Traced
    list of tuple of Array
        What it takes to be the function of each of the data, on the default device.
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(data[0], *examples)
    jaxpr, count = closed.jaxpr, len(jax.tree.leaves(data[0]))
    varying, inputs = jaxpr.invars[:count], jaxpr.invars[count:]
    fixed = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    arrays = [fixed | dict(zip(varying, jax.tree.leaves(each), strict=True)) for each in data]
    late, early = _divided(jaxpr, arrays[0])
    if early:
        inside = {*inputs, *(var for equation in late for var in equation.outvars)}
        used = [var for equation in late for var in _variables(equation.invars)] + _variables(jaxpr.outvars)
        computed = list(dict.fromkeys(var for var in used if var not in inside and var not in arrays[0]))
        before, needed = _traced(jaxpr, early, arrays, [], computed, jax.tree.structure(computed))
        program = PROGRAMS.get(("before", before.key), lambda: Compiled(before, needed[0]))
        arrays = [
            known | dict(zip(computed, program(some), strict=True)) for known, some in zip(arrays, needed, strict=True)
        ]
    return _traced(jaxpr, late, arrays, inputs, jaxpr.outvars, jax.tree.structure(shape))


def _traced(jaxpr, equations, arrays, inputs, outputs, tree):
    """Some equations of a jaxpr, and those of the arrays that they need."""
    needed = {var for equation in equations for var in _variables(equation.invars)} | {*_variables(outputs)}
    constants = [var for var in arrays[0] if var in needed]
    names = jaxpr.debug_info._replace(arg_names=("",) * len(inputs), result_paths=("",) * len(outputs))
    parts = {"constvars": constants, "invars": list(inputs), "outvars": list(outputs), "eqns": equations}
    if hasattr(jaxpr, "consts"):  # since JAX 0.12 open and closed ones are of one kind
        parts["consts"] = [None] * len(constants)
    jaxpr = jaxpr.replace(**parts, debug_info=names)
    description = _Description()
    description.equations(jaxpr)
    description.say(tree)
    shared = {}  # arrays of several data are one on the device

    def placed(array):
        if id(array) not in shared:
            shared[id(array)] = array, jax.device_put(array)
        return shared[id(array)][1]

    return Traced(description.key(), jaxpr, tree), [tuple(placed(each[var]) for var in constants) for each in arrays]


def _variables(atoms):
    return [atom for atom in atoms if not isinstance(atom, Literal)]


def _divided(jaxpr, arrays):
    """Equations that depend on the inputs, and those that depend on arrays alone, if that is worth a program."""
    fixed, late, producer = set(arrays), set(), {}
    for equation in jaxpr.eqns:
        variables = _variables(equation.invars)
        if variables and not equation.effects and fixed.issuperset(variables):
            fixed.update(equation.outvars)
            producer |= dict.fromkeys(equation.outvars, equation)
        else:
            late.add(id(equation))
    # where what is known enters the rest, but for results that only take more room than what they are made of
    frontier = [v for e in jaxpr.eqns if id(e) in late for v in _variables(e.invars)] + _variables(jaxpr.outvars)
    entering = set()
    while frontier:
        var = frontier.pop()
        if var not in producer or var in entering:
            continue
        equation = producer[var]
        if equation.primitive.name in _LAYOUT:
            late.add(id(equation))
            frontier += _variables(equation.invars)
        else:
            entering.add(var)
    early = _live([equation for equation in jaxpr.eqns if not equation.effects], entering)
    numbers = sum(var.aval.size for equation in early for var in (*_variables(equation.invars), *equation.outvars))
    if len(early) < SEVERAL and numbers < WORTH:
        return _live(jaxpr.eqns, jaxpr.outvars), []
    return _live([equation for equation in jaxpr.eqns if id(equation) in late], jaxpr.outvars), early


def _live(equations, outputs):
    """Equations on which outputs depend, and those with effects."""
    needed, kept = set(_variables(outputs)), []
    for equation in reversed(equations):
        if equation.effects or not needed.isdisjoint(equation.outvars):
            needed.update(_variables(equation.invars))
            kept.append(equation)
    return kept[::-1]


class _Description:
    """A text that says all of a jaxpr but the names of its variables, and the objects that no text can stand for."""

    def __init__(self):
        self._lines, self._names, self._objects = [], {}, {}
        self._numbers = itertools.count()  # a jaxpr within may occur again: its variables are then others

    def key(self):
        return hashlib.sha256("\n".join(self._lines).encode()).hexdigest(), *self._objects

    def say(self, *parts):
        self._lines.append(" ".join(map(str, parts)))

    def equations(self, jaxpr):
        self._define((*jaxpr.constvars, *jaxpr.invars))
        for equation in jaxpr.eqns:
            parameters = [
                f"{name}={self._value(value)}" for name, value in sorted(equation.params.items()) if name not in _RULES
            ]
            self.say(equation.primitive, *parameters, *map(self._atom, equation.invars))
            self._define(equation.outvars)
        self.say("returns", *map(self._atom, jaxpr.outvars))

    def _define(self, variables):
        for var in variables:
            self._names[var] = next(self._numbers)
            self.say(var.aval, getattr(var.aval, "weak_type", ""))

    def _atom(self, atom):
        return f"{atom.aval} {self._value(atom.val)}" if isinstance(atom, Literal) else str(self._names[atom])

    def _value(self, value):
        """What a parameter of an equation is, as text that no other value has."""
        if isinstance(value, (ClosedJaxpr, Jaxpr)):
            self.say("{", *map(self._value, getattr(value, "consts", ())))
            self.equations(value.jaxpr if isinstance(value, ClosedJaxpr) else value)
            return "}"
        if isinstance(value, (tuple, list)):
            return f"{type(value).__name__}({','.join(map(self._value, value))})"
        if isinstance(value, dict):
            return f"dict({','.join(f'{self._value(k)}:{self._value(v)}' for k, v in value.items())})"
        if value is None or isinstance(value, (str, bool, int, float, complex, np.dtype, type)):
            return f"{type(value).__qualname__} {value!r}"
        if isinstance(value, (np.ndarray, np.generic, jax.Array)) or hasattr(value, "__array__"):
            array = np.asarray(value)
            return f"{array.dtype} {array.shape} {array.tobytes().hex()}"
        try:
            return f"object {self._objects.setdefault(value, len(self._objects))}"
        except TypeError:  # not hashable, so equal to nothing: what holds it is compiled each time
            return self._value(_Unequal(value))


@dataclass(frozen=True, eq=False)
class _Unequal:
    """Something that equals nothing but itself."""

    value: object


class Compiled:
    """A compiled function of lists and trees of arrays; it is compiled in the background, and waits when it is called.

    Parameters
    ----------
    function : callable
    *examples
        Arguments, or `jax.ShapeDtypeStruct` in their places.
    **options
        Of `jax.jit`.
    """

    def __init__(self, function, *examples, **options):
        lowered = jax.jit(function, **options).lower(*examples)
        self._done = Future()
        threading.Thread(target=self._compile, args=(lowered,), name="ldpbayes-compile").start()

    def _compile(self, lowered):
        try:
            with jax.enable_x64(True):
                self._done.set_result(_compiled(lowered))
        except BaseException as error:
            self._done.set_exception(error)

    def ready(self):
        """Whether a call would not have to wait."""
        return self._done.done()

    def __call__(self, *args):
        """Value of the function."""
        return self._done.result()(*args)


def _compiled(lowered):
    if jax.default_backend() == "cpu" and _OPTIONS:
        try:
            return lowered.compile(_OPTIONS)
        except jax.errors.JaxRuntimeError as error:
            if "No such compile option" not in str(error):
                raise
            _OPTIONS.clear()
    return lowered.compile()


class Programs:
    """Programs by key, of which those longest unused are forgotten.

    Parameters
    ----------
    size : int
        How many are kept.
    """

    def __init__(self, size):
        self._size, self._lock, self._kept = size, threading.Lock(), OrderedDict()

    def get(self, key, build):
        """The program of a key, built by ``build()`` the first time.

        Parameters
        ----------
        key : tuple
        build : callable
        """
        key = (*key, *_surroundings())
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        program = build()  # two threads may do so at once, and both are right
        with self._lock:
            program = self._kept.setdefault(key, program)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
            return program


def _surroundings():
    """Settings of JAX under which a program was compiled."""
    config = jax.config
    return (
        str(config.jax_default_device),
        str(config.jax_default_matmul_precision),
        bool(config.jax_debug_nans),
        bool(config.jax_threefry_partitionable),
    )


PROGRAMS = Programs(64)
"""Programs of this process."""
