"""What is generated from draws of a posterior: predictions, new released values, log-likelihoods of the values."""

import dataclasses
import json
import math
from collections.abc import Callable, Container, Mapping
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import xarray as xr
from numpyro.primitives import Messenger

from ldpbayes._core.checks import ONE_INSIDE_0_1, checked
from ldpbayes._core.pytrees import unchecked
from ldpbayes._core.types import Array, Key, Message, Model, Params, PyTree
from ldpbayes.data import CountSketch, ExpandedSketch, Groups, MixedSketch, PanelSketch, Release, Sketch
from ldpbayes.data.sketches import budgets_of
from ldpbayes.inference._handlers import joined_release
from ldpbayes.inference.compiled_programs import trace
from ldpbayes.inference.density import Density, Site, density_of, given, sample_sites, sites_of
from ldpbayes.inference.model import model_of, releases_in, with_plans
from ldpbayes.inference.result import dataset, inference_data, labels
from ldpbayes.laws.compound import Grouped, of_unwrapped, unwrapped
from ldpbayes.laws.families import CATEGORICAL
from ldpbayes.likelihood.privatized import Privatized
from ldpbayes.mechanisms.protocol import joined_mechanism
from ldpbayes.numerics.arrays import evenly_spaced

PREDICTION_KINDS = ("original", "mean", "released")
OfLaw: TypeAlias = Callable[[Any], Any]  # a function of a NumPyro law that returns an array
MAX_BYTES_OF_A_GROUP = 1 << 28

Generate: TypeAlias = Callable[[Key, Params], Params]
"""From a random key and values of the latent sites to arrays by observed site."""


