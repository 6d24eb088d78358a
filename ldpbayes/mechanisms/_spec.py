"""Fields of a mechanism as JSON."""

from typing import Any

import numpy as np

import ldpbayes.noise
from ldpbayes._shown import shown_fields
from ldpbayes.noise import Noise

__all__ = ["from_json", "to_json"]


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
