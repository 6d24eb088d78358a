"""Fields of a mechanism as JSON, and in a repr."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import ldpbayes.noise
from ldpbayes._tracing import is_concrete
from ldpbayes.noise import Noise

__all__ = ["from_json", "shown", "shown_fields", "to_json"]


def shown_fields(tree: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of the constructor's arguments, less `optional` ones that are None.

    Parameters
    ----------
    tree : dataclass
        A mechanism, or a noise.
    """
    for field in dataclasses.fields(tree):
        if field.init and not (getattr(tree, field.name) is None and field.metadata.get("optional")):
            yield field.name, getattr(tree, field.name)


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


def shown(value: Any) -> str:
    """A field's value in a repr, long arrays abridged.

    Parameters
    ----------
    value : object
        Anything.
    """
    if isinstance(value, (np.ndarray, jax.Array)) and is_concrete(value):
        array = np.asarray(value)
        if array.size <= 6:
            return repr(array.tolist())
        return f"<{'x'.join(map(str, array.shape))} values in [{array.min():.4g}, {array.max():.4g}]>"
    return repr(value)
