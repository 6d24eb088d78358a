"""The protocol that every mechanism follows, and the registry that finds mechanisms by name.

A mechanism is a frozen dataclass and a JAX pytree. Numbers and arrays of numbers are leaves, kept on the host in double
precision until a traced function needs them; a field declared with ``dataclasses.field(metadata={"static": True})``
fixes a shape and is part of the tree's structure.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.tree_util import GetAttrKey, register_pytree_with_keys
from jax.typing import ArrayLike
from numpyro.distributions.constraints import Constraint

from ldpbayes.privacy import Guarantee
from ldpbayes.privacy.tradeoff import checked

__all__ = ["Mechanism", "mechanism", "mechanism_class", "mechanism_from_spec", "mechanism_names", "register"]

ENTRY_POINT_GROUP = "ldpbayes.mechanisms"

_registry: dict[str, type["Mechanism"]] = {}
_M = TypeVar("_M", bound=type["Mechanism"])


class Mechanism(abc.ABC):
    """What happens to one record before it is released: x -> z with conditional density p(z | x).

    Subclasses are decorated with ``@register("name")`` above ``@dataclasses.dataclass(frozen=True)``. They check their
    fields in ``__post_init__`` with `_check`; unflattening a pytree bypasses it, since leaves may then be anything.
    """

    name: ClassVar[str]
    """The name under which the class is registered."""

    linear_tails: ClassVar[bool] = False
    """Whether log p(z | theta) is exactly linear in z outside `released_range`, for any law of x."""

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
    def noise(self) -> "Mechanism":
        """The mechanism of the records that are perturbed, where some are not."""
        return self

    @property
    def unperturbed(self) -> Any:
        """Probability that a record is released as it is (after clipping): a number, or one a record."""
        return 0.0

    @property
    def has_atoms(self) -> bool:
        """Whether mechanisms of this kind may release exactly one of the bounds: a clipped record without noise.

        It fixes how a sketch is built, so it must not depend on the value of a parameter, which may be traced.
        """
        return False

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the parameters that may differ from record to record: () or (N,)."""
        return np.broadcast_shapes(*(np.shape(leaf) for leaf in jax.tree.leaves(self)))

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

    def breakpoints(self, z: ArrayLike) -> Any:
        """Points in x where p(z | x) is not smooth: an array of shape ``z.shape + (m,)``, here m = 0.

        NumPy in, NumPy out; JAX in, JAX out.
        """
        return _array(z)[..., None][..., :0]

    def equivalence(self, z: np.ndarray) -> np.ndarray:
        """Integers, an array (N, columns) whose rows are equal where log p(z | .) is the same; for discrete outputs.

        A sketch keeps one value of each kind.
        """
        return np.asarray(z).reshape(len(z), -1)

    def validated(self, values: ArrayLike) -> np.ndarray:
        """Released values as an array (N, *event_shape), in the type in which they are kept.

        Raises
        ------
        ValueError
            If they are empty, of another shape, not numbers, not finite, or nothing the mechanism can have released.
        """
        one = self._one_released
        unmasked(values)
        try:
            values = np.asarray(values)
        except ValueError:
            raise ValueError(f"{type(self).__name__} releases {one}; got rows of different lengths") from None
        if values.dtype.kind not in "biuf":
            raise ValueError(f"values must be numbers, got dtype {values.dtype}")
        # neither JAX nor a file takes long doubles, or the byte order of another machine
        native = np.dtype(float) if values.dtype.char == "g" else values.dtype.newbyteorder("=")
        with np.errstate(over="ignore"):
            values = values.astype(native, copy=False)
        if values.ndim != 1 + len(self.event_shape) or values.shape[1:] != self.event_shape:
            raise ValueError(f"{type(self).__name__} releases {one}; got values of shape {values.shape}")
        if values.size == 0:
            raise ValueError("values is empty: a release holds at least one record")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            bad = ~np.isfinite(values)
            first = tuple(np.argwhere(bad)[0])
            raise ValueError(
                f"values must be finite; {bad.sum()} are not, the first ({values[first]}) at "
                f"{', '.join(map(str, first))}"
            )
        return self._validated(values)

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
        if not _concrete(values, keep, *jax.tree.leaves(self)):
            return None
        values, event = np.asarray(unmasked(values)), self.event_shape
        batch = values.shape[: max(values.ndim - len(event), 0)]
        if values.shape[len(batch) :] != event:
            raise ValueError(f"{type(self).__name__} releases {self._one_released}; got values of shape {values.shape}")
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
        return jax.tree.map(lambda leaf: function(leaf) if np.ndim(leaf) else leaf, self)

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

    @property
    def _one_released(self) -> str:
        """What a record's released value is, in words."""
        return "one number a record" if not self.event_shape else f"rows of {math.prod(self.event_shape)} a record"

    def _validated(self, values: np.ndarray) -> np.ndarray:
        """`validated` for finite values of the right shape: here numbers, or codes where the support is discrete."""
        if values.dtype == bool:
            values = values.astype(int)
        if self.support.is_discrete:
            low, high = int(self.support.lower_bound), int(self.support.upper_bound)
            whole_numbers_up_to("values", values, high)
            bad = (values < low) | (values > high) | (values != np.round(values))
            if bad.any():
                raise ValueError(
                    f"values must be integers in {low}..{high} under {type(self).__name__}; "
                    f"{bad.sum()} are not, the first ({values[bad][0]:g}) at {np.argmax(bad)}"
                )
            values = values.astype(np.int32)
        return values

    @property
    def resolution(self) -> Any:
        """Shortest length in x on which p(z | x) varies, a float if concrete; None for a discrete domain."""
        return None

    @property
    def released_range(self) -> tuple[Any, Any] | None:
        """Interval (low, high) of z that needs panels when a release is compressed; None for discrete outputs."""
        return None

    def spec(self) -> dict[str, Any]:
        """Return the mechanism as a JSON-able dict, which `mechanism_from_spec` inverts."""
        return {"mechanism": self.name} | {name: np.asarray(getattr(self, name)).tolist() for name in _parameters(self)}

    def _check(self, name: str, allowed: str, ok: Callable[[np.ndarray], Any]) -> None:
        """Make field `name` a float or a float64 array that passes `ok`; leave a tracer alone."""
        value = getattr(self, name)
        if not isinstance(value, Tracer):
            object.__setattr__(self, name, checked(name, value, allowed, ok))

    def __eq__(self, other: object) -> bool:
        """Compare class and fields; fields being traced are equal only if they are the same object."""
        if type(self) is not type(other):
            return NotImplemented
        pairs = [(getattr(self, f.name), getattr(other, f.name)) for f in dataclasses.fields(self)]
        return all(
            a is b or (not isinstance(a, Tracer) and not isinstance(b, Tracer) and bool(np.array_equal(a, b)))
            for a, b in pairs
        )

    __hash__ = None

    def __repr__(self) -> str:
        """Return the call that makes the mechanism, long arrays abridged."""
        return f"{type(self).__name__}({', '.join(f'{n}={_show(getattr(self, n))}' for n in _parameters(self))})"


