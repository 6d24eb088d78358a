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

    The statistics are x_j², √2·x_j·x_k for j < k (or without the √2), y·x and y². At a distance Δ, the release is as
    private as two unit normal laws whose means differ by Δ/σ₁. Δ is attained, unlike the bound of [KJKH] Lemma 3.1.

    Parameters
    ----------
    covariates : int
        d, the number of entries of x, positive. The result is equal for all d ≥ 2.
    radius, response_bound : float
        R and q: largest norm of x and largest absolute value of y, positive, in the units of x and y.
    ratios : (float, float, float)
        Ratios of the standard deviations σ₁, σ₂, σ₃ of the noise on second moments, y·x and y². Default: equal.
    """
    covariates = at_least(1, "covariates", covariates)
    product, response = _weights(radius, response_bound, ratios, 3)
    zero = (2 if covariates > 1 else 1) + product + response
    return _distance(radius, max(zero, _across(response, product), _opposite(covariates, product)))


def linear_sensitivity_bound(
    radius: float, response_bound: float, ratios: tuple[float, float, float] = (1.0, 1.0, 1.0)
) -> float:
    """Return √(2R⁴ + 2(σ₁Rq/σ₂)² + (σ₁q/σ₂)⁴/2 + (σ₁q²/σ₃)²), the bound of [KJKH] Lemma 3.1 on `linear_sensitivity`.

    Parameters
    ----------
    radius, response_bound, ratios
        See `linear_sensitivity`.
    """
    product, response = _weights(radius, response_bound, ratios, 3)
    return _distance(radius, 2 + 2 * product + product * product / 2 + response)


def logistic_sensitivity(covariates: int, radius: float, ratios: tuple[float, float] = (1.0, 1.0)) -> float:
    """Return the largest distance between the statistics of two records in logistic regression, in the unit of x².

    The statistics are x_j², √2·x_j·x_k for j < k (or without the √2) and y·x with y in {−1, 1}. For two covariates or
    more the distance is √(2R⁴ + 2(σ₁R/σ₂)² + (σ₁/σ₂)⁴/2), as in [KJKH] Lemma 13.1, if σ₁/σ₂ is at most √2·R; for larger
    ratios, which the lemma leaves out, it is 2Rσ₁/σ₂. The lemma takes the noise of y·x as its unit.

    Parameters
    ----------
    covariates, radius, ratios
        See `linear_sensitivity`. Here there are two ratios, of σ₁ and σ₂.
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
