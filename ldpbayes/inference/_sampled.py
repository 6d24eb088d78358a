"""Sampling a sketch as it is or refined, by our chains or by NumPyro's."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import HMC, MCMC

from ldpbayes._core.checks import LdpBayesWarning, warn
from ldpbayes.data import Release, Sketch
from ldpbayes.inference.arviz_ import arviz
from ldpbayes.inference.certificate import COARSE_TOLERANCE, Certificate, coarser, leaves, map_sketches, panel_sketches
from ldpbayes.inference.chains import STATISTICS, Bar, Chains
from ldpbayes.inference.density import RUNNING, Density, Site

LARGE = 1 << 26  # bytes from which an array becomes an argument of the compiled function


def by_mcmc(
    density: Density,
    kernel: Any,
    key: jax.Array,
    num_warmup: int,
    num_samples: int,
    num_chains: int,
    progress_bar: bool,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run `numpyro.infer.MCMC`.

    Parameters
    ----------
    density : Density
        The model with its arguments.
    kernel : callable or numpyro.infer.mcmc.MCMCKernel
        A kernel class (or factory) called with the model, or a kernel.
    key : jax.Array
        A JAX random key.
    num_warmup, num_samples, num_chains : int
        Iterations of a chain that are discarded, iterations that are kept, and chains.
    progress_bar : bool
        Whether one is shown.

    Returns
    -------
    tuple of two dicts of str to array (chains, iterations, ...)
        Samples by site and statistics by name.
    """
    large, rebuild = _large_arrays((density.args, density.kwargs))
    if large and callable(kernel):
        # XLA copies constants of a compiled function several times and may evaluate expressions of them for minutes.
        def model_of_data(arrays: Any) -> Any:
            positional, named = rebuild(arrays)
            return density.model(*positional, **named)

        density, kernel = Density(model_of_data, (large,), {}), kernel(model_of_data)
    elif callable(kernel):
        kernel = kernel(density.model)
    # Of NumPyro's kernels only HMC and NUTS can start vectorised chains without being given where.
    vectorized = "vectorized" if isinstance(kernel, HMC) else "sequential"
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="parallel" if 1 < num_chains <= jax.local_device_count() else vectorized,
        progress_bar=progress_bar,
        jit_model_args=bool(large),
    )
    # Kernels other than HMC and NUTS keep other statistics, or none.
    with RUNNING:
        mcmc.run(key, *density.args, extra_fields=STATISTICS if isinstance(kernel, HMC) else (), **density.kwargs)
    statistics = mcmc.get_extra_fields(group_by_chain=True)
    samples = mcmc.get_samples(group_by_chain=True)
    return jax.device_get(samples), {name: jax.device_get(values) for name, values in statistics.items()}


def _large_arrays(tree: Any) -> tuple[list[Any], Callable[[Any], Any]]:
    """Arrays of releases and sketches that take more than `LARGE` bytes, and a function that puts others there."""
    parts, structure = jax.tree.flatten(tree)
    ours = {id(leaf) for data in leaves(tree) if isinstance(data, (Release, Sketch)) for leaf in jax.tree.leaves(data)}
    large = [i for i, leaf in enumerate(parts) if id(leaf) in ours and getattr(leaf, "nbytes", 0) > LARGE]

    def rebuild(arrays: Any) -> Any:
        replaced = dict(zip(large, arrays, strict=True))
        return jax.tree.unflatten(structure, [replaced.get(i, leaf) for i, leaf in enumerate(parts)])

    return [parts[i] for i in large], rebuild


TOLERANCE = 1e-3  # nats that a sketch's log-likelihood may differ by from that of the records
REFINEMENTS = 2  # each is by a factor 4, and with more than 16 times the panels a channel's matrix would be too large

FASTER = (
    "Where many records share a law, ldpbayes.observe is faster with a sketch in their place: release.sketch(), "
    "release.sketch(by=group) for discrete outputs, or a list with the sketch of each group."
)

