"""Which mechanisms released what a model is given: those of its arguments, of what it closes over, and of its sites."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from numpyro.primitives import Messenger

from ldpbayes.data import Release, Sketch
from ldpbayes.inference._certificate import leaves
from ldpbayes.inference._density import Site

__all__ = ["UNKNOWN", "mechanisms_of"]

UNKNOWN = (
    "fit knows of no mechanism, and cannot say what was promised to those whose data these are. Give the model what "
    "was released as ldpbayes.Release(values, mechanism), also where it uses the values alone, or name the mechanisms "
    "of its sites with ldpbayes.privatize."
)


def mechanisms_of(model: Callable, data: Any, sites: Mapping[str, Site]) -> list[Any]:
    """Mechanisms, one a release.

    Parameters
    ----------
    model : callable
        NumPyro model.
    data : pytree
        Its arguments.
    sites : dict of str to Site
        Of the model with these arguments.
    """
    releases = {id(each): each for each in (*leaves(data), *_closed_over(model)) if isinstance(each, (Release, Sketch))}
    own = [site.mechanism for site in sites.values() if site.mechanism is not None]
    made = [getattr(each, "mechanisms", (each.mechanism,)) for each in releases.values()]
    return [mechanism for mechanisms in made for mechanism in mechanisms] + own


def _closed_over(model: Any) -> list[Any]:
    """What a model has without being given it: defaults, and variables of the functions around it and of its module."""
    found, ahead, known = list[Any](), [model], set[int]()
    while ahead:
        function = ahead.pop()
        if id(function) in known:
            continue
        known.add(id(function))
        values: list[Any] = []
        if isinstance(function, functools.partial):
            values = [function.func, *function.args, *function.keywords.values()]
        elif isinstance(function, Messenger):  # a handler, such as `privatize`
            values = [function.fn]
        elif inspect.ismethod(function):
            values = [function.__func__, *vars(function.__self__).values()]
        elif inspect.isfunction(function):
            with contextlib.suppress(ValueError):  # a variable that has no value yet
                variables = inspect.getclosurevars(function)
                module = function.__module__
                values = [*variables.nonlocals.values(), *(function.__defaults__ or ())]
                values += [each for each in variables.globals.values() if _is_own(each, module)]
        parts = leaves(values)
        found += parts
        ahead += parts
    return found


def _is_own(value: Any, module: str) -> bool:
    """Whether a variable of a module is data, or a function that is defined there."""
    return not inspect.isroutine(value) or value.__module__ == module
