"""`fit`: the posterior of a model of released values."""

import contextlib
import dataclasses
import difflib
import functools
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import HMC, NUTS
from numpyro.primitives import Messenger

from ldpbayes._core.checks import ONE_INSIDE_0_1, at_least, checked, warn
from ldpbayes._core.pytrees import unchecked
from ldpbayes._core.types import Key, Message, Model, Params, PyTree
from ldpbayes.data import CountSketch, ExpandedSketch, NoisyTable, PanelSketch, Release, ReleaseWarning, Sketch
from ldpbayes.data.panel_sketch import MixedSketch, budgets_of
from ldpbayes.data.release import promises, warn_of_repeats
from ldpbayes.inference import model as protocol
from ldpbayes.inference._equal_rows import equal_rows_once, sketched_releases
from ldpbayes.inference._expansion import ExpandedCategories, Expansion, expanded_records
from ldpbayes.inference._handlers import joined_release, privatize
from ldpbayes.inference._tabulated import tabulated_records
from ldpbayes.inference.arguments import plans_of, prepared
from ldpbayes.inference.chains import Sampler
from ldpbayes.inference.compiled_programs import trace
from ldpbayes.inference.density import Density, Site, density_of, given, leaves, sample_sites, sites_of
from ldpbayes.inference.result import (
    UNCERTAINTY,
    ConvergenceWarning,
    convergence_problems,
    helpful_options,
    inference_data,
    labels,
)
from ldpbayes.inference.surrogates import DRAWS, ExpansionWarning, LikelihoodWarning, Records, Report, Surrogate, sample
from ldpbayes.mechanisms import Mechanism
from ldpbayes.mechanisms.protocol import Promise, joined_mechanism
from ldpbayes.numerics.arrays import evenly_spaced
from ldpbayes.privacy.guarantee import counted_once

UNKNOWN_PRIVACY = (
    "fit knows of no mechanism, and cannot say what was promised to those whose data these are. Give the model what "
    "was released as ldpbayes.Release(values, mechanism), also where it uses the values alone, or name the mechanisms "
    "of its sites with ldpbayes.privatize."
)
NARROW_LAW = (
    "the law of records is narrower than 0.5 % of the range between the clipping bounds, and its likelihood may err by "
    'over 0.001 nats. Use release.sketch(), which is refined where necessary, or observe(..., method="quadrature"), '
    "which is exact but slow for many records"
)
GENERATED = 1 << 31  # folded into the key for groups that are generated from draws: a number that no chain has
MAX_BYTES = 1 << 28  # bytes of a generated group

_Generate: TypeAlias = Callable[[Key, Params], Params]  # from values of the latent sites to arrays by observed site


