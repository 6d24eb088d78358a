"""Functions of rows, a chunk of rows at a time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["CHUNK", "by_rows"]

CHUNK = 1 << 15  # so many floating-point numbers at a time stay in a core's cache


def by_rows(function: Callable[..., jax.Array], rows: int) -> Callable[..., jax.Array]:
    """Apply a function of rows in chunks, recomputed rather than stored when differentiated.

    Parameters
    ----------
    function : callable
        Maps arrays (rows, ...) to an array (rows,).
    rows : int
        Rows at a time; at least one is taken.

    Returns
    -------
    callable
        The function for any number of rows.
    """

    def apply(*arrays: jax.Array) -> jax.Array:
        n, size = arrays[0].shape[0], max(1, rows)
        if n <= 2 * size:
            return function(*arrays)
        count = -(-n // size)

        @jax.checkpoint
        def chunk(start: jax.Array) -> jax.Array:
            return function(*(lax.dynamic_slice_in_dim(a, start, size) for a in arrays))

        # the last chunk overlaps the one before, so that none has another shape
        parts = lax.map(chunk, jnp.minimum(jnp.arange(count) * size, n - size))
        return jnp.concatenate([parts[:-1].ravel(), parts[-1, count * size - n :]])

    return apply
