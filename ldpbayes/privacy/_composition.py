"""Several releases about the same people: the promise of all of them together, and what shuffling adds to it."""

import dataclasses
import functools
import math
import pickle
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from ldpbayes._core.checks import NOT_NEGATIVE, ONE_INSIDE_0_1, PROBABILITY, at_least, checked, require
from ldpbayes._core.types import Array
from ldpbayes.numerics.minimise import find_root
from ldpbayes.privacy.guarantee import Guarantee
from ldpbayes.privacy.tradeoffs import GaussianTradeoff, PureProtocolTradeoff, SymmetricTradeoff, Tradeoff

STEPS = 1000  # steps that the smallest epsilon has on the grid of privacy losses ...
LARGEST = 1 << 16  # ... unless the likely losses of all releases would then have more than this number
STEEP = 500.0  # largest privacy loss on the grid of one release: exp(500) is a float
FAR = 9.0  # standard deviations beyond which there is less than LOST
LOST = 1e-15  # probability that counts as if it gave the record away
ROUNDING = 1e-15  # of second differences of deltas, relative to the deltas
TINY = 1e-300  # keeps logarithms finite


def compose(*parts: Any, delta: float | None = None) -> Guarantee:
    """Return the guarantee of several releases together, if one person may be in all of them.

    The guarantee is exact for Gaussian noise, and at delta = 0 for pure budgets, which add up. Other curves are
    composed by their privacy loss distributions, with the pessimistic estimate of dp-accounting [DGKKM]: no epsilon and
    no delta is too small, except that deltas below 1e-12 are not resolved. For personal budgets the result is for the
    worst budget.

    Parameters
    ----------
    *parts : Guarantee, Mechanism, Release or Sketch
        Parts of one unit (record, attribute or label), one trust model and equal public columns. Raises ValueError for
        others. A release enters ``times`` times, the number of reports of a person.
    delta : float, optional
        The delta in (0, 1) in `Guarantee.statement`. Default: the largest delta of the parts, or as for `Guarantee`.

    Returns
    -------
    Guarantee
        The guarantee; ``times`` is the number of all reports. Raises ImportError if it needs the extra ``opendp``.
    """
    stated = None if delta is None else checked("delta", delta, *ONE_INSIDE_0_1)
    guarantees = [each for part in parts for each in _guarantees(part)]
    if not guarantees:
        raise ValueError("compose needs a guarantee, a mechanism, a release or a sketch")
    first = guarantees[0][0]
    for each, _ in guarantees:
        for name in ("unit", "trust_model", "exposed"):
            one, other = getattr(first, name), getattr(each, name)
            if one != other:
                raise ValueError(f"guarantees whose {name} is {one!r} and {other!r} cannot be composed")
    curve = composed_curve([(each.tradeoff, repeats) for each, repeats in guarantees])
    reports = sum(each.times * repeats for each, repeats in guarantees)
    if stated is None:
        known = [np.max(each.stated_delta) for each, _ in guarantees if each.stated_delta is not None]
        stated = first.stated_delta if curve is first.tradeoff else max(known, default=None)
    assumption = " ".join(dict.fromkeys(each.assumption for each, _ in guarantees if each.assumption))
    return dataclasses.replace(first, tradeoff=curve, stated_delta=stated, times=reports, assumption=assumption)


def _guarantees(part: Any) -> list[tuple[Guarantee, int]]:
    """Guarantees of independent reports, each with how often it counts."""
    if isinstance(part, Guarantee):
        return [(part, 1)]
    if getattr(part, "privacy", None):
        raise ValueError(f"{part!r} has a statement of its publisher, and no guarantee to compose")
    if hasattr(part, "promises"):
        return [pair for promise in part.promises for pair in _guarantees(promise)]
    if isinstance(getattr(part, "guarantee", None), Guarantee):  # a mechanism, or a promise
        return [(part.guarantee, getattr(part, "times", None) or 1)]
    raise TypeError(f"compose takes guarantees, mechanisms, releases and sketches, got {part!r}")


def composed_curve(curves: Sequence[tuple[Tradeoff, int]]) -> Tradeoff:
    """The curve of tests that see a release for each curve, so many times; Gaussian ones are one curve."""
    if len(curves) == 1 == curves[0][1]:
        return curves[0][0]
    if any(np.max(curve.delta(STEEP)) >= 1 for curve, _ in curves):
        return PureProtocolTradeoff(math.inf, 1.0)  # one release gives everything away
    pairs = [(curve, times) for curve, times in curves if not isinstance(curve, GaussianTradeoff)]
    squares = [times * np.max(curve.mu) ** 2 for curve, times in curves if isinstance(curve, GaussianTradeoff)]
    normal = [(GaussianTradeoff(math.sqrt(sum(squares))), 1)] if squares else []
    alike: dict[bytes, tuple[Tradeoff, int]] = {}
    for curve, times in (*pairs, *normal):
        key = pickle.dumps(curve)
        alike[key] = curve, times + alike.get(key, (curve, 0))[1]
    return ComposedTradeoff((*alike.values(),)) if pairs else normal[0][0]


