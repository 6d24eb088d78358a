"""Models: what `fit`, `predict` and the command line ask of them, factories of models, and plans of new records."""

import copy
import difflib
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.primitives import Messenger

from ldpbayes._core.pytrees import MOST_SHOWN_ENTRIES, readable, shown
from ldpbayes._core.tabular import Table, arrays_of_frames
from ldpbayes._core.types import Model as NumpyroModel
from ldpbayes.data import Groups, Release, Sketch
from ldpbayes.mechanisms import (
    LinearStatisticsMechanism,
    LogisticStatisticsMechanism,
    StatisticsMechanism,
    mechanism_from_spec,
)

Arguments: TypeAlias = tuple[tuple, dict[str, Any], dict[str, str]]
"""Positional and named arguments of a model, and entries for the attributes of its posterior."""


class Model:
    """A NumPyro model that says which data it takes, and how `fit` reads and samples it.

    A plain function is a model, too. Derive from this class only if a model prepares its arguments, or if its posterior
    is sampled better in coordinates that depend on the data. `factory` makes models of this class.

    Attributes
    ----------
    name : str or None
        Name of the factory that made the model.
    summary : str
        A sentence about the model, for lists of models.
    kind, groups : str and bool
        The kind of releases that the model takes, such as ``"numbers"`` (default) or ``"categories"``, and whether it
        takes a sequence of them, one for each group.
    """

    name: str | None = None
    summary: str = ""
    kind: str = "numbers"
    groups: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model: call ``numpyro.sample`` and `observe`."""
        raise NotImplementedError

    def prepare(self, args: tuple, kwargs: dict[str, Any], attrs: Mapping[str, Any] | None = None) -> Arguments:
        """Return arguments as the model reads them, and entries for the attributes of the result (in `attrs` later)."""
        call = signature_of(self).bind_partial(*args, **kwargs)
        arguments, names = arrays_of_frames(dict(call.arguments)), dict[str, list]()
        fitted = json.loads((attrs or {}).get("columns", "{}"))

        def ordered(path: Any, leaf: Any) -> Any:
            if not _is_table(leaf):
                return leaf
            place = jax.tree_util.keystr(path)
            names[place] = leaf.columns
            return leaf.ordered(fitted.get(place))

        call.arguments.update(jax.tree.map_with_path(ordered, arguments, is_leaf=_is_table))
        return call.args, call.kwargs, {"columns": json.dumps(names)} if names else {}

    def tuned(self, *args: Any, **kwargs: Any) -> NumpyroModel:
        """Return an equal model in coordinates in which the posterior given these arguments is easy to sample."""
        return self


def _is_table(leaf: object) -> bool:
    return isinstance(leaf, Table)


class _Function(Model):
    def __init__(self, function: NumpyroModel) -> None:
        self.__wrapped__, self.__signature__ = function, signature_of(function)

    def tuned(self, *args: Any, **kwargs: Any) -> NumpyroModel:
        return self.__wrapped__


def model_of(function: NumpyroModel) -> Model:
    return function if isinstance(function, Model) else _Function(function)


def check_call(model: NumpyroModel, args: tuple, kwargs: dict[str, Any], options: Mapping[str, Any]) -> None:
    """TypeError for arguments that the model does not take, with a hint at misspelt options of `fit`."""
    signature = inspect.signature(model)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(model, "__name__", "model")
        similar = [close for word in kwargs for close in difflib.get_close_matches(word, options, 1)]
        hint = f"; fit has an option {similar[0]}" if similar else ""
        raise TypeError(f"{error}; the model is {name}({', '.join(signature.parameters)}){hint}") from None


def signature_of(model: NumpyroModel) -> inspect.Signature:
    """Of the model inside a handler."""
    return inspect.signature(model.fn if isinstance(model, Messenger) else model)


RELEASE_KINDS: dict[str, Callable[[Any], bool]] = {
    "numbers": lambda m: not m.record_shape and not m.of_categories,
    "categories": lambda m: m.of_categories,
    "yes-or-no answers": lambda m: m.of_categories and m.categories == 2,
    "numbers or yes-or-no answers": lambda m: RELEASE_KINDS["numbers"](m) or RELEASE_KINDS["yes-or-no answers"](m),
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
    kind: str, groups: bool = False, coordinates: Callable[..., Any] | None = None, summary: str = "", **defaults: str
) -> Callable[[Callable[Concatenate[D, P], None]], Callable[P, "FactoryModel"]]:
    """Decorator that makes a factory of models from a function of data and options, such as priors.

    The factory checks that priors (options whose annotation is ``numpyro.distributions.Distribution``, perhaps ``|
    None``) are distributions. Its result is a `Model` of the data, which raises TypeError for releases of another kind,
    and shows the call that made it.

    Parameters
    ----------
    kind : str
        The kind of release, or of sketch, that the model takes: "numbers", "categories", "yes-or-no answers",
        "numbers or yes-or-no answers", "labels", "rows", "rows or linear statistics" or "rows or logistic statistics".
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
            model = FactoryModel(functools.partial(function, **values), data, texts, coordinates)
            model.kind, model.groups, model.summary = kind, groups, summary
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
        self, model: functools.partial, data: inspect.Parameter, shown: dict[str, str], coordinates: Callable | None
    ) -> None:
        self.__wrapped__, self.__name__, self.__signature__ = model, "model", inspect.Signature([data])
        self.name, self.shown, self._coordinates_of = model.func.__name__, shown, coordinates

    def tuned(self, *args: Any, **kwargs: Any) -> Model:
        (data,) = self.__signature__.bind(*args, **kwargs).args
        if any(map(is_plan, self._releases(data))) or self._coordinates_of is None:
            return self
        coordinates = self._coordinates_of(data, **self.__wrapped__.keywords)
        model = copy.copy(self)
        model.__wrapped__, model._coordinates_of = functools.partial(self.__wrapped__, coordinates=coordinates), None
        return model

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        for data in (*args, *kwargs.values())[:1]:
            self._releases(data)
        self.__wrapped__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={text}' for name, text in self.shown.items())})"

    def _releases(self, data: Any) -> Sequence[Release | Sketch]:
        """The releases and sketches among the data; TypeError for those of another kind than the model's."""
        takes = f"{self.name} takes a release of {self.kind}"
        releases = self._groups(data) if self.groups else [data]
        for release in releases:
            if not isinstance(release, (Release, Sketch)):
                raise TypeError(f"{takes}, or a sketch of one; got {type(release).__name__}")
            if not RELEASE_KINDS[self.kind](release.mechanism):
                raise TypeError(f"{takes}, got one under {release.mechanism!r}")
            if self.kind == "labels" and isinstance(release, Sketch):
                law = "a sketch does not keep the features of the labels"
                raise TypeError(f"{self.name} takes a release and not a sketch, because {law}")
        return releases

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


