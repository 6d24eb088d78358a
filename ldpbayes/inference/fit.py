"""`fit`: a posterior by MCMC in double precision, checked for convergence and for the sketch's accuracy."""

import dataclasses
import json
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.infer import HMC, MCMC, NUTS, init_to_uniform
from numpyro.infer.util import log_density

from ldpbayes._warnings import LdpBayesWarning
from ldpbayes.inference.handlers import LAWS, check_site
from ldpbayes.inference.release import Release, ReleaseWarning
from ldpbayes.likelihood.privatized import Privatized, unwrapped
from ldpbayes.likelihood.sketch import PanelSketch, Sketch

__all__ = ["ConvergenceWarning", "SketchWarning", "fit"]

TOLERANCE = 1e-3  # nats: the largest difference between sketch and records that is let pass
CERTIFICATE_DRAWS = 64
REFINEMENTS = 2  # each by a factor 4: beyond 16 times the panels a channel's matrix would be too large
ATTEMPTS = 2
LARGE = 1 << 26  # bytes
MAX_RHAT = 1.01
MIN_ESS_PER_CHAIN = 100
HMC_STATISTICS = ("potential_energy", "diverging", "num_steps", "accept_prob", "adapt_state.step_size", "energy")


class ConvergenceWarning(LdpBayesWarning):
    """The chains have not converged well enough to be trusted; the message names the parameters."""


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
    progress_bar=True,
    **kwargs,
):
    """Posterior of a NumPyro model, as an ArviZ structure that carries the mechanisms and their privacy statements.

    Chains run vectorised on one device (one after the other for kernels other than HMC and NUTS) and in parallel on
    several. Everything runs in double precision.

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
    simulated = [r for r in _leaves((args, kwargs)) if isinstance(r, Release) and r.values is None]
    if simulated:
        raise ValueError(
            "fit needs released values; a release with only a count is for simulation (numpyro's Predictive)"
        )
    doubts = [doubt for data in _leaves((args, kwargs)) for doubt in getattr(data, "doubts", ())]
    args, kwargs = _views((args, kwargs))
    with jax.enable_x64(True):
        sites = _sites(model, args, kwargs)
        if not any(site.latent for site in sites.values()):
            raise ValueError(
                "the model has no site to sample; a model factory is called first, as in fit(clipped_gaussian(), ...)"
            )
        for problem in doubts:
            warnings.warn(problem, ReleaseWarning, stacklevel=2)
        doubts += getattr(model, "doubts", ())  # of privatized sites, which have spoken for themselves
        certificates = []
        for attempt in range(ATTEMPTS):
            mcmc = _sample(model, args, kwargs, seed, kernel, num_warmup, num_samples, num_chains, progress_bar)
            panels = _panels(args, kwargs)
            if not panels:
                break
            error = _error(model, args, kwargs, mcmc, sites)
            certificates.append({"error_nats": error, "panels": panels})
            if error <= TOLERANCE:
                break
            finer = _refined(model, args, kwargs, mcmc, sites) if attempt < ATTEMPTS - 1 else None
            said = f"a sketch of {panels} panels is off by {error:.2g} nats at posterior draws"
            if finer is None:
                advice = "fit the release itself" if attempt else "sketch with more panels, or with keep_records=True"
                warnings.warn(f"{said}, and cannot be refined; {advice}", SketchWarning, stacklevel=2)
                break
            args, kwargs = finer
            warnings.warn(f"{said}; refined to {_panels(*finer)} and sampled again", SketchWarning, stacklevel=2)
        return _result(mcmc, sites, args, kwargs, certificates, doubts, seed)


def _leaves(tree):
    return jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, (Release, Sketch)))


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


def _map_sketches(function, tree):
    return jax.tree.map(
        lambda leaf: function(leaf) if isinstance(leaf, PanelSketch) else leaf,
        tree,
        is_leaf=lambda x: isinstance(x, (Release, Sketch)),
    )


def _sample(model, args, kwargs, seed, kernel, num_warmup, num_samples, num_chains, progress_bar):
    large, rebuild = _large_arrays((args, kwargs))
    if large and callable(kernel):
        # arguments of the compiled function, since as constants they are copied several times and looked at for minutes
        def model_of_data(arrays):
            positional, named = rebuild(arrays)
            return model(*positional, **named)

        sampler, args, kwargs = kernel(model_of_data), (large,), {}
    else:
        sampler = kernel(model) if callable(kernel) else kernel
    # only HMC and NUTS start vectorised chains without being told where
    vectorized = "vectorized" if isinstance(sampler, HMC) else "sequential"
    mcmc = MCMC(
        sampler,
        num_warmup=int(num_warmup),
        num_samples=int(num_samples),
        num_chains=int(num_chains),
        chain_method="parallel" if 1 < num_chains <= jax.local_device_count() else vectorized,
        progress_bar=progress_bar,
        jit_model_args=bool(large),
    )
    # kernels other than HMC and NUTS keep other statistics, or none
    fields = HMC_STATISTICS if isinstance(mcmc.sampler, HMC) else ()
    mcmc.run(jax.random.key(seed), *args, extra_fields=fields, **kwargs)
    return mcmc


def _large_arrays(tree):
    """Arrays of releases and sketches that take more than 64 MiB, and a function that puts others in their places."""
    leaves, structure = jax.tree.flatten(tree)
    ours = {id(leaf) for data in _leaves(tree) if isinstance(data, (Release, Sketch)) for leaf in jax.tree.leaves(data)}
    large = [i for i, leaf in enumerate(leaves) if id(leaf) in ours and getattr(leaf, "nbytes", 0) > LARGE]

    def rebuild(arrays):
        replaced = dict(zip(large, arrays, strict=True))
        return jax.tree.unflatten(structure, [replaced.get(i, leaf) for i, leaf in enumerate(leaves)])

    return [leaves[i] for i in large], rebuild


def _panel_sketches(tree):
    return [leaf for leaf in _leaves(tree) if isinstance(leaf, PanelSketch)]


def _panels(args, kwargs):
    return [len(sketch.edges) - 1 for sketch in _panel_sketches((args, kwargs))]


def _refined(model, args, kwargs, mcmc, sites):
    """The arguments with sketches fine enough at these draws, or as fine as they get; None where records are gone."""
    lattice = True if any(site.discrete_base for site in sites.values()) else None
    for _ in range(REFINEMENTS):
        finer = _map_sketches(lambda s: s.refine(lattice=lattice) or s, (args, kwargs))
        if _panels(*finer) == _panels(args, kwargs):
            return None
        args, kwargs = finer
        if _error(model, args, kwargs, mcmc, sites) <= TOLERANCE:
            break
    return args, kwargs


def _error(model, args, kwargs, mcmc, sites):
    """Largest difference in log density between sketches and what they stand for at posterior draws, in nats.

    They are compared with their references, which know more of the same records; and a sketch of a few records, a
    weighted one, with these themselves, of which nothing has been left out.
    """
    pairs = [((args, kwargs), _map_sketches(lambda s: s.reference, (args, kwargs)))]
    if all(sketch.probes is not None for sketch in _panel_sketches((args, kwargs))):
        thinned = _map_sketches(lambda s: s.thinned, (args, kwargs))
        pairs.append((thinned, _map_sketches(lambda s: s.one_by_one, (args, kwargs))))
    samples = mcmc.get_samples()
    latent = [name for name, site in sites.items() if site.latent]
    total = len(samples[latent[0]])
    pick = np.unique(np.linspace(0, total - 1, CERTIFICATE_DRAWS).astype(int))

    def differences(draw):
        return jnp.stack([log_density(model, *a, draw)[0] - log_density(model, *b, draw)[0] for a, b in pairs])

    return float(jnp.max(jnp.abs(jax.jit(jax.vmap(differences))({name: samples[name][pick] for name in latent}))))


class _Site(NamedTuple):
    latent: bool
    discrete_base: bool
    dims: list  # names of plates that the first axes of its values are of


def _sites(model, args, kwargs):
    """What the model's sites are, found by tracing it abstractly: nothing is computed."""
    sites = {}

    def run():
        # not drawn from their priors, which may be improper
        started = numpyro.handlers.substitute(
            numpyro.handlers.seed(model, jax.random.key(0)), substitute_fn=init_to_uniform
        )
        trace = numpyro.handlers.trace(started).get_trace(*args, **kwargs)
        for name, site in trace.items():
            if site["type"] in ("sample", "deterministic"):
                fn, _ = unwrapped(site.get("fn"))
                if site["type"] == "sample" and site["is_observed"] and isinstance(fn, LAWS):
                    check_site(name, site["fn"], site["value"])
                frames = sorted(site["cond_indep_stack"], key=lambda frame: frame.dim)
                # what is computed inside a plate need not have its shape
                shape, sizes = np.shape(site["value"]), tuple(frame.size for frame in frames)
                fits = shape[: len(sizes)] == sizes and (site["type"] == "sample" or len(shape) == len(sizes))
                sites[name] = _Site(
                    site["type"] == "sample" and not site["is_observed"],
                    isinstance(fn, Privatized) and fn.base_dist.support.is_discrete,
                    [frame.name for frame in frames] if fits else [],
                )

    jax.eval_shape(run)
    return sites


