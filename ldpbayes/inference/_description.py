"""All that distinguishes two jaxprs but the names of their variables, as a key."""

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

__all__ = ["Description"]

_RULES = ("jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "num_consts")
"""Rules of differentiation, which two equations may differ in: a program is never differentiated."""

_CONTEXT = ("compute_type", "threefry_partitionable", "xla_metadata")
"""What a context manager around an operation may have set, besides its parameters."""

_SCALARS = (type(None), str, bool, int, float, complex)
"""Types whose values are equal exactly where their representations as text are."""


class Description:
    """All of a jaxpr but the names of its variables: as text, and as objects where no text can stand for them."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._names: dict[Any, int] = {}
        self._objects: dict[Any, int] = {}
        self._numbers = itertools.count()  # an inner jaxpr that occurs twice gets other numbers the second time

    def key(self) -> tuple:
        return hashlib.sha256("\n".join(self._lines).encode()).hexdigest(), *self._objects

    def say(self, *parts: Any) -> None:
        self._lines.append(" ".join(map(str, parts)))

    def equations(self, jaxpr: Any) -> None:
        self._define((*jaxpr.constvars, *jaxpr.invars))
        for equation in jaxpr.eqns:
            parameters = [
                f"{name}={self._value(value)}" for name, value in sorted(equation.params.items()) if name not in _RULES
            ]
            context = (getattr(equation.ctx, name, None) for name in _CONTEXT)
            self.say(equation.primitive, *parameters, *map(self._atom, equation.invars), *context)
            self._define(equation.outvars)
        self.say("returns", *map(self._atom, jaxpr.outvars))

    def _define(self, variables: Iterable[Any]) -> None:
        for var in variables:
            self._names[var] = next(self._numbers)
            self.say(var.aval, getattr(var.aval, "weak_type", ""))

    def _atom(self, atom: Any) -> str:
        return f"{atom.aval} {self._value(atom.val)}" if isinstance(atom, Literal) else str(self._names[atom])

    def _value(self, value: Any) -> str:
        """A parameter of an equation as text that no other value has."""
        if isinstance(value, (ClosedJaxpr, Jaxpr)):
            self.say("{", *map(self._value, getattr(value, "consts", ())))
            self.equations(value.jaxpr if isinstance(value, ClosedJaxpr) else value)
            return "}"
        if isinstance(value, (tuple, list)):
            return f"{type(value).__name__}({','.join(map(self._value, value))})"
        if isinstance(value, dict):
            return f"dict({','.join(f'{self._value(k)}:{self._value(v)}' for k, v in value.items())})"
        if type(value) in _SCALARS or isinstance(value, (np.dtype, type)):
            return f"{type(value).__qualname__} {value!r}"
        if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return f"{value.dtype} {self._value(jax.random.key_data(value))}"
        if isinstance(value, (np.ndarray, np.generic, jax.Array)) or hasattr(value, "__array__"):
            array = np.asarray(value)
            return f"{array.dtype} {array.shape} {array.tobytes().hex()}"
        try:
            return f"object {self._objects.setdefault(value, len(self._objects))}"
        except TypeError:  # what is not hashable is taken to equal nothing, so that its program is compiled each time
            return self._value(_Unequal(value))


@dataclass(frozen=True, eq=False)
class _Unequal:
    """Something that equals nothing but itself."""

    value: Any
