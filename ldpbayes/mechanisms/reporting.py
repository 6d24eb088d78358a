"""Reporting rules: what an office does to a noisy number before the number is printed."""

import abc
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from ldpbayes._core.checks import FINITE, NOT_NEGATIVE, POSITIVE, refuse
from ldpbayes._core.pytrees import check_fields, checked_field, ruled, ruled_fields, unchecked
from ldpbayes._core.types import Array, ArrayModule, Key, array_of, floating, is_concrete
from ldpbayes.mechanisms.protocol import DiscreteMechanism, Mechanism, NumericMechanism, registered
from ldpbayes.numerics.arrays import snapped

UNITS_FROM_GRID = 1e-3  # of a unit: a quotient as near to a whole number is that number, but for rounding


def _slack(z: jax.Array) -> jax.Array:
    """Rounding errors of multiples of a unit, which another rule may print: such as in 3 · 0.7 < 2.1."""
    return 2 * jnp.finfo(z.dtype).eps * jnp.abs(z)


@dataclasses.dataclass(frozen=True)
class Reported(NumericMechanism, DiscreteMechanism):
    """Base of reporting rules: what is printed if an additive mechanism has released z, or NaN if missing. The density
    of a printed value is that of z if z is printed unchanged, else the probability of all z that are printed as it.
    """

    mechanism: Mechanism
    clips = True
    released_range = None  # a sketch, but of whole numbers, is refused
    has_atoms = False
    _gaps = " (NaN is printed by Withheld and Incomplete only)"
    silent: ClassVar[bool] = False  # whether the rule itself prints NaN
    innermost = property(attrgetter("mechanism.innermost"))
    bounded, domain, guarantee, linear_tails, noise, resolution, support = (
        property(attrgetter(f"innermost.{name}"), doc=f"`{name}` of `innermost`, the mechanism without rules.")
        for name in ("bounded", "domain", "guarantee", "linear_tails", "noise", "resolution", "support")
    )
    monotone, sensitivity, trust_model = (  # type: ignore[assignment]
        property(attrgetter(f"innermost.{name}")) for name in ("monotone", "sensitivity", "trust_model")
    )
    may_be_missing = property(lambda self: self.silent or self.mechanism.may_be_missing)  # type: ignore[assignment]
    _shared = property(lambda self: self.mechanism._shared)  # type: ignore[assignment]
    _numbers = property(lambda self: [getattr(self, field.name) for field in ruled_fields(self)])
    longest = property(  # type: ignore[assignment]
        lambda self: max([0.0, *map(np.max, self._numbers)]) + self.mechanism.longest, doc="Computed with NumPy."
    )

    def __post_init__(self) -> None:
        kind, inner = type(self).__name__, self.mechanism.innermost if isinstance(self.mechanism, Mechanism) else None
        if isinstance(self.mechanism, Published):
            raise TypeError(f"{kind} cannot stand around Published, which is the last of the rules")
        if inner is None or inner.noise is None or inner.columns is not None or inner.has_atoms:
            kinds = "an additive mechanism of numbers (or a rule around one) that adds noise to every record"
            raise TypeError(f"{kind} takes {kinds}, got {self.mechanism!r}")
        if self.silent and self.mechanism.may_be_missing:
            hint = "leave out values that are missing for other reasons"
            raise ValueError(f"NaN would have two meanings under {kind} of {self.mechanism!r}; {hint}")
        check_fields(self)
        for field in ruled_fields(self) if self.noise.discrete else ():
            self._check(field.name, "a whole number under discrete noise", lambda a: a == np.round(a))

    @abc.abstractmethod
    def _undone(self, xp: ArrayModule, low: Any, high: Any, short: Any) -> tuple[Any, Any, Any]:
        """Which z are printed in an interval, NaN if missing, without its upper end where `short`: such an interval."""

    def _applied(self, z: jax.Array) -> jax.Array:
        """What is printed of z: here all of it."""
        return z

    def interval(self, z: Any) -> tuple[Any, Any]:
        """Return the least and the largest number that `innermost` can have released if `z` was printed: infinite if
        there is no limit, and (∞, −∞) if `z` cannot be printed.
        """
        z = array_of(z)
        xp = np if isinstance(z, np.ndarray) and is_concrete(self) else jnp
        low = high = z.astype(float) if xp is np else floating(z)
        short: Any = xp.zeros(z.shape, bool)
        rule: Any = self
        while rule is not self.innermost:
            low, high, short = rule._undone(xp, low, high, short)
            rule = rule.mechanism
        if self.noise.discrete:
            low, high = xp.ceil(low), xp.where(short, xp.ceil(high) - 1, xp.floor(high))
        else:
            before = xp.nextafter(high if xp is np else lax.stop_gradient(high), -np.inf)
            high = xp.where(short & (high < np.inf), before, high)
        possible = (low <= high) & (low < np.inf)
        return xp.where(possible, low, np.inf), xp.where(possible, high, -np.inf)

    def by_intervals(self, z: Any, at: Callable[[Any], Any], between: Callable[[Any, Any], Any]) -> jax.Array:
        """Return the log-likelihood of printed values from that of a number, and the log probability of an interval."""
        low, high = self.interval(z)
        xp = np if is_concrete(low, high) else jnp
        point, anything = low == high, (low == -np.inf) & (high == np.inf)
        proper, place = (low < high) & ~anything, xp.where(xp.isfinite(high), high, 0.0)
        parts = [] if xp is np and proper.all() else [at(place)]
        if xp is jnp or proper.any():
            parts += [between(xp.where(proper, low, place), xp.where(proper, high, place))]
        result = jnp.where(proper, parts[-1], parts[0])
        return jnp.where(point | proper, result, jnp.where(anything, 0.0, -jnp.inf))

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """Return log p(z | x) of printed values `z`: a log density where z was printed unchanged and the noise is
        continuous, else a log probability; 0 where z is missing for unrelated reasons (`Incomplete`).
        """
        inner: Any = self.innermost
        clipped = inner.clipped(jnp.asarray(x, jnp.result_type(array_of(z), array_of(x), float)))
        between = inner.noise.astype(clipped.dtype).log_interval
        at = functools.partial(inner.log_prob, x=clipped)
        return self.by_intervals(z, at, lambda low, high: between(low - clipped, high - clipped))

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        z = self.mechanism.randomize(key, x)
        return self._applied(floating(z) if self.may_be_missing else z)

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        raise ValueError(f"{type(self).__name__} has no formula for the moments of printed values; simulate them")

    def breakpoints(self, z: ArrayLike) -> Array:
        ends = self.interval(z)
        xp = np if is_concrete(ends) else jnp
        kinks = [self.innermost.breakpoints(xp.where(xp.isfinite(end), end, 0.0)) for end in ends]
        return xp.concatenate(kinks, axis=-1)

    def equivalence(self, z: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(z), np.iinfo(np.int64).min, np.nan_to_num(z)).astype(np.int64)[:, None]

    def _validated(self, values: np.ndarray) -> np.ndarray:
        if is_concrete(self):
            values = snapped(values, self._numbers)
            low, high = self.interval(values)
            refuse(low > high, f"{self!r} cannot print {{}} of the values", values)
        whole = self.noise.discrete and not self.may_be_missing
        return self.innermost._validated(values) if whole else values.astype(np.result_type(values, np.float32))

    def spec(self) -> dict[str, Any]:
        return super().spec() | {"mechanism": self.name, "of": self.mechanism.spec()}


