"""Factories: decorated functions of priors and options that return models, which check their data."""

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike

from ldpbayes._core.pytrees import MOST_SHOWN_ENTRIES, readable, shown
from ldpbayes.data import Release, Sketch
from ldpbayes.inference.model import Model
from ldpbayes.mechanisms import LinearStatisticsMechanism, LogisticStatisticsMechanism, StatisticsMechanism

RELEASE_KINDS: dict[str, Callable[[Any], bool]] = {
    "numbers": lambda m: not m.record_shape and not m.of_categories,
    "categories": lambda m: m.of_categories,
    "yes-or-no answers": lambda m: m.of_categories and m.categories == 2,
    "labels": lambda m: not m.record_shape,
    "rows": lambda m: bool(m.record_shape) and not isinstance(m, StatisticsMechanism),
    "rows or linear statistics": lambda m: RELEASE_KINDS["rows"](m) or isinstance(m, LinearStatisticsMechanism),
    "rows or logistic statistics": lambda m: RELEASE_KINDS["rows"](m) or isinstance(m, LogisticStatisticsMechanism),
}
PRIORS = dist.Distribution, dist.Distribution | None  # annotations of arguments that are priors
SHOWN_CHARACTERS = 80  # of an argument in a message

D = TypeVar("D")
P = ParamSpec("P")


def factory(
    kind: str,
    groups: bool = False,
    coordinates: Callable[..., Any] | None = None,
    summary: str = "",
    **defaults: str,
) -> Callable[[Callable[Concatenate[D, P], None]], Callable[P, "FactoryModel"]]:
    """Decorator that makes a factory of models from a function of data and options, such as priors.

    The factory checks that priors (options whose annotation is ``numpyro.distributions.Distribution``, perhaps ``|
    None``) are distributions. Its result is a `Model` of the data, which raises TypeError for releases of another kind,
    and shows the call that made it.

    Parameters
    ----------
    kind : str
        The kind of release, or of sketch, that the model takes: "numbers", "categories", "yes-or-no answers", "labels",
        "rows", "rows or linear statistics" or "rows or logistic statistics".
    groups : bool
        True if the model takes a sequence of releases, one for each group, or a sketch with groups. Default: False.
    coordinates : callable, optional
        A function of the data and the options. `fit` gives its result to the argument ``coordinates`` of the model,
        which is not an option of the factory. Coordinates make a posterior easier to sample, and must not change the
        model.
    summary : str
        A sentence about the model, which ``ldpbayes models`` prints.
    **defaults : str
        For options whose default is None: the text that describes this default in the shown call.

    Examples
    --------
    >>> import numpyro, numpyro.distributions as dist, ldpbayes as ldp
    >>> @ldp.inference.factory("numbers")
    ... def waiting_times(release, rate: dist.Distribution = dist.Gamma(2, 1)):
    ...     ldp.observe("z", dist.Exponential(numpyro.sample("rate", rate)), release)
    >>> waiting_times()
    waiting_times(rate=Gamma(2, 1))
    """

    def decorator(function: Callable[Concatenate[D, P], None]) -> Callable[P, FactoryModel]:
        data, *options = inspect.signature(function).parameters.values()
        options = [p for p in options if coordinates is None or p.name != "coordinates"]
        signature = inspect.Signature(options)

        @functools.wraps(function)
        def make(*args: P.args, **kwargs: P.kwargs) -> FactoryModel:
            try:
                call = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            call.apply_defaults()
            values = {p.name: _checked(p, call.arguments[p.name]) for p in options}
            texts = {
                p.name: defaults.get(p.name, "None") if values[p.name] is None else _text(values[p.name])
                for p in options
                if p.name in defaults or values[p.name] is not p.default or p.default not in (None, False)
            }
            model = FactoryModel(functools.partial(function, **values), data, kind, groups, texts, coordinates)
            model.summary = summary
            return model

        # `help` would show the addresses of the default priors in memory
        make.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else _Unquoted(_text(p.default)))
                for p in options
            ]
        )
        return make

    return decorator


