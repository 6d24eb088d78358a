"""Which release a model takes, and its priors: checked, and printed with the model."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import numpyro.distributions as dist

from ldpbayes import Release, Sketch, mechanisms
from ldpbayes._core.printing import FEW, shown

KINDS: dict[str, Callable[[Any], bool]] = {
    "numbers": lambda m: not m.record_shape and not isinstance(m, mechanisms.PureProtocol),
    "categories": lambda m: isinstance(m, mechanisms.PureProtocol),
    "yes-or-no answers": lambda m: isinstance(m, mechanisms.PureProtocol) and m.categories == 2,
    "labels": lambda m: not m.record_shape,
    "rows": lambda m: bool(m.record_shape) and not isinstance(m, mechanisms.StatisticsMechanism),
    "rows or linear statistics": lambda m: KINDS["rows"](m) or isinstance(m, mechanisms.LinearStatisticsMechanism),
    "rows or logistic statistics": lambda m: KINDS["rows"](m) or isinstance(m, mechanisms.LogisticStatisticsMechanism),
}
LONGEST = 80  # characters of an argument in a message


def check_kind(factory: str, release: Any, kind: str) -> None:
    """Refuse, with a TypeError that names the factory, all but releases and sketches of a `kind`: a key of `KINDS`."""
    if not isinstance(release, (Release, Sketch)):
        raise TypeError(f"{factory} takes a release of {kind}, or a sketch of one; got {type(release).__name__}")
    if not KINDS[kind](release.mechanism):
        raise TypeError(f"{factory} takes a release of {kind}, got one under {release.mechanism!r}")
    if kind == "labels" and isinstance(release, Sketch):
        raise TypeError(f"{factory} takes the release itself: in a sketch labels have one law, whatever their features")


F = TypeVar("F", bound=Callable[..., Callable[..., None]])


def shows_priors(**default: str) -> Callable[[F], F]:
    """Decorator of a factory, whose models then have a `repr` such as ``warner(theta=Beta(1, 1))``.

    `default` has texts for arguments where None means a prior; others that are None or False by default are shown only
    if they are something else. An argument whose default is a distribution must be one, or None where that is allowed.
    """

    def decorator(factory: F) -> F:
        signature = inspect.signature(factory)

        @functools.wraps(factory)
        def make(*args: Any, **kwargs: Any) -> _NamedModel:
            for name, value in (dict(zip(signature.parameters, args, strict=False)) | kwargs).items():
                _check_prior(name, value, signature.parameters.get(name))
            model, bound = factory(*args, **kwargs), signature.bind(*args, **kwargs)
            bound.apply_defaults()
            values = {
                name: default[name] if value is None and name in default else value
                for name, value in bound.arguments.items()
                if name in default or value is not signature.parameters[name].default or value not in (None, False)
            }
            return _NamedModel(model, factory.__name__, values)

        # `help` would show the addresses of the default priors in memory
        texts = [
            p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else _Unquoted(_text(p.default)))
            for p in signature.parameters.values()
        ]
        make.__signature__ = inspect.Signature(texts)  # type: ignore[attr-defined]
        return cast(F, make)

    return decorator


def _check_prior(name: str, value: Any, parameter: inspect.Parameter | None) -> None:
    """TypeError at once, where the model would end in an error of NumPyro."""
    if parameter is None or not isinstance(parameter.default, dist.Distribution):
        return
    none = value is None and parameter.annotation == dist.Distribution | None
    # Data as an argument mean that the factory was taken for its model: the caller reports that no site was made.
    data = any(isinstance(item, (Release, Sketch)) for item in (value if isinstance(value, (list, tuple)) else [value]))
    if not (none or data or isinstance(value, dist.Distribution)):
        text = repr(value) if len(repr(value)) < LONGEST else type(value).__name__
        raise TypeError(f"{name} must be a NumPyro distribution, a prior; got {text}")


class _NamedModel:
    """A model that prints its factory and the arguments of its factory."""

    def __init__(self, model: Callable[..., None], factory: str, arguments: dict[str, Any]) -> None:
        functools.update_wrapper(self, model)
        self._model, self._factory, self._arguments = model, factory, arguments

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self._model(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{self._factory}({', '.join(f'{name}={_text(value)}' for name, value in self._arguments.items())})"


class _Unquoted(str):
    __repr__ = str.__str__  # a default in a signature, without quotation marks


def _text(value: Any) -> str:
    """A distribution as the expression that makes it, an array abridged, a function by its name."""
    if isinstance(value, dist.Distribution):
        return _law(value)
    if isinstance(value, str) or value is None or value is True or value is False:
        return str(value)
    if callable(value):
        return getattr(value, "__name__", repr(value))
    try:
        numbers = np.asarray(value, float)
    except (TypeError, ValueError):
        return repr(value)
    if numbers.ndim == 0:
        return f"{numbers:.4g}"
    if numbers.ndim == 1 and numbers.size <= FEW:
        return f"[{', '.join(map(_text, numbers))}]"
    return shown(numbers)


def _law(law: Any) -> str:
    """A distribution as the expression that makes it."""
    if isinstance(law, dist.ExpandedDistribution):
        return f"{_law(law.base_dist)}.expand({list(law.batch_shape)})"
    if isinstance(law, dist.Independent):
        return f"{_law(law.base_dist)}.to_event({law.reinterpreted_batch_ndims})"
    parameters = inspect.signature(type(law)).parameters.values()
    names = [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY and each.name != "validate_args"]
    try:
        return f"{type(law).__name__}({', '.join(_text(getattr(law, name)) for name in names)})"
    except AttributeError:  # a law that does not keep what it was made from
        return f"{type(law).__name__}(...)"