Run = Callable[[Density], tuple[dict[str, Any], dict[str, Any], Density, float | None]]
"""From a density to samples, statistics, the density that was sampled, and its sketches' error, if there are any."""


class SketchWarning(LdpBayesWarning):
    """A sketch was too coarse for the posterior; the message says what was done about it."""


def sampled(run: Run, density: Density, sites: dict[str, Site]) -> tuple[dict, dict, Density, list[dict]]:
    """Sample, and again where a sketch has been found too coarse.

    Parameters
    ----------
    run : callable
        `by_chains` or `by_numpyro` with all but the density.
    density : Density
        The model with its arguments.
    sites : dict of str to Site
        Of the model.

    Returns
    -------
    tuple
        Samples, statistics, the density whose sketches have been found fine enough, and certificates.
    """
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
        warn(f"{said}, and cannot be refined; {advice}", SketchWarning)
        return samples, statistics, density, certificates
    warn(f"{said}; refined to {_panels(finer)} and sampled again", SketchWarning)
    samples, statistics, density, error = run(finer)
    certificates.append({"error_nats": error, "panels": _panels(density)})
    if error is not None and error > TOLERANCE:
        said = _off(certificates[-1])
        warn(f"{said}, and cannot be refined; fit the release itself", SketchWarning)
    return samples, statistics, density, certificates


def by_chains(
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

    Parameters
    ----------
    kernel : numpyro.infer.HMC or NUTS
        Made for the model.
    chain_method : str, optional
        As `Chains` takes it.
    key : jax.Array
        A JAX random key.
    numbers : tuple of int
        Warm-up iterations, draws and chains.
    shown : bool
        Whether a bar shows the progress.
    sites : dict of str to Site
        Of the model.
    given : Density
        The model with its arguments.
    """
    num_warmup, num_samples, num_chains = numbers
    lattice = any(site.discrete_base for site in sites.values())
    # Folding the chain's number in makes its draws independent of how many chains there are.
    keys = jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.arange(num_chains))

    def attempt(density: Density, tolerance: float) -> Any:
        """What the function returns for this density, or None where its sketches are off by more than a tolerance."""
        chains = Chains(lambda _: density, kernel, keys, num_warmup, num_samples, chain_method)
        certificate = Certificate(density, given, chains.example) if panel_sketches(density) else None
        arviz()  # imported while the programs are being compiled
        with contextlib.closing(Bar(num_chains * (num_warmup + num_samples), shown, faster=_faster(given))) as bar:
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
        return attempt(given, np.inf)
    parts = iter(fewer)
    return attempt(map_sketches(lambda _: next(parts), given), COARSE_TOLERANCE) or attempt(given, np.inf)


def _faster(density: Density) -> str:
    """What is faster than records, where there are releases that can be sketched."""
    data = leaves((density.args, density.kwargs))
    mechanisms: list[Any] = [leaf.mechanism for leaf in data if isinstance(leaf, Release)]
    kept = any(
        mechanism.support.is_discrete
        or not (mechanism.record_shape or mechanism.batch_shape or mechanism.released_range is None)
        for mechanism in mechanisms
    )
    return FASTER if kept else ""


def by_numpyro(
    kernel: Any,
    key: jax.Array,
    numbers: tuple[int, int, int],
    shown: bool,
    sites: dict[str, Site],
    density: Density,
) -> tuple[dict[str, Any], dict[str, Any], Density, float | None]:
    """The same for what only NumPyro's `MCMC` can run.

    Parameters
    ----------
    kernel : callable or numpyro.infer.mcmc.MCMCKernel
        A kernel class (or factory) called with the model, or a kernel.
    key : jax.Array
        A JAX random key.
    numbers : tuple of int
        Warm-up iterations, draws and chains.
    shown : bool
        Whether a bar shows the progress.
    sites : dict of str to Site
        Of the model.
    density : Density
        The model with its arguments.
    """
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
