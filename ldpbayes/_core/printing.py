"""How objects print themselves."""

import dataclasses
import html
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from ldpbayes._core.tracing import is_concrete

FEW = 6  # so many numbers or names are shown one by one


def shown_fields(tree: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of the constructor's arguments, less `optional` ones that are None.

    Parameters
    ----------
    tree : dataclass
        A mechanism, or a noise.
    """
    for field in dataclasses.fields(tree):
        if field.init and not (getattr(tree, field.name) is None and field.metadata.get("optional")):
            yield field.name, getattr(tree, field.name)


def seen(value: Any) -> np.ndarray | None:
    """A number or numbers as an array, None where they cannot be looked at: tracers, shapes, arrays given away.

    Parameters
    ----------
    value : object
        Anything.
    """
    if isinstance(value, jax.Array):
        if not is_concrete(value) or value.is_deleted() or not value.is_fully_addressable:
            return None
    elif isinstance(value, (tuple, list)) or (
        hasattr(value, "dtype") and not isinstance(value, np.ndarray | np.generic)
    ):
        return None
    kind = value.dtype.kind if hasattr(value, "dtype") else np.asarray(value).dtype.kind
    return np.asarray(value) if kind in "biuf" else None


class Called:
    """A dataclass that shows the call that makes it."""

    def __repr__(self) -> str:
        """Return the call, long arrays abridged."""
        return _call(self)

    def _repr_html_(self) -> str:
        """Return a table, which notebooks show."""
        rows = [(name, shown(value)) for name, value in _given(self)]
        return _table(type(self).__name__, [*rows, *_promised(self)])


class Holding:
    """What holds released values, or what is left of them, and the mechanism that made them."""

    mechanism: Any
    doubts: tuple[str, ...] = ()

    def _counts(self) -> dict[str, Any]:
        """How many there are of what it holds, by a name in the plural: a number, or None where it is not known."""
        return {}

    def _counted(self) -> dict[str, Any]:
        """Those of the counts that can be seen, as text."""
        counts = {name: seen(count) for name, count in self._counts().items()}
        known = {name: float(count) for name, count in counts.items() if count is not None and count.size == 1}
        # the first s of records (to simulate), nodes, groups and columns is that of the plural
        return {name.replace("s", "", 1) if n == 1 else name: f"{n:,.12g}" for name, n in known.items()}

    def __repr__(self) -> str:
        """Return a line: how many there are of what it holds, and the mechanism."""
        counted = [f"{number} {name}" for name, number in self._counted().items()]
        return f"{type(self).__name__}({', '.join([*counted, ' '.join(repr(self.mechanism).split())])})"

    def _repr_html_(self) -> str:
        """Return a table, which notebooks show."""
        mechanism = [("mechanism", " ".join(repr(self.mechanism).split())), *_promised(self.mechanism)]
        doubts = [("doubt", doubt) for doubt in self.doubts]
        size = ("in memory", _size(sum(_arrays(self).values())))
        return _table(type(self).__name__, [*self._counted().items(), *mechanism, *doubts, size])


def _arrays(value: Any) -> dict[int, int]:
    """Bytes of the arrays that an object holds, each once, less those that stay in files."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, (tuple, list)):
        return {name: size for part in value for name, size in _arrays(part).items()}
    mapped = isinstance(value, np.memmap) or isinstance(getattr(value, "base", None), np.memmap)
    known = isinstance(value, (np.ndarray, jax.Array)) and is_concrete(value)
    return {id(value): value.nbytes} if known and not mapped else {}


def _size(size: float) -> str:
    """Bytes, in the unit in which they are a number below 1,000."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} GB"


def shown(value: Any) -> str:
    """A value in one line: of many numbers how many there are and their range, of an array out of sight its shape.

    Parameters
    ----------
    value : object
        Anything.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _call(value)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        array = seen(value)
        if array is None:
            return f"{value.dtype}[{','.join(map(str, value.shape))}]"
        if array.size <= FEW:
            return repr(array.tolist())
        size = f"{array.size:,}" if array.ndim == 1 else "x".join(map(str, array.shape))
        low, high = float(array.min()), float(array.max())
        return f"<{size} values, all {low:.4g}>" if low == high else f"<{size} values in [{low:.4g}, {high:.4g}]>"
    if isinstance(value, (tuple, list)) and len(value) > FEW:
        return f"<{len(value):,} from {shown(value[0])} to {shown(value[-1])}>"
    return " ".join(repr(value).split())


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """An HTML table of two columns."""
    left = ' style="text-align: left"'
    body = [f"<tr><th{left}>{html.escape(name)}</th><td{left}>{html.escape(text)}</td></tr>" for name, text in rows]
    return f"<table><caption{left}><b>{html.escape(title)}</b></caption>{''.join(body)}</table>"


def _promised(mechanism: Any) -> list[tuple[str, str]]:
    """What a mechanism promises, as a row of a `table`; none where that cannot be said."""
    if not is_concrete(mechanism):
        return []
    try:
        return [("guarantee", mechanism.guarantee.statement())]
    except (AttributeError, TypeError, ValueError):  # mapped leaves need not be parameters that promise something
        return []


def _call(tree: Any) -> str:
    """The call that makes a dataclass, in one line."""
    return f"{type(tree).__name__}({', '.join(f'{name}={shown(value)}' for name, value in _given(tree))})"


def _given(tree: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of the constructor's arguments, less those that are None by default."""
    left_out = {field.name for field in dataclasses.fields(tree) if field.default is None}
    yield from ((name, value) for name, value in shown_fields(tree) if value is not None or name not in left_out)
