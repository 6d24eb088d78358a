"""What no records can explain: released values that the stated mechanism could hardly have made.

Whatever the records are, a mechanism bounds the probability of certain things to be seen of each released value, and
values are independent given the records. So the number of values of which such a thing is true lies between two
binomial variables. (With personal parameters these are sums of different Bernoulli variables; their tails beyond the
mean are at most those of the binomial of the same mean: [Hoeffding], Theorem 5.)
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import special

LEVEL = 1e-12
"""Probability, of all that is looked at in a release together, below which something is said."""

LEVELS = 256
"""Tails of the noise that are looked at: 2^-1, ..., 2^-LEVELS."""

CHUNK = 1 << 20  # values at a time
ROUNDING = 2.0**-22  # of a bound, relative to it: twice that of single precision


def improbable_count(found: Any, n: Any, probability: Any, tests: int, few: bool = False) -> np.ndarray:
    """Whether so many (or so few) of n independent values have at most `LEVEL` over `tests` as their probability.

    Parameters
    ----------
    found : array_like
        How many values something is true of.
    n : array_like
        How many values there are.
    probability : array_like
        Of it being true, on average over the values: at most, or with `few` at least.
    tests : int
        How many such questions are asked of the release.
    few : bool
        Whether to ask for too few.

    Returns
    -------
    ndarray of bool
    """
    found, n, p = (np.asarray(a, float) for a in (found, n, probability))
    beyond_mean = found <= n * p - 1 if few else found >= n * p + 1
    # P(at most k successes) and P(at least k) are incomplete beta functions; where `beyond_mean` is false they are not
    # looked at, and k is only kept valid
    k = np.clip(found, 0.0, n - 1) if few else np.clip(found, 1.0, n)
    tail = special.betainc(n - k, k + 1, 1 - p) if few else special.betainc(k, n - k + 1, p)
    return beyond_mean & (tail * tests < LEVEL)


def implausible_numbers(
    z: np.ndarray, lower: Any, upper: Any, scale: Any, share: Any, depth: Callable[[Any], Any], columns: int = 1
) -> list[str]:
    """What additive noise on a clipped number could hardly have made of any numbers.

    However large x is, z lies above its upper bound by more than t with at most the noise's tail probability at t, and
    the same below; and wherever x is between the bounds, z lies outside them with at least twice the tail probability
    at half their distance (the tail being convex).

    Parameters
    ----------
    z : array (N,)
        Released numbers.
    lower, upper, scale, share : array_like
        Bounds, scale of the noise (0 for a public record) and probability that there is noise: numbers, or one a value.
    depth : callable
        Distance in scales, at least 0 → minus the binary logarithm of the noise's tail probability.
    columns : int
        How many columns of the release are looked at.

    Returns
    -------
    list of str
        A sentence for each thing of which there is too much or too little.
    """
    tests, n = columns * (2 * LEVELS + 1), len(z)
    parameters = [np.broadcast_to(a, n) if np.size(a) > 1 else np.reshape(a, 1) for a in (lower, upper, scale, share)]

    def chunks() -> Iterator[tuple]:
        """A chunk's distances below and above the bounds, what rounding may change, its scales, and two probabilities.

        The probabilities are that there is noise, and that a value with noise lies outside the bounds, at least.
        """
        for start in range(0, n, CHUNK):
            rows = slice(start, start + CHUNK)
            x, *mine = np.asarray(z[rows], float), *(a if len(a) == 1 else a[rows] for a in parameters)
            if not mine[2].all():  # public records, of scale 0, are left out
                kept = np.broadcast_to(mine[2] > 0, len(x))
                x, *mine = (a if len(a) == 1 < len(x) else a[kept] for a in (x, *mine))
            if len(x):
                low, high, width, noisy = mine
                # a value that is no further beyond its bound may have been put there by rounding alone
                near = ROUNDING * np.maximum(np.abs(low), np.abs(high))
                yield (low - x, x - high), near, width, noisy, 2 * 0.5 ** depth((high - low) / (2 * width))

    def deep(beyond: np.ndarray, near: np.ndarray, width: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distances of the values beyond their bound, and these as binary logarithms of the noise's tail."""
        out = beyond > near
        return beyond[out], np.clip(depth(beyond[out] / (width if len(width) == 1 else width[out])), 1, LEVELS)

    counts = np.zeros((2, LEVELS + 1), int)
    total, outside, shares, least = 0, 0, 0.0, 0.0
    for sides, near, width, noisy, probability in chunks():
        size = len(sides[0])
        total, shares, least = total + size, shares + size * np.mean(noisy), least + size * np.mean(noisy * probability)
        for side, beyond in enumerate(sides):
            outside += int(np.count_nonzero(beyond > 0))
            counts[side] += np.bincount(deep(beyond, near, width)[1].astype(int), minlength=LEVELS + 1)
    if not total:
        return []
    counts = counts[:, ::-1].cumsum(axis=1)[:, ::-1]  # now they count the values at least as deep in the tail
    most = shares * 0.5 ** np.arange(LEVELS + 1)
    said = []
    for side, (name, bound) in enumerate((("below the lower", lower), ("above the upper", upper))):
        wrong = improbable_count(counts[side], total, most / total, tests)
        wrong[0] = False  # values within the bounds have no depth and are not counted
        if wrong.any():
            surprise = counts[side] * np.log(np.maximum(counts[side], 1) / most)
            level = int(np.argmax(np.where(wrong, surprise, -np.inf)))
            tails = (deep(sides[side], near, width) for sides, near, width, *_ in chunks())
            nearest = min(np.min(beyond[depths >= level], initial=np.inf) for beyond, depths in tails)
            said.append(
                f"{counts[side, level]:,} of {total:,} lie {nearest:.4g} or more {name} bound{_shown(bound)}, where at "
                f"most {most[level]:.3g} are expected"
            )
    if improbable_count(outside, total, least / total, tests, few=True):
        said.append(
            f"{outside:,} of {total:,} lie outside the bounds{_shown(lower)} and{_shown(upper)}, where at least "
            f"{least:,.1f} are expected: there is less noise in them than stated"
        )
    return said


def implausible_support(
    counts: np.ndarray, n: float, most: float, least: float, total: tuple[float, float] | None = None
) -> list[str]:
    """What a pure protocol could hardly have made of any categories.

    Parameters
    ----------
    counts : array (categories,)
        How many released values support each category.
    n : float
        How many values there are.
    most, least : float
        Probability that a category is supported, if it is the record's own and if it is not, on average over the
        records.
    total : tuple of float, optional
        Number of independent bits and how many of them are ones on average, where that does not depend on the records.

    Returns
    -------
    list of str
        A sentence for each thing of which there is too much or too little.
    """
    tests, said = 2 * len(counts) + 2, []
    for few, probability, bound in ((False, most, "most"), (True, least, "least")):
        wrong = improbable_count(counts, n, probability, tests, few)
        if wrong.any():
            code = int(np.argmax(np.where(wrong, np.abs(counts - n * probability), -1.0)))
            others = f" (and {wrong.sum() - 1} categories more)" if wrong.sum() > 1 else ""
            said.append(
                f"{counts[code]:,.0f} of {n:,.0f} support category {code}{others}, where at {bound} "
                f"{n * probability:,.1f} are expected"
            )
    if total is not None:
        bits, ones = total
        found = counts.sum()
        if any(improbable_count(found, bits, ones / bits, tests, few) for few in (False, True)):
            said.append(f"{found:,.0f} bits are set, where {ones:,.1f} are expected")
    return said


def _shown(bound: Any) -> str:
    return "" if np.ndim(bound) else f" {float(bound):g}"
