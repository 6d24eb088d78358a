"""The scale of the noise for a privacy target, for Gaussian noise and zero-inflated Laplace noise."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import special

from ldpbayes._core.checks import FINITE, INSIDE_0_1, ONE_INSIDE_0_1, ONE_POSITIVE, POSITIVE, checked
from ldpbayes._core.pytrees import ruled
from ldpbayes._core.types import Array
from ldpbayes.numerics.minimise import find_root
from ldpbayes.privacy.symmetric_laplace import SymmetricLaplaceTradeoff
from ldpbayes.privacy.tradeoffs import GaussianTradeoff, LogTradeoff, Tradeoff, ZeroInflatedTradeoff, gaussian_log_delta


def gaussian_scale(epsilon: ArrayLike, delta: ArrayLike, sensitivity: ArrayLike = 1.0) -> Array:
    """Return the least standard deviation of (epsilon, delta)-differentially private Gaussian noise ([BW] Theorem 8).

    The noise has a delta of at most `delta`, with a relative difference of about 1e-11. Arguments broadcast.

    Parameters
    ----------
    epsilon, delta : array_like
        Privacy target: epsilon in nats, positive, and delta in (0, 1).
    sensitivity : array_like
        Largest Euclidean distance between the numbers of two neighbouring inputs. The result has the same unit.
        Default: 1.
    """
    epsilon, delta = np.broadcast_arrays(checked("epsilon", epsilon, *POSITIVE), checked("delta", delta, *INSIDE_0_1))
    sensitivity = checked("sensitivity", sensitivity, *POSITIVE)
    # Phi(-a) > delta(mu) at a = epsilon/mu - mu/2, so the mu at which Phi(-a) = delta is too small; it is the root of
    # mu^2/2 + t mu - epsilon, written so that nothing cancels for either sign of t
    t = -special.ndtri_exp(np.log(delta))
    root = np.hypot(t, np.sqrt(2 * epsilon))
    low = np.where(t > 0, 2 * epsilon / (root + np.abs(t)), root + np.abs(t))
    # at mu = high, a test of level (1 - delta)/2 exp(-epsilon) has power (1 + delta)/2: it shows that delta(high), the
    # most that power less exp(epsilon) times level can be, is at least delta
    log_rest = np.log1p(-delta) - np.log(2)
    high = -special.ndtri_exp(log_rest - epsilon) - special.ndtri_exp(log_rest)
    log_mu = _largest_log_mu("scale", gaussian_log_delta, (np.log(low), np.log(high)), epsilon, delta)
    scale = sensitivity * np.exp(-log_mu)
    return scale if np.ndim(scale) else float(scale)


def _largest_log_mu(
    sought: str, log_delta: Callable, bracket: tuple[Array, Array], epsilon: Array, delta: Array, *arguments: Array
) -> Array:
    """Largest log mu at which `log_delta` is at most log delta: of the final bracket the end that keeps the promise."""

    def of_log_mu(log_mu: np.ndarray, epsilon: np.ndarray, *others: np.ndarray) -> np.ndarray:
        return log_delta(epsilon, np.exp(log_mu), *others)

    root = find_root(of_log_mu, np.log(delta), (bracket[0] - 1e-9, bracket[1] + 1e-9), epsilon, *arguments)
    if not np.all(root.success):
        raise ValueError(f"no {sought} found for epsilon = {epsilon[~root.success]}, delta = {delta[~root.success]}")
    return np.where(root.f_x <= 0, root.x, root.bracket[0])


class ZILParameters(NamedTuple):
    """Result of `zil_parameters`: the parameters of zero-inflated Laplace noise.

    `zero_probability` is the probability that a record gets no noise. `scale` is the standard deviation of the noise.
    `distance` is the largest distance between two inputs, divided by the scale. `tradeoff` is the trade-off curve.
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
    unit: str = "record",
    exact: bool = False,
) -> ZILParameters:
    """Return the least scale for which zero-inflated Laplace noise is (epsilon, delta)-differentially private.

    The scale is the largest distance between two neighbouring inputs, divided by a number c′. If two inputs are at most
    c′ scales apart, the noise is (epsilon, delta)-private for them, but not if they are farther apart. The method is
    from [LCQ] Theorem 3.3.

    Parameters
    ----------
    epsilon, delta : float
        Privacy target: epsilon in nats, positive and finite, and delta in (0, 1).
    zero_probability : float
        Probability that a record gets no noise, positive and below delta. If it is larger, no scale suffices.
    bounds : (array_like, array_like)
        Lower and upper clipping bounds of the d perturbed coordinates: two arrays (d,), or two numbers for d = 1.
    unit : {"record", "attribute"}
        "record": neighbours differ in all coordinates (default). "attribute": they differ in one coordinate.
    exact : bool
        True to use the trade-off curve of d dimensions, which needs less noise. Default: False, to use the limit of
        many dimensions, which is a lower curve.

    Returns
    -------
    ZILParameters
        ``zero_probability``; ``scale``, the standard deviation in the unit of the data; ``distance``, which is c′; and
        ``tradeoff``, the trade-off curve.
    """
    epsilon, delta = checked("epsilon", epsilon, *ONE_POSITIVE), checked("delta", delta, *ONE_INSIDE_0_1)
    zero_probability = checked("zero_probability", zero_probability, *ONE_INSIDE_0_1)
    if zero_probability >= delta:
        raise ValueError(f"zero_probability must be below delta = {delta:g}, got {zero_probability:g}")
    if unit not in ("record", "attribute"):
        raise ValueError(f"unit must be one of record, attribute, got {unit!r}")
    try:
        lower, upper = bounds
    except (TypeError, ValueError):
        raise ValueError(f"bounds must be a pair (lower, upper), got {bounds!r}") from None
    widths = np.atleast_1d(checked("upper", upper, *FINITE) - np.asarray(checked("lower", lower, *FINITE)))
    if widths.ndim != 1 or np.any(widths <= 0):
        raise ValueError(f"bounds must be numbers or arrays (d,), lower below upper, got {bounds!r}")
    diameter = np.linalg.norm(widths) if unit == "record" else np.max(widths)
    size = widths.size if exact else math.inf
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