def fit(
    model: Model,
    *args: Any,
    seed: int = 0,
    kernel: Any = None,
    num_warmup: int = 1000,
    num_samples: int = 1000,
    num_chains: int = 4,
    chain_method: Literal["threads", "vectorized"] | None = None,
    init_strategy: Callable | None = None,
    target_accept_prob: float | None = None,
    max_tree_depth: int | tuple[int, int] | None = None,
    dense_mass: bool | Sequence[tuple[str, ...]] | None = None,
    progress_bar: bool = True,
    expand: bool | Expansion | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Any] | None = None,
    posterior_predictive: bool = False,
    log_likelihood: bool | Release = False,
    same_people: bool = False,
    different_people: bool = False,
    **kwargs: Any,
) -> Any:
    """Sample the posterior of a NumPyro model of released values.

    If the model has at most three unconstrained parameters, `fit` integrates the posterior on adaptive cells. The draws
    are then independent, and no chains are run. Otherwise, `fit` samples with chains of NUTS (no-U-turn sampler). The
    result also states the mechanisms and their privacy guarantees. `fit` computes in double precision. The model is
    compiled in the first call. Later calls with data of the same shapes use the compiled model. `fit` also samples
    models without released values.

    Parameters
    ----------
    model, *args, **kwargs
        NumPyro model and its arguments, such as releases and sketches. Arguments can be data frames. Inside the model,
        ``frame["age"]`` is then an array (rows,), and ``frame[["age", "income"]]`` a matrix (rows, columns). Raises
        ValueError if a release has no values, if the model has no parameter to sample, or if its posterior has at most
        three parameters and is improper (its integral is infinite).
    seed : int
        Random seed. Default: 0. Equal calls with the same versions of the libraries give equal results.
    kernel : callable or numpyro.infer.mcmc.MCMCKernel
        An MCMC kernel of NumPyro, or a function of the model that returns a kernel, such as ``numpyro.infer.NUTS``. A
        kernel, or any of the options `chain_method`, `init_strategy`, `target_accept_prob`, `max_tree_depth` and
        `dense_mass`, gives chains. Default: an integral for at most three unconstrained parameters, otherwise
        ``numpyro.infer.NUTS``.
    num_warmup, num_samples : int
        For each chain: the number of warm-up iterations, which are discarded, and the number of draws. Default: 1000
        and 1000. An integral has no warm-up.
    num_chains : int
        Number of chains. Default: 4. The draws of an integral have this axis, too.
    chain_method : {"threads", "vectorized"}, optional
        How several chains of HMC or NUTS run at the same time: each chain in its own thread (default on a CPU), or all
        chains in one vectorized program (default on an accelerator). Both methods give the same draws, up to rounding
        errors.
    init_strategy : callable, optional
        A function of NumPyro that chooses the starting point of each chain. Default: ``numpyro.infer.init_to_uniform``.
    target_accept_prob : float, optional
        The acceptance probability for which the warm-up adapts the step size of HMC or NUTS. Default: 0.8.
    max_tree_depth : int or pair of int, optional
        Only for NUTS: the largest number of doublings of a trajectory. A pair has one number for the warm-up, and one
        for the draws after it. Default: 10.
    dense_mass : bool or list of tuple of str, optional
        The form of the mass matrix of HMC or NUTS.

        - False (default): a diagonal matrix.
        - True: a full matrix.
        - A list of tuples, such as ``[("mu", "sigma")]``: correlations only between sites (named variables) in the same
          tuple.
    progress_bar : bool
        True (default) if `fit` shows its progress: by a bar, or by lines of text if stderr is redirected to a file.
    expand : bool or Expansion, optional
        Whether a polynomial replaces the sum of the log-likelihoods of the records. This is faster for many records.

        - Default (None): `fit` uses a polynomial if this saves time.
        - True: `fit` uses a polynomial if possible. False: `fit` uses the exact log-likelihood.
        - An `Expansion`, made by `expand`: this polynomial replaces all records. Arguments of the model can then have
          any part of the records.

        After sampling, `fit` checks the polynomial at posterior draws. If it is not exact enough, `fit` reweights the
        draws, or samples again with the exact log-likelihood.
    dims : dict, optional
        For each site (named variable), the names of its axes in the result, such as ``{"slopes": ["region"]}``.
        Default: the names of the NumPyro plates around the site.
    coords : dict, optional
        For each axis, the labels of its entries in the result, such as ``{"region": ["north", "south"]}``. Default: the
        labels in the data, such as the keys of a `NoisyTable` or the names of groups.
    posterior_predictive : bool
        True if `fit` also simulates, for each posterior draw, new released values of as many records as in the data.
        Default: False. Raises ValueError for a sketch that has groups, or a separate budget for each record.
    log_likelihood : bool or Release
        True if `fit` also computes the log-likelihood of each released value at each posterior draw, in nats, for
        example for ``arviz.loo``. Default: False. If the data are a sketch, give here the release from which the sketch
        was made, because a sketch does not contain the single released values.
    same_people, different_people : bool
        ``same_people=True`` if all releases are about the same people. The attribute ``privacy`` of the result then
        begins with the guarantee for all releases together, which `ldpbayes.privacy.compose` computes.
        ``different_people=True`` if nobody is in two releases. Then no budgets are added. Default: it is not known. The
        attribute ``privacy`` then begins with the sum of the budgets. Raises ValueError if both are True.

    Returns
    -------
    arviz.InferenceData (ArviZ 0.23) or xarray.DataTree (ArviZ ≥ 1.0)
        The posterior and further groups of arrays:

        - ``posterior`` and ``sample_stats``: the draws, and statistics of the sampler, or only the log density ``lp``;
        - ``observed_data``: the released values, or the nodes of a sketch (weighted values that replace the released
          values);
        - ``constant_data``: the weights of the nodes;
        - ``posterior_predictive`` and ``log_likelihood``, if the arguments with these names ask for them. A group that
          would need more than 256 MiB has only some of the draws, evenly spaced.

        With ``posterior_predictive=True``, ``observed_data`` has the released values that a sketch kept, instead of
        nodes.

        The attribute ``privacy`` of the result states the privacy guarantees in words. If the posterior was integrated,
        ``log_evidence`` is the log marginal likelihood of the data, in nats, and ``log_evidence_error`` its numerical
        error. (They are missing if a prior is improper.) Further attributes are JSON texts:

        - ``integral``: ``"ran"`` is ``"integral"`` or ``"chains"``. For an integral, ``"total_variation"`` estimates
          the largest error of a probability, and ``"evaluations"`` counts how often the density was computed. For
          chains, ``"why"`` says why the posterior was not integrated;
        - ``mechanisms``: the mechanisms of the releases, but for those with sampled parameters;
        - ``certificates``: for sketches of numbers (`PanelSketch`), the largest error of the log-likelihood at
          posterior draws, in nats, and the numbers of panels;
        - ``expansion``: what replaced the log-likelihood of single records, such as a polynomial, and its errors in
          nats, or null;
        - ``narrow_share``: the share of posterior draws that a `LikelihoodWarning` is about;
        - ``release_warnings`` and ``convergence_warnings``: the texts of the warnings that `fit` issued.

        For a `NoisyTable`, the attribute ``uncertainty`` says if the posterior describes the table before noise, or a
        population from which the people in the table are a sample.

    Warns
    -----
    ReleaseWarning
        The released values are nearly impossible under the stated mechanism, whatever the original records are.
    RepeatedAnswersWarning
        Several values of a release may be about one person, but the model treats them as independent.
    ConvergenceWarning
        The chains have not converged well enough: there are divergences, or a parameter has an R-hat above 1.01, a bulk
        or tail effective sample size below 100 times the number of chains, or one below 125 times this number at its 1%
        or 99% quantile. One warning lists all these problems, and the parameters without any.
    ExpansionWarning
        A polynomial was not exact enough, and `fit` sampled with the exact log-likelihood instead. Or an `Expansion`
        may be inexact, because `fit` could check it only with a part of the records.
    LikelihoodWarning
        Many records share a law that is narrow beside the clipping bounds, so that the numerical integration over the
        records is not exact.
    SketchWarning
        The log-likelihood of a sketch had an error above 1e-3 nats. If the sketch kept the released values, `fit` makes
        a more exact sketch and samples the posterior again.

    Examples
    --------
    >>> import ldpbayes as ldp
    >>> release = ldp.Release([1, 0, 1] * 60, ldp.RandomizedResponse(epsilon=1.0))
    >>> result = ldp.fit(ldp.models.warner(), release, progress_bar=False)
    >>> result.posterior["theta"].shape
    (4, 1000)
    """
    num_warmup = at_least(0, "num_warmup", num_warmup)
    num_samples, num_chains = at_least(1, "num_samples", num_samples), at_least(1, "num_chains", num_chains)
    if chain_method not in (None, "threads", "vectorized"):
        raise ValueError(f"chain_method must be 'threads', 'vectorized' or None, got {chain_method!r}")
    if not isinstance(expand, Expansion) and expand not in (None, True, False):
        raise ValueError(f"expand must be True, False, None or an Expansion, got {expand!r}")
    factory = _with_options(kernel or NUTS, init_strategy, target_accept_prob, max_tree_depth, dense_mass)
    chosen = kernel is not None or isinstance(factory, functools.partial) or chain_method is not None
    _check_call(model, args, kwargs)
    args, kwargs, entries = prepared(model, args, kwargs)
    plans = {"releases": json.dumps(plans_of(model, args, kwargs))}
    model = model.tuned(*args, **kwargs) if isinstance(model, protocol.Model) else model
    density = density_of(model, args, kwargs)
    if any(isinstance(data, Release) and data.values is None for data in density.data):
        raise ValueError("fit needs released values; a release with only a count is for simulation (Predictive)")
    with jax.enable_x64(True):
        sites = sites_of(density)
        sampled = {name for name, site in sites.items() if site.latent}
        if isinstance(dense_mass, Sequence) and not all(isinstance(b, tuple) and {*b} <= sampled for b in dense_mass):
            raise ValueError(f"dense_mass must be True, False or tuples of {sorted(sampled)}, got {dense_mass!r}")
        if not any(site.latent for site in sites.values()):
            raise ValueError("the model has no site to sample; call a model factory first: fit(warner(), ...)")
        data, axes = data_of(model, (args, kwargs)), labels(dims, coords, sites, (args, kwargs))
        doubts = [doubt for each in density.data for doubt in each.doubts]
        of_shards = list[Promise]()  # the releases of other shards count, too
        if isinstance(expand, Expansion):
            known = [promise for each in data for promise in each.promises]
            of_shards = [promise for promise in expand.promises if promise not in known]
            doubts += [doubt for doubt in expand.doubts if doubt not in doubts]
        mechanisms = mechanisms_of(data, sites) + [promise.mechanism for promise in of_shards]
        others = [*of_shards, *map(Promise, mechanisms_of([], sites))]
        privacy = promises(data, others, same_people, different_people)
        privacy = "\n".join(filter(None, [privacy, *map(_of_sampled, sites, sites.values())])) or UNKNOWN_PRIVACY
        requested = {"posterior_predictive": replicates} if posterior_predictive else {}
        if isinstance(log_likelihood, Release) or log_likelihood:
            requested["log_likelihood"] = functools.partial(log_likelihoods, release=log_likelihood)
        values = jax.eval_shape(density.values, jax.random.key(0)) if requested else {}
        generated = {name: generator(name, function(density), values) for name, function in requested.items()}
        key, made = jax.random.key(seed), factory(model) if callable(factory) else factory
        plain = type(made) in (HMC, NUTS) and made.model is not None and all(site.plain for site in sites.values())
        outside = None if plain else factory
        if outside is not None and expand:
            raise ValueError(f"expand= needs HMC or NUTS, and a model without discrete sites; got kernel {kernel!r}")
        for doubt in doubts:
            warn(doubt, ReleaseWarning)
        doubts += model.doubts if isinstance(model, privatize) else ()  # it has warned when the model ran
        parts = [*(each.promises for each in data), *([promise] for promise in of_shards)]
        doubts += warn_of_repeats(*parts, same_people=same_people)
        why = "a kernel or its options were given" if chosen else None if plain else "sites are discrete or subsampled"
        how = chain_method, progress_bar, outside, why, any(site.improper for site in sites.values()), seed
        sampler = Sampler(made, key, num_warmup, num_samples, num_chains, *how)
        counted, own, equal = density, sites, dict[str, Any]()
        if plain and not isinstance(expand, Expansion):  # whose points are of all records
            if expand is None:
                counted, own, equal = sketched_releases(density, sites)
            if not equal:
                counted, own, equal = equal_rows_once(density, sites, made._init_strategy, key)
        draws = sample(_surrogate_of(counted, own, sampler, expand), sampler)
        narrow = _narrow_share(counted, draws.samples, own)
        observed = _data_groups(draws.density.whole or draws.density)
        groups = {"posterior": draws.samples, "sample_stats": draws.statistics} | observed
        if posterior_predictive:  # it is compared with released values, not with nodes
            records = released(density)
            groups["observed_data"] = _data_groups(records)["observed_data"] if records else {}
        numbers = {}
        for place, (name, generate) in enumerate(generated.items(), start=GENERATED):
            groups[name], numbers[name] = generate(jax.random.fold_in(key, place), draws.samples)
        result = inference_data(groups, *axes, numbers)
    integral = draws.integral
    problems = convergence_problems(result) if integral["ran"] == "chains" else []
    evidence = {name: integral.pop(name) for name in ("log_evidence", "log_evidence_error") if name in integral}
    if not any(site.improper for site in sites.values()):
        result.attrs.update(evidence)
    certificates = [{"error_nats": each.error_nats, "panels": each.panels} for each in draws.reports if each.panels]
    expansions = [each.entries() for each in draws.reports if not each.panels]
    result.attrs.update(
        mechanisms=json.dumps([mechanism.spec() for mechanism in mechanisms]),
        privacy=privacy,
        certificates=json.dumps(certificates),
        integral=json.dumps(integral),
        expansion=json.dumps(equal | (expansions[0] if expansions else {}) or None),
        release_warnings=json.dumps(doubts),
        narrow_share=narrow,
        convergence_warnings=json.dumps(problems),
        seed=int(seed),
        **(plans | entries),
    )
    of_tables = [site.fixed for site in sites.values() if isinstance(site.release, NoisyTable)]
    if of_tables:
        result.attrs["uncertainty"] = UNCERTAINTY[all(of_tables)]
    if narrow:
        warn(f"at {narrow:.0%} of posterior draws {NARROW_LAW}", LikelihoodWarning)
    if problems:
        depth = np.ravel(made._max_tree_depth)[-1] if isinstance(made, NUTS) else np.inf
        warn(ConvergenceWarning("; ".join(problems), helpful_options(result, depth)))
    return result


