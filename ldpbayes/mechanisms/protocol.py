"""What every mechanism has, a density, a guarantee, a spec and other properties, and the registry of all by name."""

import abc
import dataclasses
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

import ldpbayes.noise
from ldpbayes._core.checks import ends_of, kind_in_words, refuse, unmasked, whole_numbers_up_to
from ldpbayes._core.pytrees import (
    Called,
    Owed,
    checked_field,
    equal,
    pytree,
    ruled,
    shown_fields,
    static,
    undeclared_traits,
)
from ldpbayes._core.types import Array, Key, array_of, is_concrete
from ldpbayes.noise import Noise
from ldpbayes.numerics.special import log_or_nothing
from ldpbayes.privacy import Guarantee, compose
from ldpbayes.privacy.guarantee import counted_once, quoted


class Mechanism(Called, abc.ABC):
    """Base of all mechanisms: a record x is released as a value z with the conditional density p(z | x).

    To write your own mechanism, decorate a subclass with ``@register("name")`` above
    ``@dataclasses.dataclass(frozen=True)``, and check its fields by `_check` in ``__post_init__``. JAX copies a
    mechanism without this check, because the fields of a copy may be tracers. The attributes below are class variables,
    fields or properties.
    """

    name: ClassVar[str]  #: Name under which the class is registered.
    # fields whose arrays are over something else than records, such as bins; may be a property
    _shared: ClassVar[tuple[str, ...]] = ()
    #: True if whole numbers beyond `domain` are clipped to it, as other numbers are; else a law beyond it is an error.
    clips: ClassVar[bool] = False
    _of_rows: ClassVar[str] = ""  # how rows of {} numbers are released, in words
    may_be_missing: ClassVar[bool] = False  #: True if NaN stands for a value that is not released.
    _gaps: ClassVar[str] = ""  # what else they may be, in words
    of_categories: ClassVar[bool] = False  #: True if a record is the code of a category, as in `Categories`.
    has_matrix: ClassVar[bool] = False  #: True if `matrix` has p(z | x) of released codes z in a row for each category.
    #: NumPyro constraint on the record x, after clipping.
    domain: Annotated[Any, Owed("NumPyro constraint on the record x, after clipping")]
    #: NumPyro constraint on the released value z.
    support: Annotated[Any, Owed("NumPyro constraint on the released value z")]
    #: False if records, or a statistic of them, get noise without being clipped to bounds.
    bounded: Annotated[Any, Owed("False if records get noise without being clipped to bounds, else True")]
    #: The `Noise` added before any reporting rule. None if the mechanism does something else.
    noise: Annotated[Any, Owed("the Noise that is added to a number or columns, None if it does something else")]
    innermost: Any = property(lambda self: self, doc="The mechanism without reporting rules.")
    #: A bound on how many whole numbers from 0 on are printed as one value; 1 without reporting rules.
    longest: float = 1.0
    omits_noise: bool = False  #: True if some records are released as they are, others with noise.
    trust_model: str = "local"  #: "central" if a released value is a statistic of many records.
    #: True if the guarantee is monotone in every personal parameter: statements then compute it for extremes only.
    monotone: bool = False
    event_shape: tuple[int, ...] = ()  #: Shape of one released value: () for a number or a code.
    record_shape: tuple[int, ...] = ()  #: Shape of one record x: () for a number or a category.

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # a dataclass keeps the methods a class already has; its own == fails on array fields
        for method in ("__eq__", "__repr__"):
            if method not in cls.__dict__:
                setattr(cls, method, getattr(Mechanism, method))

    @abc.abstractmethod
    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        """Draw a released value for each record `x`, in broadcast shape; ValueError for records that cannot exist. This
        is for simulation: real data need `ldpbayes.secure.release`.
        """

    def simulate(self, key: Key, x: ArrayLike) -> jax.Array:
        """Draw a value for each record `x` of a model, like `randomize`, also for records that cannot exist."""
        return self.randomize(key, x)

    @abc.abstractmethod
    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """Return log p(z | x), or log P if `support` is discrete, in the broadcast shape; `x` need not be clipped."""

    @property
    @abc.abstractmethod
    def guarantee(self) -> Guarantee:
        """The privacy guarantee. Do not compute it inside `jax.jit`, because it needs NumPy."""

    promises = property(lambda self: (Promise(self),), doc="What one released value promises, as of a release.")
    #: Classes for which a closed form of the likelihood may be registered, the nearest first.
    form_classes = property(lambda self: type(self).__mro__)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the parameters: (N,) if a parameter has one value for each of N records, and () otherwise."""
        return np.broadcast_shapes(*(np.shape(leaf) for leaf in self.personal_parameters()))

    def possible_values(self, most: int) -> np.ndarray | None:
        """Return all values that may be released (N, *event_shape); None if there are more than `most`, or no list."""
        return None

    @abc.abstractmethod
    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Mean and variance of z given `x`, in the broadcast shape of `x` and the parameters, then `event_shape`."""

    def unbiased(self, z: ArrayLike) -> jax.Array:
        """Return for each `z` a value whose mean, given a record, is the clipped record; ValueError if none is."""
        raise ValueError(f"{type(self).__name__} has no unbiased values: their mean is not linear in the record")

    def validated(self, values: ArrayLike) -> np.ndarray:
        """Return released values as an array (N, *event_shape). Raises ValueError if they are empty or impossible."""
        unmasked(values)
        try:
            array = np.asarray(values)
        except ValueError:
            raise ValueError(f"{self._promise}; got rows of different lengths") from None
        if array.dtype.kind not in "biuf":
            hint = (
                "; name the words of codes, as in about={'levels': ['no', 'yes']}" if array.dtype.kind in "OU" else ""
            )
            raise ValueError(f"values must be numbers, got {kind_in_words(array)}{hint}")
        # neither JAX nor a file takes long doubles, or the byte order of another machine
        native = np.dtype(float) if array.dtype.char == "g" else array.dtype.newbyteorder("=")
        with np.errstate(over="ignore"):
            array = array.astype(native, copy=False)
        event = self.event_shape
        if array.ndim != 1 + len(event) or array.shape[1:] != event:
            hint = " (write a single value as a list)" if array.ndim == len(event) else ""
            hint += self._of_rows.format(array.shape[1]) if array.ndim == 2 and not event else ""
            raise ValueError(f"{self._promise}; got values of shape {array.shape}{hint}")
        if array.size == 0:
            raise ValueError("values is empty: a release holds at least one record")
        if array.dtype.kind == "f":
            missing = np.isnan(array) if self.may_be_missing else False
            refuse(~(np.isfinite(array) | missing), f"values must be finite{self._gaps}; {{}} are not", array)
        return self._validated(array)

    @property
    def _promise(self) -> str:
        """What is released for a record, in words."""
        values = f"a row of {math.prod(self.event_shape)} numbers" if self.event_shape else "one number"
        return f"{type(self).__name__} releases {values} for each record"

    @abc.abstractmethod
    def _validated(self, values: np.ndarray) -> np.ndarray:
        """`validated` for finite values of the right shape."""

    def validated_batch(self, values: ArrayLike, keep: ArrayLike = True) -> tuple["Mechanism", np.ndarray] | None:
        """Return the mechanism of selected released values, and these values after the check `validated`, flattened.

        `values` may have any batch shape, with which `keep` broadcasts: True where a value is selected. The result is
        None if JAX traces an argument, or if no value is selected.
        """
        if not is_concrete(values, keep, self):
            return None
        values, event = np.asarray(unmasked(values)), self.event_shape
        batch = values.shape[: max(values.ndim - len(event), 0)]
        if values.shape[len(batch) :] != event:
            raise ValueError(f"{self._promise}; got values of shape {values.shape}")
        shape = np.broadcast_shapes(batch, self.batch_shape, np.shape(keep))
        rows, keep = np.broadcast_to(values, shape + event).reshape(-1, *event), np.broadcast_to(keep, shape).ravel()
        if not keep.any():
            return None
        which = slice(None) if keep.all() else keep
        mechanism = self.of_records(shape, which)
        return mechanism, mechanism.validated(rows[which])

    def of_records(self, shape: tuple[int, ...], rows: Array = slice(None)) -> "Mechanism":
        """Return the mechanism of some records: parameters are broadcast to `shape` and flattened; `rows` selects."""
        return self._map_personal(lambda leaf: np.broadcast_to(leaf, shape).ravel()[rows])

    def _map_personal(self, function: Callable[[Array], Any]) -> "Mechanism":
        """The mechanism with `function` applied to each of the `personal_parameters`."""
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: function(leaf) if self._is_personal(path, leaf) else leaf, self
        )

    def _is_personal(self, path: tuple, leaf: Array) -> bool:
        """Whether a leaf of the mechanism is an array, and in none of the `_shared` fields."""
        return bool(np.ndim(leaf)) and not any(getattr(key, "name", None) in self._shared for key in path)

    def personal_parameters(self) -> list[Array]:
        """Return the arrays that have one parameter for each record, such as personal budgets."""
        leaves = jax.tree_util.tree_leaves_with_path(self)
        return [leaf for path, leaf in leaves if self._is_personal(path, leaf)]

    def implausible(self, values: np.ndarray) -> list[str]:
        """Return reasons why released `values` are nearly impossible (probability below 1e-12)."""
        return []

    def spec(self) -> dict[str, Any]:
        """Return the mechanism as a dict for JSON, from which `mechanism_from_spec` makes the mechanism again."""
        return {"mechanism": self.name} | {name: to_json(value) for name, value in shown_fields(self)}

    _check = checked_field

    def __eq__(self, other: object) -> bool:
        return equal(self, other) if type(self) is type(other) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of any class with an == of its own and mutable fields


