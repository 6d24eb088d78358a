"""`fit`: a posterior by MCMC in double precision, checked for convergence and for the sketch's accuracy."""

import contextlib
import functools
import json
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import NUTS

from ldpbayes._checks import at_least
from ldpbayes._warnings import LdpBayesWarning
from ldpbayes.data import ExpandedSketch, Release, ReleaseWarning, Sketch
from ldpbayes.inference._bar import Bar
from ldpbayes.inference._by_expansion import by_expansion
from ldpbayes.inference._by_sketch import by_sketch, counted, expanded_sketches
from ldpbayes.inference._certificate import COARSE_TOLERANCE, Certificate, coarser, leaves, map_sketches, panel_sketches
from ldpbayes.inference._chains import Chains, takes
from ldpbayes.inference._density import Density, Site, sites_of
from ldpbayes.inference._expansion import Expansion
from ldpbayes.inference._mcmc import by_mcmc
from ldpbayes.inference._outcome import Outcome
from ldpbayes.inference._programs import trace
from ldpbayes.inference._result import ConvergenceWarning, arviz, convergence_problems, inference_data

__all__ = ["ConvergenceWarning", "ExpansionWarning", "SketchWarning", "fit"]

TOLERANCE = 1e-3  # nats that a sketch's log-likelihood may differ by from that of the records
REFINEMENTS = 2  # each is by a factor 4, and with more than 16 times the panels a channel's matrix would be too large

_Run = Callable[[Density], tuple[dict[str, Any], dict[str, Any], Density, float | None]]
"""From a density to samples, statistics, the density that was sampled, and its sketches' error, if there are any."""


class ExpansionWarning(LdpBayesWarning):
    """An expansion was not exact enough for the posterior; the message says why the records were sampled."""


class SketchWarning(LdpBayesWarning):
    """A sketch was too coarse for the posterior; the message says what was done about it."""


