"""A user's arguments of a model: data frames as arrays, new data in the order of the fit's, and plans of releases."""

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from ldpbayes._core.types import Model
from ldpbayes.data import Release, Sketch
from ldpbayes.data.frames import Table, arrays_of_frames
from ldpbayes.mechanisms import mechanism_from_spec


def signature_of(model: Model) -> inspect.Signature:
    """Of the model inside a handler."""
    return inspect.signature(getattr(model, "fn", model))


def prepared(
    model: Model, args: tuple, kwargs: dict[str, Any], attrs: Mapping[str, Any] | None = None
) -> tuple[tuple, dict[str, Any], dict[str, str]]:
    """A user's arguments as a model reads them, data frames as arrays, and entries for the attributes of a result; or,
    for new data, as the fit with the result of these attributes had them. A model may `prepare` its arguments itself.
    """
    if hasattr(model, "prepare"):
        return model.prepare(args, kwargs, attrs)
    call = signature_of(model).bind_partial(*args, **kwargs)
    places, structure = jax.tree_util.tree_flatten_with_path(arrays_of_frames(dict(call.arguments)), is_leaf=_is_table)
    names = {jax.tree_util.keystr(path): part.columns for path, part in places if _is_table(part)}
    fitted = json.loads((attrs or {}).get("columns", "{}"))
    parts = [part.ordered(fitted.get(jax.tree_util.keystr(path))) if _is_table(part) else part for path, part in places]
    call.arguments.update(jax.tree.unflatten(structure, parts))
    return call.args, call.kwargs, {"columns": json.dumps(names)} if names else {}


def _is_table(leaf: object) -> bool:
    return isinstance(leaf, Table)


def plans_of(model: Model, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """By parameter of a model that takes a release, or a sequence of them, what a plan of new records needs to know."""
    arguments = signature_of(model).bind_partial(*args, **kwargs).arguments
    return {name: plan for name, value in arguments.items() if (plan := _plan(value))}


def with_plans(model: Model, args: tuple, kwargs: dict[str, Any], fitted: dict[str, Any], kind: str) -> Any:
    """Arguments with plans in the place of releases, also of those of the fit (`plans_of`) that are left out.

    Positional arguments without a release among them are the model's other parameters, in their order.
    """
    signature = signature_of(model)
    if not any(map(_plan, args)):
        others = [name for name in signature.parameters if name not in fitted and name not in kwargs]
        args, kwargs = args[len(others) :], kwargs | dict(zip(others, args, strict=False))
    call = signature.bind_partial(*args, **kwargs)
    named = {name: plan for name, value in call.arguments.items() if (plan := _plan(value))}
    shapes = [getattr(value, "shape", ()) for name, value in call.arguments.items() if name not in named]
    rows = next((shape[0] for shape in shapes if shape), 1)

    def release(name: str, spec: Any, count: int | None, personal: bool) -> Release:
        if personal and kind == "released":
            raise ValueError(f"{name} had a budget for each record: pass {name}=Release(None, mechanism, count)")
        return Release(None, mechanism_from_spec(spec), count or rows)

    for name, plan in (fitted | named).items():
        value = call.arguments.get(name)
        if not (isinstance(value, Release) and value.values is None):
            parts = [release(name, **part) for part in plan] if isinstance(plan, list) else release(name, **plan)
            call.arguments[name] = parts
    return call.args, call.kwargs


def _plan(value: Any, count: int | None = None) -> Any:
    """Spec of the mechanism of a release, or of its first record; number of new records, if data do not say it."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        parts = [_plan(each, 1) for each in value]
        return parts if all(parts) else None
    if not isinstance(value, (Release, Sketch)):
        return None
    mechanism, groups = value.mechanism, getattr(value, "law_shape", ())
    if mechanism.batch_shape:
        mechanism = mechanism.of_records(mechanism.batch_shape, slice(1))
    spec = mechanism.spec()
    return {"spec": spec, "count": groups[0] if groups else count, "personal": bool(mechanism.batch_shape)}
