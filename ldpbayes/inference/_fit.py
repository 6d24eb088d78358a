"""Sampling the posterior of a model of released values."""

import contextlib
import difflib
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from numpyro.infer import NUTS
from numpyro.primitives import Messenger

from ldpbayes._core.checks import LdpBayesWarning, at_least, checked, warn
from ldpbayes.data import ExpandedSketch, Release, ReleaseWarning, Sketch
from ldpbayes.inference._expansion import Expansion
from ldpbayes.inference._generated import Generated, log_likelihoods, released, replicates
from ldpbayes.inference._privatize import privatize
from ldpbayes.inference._sampled import Run, by_chains, by_numpyro, sampled
from ldpbayes.inference._surrogates import Outcome, by_expansion, by_sketch, counted, expanded_sketches
from ldpbayes.inference.certificate import leaves
from ldpbayes.inference.chains import takes
from ldpbayes.inference.density import Density, Site, density_of, sites_of
from ldpbayes.inference.programs import trace
from ldpbayes.inference.result import ADVICE, ConvergenceWarning, convergence_problems, inference_data, labels
from ldpbayes.mechanisms.protocol import statements

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


GENERATED = 1 << 31  # folded into the key for what is generated from draws: a number that no chain has


class ExpansionWarning(LdpBayesWarning):
    """An expansion was not exact enough for the posterior; the message says why the records were sampled."""


