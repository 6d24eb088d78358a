"""Calibration: the least noise that keeps a stated promise."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from scipy.optimize import elementwise

from ldpbayes.privacy.tradeoff import _gaussian_log_delta, checked

__all__ = ["gaussian_scale"]


def gaussian_scale(epsilon: ArrayLike, delta: ArrayLike, sensitivity: ArrayLike = 1.0) -> Any:
    """Return the smallest standard deviation of Gaussian noise that is (epsilon, delta)-differentially private.

    The analytic Gaussian mechanism (Balle & Wang 2018, "Improving the Gaussian mechanism for differential privacy",
    arXiv:1805.06530, Theorem 8), valid for every epsilon, unlike the classical sqrt(2 log(1.25 / delta)) / epsilon.
    The equation is solved for log(sensitivity / scale) with delta in log space, and of the two ends of the final
    bracket the one that keeps the promise is returned; the delta achieved agrees with `delta` to about 1e-11 of itself.

    Parameters
    ----------
    epsilon : array_like
        Positive and finite; broadcasts against `delta` and `sensitivity`.
    delta : array_like
        Between 0 and 1, exclusive.
    sensitivity : array_like
        Largest distance between the inputs, positive and finite; in the unit of the result.

    Returns
    -------
    float or ndarray
        The standard deviation, in the broadcast shape.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    epsilon = checked("epsilon", epsilon, "positive and finite", lambda a: (a > 0) & (a < np.inf))
    delta = checked("delta", delta, "between 0 and 1, exclusive", lambda a: (a > 0) & (a < 1))
    sensitivity = checked("sensitivity", sensitivity, "positive and finite", lambda a: (a > 0) & (a < np.inf))
    epsilon, delta = np.broadcast_arrays(epsilon, delta)
    # Phi(-a) > delta(mu) at a = epsilon/mu - mu/2, so the mu that makes Phi(-a) = delta is too small; the root of
    # mu^2/2 + t mu - epsilon is written so that it does not cancel for either sign of t
    t = -special.ndtri_exp(np.log(delta))
    root = np.hypot(t, np.sqrt(2 * epsilon))
    low = np.where(t > 0, 2 * epsilon / (root + np.abs(t)), root + np.abs(t))
    # the test that rejects beyond c has exp(epsilon) * level = (1 - delta)/2 and, at mu = high, power = (1 + delta)/2
    log_rest = np.log1p(-delta) - np.log(2)
    high = -special.ndtri_exp(log_rest - epsilon) - special.ndtri_exp(log_rest)
    found = elementwise.find_root(
        lambda log_mu, epsilon, target: _gaussian_log_delta(np.exp(log_mu), epsilon) - target,
        (np.log(low) - 1e-9, np.log(high) + 1e-9),
        args=(epsilon, np.log(delta)),
    )
    if not np.all(found.success):
        raise ValueError(f"no scale found for epsilon = {epsilon[~found.success]}, delta = {delta[~found.success]}")
    scale = sensitivity * np.exp(-np.where(found.f_x <= 0, found.x, found.bracket[0]))
    return scale if np.ndim(scale) else float(scale)
