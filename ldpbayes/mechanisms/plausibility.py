"""Released values that the stated mechanism could hardly have made of any records.

Given the records, whatever they are, the mechanism bounds the probability of an event for each value, so the number of
events lies between binomial variables. (Personal parameters: a sum of different Bernoulli variables has smaller tails
than the binomial of equal mean, [Hoeffding] Theorem 5.)
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import jax
import numpy as np
from scipy import special

from ldpbayes._core.types import Array
from ldpbayes.noise import Noise

Depth: TypeAlias = Callable[[Array], Array]  # distance in standard deviations to minus log2 of a noise's tail there

FALSE_REPORT_LEVEL = 1e-12  # probability of a false report, in all tests of a release together
FALSE_EDGE_LEVEL = 1e-6  # the same, of a report that values have a sharp edge
FEWEST_AT_EDGE, MOST_AT_EDGE = 16, 1 << 12  # values that such a report looks at
TAIL_LEVELS = 256  # tail probabilities of the noise that are tested: 2^-1, ..., 2^-TAIL_LEVELS

VALUES_AT_ONCE = 1 << 20  # values held in double precision at a time
BOUND_ROUNDING = 2.0**-22  # relative rounding error of a bound: twice that of single precision


def improbable_count(count: Array, n: Array, probability: Array, tests: int, few: bool = False) -> np.ndarray:
    """Whether a count of n independent values at least as large (with `few`, at most) is less probable than
    `FALSE_REPORT_LEVEL` over `tests`. `probability` bounds that of one value, on average, from above (below).
    """
    count, n, p = (np.asarray(a, float) for a in (count, n, probability))
    beyond_mean = count <= n * p - 1 if few else count >= n * p + 1
    # P(at most k successes) and P(at least k): incomplete beta functions; where `beyond_mean` is false, any valid k
    k = np.clip(count, 0.0, n - 1) if few else np.clip(count, 1.0, n)
    tail = special.betainc(n - k, k + 1, 1 - p) if few else special.betainc(k, n - k + 1, p)
    return beyond_mean & (tail * tests < FALSE_REPORT_LEVEL)


def implausible_numbers(
    columns: Iterable[np.ndarray], laws: Iterable[tuple], share: Array, depth: Depth, names: Sequence[str] = ("",)
) -> list[str]:
    """Sentences on columns of numbers that noise on clipped numbers could hardly have made. `laws` hold bounds and
    standard deviation of each column, 0 for public records; `share` is the probability of noise.
    """
    tests = len(names) * (2 * TAIL_LEVELS + 1)
    parts = zip(names, columns, laws, strict=True)
    return [name + problem for name, z, law in parts for problem in _of_column(z, (*law, share), depth, tests)]


def _of_column(z: np.ndarray, law: tuple, depth: Depth, tests: int) -> list[str]:
    """Whatever x is, z is beyond a bound by more than t with at most the noise's tail probability at t, and outside the
    bounds with at least twice the tail probability at half of their distance, since the tail is convex.
    """
    ends = ["" if np.ndim(bound) else f" {float(bound):g}" for bound in law[:2]]
    law = tuple(np.reshape(part, -1) for part in law)
    if not law[2].all():  # public records are left out
        noisy = np.broadcast_to(law[2] > 0, len(z))
        z, law = z[noisy], tuple(part if len(part) == 1 else part[noisy] for part in law)
    total = len(z)
    if not total:
        return []
    # by the side of the bounds and the depth in the noise's tail: how many values, and the least distance of one
    counts, nearest = np.zeros((2, TAIL_LEVELS + 1), int), np.full((2, TAIL_LEVELS + 1), np.inf)
    outside, shares, least = 0, 0.0, 0.0
    for start in range(0, total, VALUES_AT_ONCE):
        rows = slice(start, start + VALUES_AT_ONCE)
        x, (low, high, width, noisy) = np.asarray(z[rows], float), (a if len(a) == 1 else a[rows] for a in law)
        shares += len(x) * float(np.mean(noisy))
        least += len(x) * float(np.mean(noisy * 2 * 0.5 ** depth((high - low) / (2 * width))))
        # a value that is no further beyond its bound may have been put there by rounding alone
        near = BOUND_ROUNDING * np.maximum(np.abs(low), np.abs(high))
        for side, beyond in enumerate((low - x, x - high)):
            outside += int(np.count_nonzero(beyond > 0))
            far = beyond > near
            distance = beyond[far]
            depths = np.clip(depth(distance / (width if len(width) == 1 else width[far])), 1, TAIL_LEVELS).astype(int)
            counts[side] += np.bincount(depths, minlength=TAIL_LEVELS + 1)
            np.minimum.at(nearest[side], depths, distance)
    counts = counts[:, ::-1].cumsum(axis=1)[:, ::-1]  # now they count the values at least as deep in the tail
    most = shares * 0.5 ** np.arange(TAIL_LEVELS + 1)
    sentences = []
    for side, place in enumerate((f"below the lower bound{ends[0]}", f"above the upper bound{ends[1]}")):
        wrong = improbable_count(counts[side], total, most / total, tests)
        wrong[0] = False  # values within the bounds have no depth and are not counted
        if wrong.any():
            surprise = counts[side] * np.log(np.maximum(counts[side], 1) / most)
            level = int(np.argmax(np.where(wrong, surprise, -np.inf)))
            lie = f"lie {nearest[side, level:].min():.4g} or more {place}, where at most {most[level]:.3g} are expected"
            sentences.append(f"{counts[side, level]:,} of {total:,} {lie}")
    if improbable_count(outside, total, least / total, tests, few=True):
        lie = f"lie outside the bounds{' and'.join(ends)}, where at least {least:,.1f} are expected"
        sentences.append(f"{outside:,} of {total:,} {lie}: the values have less noise than stated")
    return sentences


def implausible_counts(
    counts: np.ndarray, n: float, least: Array, most: Array, tests: int, words: Callable[[int], str]
) -> list[str]:
    """Sentences on kinds, named by `words`, whose probability is outside its bounds on average over n values."""
    sentences = []
    for few, bound, probability in ((True, "least", least), (False, "most", most)):
        expected = n * np.broadcast_to(probability, counts.shape)
        wrong = improbable_count(counts, n, expected / n, tests, few)
        if wrong.any():
            first = int(np.argmax(np.where(wrong, np.abs(counts - expected), -1.0)))
            others = f" (and {wrong.sum() - 1} other kinds)" if wrong.sum() > 1 else ""
            where = f"where at {bound} {expected[first]:,.1f} are expected"
            sentences.append(f"{counts[first]:,.0f} of {n:,.0f} {words(first)}{others}, {where}")
    return sentences


def implausible_repeats(values: np.ndarray, noise: Noise, cells: np.ndarray) -> str:
    """Whether repeated values (N,) of `cells` differ by "more" or "less" than noise explains, for any cells; or ""."""
    cells = np.where(np.isnan(values), np.nan, cells)  # of missing values last, and equal to no other
    order = np.argsort(cells, kind="stable")
    cells = cells[order]
    even = (np.arange(len(cells)) - np.searchsorted(cells, cells)) % 2 == 0
    pairs = order[np.flatnonzero(even[:-1] & (cells[1:] == cells[:-1])) + [[0], [1]]]
    law = jax.tree.map(lambda leaf: np.broadcast_to(leaf, values.shape)[pairs], noise)
    distance, grid = np.abs(np.subtract(*values[pairs])), min(np.diff(np.unique(values[pairs])), default=0.0)
    deviations = law.standard_deviation
    # Two values differ by t or more only if one noise is beyond its share of t, and by no more than t with at most the
    # probability that one noise is within t of 0, where its law peaks. Of such p-values of disjoint pairs, Fisher's
    # statistic is at most chi-square. Rounded values are on a grid, at most as wide as the least difference of two.
    share = np.stack([np.maximum(distance - grid, 0) / deviations.sum(axis=0)] * 2)
    more = np.where(distance > 0, np.minimum((2 * 0.5 ** law.depth(share)).sum(axis=0), 1), 1)
    less = (1 - 2 * 0.5 ** law.depth((distance + grid) / deviations)).min(axis=0)
    with np.errstate(divide="ignore"):
        tails = [special.chdtrc(2 * max(len(distance), 1), -2 * np.log(p).sum()) for p in (more, less)]
    return "more" if tails[0] < FALSE_REPORT_LEVEL / 2 else "less" if tails[1] < FALSE_REPORT_LEVEL / 2 else ""


def sharp_edge(values: np.ndarray, noise: Noise) -> tuple[int, float] | None:
    """How many of the values (N,), NaN left out, are how near to the least, if log-concave noise would have put some
    below it, whatever they were before; None if this may be by chance.

    No noise is further below 0 than some distance d, but for a level. Given the k-th least value, each lower one would
    then be below the least value with at least the probability that noise below −d is below −d less their distance.
    """
    count = np.count_nonzero(~np.isnan(values))
    order = np.argsort(values)[: min(count, MOST_AT_EDGE)]
    z = values[order]
    if count < FEWEST_AT_EDGE or z[0] == z[-1]:
        return None
    law = jax.tree.map(lambda leaf: np.broadcast_to(leaf, values.shape)[order] if np.ndim(leaf) else leaf, noise)
    width, half = law.standard_deviation, 0.5 if noise.discrete else 0.0
    deep = law.depth(np.linspace(0, 64, 257)[:, None]) > np.log2(4 * count / FALSE_EDGE_LEVEL)
    far = np.ceil(np.argmax(deep, axis=0) / 4 * width)
    grid = np.min(np.diff(np.unique(z)))  # of numbers that are whole, or were rounded in print
    sizes = [size for size in FEWEST_AT_EDGE << np.arange(20) if size <= len(z)]
    for size in sizes if deep[-1].all() else ():
        reach = z[size - 1] - z[0]
        log_share = law.depth((far - half) / width) - law.depth((far + reach + grid - half) / width)
        with np.errstate(divide="ignore"):
            log_none = np.broadcast_to(np.log1p(-(2.0 ** np.minimum(log_share, 0.0))), len(z))[:size]
        if np.sum(log_none) - np.min(log_none) < np.log(FALSE_EDGE_LEVEL / 4 / len(sizes)):
            return size, float(reach)
    return None
