"""Which closed form serves a law of the records under a mechanism: the registry of marginal densities.

A closed form is a function of (base, mechanism, z) that returns the log density of released values with the latent x,
and the clipping at both bounds, integrated out. It is registered for a class of distributions and a class of mechanisms
or of noises, and serves their subclasses.
"""

from collections.abc import Callable
from typing import Any

from ldpbayes.likelihood._masses import unexpanded
from ldpbayes.likelihood._unperturbed import with_unperturbed
from ldpbayes.noise import Noise, Omitted

__all__ = ["closed_form", "is_own", "register_closed_form"]

ClosedForm = Callable[[Any, Any, Any], Any]

_OURS: dict[tuple[type, type], ClosedForm] = {}
_OWN: dict[tuple[type, type], ClosedForm] = {}  # a user's, which always win


def register_closed_form(base_type: type, kind: type) -> Callable[[ClosedForm], ClosedForm]:
    """Decorator: use the function for `base_type` under mechanisms, or noises, of a class and its subclasses.

    Parameters
    ----------
    base_type : type
        A NumPyro distribution class.
    kind : type
        A class of noises (of `ldpbayes.noise`), for any mechanism that adds such noise; or a class of mechanisms. A
        form for a noise serves also where that noise is left out for some records: these are mixed in. A form for a
        mechanism has to say all of it.

    Returns
    -------
    callable
        Decorator for a function (base, mechanism, z) -> log density of the broadcast shape of z and the base's batch.
        Your own function wins over one of ours, in `Privatized` and `observe`, for releases and for sketches.

    Raises
    ------
    TypeError
        If one of the arguments is not a class.
    ValueError
        When another function has been registered for the pair.
    """
    if not (isinstance(base_type, type) and isinstance(kind, type)):
        raise TypeError(f"register_closed_form takes two classes, got {base_type!r} and {kind!r}")

    def decorate(function: ClosedForm) -> ClosedForm:
        forms = _OURS if function.__module__.startswith("ldpbayes.") else _OWN
        known = forms.get((base_type, kind), function)
        # running a notebook cell again defines the same function anew
        if (known.__module__, known.__qualname__) != (function.__module__, function.__qualname__):
            raise ValueError(f"{known!r} is registered for {base_type.__name__} under {kind.__name__} already")
        forms[base_type, kind] = function
        return function

    return decorate


def closed_form(base: Any, mechanism: Any) -> ClosedForm | None:
    """The function registered for a law and a mechanism, a user's before ours, or None.

    The nearest base class counts first, then the mechanism's classes, then those of its noise.

    Parameters
    ----------
    base : numpyro.distributions.Distribution
        Law of a record.
    mechanism : Mechanism
        What perturbs it.

    Returns
    -------
    callable or None
        Maps (base, mechanism, z) to the log density of z, records without noise included.
    """
    for forms in (_OWN, _OURS):
        found = _found(forms, base, mechanism)
        if found is not None:
            return found
    return None


def is_own(base: Any, mechanism: Any) -> bool:
    """Whether a closed form for these is a user's own.

    Parameters
    ----------
    base, mechanism
        See `closed_form`.
    """
    return _found(_OWN, base, mechanism) is not None


def _found(forms: dict[tuple[type, type], ClosedForm], base: Any, mechanism: Any) -> ClosedForm | None:
    noise = getattr(mechanism, "noise", None)
    left_out = isinstance(noise, Omitted)
    law = noise.noise if left_out else noise
    for base_type in type(unexpanded(base)).__mro__:
        for kind in type(mechanism).__mro__:
            if (base_type, kind) in forms:
                return forms[base_type, kind]
        for kind in type(law).__mro__ if isinstance(law, Noise) else ():
            if (base_type, kind) in forms:
                return _mixed(forms[base_type, kind]) if left_out else forms[base_type, kind]
    return None


def _mixed(function: ClosedForm) -> ClosedForm:
    """A form for the records that get noise, as one for all of them."""

    def mixed(base: Any, mechanism: Any, z: Any) -> Any:
        return with_unperturbed(base, mechanism, z, function(base, mechanism.perturbing, z))

    return mixed
