"""The scale of a noise for a privacy target, also beside a randomized response."""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import special

from ldpbayes._core.checks import checked, is_integer
from ldpbayes.numerics.quadrature import find_root
from ldpbayes.privacy.symmetric_laplace import SymmetricLaplaceTradeoff
from ldpbayes.privacy.tradeoffs import (
    GaussianTradeoff,
    Tradeoff,
    ZeroInflatedTradeoff,
    _epsilon,
    _gaussian_log_delta,
    _positive,
    _probability,
)


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


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianWithResponseTradeoff(Tradeoff):
    """Two unit normal laws `mu` apart, each beside an independent binary randomized response with the other answer.

    It is the product of the two curves ([DRS] Definition 3.1 and Theorem 3.2), attained by records that differ most in
    both. The log likelihood ratio of the response is ±`response_epsilon`, so that of both is a mixture of two normal
    laws under either input, and the most powerful tests are its thresholds.

    Parameters
    ----------
    mu : array_like
        Sensitivity over standard deviation of the Gaussian noise, positive and finite.
    response_epsilon : array_like
        Budget of the response, which is true with probability 1/(1 + exp(−response_epsilon)); positive and finite.
    """

    mu: Any
    response_epsilon: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", _positive("mu", self.mu))
        object.__setattr__(self, "response_epsilon", _positive("response_epsilon", self.response_epsilon))

    def __call__(self, alpha: ArrayLike) -> Any:
        """Smallest type II error at level `alpha`, the threshold by root finding."""
        alpha, mu, budget = np.broadcast_arrays(_probability("alpha", alpha), self.mu, self.response_epsilon)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_alpha, log_rest = np.log(alpha), np.log1p(-alpha)
            # the level is known better by its complement where it is large; that is the level at the other threshold
            # under the other input, the type II error being the level at minus the threshold
            large = alpha > 0.5
            target, sign = np.where(large, log_rest, log_alpha), np.where(large, -1.0, 1.0)
            # were the response known, the threshold would be that of the normal laws, plus or minus the budget
            middle = -sign * mu * special.ndtri_exp(target) - mu**2 / 2
            margin = budget + 1e-9 * (budget + np.abs(middle) + mu)
            inside = (alpha > 0) & (alpha < 1)
            low, high = (np.where(inside, middle + side * margin, side) for side in (-1.0, 1.0))
            found = find_root(
                lambda threshold, mu, budget, sign, target: _log_level(threshold, mu, budget, sign) - target,
                (low, high),
                args=(mu, budget, sign, np.where(inside, target, -1.0)),
            )
            threshold, reached = found.x, _log_level(found.x, mu, budget, sign)
            # the tangent there: within rounding of the curve also where rounding has moved the threshold
            moved = -sign * np.exp(threshold + reached) * np.expm1(target - reached)
            value = np.exp(_log_level(-threshold, mu, budget, 1.0)) + moved
        return np.where(alpha == 0, 1.0, np.where(alpha == 1, 0.0, np.clip(value, 0.0, 1 - alpha)))[()]

    def log_delta(self, epsilon: ArrayLike) -> Any:
        """Log of `delta`, to nearly full relative precision also where delta itself underflows.

        Parameters
        ----------
        epsilon : array_like
            Non-negative and finite.
        """
        return _log_delta(self.mu, self.response_epsilon, _epsilon(epsilon))[()]

    def delta(self, epsilon: ArrayLike) -> Any:
        """Mean, over the response, of the Gaussian delta at epsilon less the response's log likelihood ratio."""
        return np.exp(self.log_delta(epsilon))

    def epsilon(self, delta: ArrayLike) -> Any:
        """Inverse of `delta`, by root finding; 0 where 0 is enough, infinite at delta = 0."""
        delta, mu, budget = np.broadcast_arrays(_probability("delta", delta), self.mu, self.response_epsilon)
        inside = (delta > 0) & (delta < 1)
        at = np.where(inside, delta, 0.5)
        # the two epsilons add up to one at which delta is not larger
        high = (np.asarray(GaussianTradeoff(mu).epsilon(at)) + budget) * (1 + 1e-9)
        target = np.log(at)
        found = find_root(
            lambda epsilon, mu, budget, target: _log_delta(mu, budget, epsilon) - target,
            (np.zeros_like(high), high),
            args=(mu, budget, target),
        )
        enough = (delta == 1) | (inside & (target >= _log_delta(mu, budget, 0.0)))
        return np.where(enough, 0.0, np.where(delta > 0, found.x, np.inf))[()]


