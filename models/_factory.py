"""What all factories share: priors and releases are checked, and a model shows the call that makes it."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpyro.distributions as dist

from ldpbayes import Release, Sketch, mechanisms
from ldpbayes._core.printing import FEW, readable, shown

KINDS: dict[str, Callable[[Any], bool]] = {
    "numbers": lambda m: not m.record_shape and not isinstance(m, mechanisms.PureProtocol),
    "categories": lambda m: isinstance(m, mechanisms.PureProtocol),
    "yes-or-no answers": lambda m: isinstance(m, mechanisms.PureProtocol) and m.categories == 2,
    "labels": lambda m: not m.record_shape,
    "rows": lambda m: bool(m.record_shape) and not isinstance(m, mechanisms.StatisticsMechanism),
    "rows or linear statistics": lambda m: KINDS["rows"](m) or isinstance(m, mechanisms.LinearStatisticsMechanism),
    "rows or logistic statistics": lambda m: KINDS["rows"](m) or isinstance(m, mechanisms.LogisticStatisticsMechanism),
}
PRIORS = dist.Distribution, dist.Distribution | None  # annotations of arguments that are priors
LONGEST = 80  # characters of an argument in a message

F = TypeVar("F", bound=Callable[..., Callable[..., None]])


def factory(kind: str, groups: bool = False, **default: str) -> Callable[[F], F]:
    """Decorator of a factory of models of one release, or sketch, of a `kind`, a key of `KINDS`; or of one for each of
    some `groups`. `default` has texts for arguments where None means a prior; others that are None or False by default
    are shown only if they are something else.
    """

    def decorator(function: F) -> F:
        signature = inspect.signature(function)
        parameters = signature.parameters

        @functools.wraps(function)
        def make(*args: Any, **kwargs: Any) -> Model:
            model, call = function(*args, **kwargs), signature.bind(*args, **kwargs)
            call.apply_defaults()
            texts = {}
            for name, value in call.arguments.items():
                parameter, first = parameters[name], value[0] if isinstance(value, (list, tuple)) and value else value
                # Data mean that the factory was taken for its model: the caller reports that no site was made.
                if parameter.annotation in PRIORS and not isinstance(first, (parameter.annotation, Release, Sketch)):
                    text = repr(value) if len(repr(value)) < LONGEST else type(value).__name__
                    raise TypeError(f"{name} must be a NumPyro distribution, a prior; got {text}")
                if name in default or value is not parameter.default or value not in (None, False):
                    texts[name] = default.get(name, "None") if value is None else _text(value)
            return Model(model, function.__name__, kind, groups, texts)

        # `help` would show the addresses of the default priors in memory
        make.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else _Unquoted(_text(p.default)))
                for p in parameters.values()
            ]
        )
        return cast(F, make)

    return decorator


class Model:
    """A model that refuses releases of another kind, and shows its factory with the texts of its arguments."""

    def __init__(
        self, model: Callable[..., None], factory: str, kind: str, groups: bool, shown: dict[str, str]
    ) -> None:
        functools.update_wrapper(self, model)
        self.factory, self.kind, self.groups, self.shown = factory, kind, groups, shown

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        for data in (*args, *kwargs.values())[:1]:
            for release in self._groups(data) if self.groups else [data]:
                self._check(release)
        self.__wrapped__(*args, **kwargs)  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"{self.factory}({', '.join(f'{name}={text}' for name, text in self.shown.items())})"

    def _check(self, release: Any) -> None:
        """TypeError for all but releases and sketches of the model's kind."""
        takes = f"{self.factory} takes a release of {self.kind}"
        if not isinstance(release, (Release, Sketch)):
            raise TypeError(f"{takes}, or a sketch of one; got {type(release).__name__}")
        if not KINDS[self.kind](release.mechanism):
            raise TypeError(f"{takes}, got one under {release.mechanism!r}")
        if self.kind == "labels" and isinstance(release, Sketch):
            law = "in a sketch labels have one law, whatever their features"
            raise TypeError(f"{self.factory} takes the release itself: {law}")

    def _groups(self, data: Any) -> Sequence[Release | Sketch]:
        """The releases of groups, a sketch of all of them as one; TypeError for anything else."""
        if isinstance(data, Sketch) and data.law_shape:
            return [data]
        if isinstance(data, Sequence) and data:
            return data
        takes = "a sketch made with by=, or a sequence" if self.kind == "categories" else "a sequence"
        got = "an empty one" if isinstance(data, Sequence) else f"a {type(data).__name__}"
        advice = ": pass list(d.values()), and the names as coords={'group': list(d)}" if isinstance(data, dict) else ""
        raise TypeError(f"{self.factory} takes {takes} of releases, one a group, got {got}{advice}")


class _Unquoted(str):
    __repr__ = str.__str__  # a default in a signature, without quotation marks


def _text(value: Any) -> str:
    """A distribution as the expression that makes it, numbers in four digits, a function by its name."""
    if isinstance(value, dist.ExpandedDistribution):
        return f"{_text(value.base_dist)}.expand({list(value.batch_shape)})"
    if isinstance(value, dist.Independent):
        return f"{_text(value.base_dist)}.to_event({value.reinterpreted_batch_ndims})"
    if isinstance(value, dist.Distribution):
        parameters = inspect.signature(type(value)).parameters.values()
        names = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY and p.name != "validate_args"]
        kept = all(hasattr(value, name) for name in names)  # some laws do not keep what they were made from
        return f"{type(value).__name__}({', '.join(_text(getattr(value, name)) for name in names) if kept else '...'})"
    numbers = readable(value)
    if numbers is None or numbers.dtype == bool:
        return getattr(value, "__name__", repr(value))
    if numbers.ndim == 0:
        return f"{numbers:.4g}"
    few = numbers.ndim == 1 and numbers.size <= FEW
    return f"[{', '.join(map(_text, numbers))}]" if few else shown(numbers)
