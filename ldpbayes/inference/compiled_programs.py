"""Compiled programs, kept by the structure of the computation, so that they serve other data."""

# What is taken from JAX. `jax.jit` keeps programs by the identity of a Python function, but a model makes its functions
# anew in each call, and they close over data. So this module keeps programs by the equations of a function, to which
# JAX promises no public way. `tests/inference/test_compiled_programs.py` begins with a test of each name. If that test
# fails after an update of JAX, this module has to follow the change, as said below, and nothing else does.
#
# - `jax.make_jaxpr` returns a `ClosedJaxpr` with `jaxpr` and `consts`; a `Jaxpr` has `constvars`, `invars`, `outvars`,
#   `eqns`, `debug_info` and `replace`. Arrays that a function closes over are `consts`, in the order of `constvars`.
#   Since JAX 0.12 open and closed jaxprs are of one class, which always has `consts`: see `_extract`. If JAX kept these
#   arrays in the equations, they would become part of the key, and programs would serve one data set each.
# - An equation has `primitive`, `params`, `invars`, `outvars`, `effects` and `ctx`. The key is made of these, so it is
#   complete as long as nothing else changes what an equation computes. Settings of context managers are attributes of
#   `ctx`: those that change a result are in `_CONTEXT`, and one that JAX adds belongs there. A function among the
#   parameters differs in each trace, so that its program would be compiled each time; those so far, rules of
#   differentiation, are in `_RULES`.
# - A variable has `aval` with `size` and `weak_type`, and the text of `aval` tells types and shapes apart. Variables
#   are compared by identity. A `Literal` is a constant number in an equation, with `val` and `aval`.
# - `jaxpr_as_fun` evaluates a closed jaxpr. Functions within (of jit, scan, cond, custom rules) are jaxprs among the
#   parameters, alone or in a tuple; the number of steps of a scan is its parameter ``length``, on which only `work`
#   depends.
# - Settings of JAX for the whole process that a compiled program depends on, `_SETTINGS`, are attributes of
#   `jax.config` with the prefix ``jax_``.

import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from ldpbayes._core.running import compiled
from ldpbayes._core.types import PyTree

