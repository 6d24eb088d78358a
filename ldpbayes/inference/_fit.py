"""`fit`: the posterior of a model of released values."""

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._core.checks import warn
from ldpbayes._core.types import Model, Params
from ldpbayes.data import ExpandedSketch, Release, SamplingDesign, Sketch
from ldpbayes.inference._predict import generator, log_likelihoods, released, replicates
from ldpbayes.inference._weights import checked_design, corrected
from ldpbayes.inference.approximations import surrogate_of
from ldpbayes.inference.approximations.polynomial import Expansion
from ldpbayes.inference.approximations.surrogates import Draws, LikelihoodWarning, sample
from ldpbayes.inference.chains import Sampler, largest_depth, some_draws
from ldpbayes.inference.compiled_programs import trace
from ldpbayes.inference.density import Density
from ldpbayes.inference.model import check_call
from ldpbayes.inference.problem import UNKNOWN_PRIVACY, problem_of, promised_at
from ldpbayes.inference.result import ConvergenceWarning, convergence_problems, helpful_options, inference_data

NARROW_LAW = (
    "the law of records is narrower than 0.5 % of the range between the clipping bounds, and its likelihood may err by "
    'over 0.001 nats. Use release.sketch(), which is refined where necessary, or observe(..., method="quadrature"), '
    "which is exact but slow for many records"
)
DRAWS_OF_NARROW_LAWS = 64  # posterior draws at which laws are looked for that are too narrow
GENERATED_KEY = 1 << 31  # folded into the key for groups that are generated from draws: a number that no chain has
SAMPLER_FIELDS = {field.name for field in dataclasses.fields(Sampler)}


