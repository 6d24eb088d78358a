"""What follows from draws of a posterior: replicated data, and the log-likelihood of every record."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import init_to_uniform
from numpyro.primitives import Messenger

from ldpbayes._core.pytrees import unchecked
from ldpbayes.data import CountSketch, ExpandedSketch, PanelSketch, Release, Sketch
from ldpbayes.inference._search import evenly
from ldpbayes.inference.certificate import leaves
from ldpbayes.inference.density import RUNNING, Density
from ldpbayes.inference.programs import PROGRAMS, Compiled, trace

ROOM = 1 << 28  # bytes that what is generated may take

_Of = Callable[[jax.Array, dict[str, Any]], dict[str, Any]]
"""From a random key and values of the latent sites to arrays by observed site."""


class Generated:
    """A function of every draw of a posterior, or of as many, evenly spaced, as there is room for.

    Parameters
    ----------
    name : str
        Of the group, for the message.
    function : callable
        `replicates` or `log_likelihoods` of a density.
    density : Density
        The model with its arguments.

    Raises
    ------
    ValueError
        If there is no room for a draw a chain, or the function has nothing to say.
    """

    def __init__(self, name: str, function: _Of, density: Density) -> None:
        self._function = function
        key = jax.random.key(0)
        example = jax.eval_shape(lambda key: density.values(key, init_to_uniform), key)
        made = jax.eval_shape(function, key, example)
        if not made:
            raise ValueError(f"{name} is of data, and the model observes none")
        self._names = sorted(example)
        self._bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in made.values())
        if self._bytes > ROOM:
            raise ValueError(
                f"{name} would take {self._bytes / 2**30:.1f} GiB a draw; give the model part of the records"
            )

    def __call__(self, key: jax.Array, samples: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray]:
        """Values of the function (chains, some draws, ...) by site, and numbers of these draws."""
        values = {name: samples[name] for name in self._names}
        chains, draws = next(iter(values.values())).shape[:2]
        picked = evenly(np.arange(draws), max(1, int(ROOM / self._bytes / chains)))
        count = chains * len(picked)
        flat = {name: each[:, picked].reshape(count, *each.shape[2:]) for name, each in values.items()}
        keys = jax.random.split(key, count)
        one = jax.tree.map(lambda leaf: leaf[0], (keys, flat))
        traced, (arrays,) = trace(lambda _, key, values: self._function(key, values), *one)

        def every(arrays: Any, keys: Any, values: Any) -> Any:
            return jax.lax.map(lambda each: traced(arrays, *each), (keys, values))

        program = PROGRAMS.get(("generated", traced.key, count), lambda: Compiled(every, arrays, keys, flat))
        made = program(arrays, keys, jax.tree.map(jnp.asarray, flat))
        return {name: np.asarray(each).reshape(chains, -1, *each.shape[1:]) for name, each in made.items()}, picked


def replicates(density: Density) -> _Of:
    """Replicated data: what the mechanisms would have released of other records, drawn from the same law.

    Parameters
    ----------
    density : Density
        The model with its arguments, of which releases and sketches are simulated at their number of records.

    Raises
    ------
    ValueError
        For a sketch that does not say which law each of its records has.
    """
    args, kwargs = jax.tree.map(
        lambda leaf: _plan(leaf) if isinstance(leaf, (Release, Sketch)) else leaf,
        (density.args, density.kwargs),
        is_leaf=lambda leaf: isinstance(leaf, (Release, Sketch)),
    )
    anew = _Anew(density.model)

    def replicated(key: jax.Array, values: dict[str, Any]) -> dict[str, Any]:
        model = numpyro.handlers.seed(numpyro.handlers.substitute(anew, data=values), key)
        with RUNNING:
            sites = numpyro.handlers.trace(model).get_trace(*args, **kwargs)
        drawn = {name: site for name, site in sites.items() if site["type"] == "sample" and not site["is_observed"]}
        return {name: site["value"] for name, site in drawn.items() if name not in values}

    return replicated


def released(density: Density) -> Density | None:
    """The same with the released values in the places of sketches of them, in any order.

    Parameters
    ----------
    density : Density
        The model with its arguments.

    Returns
    -------
    Density or None
        None where a sketch has not kept its records.
    """
    if any(isinstance(leaf, Sketch) and _values(leaf) is None for leaf in leaves((density.args, density.kwargs))):
        return None
    args, kwargs = jax.tree.map(
        lambda leaf: _release(leaf) if isinstance(leaf, Sketch) else leaf,
        (density.args, density.kwargs),
        is_leaf=lambda leaf: isinstance(leaf, (Release, Sketch)),
    )
    return Density(density.model, args, kwargs)


def _release(sketch: Sketch) -> Release:
    values: Any = _values(sketch)
    return unchecked(Release, values, sketch.mechanism, len(values), ())


def _values(sketch: Sketch) -> np.ndarray | None:
    """The values that a sketch was made from, where it says so."""
    if isinstance(sketch, ExpandedSketch) and sketch.records is not None:
        sketch = sketch.exact
    if isinstance(sketch, CountSketch):
        return np.repeat(np.asarray(sketch.nodes), np.asarray(sketch.weights).astype(int), axis=0)
    if isinstance(sketch, PanelSketch) and sketch.records is not None:
        return np.concatenate(sketch.records)
    return None


class _Anew(Messenger):
    """Lets observed sites be drawn."""

    def process_message(self, msg: dict[str, Any]) -> None:
        """Forget what is observed; factors observe nothing."""
        if msg["type"] == "sample" and msg["is_observed"] and not isinstance(msg["fn"], dist.Unit):
            msg["value"], msg["is_observed"] = None, False


def _plan(data: Release | Sketch) -> Release:
    if isinstance(data, Release):
        return Release(None, data.mechanism, data.count)
    if data.law_shape or data.mechanism.batch_shape:
        raise ValueError(
            f"posterior_predictive needs each record's law, which a {type(data).__name__} of groups, or of personal "
            "budgets, does not have; pass the release"
        )
    return Release(None, data.mechanism, int(np.rint(data.size)))


def log_likelihoods(density: Density) -> _Of:
    """The log-likelihood of every record, for cross-validation (`arviz.loo`) and the like.

    Parameters
    ----------
    density : Density
        The model with its arguments.

    Raises
    ------
    ValueError
        If there is a sketch among them.
    """
    if any(isinstance(leaf, Sketch) for leaf in leaves((density.args, density.kwargs))):
        raise ValueError("log_likelihood is one number a record, and a sketch has no records; pass the release")

    def each(key: jax.Array, values: dict[str, Any]) -> dict[str, Any]:
        model = numpyro.handlers.seed(numpyro.handlers.substitute(density.model, data=values), key)
        with RUNNING:
            sites = numpyro.handlers.trace(model).get_trace(*density.args, **density.kwargs)
        seen = {name: site for name, site in sites.items() if site["type"] == "sample" and site["is_observed"]}
        return {
            name: site["fn"].log_prob(site["value"])
            for name, site in seen.items()
            if not isinstance(site["fn"], dist.Unit)
        }

    return each