def predict(
    posterior: Any,
    model: Model,
    *args: Any,
    kind: Literal["original", "mean", "released"] | OfLaw | Mapping[str, OfLaw] = "original",
    interval: float | None = None,
    seed: int = 0,
    **kwargs: Any,
) -> Any:
    """Predict the original answers of new people (before a mechanism randomizes them), for each draw of a posterior.

    Parameters
    ----------
    posterior : arviz.InferenceData or xarray.DataTree
        The result of `fit` for the same model.
    model, *args, **kwargs
        The model of the fit, and its arguments with new data, such as the covariates of new people. Without releases,
        there is one answer for each row of the new data, or a single answer if there are no new data.
    kind : {"original", "mean", "released"}, callable, or mapping of str to callable
        The quantity to predict:

        - "original": original answers, simulated for each posterior draw of the parameters;
        - "mean": the expectation of an original answer, given the parameters. For a category, the probability of each
          category;
        - "released": simulated released values, under the mechanism of the fit;
        - a function of a law (probability distribution), such as `ldpbayes.functionals.mean`, or a dict of several, by
          name. The law of the original numbers of an observed site, before clipping, has batch shape (*batch), and the
          result (*batch, ...).
    interval, seed : float, optional, and int
        The probability of equal-tailed credible intervals, which, with means and standard deviations, are then returned
        instead of draws. And the random seed of the simulated answers.

    Returns
    -------
    xarray.Dataset
        The predictions for each site of the model that is not a parameter in ``posterior``, with dimensions (chain,
        draw, ...). If they would need more than 256 MiB, they are of some draws, evenly spaced. With ``interval``, the
        dimensions are (..., summary), where the labels of the last one are mean, sd, lower and upper. If ``kind`` is a
        dict, its names are those of the variables, after the name of the site if there are several (``site_name``). A
        functional for several points, such as several quantiles, adds an axis with a label for each point.

    Raises
    ------
    ValueError
        A column that the model used in the fit is missing in the new data. Or a parameter has another shape than in
        ``posterior``, for example because it has one value for each record. Or the law of a site has no quantity of
        this kind, such as no mean.

    Examples
    --------
    >>> import ldpbayes as ldp
    >>> model, release = ldp.models.warner(), ldp.Release([1, 0, 1] * 60, ldp.RandomizedResponse(epsilon=1.0))
    >>> posterior = ldp.fit(model, release, progress_bar=False)
    >>> float(ldp.predict(posterior, model, interval=0.9)["z"].sel(summary="upper").squeeze())
    1.0
    """
    if "posterior" not in (posterior if hasattr(posterior, "attrs") else ()):
        got = type(posterior).__name__
        raise TypeError(f"posterior must be a result of fit, as in predict(posterior, model), got {got}")
    functions = {"": kind} if callable(kind) else dict(kind) if isinstance(kind, Mapping) else {}
    if not (functions or kind in PREDICTION_KINDS) or not all(map(callable, functions.values())):
        raise ValueError(f"kind must be one of {', '.join(PREDICTION_KINDS)}, or functions of a law, got {kind!r}")
    word = "functional" if functions else str(kind)
    level = None if interval is None else float(checked("interval", interval, *ONE_INSIDE_0_1))
    args, kwargs = with_plans(model, args, kwargs, json.loads(posterior.attrs.get("releases", "{}")), word)
    args, kwargs, _ = model_of(model).prepare(args, kwargs, posterior.attrs)
    fitted = dataset(posterior["posterior"])
    draws = {str(name): np.asarray(array.transpose("chain", "draw", ...)) for name, array in fitted.data_vars.items()}
    observed = set(dataset(posterior["observed_data"]).data_vars if "observed_data" in posterior else ())
    with jax.enable_x64(True):
        density = density_of(_NewAnswers(model, word, observed, functions), args, kwargs)
        sites = sites_of(density_of(_NewAnswers(model, "original", observed), args, kwargs))
        fitted_sites = [name for name, site in sites.items() if site.latent and name in draws and name not in observed]
        for name in fitted_sites:
            old, new = draws[name].shape[2:], sites[name].shape
            if old != new:
                shapes = f"has shape {old} in the posterior, but {new} with the new data"
                raise ValueError(f"site {name!r} {shapes}: its values belong to the records or groups of the fit")

        def functionals(key: Key, values: Params) -> Any:
            sites = _run(density, key, values, observed=False)
            by_site = {name: site["infer"].get("functionals", {}) for name, site in sites.items()}
            return {(name, label): value for name, row in by_site.items() for label, value in row.items()}

        values = {name: jax.ShapeDtypeStruct(draws[name].shape[2:], draws[name].dtype) for name in fitted_sites}
        predictions: Any
        answers = functionals if functions else _drawn(density)
        predictions, numbers = generator("a prediction", answers, values)(jax.random.key(seed), draws)
        sources: dict[str, tuple[str, str]] = {}  # site and function of each variable
        if functions:
            places = list(dict.fromkeys(site for site, _ in predictions))
            many, pairs = len(places) > 1, [(site, label) for site in places for label in functions]
            sources = {f"{site}_{label}" if many and label else label or site: (site, label) for site, label in pairs}
            predictions = {name: predictions[source] for name, source in sources.items()}
            sites = {name: sites[site] for name, (site, _) in sources.items()}
        sequences = [value for value in (*args, *kwargs.values()) if isinstance(value, (list, tuple, Groups))]
        groups = {len(value) for value in sequences if releases_in(value)}
        axes = labels(*_names(fitted, sites, predictions, groups), sites, (args, kwargs))
        for name, (site, function) in sources.items():
            named = axes[0].get(name, [])
            axes[0][name] = [*named, *(f"{site}_dim_{n}" for n in range(len(named), len(sites[name].shape)))]
            _label(name, functions[function], *axes[:2])
        result = inference_data({"predictions": predictions}, *axes, {"predictions": numbers})
    result = dataset(result["predictions"])
    lacking = [name for name, array in result.data_vars.items() if np.isnan(array).all()]
    if lacking:
        raise ValueError(f"the law of site {lacking[0]!r} has no {word}; take another kind")
    result.attrs.update(kind=word, privacy=posterior.attrs.get("privacy", ""))
    return result if level is None else _summary(result, level)


def _names(fitted: Any, sites: dict[str, Site], answers: Params, groups: set[int]) -> tuple[dict, dict]:
    """Axes of answers, one a group, if the posterior has one axis of that size; and the labels that it has."""
    axes = {axis: size for axis, size in fitted.sizes.items() if axis not in ("chain", "draw")}
    dims = {n: [axis for axis, size in axes.items() if {size} == groups & {*sites[n].shape[:1]}] for n in answers}
    dims = {name: named for name, named in dims.items() if len(named) == 1 and not sites[name].dims}
    named = [pair for n in answers for pair in zip(dims.get(n, sites[n].dims), sites[n].shape, strict=False)]
    fits = {axis for axis, _ in named if {size for other, size in named if other == axis} == {axes.get(axis)}}
    return dims, {axis: fitted[axis].values for axis in fits & {*fitted.coords}}