def fit(
    model: Model,
    *args: Any,
    seed: int = 0,
    sampler: Sampler | None = None,
    expand: bool | Expansion | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Any] | None = None,
    posterior_predictive: bool = False,
    log_likelihood: bool | Release = False,
    same_people: bool = False,
    different_people: bool = False,
    weights: ArrayLike | SamplingDesign | None = None,
    **kwargs: Any,
) -> Any:
    """Sample the posterior of a NumPyro model, in most cases of released values, in double precision.

    With at most three unconstrained parameters, `fit` integrates the posterior on adaptive cells, and the draws are
    independent. Otherwise, `fit` samples with chains of NUTS (no-U-turn sampler). Later calls with data of the same
    shapes use the model that the first call compiled. Equal calls with the same versions of the libraries give equal
    results.

    Parameters
    ----------
    model, *args, **kwargs
        NumPyro model and its arguments, such as releases and sketches. Arguments can be data frames. Inside the model,
        ``frame["age"]`` is then an array (rows,), and ``frame[["age", "income"]]`` a matrix (rows, columns).
    seed, sampler : int, and Sampler, optional
        Random seed, and how the posterior is sampled. Each field of `Sampler` (``kernel``, ``num_warmup``,
        ``num_samples``, ``num_chains``, ``chain_method``, ``init_strategy``, ``target_accept_prob``,
        ``max_tree_depth``, ``dense_mass`` and ``progress_bar``) can also be given here by its name, such as
        ``num_samples=500``.
    expand : bool or Expansion, optional
        Whether a polynomial replaces the sum of the log-likelihoods of the records: True if possible, False never.
        Default: if this saves time. An `Expansion`, made by `expand`, replaces all records, of which the arguments of
        the model can then have any part. If the polynomial is not exact enough at posterior draws, `fit` reweights the
        draws, or samples again with the exact log-likelihood.
    dims, coords : dict, optional
        For each site (named variable), the names of its axes in the result, such as ``{"slopes": ["region"]}``, by
        default those of the NumPyro plates around the site. For each axis, the labels of its entries, such as
        ``{"region": ["north", "south"]}``, by default those in the data, such as the keys of a `NoisyTable`.
    posterior_predictive : bool
        True if `fit` also simulates, for each posterior draw, new released values of as many records as in the data.
        Raises ValueError for a sketch that has groups, or a separate budget for each record.
    log_likelihood : bool or Release
        True if `fit` also computes the log-likelihood of each released value at each posterior draw, in nats, for
        example for ``arviz.loo``. If the data are a sketch, which does not contain the single values, give the release
        from which it was made.
    same_people, different_people : bool
        True if all releases are about the same people, or if nobody is in two releases. The attribute ``privacy`` of
        the result begins with the guarantee for all releases together: as `ldpbayes.privacy.compose` computes it for
        the same people, without a sum of budgets for different people, and by default with the sum of the budgets.
    weights : array_like (N,) or SamplingDesign, optional
        Survey weights of the N records, or also their strata and clusters: for a pseudo-posterior, in which weights of
        mean 1 multiply the log-likelihoods of the records. The draws then get the spread that follows from the sampling
        design ([WS]), which the attribute ``pseudo_posterior`` of the result describes. Each observed site must have N
        records (no sketch); data with gaps have as many weights as rows. Raises ValueError together with `expand` or
        `log_likelihood`, for population sizes or too few clusters, or if the weighted records and the prior do not
        identify all parameters.

    Returns
    -------
    arviz.InferenceData (ArviZ 0.23) or xarray.DataTree (ArviZ ≥ 1.0)
        The groups ``posterior`` and ``sample_stats`` have the draws, and statistics of the sampler, or only the log
        density ``lp``; ``observed_data`` and ``constant_data`` the released values (with ``posterior_predictive=True``,
        also of a sketch that kept them), or the nodes of a sketch and their weights; ``posterior_predictive`` and
        ``log_likelihood`` what was requested, for some of the draws, evenly spaced, if all would need more than 256
        MiB.

        The attribute ``privacy`` states the privacy guarantees in words, of mechanisms with sampled parameters at the
        posterior mean and at the worst draw. If the posterior was integrated, and all
        priors are proper, ``log_evidence`` is the log marginal likelihood of the data, in nats, and
        ``log_evidence_error`` its numerical error. For a `NoisyTable`, ``uncertainty`` says if the posterior describes
        the table before noise, or a population from which the people in the table are a sample. Further attributes are
        JSON texts:

        - ``integral``: ``"ran"`` is ``"integral"`` or ``"chains"``. For an integral, ``"total_variation"`` estimates
          the largest error of a probability. For chains, ``"why"`` says why the posterior was not integrated;
        - ``mechanisms``: the mechanisms of the releases, but for those with sampled parameters;
        - ``certificates``: for sketches of numbers (`PanelSketch`), the largest error of the log-likelihood at
          posterior draws, in nats, and the numbers of panels;
        - ``expansion``: what replaced the log-likelihood of single records, such as a polynomial, and its errors in
          nats, or null;
        - ``narrow_share``: the share of posterior draws that a `LikelihoodWarning` is about;
        - ``release_warnings`` and ``convergence_warnings``: the texts of the warnings that `fit` issued.

    Raises
    ------
    ValueError
        A release has no values, or the model has no parameter to sample. Or its posterior has at most three parameters
        and is improper (its integral is infinite). Or ``same_people`` and ``different_people`` are both True.

    Warns
    -----
    ReleaseWarning, RepeatedAnswersWarning
        The released values are nearly impossible under the stated mechanism, whatever the original records are. Several
        values of a release may be about one person, but the model treats them as independent.
    ConvergenceWarning
        There are divergences, or a parameter has an R-hat above 1.01, a bulk or tail effective sample size below 100
        times the number of chains, or one below 125 times this number at its 1% or 99% quantile.
    ExpansionWarning, SketchWarning, LikelihoodWarning
        A polynomial was not exact enough, or `fit` could check an `Expansion` only with a part of the records. The
        log-likelihood of a sketch had an error above 1e-3 nats. Many records share a law that is narrow beside the
        clipping bounds.

    Examples
    --------
    >>> import ldpbayes as ldp
    >>> release = ldp.Release([1, 0, 1] * 60, ldp.RandomizedResponse(epsilon=1.0))
    >>> result = ldp.fit(ldp.models.warner(), release, progress_bar=False)
    >>> result.posterior["theta"].shape
    (4, 1000)
    """
    options = {name: kwargs.pop(name) for name in SAMPLER_FIELDS & {*kwargs}}
    if not isinstance(sampler, Sampler | None):
        raise TypeError(f"sampler must be a Sampler, such as Sampler(num_chains=2), got {sampler!r}")
    sampler = dataclasses.replace(sampler or Sampler(), **options)
    if expand not in (None, True, False) and not isinstance(expand, Expansion):
        raise ValueError(f"expand must be True, False, None or an Expansion, got {expand!r}")
    check_call(model, args, kwargs, inspect.signature(fit).parameters)
    design = None if weights is None else checked_design(weights, expand=expand, log_likelihood=log_likelihood)
    expand = expand if design is None else False
    problem = problem_of(model, args, kwargs, expand, dims, coords, same_people, different_people, design)
    density = problem.density
    with jax.enable_x64(True):
        requested: dict[str, Callable] = {"posterior_predictive": replicates} if posterior_predictive else {}
        if isinstance(log_likelihood, Release) or log_likelihood:
            requested["log_likelihood"] = functools.partial(log_likelihoods, release=log_likelihood)
        values = jax.eval_shape(density.values, jax.random.key(0)) if requested else {}
        generators = {name: generator(name, function(density), values) for name, function in requested.items()}
        sampling = sampler.for_problem(problem, seed)
        draws = sample(surrogate_of(problem, sampling))
        pseudo: Params = {}
        if problem.sampling is not None:
            draws, pseudo = corrected(draws, density, problem.sampling)
        narrow = _narrow_share(draws)
        groups = {"posterior": draws.samples, "sample_stats": draws.statistics}
        groups |= _data_groups(draws.density.whole or draws.density)
        if posterior_predictive:  # it is compared with released values, not with nodes
            records = released(density)
            groups["observed_data"] = _data_groups(records)["observed_data"] if records else {}
        numbers = {}
        for place, (name, generate) in enumerate(generators.items(), start=GENERATED_KEY):
            groups[name], numbers[name] = generate(jax.random.fold_in(sampling.key, place), draws.samples)
        result = inference_data(groups, *problem.axes, numbers)
    problems = convergence_problems(result) if draws.integral["ran"] == "chains" else []
    facts = {"narrow_share": narrow, "convergence_warnings": json.dumps(problems), "seed": int(seed)}
    privacy = [problem.attrs["privacy"], *promised_at(density, problem.sites, draws.samples)]
    facts["privacy"] = "\n".join(filter(None, privacy)) or UNKNOWN_PRIVACY
    result.attrs.update(problem.attrs | _facts(draws) | facts | pseudo)
    if narrow:
        warn(f"at {narrow:.0%} of posterior draws {NARROW_LAW}", LikelihoodWarning)
    if problems:
        options = helpful_options(result, largest_depth(sampling.kernel))
        warn(ConvergenceWarning("; ".join(problems), options))
    return result


