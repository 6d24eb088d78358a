"""Where original records are known to lie, and what follows from that alone."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._checks import checked
from ldpbayes._tracing import is_concrete
from ldpbayes.estimation.corrections._correction import left_out
from ldpbayes.mechanisms import Additive

__all__ = ["BOUNDS", "Support", "brought_inside", "checked_support", "controls", "inside", "settled_support"]

Support = tuple[Any, Any] | str | None
"""A pair of numbers or of arrays over the perturbed columns, "bounds" (a mechanism's), or None."""


@jax.tree_util.register_static
class _Bounds(str):
    """The word "bounds": the support is between a mechanism's. It has no leaves and is part of a tree's structure."""


BOUNDS = _Bounds("bounds")


def checked_support(support: Any) -> Support:
    """A support as a method keeps it.

    Parameters
    ----------
    support : "bounds", (lower, upper) or None
        Numbers, or arrays over the perturbed columns.

    Raises
    ------
    ValueError
        For anything else, or bounds that are not finite or not in order.
    """
    if support is None or not is_concrete(support):
        return support
    if isinstance(support, str):
        if support != BOUNDS:
            raise ValueError(f"support must be 'bounds', a pair (lower, upper) or None, got {support!r}")
        return BOUNDS
    try:
        lower, upper = support
    except (TypeError, ValueError):
        raise ValueError(f"support must be 'bounds', a pair (lower, upper) or None, got {support!r}") from None
    pair = tuple(
        checked(name, bound, "finite", np.isfinite)
        for name, bound in (("support's lower bound", lower), ("support's upper bound", upper))
    )
    try:
        disordered = np.any(np.greater_equal(*pair))
    except ValueError:
        shapes = " and ".join(str(np.shape(bound)) for bound in pair)
        raise ValueError(f"the support's bounds must be of one length, got shapes {shapes}") from None
    if disordered:
        raise ValueError(f"the support's lower bound must be below its upper one, got {support!r}")
    return pair


def settled_support(support: Support, mechanism: Additive) -> tuple[Any, Any] | None:
    """The support as a pair of arrays, one number a perturbed column, or None.

    Parameters
    ----------
    support : Support
        The bounds become those of the mechanism; None where it has none.
    mechanism : Additive
        That made the release.

    Raises
    ------
    ValueError
        For arrays of another shape.
    """
    if isinstance(support, str):
        support = (mechanism.lower, mechanism.upper) if mechanism.lower is not None else None
    if support is None:
        return None
    shape = (mechanism.dimension,)
    for name, bound in zip(("lower", "upper"), support, strict=True):
        if np.shape(bound) not in ((), shape):
            raise ValueError(
                f"the support's {name} bound must be a number, or one a perturbed column (here {shape[0]}), got shape "
                f"{np.shape(bound)}"
            )
    xp = np if is_concrete(support) else jnp
    lower, upper = (xp.broadcast_to(xp.asarray(bound), shape) for bound in support)
    return lower, upper


def inside(part: jax.Array, support: Any) -> jax.Array:
    """Whether perturbed columns (*batch, d) lie in the support, shape (*batch).

    Parameters
    ----------
    part : array (*batch, d)
        The perturbed columns of rows.
    support : (array, array) or None
        Their bounds; everything lies in None.
    """
    if support is None:
        return jnp.ones(part.shape[:-1], bool)
    lower, upper = support
    return jnp.all((part >= lower) & (part <= upper), axis=-1)


def brought_inside(rows: jax.Array, index: tuple[int, ...], support: Any) -> jax.Array:
    """Rows with their perturbed columns clipped to the support.

    Parameters
    ----------
    rows : array (*batch, columns)
        Any rows.
    index : tuple of int
        Positions of the perturbed columns.
    support : (array, array)
        Their bounds.
    """
    return rows.at[..., index].set(jnp.clip(rows[..., index], *(jnp.asarray(b, rows.dtype) for b in support)))


def controls(mechanism: Additive, rows: Any, support: Any) -> jax.Array:
    """Functions of released records that have mean zero because no record lies outside its support.

    For each side of each perturbed column, the doubly random correction of the indicator of lying beyond it: the mean
    over the analyst's noise is a Laplace tail.

    Parameters
    ----------
    mechanism : Additive
        With zero-inflated symmetric Laplace noise.
    rows : array (N, columns)
        Released records.
    support : (array, array)
        Lower and upper bounds of the perturbed columns.

    Returns
    -------
    array (N, 2 × perturbed columns)
    """
    part = jnp.asarray(rows)[:, mechanism.index]
    noise = mechanism.noise
    delta, scale = (jnp.asarray(v, part.dtype).reshape(-1, 1) for v in (left_out(noise), noise.standard_deviation))
    lower, upper = (jnp.asarray(bound, part.dtype) for bound in support)
    root = math.sqrt(2) / jnp.where(scale > 0, jnp.sqrt(delta) * scale, jnp.inf)
    columns = []
    for excess in (lower - part, part - upper):
        beyond = jnp.where(
            excess > 0, 1 - 0.5 * jnp.exp(-root * jnp.abs(excess)), 0.5 * jnp.exp(-root * jnp.abs(excess))
        )
        beyond = jnp.where(scale > 0, beyond, excess > 0)
        columns.append((excess > 0) / delta + (1 - 1 / delta) * beyond)
    return jnp.concatenate(columns, axis=1)
