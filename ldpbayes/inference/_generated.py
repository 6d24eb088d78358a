"""Quantities computed from draws of a posterior: replicated data, and the log-likelihood of every record."""

import math
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.primitives import Messenger

from ldpbayes._core.pytrees import unchecked
from ldpbayes._core.types import Key, Message, Params, PyTree
from ldpbayes.data import CountSketch, ExpandedSketch, PanelSketch, Release, Sketch
from ldpbayes.inference.chains import evenly_spaced
from ldpbayes.inference.compiled_programs import trace
from ldpbayes.inference.density import Density, given, sample_sites

MAX_BYTES = 1 << 28  # bytes of a generated group

# From a random key and values of the latent sites to arrays by observed site.
_Generate: TypeAlias = Callable[[Key, Params], Params]


def generator(name: str, function: _Generate, density: Density) -> Callable[[Key, Params], tuple[Params, np.ndarray]]:
    """The values of ``function`` at samples (chains, draws, ...), and the numbers of the draws: evenly spaced, if all
    would take more than `MAX_BYTES`.
    """
    example = jax.eval_shape(density.values, jax.random.key(0))
    shapes = jax.eval_shape(function, jax.random.key(0), example)
    if not shapes:
        raise ValueError(f"{name} is of data, and the model observes none")
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in shapes.values())
    if size > MAX_BYTES:
        raise ValueError(f"{name} would take {size / 2**30:.1f} GiB a draw; give the model part of the records")

    def at_draws(key: Key, samples: Params) -> tuple[Params, np.ndarray]:
        values = {name: samples[name] for name in sorted(example)}
        chains, draws = next(iter(values.values())).shape[:2]
        numbers = evenly_spaced(np.arange(draws), max(1, int(MAX_BYTES / size / chains)))
        count = chains * len(numbers)
        flat = {name: each[:, numbers].reshape(count, *each.shape[2:]) for name, each in values.items()}
        keys = jax.random.split(key, count)
        traced, (arrays,) = trace(lambda _, *draw: function(*draw), *jax.tree.map(lambda leaf: leaf[0], (keys, flat)))

        def at_all(arrays: PyTree, keys: Key, values: Params) -> Params:
            return jax.lax.map(lambda each: traced(arrays, *each), (keys, values))

        inputs = arrays, keys, jax.tree.map(jnp.asarray, flat)
        results = traced.program("generated", at_all, *inputs)(*inputs)
        return {name: np.asarray(each).reshape(chains, -1, *each.shape[1:]) for name, each in results.items()}, numbers

    return at_draws


def replicates(density: Density) -> _Generate:
    """What mechanisms would have released of other records of the same law; ValueError for sketches without laws."""
    simulation = density.replace_data(_unobserved)

    def replicated(key: Key, values: Params) -> Params:
        model = numpyro.handlers.seed(given(_Unobserved(density.model), values), key)
        sites = sample_sites(simulation.trace(model), observed=False)
        return {name: site["value"] for name, site in sites.items() if name not in values}

    return replicated


class _Unobserved(Messenger):
    """Lets observed sites be drawn; factors (`dist.Unit`) observe nothing."""

    def process_message(self, msg: Message) -> None:
        if msg["type"] == "sample" and msg["is_observed"] and not isinstance(msg["fn"], dist.Unit):
            msg["value"], msg["is_observed"] = None, False


def _unobserved(data: Release | Sketch) -> Release:
    """A release of as many records, without values."""
    if isinstance(data, Release):
        return Release(None, data.mechanism, data.count)
    if data.law_shape or data.mechanism.batch_shape:
        raise ValueError(
            f"posterior_predictive needs each record's law, which a {type(data).__name__} of groups, or of personal "
            "budgets, does not have; pass the release"
        )
    return Release(None, data.mechanism, int(np.rint(data.size)))


def log_likelihoods(density: Density) -> _Generate:
    """The log-likelihood of every record, for cross-validation such as `arviz.loo`; ValueError for sketches."""
    if any(isinstance(data, Sketch) for data in density.data):
        raise ValueError("log_likelihood is one number a record, and a sketch has no records; pass the release")

    def log_likelihood(key: Key, values: Params) -> Params:
        sites = sample_sites(density.trace(numpyro.handlers.seed(given(density.model, values), key)), observed=True)
        observed = {name: site for name, site in sites.items() if not isinstance(site["fn"], dist.Unit)}
        return {name: site["fn"].log_prob(site["value"]) for name, site in observed.items()}

    return log_likelihood


def released(density: Density) -> Density | None:
    """A density with released values, in any order, in the places of sketches; None if one has not kept its records."""
    if any(_release(data) is None for data in density.data):
        return None
    return density.replace_data(_release)


def _release(data: Release | Sketch) -> Release | None:
    """A release, or that which a sketch was made from, if it has kept its records."""
    if isinstance(data, Release):
        return data
    sketch = data.exact if isinstance(data, ExpandedSketch) and data.records is not None else data
    if isinstance(sketch, CountSketch):
        values = np.repeat(np.asarray(sketch.nodes), np.asarray(sketch.weights).astype(int), axis=0)
    elif isinstance(sketch, PanelSketch) and sketch.records is not None:
        values = np.concatenate(sketch.records)
    else:
        return None
    return unchecked(Release, values, data.mechanism, len(values), ())