def fit(
    model: Callable,
    *args: Any,
    seed: int = 0,
    kernel: Any = NUTS,
    num_warmup: int = 1000,
    num_samples: int = 1000,
    num_chains: int = 4,
    chain_method: str | None = None,
    progress_bar: bool = True,
    expand: bool | Expansion | None = None,
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
        Arguments of the model, releases and sketches among them.
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
    progress_bar : bool
        Whether a bar on stderr counts the iterations.
    expand : bool or Expansion, optional
        Whether the log-likelihood of many records may be replaced by an expansion, a polynomial in the few numbers that
        they see, which is compared with the records at posterior draws, and reweighted or given up where it is not
        exact. By default where that pays and there are enough records. An expansion of your own (see `expand`) stands
        for all records, of which the arguments may then be any part.

    Returns
    -------
    arviz.InferenceData (ArviZ 0.2x) or xarray.DataTree (ArviZ ≥ 1.0)
        Groups posterior, sample_stats and observed_data (a sketch's nodes; their weights are in constant_data).
        Attributes (JSON strings): ``mechanisms``, ``privacy``, ``certificates`` (largest log-likelihood error of
        the sketches in nats at posterior draws, and their panels), ``expansion`` (what ran, why, and how far off it was
        at posterior draws; null where records or sketches were sampled as they are), ``release_warnings``,
        ``convergence_warnings``.

    Warns
    -----
    ReleaseWarning
        For a release, or a sketch of one, that the stated mechanism could hardly have made, whatever the records are.
    ConvergenceWarning
        Divergences, R-hat above 1.01, or bulk or tail effective sample size below 100 a chain.
    ExpansionWarning
        An expansion that was asked for or chosen is not exact enough, and the records were sampled; or one of shards,
        whose records are not here, has reason for doubt.
    SketchWarning
        A sketch that is off by more than 1e-3 nats: it is refined, and the posterior sampled again.

    Raises
    ------
    ValueError
        If a release holds no values, the model has nothing to sample, a site's mechanism cannot have released what is
        observed there, the numbers of draws are not positive, or an expansion is of another model. A model without a
        release is fitted as `numpyro.infer.MCMC` would.
    """
    num_warmup = at_least(0, "num_warmup", num_warmup)
    num_samples, num_chains = at_least(1, "num_samples", num_samples), at_least(1, "num_chains", num_chains)
    if chain_method not in (None, "threads", "vectorized"):
        raise ValueError(f"chain_method must be 'threads', 'vectorized' or None, got {chain_method!r}")
    if not isinstance(expand, Expansion) and expand not in (None, True, False):
        raise ValueError(f"expand must be True, False, None or an Expansion, got {expand!r}")
    simulated = [r for r in leaves((args, kwargs)) if isinstance(r, Release) and r.values is None]
    if simulated:
        raise ValueError(
            "fit needs released values; a release with only a count is for simulation (numpyro's Predictive)"
        )
    doubts = [doubt for data in leaves((args, kwargs)) for doubt in getattr(data, "doubts", ())]
    density = Density(model, *_views((args, kwargs)))
    with jax.enable_x64(True):
        sites = sites_of(density)
        if not any(site.latent for site in sites.values()):
            raise ValueError(
                "the model has no site to sample; a model factory is called first, as in fit(clipped_gaussian(), ...)"
            )
        for problem in doubts:
            warnings.warn(problem, ReleaseWarning, stacklevel=2)
        doubts += getattr(model, "doubts", ())  # `privatize` has warned of these when the model ran
        sampler = kernel(model) if callable(kernel) else kernel
        settings = jax.random.key(seed), (num_warmup, num_samples, num_chains), progress_bar, sites
        outcome: Outcome | None = None
        plain = takes(sampler, sites)
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
            run: _Run = functools.partial(_by_chains, sampler, chain_method, *settings)
            if outcome is None and expand is not False:
                outcome = by_expansion(sampler, chain_method, *settings, density, expand)
        elif expand:
            raise ValueError(f"expand= is for HMC and NUTS on a model that they sample as it is, got {kernel!r}")
        else:
            run = functools.partial(_by_mcmc, kernel, *settings)
        report, certificates = (outcome.report if outcome else None), list[dict[str, Any]]()
        if report and "why" in report:
            warnings.warn(f"no expansion is sampled, but the data as they are: {report['why']}", ExpansionWarning, 2)
        if report and "doubt" in report:
            warnings.warn(report["doubt"], ExpansionWarning, stacklevel=2)
        if outcome and outcome.samples is not None:
            samples, statistics = outcome.samples, outcome.statistics or {}
        else:
            samples, statistics, density, certificates = _posterior(run, density, sites)
        return _result(samples, statistics, density, sites, certificates, doubts, seed, report)


def _posterior(run: _Run, density: Density, sites: dict[str, Site]) -> tuple[dict, dict, Density, list[dict]]:
    """Samples, statistics, the density whose sketches have been found fine enough, and certificates."""
    certificates: list[dict[str, Any]] = []
    samples, statistics, density, error = run(density)
    if error is None:
        return samples, statistics, density, certificates
    certificates.append({"error_nats": error, "panels": _panels(density)})
    if error <= TOLERANCE:
        return samples, statistics, density, certificates
    said = _off(certificates[-1])
    finer = _refined(density, samples, sites)
    if finer is None:
        advice = "sketch with more panels, or with keep_records=True"
        warnings.warn(f"{said}, and cannot be refined; {advice}", SketchWarning, stacklevel=3)
        return samples, statistics, density, certificates
    warnings.warn(f"{said}; refined to {_panels(finer)} and sampled again", SketchWarning, stacklevel=3)
    samples, statistics, density, error = run(finer)
    certificates.append({"error_nats": error, "panels": _panels(density)})
    if error is not None and error > TOLERANCE:
        said = _off(certificates[-1])
        warnings.warn(f"{said}, and cannot be refined; fit the release itself", SketchWarning, stacklevel=3)
    return samples, statistics, density, certificates


def _by_chains(
    kernel: Any,
    chain_method: str | None,
    key: jax.Array,
    numbers: tuple[int, int, int],
    shown: bool,
    sites: dict[str, Site],
    given: Density,
) -> tuple[dict[str, Any], dict[str, Any], Density, float | None]:
    """Samples, statistics, the density that was sampled and its sketches' error, of HMC or NUTS compiled once.

    Sampling begins with coarser sketches. If these are off by too much, at the warm-up's draws or at the end, it begins
    again with those that were given.
    """
    num_warmup, num_samples, num_chains = numbers
    lattice = any(site.discrete_base for site in sites.values())
    # Folding the chain's number in makes its draws independent of how many chains there are.
    keys = jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.arange(num_chains))

    def sampled(density: Density, tolerance: float) -> Any:
        """What the function returns for this density, or None where its sketches are off by more than a tolerance."""
        chains = Chains(lambda _: density, kernel, keys, num_warmup, num_samples, chain_method)
        certificate = Certificate(density, given, chains.example) if panel_sketches(density) else None
        arviz()  # imported while the programs are being compiled
        with contextlib.closing(Bar(num_chains * (num_warmup + num_samples), shown)) as bar:
            positions, statistics = chains.run(num_warmup, bar)
            if certificate and tolerance < np.inf and num_warmup > 1:
                settled = {name: values[:, num_warmup // 2 :] for name, values in positions.items()}
                if certificate.error(settled) > tolerance:
                    return None
            positions, statistics = chains.run(num_samples, bar)
        error = certificate.error(positions) if certificate else None
        if error is not None and error > tolerance:
            return None
        return chains.constrained(positions), statistics, density, error

    sketches = panel_sketches(given)
    fewer = coarser(sketches, lattice)
    if all(own is other for own, other in zip(fewer, sketches, strict=True)):
        return sampled(given, np.inf)
    parts = iter(fewer)
    return sampled(map_sketches(lambda _: next(parts), given), COARSE_TOLERANCE) or sampled(given, np.inf)


def _by_mcmc(
    kernel: Any,
    key: jax.Array,
    numbers: tuple[int, int, int],
    shown: bool,
    sites: dict[str, Site],
    density: Density,
) -> tuple[dict[str, Any], dict[str, Any], Density, float | None]:
    """The same for what only NumPyro's `MCMC` can run."""
    samples, statistics = by_mcmc(density, kernel, key, *numbers, shown)
    error = None
    if panel_sketches(density):
        error = _error(density, samples, sites)
    return samples, statistics, density, error


def _error(density: Density, samples: dict[str, Any], sites: dict[str, Site]) -> float:
    """Error of a density's sketches at samples of its latent sites."""
    values = {name: samples[name] for name, site in sites.items() if site.latent}
    example = {name: jax.ShapeDtypeStruct(value.shape[2:], value.dtype) for name, value in values.items()}
    return Certificate(density, density, example, Density.log_density).error(values)


def _panels(density: Density) -> list[int]:
    return [len(sketch.edges) - 1 for sketch in panel_sketches(density)]


def _off(certificate: dict[str, Any]) -> str:
    return (
        f"a sketch of {certificate['panels']} panels is off by {certificate['error_nats']:.2g} nats at posterior draws"
    )


def _refined(density: Density, samples: dict[str, Any], sites: dict[str, Site]) -> Density | None:
    """A density with sketches fine enough at these draws, or as fine as they get; None where no records were kept."""
    lattice = True if any(site.discrete_base for site in sites.values()) else None
    for _ in range(REFINEMENTS):
        finer = map_sketches(lambda sketch: sketch.refine(lattice=lattice) or sketch, density)
        if _panels(finer) == _panels(density):
            return None
        density = finer
        # The margin is there because draws from the refined posterior will lie elsewhere.
        if _error(density, samples, sites) <= 0.1 * TOLERANCE:
            break
    return density


def _result(
    samples: dict[str, Any],
    statistics: dict[str, Any],
    density: Density,
    sites: dict[str, Site],
    certificates: list[dict],
    doubts: list[str],
    seed: int,
    expansion: dict | None,
) -> Any:
    data = [leaf for leaf in leaves((density.args, density.kwargs)) if isinstance(leaf, (Release, Sketch))]
    weighted = [(i, d) for i, d in enumerate(data) if isinstance(d, Sketch) and not isinstance(d, ExpandedSketch)]
    weights = {f"weights_{i}" if i else "weights": d.weights for i, d in weighted}
    dims = {name: site.dims for name, site in sites.items() if site.dims}
    key = jax.random.key(0)
    observing, (arrays,) = trace(lambda _, key: density.observed(key), key)
    observed = jax.device_get(observing(arrays, key))
    result = inference_data(samples, statistics, observed, weights, dims)
    problems = convergence_problems(result)
    result.attrs.update(
        mechanisms=json.dumps([d.mechanism.spec() for d in data]),
        privacy=json.dumps([d.mechanism.guarantee.statement() for d in data]),
        certificates=json.dumps(certificates),
        expansion=json.dumps(expansion),
        release_warnings=json.dumps(doubts),
        convergence_warnings=json.dumps(problems),
        seed=int(seed),
    )
    for problem in problems:
        warnings.warn(problem, ConvergenceWarning, stacklevel=3)
    return result


def _views(tree: Any) -> Any:
    """A tree with new NumPy arrays, on the same memory.

    JAX 0.10 to 0.12 remember, by the identity of a NumPy array that a compiled function holds as a constant, that its
    precision was double; were it the caller's own array, they would refuse it in single precision afterwards.
    """
    return jax.tree.map(lambda leaf: leaf.view() if isinstance(leaf, np.ndarray) else leaf, tree)
