"""Sums of products of pairs of categories' memberships, over the released values of a pure protocol."""

import jax
import jax.numpy as jnp
from jax import lax

from ldpbayes.mechanisms import PureProtocol

__all__ = ["MOST", "products"]

MOST = 4096  # categories up to which a matrix of their pairs is affordable
CHUNK = 1 << 20  # entries of the rows at a time


def products(mechanism: PureProtocol, z: jax.Array, more: jax.Array, low: jax.Array, basis: jax.Array) -> jax.Array:
    """Σ_i r_i r_iᵀ of rows r_i = low_i @ basis + more_i 1[k ∈ S(z_i)], in chunks: an array (categories, categories).

    Parameters
    ----------
    mechanism : PureProtocol
        That released the values.
    z : array (n, ...)
        Released values.
    more : array (n,)
        What a category in S(z_i) has more.
    low : array (n, m)
        Coefficients of the rows that are common to all values.
    basis : array (m, categories)
        These rows.
    """
    n, d = len(z), mechanism.categories
    rows = min(n, max(1, CHUNK // d))

    def add(total: jax.Array, start: jax.Array) -> tuple[jax.Array, None]:
        part, low_here, more_here = (
            lax.dynamic_slice_in_dim(a, jnp.minimum(start, n - rows), rows) for a in (z, low, more)
        )
        row = low_here @ basis + more_here[:, None] * mechanism.membership(part)
        # the last chunk overlaps the one before, so that it has the same shape
        new = jnp.arange(rows) >= start - (n - rows)
        row = jnp.where(new[:, None], row, 0.0)
        return total + row.T @ row, None

    return lax.scan(add, jnp.zeros((d, d)), jnp.arange(0, n, rows))[0]