def _surrogate_of(
    density: Density, sites: dict[str, Site], sampler: Sampler, expand: bool | Expansion | None
) -> Surrogate:
    """An expansion of the records, if one is given, requested or worthwhile, otherwise the data as they are."""

    def records(why: str | None = None, report: Report | None = None) -> Surrogate:
        reports = () if why is None else (dataclasses.replace(report or Report(), ran="records", why=why),)
        if why is not None:
            result = "no polynomial was accurate enough, so the likelihood of all records is used (exact, but slow)"
            warn(f"{result}: {why}", ExpansionWarning)
        exact = density.replace_data(lambda data: data.exact if isinstance(data, ExpandedSketch) else data)
        whole, kinked = (any(getattr(s, which) for s in sites.values()) for which in ("discrete_base", "kinked"))
        # panels that a density has kinks in would be refused after the warm-up
        return Records(exact, whole, sampler.outside is None and not kinked, reports)

    expandable = sampler.outside is None and expand is not False
    if any(isinstance(data, ExpandedSketch) for data in density.data):
        if isinstance(expand, Expansion):
            raise ValueError("expand= cannot be an Expansion if the data are an expanded sketch; pass the release")
        return ExpandedCategories(density, sampler, records) if expandable else records()
    if not expandable:
        return records()
    tables = tabulated_records(density, sites, sampler, records) if expand is None else None
    return tables or expanded_records(density, sites, sampler, expand, records) or records()


