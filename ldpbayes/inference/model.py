"""What `fit`, `predict` and the command line ask of a model beside its sites, and how its arguments are read."""

import difflib
import inspect
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
from numpyro.primitives import Messenger

from ldpbayes._core.tabular import Table, arrays_of_frames
from ldpbayes._core.types import Model as NumpyroModel
from ldpbayes.data import Groups, Release, Sketch
from ldpbayes.mechanisms import mechanism_from_spec

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
        return arrays_in(self, args, kwargs, attrs)

    def tuned(self, *args: Any, **kwargs: Any) -> NumpyroModel:
        """Return an equal model in coordinates in which the posterior given these arguments is easy to sample."""
        return self


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


def arrays_in(
    model: NumpyroModel, args: tuple, kwargs: dict[str, Any], attrs: Mapping[str, Any] | None = None
) -> Arguments:
    """Arguments with arrays in the places of data frames, whose columns are in the order of the fit with `attrs`."""
    call = signature_of(model).bind_partial(*args, **kwargs)
    places, structure = jax.tree_util.tree_flatten_with_path(arrays_of_frames(dict(call.arguments)), is_leaf=_is_table)
    names = {jax.tree_util.keystr(path): part.columns for path, part in places if _is_table(part)}
    fitted = json.loads((attrs or {}).get("columns", "{}"))
    parts = [part.ordered(fitted.get(jax.tree_util.keystr(path))) if _is_table(part) else part for path, part in places]
    call.arguments.update(jax.tree.unflatten(structure, parts))
    return call.args, call.kwargs, {"columns": json.dumps(names)} if names else {}


def _is_table(leaf: object) -> bool:
    return isinstance(leaf, Table)


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
    new = {name: _plan(call.arguments[name]) for name, parts in given.items() if not all(map(_is_plan, parts))}
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


def _is_plan(part: Any) -> bool:
    return isinstance(part, Release) and part.values is None


def _plan(value: Any) -> dict[str, Any]:
    """Specs of the mechanisms of a release, or of its first record, or of those of groups; and the number of groups."""
    parts = releases_in(value)
    mechanisms = [part.mechanism for part in parts]
    personal = any(mechanism.batch_shape for mechanism in mechanisms)
    firsts = [each.of_records(each.batch_shape, slice(1)) if each.batch_shape else each for each in mechanisms]
    groups = getattr(value, "num_groups", None) if parts[0] is value else len(parts)
    return {"specs": [mechanism.spec() for mechanism in firsts], "groups": groups, "personal": personal}
