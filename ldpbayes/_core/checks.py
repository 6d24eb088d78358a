"""Checks of arguments before any work, and the warnings of the package."""

import difflib
import importlib.util
import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
from numpyro.distributions import constraints

from ldpbayes._core.types import Array, is_concrete

# Packages whose lines would tell a user nothing: ours, and those through which it calls itself.
_PACKAGES_PASSED_OVER = {"ldpbayes", "numpyro", "jax", "contextlib", "functools", "dataclasses"}
_LARGEST_INT64 = 2**63 - 1  # that an array of integers holds
LARGEST_CODE = 2**31 - 1  # of codes and columns: that JAX's default integers hold

Rule: TypeAlias = tuple[str, Callable[[np.ndarray], Any]]
"""What is allowed, in words, and its elementwise test, for ``checked(name, value, *RULE)``."""

FINITE: Rule = "finite", np.isfinite
FINITE_NUMBERS: Rule = "finite numbers", np.isfinite
POSITIVE: Rule = "positive and finite", lambda a: (a > 0) & (a < np.inf)
# beyond 2**53, floats leave out whole numbers
WHOLE_SCALE: Rule = "positive and at most 2**53", lambda a: (a > 0) & (a <= 2.0**53)
NOT_NEGATIVE: Rule = "non-negative and finite", lambda a: (a >= 0) & (a < np.inf)
ABOVE_0: Rule = "positive", lambda a: a > 0
INSIDE_0_1: Rule = "between 0 and 1, exclusive", lambda a: (a > 0) & (a < 1)
SHARE: Rule = "in (0, 1]", lambda a: (a > 0) & (a <= 1)
PROBABILITY: Rule = "in [0, 1]", lambda a: (a >= 0) & (a <= 1)
# of one number, not of arrays
ONE_POSITIVE: Rule = "a positive and finite number", lambda a: (a.ndim == 0) & (a > 0) & (a < np.inf)
ONE_ABOVE_0: Rule = "a positive number", lambda a: (a.ndim == 0) & (a > 0)
ONE_INSIDE_0_1: Rule = "a number between 0 and 1, exclusive", lambda a: (a.ndim == 0) & (a > 0) & (a < 1)


class LdpBayesWarning(UserWarning):
    """Base class of all warnings of the package: there is a result, but the user should check it before using it.

    Examples
    --------
    >>> import ldpbayes as ldp
    >>> issubclass(ldp.inference.ConvergenceWarning, ldp.LdpBayesWarning)
    True
    """


class ArgumentError(ValueError):
    """A wrong argument as data: its `name`, what is `allowed`, the `value` in words, the `place` where it stands (such
    as a file and a line), and the indices of the bad `entry` of an array. The message is made of these.
    """

    def __init__(self, name: str, allowed: str, value: str, place: str = "", entry: tuple[int, ...] = ()) -> None:
        super().__init__(name, allowed, value, place, entry)  # which pickle passes on
        self.name, self.allowed, self.value, self.place, self.entry = name, allowed, value, place, entry

    def __str__(self) -> str:
        place = f"{self.place}: " if self.place else ""
        entry = f"{self.name}[{', '.join(map(str, self.entry))}] = " if self.entry else ""
        return f"{place}{self.name} must be {self.allowed}, got {entry}{self.value}"

    def at(self, place: str, name: str | None = None, entry: tuple[int, ...] | None = None) -> "ArgumentError":
        """The error as somebody else knows it: at a place, around the one it has, and perhaps of another name."""
        place = ", ".join(filter(None, (place, self.place)))
        return ArgumentError(name or self.name, self.allowed, self.value, place, self.entry if entry is None else entry)


