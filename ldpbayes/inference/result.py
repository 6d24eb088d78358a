"""A fit as ArviZ data, with its warnings; importance weights."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro

from ldpbayes._core.checks import LdpBayesWarning
from ldpbayes.inference.arviz_ import arviz, dataset, from_groups, group_names, psislw, with_draws
from ldpbayes.inference.density import Site

MAX_RHAT = 1.01
MIN_ESS_PER_CHAIN = 100
ADVICE = "; run longer chains, raise target_accept_prob where draws diverge, or reparametrise"
"""What `fit` says behind the problems; the command line has options for it."""
NAMES = {
    "potential_energy": "lp",
    "adapt_state.step_size": "step_size",
    "num_steps": "n_steps",
    "accept_prob": "acceptance_rate",
}
"""ArviZ's names of NumPyro's statistics."""


class ConvergenceWarning(LdpBayesWarning):
    """The chains have not converged well enough to be trusted; the message names the parameters."""


def labels(
    dims: Mapping[str, Sequence[str]] | None, coords: Mapping[str, Any] | None, sites: Mapping[str, Site]
) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
    """Names of axes by site, with those of plates where no others are given, and labels of places on them.

    Parameters
    ----------
    dims : dict of str to sequence of str, optional
        By site, names of its first axes.
    coords : dict of str to array_like, optional
        By name of an axis, labels of the places on it.
    sites : dict of str to Site
        Of the model.

    Raises
    ------
    ValueError
        For a site or an axis that there is not, or labels of another number than the places.
    """
    plates = {axis for site in sites.values() for axis in site.dims}
    valued = {name: site for name, site in sites.items() if name not in plates}
    named = {name: list(site.dims) for name, site in valued.items() if site.dims}
    for name, axes in (dims or {}).items():
        if name not in valued:
            raise ValueError(f"dims names {name!r}, and the sites of the model are {', '.join(valued)}")
        if isinstance(axes, str) or len(axes) > len(valued[name].shape):
            raise ValueError(
                f"dims of {name!r} must be a list of names, at most one for each axis of {valued[name].shape}, got "
                f"{axes!r}"
            )
        named[name] = list(axes)
    sizes: dict[str, dict[str, int]] = {}
    for name, axes in named.items():
        for axis, size in zip(axes, valued[name].shape, strict=False):
            sizes.setdefault(axis, {})[name] = size
    placed = {}
    for axis, given in (coords or {}).items():
        if axis not in sizes:
            raise ValueError(
                f"coords has {axis!r}, and the axes of the model are {', '.join(sizes) or 'without names'}; dims= "
                "names axes by site"
            )
        placed[axis] = np.asarray(given)
        wrong = {name: size for name, size in sizes[axis].items() if size != placed[axis].size}
        if wrong or placed[axis].ndim != 1:
            name, size = next(iter(wrong.items()), next(iter(sizes[axis].items())))
            raise ValueError(
                f"coords of {axis!r} must be {size} labels, one a place on that axis of {name!r}, got an array of "
                f"shape {placed[axis].shape}"
            )
    return named, placed


def inference_data(
    groups: Mapping[str, Mapping[str, Any]],
    dims: Mapping[str, Sequence[str]],
    coords: Mapping[str, np.ndarray] | None = None,
    picked: Mapping[str, np.ndarray] | None = None,
) -> Any:
    """Groups of draws, with the names that ArviZ has for what NumPyro keeps of every iteration.

    Parameters
    ----------
    groups : dict of str to dict of str to array
        Arrays by name; of draws they are (chains, draws, ...). Empty groups are left out.
    dims : dict of str to list of str
        By site, names of the axes that follow chains and draws.
    coords : dict of str to array, optional
        By name of an axis, labels.
    picked : dict of str to array, optional
        By group, numbers of the draws that it is of, where these are not all.

    Returns
    -------
    arviz.InferenceData (ArviZ 0.23) or xarray.DataTree (ArviZ ≥ 1.0)
    """
    statistics = {NAMES.get(name, name): values for name, values in groups.get("sample_stats", {}).items()}
    if "lp" in statistics:
        statistics["lp"] = -statistics["lp"]
    if "n_steps" in statistics:
        statistics["tree_depth"] = np.log2(statistics["n_steps"]).astype(int) + 1
    some = {name: values for name, values in (*groups.items(), ("sample_stats", statistics)) if values}
    result = from_groups(some, dims, coords or {})
    for name in ("posterior", "sample_stats"):
        if name in some:
            library = {"inference_library": "numpyro", "inference_library_version": numpyro.__version__}
            result[name].attrs.update(library)
    for name, draws in (picked or {}).items():
        with_draws(result, name, draws)
    return result


def convergence_problems(result: Any) -> list[str]:
    """What is wrong with the chains, a sentence a criterion, which names the parameters.

    Parameters
    ----------
    result : arviz.InferenceData or xarray.DataTree
        With a group ``posterior``, and for divergences ``sample_stats``.

    Returns
    -------
    list of str
    """
    az, problems = arviz(), []
    sampled = "sample_stats" in group_names(result)
    diverging = np.asarray(result["sample_stats"]["diverging"]) if sampled else np.zeros(0)
    if np.any(diverging):
        problems.append(f"{int(np.sum(diverging))} of {diverging.size} draws diverged")
    posterior = dataset(result["posterior"])
    draws, chains = posterior.sizes["draw"], posterior.sizes["chain"]
    if draws < 4:
        return problems
    # Entries that the model fixes have variance 0, and no R-hat.
    moving = posterior[[name for name in posterior.data_vars if posterior[name].std() != 0]]
    enough = MIN_ESS_PER_CHAIN * chains
    with np.errstate(invalid="ignore", divide="ignore"):
        if chains > 1:
            worst = {name: float(each.max()) for name, each in az.rhat(moving).data_vars.items()}
            high = [f"{name} {_above(each, MAX_RHAT)}" for name, each in worst.items() if not each <= MAX_RHAT]
            problems += [f"R-hat is above {MAX_RHAT}: {', '.join(high)}"] if high else []
        for method in ("bulk", "tail"):
            least = {name: float(each.min()) for name, each in az.ess(moving, method=method).data_vars.items()}
            few = [f"{name} {np.floor(each):.0f}" for name, each in least.items() if not each >= enough]
            problems += [f"{method} effective sample size is below {enough}: {', '.join(few)}"] if few else []
    return problems


def _above(value: float, limit: float) -> str:
    """A number with as many decimals as show that it is above a limit."""
    texts = (f"{value:.{decimals}f}" for decimals in range(3, 17))
    return next((text for text in texts if float(text) > limit), f"{value}")


LARGEST_K = 0.7  # of the Pareto shape, beyond which importance weights are not to be trusted ([VSGYG])
EVEN = 2.0  # largest over smallest weight up to which the shape of their tail, which has no scale, is not looked at
LEAST = 0.5  # share of the draws that may remain, in effect


class Weights(NamedTuple):
    """Importance weights of draws.

    Attributes
    ----------
    log : ndarray (draws,)
        Smoothed, on a log scale, normalised.
    pareto_k : float
        Shape of the tail of the raw weights; 0 where these are within a factor 2.
    share : float
        Effective number of draws over their number.
    """

    log: np.ndarray
    pareto_k: float
    share: float

    @property
    def good(self) -> bool:
        """Whether the draws may be reweighted."""
        limit = min(LARGEST_K, 1 - 1 / np.log10(len(self.log)))
        return bool(self.pareto_k <= limit and self.share >= LEAST)


def smoothed_weights(log_ratios: np.ndarray) -> Weights:
    """Pareto-smoothed weights of log ratios of densities.

    Parameters
    ----------
    log_ratios : ndarray (draws,)
        Log density of the posterior less that of what was sampled.

    Notes
    -----
    Source: [VSGYG].
    """
    if not np.isfinite(log_ratios).all():
        return Weights(np.full(len(log_ratios), -np.log(len(log_ratios))), np.inf, 0.0)
    log, shape = log_ratios - log_ratios.max(), 0.0
    if np.ptp(log_ratios) > np.log(EVEN):
        log, shape = psislw(log)  # a copy, which ArviZ writes into
    log = log - np.logaddexp.reduce(log)
    return Weights(log, float(shape), float(1 / np.sum(np.exp(2 * log)) / len(log)))


def resampled(tree: Any, log_weights: np.ndarray, key: jax.Array) -> Any:
    """Draws in proportion to their weights, each chain from its own, in their order.

    Parameters
    ----------
    tree : pytree of ndarray (chains, draws, ...)
        Draws, and what belongs to them.
    log_weights : ndarray (chains, draws)
        Of the draws.
    key : jax.Array
        A JAX random key.
    """
    chains, draws = log_weights.shape
    offsets = np.asarray(jax.random.uniform(key, (chains, 1)))
    shares = np.cumsum(np.exp(log_weights - log_weights.max(axis=1, keepdims=True)), axis=1)
    places = (np.arange(draws) + offsets) / draws * shares[:, -1:]
    picked = np.stack([np.searchsorted(one, at) for one, at in zip(shares, places, strict=True)]).clip(0, draws - 1)
    return jax.tree.map(lambda leaf: np.stack([leaf[i][picked[i]] for i in range(chains)]), tree)
