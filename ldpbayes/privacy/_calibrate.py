"""Calibration: the least noise that keeps a stated promise."""

import math
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import special

from ldpbayes._checks import checked, is_integer
from ldpbayes.numerics._roots import find_root
from ldpbayes.privacy._symmetric_laplace import SymmetricLaplaceTradeoff
from ldpbayes.privacy._tradeoff import Tradeoff, _gaussian_log_delta
from ldpbayes.privacy._zero_inflated import ZeroInflatedTradeoff

__all__ = ["ZILParameters", "gaussian_scale", "zil_parameters"]


def gaussian_scale(epsilon: ArrayLike, delta: ArrayLike, sensitivity: ArrayLike = 1.0) -> Any:
    """Return the smallest standard deviation of Gaussian noise that is (epsilon, delta)-differentially private.

    This is the analytic Gaussian mechanism ([BW] Theorem 8), valid for every epsilon, unlike the classical
    sqrt(2 log(1.25 / delta)) / epsilon. The equation is solved for log(sensitivity / scale) with delta in log space,
    and of the two ends of the final bracket the one that keeps the promise is returned; the delta achieved agrees with
    `delta` to about 1e-11 of itself.

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
    # Phi(-a) > delta(mu) at a = epsilon/mu - mu/2, so the mu at which Phi(-a) = delta is too small; it is the root of
    # mu^2/2 + t mu - epsilon, written so that nothing cancels for either sign of t
    t = -special.ndtri_exp(np.log(delta))
    root = np.hypot(t, np.sqrt(2 * epsilon))
    low = np.where(t > 0, 2 * epsilon / (root + np.abs(t)), root + np.abs(t))
    # at mu = high, a test of level (1 - delta)/2 exp(-epsilon) has power (1 + delta)/2: it shows that delta(high), the
    # most that power less exp(epsilon) times level can be, is at least delta
    log_rest = np.log1p(-delta) - np.log(2)
    high = -special.ndtri_exp(log_rest - epsilon) - special.ndtri_exp(log_rest)
    found = find_root(
        lambda log_mu, epsilon, target: _gaussian_log_delta(np.exp(log_mu), epsilon) - target,
        (np.log(low) - 1e-9, np.log(high) + 1e-9),
        args=(epsilon, np.log(delta)),
    )
    if not np.all(found.success):
        raise ValueError(f"no scale found for epsilon = {epsilon[~found.success]}, delta = {delta[~found.success]}")
    scale = sensitivity * np.exp(-np.where(found.f_x <= 0, found.x, found.bracket[0]))
    return scale if np.ndim(scale) else float(scale)


class ZILParameters(NamedTuple):
    """Parameters of a zero-inflated Laplace mechanism, and what they achieve.

    Attributes
    ----------
    zero_probability, scale : float
        δ and λ of the mechanism; λ is the standard deviation of the noise.
    distance : float
        c′: the distance between two inputs over the scale.
    tradeoff : Tradeoff
        The curve that the mechanism keeps.
    """

    zero_probability: float
    scale: float
    distance: float
    tradeoff: Tradeoff


def zil_parameters(
    epsilon: float,
    delta: float,
    zero_probability: float,
    bounds: tuple[ArrayLike, ArrayLike],
    *,
    dimension: int | None = None,
    unit: str = "record",
    exact: bool = False,
) -> ZILParameters:
    """Return the smallest scale at which zero-inflated Laplace noise is (epsilon, delta)-differentially private.

    It follows the recipe after Theorem 3.3 of [LCQ]: c′ is the distance at which the zero-inflated curve of many
    dimensions has f_{ε,δ} as an envelope, and the scale is the diameter of the inputs over c′.

    Parameters
    ----------
    epsilon : float
        Positive and finite.
    delta : float
        Above `zero_probability`, below 1.
    zero_probability : float
        Probability that a record is released exactly as it is, between 0 and 1, exclusive.
    bounds : (array_like, array_like)
        Lower and upper clipping bounds of the perturbed coordinates: numbers or arrays (d,).
    dimension : int, optional
        d, the number of perturbed coordinates, where both bounds are numbers: 1 by default.
    unit : {"record", "attribute"}
        Whether neighbours differ in all coordinates, or in one of them.
    exact : bool
        Use the curve of as many dimensions as are perturbed, instead of its limit, which is below it: less noise.

    Returns
    -------
    ZILParameters
        With the scale, and the curve that it keeps.

    Raises
    ------
    ValueError
        If an argument is out of range; in particular if `delta` does not exceed `zero_probability`, when no scale
        suffices.
    """
    epsilon = checked(
        "epsilon", epsilon, "a positive and finite number", lambda a: (a.ndim == 0) & (a > 0) & (a < np.inf)
    )
    probability = "a number between 0 and 1, exclusive"
    delta = checked("delta", delta, probability, lambda a: (a.ndim == 0) & (a > 0) & (a < 1))
    zero_probability = checked(
        "zero_probability", zero_probability, probability, lambda a: (a.ndim == 0) & (a > 0) & (a < 1)
    )
    if zero_probability >= delta:
        raise ValueError(
            f"zero_probability must be below delta: a record is given away with probability {zero_probability:g}, so "
            f"no noise makes delta smaller than that; got delta = {delta:g}"
        )
    if unit not in ("record", "attribute"):
        raise ValueError(f"unit must be one of record, attribute, got {unit!r}")
    try:
        lower, upper = bounds
    except (TypeError, ValueError):
        raise ValueError(f"bounds must be a pair (lower, upper), got {bounds!r}") from None
    lower, upper = checked("lower", lower, "finite", np.isfinite), checked("upper", upper, "finite", np.isfinite)
    if dimension is not None:
        if not (is_integer(dimension) and dimension >= 1):
            raise ValueError(f"dimension must be a positive integer, got {dimension!r}")
        if np.ndim(lower) or np.ndim(upper):
            raise ValueError("dimension is for bounds that are numbers; arrays have one number a coordinate")
    lower, upper, _ = np.broadcast_arrays(lower, upper, np.zeros(dimension or 1))
    if lower.ndim != 1 or np.any(lower >= upper):
        raise ValueError(f"bounds must be numbers or arrays (d,), lower below upper, got {bounds!r}")
    diameter = np.linalg.norm(upper - lower) if unit == "record" else np.max(upper - lower)
    size = lower.size if exact else math.inf
    target = (delta - zero_probability) / (1 - zero_probability)

    def excess(log_distance: float) -> float:
        return float(SymmetricLaplaceTradeoff(math.exp(log_distance), size).delta(epsilon)) - target

    low = high = 0.0
    while excess(low) > 0:
        low -= 1.0
    while excess(high) < 0:
        high += 1.0
    distance = math.exp(scipy.optimize.brentq(excess, low, high, xtol=1e-13, rtol=1e-13) if low < high else low)
    tradeoff = ZeroInflatedTradeoff(SymmetricLaplaceTradeoff(distance, size), zero_probability)
    return ZILParameters(zero_probability, float(diameter / distance), distance, tradeoff)