def fit(
    model: Callable,
    *args: Any,
    seed: int = 0,
    kernel: Any = NUTS,
    num_warmup: int = 1000,
    num_samples: int = 1000,
    num_chains: int = 4,
    chain_method: str | None = None,
    init_strategy: Callable | None = None,
    target_accept_prob: float | None = None,
    max_tree_depth: int | tuple[int, int] | None = None,
    progress_bar: bool = True,
    expand: bool | Expansion | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Any] | None = None,
    posterior_predictive: bool = False,
    log_likelihood: bool = False,
    **kwargs: Any,
) -> Any:
    """Posterior of a NumPyro model, as an ArviZ structure that carries the mechanisms and their privacy statements.

    One chain is compiled, once for all data of the same structure, and kept for later calls. Everything runs in double
    precision.

    Parameters
    ----------
    model : callable
        NumPyro model, called as ``model(*args, **kwargs)``.
    *args, **kwargs
        Arguments of the model, releases and sketches among them. Data frames are converted once: the model has
        ``frame["age"]`` as an array, and ``frame`` or ``frame[["age", "income"]]`` as a matrix where one is needed
        (``frame @ slopes``). A series becomes an array.
    seed : int
        Results are a function of the seed, the data and the library versions.
    kernel : callable or numpyro.infer.mcmc.MCMCKernel
        A kernel class (or factory) called with the model, or a kernel of your own making.
    num_warmup, num_samples : int
        Iterations of a chain that adapt it and are discarded, and that are kept.
    num_chains : int
        How many chains there are, each from a start of its own.
    chain_method : {"threads", "vectorized"}, optional
        How chains of HMC and NUTS run: by default in threads, one a core, on a CPU, and vectorised, spread over all
        devices, on accelerators. The draws are the same to rounding.
    init_strategy : callable, optional
        Where chains start, such as `numpyro.infer.init_to_median`; by default what the kernel has, in NumPyro
        `init_to_uniform`.
    target_accept_prob : float, optional
        Mean acceptance probability that the step size is adapted to, between 0 and 1: NUTS's 0.8 by default; nearer to
        1 it takes smaller steps, with fewer divergences.
    max_tree_depth : int or (int, int), optional
        At most 2 to this power are NUTS's steps an iteration: 10 by default; of a pair the first is for the warm-up.
    progress_bar : bool
        Whether a bar on stderr counts the iterations; where stderr is a file, a line now and then does. If much time is
        left after the first seconds, another line says how much, and what would be faster.
    expand : bool or Expansion, optional
        Whether the log-likelihood of many records may be replaced by an expansion, a polynomial in the few numbers that
        they see, which is compared with the records at posterior draws, and reweighted or given up where it is not
        exact. By default where that pays and there are enough records. An expansion of your own (see `expand`) stands
        for all records, of which the arguments may then be any part.
    dims : dict of str to list of str, optional
        By site, names of the axes of its values; sites in plates have the plates' names by default.
    coords : dict of str to array_like, optional
        By name of an axis, labels of the places on it: ``coords={"region": ["north", "south"]}``.
    posterior_predictive : bool
        Whether data are replicated at the draws: what the mechanism would release of as many other records.
    log_likelihood : bool
        Whether the log-likelihood of every record is computed at the draws, for `arviz.loo`; not for sketches.

    Returns
    -------
    arviz.InferenceData (ArviZ 0.23) or xarray.DataTree (ArviZ ≥ 1.0)
        Groups posterior, sample_stats and observed_data (a sketch's nodes, whose weights are in constant_data; with
        posterior_predictive the values it was made from, or nothing where it has not kept them), and on request
        posterior_predictive and log_likelihood (of evenly spaced draws, where those of all would take more than
        256 MiB each). Attributes: ``privacy``, what was promised to those whose records these were, in words; and as
        JSON ``mechanisms``, ``certificates`` (largest log-likelihood error of the sketches in nats at posterior draws,
        and their panels), ``expansion`` (what ran, why, and how far off it was at posterior draws; null where records
        or sketches were sampled as they are), ``release_warnings``, ``convergence_warnings``.

    Warns
    -----
    ReleaseWarning
        For a release, or a sketch of one, that the stated mechanism could hardly have made, whatever the records are.
    ConvergenceWarning
        Divergences, R-hat above 1.01, or bulk or tail effective sample size below 100 a chain: one warning a fit.
    ExpansionWarning
        An expansion that was asked for or chosen is not exact enough, and the records were sampled; or one of shards,
        whose records are not here, has reason for doubt.
    SketchWarning
        A sketch that is off by more than 1e-3 nats: it is refined, and the posterior sampled again.

    Raises
    ------
    ValueError
        If a release holds no values, the model has nothing to sample, a site's mechanism cannot have released what is
        observed there, the numbers of draws are not positive, an expansion is of another model, ``dims`` or ``coords``
        do not fit the model, numbers of a series are missing, or a sketch cannot say what is asked of each record. A
        model without a release is fitted as `numpyro.infer.MCMC` would.
    """
    num_warmup = at_least(0, "num_warmup", num_warmup)
    num_samples, num_chains = at_least(1, "num_samples", num_samples), at_least(1, "num_chains", num_chains)
    if chain_method not in (None, "threads", "vectorized"):
        raise ValueError(f"chain_method must be 'threads', 'vectorized' or None, got {chain_method!r}")
    if not isinstance(expand, Expansion) and expand not in (None, True, False):
        raise ValueError(f"expand must be True, False, None or an Expansion, got {expand!r}")
    options = _kernel_options(kernel, init_strategy, target_accept_prob, max_tree_depth)
    _check_call(model, args, kwargs)
    simulated = [r for r in leaves((args, kwargs)) if isinstance(r, Release) and r.values is None]
    if simulated:
        raise ValueError(
            "fit needs released values; a release with only a count is for simulation (numpyro's Predictive)"
        )
    density = density_of(model, args, kwargs)
    doubts = [doubt for data in leaves((density.args, density.kwargs)) for doubt in getattr(data, "doubts", ())]
    make = functools.partial(kernel, **options) if options else kernel
    with jax.enable_x64(True):
        sites = sites_of(density)
        if not any(site.latent for site in sites.values()):
            raise ValueError(
                "the model has no site to sample; a model factory is called first, as in fit(clipped_gaussian(), ...)"
            )
        mechanisms = mechanisms_of(model, (args, kwargs), sites)
        axes = labels(dims, coords, sites)
        asked = {"posterior_predictive": (posterior_predictive, replicates)}
        asked |= {"log_likelihood": (log_likelihood, log_likelihoods)}
        generated = {name: Generated(name, of(density), density) for name, (wanted, of) in asked.items() if wanted}
        for problem in doubts:
            warn(problem, ReleaseWarning)
        doubts += model.doubts if isinstance(model, privatize) else ()  # it has warned when the model ran
        sampler = make(model) if callable(make) else make
        key = jax.random.key(seed)
        settings = key, (num_warmup, num_samples, num_chains), progress_bar, sites
        outcome: Outcome | None = None
        plain, given = takes(sampler, sites), density
        if expanded_sketches(density):
            if isinstance(expand, Expansion):
                raise ValueError(
                    "the data are an expansion already, and expand= is given another one; pass the release"
                )
            if plain and expand is not False:
                outcome = by_sketch(sampler, chain_method, *settings[:-1], density)
            if outcome is None or outcome.samples is None:
                density = counted(density)
        if plain:
            run: Run = functools.partial(by_chains, sampler, chain_method, *settings)
            if outcome is None and expand is not False:
                outcome = by_expansion(sampler, chain_method, *settings, density, expand)
        elif expand:
            raise ValueError(f"expand= is for HMC and NUTS on a model that they sample as it is, got {kernel!r}")
        else:
            run = functools.partial(by_numpyro, make, *settings)
        report, certificates = (outcome.report if outcome else None), list[dict[str, Any]]()
        if report and "why" in report:
            warn(f"no expansion is sampled, but the data as they are: {report['why']}", ExpansionWarning)
        if report and "doubt" in report:
            warn(report["doubt"], ExpansionWarning)
        if outcome and outcome.samples is not None:
            samples, statistics = outcome.samples, outcome.statistics or {}
        else:
            samples, statistics, density, certificates = sampled(run, density, sites)
        groups, picked = {"posterior": samples, "sample_stats": statistics} | _data(density), {}
        if posterior_predictive:  # which is compared with released values, not with nodes
            records = released(given)
            groups["observed_data"] = _data(records)["observed_data"] if records else {}
        for number, (name, generate) in enumerate(generated.items()):
            groups[name], picked[name] = generate(jax.random.fold_in(key, GENERATED + number), samples)
        result = inference_data(groups, *axes, picked)
    problems = convergence_problems(result)
    result.attrs.update(
        mechanisms=json.dumps([mechanism.spec() for mechanism in mechanisms]),
        privacy=statements(mechanisms) or UNKNOWN,
        certificates=json.dumps(certificates),
        expansion=json.dumps(report),
        release_warnings=json.dumps(doubts),
        convergence_warnings=json.dumps(problems),
        seed=int(seed),
    )
    if problems:
        warn("; ".join(problems) + ADVICE, ConvergenceWarning)
    return result


