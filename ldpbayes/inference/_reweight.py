"""Draws of a density that is nearly the posterior made draws of the posterior: Pareto-smoothed importance sampling."""

from typing import Any, NamedTuple

import jax
import numpy as np

from ldpbayes.inference.arviz_ import psislw

__all__ = ["Weights", "resampled", "smoothed_weights"]

LARGEST_K = 0.7  # of the Pareto shape, beyond which importance weights are not to be trusted ([VSGYG])
EVEN = 2.0  # largest over smallest weight up to which the shape of their tail, which has no scale, is not looked at
LEAST = 0.5  # share of the draws that may remain, in effect


class Weights(NamedTuple):
    """Importance weights of draws.

    Attributes
    ----------
    log : ndarray (draws,)
        Smoothed, on a log scale, normalised.
    pareto_k : float
        Shape of the tail of the raw weights; 0 where these are within a factor 2.
    share : float
        Effective number of draws over their number.
    """

    log: np.ndarray
    pareto_k: float
    share: float

    @property
    def good(self) -> bool:
        """Whether the draws may be reweighted."""
        limit = min(LARGEST_K, 1 - 1 / np.log10(len(self.log)))
        return bool(self.pareto_k <= limit and self.share >= LEAST)


def smoothed_weights(log_ratios: np.ndarray) -> Weights:
    """Pareto-smoothed weights of log ratios of densities.

    Parameters
    ----------
    log_ratios : ndarray (draws,)
        Log density of the posterior less that of what was sampled.

    Notes
    -----
    Source: [VSGYG].
    """
    if not np.isfinite(log_ratios).all():
        return Weights(np.full(len(log_ratios), -np.log(len(log_ratios))), np.inf, 0.0)
    log, shape = log_ratios - log_ratios.max(), 0.0
    if np.ptp(log_ratios) > np.log(EVEN):
        log, shape = psislw(log)  # a copy, which ArviZ writes into
    log = log - np.logaddexp.reduce(log)
    return Weights(log, float(shape), float(1 / np.sum(np.exp(2 * log)) / len(log)))


def resampled(tree: Any, log_weights: np.ndarray, key: jax.Array) -> Any:
    """Draws in proportion to their weights, each chain from its own, in their order.

    Parameters
    ----------
    tree : pytree of ndarray (chains, draws, ...)
        Draws, and what belongs to them.
    log_weights : ndarray (chains, draws)
        Of the draws.
    key : jax.Array
        A JAX random key.
    """
    chains, draws = log_weights.shape
    offsets = np.asarray(jax.random.uniform(key, (chains, 1)))
    shares = np.cumsum(np.exp(log_weights - log_weights.max(axis=1, keepdims=True)), axis=1)
    places = (np.arange(draws) + offsets) / draws * shares[:, -1:]
    picked = np.stack([np.searchsorted(one, at) for one, at in zip(shares, places, strict=True)]).clip(0, draws - 1)
    return jax.tree.map(lambda leaf: np.stack([leaf[i][picked[i]] for i in range(chains)]), tree)