def _label(name: str, function: Any, dims: dict[str, list[str]], coords: Params) -> None:
    """Add the last axis of a functional behind those of a site; the variable's name stands before one that is taken."""
    if dim := getattr(function, "dim", None):
        used = any(dim in axes for axes in dims.values()) and not np.array_equal(coords.get(dim, ()), function.labels)
        dims[name].append(f"{name}_{dim}" if used or dim in dims else dim)
        coords[dims[name][-1]] = np.array(function.labels)


def _summary(draws: Any, level: float) -> Any:
    """Mean, standard deviation and the ends of an equal-tailed interval of draws, along an axis of these names."""
    over = ("chain", "draw")
    # xarray's own quantile() adds a coordinate of that name, which an axis may have
    ends = [draws.reduce(np.quantile, over, q=(1 + side * level) / 2) for side in (-1, 1)]
    parts = xr.concat([draws.mean(over), draws.std(over), *ends], "summary").transpose(..., "summary")
    return parts.assign_coords(summary=["mean", "sd", "lower", "upper"]).assign_attrs(draws.attrs, interval=level)


class _NewAnswers(Messenger):
    """Lets observed sites be drawn: of privatized laws the original record, or its expectation."""

    def __init__(
        self, model: Model, kind: str, observed: Container[str] = (), functions: Mapping[str, OfLaw] | None = None
    ) -> None:
        self.kind, self.observed, self.functions = kind, observed, functions or {}
        super().__init__(model)

    def process_message(self, msg: Message) -> None:
        if msg["type"] != "sample" or isinstance(msg["fn"], dist.Unit):
            return
        law, _ = unwrapped(msg["fn"])
        private = isinstance(law, Privatized)
        if msg["is_observed"]:
            msg["value"], msg["is_observed"] = None, False
        if private and self.kind != "released":
            msg["fn"] = law.base_dist.expand(msg["fn"].batch_shape)
        if self.kind == "mean" and (private or msg["name"] in self.observed):
            msg["value"], msg["infer"] = _expectation(msg["fn"]), msg["infer"] | {"expectation": True}
        inner, _ = unwrapped(msg["fn"])
        of_numbers = not (inner.event_shape or isinstance(getattr(inner, "base_dist", inner), CATEGORICAL))
        if of_numbers and (private or msg["name"] in self.observed):
            values = {name: of_unwrapped(function, msg["fn"]) for name, function in self.functions.items()}
            msg["infer"] = msg["infer"] | {"functionals": values}


def _expectation(law: dist.Distribution) -> Array:
    """Of numbers the mean, NaN if there is none; of categories their shares, along a last axis."""
    inner, _ = unwrapped(law)
    if isinstance(inner, Grouped):
        return _expectation(inner.base_dist)[inner.groups]
    if isinstance(inner, CATEGORICAL):
        return jnp.broadcast_to(inner.probs, (*law.batch_shape, inner.probs.shape[-1]))
    try:
        return law.mean
    except NotImplementedError:
        return jnp.full(law.shape(), jnp.nan)


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
        by_chain = {name: np.asarray(array).reshape(chains, -1, *array.shape[1:]) for name, array in results.items()}
        return by_chain, numbers

    return at_draws


def replicates(density: Density) -> Generate:
    """What mechanisms would have released of other records of the same law; ValueError for sketches without laws."""
    simulation = density.replace_data(_unobserved)
    return _drawn(dataclasses.replace(simulation, model=_NewAnswers(density.model, "released")))


def _drawn(density: Density) -> Generate:
    """Values of the sites that are drawn where others have given values."""

    def drawn(key: Key, values: Params) -> Params:
        sites = _run(density, key, values, observed=False)
        return {name: site["value"] for name, site in sites.items() if name not in values}

    return drawn


def _run(density: Density, key: Key, values: Params, observed: bool) -> dict[str, Message]:
    """Sites of a run with this random key, whose latent sites have given values."""
    return sample_sites(density.trace(numpyro.handlers.seed(given(density.model, values), key)), observed)


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
        sites = _run(density, key, values, observed=True)
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
