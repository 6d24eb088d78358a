"""Rows of covariates in a ball and a response in its range: what regression mechanisms are given."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ldpbayes._tracing import is_concrete
from ldpbayes.mechanisms._columns import Columns, checked_columns

__all__ = ["LABELS", "checked_regression_columns", "projected", "responses_in_range", "rows_in_ball", "signs"]

ROUNDING = 1e-6  # of the radius: rows scaled to the radius in single precision may lie this far beyond it
LABELS = "0 and 1 (or -1 and 1)"


def checked_regression_columns(columns: Any) -> Any:
    """Columns of rows (x, y) as they are kept: a number, or a tuple of names.

    Parameters
    ----------
    columns : int or sequence of str
        At least two, the response last.

    Raises
    ------
    ValueError
        For anything else.
    """
    kept, _ = checked_columns(columns, None)
    if kept.columns is None or kept.width < 2:
        raise ValueError(f"columns must be covariates and a response, two at least, the response last; got {columns!r}")
    return kept.columns


def projected(x: Any, radius: Any) -> Any:
    """Covariates (*batch, d), those outside the ball drawn back to its surface; NumPy in, NumPy out.

    Parameters
    ----------
    x : array (*batch, d)
        Covariates.
    radius : float
        Of the ball around 0.
    """
    xp: Any = np if is_concrete(x, radius) else jnp
    square = xp.sum(x * x, axis=-1, keepdims=True)
    outside = square > radius**2
    return x * xp.where(outside, radius / xp.sqrt(xp.where(outside, square, 1.0)), 1.0)


def rows_in_ball(rows: Any, columns: Any, radius: Any, clip: bool) -> tuple[Any, Any]:
    """Covariates inside the ball, and responses as they are.

    Parameters
    ----------
    rows : array or data frame (*batch, d + 1)
        Covariates and response.
    columns : int or tuple of str
        As kept by `checked_regression_columns`.
    radius : float
        Of the ball.
    clip : bool
        Whether covariates outside are drawn back to the ball's surface. If not they are refused, where they can be
        seen; traced ones pass as they are.

    Returns
    -------
    tuple of array (*batch, d) and array (*batch,)

    Raises
    ------
    ValueError
        For rows of another width, missing values, or covariates outside the ball that are not to be clipped.
    """
    whole = Columns(columns, None)
    rows = whole.in_order(rows)
    rows = np.asarray(rows) if is_concrete(rows) else jnp.asarray(rows)
    rows = rows if rows.dtype.kind == "f" else rows.astype(float)
    if rows.ndim < 1 or rows.shape[-1] != whole.width:
        raise ValueError(f"rows must have {whole.width} columns, the response last; got an array of shape {rows.shape}")
    x, y = rows[..., :-1], rows[..., -1]
    if is_concrete(rows):
        if np.isnan(rows).any():
            raise ValueError(f"{int(np.isnan(rows).any(axis=-1).sum())} rows have missing values; drop or impute them")
        if not clip and is_concrete(radius):
            norms = np.linalg.norm(x, axis=-1)
            beyond = norms > radius * (1 + ROUNDING)
            if beyond.any():
                raise ValueError(
                    f"{int(beyond.sum())} of {beyond.size} rows have covariates of norm above radius = {radius:g}, the "
                    f"largest {norms.max():g}: scale them, or say clip=True to have them drawn back to the ball"
                )
        x = projected(x, radius)
    elif clip:
        x = projected(x, radius)
    return x, y


def responses_in_range(y: Any, bound: Any, clip: bool) -> Any:
    """Responses between −bound and bound.

    Parameters
    ----------
    y : array (*batch,)
        Responses.
    bound : float
        Largest absolute value.
    clip : bool
        Whether others are clipped; if not they are refused, where they can be seen.

    Raises
    ------
    ValueError
        For responses outside that are not to be clipped.
    """
    if is_concrete(y, bound):
        beyond = np.abs(y) > bound * (1 + ROUNDING)
        if beyond.any() and not clip:
            raise ValueError(
                f"{int(beyond.sum())} of {beyond.size} responses lie beyond response_bound = {bound:g}, the largest in "
                f"absolute value {np.abs(y).max():g}: scale them, or say clip=True"
            )
        return np.clip(y, -bound, bound)
    return jnp.clip(y, -bound, bound) if clip else y


def signs(y: Any) -> Any:
    """Labels as −1 and 1.

    Parameters
    ----------
    y : array (*batch,)
        0 and 1, or −1 and 1.

    Raises
    ------
    ValueError
        For other values, where they can be seen.
    """
    if is_concrete(y):
        zero_one, plus_minus = np.isin(y, (0, 1)), np.isin(y, (-1, 1))
        if not (zero_one.all() or plus_minus.all()):
            raise ValueError(f"labels must be {LABELS}, got {np.unique(y)[:5].tolist()}")
        return np.where(y > 0, 1.0, -1.0).astype(y.dtype)
    return jnp.where(y > 0, 1.0, -1.0).astype(y.dtype)