def _narrow_share(density: Density, samples: Params, sites: Mapping[str, Site]) -> float:
    """Share of some posterior draws at which a law of records is too narrow for the panels of its likelihood."""
    if not any(site.on_panels for site in sites.values()):
        return 0.0
    latent = {name: values for name, values in samples.items() if sites[name].latent}
    draws = {name: evenly_spaced(each.reshape(-1, *each.shape[2:]), DRAWS) for name, each in latent.items()}
    traced, (arrays,) = trace(lambda _, values: density.is_narrow(values), {n: each[0] for n, each in draws.items()})
    return float(np.mean(traced.program("narrow", jax.vmap(traced, (None, 0)), arrays, draws)(arrays, draws)))


def _with_options(kernel: Any, start: Any, accept: Any, depth: Any, dense: Any) -> Any:
    """A kernel or its factory, with the options of `fit` that are passed on to it."""
    options = {"init_strategy": start, "target_accept_prob": accept, "max_tree_depth": depth, "dense_mass": dense}
    options = {name: value for name, value in options.items() if value is not None}
    if options and not callable(kernel):
        raise ValueError(f"{' and '.join(options)}: pass a kernel class, or give these options to the kernel itself")
    if accept is not None:
        checked("target_accept_prob", accept, *ONE_INSIDE_0_1)
    for each in depth if isinstance(depth, tuple) else [depth] if depth is not None else []:
        at_least(1, "max_tree_depth", each)
    return functools.partial(kernel, **options) if options else kernel


