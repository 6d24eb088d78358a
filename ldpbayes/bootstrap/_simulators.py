"""Simulators of data: a NumPyro model whose latent sites are given."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

from ldpbayes.data import Release, Sketch
from ldpbayes.inference._density import RUNNING

__all__ = ["planned", "simulated", "simulator_of"]


def simulator_of(model: Callable, *args: Any, site: str | None = None, **kwargs: Any) -> Callable[[Any, Any], Any]:
    """A simulator, as the bootstrap takes it, from a NumPyro model.

    Of a model with `observe` the data are released values: give it ``Release(None, mechanism, count)``. (Of a release
    with values only the number of records is used.) An ordinary model simulates original records, and may be given
    observed data or none.

    Parameters
    ----------
    model : callable
        NumPyro model.
    *args, **kwargs
        Its arguments.
    site : str, optional
        Whose values are the data; by default the model's only site that is observed or, if none is, the only one
        that is not a parameter.

    Returns
    -------
    callable
        (key, parameters) → data. The parameters are a dict of the values of the model's other sites, in their own,
        constrained form; ValueError if it lacks one of them, holds what is none, or an array of another shape.

    Raises
    ------
    TypeError
        If the model is not callable.
    ValueError
        If it has no such site, or the site cannot be told from others; or for a sketch, which does not say how many
        records there are and what made them.
    """
    if not callable(model):
        raise TypeError(f"model must be a NumPyro model, got {type(model).__name__}")
    args, kwargs = planned((args, kwargs))
    if site is not None:
        names = list(_abstract(model, args, kwargs))
        if site not in names:
            raise ValueError(f"the model has no sample site {site!r}; its sites are {', '.join(names)}")

    def simulator(key: Any, params: Mapping[str, Any]) -> Any:
        return simulated(model, args, kwargs, site, key, params)

    return simulator


def planned(arguments: Any) -> Any:
    """Arguments of a model without the values of releases among them, so that the model simulates.

    Parameters
    ----------
    arguments : pytree
        With releases among its leaves.

    Raises
    ------
    ValueError
        For a sketch.
    """

    def plan(leaf: Any) -> Any:
        if isinstance(leaf, Sketch):
            raise ValueError("a sketch cannot be simulated: give the model Release(None, mechanism, count)")
        return Release(None, leaf.mechanism, leaf.count) if isinstance(leaf, Release) else leaf

    return jax.tree.map(plan, arguments, is_leaf=lambda leaf: isinstance(leaf, (Release, Sketch)))


def simulated(model: Callable, args: tuple, kwargs: dict, site: str | None, key: Any, params: Mapping[str, Any]) -> Any:
    """Values of a site of a model with its other sites given; traceable.

    Parameters
    ----------
    model : callable
        NumPyro model.
    args, kwargs
        Its arguments, releases without values among them.
    site : str or None
        Whose values; None for the only one that can be meant.
    key : jax.Array
        A JAX random key.
    params : mapping of str to array
        Values of the other sites.
    """
    name = _checked(_abstract(model, args, kwargs), site, params)
    return _sampled(model, args, kwargs, key, params)[name]["value"]


def _sampled(model: Callable, args: tuple, kwargs: dict, key: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Sample sites of a run in which observed ones are drawn, but for those of which the values are given."""
    drawn = numpyro.handlers.uncondition(numpyro.handlers.seed(model, key))
    with RUNNING:
        trace = numpyro.handlers.trace(numpyro.handlers.substitute(drawn, data=dict(params))).get_trace(*args, **kwargs)
    return {
        name: found
        for name, found in trace.items()
        if found["type"] == "sample" and not isinstance(found["fn"], dist.Unit)  # which is a factor
    }


def _abstract(model: Callable, args: tuple, kwargs: dict) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Shape of each sample site, and whether the model observes it; nothing is computed."""
    found: dict[str, tuple[tuple[int, ...], bool]] = {}

    def look(key: Any) -> None:
        for name, at in _sampled(model, args, kwargs, key, {}).items():
            found[name] = np.shape(at["value"]), bool(at["infer"].get("was_observed", False))

    jax.eval_shape(look, jax.random.key(0))
    return found


def _checked(found: dict[str, tuple[tuple[int, ...], bool]], site: str | None, params: Mapping[str, Any]) -> str:
    """The name of the site of the data, where the parameters are those of all others."""
    if not isinstance(params, Mapping):
        raise ValueError(f"parameters of a model are a dict of its sites' values, got {type(params).__name__}")
    stray = [repr(name) for name in params if name not in found]
    if stray:
        raise ValueError(
            f"parameters {', '.join(stray)} are no sample sites of the model; its sites are {', '.join(found)}"
        )
    if site is None:
        observed = [name for name, (_, seen) in found.items() if seen]
        data = observed or [name for name in found if name not in params]
        if len(data) != 1:
            what = "are observed" if observed else "are not among the parameters"
            raise ValueError(
                f"which site has the data? {len(data)} {what}: {', '.join(data) or 'none'}; give all parameters that "
                "the model has, and site= where it has other sites"
            )
        site = data[0]
    if site in params:
        raise ValueError(f"site {site!r} is to be simulated, and is given as a parameter")
    missing = [repr(name) for name in found if name != site and name not in params]
    if missing:
        raise ValueError(f"parameters lack values of the model's sites {', '.join(missing)}")
    for name, value in params.items():
        if np.shape(value) != found[name][0]:
            raise ValueError(f"site {name!r} has shape {found[name][0]}, the parameter has {np.shape(value)}")
    return site