# Rules of differentiation are left out of a description, because a program is never differentiated.
_RULES = ("jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "num_consts")
# Settings that a context manager around an operation may change, besides its parameters.
_CONTEXT = ("compute_type", "threefry_partitionable", "xla_metadata")
# Types whose values are equal exactly where their representations as text are.
_SCALARS = (type(None), str, bool, int, float, complex)
# Equations on arrays alone become a program of their own from so many equations or so many handled numbers on.
MIN_EQUATIONS, MIN_HANDLED_NUMBERS = 10, 1 << 13
# Settings of JAX that a compiled program depends on.
_SETTINGS = (
    "default_device",
    "default_matmul_precision",
    "debug_nans",
    "debug_infs",
    "enable_x64",
    "threefry_partitionable",
)
# Operations that are cheaper to repeat than their results are to keep.
_LAYOUT = ("broadcast_in_dim", "convert_element_type", "copy", "expand_dims", "reshape", "squeeze")


def _key(jaxpr: Any, *trees: Any) -> tuple:
    """A jaxpr without the names of its variables: a digest of its text, and objects that text cannot tell apart."""
    lines, names, objects = list[str](), dict[Any, int](), dict[Any, int]()
    numbers = itertools.count()  # an inner jaxpr that occurs twice gets other numbers the second time

    def add(*parts: Any) -> None:
        lines.append(" ".join(map(str, parts)))

    def define(variables: Iterable[Any]) -> None:
        for var in variables:
            names[var] = next(numbers)
            add(var.aval, getattr(var.aval, "weak_type", ""))

    def name(atom: Any) -> str:
        return f"{atom.aval} {text(atom.val)}" if isinstance(atom, Literal) else str(names[atom])

    def text(value: Any) -> str:
        """A parameter of an equation, different for different values."""
        if isinstance(value, (ClosedJaxpr, Jaxpr)):
            add("{", *map(text, getattr(value, "consts", ())))
            describe(value.jaxpr if isinstance(value, ClosedJaxpr) else value)
            return "}"
        if isinstance(value, (tuple, list, dict)):
            parts = value.items() if isinstance(value, dict) else value
            return f"{type(value).__name__}({','.join(map(text, parts))})"
        if type(value) in _SCALARS or isinstance(value, (np.dtype, type)):
            return f"{type(value).__qualname__} {value!r}"
        if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return f"{value.dtype} {text(jax.random.key_data(value))}"
        if hasattr(value, "__array__"):
            array = np.asarray(value)
            return f"{array.dtype} {array.shape} {array.tobytes().hex()}"
        try:
            hash(value)
        except TypeError:  # an unhashable object is taken to equal nothing, so that its program is compiled each time
            value = object()
        return f"object {objects.setdefault(value, len(objects))}"

    def describe(jaxpr: Any) -> None:
        define((*jaxpr.constvars, *jaxpr.invars))
        for equation in jaxpr.eqns:
            named = [(key, value) for key, value in sorted(equation.params.items()) if key not in _RULES]
            parameters = [f"{key}={text(value)}" for key, value in named]
            context = (getattr(equation.ctx, setting, None) for setting in _CONTEXT)
            add(equation.primitive, *parameters, *map(name, equation.invars), *context)
            define(equation.outvars)
        add("returns", *map(name, jaxpr.outvars))

    describe(jaxpr)
    add(*trees)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest(), *objects


@dataclass(frozen=True, eq=False)
class Traced:
    """A function of arrays and arguments, as equations; equal functions on other arrays have an equal `key`."""

    key: tuple
    _jaxpr: Any
    _tree: Any

    work = property(lambda self: sum(map(_work, self._jaxpr.eqns)))

    def program(self, name: str, function: Callable, *examples: PyTree) -> "Program":
        """A function that calls this one, compiled for arguments like the examples and kept under a name."""
        shapes = tuple((np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in jax.tree.leaves(examples))
        return kept((name, self.key, shapes), lambda: Program(function, *examples))

    def __call__(self, arrays: Iterable[Any], *args: Any) -> Any:
        results = jaxpr_as_fun(ClosedJaxpr(self._jaxpr, list(arrays)))(*jax.tree.leaves(args))
        return jax.tree.unflatten(self._tree, results)


def trace(function: Callable, *examples: PyTree, data: Sequence[PyTree] = ((),)) -> tuple[Traced, list[tuple]]:
    """The traced ``function(data, *examples)``, and its arrays for each entry of ``data``."""
    closed, shape = jax.make_jaxpr(function, return_shape=True)(data[0], *examples)
    jaxpr, count = closed.jaxpr, len(jax.tree.leaves(data[0]))
    varying, inputs = jaxpr.invars[:count], jaxpr.invars[count:]
    fixed = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    arrays = [fixed | dict(zip(varying, jax.tree.leaves(tree), strict=True)) for tree in data]
    late, early, entering = _split(jaxpr, arrays[0])
    if early:
        computed = [var for var in dict.fromkeys(_used(late, jaxpr.outvars)) if var in entering]
        before, needed = _extract(jaxpr, early, arrays, [], computed, (None, jax.tree.structure(computed)))
        program = before.program("before", before, needed[0])
        pairs = zip(arrays, needed, strict=True)
        arrays = [entry | dict(zip(computed, program(needs), strict=True)) for entry, needs in pairs]
    trees = jax.tree.structure(examples), jax.tree.structure(shape)
    return _extract(jaxpr, late, arrays, inputs, jaxpr.outvars, trees)


def inputs_in_use(function: Callable, *examples: dict[str, Any]) -> list[list[str]]:
    """Names of the entries of each dict of arrays that the value of a function of these dicts depends on."""
    jaxpr = jax.make_jaxpr(function)(*examples).jaxpr
    used = {*_used(_live(jaxpr.eqns, jaxpr.outvars), jaxpr.outvars)}
    inputs = iter(jaxpr.invars)
    return [[name for name in sorted(example) if next(inputs) in used] for example in examples]


def _extract(
    jaxpr: Any, equations: list[Any], arrays: list[dict], inputs: Sequence[Any], outputs: Sequence[Any], trees: tuple
) -> tuple[Traced, list[tuple]]:
    """Some equations of a jaxpr as a function, and its arrays; ``trees`` are the structures of inputs and outputs."""
    needed = {*_used(equations, outputs)}
    constants = [var for var in arrays[0] if var in needed]
    names = jaxpr.debug_info._replace(arg_names=("",) * len(inputs), result_paths=("",) * len(outputs))
    parts = {"constvars": constants, "invars": list(inputs), "outvars": list(outputs), "eqns": equations}
    if hasattr(jaxpr, "consts"):  # since JAX 0.12 open and closed jaxprs are of one class
        parts["consts"] = [None] * len(constants)
    jaxpr = jaxpr.replace(**parts, debug_info=names)
    # An array that several entries of the data share is copied once.
    placed = jax.device_put({id(entry[var]): entry[var] for entry in arrays for var in constants})
    needed_arrays = [tuple(placed[id(entry[var])] for var in constants) for entry in arrays]
    devices = tuple(array.sharding for array in needed_arrays[0])  # a program runs where its arrays are
    return Traced((*_key(jaxpr, *trees), devices), jaxpr, trees[1]), needed_arrays


def _work(equation: Any) -> int:
    """Number of array entries that an equation reads and writes, loops counted as often as they run."""
    inner = [part for each in equation.params.values() for part in (each if isinstance(each, tuple) else [each])]
    bodies = [getattr(part, "jaxpr", part) for part in inner if isinstance(part, (ClosedJaxpr, Jaxpr))]
    if not bodies:
        return _size(equation)
    return equation.params.get("length", 1) * sum(_work(equation) for body in bodies for equation in body.eqns)


def _size(equation: Any) -> int:
    return sum(var.aval.size for var in _used([equation], equation.outvars))


def _used(equations: Iterable[Any], outputs: Iterable[Any] = ()) -> list[Any]:
    """Variables that equations take in, and variables among outputs; literals are none."""
    atoms = [*(atom for equation in equations for atom in equation.invars), *outputs]
    return [atom for atom in atoms if not isinstance(atom, Literal)]


def _split(jaxpr: Any, arrays: Mapping[Any, Any]) -> tuple[list[Any], list[Any], set[Any]]:
    """Equations that depend on inputs, those on arrays alone if worth a program, and what goes from these to those."""
    late, producer = set[int](), dict[Any, Any]()
    for equation in jaxpr.eqns:
        variables = _used([equation])
        if variables and not equation.effects and all(var in arrays or var in producer for var in variables):
            producer |= dict.fromkeys(equation.outvars, equation)
        else:
            late.add(id(equation))
    # Variables that depend on arrays alone become arguments where they enter the other equations. Layout operations
    # stay among these, since their results take more room than what they are made from.
    frontier = _used((equation for equation in jaxpr.eqns if id(equation) in late), jaxpr.outvars)
    entering = set[Any]()
    while frontier:
        var = frontier.pop()
        equation = producer.get(var)
        if equation is not None and equation.primitive.name in _LAYOUT:
            late.add(id(equation))
            frontier += _used([equation])
        elif equation is not None:
            entering.add(var)
    early = _live([equation for equation in jaxpr.eqns if not equation.effects], entering)
    if len(early) < MIN_EQUATIONS and sum(map(_size, early)) < MIN_HANDLED_NUMBERS:
        return _live(jaxpr.eqns, jaxpr.outvars), [], set()
    return _live([equation for equation in jaxpr.eqns if id(equation) in late], jaxpr.outvars), early, entering


def _live(equations: Sequence[Any], outputs: Iterable[Any]) -> list[Any]:
    """Equations on which outputs depend, and those with effects."""
    needed = {*_used([], outputs)}
    kept: list[Any] = []
    for equation in reversed(equations):
        if equation.effects or not needed.isdisjoint(equation.outvars):
            needed.update(_used([equation]))
            kept.append(equation)
    return kept[::-1]


class Program:
    """A function that is compiled in the background, for arguments like the examples; calls wait until it is done."""

    def __init__(self, function: Callable, *examples: PyTree, **options: Any) -> None:
        lowered = jax.jit(function, **options).lower(*examples)
        thread = ThreadPoolExecutor(1, "ldpbayes-compile")
        self._compiled = thread.submit(self._compile, lowered)
        thread.shutdown(wait=False)

    def _compile(self, lowered: Any) -> Callable:
        with jax.enable_x64(True):
            return compiled(lowered)

    def ready(self) -> bool:
        return self._compiled.done()

    def __call__(self, *args: PyTree) -> Any:
        return self._compiled.result()(*args)


def program_of(name: str, function: Callable, *examples: PyTree) -> Callable:
    """A function, compiled for arguments like the examples and kept under a name and its structure."""
    traced, (arrays,) = trace(lambda _, *args: function(*args), *examples)
    return functools.partial(traced.program(name, traced, arrays, *examples), arrays)


def in_threads(function: Callable, items: Any) -> list[Any]:
    """Results of a function for each item, in double precision and in as many threads as there are cores."""

    def result(item: Any) -> Any:
        with jax.enable_x64(True):
            return function(item)

    if len(items) == 1:  # an interrupt is heard at once
        return [result(items[0])]
    with ThreadPoolExecutor(os.cpu_count() or 1, "ldpbayes-numbers") as pool:
        return list(pool.map(result, items))


def stacked(trees: Iterable[PyTree]) -> Any:
    """Pytrees of one structure as one of NumPy arrays, with a new first axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def unstacked(arrays: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries on the first axis of all arrays, by name: the inverse of `stacked`."""
    return [dict(zip(arrays, entries, strict=True)) for entries in zip(*arrays.values(), strict=True)]


MAX_KEPT_PROGRAMS = 64  # programs that are kept, those last used


@functools.lru_cache(MAX_KEPT_PROGRAMS)
def _place(key: tuple) -> list[Any]:
    """An empty list at first, for what is kept by this key."""
    return []


def kept(key: tuple, build: Callable[[], Any]) -> Any:
    """What ``build()`` returned when it was called first for this key and under these settings of JAX."""
    place = _place((*key, *(str(getattr(jax.config, f"jax_{name}")) for name in _SETTINGS)))
    if not place:
        place.append(build())  # where two threads build at once, the first one's program is kept
    return place[0]