def _checked(option: inspect.Parameter, value: Any) -> Any:
    """An option's value, an array as a matrix; TypeError or ValueError for one that is not what its annotation says."""
    if option.annotation == ArrayLike:
        value = jnp.asarray(value)
        if value.ndim != 2 or not bool(jnp.all(jnp.isfinite(value))):
            allowed = "an array (labels, features) of finite numbers"
            raise ValueError(f"{option.name} must be {allowed}, got shape {value.shape}")
    # Data mean that the factory was taken for its model: the caller reports that no site was made.
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    if option.annotation in PRIORS and not isinstance(first, (option.annotation, Release, Sketch)):
        text = repr(value) if len(repr(value)) < SHOWN_CHARACTERS else type(value).__name__
        raise TypeError(f"{option.name} must be a NumPyro distribution, a prior; got {text}")
    return value


class FactoryModel(Model):
    """A model that refuses releases of another kind, and shows its factory with the texts of its options."""

    def __init__(
        self,
        model: functools.partial,
        data: inspect.Parameter,
        kind: str,
        groups: bool,
        shown: dict[str, str],
        coordinates: Callable[..., Any] | None = None,
    ) -> None:
        self.__wrapped__, self.__name__, self.__signature__ = model, "model", inspect.Signature([data])
        self.name, self.kind, self.groups, self.shown = model.func.__name__, kind, groups, shown
        self._coordinates_of = coordinates

    def tuned(self, *args: Any, **kwargs: Any) -> Model:
        (data,) = self.__signature__.bind(*args, **kwargs).args
        parts = self._groups(data) if self.groups else [data]
        if self._coordinates_of is None or any(isinstance(part, Release) and part.values is None for part in parts):
            return self
        for part in parts:
            self._check(part)
        coordinates = self._coordinates_of(data, **self.__wrapped__.keywords)
        model = copy.copy(self)
        model.__wrapped__, model._coordinates_of = functools.partial(self.__wrapped__, coordinates=coordinates), None
        return model

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        for data in (*args, *kwargs.values())[:1]:
            for release in self._groups(data) if self.groups else [data]:
                self._check(release)
        self.__wrapped__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={text}' for name, text in self.shown.items())})"

    def _check(self, release: Any) -> None:
        """TypeError for all but releases and sketches of the model's kind."""
        takes = f"{self.name} takes a release of {self.kind}"
        if not isinstance(release, (Release, Sketch)):
            raise TypeError(f"{takes}, or a sketch of one; got {type(release).__name__}")
        if not RELEASE_KINDS[self.kind](release.mechanism):
            raise TypeError(f"{takes}, got one under {release.mechanism!r}")
        if self.kind == "labels" and isinstance(release, Sketch):
            law = "a sketch does not keep the features of the labels"
            raise TypeError(f"{self.name} takes a release and not a sketch, because {law}")

    def _groups(self, data: Any) -> Sequence[Release | Sketch]:
        """The releases of groups, a sketch of all of them as one; TypeError for anything else."""
        if isinstance(data, Sketch) and data.law_shape:
            return [data]
        if isinstance(data, Sequence) and data:
            return data
        takes = "a sketch made with by=, or a sequence" if self.kind == "categories" else "a sequence"
        got = "an empty one" if isinstance(data, Sequence) else f"a {type(data).__name__}"
        advice = ": pass ldpbayes.data.Groups([*d.values()], {'group': tuple(d)})" if isinstance(data, dict) else ""
        raise TypeError(f"{self.name} takes {takes} of releases, one for each group, got {got}{advice}")


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
    numbers = None if isinstance(value, Release) else readable(value)
    if numbers is None or numbers.dtype == bool:
        return getattr(value, "__name__", repr(value))
    if numbers.ndim == 0:
        return f"{numbers:.4g}"
    few = numbers.ndim == 1 and numbers.size <= MOST_SHOWN_ENTRIES
    return f"[{', '.join(map(_text, numbers))}]" if few else shown(numbers)
