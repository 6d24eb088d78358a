"""Frozen dataclasses that are JAX pytrees."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from jax.tree_util import GetAttrKey, register_pytree_with_keys

from ldpbayes._core.checks import checked
from ldpbayes._core.tracing import is_concrete

T = TypeVar("T", bound=type)


def static(omitted: bool = False, **options: Any) -> Any:
    """A field that fixes a shape, or what a thing is: part of the tree's structure.

    Parameters
    ----------
    omitted : bool
        Whether it is left out of specs and reprs where it is None.
    **options
        Of `dataclasses.field`.
    """
    return dataclasses.field(metadata={"static": True, "optional": omitted}, **options)


def host(**options: Any) -> Any:
    """A field for the host alone, which no compiled function may depend on.

    It stays while leaves are mapped and is gone (its default is back) where they are traced.

    Parameters
    ----------
    **options
        Of `dataclasses.field`, with a default among them.
    """
    return dataclasses.field(metadata={"host": True}, **options)


def optional() -> Any:
    """A field that may be None, its default, and is then left out of specs and reprs."""
    return dataclasses.field(default=None, metadata={"optional": True})


class _Unseen:
    """Holds values of host fields in a tree's structure, where any two of them are equal."""

    def __init__(self, values: tuple) -> None:
        self.values = values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unseen)

    def __hash__(self) -> int:
        return 0


def pytree(cls: T) -> T:
    """Class decorator: make a frozen dataclass a pytree whose fields are leaves, but for `static` and `host` ones.

    Unflattening bypasses ``__init__`` and ``__post_init__``, since leaves may then be anything.

    Parameters
    ----------
    cls : type
        A frozen dataclass.

    Returns
    -------
    type
        The class itself.
    """
    fields = dataclasses.fields(cls)
    kinds = {
        f.name: "host" if f.metadata.get("host") else "static" if f.metadata.get("static") else "leaf" for f in fields
    }
    leaves, fixed, hosted = (
        [name for name, kind in kinds.items() if kind == which] for which in ("leaf", "static", "host")
    )
    gone = tuple(f.default for f in fields if f.name in hosted)

    def structure(tree: Any) -> tuple:
        of_host = (_Unseen(tuple(getattr(tree, name) for name in hosted)),) if hosted else ()
        return (*(getattr(tree, name) for name in fixed), *of_host)

    def flatten(tree: Any) -> tuple:
        return tuple(getattr(tree, name) for name in leaves), structure(tree)

    def flatten_with_keys(tree: Any) -> tuple:
        return tuple((GetAttrKey(name), getattr(tree, name)) for name in leaves), structure(tree)

    def unflatten(aux: tuple, children: Any) -> Any:
        tree: Any = object.__new__(cls)
        values = dict(zip(leaves, children, strict=True)) | dict(zip(fixed, aux[: len(fixed)], strict=True))
        if hosted:
            values |= dict(zip(hosted, aux[-1].values if is_concrete(children) else gone, strict=True))
        for name, value in values.items():
            object.__setattr__(tree, name, value)
        return tree

    register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def unchecked(cls: type, *values: Any) -> Any:
    """An object of a dataclass whose fields have been checked already, or are being traced.

    Parameters
    ----------
    cls : type
        The dataclass.
    *values
        Its fields, all of them, in their order.
    """
    made: Any = object.__new__(cls)
    for field, value in zip(dataclasses.fields(cls), values, strict=True):
        object.__setattr__(made, field.name, value)
    return made


def checked_field(tree: Any, name: str, allowed: str, ok: Callable[[np.ndarray], Any]) -> None:
    """Make a field of a frozen dataclass a float or a float64 array that passes a test; leave a tracer alone.

    Parameters
    ----------
    tree : dataclass
        Whose field it is.
    name, allowed, ok
        See `ldpbayes._core.checks.checked`.
    """
    value = getattr(tree, name)
    if is_concrete(value):
        object.__setattr__(tree, name, checked(name, value, allowed, ok))


def equal(one: Any, other: Any) -> bool:
    """Whether two dataclasses of one class have equal fields; fields being traced are only if they are one object.

    Parameters
    ----------
    one, other : dataclass
        Of one class.
    """
    pairs = [(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one)]
    return all(
        a is b
        or (type(a) is type(b) and equal(a, b) if dataclasses.is_dataclass(a) else is_concrete(a, b) and _same(a, b))
        for a, b in pairs
    )


def _same(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other))