def warn(message: str | Warning, category: type[Warning] = LdpBayesWarning) -> None:
    """Warn, with the line outside the package that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PACKAGES_PASSED_OVER:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def checked(name: str, value: Any, allowed: str, ok: Callable[[np.ndarray], Any]) -> Any:
    """A number as a float, an array as a read-only float64 copy, or `ArgumentError`, as for empty and masked values.
    `ok` is the elementwise test of a float64 array; NaN must fail it.
    """
    if np.ma.is_masked(value):
        raise ArgumentError(name, allowed, f"a masked array with {np.ma.count_masked(value)} masked values")
    try:
        original = np.asarray(value)
    except ValueError:  # a ragged list
        raise ArgumentError(name, allowed, repr(value)) from None
    if original.dtype.kind not in "iuf" or original.size == 0:
        raise ArgumentError(name, allowed, kind_in_words(original))
    array = np.array(original, dtype=np.float64)
    bad = np.argwhere(~np.asarray(ok(array)))
    if len(bad):
        entry = tuple(bad[0].tolist())
        raise ArgumentError(name, allowed, repr(original[entry].item()), entry=entry)
    array.setflags(write=False)
    return array if array.ndim else float(array)


def refuse(bad: np.ndarray, problem: str, values: np.ndarray | None = None, place: str | None = None) -> None:
    """ValueError if any values are bad: the problem, with their number for "{}", and where the first of them is."""
    if bad.any():
        first = tuple(np.argwhere(bad)[0])
        value = "" if values is None else f" ({values[first]!s})"
        at = "at " + ", ".join(map(str, first)) if place is None else place.format(*first)
        raise ValueError(f"{problem.format(bad.sum())}, the first{value} {at}")


def kind_in_words(array: np.ndarray) -> str:
    """Description of an array that does not hold numbers: a string, an array of strings or of objects."""
    kind = {"U": "strings", "b": "bools", "O": "objects"}.get(array.dtype.kind, str(array.dtype))
    if array.ndim == 0:
        return f"the string {array.item()!r}" if kind == "strings" else repr(array.item())
    if not array.size:
        return "an empty array"
    objects = array.ravel() if kind == "objects" else ()
    odd = next((f", such as {entry!r}" for entry in objects if np.asarray(entry).dtype.kind not in "iuf"), "")
    return f"an array of {kind}{odd}"


def is_integer(value: Any) -> bool:
    """Whether a value is an integer of Python or NumPy; a bool is none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def at_least(least: int, name: str, value: Any, most: int = _LARGEST_INT64) -> int:
    """Return an integer argument, or raise `ArgumentError` unless least <= value <= most."""
    try:
        number = least - 1 if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        unlimited = number < least and most in (_LARGEST_INT64, LARGEST_CODE)
        span = f"of at least {least}" if unlimited else f"from {least} to {most}"
        raise ArgumentError(name, f"an integer {span}", repr(value))
    return number


def check_order(lower: Any, upper: Any) -> None:
    """ValueError unless lower bounds are below upper ones and their distance is finite; tracers pass."""
    if not is_concrete(lower, upper):
        return
    if np.any(np.less_equal(upper, lower)):
        raise ArgumentError("lower", "below upper", f"lower = {lower!r}, upper = {upper!r}")
    # halved, so that the check itself cannot overflow
    if np.any(np.subtract(np.divide(upper, 2), np.divide(lower, 2)) > np.finfo(float).max / 2):
        raise ArgumentError("upper - lower", "finite", f"lower = {lower!r}, upper = {upper!r}")


def whole_numbers_up_to(name: str, values: np.ndarray, most: int) -> None:
    """ValueError if numbers up to `most` are floats of too low a precision, and some have been rounded in it."""
    if values.dtype.kind == "f":
        exact = int(2 / np.finfo(values.dtype).eps)
        if exact < most and (values > exact).any():
            allowed = f"integers, or floats that can represent {most}"
            raise ArgumentError(name, allowed, f"{values.dtype}, which rounds numbers above {exact}")


def unmasked(values: Any) -> Any:
    """The values, or ValueError if a masked array masks any of them: NumPy would drop the mask."""
    if np.ma.is_masked(values):
        raise ValueError(f"values must not be masked, but {np.ma.count_masked(values)} are: drop these records")
    return values


def guess(word: str, words: Iterable[str]) -> str:
    """The known word that was probably meant, to stand behind an unknown one; empty where nothing is close."""
    return "".join(f" (did you mean {close}?)" for close in difflib.get_close_matches(word, words, 1))


def missing(need: str, extra: str) -> str:
    """Message of an ImportError: a `need`, such as "pictures need matplotlib", and how the extra is installed."""
    return f"{need}: pip install 'ldpbayes[{extra}]' (in a clone of the project: pip install '.[{extra}]')"


def require(extra: str, *modules: str) -> None:
    """ImportError that names the modules of an extra of ``pyproject.toml`` that are not installed."""
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    if absent:
        raise ImportError(missing(f"this needs {' and '.join(absent)}", extra))


def ends_of(constraint: Any) -> tuple[Array, Array]:
    """Lower and upper end of a univariate support or domain, possibly traced, or ±inf, from its NumPyro constraint."""
    if constraint is constraints.boolean:
        return 0.0, 1.0
    return getattr(constraint, "lower_bound", -math.inf), getattr(constraint, "upper_bound", math.inf)