def gaussian_beside_response(epsilon: ArrayLike, delta: ArrayLike, response_epsilon: ArrayLike) -> Any:
    """Return the largest `mu` at which Gaussian noise beside randomized response is (epsilon, delta)-private.

    The pair is `GaussianWithResponseTradeoff(mu, response_epsilon)`, and its delta at epsilon is `delta`: more is left
    for the Gaussian noise than (epsilon − response_epsilon, delta), which basic composition leaves. The equation is
    solved as in `gaussian_scale`, and of the two ends of the final bracket the one that keeps the promise is returned.

    Parameters
    ----------
    epsilon : array_like
        Positive and finite; broadcasts against the others.
    delta : array_like
        Between 0 and 1, exclusive.
    response_epsilon : array_like
        Budget of the binary randomized response, positive and below `epsilon`.

    Returns
    -------
    float or ndarray
        Sensitivity over standard deviation of the Gaussian noise, in the broadcast shape.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    epsilon = checked("epsilon", epsilon, "positive and finite", lambda a: (a > 0) & (a < np.inf))
    delta = checked("delta", delta, "between 0 and 1, exclusive", lambda a: (a > 0) & (a < 1))
    budget = _positive("response_epsilon", response_epsilon)
    epsilon, delta, budget = np.broadcast_arrays(epsilon, delta, budget)
    if np.any(budget >= epsilon):
        where = np.flatnonzero(budget >= epsilon)[0]
        raise ValueError(
            f"response_epsilon must be below epsilon, of which the noise needs a part, got response_epsilon = "
            f"{budget.flat[where]:g}, epsilon = {epsilon.flat[where]:g}"
        )
    # basic composition keeps the promise, and the Gaussian noise alone must keep it
    low, high = (-np.log(gaussian_scale(part, delta)) for part in (epsilon - budget, epsilon))
    found = find_root(
        lambda log_mu, epsilon, budget, target: _log_delta(np.exp(log_mu), budget, epsilon) - target,
        (low - 1e-9, high + 1e-9),
        args=(epsilon, budget, np.log(delta)),
    )
    if not np.all(found.success):
        raise ValueError(f"no mu found for epsilon = {epsilon[~found.success]}, delta = {delta[~found.success]}")
    mu = np.exp(np.where(found.f_x <= 0, found.x, found.bracket[0]))
    return mu if np.ndim(mu) else float(mu)


def _log_level(threshold: Any, mu: Any, budget: Any, sign: Any) -> Any:
    """Log probability, where the first input is true, that the log likelihood ratio is above a threshold.

    With sign = −1 it is that of the complement. By symmetry, the type II error is the level at minus the threshold.
    """
    # the response favours the other input with probability 1/(1 + exp(budget)), and has then ratio +budget
    favours, against = ((threshold + side * budget) / mu + mu / 2 for side in (-1.0, 1.0))
    return np.logaddexp(
        special.log_ndtr(-sign * favours) - np.logaddexp(0.0, budget),
        special.log_ndtr(-sign * against) - np.logaddexp(0.0, -budget),
    )


def _log_delta(mu: Any, budget: Any, epsilon: Any) -> np.ndarray:
    """Log delta of the pair: that of two normals at epsilon − budget and at epsilon + budget, by the answer's odds.

    With ∫(p − eᵗq)₊ = 1 − eᵗ + eᵗ∫(q − e⁻ᵗp)₊ the former, at t < 0, is one less exp(t), plus exp(t) times that at −t.
    """
    t = epsilon - budget
    size = np.abs(t)
    beyond = _gaussian_log_delta(mu, size)
    with np.errstate(divide="ignore", under="ignore"):
        near = np.where(t < 0, np.log(-np.expm1(-size) + np.exp(beyond - size)), beyond)
    far = _gaussian_log_delta(mu, epsilon + budget)
    return np.logaddexp(near - np.logaddexp(0.0, -budget), far - np.logaddexp(0.0, budget))
