"""Frozen dataclasses: how they become JAX pytrees, are checked, and print themselves."""

import dataclasses
import functools
import html
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeVar, dataclass_transform, get_args, get_origin

import jax
import numpy as np
from jax.tree_util import GetAttrKey, register_pytree_with_keys

from ldpbayes._core.checks import Rule, checked
from ldpbayes._core.types import is_concrete

T = TypeVar("T", bound=type)
MOST_SHOWN_ENTRIES = 6  # numbers or names that are shown one by one


def static(**options: Any) -> Any:
    """Declare a field of a mechanism that JAX never traces, such as a shape or a name. `options` are those of
    `dataclasses.field`.
    """
    return dataclasses.field(metadata={"static": True}, **options)


def host(**options: Any) -> Any:
    """A field for the host alone: it stays while leaves are mapped, and has its default where they are traced."""
    return dataclasses.field(metadata={"host": True}, **options)


def ruled(rule: Rule, called: str = "", **options: Any) -> Any:
    """A field whose value `check_fields` checks by a rule, unless it is None by default; it may be called otherwise in
    errors.
    """
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


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static, host, ruled))
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
        if field.default is not None or getattr(tree, field.name) is not None:
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


def shown(value: Any) -> str:
    """A value in one line: of many numbers their count and range, of an array that cannot be read its shape."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        arguments = ", ".join(f"{name}={shown(argument)}" for name, argument in shown_fields(value))
        return f"{type(value).__name__}({arguments})"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        array = readable(value)
        if array is None:
            return f"{value.dtype}[{','.join(map(str, value.shape))}]"
        if array.size <= MOST_SHOWN_ENTRIES:
            return repr(array.tolist())
        size = f"{array.size:,}" if array.ndim == 1 else "x".join(map(str, array.shape))
        low, high = float(array.min()), float(array.max())
        return f"<{size} values, all {low:.4g}>" if low == high else f"<{size} values in [{low:.4g}, {high:.4g}]>"
    if isinstance(value, (tuple, list)) and len(value) > MOST_SHOWN_ENTRIES:
        return f"<{len(value):,} from {shown(value[0])} to {shown(value[-1])}>"
    if isinstance(value, tuple) and any(map(np.ndim, value)):
        return f"({', '.join(map(shown, value))})"
    return " ".join(repr(value).split())


def one_line(text: str) -> str:
    """Text with line breaks and all other characters that a terminal would not print as escapes."""
    return "".join(mark if mark.isprintable() else mark.encode("unicode_escape").decode() for mark in text)


def shown_fields(tree: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of a dataclass's constructor arguments, without those that are None by default."""
    for field in dataclasses.fields(tree):
        if field.init and not (field.default is None and getattr(tree, field.name) is None):
            yield field.name, getattr(tree, field.name)


def readable(value: Any) -> np.ndarray | None:
    """Numbers as an array, None where they cannot be read: tracers, shapes, deleted arrays, anything else."""
    if isinstance(value, (tuple, list)):
        return None
    try:
        array = np.asarray(value)
    except (TypeError, RuntimeError):  # of tracers, and of arrays that are deleted or partly on other machines
        return None
    return array if array.dtype.kind in "biuf" else None


class Called:
    """A dataclass that shows the call that makes it, in notebooks as a table of its arguments."""

    def __repr__(self) -> str:
        return shown(self)

    def _repr_html_(self) -> str:
        rows = [(name, shown(value)) for name, value in shown_fields(self)]
        return _table(type(self).__name__, [*rows, *_guarantee_rows(self)])


class Holding:
    """Base of releases and sketches: they show how much they hold and the mechanism that made it."""

    mechanism: Any
    promises: Any
    doubts: tuple[str, ...] = ()
    about: dict[str, Any] | None = None  # what the releaser says besides
    privacy: str | None = None  # what a publisher states in place of the guarantee
    _counts: Any  # numbers of records, nodes and so on, by a name in the plural; None where a number is not known

    def _readable_counts(self) -> dict[str, str]:
        try:
            counts = {name: readable(count) for name, count in self._counts.items()}
        except (AttributeError, IndexError, TypeError, ValueError):  # mapped leaves need not be arrays
            counts = {}
        numbers = {name: float(count) for name, count in counts.items() if count is not None and count.size == 1}
        # the first s of records (to simulate), nodes, groups and columns is that of the plural
        return {name.replace("s", "", 1) if n == 1 else name: f"{n:,.12g}" for name, n in numbers.items()}

    def __repr__(self) -> str:
        counts = [f"{number} {name}" for name, number in self._readable_counts().items()]
        about = [f"{name}={value!r}" for name, value in (self.about or {}).items()]
        parts = [*counts, " ".join(repr(self.mechanism).split()), *about]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_html_(self) -> str:
        promises = dict.fromkeys(row for promise in self.promises for row in _guarantee_rows(promise, "in_all"))
        stated = [("privacy", self.privacy)] if self.privacy else promises
        mechanism = [("mechanism", " ".join(repr(self.mechanism).split())), *stated]
        doubts = [("doubt", doubt) for doubt in self.doubts]
        doubts += [(name, str(value)) for name, value in (self.about or {}).items()]
        size = ("in memory", _in_bytes(sum(_array_bytes(self).values())))
        return _table(type(self).__name__, [*self._readable_counts().items(), *mechanism, *doubts, size])


def _array_bytes(value: Any) -> dict[int, int]:
    """Bytes of the arrays that an object holds, by their ids, so that none counts twice; without arrays in files."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, (tuple, list)):
        return {name: size for part in value for name, size in _array_bytes(part).items()}
    mapped = isinstance(value, np.memmap) or isinstance(getattr(value, "base", None), np.memmap)
    in_memory = isinstance(value, (np.ndarray, jax.Array)) and is_concrete(value)
    return {id(value): value.nbytes} if in_memory and not mapped else {}


def _in_bytes(size: float) -> str:
    """Bytes, in the unit in which they are a number below 1,000."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} GB"


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    left = ' style="text-align: left"'
    body = [f"<tr><th{left}>{html.escape(name)}</th><td{left}>{html.escape(text)}</td></tr>" for name, text in rows]
    return f"<table><caption{left}><b>{html.escape(title)}</b></caption>{''.join(body)}</table>"


def _guarantee_rows(promising: Any, which: str = "guarantee") -> list[tuple[str, str]]:
    """A guarantee of a mechanism or promise as a row of a `_table`; none if there is none."""
    if not is_concrete(promising):
        return []
    try:
        return [("guarantee", getattr(promising, which).statement())]
    except (AttributeError, TypeError, ValueError):  # mapped leaves need not be parameters that promise something
        return []
