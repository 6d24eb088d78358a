"""Shares of categories from sums of bits: weighted least squares, with the law of the bits of a person."""

from collections.abc import Sequence

import numpy as np
from scipy import special

from ldpbayes._core.checks import warn
from ldpbayes.data import BitCounts
from ldpbayes.estimation.estimates import EstimationWarning
from ldpbayes.mechanisms.plausibility import FALSE_REPORT_LEVEL, implausible_counts
from ldpbayes.mechanisms.protocol import BitLaw
from ldpbayes.numerics.arrays import equal_pairs
from ldpbayes.numerics.minimise import nearest_probabilities

LEAST_OF_LARGEST = 1e-12  # of the products of designs, over the largest
MOST_NAMED_PAIRS = 5  # pairs of categories with equal bits that an error names


def shares_of_bits(counts: BitCounts, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Unbiased shares (d,) and their covariance.

    Frequencies t of the bits, without the mechanism's bias, have the mean A θ. Within a cohort, their covariance has a
    term of the mechanism, and one of the persons drawn, whose bits depend on each other through the category. Values
    that are not listed move each bit; the variance of that is estimated from the residuals, by moments ([DL]).
    """
    law, present = counts.mechanism.bit_law, counts.reports > 0
    sums, reports, design = counts.sums[present], counts.reports[present], law.design[present]
    if law.reports == 1:
        totals, n = sums.sum(axis=0), reports.sum()
        problems = implausible_counts(totals, n, law.zero, law.one, 2 * len(totals), "have bit {}".format)
        if problems:
            warn(f"the sums are nearly impossible under {counts.mechanism!r}: {'; '.join(problems)}", EstimationWarning)
    persons, t = reports / law.reports, (sums / reports[:, None] - law.zero) / (law.one - law.zero)
    flat = design.reshape(-1, design.shape[-1])
    _check_identified(flat, names)
    theta, excess = np.linalg.solve(flat.T @ flat, t.ravel() @ flat), 0.0
    if len(theta) == t.size and len(t) == 1:  # without noise, the law of bits has no inverse
        inverse = np.linalg.inv(flat)
        return theta, inverse @ _law_of_bits(design, theta, law)[0] @ inverse.T / persons[0]
    for last in (False, True):
        inverse = np.linalg.inv(_law_of_bits(design, theta, law) / persons[:, None, None] + excess * np.eye(t.shape[1]))
        weighted = (inverse @ design).reshape(flat.shape)
        covariance = np.linalg.inv(flat.T @ weighted)
        theta = covariance @ (t.ravel() @ weighted)
        free = len(flat) - len(theta)
        if free and not last:
            residuals = t - design @ theta
            square = np.einsum("cb,cbk,ck", residuals, inverse, residuals)
            slope = np.trace(inverse, axis1=1, axis2=2).sum() - np.sum(covariance * (weighted.T @ weighted))
            excess = max(0.0, (square - free) / slope)
            if np.all(design % 1 == 0) and special.chdtrc(free, square) < FALSE_REPORT_LEVEL:
                problem = f"the bits vary more than the categories explain (chi-squared {square:.0f} of {free} bits)"
                warn(f"{problem}; if there are values that are not listed, give rest=True", EstimationWarning)
    return theta, covariance


def _law_of_bits(design: np.ndarray, theta: np.ndarray, law: BitLaw) -> np.ndarray:
    """Covariances (cohorts, m, m) of the bits of one person's mean report, over the slope of its mean."""
    shares = np.maximum(theta, 0.0)
    shares = nearest_probabilities(shares, np) if shares.sum() > 1 else shares
    set_bits = design @ shares
    covariance = (design * shares) @ design.mT - set_bits[..., None] * set_bits[:, None]
    own = set_bits * (1 - set_bits)
    own += (set_bits * law.variance_one + (1 - set_bits) * law.variance_zero) / (law.one - law.zero) ** 2
    diagonal = np.arange(design.shape[1])
    covariance[:, diagonal, diagonal] = own
    return covariance


def _check_identified(flat: np.ndarray, names: Sequence[str]) -> None:
    """ValueError if other shares lead to the same sums."""
    if pairs := equal_pairs(flat.T):
        listed = [f"{names[i]} and {names[j]}" for i, j in pairs[:MOST_NAMED_PAIRS]]
        more = f", and {len(pairs) - MOST_NAMED_PAIRS} more pairs" if len(pairs) > MOST_NAMED_PAIRS else ""
        raise ValueError(f"categories with the same bits cannot be told apart: {', '.join(listed)}{more}")
    sums, d = flat.shape
    values = np.linalg.eigvalsh(flat.T @ flat)
    if sums < d or values[0] < LEAST_OF_LARGEST * values[-1]:
        hint = "; leave out the rest, or categories" if d <= sums else "; leave out categories"
        raise ValueError(f"the {sums} sums cannot identify the shares of {d} categories: others lead to the same{hint}")
