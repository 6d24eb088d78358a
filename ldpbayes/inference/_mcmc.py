"""Kernels and models that only NumPyro's own `MCMC` knows how to run: it compiles them anew each time."""

from collections.abc import Callable
from typing import Any

import jax
from numpyro.infer import HMC, MCMC

from ldpbayes.data import Release, Sketch
from ldpbayes.inference._certificate import leaves
from ldpbayes.inference._chains import STATISTICS
from ldpbayes.inference._density import RUNNING, Density

__all__ = ["by_mcmc"]

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
