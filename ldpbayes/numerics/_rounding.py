"""Numbers that equal a point but for having been rounded to a shorter floating-point type."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

__all__ = ["rounded", "snapped"]


def snapped(values: np.ndarray, points: Sequence[ArrayLike]) -> np.ndarray:
    """Values of which those that equal a point, but for having been rounded, equal it in double precision.

    A record that is clipped to 0.1 and released in single precision is 0.10000000149, beyond the bound. Values in half
    and in single precision are compared with the point in theirs, and doubles with it in single precision: those that
    are there were single before, as noise in double precision hits it with probability nil.

    Parameters
    ----------
    values : array
        Integers are as they are.
    points : sequence of array_like
        Each broadcasts with the values.

    Returns
    -------
    array
        In double precision where anything is replaced, and else the values themselves.
    """
    result = values
    for point in points if values.dtype.kind == "f" else ():
        point = np.asarray(point, float)
        held = rounded(np, point, values.dtype)
        inexact = held != point
        if not np.any(inexact):
            continue
        replaced = (values == held) & inexact
        if replaced.any():
            result = values.astype(float) if result is values else result
            np.copyto(result, point, where=replaced)
    return result


def rounded(xp: Any, point: ArrayLike, dtype: Any) -> Any:
    """A point in a floating-point type; if that is double precision, as it is after having been single.

    Parameters
    ----------
    xp : module
        ``numpy`` or ``jax.numpy``.
    point : array_like
        What is rounded.
    dtype : dtype
        Of the result, a floating-point one.
    """
    if xp is jnp:
        # XLA may leave out a cast to single precision and back
        point = jnp.asarray(point, dtype)
        return lax.reduce_precision(point, 8, 23) if dtype == jnp.float64 else point
    with np.errstate(over="ignore"):
        return np.asarray(point).astype(np.float32 if dtype == np.float64 else dtype).astype(dtype)