def register(name: str) -> Callable[[_M], _M]:
    """Class decorator: make a frozen dataclass derived from `Mechanism` a pytree and known as `name`.

    Parameters
    ----------
    name : str
        What `mechanism`, `Mechanism.spec` and the command line call it.

    Raises
    ------
    TypeError
        If the class is not a frozen dataclass derived from `Mechanism`.
    ValueError
        If another class has the name already, or the class another name.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f'name must be a non-empty string, as in @register("laplace"), got {name!r}')

    def decorate(cls: _M) -> _M:
        if not (isinstance(cls, type) and issubclass(cls, Mechanism)):
            raise TypeError(f"mechanism {name!r} must be a subclass of ldpbayes.mechanisms.Mechanism, got {cls!r}")
        if "__dataclass_params__" not in cls.__dict__ or not cls.__dataclass_params__.frozen:
            raise TypeError(
                f"mechanism {name!r} must be a frozen dataclass: @dataclasses.dataclass(frozen=True), got {cls!r}"
            )
        if _registry.get(name) is cls:
            return cls
        if "name" in cls.__dict__:
            raise ValueError(f"{cls!r} is registered as {cls.name!r} already, cannot be {name!r} too")
        known = _registry.get(name, cls)
        # running a notebook cell again defines the same class anew
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"mechanism name {name!r} is taken by {known!r}; register {cls!r} under another name")
        cls.name = name
        _register_pytree(cls)
        _registry[name] = cls
        return cls

    return decorate


def mechanism(name: str, /, **params: Any) -> Mechanism:
    """Make the mechanism called `name`.

    Parameters
    ----------
    name : str
        One of `mechanism_names`.
    **params
        The constructor's arguments, by name.

    Raises
    ------
    ValueError
        If the name is unknown, a parameter is missing or unknown, or the mechanism refuses a value.
    """
    cls = mechanism_class(name)
    known = _parameters(cls)
    unknown = sorted(set(params) - set(known))
    missing = [n for n, required in known.items() if required and n not in params]
    for problem, names in (("unknown", unknown), ("missing", missing)):
        if names:
            raise ValueError(
                f"{problem} parameter{'s' * (len(names) > 1)} {', '.join(names)} for mechanism {name!r}, "
                f"which takes {', '.join(known)}"
            )
    return cls(**params)


def mechanism_class(name: str) -> type[Mechanism]:
    """Return the class registered as `name`, by an installed third party if need be.

    Raises
    ------
    ValueError
        If the name is unknown.
    """
    if name not in _registry:
        _load_entry_points()
    if name not in _registry:
        raise ValueError(f"mechanism must be one of {', '.join(sorted(_registry))}, got {name!r}")
    return _registry[name]


def mechanism_from_spec(spec: Mapping[str, Any]) -> Mechanism:
    """Make the mechanism that `spec` describes: the inverse of `Mechanism.spec`.

    Parameters
    ----------
    spec : mapping
        The name under ``"mechanism"``, and the constructor's arguments; arrays as (nested) lists.

    Raises
    ------
    ValueError
        If `spec` names no mechanism, or for the reasons `mechanism` has.
    """
    if not isinstance(spec, Mapping) or not isinstance(spec.get("mechanism"), str):
        raise ValueError(f'spec must be a dict with the mechanism\'s name under "mechanism", got {spec!r}')
    params = dict(spec)
    return mechanism(params.pop("mechanism"), **params)


def mechanism_names() -> list[str]:
    """Return the sorted names of all mechanisms, those of installed third parties included."""
    _load_entry_points()
    return sorted(_registry)


def _load_entry_points() -> None:
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            cls = point.load()
        except (ImportError, AttributeError) as error:
            raise ImportError(f"entry point {point.name} = {point.value} of {ENTRY_POINT_GROUP}: {error}") from error
        register(point.name)(cls)


def _register_pytree(cls: type[Mechanism]) -> None:
    fields = dataclasses.fields(cls)
    static = tuple(f.name for f in fields if f.metadata.get("static", False))
    leaves = tuple(f.name for f in fields if f.name not in static)

    def flatten_with_keys(tree: Mechanism) -> tuple[tuple, tuple]:
        return tuple((GetAttrKey(n), getattr(tree, n)) for n in leaves), tuple(getattr(tree, n) for n in static)

    def unflatten(aux: tuple, children: tuple) -> Mechanism:
        tree = object.__new__(cls)
        for field, value in zip(leaves + static, (*children, *aux), strict=True):
            object.__setattr__(tree, field, value)
        return tree

    register_pytree_with_keys(cls, flatten_with_keys, unflatten)


def _parameters(cls: type[Mechanism] | Mechanism) -> dict[str, bool]:
    """Names of the constructor's arguments, and whether each is required."""
    missing = dataclasses.MISSING
    return {f.name: f.default is missing and f.default_factory is missing for f in dataclasses.fields(cls) if f.init}


