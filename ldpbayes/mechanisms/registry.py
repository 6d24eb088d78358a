"""The registry that finds mechanisms by name, installed third parties' included, and makes them from specs."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar, dataclass_transform

from ldpbayes._core.pytrees import pytree, ruled, static, undeclared_traits
from ldpbayes.mechanisms.protocol import DiscreteMechanism, Mechanism, NumericMechanism, from_json

ENTRY_POINT_GROUP = "ldpbayes.mechanisms"

_registry: dict[str, type[Mechanism]] = {}
_summaries: dict[str, str] = {}
_M = TypeVar("_M", bound=type["Mechanism"])


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
        if not (isinstance(cls, type) and issubclass(cls, Mechanism)):
            raise TypeError(f"mechanism {name!r} must be a subclass of ldpbayes.mechanisms.Mechanism, got {cls!r}")
        if not issubclass(cls, (NumericMechanism, DiscreteMechanism)):
            raise TypeError(f"mechanism {name!r} must be a NumericMechanism or a DiscreteMechanism, got {cls!r}")
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
def registered_dataclass(name: str, summary: str) -> Callable[[Any], Any]:
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
