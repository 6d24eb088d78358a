"""Guarantees: a trade-off curve together with the unit that it protects, the trust model, and a statement in words."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ldpbayes._core.checks import PROBABILITY
from ldpbayes._core.pytrees import check_fields, ruled
from ldpbayes._core.types import Array
from ldpbayes.privacy.tradeoffs import Tradeoff, composed_delta, composed_tradeoff

DEFAULT_STATED_DELTA = 1e-6  # quoted for a mechanism without a finite epsilon at delta = 0


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
            small = composed_delta(delta, 1 / times)  # of one report, for delta of all
            delta = small if np.all(np.isfinite(self.epsilon(small))) else delta
            curve, delta = composed_tradeoff(np.max(self.epsilon(delta)), delta, times), composed_delta(delta, times)
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
