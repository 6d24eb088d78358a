"""The names of the correction methods: shorthand for the methods with their defaults."""

import dataclasses
from typing import Any

from ldpbayes.estimation.corrections._combined import Combined
from ldpbayes.estimation.corrections._correction import Correction
from ldpbayes.estimation.corrections._doubly_random import DoublyRandom
from ldpbayes.estimation.corrections._independent_laplace import IndependentLaplaceCorrection
from ldpbayes.estimation.corrections._naive import Naive
from ldpbayes.estimation.corrections._oracle import Oracle
from ldpbayes.estimation.corrections._smoothed_doubly_random import SmoothedDoublyRandom
from ldpbayes.estimation.corrections._symmetric_laplace import SymmetricLaplaceCorrection
from ldpbayes.mechanisms import Additive

__all__ = ["check_noise", "correction", "methods_for"]

_METHODS: dict[str, type[Correction]] = {
    cls.name: cls
    for cls in (
        Combined,
        DoublyRandom,
        SmoothedDoublyRandom,
        SymmetricLaplaceCorrection,
        IndependentLaplaceCorrection,
        Naive,
        Oracle,
    )
}


def correction(method: str | Correction, **options: Any) -> Correction:
    """The method that is meant.

    Parameters
    ----------
    method : str or Correction
        A name stands for a method with its defaults.
    **options
        Fields in which a method that is named differs from its defaults; those that it does not have are left aside.

    Raises
    ------
    TypeError
        For something else, or options beside a method that is not named: they are its own.
    ValueError
        For a name that there is not.
    """
    if isinstance(method, Correction):
        if options:
            said = ", ".join(f"{name}={value!r}" for name, value in options.items())
            raise TypeError(f"{said} goes with a method's name; here say {type(method).__name__}({said})")
        return method
    known = ", ".join(_METHODS)
    if not isinstance(method, str):
        hint = f"; call it, {method.__name__}(...)" if isinstance(method, type) else ""
        raise TypeError(f"method must be one of {known}, or a Correction, got {method!r}{hint}")
    cls = _METHODS.get(method)
    if cls is None:
        raise ValueError(f"method must be one of {known}, or a Correction, got {method!r}")
    fields = {field.name for field in dataclasses.fields(cls)}
    return cls(**{name: value for name, value in options.items() if name in fields})


def check_noise(method: Correction, mechanism: Additive) -> None:
    """Refuse a method that is not for the noise of a mechanism.

    Parameters
    ----------
    method : Correction
        What is to be used.
    mechanism : Additive
        That made the release.

    Raises
    ------
    ValueError
        Saying which methods are for it.
    """
    if method.takes(mechanism.noise, mechanism.dimension):
        return
    others = [other.name for other in methods_for(mechanism)]
    known = " or ".join(filter(None, [", ".join(map(repr, others[:-1])), *map(repr, others[-1:])]))
    raise ValueError(
        f"method {method.name!r} is not for {type(mechanism).__name__}; use {known or 'ldpbayes.fit, or your own'}"
    )


def methods_for(mechanism: Additive) -> list[Correction]:
    """The methods that correct for the noise of a mechanism, with their defaults.

    Parameters
    ----------
    mechanism : Additive
        That made the release.
    """
    # those that take any noise correct nothing
    corrections = [cls() for cls in _METHODS.values() if not issubclass(cls, Naive)]
    return [method for method in corrections if method.takes(mechanism.noise, mechanism.dimension)]
