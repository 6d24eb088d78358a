"""The methods and attributes of every mechanism: a density, a guarantee, a spec, and other properties."""

import abc
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

import ldpbayes.noise
from ldpbayes._core.checks import FINITE_NUMBERS, checked, ends_of, kind_in_words, refuse, unmasked, whole_numbers_up_to
from ldpbayes._core.pytrees import Called, checked_field, equal, shown_fields
from ldpbayes._core.types import Array, ArrayModule, Key, array_of, floating, is_concrete
from ldpbayes.mechanisms.plausibility import implausible_counts
from ldpbayes.noise import Noise
from ldpbayes.numerics.arrays import rounded, snapped
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
    of_categories: ClassVar[bool] = False  #: True if a record is the code of a category, as in `Categories`.
    domain: Any  #: NumPyro constraint on the record x, after clipping.
    support: Any  #: NumPyro constraint on the released value z.
    bounded: Any  #: False if records, or a statistic of them, get noise without being clipped to bounds.
    noise: Any  #: The `Noise` added before any reporting rule. None if the mechanism does something else.
    _owed: ClassVar[dict[str, str]] = {
        "domain": "NumPyro constraint on the record x, after clipping",
        "support": "NumPyro constraint on the released value z",
        "bounded": "False if records get noise without being clipped to bounds, else True",
        "noise": "the Noise that is added to a number or to columns, None if the mechanism does something else",
    }
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
            hint = "; replace words by codes, as in (answers == 'yes').astype(int)" if array.dtype.kind in "OU" else ""
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
            refuse(~(np.isfinite(array) | missing), "values must be finite; {} are not", array)
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
    linear_tails: Any
    resolution: Any  #: Shortest length in x on which p(z | x) changes by a factor e.
    released_range: Any  #: Interval (low, high) of z that a sketch covers with panels, or None without panels.
    #: True if exactly a bound may be released, as for a clipped record without noise, whatever the parameters' values.
    has_atoms: Any
    _owed: ClassVar[dict[str, str]] = {
        "linear_tails": "True if log p(z | theta) is exactly linear in z outside released_range, for any law of x; "
        "False if fewer than one in 10^32 values are outside",
        "resolution": "shortest length in x on which p(z | x) changes by a factor e",
        "released_range": "interval (low, high) of z that a sketch covers with panels, or None without panels",
        "has_atoms": "True if exactly a bound may be released, as for a clipped record without noise, else False",
    }

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


class FiniteOutputs(DiscreteMechanism):
    """Base of mechanisms that take numbers and release one of finitely many numbers, the array ``outputs``."""

    outputs: Array
    #: Least and largest p(z | x) over all x of each output, arrays that broadcast with (*budgets, outputs).
    output_probabilities: Any
    _owed: ClassVar[dict[str, str]] = {"output_probabilities": "least and largest p(z | x) over all x of each output"}
    noise, bounded = None, True
    _shared: ClassVar[tuple[str, ...]] = ("outputs",)
    resolution = math.inf  # p(z | x) is smooth between its `breakpoints`
    support = property(lambda self: _OneOf(self.outputs))

    def possible_values(self, most: int) -> np.ndarray | None:
        return np.asarray(self.outputs, float)

    def place(self, z: ArrayLike) -> Array:
        """Return the position of the nearest output for each released value, in NumPy or JAX, like `z`."""
        at = array_of(z)
        xp = np if isinstance(at, np.ndarray) and is_concrete(self.outputs) else jnp
        outputs = xp.asarray(self.outputs)
        # values that another precision has rounded are still nearest to what they were
        return xp.searchsorted((outputs[1:] + outputs[:-1]) / 2, at)

    def equivalence(self, z: np.ndarray) -> np.ndarray:
        return np.asarray(self.place(np.asarray(z)))[:, None]

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        x = floating(x)
        outputs = jnp.asarray(self.outputs, x.dtype).reshape(-1, *[1] * max(x.ndim, len(self.batch_shape)))
        p = jnp.exp(self.log_prob(outputs, x))
        mean = jnp.sum(p * outputs, axis=0)
        return mean, jnp.sum(p * (outputs - mean) ** 2, axis=0)

    def implausible(self, values: np.ndarray) -> list[str]:
        counts = np.bincount(self.place(values), minlength=len(self.outputs))
        least, most = (np.reshape(p, (-1, np.shape(p)[-1])).mean(axis=0) for p in self.output_probabilities)
        names = [f"are {output:g}" for output in self.outputs]
        return implausible_counts(counts, len(values), least, most, 2 * len(counts), names.__getitem__)

    def _validated(self, values: np.ndarray) -> np.ndarray:
        if not is_concrete(self.outputs):
            return values
        values = values if values.dtype.kind == "f" else values.astype(float)
        nearest = self.outputs[self.place(values)]
        bad = snapped(values, [nearest]) != nearest
        outputs = f"one of its {len(self.outputs)} outputs, from {self.outputs[0]:g} to {self.outputs[-1]:g}"
        refuse(bad, f"{type(self).__name__} releases {outputs}; {{}} values are not outputs", values)
        return nearest


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


