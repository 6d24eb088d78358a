"""What `fit` is asked: the density of a model with its data, the sites, and what its posterior states beside draws."""

import contextlib
import dataclasses
import functools
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import numpyro
from numpyro.primitives import Messenger

from ldpbayes._core.checks import warn
from ldpbayes._core.types import Model, Params, PyTree
from ldpbayes.data import NoisyTable, Release, ReleaseWarning, SamplingDesign, Sketch
from ldpbayes.data.release import warn_of_repeats
from ldpbayes.data.sampling import of_records
from ldpbayes.inference._handlers import privatize
from ldpbayes.inference.compiled_programs import program_of
from ldpbayes.inference.density import Density, Site, density_of, given, leaves, sites_of
from ldpbayes.inference.model import is_plan, model_of, plans_of
from ldpbayes.inference.result import UNCERTAINTY, labels
from ldpbayes.laws.compound import unwrapped
from ldpbayes.mechanisms import Mechanism
from ldpbayes.mechanisms.protocol import Promise, statements
from ldpbayes.privacy.guarantee import counted_once, quoted

DRAWS_OF_PROMISES, MOST_EXTREMES = 64, 32  # posterior draws at which promises are computed, beside extreme ones
UNKNOWN_PRIVACY = (
    "fit knows of no mechanism, and cannot say what was promised to those whose data these are. Give the model what "
    "was released as ldpbayes.Release(values, mechanism), also where it uses the values alone, or name the mechanisms "
    "of its sites with ldpbayes.privatize."
)


@dataclass(frozen=True)
class Problem:
    """A density to sample, or one of fewer rows in its place, with the requests and the facts that do not change."""

    density: Density
    sites: dict[str, Site]
    expand: Any = None  # whether a polynomial replaces the records, or the `Expansion` to use; None: if it saves time
    axes: tuple[Params, Params, Params] = ({}, {}, {})  # `labels` of the result
    attrs: Params = field(default_factory=dict)  # of the result: the promises, and what predictions need
    sampling: SamplingDesign | None = None  # of the records, whose weights the density has
    fewer: Params = field(default_factory=dict)  # what stands in place of all records, if their rows are fewer here

    expansion = property(lambda self: None if self.expand in (None, True, False) else self.expand)
    improper = property(lambda self: any(site.improper for site in self.sites.values()))
    plain = property(lambda self: all(site.plain for site in self.sites.values()))
    kinked = property(lambda self: any(site.kinked for site in self.sites.values()))  # panels cannot be coarser then
    on_whole_numbers = property(lambda self: any(site.discrete_base for site in self.sites.values()))
    sampled = property(lambda self: {name for name, site in self.sites.items() if site.latent})


def problem_of(
    model: Model,
    args: tuple,
    kwargs: Params,
    expand: Any,
    dims: Mapping[str, Sequence[str]] | None,
    coords: Mapping[str, Any] | None,
    same_people: bool = False,
    different_people: bool = False,
    sampling: SamplingDesign | None = None,
) -> Problem:
    """The problem of a model with a user's arguments, and perhaps a sampling design of the records or of the rows of
    the data. Warns of doubts about releases.
    """
    args, kwargs, entries = model_of(model).prepare(args, kwargs)
    if sampling is not None:
        sampling = of_records(sampling, next((p for p in leaves((args, kwargs)) if isinstance(p, Release)), None))
    plans = {"releases": json.dumps(plans_of(model, args, kwargs))}
    model = model_of(model).tuned(*args, **kwargs)
    density = density_of(model, args, kwargs, None if sampling is None else sampling.normalised)
    if any(map(is_plan, density.data)):
        raise ValueError("fit needs released values; a release with only a count is for simulation (Predictive)")
    with jax.enable_x64(True):
        sites = sites_of(density)
    if not any(site.latent for site in sites.values()):
        raise ValueError("the model has no site to sample; call a model factory first: fit(warner(), ...)")
    problem = Problem(density, sites, expand)
    expansion, axes = problem.expansion, labels(dims, coords, sites, (args, kwargs))
    promised = promises_in(model, (args, kwargs), sites, () if expansion is None else expansion.promises)
    together = [promise for part in promised for promise in part]
    privacy = statements(together, same_people, different_people)
    doubts = [doubt for part in density.data for doubt in part.doubts]
    doubts += [] if expansion is None else [doubt for doubt in expansion.doubts if doubt not in doubts]
    for doubt in doubts:
        warn(doubt, ReleaseWarning)
    doubts += model.doubts if isinstance(model, privatize) else ()  # it has warned when the model ran
    doubts += warn_of_repeats(*promised, same_people=same_people)
    attrs = plans | entries | {"privacy": privacy, "release_warnings": json.dumps(doubts)}
    attrs["mechanisms"] = json.dumps([promise.mechanism.spec() for promise in counted_once(together)])
    of_tables = [site.fixed for site in sites.values() if isinstance(site.release, NoisyTable)]
    if of_tables:
        attrs["uncertainty"] = UNCERTAINTY[all(of_tables)]
    return dataclasses.replace(problem, axes=axes, attrs=attrs, sampling=sampling)


