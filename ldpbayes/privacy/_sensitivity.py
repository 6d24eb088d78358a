"""Sensitivity of the statistics of regression records, for Gaussian noise. With x in units of R, y in units of its
bound q, A = (σ₁q/σ₂R)² and C = (σ₁q²/σ₃R²)², the largest squared distance over R⁴ is the largest of 2 + A + C (for one
covariate 1 + A + C), (1 + w)² (A + C (1 − w)²) on [0, 1], and the result of `_opposite`. The proof is in
docs/reference/references.md, under [KJKH] Lemma 3.1.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from ldpbayes._core.checks import ONE_POSITIVE, at_least, checked


def linear_sensitivity(
    covariates: int, radius: float, response_bound: float, ratios: tuple[float, float, float] = (1.0, 1.0, 1.0)
) -> float:
    """Return the largest distance between the statistics of two records in linear regression, in the unit of x².

    The statistics of a record (x, y) are x_j², √2·x_j·x_k for j < k, x_j·y and y². They get Gaussian noise of standard
    deviation σ₁ (for x_j² and x_j·x_k), σ₂ (for x_j·y) and σ₃ (for y²). In the Euclidean distance, differences in x_j·y
    are multiplied by σ₁/σ₂, and differences in y² by σ₁/σ₃. The result Δ is the same without the factor √2.

    Two records are at most as distinguishable as two normal laws of variance 1 whose means differ by Δ/σ₁.

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
    """Return the bound of [KJKH] Lemma 3.1 on `linear_sensitivity`, for comparison with the paper.

    The bound is √(2R⁴ + 2(σ₁Rq/σ₂)² + (σ₁q/σ₂)⁴/2 + (σ₁q²/σ₃)²).

    Parameters
    ----------
    radius, response_bound, ratios
        R, q, and the ratios σ₁ : σ₂ : σ₃, as in `linear_sensitivity`.
    """
    product, response = _weights(radius, response_bound, ratios, 3)
    return _distance(radius, 2 + 2 * product + product * product / 2 + response)


def logistic_sensitivity(covariates: int, radius: float, ratios: tuple[float, float] = (1.0, 1.0)) -> float:
    """Return the largest distance between the statistics of two records in logistic regression, in the unit of x².

    The statistics of a record (x, y) are x_j², √2·x_j·x_k for j < k, and x_j·y with y in {−1, 1}. `linear_sensitivity`
    defines the distance, σ₁ and σ₂. For two covariates or more, there are two cases:

    - If σ₁/σ₂ is at most √2·R, the distance is √(2R⁴ + 2(σ₁R/σ₂)² + (σ₁/σ₂)⁴/2). [KJKH] Lemma 13.1 states this distance
      times σ₂/σ₁.
    - For larger σ₁/σ₂, the distance is 2Rσ₁/σ₂.

    Parameters
    ----------
    covariates, radius, ratios
        Number of covariates, largest norm R of x, and ratio σ₁ : σ₂, as in `linear_sensitivity`.
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