@registered("floored", "Print max(z, floor): a released number z below the floor is printed as the floor.")
class Floored(Reported):
    """Print max(z, floor): many statistical offices print negative noisy counts z as 0.

    Parameters
    ----------
    mechanism : Mechanism
        Additive mechanism that releases the number z, or another rule around such a mechanism.
    floor : array_like
        The floor in the unit of the data: one number, or one number for each value. Default: 0.
    """

    floor: Array = ruled(FINITE, default=0.0)

    def _undone(self, xp: ArrayModule, low: Any, high: Any, short: Any) -> tuple[Any, Any, Any]:
        reached = (high > self.floor) | ((high == self.floor) & ~short)
        return xp.where(low <= self.floor, xp.where(reached, -np.inf, np.inf), low), high, short

    def _applied(self, z: jax.Array) -> jax.Array:
        return jnp.maximum(z, jnp.asarray(self.floor, z.dtype))


@registered("capped", "Print min(z, cap): a released number z above the cap is printed as the cap.")
class Capped(Reported):
    """Print min(z, cap), as of shares that are printed as 1 if noise made them larger, or of a top code. The `cap` is
    in the unit of the data: one number, or one number for each value. `Floored` describes `mechanism`.
    """

    cap: Array = ruled(FINITE)
    longest = property(lambda self: self.mechanism.longest)  # type: ignore[assignment]

    def _undone(self, xp: ArrayModule, low: Any, high: Any, short: Any) -> tuple[Any, Any, Any]:
        reached = (low <= self.cap) & ((high > self.cap) | ((high == self.cap) & ~short))
        return xp.where(low > self.cap, np.inf, low), xp.where(reached, np.inf, high), short & ~reached

    def _applied(self, z: jax.Array) -> jax.Array:
        return jnp.minimum(z, jnp.asarray(self.cap, z.dtype))


