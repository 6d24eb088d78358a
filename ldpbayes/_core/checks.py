"""Arguments are checked before any work; the warnings of the package."""

import importlib.util
import operator
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ldpbayes._core.tracing import is_concrete

INSIDE = {"ldpbayes", "numpyro", "jax", "contextlib", "functools", "dataclasses"}
"""Packages whose lines would tell a user nothing: ours, and those through which it calls itself."""


class LdpBayesWarning(UserWarning):
    """Base of every warning of the package: a result that is given, and should not be trusted as it is."""


def warn(message: str, category: type[Warning] = LdpBayesWarning) -> None:
    """Warn, with the line outside the package that led here.

    Parameters
    ----------
    message : str
        What is wrong, and what to do.
    category : type
        Of the warning.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


LARGEST = 2**63 - 1  # that an array of integers holds ...
LARGEST_CODE = 2**31 - 1  # ... and, for codes and columns, one that JAX makes by default


def checked(name: str, value: Any, allowed: str, ok: Callable[[np.ndarray], Any]) -> Any:
    """Return a number as a float, an array as a read-only float64 copy, or say what is wrong with it.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
    value : array_like
        Any shape but an empty one.
    allowed : str
        What is allowed, in words: the message reads "`name` must be `allowed`, got ...".
    ok : callable
        Elementwise test of a float64 array; NaN must fail it.

    Raises
    ------
    ValueError
        If `value` is empty, not numeric, masked in part, or fails the test; names the first entry that does.
    """
    if np.ma.is_masked(value):
        raise ValueError(f"{name} must be {allowed}, got a masked array, {np.ma.count_masked(value)} of it masked")
    try:
        given = np.asarray(value)
    except ValueError:  # a ragged list
        raise ValueError(f"{name} must be {allowed}, got {value!r}") from None
    if given.dtype.kind not in "iuf" or given.size == 0:
        raise ValueError(f"{name} must be {allowed}, got {kind_in_words(given)}")
    array = np.array(given, dtype=np.float64)
    bad = np.argwhere(~np.asarray(ok(array)))
    if len(bad):
        where = f"{name}[{', '.join(map(str, bad[0]))}] = " if array.ndim else ""
        raise ValueError(f"{name} must be {allowed}, got {where}{given[tuple(bad[0])].item()!r}")
    array.setflags(write=False)
    return array if array.ndim else float(array)


def kind_in_words(given: np.ndarray) -> str:
    """What is no array of numbers: a string, an array of strings or of objects.

    Parameters
    ----------
    given : array
        What `numpy.asarray` makes of it.
    """
    kind = {"U": "strings", "b": "bools", "O": "objects"}.get(given.dtype.kind, str(given.dtype))
    if given.ndim == 0:
        return f"the string {given.item()!r}" if kind == "strings" else repr(given.item())
    if not given.size:
        return "an empty array"
    objects = given.ravel() if kind == "objects" else ()
    odd = next((f", such as {entry!r}" for entry in objects if np.asarray(entry).dtype.kind not in "iuf"), "")
    return f"an array of {kind}{odd}"


def is_integer(value: Any) -> bool:
    """Whether a value is an integer, which a bool is not.

    Parameters
    ----------
    value : object
        Anything.
    """
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def at_least(least: int, name: str, value: Any, most: int = LARGEST) -> int:
    """Return an integer field, or raise ValueError unless least <= value <= most."""
    try:
        number = least - 1 if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        span = (
            f"of at least {least}" if number < least and most in (LARGEST, LARGEST_CODE) else f"from {least} to {most}"
        )
        raise ValueError(f"{name} must be an integer {span}, got {value!r}")
    return number


def check_order(lower: Any, upper: Any) -> None:
    """ValueError unless lower bounds are below upper ones, by what is a finite number; what is traced is left alone."""
    if not is_concrete(lower, upper):
        return
    if np.any(np.less_equal(upper, lower)):
        raise ValueError(f"lower must be below upper, got lower = {lower!r}, upper = {upper!r}")
    # halved, so that the check itself cannot overflow
    if np.any(np.subtract(np.divide(upper, 2), np.divide(lower, 2)) > np.finfo(float).max / 2):
        raise ValueError(f"upper - lower must be finite, got lower = {lower!r}, upper = {upper!r}")


def whole_numbers_up_to(name: str, values: np.ndarray, most: int) -> None:
    """ValueError if numbers up to `most` are given in a precision in which those that are there have been rounded."""
    if values.dtype.kind == "f":
        exact = int(2 / np.finfo(values.dtype).eps)
        if exact < most and (values > exact).any():
            raise ValueError(
                f"{name} must be given as integers, or in a precision that holds {most}, got {values.dtype}, which "
                f"rounds numbers above {exact}"
            )


def unmasked(values: Any) -> Any:
    """What is given, or ValueError if it is a masked array that masks anything: NumPy would drop the mask."""
    if np.ma.is_masked(values):
        raise ValueError(f"values must not be masked, {np.ma.count_masked(values)} are: drop those records")
    return values


def missing(what: str, extra: str) -> str:
    """The message of an ImportError: what needs which extra, and how that is installed.

    Parameters
    ----------
    what : str
        The beginning of the sentence, such as "pictures need matplotlib".
    extra : str
        Of ``pyproject.toml``, such as "demo".
    """
    return f"{what}: pip install 'ldpbayes[{extra}]' (in a clone of the project: pip install '.[{extra}]')"


def require(extra: str, *modules: str) -> None:
    """ImportError that names the modules of an extra that are not installed.

    Parameters
    ----------
    extra : str
        Of ``pyproject.toml``.
    *modules : str
        What is needed of it.
    """
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    if absent:
        raise ImportError(missing(f"this needs {' and '.join(absent)}", extra))
