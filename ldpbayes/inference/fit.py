"""`fit`: a posterior by MCMC in double precision, checked for convergence and for the sketch's accuracy."""

import contextlib
import dataclasses
import functools
import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import NUTS

from ldpbayes._warnings import LdpBayesWarning
from ldpbayes.inference.certificate import COARSE_TOLERANCE, Certificate, coarser, leaves, map_sketches, panel_sketches
from ldpbayes.inference.chains import Bar, Chains, takes
from ldpbayes.inference.density import Density, sites_of
from ldpbayes.inference.mcmc import by_mcmc
from ldpbayes.inference.programs import trace
from ldpbayes.inference.release import Release, ReleaseWarning
from ldpbayes.inference.result import ConvergenceWarning, arviz, convergence_problems, inference_data
from ldpbayes.likelihood.sketch import PanelSketch, Sketch

__all__ = ["ConvergenceWarning", "SketchWarning", "fit"]

TOLERANCE = 1e-3  # nats: the largest difference between sketch and records that is let pass
REFINEMENTS = 2  # each by a factor 4: beyond 16 times the panels a channel's matrix would be too large


class SketchWarning(LdpBayesWarning):
    """A sketch was too coarse for the posterior; the message says what was done about it."""


def fit(
    model,
    *args,
    seed=0,
    kernel=NUTS,
    num_warmup=1000,
    num_samples=1000,
    num_chains=4,
    chain_method=None,
    progress_bar=True,
    **kwargs,
):
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
        Iterations a chain.
    num_chains : int
    chain_method : {"threads", "vectorized"}, optional
        How chains of HMC and NUTS run: by default in threads, one a core, on a CPU, and vectorised, spread over all
        devices, on accelerators. The draws are the same to rounding.
    progress_bar : bool

    Returns
    -------
    arviz.InferenceData (ArviZ 0.2x) or xarray.DataTree (ArviZ ≥ 1.0)
        Groups posterior, sample_stats and observed_data (a sketch's nodes; their weights are in constant_data).
        Attributes (JSON strings): ``mechanisms``, ``privacy``, ``certificates`` (largest log-likelihood error of
        the sketches in nats at posterior draws, and their panels), ``release_warnings``, ``convergence_warnings``.

    Warns
    -----
    ReleaseWarning
        For a release, or a sketch of one, that the stated mechanism could hardly have made, whatever the records are.
    ConvergenceWarning
        Divergences, R-hat above 1.01, or bulk or tail effective sample size below 100 a chain.
    SketchWarning
        A sketch that is off by more than 1e-3 nats: it is refined, and the posterior sampled again.

    Raises
    ------
    ValueError
        If a release holds no values, the model has nothing to sample, a site's mechanism cannot have released what is
        observed there, or the numbers of draws are not positive. A model without a release is fitted as
        `numpyro.infer.MCMC` would.
    """
    for name, value, least in (
        ("num_samples", num_samples, 1),
        ("num_warmup", num_warmup, 0),
        ("num_chains", num_chains, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    if chain_method not in (None, "threads", "vectorized"):
        raise ValueError(f"chain_method must be 'threads', 'vectorized' or None, got {chain_method!r}")
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
        doubts += getattr(model, "doubts", ())  # of privatized sites, which have spoken for themselves
        sampler = kernel(model) if callable(kernel) else kernel
        settings = jax.random.key(seed), (int(num_warmup), int(num_samples), int(num_chains)), progress_bar, sites
        if takes(sampler, sites):
            run = functools.partial(_by_chains, sampler, chain_method, *settings)
        else:
            run = functools.partial(_by_mcmc, kernel, *settings)
        samples, statistics, density, certificates = _posterior(run, density, sites)
        return _result(samples, statistics, density, sites, certificates, doubts, seed)


def _posterior(run, density, sites):
    """Samples, statistics, the density whose sketches have been found fine enough, and certificates."""
    samples, statistics, density, error = run(density)
    if error is None:
        return samples, statistics, density, []
    certificates = [{"error_nats": error, "panels": _panels(density)}]
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
    if error > TOLERANCE:
        said = _off(certificates[-1])
        warnings.warn(f"{said}, and cannot be refined; fit the release itself", SketchWarning, stacklevel=3)
    return samples, statistics, density, certificates


def _by_chains(kernel, method, key, numbers, shown, sites, given):
    """Samples, statistics, the density that was sampled and its sketches' error, of HMC or NUTS compiled once.

    Sketches begin coarse. Where that is too coarse, as is seen after the warm-up, those that were given take over.
    """
    num_warmup, num_samples, num_chains = numbers
    lattice = any(site.discrete_base for site in sites.values())
    keys = jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.arange(num_chains))  # chain by chain the same
    fewer = iter(coarser(panel_sketches(given), lattice))
    for density in (_mapped(lambda _: next(fewer), given), given):
        chains = Chains(lambda _, density=density: density, kernel, keys, num_warmup, num_samples, method)
        certificate = Certificate(density, given, chains.example) if panel_sketches(density) else None
        arviz()  # imported while the programs are being compiled
        pairs = zip(panel_sketches(density), panel_sketches(given), strict=True)
        coarse = any(own is not other for own, other in pairs)
        with contextlib.closing(Bar(num_chains * (num_warmup + num_samples), shown)) as bar:
            positions, statistics = chains.run(num_warmup, bar)
            if coarse and num_warmup > 1:
                settled = {name: values[:, num_warmup // 2 :] for name, values in positions.items()}
                if certificate.error(settled) > COARSE_TOLERANCE:
                    continue
            positions, statistics = chains.run(num_samples, bar)
        error = certificate.error(positions) if certificate else None
        if not (coarse and error > COARSE_TOLERANCE):
            return chains.constrained(positions), statistics, density, error


def _by_mcmc(kernel, key, numbers, shown, sites, density):
    """The same for what only NumPyro's `MCMC` can run."""
    samples, statistics = by_mcmc(density, kernel, key, *numbers, shown)
    error = None
    if panel_sketches(density):
        error = _error(density, samples, sites)
    return samples, statistics, density, error


def _error(density, samples, sites):
    """Error of a density's sketches at samples of its latent sites."""
    values = {name: samples[name] for name, site in sites.items() if site.latent}
    example = {name: jax.ShapeDtypeStruct(value.shape[2:], value.dtype) for name, value in values.items()}
    return Certificate(density, density, example, Density.log_density).error(values)


def _mapped(function, density):
    """A density with other sketches in the places of those on panels."""
    args, kwargs = map_sketches(function, (density.args, density.kwargs))
    return Density(density.model, args, kwargs)


def _panels(density):
    return [len(sketch.edges) - 1 for sketch in panel_sketches(density)]


def _off(certificate):
    return (
        f"a sketch of {certificate['panels']} panels is off by {certificate['error_nats']:.2g} nats at posterior draws"
    )


def _refined(density, samples, sites):
    """A density with sketches fine enough at these draws, or as fine as they get; None where records are gone."""
    lattice = True if any(site.discrete_base for site in sites.values()) else None
    for _ in range(REFINEMENTS):
        finer = _mapped(lambda sketch: sketch.refine(lattice=lattice) or sketch, density)
        if _panels(finer) == _panels(density):
            return None
        density = finer
        if _error(density, samples, sites) <= 0.1 * TOLERANCE:  # draws from the finer ones will lie elsewhere
            break
    return density


def _result(samples, statistics, density, sites, certificates, doubts, seed):
    data = [leaf for leaf in leaves((density.args, density.kwargs)) if isinstance(leaf, (Release, Sketch))]
    weights = {f"weights_{i}" if i else "weights": d.weights for i, d in enumerate(data) if isinstance(d, Sketch)}
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
        release_warnings=json.dumps(doubts),
        convergence_warnings=json.dumps(problems),
        seed=int(seed),
    )
    for problem in problems:
        warnings.warn(problem, ConvergenceWarning, stacklevel=3)
    return result


def _views(tree):
    """The same with NumPy arrays of our own, on the same memory.

    JAX 0.10 to 0.12 remember a NumPy array that a compiled function holds, by its identity, as double precision for
    good; used again outside, the caller's own array would be refused.
    """

    def view(leaf):
        if isinstance(leaf, PanelSketch):  # as a pytree it would lose its records
            return dataclasses.replace(leaf, **{name: view(getattr(leaf, name)) for name in leaf.arrays})
        return leaf.view() if isinstance(leaf, np.ndarray) else leaf

    return jax.tree.map(view, tree, is_leaf=lambda x: isinstance(x, PanelSketch))