# The signature shows the options of the sampler, which `fit` takes by keyword, too.
*_of_fit, _of_model = inspect.signature(fit).parameters.values()
_parameters = [*_of_fit, *inspect.signature(Sampler).parameters.values(), _of_model]
fit.__signature__ = inspect.signature(fit).replace(parameters=_parameters)  # type: ignore[attr-defined]


def _facts(draws: Draws) -> Params:
    """Attributes of a result that say how it was computed, and how exactly."""
    integral = dict(draws.integral)
    evidence = {name: integral.pop(name) for name in ("log_evidence", "log_evidence_error") if name in integral}
    evidence = evidence if draws.problem.sampling is None else {}  # a pseudo-posterior has none
    on_panels = [report for report in draws.reports if report.panels]
    others = [report.entries() for report in draws.reports if not report.panels]
    texts = {
        "certificates": [{"error_nats": report.error_nats, "panels": report.panels} for report in on_panels],
        "integral": integral,
        "expansion": draws.problem.fewer | (others[0] if others else {}) or None,
    }
    return {name: json.dumps(text) for name, text in texts.items()} | ({} if draws.problem.improper else evidence)


def _narrow_share(draws: Draws) -> float:
    """Share of some posterior draws at which a law of records is too narrow for the panels of its likelihood."""
    density, sites = draws.problem.density, draws.problem.sites
    if not any(site.on_panels for site in sites.values()):
        return 0.0
    latent = {name: values for name, values in draws.samples.items() if sites[name].latent}
    points = some_draws(latent, DRAWS_OF_NARROW_LAWS)
    first = {name: values[0] for name, values in points.items()}
    traced, (arrays,) = trace(lambda _, values: density.is_narrow(values), first)
    return float(np.mean(traced.program("narrow", jax.vmap(traced, (None, 0)), arrays, points)(arrays, points)))


def _data_groups(density: Density) -> dict[str, Params]:
    """ArviZ groups of the observed values, and of the weights of the nodes of sketches."""
    weighted = [(i, data) for i, data in enumerate(density.data) if isinstance(data, Sketch)]
    weights = {f"weights_{i}" if i else "weights": d.weights for i, d in weighted if not isinstance(d, ExpandedSketch)}
    key = jax.random.key(0)
    observing, (arrays,) = trace(lambda _, key: density.values(key, observed=True), key)
    return {"observed_data": jax.device_get(observing(arrays, key)), "constant_data": weights}
