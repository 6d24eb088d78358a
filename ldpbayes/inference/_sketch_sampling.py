"""Sampling the records, or sketches on panels that are refined where necessary, by our chains or NumPyro's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
from numpyro.infer import HMC, MCMC

from ldpbayes._core.checks import LdpBayesWarning, warn
from ldpbayes._core.types import Array, Params, PyTree
from ldpbayes.data import Release, Sketch
from ldpbayes.inference.chains import STATISTICS, Sampling
from ldpbayes.inference.density import RUNNING, Density, Site, leaves
from ldpbayes.inference.result import arviz
from ldpbayes.inference.sketch_certificate import (
    COARSE_TOLERANCE,
    Certificate,
    coarser,
    panel_sketches,
    replace_sketches,
)

TOLERANCE = 1e-3  # nats that a sketch's log-likelihood may differ by from that of the records
REFINEMENTS = 2  # each is by a factor 4, and with more than 16 times the panels a channel's matrix would be too large
MAX_CONSTANT = 1 << 26  # bytes of an array from which on it becomes an argument of NumPyro's compiled function
FASTER = (
    "Where many records share a law, ldpbayes.observe is faster with a sketch in their place: release.sketch(), "
    "release.sketch(by=group) for discrete outputs, or a list with the sketch of each group."
)


class SketchWarning(LdpBayesWarning):
    """A sketch was too coarse for the posterior; the message says what was done about it."""


@dataclass(frozen=True)
class Draws:
    """Samples by site and statistics by name, (chains, iterations, ...), of a density."""

    samples: Params
    statistics: Params
    density: Density
    error: float | None  # of the density's sketches on panels, in nats; None if there are none


Run: TypeAlias = Callable[[Density], Draws]


def sample_and_refine(run: Run, density: Density, sites: dict[str, Site]) -> tuple[Draws, list[dict[str, Any]]]:
    """Draws from a density, or from one with finer sketches if its own are too coarse, and certificates of both."""
    draws, certificates = run(density), list[dict[str, Any]]()
    for advice in ("sketch with more panels, or with keep_records=True", "fit the release itself"):
        if draws.error is None:
            break
        panels = _panel_counts(draws.density)
        certificates.append({"error_nats": draws.error, "panels": panels})
        if draws.error <= TOLERANCE:
            break
        message = f"a sketch of {panels} panels is off by {draws.error:.2g} nats at posterior draws"
        finer = _refine(draws, sites) if len(certificates) == 1 else None
        if finer is None:
            warn(f"{message}, and cannot be refined; {advice}", SketchWarning)
            break
        warn(f"{message}; refined to {_panel_counts(finer)} and sampled again", SketchWarning)
        draws = run(finer)
    return draws, certificates


def by_chains(sampling: Sampling, sites: dict[str, Site], density: Density) -> Draws:
    """Sample by HMC or NUTS, with coarser sketches first and, if these are off by too much, with the density's own."""

    def attempt(candidate: Density, tolerance: float) -> Draws | None:
        """Draws, or None if the sketches are off by more than a tolerance."""
        chains = sampling.chains(candidate)
        certificate = Certificate(candidate, density, chains.example) if panel_sketches(candidate) else None
        arviz()  # imported while the programs are being compiled
        with sampling.bar(_faster(density)) as bar:
            positions, statistics = chains.run(sampling.num_warmup, bar)
            judge = certificate if tolerance < np.inf and sampling.num_warmup > 1 else None
            if judge and judge.error(sampling.settled(positions)) > tolerance:
                return None
            positions, statistics = chains.run(sampling.num_samples, bar)
        error = certificate.error(positions) if certificate else None
        if error is not None and error > tolerance:
            return None
        return Draws(chains.constrained(positions), statistics, candidate, error)

    sketches = panel_sketches(density)
    coarse = coarser(sketches, any(site.discrete_base for site in sites.values()))
    draws, parts = None, iter(coarse)
    if any(own is not other for own, other in zip(coarse, sketches, strict=True)):
        draws = attempt(replace_sketches(density, lambda _: next(parts)), COARSE_TOLERANCE)
    draws = draws or attempt(density, np.inf)
    assert draws is not None  # no error is larger than an infinite tolerance
    return draws