@registered("withheld", "Print nothing instead of each released number below a threshold.")
class Withheld(Reported):
    """Print NaN instead of each released number z below a `threshold`, in the unit of the data: one number, or one for
    each value. Data must keep NaN for the withheld cells. `Floored` describes `mechanism`.
    """

    threshold: Array = ruled(FINITE)
    silent = True

    def _undone(self, xp: ArrayModule, low: Any, high: Any, short: Any) -> tuple[Any, Any, Any]:
        missing, least = xp.isnan(low), xp.maximum(low, self.threshold)
        return xp.where(missing, -np.inf, least), xp.where(missing, self.threshold, high), short | missing

    def _applied(self, z: jax.Array) -> jax.Array:
        return jnp.where(z + _slack(z) < self.threshold, jnp.nan, z)


@registered("rounded", "Print the multiple of a unit that is nearest to the released number.")
class Rounded(Reported):
    """Print unit·⌊z/unit + ½⌋, the multiple of a positive `unit` that is nearest to the released number z, in the unit
    of the data: one number, or one for each value. `Floored` describes `mechanism`.
    """

    unit: Array = ruled(POSITIVE)

    def _undone(self, xp: ArrayModule, low: Any, high: Any, short: Any) -> tuple[Any, Any, Any]:
        first, most = xp.ceil(low / self.unit - UNITS_FROM_GRID), high / self.unit
        last = xp.where(short, xp.ceil(most - UNITS_FROM_GRID) - 1, xp.floor(most + UNITS_FROM_GRID))
        return (first - 0.5) * self.unit, (last + 0.5) * self.unit, xp.ones(xp.shape(last), bool)

    def _applied(self, z: jax.Array) -> jax.Array:
        unit = jnp.asarray(self.unit, z.dtype)
        quotient = z / unit
        return unit * jnp.floor(quotient + 0.5 + _slack(quotient)).astype(z.dtype)


