"""Whether a function has the second derivatives that automatic differentiation makes up for it.

At a kink or a jump a derivative is reported that misses what happens there: then the change of the gradient along a
line is not the integral of the second derivative, or the change of the function not that of the first.
"""

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["has_kinks"]

PANELS, ORDER = 256, 4
TOLERANCE = 0.05  # a smaller kink, against the slopes around it, passes for a bend


def has_kinks(function, ends, others):
    """Whether a function has kinks or jumps in its first argument, on some lines.

    Parameters
    ----------
    function : callable
        (x, other) → number, differentiable by JAX.
    ends : array (2, lines, n)
        Both ends of each line.
    others : array (lines, m)
        The second argument for each line.

    Returns
    -------
    bool
    """
    t, w = np.polynomial.legendre.leggauss(ORDER)
    nodes = jnp.asarray(((np.arange(PANELS)[:, None] + (1 + t) / 2) / PANELS).ravel())
    weights = jnp.asarray(np.tile(w / (2 * PANELS), PANELS))

    def along(start, stop, other):
        def value(s):
            return function(start + s * (stop - start), other)

        slope = jax.grad(value)
        bends = jax.vmap(jax.grad(slope))(nodes)
        slopes = jax.vmap(slope)(nodes)
        first = value(1.0) - value(0.0) - weights @ slopes
        second = slope(1.0) - slope(0.0) - weights @ bends
        size = jnp.max(jnp.abs(slopes)) + jnp.abs(value(1.0) - value(0.0))
        return jnp.maximum(jnp.abs(first), jnp.abs(second)) > TOLERANCE * size + 1e-12

    with jax.enable_x64(True):
        return bool(jnp.any(jax.jit(jax.vmap(along))(jnp.asarray(ends[0]), jnp.asarray(ends[1]), jnp.asarray(others))))