def _check_call(model: Model, args: tuple, kwargs: dict[str, Any]) -> None:
    """TypeError for arguments that the model does not take, with a hint at misspelt options of `fit`."""
    signature = inspect.signature(model)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name, options = getattr(model, "__name__", "model"), inspect.signature(fit).parameters
        similar = [close for word in kwargs for close in difflib.get_close_matches(word, options, 1)]
        hint = f"; fit has an option {similar[0]}" if similar else ""
        raise TypeError(f"{error}; the model is {name}({', '.join(signature.parameters)}){hint}") from None


def data_of(model: Model, data: PyTree) -> list[Any]:
    """The releases and sketches among a model's arguments and variables."""
    parts = (*leaves(data), *_variables(model))
    return [*{id(each): each for each in parts if isinstance(each, (Release, Sketch))}.values()]


def mechanisms_of(data: Sequence[Any], sites: Mapping[str, Site]) -> list[Mechanism]:
    """Mechanisms of releases and sketches, and of a model's sites without one."""
    of_sites = [site.mechanism for site in sites.values() if site.mechanism is not None]
    return [promise.mechanism for promise in counted_once(each for part in data for each in part.promises)] + of_sites


def _of_sampled(name: str, site: Site) -> str:
    """What is said of the promise of a mechanism with sampled parameters; nothing of others."""
    return bool(site.sampled) * (
        f"What the mechanism of site {name!r} promises depends on {' and '.join(map(repr, site.sampled))}, which the "
        "model samples. So no epsilon is stated, and none is part of a sum. A mechanism made with a draw states the "
        "guarantee at this draw."
    )


