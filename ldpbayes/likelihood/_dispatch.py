"""Which closed form serves a law of the records under a mechanism: the registry of marginal densities.

A closed form is a function of (base, mechanism, z) that returns the log density of released values with the latent x,
and the clipping at both bounds, integrated out. It is registered for a class of distributions and a class of mechanisms
or of noises, and serves their subclasses.
"""

from collections.abc import Callable
from typing import Any

from ldpbayes.likelihood._families import unexpanded
from ldpbayes.likelihood._registry import Registry
from ldpbayes.likelihood._unperturbed import with_unperturbed
from ldpbayes.noise import Noise, Omitted

__all__ = ["ClosedForm", "closed_form", "is_own", "register_closed_form"]

ClosedForm = Callable[[Any, Any, Any], Any]

_FORMS = Registry()


def register_closed_form(
    base_type: type, kind: type, *, bounded: bool | None = None
) -> Callable[[ClosedForm], ClosedForm]:
    """Decorator: use the function for `base_type` under mechanisms, or noises, of a class and its subclasses.

    Parameters
    ----------
    base_type : type
        A NumPyro distribution class.
    kind : type
        A class of noises (of `ldpbayes.noise`), for any mechanism that adds such noise; or a class of mechanisms. A
        form for a noise serves also where that noise is left out for some records: these are mixed in. A form for a
        mechanism has to say all of it.
    bounded : bool, optional
        Serve only mechanisms that clip records to bounds (True), or only those without bounds (False), whose releases
        are statistics. By default both: the function then looks at ``mechanism.bounded``.

    Returns
    -------
    callable
        Decorator for a function (base, mechanism, z) -> log density of the broadcast shape of z and the base's batch.
        Your own function wins over one of ours, in `Privatized` and `observe`, for releases and for sketches.

    Raises
    ------
    TypeError
        If one of the first two arguments is not a class.
    ValueError
        When another function has been registered for the pair.
    """
    if not (isinstance(base_type, type) and isinstance(kind, type)):
        raise TypeError(f"register_closed_form takes two classes, got {base_type!r} and {kind!r}")

    def decorate(function: ClosedForm) -> ClosedForm:
        for clips in (True, False) if bounded is None else (bounded,):
            _FORMS.add((base_type, kind, clips), function, f"{base_type.__name__} under {kind.__name__}")
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
    for forms in _FORMS.tables:
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
    return _found(_FORMS.own, base, mechanism) is not None


def _found(forms: dict[Any, ClosedForm], base: Any, mechanism: Any) -> ClosedForm | None:
    noise = getattr(mechanism, "noise", None)
    left_out = isinstance(noise, Omitted)
    law = noise.noise if isinstance(noise, Omitted) else noise
    clips = bool(getattr(mechanism, "bounded", True))  # categories have no bounds, and nothing beyond them either
    for base_type in type(unexpanded(base)).__mro__:
        for kind in type(mechanism).__mro__:
            if (base_type, kind, clips) in forms:
                return forms[base_type, kind, clips]
        for kind in type(law).__mro__ if isinstance(law, Noise) else ():
            if (base_type, kind, clips) in forms:
                form = forms[base_type, kind, clips]
                return _mixed(form) if left_out else form
    return None


def _mixed(function: ClosedForm) -> ClosedForm:
    """A form for the records that get noise, as one for all of them."""

    def mixed(base: Any, mechanism: Any, z: Any) -> Any:
        return with_unperturbed(base, mechanism, z, function(base, mechanism.perturbing, z))

    return mixed
