"""Frozen dataclasses that are JAX pytrees."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, dataclass_transform, get_args, get_origin

import numpy as np
from jax.tree_util import GetAttrKey, register_pytree_with_keys

from ldpbayes._core.checks import Rule, checked
from ldpbayes._core.tracing import is_concrete

T = TypeVar("T", bound=type)


def static(omitted: bool = False, **options: Any) -> Any:
    """Declare a field of a mechanism that JAX never traces, such as a shape or a name. If it is None and `omitted` is
    True, `Mechanism.spec` and ``repr`` leave it out. `options` are those of `dataclasses.field`.
    """
    return dataclasses.field(metadata={"static": True, "optional": omitted}, **options)


def host(**options: Any) -> Any:
    """A field for the host alone: it stays while leaves are mapped, and has its default where they are traced."""
    return dataclasses.field(metadata={"host": True}, **options)


def optional(rule: Rule | None = None, default: None = None) -> Any:
    """A field that may be None, its default, and is then left out of specs and reprs; else `ruled`, if by a rule."""
    return dataclasses.field(default=default, metadata={"optional": True} | ({"rule": rule} if rule else {}))


def ruled(rule: Rule, called: str = "", **options: Any) -> Any:
    """A field whose value `check_fields` checks by a rule; it may be called otherwise in errors."""
    return dataclasses.field(metadata={"rule": rule, "called": called}, **options)


@dataclasses.dataclass(frozen=True)
class _HostValues:
    """Values of host fields in a tree's structure: any two are equal, so that no compiled function depends on them."""

    values: tuple = dataclasses.field(compare=False)


def pytree(cls: T) -> T:
    """Class decorator that makes a frozen dataclass ``cls`` a JAX pytree; its leaves are the fields not `static`."""
    fields = dataclasses.fields(cls)
    hosted = [f.name for f in fields if f.metadata.get("host")]
    fixed = [f.name for f in fields if f.metadata.get("static")]
    leaves = [f.name for f in fields if f.name not in (*hosted, *fixed)]
    keys = [GetAttrKey(name) for name in leaves]
    defaults = tuple(f.default for f in fields if f.name in hosted)

    def flatten(tree: Any) -> tuple:
        host_values = _HostValues(tuple(getattr(tree, name) for name in hosted)) if hosted else None
        structure = tuple(getattr(tree, name) for name in fixed), host_values
        return [(key, getattr(tree, key.name)) for key in keys], structure

    def unflatten(aux: tuple, children: Any) -> Any:
        tree: Any = object.__new__(cls)
        host_values = (aux[1].values if is_concrete(children) else defaults) if hosted else ()
        for name, value in zip((*leaves, *fixed, *hosted), (*children, *aux[0], *host_values), strict=True):
            object.__setattr__(tree, name, value)
        return tree

    register_pytree_with_keys(cls, flatten, unflatten)
    return cls


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static, host, optional, ruled))
def pytree_dataclass(cls: Any = None, /, **options: Any) -> Any:
    """Class decorator: a frozen dataclass, with options of `dataclasses.dataclass`, that is a `pytree`."""
    if cls is None:
        return functools.partial(pytree_dataclass, **options)
    return pytree(dataclasses.dataclass(frozen=True, **options)(cls))


def unchecked(cls: type, *values: Any) -> Any:
    """An object from its fields in order, which are checked or traced; those left out at the end have defaults."""
    tree: Any = object.__new__(cls)
    fields = dataclasses.fields(cls)
    for field, value in zip(fields, (*values, *(rest.default for rest in fields[len(values) :])), strict=True):
        assert value is not dataclasses.MISSING, f"{cls.__name__} needs {field.name}"
        object.__setattr__(tree, field.name, value)
    return tree


def checked_field(tree: Any, name: str, allowed: str, ok: Callable[[np.ndarray], Any], called: str = "") -> None:
    """Make a field of a frozen dataclass a float or a float64 array that passes `checked`; leave a tracer alone."""
    value = getattr(tree, name)
    if is_concrete(value):
        object.__setattr__(tree, name, checked(called or name, value, allowed, ok))


class Owed(str):
    """What a trait means that the subclasses of a base class owe, in its annotation ``Annotated[type, Owed(...)]``."""


def undeclared_traits(cls: type) -> str:
    """Lines with the traits that classes above owe (`Owed`, names and meanings) and that no class below declares."""
    lines, declared = [], set[str]()
    for base in cls.__mro__:
        annotations = inspect.get_annotations(base)
        for name, kind in annotations.items():
            parts = get_args(get_args(kind)[0] if get_origin(kind) is ClassVar else kind)
            lines += [f"\n  {name}: {part}" for part in parts if isinstance(part, Owed) and name not in declared]
        declared |= {*vars(base), *annotations}
    return "".join(lines)


def ruled_fields(tree: Any) -> list[dataclasses.Field]:
    """The fields of a dataclass that are `ruled`."""
    return [field for field in dataclasses.fields(tree) if "rule" in field.metadata]


def check_fields(tree: Any) -> None:
    """Check the `ruled` fields of a frozen dataclass, as `checked_field` does."""
    for field in ruled_fields(tree):
        if not field.metadata.get("optional") or getattr(tree, field.name) is not None:
            allowed, ok = field.metadata["rule"]
            checked_field(tree, field.name, allowed, ok, field.metadata.get("called", ""))


def equal(a: Any, b: Any) -> bool:
    """Whether two dataclasses or tuples have equal fields, or two arrays equal entries; a tracer only equals itself."""
    if a is b:
        return True
    if dataclasses.is_dataclass(a):
        return type(a) is type(b) and all(equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return is_concrete(a, b) and bool(np.array_equal(a, b))