def interpolation(xp: ArrayModule, nodes: Array, x: Array) -> tuple[Array, Array]:
    """The node at or above x (clipped), never the first, and the share of the way to it from the node below."""
    x = xp.clip(x, nodes[0], nodes[-1])
    above = xp.clip(xp.searchsorted(nodes, x), 1, len(nodes) - 1)
    return above, (x - nodes[above - 1]) / (nodes[above] - nodes[above - 1])


def drawn_columns(matrix: jax.Array, row: jax.Array, law: jax.Array) -> jax.Array:
    """Columns drawn from rows of a matrix of probabilities, by numbers `law` that are uniform on [0, 1)."""
    cumulative, last = jnp.cumsum(matrix, axis=1), matrix.shape[1] - 1
    cumulative /= cumulative[:, -1:]  # rounding leaves nothing for the last column where that is zero
    # how many of the row's sums are not above `law`, by bisection: never more than the last column's position
    place = jnp.zeros(law.shape, int)
    for step in 2 ** np.arange(int(last).bit_length())[::-1]:
        further = jnp.minimum(place + step, last)
        place = jnp.where(cumulative[row, further - 1] <= law, further, place)
    return place


def flipped(key: Key, code: jax.Array, flip: jax.Array, number: int) -> jax.Array:
    """The records' codes, or another one of 0, ..., number − 1: from theirs on, one more than what is drawn."""
    other = jax.random.randint(key, flip.shape, 0, number - 1).astype(code.dtype)
    return jnp.where(flip, other + (other >= code), code)


def checked_labels(x: ArrayLike) -> jax.Array:
    """Labels as a floating-point array; ValueError for NaN, where it can be seen."""
    if is_concrete(x):
        checked("x", x, "a number (drop or impute missing labels first)", lambda a: ~np.isnan(a))
    return floating(x)


def increasing(name: str, value: Any, least: int) -> np.ndarray:
    """An increasing array of at least `least` finite numbers, in double precision, or ValueError; a tracer as it is."""
    if not is_concrete(value):
        return value
    value = np.atleast_1d(checked(name, value, *FINITE_NUMBERS))
    if value.ndim != 1 or len(value) < least:
        raise ValueError(f"{name} must be an array of at least {least} numbers, got shape {np.shape(value)}")
    refuse(np.append(False, np.diff(value) <= 0), f"{name} must increase strictly; {{}} do not", value)
    return value


class _OneOf(constraints.Constraint):
    """Some numbers, in ascending order."""

    is_discrete = True

    def __init__(self, numbers: Array) -> None:
        self.numbers = numbers

    def __call__(self, z: Array) -> Array:
        numbers = jnp.asarray(self.numbers)
        z = jnp.asarray(z)
        nearest = numbers[jnp.searchsorted((numbers[1:] + numbers[:-1]) / 2, z)]
        return (z == nearest) | (z == rounded(jnp, nearest, jnp.result_type(z, float)))

    def feasible_like(self, prototype: jax.Array) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(self.numbers)[0], jnp.shape(prototype))

    def tree_flatten(self) -> tuple:
        return (self.numbers,), (("numbers",), {})


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
    summed = guarantees
    if {"add_remove", "replace"} <= {part.neighbours for part in promises}:
        twice = [
            part._replace(changed=2 * part.changed) if part.neighbours == "add_remove" else part for part in promises
        ]
        summed = [part.in_all for part in twice]
    budget, delta = (
        np.sum([(np.min(part), np.max(part)) for part in parts], axis=0)
        for parts in zip(*(guarantee.stated_pair for guarantee in summed), strict=True)
    )
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
    return mechanism.of_records(shape, np.unique(rows, axis=1, return_index=True)[1])


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
    cls = getattr(ldpbayes.noise, str(value.get("law")), None)
    if not (isinstance(cls, type) and issubclass(cls, Noise)):
        raise ValueError(f'noise must be a dict with the name of a class of ldpbayes.noise under "law", got {value!r}')
    try:
        return cls(**{name: from_json(part) for name, part in value.items() if name != "law"})
    except TypeError as error:
        raise ValueError(f"no noise can be made from {value!r}: {error}") from None
