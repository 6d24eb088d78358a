"""Guarantees: a trade-off curve with the unit that it protects, the trust model, and a statement in words. Also the
guarantee of several releases about the same people together, and the effect of shuffling.
"""

import dataclasses
import functools
import math
import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from ldpbayes._core.checks import ONE_INSIDE_0_1, PROBABILITY, at_least, checked, require
from ldpbayes._core.pytrees import check_fields, ruled
from ldpbayes._core.types import Array
from ldpbayes.privacy import tradeoffs
from ldpbayes.privacy.tradeoffs import GaussianTradeoff, LogTradeoff, SymmetricTradeoff, Tradeoff

DEFAULT_STATED_DELTA = 1e-6  # quoted for a mechanism without a finite epsilon at delta = 0
STEPS_OF_LEAST_EPSILON = 1000  # steps that the smallest epsilon has on the grid of privacy losses ...
MOST_GRID_LOSSES = 1 << 16  # ... unless the likely losses of all releases would then have more than this number
LARGEST_LOSS = 500.0  # largest privacy loss on the grid of one release: exp(500) is a float
KEPT_DEVIATIONS = 9.0  # standard deviations beyond which there is less than LOST_PROBABILITY
LOST_PROBABILITY = 1e-15  # probability that counts as if it gave the record away
DELTA_ROUNDING = 1e-15  # of second differences of deltas, relative to the deltas
LOG_GUARD = 1e-300  # keeps logarithms finite
DELTAS_AT_ONCE = 1 << 20  # deltas of many personal budgets that are computed at a time


