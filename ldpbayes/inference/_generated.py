"""Arrays by observed site that are generated from draws of a posterior: new values, log-likelihoods, predictions."""

import dataclasses
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
from ldpbayes.data import CountSketch, ExpandedSketch, MixedSketch, PanelSketch, Release, Sketch
from ldpbayes.data.sketches import budgets_of
from ldpbayes.inference._handlers import joined_release
from ldpbayes.inference.compiled_programs import trace
from ldpbayes.inference.density import Density, given, sample_sites
from ldpbayes.mechanisms.protocol import joined_mechanism
from ldpbayes.numerics.arrays import evenly_spaced

MAX_BYTES_OF_A_GROUP = 1 << 28

Generate: TypeAlias = Callable[[Key, Params], Params]
"""From a random key and values of the latent sites to arrays by observed site."""


def generator(name: str, function: Generate, example: Params) -> Callable[[Key, Params], tuple[Params, np.ndarray]]:
    """``function`` at samples (chains, draws, ...), or at evenly spaced ones if all exceed `MAX_BYTES_OF_A_GROUP`."""
    shapes = jax.eval_shape(function, jax.random.key(0), example)
    if not shapes:
        raise ValueError(f"{name} needs observed data, but the model has none")
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in shapes.values())
    if size > MAX_BYTES_OF_A_GROUP:
        raise ValueError(f"{name} would take {size / 2**30:.1f} GiB for each draw; give the model fewer records")

    def at_draws(key: Key, samples: Params) -> tuple[Params, np.ndarray]:
        values = {name: samples[name] for name in sorted(example)}
        chains, draws = next(iter(values.values())).shape[:2]
        numbers = evenly_spaced(np.arange(draws), max(1, int(MAX_BYTES_OF_A_GROUP / size / chains)))
        count = chains * len(numbers)
        flat = {name: array[:, numbers].reshape(count, *array.shape[2:]) for name, array in values.items()}
        keys = jax.random.split(key, count)
        traced, (arrays,) = trace(lambda _, *draw: function(*draw), *jax.tree.map(lambda leaf: leaf[0], (keys, flat)))

        def at_all(arrays: PyTree, keys: Key, values: Params) -> Params:
            return jax.lax.map(lambda draw: traced(arrays, *draw), (keys, values))

        inputs = arrays, keys, jax.tree.map(jnp.asarray, flat)
        results = traced.program("generated", at_all, *inputs)(*inputs)
        return {
            name: np.asarray(array).reshape(chains, -1, *array.shape[1:]) for name, array in results.items()
        }, numbers

    return at_draws


def replicates(density: Density) -> Generate:
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
        return dataclasses.replace(data, values=None)
    if isinstance(data, MixedSketch):
        return joined_release("", range(len(data.parts)), [*map(_unobserved, data.parts)])
    if data.law_shape or data.mechanism.batch_shape:
        lacking = f"which a {type(data).__name__} of groups or personal budgets does not have"
        raise ValueError(f"posterior_predictive needs each record's law, {lacking}; pass the release")
    return Release(None, data.mechanism, int(np.rint(data.size)))


def log_likelihoods(density: Density, release: bool | Release = True) -> Generate:
    """The log-likelihood of every released value, with a release in place of its sketch, if that is what is given."""
    sketches = [data for data in density.data if isinstance(data, Sketch)]
    if isinstance(release, Release):
        kinds = [joined_mechanism(budgets_of(release.mechanism, release.count)[1]), release.mechanism]
        same = [data for data in sketches if data.size == release.size and data.mechanism in kinds]
        if release.values is None or len(sketches) != 1 or not same:
            raise ValueError(f"log_likelihood must be the release from which the only sketch was made, got {release!r}")
        density = density.replace_data(lambda data: release if isinstance(data, Sketch) else data)
    elif sketches:
        raise ValueError("log_likelihood=True needs records, but a sketch has none; pass log_likelihood=release")

    def log_likelihood(key: Key, values: Params) -> Params:
        sites = sample_sites(density.trace(numpyro.handlers.seed(given(density.model, values), key)), observed=True)
        observed = {name: site for name, site in sites.items() if not isinstance(site["fn"], dist.Unit)}
        return {name: site["fn"].log_prob(site["value"]) for name, site in observed.items()}

    return log_likelihood


def released(density: Density) -> Density | None:
    """A density with released values, in any order, in the places of sketches; None if one has not kept its records."""
    return None if any(_release(data) is None for data in density.data) else density.replace_data(_release)


def _release(data: Release | Sketch) -> Release | None:
    """A release, or that which a sketch was made from, if it has kept its records."""
    if isinstance(data, Release):
        return data
    sketch = data.exact if isinstance(data, ExpandedSketch) and data.records is not None else data
    if isinstance(sketch, CountSketch):
        values = np.repeat(np.asarray(sketch.nodes), np.asarray(sketch.weights).astype(int), axis=0)
    elif isinstance(sketch, MixedSketch):
        parts = [part for part in map(_release, sketch.parts) if part is not None]
        return joined_release("", range(len(parts)), parts) if len(parts) == len(sketch.parts) else None
    elif isinstance(sketch, PanelSketch) and sketch.records is not None:
        values = np.concatenate(sketch.records)
    else:
        return None
    return unchecked(Release, values, data.mechanism, len(values))
