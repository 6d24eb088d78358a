"""Formats of files with noisy tables, one in each module of this folder, for `NoisyTable.from_file` and ``ldpbayes
table``.
"""

import importlib
import inspect
import os
import pathlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ldpbayes._core.checks import ArgumentError, guess

__all__ = ["Contents", "reader"]


class Contents(NamedTuple):
    """The contents of a file with a noisy table.

    Parameters
    ----------
    columns : dict of str to array
        Columns of the table by their names, with one row for each cell.
    stated : dict, optional
        Arguments of `NoisyTable.from_frame` that the file states, such as ``{"noise": "laplace"}``. Default: none.
    """

    columns: Mapping[str, Any]
    stated: Mapping[str, Any] = {}


class Format(NamedTuple):
    """A format of files: its function, the endings of names of files, and the function's own options."""

    read: Callable[..., Contents]
    endings: tuple[str, ...]
    options: dict[str, inspect.Parameter]


_FORMATS: dict[str, Format] = {}


def reader(name: str, *endings: str) -> Callable[[Callable[..., Contents]], Callable[..., Contents]]:
    """Decorator of a function that reads files of a format.

    The function has the arguments ``path``, ``keys`` and ``numbers`` (names of columns of labels and of numbers, empty
    if the user gives none), and returns `Contents`. All its other arguments are options of the format, in Python and on
    the command line.

    Parameters
    ----------
    name, *endings : str
        Name of the format, and endings of names of files, such as ``".csv"``, that have it if the user names no format.
    """

    def decorate(function: Callable[..., Contents]) -> Callable[..., Contents]:
        _path, _keys, _numbers, *options = inspect.signature(function).parameters.values()
        _FORMATS[name] = Format(function, endings, {option.name: option for option in options})
        return function

    return decorate


def formats() -> dict[str, Format]:
    """All formats by their names."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    return _FORMATS


def format_of(path: str | os.PathLike, name: str | None) -> tuple[str, Format]:
    """The format of this name, or of the ending of a file."""
    all_formats = formats()
    if name is None:
        names = {ending: format_name for format_name, entry in all_formats.items() for ending in entry.endings}
        name = names.get(pathlib.Path(path).suffix)
        if name is None:
            allowed = f"a file whose name ends in {' or '.join(names)}, or of a named format"
            raise ArgumentError("a table", allowed, f"{path}")
    if name not in all_formats:
        raise ArgumentError("format", f"one of {', '.join(all_formats)}", f"{name!r}{guess(name, all_formats)}")
    return name, all_formats[name]
