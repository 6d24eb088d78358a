"""What a model computes, as a short text, by which a study recognises results of its own."""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpyro
from numpyro.infer.util import log_density

from ldpbayes.data import CountSketch, PanelSketch, Release
from ldpbayes.inference import privatize
from ldpbayes.mechanisms import Mechanism

__all__ = ["fingerprint", "model_fingerprint"]


def fingerprint(function: Callable, *arguments: Any) -> str:
    """Digest of all that a JAX function computes, with every constant that it holds.

    Parameters
    ----------
    function : callable
        As `jax.jit` takes it.
    *arguments
        Arrays or `jax.ShapeDtypeStruct`; only their shapes and types matter.

    Returns
    -------
    str
    """
    text = jax.jit(function).lower(*arguments).as_text()
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def model_fingerprint(model: Callable, mechanism: Mechanism, count: int) -> str:
    """Digest of a model of one release: how it simulates, and its log density given released values.

    Parameters
    ----------
    model : callable
        NumPyro model of one release.
    mechanism : Mechanism
        What made the release.
    count : int
        Records a release.

    Returns
    -------
    str
        The same for two models with the same sites that draw and weigh them by the same operations and constants.
    """

    def seeded(key: jax.Array) -> Callable:
        return numpyro.handlers.seed(model, jax.random.wrap_key_data(key))

    def simulate(key: jax.Array) -> dict[str, Any]:
        trace = numpyro.handlers.trace(seeded(key)).get_trace(Release(None, mechanism, count))
        return {name: site["value"] for name, site in trace.items() if site["type"] in ("sample", "deterministic")}

    with jax.enable_x64(True):
        key = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
        shapes, released = _released(mechanism, count, key, isinstance(model, privatize))

        def weigh(key: jax.Array, arrays: Any) -> Any:
            return log_density(seeded(key), (released(*arrays),), {}, {})[0]

        return f"{fingerprint(simulate, key)}-{fingerprint(weigh, key, shapes)}"


def _released(mechanism: Any, count: int, key: Any, as_it_is: bool) -> tuple[list[jax.ShapeDtypeStruct], Callable]:
    """Shapes of the arrays in a study's release or sketch, and the function that makes it from such arrays."""
    as_it_is = as_it_is or bool(mechanism.record_shape)
    discrete = mechanism.support.is_discrete
    if not as_it_is and not discrete:
        one = PanelSketch.of(np.mean([mechanism.released_range]).reshape(1), mechanism, keep_records=False)
        arrays = [getattr(one, name) for name in one.arrays]
        shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
        return shapes, lambda *arrays: dataclasses.replace(one, **dict(zip(one.arrays, arrays, strict=True)))
    records = jax.ShapeDtypeStruct((count, *mechanism.record_shape), int if discrete else float)
    values = jax.eval_shape(lambda key, x: mechanism.randomize(jax.random.wrap_key_data(key), x), key, records)
    if as_it_is:
        return [values], lambda values: Release(values, mechanism)
    weights = jax.ShapeDtypeStruct((count,), float)
    return [values, weights], lambda values, weights: CountSketch(mechanism, values, weights)
