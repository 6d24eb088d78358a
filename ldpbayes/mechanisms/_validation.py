"""What any released values must be, and what whole numbers among them must be."""

import math
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from ldpbayes._checks import kind_in_words, unmasked, whole_numbers_up_to

__all__ = ["checked_integers", "in_words", "released_values"]

_HINT = "; give words codes, such as (answers == 'yes').astype(int)"


def in_words(event_shape: tuple[int, ...]) -> str:
    """What a record's released value is, in words.

    Parameters
    ----------
    event_shape : tuple of int
        Of one released value.
    """
    return "one number a record" if not event_shape else f"rows of {math.prod(event_shape)} a record"


def released_values(mechanism: Any, values: ArrayLike) -> np.ndarray:
    """Finite numbers in the shape (N, *event_shape) and the byte order in which a mechanism's releases are kept.

    Parameters
    ----------
    mechanism : Mechanism
        Whose name and ``event_shape`` are looked at.
    values : array_like
        What a user gives.

    Raises
    ------
    ValueError
        If they are empty, of another shape, not numbers, or not finite.
    """
    kind, event = type(mechanism).__name__, mechanism.event_shape
    one = in_words(event)
    unmasked(values)
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{kind} releases {one}; got rows of different lengths") from None
    if array.dtype.kind not in "biuf":
        hint = _HINT if array.dtype.kind in "OU" else ""
        raise ValueError(f"values must be numbers, got {kind_in_words(array)}{hint}")
    # neither JAX nor a file takes long doubles, or the byte order of another machine
    native = np.dtype(float) if array.dtype.char == "g" else array.dtype.newbyteorder("=")
    with np.errstate(over="ignore"):
        array = array.astype(native, copy=False)
    if array.ndim != 1 + len(event) or array.shape[1:] != event:
        hint = " (a single value is a release of one: write it as a list)" if array.ndim == len(event) else ""
        raise ValueError(f"{kind} releases {one}; got values of shape {array.shape}{hint}")
    if array.size == 0:
        raise ValueError("values is empty: a release holds at least one record")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = ~np.isfinite(array)
        first = tuple(np.argwhere(bad)[0])
        raise ValueError(
            f"values must be finite; {bad.sum()} are not, the first ({array[first]}) at {', '.join(map(str, first))}"
        )
    return array


def checked_integers(values: np.ndarray, kind: str, low: float = -math.inf, high: float = math.inf) -> np.ndarray:
    """Whole numbers, as 32-bit integers where bounds or values say that these hold them, and else as 64-bit ones.

    Parameters
    ----------
    values : array
        Finite numbers.
    kind : str
        Of mechanism, for the message.
    low, high : float
        What the numbers may be.

    Raises
    ------
    ValueError
        If some are not whole, or out of range.
    """
    values = values.astype(int) if values.dtype == bool else values
    bounded = math.isfinite(high)
    if bounded:
        whole_numbers_up_to("values", values, int(high))
    bad = (values < low) | (values > high) | (values != np.round(values))
    if bad.any():
        allowed = f"integers in {int(low)}..{int(high)}" if bounded else "integers"
        first = tuple(np.argwhere(bad)[0])
        raise ValueError(
            f"values must be {allowed} under {kind}; {bad.sum()} are not, the first ({values[first]:g}) at "
            f"{', '.join(map(str, first))}"
        )
    return values.astype(np.int32 if bounded or np.abs(values).max() < 2**31 else np.int64)
