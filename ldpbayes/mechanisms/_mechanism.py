"""The protocol that every mechanism follows, and what it owes the likelihood besides.

A mechanism is a frozen dataclass and a JAX pytree. Numbers and arrays of numbers are leaves, kept on the host in double
precision until a traced function needs them; a field declared with `static` fixes a shape and is part of the tree's
structure. What it releases is real numbers (`NumericMechanism`) or codes, bits and whole numbers (`DiscreteMechanism`).
"""

import abc
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions.constraints import Constraint

from ldpbayes._checks import unmasked
from ldpbayes._pytree import checked_field, equal
from ldpbayes._shown import Called, shown_fields
from ldpbayes._tracing import is_concrete
from ldpbayes.mechanisms._spec import to_json
from ldpbayes.mechanisms._validation import checked_integers, in_words, released_values
from ldpbayes.privacy import Guarantee

__all__ = ["DiscreteMechanism", "Mechanism", "NumericMechanism"]


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
