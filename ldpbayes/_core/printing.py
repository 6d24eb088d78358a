"""How objects print themselves."""

import dataclasses
import html
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from ldpbayes._core.tracing import is_concrete

MOST_SHOWN_ENTRIES = 6  # numbers or names that are shown one by one


def shown(value: Any) -> str:
    """A value in one line: of many numbers their count and range, of an array that cannot be read its shape."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        arguments = ", ".join(f"{name}={shown(argument)}" for name, argument in _arguments(value))
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
    return " ".join(repr(value).split())


def one_line(text: str) -> str:
    """Text with line breaks and all other characters that a terminal would not print as escapes."""
    return "".join(mark if mark.isprintable() else mark.encode("unicode_escape").decode() for mark in text)


def shown_fields(tree: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of a dataclass's constructor arguments, without `optional` ones that are None."""
    for field in dataclasses.fields(tree):
        if field.init and not (getattr(tree, field.name) is None and field.metadata.get("optional")):
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
        rows = [(name, shown(value)) for name, value in _arguments(self)]
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


def _arguments(tree: Any) -> list[tuple[str, Any]]:
    """Names and values of the constructor's arguments, without those that are None by default."""
    none_by_default = {field.name for field in dataclasses.fields(tree) if field.default is None}
    return [(name, value) for name, value in shown_fields(tree) if value is not None or name not in none_by_default]
