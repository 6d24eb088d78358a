"""The function `release`: which mechanisms can be run safely, and how original data are read without quoting them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ldpbayes._core.printing import shown
from ldpbayes._core.tabular import column_names, rows_of
from ldpbayes.data import Release
from ldpbayes.mechanisms import Mechanism
from ldpbayes.secure import _categories, _noise


def release(
    mechanism: Mechanism,
    data: ArrayLike,
    *,
    clip: bool = False,
    times: int | None = None,
    about: Mapping[str, Any] | None = None,
) -> Release:
    """Release real data through a mechanism, with cryptographic randomness and safe from floating-point attacks.

    The result may be published. The guarantee of the mechanism is true for this program, and not only in theory,
    because random numbers are drawn with exact arithmetic. All rounding is towards more privacy, and too small to
    change likelihoods.

    Answers about categories are drawn with Python's module `secrets`. Noise is drawn by OpenDP (the extra ``opendp``),
    as a multiple of a small step ([Mironov]; [CKS]). There is no random seed. The run time may depend on the data.

    If you release data about the same person again, the budgets of the two releases add up.

    Parameters
    ----------
    mechanism : Mechanism
        Randomized response, unary encoding, subset selection, Hadamard response or local hashing. Or a mechanism that
        adds Laplace, Gaussian, discrete Laplace or discrete Gaussian noise to all columns. Budgets may be personal.
    data : array_like (N,) or (N, columns)
        Original records: codes 0, ..., k − 1, or numbers between the bounds. Or one statistic. Numbers must be whole
        for discrete noise. The columns of a data frame are read by the names in the mechanism.
    clip : bool
        True to clip numbers to the bounds. Default: False. Numbers beyond the bounds then raise a ValueError.
    times : int, optional
        Largest number of records about one person, as in `Release`. Default: 1.
    about : dict, optional
        Public facts that are stored with the release, such as ``{"column": "smokes", "levels": ["no", "yes"]}``. The
        name of the sampler is added.

    Returns
    -------
    Release
        The released values with their mechanism.

    Raises
    ------
    ValueError, TypeError
        No safe sampler exists for the mechanism, or data are missing or not allowed. Error messages show no records and
        no positions of records.
    """
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism, the first argument, must be an ldpbayes mechanism; got {type(mechanism).__name__}")
    if problem := _unsafe(mechanism):
        raise ValueError(f"{type(mechanism).__name__} cannot be released: {problem}")
    draw = _categories.answers if type(mechanism) in _categories.SAMPLERS else _noise.noisy
    values, sampler = draw(mechanism, _read(mechanism, data, clip))
    stated = {**(about or {}), "sampler": sampler}
    return Release(values.reshape(-1, *mechanism.event_shape), mechanism, times=times, about=stated)


def _unsafe(mechanism: Any) -> str | None:
    """Why a mechanism cannot be run safely; None if it can."""
    if type(mechanism) in _categories.SAMPLERS:
        infinite = np.isinf(mechanism.epsilon).any()
        return "a record of infinite budget would be released unchanged; epsilon must be finite" if infinite else None
    if type(mechanism) not in _noise.MECHANISMS or type(mechanism.noise) not in _noise.NOISES:
        kinds, laws = (", ".join(kind.__name__ for kind in each) for each in (_categories.SAMPLERS, _noise.NOISES))
        return f"it has no safe sampler; samplers exist for {kinds}, and for {laws} noise"
    if mechanism.perturbed is not None and mechanism.dimension < len(mechanism.names):
        return "nothing would protect the columns that get no noise; leave them out"
    if mechanism.columns is None and np.ndim(mechanism.lower) + np.ndim(mechanism.upper):
        return "bounds must be numbers, public and the same for all records"
    if not mechanism.bounded and (np.isinf(mechanism.sensitivity) or mechanism.columns or mechanism.batch_shape):
        return "a statistic must be one number, with a finite sensitivity and one scale"
    step, scales, widths = _noise.step_of(mechanism), _noise.scales(mechanism), _noise.widths(mechanism)
    if mechanism.noise.discrete:
        largest = max(np.max(scales), np.max(widths), np.max(np.abs(mechanism.lower)) if mechanism.bounded else 0)
        return "bounds, sensitivity and scale must be below 2^50" if largest >= _noise.MOST else None
    fine = 2.0**-900 < step < 2.0**900 and np.min(scales) >= _noise.FEWEST * step  # nothing under- or overflows
    return None if fine else f"its range and scale ({np.min(scales):g}) are too large, too small or too far apart"


def _read(mechanism: Any, data: Any, clip: bool) -> np.ndarray:
    """Original records in double precision, between the bounds, or codes as integers; errors do not quote them."""
    codes = type(mechanism) in _categories.SAMPLERS
    statistic = not codes and not mechanism.bounded
    if clip and (codes or statistic):
        raise ValueError("clip is only for numbers with bounds, not for categories and statistics")
    array = _array(data, None if codes else mechanism.columns)
    array, event = np.atleast_1d(array) if statistic else array, mechanism.record_shape
    if array.ndim != 1 + len(event) or array.shape[1:] != event or not array.size or (statistic and array.size > 1):
        needed = "one number" if statistic else f"rows of {event[0]} columns" if event else "one number for each record"
        raise ValueError(f"data must be {needed}, got an array of shape {array.shape}")
    if mechanism.batch_shape not in ((), (1,), array.shape[:1]):
        raise ValueError(f"there are {len(array)} records, but budgets of shape {mechanism.batch_shape}")
    if not np.isfinite(array).all():
        raise ValueError("some records are missing, or infinite")
    low, high = (0, mechanism.categories - 1) if codes else (mechanism.lower, mechanism.upper)
    if statistic:
        high = _noise.MOST if mechanism.noise.discrete else _noise.FARTHEST * _noise.step_of(mechanism)
        low = -high
    array = np.clip(array, low, high) if clip else array
    if ((array < low) | (array > high)).any():
        advice = "" if codes or statistic else "; clip=True (--clip) moves them to the bounds"
        raise ValueError(f"some records lie outside {shown(low)}..{shown(high)}{advice}")
    if (codes or mechanism.noise.discrete) and (array % 1 != 0).any():
        raise ValueError("some records are not whole numbers")
    return array.astype(np.int64) if codes else array


def _array(data: Any, columns: Any) -> np.ndarray:
    """Data as an array of doubles, a frame's `columns` in their order, if they have names."""
    names = column_names(data)
    if names is not None and isinstance(columns, tuple):
        if sorted(map(str, names)) != sorted(columns):
            raise ValueError(f"data must have the columns {', '.join(columns)}, and no others")
        data = rows_of(data, columns)
    if np.ma.is_masked(data):
        raise ValueError("some records are missing")
    try:
        array = np.asarray(data)
    except Exception:  # whose message may quote the data
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise ValueError("data must be an array of numbers: no words, no None, no rows of different lengths")
    with np.errstate(over="ignore"):
        return array.astype(float)