def _kernel_options(kernel: Any, start: Any, accept: Any, depth: Any) -> dict[str, Any]:
    """Options of `fit` that are those of a kernel, less those that are not given."""
    given = {"init_strategy": start, "target_accept_prob": accept, "max_tree_depth": depth}
    options = {name: value for name, value in given.items() if value is not None}
    if options and not callable(kernel):
        raise ValueError(
            f"{' and '.join(options)} is for a kernel that fit makes; this one has been made, with its own"
        )
    if accept is not None:
        checked("target_accept_prob", accept, "between 0 and 1, exclusive", lambda a: (a > 0) & (a < 1) & (a.ndim == 0))
    for each in depth if isinstance(depth, tuple) else [depth] if depth is not None else []:
        at_least(1, "max_tree_depth", each)
    return options


def _check_call(model: Callable, args: tuple, kwargs: dict[str, Any]) -> None:
    """TypeError for arguments that the model does not take; options of `fit` are easily misspelt."""
    signature = inspect.signature(model)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name, options = getattr(model, "__name__", "model"), inspect.signature(fit).parameters
        near = [close for word in kwargs for close in difflib.get_close_matches(word, options, 1)]
        hint = f"; fit has an option {near[0]}" if near else ""
        raise TypeError(f"{error}; the model is {name}({', '.join(signature.parameters)}){hint}") from None


def _released(density: Density) -> list[Any]:
    return [leaf for leaf in leaves((density.args, density.kwargs)) if isinstance(leaf, (Release, Sketch))]


def _data(density: Density) -> dict[str, dict[str, Any]]:
    """What was observed, and the weights of the nodes of sketches."""
    weighted = [(i, d) for i, d in enumerate(_released(density)) if isinstance(d, Sketch)]
    weights = {f"weights_{i}" if i else "weights": d.weights for i, d in weighted if not isinstance(d, ExpandedSketch)}
    key = jax.random.key(0)
    observing, (arrays,) = trace(lambda _, key: density.observed(key), key)
    return {"observed_data": jax.device_get(observing(arrays, key)), "constant_data": weights}