def _faster(density: Density) -> str:
    """Advice for a model with releases that can be sketched."""
    mechanisms: list[Any] = [data.mechanism for data in density.data if isinstance(data, Release)]
    numbers = [m for m in mechanisms if not (m.record_shape or m.batch_shape)]
    discrete = any(m.support.is_discrete for m in mechanisms)
    return FASTER if discrete or any(m.released_range is not None for m in numbers) else ""


def by_numpyro(sampling: Sampling, sites: dict[str, Site], density: Density) -> Draws:
    """Sample by `numpyro.infer.MCMC`; the kernel may be a class (or factory) called with the model, too."""
    kernel, model, args, kwargs = sampling.kernel, density.model, density.args, density.kwargs
    large, rebuild = _large_arrays((args, kwargs))
    if large and callable(kernel):
        # XLA copies constants of a compiled function several times and may evaluate expressions of them for minutes.
        def model_of_arrays(arrays: list[Array]) -> Any:
            positional, named = rebuild(arrays)
            return density.model(*positional, **named)

        model, args, kwargs = model_of_arrays, (large,), {}
    if callable(kernel):
        kernel = kernel(model)
    # Of NumPyro's kernels only HMC and NUTS can start vectorised chains without a starting point.
    one_device = "vectorized" if isinstance(kernel, HMC) else "sequential"
    mcmc = MCMC(
        kernel,
        num_warmup=sampling.num_warmup,
        num_samples=sampling.num_samples,
        num_chains=sampling.num_chains,
        chain_method="parallel" if 1 < sampling.num_chains <= jax.local_device_count() else one_device,
        progress_bar=sampling.progress_bar,
        jit_model_args=bool(large),
    )
    # Kernels other than HMC and NUTS keep other statistics, or none.
    with RUNNING:
        mcmc.run(sampling.key, *args, extra_fields=STATISTICS if isinstance(kernel, HMC) else (), **kwargs)
    statistics = jax.device_get(mcmc.get_extra_fields(group_by_chain=True))
    samples = jax.device_get(mcmc.get_samples(group_by_chain=True))
    error = _error(density, samples, sites) if panel_sketches(density) else None
    return Draws(samples, statistics, density, error)


def _large_arrays(tree: PyTree) -> tuple[list[Array], Callable[[list[Array]], PyTree]]:
    """Arrays of releases and sketches that take more than `MAX_CONSTANT` bytes, and a function that replaces them."""
    parts, structure = jax.tree.flatten(tree)
    ours = {id(leaf) for data in leaves(tree) if isinstance(data, (Release, Sketch)) for leaf in jax.tree.leaves(data)}
    large = [i for i, leaf in enumerate(parts) if id(leaf) in ours and getattr(leaf, "nbytes", 0) > MAX_CONSTANT]

    def rebuild(arrays: list[Array]) -> PyTree:
        replaced = dict(zip(large, arrays, strict=True))
        return jax.tree.unflatten(structure, [replaced.get(i, leaf) for i, leaf in enumerate(parts)])

    return [parts[i] for i in large], rebuild


def _error(density: Density, samples: Params, sites: dict[str, Site]) -> float:
    """Error of a density's sketches at samples of its latent sites, in nats."""
    values = {name: samples[name] for name, site in sites.items() if site.latent}
    example = {name: jax.ShapeDtypeStruct(value.shape[2:], value.dtype) for name, value in values.items()}
    return Certificate(density, density, example, Density.log_density).error(values)


def _panel_counts(density: Density) -> list[int]:
    return [len(sketch.edges) - 1 for sketch in panel_sketches(density)]


def _refine(draws: Draws, sites: dict[str, Site]) -> Density | None:
    """A density with sketches fine enough at these draws, or as fine as they get; None if no records were kept."""
    lattice = True if any(site.discrete_base for site in sites.values()) else None
    density = draws.density
    for _ in range(REFINEMENTS):
        finer = replace_sketches(density, lambda sketch: sketch.refine(lattice=lattice) or sketch)
        if _panel_counts(finer) == _panel_counts(density):
            return None
        density = finer
        # The margin is there because draws from the refined posterior will lie elsewhere.
        if _error(density, draws.samples, sites) <= 0.1 * TOLERANCE:
            break
    return density