@registered("banded", "Print the number of the band that holds the released number.")
class Banded(Reported):
    """Print the number k = 0, ..., n of the band edges[k − 1] ≤ z < edges[k] that holds the released number z, where
    the first and the last band have no other end.

    Parameters
    ----------
    mechanism : Mechanism
        As in `Floored`.
    edges : array_like (n,)
        Increasing numbers in the unit of the data, the same for all values.

    Examples
    --------
    >>> count = ldp.DiscreteLaplaceMechanism(scale=2.0)
    >>> codes, rule = ldp.mechanisms.Banded.from_text(count, ["<10", "20+", "10-19"])
    >>> print(codes, rule.edges)
    [0. 2. 1.] [10. 20.]
    """

    edges: Array = ruled(FINITE)
    _shared = ("edges",)
    _numbers = property(lambda self: [])  # type: ignore[assignment]
    longest = property(  # type: ignore[assignment]
        lambda self: max(0.0, np.max(self.edges)) + self.mechanism.longest, doc="Computed with NumPy."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if np.ndim(self.edges) != 1 or not np.all(np.diff(self.edges) > 0):
            raise ValueError(f"edges must be a list of increasing numbers, got {self.edges!r}")

    @classmethod
    def from_text(cls, mechanism: Mechanism, cells: Iterable[str]) -> tuple[np.ndarray, "Banded"]:
        """Return numbers of bands and the rule, as for `Release`, of cells such as ``<10``, ``[10, 20)``, ``10-19`` (of
        whole numbers 20 is then the next), ``>= 85`` and ``85+``. ValueError for other cells, and bands that overlap.
        """
        cells, whole = [*cells], bool(mechanism.noise and mechanism.noise.discrete)
        bands = [_band(str(cell), whole) for cell in cells]
        refuse(np.array([band is None for band in bands]), "{} cells are no bands", np.array(cells, object))
        ends = np.array(bands, float)
        edges = np.unique(ends[np.isfinite(ends)])
        codes, last = (np.searchsorted(edges, ends[:, side], "right" if side == 0 else "left") for side in (0, 1))
        refuse(codes != last, "{} bands have an end of another band inside", np.array(cells, object))
        return codes.astype(float), cls(mechanism, edges)

    def _undone(self, xp: ArrayModule, low: Any, high: Any, short: Any) -> tuple[Any, Any, Any]:
        first, last = xp.ceil(low), xp.where(short, xp.ceil(high) - 1, xp.floor(high))
        n, edges = len(self.edges), xp.asarray(self.edges)
        places = [xp.nan_to_num(xp.clip(code, 0, n)).astype(int) for code in (first, last)]
        starts, stops = xp.append(-np.inf, edges), xp.append(edges, np.inf)
        possible = xp.maximum(first, 0) <= xp.minimum(last, n)
        missing = xp.isnan(low)
        low = xp.where(missing, low, xp.where(possible, starts[places[0]], np.inf))
        return low, xp.where(missing, high, xp.where(possible, stops[places[1]], -np.inf)), short | ~missing

    def _applied(self, z: jax.Array) -> jax.Array:
        place = jnp.searchsorted(jnp.asarray(self.edges), floating(z) + _slack(floating(z)), side="right")
        return jnp.where(jnp.isnan(z), z, place.astype(z.dtype))


_NUMBER = r"\s*(-?\d+(?:\.\d*)?)\s*"


def _band(text: str, whole: bool) -> tuple[float, float] | None:
    """The numbers a ≤ z < b that a text means, None if it means none; `whole` if z is a whole number."""
    if found := re.fullmatch(rf"([\[(]?){_NUMBER}(?:-|–|to|,){_NUMBER}([])]?)", text.strip()):
        low, high = float(found[2]), float(found[3])
        band = low + whole * (found[1] == "("), high + whole * (found[4] != ")")
        return band if band[0] < band[1] else None
    if not (found := re.fullmatch(rf"(<=|≤|<|>=|≥|>|){_NUMBER}(\+?)", text.strip())):
        return None
    sign, end = found[1], float(found[2])
    if sign in (">=", "≥", ">") or found[3]:
        return None if sign and found[3] else (end + whole * (sign == ">"), np.inf)
    if sign:
        return -np.inf, end + whole * (sign != "<")
    return (end, end + 1) if whole else None


@registered("incomplete", "Some released numbers are missing, for reasons that are unrelated to the numbers.")
class Incomplete(Reported):
    """Some released numbers are missing and printed as NaN, for unrelated reasons: this does not change the likelihood,
    and is not simulated. The inner `mechanism`, as in `Floored`, must not print NaN.
    """

    silent = True

    def _undone(self, xp: ArrayModule, low: Any, high: Any, short: Any) -> tuple[Any, Any, Any]:
        return xp.where(xp.isnan(low), -np.inf, low), xp.where(xp.isnan(low), np.inf, high), short

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        return self.mechanism.moments(x)


@registered("published", "Only the values that a rule prints were published: the rest of the table is not known.")
class Published(Reported):
    """Only the values that a rule prints were published, without a row for each of those that it withholds.

    The likelihood of a published value is then its probability among all values, over the probability that a value is
    published (`Privatized`), both under the law of the record. Values that are not published are simulated as NaN.

    Parameters
    ----------
    mechanism : Withheld
        The rule that withholds values, or `Floored` or `Rounded` around it. `Floored` describes what it takes.
    unpublished : array_like, optional
        How many values were not published for each that was: the number of all unpublished values, over that of all
        published ones. They must have one law. The likelihood then has the probability that they are withheld, in
        place of the condition. Default: unknown.
    """

    unpublished: Array = None
    may_be_missing = False  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        rule: Any = self.mechanism
        while not isinstance(rule, Withheld):
            if rule is self.innermost:
                raise TypeError(f"Published takes a rule with a threshold, such as Withheld, got {self.mechanism!r}")
            rule = rule.mechanism
        if self.unpublished is not None:
            checked_field(self, "unpublished", *NOT_NEGATIVE)

    def _undone(self, xp: ArrayModule, low: Any, high: Any, short: Any) -> tuple[Any, Any, Any]:
        return low, high, short

    @property
    def any_published(self) -> Reported:
        """A rule whose NaN means that any value was published."""
        return unchecked(Incomplete, self.mechanism)

    @property
    def others(self) -> tuple[Mechanism, Array]:
        """What else a likelihood has for each published value: NaN under this rule, so many times."""
        return (self.any_published, -1.0) if self.unpublished is None else (self.mechanism, self.unpublished)