def _log_level(threshold: Array, mu: Array, budget: Array, sign: Array) -> Array:
    """Log of the level (sign −1: of its complement) at a log threshold; the level at minus it is the type II error."""
    # the response favours the other input with probability 1/(1 + exp(budget)); then its log ratio is +budget
    favours, against = ((threshold + side * budget) / mu + mu / 2 for side in (-1.0, 1.0))
    return np.logaddexp(
        special.log_ndtr(-sign * favours) - np.logaddexp(0.0, budget),
        special.log_ndtr(-sign * against) - np.logaddexp(0.0, -budget),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianWithResponseTradeoff(LogTradeoff):
    """Two unit normal laws `mu` apart, each beside an independent binary randomized response with the other answer: the
    product of both curves ([DRS] Definition 3.1 and Theorem 3.2). The log likelihood ratio of the response is
    ±`response_epsilon`, so that of both is a mixture of two normal laws, of which the best tests are thresholds.
    """

    mu: Array = ruled(POSITIVE)
    response_epsilon: Array = ruled(POSITIVE)

    def _type_ii_error(self, alpha: np.ndarray, mu: np.ndarray, budget: np.ndarray) -> np.ndarray:
        log_alpha, log_rest = np.log(alpha), np.log1p(-alpha)
        # a large level is more precise as one less its complement (sign = −1 in `_log_level`)
        large = alpha > 0.5
        target, sign = np.where(large, log_rest, log_alpha), np.where(large, -1.0, 1.0)
        # given the response, the threshold is that of the normal laws, plus or minus the budget
        middle = -sign * mu * special.ndtri_exp(target) - mu**2 / 2
        margin = budget + 1e-9 * (budget + np.abs(middle) + mu)
        inside = (alpha > 0) & (alpha < 1)
        low, high = (np.where(inside, middle + side * margin, side) for side in (-1.0, 1.0))
        threshold = find_root(_log_level, np.where(inside, target, -1.0), (low, high), mu, budget, sign).x
        log_level = _log_level(threshold, mu, budget, sign)
        # the tangent there is within rounding of the curve, also where the threshold has an error
        correction = -sign * np.exp(threshold + log_level) * np.expm1(target - log_level)
        value = np.exp(_log_level(-threshold, mu, budget, 1.0)) + correction
        return np.where(alpha == 0, 1.0, np.where(alpha == 1, 0.0, np.clip(value, 0.0, 1 - alpha)))

    @staticmethod
    def _log_delta(epsilon: Array, mu: Array, budget: Array) -> np.ndarray:
        """Log delta of the pair: that of two normals at epsilon − budget and at epsilon + budget, by the answer's odds.
        The former, at t < 0, is one less exp(t), plus exp(t) times that at −t: ∫(p − eᵗq)₊ = 1 − eᵗ + eᵗ∫(q − e⁻ᵗp)₊.
        """
        t = epsilon - budget
        size = np.abs(t)
        beyond = gaussian_log_delta(size, mu)
        with np.errstate(divide="ignore", under="ignore"):
            near = np.where(t < 0, np.log(-np.expm1(-size) + np.exp(beyond - size)), beyond)
        far = gaussian_log_delta(epsilon + budget, mu)
        return np.logaddexp(near - np.logaddexp(0.0, -budget), far - np.logaddexp(0.0, budget))

    def _too_large(self, log_delta: np.ndarray, mu: np.ndarray, budget: np.ndarray) -> np.ndarray:
        # by basic composition delta is at most that of the normal laws at the sum of both epsilons
        return (np.asarray(GaussianTradeoff(mu).epsilon(np.exp(log_delta))) + budget) * (1 + 1e-9)


def gaussian_beside_response(epsilon: ArrayLike, delta: ArrayLike, response_epsilon: ArrayLike) -> Array:
    """Return the largest `mu` for which Gaussian noise and a randomized response are (epsilon, delta)-private together.

    Here `mu` is the sensitivity divided by the standard deviation of the noise. Arguments broadcast.

    Parameters
    ----------
    epsilon, delta : array_like
        Privacy target of noise and response together: epsilon in nats, and delta in (0, 1).
    response_epsilon : array_like
        Budget of the randomized response in nats, positive and below epsilon.
    """
    epsilon, budget = checked("epsilon", epsilon, *POSITIVE), checked("response_epsilon", response_epsilon, *POSITIVE)
    epsilon, delta, budget = np.broadcast_arrays(epsilon, checked("delta", delta, *INSIDE_0_1), budget)
    if np.any(budget >= epsilon):
        part, whole = (each[budget >= epsilon][0] for each in (budget, epsilon))
        raise ValueError(f"response_epsilon must be below epsilon = {whole:g}, got {part:g}")
    # basic composition keeps the promise, and the Gaussian noise alone must keep it
    low, high = (-np.log(gaussian_scale(part, delta)) for part in (epsilon - budget, epsilon))
    mu = np.exp(_largest_log_mu("mu", GaussianWithResponseTradeoff._log_delta, (low, high), epsilon, delta, budget))
    return mu if np.ndim(mu) else float(mu)
