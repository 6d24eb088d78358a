"""The scale of noise for a privacy target, and the sensitivity of the statistics of regression records."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ldpbayes._core.checks import FINITE, INSIDE_0_1, ONE_INSIDE_0_1, ONE_POSITIVE, POSITIVE, at_least, checked
from ldpbayes._core.pytrees import ruled
from ldpbayes._core.types import Array
from ldpbayes.numerics.minimise import find_root
from ldpbayes.privacy import tradeoffs
from ldpbayes.privacy.symmetric_laplace import LEAST_TABLE_DISTANCE, UNDERFLOW_DISTANCE, SymmetricLaplaceTradeoff
from ldpbayes.privacy.tradeoffs import LogTradeoff, ThresholdTradeoff, Tradeoff, gaussian_log_delta


def gaussian_scale(epsilon: ArrayLike, delta: ArrayLike, sensitivity: ArrayLike = 1.0) -> Array:
    """Return the least standard deviation of (epsilon, delta)-differentially private Gaussian noise ([BW] Theorem 8).

    Its delta is below `delta`, by a share of at most about 1e-11. Arguments broadcast: `epsilon` in nats, positive,
    `delta` in (0, 1), and the `sensitivity`, by default 1, the largest Euclidean distance of two neighbouring inputs,
    in the unit of the result.
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
    """Result of `zil_parameters`, which describes the fields."""

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

    The scale is the largest distance between two neighbouring inputs, divided by the largest number c′ of scales for
    which two inputs c′ scales apart are (epsilon, delta)-private ([LCQ] Theorem 3.3).

    Parameters
    ----------
    epsilon, delta : float
        Privacy target: epsilon in nats, positive and finite, and delta in (0, 1).
    zero_probability : float
        Probability that a record gets no noise, positive and below delta: else no scale suffices.
    bounds : (array_like, array_like)
        Lower and upper clipping bounds of the d perturbed coordinates: two arrays (d,), or two numbers for d = 1.
    unit : {"record", "attribute"}
        Neighbours differ in all coordinates ("record", default), or in one ("attribute").
    exact : bool
        True to use the trade-off curve of d dimensions, which needs less noise. Default: False, to use the limit of
        many dimensions, which is a lower curve.

    Returns
    -------
    ZILParameters
        ``zero_probability``, ``scale`` in the unit of the data, ``distance`` c′, and the ``tradeoff``.
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
    target = np.asarray((delta - zero_probability) / (1 - zero_probability))

    def log_delta(epsilon: np.ndarray, distance: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(SymmetricLaplaceTradeoff(distance, size).delta(epsilon))

    bracket = np.log(LEAST_TABLE_DISTANCE), np.log(UNDERFLOW_DISTANCE)
    distance = float(np.exp(_largest_log_mu("scale", log_delta, bracket, np.asarray(epsilon), target)))
    tradeoff = tradeoffs.ZeroInflatedTradeoff(SymmetricLaplaceTradeoff(distance, size), zero_probability)
    return ZILParameters(zero_probability, float(diameter / distance), distance, tradeoff)


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianWithResponseTradeoff(ThresholdTradeoff, LogTradeoff):
    """Two unit normal laws `mu` apart, each beside a binary randomized response with the other answer: the product of
    both curves ([DRS] Theorem 3.2).
    """

    mu: Array = ruled(POSITIVE)
    response_epsilon: Array = ruled(POSITIVE)

    def _log_level(self, threshold: Array, sign: Array, mu: Array, budget: Array) -> np.ndarray:
        # the response favours the other input with probability 1/(1 + exp(budget)); then its log ratio is +budget
        favours, against = ((threshold + side * budget) / mu + mu / 2 for side in (-1.0, 1.0))
        return np.logaddexp(
            special.log_ndtr(-sign * favours) - np.logaddexp(0.0, budget),
            special.log_ndtr(-sign * against) - np.logaddexp(0.0, -budget),
        )

    def _thresholds(self, target: Array, sign: Array, mu: Array, budget: Array) -> tuple[np.ndarray, np.ndarray]:
        # given the response, the threshold is that of the normal laws, plus or minus the budget
        middle = -sign * mu * special.ndtri_exp(target) - mu**2 / 2
        margin = budget + 1e-9 * (budget + np.abs(middle) + mu)
        return middle - margin, middle + margin

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
        return (np.asarray(tradeoffs.GaussianTradeoff(mu).epsilon(np.exp(log_delta))) + budget) * (1 + 1e-9)


def gaussian_beside_response(epsilon: ArrayLike, delta: ArrayLike, response_epsilon: ArrayLike) -> Array:
    """The largest `mu` for which Gaussian noise beside a response is (epsilon, delta)-private; arguments broadcast."""
    epsilon, budget = checked("epsilon", epsilon, *POSITIVE), checked("response_epsilon", response_epsilon, *POSITIVE)
    epsilon, delta, budget = np.broadcast_arrays(epsilon, checked("delta", delta, *INSIDE_0_1), budget)
    if np.any(budget >= epsilon):
        part, whole = (budgets[budget >= epsilon][0] for budgets in (budget, epsilon))
        raise ValueError(f"response_epsilon must be below epsilon = {whole:g}, got {part:g}")
    # basic composition keeps the promise, and the Gaussian noise alone must keep it
    low, high = (-np.log(gaussian_scale(part, delta)) for part in (epsilon - budget, epsilon))
    mu = np.exp(_largest_log_mu("mu", GaussianWithResponseTradeoff._log_delta, (low, high), epsilon, delta, budget))
    return mu if np.ndim(mu) else float(mu)


# Sensitivities of regression statistics. With x in units of R, y in units of its bound q, A = (σ₁q/σ₂R)² and
# C = (σ₁q²/σ₃R²)², the largest squared distance over R⁴ is the largest of 2 + A + C (for one covariate 1 + A + C),
# (1 + w)² (A + C (1 − w)²) on [0, 1], and the result of `_opposite`. The proof is in docs/reference/references.md,
# under [KJKH] Lemma 3.1.


def linear_sensitivity(
    covariates: int, radius: float, response_bound: float, ratios: tuple[float, float, float] = (1.0, 1.0, 1.0)
) -> float:
    """Return the largest distance between the statistics of two records in linear regression, in the unit of x².

    The statistics of a record (x, y) are x_j², √2·x_j·x_k for j < k, x_j·y and y². The noise has standard deviation σ₁
    in x_j² and x_j·x_k, σ₂ in x_j·y and σ₃ in y², so the Euclidean distance has differences in x_j·y times σ₁/σ₂, and
    in y² times σ₁/σ₃. The result is the same without the factor √2.

    Parameters
    ----------
    covariates : int
        Number of entries of x, positive. The result is equal for all numbers from 2 on.
    radius, response_bound : float
        Largest Euclidean norm R of x, and largest absolute value q of y, both positive, in the units of x and y.
    ratios : (float, float, float)
        The ratios σ₁ : σ₂ : σ₃. Default: equal.
    """
    covariates = at_least(1, "covariates", covariates)
    product, response = _weights(radius, response_bound, ratios, 3)
    zero = (2 if covariates > 1 else 1) + product + response
    return _distance(radius, max(zero, _across(response, product), _opposite(covariates, product)))


def linear_sensitivity_bound(
    radius: float, response_bound: float, ratios: tuple[float, float, float] = (1.0, 1.0, 1.0)
) -> float:
    """Return the bound of [KJKH] Lemma 3.1, √(2R⁴ + 2(σ₁Rq/σ₂)² + (σ₁q/σ₂)⁴/2 + (σ₁q²/σ₃)²), on `linear_sensitivity`,
    which describes `radius` R, `response_bound` q, and the `ratios` σ₁ : σ₂ : σ₃.
    """
    product, response = _weights(radius, response_bound, ratios, 3)
    return _distance(radius, 2 + 2 * product + product * product / 2 + response)


def logistic_sensitivity(covariates: int, radius: float, ratios: tuple[float, float] = (1.0, 1.0)) -> float:
    """Return the largest distance between the statistics of two records in logistic regression, in the unit of x².

    The statistics of a record (x, y) are x_j², √2·x_j·x_k for j < k, and x_j·y with y in {−1, 1}. `linear_sensitivity`
    defines the distance, and the parameters `covariates`, `radius` R and `ratios` σ₁ : σ₂. For two covariates or more,
    the distance is √(2R⁴ + 2(σ₁R/σ₂)² + (σ₁/σ₂)⁴/2) if σ₁/σ₂ is at most √2·R ([KJKH] Lemma 13.1 states it times σ₂/σ₁),
    and 2Rσ₁/σ₂ for larger σ₁/σ₂.
    """
    covariates = at_least(1, "covariates", covariates)
    (product,) = _weights(radius, 1.0, ratios, 2)
    return _distance(radius, _opposite(covariates, product))


def _opposite(covariates: int, product: float) -> float:
    """Largest squared distance where both responses are at the bound, at w = 1, or v = 1 with one covariate."""
    if covariates == 1:
        return _across(1.0, product)
    return 2 + 2 * product + product * product / 2 if product <= 2 else 4 * product


def _across(square: float, product: float) -> float:
    """Largest (1 + t)² (square·(1 − t)² + product) on [0, 1]: at 1, or at the smaller root of t (1 − t) = share/2."""
    if 2 * product >= square:
        return 4 * product
    share = product / square
    t = share / (1 + math.sqrt(1 - 2 * share))
    return max((1 + t) ** 2 * (square * (1 - t) ** 2 + product), 4 * product)


def _weights(radius: float, response_bound: float, ratios: ArrayLike, blocks: int) -> tuple[float, ...]:
    """A, and C where there is a third block."""
    numbers = f"{blocks} positive and finite numbers"
    radius, bound = checked("radius", radius, *ONE_POSITIVE), checked("response_bound", response_bound, *ONE_POSITIVE)
    scales = checked("ratios", ratios, numbers, lambda a: (a > 0) & (a < math.inf))
    if np.shape(scales) != (blocks,):
        raise ValueError(f"ratios must be {numbers}, got {ratios!r}")
    unit, (first, *others) = bound / radius, map(float, scales)
    # products overflow to infinity, where powers of a float would raise an error of their own
    roots = [first / scale * size for scale, size in zip(others, (unit, unit * unit), strict=False)]
    return tuple(root * root for root in roots)


def _distance(radius: float, squared: float) -> float:
    """R² times the root of a squared distance, where that can be represented."""
    distance = radius * radius * math.sqrt(squared)
    if not 0 < distance < math.inf:
        raise ValueError(f"radius, response_bound or ratios are too extreme: the sensitivity would be {distance}")
    return distance
