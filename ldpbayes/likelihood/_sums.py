"""Counts of finitely many values, clipped or not: the sum over all of them, in log space.

Unlike a channel's product it is right however far the released value is from where the law has its mass.
"""

from typing import Any

import jax
import numpy as np

from ldpbayes._tracing import is_concrete
from ldpbayes.likelihood._latent import latent
from ldpbayes.likelihood._masses import aligned
from ldpbayes.numerics._special import log_sum

__all__ = ["log_sum_over_counts"]


def log_sum_over_counts(base: Any, mechanism: Any, z: Any) -> jax.Array:
    """Log Σ_k p(k) p(z | k) over the values of a discrete law, those beyond clipping bounds being at the bounds.

    Parameters
    ----------
    base : numpyro.distributions.Distribution
        Univariate and discrete.
    mechanism : Mechanism
        Of numbers; what it clips may be anything, what it does not clip has a law of finite support.
    z : array_like
        Released values.

    Returns
    -------
    Array
        In the broadcast shape of z and the batches.

    Raises
    ------
    ValueError
        See `ldpbayes.likelihood._latent.latent`.
    """
    grid = latent(base, mechanism)
    masses = grid.log_masses(base)
    rank = 1 + max(np.ndim(z), masses.ndim - 1, len(mechanism.batch_shape))
    places = aligned(np.concatenate([grid.nodes, grid.ends]), rank)
    if is_concrete(z, mechanism):
        with jax.ensure_compile_time_eval():  # does not depend on parameters, so it is a constant of what is traced
            kernel = mechanism.log_prob(z, places)
    else:
        kernel = mechanism.log_prob(z, places)
    return log_sum(aligned(masses, rank) + kernel, axis=0)
