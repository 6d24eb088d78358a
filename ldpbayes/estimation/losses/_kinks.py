"""Whether a loss has the derivatives that automatic differentiation makes up for it.

At a kink or a jump a derivative is reported that misses what happens there: then the change of the derivative below it,
along a line, is not its integral.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes.estimation.losses._loss import Loss

__all__ = ["has_kinks"]

PANELS, NODES = 16, 3
LEVELS = 5  # so that the last panel is a millionth of the line
UNEXPLAINED = 2.0  # times the most that the derivatives seen in a panel explain; where they jump, once is missing
ROUNDING = 1e-9  # against the largest derivatives on the line
FAINT = 1e-13  # against those on any line: a tail that ends in rounding to zero ends in steps


def has_kinks(loss: Loss, rows: ArrayLike, thetas: ArrayLike, order: int) -> bool:
    """Whether the loss or one of its derivatives below the `order`-th jumps, on some lines.

    Each line is searched by zooming in, always to the panel where most of a change is not the derivative's integral. At
    a jump that stays as it is, while a curve, however steep, straightens; so the units of records, parameters and loss
    do not matter.

    Parameters
    ----------
    loss : Loss
        Of a flat parameter.
    rows : array (2, lines, columns)
        The records at both ends of each line.
    thetas : array (2, lines, p)
        The parameters there.
    order : int
        Of the highest derivative, which may jump.

    Returns
    -------
    bool
    """
    with jax.enable_x64(True):
        return bool(jnp.any(_jumps(loss, jnp.asarray(rows), jnp.asarray(thetas), order)))


@functools.partial(jax.jit, static_argnames=("loss", "order"))
def _jumps(loss: Loss, rows: jax.Array, thetas: jax.Array, order: int) -> jax.Array:
    t, w = np.polynomial.legendre.leggauss(NODES)
    edges = np.arange(PANELS + 1) / PANELS
    nodes = (edges[:-1, None] + (1 + t) / (2 * PANELS)).ravel()

    def along(rows: jax.Array, thetas: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        def value(s: jax.Array) -> jax.Array:
            return loss.values(rows[0] + s * (rows[1] - rows[0]), thetas[0] + s * (thetas[1] - thetas[0]))

        derivatives = jax.vmap(_derivatives(value, order))

        def zoomed(k: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            def level(place: Any, width: Any) -> tuple[Any, tuple]:
                at = jnp.stack(derivatives(place + width * jnp.asarray(np.concatenate([edges, nodes]))))
                at = jnp.where(jnp.isfinite(at), at, 0.0)
                ends, slopes = at[k, : PANELS + 1], at[k + 1, PANELS + 1 :].reshape(PANELS, NODES)
                missing = jnp.abs(jnp.diff(ends) - slopes @ w * width / (2 * PANELS))
                worst = jnp.argmax(missing)
                steepest = jnp.maximum(jnp.max(jnp.abs(slopes[worst])), jnp.max(jnp.abs(at[k + 1, worst + edge])))
                sizes = jnp.max(jnp.abs(at), axis=1)
                return place + width * worst / PANELS, (missing[worst], steepest * width / PANELS, sizes)

            _, (missing, change, sizes) = jax.lax.scan(level, 0.0, float(PANELS) ** -np.arange(LEVELS))
            return missing[-1], change[-1], jnp.max(sizes, axis=0)

        missing, change, sizes = jax.vmap(zoomed)(jnp.arange(order))
        sizes = jnp.max(sizes, axis=0)
        # a derivative is made of terms like those below it and that above it; a large constant only hides a jump
        return missing, change, jax.lax.cummax(sizes[1:]) + 1e-3 * sizes[0]

    edge = jnp.arange(2)
    missing, change, sizes = jax.vmap(along, (1, 1))(rows, thetas)
    return missing > UNEXPLAINED * change + ROUNDING * sizes + FAINT * jnp.max(sizes, axis=0)


def _derivatives(function: Callable, order: int) -> Callable:
    """The function of a number with its derivatives up to an order, as a tuple."""
    if order == 0:
        return lambda s: (function(s),)
    lower = _derivatives(function, order - 1)

    def both(s: Any) -> tuple:
        values, slopes = jax.jvp(lower, (s,), (jnp.ones_like(s),))
        return (*values, slopes[-1])

    return both
