"""What a mechanism owes the rest of the package: a density, a guarantee, a spec."""

import abc
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions.constraints import Constraint

import ldpbayes.noise
from ldpbayes._core.checks import kind_in_words, unmasked, whole_numbers_up_to
from ldpbayes._core.printing import Called, shown_fields
from ldpbayes._core.pytrees import checked_field, equal
from ldpbayes._core.tracing import is_concrete
from ldpbayes.noise import Noise
from ldpbayes.privacy import Guarantee
from ldpbayes.privacy.guarantee import quoted


def to_json(value: Any) -> Any:
    """A field's value as JSON has it: numbers, nested lists, and for a noise a dict with its name.

    Parameters
    ----------
    value : object
        A number, an array, a name, None, a tuple of these or a noise.
    """
    if isinstance(value, Noise):
        return {"law": type(value).__name__} | {name: to_json(part) for name, part in shown_fields(value)}
    return np.asarray(value).tolist()


def from_json(value: Any) -> Any:
    """Inverse of `to_json`.

    Parameters
    ----------
    value : object
        What JSON holds.

    Raises
    ------
    ValueError
        If a dict names no noise of `ldpbayes.noise`.
    """
    if not isinstance(value, dict):
        return value
    cls = getattr(ldpbayes.noise, str(value.get("law")), None)
    if not (isinstance(cls, type) and issubclass(cls, Noise)):
        raise ValueError(f'a noise is a dict with the name of one of ldpbayes.noise under "law", got {value!r}')
    try:
        return cls(**{name: from_json(part) for name, part in value.items() if name != "law"})
    except TypeError as error:
        raise ValueError(f"{value!r} does not make a noise: {error}") from None


def statements(mechanisms: Iterable[Any]) -> str:
    """What releases promise: of several the sum of their budgets, then each promise with the number of its releases.

    Whether two releases are about the same people cannot be told from them, so the words hold in either case.

    Parameters
    ----------
    mechanisms : iterable of Mechanism
        One a release.
    """
    guarantees = [mechanism.guarantee for mechanism in mechanisms]
    promises = Counter(guarantee.statement() for guarantee in guarantees)
    if len(guarantees) < 2:
        return "".join(promises)
    # basic composition: epsilons add up, and deltas
    budget, delta = (
        np.sum([(np.min(part), np.max(part)) for part in parts], axis=0)
        for parts in zip(*(guarantee.stated_pair for guarantee in guarantees), strict=True)
    )
    promised = f"is promised epsilon {quoted(budget)} and delta {quoted(delta)} in all"
    if budget[1] == np.inf or delta[1] >= 1:
        promised = "may be promised nothing in all"
    unit = min(guarantee.unit for guarantee in guarantees)  # a promise to a record is one to its attributes and label
    first = (
        f"{len(guarantees)} releases. Where they are about the same people, their budgets add up: someone with one "
        f"{unit} in each {promised}. What each promises by itself:"
    )
    counted = (f"{count} releases, each: {promise}" if count > 1 else promise for promise, count in promises.items())
    return "\n".join([first, *counted])


_HINT = "; give words codes, such as (answers == 'yes').astype(int)"


def in_words(event_shape: tuple[int, ...]) -> str:
    """What a record's released value is, in words.

    Parameters
    ----------
    event_shape : tuple of int
        Of one released value.
    """
    return "one number a record" if not event_shape else f"rows of {math.prod(event_shape)} a record"


def released_values(mechanism: Any, values: ArrayLike) -> np.ndarray:
    """Finite numbers in the shape (N, *event_shape) and the byte order in which a mechanism's releases are kept.

    Parameters
    ----------
    mechanism : Mechanism
        Whose name and ``event_shape`` are looked at.
    values : array_like
        What a user gives.

    Raises
    ------
    ValueError
        If they are empty, of another shape, not numbers, or not finite.
    """
    kind, event = type(mechanism).__name__, mechanism.event_shape
    one = in_words(event)
    unmasked(values)
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{kind} releases {one}; got rows of different lengths") from None
    if array.dtype.kind not in "biuf":
        hint = _HINT if array.dtype.kind in "OU" else ""
        raise ValueError(f"values must be numbers, got {kind_in_words(array)}{hint}")
    # neither JAX nor a file takes long doubles, or the byte order of another machine
    native = np.dtype(float) if array.dtype.char == "g" else array.dtype.newbyteorder("=")
    with np.errstate(over="ignore"):
        array = array.astype(native, copy=False)
    if array.ndim != 1 + len(event) or array.shape[1:] != event:
        hint = " (a single value is a release of one: write it as a list)" if array.ndim == len(event) else ""
        raise ValueError(f"{kind} releases {one}; got values of shape {array.shape}{hint}")
    if array.size == 0:
        raise ValueError("values is empty: a release holds at least one record")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = ~np.isfinite(array)
        first = tuple(np.argwhere(bad)[0])
        raise ValueError(
            f"values must be finite; {bad.sum()} are not, the first ({array[first]}) at {', '.join(map(str, first))}"
        )
    return array