@dataclasses.dataclass(frozen=True, eq=False)
class Guarantee:
    """A privacy guarantee: a trade-off curve, the unit that it protects, and the trust model.

    Parameters
    ----------
    tradeoff : Tradeoff
        The exact trade-off curve of the two neighbouring inputs that are easiest to distinguish.
    unit : {"record", "attribute", "label"}
        Neighbouring inputs differ in this unit: a whole record (default), one column, or the label of a record.
    trust_model : {"local", "central"}
        "local": each value is perturbed before anybody else sees it (default). "central": a trusted curator adds noise.
    stated_delta : array_like, optional
        The delta in [0, 1] that `statement` quotes. Default: 0 if epsilon is finite at delta = 0, else 1e-6, or the
        probability that a record is released without noise, rounded up to four decimals.
    exposed : tuple of str
        Columns that are released without noise, which nothing protects. Neighbouring inputs are equal in them.
    times : int
        Number of reports of one person, in all of which neighbouring inputs may differ. Default: 1.
    assumption : str
        A further condition of the guarantee, the last sentence of `statement`. Default: none.
    """

    tradeoff: Tradeoff
    unit: str = "record"
    trust_model: str = "local"
    stated_delta: Array = ruled(PROBABILITY, default=None)
    exposed: tuple[str, ...] = ()
    times: int = 1
    assumption: str = ""

    # as a promise that no mechanism makes, that counts once, and that is no part of others
    mechanism = whole = neighbours = publisher = None
    repeats = 1
    guarantee = property(lambda self: self, doc="The guarantee itself, as of a mechanism.")
    promises = property(lambda self: (self,))

    def __post_init__(self) -> None:
        if not isinstance(self.tradeoff, Tradeoff):
            raise TypeError(f"tradeoff must be a curve of ldpbayes.privacy (a `Tradeoff`), got {self.tradeoff!r}")
        for name, allowed in (("unit", ("record", "attribute", "label")), ("trust_model", ("local", "central"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        check_fields(self)

    def delta(self, epsilon: ArrayLike) -> Array:
        """Return the smallest delta for which the guarantee holds, given `epsilon` in nats."""
        return self.tradeoff.delta(epsilon)

    def epsilon(self, delta: ArrayLike) -> Array:
        """Return the smallest epsilon, in nats, for which the guarantee holds, given `delta`."""
        return self.tradeoff.epsilon(delta)

    def composed(self, times: int) -> "Guarantee":
        """Return the guarantee for a person with `times` reports, where each report has this guarantee. It is exact for
        Gaussian noise and binary randomized response, nearly so for discrete Gaussian noise, and else weaker, from
        `stated_pair` of the largest personal budget: a pure budget ε becomes `times` · ε.
        """
        curve, delta = self.tradeoff, self.stated_delta
        if times > 1 and (exact := curve.repeated(times)):
            curve = exact
        elif times > 1:
            delta = np.max(self.stated_pair[1])
            small = tradeoffs.composed_delta(delta, 1 / times)  # of one report, for delta of all
            delta = small if np.all(np.isfinite(self.epsilon(small))) else delta
            curve = tradeoffs.composed_tradeoff(np.max(self.epsilon(delta)), delta, times)
            delta = tradeoffs.composed_delta(delta, times)
        return dataclasses.replace(self, tradeoff=curve, stated_delta=delta, times=self.times * times)

    @property
    def stated_pair(self) -> tuple[np.ndarray, np.ndarray]:
        """Epsilon (in nats) and delta that `statement` quotes: two arrays, with one entry for each personal budget."""
        delta = self.stated_delta
        if delta is None:
            away = 1 - np.asarray(self.tradeoff(0.0))  # power of a test that never raises a false alarm
            above = np.minimum(np.ceil(1e4 * (away + DEFAULT_STATED_DELTA)) / 1e4, 1.0)
            beyond = np.where(away > 0, above, DEFAULT_STATED_DELTA)
            delta = np.where(np.isfinite(self.epsilon(0.0)), 0.0, beyond)
        epsilon, delta = np.broadcast_arrays(self.epsilon(delta), delta)
        return epsilon, delta

    def statement(self, epsilon: float | None = None, delta: float | None = None) -> str:
        """Return sentences with epsilon and delta, rounded up, for `epsilon` (in nats), `delta` or `stated_delta`."""
        pair: Any = self.stated_pair if epsilon is None else (epsilon, self.delta(epsilon))
        pair = pair if delta is None else (self.epsilon(delta), delta)
        budget, quoted_delta, power = np.broadcast_arrays(*pair, 1 - self.tradeoff(0.05))
        given_away = (np.isinf(budget) | (quoted_delta == 1)) & (power == 1)
        many = "reports" if self.unit == "record" else f"{self.unit}s"
        who = f"A person with up to {self.times:,} {many}" if self.times > 1 else f"Each {self.unit}"
        what = f"these {many}" if self.times > 1 else f"one {self.unit}"
        if given_away.all():
            return f"No {self.unit} is protected: the budget is infinite."
        kind = "data sets that differ in" if self.trust_model == "central" else "possible values of"
        exposed = " and ".join(self.exposed)
        aside = f", {exposed} aside, " if exposed else " "
        protected = (
            f"is protected by {self.trust_model} differential privacy with "
            f"epsilon {quoted(budget[~given_away])} and delta {quoted(quoted_delta[~given_away])}: "
            f"no test between two {kind} {what} that raises a false alarm 5% of the time "
            f"detects the truth more than {_rounded_up(100 * np.max(power[~given_away]), 3):.3g}% of the time."
        )
        if np.any(self.tradeoff.zero_probability):
            share = quoted(self.tradeoff.zero_probability, "")
            protected += f" With probability {share} it is released exactly as it is."
        if exposed:
            protected += f" Nothing protects {exposed}."
        protected += f" {self.assumption}" if self.assumption else ""
        if given_away.any():
            return f"{who}{aside}of finite budget {protected} One of infinite budget is not protected."
        return f"{who}{aside}{protected}"


def counted_once(promises: Iterable[Any]) -> list[Any]:
    """Promises and guarantees; of equal parts of one `whole`, the promise for the most values."""
    kept = list[Any]()
    for promise in promises:
        alike = [place for place, other in enumerate(kept) if _are_parts(promise, other)]
        if not alike:
            kept.append(promise)
        elif promise.repeats > kept[alike[0]].repeats:
            kept[alike[0]] = promise
    return kept


def _are_parts(one: Any, other: Any) -> bool:
    """Whether two promises are the same for different people."""
    same = one.whole is not None and one.whole == other.whole
    return bool(same and one._replace(times=None) == other._replace(times=None))


def quoted(value: ArrayLike, equals: str = "= ") -> str:
    """A number as text after the text `equals`, or the range of several numbers."""
    low, high = (f"{_rounded_up(float(end)):.4g}" for end in (np.min(value), np.max(value)))
    return f"{equals}{low}" if low == high else f"between {low} and {high}"


def _rounded_up(value: float, digits: int = 4) -> float:
    """In the last digit, but for rounding errors of the value itself: a promise is never better than it is."""
    if not 1e-300 < value < math.inf:  # numbers that are nearly too small for a float have fewer digits
        return value
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    return math.ceil(value / unit * (1 - 1e-9)) * unit


def compose(*parts: Any, delta: float | None = None) -> Guarantee:
    """Return the guarantee of several releases together, if one person may be in all of them.

    It is exact for Gaussian noise, and at delta = 0 for pure budgets, which add up. For other noise, the package
    dp-accounting (the extra ``opendp``, else an ImportError) composes the privacy loss distributions, with errors in
    the safe direction only ([DGKKM]). Deltas below 1e-12 are not accurate. Of personal budgets, the largest counts.

    Parameters
    ----------
    *parts : Guarantee, Mechanism, Release or Sketch
        The releases, with one unit (record, attribute or label), trust model and set of public columns, else
        ValueError. If one person may have several reports in a release (its attribute ``times``), each report counts.
    delta : float, optional
        The delta in (0, 1) that `Guarantee.statement` quotes. Default: the largest delta of the parts, or the default
        of `Guarantee`.

    Returns
    -------
    Guarantee
        Its attribute ``times`` is the total number of reports of a person.
    """
    stated = None if delta is None else checked("delta", delta, *ONE_INSIDE_0_1)
    promises = counted_once(promise for part in parts for promise in _promises(part))
    if len({promise.neighbours for promise in promises} - {None}) > 1:
        raise ValueError(
            "tables whose neighbours are 'add_remove' and 'replace' cannot be composed: give both 'replace'"
        )
    guarantees = [(promise.guarantee, promise.repeats) for promise in promises]
    if not guarantees:
        raise ValueError("compose needs a guarantee, a mechanism, a release or a sketch")
    first = guarantees[0][0]
    for guarantee, _ in guarantees:
        for name in ("unit", "trust_model", "exposed"):
            one, other = getattr(first, name), getattr(guarantee, name)
            if one != other:
                raise ValueError(f"guarantees whose {name} is {one!r} and {other!r} cannot be composed")
    curve = composed_curve([(guarantee.tradeoff, repeats) for guarantee, repeats in guarantees])
    reports = sum(guarantee.times * repeats for guarantee, repeats in guarantees)
    if stated is None:
        deltas = [np.max(guarantee.stated_delta) for guarantee, _ in guarantees if guarantee.stated_delta is not None]
        stated = first.stated_delta if curve is first.tradeoff else max(deltas, default=None)
    assumption = " ".join(dict.fromkeys(guarantee.assumption for guarantee, _ in guarantees if guarantee.assumption))
    return dataclasses.replace(first, tradeoff=curve, stated_delta=stated, times=reports, assumption=assumption)


def _promises(part: Any) -> Sequence[Any]:
    """The promises of a guarantee, mechanism, release or sketch."""
    if not hasattr(part, "promises"):
        raise TypeError(f"compose takes guarantees, mechanisms, releases and sketches, got {part!r}")
    if any(promise.publisher for promise in part.promises):
        raise ValueError(f"{part!r} has only a statement of its publisher, which cannot be composed")
    return part.promises


def composed_curve(curves: Sequence[tuple[Tradeoff, int]]) -> Tradeoff:
    """The curve of tests that see all releases, from curves and numbers of repetitions; Gaussian curves are one."""
    if len(curves) == 1 == curves[0][1]:
        return curves[0][0]
    if any(np.max(curve.delta(LARGEST_LOSS)) >= 1 for curve, _ in curves):
        return tradeoffs.PureProtocolTradeoff(math.inf, 1.0)  # one release gives everything away
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
    """The curve of several symmetric curves, each repeated some times, by convolution of privacy loss distributions."""

    parts: Sequence[tuple[Tradeoff, int]]

    @property
    def zero_probability(self) -> Array:
        return 1 - math.prod((1 - np.max(curve.zero_probability)) ** times for curve, times in self.parts)

    @functools.cached_property
    def budget(self) -> float:
        """Epsilon at delta = 0: the sum of the epsilons of all releases."""
        return sum(times * float(np.max(curve.epsilon(0.0))) for curve, times in self.parts)

    @functools.cached_property
    def _table(self) -> tuple[float, np.ndarray]:
        """A step, and deltas at its multiples, between which delta is linear in exp(epsilon)."""
        require("opendp", "dp_accounting")
        from dp_accounting.pld import pld_pmf

        counts, ranges = np.array([(n, _range(curve)) for curve, n in self.parts]).T
        # The mean loss and Hoeffding's bound: with probability exp(−9²/2) = 1e-18 at most, losses add up to more.
        likely = np.sum(counts * ranges * np.tanh(ranges / 2)) + KEPT_DEVIATIONS * math.sqrt(np.sum(counts * ranges**2))
        whole = min(np.sum(counts * ranges), likely)
        step = max(np.min(ranges) / STEPS_OF_LEAST_EPSILON, whole / MOST_GRID_LOSSES)
        triples = zip(self.parts, ranges, strict=True)
        losses = [_losses_of(curve, reach, step).self_compose(n, LOST_PROBABILITY) for (curve, n), reach in triples]
        total = functools.reduce(lambda one, other: pld_pmf.compose_pmfs(one, other, LOST_PROBABILITY), losses)
        deltas = total.get_delta_for_epsilon(step * np.arange(math.ceil(whole / step) + len(self.parts) + 1))
        return step, np.clip(np.maximum.accumulate(deltas[::-1])[::-1], 0.0, 1.0)

    def _delta(self, epsilon: np.ndarray) -> np.ndarray:
        step, deltas = self._table
        place = np.minimum(epsilon / step, len(deltas) - 1.0)
        below = np.minimum(place.astype(int), len(deltas) - 2)
        share = np.expm1((place - below) * step) / math.expm1(step)
        inside = deltas[below] - share * (deltas[below] - deltas[below + 1])
        return np.where(epsilon < self.budget, inside, 0.0)

    def _epsilon(self, delta: np.ndarray) -> np.ndarray:
        if not delta.any():  # which needs no table
            return np.full(delta.shape, self.budget)
        step, deltas = self._table
        above = np.searchsorted(-deltas, -delta)  # the first place at which delta is small enough
        place = np.clip(above - 1, 0, len(deltas) - 2)
        fall = np.maximum(deltas[place] - deltas[place + 1], LOST_PROBABILITY * LOST_PROBABILITY)
        share = np.clip((deltas[place] - delta) / fall, 0.0, 1.0)
        epsilon = np.where(above < len(deltas), step * place + np.log1p(share * math.expm1(step)), math.inf)
        return np.where(delta > 0, np.minimum(epsilon, self.budget), self.budget)


def _range(curve: Tradeoff) -> float:
    """The privacy loss beyond which there is none, or none to speak of besides what gives the record away."""
    reach = float(np.max(curve.epsilon(0.0)))
    if reach > LARGEST_LOSS:
        reach = float(np.max(curve.epsilon(np.minimum(curve.delta(LARGEST_LOSS) + LOST_PROBABILITY, 1.0))))
    return min(max(reach, 1e-9), LARGEST_LOSS)


def _losses_of(curve: Tradeoff, reach: float, step: float) -> Any:
    """The pessimistic privacy loss distribution of a symmetric curve, by dp-accounting on points of a grid, without
    those where delta is linear in exp(epsilon) to rounding, whose probability would be rounding errors.
    """
    from dp_accounting.pld import pld_pmf

    places = np.arange(math.ceil(reach / step * (1 - 1e-12)) + 1)
    parts = np.array_split(places, -(-len(places) * np.size(curve.delta(0.0)) // DELTAS_AT_ONCE))
    worst = [np.max(np.reshape(curve.delta(step * part[:, None]), (len(part), -1)), axis=1) for part in parts]
    deltas = np.concatenate(worst)
    slopes = np.diff(deltas) / (np.exp(step * places[:-1]) * math.expm1(step))
    mass = np.exp(step * places[1:-1]) * np.diff(slopes)
    # Rounding errors of deltas are relative to them, and absolute where a delta is a difference of larger numbers.
    bends = mass > DELTA_ROUNDING * (deltas[1:-1] + 1e-3 * deltas[0]) / step
    kept = np.concatenate([[True], bends, [True]]) if len(places) > 1 else np.array([True])
    places, deltas = places[kept], deltas[kept]
    # Symmetry: delta(−ε) = 1 − exp(−ε) (1 − delta(ε)).
    below = 1 - np.exp(-step * places[:0:-1]) * (1 - deltas[:0:-1])
    return pld_pmf.create_pmf_pessimistic_connect_dots(
        step, np.concatenate([-places[:0:-1], places]), np.minimum(np.concatenate([below, deltas]), 1.0)
    )


def shuffled(local: Any, count: int, delta: float) -> Guarantee:
    """Return the central guarantee of local reports, if a trusted shuffler removes their order and their senders.

    The guarantee is the bound of [FMT], without the further approximations of the paper, for any local mechanism with a
    finite epsilon at delta = 0. Reports of other persons hide a person: with probability exp(−ε), another report looks
    like one of the two records that the guarantee compares. At delta = 0, the result has the local ε.

    Parameters
    ----------
    local : Guarantee, Mechanism or Release
        The local guarantee of the whole report of each person, with a pure budget ε; ValueError if reports have public
        columns, may be missing or differ in parameters, or if the guarantee is of an attribute or a label only.
    count : int
        Number of persons whose reports are made by the mechanism, without persons who may report something else.
    delta : float
        The delta in (0, 1) that `Guarantee.statement` quotes.
    """
    guarantee = compose(local)
    mechanisms = [promise.mechanism for promise in _promises(local) if promise.mechanism]
    personal = [leaf for mechanism in mechanisms for leaf in mechanism.personal_parameters()]
    personal.append(np.asarray(guarantee.epsilon(0.0)))
    for problem, wrong in {
        f"guarantees of one {guarantee.unit} only": guarantee.unit != "record",
        f"reports in which {' and '.join(guarantee.exposed)} are public": guarantee.exposed,
        "parameters that differ between persons": any(np.any(leaf != np.ravel(leaf)[0]) for leaf in personal),
        "reports that may be missing": any(mechanism.may_be_missing for mechanism in mechanisms),
    }.items():
        if wrong:
            raise ValueError(f"shuffling hides a person among whole reports that are made alike, got {problem}")
    size = getattr(local, "size", None)
    if at_least(1, "count", count) > (count if size is None else round(float(size))):
        raise ValueError(f"count must be at most {size:.0f}, the number of reports in the release, got {count}")
    budget = float(np.max(personal[-1]))
    if guarantee.trust_model != "local" or guarantee.times != 1 or not budget < math.inf:
        why = f"{guarantee.trust_model}, {guarantee.times} reports for each person, epsilon {budget:g} at delta = 0"
        raise ValueError(f"shuffling needs a local guarantee of one report with finite epsilon at delta = 0, got {why}")
    curve = ShuffledTradeoff(budget, count)
    mixed = f"This holds if a trusted shuffler mixes {count:,} reports, each made as stated by somebody else."
    assumption = " ".join(filter(None, [guarantee.assumption, mixed]))
    stated = checked("delta", delta, *ONE_INSIDE_0_1)
    return dataclasses.replace(
        guarantee, tradeoff=curve, trust_model="central", stated_delta=stated, assumption=assumption
    )


@dataclasses.dataclass(frozen=True, eq=False)
class ShuffledTradeoff(SymmetricTradeoff, LogTradeoff):
    """Two laws of shuffled reports under a local budget: with A ~ Bin(count − 1, exp(−budget)) clones, the person's own
    report is the first of two symbols with probability 1/(1 + exp(−budget)) or one less that, and a clone's with 1/2
    ([FMT] Theorem 3.1 and appendix E). The number of first symbols tells the laws apart.
    """

    budget: float
    count: int

    @functools.cached_property
    def _clones(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Numbers of clones, their probabilities, and the probability of other numbers."""
        law = stats.binom(self.count - 1, math.exp(-self.budget))
        reach = KEPT_DEVIATIONS * law.std() + KEPT_DEVIATIONS**2
        low, high = max(math.floor(law.mean() - reach), 0), min(math.ceil(law.mean() + reach), self.count - 1)
        clones = np.arange(low, high + 1)
        return clones, law.pmf(clones), float(law.cdf(low - 1) + law.sf(high))

    def _delta(self, epsilon: np.ndarray) -> np.ndarray:  # type: ignore[override]
        return np.reshape([self._delta_of(value) for value in epsilon.ravel().tolist()], epsilon.shape)

    def _delta_of(self, epsilon: float) -> float:
        clones, probabilities, others = self._clones
        p, q = special.expit([-self.budget, self.budget])
        if epsilon >= self.budget:
            return 0.0
        # Of `clones` + 1 symbols the test counts the first ones, and rejects from the number on at which the likelihood
        # ratio exceeds exp(epsilon).
        below = math.exp(-epsilon)
        # of all symbols, the share of the other one at this ratio: positive, though its terms may underflow
        rest = max(q * (below - math.exp(-self.budget)) / ((q - p) * (1 + below)), LOG_GUARD)
        start = clones + 2 - np.ceil((clones + 1) * rest)
        gain = -q * math.expm1(epsilon - self.budget) * stats.binom.pmf(start - 1, clones, 0.5)
        tail = stats.binom.logsf(start - 1, clones, 0.5)
        cost = np.exp(np.minimum(epsilon + tail, LARGEST_LOSS)) - np.exp(tail)
        return float(np.sum(probabilities * np.maximum(gain - cost, 0.0)) + others)

    def _log_delta(self, epsilon: np.ndarray) -> np.ndarray:
        return np.log(self._delta(epsilon) + LOG_GUARD)

    def _too_large(self, log_delta: np.ndarray) -> np.ndarray:
        return np.full_like(log_delta, self.budget)