def _variables(model: Model) -> list[Any]:
    """Leaves of a model's defaults, and of the variables of its module and of the functions around it."""
    variables, pending, known = list[Any](), [model], set[int]()
    while pending:
        function: Any = pending.pop()
        if id(function) in known:
            continue
        known.add(id(function))
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


def _data_groups(density: Density) -> dict[str, Params]:
    """ArviZ groups of the observed values, and of the weights of the nodes of sketches."""
    weighted = [(i, data) for i, data in enumerate(density.data) if isinstance(data, Sketch)]
    weights = {f"weights_{i}" if i else "weights": d.weights for i, d in weighted if not isinstance(d, ExpandedSketch)}
    key = jax.random.key(0)
    observing, (arrays,) = trace(lambda _, key: density.values(key, observed=True), key)
    return {"observed_data": jax.device_get(observing(arrays, key)), "constant_data": weights}


def generator(name: str, function: _Generate, example: Params) -> Callable[[Key, Params], tuple[Params, np.ndarray]]:
    """``function``, of values as in the example, at samples (chains, draws, ...), and at which draws: evenly spaced, if
    all exceed `MAX_BYTES`.
    """
    shapes = jax.eval_shape(function, jax.random.key(0), example)
    if not shapes:
        raise ValueError(f"{name} needs observed data, but the model has none")
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in shapes.values())
    if size > MAX_BYTES:
        raise ValueError(f"{name} would take {size / 2**30:.1f} GiB for each draw; give the model fewer records")

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
        return dataclasses.replace(data, values=None)
    if isinstance(data, MixedSketch):
        return joined_release("", range(len(data.parts)), [*map(_unobserved, data.parts)])
    if data.law_shape or data.mechanism.batch_shape:
        lacking = f"which a {type(data).__name__} of groups or personal budgets does not have"
        raise ValueError(f"posterior_predictive needs each record's law, {lacking}; pass the release")
    return Release(None, data.mechanism, int(np.rint(data.size)))


def log_likelihoods(density: Density, release: bool | Release = True) -> _Generate:
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
    elif isinstance(sketch, MixedSketch):
        parts = [part for part in map(_release, sketch.parts) if part is not None]
        return joined_release("", range(len(parts)), parts) if len(parts) == len(sketch.parts) else None
    elif isinstance(sketch, PanelSketch) and sketch.records is not None:
        values = np.concatenate(sketch.records)
    else:
        return None
    return unchecked(Release, values, data.mechanism, len(values))