def plans_of(model: NumpyroModel, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What plans of new records need to know, by parameter of a model that takes a release or a sequence of them."""
    arguments = signature_of(model).bind_partial(*args, **kwargs).arguments
    return {name: _plan(value) for name, value in arguments.items() if releases_in(value)}


def with_plans(model: NumpyroModel, args: tuple, kwargs: dict[str, Any], fitted: dict[str, Any], kind: str) -> Any:
    """Arguments with plans in the place of releases, also of those of the fit (`plans_of`) that are left out.
    Positional arguments without a release among them are the model's other parameters, in their order.
    """
    signature = signature_of(model)
    if not any(map(releases_in, args)):
        others = [name for name in signature.parameters if name not in fitted and name not in kwargs]
        args, kwargs = args[len(others) :], kwargs | dict(zip(others, args, strict=False))
    call = signature.bind_partial(*args, **kwargs)
    given = {name: parts for name, value in call.arguments.items() if (parts := releases_in(value))}
    shapes = [getattr(value, "shape", ()) for name, value in call.arguments.items() if name not in given]
    rows = next((shape[0] for shape in shapes if shape), 1)
    new = {name: _plan(call.arguments[name]) for name, parts in given.items() if not all(map(is_plan, parts))}
    for name, plan in ({name: plan for name, plan in fitted.items() if name not in given} | new).items():
        if plan["personal"] and kind == "released":
            advice = f"for new records pass {name}=Release(None, mechanism, count)"
            raise ValueError(f"{name} had a budget for each record: {advice}")
        mechanisms = map(mechanism_from_spec, plan["specs"])
        made = [Release(None, mechanism, rows if plan["groups"] is None else 1) for mechanism in mechanisms]
        call.arguments[name] = made[0] if plan["groups"] is None else made * (plan["groups"] // len(made))
    return call.args, call.kwargs


def releases_in(value: Any) -> list[Release | Sketch]:
    """A release or sketch by itself, or those of a sequence that holds nothing else."""
    parts = list(value) if isinstance(value, (list, tuple, Groups)) else [value]
    return parts if all(isinstance(part, (Release, Sketch)) for part in parts) else []


def is_plan(part: Any) -> bool:
    """Whether it is a release without values, which a model simulates."""
    return isinstance(part, Release) and part.values is None


def _plan(value: Any) -> dict[str, Any]:
    """Specs of the mechanisms of a release, or of its first record, or of those of groups; and the number of groups."""
    parts = releases_in(value)
    mechanisms = [part.mechanism for part in parts]
    personal = any(mechanism.batch_shape for mechanism in mechanisms)
    firsts = [each.of_records(each.batch_shape, slice(1)) if each.batch_shape else each for each in mechanisms]
    alone = value.num_groups if isinstance(value, Sketch) else None
    groups = alone if parts[0] is value else len(parts)
    return {"specs": [mechanism.spec() for mechanism in firsts], "groups": groups, "personal": personal}
