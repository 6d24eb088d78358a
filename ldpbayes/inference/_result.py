"""What a fit gives back: draws and statistics as ArviZ keeps them, and the problems that the chains have."""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpyro

from ldpbayes._warnings import LdpBayesWarning

__all__ = ["ConvergenceWarning", "arviz", "convergence_problems", "inference_data"]

MAX_RHAT = 1.01
MIN_ESS_PER_CHAIN = 100
NAMES = {
    "potential_energy": "lp",
    "adapt_state.step_size": "step_size",
    "num_steps": "n_steps",
    "accept_prob": "acceptance_rate",
}
"""ArviZ's names of NumPyro's statistics."""


class ConvergenceWarning(LdpBayesWarning):
    """The chains have not converged well enough to be trusted; the message names the parameters."""


def arviz() -> Any:
    """ArviZ; the warning that it is being refactored, given on import, is none of the user's concern."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz as az
    return az


def inference_data(
    posterior: Mapping[str, Any],
    statistics: Mapping[str, Any],
    observed: Mapping[str, Any],
    constant: Mapping[str, Any],
    dims: Mapping[str, Sequence[str]],
) -> Any:
    """Groups of draws, with the names that ArviZ has for what NumPyro keeps of every iteration.

    Parameters
    ----------
    posterior, statistics : dict of str to array (chains, draws, ...)
        Draws by site, and NumPyro's statistics of the iterations by name.
    observed, constant : dict of str to array
        Observed values by site, and weights by name.
    dims : dict of str to list of str
        By site, names of the axes that follow chains and draws.

    Returns
    -------
    arviz.InferenceData (ArviZ 0.2x) or xarray.DataTree (ArviZ ≥ 1.0)
    """
    az = arviz()
    named = {NAMES.get(name, name): values for name, values in statistics.items()}
    if "lp" in named:
        named["lp"] = -named["lp"]
    if "n_steps" in named:
        named["tree_depth"] = np.log2(named["n_steps"]).astype(int) + 1
    every = {"posterior": posterior, "sample_stats": named, "observed_data": observed, "constant_data": constant}
    groups = {name: values for name, values in every.items() if values}
    # ArviZ takes groups as arguments before version 1.0, and then as one dict.
    apart = "posterior" in inspect.signature(az.from_dict).parameters
    result = az.from_dict(**groups, dims=dims) if apart else az.from_dict(groups, dims=dims)
    for name in ("posterior", "sample_stats"):
        if name in groups:
            library = {"inference_library": "numpyro", "inference_library_version": numpyro.__version__}
            result[name].attrs.update(library)
    return result


def convergence_problems(result: Any) -> list[str]:
    """What is wrong with the chains, as sentences that name the parameters.

    Parameters
    ----------
    result : arviz.InferenceData or xarray.DataTree
        With a group ``posterior``, and for divergences ``sample_stats``.

    Returns
    -------
    list of str
    """
    az, problems = arviz(), []
    diverging = np.asarray(result["sample_stats"]["diverging"]) if "sample_stats" in _groups(result) else np.zeros(0)
    if np.any(diverging):
        problems.append(
            f"{int(np.sum(diverging))} of {diverging.size} draws diverged; raise target_accept_prob or reparametrise"
        )
    posterior = result["posterior"]
    posterior = posterior.to_dataset() if hasattr(posterior, "to_dataset") else posterior
    draws = posterior.sizes["draw"]
    if draws < 4:
        return problems
    with np.errstate(invalid="ignore", divide="ignore"):  # entries that the model fixes have variance 0, and no R-hat
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


def _groups(result: Any) -> Any:
    return result.groups() if callable(result.groups) else {name.strip("/") for name in result.groups}
