"""A user's arguments of a model: data frames as arrays, new data in the order of the fit's, and plans of releases."""

import inspect
import json
from collections.abc import Mapping
from typing import Any

import jax
from numpyro.primitives import Messenger

from ldpbayes._core.tabular import Table, arrays_of_frames
from ldpbayes._core.types import Model
from ldpbayes.data import Groups, Release, Sketch
from ldpbayes.inference import model as protocol
from ldpbayes.mechanisms import mechanism_from_spec


def signature_of(model: Model) -> inspect.Signature:
    """Of the model inside a handler."""
    return inspect.signature(model.fn if isinstance(model, Messenger) else model)


def prepared(
    model: Model, args: tuple, kwargs: dict[str, Any], attrs: Mapping[str, Any] | None = None
) -> tuple[tuple, dict[str, Any], dict[str, str]]:
    """A user's arguments as a model reads them, data frames as arrays, and entries for the attributes of a result; or,
    for new data, as the fit with the result of these attributes had them. A model may `prepare` its arguments itself.
    """
    entries: dict[str, str] = {}
    if isinstance(model, protocol.Model):
        args, kwargs, entries = model.prepare(args, kwargs, attrs)
    call = signature_of(model).bind_partial(*args, **kwargs)
    places, structure = jax.tree_util.tree_flatten_with_path(arrays_of_frames(dict(call.arguments)), is_leaf=_is_table)
    names = {jax.tree_util.keystr(path): part.columns for path, part in places if _is_table(part)}
    fitted = json.loads((attrs or {}).get("columns", "{}"))
    parts = [part.ordered(fitted.get(jax.tree_util.keystr(path))) if _is_table(part) else part for path, part in places]
    call.arguments.update(jax.tree.unflatten(structure, parts))
    return call.args, call.kwargs, entries | ({"columns": json.dumps(names)} if names else {})


def _is_table(leaf: object) -> bool:
    return isinstance(leaf, Table)


def plans_of(model: Model, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What plans of new records need to know, by parameter of a model that takes a release or a sequence of them."""
    arguments = signature_of(model).bind_partial(*args, **kwargs).arguments
    return {name: _plan(value) for name, value in arguments.items() if releases_in(value)}


def with_plans(model: Model, args: tuple, kwargs: dict[str, Any], fitted: dict[str, Any], kind: str) -> Any:
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