def check_order(lower: Any, upper: Any) -> None:
    """ValueError unless lower bounds are below upper ones, by what is a finite number; what is traced is left alone."""
    if not _concrete(lower, upper):
        return
    if np.any(np.less_equal(upper, lower)):
        raise ValueError(f"lower must be below upper, got lower = {lower!r}, upper = {upper!r}")
    # halved, so that the check itself cannot overflow
    if np.any(np.subtract(np.divide(upper, 2), np.divide(lower, 2)) > np.finfo(float).max / 2):
        raise ValueError(f"upper - lower must be finite, got lower = {lower!r}, upper = {upper!r}")


def whole_numbers_up_to(name: str, values: np.ndarray, most: int) -> None:
    """ValueError if numbers up to `most` are given in a precision in which those that are there have been rounded."""
    if values.dtype.kind == "f":
        exact = int(2 / np.finfo(values.dtype).eps)
        if exact < most and (values > exact).any():
            raise ValueError(
                f"{name} must be given as integers, or in a precision that holds {most}, got {values.dtype}, which "
                f"rounds numbers above {exact}"
            )


def unmasked(values: Any) -> Any:
    """What is given, or ValueError if it is a masked array that masks anything: NumPy would drop the mask."""
    if np.ma.is_masked(values):
        raise ValueError(f"values must not be masked, {np.ma.count_masked(values)} are: drop those records")
    return values


def _array(value: ArrayLike) -> Any:
    return value if isinstance(value, jax.Array) else np.asarray(value)


def _concrete(*values: Any) -> bool:
    return not any(isinstance(value, Tracer) for value in values)


def _extreme(which: str, value: Any) -> Any:
    """Smallest ("min") or largest ("max") entry: a float if concrete."""
    return float(getattr(np, which)(value)) if _concrete(value) else getattr(jnp, which)(value)


def _show(value: Any) -> str:
    if isinstance(value, (np.ndarray, jax.Array)) and _concrete(value):
        array = np.asarray(value)
        if array.size <= 6:
            return repr(array.tolist())
        return f"<{'x'.join(map(str, array.shape))} values in [{array.min():.4g}, {array.max():.4g}]>"
    return repr(value)
