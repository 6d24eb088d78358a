"""Simulators of data from NumPyro models."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

from ldpbayes._core.types import Array, Key, Message, Model, PyTree
from ldpbayes.bootstrap._estimators import Simulator
from ldpbayes.data import Release, Sketch
from ldpbayes.inference.density import RUNNING

Sites = dict[str, tuple[tuple[int, ...], bool]]
"""Shape of each sample site of a model, and whether the model observes the site."""


def simulator_of(model: Model, *args: Any, site: str | None = None, **kwargs: Any) -> Simulator:
    """A simulator for the bootstrap, from a NumPyro model.

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
        The site whose values are the data; by default the model's only site that is observed or, if none is, the only
        one that is not a parameter.

    Returns
    -------
    callable
        (key, parameters) → data. The parameters are a dict of the values of the model's other sites, in their own,
        constrained form; it raises ValueError if one is missing, unknown or of another shape.

    Raises
    ------
    TypeError, ValueError
        If the model is not callable, or has no such site; or for a sketch, which holds no number of records.
    """
    if not callable(model):
        raise TypeError(f"model must be a NumPyro model, got {type(model).__name__}")
    args, kwargs = _without_values((args, kwargs))
    if site is not None:
        names = list(_sites(model, args, kwargs))
        if site not in names:
            raise ValueError(f"the model has no sample site {site!r}; its sites are {', '.join(names)}")

    def simulator(key: Key, params: Mapping[str, Array]) -> PyTree:
        return simulate_site(model, args, kwargs, site, key, params)

    return simulator


def simulate_site(
    model: Model, args: tuple, kwargs: dict, site: str | None, key: Key, params: Mapping[str, Array]
) -> Array:
    """Values of one site (None: the only one that can be meant), given those of a model's other sites; traceable."""
    name = _data_site(_sites(model, args, kwargs), site, params)
    return _sample_messages(model, args, kwargs, key, params)[name]["value"]


def _without_values(arguments: PyTree) -> PyTree:
    """Arguments of a model without the values of releases among them, so that the model simulates."""

    def plan(leaf: Any) -> Any:
        if isinstance(leaf, Sketch):
            raise ValueError("a sketch cannot be simulated: give the model Release(None, mechanism, count)")
        return Release(None, leaf.mechanism, leaf.count) if isinstance(leaf, Release) else leaf

    return jax.tree.map(plan, arguments, is_leaf=lambda leaf: isinstance(leaf, (Release, Sketch)))


def _sample_messages(
    model: Model, args: tuple, kwargs: dict, key: Key, params: Mapping[str, Array]
) -> dict[str, Message]:
    """Sample sites of a run with these parameters in which all other sites are drawn, observed ones included."""
    unconditioned = numpyro.handlers.uncondition(numpyro.handlers.seed(model, key))
    substituted = numpyro.handlers.substitute(unconditioned, data=dict(params))
    with RUNNING:
        trace = numpyro.handlers.trace(substituted).get_trace(*args, **kwargs)
    # a site of the law Unit is a factor
    return {
        name: message
        for name, message in trace.items()
        if message["type"] == "sample" and not isinstance(message["fn"], dist.Unit)
    }


def _sites(model: Model, args: tuple, kwargs: dict) -> Sites:
    """The model's sample sites, by abstract evaluation."""
    sites: Sites = {}

    def collect(key: Key) -> None:
        for name, message in _sample_messages(model, args, kwargs, key, {}).items():
            sites[name] = np.shape(message["value"]), bool(message["infer"].get("was_observed", False))

    jax.eval_shape(collect, jax.random.key(0))
    return sites


def _data_site(sites: Sites, site: str | None, params: Mapping[str, Array]) -> str:
    """The name of the site of the data; ValueError unless the parameters are those of all other sites."""
    if not isinstance(params, Mapping):
        raise ValueError(f"parameters of a model are a dict of its sites' values, got {type(params).__name__}")
    stray = [repr(name) for name in params if name not in sites]
    if stray:
        raise ValueError(
            f"parameters {', '.join(stray)} are no sample sites of the model; its sites are {', '.join(sites)}"
        )
    if site is None:
        observed = [name for name, (_, is_observed) in sites.items() if is_observed]
        candidates = observed or [name for name in sites if name not in params]
        if len(candidates) != 1:
            what = "are observed" if observed else "are not among the parameters"
            raise ValueError(
                f"which site has the data? {len(candidates)} {what}: {', '.join(candidates) or 'none'}; give all "
                "parameters that the model has, and site= where it has other sites"
            )
        site = candidates[0]
    if site in params:
        raise ValueError(f"site {site!r} is to be simulated, and is given as a parameter")
    missing = [repr(name) for name in sites if name != site and name not in params]
    if missing:
        raise ValueError(f"parameters lack values of the model's sites {', '.join(missing)}")
    for name, value in params.items():
        if np.shape(value) != sites[name][0]:
            raise ValueError(f"site {name!r} has shape {sites[name][0]}, the parameter has {np.shape(value)}")
    return site