def _result(mcmc, sites, args, kwargs, certificates, doubts, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # ArviZ 0.2x announces its own refactoring at import
        import arviz as az

    data = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, (Release, Sketch))]
    weights = {f"weights_{i}" if i else "weights": d.weights for i, d in enumerate(data) if isinstance(d, Sketch)}
    # named here, since ArviZ's own inference of them cannot compare traces whose sites carry arrays as scale
    dims = {name: site.dims for name, site in sites.items() if site.dims}
    result = az.from_numpyro(mcmc, log_likelihood=False, constant_data=weights or None, dims=dims, pred_dims={})
    problems = _convergence_problems(az, mcmc, result)
    result.attrs.update(
        mechanisms=json.dumps([d.mechanism.spec() for d in data]),
        privacy=json.dumps([d.mechanism.guarantee.statement() for d in data]),
        certificates=json.dumps(certificates),
        release_warnings=json.dumps(doubts),
        convergence_warnings=json.dumps(problems),
        seed=int(seed),
    )
    for problem in problems:
        warnings.warn(problem, ConvergenceWarning, stacklevel=4)
    return result


def _convergence_problems(az, mcmc, result):
    problems = []
    diverging = mcmc.get_extra_fields().get("diverging")
    if diverging is not None and np.any(diverging):
        problems.append(
            f"{int(np.sum(diverging))} of {diverging.size} draws diverged; raise target_accept_prob or reparametrise"
        )
    posterior = result["posterior"]
    posterior = posterior.to_dataset() if hasattr(posterior, "to_dataset") else posterior
    draws = posterior.sizes["draw"]
    if draws < 4:
        return problems
    with np.errstate(invalid="ignore", divide="ignore"):  # entries that the model fixes have none
        rhat = az.rhat(posterior) if posterior.sizes["chain"] > 1 else None
    enough = MIN_ESS_PER_CHAIN * posterior.sizes["chain"]
    ess = {method: az.ess(posterior, method=method) for method in ("bulk", "tail")}
    for name in posterior.data_vars:
        if posterior[name].std() == 0:
            continue
        if rhat is not None and not float(rhat[name].max()) <= MAX_RHAT:
            problems.append(f"{name}: R-hat is {float(rhat[name].max()):.3f}, above {MAX_RHAT}; run longer chains")
        for method, values in ess.items():
            least = float(values[name].min())
            if least < enough:
                problems.append(
                    f"{name}: {method} effective sample size is {least:.0f}, below {enough}; run longer chains"
                )
    return problems
