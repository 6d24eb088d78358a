"""Reporting rules: what an office does to a noisy number before it prints it."""

import abc
import dataclasses
import functools
from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from ldpbayes._core.checks import FINITE, POSITIVE, refuse
from ldpbayes._core.pytrees import check_fields, ruled, ruled_fields
from ldpbayes._core.tracing import array_of, floating, is_concrete
from ldpbayes._core.types import Array, ArrayModule, Key
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.mechanisms.protocol import DiscreteMechanism, Mechanism, NumericMechanism
from ldpbayes.mechanisms.registry import registered_dataclass
from ldpbayes.numerics.arrays import snapped

ON_GRID = 1e-3  # of a unit: a quotient as near to a whole number is that number, but for rounding


@dataclasses.dataclass(frozen=True)
class Reported(NumericMechanism, DiscreteMechanism):
    """Base of reporting rules, which say what is printed of a number z that an additive mechanism has released.

    The likelihood of a number that is printed unchanged is a density. Otherwise it is the probability of all z with the
    printed value. NaN is a missing value. The guarantee does not change, because only released numbers are processed.

    Parameters
    ----------
    mechanism : Mechanism
        Additive mechanism of numbers, or another rule around one.
    """

    mechanism: Mechanism

    clips = True
    released_range = None  # a sketch, but of whole numbers, is refused
    silent: ClassVar[bool] = False  # whether the rule itself prints NaN

    innermost = property(lambda self: getattr(self.mechanism, "innermost", self.mechanism), doc="Without rules.")
    bounded, domain, guarantee, linear_tails, noise, resolution, support = (
        property(attrgetter(f"innermost.{name}"), doc=f"`{name}` of `innermost`, the mechanism without rules.")
        for name in ("bounded", "domain", "guarantee", "linear_tails", "noise", "resolution", "support")
    )
    may_be_missing = property(lambda self: self.silent or self.mechanism.may_be_missing)  # type: ignore[assignment]
    _numbers = property(lambda self: [getattr(self, field.name) for field in ruled_fields(self)])
    #: A bound on how many whole numbers from 0 on are printed as one value; computed with NumPy.
    longest = property(lambda self: max([0.0, *map(np.max, self._numbers)]) + getattr(self.mechanism, "longest", 1.0))

    def __post_init__(self) -> None:
        kind, inner = type(self).__name__, self.innermost
        if not isinstance(inner, Additive) or inner.columns is not None or inner.has_atoms:
            kinds = "an additive mechanism of numbers, or one in a rule, of noise that no record can be without"
            raise TypeError(f"{kind} takes {kinds}, got {self.mechanism!r}")
        if self.silent and self.mechanism.may_be_missing:
            hint = "leave values that are missing for other reasons out of the release"
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
        """Return the least and the largest number that `innermost` can have released if z is printed. They are infinite
        if there is no limit. The least is above the largest if z cannot be printed. NumPy arrays give NumPy arrays, and
        JAX arrays give JAX arrays.
        """
        z = array_of(z)
        xp = np if isinstance(z, np.ndarray) and is_concrete(self) else jnp
        low = high = z.astype(float) if xp is np else floating(z)
        short: Any = xp.zeros(z.shape, bool)
        rule: Mechanism = self
        while isinstance(rule, Reported):
            low, high, short = rule._undone(xp, low, high, short)
            rule = rule.mechanism
        before = xp.nextafter(high if xp is np else lax.stop_gradient(high), -np.inf)
        high = xp.where(short & (high < np.inf), before, high)
        if self.noise.discrete:
            low, high = xp.ceil(low), xp.floor(high)
        return xp.where(low <= high, low, np.inf), xp.where(low <= high, high, -np.inf)

    def by_intervals(self, z: Any, at: Callable[[Any], Any], between: Callable[[Any, Any], Any]) -> jax.Array:
        """Return the log-likelihood of z, from functions for a released number and for an interval that contains it."""
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
        """Return the log density of an unchanged continuous z, or a log probability (0 if z is missing at random)."""
        inner: Any = self.innermost
        clipped = inner.clipped(jnp.asarray(x, jnp.result_type(array_of(z), array_of(x), float)))
        between = inner.noise.astype(clipped.dtype).log_interval
        own = functools.partial(inner.log_prob, x=clipped)
        return self.by_intervals(z, own, lambda low, high: between(low - clipped, high - clipped))

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        """Draw released numbers and apply the rule. The result has floating-point numbers if NaN is possible."""
        z = self.mechanism.randomize(key, x)
        return self._applied(floating(z) if self.may_be_missing else z)

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Raise ValueError, because the moments of printed values are not known. Simulate printed values instead."""
        raise ValueError(f"{type(self).__name__} has no moments: what it prints is not what was released; simulate it")

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
            missing = np.isnan(values) & self.may_be_missing
            refuse((low > high) & ~missing, f"{self!r} prints no such number as {{}} of these", values)
        whole = self.noise.discrete and not self.may_be_missing
        return self.innermost._validated(values) if whole else values.astype(np.result_type(values, np.float32))

    def spec(self) -> dict[str, Any]:
        return super().spec() | {"mechanism": self.name, "of": self.mechanism.spec()}


@registered_dataclass("floored")
class Floored(Reported):
    """Print max(z, floor): values below a floor are printed as the floor. Many offices print negative counts as 0.

    Parameters
    ----------
    mechanism, floor
        See `Reported`. The floor is one number, or one for each value, in the unit of the data (default: 0).
    """

    floor: Array = ruled(FINITE, default=0.0)

    def _undone(self, xp: ArrayModule, low: Any, high: Any, short: Any) -> tuple[Any, Any, Any]:
        reached = (high > self.floor) | ((high == self.floor) & ~short)
        return xp.where(low <= self.floor, xp.where(reached, -np.inf, np.inf), low), high, short

    def _applied(self, z: jax.Array) -> jax.Array:
        return jnp.maximum(z, jnp.asarray(self.floor, z.dtype))


@registered_dataclass("withheld")
class Withheld(Reported):
    """Print NaN for each z below a threshold. The release has one value for each cell that could have been printed.

    Parameters
    ----------
    mechanism, threshold
        See `Reported`. The threshold is the least number that is printed: one number, or one for each value, in the
        unit of the data.
    """

    threshold: Array = ruled(FINITE)

    silent = True

    def _undone(self, xp: ArrayModule, low: Any, high: Any, short: Any) -> tuple[Any, Any, Any]:
        missing, least = xp.isnan(low), xp.maximum(low, self.threshold)
        return xp.where(missing, -np.inf, least), xp.where(missing, self.threshold, high), short | missing

    def _applied(self, z: jax.Array) -> jax.Array:
        return jnp.where(z < self.threshold, jnp.nan, z)


@registered_dataclass("rounded")
class Rounded(Reported):
    """Print unit·⌊z/unit + ½⌋, the nearest multiple of a unit; of two equally near multiples, the larger one.

    Parameters
    ----------
    mechanism, unit
        See `Reported`. The unit is a positive number, or one for each value, in the unit of the data.
    """

    unit: Array = ruled(POSITIVE)

    def _undone(self, xp: ArrayModule, low: Any, high: Any, short: Any) -> tuple[Any, Any, Any]:
        first = xp.ceil(low / self.unit - ON_GRID)
        last = xp.where(short, xp.ceil(high / self.unit - ON_GRID) - 1, xp.floor(high / self.unit + ON_GRID))
        return (first - 0.5) * self.unit, (last + 0.5) * self.unit, xp.ones(xp.shape(last), bool)

    def _applied(self, z: jax.Array) -> jax.Array:
        unit = jnp.asarray(self.unit, z.dtype)
        return unit * jnp.floor(z / unit + 0.5).astype(z.dtype)


@registered_dataclass("incomplete")
class Incomplete(Reported):
    """Print NaN for values that are missing for reasons unrelated to the values. Simulated values are complete.

    Parameters
    ----------
    mechanism
        See `Reported`. This mechanism must not print missing values itself.
    """

    silent = True

    def _undone(self, xp: ArrayModule, low: Any, high: Any, short: Any) -> tuple[Any, Any, Any]:
        return xp.where(xp.isnan(low), -np.inf, low), xp.where(xp.isnan(low), np.inf, high), short

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        return self.mechanism.moments(x)