class NumericMechanism(Mechanism):
    """Base of mechanisms that release real numbers. It adds the methods that likelihoods and sketches need."""

    #: True if log p(z | theta) is exactly linear in z outside `released_range`, for any law of x. If False, values
    #: beyond that range must be negligible: fewer than one in 10^32 records.
    linear_tails: Annotated[
        Any, Owed("True if log p(z|theta) is linear in z beyond released_range, False if z hardly is")
    ]
    #: Shortest length in x on which p(z | x) changes by a factor e.
    resolution: Annotated[Any, Owed("shortest length in x on which p(z | x) changes by a factor e")]
    #: Interval (low, high) of z that a sketch covers with panels, or None without panels.
    released_range: Annotated[Any, Owed("interval (low, high) of z that a sketch covers with panels, or None")]
    #: True if exactly a bound may be released, as for a clipped record without noise, whatever the parameters' values.
    has_atoms: Annotated[Any, Owed("True if exactly a bound may be released, as for a clipped record without noise")]

    @abc.abstractmethod
    def breakpoints(self, z: ArrayLike) -> Array:
        """Return the m records x at which p(z | x) is not smooth in x, for each released value: ``z.shape + (m,)``.
        NumPy arrays give NumPy arrays. If m is 0, return ``z[..., None][..., :0]``.
        """

    #: Points z at which p(z | theta) may have a kink or a jump, for any law of x. Sketches cut panels there.
    released_breakpoints: Array = np.empty(0)
    #: Length over which the log density falls by a constant, if tails are linear only from one period to the next.
    #: `released_range` is then a whole number of periods, with at least one on each side of the bounds.
    period: Array = None

    def _validated(self, values: np.ndarray) -> np.ndarray:
        low, high = ends_of(self.support)
        if is_concrete(low, high):
            interval = f"numbers from {np.min(low):g} to {np.max(high):g}"
            bad = (values < low) | (values > high)
            refuse(bad, f"{type(self).__name__} releases {interval}; {{}} values are not in this range", values)
        return values.astype(int) if values.dtype == bool else values