def checked_integers(values: np.ndarray, kind: str, low: float = -math.inf, high: float = math.inf) -> np.ndarray:
    """Whole numbers, as 32-bit integers where bounds or values say that these hold them, and else as 64-bit ones.

    Parameters
    ----------
    values : array
        Finite numbers.
    kind : str
        Of mechanism, for the message.
    low, high : float
        What the numbers may be.

    Raises
    ------
    ValueError
        If some are not whole, or out of range.
    """
    values = values.astype(int) if values.dtype == bool else values
    bounded = math.isfinite(high)
    if bounded:
        whole_numbers_up_to("values", values, int(high))
    bad = (values < low) | (values > high) | (values != np.round(values))
    if bad.any():
        allowed = f"integers in {int(low)}..{int(high)}" if bounded else "integers"
        first = tuple(np.argwhere(bad)[0])
        raise ValueError(
            f"values must be {allowed} under {kind}; {bad.sum()} are not, the first ({values[first]:g}) at "
            f"{', '.join(map(str, first))}"
        )
    return values.astype(np.int32 if bounded or np.abs(values).max() < 2**31 else np.int64)


class Mechanism(Called, abc.ABC):
    """What happens to one record before it is released: x -> z with conditional density p(z | x).

    Subclasses are decorated with ``@register("name")`` above ``@dataclasses.dataclass(frozen=True)``. They check their
    fields in ``__post_init__`` with `_check`; unflattening a pytree bypasses it, since leaves may then be anything.
    """

    name: ClassVar[str]
    """The name under which the class is registered."""

    _shared: ClassVar[tuple[str, ...]] = ()
    """Names of the fields whose arrays are over something else than records, such as bins."""

    clips: ClassVar[bool] = False
    """Whether whole numbers beyond `domain` are clipped to it (other numbers are); if not, laws beyond are refused."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # a dataclass keeps the methods a class already has; its own == fails on array fields
        for method in ("__eq__", "__repr__"):
            if method not in cls.__dict__:
                setattr(cls, method, getattr(Mechanism, method))

    @abc.abstractmethod
    def randomize(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """Draw z given x, in the broadcast shape of `x` and the parameters.

        For simulation and studies. To release real data use a cryptographically secure sampler that is safe in
        floating point, such as OpenDP's.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        x : array_like
            Records. Clipped, or checked where concrete, as part of the mechanism.

        Returns
        -------
        jax.Array
            Released values.

        Raises
        ------
        ValueError
            If `x` is concrete and holds values that the mechanism does not take.
        """

    def simulate(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """`randomize` for records drawn from a model, which may lie where no real record is taken.

        Parameters
        ----------
        key, x
            As for `randomize`.
        """
        return self.randomize(key, x)

    @abc.abstractmethod
    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """Log p(z | x), in the broadcast shape and the dtype of `z` and `x`.

        The reference measure is Lebesgue's for a continuous `support` and counting for a discrete one. Clipping is
        part of the mechanism, hence of this function.
        """

    @property
    @abc.abstractmethod
    def domain(self) -> Constraint:
        """NumPyro constraint on x (after clipping)."""

    @property
    @abc.abstractmethod
    def support(self) -> Constraint:
        """NumPyro constraint on z."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one released value: () for a number or a code."""
        return ()

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the parameters that may differ from record to record: () or (N,)."""
        return np.broadcast_shapes(*(np.shape(leaf) for leaf in self.personal_parameters()))

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape of one record x: () for a number or a category."""
        return ()

    @property
    @abc.abstractmethod
    def guarantee(self) -> Guarantee:
        """The privacy that the mechanism promises; computed on the host, outside traced functions."""

    @abc.abstractmethod
    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Return the mean and the variance of z given x.

        Both in the broadcast shape of `x` and the parameters, followed by `event_shape`.
        """

    def unbiased(self, z: ArrayLike) -> jax.Array:
        """What of a released value has the record (clipped, where the mechanism clips) as its mean.

        Parameters
        ----------
        z : array_like
            Released values.

        Returns
        -------
        Array
            Of the broadcast shape of the values and the parameters.

        Raises
        ------
        ValueError
            If nothing has: the mean of z is not an invertible linear function of x.
        """
        raise ValueError(f"{type(self).__name__} has no unbiased values: the mean of z is not linear in x")

    def validated(self, values: ArrayLike) -> np.ndarray:
        """Released values as an array (N, *event_shape), in the type in which they are kept.

        Raises
        ------
        ValueError
            If they are empty, of another shape, not numbers, not finite, or nothing the mechanism can have released.
        """
        return self._validated(released_values(self, values))

    @abc.abstractmethod
    def _validated(self, values: np.ndarray) -> np.ndarray:
        """`validated` for finite values of the right shape."""

    def validated_batch(self, values: ArrayLike, keep: ArrayLike = True) -> tuple["Mechanism", np.ndarray] | None:
        """Released values in a batch of any shape, flattened and `validated`, with the mechanism of these records.

        Parameters
        ----------
        values : array_like (*batch, *event_shape)
            Released values.
        keep : array_like of bool
            Which of them count, of a shape that broadcasts with the batch; what a mask hides may be anything.

        Returns
        -------
        tuple of Mechanism and ndarray (records, *event_shape), or None
            None where nothing can be seen: if anything is being traced, or no value counts.

        Raises
        ------
        ValueError
            For the reasons that `validated` has. Positions are those among the values that count.
        """
        if not is_concrete(values, keep, self):
            return None
        values, event = np.asarray(unmasked(values)), self.event_shape
        batch = values.shape[: max(values.ndim - len(event), 0)]
        if values.shape[len(batch) :] != event:
            raise ValueError(f"{type(self).__name__} releases {in_words(event)}; got values of shape {values.shape}")
        shape = np.broadcast_shapes(batch, self.batch_shape, np.shape(keep))
        rows, keep = np.broadcast_to(values, shape + event).reshape(-1, *event), np.broadcast_to(keep, shape).ravel()
        if not keep.any():
            return None
        which = slice(None) if keep.all() else keep
        mechanism = self.of_records(shape, which)
        return mechanism, mechanism.validated(rows[which])

    def of_records(self, shape: tuple[int, ...], rows: Any = slice(None)) -> "Mechanism":
        """The mechanism of some records of a batch: parameters there is one of a record are broadcast, then indexed.

        Parameters
        ----------
        shape : tuple of int
            Of the batch, which is flattened.
        rows
            Any index of its records.
        """
        return self._map_personal(lambda leaf: np.broadcast_to(leaf, shape).ravel()[rows])

    def _map_personal(self, function: Callable[[Any], Any]) -> "Mechanism":
        """The mechanism with `function` applied to each parameter that there is one of a record."""

        def mapped(path: tuple, leaf: Any) -> Any:
            return function(leaf) if np.ndim(leaf) and path[0].name not in self._shared else leaf

        return jax.tree_util.tree_map_with_path(mapped, self)

    def personal_parameters(self) -> list[Any]:
        """The parameters that there is one of a record: arrays, but for those over columns or bins."""
        found: list[Any] = []
        self._map_personal(found.append)
        return found

    def implausible(self, values: np.ndarray) -> list[str]:
        """What the mechanism could hardly have made of any records: with probability below 1e-12, in all.

        Parameters
        ----------
        values : array (N, *event_shape)
            Released values that are `validated`.

        Returns
        -------
        list of str
            What there is too much or too little of, with the number of values found and that expected at most, or at
            least. Here nothing: to say something takes a bound on the law of z that holds whatever x is.
        """
        return []

    def spec(self) -> dict[str, Any]:
        """Return the mechanism as a JSON-able dict, which `mechanism_from_spec` inverts."""
        return {"mechanism": self.name} | {name: to_json(value) for name, value in shown_fields(self)}

    def _check(self, name: str, allowed: str, ok: Callable[[np.ndarray], Any]) -> None:
        """Make field `name` a float or a float64 array that passes `ok`; leave a tracer alone."""
        checked_field(self, name, allowed, ok)

    def _check_event(self, name: str, rows: jax.Array) -> None:
        """ValueError unless an array ends in `event_shape`."""
        event = self.event_shape
        if rows.ndim < len(event) or rows.shape[rows.ndim - len(event) :] != event:
            raise ValueError(f"{name} must be rows of {math.prod(event)} columns, got an array of shape {rows.shape}")

    def __eq__(self, other: object) -> bool:
        """Compare class and fields; fields being traced are equal only if they are the same object."""
        return equal(self, other) if type(self) is type(other) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of any class with an == of its own and mutable fields


class NumericMechanism(Mechanism):
    """A mechanism that releases real numbers: what the channel and the sketches need to know of p(z | x)."""

    @property
    @abc.abstractmethod
    def linear_tails(self) -> bool:
        """Whether log p(z | theta) is exactly linear in z outside `released_range`, for any law of x.

        If not, values beyond that range must be negligible: fewer than one in 10^32 records. A class attribute will do.
        """

    @property
    @abc.abstractmethod
    def resolution(self) -> Any:
        """Shortest length in x on which p(z | x) varies by a factor e, a float if concrete."""

    @property
    @abc.abstractmethod
    def released_range(self) -> tuple[Any, Any] | None:
        """Interval (low, high) of z that needs panels when a release is compressed.

        None where it cannot be compressed.
        """

    @abc.abstractmethod
    def breakpoints(self, z: ArrayLike) -> Any:
        """Points in x where p(z | x) is not smooth: an array of shape ``z.shape + (m,)``, for m such points.

        NumPy in, NumPy out; JAX in, JAX out. For a smooth density m = 0: ``z[..., None][..., :0]``.
        """

    @property
    def released_breakpoints(self) -> Any:
        """Points z at which p(z | theta) may have a kink or a jump, whatever the law of x: an array, here empty.

        A sketch cuts its panels there. Parameters are known where it is made.
        """
        return np.empty(0)

    @property
    def period(self) -> Any:
        """Length over which the log density falls by the same amount, where tails are linear from one to the next only.

        `released_range` then is a whole number of them, one at least on either side of the bounds. None for others.
        """
        return None

    @property
    def has_atoms(self) -> bool:
        """Whether mechanisms of this kind may release exactly one of the bounds: a clipped record without noise.

        It fixes how a sketch is built, so it must not depend on the value of a parameter, which may be traced.
        """
        return False

    def _validated(self, values: np.ndarray) -> np.ndarray:
        """Numbers, between the bounds of `support` where it has some."""
        low, high = (
            getattr(self.support, f"{end}_bound", sign * math.inf) for end, sign in (("lower", -1), ("upper", 1))
        )
        bad = (values < low) | (values > high) if is_concrete(low, high) else np.zeros(len(values), bool)
        if np.any(bad):
            raise ValueError(
                f"{type(self).__name__} releases numbers from {np.min(low):g} to {np.max(high):g}; {bad.sum()} of "
                f"these are not, the first ({values[bad][0]:g}) at {np.argmax(bad)}"
            )
        return values.astype(int) if values.dtype == bool else values


class DiscreteMechanism(Mechanism):
    """A mechanism that releases codes, bits or whole numbers: what sketches need to know of p(z | x)."""

    @abc.abstractmethod
    def equivalence(self, z: np.ndarray) -> np.ndarray:
        """Integers, an array (N, columns) whose rows are equal where log p(z | .) is the same.

        A sketch keeps one value of each kind.
        """

    def _validated(self, values: np.ndarray) -> np.ndarray:
        """Codes between the bounds of `support`, where it has some."""
        ends = (getattr(self.support, f"{end}_bound", sign * math.inf) for end, sign in (("lower", -1), ("upper", 1)))
        return checked_integers(values, type(self).__name__, *ends)


def joined_mechanism(mechanisms: Sequence[Mechanism], counts: Sequence[int] | None = None) -> Mechanism:
    """One mechanism of the records of several, whose tree structures are equal.

    Parameters
    ----------
    mechanisms : sequence of Mechanism
        Of one kind, in the order of their records.
    counts : sequence of int, optional
        How many records each of them is of. Default: one.

    Returns
    -------
    Mechanism
        Parameters that are one number for all stay one, and arrays over bins, which all must have in common, one array.

    Raises
    ------
    ValueError
        If arrays over bins differ.
    """

    def join(path: tuple, *leaves: Any) -> Any:
        first, known = leaves[0], is_concrete(leaves)
        if np.ndim(first) and path[0].name in mechanisms[0]._shared:
            if not all(leaf is first or (known and np.array_equal(leaf, first)) for leaf in leaves):
                kind = type(mechanisms[0]).__name__
                raise ValueError(f"releases of {kind} whose {path[0].name} differ have no mechanism in common")
            return first
        if np.ndim(first) == 0 and all(leaf is first or (known and np.array_equal(leaf, first)) for leaf in leaves):
            return first
        xp: Any = np if known else jnp
        if counts is None:
            return xp.stack(leaves)
        return xp.concatenate([xp.broadcast_to(leaf, n) for leaf, n in zip(leaves, counts, strict=True)])

    return jax.tree_util.tree_map_with_path(join, *mechanisms)
