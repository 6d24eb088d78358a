"""[LWLSL]: laws of numbers from the square wave mechanism, by expectation maximisation with smoothing (EMS)."""

import jax
import numpy as np

from ldpbayes.mechanisms import Mechanism

POINTS = 8  # in a bin, at which the law is evaluated


def transitions(mechanism: Mechanism, bins: int, released_bins: int) -> tuple[np.ndarray, np.ndarray]:
    """P(released bin | bin of the record) (released_bins, bins), and the edges of the released bins."""
    support, domain = mechanism.support, mechanism.domain
    edges = np.linspace(support.lower_bound, support.upper_bound, released_bins + 1)
    z, x = (
        low + (np.arange(POINTS * n) + 0.5) * (high - low) / (POINTS * n)
        for low, high, n in (
            (support.lower_bound, support.upper_bound, released_bins),
            (domain.lower_bound, domain.upper_bound, bins),
        )
    )
    density = np.exp(np.asarray(jax.jit(mechanism.log_prob)(z[:, None], x), float))
    matrix = density.reshape(released_bins, POINTS, bins, POINTS).sum(axis=(1, 3))
    return matrix / matrix.sum(axis=0), edges


def ems(
    values: np.ndarray,
    mechanism: Mechanism,
    bins: int = 64,
    released_bins: int | None = None,
    smooth: bool = True,
    tolerance: float | None = None,
    max_iterations: int = 10_000,
) -> tuple[np.ndarray, np.ndarray]:
    """Shares (bins,) of the records between the bounds, and the log-likelihood after each iteration.

    An iteration is an EM step and, if `smooth`, a mean of neighbouring shares with weights (1, 2, 1)/4. They end when
    the log-likelihood changes by less than `tolerance`: 1e-3 by default, without smoothing 1e-3·exp(ε).
    """
    matrix, edges = transitions(mechanism, bins, released_bins or bins)
    counts, _ = np.histogram(values, edges)
    kernel = np.eye(bins) * 2 + np.eye(bins, k=1) + np.eye(bins, k=-1)
    kernel /= kernel.sum(axis=1, keepdims=True)
    if tolerance is None:
        tolerance = 1e-3 if smooth else 1e-3 * np.exp(np.max(mechanism.epsilon))
    shares, trace = np.full(bins, 1 / bins), [-np.inf]
    for _ in range(max_iterations):
        shares = shares * (counts / (matrix @ shares) @ matrix)
        shares = kernel @ shares if smooth else shares
        shares /= shares.sum()
        trace.append(counts @ np.log(matrix @ shares))
        if abs(trace[-1] - trace[-2]) < tolerance:
            break
    return shares, np.array(trace[1:])
