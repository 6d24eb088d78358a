"""The integral of a model's posterior as weighted nodes, and as a transformation of uniform random numbers."""

from types import SimpleNamespace

import jax
import numpy as np

from ldpbayes.inference.approximations.integral import Integrated
from ldpbayes.inference.density import density_of
from ldpbayes.numerics import cubature as _cubature

BLOCK = 1 << 12  # points that are mapped to sites at once, so that nodes and draws need one program


def nodes_of(cells):
    """Points (m, n) and weights (m,), of sum 1: weighted sums of a function's values are its expectation."""
    rule, count = _cubature._rule(len(cells.centre)), len(cells.masses)
    logs = _cubature._along_axes(rule.synthesis, cells.logs).reshape(count, -1)
    weights = np.exp(logs - logs.max(axis=1, keepdims=True)) * rule.weights
    weights *= (cells.masses / weights.sum(axis=1))[:, None]
    return np.concatenate([cells._points(cell, rule.dense) for cell in range(count)]), weights.ravel()


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
    rows, weights = nodes_of(cells)
    return SimpleNamespace(
        nodes=constrained(rows),
        weights=weights,
        log_evidence=cells.log_integral,
        error=cells.error,
        evaluations=cells.evaluations,
        draws=lambda uniforms: constrained(cells.draws(uniforms)[0]),
    )
