"""The integral of a model's posterior as weighted nodes, and as a transformation of uniform random numbers."""

from types import SimpleNamespace

import jax
import numpy as np

from ldpbayes.inference.approximations.integral import Integrated
from ldpbayes.inference.density import density_of

BLOCK = 1 << 12  # points that are mapped to sites at once, so that nodes and draws need one program


def integral_of(model, *args):
    """Nodes by site with weights, the log evidence with its error, the number of evaluations, and `draws`."""
    density = density_of(model, args, {})

    def constrained(rows):
        padded = np.concatenate([rows, np.repeat(rows[-1:], -len(rows) % BLOCK, axis=0)])
        with jax.enable_x64(True):
            parts = [integral.constrained(integral.at(block[None])) for block in np.split(padded, len(padded) // BLOCK)]
        return jax.tree.map(lambda *blocks: np.concatenate(blocks, axis=1)[0, : len(rows)], *parts)

    with jax.enable_x64(True):
        integral = Integrated(lambda _: density, [(0,)], BLOCK)
        (cells,) = integral.cells
    rows, weights = cells.nodes
    return SimpleNamespace(
        nodes=constrained(rows),
        weights=weights,
        log_evidence=cells.log_integral,
        error=cells.error,
        evaluations=cells.evaluations,
        draws=lambda uniforms: constrained(cells.draws(uniforms)[0]),
    )