@dataclasses.dataclass(frozen=True, eq=False)
class ComposedTradeoff(SymmetricTradeoff):
    """Several symmetric curves, each so many times, by the convolution of their privacy loss distributions."""

    parts: Sequence[tuple[Tradeoff, int]]

    @property
    def zero_probability(self) -> Array:
        kept = [(1 - np.max(curve.zero_probability)) ** times for curve, times in self.parts]
        return 1 - math.prod(kept) if min(kept) < 1 else 0.0

    @cached_property
    def budget(self) -> float:
        """Epsilon at delta = 0: the sum of all."""
        return sum(times * float(np.max(curve.epsilon(0.0))) for curve, times in self.parts)

    @cached_property
    def _table(self) -> tuple[float, np.ndarray]:
        """A step, and deltas at its multiples, between which delta is linear in exp(epsilon)."""
        require("opendp", "dp_accounting")
        from dp_accounting.pld import pld_pmf

        counts, ranges = (np.array(each) for each in zip(*((n, _range(curve)) for curve, n in self.parts), strict=True))
        # The mean loss and Hoeffding's bound: with probability exp(−9²/2) = 1e-18 at most, losses add up to more.
        likely = np.sum(counts * ranges * np.tanh(ranges / 2)) + FAR * math.sqrt(np.sum(counts * ranges**2))
        whole = min(np.sum(counts * ranges), likely)
        step = max(np.min(ranges) / STEPS, whole / LARGEST)
        triples = zip(self.parts, ranges, strict=True)
        losses = [_losses_of(curve, reach, step).self_compose(n, LOST) for (curve, n), reach in triples]
        total = functools.reduce(lambda one, other: pld_pmf.compose_pmfs(one, other, LOST), losses)
        deltas = total.get_delta_for_epsilon(step * np.arange(math.ceil(whole / step) + len(self.parts) + 1))
        return step, np.clip(np.maximum.accumulate(deltas[::-1])[::-1], 0.0, 1.0)

    def delta(self, epsilon: ArrayLike) -> Array:
        epsilon = np.asarray(checked("epsilon", epsilon, *NOT_NEGATIVE), float)
        step, deltas = self._table
        place = np.minimum(epsilon / step, len(deltas) - 1.0)
        below = np.minimum(place.astype(int), len(deltas) - 2)
        share = np.expm1((place - below) * step) / math.expm1(step)
        inside = deltas[below] - share * (deltas[below] - deltas[below + 1])
        return np.where(epsilon < self.budget, inside, 0.0)[()]

    def epsilon(self, delta: ArrayLike) -> Array:
        delta = np.asarray(checked("delta", delta, *PROBABILITY), float)
        if not delta.any():
            return np.full(delta.shape, self.budget)[()]
        step, deltas = self._table
        above = np.searchsorted(-deltas, -delta)  # the first place at which delta is small enough
        place = np.clip(above - 1, 0, len(deltas) - 2)
        fall = np.maximum(deltas[place] - deltas[place + 1], LOST * LOST)
        share = np.clip((deltas[place] - delta) / fall, 0.0, 1.0)
        epsilon = np.where(above < len(deltas), step * place + np.log1p(share * math.expm1(step)), math.inf)
        return np.where(delta > 0, np.minimum(epsilon, self.budget), self.budget)[()]


def _range(curve: Tradeoff) -> float:
    """The privacy loss beyond which there is none, or none to speak of besides what gives the record away."""
    reach = float(np.max(curve.epsilon(0.0)))
    if reach > STEEP:
        reach = float(np.max(curve.epsilon(np.minimum(curve.delta(STEEP) + LOST, 1.0))))
    return min(max(reach, 1e-9), STEEP)


def _losses_of(curve: Tradeoff, reach: float, step: float) -> Any:
    """The pessimistic privacy loss distribution of a symmetric curve: dp-accounting's, between points of a grid.

    Where delta is linear in exp(epsilon) to rounding, points are left out: their probability would be rounding errors.
    """
    from dp_accounting.pld import pld_pmf

    places = np.arange(math.ceil(reach / step * (1 - 1e-12)) + 1)
    deltas = np.max(np.reshape(curve.delta(step * places[:, None]), (len(places), -1)), axis=1)
    slopes = np.diff(deltas) / (np.exp(step * places[:-1]) * math.expm1(step))
    mass = np.exp(step * places[1:-1]) * np.diff(slopes)
    # Rounding errors of deltas are relative to them, and absolute where a delta is a difference of larger numbers.
    bends = mass > ROUNDING * (deltas[1:-1] + 1e-3 * deltas[0]) / step
    kept = np.concatenate([[True], bends, [True]]) if len(places) > 1 else np.array([True])
    places, deltas = places[kept], deltas[kept]
    # Symmetry: delta(−ε) = 1 − exp(−ε) (1 − delta(ε)).
    below = 1 - np.exp(-step * places[:0:-1]) * (1 - deltas[:0:-1])
    return pld_pmf.create_pmf_pessimistic_connect_dots(
        step, np.concatenate([-places[:0:-1], places]), np.minimum(np.concatenate([below, deltas]), 1.0)
    )