def promises_in(
    model: Model, arguments: PyTree, sites: Mapping[str, Site], of_shards: Sequence[Promise] = ()
) -> list[Sequence[Promise]]:
    """Promises of the releases and sketches among a model's arguments and variables, of those of other shards that an
    expansion has, and of sites without a release.
    """
    parts = (*leaves(arguments), *_variables(model))
    data = {id(part): part for part in parts if isinstance(part, (Release, Sketch))}.values()
    promised = [part.promises for part in data]
    others = [promise for promise in of_shards if not any(promise in part for part in promised)]
    others += [Promise(site.mechanism) for site in sites.values() if site.mechanism is not None]
    return promised + [[promise] for promise in others]


def promised_at(density: Density, sites: Mapping[str, Site], samples: Params) -> list[str]:
    """What each mechanism with sampled parameters promises at their posterior mean, and at the worst of the draws where
    one of them is extreme, and of some others: exact for promises that are monotone in each parameter.
    """
    latent = {name: values.reshape(-1, *values.shape[2:]) for name, values in samples.items() if sites[name].latent}
    return [_promised_at(density, name, site, latent) for name, site in sites.items() if site.sampled]


def _promised_at(density: Density, name: str, site: Site, draws: Params) -> str:
    sampled: Any = site.sampled
    mechanism_of: Any = site.mechanism
    one: Promise = site.release.promises[0] if isinstance(site.release, Release) else Promise(mechanism_of)
    columns = np.concatenate([draws[part].reshape(len(draws[part]), -1) for part in sampled], axis=1)
    ends = [columns.argmin(axis=0)[:MOST_EXTREMES], columns.argmax(axis=0)[:MOST_EXTREMES]]
    rows = np.concatenate([*ends, np.arange(0, len(columns), max(1, len(columns) // DRAWS_OF_PROMISES))])
    points = [{part: values[row] for part, values in draws.items()} for row in np.unique(rows)]
    points = [{part: values.mean(axis=0) for part, values in draws.items()}, *points]

    def mechanism(values: Params) -> Mechanism:
        model = numpyro.handlers.seed(given(density.model, values), jax.random.key(0))
        return unwrapped(density.trace(model)[name]["fn"])[0].mechanism

    def promise(values: Params) -> tuple[float, ...]:
        """The largest epsilon and delta of a record."""
        guarantee = one._replace(mechanism=jax.device_get(at(values))).in_all
        return tuple(np.max(np.reshape(part, -1)) for part in guarantee.stated_pair)

    with jax.enable_x64(True):
        at = program_of("mechanism", mechanism, points[0])
        pairs = [promise(values) for values in points]
    texts = [f"epsilon {quoted(epsilon)} and delta {quoted(delta)}" for epsilon, delta in (pairs[0], max(pairs))]
    people = f", for up to {one.repeats:,} reports of a person" if one.repeats > 1 else ""
    depends = f"depends on {' and '.join(map(repr, sampled))}, which the model samples"
    if len({*pairs}) == 1:
        return f"The mechanism of site {name!r} {depends}. It promises {texts[0]} at all draws{people}."
    at_draws = f"{' at the posterior mean, and '.join(texts)} at the worst draw{people}"
    return f"What the mechanism of site {name!r} promises {depends}: {at_draws}. It is part of no sum."


def _variables(model: Model) -> list[Any]:
    """Leaves of a model's defaults, and of the variables of its module and of the functions around it."""
    variables, pending, visited = list[Any](), [model], set[int]()
    while pending:
        function: Any = pending.pop()
        if id(function) in visited:
            continue
        visited.add(id(function))
        values: list[Any] = []
        if isinstance(function, functools.partial):
            values = [function.func, *function.args, *function.keywords.values()]
        elif inspect.ismethod(function):
            values = [function.__func__, *vars(function.__self__).values()]
        elif inspect.isfunction(function):
            with contextlib.suppress(ValueError):  # a variable that has no value yet
                closure, module = inspect.getclosurevars(function), function.__module__
                values = [*closure.nonlocals.values(), *(function.__defaults__ or ())]
                # Data, and functions that are defined in the model's module.
                values += [v for v in closure.globals.values() if not inspect.isroutine(v) or v.__module__ == module]
        else:  # a handler, such as `privatize`, or a wrapper, such as a model of `ldp.models`
            values = [function.fn if isinstance(function, Messenger) else getattr(function, "__wrapped__", None)]
        parts = leaves(values)
        variables += parts
        pending += parts
    return variables