class DiscreteMechanism(Mechanism):
    """Base of mechanisms that release codes, bits or whole numbers. It adds `equivalence`, which sketches need."""

    @abc.abstractmethod
    def equivalence(self, z: np.ndarray) -> np.ndarray:
        """Return integers (N, m), a row for each of N released values `z`. Two rows may be equal only if log p(z | x)
        is equal for every record x. A sketch stores only one of such values.
        """

    def _validated(self, values: np.ndarray) -> np.ndarray:
        return checked_integers(values, type(self).__name__, *ends_of(self.support))

    def possible_values(self, most: int) -> np.ndarray | None:
        if self.event_shape or not self.support.is_discrete:
            return None
        low, high = ends_of(self.support)
        return np.arange(int(low), int(high) + 1) if high - low < most else None


class BitLaw(NamedTuple):
    """The mean of a bit over all reports of one person: its mean and variance, if the true category sets it or not."""

    one: Array  # mean if the category sets it
    zero: Array
    variance_one: Array
    variance_zero: Array
    reports: Array  # number of reports of one person
    design: np.ndarray  # (cohorts, bits, categories): 1 where the category sets the bit, or a probability; else 0
    rest: bool = False  # whether the last category is that of all values that are not listed


class PiecewiseConstant(Mechanism):
    """Base of mechanisms under which p(z | x) is a step function of x."""

    @abc.abstractmethod
    def pieces(self, z: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Steps of p(z | x) in x: ascending cuts (*z, m), and levels (*z, m + 1), of which levels[..., i] holds for
        cuts[..., i − 1] < x ≤ cuts[..., i]. NumPy arrays give NumPy arrays.
        """

    def breakpoints(self, z: ArrayLike) -> Array:
        return self.pieces(z)[0]

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        dtype = jnp.result_type(array_of(z), array_of(x), float)
        x, (cuts, levels) = jnp.asarray(x, dtype), self.pieces(jnp.asarray(z, dtype))
        # from the right: the first level is that of the records below all cuts
        level = levels[..., 0]
        for i in range(cuts.shape[-1]):
            level = jnp.where(x > cuts[..., i], levels[..., i + 1], level)
        return log_or_nothing(level)


class PiecewiseLinear(Mechanism):
    """Base of mechanisms under which p(z | x) is linear in x between nodes, and constant beyond the outer nodes."""

    nodes: Array  # (k,), increasing

    @abc.abstractmethod
    def levels(self, z: ArrayLike) -> jax.Array:
        """Return p(z | x) for x at each node, as an array (*z, k)."""


OF_ONE_VALUE = "This is the guarantee of one released value: how many of them one person changes is not stated."


class Promise(NamedTuple):
    """The promise of a release. Parts about different people, or promised together, name their `whole`."""

    mechanism: Mechanism
    times: int | None = None  # how many values are about one person at most, one by default
    whole: str | None = None
    changed: int = 1  # how many of its statistics one person changes
    change: str = ""  # what one person changes, in words, or that it is not known; empty if there is one value for each
    neighbours: str | None = None  # how data sets differ that are compared, if the publisher states it
    publisher: str | None = None  # the statement of a publisher, in place of all that

    @property
    def guarantee(self) -> Guarantee:
        """Of one value, or of all statistics that one person changes."""
        return self.stated(_with_extremes(self.mechanism).guarantee)

    @property
    def promises(self) -> tuple[Any, ...]:
        return (self,)

    @property
    def repeats(self) -> int:
        return self.times or 1

    @property
    def in_all(self) -> Guarantee:
        """Of all values about one person."""
        return self.guarantee.composed(self.repeats)

    def stated(self, one: Guarantee) -> Guarantee:
        """What is promised if one value has this guarantee."""
        words = " ".join(filter(None, [one.assumption, self.change]))
        return dataclasses.replace(one.composed(self.changed), times=one.times, assumption=words)


def parts_of(whole: str, promises: Iterable[Promise]) -> tuple[Promise, ...]:
    """The promises of a part of what is named `whole`."""
    return tuple(promise._replace(whole=f"{whole} {place}") for place, promise in enumerate(promises))


def statements(promises: Iterable[Promise], same_people: bool = False, different_people: bool = False) -> str:
    """What releases promise together: composed for the same people, else a sum of budgets; then each promise."""
    if same_people and different_people:
        raise ValueError("give same_people=True or different_people=True, not both")
    promises = counted_once(promises)
    if publishers := [part.publisher for part in promises if part.publisher]:
        if same_people:
            raise ValueError("same_people: a table has only a statement of its publisher, which cannot be composed")
        rest = statements([part for part in promises if not part.publisher], different_people=different_people)
        return "\n".join(filter(None, [rest, *dict.fromkeys(publishers)]))
    guarantees = [part.in_all for part in promises]
    texts = Counter(guarantee.statement() for guarantee in guarantees)
    if len(guarantees) < 2:
        return "".join(texts)
    lines = [f"{count} releases, each: {promise}" if count > 1 else promise for promise, count in texts.items()]
    if same_people:
        heading = f"{len(guarantees)} releases about the same people. {compose(*promises).statement()}"
        return "\n".join([f"{heading} What each promises by itself:", *lines])
    wholes = {part.whole for part in promises}
    if different_people or (len(wholes) == 1 and None not in wholes):
        return "\n".join([f"{len(guarantees)} releases about different people. What each promises:", *lines])
    # basic composition: epsilons add up, and deltas; somebody who is replaced is removed and added
    mixed = {"add_remove", "replace"} <= {part.neighbours for part in promises}
    changed = [part.changed * (2 if mixed and part.neighbours == "add_remove" else 1) for part in promises]
    summed = [part._replace(changed=number).in_all for part, number in zip(promises, changed, strict=True)]
    pairs = [[(np.min(part), np.max(part)) for part in guarantee.stated_pair] for guarantee in summed]
    budget, delta = np.sum(pairs, axis=0)
    sum_of_budgets = f"is promised epsilon {quoted(budget)} and delta {quoted(delta)} in all"
    if budget[1] == np.inf or delta[1] >= 1:
        sum_of_budgets = "may be promised nothing in all"
    unit = min(guarantee.unit for guarantee in guarantees)  # a promise to a record is one to its attributes and label
    held = f"one {unit}" if max(part.times for part in guarantees) == 1 else "as many reports as are allowed"
    held = "one released value" if any(part.change == OF_ONE_VALUE for part in promises) else held
    heading = (
        f"{len(guarantees)} releases. Where they are about the same people, their budgets add up: someone with "
        f"{held} in each {sum_of_budgets}. What each promises by itself:"
    )
    return "\n".join([heading, *lines])


def _with_extremes(mechanism: Mechanism) -> Mechanism:
    """With the personal parameters that can be the worst, as promises of thousands take seconds: where the promise is
    monotone in a single one, its extremes, and what means no noise or no privacy.
    """
    personal, shape = mechanism.personal_parameters(), mechanism.batch_shape
    if len(personal) == 1 and mechanism.monotone:
        values = np.ravel(personal[0])
        inside = (values > 0) & np.isfinite(values)
        ends = [end(values[inside]) for end in (np.min, np.max) if inside.any()]
        if len(ends) == 2 and ends[0] < ends[1]:
            epsilon, delta = mechanism._map_personal(lambda leaf: np.array(ends)).guarantee.stated_pair
            if np.any(np.isinf(epsilon) | (delta == 1)):  # a statement leaves it out: the next one counts
                ends = values[inside]
        kept = np.unique(np.append(values[~inside], ends))
        return mechanism._map_personal(lambda leaf: kept)
    if not personal:
        return mechanism
    rows = np.stack([np.broadcast_to(leaf, shape).ravel() for leaf in personal])
    axis = 1 if len(rows) > 1 else None  # whole columns take four times as long to sort
    return mechanism.of_records(shape, np.unique(rows, axis=axis, return_index=True)[1])


def joined_mechanism(mechanisms: Sequence[Mechanism], counts: Sequence[int] | None = None) -> Mechanism:
    """One mechanism of the records of several of one structure; `counts` default to 1. Arrays over bins must agree."""

    def join(path: tuple, *leaves: Array) -> Array:
        first, concrete = leaves[0], is_concrete(leaves)
        if not mechanisms[0]._is_personal(path, first):
            if all(leaf is first or (concrete and np.array_equal(leaf, first)) for leaf in leaves):
                return first
            if np.ndim(first):
                kind = type(mechanisms[0]).__name__
                raise ValueError(f"releases of {kind} cannot be joined if their {path[0].name} differ")
        xp = np if concrete else jnp
        if counts is None:
            return xp.stack(leaves)
        return xp.concatenate([xp.broadcast_to(leaf, n) for leaf, n in zip(leaves, counts, strict=True)])

    return jax.tree_util.tree_map_with_path(join, *mechanisms)


def checked_integers(values: np.ndarray, kind: str, low: float = -math.inf, high: float = math.inf) -> np.ndarray:
    """Whole numbers from low to high, as 32-bit integers if these hold the bounds or values, else as 64-bit ones."""
    values = values.astype(int) if values.dtype == bool else values
    bounded = math.isfinite(high)
    if bounded:
        whole_numbers_up_to("values", values, int(high))
    allowed = f"integers in {int(low)}..{int(high)}" if bounded else "integers"
    bad = (values < low) | (values > high) | (values != np.round(values))
    refuse(bad, f"values must be {allowed} under {kind}; {{}} are not", values)
    return values.astype(np.int32 if bounded or np.abs(values).max() < 2**31 else np.int64)


def to_json(value: Any) -> Any:
    """A field's value for JSON: a number, a name, None, nested lists, a spec, or for a noise a dict with its name."""
    if isinstance(value, Mechanism):
        return value.spec()
    if isinstance(value, Noise):
        return {"law": type(value).__name__} | {name: to_json(part) for name, part in shown_fields(value)}
    if callable(value):  # the density of a noise, which `from_json` refuses
        return getattr(value, "__qualname__", repr(value))
    return np.asarray(value).tolist()


def from_json(value: Any) -> Any:
    """Inverse of `to_json`; ValueError if a dict names no noise of `ldpbayes.noise`."""
    if not isinstance(value, dict):
        return value
    if "mechanism" in value:
        return mechanism_from_spec(value)
    cls = getattr(ldpbayes.noise, str(value.get("law")), None)
    if not (isinstance(cls, type) and issubclass(cls, Noise)):
        raise ValueError(f'noise must be a dict with the name of a class of ldpbayes.noise under "law", got {value!r}')
    try:
        return cls(**{name: from_json(part) for name, part in value.items() if name != "law"})
    except TypeError as error:
        raise ValueError(f"no noise can be made from {value!r}: {error}") from None


ENTRY_POINT_GROUP = "ldpbayes.mechanisms"

_registry: dict[str, type[Mechanism]] = {}
_summaries: dict[str, str] = {}
_M = TypeVar("_M", bound=type[Mechanism])


def register(name: str, summary: str = "") -> Callable[[_M], _M]:
    """Class decorator that registers your own mechanism under a `name`, and makes the class a JAX pytree.

    The name stands for the class in `Mechanism.spec`, in release files and on the command line. The class must be a
    frozen dataclass derived from `NumericMechanism` or `DiscreteMechanism`, else a TypeError is raised, which also says
    what these bases ask for and is missing. Raises ValueError if the name belongs to another mechanism. The command
    ``ldpbayes mechanisms`` prints the `summary`, a sentence.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f'name must be a non-empty string, as in @register("laplace"), got {name!r}')

    def decorate(cls: _M) -> _M:
        if not (isinstance(cls, type) and issubclass(cls, (NumericMechanism, DiscreteMechanism))):
            bases = "ldpbayes.mechanisms.NumericMechanism or DiscreteMechanism"
            raise TypeError(f"mechanism {name!r} must be a subclass of {bases}, got {cls!r}")
        if "__dataclass_params__" not in cls.__dict__ or not cls.__dict__["__dataclass_params__"].frozen:
            raise TypeError(f"mechanism {name!r} must be a frozen dataclass (dataclasses.dataclass), got {cls!r}")
        methods = "".join(f"\n  {method}: a method" for method in sorted(cls.__abstractmethods__))
        if missing := undeclared_traits(cls) + methods:
            raise TypeError(f"mechanism {name!r}: {cls.__name__} must define, as its base classes describe:{missing}")
        if _registry.get(name) is cls:
            return cls
        if "name" in cls.__dict__:
            raise ValueError(f"{cls!r} is already registered as {cls.name!r}, so it cannot be {name!r} too")
        namesake = _registry.get(name, cls)
        # running a notebook cell again defines the same class anew
        if (namesake.__module__, namesake.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"mechanism name {name!r} is taken by {namesake!r}; register {cls!r} under another name")
        cls.name = name
        pytree(cls)
        _registry[name], _summaries[name] = cls, summary
        return cls

    return decorate


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static, ruled))
def registered(name: str, summary: str) -> Callable[[Any], Any]:
    """Class decorator: a frozen dataclass that is a mechanism of this name, by `register`."""
    return lambda cls: register(name, summary)(dataclasses.dataclass(frozen=True)(cls))


def mechanism_class(name: str) -> type[Mechanism]:
    """The class registered as `name`, by an installed third party if need be; ValueError for an unknown name."""
    if name not in _registry:
        _load_entry_points()
    if name not in _registry:
        raise ValueError(f"mechanism must be one of {', '.join(sorted(_registry))}, got {name!r}")
    return _registry[name]


def summary_of(name: str) -> str:
    """A sentence about a registered mechanism, as its class states it."""
    return _summaries[name]


def mechanism_from_spec(spec: Mapping[str, Any]) -> Mechanism:
    """Make a mechanism from `spec`, a dict with its name and the arguments of its class, arrays as lists, such as
    ``{"mechanism": "laplace", "epsilon": 1.0, ...}``; ValueError if one is wrong.
    """
    if not isinstance(spec, Mapping) or not isinstance(spec.get("mechanism"), str):
        raise ValueError(f'spec must be a dict with the mechanism\'s name under "mechanism", got {spec!r}')
    params = dict(spec)
    name = params.pop("mechanism")
    cls = mechanism_class(name)
    if "of" in params:  # a reporting rule, whose own mechanism cannot have its field's name
        params["mechanism"] = mechanism_from_spec(params.pop("of"))
    signature = inspect.signature(cls)
    try:
        signature.bind(**params)
    except TypeError as error:
        raise ValueError(f"mechanism {name!r} takes {', '.join(signature.parameters)}: {error}") from None
    return cls(**{key: from_json(value) if key != "mechanism" else value for key, value in params.items()})


def mechanism_names() -> list[str]:
    """Return the sorted names of all registered mechanisms, also of other installed packages."""
    _load_entry_points()
    return sorted(_registry)


def _load_entry_points() -> None:
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            cls = point.load()
        except (ImportError, AttributeError) as error:
            raise ImportError(f"entry point {point.name} = {point.value} of {ENTRY_POINT_GROUP}: {error}") from error
        register(point.name)(cls)