def shuffled(local: Any, count: int, delta: float) -> Guarantee:
    """Return the central guarantee of locally private reports whose order and senders a trusted shuffler removes.

    The bound is from [FMT], without its further approximations, and holds for every local mechanism of a finite epsilon
    at delta = 0. With probability exp(−ε) another person reports as if they had one of this person's two records.

    Parameters
    ----------
    local : Guarantee, Mechanism or Release
        One report for each person under a local pure budget ε (the largest personal one). Raises ValueError for others.
    count : int
        Number of persons who report as the mechanism says. Do not include other persons.
    delta : float
        The delta in (0, 1) that `Guarantee.statement` quotes.

    Returns
    -------
    Guarantee
        The central guarantee of a record. At delta = 0 it is the local guarantee: shuffling helps only for delta > 0.
    """
    guarantee = compose(local)
    budget = float(np.max(guarantee.epsilon(0.0)))
    if guarantee.trust_model != "local" or guarantee.times != 1 or not budget < math.inf:
        why = f"{guarantee.trust_model}, {guarantee.times} reports for each person, epsilon {budget:g} at delta = 0"
        raise ValueError(f"shuffling needs a local guarantee of one report, with a pure budget; this one: {why}")
    curve = ShuffledTradeoff(budget, at_least(1, "count", count))
    assumption = f"This holds if a trusted shuffler mixes {count:,} reports, each made as stated by somebody else."
    stated = checked("delta", delta, *ONE_INSIDE_0_1)
    return dataclasses.replace(
        guarantee, tradeoff=curve, trust_model="central", stated_delta=stated, assumption=assumption
    )


@dataclasses.dataclass(frozen=True, eq=False)
class ShuffledTradeoff(SymmetricTradeoff):
    """Two laws of shuffled reports under a local budget: with A ~ Bin(count − 1, exp(−budget)) clones, the person's own
    report is the first of two symbols with probability q = 1/(1 + exp(−budget)) or 1 − q, and a clone's with 1/2
    ([FMT] Theorem 3.1 and appendix E). The number of first symbols tells the laws apart.
    """

    budget: float
    count: int

    @cached_property
    def _clones(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Numbers of clones, their probabilities, and the probability of other numbers."""
        law = stats.binom(self.count - 1, math.exp(-self.budget))
        reach = FAR * law.std() + FAR**2
        low, high = max(math.floor(law.mean() - reach), 0), min(math.ceil(law.mean() + reach), self.count - 1)
        clones = np.arange(low, high + 1)
        return clones, law.pmf(clones), float(law.cdf(low - 1) + law.sf(high))

    def delta(self, epsilon: ArrayLike) -> Array:
        epsilon = np.asarray(checked("epsilon", epsilon, *NOT_NEGATIVE), float)
        return np.reshape([self._delta(each) for each in epsilon.ravel().tolist()], epsilon.shape)[()]

    def _delta(self, epsilon: float) -> float:
        clones, probabilities, others = self._clones
        q = special.expit(self.budget)
        if epsilon >= self.budget:
            return 0.0
        # Of `clones` + 1 symbols the test counts the first ones, and rejects from the number on at which the likelihood
        # ratio exceeds exp(epsilon).
        odds = math.exp(epsilon)
        share = (odds * q - (1 - q)) / ((2 * q - 1) * (1 + odds))
        start = np.floor((clones + 1) * share) + 1
        gain = (q - odds * (1 - q)) * stats.binom.pmf(start - 1, clones, 0.5)
        cost = (odds - 1) * stats.binom.sf(start - 1, clones, 0.5)
        return float(np.sum(probabilities * np.maximum(gain - cost, 0.0)) + others)

    def epsilon(self, delta: ArrayLike) -> Array:
        delta = np.asarray(checked("delta", delta, *PROBABILITY), float)
        largest = self.delta(0.0)
        inside = (delta > 0) & (delta < largest)
        target = np.log(np.where(inside, delta, largest))
        bracket = np.zeros_like(target), np.full_like(target, self.budget)
        root = find_root(lambda epsilon: np.log(self.delta(epsilon) + TINY), target, bracket)
        return np.where(inside, root.x, np.where(delta > 0, 0.0, self.budget))[()]
